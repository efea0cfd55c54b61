"""Temporary directories, for work that is larger than memory: snapshots, views, checks."""

from __future__ import annotations

import errno
import sqlite3
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Final

from holdfast.errors import Code, HoldfastError, InvalidRequest, Unavailable

HINT: Final = "set TMPDIR to a directory on a disk with free space that this user may write"


def temporary_directory(prefix: str) -> TemporaryDirectory[str]:
    """A new directory, removed when it is closed or its process ends. Raises: as ``unusable``."""
    try:
        return TemporaryDirectory(prefix=prefix)
    except OSError as error:
        raise unusable(error) from error


@contextmanager
def temporary_work() -> Generator[None]:
    """Raise what the disk says to work in a temporary directory as ``unusable``."""
    try:
        yield
    except ConnectionError:
        raise  # of a pipe or a socket
    except (OSError, sqlite3.OperationalError) as error:
        raise unusable(error) from error


def unusable(error: OSError | sqlite3.OperationalError) -> HoldfastError:
    """The error where there is no temporary directory (``bad_configuration``), or its disk is full (``disk_full``)."""
    if isinstance(error, OSError):
        is_full, cause = error.errno in (errno.ENOSPC, errno.EDQUOT), error.strerror or str(error)
    else:
        is_full, cause = error.sqlite_errorcode == sqlite3.SQLITE_FULL, str(error)
    if is_full:
        return Unavailable(
            "the disk for temporary files is full", code=Code.DISK_FULL, hint=HINT, directory=_directory()
        )
    return InvalidRequest(
        "temporary files cannot be written", code=Code.BAD_CONFIGURATION, hint=HINT, directory=_directory(), cause=cause
    )


def _directory() -> str | None:
    try:
        return tempfile.gettempdir()
    except OSError:
        return None  # none of the usual ones; the cause names them
