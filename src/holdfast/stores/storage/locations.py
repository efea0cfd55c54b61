"""Where in the log each message is stored, as extents.

An *extent* says that the kept messages of ``first_seq..last_seq`` of a store are in the frames
``first_frame..last_frame``, in ascending order, among frames of other stores. It ends at 64 KiB of messages or after
256 KiB of log, so that one row serves many small messages, and one message costs one short read. Extents of a store do
not overlap. Compaction moves an extent: the same messages, other frames. Changes since the last checkpoint are in
memory.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

EXTENT_BYTES: Final = 64 << 10
EXTENT_SPAN_BYTES: Final = 256 << 10


class Extent(NamedTuple):
    """Messages of one store and their frames; all ends inclusive. ``bytes`` is their size when they were written."""

    store: str
    first_seq: int
    last_seq: int
    first_frame: int
    last_frame: int
    bytes: int


class ExtentTable(Protocol):
    """The extents of the last checkpoint."""

    def extent_at(self, store: str, seq: int) -> Extent | None:
        """The one with the greatest ``first_seq`` that is not above ``seq``."""

    def extent_after(self, store: str, seq: int) -> Extent | None:
        """The one with the smallest ``first_seq`` above ``seq``."""


class LocationChanges(NamedTuple):
    """What a checkpoint writes: deleted stores, removed extents (by store and first message), new or changed ones."""

    forgotten: list[str]
    removed: list[tuple[str, int]]
    extents: list[Extent]


@dataclass
class _Open:
    """The extent of a store that still grows, and how long the log was when it began."""

    first_seq: int
    last_seq: int
    first_frame: int
    last_frame: int
    bytes: int
    log_bytes: int
    changed: bool = True
    """Since ``_note_growing`` looked."""


class Locations:
    """Extents by store and message: those of the table, under those that changed since."""

    def __init__(self, table: ExtentTable) -> None:
        self._table = table
        self._open: dict[str, _Open] = {}
        self._changed: dict[str, dict[int, Extent | None]] = {}  # by store and first_seq; None where it went
        self._written: dict[str, dict[int, Extent | None]] = {}  # of the checkpoint that is being written
        self._firsts: dict[str, list[int]] = {}  # the keys of both, ascending
        self._forgotten: dict[str, bool] = {}  # by store: whether a checkpoint that is being written says so
        self._log_bytes = 0

    def grow(self, frame_bytes: int) -> None:
        """The log has grown by a frame of this size."""
        self._log_bytes += frame_bytes

    def add(self, store: str, first_seq: int, last_seq: int, frame: int, size: int) -> None:
        """Messages were written in this frame."""
        opened = self._open.get(store)
        if opened is not None:
            if (
                opened.last_seq + 1 == first_seq
                and opened.bytes + size <= EXTENT_BYTES
                and self._log_bytes - opened.log_bytes <= EXTENT_SPAN_BYTES
            ):
                opened.last_seq, opened.last_frame = last_seq, frame
                opened.bytes += size
                opened.changed = True
                return
            self._note_growing(store)
        self._open[store] = _Open(first_seq, last_seq, frame, frame, size, self._log_bytes)

    def _note_growing(self, store: str) -> None:
        opened = self._open.get(store)
        if opened is not None and opened.changed:
            opened.changed = False
            self._change(
                Extent(store, opened.first_seq, opened.last_seq, opened.first_frame, opened.last_frame, opened.bytes)
            )

    def move(self, store: str, first_seq: int, last_seq: int, frame: int, size: int) -> None:
        """The kept of these messages are in this frame now. They may be parts of several extents."""
        opened = self._open.get(store)
        if opened is not None and opened.first_seq <= last_seq and opened.last_seq >= first_seq:
            self._note_growing(store)
            del self._open[store]
        extent = self.find(store, first_seq)
        while extent is not None and extent.first_seq <= last_seq:
            following = self.find(store, extent.last_seq + 1)
            self._cut(extent, first_seq, last_seq)
            extent = following
        self._change(Extent(store, first_seq, last_seq, frame, frame, size))

    def _cut(self, extent: Extent, first_seq: int, last_seq: int) -> None:
        if extent.first_seq < first_seq:
            self._change(extent._replace(last_seq=first_seq - 1))
        else:
            self._remove(extent.store, extent.first_seq)
        if extent.last_seq > last_seq:
            self._change(extent._replace(first_seq=last_seq + 1))

    def replace(self, extent: Extent, parts: list[Extent]) -> None:
        """Only these parts of an extent (as ``find`` returned it) are left."""
        self._close(extent.store, extent.first_seq)
        self._remove(extent.store, extent.first_seq)
        for part in parts:
            self._change(part)

    def _close(self, store: str, first_seq: int) -> None:
        opened = self._open.get(store)
        if opened is not None and opened.first_seq == first_seq:
            self._note_growing(store)
            del self._open[store]

    def _change(self, extent: Extent) -> None:
        firsts = self._firsts.setdefault(extent.store, [])
        index = bisect_left(firsts, extent.first_seq)
        if index == len(firsts) or firsts[index] != extent.first_seq:
            firsts.insert(index, extent.first_seq)
        self._changed.setdefault(extent.store, {})[extent.first_seq] = extent

    def _remove(self, store: str, first_seq: int) -> None:
        firsts = self._firsts.setdefault(store, [])
        index = bisect_left(firsts, first_seq)
        if index < len(firsts) and firsts[index] == first_seq:
            del firsts[index]
        self._changed.setdefault(store, {})[first_seq] = None

    def forget_store(self, store: str) -> None:
        """A store was deleted; one of the same name starts again."""
        self._open.pop(store, None)
        self._changed.pop(store, None)
        self._written.pop(store, None)
        self._firsts.pop(store, None)
        self._forgotten[store] = False

    def find(self, store: str, seq: int) -> Extent | None:
        """The extent that holds ``seq``, or the next one after it, or None."""
        self._note_growing(store)
        extent = self._at(store, seq)
        if extent is not None and extent.last_seq >= seq:
            return extent
        return self._after(store, seq)

    def _known(self, store: str, first_seq: int) -> bool:
        return first_seq in self._changed.get(store, ()) or first_seq in self._written.get(store, ())

    def _memory(self, store: str, first_seq: int) -> Extent | None:
        changed = self._changed.get(store, {})
        return changed[first_seq] if first_seq in changed else self._written.get(store, {}).get(first_seq)

    def _at(self, store: str, seq: int) -> Extent | None:
        firsts = self._firsts.get(store, [])
        index = bisect_right(firsts, seq)
        near = self._memory(store, firsts[index - 1]) if index else None
        if near is not None and near.last_seq >= seq:
            return near
        below = None if store in self._forgotten else self._table.extent_at(store, seq)
        while below is not None and self._known(store, below.first_seq):
            below = self._table.extent_at(store, below.first_seq - 1)
        if below is None or (near is not None and near.first_seq >= below.first_seq):
            return near
        return below

    def _after(self, store: str, seq: int) -> Extent | None:
        firsts = self._firsts.get(store, [])
        index = bisect_right(firsts, seq)
        near = self._memory(store, firsts[index]) if index < len(firsts) else None
        below = None if store in self._forgotten else self._table.extent_after(store, seq)
        while below is not None and self._known(store, below.first_seq):
            below = self._table.extent_after(store, below.first_seq)
        if below is None or (near is not None and near.first_seq <= below.first_seq):
            return near
        return below

    def current(self, extent: Extent) -> Extent | None:
        """An extent of the table as it is now; None if it has moved, or its store is gone."""
        if extent.store in self._forgotten:
            return None
        self._note_growing(extent.store)
        if not self._known(extent.store, extent.first_seq):
            return extent
        changed = self._memory(extent.store, extent.first_seq)
        return changed if changed is not None and changed.first_frame == extent.first_frame else None

    def remove(self, extents: list[Extent]) -> None:
        """Remove extents without kept messages from the table with the next checkpoint."""
        for store, first_seq, *_ in extents:
            self._close(store, first_seq)
            self._remove(store, first_seq)

    def freeze(self) -> LocationChanges:
        """What has changed since the last checkpoint; it stays in force here until ``written``."""
        assert not self._written, "one checkpoint at a time"
        for store in self._open:
            self._note_growing(store)
        forgotten = list(self._forgotten)
        self._forgotten = dict.fromkeys(forgotten, True)
        changes = LocationChanges(forgotten, [], [])
        for store, changed in self._changed.items():
            for first_seq, extent in changed.items():
                if extent is None:
                    changes.removed.append((store, first_seq))
                else:
                    changes.extents.append(extent)
        self._written, self._changed = self._changed, {}
        return changes

    def written(self) -> None:
        """The table has what was frozen."""
        self._written = {}
        self._forgotten = {store: False for store, frozen in self._forgotten.items() if not frozen}
        self._firsts = {
            store: sorted(first_seq for first_seq, extent in changed.items() if extent is not None)
            for store, changed in self._changed.items()
        }
