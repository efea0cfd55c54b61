"""``FilePort``: the file operations of a queue.

Every operation raises ``OSError`` and has then done all, none or a part of its work. After a crash of the machine,
bytes survive that ``sync_data`` returned for, in files whose names ``sync_directory`` returned for. Everything else may
survive in any part. A killed process loses nothing.
"""

from __future__ import annotations

from typing import Protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from mmap import mmap
    from typing import TypeAlias

    from holdfast.crc32 import Octets

    WritableMap: TypeAlias = mmap | bytearray


class RemovedFile(OSError):
    """Another program removed an open file: its bytes are lost when it is closed. ``filename``, where it is known."""


class FilePort(Protocol):
    """File operations. Directories and files are small integers; names are relative to an open directory."""

    def make_directory(self, path: str) -> None:
        """A directory and those above it, durable in their file system: made, or there before."""

    def open_directory(self, path: str) -> int:
        """FileNotFoundError when it is absent."""
        ...

    def names(self, directory: int) -> list[str]:
        """The files in a directory, in any order."""
        ...

    def create(self, directory: int, name: str) -> int:
        """A new empty file, open for reading and writing; FileExistsError when the name is taken."""
        ...

    def open(self, directory: int, name: str, *, write: bool) -> int:
        """An existing file; FileNotFoundError when it is absent."""
        ...

    def close(self, file: int) -> None:
        """Close a file or directory. Syncs nothing."""

    def size(self, file: int) -> int:
        """Bytes in an open file."""
        ...

    def modified_ns(self, directory: int, name: str) -> int:
        """When the file was last written, nanoseconds since 1970, by the file system's clock."""
        ...

    def size_of(self, directory: int, name: str) -> int:
        """Bytes in a named file, as they count against a limit."""
        ...

    def read(self, file: int, offset: int, length: int) -> bytes:
        """The bytes from ``offset``: at most ``length``, fewer only where the file ends."""
        ...

    def write(self, file: int, offset: int, parts: Sequence[Octets]) -> None:
        """Write all parts, one after the other, from ``offset``. On an error any of their bytes may be there."""

    def allocate(self, file: int, length: int) -> None:
        """Make the file ``length`` bytes of zeros with room on disk for each; OSError (ENOSPC) when there is none."""

    def truncate(self, file: int, length: int) -> None:
        """Cut a file."""

    def map(self, file: int, length: int) -> WritableMap | None:
        """The first ``length`` bytes of an *allocated* file as writable memory, or None where that is not offered.

        A store into the map is a ``write`` as far as crashes, other readers and ``sync_data`` are concerned.
        """

    def unmap(self, view: WritableMap) -> None:
        """Give a map back."""

    def sync_data(self, file: int) -> None:
        """The bytes and size of the file are durable on return. Never repeated after an error.

        Raises: ``RemovedFile`` if the file has no name any more. A port that cannot find that out does not raise it.
        """

    def sync_directory(self, directory: int) -> None:
        """The names in the directory are durable on return."""

    def rename(self, directory: int, old: str, new: str) -> None:
        """Replaces ``new``, all at once."""

    def unlink(self, directory: int, name: str) -> None:
        """Remove a name; FileNotFoundError when it is absent."""

    def lock(self, directory: int, name: str) -> int:
        """Hold the lock file ``name``, made when absent, until it is closed or the process ends.

        Raises: ``holdfast.errors.AlreadyOpen`` when another holds it, naming its process where that is known.
        """
        ...

    def unlock(self, file: int) -> None:
        """Give a lock back and close its file: a child forked since shares the lock, and must not keep it."""

    def boot_id(self) -> bytes:
        """16 bytes that change whenever the page cache is lost; zeros where that is not known."""
        ...
