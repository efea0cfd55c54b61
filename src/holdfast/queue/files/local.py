"""The file port on Linux and macOS: about one system call for each operation. ``FilePort`` says what each promises.

On macOS zeros are written instead of ``posix_fallocate``, a sync is ``F_FULLFSYNC``, and the boot id is unknown. Maps
are for Linux, where ``fdatasync`` writes what was stored through one. A store into a map cannot return an error: a
failed read, a full copy-on-write file system or a truncated file kills the process (SIGBUS).
"""

# ruff: noqa: D102 - documented in the port

from __future__ import annotations

import errno
import fcntl
import os
import sys
from contextlib import suppress
from mmap import mmap

from holdfast.boot import boot_id
from holdfast.errors import AlreadyOpen, Code, InternalError
from holdfast.files.durable_directory import make_durable_directory
from holdfast.queue.files.port import RemovedFile
from holdfast.queue.files.process import opened_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.crc32 import Octets
    from holdfast.queue.files.port import WritableMap

PARTS_MAX = 1024
ELSEWHERE = (
    "close it there, or wait for its end; one process writes a queue and has its work queues:"
    " for workers in several processes use message stores (holdfast serve)"
)
HERE = (
    "use the one that is open, or close it first: a variable that is assigned again"
    " keeps the old object until the new one is made"
)
_locks: dict[int, str] = {}
"""Where this process took each lock, ``file:line``, by the lock's open file."""
ZEROS = 1 << 20
DELETED = " (deleted)"
"""What Linux shows after the path of an open file that was removed."""
FILE_MODE = 0o600
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


class LocalFiles:
    """The operating system's files."""

    __slots__ = ()

    def make_directory(self, path: str) -> None:
        make_durable_directory(path)

    def open_directory(self, path: str) -> int:
        return os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def names(self, directory: int) -> list[str]:
        # A listing moves the position of the open directory, so concurrent listings need their own.
        own = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=directory)
        try:
            return os.listdir(own)
        finally:
            os.close(own)

    def create(self, directory: int, name: str) -> int:
        return os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, FILE_MODE, dir_fd=directory)

    def open(self, directory: int, name: str, *, write: bool) -> int:
        return os.open(name, os.O_RDWR if write else os.O_RDONLY, dir_fd=directory)

    def close(self, file: int) -> None:
        os.close(file)

    def size(self, file: int) -> int:
        return os.fstat(file).st_size

    def modified_ns(self, directory: int, name: str) -> int:
        return os.stat(name, dir_fd=directory).st_mtime_ns

    def size_of(self, directory: int, name: str) -> int:
        return os.stat(name, dir_fd=directory).st_size

    def read(self, file: int, offset: int, length: int) -> bytes:
        data = os.pread(file, length, offset)
        while len(data) < length:
            more = os.pread(file, length - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def write(self, file: int, offset: int, parts: Sequence[Octets]) -> None:
        """One system call unless it takes less."""
        if len(parts) == 1 and os.pwrite(file, parts[0], offset) == len(parts[0]):
            return  # the usual case; what was taken of it is written again below
        expected = sum(map(len, parts))
        if len(parts) <= PARTS_MAX:
            written = os.pwritev(file, parts, offset)
            if written == expected:
                return
        else:
            written = 0
        rest = memoryview(b"".join(parts))
        while written < expected:
            step = os.pwrite(file, rest[written:], offset + written)
            if step == 0:
                raise OSError(errno.EIO, "nothing was written")
            written += step

    def allocate(self, file: int, length: int) -> None:
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(file, 0, length)
            except OSError as error:
                # Not every C library writes zeros by itself where the file system cannot allocate.
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                    raise
            else:
                return
        for offset in range(os.fstat(file).st_size, length, ZEROS):
            self.write(file, offset, (bytes(min(ZEROS, length - offset)),))

    def truncate(self, file: int, length: int) -> None:
        os.ftruncate(file, length)

    def map(self, file: int, length: int) -> WritableMap | None:
        """None for a file that is shorter: storing after its end would kill the process."""
        if sys.platform != "linux" or os.fstat(file).st_size < length:
            return None
        return mmap(file, length)

    def unmap(self, view: WritableMap) -> None:
        if isinstance(view, bytearray):
            raise InternalError("this map was not made here")
        view.close()

    def sync_data(self, file: int) -> None:
        if _FULL_SYNC is not None:
            fcntl.fcntl(file, _FULL_SYNC)
        else:
            os.fdatasync(file)
        if not os.fstat(file).st_nlink:  # after the sync: it includes a removal during the sync
            _raise_if_removed(file)

    def sync_directory(self, directory: int) -> None:
        os.fsync(directory)

    def rename(self, directory: int, old: str, new: str) -> None:
        os.replace(old, new, src_dir_fd=directory, dst_dir_fd=directory)

    def unlink(self, directory: int, name: str) -> None:
        os.unlink(name, dir_fd=directory)

    def lock(self, directory: int, name: str) -> int:
        """The file holds the process id of its holder, for people and for the error."""
        file = os.open(name, os.O_CREAT | os.O_RDWR, FILE_MODE, dir_fd=directory)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(file, 32, 0).strip().decode("ascii", "replace")
            here = holder == str(os.getpid())
            opened_here = _taken_at(file) if here else None
            os.close(file)
            if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES):
                raise
            raise AlreadyOpen(
                "this process has it open already" if here else "another process has it open",
                code=Code.ALREADY_OPEN,
                file=name,
                pid=holder or None,
                opened_at=opened_here,
                hint=HERE if here else ELSEWHERE,
            ) from error
        try:
            # Fixed width: truncating can wait for the file system's journal.
            os.pwrite(file, b"%-20d\n" % os.getpid(), 0)
        except BaseException:
            self.unlock(file)  # a full disk: the caller does not know this lock and would not release it
            raise
        _locks[file] = opened_at()
        return file

    def unlock(self, file: int) -> None:
        """Closing alone would leave the lock to a forked child that has not closed it yet."""
        _locks.pop(file, None)
        try:
            fcntl.flock(file, fcntl.LOCK_UN)
        finally:
            os.close(file)

    def boot_id(self) -> bytes:
        """Linux has one."""
        return boot_id()


def _raise_if_removed(file: int) -> None:
    """Raise ``RemovedFile`` for a file without a link. Some file systems count no links; Linux shows what is true."""
    try:
        path = os.readlink(f"/proc/self/fd/{file}")
    except OSError:
        path = DELETED  # there is no such place
    if path.endswith(DELETED):
        raise RemovedFile(errno.ENOENT, "another program removed this file", path.removesuffix(DELETED) or None)


def lock_taken_at(file: int) -> str | None:
    """Where the program took this lock, ``file:line``; None for a file that is not a lock."""
    return _locks.get(file)


def _taken_at(contended: int) -> str | None:
    """Where this process took the lock that another open file of it, ``contended``, was refused."""
    wanted = os.fstat(contended)
    for file, location in [*_locks.items()]:
        with suppress(OSError):  # another thread has released it
            if os.path.samestat(os.fstat(file), wanted):
                return location
    return None
