"""The ports of the message stores, in memory, stricter than the real ones.

A message whose count fell to 0 cannot be read any more. With ``strict`` a block that was changed and not given to
``put`` loses the change.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from itertools import islice
from typing import TYPE_CHECKING

from holdfast.stores.values.ports import BLOCK_MESSAGES, BlockCounts, Kept, KeyEntry

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterator, Sequence

    from holdfast.wire.parts import Message

__all__ = ["MemoryBlocks", "MemoryEntries", "MemoryMessages"]


def _copy(block: BlockCounts) -> BlockCounts:
    copied = BlockCounts.__new__(BlockCounts)
    for name in BlockCounts.__slots__:
        value = getattr(block, name)
        setattr(copied, name, value[:] if name in ("references", "sizes", "published_ms") else value)
    return copied


class MemoryBlocks:
    """Blocks in a dictionary. ``strict`` copies at both ends, so a change that was not put is lost."""

    def __init__(self, *, strict: bool = False) -> None:
        self.blocks: dict[tuple[str, int], BlockCounts] = {}
        self.newest: dict[str, int] = {}
        self.strict = strict

    def get(self, store: str, number: int) -> BlockCounts | None:
        """See ``ports.Blocks``."""
        block = self.blocks.get((store, number))
        return _copy(block) if self.strict and block is not None else block

    def put(self, store: str, block: BlockCounts) -> None:
        """See ``ports.Blocks``. An empty block is forgotten as soon as there is a newer one."""
        number, newest = block.number, self.newest.get(store, -1)
        if number < newest and not block.live:
            self.blocks.pop((store, number), None)
            return
        if number > newest:
            before = self.blocks.get((store, newest))
            if before is not None and not before.live:
                del self.blocks[store, newest]
            self.newest[store] = number
        self.blocks[store, number] = _copy(block) if self.strict else block

    def copy(self) -> MemoryBlocks:
        """The same blocks, which change apart from these."""
        copied = MemoryBlocks(strict=self.strict)
        copied.blocks = {key: _copy(block) for key, block in self.blocks.items()}
        copied.newest = dict(self.newest)
        return copied

    def forget_store(self, store: str) -> None:
        """See ``ports.Blocks``."""
        for key in [key for key in self.blocks if key[0] == store]:
            del self.blocks[key]
        self.newest.pop(store, None)


class MemoryMessages:
    """Messages by store and number. With the blocks it hides what no durable keeps, when it is read."""

    def __init__(self, blocks: MemoryBlocks | None = None) -> None:
        self.kept: dict[str, dict[int, Kept]] = {}
        self.bodies: dict[tuple[str, int], Message] = {}
        self.blocks = blocks

    def add(
        self, store: str, first_seq: int, published_ms: int, messages: Sequence[Message], sizes: array[int]
    ) -> None:
        """See ``ports.Messages``."""
        kept = self.kept.setdefault(store, {})
        for seq, (message, size) in enumerate(zip(messages, sizes, strict=True), first_seq):
            kept[seq] = Kept(
                *(seq, published_ms, size, message.fields, message.key, message.ttl_ms, message.deliver_at_ms),
                message.origin,
            )
            self.bodies[store, seq] = message

    def read(self, store: str, first: int, last: int) -> Sequence[Kept]:
        """See ``ports.Messages``."""
        kept = self.kept.get(store, {})
        return [kept[seq] for seq in range(first, last + 1) if seq in kept and self._is_kept(store, seq)]

    def copy(self, blocks: MemoryBlocks | None) -> MemoryMessages:
        """The same messages, over a copy of the blocks."""
        copied = MemoryMessages(blocks)
        copied.kept = {store: dict(kept) for store, kept in self.kept.items()}
        copied.bodies = dict(self.bodies)
        return copied

    def forget_store(self, store: str) -> None:
        """See ``ports.Messages``."""
        for seq in self.kept.pop(store, {}):
            del self.bodies[store, seq]

    def _is_kept(self, store: str, seq: int) -> bool:
        if self.blocks is None:
            return True
        block = self.blocks.blocks.get((store, seq // BLOCK_MESSAGES))
        return block is not None and block.references[seq % BLOCK_MESSAGES] > 0


class MemoryEntries:
    """Entries by store and durable, sorted by key."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str], dict[str, KeyEntry]] = {}
        self.keys: dict[tuple[str, str], list[str]] = {}

    def copy(self) -> MemoryEntries:
        """The same entries, which change apart from these."""
        copied = MemoryEntries()
        copied.entries = {place: dict(found) for place, found in self.entries.items()}
        copied.keys = {place: list(keys) for place, keys in self.keys.items()}
        return copied

    def get(self, store: str, durable: str, key: str) -> KeyEntry | None:
        """See ``ports.Entries``."""
        return self.entries.get((store, durable), {}).get(key)

    def put(self, store: str, durable: str, entry: KeyEntry) -> None:
        """See ``ports.Entries``."""
        entries = self.entries.setdefault((store, durable), {})
        if entry.key not in entries:
            insort(self.keys.setdefault((store, durable), []), entry.key)
        entries[entry.key] = entry

    def remove(self, store: str, durable: str, key: str) -> None:
        """See ``ports.Entries``."""
        place = (store, durable)
        if self.entries.get(place, {}).pop(key, None) is not None:
            keys = self.keys[place]
            keys.pop(bisect_left(keys, key))
            if not keys:
                del self.keys[place], self.entries[place]

    def take_after(self, store: str, durable: str, after: str, count: int) -> list[KeyEntry]:
        """See ``ports.Entries``."""
        taken = list(islice(self.scan(store, durable, after), count))
        for entry in taken:
            self.remove(store, durable, entry.key)
        return taken

    def forget(self, store: str, durable: str = "") -> None:
        """See ``ports.Entries``."""
        for place in [place for place in self.keys if place[0] == store and durable in ("", place[1])]:
            self.entries.pop(place, None)
            self.keys.pop(place, None)

    def scan(self, store: str, durable: str, after: str = "") -> Iterator[KeyEntry]:
        """See ``ports.Entries``."""
        keys = self.keys.get((store, durable), [])
        entries = self.entries.get((store, durable), {})
        while (place := bisect_right(keys, after)) < len(keys):
            after = keys[place]
            yield entries[after]
