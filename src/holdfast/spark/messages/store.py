"""``shape=messages`` with ``store``: a message store as a batch source and as a stream.

Stores on a disk are opened read-only, so their service may keep running; every task must see their directory under the
same path. A store in a log is read from there (``store_in_log``). An offset is ``{"seq": 41, "backlog": 17}``
(of a log also ``version`` and ``log_id``): each message up to 41 was returned, and holes up to 17 are not losses. Any
other message that no longer exists is lost: NotFound, or skipped with ``failOnDataLoss`` off. A deleted store ends the
stream with an error. Cost: a query of the index and the log after its checkpoint; each page once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from holdfast.errors import Closed, Code, NotFound
from holdfast.spark.columns import STORE_COLUMNS
from holdfast.spark.messages.numbered import BATCH_BYTES, BATCH_MESSAGES, NumberedStream, as_rows
from holdfast.spark.options import StoreOptions
from holdfast.spark.positions import LATEST, Given, Offset, StorePosition, foreign, offset_of, position_in
from holdfast.spark.runtime.processes import states_errors
from holdfast.spark.runtime.refusals import log_truncated
from holdfast.spark.runtime.tasks import grouped
from holdfast.stores.repair.reader import Placed, StoredMessage, StoreReader
from holdfast.stores.storage.locations import Extent

if TYPE_CHECKING:  # a task that reads files does not need it
    from holdfast.spark.messages.store_in_log import InObjects, InPages, PlacedInLog, StoreInLog

AnyExtent: TypeAlias = "Extent | InPages | InObjects"
AnyPlaced: TypeAlias = "Placed | PlacedInLog"
AnyReader: TypeAlias = "StoreReader | StoreInLog"


@dataclass
class StorePartition(InputPartition):
    """Extents of the store with this id, each with whether missing messages are an error, published up to
    ``until_ms``."""

    extents: tuple[tuple[AnyExtent, bool], ...]
    until_ms: int
    store_id: int = 0


def _open(options: StoreOptions) -> AnyReader:
    if not options.url:
        return StoreReader(options.directory, options.store)
    from holdfast.spark.messages.store_in_log import StoreInLog

    return StoreInLog(options.url, options.store, _after(options).at)


def _place_on(reader: AnyReader, placed: AnyPlaced) -> AnyPlaced:
    if not isinstance(reader, StoreReader):
        return reader.place_on()
    assert isinstance(placed, Placed), "it is of this reader"
    return reader.place_on(placed)


def _messages(reader: AnyReader, extent: AnyExtent, until_ms: int, store_id: int) -> tuple[list[StoredMessage], bool]:
    if isinstance(reader, StoreReader):
        assert isinstance(extent, Extent), "it is of this reader"
        return reader.messages(extent, until_ms, store_id)
    assert not isinstance(extent, Extent), "it is of this reader"
    return reader.messages(extent)


_VALUES: Final[Mapping[str, Callable[[StoredMessage], object]]] = {
    "seq": lambda one: one.seq,
    "time": lambda one: one.published_ms * 1000,
    "key": lambda one: one.message.key,
    "fields": lambda one: msgspec.json.encode(one.message.fields).decode(),
    "body": lambda one: None if one.removal else one.message.body,
    "publisher_seq": lambda one: one.message.publisher_seq or None,
    "ttl_ms": lambda one: one.message.ttl_ms or None,
    "deliver_at": lambda one: one.message.deliver_at_ms * 1000 if one.message.deliver_at_ms else None,
}
EVERYTHING: Final = 2**63 - 1


def plan_store(options: StoreOptions) -> list[StorePartition]:
    """The pieces of a store as it is now, in order. Raises: NotFound (no such store; data loss), CorruptData."""
    with _open(options) as reader:
        placed, after, backlog = _start(options, reader)
    return pieces_of(options, placed.extents, (after, placed.newest_seq), placed, backlog)


def _start(options: StoreOptions, reader: AnyReader) -> tuple[AnyPlaced, int, int]:
    """The store as it is now, the last message not wanted, and the last one whose absence is not a loss."""
    position = _after(options)
    placed = reader.place(position.seq)
    _require_same(options, placed, position)
    after = position.seq
    if options.after == LATEST:
        after = placed.newest_seq
    elif options.since is not None:
        after = seq_before(reader, placed, int(options.since.timestamp() * 1000))
    # Messages that were consumed before this read began are not lost to it.
    return placed, after, position.seq or placed.newest_seq


def _after(options: StoreOptions) -> StorePosition:
    return StorePosition(0) if isinstance(options.after, str) else options.after


def pieces_of(
    options: StoreOptions, extents: Sequence[AnyExtent], between: tuple[int, int], placed: AnyPlaced, backlog: int
) -> list[StorePartition]:
    """The messages after ``between[0]`` up to ``between[1]`` in pieces of about the wanted bytes.

    ``backlog``: numbers up to it may have gone. Raises: NotFound where others have.
    """
    after, through = between
    exact_after = max(after, backlog) if options.fail_on_data_loss else EVERYTHING
    wanted: list[tuple[AnyExtent, bool]] = []
    expected = 0
    for extent in _cut(extents, after, exact_after, through):
        is_exact = extent.first_seq > exact_after
        if is_exact and extent.first_seq > (begin := max(expected, exact_after + 1)):
            raise _lost(options, begin, extent.first_seq - 1)
        expected = extent.last_seq + 1
        wanted.append((extent, is_exact))
    if (begin := max(expected, exact_after + 1)) <= through:
        raise _lost(options, begin, through)
    pieces = grouped(wanted, lambda each: each[0].bytes, options.target_partition_bytes)
    return [StorePartition(tuple(piece), placed.until_ms, placed.store_id) for piece in pieces]


def _cut(extents: Sequence[AnyExtent], after: int, border: int, through: int) -> Iterator[AnyExtent]:
    """The extents between two numbers, those across ``border`` in two."""
    for extent in extents:
        for low, high in ((after + 1, min(border, through)), (max(after, border) + 1, through)):
            first, last = max(low, extent.first_seq), min(high, extent.last_seq)
            if first <= last:
                yield extent._replace(first_seq=first, last_seq=last)


def _lost(options: StoreOptions, first_seq: int, last_seq: int) -> NotFound:
    return log_truncated(
        "data loss: messages after the starting offset were consumed by all and removed before this read",
        hint="define a durable that keeps them for this reader, or set failOnDataLoss=false to read what is left",
        store=options.store,
        first_seq=first_seq,
        last_seq=last_seq,
    )


def seq_before(reader: AnyReader, placed: AnyPlaced, since_ms: int) -> int:
    """The last message published before ``since_ms``, or the number before the first one that there is.

    Cost: about log2(extents) of them are read.
    """
    extents = placed.extents
    low, high = 0, len(extents)
    while low < high:
        middle = (low + high) // 2
        messages, _ = _messages(reader, extents[middle], placed.until_ms, placed.store_id)
        # Nothing of it is there: it may go either way, as those before it must be looked at.
        if not messages or messages[-1].published_ms >= since_ms:
            high = middle
        else:
            low = middle + 1
    for extent in extents[low:]:
        messages, _ = _messages(reader, extent, placed.until_ms, placed.store_id)
        for one in messages:
            if one.published_ms >= since_ms:
                return one.seq - 1
    return placed.newest_seq


def store_rows(options: StoreOptions, piece: StorePartition) -> Iterator[pa.RecordBatch]:
    """The messages of one piece in order, with the options' columns.

    Raises: NotFound, Closed (``store_replaced``), CorruptData, Unavailable."""
    with _open(options) as reader:
        batches = grouped(
            _stored(options, reader, piece), lambda one: len(one.message.body), BATCH_BYTES, BATCH_MESSAGES
        )
        for batch in batches:
            yield as_rows(batch, options.columns, STORE_COLUMNS, _VALUES)


def _stored(options: StoreOptions, reader: AnyReader, piece: StorePartition) -> Iterator[StoredMessage]:
    for extent, is_exact in piece.extents:
        messages, is_all = _messages(reader, extent, piece.until_ms, piece.store_id)
        if is_exact and not is_all:
            raise _lost(options, extent.first_seq, extent.last_seq)
        yield from messages


@states_errors
class HoldfastStoreStreamReader(NumberedStream[StoreOptions]):
    """One streaming query's view of a store."""

    def __init__(self, options: StoreOptions) -> None:
        super().__init__(options, store_rows)
        self._reader: AnyReader | None = None
        self._placed: AnyPlaced | None = None
        self._extents: list[AnyExtent] = []
        self._placed_ms = 0.0

    def initialOffset(self) -> Offset:  # noqa: N802  Spark's name
        """Where a query without a checkpoint begins. Raises: NotFound, CorruptData, Unavailable."""
        placed, after, _ = _start(self._options, self._opened())
        return _offset(after, after if _after(self._options).seq else placed.newest_seq, placed)

    def _newest(self) -> int:
        return self._opened().place(2**63 - 2).newest_seq

    def _next_offset(self, start: Given, *, is_bounded: bool) -> Offset | None:
        """Raises: NotFound (no such store; data loss), Closed (``store_replaced``), CorruptData, Unavailable."""
        begin, backlog = self._known(start)
        placed = self._place(begin)
        _require_same(self._options, placed, begin)
        if placed.newest_seq < begin.seq:
            raise _replaced(self._options)
        end = min(self._until(placed.newest_seq), begin.seq + self._most_rows(self._mean_bytes, is_bounded=is_bounded))
        return None if end <= begin.seq else _offset(end, backlog, placed)

    def _mean_bytes(self) -> int:
        numbers = sum(extent.last_seq - extent.first_seq + 1 for extent in self._extents)
        return sum(extent.bytes for extent in self._extents) // max(1, numbers)

    def _place(self, begin: StorePosition) -> AnyPlaced:
        """The store, looked at no more often than every ``poll_ms``; the extents after ``begin`` are remembered."""
        now_ms = time.monotonic() * 1000
        placed = self._placed
        if placed is None:
            placed = self._opened(begin).place(begin.seq)
            self._extents = list(placed.extents)
        elif self._placed_ms + self._options.poll_ms <= now_ms:
            placed = _place_on(self._opened(), placed)
            self._extents += placed.extents
        else:
            return placed
        self._placed, self._placed_ms = placed, now_ms
        return placed

    def partitions(self, start: Given, end: Given) -> Sequence[StorePartition]:
        """The pieces between two offsets. Raises: NotFound, CorruptData, Unavailable."""
        (begin, backlog), (until, _) = self._known(start), self._known(end)
        placed, extents = self._placed, self._extents
        if placed is None or placed.newest_seq < until.seq or (extents and extents[0].first_seq > begin.seq + 1):
            # A micro-batch from before a restart; or the remembered extents begin after it.
            placed = self._placed = self._opened(until).place(begin.seq)
            extents = self._extents = list(placed.extents)
        _require_same(self._options, placed, until)
        return pieces_of(self._options, extents, (begin.seq, until.seq), placed, backlog)

    def commit(self, end: Given) -> None:
        """Spark will never ask for what is before ``end`` again."""
        (through, _) = self._known(end)
        self._extents = [extent for extent in self._extents if extent.last_seq > through.seq]

    def stop(self) -> None:
        """Close what is open; the query has ended."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.__exit__()

    def _known(self, offset: Given) -> tuple[StorePosition, int]:
        """The position in a checkpoint, and its backlog. Raises: InvalidRequest for an offset of another source."""
        position = position_in(offset, StorePosition)
        if position.backlog is None or (position.at is None) == bool(self._options.url):
            raise foreign(offset, "backlog, or the state of the log, is missing")
        return position, position.backlog

    def _opened(self, position: StorePosition | None = None) -> AnyReader:
        """The open reader. With a position, what it reads next must be the log of that position."""
        if self._reader is None:
            self._reader = _open(self._options)
        if position is not None and not isinstance(self._reader, StoreReader):
            self._reader.since = position.at
        return self._reader


def _offset(seq: int, backlog: int, placed: AnyPlaced) -> Offset:
    store_id = placed.store_id or None
    if isinstance(placed, Placed):
        return offset_of(StorePosition(seq, backlog, store_id, placed.lineage.history or None))
    return offset_of(StorePosition(seq, backlog, store_id, None, placed.at.version, placed.at.log_id))


def _require_same(options: StoreOptions, placed: AnyPlaced, position: StorePosition) -> None:
    """Return if a position is of the store that has the name, and what it has read is still the same.

    Of a log its state says the second. Raises: Closed (``store_replaced``)."""
    is_same = position.store_id is None or not placed.store_id or position.store_id == placed.store_id
    if is_same and isinstance(placed, Placed) and position.history is not None:
        is_same = placed.lineage.has(position.history, placed.store_id, position.seq)
    if not is_same:
        raise _replaced(options)


def _replaced(options: StoreOptions) -> Closed:
    return Closed(
        "data loss: the store was deleted and made again, or restored, since this stream's checkpoint",
        code=Code.STORE_REPLACED,
        hint="begin a new stream, with a new checkpoint",
        store=options.store,
    )
