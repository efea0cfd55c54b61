"""The file port on the operating system: Linux and macOS.

Owns: one system call, or nearly, for each operation. Does not own: their order.

Failure model: ``OSError`` as the system raises it. Files are closed in children that execute another program. Where
``posix_fallocate`` is absent (macOS) or refused, zeros are written: slower, and as safe. On macOS a sync is
``F_FULLFSYNC``, because ``fsync`` there stops at the drive's cache; and no boot id is known, so that a start after a
kill reads from the last sync on.

Maps are for Linux, where ``fdatasync`` writes what was stored through one; elsewhere that takes another call. A store
into a map cannot be answered with an error: where the disk fails to read the block, or a file system that copies on
write (btrfs, ZFS) has no room for it although it was allocated, or somebody cuts the file, the process is killed
(SIGBUS), and is found as after any kill.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from mmap import mmap

from holdfast.errors import AlreadyOpen, Code, InternalError
from holdfast.queue.dropped import opened_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.queue.checksum import Octets
    from holdfast.queue.file_port import WritableMap

__all__ = ["LocalFiles", "lock_taken_at"]

PARTS_MAX = 1024
ELSEWHERE = (
    "close it there, or wait for its end; one process writes a queue and has its work queues:"
    " for workers in several processes use message stores (holdfast serve)"
)
HERE = (
    "use the one that is open, or close it first: a variable that is assigned again"
    " keeps the old object until the new one is made"
)
_opened: dict[tuple[int, int, str], str] = {}
"""Where this process took each lock: by device and number of the directory, and the lock's name."""
_locks: dict[int, tuple[int, int, str]] = {}
"""The locks of this process by their open files."""
ZEROS = 1 << 20
BOOT_ID = "/proc/sys/kernel/random/boot_id"
FILE_MODE, DIRECTORY_MODE = 0o600, 0o700
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


class LocalFiles:
    """The operating system's files."""

    __slots__ = ("_boot_id",)

    def __init__(self) -> None:
        self._boot_id: bytes | None = None

    def make_directory(self, path: str) -> None:
        """See ``FilePort``. The directories above the last one made are synced, so that it cannot vanish."""
        missing: list[str] = []
        while path and not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for made in reversed(missing):
            try:
                os.mkdir(made, DIRECTORY_MODE)
            except FileExistsError:
                continue
            above = self.open_directory(os.path.dirname(made) or ".")
            try:
                self.sync_directory(above)
            finally:
                os.close(above)

    def open_directory(self, path: str) -> int:
        """See ``FilePort``."""
        return os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)

    def names(self, directory: int) -> list[str]:
        """See ``FilePort``."""
        # A listing moves the position of the open directory, so two threads with one would share its names out.
        own = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=directory)
        try:
            return os.listdir(own)
        finally:
            os.close(own)

    def create(self, directory: int, name: str) -> int:
        """See ``FilePort``."""
        return os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, FILE_MODE, dir_fd=directory)

    def open(self, directory: int, name: str, *, write: bool) -> int:
        """See ``FilePort``."""
        return os.open(name, os.O_RDWR if write else os.O_RDONLY, dir_fd=directory)

    def close(self, file: int) -> None:
        """See ``FilePort``."""
        os.close(file)

    def size(self, file: int) -> int:
        """See ``FilePort``."""
        return os.fstat(file).st_size

    def modified_ns(self, directory: int, name: str) -> int:
        """See ``FilePort``."""
        return os.stat(name, dir_fd=directory).st_mtime_ns

    def size_of(self, directory: int, name: str) -> int:
        """See ``FilePort``."""
        return os.stat(name, dir_fd=directory).st_size

    def read(self, file: int, offset: int, length: int) -> bytes:
        """See ``FilePort``."""
        data = os.pread(file, length, offset)
        while len(data) < length:
            more = os.pread(file, length - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def write(self, file: int, offset: int, parts: Sequence[Octets]) -> None:
        """See ``FilePort``. One system call unless it takes less."""
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
        """See ``FilePort``."""
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
        """See ``FilePort``."""
        os.ftruncate(file, length)

    def map(self, file: int, length: int) -> WritableMap | None:
        """See ``FilePort``. None for a file that is shorter: storing behind its end would kill the process."""
        if sys.platform != "linux" or os.fstat(file).st_size < length:
            return None
        return mmap(file, length)

    def unmap(self, view: WritableMap) -> None:
        """See ``FilePort``."""
        if isinstance(view, bytearray):
            raise InternalError("this map was not made here")
        view.close()

    def sync_data(self, file: int) -> None:
        """See ``FilePort``."""
        if _FULL_SYNC is not None:
            fcntl.fcntl(file, _FULL_SYNC)
        else:
            os.fdatasync(file)

    def sync_directory(self, directory: int) -> None:
        """See ``FilePort``."""
        os.fsync(directory)

    def rename(self, directory: int, old: str, new: str) -> None:
        """See ``FilePort``."""
        os.replace(old, new, src_dir_fd=directory, dst_dir_fd=directory)

    def unlink(self, directory: int, name: str) -> None:
        """See ``FilePort``."""
        os.unlink(name, dir_fd=directory)

    def lock(self, directory: int, name: str) -> int:
        """See ``FilePort``. The file holds the process id of its holder, for people and for the error."""
        file = os.open(name, os.O_CREAT | os.O_RDWR, FILE_MODE, dir_fd=directory)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(file, 32, 0).strip().decode("ascii", "replace")
            os.close(file)
            if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES):
                raise
            here = holder == str(os.getpid())
            raise AlreadyOpen(
                "this process has it open already" if here else "another process has it open",
                code=Code.ALREADY_OPEN,
                file=name,
                pid=holder or None,
                opened_at=_opened.get(_lock_of(directory, name)) if here else None,
                hint=HERE if here else ELSEWHERE,
            ) from error
        try:
            # Of a fixed width, because cutting the file can wait for the file system's journal.
            os.pwrite(file, b"%-20d\n" % os.getpid(), 0)
        except BaseException:
            self.unlock(file)  # a full disk: nobody knows of this lock, and so nobody else would give it back
            raise
        lock = _locks[file] = _lock_of(directory, name)
        _opened[lock] = opened_at()
        return file

    def unlock(self, file: int) -> None:
        """See ``FilePort``. Closing alone would leave the lock to a forked child that has not let go of it yet."""
        lock = _locks.pop(file, None)
        if lock is not None:
            _opened.pop(lock, None)
        try:
            fcntl.flock(file, fcntl.LOCK_UN)
        finally:
            os.close(file)

    def boot_id(self) -> bytes:
        """See ``FilePort``. Linux has one."""
        if self._boot_id is None:
            try:
                file = os.open(BOOT_ID, os.O_RDONLY)
                try:
                    text = os.read(file, 64).decode("ascii")
                finally:
                    os.close(file)
                self._boot_id = bytes.fromhex(text.replace("-", ""))[:16].ljust(16, b"\0")
            except (OSError, ValueError):
                self._boot_id = bytes(16)
        return self._boot_id


def lock_taken_at(file: int) -> str | None:
    """The place in the program where this lock was taken; None for what is not a lock."""
    lock = _locks.get(file)
    return None if lock is None else _opened.get(lock)


def _lock_of(directory: int, name: str) -> tuple[int, int, str]:
    found = os.fstat(directory)
    return found.st_dev, found.st_ino, name
