"""The file operations of the directory store.

One method per operation, so that a test can record them, fail the n-th, or forget what was not synced. Every method
raises ``OSError`` as the system does. No operation that gives a name replaces an existing one.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from typing import Final

from holdfast.files.durable_directory import SystemDirectories
from holdfast.files.private_files import FILE_MODE
from holdfast.objects.directory.identity import Inode, unstable

LOOKS_MAX: Final = 4
"""A directory that is replaced while it is opened looks the same twice after that; one more for each replacement."""

NOT_HERE = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EINVAL, errno.EISDIR, errno.ENOENT})
"""How systems say that they cannot do this kind of thing here."""
RENAME_NOREPLACE = 1
UNNAMED: int | None = getattr(os, "O_TMPFILE", None)


class PosixFiles(SystemDirectories):
    """File operations. Directories and files are small integers, names are relative to an open directory."""

    def create(self, directory: int, name: str) -> int:
        """A new empty file, open for writing; FileExistsError when the name is taken."""
        return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE, dir_fd=directory)

    def create_unnamed(self, directory: int) -> int:
        """A new empty file without a name, open for writing; it is gone when it is closed before it has one."""
        if UNNAMED is None:
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
        return os.open(".", os.O_WRONLY | UNNAMED | os.O_CLOEXEC, FILE_MODE, dir_fd=directory)

    def open(self, directory: int, name: str) -> int:
        """An existing file, for reading."""
        return os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)

    def open_note(self, directory: int, name: str) -> int:
        """A small file for reading and writing, made when absent."""
        return os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE, dir_fd=directory)

    def write(self, file: int, data: bytes | memoryview) -> None:
        """Write all of ``data`` at the start of the file."""
        rest = memoryview(data)
        at = 0
        while at < len(rest):
            at += os.pwrite(file, rest[at:], at)

    def read(self, file: int, start: int, length: int | None) -> bytes:
        """The bytes from ``start``, at most ``length`` of them, fewer where the file ends."""
        wanted = max(0, os.fstat(file).st_size - start)
        if length is not None:
            wanted = min(wanted, length)
        parts: list[bytes] = []
        while wanted > 0 and (part := os.pread(file, wanted, start)):
            parts.append(part)
            start += len(part)
            wanted -= len(part)
        return b"".join(parts)

    def sync_data(self, file: int) -> None:
        """The bytes and size of a file are durable on return."""
        os.fdatasync(file)

    def link(self, source: int, source_name: str, target: int, target_name: str) -> None:
        """Give a file a further name; FileExistsError when that is taken."""
        os.link(source_name, target_name, src_dir_fd=source, dst_dir_fd=target)

    def give_name(self, file: int, target: int, target_name: str) -> None:
        """Give an unnamed file its name; FileExistsError when that is taken."""
        # This name is a symbolic link to the file, which ``os.link`` follows.
        os.link(f"/proc/self/fd/{file}", target_name, dst_dir_fd=target)

    def rename(self, source: int, source_name: str, target: int, target_name: str) -> None:
        """Move a file to another name; FileExistsError when that is taken."""
        # Python has no renameat2; os.rename would replace what is there.
        import ctypes

        function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        if function is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        if function(source, source_name.encode(), target, target_name.encode(), RENAME_NOREPLACE) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), target_name)

    def unlink(self, directory: int, name: str) -> None:
        """Remove a name of a file."""
        os.unlink(name, dir_fd=directory)

    def remove_directory(self, directory: int, name: str) -> None:
        """Remove an empty directory."""
        os.rmdir(name, dir_fd=directory)

    def size(self, directory: int, name: str) -> int | None:
        """The bytes of a file, None when there is no such file."""
        try:
            return os.stat(name, dir_fd=directory).st_size
        except FileNotFoundError:
            return None

    def names(self, directory: int) -> Iterator[tuple[str, bool]]:
        """Every name in a directory and whether it is a directory, in no order."""
        with os.scandir(directory) as entries:
            for entry in entries:
                yield entry.name, entry.is_dir(follow_symlinks=False)

    def lock(self, directory: int) -> bool:
        """Take the advisory lock of a directory for as long as it is open; False when another holds it."""
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def identity(self, directory: int) -> Inode:
        """The device and inode of an open directory."""
        status = os.fstat(directory)
        return Inode(status.st_dev, status.st_ino)

    def identity_at(self, path: str) -> Inode:
        """Those of what a path names now; FileNotFoundError when it is absent."""
        status = os.stat(path)
        return Inode(status.st_dev, status.st_ino)

    def is_removed(self, directory: int) -> bool:
        """Whether an open directory has no name any more."""
        return os.fstat(directory).st_nlink == 0


def settled(files: PosixFiles, path: str) -> tuple[int, Inode]:
    """Open ``path``: the handle, and the identity that its path had at two looks. Raises: OSError, Unstable."""
    handle = files.open_directory(path)
    try:
        for _ in range(LOOKS_MAX):
            identity = files.identity(handle)
            again = files.open_directory(path)
            files.close(handle)
            handle = again
            if identity == files.identity(handle) == files.identity_at(path):
                return handle, identity
        raise unstable(path)
    except BaseException:
        files.close(handle)
        raise
