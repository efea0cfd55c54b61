"""Files and directories that only their owner may read and write, because they hold the application's data."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700


def private(path: str, flags: int) -> int:
    """An ``opener`` for ``open``."""
    return os.open(path, flags, FILE_MODE)


def make_private(path: str) -> None:
    """Make a file before a library makes it with other rights; one that is there stays as it is. Where that fails the
    library fails next, with its own error."""
    with suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))


def restrict_to_owner(*paths: str) -> None:
    """Make existing files private: an earlier version created them with the rights of the umask. A file of another
    owner stays as it is."""
    for path in paths:
        with suppress(OSError):
            os.chmod(path, FILE_MODE)
