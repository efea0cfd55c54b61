"""What a failed Spark job says about us: the error that a task raised, out of Spark's text.

Owns: finding one of our errors in the text of Spark's. Does not own: what the errors mean (``errors``).

A task's error reaches the driver as text inside Spark's own exception. The runner must know whether it may try again
(Unavailable) or has met damage (CorruptData), so the name and the message are read back from that text. What is not
ours stays Spark's exception.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from pyspark.errors import PySparkException

from holdfast import errors
from holdfast.errors import HoldfastError

__all__ = ["task_errors"]

_OURS: Final = re.compile(r"^holdfast\.errors\.([A-Za-z]+): (.*)$", re.MULTILINE)


@contextmanager
def task_errors() -> Generator[None]:
    """Raise our own error where Spark's exception carries the text of one. Raises: HoldfastError."""
    try:
        yield
    except PySparkException as error:
        ours = _ours(str(error))
        if ours is None:
            raise
        raise ours from error


def _ours(text: str) -> HoldfastError | None:
    for name, message in reversed(_OURS.findall(text)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, HoldfastError):
            return kind(message)
    return None
