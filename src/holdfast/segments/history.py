"""A log's history as events from its segments. Subscribers and views read these instead of many small objects.

The events are those of the log: the same versions, ``prev_version``, request ids, leaders, times and operations. A
portion ends with a checkpoint at a final version. A table that is missing, is not a table of segments or belongs to
another log gives no events, and is logged. A segment that a vacuum removed is looked up in the newest table once; a
damaged or missing one raises CorruptData, and the caller continues in the log. Nothing is skipped.

Cost: one read of the Delta log, at most every ``REFRESH_SECONDS``; from each file, the footer and the needed row
groups. A reader holds one row group in its file encoding, and ``BATCH_BYTES`` of rows. Decoding runs on a thread.
"""

# pyarrow ships no types, so the checker cannot know its classes where they are parameters; mypy checks the rest.
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import asyncio
import io
from bisect import bisect_left
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from holdfast.commit.format.transaction import Delete, JobChange, Operation, RangeDelete, Write
from holdfast.commit.reading.feed import EventBatch, FeedCheckpoint, FeedTransaction
from holdfast.errors import Code, CorruptData, HoldfastError, NotFound, statement_of
from holdfast.objects.port import ObjectReader
from holdfast.segments.index import Segment, SegmentIndex, read_segment_index
from holdfast.segments.table_location import open_table_store, table_location

log = structlog.get_logger("holdfast.segments")

REFRESH_SECONDS: Final = 10.0
FOOTER_BYTES: Final = 64 * 1024
BATCH_ROWS: Final = 2048
BATCH_BYTES: Final = 4 << 20
_COLUMNS: Final = ("version", "request_id", "kind", "key", "end", "value", "timestamp", "leader_id")
_MAGIC: Final = b"PAR1"


class _Parts(io.RawIOBase):
    """A file of which only fetched parts can be read, for pyarrow."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self._at = 0
        self._parts: list[tuple[int, bytes]] = []

    def keep(self, *parts: tuple[int, bytes]) -> None:
        """Replace the parts, each with its offset."""
        self._parts = list(parts)

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """The offset of the next read."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move there."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        """This many bytes, all of which must be fetched. Raises: OSError."""
        wanted = self._size - self._at if size < 0 else min(size, self._size - self._at)
        for start, data in self._parts:
            if start <= self._at and self._at + wanted <= start + len(data):
                part = data[self._at - start : self._at - start + wanted]
                self._at += wanted
                return part
        raise OSError("this part of the segment was not fetched")


@dataclass(frozen=True, slots=True)
class _Row:
    """One operation of a segment."""

    version: int
    request_id: str | None
    operation: Operation | JobChange
    time_ms: int
    leader_id: str


class SegmentHistory:
    """The segments at ``url``, for one event loop. Call ``through`` first. Raises: InvalidRequest for a wrong URL."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._location = table_location(url)
        self._index: SegmentIndex | None = None
        self._looked: float | None = None
        self._looking = asyncio.Lock()

    async def through(self, log_id: str) -> int:
        """Every version of the log with this id up to this one is in segments; 0 where there are none of it."""
        loop = asyncio.get_running_loop()
        async with self._looking:
            if self._looked is None or loop.time() - self._looked >= REFRESH_SECONDS:
                await self._look()
        index = self._index
        if index is None:
            return 0
        if index.log_id != log_id:
            log.error(
                "segments_of_another_log",
                url=self._url,
                log_id=log_id,
                segments_of=index.log_id,
                hint="the log or the table was replaced: write segments of this log to another URL",
            )
            return 0
        return index.through

    async def _look(self) -> None:
        """Read the table's index; keep the old one where that fails."""
        try:
            self._index = await asyncio.to_thread(read_segment_index, self._location.uri, self._location.options)
        except HoldfastError as error:
            log.warning("segments_not_read", url=self._url, cause=str(error))
        self._looked = asyncio.get_running_loop().time()

    async def events(self, after: int, until: int) -> AsyncGenerator[EventBatch]:
        """The events after version ``after`` up to ``until``, which is not above ``through``; a checkpoint ends each
        portion, the last one at ``until``. Raises: CorruptData (a segment is damaged or missing), Unavailable."""
        reached, leader_id, looked_again = after, "", False
        while True:
            index = self._index
            assert index is not None, "through was asked"
            try:
                async with aclosing(self._walk(index, reached, until)) as portions:
                    async for rows, prev in portions:
                        events = _events_of(rows, prev)
                        reached, leader_id = rows[-1].version, rows[-1].leader_id
                        size = sum(map(_bytes_of, rows))
                        yield EventBatch(reached, size, index.log_id, [*events, FeedCheckpoint(reached, leader_id)])
            except NotFound as gone:
                if looked_again:
                    raise _unreadable(gone, reached) from gone
                looked_again = True
                await self._look()
                continue
            except (pa.ArrowException, OSError) as damage:
                raise _unreadable(damage, reached) from damage
            break
        if reached < until and leader_id:
            yield EventBatch(until, 64, index.log_id, (FeedCheckpoint(until, leader_id),))

    async def rolled_back_to(self, version: int) -> tuple[int, str] | None:
        """The version that a stream at ``version`` must roll back to, and the leader after it; None where it may
        continue.

        For versions whose leadership has left the log. Between transactions of two leaders it is not known which
        versions were rolled back, so the stream rolls back to the first of the two. Raises: as ``events``.
        """
        index = self._index
        assert index is not None, "through was asked"
        try:
            async with _opened(self._url) as store:
                before = await _last_through(store, index, version)
                if before is None or before.version == version:
                    return None
                async with aclosing(self._walk(index, version, index.through)) as portions:
                    async for rows, _ in portions:
                        after = rows[0]
                        return None if after.leader_id == before.leader_id else (before.version, after.leader_id)
        except (NotFound, pa.ArrowException, OSError) as damage:
            raise _unreadable(damage, version) from damage
        return None

    async def _walk(self, index: SegmentIndex, after: int, until: int) -> AsyncGenerator[tuple[list[_Row], int]]:
        """Portions of whole transactions, each with the version of the transaction before it."""
        async with _opened(self._url) as store:
            before = await _last_through(store, index, after)
            prev = 0 if before is None else before.version
            for segment in index.between(after + 1, until):
                waiting: list[_Row] = []
                async with aclosing(_rows_of(store, segment, after, until)) as batches:
                    async for rows in batches:
                        waiting += rows
                        # The last transaction may go on in the next batch; files never share one.
                        whole = bisect_left(waiting, waiting[-1].version, key=lambda row: row.version)
                        if whole:
                            yield waiting[:whole], prev
                            prev, waiting = waiting[whole - 1].version, waiting[whole:]
                if waiting:
                    yield waiting, prev
                    prev = waiting[-1].version


@asynccontextmanager
async def _opened(url: str) -> AsyncGenerator[ObjectReader]:
    store = open_table_store(url)
    try:
        yield store
    finally:
        await store.close()


def _unreadable(cause: Exception, reached: int) -> CorruptData:
    log.warning("segment_unreadable", after_version=reached, cause=statement_of(cause))
    return CorruptData(
        "a segment cannot be read",
        code=Code.CORRUPT_LOG,
        hint="restore the segment from a copy of its table; while the log has its versions, they are read from there",
        after_version=reached,
        cause=statement_of(cause),
    )


async def _last_through(store: ObjectReader, index: SegmentIndex, version: int) -> _Row | None:
    """The last operation at or below ``version``, or None."""
    segments = index.between(0, version)
    if not segments:
        return None
    last: _Row | None = None
    async with aclosing(_rows_of(store, segments[-1], 0, version, last_group=True)) as batches:
        async for rows in batches:
            last = rows[-1]
    return last


async def _rows_of(
    store: ObjectReader, segment: Segment, after: int, until: int, *, last_group: bool = False
) -> AsyncGenerator[list[_Row]]:
    """The rows of ``(after, until]`` in one file, in order; with ``last_group`` of the last row group that has any."""
    parts = _Parts(segment.size)
    footer = await _footer(store, segment)
    parts.keep(footer)
    file = await asyncio.to_thread(lambda: pq.ParquetFile(parts, page_checksum_verification=True))
    at = file.schema_arrow.get_field_index("version")
    groups = [
        number
        for number in range(file.num_row_groups)
        if (bounds := file.metadata.row_group(number).column(at).statistics) is None
        or (bounds.min <= until and bounds.max > after)
    ]
    newest = 0
    for number in groups[-1:] if last_group else groups:
        group = file.metadata.row_group(number)
        start, end = _span(group)
        parts.keep(footer, (start, await store.read(segment.path, start=start, length=end - start)))
        row_bytes = max(1, group.total_byte_size // max(1, group.num_rows))
        batches = file.iter_batches(
            max(1, min(BATCH_ROWS, BATCH_BYTES // row_bytes)), [number], columns=list(_COLUMNS), use_threads=False
        )
        while (rows := await asyncio.to_thread(_next_rows, batches)) is not None:
            if rows and rows[0].version < newest:
                raise OSError(f"the versions of a segment fall: {segment.path}")
            newest = rows[-1].version if rows else newest
            portion = [row for row in rows if after < row.version <= until]
            if portion:
                yield portion


async def _footer(store: ObjectReader, segment: Segment) -> tuple[int, bytes]:
    """The offset and bytes of a file's end with all of its metadata. Raises: OSError, NotFound, Unavailable."""
    start = max(0, segment.size - FOOTER_BYTES)
    tail = await store.read(segment.path, start=start)
    if tail[-4:] != _MAGIC or start + len(tail) != segment.size:
        raise OSError(f"not a whole Parquet file: {segment.path}")
    size = int.from_bytes(tail[-8:-4], "little") + 8
    if size > len(tail):
        start = max(0, segment.size - size)
        tail = await store.read(segment.path, start=start)
    return start, tail


def _span(group: pq.RowGroupMetaData) -> tuple[int, int]:
    """The first and last offset of a row group's pages."""
    starts: list[int] = []
    ends: list[int] = []
    for number in range(group.num_columns):
        column = group.column(number)
        start = column.dictionary_page_offset or column.data_page_offset
        starts.append(start)
        ends.append(start + column.total_compressed_size)
    return min(starts), max(ends)


def _next_rows(batches: Iterator[pa.RecordBatch]) -> list[_Row] | None:
    """The next batch as rows; None after the last."""
    batch = next(batches, None)
    if batch is None:
        return None
    columns = {name: batch.column(name) for name in _COLUMNS}
    columns["timestamp"] = columns["timestamp"].cast(pa.int64())
    lists = [columns[name].to_pylist() for name in _COLUMNS]
    return [
        _Row(version, request_id, _operation(kind, key, end, value), time_us // 1000, leader_id)
        for version, request_id, kind, key, end, value, time_us, leader_id in zip(*lists, strict=True)
    ]


def _operation(kind: str, key: bytes, end: bytes | None, value: bytes | None) -> Operation | JobChange:
    if kind == "write" and value is not None:
        return Write(key, value)
    if kind == "delete":
        return Delete(key)
    if kind == "range_delete":
        return RangeDelete(key, end)
    if kind == "job":
        return JobChange(key.decode(errors="replace"), value)
    raise OSError(f"a segment has a row of an unknown kind: {kind}")


def _bytes_of(row: _Row) -> int:
    operation = row.operation
    if isinstance(operation, JobChange):
        return 64 + operation.size
    return 64 + len(operation.value if isinstance(operation, Write) else b"")


def _events_of(rows: Sequence[_Row], prev: int) -> list[FeedTransaction]:
    """The transactions of these rows, which follow version ``prev``."""
    events: list[FeedTransaction] = []
    operations: list[Operation] = []
    jobs: list[JobChange] = []
    for index, row in enumerate(rows):
        if isinstance(row.operation, JobChange):
            jobs.append(row.operation)
        else:
            operations.append(row.operation)
        if index + 1 == len(rows) or rows[index + 1].version != row.version:
            shared = row.request_id, row.leader_id, row.time_ms, operations, True
            events.append(FeedTransaction(row.version, prev, *shared, jobs=tuple(jobs)))
            prev, operations, jobs = row.version, [], []
    return events
