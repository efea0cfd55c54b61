"""Reads the messages of a store from its files, also while a service has them open.

It sees durable messages while their pages exist: a kept message always, a consumed one until its space is reused. The
index says, in one transaction, where the messages up to its checkpoint are; the log after that frame says the rest. The
service may write a checkpoint and remove pages at any moment. Then:

1. a page of the plan is gone: its messages were consumed, or moved
2. the index of that checkpoint knows which; the same numbers are looked up there, and read from their new place
3. a store that was deleted and made again reuses the numbers: it has another id than the plan's, which is an error
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Self
from urllib.parse import quote

from holdfast.errors import Closed, Code, CorruptData, NotFound, Unavailable, statement_of
from holdfast.stores.definitions.cluster import ClusterDefinition, parse_definition
from holdfast.stores.definitions.parts import with_parts
from holdfast.stores.machine.snapshots import decode_snapshot
from holdfast.stores.storage.frames import Relocated, clears_of, decode_frame, removals_of, runs_of
from holdfast.stores.storage.index import INDEX_NAME, UNREADABLE, Loaded, checked_row, read_checkpoint
from holdfast.stores.storage.locations import EXTENT_BYTES, Extent
from holdfast.stores.storage.log import MessageLog
from holdfast.stores.values.commands import DefinitionPart, Inherit, Record, Redefine
from holdfast.stores.values.identity import Histories, id_of
from holdfast.wire.parts import Message

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
    the last frame that counts, ``until_ms`` its time; ``store_id`` the store's id (``values.identity``), ``lineage``
    the histories of its numbers.
    """

    extents: tuple[Extent, ...]
    newest_seq: int
    until_ms: int
    frame: int
    store_id: int = 0
    lineage: Histories = field(default_factory=Histories)


class Brought(NamedTuple):
    """Consecutive numbers of a store that a record brought, and the bytes of their messages."""

    first_seq: int
    last_seq: int
    bytes: int


@dataclass
class StoreSoFar:
    """What the records of a log have said about the store ``store``, one after the other.

    ``at_ms`` is the service's time, ``definition`` the one in force if known, ``newest_seq`` the store's newest number,
    ``id`` its id, ``lineage`` the histories of its numbers.
    """

    store: str
    at_ms: int = 0
    definition: ClusterDefinition | None = None
    newest_seq: int = 0
    id: int = 0
    lineage: Histories = field(default_factory=Histories)

    @classmethod
    def at_the_beginning(cls, store: str) -> StoreSoFar:
        """Before the first record of a log."""
        return cls(store, definition=parse_definition(b""))

    def note(self, said: Record) -> tuple[bool, list[Brought]]:
        """Whether the record deleted the store, with all that came before, and the numbers that it brought."""
        command, deleted = said.command, False
        self.at_ms = max(self.at_ms, command.at_ms)
        if isinstance(command, Inherit):
            self.lineage.go_on(command.history, [(self.id, self.newest_seq)])
        elif isinstance(command, Redefine):
            deleted = DefinitionPart(("stores", self.store)) in command.parts
            if deleted:
                self.newest_seq = 0
            if self.definition is not None:
                was_there = self.store in self.definition.stores
                self.definition = with_parts(self.definition, command.parts)
                if not was_there and self.store in self.definition.stores:
                    self.id = id_of(command.drawn, self.store)
        brought = [
            Brought(run.first_seq, run.last_seq, sum(len(message.body) for message in run.messages))
            for run in runs_of(said)
            if run.store == self.store
        ]
        brought += [Brought(revision, revision, 0) for revision in clears_of(said, self.store)]
        brought.sort()
        for each in brought:
            self.newest_seq = max(self.newest_seq, each.last_seq)
        return deleted, brought

    def require_store(self) -> None:
        """Return if there is such a store, as far as is known. *Raises*: ``NotFound``."""
        definition = self.definition
        if definition is None or self.store in definition.stores.keys() - definition.volatile_stores:
            return
        if self.store in definition.stores:
            raise NotFound("the store lives in the service's memory only", store=self.store)
        raise NotFound("there is no such store", store=self.store, stores=", ".join(definition.stores) or "none")


class _Known(NamedTuple):
    """What is known up to ``frame``, with the store's extents."""

    frame: int
    so_far: StoreSoFar
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
            with suppress(_Moved):
                durable = self._log.durable
                known = self._index(after_seq)
                # A checkpoint syncs the log before it is written, so its frame counts in any case.
                return self._placed_after(known, max(durable, known.frame), after_seq)
        raise self._too_busy()

    @staticmethod
    def last_indexed(directory: str) -> int:
        """The last frame that the index in ``directory`` knows, 0 for none. *Raises*: ``CorruptData``, ``NotFound``."""
        loaded, _ = _read_index(os.path.join(directory, INDEX_NAME), "", 0)
        return 0 if loaded is None else loaded.frame

    def place_on(self, placed: Placed) -> Placed:
        """Where the messages after those of ``placed`` are, for a caller that polls.

        *Raises*: as ``place``. A store that was made again has another id. *Cost*: the log since then.
        """
        last = self._log.durable
        if last <= placed.frame:
            return replace(placed, extents=())
        so_far = StoreSoFar(self._store, placed.until_ms, None, placed.newest_seq, placed.store_id, placed.lineage)
        known = _Known(placed.frame, so_far, [])
        try:
            return self._placed_after(known, last, placed.newest_seq, deletion_matters=True)
        except _Moved:
            # A checkpoint let pages go that were not read yet, or the store was deleted.
            return self.place(placed.newest_seq)

    def place_all(self, after_seq: int) -> tuple[StoreSoFar, list[Extent]]:
        """What the files of a copy say, and where its messages after ``after_seq`` are. All frames of a copy count.

        Pages before the one with the first frame that the index does not know may be absent. Whether there is such a
        store is not checked: what comes after the copy may say it. *Raises*: ``CorruptData``, ``NotFound``.
        """
        try:
            known = self._index(after_seq)
            last = max(self._log.last, known.frame)
            return known.so_far, self._extents_after(known, last, after_seq)
        except _Moved as error:
            raise CorruptData("the log of the stores does not continue their index", store=self._store) from error

    def messages(self, extent: Extent, until_ms: int, store_id: int = 0) -> tuple[list[StoredMessage], bool]:
        """The messages of an extent of a plan with this ``until_ms``, in order, wherever they are now.

        Also returns whether these are all that its numbers ever were. *Raises*: ``Closed`` (``store_replaced``) if the
        store has another id, ``NotFound`` if it was deleted, ``CorruptData``, ``Unavailable``.
        """
        extents = [extent]
        for _ in range(ATTEMPTS_MAX):
            try:
                parts = [self._read(each) for each in extents]
            except NotFound:
                extents = self._look_up_again(extent, store_id)
                continue
            stored = [one for messages, _ in parts for one in messages if one.published_ms <= until_ms]
            numbers = len(stored) + sum(cleared for _, cleared in parts)
            return stored, numbers >= extent.last_seq - extent.first_seq + 1
        raise self._too_busy()

    def _too_busy(self) -> Unavailable:
        return Unavailable(
            "pages of the stores are removed faster than they are read", store=self._store, attempts=ATTEMPTS_MAX
        )

    def _placed_after(self, known: _Known, last: int, after_seq: int, *, deletion_matters: bool = False) -> Placed:
        extents = self._extents_after(known, last, after_seq, deletion_matters=deletion_matters)
        known.so_far.require_store()
        so_far = known.so_far
        return Placed(tuple(extents), so_far.newest_seq, so_far.at_ms, last, so_far.id, so_far.lineage)

    def _extents_after(
        self, known: _Known, last: int, after_seq: int, *, deletion_matters: bool = False
    ) -> list[Extent]:
        extents = known.extents
        expected = known.frame + 1
        for number, said in self._frames(expected, last):
            if number != expected:
                raise _Moved
            expected += 1
            if isinstance(said, Relocated):
                continue  # where it was is still there until the next checkpoint
            deleted, brought = known.so_far.note(said)
            if deleted:
                extents = []
                if deletion_matters:
                    raise _Moved
            for first, through, size in brought:
                if through > after_seq:
                    _extend(extents, Extent(self._store, first, through, number, number, size))
        if expected <= last:
            raise _Moved
        return extents

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

    def _index(self, after_seq: int) -> _Known:
        """The last checkpoint: its frame and time, the definition, where the messages after ``after_seq`` are."""
        path = os.path.join(self._directory, INDEX_NAME)
        loaded, extents = _read_index(path, self._store, after_seq)
        if loaded is None:
            return _Known(0, StoreSoFar.at_the_beginning(self._store), [])  # before the first checkpoint
        snapshot, definition = decode_snapshot(loaded.state)
        newest, identity = next(
            ((store.next_seq - 1, store.id) for store in snapshot.stores if store.name == self._store), (0, 0)
        )
        lineage = Histories()
        lineage.restore(*snapshot.lineage)
        so_far = StoreSoFar(self._store, snapshot.at_ms, definition, newest, identity, lineage)
        return _Known(loaded.frame, so_far, extents)

    def _read(self, extent: Extent) -> tuple[list[StoredMessage], int]:
        frames = self._log.read(extent.first_frame, extent.last_frame)
        said = (decode_frame(data, number) for number, data in frames)
        return messages_between(said, extent.store, extent.first_seq, extent.last_seq)

    def _look_up_again(self, extent: Extent, store_id: int) -> list[Extent]:
        placed = self.place(extent.first_seq - 1)
        if store_id and placed.store_id != store_id:
            raise Closed(
                "data loss: the store was deleted and made again since this read was planned",
                code=Code.STORE_REPLACED,
                hint="read again; a stream begins with a new checkpoint",
                facts={"store": self._store},
            )
        return [
            each._replace(first_seq=max(each.first_seq, extent.first_seq), last_seq=min(each.last_seq, extent.last_seq))
            for each in placed.extents
            if each.first_seq <= extent.last_seq
        ]


def _read_index(path: str, store: str, after_seq: int) -> tuple[Loaded | None, list[Extent]]:
    """The last checkpoint, None without one, and where the messages of a store after ``after_seq`` are."""
    try:
        database = sqlite3.connect(f"file:{quote(os.path.abspath(path))}?mode=ro", uri=True, isolation_level=None)
    except sqlite3.OperationalError as error:
        raise NotFound("there is no index of stores here", path=path) from error
    try:
        database.execute("BEGIN")
        loaded = read_checkpoint(database, path)
        rows = database.execute(
            "SELECT * FROM extents WHERE store = ? AND last_seq > ? ORDER BY first_seq", (store, after_seq)
        )
        return loaded, [Extent(*checked_row(row, "extents", path)) for row in rows]
    except UNREADABLE as error:
        raise CorruptData("the index of the stores cannot be read", path=path, cause=statement_of(error)) from error
    finally:
        database.close()


def checkpointed_definition(directory: str) -> ClusterDefinition | None:
    """The definition as of the last checkpoint of the stores in ``directory``, None before the first.

    Nothing is written; a service may have them open. *Raises*: ``NotFound`` without stores there; ``CorruptData``.
    """
    loaded, _ = _read_index(os.path.join(directory, INDEX_NAME), "", 0)
    return None if loaded is None else decode_snapshot(loaded.state)[1]


def _extend(extents: list[Extent], more: Extent) -> None:
    last = extents[-1] if extents else None
    if last is not None and last.last_seq + 1 == more.first_seq and last.bytes + more.bytes <= EXTENT_BYTES:
        extents[-1] = last._replace(last_seq=more.last_seq, last_frame=more.last_frame, bytes=last.bytes + more.bytes)
    else:
        extents.append(more)


def messages_between(
    frames: Iterable[Record | Relocated], store: str, first_seq: int, last_seq: int
) -> tuple[list[StoredMessage], int]:
    """The messages with these numbers in the frames, ascending, each as the last frame that has it says; and how many
    of the numbers stand for a key that a clear of the whole map removed."""
    by_seq: dict[int, StoredMessage] = {}
    cleared = 0
    for said in frames:
        removals = removals_of(said)
        cleared += sum(first_seq <= revision <= last_seq for revision in clears_of(said, store))
        for run in runs_of(said):
            if run.store != store or run.first_seq > last_seq or run.last_seq < first_seq:
                continue
            for seq, message in enumerate(run.messages, run.first_seq):
                if first_seq <= seq <= last_seq:
                    by_seq[seq] = StoredMessage(seq, run.published_ms, message, (store, seq) in removals)
    return [by_seq[seq] for seq in sorted(by_seq)], cleared
