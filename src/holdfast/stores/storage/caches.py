"""What has changed since the last checkpoint, over the tables of the index: blocks and entries.

``BlockCache`` holds recently used blocks as objects, at most ``cached_max`` of about 16 KiB. Changed blocks that do not
fit go to a scratch file, so that one command may change any number of blocks. The scratch file needs no sync: after a
crash the log is applied again. Which blocks exist is known apart from the table, so a missing block is ``CorruptData``.
``EntryCache`` holds the changed entries of maps and last values, ordered by key. A failed checkpoint changes neither.

A block in bytes, little-endian:

| bytes | what |
|---|---|
| 8, 8 | ``earliest_ms``, ``swept_ms`` |
| 4, 8 | ``live``, ``live_bytes`` |
| 1 | 1 if it is ``timed`` |
| the rest | zlib: ``references`` (2 each), ``sizes`` (4 each), ``published_ms`` (8 each) |

``row_crc`` is the checksum of a row. It finds any burst of up to 32 bits, and includes the key.
"""

from __future__ import annotations

import sqlite3
import struct
import zlib
from array import array
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol, TypeAlias

import msgspec

from holdfast.errors import CorruptData
from holdfast.files.private_files import make_private
from holdfast.stores.values.ports import BLOCK_MESSAGES, BlockCounts, KeyEntry
from holdfast.stores.values.sequence_set import SequenceSet

_encode = msgspec.msgpack.Encoder().encode


def row_crc(*values: str | bytes | int | None) -> int:
    """CRC-32 of the values of a row's other columns, in their order, as one msgpack array.

    >>> row_crc("orders", 1, 9) == row_crc("orders", 1, 8), row_crc() == zlib.crc32(bytes([0x90]))
    (False, True)
    """
    return zlib.crc32(_encode(values))


BLOCKS_MAX: Final = 2_048
BLOCK_BYTES: Final = 16 << 10  # what one takes in memory
_HEAD: Final = struct.Struct("<QQIQB")
_REFERENCES: Final = 2 * BLOCK_MESSAGES
_SIZES: Final = _REFERENCES + 4 * BLOCK_MESSAGES
_ROWS: Final = 256
REPAIR: Final = (
    "without index.sqlite* the state is made of the log alone, where that begins with frame 1; "
    "else holdfast stores restore BACKUP NEW makes stores of a backup"
)
"""What to do about an index that is damaged."""


class BlockTable(Protocol):
    """The blocks of the last checkpoint."""

    def block(self, store: str, number: int) -> tuple[bytes, int] | None:
        """The bytes of a block and their checksum ``row_crc(store, number, bytes)``."""

    def block_runs(self) -> dict[str, list[tuple[int, int]]]:
        """The numbers of the blocks that there are, by store: runs, both ends inclusive, ascending."""
        ...


class FrozenBlock:
    """A block as it was when a checkpoint began. Compressed later, on the checkpoint's thread."""

    __slots__ = ("head", "published_ms", "references", "sizes")

    def __init__(self, block: BlockCounts) -> None:
        self.head = _HEAD.pack(block.earliest_ms, block.swept_ms, block.live, block.live_bytes, block.timed)
        self.references = block.references.tobytes()
        self.sizes = block.sizes.tobytes()
        self.published_ms = block.published_ms.tobytes()

    def encode(self) -> bytes:
        """The bytes of the block. *Cost*: about 100 microseconds."""
        return self.head + zlib.compress(self.references + self.sizes + self.published_ms, 1)


def decode_block(number: int, data: bytes) -> BlockCounts:
    """The block of these bytes. *Raises*: ``struct.error``, ``zlib.error`` if they are not valid."""
    block = BlockCounts(number)
    block.earliest_ms, block.swept_ms, block.live, block.live_bytes, timed = _HEAD.unpack_from(data)
    block.timed = bool(timed)
    raw = zlib.decompress(memoryview(data)[_HEAD.size :])
    block.references = array("H", raw[:_REFERENCES])
    block.sizes = array("I", raw[_REFERENCES:_SIZES])
    block.published_ms = array("Q", raw[_SIZES:])
    return block


@dataclass(frozen=True, slots=True)
class BlockChanges:
    """What a checkpoint writes: ``forgotten`` stores first; then iterate over (store, number, bytes), None for a
    forgotten block. ``runs`` says which blocks there are then, as ``BlockTable.block_runs``. Any thread."""

    forgotten: list[str]
    runs: dict[str, list[tuple[int, int]]]
    _frozen: dict[tuple[str, int], FrozenBlock | None]
    _scratch: sqlite3.Connection | None
    _generation: int

    def __iter__(self) -> Iterator[tuple[str, int, bytes | None]]:
        if self._scratch is not None:
            rows = self._scratch.execute(
                "SELECT store, number, data, crc FROM spilled WHERE generation = ? ORDER BY store, number",
                (self._generation,),
            )
            while part := rows.fetchmany(_ROWS):
                for store, number, data, crc in part:
                    yield store, number, _checked(store, number, data, crc)
        for (store, number), frozen in self._frozen.items():
            yield store, number, None if frozen is None else frozen.encode()


def _checked(store: str, number: int, data: bytes, crc: int) -> bytes:
    if row_crc(store, number, data) != crc:
        raise _damaged(store, number)
    return data


def _damaged(store: str, number: int) -> CorruptData:
    return CorruptData("a block of the stores' index is damaged", store=store, block=number, hint=REPAIR)


class BlockCache:
    """Implements ``ports.Blocks`` over a table. One thread, but for ``BlockChanges``.

    A changed block is in the cache (its key in ``_dirty``) or in the scratch file. A forgotten one is False in
    ``_dirty``. What the running checkpoint writes is in ``_frozen``, or in the scratch file under its generation.
    """

    def __init__(self, table: BlockTable, scratch_path: str, *, cached_max: int = BLOCKS_MAX) -> None:
        self._table = table
        self._cached_max = cached_max
        self._cache: OrderedDict[tuple[str, int], BlockCounts] = OrderedDict()
        self._dirty: dict[tuple[str, int], bool] = {}  # True where the block is in the cache, False where forgotten
        self._frozen: dict[tuple[str, int], FrozenBlock | None] = {}
        self._there = {store: SequenceSet(runs) for store, runs in table.block_runs().items()}
        """The blocks that there are, wherever they are."""
        self._forgotten: dict[str, bool] = {}  # stores; True where the running checkpoint says so
        self._generation = 1
        self._spilled: dict[tuple[str, int], int] = {}  # the newest generation of what is in the scratch file
        self._scratch_path = scratch_path
        self._scratch: sqlite3.Connection | None = None  # made when the first block has to go there

    def _open_scratch(self) -> sqlite3.Connection:
        if self._scratch is None:
            make_private(self._scratch_path)
            scratch = sqlite3.connect(self._scratch_path, check_same_thread=False, isolation_level=None)
            # In memory, not off: a statement that a full disk cuts short is undone, and what is there stays readable.
            scratch.execute("PRAGMA journal_mode=MEMORY")
            scratch.execute("PRAGMA synchronous=OFF")
            scratch.execute(
                "CREATE TABLE IF NOT EXISTS spilled (store TEXT, number INTEGER, generation INTEGER, data BLOB,"
                " crc INTEGER, PRIMARY KEY (store, number, generation)) WITHOUT ROWID"
            )
            self._scratch = scratch
        return self._scratch

    @property
    def changes(self) -> int:
        """Blocks that have changed since the last checkpoint."""
        return len(self._dirty) + len(self._spilled)

    def get(self, store: str, number: int) -> BlockCounts | None:
        """See ``ports.Blocks``."""
        key = (store, number)
        block = self._cache.get(key)
        if block is not None:
            self._cache.move_to_end(key)
            return block
        there = self._there.get(store)
        if there is None or number not in there:
            return None
        try:
            block = decode_block(number, self._encoded(key))
        except (struct.error, zlib.error, ValueError) as error:
            raise _damaged(store, number) from error
        self._cache[key] = block
        self._make_room()
        return block

    def put(self, store: str, block: BlockCounts) -> None:
        """See ``ports.Blocks``."""
        number = block.number
        key = (store, number)
        if block.live and self._dirty.get(key) and self._cache.get(key) is block:
            return  # it is among the changed ones since it was put here last
        there = self._there.get(store)
        if there is None:
            there = self._there[store] = SequenceSet()
        newest = there.last
        if number > newest:
            before = self.get(store, newest) if newest >= 0 else None
            if before is not None and not before.live:
                self._forget(store, newest)
            there.add(number, number)
        elif number < newest:
            if not block.live:
                self._forget(store, number)
                return
            there.add(number, number)
        self._cache[key] = block
        self._cache.move_to_end(key)
        self._dirty[key] = True
        self._make_room()

    def forget_store(self, store: str) -> None:
        """Forget every block of a store that was deleted; the table forgets it with the next checkpoint."""
        for key in [key for key in self._cache if key[0] == store]:
            del self._cache[key]
        for known in (self._dirty, self._frozen, self._spilled):
            for key in [key for key in known if key[0] == store]:
                del known[key]
        if self._scratch is not None:
            self._scratch.execute("DELETE FROM spilled WHERE store = ? AND generation = ?", (store, self._generation))
        self._there.pop(store, None)
        self._forgotten[store] = False

    def _forget(self, store: str, number: int) -> None:
        key = (store, number)
        self._cache.pop(key, None)
        if self._spilled.get(key) == self._generation:
            self._open_scratch().execute(
                "DELETE FROM spilled WHERE store = ? AND number = ? AND generation = ?", (*key, self._generation)
            )
            del self._spilled[key]
        self._there[store].remove(number, number)
        self._dirty[key] = False

    def _encoded(self, key: tuple[str, int]) -> bytes:
        """The bytes of an existing block that is not in the cache. *Raises*: ``CorruptData``."""
        generation = self._spilled.get(key)
        if generation is not None and (generation == self._generation or key not in self._frozen):
            row: tuple[bytes, int] | None = (
                self._open_scratch()
                .execute(
                    "SELECT data, crc FROM spilled WHERE store = ? AND number = ? AND generation = ?",
                    (*key, generation),
                )
                .fetchone()
            )
        else:
            frozen = self._frozen.get(key)
            if frozen is not None:
                return frozen.encode()
            row = None if key[0] in self._forgotten or key in self._frozen else self._table.block(*key)
        if row is None:
            raise _damaged(*key)
        return _checked(*key, *row)

    def _make_room(self) -> None:
        while len(self._cache) > self._cached_max:
            key = next(iter(self._cache))
            if self._dirty.get(key, False):
                # Where the disk is full this raises, and the block stays: it is nowhere else.
                data = FrozenBlock(self._cache[key]).encode()
                self._open_scratch().execute(
                    "INSERT OR REPLACE INTO spilled VALUES (?, ?, ?, ?, ?)",
                    (*key, self._generation, data, row_crc(*key, data)),
                )
                self._spilled[key] = self._generation
                del self._dirty[key]
            del self._cache[key]

    def freeze(self) -> BlockChanges:
        """What has changed since the last checkpoint. *Cost*: copies 14 KiB for each changed block."""
        assert not self._frozen, "one checkpoint at a time"
        self._frozen = {key: FrozenBlock(self._cache[key]) if there else None for key, there in self._dirty.items()}
        self._dirty = {}
        forgotten = list(self._forgotten)
        self._forgotten = dict.fromkeys(forgotten, True)
        # A copy: a store that is deleted meanwhile goes from ``_frozen``, and from the table with the next checkpoint.
        runs = {store: there.runs() for store, there in self._there.items()}
        changes = BlockChanges(forgotten, runs, dict(self._frozen), self._scratch, self._generation)
        self._generation += 1
        return changes

    def written(self) -> None:
        """The table has what was frozen."""
        self._frozen = {}
        self._forgotten = {store: False for store, written in self._forgotten.items() if not written}
        if self._scratch is not None:
            self._scratch.execute("DELETE FROM spilled WHERE generation < ?", (self._generation,))
        self._spilled = {key: generation for key, generation in self._spilled.items() if generation == self._generation}

    def close(self) -> None:
        """Close the scratch file."""
        if self._scratch is not None:
            self._scratch.close()


CACHED_MAX: Final = 16_384
SCAN_ROWS: Final = 256

DurableKey: TypeAlias = tuple[str, str]  # a store and a durable in it


class EntryTable(Protocol):
    """The entries of the last checkpoint."""

    def entry(self, store: str, durable: str, key: str) -> KeyEntry | None:
        """One entry."""

    def entries_after(self, store: str, durable: str, key: str, limit: int) -> list[KeyEntry]:
        """Up to ``limit`` entries with the smallest keys above ``key``, ascending."""
        ...


class EntryChanges:
    """What a checkpoint writes: durables without entries any more (an empty name: the whole store), then entries; None:
    removed."""

    def __init__(self) -> None:
        self.forgotten: dict[DurableKey, None] = {}
        self.entries: dict[DurableKey, dict[str, KeyEntry | None]] = {}


class EntryCache:
    """Implements ``ports.KeyEntries`` over a table. One thread; ``EntryChanges`` may be read by another once frozen."""

    def __init__(self, table: EntryTable, *, cached_max: int = CACHED_MAX) -> None:
        self._table = table
        self._cached_max = cached_max
        self._changed = EntryChanges()
        self._frozen = EntryChanges()
        self._keys: dict[DurableKey, list[str]] = {}  # of both, ascending
        self._read: dict[tuple[str, str, str], KeyEntry | None] = {}
        self.changes = 0

    def get(self, store: str, durable: str, key: str) -> KeyEntry | None:
        """See ``ports.KeyEntries``."""
        known, entry = self._lookup((store, durable), key)
        if known:
            return entry
        address = (store, durable, key)
        if address in self._read:
            return self._read[address]
        entry = self._table.entry(store, durable, key)
        if len(self._read) >= self._cached_max:
            # The oldest half goes at once: an order by use would cost more than it saves.
            for old in list(self._read)[: self._cached_max // 2]:
                del self._read[old]
        self._read[address] = entry
        return entry

    def put(self, store: str, durable: str, entry: KeyEntry) -> None:
        """See ``ports.KeyEntries``."""
        self._change((store, durable), entry.key, entry)

    def remove(self, store: str, durable: str, key: str) -> None:
        """See ``ports.KeyEntries``."""
        self._change((store, durable), key, None)

    def scan(self, store: str, durable: str, after: str = "") -> Iterator[KeyEntry]:
        """See ``ports.KeyEntries``."""
        owner = (store, durable)
        while True:
            rows = [] if self._is_forgotten(owner) else self._table.entries_after(store, durable, after, SCAN_ROWS)
            changed = self._keys.get(owner, [])
            start = bisect_right(changed, after)
            # As far as neither the rows nor the changes were cut off at their number.
            ends = [rows[-1].key] if len(rows) == SCAN_ROWS else []
            ends += [changed[start + SCAN_ROWS - 1]] if start + SCAN_ROWS < len(changed) else []
            last = min(ends, default=None)
            by_key = {row.key: row for row in rows if last is None or row.key <= last}
            end = len(changed) if last is None else bisect_right(changed, last)
            for key in sorted({*by_key, *changed[start:end]}):
                known, entry = self._lookup(owner, key)
                if not known:
                    entry = by_key.get(key)
                if entry is not None:
                    yield entry
            if last is None:
                return
            after = last

    def take_after(self, store: str, durable: str, after: str, count: int) -> list[KeyEntry]:
        """See ``ports.KeyEntries``. The keys stay here as removed ones until the next checkpoint."""
        entries = list(islice(self.scan(store, durable, after), count))
        for entry in entries:
            self._change((store, durable), entry.key, None)
        return entries

    def forget(self, store: str, durable: str = "") -> None:
        """Forget every entry of a durable, or of a whole store; the table forgets them with the next checkpoint."""
        for owner in [owner for owner in self._keys if owner[0] == store and durable in ("", owner[1])]:
            self.changes -= len(self._changed.entries.pop(owner, {}))
            del self._keys[owner]
            # What is being written stays with the checkpoint; here it is hidden by what was forgotten.
        for address in [known for known in self._read if known[0] == store and durable in ("", known[1])]:
            del self._read[address]
        self._changed.forgotten[store, durable] = None

    def _change(self, owner: DurableKey, key: str, entry: KeyEntry | None) -> None:
        changed = self._changed.entries.setdefault(owner, {})
        if key not in changed:
            self.changes += 1
            keys = self._keys.setdefault(owner, [])
            at = bisect_left(keys, key)
            if at == len(keys) or keys[at] != key:
                insort(keys, key)
        changed[key] = entry
        self._read.pop((*owner, key), None)

    def _lookup(self, owner: DurableKey, key: str) -> tuple[bool, KeyEntry | None]:
        for layer in (self._changed, self._frozen):
            entries = layer.entries.get(owner)
            if entries is not None and key in entries:
                return True, entries[key]
            if layer.forgotten and (owner in layer.forgotten or (owner[0], "") in layer.forgotten):
                return True, None
        return False, None

    def _is_forgotten(self, owner: DurableKey) -> bool:
        layers = self._changed.forgotten, self._frozen.forgotten
        return any(owner in forgotten or (owner[0], "") in forgotten for forgotten in layers)

    def freeze(self) -> EntryChanges:
        """What has changed since the last checkpoint; it stays in force here until ``written``."""
        assert not self._frozen.entries, "one checkpoint at a time"
        self._frozen, self._changed = self._changed, EntryChanges()
        self.changes = 0
        return self._frozen

    def written(self) -> None:
        """The table has what was frozen."""
        self._frozen = EntryChanges()
        self._keys = {owner: sorted(entries) for owner, entries in self._changed.entries.items()}
