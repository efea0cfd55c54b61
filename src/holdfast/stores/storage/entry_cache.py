"""Entries of maps and last values: those changed since the last checkpoint in memory, over the table on disk.

Owns: the changes, their order by key, joining them with the table. Does not own: what an entry means (``ports``), the
table (``index``).

Failure model: a checkpoint that fails leaves everything as it was. What has changed since the last checkpoint is found
again by applying the log. Memory is bounded by how often a checkpoint is taken (``storage``), and by ``cached_max``
entries that were read and have not changed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from itertools import islice
from typing import Final, Protocol, TypeAlias

from holdfast.stores.values.ports import Entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["EntryCache", "EntryChanges", "EntryTable"]

CACHED_MAX: Final = 16_384
SCAN_ROWS: Final = 256

Place: TypeAlias = tuple[str, str]
"""A store and a durable in it."""


class EntryTable(Protocol):
    """The entries of the last checkpoint."""

    def entry(self, store: str, durable: str, key: str) -> Entry | None:
        """One entry."""
        ...

    def entries_after(self, store: str, durable: str, key: str, limit: int) -> list[Entry]:
        """Up to ``limit`` entries with the smallest keys above ``key``, ascending."""
        ...


class EntryChanges:
    """What a checkpoint writes: durables whose entries all went (an empty name: those of the whole store), then entries
    set, None where removed."""

    __slots__ = ("entries", "forgotten")

    def __init__(self) -> None:
        self.forgotten: dict[Place, None] = {}
        self.entries: dict[Place, dict[str, Entry | None]] = {}


class EntryCache:
    """Implements ``ports.Entries`` over a table. One thread; ``EntryChanges`` may be read by another once frozen."""

    def __init__(self, table: EntryTable, *, cached_max: int = CACHED_MAX) -> None:
        self._table = table
        self._cached_max = cached_max
        self._changed = EntryChanges()
        self._frozen = EntryChanges()
        self._keys: dict[Place, list[str]] = {}  # of both, ascending
        self._read: dict[tuple[str, str, str], Entry | None] = {}
        self.changes = 0

    # ---- ports.Entries ----------------------------------------------------------------------------------------------

    def get(self, store: str, durable: str, key: str) -> Entry | None:
        """See ``ports.Entries``."""
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

    def put(self, store: str, durable: str, entry: Entry) -> None:
        """See ``ports.Entries``."""
        self._change((store, durable), entry.key, entry)

    def remove(self, store: str, durable: str, key: str) -> None:
        """See ``ports.Entries``."""
        self._change((store, durable), key, None)

    def scan(self, store: str, durable: str, after: str = "") -> Iterator[Entry]:
        """See ``ports.Entries``."""
        place = (store, durable)
        while True:
            rows = [] if self._is_forgotten(place) else self._table.entries_after(store, durable, after, SCAN_ROWS)
            changed = self._keys.get(place, [])
            start = bisect_right(changed, after)
            # As far as neither the rows nor the changes were cut off at their number.
            ends = [rows[-1].key] if len(rows) == SCAN_ROWS else []
            ends += [changed[start + SCAN_ROWS - 1]] if start + SCAN_ROWS < len(changed) else []
            last = min(ends, default=None)
            found = {row.key: row for row in rows if last is None or row.key <= last}
            end = len(changed) if last is None else bisect_right(changed, last)
            for key in sorted({*found, *changed[start:end]}):
                known, entry = self._lookup(place, key)
                if not known:
                    entry = found.get(key)
                if entry is not None:
                    yield entry
            if last is None:
                return
            after = last

    def take_after(self, store: str, durable: str, after: str, count: int) -> list[Entry]:
        """See ``ports.Entries``. The keys stay here as removed ones until the next checkpoint."""
        taken = list(islice(self.scan(store, durable, after), count))
        for entry in taken:
            self._change((store, durable), entry.key, None)
        return taken

    def forget(self, store: str, durable: str = "") -> None:
        """Forget every entry of a durable, or of a whole store; the table forgets them with the next checkpoint."""
        for place in [place for place in self._keys if place[0] == store and durable in ("", place[1])]:
            self.changes -= len(self._changed.entries.pop(place, {}))
            del self._keys[place]
            # What is being written stays with the checkpoint; here it is hidden by what was forgotten.
        for address in [found for found in self._read if found[0] == store and durable in ("", found[1])]:
            del self._read[address]
        self._changed.forgotten[store, durable] = None

    # ---- layers -----------------------------------------------------------------------------------------------------

    def _change(self, place: Place, key: str, entry: Entry | None) -> None:
        changed = self._changed.entries.setdefault(place, {})
        if key not in changed:
            self.changes += 1
            keys = self._keys.setdefault(place, [])
            at = bisect_left(keys, key)
            if at == len(keys) or keys[at] != key:
                insort(keys, key)
        changed[key] = entry
        self._read.pop((*place, key), None)

    def _lookup(self, place: Place, key: str) -> tuple[bool, Entry | None]:
        """Whether the changes know this key, and what they say."""
        for layer in (self._changed, self._frozen):
            found = layer.entries.get(place)
            if found is not None and key in found:
                return True, found[key]
            if layer.forgotten and (place in layer.forgotten or (place[0], "") in layer.forgotten):
                return True, None
        return False, None

    def _is_forgotten(self, place: Place) -> bool:
        """Whether the table's entries of this durable do not count any more."""
        return any(
            place in layer.forgotten or (place[0], "") in layer.forgotten for layer in (self._changed, self._frozen)
        )

    # ---- checkpoints ------------------------------------------------------------------------------------------------

    def freeze(self) -> EntryChanges:
        """What has changed since the last checkpoint; it stays in force here until ``written``."""
        assert not self._frozen.entries, "one checkpoint at a time"
        self._frozen, self._changed = self._changed, EntryChanges()
        self.changes = 0
        return self._frozen

    def written(self) -> None:
        """The table has what was frozen."""
        self._frozen = EntryChanges()
        self._keys = {place: sorted(entries) for place, entries in self._changed.entries.items()}
