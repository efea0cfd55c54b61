"""Files that only their owner may read and write: messages are the application's, not everybody's."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

__all__ = ["FILE_MODE", "make_private", "private"]

FILE_MODE: Final = 0o600


def private(path: str, flags: int) -> int:
    """An ``opener`` for ``open``."""
    return os.open(path, flags, FILE_MODE)


def make_private(path: str) -> None:
    """Make a file before a library does it with other rights; one that is there stays as it is.

    Where that fails the library fails next, with its own error.
    """
    with suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
