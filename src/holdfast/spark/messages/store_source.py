"""``shape=messages`` with a ``store``: a message store as a batch source and as a stream.

Owns: the adapter between Spark's Python data source API and ``store_options`` and ``store_reading``; what an offset of
such a stream means. Does not own: what those decide.

Offsets read ``{"seq": 41, "backlog": 17}``: every message up to number 41 has been handed out; the stream began with
what was left of the numbers up to 17, so a hole in those is nothing that it lost.

Failure model: as ``source``. The same two offsets give the same rows wherever and whenever they are read, or the error
that says that messages between them have gone. A store that was deleted ends the stream with an error, also where one
of its name was made again.
"""

# pyarrow ships no types, so the checker cannot know its classes where they are parameters; mypy checks the rest.
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import BinaryType, DataType, LongType, StringType, StructField, StructType, TimestampType

from holdfast.errors import Code, InvalidRequest, NotFound
from holdfast.spark.messages.store_options import StoreOptions
from holdfast.spark.messages.store_reading import pieces_of, plan_store, seq_before, store_rows
from holdfast.spark.source.partition import StorePartition
from holdfast.stores.repair.reader import Placed, StoreReader
from holdfast.stores.storage.locations import Extent

__all__ = ["HoldfastStoreReader", "HoldfastStoreStreamReader", "store_schema"]

_TYPES: Final[Mapping[str, DataType]] = {
    "seq": LongType(),
    "time": TimestampType(),
    "key": StringType(),
    "fields": StringType(),
    "body": BinaryType(),
    "publisher_seq": LongType(),
    "ttl_ms": LongType(),
    "deliver_at": TimestampType(),
}


def store_schema(options: StoreOptions) -> StructType:
    """The columns that a read of a store with these options has, in Spark's types."""
    return StructType([StructField(name, _TYPES[name], nullable=True) for name in options.columns])


class HoldfastStoreReader(DataSourceReader):
    """One batch read of a store."""

    def __init__(self, options: StoreOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[StorePartition]:
        """The pieces to read. Raises: NotFound, CorruptData, Unavailable."""
        return plan_store(self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one piece. For a read without pieces Spark passes an empty partition of its own."""
        if isinstance(partition, StorePartition):
            yield from store_rows(self._options, partition)


class HoldfastStoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query's view of a store. Lives in one process; is copied into tasks for ``read`` alone."""

    def __init__(self, options: StoreOptions) -> None:
        self._options = options
        self._reader: StoreReader | None = None
        self._placed: Placed | None = None
        self._extents: list[Extent] = []
        self._target: int | None = None
        self._asked_ms = 0.0

    def __getstate__(self) -> dict[str, object]:
        """What a task needs: the options. Files stay where they are open."""
        return {"_options": self._options}

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  Spark's name
        """Where a query without a checkpoint begins. Raises: NotFound, CorruptData, Unavailable."""
        options, reader = self._options, self._opened()
        placed = reader.place(options.after_seq)
        after = options.after_seq
        if options.from_latest:
            after = placed.newest_seq
        elif options.since is not None:
            after = seq_before(reader, placed, int(options.since.timestamp() * 1000))
        return _offset(after, after if options.after_seq else placed.newest_seq)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        """Spark hands this back to ``latestOffset``; the bound itself is this source's option."""
        return ReadAllAvailable() if self._options.rows_max is None else ReadMaxRows(self._options.rows_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        """The store as it is now is all that this query reads."""
        self._target = self._opened().place(2**63 - 2).newest_seq

    def latestOffset(self, start: Mapping[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802  Spark's name
        """Where the next micro-batch ends; ``start`` itself when there is none yet."""
        begin, backlog = _numbers(start)
        newest = self._newest(begin)
        if newest < begin:
            raise NotFound(
                "data loss: the store was deleted and made again since this stream's checkpoint",
                code=Code.LOG_TRUNCATED,
                hint="begin a new stream, with a new checkpoint",
                store=self._options.store,
                newest_seq=newest,
                read_through=begin,
            )
        end = newest if self._target is None else max(begin, min(newest, self._target))
        if not isinstance(limit, ReadAllAvailable) and self._options.rows_max is not None:
            end = min(end, begin + self._options.rows_max)
        return dict(start) if end == begin else _offset(end, backlog)

    def _newest(self, begin: int) -> int:
        """The newest number, looked for at most every ``poll_ms``; the extents behind ``begin`` are remembered."""
        now_ms = time.monotonic() * 1000
        placed = self._placed
        if placed is None:
            placed = self._opened().place(begin)
            self._extents = list(placed.extents)
        elif self._asked_ms + self._options.poll_ms <= now_ms:
            placed = self._opened().place_on(placed)
            self._extents += placed.extents
        else:
            return placed.newest_seq
        self._placed, self._asked_ms = placed, now_ms
        return placed.newest_seq

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> Sequence[StorePartition]:
        """The pieces between two offsets. Raises: NotFound, CorruptData, Unavailable."""
        begin, backlog = _numbers(start)
        through, _ = _numbers(end)
        placed, extents = self._placed, self._extents
        if placed is None or placed.newest_seq < through or (extents and extents[0].first_seq > begin + 1):
            # A micro-batch of before a restart; or what is remembered begins behind it.
            placed = self._opened().place(begin)
            extents = list(placed.extents)
        return pieces_of(self._options, extents, (begin, through), placed.until_ms, backlog)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one piece."""
        if isinstance(partition, StorePartition):
            yield from store_rows(self._options, partition)

    def commit(self, end: Mapping[str, int]) -> None:
        """Spark will never ask for what is before ``end`` again."""
        through, _ = _numbers(end)
        self._extents = [extent for extent in self._extents if extent.last_seq > through]

    def stop(self) -> None:
        """Close what is open; the query has ended."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.__exit__()

    def _opened(self) -> StoreReader:
        if self._reader is None:
            self._reader = StoreReader(self._options.directory, self._options.store)
        return self._reader


def _offset(seq: int, backlog: int) -> dict[str, int]:
    return {"seq": seq, "backlog": backlog}


def _numbers(offset: Mapping[str, int]) -> tuple[int, int]:
    try:
        return int(offset["seq"]), int(offset["backlog"])
    except (KeyError, TypeError, ValueError):
        raise InvalidRequest(
            "checkpoint holds an offset that is not this source's", code=Code.BAD_CONFIGURATION, offset=dict(offset)
        ) from None
