"""Files in memory that forget, reorder and tear what was not synced; one for each simulated machine.

A file's page cache is blocks of 4 KiB. After a loss of power each block is any of its versions since the last sync,
possibly torn between two of them at 512 bytes; each change of the directory since its last sync has happened or not.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence

from holdfast.errors import AlreadyOpen
from holdfast.queue.files.port import RemovedFile

BLOCK = 4096
SECTOR = 512


class Crash(BaseException):
    """The machine stops before this operation."""


class Inode:
    def __init__(self, data: bytes = b"") -> None:
        self.cache = bytearray(data)
        self.durable = bytes(data)
        self.versions: dict[int, list[bytes]] = {}

    def block(self, number: int) -> bytes:
        return bytes(self.cache[number * BLOCK : (number + 1) * BLOCK])

    def change(self, offset: int, data: bytes) -> None:
        if not data:
            return
        end = offset + len(data)
        touched = range(offset // BLOCK, (end - 1) // BLOCK + 1)
        for number in touched:
            if number not in self.versions:
                self.versions[number] = [self.durable[number * BLOCK : (number + 1) * BLOCK]]
        if end > len(self.cache):
            self.cache.extend(bytes(end - len(self.cache)))
        self.cache[offset:end] = data
        for number in touched:
            self.versions[number].append(self.block(number))

    def sync(self) -> None:
        self.durable = bytes(self.cache)
        self.versions = {}

    def after_power_loss(self, chance: random.Random) -> Inode:
        # The size is metadata and comes back with the newest or the durable one.
        length = chance.choice((len(self.durable), len(self.cache)))
        data = bytearray(self.durable.ljust(length, b"\0")[:length])
        for number, versions in self.versions.items():
            at = chance.randrange(len(versions))
            block = bytearray(versions[at].ljust(BLOCK, b"\0"))
            if at + 1 < len(versions) and chance.random() < 0.4:
                newer = versions[at + 1].ljust(BLOCK, b"\0")
                for sector in range(0, BLOCK, SECTOR):
                    if chance.random() < 0.5:
                        block[sector : sector + SECTOR] = newer[sector : sector + SECTOR]
            start = number * BLOCK
            data[start : start + BLOCK] = block[: max(0, min(BLOCK, length - start))]
        return Inode(bytes(data))


class MemoryFiles:
    """A ``FilePort``. ``budget`` is how many changing operations happen before ``Crash``."""

    def __init__(self) -> None:
        self.names_now: dict[str, Inode] = {}
        self.names_durable: dict[str, Inode] = {}
        self.changes: list[dict[str, Inode | None]] = []
        self.open_files: dict[int, Inode] = {}
        self.locked: set[str] = set()
        self.lock_files: dict[int, str] = {}
        self.next_file = 10
        self.budget = 1 << 60
        self.run = 1

    # ---- crashes ----------------------------------------------------------------------------------------------------

    def step(self) -> None:
        if self.budget <= 0:
            raise Crash
        self.budget -= 1

    def killed(self) -> MemoryFiles:
        """Another process on the same machine: the cache is whole, locks are free."""
        after = MemoryFiles()
        after.names_now, after.names_durable, after.changes = self.names_now, self.names_durable, self.changes
        after.run = self.run
        return after

    def after_power_loss(self, chance: random.Random) -> MemoryFiles:
        after = MemoryFiles()
        after.run = self.run + 1
        survivors = dict(self.names_durable)
        for change in self.changes:
            if chance.random() < 0.5:
                continue
            for name, inode in change.items():
                if inode is None:
                    survivors.pop(name, None)
                else:
                    survivors[name] = inode
        made: dict[int, Inode] = {}
        for name, inode in survivors.items():
            if id(inode) not in made:
                made[id(inode)] = inode.after_power_loss(chance)
            after.names_now[name] = made[id(inode)]
        after.names_durable = dict(after.names_now)
        return after

    # ---- the port ---------------------------------------------------------------------------------------------------

    def _handle(self, inode: Inode) -> int:
        self.next_file += 1
        self.open_files[self.next_file] = inode
        return self.next_file

    def make_directory(self, path: str) -> None:
        pass

    def open_directory(self, path: str) -> int:
        return 1

    def names(self, directory: int) -> list[str]:
        return list(self.names_now)

    def create(self, directory: int, name: str) -> int:
        self.step()
        if name in self.names_now:
            raise FileExistsError(name)
        inode = Inode()
        self.names_now[name] = inode
        self.changes.append({name: inode})
        return self._handle(inode)

    def open(self, directory: int, name: str, *, write: bool) -> int:
        if name not in self.names_now:
            raise FileNotFoundError(name)
        return self._handle(self.names_now[name])

    def close(self, file: int) -> None:
        self.open_files.pop(file, None)
        self.locked.discard(self.lock_files.pop(file, ""))

    def size(self, file: int) -> int:
        return len(self.open_files[file].cache)

    def size_of(self, directory: int, name: str) -> int:
        return len(self.names_now[name].cache)

    def modified_ns(self, directory: int, name: str) -> int:
        return 0

    def read(self, file: int, offset: int, length: int) -> bytes:
        return bytes(self.open_files[file].cache[offset : offset + length])

    def write(self, file: int, offset: int, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        self.step()
        self.open_files[file].change(offset, b"".join(parts))

    def allocate(self, file: int, length: int) -> None:
        self.step()
        self.open_files[file].change(0, bytes(length))

    def truncate(self, file: int, length: int) -> None:
        self.step()
        inode = self.open_files[file]
        del inode.cache[length:]
        inode.durable = inode.durable[:length]
        inode.versions = {number: kept for number, kept in inode.versions.items() if number * BLOCK < length}

    def map(self, file: int, length: int) -> None:
        return None

    def unmap(self, view: object) -> None:
        raise AssertionError("nothing was mapped")

    def sync_data(self, file: int) -> None:
        self.step()
        inode = self.open_files[file]
        inode.sync()
        if not any(inode is named for named in self.names_now.values()):
            raise RemovedFile(errno.ENOENT, "another program removed this file")

    def sync_directory(self, directory: int) -> None:
        self.step()
        self.names_durable = dict(self.names_now)
        self.changes = []

    def rename(self, directory: int, old: str, new: str) -> None:
        self.step()
        if old not in self.names_now:
            raise FileNotFoundError(old)
        inode = self.names_now.pop(old)
        self.names_now[new] = inode
        self.changes.append({old: None, new: inode})  # a rename is one change

    def unlink(self, directory: int, name: str) -> None:
        self.step()
        if self.names_now.pop(name, None) is None:
            raise FileNotFoundError(name)
        self.changes.append({name: None})

    def unlock(self, file: int) -> None:
        self.close(file)

    def lock(self, directory: int, name: str) -> int:
        if name in self.locked:
            raise AlreadyOpen("locked")
        self.locked.add(name)
        file = self._handle(Inode())
        self.lock_files[file] = name
        return file

    def boot_id(self) -> bytes:
        return self.run.to_bytes(16, "little")
