"""Stores in memory only: their messages, counts and entries, and the swap file for large ones.

This is a store with ``replicated: false``, or any store if the persistence is ``none``. Everything is gone when the
process ends. The bodies of a batch go to the swap file if, with the batch, their store or one of its durables is above
``swap_bytelimit``; 0 swaps every body, -1 none. The swap file has segments of about ``SEGMENT_BYTES`` without names, so
that a dead process leaves nothing; a segment is freed with its last body.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from msgspec.structs import replace

from holdfast.errors import Code, CorruptData
from holdfast.stores.values.ports import BLOCK_MESSAGES, BlockCounts, Kept, KeyEntry, block_parts
from holdfast.wire.parts import Delivery, Message

SEGMENT_BYTES: Final = 16 << 20
SWAP_NAME: Final = "swap.tmp"


class Swapped(NamedTuple):
    """Where a body is."""

    segment: int
    offset: int
    length: int


@dataclass
class _Segment:
    file: int
    bytes: int = 0
    bodies: int = 0


class Swap:
    """Bodies on disk, by where they are. One thread."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._segments: dict[int, _Segment] = {}
        self._number = 0

    @property
    def bodies(self) -> int:
        """How many there are."""
        return sum(segment.bodies for segment in self._segments.values())

    def write(self, bodies: Sequence[bytes]) -> list[Swapped]:
        """Keep bodies, all or none, in one write. *Raises*: ``OSError``."""
        segment = self._segments.get(self._number)
        if segment is None or segment.bytes >= SEGMENT_BYTES:
            segment = self._begin()
        _write_all(segment.file, segment.bytes, b"".join(bodies))
        swapped: list[Swapped] = []
        for body in bodies:
            swapped.append(Swapped(self._number, segment.bytes, len(body)))
            segment.bytes += len(body)
        segment.bodies += len(swapped)
        return swapped

    def _begin(self) -> _Segment:
        path = os.path.join(self._directory, SWAP_NAME)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.unlink(path)
        self._drop_if_free(self._number)
        self._number += 1
        segment = self._segments[self._number] = _Segment(file)
        return segment

    def read(self, swapped: Swapped) -> bytes:
        """A body. *Raises*: ``CorruptData`` where it is not all there; ``OSError``."""
        data = os.pread(self._segments[swapped.segment].file, swapped.length, swapped.offset)
        if len(data) != swapped.length:
            raise CorruptData("a swapped message cannot be read", code=Code.CORRUPT_QUEUE, bytes=swapped.length)
        return data

    def forget(self, swapped: Swapped) -> None:
        """A body is not needed any more."""
        segment = self._segments[swapped.segment]
        segment.bodies -= 1
        if swapped.segment != self._number:
            self._drop_if_free(swapped.segment)

    def _drop_if_free(self, number: int) -> None:
        segment = self._segments.get(number)
        if segment is not None and not segment.bodies:
            os.close(segment.file)
            del self._segments[number]

    def close(self) -> None:
        """Free all segments."""
        for segment in self._segments.values():
            os.close(segment.file)
        self._segments.clear()


def _write_all(file: int, offset: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written


SWEEP: Final = 256  # messages of one block that are no longer kept, before they are searched


@dataclass(slots=True)
class _StoredMessage:
    message: Message
    published_ms: int
    size: int
    swapped: Swapped | None
    """Where the body is swapped to."""


class VolatileBlocks:
    """Implements ``ports.Blocks`` in memory. ``changed`` is called with each block that was given to ``put``."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[str, int], BlockCounts] = {}
        self._newest: dict[str, int] = {}
        self.changed: Callable[[str, BlockCounts], None] = lambda _store, _block: None

    def get(self, store: str, number: int) -> BlockCounts | None:
        """See ``ports.Blocks``."""
        return self._blocks.get((store, number))

    def put(self, store: str, block: BlockCounts) -> None:
        """See ``ports.Blocks``."""
        number, newest = block.number, self._newest.get(store, -1)
        if number > newest:
            self._newest[store] = number
            before = self._blocks.get((store, newest))
            if before is not None and not before.live:
                del self._blocks[store, newest]
        if number >= newest or block.live:
            self._blocks[store, number] = block
        else:
            self._blocks.pop((store, number), None)
        self.changed(store, block)

    def forget_store(self, store: str) -> None:
        """A store was deleted."""
        self._newest.pop(store, None)
        for key in [key for key in self._blocks if key[0] == store]:
            del self._blocks[key]


class VolatileMessages:
    """Implements ``ports.Messages`` in memory and a swap file; ``swaps`` says whether bodies of a store go there.

    A durable counts a batch after it was added, so bodies are swapped when the command is done: ``swap_arrived``.
    """

    def __init__(self, blocks: VolatileBlocks, swap: Swap, swaps: Callable[[str], bool]) -> None:
        self._blocks = blocks
        self._swap = swap
        self._held: dict[tuple[str, int], dict[int, _StoredMessage]] = {}  # by store and block, then message
        self._swapped: dict[str, tuple[int, int]] = {}  # messages and bytes by store
        self._arrived: list[tuple[str, int, int]] = []  # store, first and last of what this command added
        self.swaps = swaps
        blocks.changed = self._sweep

    def add(
        self, store: str, first_seq: int, published_ms: int, messages: Sequence[Message], sizes: array[int]
    ) -> None:
        """See ``ports.Messages``."""
        for seq, (message, size) in enumerate(zip(messages, sizes, strict=True), first_seq):
            held = self._held.setdefault((store, seq // BLOCK_MESSAGES), {})
            held[seq] = _StoredMessage(message, published_ms, size, None)
        self._arrived.append((store, first_seq, first_seq + len(messages) - 1))

    def swap_arrived(self) -> None:
        """The command that added messages is done: swap their bodies where a limit is exceeded."""
        if not self._arrived:
            return
        arrived, self._arrived = self._arrived, []
        for store, first, last in arrived:
            held = [one for _, one in self._between(store, first, last)]
            if not held or not self.swaps(store):
                continue
            try:
                places = self._swap.write([one.message.body for one in held])
            except OSError:
                continue  # it is accepted already, and nothing forbids to hold it here
            for one, place in zip(held, places, strict=True):
                one.message, one.swapped = replace(one.message, body=b""), place
                self._count(store, 1, place.length)

    def _sweep(self, store: str, block: BlockCounts) -> None:
        key = (store, block.number)
        held = self._held.get(key)
        if held is None or (block.live and len(held) - block.live < SWEEP):
            return
        first = block.number * BLOCK_MESSAGES
        for seq in [seq for seq in held if not block.references[seq - first]]:
            self._forget(store, held.pop(seq))
        if not held:
            del self._held[key]

    def _forget(self, store: str, held: _StoredMessage) -> None:
        if held.swapped is not None:
            self._swap.forget(held.swapped)
            self._count(store, -1, -held.swapped.length)

    def _count(self, store: str, messages: int, size: int) -> None:
        before = self._swapped.get(store, (0, 0))
        self._swapped[store] = before[0] + messages, before[1] + size

    def forget_store(self, store: str) -> None:
        """A store was deleted."""
        for key in [key for key in self._held if key[0] == store]:
            for held in self._held.pop(key).values():
                self._forget(store, held)

    def _between(self, store: str, first: int, last: int) -> Iterator[tuple[int, _StoredMessage]]:
        for number, begin, end in block_parts(first, last):
            held = self._held.get((store, number))
            if held is not None:
                for seq in range(begin, end + 1):
                    one = held.get(seq)
                    if one is not None:
                        yield seq, one

    def read(self, store: str, first: int, last: int) -> list[Kept]:
        """See ``ports.Messages``."""
        messages: list[Kept] = []
        for seq, held in self._between(store, first, last):
            block = self._blocks.get(store, seq // BLOCK_MESSAGES)
            if block is not None and block.references[seq % BLOCK_MESSAGES]:
                message = held.message
                what = message.fields, message.key, message.ttl_ms, message.deliver_at_ms, message.origin
                messages.append(Kept(seq, held.published_ms, held.size, *what))
        return messages

    def _body(self, held: _StoredMessage) -> bytes:
        return held.message.body if held.swapped is None else self._swap.read(held.swapped)

    def deliveries(self, store: str, runs: Iterable[tuple[int, int, int]]) -> list[Delivery]:
        """What a subscriber gets of these runs, as from the log."""
        return [
            Delivery(
                *(seq, held.message.fields, held.message.key, self._body(held), held.published_ms),
                delivery_count=abs(count),
                redelivered=count > 1 or count < 0,
                origin=held.message.origin,
            )
            for first, last, count in runs
            for seq, held in self._between(store, first, last)
        ]

    def message(self, store: str, seq: int) -> tuple[Message, int] | None:
        """One message and when it was published, or None where it is not there any more."""
        for _, held in self._between(store, seq, seq):
            message = held.message
            whole = Message(self._body(held), message.fields, message.key, ttl_ms=message.ttl_ms)
            return whole, held.published_ms
        return None

    def swapped(self, store: str) -> tuple[int, int]:
        """How many messages of a store are swapped, and their bytes."""
        return self._swapped.get(store, (0, 0))


class VolatileEntries:
    """Implements ``ports.KeyEntries`` in memory."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], dict[str, KeyEntry]] = {}
        self._keys: dict[tuple[str, str], list[str]] = {}

    def get(self, store: str, durable: str, key: str) -> KeyEntry | None:
        """See ``ports.KeyEntries``."""
        return self._entries.get((store, durable), {}).get(key)

    def put(self, store: str, durable: str, entry: KeyEntry) -> None:
        """See ``ports.KeyEntries``."""
        entries = self._entries.setdefault((store, durable), {})
        if entry.key not in entries:
            insort(self._keys.setdefault((store, durable), []), entry.key)
        entries[entry.key] = entry

    def remove(self, store: str, durable: str, key: str) -> None:
        """See ``ports.KeyEntries``."""
        owner = (store, durable)
        if self._entries.get(owner, {}).pop(key, None) is not None:
            keys = self._keys[owner]
            del keys[bisect_left(keys, key)]
            self._forget_empty(owner)

    def scan(self, store: str, durable: str, after: str = "") -> Iterator[KeyEntry]:
        """See ``ports.KeyEntries``."""
        keys = self._keys.get((store, durable), [])
        while (index := bisect_right(keys, after)) < len(keys):
            after = keys[index]
            yield self._entries[store, durable][after]

    def take_after(self, store: str, durable: str, after: str, count: int) -> list[KeyEntry]:
        """See ``ports.KeyEntries``."""
        owner = (store, durable)
        keys = self._keys.get(owner, [])
        start = bisect_right(keys, after)
        entries = [self._entries[owner].pop(key) for key in keys[start : start + count]]
        # In one piece: to delete a key moves every key above it.
        del keys[start : start + count]
        self._forget_empty(owner)
        return entries

    def _forget_empty(self, owner: tuple[str, str]) -> None:
        """A namespace without keys is not kept: each clear gives the durable another one."""
        if not self._keys.get(owner):
            self._keys.pop(owner, None)
            self._entries.pop(owner, None)

    def forget(self, store: str, durable: str = "") -> None:
        """See ``ports.KeyEntries``."""
        for swapped in [swapped for swapped in self._keys if swapped[0] == store and durable in ("", swapped[1])]:
            del self._keys[swapped]
            self._entries.pop(swapped, None)
