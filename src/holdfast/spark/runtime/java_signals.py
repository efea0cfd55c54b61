"""Keep Java alive when a supervisor sends SIGTERM to the process group of a command.

The command ends after its current step, and needs Java for the rest of that step. Java then ends with the command. A
signal that is ignored when a program starts stays ignored, and Java leaves it so.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager

_is_starting = False
_is_registered = False


@contextmanager
def java_without_sigterm() -> Generator[None]:
    """Java, if it is started meanwhile, ignores SIGTERM; this process does not."""
    global _is_starting, _is_registered
    if not _is_registered:
        os.register_at_fork(after_in_child=_ignore_sigterm)
        _is_registered = True
    _is_starting = True
    try:
        yield
    finally:
        _is_starting = False


def _ignore_sigterm() -> None:
    """In the child, before it runs another program: PySpark starts Java with a ``preexec_fn``, so hooks run."""
    if _is_starting:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
