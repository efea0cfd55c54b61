"""The queue's file port in memory, harsher than a file system, with injected errors and images of what a crash leaves.

After a crash each name in a directory is what it was at any time since the last sync of the directory, whatever became
of the others. ``before`` is called before each operation that changes something, and once in the middle of a write; it
may take images of what a crash at that moment leaves. ``during_sync`` writes while a sync is under way, as another
thread would. ``refuse`` may answer an operation with an error: a refused write has written some of its bytes, a refused
sync has dropped some, and a refused sync of a directory some of its names. ``page_cache`` has the bytes of one file.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Final

from tests.worlds.harness import SeededWorld
from tests.worlds.queue.page_cache import BLOCK_BYTES, SECTOR_BYTES, CachedFile, CrashStyle

from holdfast.errors import AlreadyOpen, InternalError
from holdfast.queue.files.port import RemovedFile

if TYPE_CHECKING:
    from holdfast.queue.files.port import WritableMap
    from holdfast.queue.format.checksum import Octets

__all__ = ["DIRECTORY", "PATH", "PREFIX", "CachedDirectory", "CrashFiles", "QueueWorld"]

PATH: Final = "d/q"
DIRECTORY: Final = "d"
PREFIX: Final = "q"
"""Where the queue of a world is."""

Refusal = Callable[[str, str], "OSError | None"]
Graveyard = dict[str, bytes]


class CachedDirectory:
    """Names. ``versions`` holds, for each name changed since the last sync, what was on disk and then each state."""

    __slots__ = ("durable", "entries", "locks", "versions")

    def __init__(self) -> None:
        self.entries: dict[str, CachedFile] = {}
        self.durable: dict[str, CachedFile] = {}
        self.versions: dict[str, list[CachedFile | None]] = {}
        self.locks: set[str] = set()

    def put(self, name: str, file: CachedFile | None) -> None:
        """Let a name mean a file, or nothing."""
        self.versions.setdefault(name, [self.durable.get(name)]).append(file)
        if file is None:
            del self.entries[name]
        else:
            self.entries[name] = file

    def sync(self) -> None:
        """The names that were changed are on disk."""
        self._reach(lambda _: -1)

    def fail_sync(self, style: CrashStyle) -> None:
        """Some of them are, and none is to be written any more: the next sync has nothing to do and succeeds."""
        self._reach(lambda versions: style.pick(len(versions)))

    def _reach(self, choose: Callable[[list[CachedFile | None]], int]) -> None:
        for name, versions in self.versions.items():
            file = versions[choose(versions)]
            if file is None:
                self.durable.pop(name, None)
            else:
                self.durable[name] = file
        self.versions.clear()

    def after_power_loss(self, style: CrashStyle) -> CachedDirectory:
        """The directory as the next start of the machine finds it."""
        found = dict(self.durable)
        for name in sorted(self.versions):
            versions = self.versions[name]
            chosen = style.pick(len(versions))
            file = versions[chosen]
            if chosen < len(versions) - 1:
                style.seen["name lost" if versions[-1] is not None else "removed name back"] += 1
            if file is None:
                found.pop(name, None)
            else:
                found[name] = file
        after = CachedDirectory()
        survivors: dict[int, CachedFile] = {}
        for name, file in sorted(found.items()):
            if id(file) not in survivors:
                survivors[id(file)] = file.after_power_loss(style)
            after.entries[name] = survivors[id(file)]
        after.durable = dict(after.entries)
        return after

    def after_kill(self) -> CachedDirectory:
        """The directory as the next process finds it."""
        files = [*self.entries.values(), *self.durable.values()]
        files += [file for versions in self.versions.values() for file in versions if file is not None]
        copies = {id(file): file for file in files}
        copies = {key: file.after_kill() for key, file in copies.items()}
        after = CachedDirectory()
        after.entries = {name: copies[id(file)] for name, file in self.entries.items()}
        after.durable = {name: copies[id(file)] for name, file in self.durable.items()}
        after.versions = {
            name: [None if file is None else copies[id(file)] for file in versions]
            for name, versions in self.versions.items()
        }
        return after


class CrashFiles:
    """A file system with one machine under it. ``random`` decides what crashes leave, and nothing else."""

    def __init__(self, random: Random, *, graveyard: Graveyard | None = None, seen: Counter[str] | None = None) -> None:
        self.random = random
        self.graveyard: Graveyard = {} if graveyard is None else graveyard
        self.seen: Counter[str] = Counter() if seen is None else seen
        self.directories: dict[str, CachedDirectory] = {}
        self.boot = 1
        self.now_ns = 0
        self.operations = 0
        self.before: Callable[[str], None] | None = None
        self.during_sync: Callable[[], None] | None = None
        self.refuse: Refusal | None = None
        self._handles: dict[int, tuple[CachedDirectory, str, CachedFile | None]] = {}
        self._next_handle = 3

    # ---- crashes ----------------------------------------------------------------------------------------------------

    def after_power_loss(self, random: Random) -> CrashFiles:
        """A new machine's run with what this one may have left on disk. This one goes on."""
        style = CrashStyle(random, self.seen, self._stale)
        return self._image(random, self.boot + 1, lambda directory: directory.after_power_loss(style))

    def after_kill(self, random: Random) -> CrashFiles:
        """The same machine after its processes were killed. This one goes on."""
        return self._image(random, self.boot, CachedDirectory.after_kill)

    def _image(self, random: Random, boot: int, survive: Callable[[CachedDirectory], CachedDirectory]) -> CrashFiles:
        after = CrashFiles(random, graveyard=self.graveyard, seen=self.seen)
        after.boot = boot
        after.now_ns = self.now_ns
        after.directories = {path: survive(found) for path, found in self.directories.items()}
        return after

    def _stale(self, name: str, number: int) -> bytes | None:
        old = self.graveyard.get(name.removesuffix(".tmp"), b"")
        block = old[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]
        return block.ljust(BLOCK_BYTES, b"\0") if block else None

    @contextmanager
    def quiet(self) -> Generator[None]:
        """Operations that are not part of the world: nothing crashes, nothing is refused."""
        before, refuse, count = self.before, self.refuse, self.operations
        self.before = self.refuse = None
        try:
            yield
        finally:
            self.before, self.refuse, self.operations = before, refuse, count

    def _step(self, operation: str, name: str = "") -> OSError | None:
        self.operations += 1
        if self.before is not None:
            self.before(operation)
        return self.refuse(operation, name) if self.refuse is not None else None

    def _step_or_raise(self, operation: str, name: str = "") -> None:
        error = self._step(operation, name)
        if error is not None:
            raise error

    # ---- names ------------------------------------------------------------------------------------------------------

    def make_directory(self, path: str) -> None:
        """See ``FilePort``."""
        self.directories.setdefault(path, CachedDirectory())

    def open_directory(self, path: str) -> int:
        """See ``FilePort``."""
        if path not in self.directories:
            raise FileNotFoundError(errno.ENOENT, path)
        return self._handle(self.directories[path], "", None)

    def names(self, directory: int) -> list[str]:
        """See ``FilePort``. In an order of its own."""
        found = list(self._directory(directory).entries)
        return found[::-1]

    def create(self, directory: int, name: str) -> int:
        """See ``FilePort``."""
        self._step_or_raise("create", name)
        found = self._directory(directory)
        if name in found.entries:
            raise FileExistsError(errno.EEXIST, name)
        file = CachedFile(name)
        file.modified_ns = self.now_ns
        found.put(name, file)
        return self._handle(found, name, file)

    def open(self, directory: int, name: str, *, write: bool) -> int:
        """See ``FilePort``."""
        return self._handle(self._directory(directory), name, self._named(directory, name))

    def rename(self, directory: int, old: str, new: str) -> None:
        """See ``FilePort``."""
        self._step_or_raise("rename", new)
        found, file = self._directory(directory), self._named(directory, old)
        found.put(new, file)
        found.put(old, None)

    def unlink(self, directory: int, name: str) -> None:
        """See ``FilePort``."""
        file = self._named(directory, name)
        self._step_or_raise("unlink", name)
        if self.graveyard:
            self.graveyard.setdefault(name, bytes(file.content))
        self._directory(directory).put(name, None)

    def modified_ns(self, directory: int, name: str) -> int:
        """See ``FilePort``."""
        return self._named(directory, name).modified_ns

    def size_of(self, directory: int, name: str) -> int:
        """See ``FilePort``."""
        return len(self._named(directory, name).content)

    def sync_directory(self, directory: int) -> None:
        """See ``FilePort``."""
        error = self._step("sync directory")
        if error is not None:
            self.seen["sync of names failed"] += 1
            self._directory(directory).fail_sync(CrashStyle(self.random, self.seen, self._stale))
            raise error
        self._directory(directory).sync()

    def unlock(self, file: int) -> None:
        """See ``FilePort``."""
        self.close(file)

    def lock(self, directory: int, name: str) -> int:
        """See ``FilePort``."""
        found = self._directory(directory)
        if name in found.locks:
            raise AlreadyOpen("another process has it open", file=name)
        if name not in found.entries:
            self._step_or_raise("create", name)
            found.put(name, CachedFile(name))
        found.locks.add(name)
        return self._handle(found, name, found.entries[name])

    # ---- bytes ------------------------------------------------------------------------------------------------------

    def close(self, file: int) -> None:
        """See ``FilePort``."""
        directory, name, _ = self._handles.pop(file)
        if name.endswith(".lock"):
            directory.locks.discard(name)

    def size(self, file: int) -> int:
        """See ``FilePort``."""
        return len(self._file(file).content)

    def read(self, file: int, offset: int, length: int) -> bytes:
        """See ``FilePort``."""
        return bytes(self._file(file).content[offset : offset + length])

    def write(self, file: int, offset: int, parts: Sequence[Octets]) -> None:
        """See ``FilePort``. A process can be killed, and a disk be full, in the middle of a write."""
        one, data = self._file(file), b"".join(parts)
        error = self._step("write", one.name)
        one.modified_ns = self.now_ns
        # Whole sectors: the kernel copies into a page that is not written back meanwhile.
        first = SECTOR_BYTES - offset % SECTOR_BYTES
        cut = self.random.choice([0, *range(first, len(data), SECTOR_BYTES)])
        if error is not None:
            one.write(offset, data[:cut])
            raise error
        if self.before is not None and cut:
            one.write(offset, data[:cut])
            self.before("half a write")
        one.write(offset, data)

    def allocate(self, file: int, length: int) -> None:
        """See ``FilePort``."""
        one = self._file(file)
        self._step_or_raise("allocate", one.name)
        one.resize(max(length, len(one.content)))

    def truncate(self, file: int, length: int) -> None:
        """See ``FilePort``."""
        one = self._file(file)
        self._step_or_raise("truncate", one.name)
        one.resize(length)

    def map(self, file: int, length: int) -> WritableMap | None:
        """See ``FilePort``. A store into the map is seen by the crash model when it is made, or at the next step."""
        one = self._file(file)
        if len(one.content) < length:
            return None
        one.mapped = True
        return one.content

    def unmap(self, view: WritableMap) -> None:
        """See ``FilePort``."""
        if not isinstance(view, bytearray):
            raise InternalError("this map was not made here")

    def sync_data(self, file: int) -> None:
        """See ``FilePort``."""
        one = self._file(file)
        error = self._step("sync", one.name)
        if error is not None:
            self.seen["sync failed"] += 1
            one.fail_sync(CrashStyle(self.random, self.seen, self._stale))
            raise error
        end_sync = one.begin_sync()
        if self.during_sync is not None:
            self.during_sync()
        end_sync()
        if one not in self._handles[file][0].entries.values():
            raise RemovedFile(errno.ENOENT, "another program removed this file", one.name)

    def boot_id(self) -> bytes:
        """See ``FilePort``."""
        return self.boot.to_bytes(16, "little")

    # ---- inside -----------------------------------------------------------------------------------------------------

    def contents(self, path: str) -> dict[str, bytes]:
        """Every file of a directory by name, as programs see it."""
        return {name: bytes(file.content) for name, file in sorted(self.directories[path].entries.items())}

    def set_content(self, path: str, name: str, data: bytes | None) -> None:
        """Damage or remove a file on disk, without any process noticing."""
        self.directories[path].put(name, None if data is None else CachedFile(name, data))
        self.directories[path].sync()

    @property
    def open_handles(self) -> int:
        """Handles that are still open."""
        return len(self._handles)

    def _handle(self, directory: CachedDirectory, name: str, file: CachedFile | None) -> int:
        self._next_handle += 1
        self._handles[self._next_handle] = directory, name, file
        return self._next_handle

    def _directory(self, handle: int) -> CachedDirectory:
        return self._handles[handle][0]

    def _named(self, directory: int, name: str) -> CachedFile:
        file = self._directory(directory).entries.get(name)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, name)
        return file

    def _file(self, handle: int) -> CachedFile:
        file = self._handles[handle][2]
        assert file is not None, "a directory has no bytes"
        return file


class QueueWorld(SeededWorld):
    """A world on such files. Its digest is of every byte that each life left; ``states`` counts crash states."""

    files: CrashFiles
    now_ns: int

    def clock(self) -> int:
        """A time of day that goes on."""
        self.now_ns += self.random.choice((0, 1000, 50_000_000))
        return self.now_ns

    def digest_files(self) -> None:
        """Put what a life left into the digest."""
        for name, data in self.files.contents(DIRECTORY).items():
            self.digest.update(name.encode() + data)

    def after_crash(self, *, killed: bool) -> CrashFiles:
        """What a crash now leaves: a kill, or a loss of power."""
        crash = self.files.after_kill if killed else self.files.after_power_loss
        return crash(Random(self.random.random()))
