"""The newest changes of a log in memory, over a view that is at an older version.

``NewestChanges`` holds every write, delete and range delete of the versions in ``(floor, version]``. So the state at
``version`` is that of any view at a version from ``floor`` on, changed by what is held; a view below ``floor`` does not
do. ``floor`` rises when there would be more than ``bytes_max`` in memory: the oldest changes go first. They are kept in
layers, newest first, each of a part of the bytes, and an old layer goes as a whole.

*Bytes*: keys, values and ``HELD_BYTES`` for each change. A key that changes twice counts twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Final

from holdfast.commit.format.transaction import Operation
from holdfast.view.storage import (
    ENTRY_BYTES,
    Asked,
    KeyRange,
    Larger,
    Layer,
    Result,
    Stored,
    ViewAnswer,
    ViewPage,
    answer_within,
    merged,
    page_of,
    page_within,
    within,
)

LAYERS: Final = 16
"""How many layers share the bytes. One that goes releases its memory in one step, which the event loop waits for."""
HELD_BYTES: Final = 256
"""What a change takes besides its key and value: its place in a dictionary, and four objects."""
REMEMBERED_BYTES_MAX: Final = 65_536


class Absence(Enum):
    """Nothing is known of a key here: it did not change in ``(floor, version]``."""

    NOT_HERE = 0


NOT_HERE: Final = Absence.NOT_HERE


class _Part:
    """A layer and the newest version in it."""

    __slots__ = ("last_version", "layer")

    def __init__(self, last_version: int) -> None:
        self.layer = Layer(is_ground=False)
        self.last_version = last_version

    @property
    def size(self) -> int:
        return self.layer.size + len(self.layer.changes) * (HELD_BYTES - ENTRY_BYTES)


class NewestChanges:
    """Changes after ``base``, up to ``bytes_max``."""

    def __init__(self, base: int, bytes_max: int) -> None:
        self.floor = base
        self.version = base
        self._bytes_max = bytes_max
        self._part_bytes_max = bytes_max // LAYERS
        self._parts: deque[_Part] = deque()
        """Newest first; together they hold everything in ``(floor, version]``."""
        self._closed_bytes = 0
        """Of all but the newest."""

    @property
    def size(self) -> int:
        """The bytes of what is held."""
        return self._closed_bytes + (self._parts[0].size if self._parts else 0)

    def take(self, txns: Iterable[tuple[int, Sequence[Operation]]], last_version: int) -> None:
        """Take the next transactions in order. They are durable, and so is everything up to ``last_version``."""
        part = self._newest()
        part.layer.apply_many(txns)
        part.last_version = self.version = last_version
        if part.size >= max(1, self._part_bytes_max):
            self._close(part)

    def restart(self, floor: int) -> None:
        """What comes next follows ``floor``, and what came between was not seen."""
        self._parts.clear()
        self._closed_bytes = 0
        self.floor = self.version = floor

    def _newest(self) -> _Part:
        if not self._parts:
            self._parts.appendleft(_Part(self.version))
        return self._parts[0]

    def _close(self, part: _Part) -> None:
        """The newest layer is full: release the oldest ones, until what stays and one more fit."""
        self._closed_bytes += part.size
        parts = self._parts
        while parts and self._closed_bytes + self._part_bytes_max > self._bytes_max:
            gone = parts.pop()
            self._closed_bytes -= gone.size
            self.floor = gone.last_version
        if parts:
            parts.appendleft(_Part(self.version))

    def find(self, key: bytes) -> Stored | Absence | None:
        """A key's value and version at ``version``, None where it is deleted; ``NOT_HERE``: a view has it."""
        for part in self._parts:
            layer = part.layer
            stored = layer.changes.get(key, NOT_HERE)
            if stored is not NOT_HERE:
                return stored
            if layer.cleared and layer.hides(key):
                return None
        return NOT_HERE

    def _remember(self, key: bytes, stored: Stored | None) -> None:
        """A view has this at ``key``, which did not change after it: the next caller finds it here."""
        size = HELD_BYTES + len(key) + (0 if stored is None else len(stored[0]))
        if size < self._part_bytes_max and size <= REMEMBERED_BYTES_MAX:
            part = self._newest()
            part.layer.remember(key, stored)
            if part.size >= self._part_bytes_max:
                self._close(part)

    def answer(
        self, asked: Sequence[Asked], seen: Mapping[int, Result], seen_at: int, bytes_max: int
    ) -> ViewAnswer | None:
        """The state at ``version``. ``seen`` is what a view at ``seen_at`` has for some of ``asked``, by their index.

        What the view says of keys is then held here, too. None: the first item is neither here nor there, or the view
        is below ``floor`` or past ``version``, or it showed only rows that are deleted and has more: ask it again.
        """
        if seen and not self.floor <= seen_at <= self.version:
            return None
        index = -1
        is_missing = False
        news: list[tuple[bytes, Stored | None]] = []

        def find(key: bytes, left: int) -> Stored | Larger | None:
            nonlocal index, is_missing
            index += 1
            stored = self.find(key)
            if stored is NOT_HERE:
                view = seen.get(index, NOT_HERE)
                if view is NOT_HERE:
                    is_missing = True
                    return Larger(0)
                assert not isinstance(view, ViewPage), "a key has a value"
                stored = view
                news.append((key, view))
            return within(stored, left)

        def read_page(asked: KeyRange, left: int) -> ViewPage | Larger:
            nonlocal index, is_missing
            index += 1
            view = seen.get(index)
            page = self.merge(asked, view, seen_at, left) if isinstance(view, ViewPage) else None
            if page is None:
                is_missing = True
                return Larger(0)
            return page_within(page, left)

        answer = answer_within(asked, self.version, find, read_page, bytes_max)
        for key, stored in news:  # not before: the floor may rise
            self._remember(key, stored)
        return None if is_missing and not answer.results else answer

    def merge(self, asked: KeyRange, seen: ViewPage, seen_at: int, bytes_max: float) -> ViewPage | None:
        """The rows of a range at ``version``, made of those of a view at ``seen_at``; None where too few were seen."""
        begin, end, limit = asked
        upto = end
        if seen.more:
            upto = seen.rows[-1][0] + b"\0"
        layers = [part.layer for part in self._parts if part.last_version > seen_at]
        rows = iter(seen.rows)
        page = page_of(merged(layers, begin, upto, rows) if layers else rows, self.version, limit, bytes_max)
        if seen.more and not page.rows:
            return None
        return page._replace(more=page.more or seen.more)

    def check(self) -> None:
        """Assert the invariants. Cost: O(changes)."""
        assert self.floor <= self.version, "the floor is not above the version"
        versions = [part.last_version for part in self._parts]
        assert versions == sorted(versions, reverse=True), "the newest layer is the first"
        assert all(self.floor <= version <= self.version for version in versions), "layers are of the versions held"
        assert self._closed_bytes == sum(part.size for part in list(self._parts)[1:]), "closed bytes are counted"
        for part in self._parts:
            part.layer.check()
