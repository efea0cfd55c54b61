"""Files and directories that only their owner may read and write: they hold the application's data, or secrets."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
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
    """Make existing files private, as after a restore with other rights. A file of another owner stays as it is."""
    for path in paths:
        with suppress(OSError):
            os.chmod(path, FILE_MODE)


def others_can_write(path: Path) -> bool:
    """Whether every user of the machine can write a file. Raises: OSError."""
    return bool(path.stat().st_mode & stat.S_IWOTH)


def openness_of(paths: Iterable[Path]) -> list[str]:
    """What is too open about files with secrets, a sentence each. A file that is not there has its own error."""
    problems: list[str] = []
    for path in paths:
        with suppress(OSError):
            mode, folder = path.stat().st_mode, path.parent.stat().st_mode
            if mode & stat.S_IWOTH:
                problems.append(f"every user can write {path}: chmod o-w it")
            elif mode & stat.S_IWGRP:
                problems.append(f"the group can write {path}: chmod g-w it")
            if mode & stat.S_IROTH:
                problems.append(f"every user can read {path}: chmod o-r it")
            if folder & stat.S_IWOTH and not folder & stat.S_ISVTX:
                problems.append(f"every user can replace {path}: its directory is open, chmod o-w {path.parent}")
    return problems
