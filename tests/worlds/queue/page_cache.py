"""One file between the page cache and the disk, harsher than a disk: what a crash may leave of it.

Every block of 4 KiB reaches the disk by itself, in any order, in any version that it had since the last sync, and a
block that was on its way is torn at 512 bytes: some sectors old, some new. The size is any that the file had. A sync
that fails leaves an arbitrary version of each block on disk and *forgets that they were dirty*, so that the next sync
has nothing to do and succeeds; the cache may show either version afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

__all__ = ["BLOCK_BYTES", "SECTOR_BYTES", "CachedFile", "CrashStyle"]

BLOCK_BYTES = 4096
SECTOR_BYTES = 512
ZEROS = bytes(BLOCK_BYTES)


class CrashStyle:
    """How one crash treats what was not synced: drawn once for an image, so that corners are visited, not averages.

    ``newest`` is the chance that a block, a size or a name is in its newest version, ``torn`` that a block is torn.
    ``stale`` gives, for a block that was never written, what the disk held there before, where the file system lets
    that be seen. ``seen`` counts what happened.
    """

    __slots__ = ("newest", "random", "seen", "stale", "torn")

    def __init__(self, random: Random, seen: Counter[str], stale: Callable[[str, int], bytes | None]) -> None:
        self.random = random
        self.newest = random.choice((0.0, 0.2, 0.5, 0.8, 0.95, 1.0))
        self.torn = random.choice((0.0, 0.1, 0.5))
        self.stale = stale
        self.seen = seen

    def pick(self, versions: int) -> int:
        """The place of a version among so many, the last being the newest."""
        if self.random.random() < self.newest:
            return versions - 1
        return self.random.randrange(versions)

    def block(self, name: str, number: int, versions: list[bytes], *, written: bool) -> bytes:
        """What is on disk of one block, of which ``versions[0]`` was there before."""
        chosen = self.pick(len(versions))
        found = versions[chosen]
        if chosen < len(versions) - 1:
            self.seen["block lost"] += 1
            if self.random.random() < self.torn:
                self.seen["block torn"] += 1
                found = self._torn(found, versions[self.random.randrange(chosen + 1, len(versions))])
        if not written and found is not versions[-1] and self.random.random() < 0.5:
            stale = self.stale(name, number)
            if stale is not None:
                self.seen["stale block"] += 1
                return stale
        return found

    def _torn(self, old: bytes, new: bytes) -> bytes:
        return b"".join(
            (new if self.random.random() < 0.5 else old)[start : start + SECTOR_BYTES]
            for start in range(0, BLOCK_BYTES, SECTOR_BYTES)
        )


class _Content(bytearray):
    """The cached bytes, which are also the map of them. ``stored`` is called after a store into a slice."""

    __slots__ = ("stored",)
    stored: Callable[[], None]

    if not TYPE_CHECKING:

        def __setitem__(self, key, value):
            super().__setitem__(key, value)
            self.stored()


class CachedFile:
    """A file. ``content`` is what every process sees; the rest is what the disk may have.

    ``versions`` holds, for each dirty block, what was on disk and then each state in order; ``sizes`` each size since
    the last sync; ``lost`` blocks that the cache shows and no sync will ever write.
    """

    __slots__ = ("content", "durable", "durable_bytes", "lost", "mapped", "modified_ns", "name", "sizes", "versions")

    def __init__(self, name: str, data: bytes = b"") -> None:
        self.name = name
        self.content = _Content(data)
        self.content.stored = self.note_stores
        self.durable = {
            start // BLOCK_BYTES: data[start : start + BLOCK_BYTES].ljust(BLOCK_BYTES, b"\0")
            for start in range(0, len(data), BLOCK_BYTES)
        }
        self.durable_bytes = len(data)
        self.versions: dict[int, list[bytes]] = {}
        self.sizes: list[int] = []
        self.lost: dict[int, bytes] = {}
        self.mapped = False
        self.modified_ns = 0

    # ---- what programs do -------------------------------------------------------------------------------------------

    def write(self, offset: int, data: bytes) -> None:
        """Into the cache."""
        end = offset + len(data)
        self.resize(max(end, len(self.content)))
        bytearray.__setitem__(self.content, slice(offset, end), data)
        for number in range(offset // BLOCK_BYTES, (end + BLOCK_BYTES - 1) // BLOCK_BYTES):
            if self.lost.pop(number, None) is not None:  # dirty again, also by the same bytes
                self.versions[number] = [self.durable.get(number, ZEROS)]
            self._note(number)

    def resize(self, size: int) -> None:
        """Longer by zeros, or cut."""
        before = len(self.content)
        if size == before:
            return
        if size > before:
            self.content.extend(bytes(size - before))
        else:
            del self.content[size:]
            for number in range(size // BLOCK_BYTES, (before + BLOCK_BYTES - 1) // BLOCK_BYTES):
                self._note(number)
        self.sizes.append(size)

    def note_stores(self) -> None:
        """Record what was stored through the map since the last look."""
        if self.mapped:
            for number in range((len(self.content) + BLOCK_BYTES - 1) // BLOCK_BYTES):
                self._note(number)

    def begin_sync(self) -> Callable[[], None]:
        """Everything dirty is on its way to the disk. It is there once the answer was called; what is written between
        the two need not be."""
        self.note_stores()
        seen = {number: len(versions) for number, versions in self.versions.items()}
        sizes, size = len(self.sizes), len(self.content)

        def end_sync() -> None:
            for number, count in seen.items():
                versions = self.versions.pop(number)
                self.durable[number] = versions[count - 1]
                if len(versions) > count:
                    self.versions[number] = versions[count - 1 :]
            del self.sizes[:sizes]
            self.durable_bytes = size

        return end_sync

    def fail_sync(self, style: CrashStyle) -> None:
        """Some of it did, and nothing is dirty any more. Afterwards the cache shows the new bytes or the old."""
        self.note_stores()
        evicted = style.random.random() < 0.3
        for number, versions in self.versions.items():
            self.durable[number] = style.block(self.name, number, versions, written=True)
            if evicted:
                start = number * BLOCK_BYTES
                width = min(BLOCK_BYTES, len(self.content) - start)
                bytearray.__setitem__(self.content, slice(start, start + width), self.durable[number][:width])
            elif self.durable[number] != versions[-1]:
                self.lost[number] = versions[-1]
        self.versions.clear()
        self.sizes.clear()
        self.durable_bytes = len(self.content)

    def _note(self, number: int) -> None:
        start = number * BLOCK_BYTES
        block = bytes(self.content[start : start + BLOCK_BYTES]).ljust(BLOCK_BYTES, b"\0")
        versions = self.versions.get(number)
        if versions is not None:
            if versions[-1] != block:
                versions.append(block)
            return
        before = self.durable.get(number, ZEROS)
        if block != self.lost.get(number, before):
            self.lost.pop(number, None)
            self.versions[number] = [before, block]

    # ---- what crashes leave -----------------------------------------------------------------------------------------

    def after_power_loss(self, style: CrashStyle) -> CachedFile:
        """The file as the next start of the machine finds it."""
        self.note_stores()
        sizes = [self.durable_bytes, *self.sizes]
        size = sizes[style.pick(len(sizes))]
        if size != len(self.content):
            style.seen["size lost"] += 1
        blocks: list[bytes] = []
        for number in range((size + BLOCK_BYTES - 1) // BLOCK_BYTES):
            versions = self.versions.get(number)
            if versions is None:
                blocks.append(self.durable.get(number, ZEROS))
            else:
                blocks.append(style.block(self.name, number, versions, written=number in self.durable))
        after = CachedFile(self.name, b"".join(blocks)[:size])
        after.modified_ns = self.modified_ns
        return after

    def after_kill(self) -> CachedFile:
        """The file as the next process finds it: all of the cache, and the same doubt about the disk."""
        self.note_stores()
        after = CachedFile(self.name)
        after.content.extend(self.content)
        after.durable = dict(self.durable)
        after.durable_bytes = self.durable_bytes
        after.versions = {number: list(versions) for number, versions in self.versions.items()}
        after.sizes = list(self.sizes)
        after.lost = dict(self.lost)
        after.modified_ns = self.modified_ns
        return after
