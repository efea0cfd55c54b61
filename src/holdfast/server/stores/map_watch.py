"""One watch of a map: first every present key, then every change, as far as the watcher keeps up.

Keys are read in pages while the map changes, from a state that is ahead of what is durable. One rule orders both:

1. a page is read: it is the map at this moment
2. it waits until every earlier change is durable and was sent to the watch
3. its keys join the changes that are still to be sent; a key that is among them already has the same value
4. changes from after the page come after it

One change is kept for each key, the newest: a slow watcher gets fewer changes, not late ones. Above
``PENDING_BYTES_MAX`` of keys the watch ends with ``lagging``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Protocol

from holdfast.errors import Code, HoldfastError, InvalidRequest, Unavailable
from holdfast.stores.machine.map_commands import map_of
from holdfast.stores.service import StoreService
from holdfast.wire.stores import ChangesFrame, CurrentFrame, KeyChange

PAGE_KEYS: Final = 1_000
PORTION_KEYS: Final = 256
PORTION_BYTES: Final = 524_288
"""Bytes of values in one frame; one value may exceed it."""
PENDING_BYTES_MAX: Final = 16 * 1_048_576
ITEM_BYTES: Final = 200
"""What a pending key takes in memory in addition to its text."""
_GONE: Final = frozenset({"removed", "expired", "discarded", "deleted"})


class MapWatcher(Protocol):
    """The receiver of a watch."""

    @property
    def is_paused(self) -> bool:
        """Whether its connection takes nothing at the moment."""
        ...

    def tell(self, frame: ChangesFrame | CurrentFrame) -> None:
        """Write a frame."""

    def fail(self, error: HoldfastError) -> None:
        """The watch ends."""


@dataclass(frozen=True, slots=True)
class WatchedMap:
    """One key of a map in the state, or the keys that begin with a text."""

    service: StoreService
    store: str
    name: str
    prefix: str
    key: str | None

    def __post_init__(self) -> None:
        if self.prefix and self.key is not None:
            raise InvalidRequest("a watch is of one key, or of those with a prefix, not of both", map=self.name)

    def wants(self, key: str) -> bool:
        """Whether the watch is about this key."""
        return key.startswith(self.prefix) if self.key is None else key == self.key

    def page(self, after: str, count: int) -> list[tuple[str, int]]:
        """The first ``count`` watched keys above ``after``, with revisions. Raises: NotFound, InvalidRequest."""
        source = map_of(self.service.state.store(self.store), self.name)
        first = self.key if self.key is not None else self.prefix
        keys: list[tuple[str, int]] = []
        if not after and first:
            entry = source.keyed.get(first)
            if entry is not None:
                keys.append((first, entry.revision))
        if self.key is None:
            for entry in islice(source.keyed.scan(after or first), count - len(keys)):
                if not entry.key.startswith(self.prefix):
                    break  # keys with one prefix are neighbours
                keys.append((entry.key, entry.revision))
        return keys

    def size(self, revision: int) -> int:
        """The bytes of a value. Raises: NotFound."""
        return self.service.state.store(self.store).counts.size(revision, revision)

    def values(self, revisions: Iterable[int]) -> dict[int, bytes]:
        """Values by revision; replaced ones are left out. Raises: CorruptData."""
        runs = [(revision, revision, 1) for revision in sorted(revisions)]
        return {one.seq: one.body for one in self.service.messages(self.store, runs)}

    def when_safe(self, done: Callable[[], None]) -> None:
        """Call back when everything applied until now is safe and was sent."""
        self.service.when_safe(self.store, done)


@dataclass(slots=True, eq=False)
class MapWatch:
    """The watch of one connection. ``begin`` once; ``changed`` and ``resumed`` until ``end``."""

    _watched: WatchedMap
    _watcher: MapWatcher
    _soon: Callable[[Callable[[], None]], object]
    _pending: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])
    _bytes: int = 0
    _after: str = ""
    _stage: str = "pages"
    """``pages`` are read, then all is ``sent``, then only changes follow (``live``)."""
    _reading: bool = False
    _scheduled: bool = False
    _ended: bool = False

    def begin(self) -> None:
        """Tell what is there, from now on."""
        self._go_on()

    def changed(self, changes: Iterable[tuple[str, int, str]]) -> None:
        """Keys changed, and that is safe: triples of key, revision and cause in the order of their commands."""
        for key, revision, cause in changes:
            if self._watched.wants(key):
                self._put(key, revision, cause)
        if self._bytes > PENDING_BYTES_MAX and not self._ended:
            lagging = Unavailable("the watcher is too slow for the map", code=Code.LAGGING, bytes_max=PENDING_BYTES_MAX)
            self._fail(lagging)
        self._go_on()

    def resumed(self) -> None:
        """The connection takes something again."""
        self._go_on()

    def end(self) -> None:
        """Nobody listens any more."""
        self._ended = True
        self._pending = {}

    def _put(self, key: str, revision: int, cause: str) -> None:
        if self._pending.pop(key, None) is None:
            self._bytes += len(key) + ITEM_BYTES
        self._pending[key] = revision, cause

    def _go_on(self) -> None:
        if not self._scheduled and not self._ended:
            self._scheduled = True
            self._soon(self._step)

    def _step(self) -> None:
        """One portion at a time, so that a large map holds nobody up."""
        self._scheduled = False
        if self._ended or self._watcher.is_paused:
            return
        try:
            if self._pending:
                self._tell()
            elif self._stage == "pages" and not self._reading:
                self._read_page()
            elif self._stage == "sent":
                self._stage = "live"
                self._watcher.tell(CurrentFrame())
            else:
                return
        except HoldfastError as error:
            self._fail(error)
        except (OSError, sqlite3.Error) as error:
            self._fail(Unavailable("the map cannot be read", code=Code.STORE_UNAVAILABLE, cause=str(error)))
        self._go_on()

    def _read_page(self) -> None:
        page = self._watched.page(self._after, PAGE_KEYS)
        self._reading = True
        self._watched.when_safe(lambda: self._page_is_safe(page))

    def _page_is_safe(self, page: list[tuple[str, int]]) -> None:
        self._reading = False
        for key, revision in page:
            if key not in self._pending:
                self._put(key, revision, "present")
        if len(page) < PAGE_KEYS:
            self._stage = "sent"
        else:
            self._after = page[-1][0]
        self._go_on()

    def _tell(self) -> None:
        size = 0
        portion: dict[str, tuple[int, str]] = {}
        for key, (revision, cause) in islice(self._pending.items(), PORTION_KEYS):
            size += self._watched.size(revision) if cause not in _GONE else 0
            if portion and size > PORTION_BYTES:
                break
            portion[key] = revision, cause
        values = self._watched.values(revision for revision, cause in portion.values() if cause not in _GONE)
        for key in portion:
            del self._pending[key]
            self._bytes -= len(key) + ITEM_BYTES
        changes = [
            KeyChange(key, revision, cause, values.get(revision))
            for key, (revision, cause) in portion.items()
            if cause in _GONE or revision in values
        ]
        if changes:
            self._watcher.tell(ChangesFrame(changes))

    def _fail(self, error: HoldfastError) -> None:
        self.end()
        self._watcher.fail(error)
