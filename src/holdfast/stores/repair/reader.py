"""Reads the messages of a store from its files, also while a service has them open.

It sees durable messages while their pages exist: a kept message always, a consumed one until its space is reused. The
index says, in one transaction, where the messages up to its checkpoint are; the log after that frame says the rest. The
service may write a checkpoint and remove pages at any moment. Then:

1. a page of the plan is gone: its messages were consumed, or moved
2. the index of that checkpoint knows which; the same numbers are looked up there, and read from their new place
3. a store that was deleted and made again reuses the numbers: messages newer than the plan are left out
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, Self
from urllib.parse import quote

import msgspec

from holdfast.errors import CorruptData, InvalidRequest, NotFound, Unavailable, statement_of
from holdfast.stores.definitions.cluster import ClusterDefinition, parse_definition
from holdfast.stores.definitions.parts import with_parts
from holdfast.stores.machine.store import Revision
from holdfast.stores.storage.frames import Relocated, decode_frame, removals_of, runs_of
from holdfast.stores.storage.index import INDEX_NAME, UNREADABLE, checked_row, read_checkpoint
from holdfast.stores.storage.locations import EXTENT_BYTES, Extent
from holdfast.stores.storage.log import MessageLog
from holdfast.stores.values.commands import STEPWISE_RULES, Define, MapChange, MapChanged, Part, Record, Redefine
from holdfast.stores.values.messages import Message

ATTEMPTS_MAX: Final = 20


class StoredMessage(NamedTuple):
    """One message. ``removal``: it says that a key of a map was removed."""

    seq: int
    published_ms: int
    message: Message
    removal: bool


@dataclass(frozen=True, slots=True)
class Placed:
    """Where the messages of one store are.

    Shape: ``extents`` ascend and do not overlap; ``newest_seq`` is the store's newest number, 0 for none; ``frame`` is
    the last frame that counts, ``until_ms`` its time.
    """

    extents: tuple[Extent, ...]
    newest_seq: int
    until_ms: int
    frame: int


class _StoreBeginning(msgspec.Struct, frozen=True, array_like=True):
    name: str
    next_seq: int


class _Beginning(msgspec.Struct, frozen=True, array_like=True):
    """The first fields of a snapshot of the state (see ``snapshots``); msgspec ignores the others."""

    format: int
    at_ms: int
    revision: int
    history: list[Revision]
    stores: list[_StoreBeginning]


_beginnings = msgspec.msgpack.Decoder(_Beginning)


class _Known(NamedTuple):
    """Up to ``frame``: the service's time, the definition if known, the store's newest number, and its extents."""

    frame: int
    at_ms: int
    definition: ClusterDefinition | None
    newest_seq: int
    extents: list[Extent]


class _Moved(Exception):
    """A checkpoint came between two reads."""


class StoreReader:
    """The store ``store`` in the stores' directory. One thread at a time. *Raises*: ``NotFound`` if there are no
    stores."""

    def __init__(self, directory: str, store: str) -> None:
        self._directory = directory
        self._store = store
        self._log = MessageLog(directory, read_only=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()

    def place(self, after_seq: int = 0) -> Placed:
        """Where the messages after ``after_seq`` are now.

        *Raises*: ``NotFound`` (no such store, or one in memory only), ``CorruptData``, ``Unavailable`` (pages are
        removed faster than they are read). *Cost*: the rows of the index for these messages, and the log after its
        checkpoint.
        """
        for _ in range(ATTEMPTS_MAX):
            try:
                return self._place(after_seq)
            except _Moved:
                continue
        raise self._too_busy()

    def place_on(self, placed: Placed) -> Placed:
        """Where the messages after those of ``placed`` are, for a caller that polls.

        *Raises*: as ``place``; ``NotFound`` if the store was deleted meanwhile. *Cost*: the log since then.
        """
        last = self._log.durable
        if last <= placed.frame:
            return Placed((), placed.newest_seq, placed.until_ms, placed.frame)
        known = _Known(placed.frame, placed.until_ms, None, placed.newest_seq, [])
        try:
            return self._placed_after(known, last, placed.newest_seq, deletion_matters=True)
        except _Moved:
            # A checkpoint let pages go that were not read yet.
            return self.place(placed.newest_seq)

    def messages(self, extent: Extent, until_ms: int) -> tuple[list[StoredMessage], bool]:
        """The messages of an extent of a plan with this ``until_ms``, in order, wherever they are now.

        Also returns whether these are all that its numbers ever were. *Raises*: ``CorruptData``, ``Unavailable``.
        """
        extents = [extent]
        for _ in range(ATTEMPTS_MAX):
            try:
                parts = [self._read(each) for each in extents]
            except NotFound:
                extents = self._look_up_again(extent)
                continue
            kept = [one for messages, _ in parts for one in messages if one.published_ms <= until_ms]
            numbers = len(kept) + sum(cleared for _, cleared in parts)
            return kept, numbers >= extent.last_seq - extent.first_seq + 1
        raise self._too_busy()

    def _too_busy(self) -> Unavailable:
        return Unavailable(
            "pages of the stores are removed faster than they are read", store=self._store, attempts=ATTEMPTS_MAX
        )

    def _place(self, after_seq: int) -> Placed:
        durable = self._log.durable
        known = self._index(after_seq)
        # A checkpoint syncs the log before it is written, so its frame counts in any case.
        return self._placed_after(known, max(durable, known.frame), after_seq)

    def _placed_after(self, known: _Known, last: int, after_seq: int, *, deletion_matters: bool = False) -> Placed:
        _, at_ms, definition, newest, extents = known
        expected = known.frame + 1
        for number, said in self._frames(expected, last):
            if number != expected:
                raise _Moved
            expected += 1
            if isinstance(said, Relocated):
                continue  # where it was is still there until the next checkpoint
            at_ms = max(at_ms, said.command.at_ms)
            gone = False
            if isinstance(said.command, Define):
                definition = parse_definition(said.command.definitions)
                gone = not self._is_in(definition)
            elif isinstance(said.command, Redefine):
                if definition is not None:
                    definition = with_parts(definition, said.command.parts)
                gone = Part(("stores", self._store)) in said.command.parts
            if gone:
                extents, newest = [], 0
                if deletion_matters:
                    raise NotFound("the store was deleted", store=self._store)
            for first, through, size in self._brought(said):
                newest = max(newest, through)
                if through > after_seq:
                    _extend(extents, Extent(self._store, first, through, number, number, size))
        if expected <= last:
            raise _Moved
        if definition is not None and not self._is_in(definition):
            raise self._no_such(definition)
        return Placed(tuple(extents), newest, at_ms, last)

    def _brought(self, said: Record | Relocated) -> Iterator[tuple[int, int, int]]:
        """First and last number and bytes of the messages that a record added to this store."""
        for run in runs_of(said):
            if run.store == self._store:
                yield run.first_seq, run.last_seq, sum(len(message.body) for message in run.messages)
        first, last = _cleared(said, self._store)
        if first <= last:
            yield first, last, 0

    def _frames(self, first: int, last: int) -> Iterator[tuple[int, Record | Relocated]]:
        if first > last:
            return
        try:
            for number, data in self._log.frames(first):
                if number > last:
                    return
                yield number, decode_frame(data, number)
        except NotFound as gone:
            raise _Moved from gone

    def _is_in(self, definition: ClusterDefinition) -> bool:
        return self._store in definition.stores and self._store not in definition.volatile_stores

    def _no_such(self, definition: ClusterDefinition) -> NotFound:
        if self._store in definition.stores:
            return NotFound("the store lives in the service's memory only", store=self._store)
        return NotFound("there is no such store", store=self._store, stores=", ".join(definition.stores) or "none")

    def _index(self, after_seq: int) -> _Known:
        """The last checkpoint: its frame and time, the definition, where the messages after ``after_seq`` are."""
        path = os.path.join(self._directory, INDEX_NAME)
        try:
            database = sqlite3.connect(f"file:{quote(os.path.abspath(path))}?mode=ro", uri=True, isolation_level=None)
        except sqlite3.OperationalError as error:
            raise NotFound("there is no index of stores here", path=path) from error
        try:
            database.execute("BEGIN")
            loaded = read_checkpoint(database, path)
            rows = [
                checked_row(row, "extents", path)
                for row in database.execute(
                    "SELECT * FROM extents WHERE store = ? AND last_seq > ? ORDER BY first_seq",
                    (self._store, after_seq),
                )
            ]
        except UNREADABLE as error:
            raise CorruptData("the index of the stores cannot be read", path=path, cause=statement_of(error)) from error
        finally:
            database.close()
        if loaded is None:
            return _Known(0, 0, parse_definition(b""), 0, [])  # before the first checkpoint
        try:
            beginning = _beginnings.decode(loaded.state)
            definition = parse_definition(beginning.history[-1].definitions if beginning.history else b"")
        except (msgspec.DecodeError, InvalidRequest) as error:
            raise CorruptData(
                "the index holds no snapshot of the stores", path=path, cause=statement_of(error)
            ) from error
        newest = next((store.next_seq - 1 for store in beginning.stores if store.name == self._store), 0)
        return _Known(loaded.frame, beginning.at_ms, definition, newest, [Extent(*row) for row in rows])

    def _read(self, extent: Extent) -> tuple[list[StoredMessage], int]:
        """The messages of an extent in its frames, ascending, and how many of its numbers stand for a key that a clear
        of the whole map removed. *Raises*: ``NotFound``."""
        by_seq: dict[int, StoredMessage] = {}
        cleared = 0
        for number, data in self._log.read(extent.first_frame, extent.last_frame):
            said = decode_frame(data, number)
            removals = removals_of(said)
            low, high = _cleared(said, extent.store)
            cleared += max(0, min(high, extent.last_seq) - max(low, extent.first_seq) + 1)
            for run in runs_of(said):
                if run.store != extent.store or run.first_seq > extent.last_seq or run.last_seq < extent.first_seq:
                    continue
                for seq, message in enumerate(run.messages, run.first_seq):
                    if extent.first_seq <= seq <= extent.last_seq:
                        by_seq[seq] = StoredMessage(seq, run.published_ms, message, (extent.store, seq) in removals)
        return [by_seq[seq] for seq in sorted(by_seq)], cleared

    def _look_up_again(self, extent: Extent) -> list[Extent]:
        try:
            placed = self.place(extent.first_seq - 1)
        except NotFound:
            return []  # the store was deleted, and its messages with it
        return [
            each._replace(first_seq=max(each.first_seq, extent.first_seq), last_seq=min(each.last_seq, extent.last_seq))
            for each in placed.extents
            if each.first_seq <= extent.last_seq
        ]


def _extend(extents: list[Extent], more: Extent) -> None:
    last = extents[-1] if extents else None
    if last is not None and last.last_seq + 1 == more.first_seq and last.bytes + more.bytes <= EXTENT_BYTES:
        extents[-1] = last._replace(last_seq=more.last_seq, last_frame=more.last_frame, bytes=last.bytes + more.bytes)
    else:
        extents.append(more)


def _cleared(said: Record | Relocated, store: str) -> tuple[int, int]:
    """The first and last number of a command that cleared a map of ``store``; 1 and 0 for any other."""
    if isinstance(said, Record) and isinstance(said.command, MapChange) and isinstance(said.result, MapChanged):
        command, result = said.command, said.result
        if command.remove_all and command.store == store and result.changed:
            if said.rules >= STEPWISE_RULES:
                return result.revision, result.revision
            return result.revision - result.changed + 1, result.revision
    return 1, 0
