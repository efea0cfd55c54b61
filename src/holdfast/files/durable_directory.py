"""Directories, trees and replaced files whose names survive a power cut.

A new directory is durable once the directory above it was synced. A start that was killed between the two leaves a
directory that looks like a durable one. So every start syncs all directories above, also where it makes none:

| the power is cut after | left |
|---|---|
| some of the missing directories are made | any of them, or none |
| all are made, and some directories above are synced | the same |
| the directory at the root of the file system, or the last one below another file system, is synced | all of them |

``make_durable_directory`` returns in the last line only. No other module makes a directory in which the application's
data are kept (``scripts/check_source.py``).
"""

from __future__ import annotations

import errno
import logging
import os
from contextlib import suppress
from typing import Final

from holdfast.files.private_files import DIRECTORY_MODE, private

REPORTED_MAX: Final = 1_000
HINT: Final = "let this user read that directory: then each start syncs it"

_logger = logging.getLogger(__name__)
_reported: set[str] = set()
"""Directories that were skipped and logged by this process."""


class SystemDirectories:
    """The operations that make a directory durable, a system call each. Each raises ``OSError`` as the system does."""

    __slots__ = ()

    def make_directory(self, path: str) -> None:
        """Make one directory; FileExistsError when the name is taken."""
        os.mkdir(path, DIRECTORY_MODE)

    def open_directory(self, path: str) -> int:
        """Open a directory for ``sync_directory``; FileNotFoundError when it is absent."""
        return os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def sync_directory(self, directory: int) -> None:
        """The names in an open directory are durable on return."""
        os.fsync(directory)

    def close(self, handle: int) -> None:
        """Close a directory or a file."""
        os.close(handle)

    def device(self, path: str) -> int | None:
        """The file system of the directory at ``path``; None when there is no directory."""
        try:
            # With a slash a name that is not a directory raises.
            return os.stat(f"{path}/").st_dev
        except (FileNotFoundError, NotADirectoryError):
            return None

    def real_path(self, path: str) -> str:
        """The absolute path without symbolic links."""
        return os.path.realpath(path)

    def is_read_only(self, directory: int) -> bool:
        """Whether the file system of an open directory is mounted so."""
        return bool(os.fstatvfs(directory).f_flag & os.ST_RDONLY)


def make_durable_directory(path: str, files: SystemDirectories | None = None) -> None:
    """Make a directory and those above it that are missing, and make their names durable, also where all are there.

    A directory above that may not be opened is not synced, and logged once. Raises: OSError, also of a failed sync;
    then any of them may be there. After a crash: see the module. Cost: a sync for each directory above.
    """
    files = files or SystemDirectories()
    path = path or "."
    missing: list[str] = []
    above = path
    while files.device(above) is None and above not in missing:
        missing.append(above)
        above = os.path.dirname(above) or "."
    for each in reversed(missing):
        with suppress(FileExistsError):
            files.make_directory(each)
    device = files.device(path)
    if device is None:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    _sync_above(files.real_path(path), device, files, made=len(missing))


def _sync_above(own: str, device: int, files: SystemDirectories, *, made: int) -> None:
    """Sync the directories above ``own`` in its file system. ``made``: how many of the lowest names are new."""
    above = os.path.dirname(own)
    while above != own:
        try:
            if files.device(above) != device:
                return
            handle = files.open_directory(above)
        except PermissionError as error:
            _report(above, error, has_new_name=made > 0)
        else:
            try:
                _sync(handle, files)
            finally:
                files.close(handle)
        made -= 1
        own, above = above, os.path.dirname(above)


def _sync(handle: int, files: SystemDirectories) -> None:
    try:
        files.sync_directory(handle)
    except OSError:
        # Some file systems that are never written to refuse every sync.
        if not files.is_read_only(handle):
            raise


def _report(directory: str, error: OSError, *, has_new_name: bool) -> None:
    """Log that a directory is not synced: a risk where a name in it is new, else most likely durable for long."""
    if directory in _reported or len(_reported) >= REPORTED_MAX:
        return
    _reported.add(directory)
    _logger.log(
        logging.WARNING if has_new_name else logging.INFO,
        "a directory above the data may not be opened and is not synced directory=%s cause=%s hint=%s",
        directory,
        error.strerror,
        HINT,
    )


def sync_directory(path: str) -> None:
    """Make the names in a directory durable. Raises: OSError."""
    _sync_path(path, os.O_DIRECTORY)


def sync_tree(directory: str) -> None:
    """Make everything in a directory durable, not its own name. Raises: OSError. Cost: a sync for each file and
    directory."""

    def fail(error: OSError) -> None:
        raise error

    for folder, _, names in os.walk(directory, onerror=fail):
        for name in names:
            _sync_path(os.path.join(folder, name), 0)
        sync_directory(folder)


def _sync_path(path: str, flags: int) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_durably(path: str, data: bytes) -> None:
    """Replace a small file by one with these bytes, which only its owner may read. Raises: OSError, and the old or the
    new file is there. After a crash: the same, and the new one once this has returned. Cost: two syncs."""
    unfinished = path + ".new"
    with open(unfinished, "wb", opener=private) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)
    sync_directory(os.path.dirname(path) or ".")
