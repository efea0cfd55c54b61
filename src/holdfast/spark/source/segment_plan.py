"""A read that prefers segments: which of them, which part of the log behind them, and one of them as rows.

Owns: the border between segments and log, and the wanted rows on either side of it. Does not own: the format of
segments (``segment_reading``), planning and reading the log (``plan``, ``scan``).

The border is the version through which the segments go when the read is planned: rows up to it come from segments, rows
above it from the log, and both are what the log alone would give. So a log from which retention has removed what is in
segments is read whole.

The log stays the truth: a segment that cannot be read, for its pages do not bear their checksums or a vacuum has
removed it, is read from the log.

Failure model: segments of another log raise InvalidRequest; a segment that cannot be read and whose versions have left
the log raises CorruptData. Nothing is written.

Cost: the Delta log of the segments on top of a plan; a request for each segment. Memory of a task: one segment, packed
and as rows.
"""

# pyarrow ships no types, so the checker cannot know its classes where they are parameters; mypy checks the rest.
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pyarrow as pa
import structlog

from holdfast.commit.format.transaction import VERSION_MAX
from holdfast.errors import Code, CorruptData, InvalidRequest, NotFound, statement_of
from holdfast.objects.port import ObjectStore
from holdfast.segments.index import Segment, SegmentIndex, read_segment_index
from holdfast.segments.table_location import table_location
from holdfast.spark.log.increments import LogHead, log_head
from holdfast.spark.runtime.store_thread import StoreThread
from holdfast.spark.source.options import Position, ReadOptions
from holdfast.spark.source.partition import LogPartition, SegmentPartition
from holdfast.spark.source.plan import Plan, cut, first_index, plan_read, read_header, require_log
from holdfast.spark.source.scan import scan
from holdfast.spark.source.segment_reading import segment_rows
from holdfast.spark.source.shapes import RowFilter
from holdfast.spark.source.stream_tail import LogTail, objects_between
from holdfast.spark.tables.table_files import read_objects

__all__ = ["index_of_log", "plan_with_segments", "scan_segment", "stream_with_segments"]

log = structlog.get_logger("holdfast.spark")

OBJECTS_MIN: Final = 64
"""A smaller micro-batch is read from the log before the Delta log of the segments is."""


def index_of_log(segments_url: str, head: LogHead) -> SegmentIndex:
    """The segments at ``segments_url``, which must be of the log with this head.

    Raises: NotFound (no segments), InvalidRequest (of another log), Unavailable.
    """
    location = table_location(segments_url)
    index = read_segment_index(location.uri, location.options)
    if index.log_id != head.log_id:
        raise InvalidRequest(
            "the segments are of another log",
            code=Code.LOG_MISMATCH,
            hint="the log or the table was replaced: write segments of this log at a place of their own",
            log_id=head.log_id,
            segments_of=index.log_id,
        )
    return index


def plan_with_segments(options: ReadOptions, pushed: RowFilter | None) -> list[SegmentPartition | LogPartition]:
    """The pieces of a read of operations in log order: a piece for each segment, then those of the log.

    Raises: as ``index_of_log`` and ``plan_read``.
    """
    assert options.segments_url is not None, "asked for with segments only"
    head = log_head(options.url)
    if options.starting_after is not None:
        require_log(head.log_id, options.starting_after.log_id)
    index = index_of_log(options.segments_url, head)
    wanted = _wanted(options, head)
    if pushed is not None:
        wanted = wanted.and_also(pushed)
    lowest = wanted.version_min or 0
    highest = min(VERSION_MAX if wanted.version_max is None else wanted.version_max, index.through)
    pieces: list[SegmentPartition | LogPartition] = [
        _partition(options.segments_url, segment, replace(wanted, version_max=highest), options.starting_ms)
        for segment in index.between(lowest, highest)
    ]
    if options.ending_version is not None and options.ending_version <= index.through:
        return pieces
    behind = replace(
        options,
        starting_version=max(lowest, index.through + 1),
        starting_after=None,
        from_latest=False,
    )
    with StoreThread(options.url) as thread:
        plan: Plan = thread.start(lambda store: plan_read(store, behind, wanted)).result()
    return [*pieces, *(LogPartition(piece, plan.wanted) for piece in plan.pieces)]


def _wanted(options: ReadOptions, head: LogHead) -> RowFilter:
    """The rows that the options ask for; a starting time, which no row filter knows, is looked at in each segment."""
    starting = head.version if options.from_latest else options.starting_version
    seq_min = None
    if options.starting_after is not None:
        starting = options.starting_after.version + 1
        seq_min = None if options.starting_after.seq is None else options.starting_after.seq + 1
    return RowFilter(
        starting, options.ending_version, options.kinds, options.key_begin, options.key_end, seq_min=seq_min
    )


def _partition(table_url: str, segment: Segment, wanted: RowFilter, since_ms: int | None) -> SegmentPartition:
    return SegmentPartition(table_url, segment.path, segment.version_min, segment.version_max, wanted, since_ms)


async def stream_with_segments(
    store: ObjectStore, tail: LogTail, options: ReadOptions, start: Position, end: Position, wanted: RowFilter
) -> list[SegmentPartition | LogPartition]:
    """The pieces of a micro-batch: segments that lie wholly in it, and the log before and behind them.

    Offsets name objects of the log, so those must be there, as without segments; what is saved is reading each of them.
    A micro-batch of less than ``OBJECTS_MIN`` objects is read from the log alone.

    Raises: as ``index_of_log`` and ``objects_between``. Cost: on top of that, some dozen headers.
    """
    assert options.segments_url is not None, "asked for with segments only"
    chain, first = await objects_between(store, tail, options, start, end)
    past = len(chain.slots)
    inside: list[Segment] = []
    if past - first >= OBJECTS_MIN:
        newest = await read_header(store, int(chain.slots[-1]))
        index = index_of_log(options.segments_url, LogHead(newest.log_id.hex(), newest.last_version))
        inside = [s for s in index.segments if s.version_min > start.version and s.version_max <= end.version]
    if not inside:
        return [LogPartition(piece, wanted) for piece in cut(chain, first, past, options.target_partition_bytes)]
    lowest, highest = inside[0].version_min, inside[-1].version_max
    # Between two of them there is no operation. An object may begin before the first and end behind the last.
    before = await first_index(store, chain, lambda header: header.first_version >= lowest)
    behind = await first_index(store, chain, lambda header: header.last_version > highest)
    of_segments = wanted.and_also(RowFilter(seq_min=(start.seq or 0) + 1, seq_max=end.seq))
    pieces: list[SegmentPartition | LogPartition] = []
    for part, rows in (
        ((first, max(first, before)), wanted.and_also(RowFilter(version_max=lowest - 1))),
        ((max(first, behind), past), wanted.and_also(RowFilter(version_min=highest + 1))),
    ):
        pieces += [LogPartition(piece, rows) for piece in cut(chain, *part, options.target_partition_bytes)]
    return [*pieces, *(_partition(options.segments_url, segment, of_segments, None) for segment in inside)]


def scan_segment(options: ReadOptions, partition: SegmentPartition) -> Iterator[pa.RecordBatch]:
    """The wanted rows of one segment, in log order; where it is damaged or gone, the same rows from the log.

    Raises: CorruptData when its versions have left the log, too; Unavailable.
    """
    try:
        (data,) = read_objects(partition.table_url, [partition.path])
        # Whole before any of it is handed out, so that damage at its end finds nothing handed out.
        rows = list(segment_rows(data, options.columns, partition.wanted, since_ms=partition.since_ms))
    except (NotFound, pa.ArrowException, OSError) as damage:
        yield from _rows_of_log(options, partition, damage)
        return
    yield from rows


def _rows_of_log(options: ReadOptions, partition: SegmentPartition, damage: Exception) -> Iterator[pa.RecordBatch]:
    """The rows of a segment from the log, which stays the truth."""
    log.warning("segment_unreadable", segment=partition.path, cause=statement_of(damage))
    wanted = partition.wanted.and_also(RowFilter(partition.version_min, partition.version_max))
    part = replace(
        options,
        starting_version=wanted.version_min,
        ending_version=wanted.version_max,
        starting_after=None,
        starting_ms=partition.since_ms,
        from_latest=False,
        fail_on_data_loss=True,
    )
    try:
        with StoreThread(options.url) as thread:
            plan = thread.start(lambda store: plan_read(store, part, wanted)).result()
    except NotFound as gone:
        raise CorruptData(
            "a segment cannot be read, and its versions have left the log",
            code=Code.CORRUPT_LOG,
            hint="restore the segment from a copy of its table",
            segment=partition.path,
            cause=statement_of(damage),
        ) from gone
    for piece in plan.pieces:
        yield from scan(options, plan.wanted, piece)
