"""Read a log through its table of segments: rows up to the last segment come from segments, newer rows from the log.

The result equals a read of the log alone. A segment that is damaged or gone is read from the log instead, and raises
CorruptData when its versions have left the log too. Segments of another log raise InvalidRequest. Memory of a task: one
segment, packed and as rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import structlog

from holdfast.commit.reading.lineage import Lineage
from holdfast.errors import Code, CorruptData, InvalidRequest, NotFound, statement_of
from holdfast.segments.index import SegmentIndex, read_segment_index
from holdfast.segments.table_location import table_location
from holdfast.spark.columns import COLUMNS, RowShape, arrow_schema
from holdfast.spark.options import ReadOptions
from holdfast.spark.runtime.store_thread import with_store
from holdfast.spark.runtime.table_files import read_objects
from holdfast.spark.source.chain import LogHead, log_head, require_log
from holdfast.spark.source.plan import LogPartition, ReadPlan, SegmentPartition, ending_version, plan_read
from holdfast.spark.source.scan import scan
from holdfast.spark.source.shapes import RowFilter, row_filter
from holdfast.spark.source.table_filters import Test
from holdfast.spark.typed.rows import in_range
from holdfast.values import VERSION_MAX

SEGMENT_SCHEMA: Final = arrow_schema(RowShape.OPERATIONS, list(COLUMNS[RowShape.OPERATIONS]))


def segment_rows(
    data: bytes, columns: Sequence[str], wanted: RowFilter, *, since_ms: int | None = None
) -> Iterator[pa.RecordBatch]:
    """The wanted rows of one segment's bytes, in log order, with these ``columns`` of the shape ``operations``.

    Units: ``since_ms`` is milliseconds since the Unix epoch, inclusive.
    """
    file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
    at = file.schema_arrow.get_field_index("version")
    schema = arrow_schema(RowShape.OPERATIONS, columns)
    tests = list(_tests(wanted, since_ms))
    has_keys = bool(wanted.key_begin) or wanted.key_end is not None
    of_range = ("kind", "key", "end") if has_keys else ()
    needed = list(dict.fromkeys([*columns, *(test.column for test in tests), *of_range]))
    lowest, highest = wanted.version_min or 0, VERSION_MAX if wanted.version_max is None else wanted.version_max
    for group in range(file.num_row_groups):
        bounds = file.metadata.row_group(group).column(at).statistics
        if bounds is not None and (bounds.min > highest or bounds.max < lowest):
            continue
        rows = file.read_row_group(group, columns=needed)
        for test in tests:
            passed = test.passes(rows[test.column])
            if pc.call_function("sum", [passed]).as_py() != rows.num_rows:
                rows = rows.filter(passed)
        if has_keys:
            is_range = pc.call_function("equal", [rows["kind"], "range_delete"])
            rows = rows.filter(in_range(rows["key"], rows["end"], is_range, wanted.key_begin, wanted.key_end))
        yield from rows.select(list(columns)).cast(schema).to_batches()


def _tests(wanted: RowFilter, since_ms: int | None) -> Iterator[Test]:
    """What a wanted row passes, except for its key."""
    since = None if since_ms is None else since_ms * 1000
    for name, lowest, highest in (
        ("version", wanted.version_min, wanted.version_max),
        ("seq", wanted.seq_min, wanted.seq_max),
        ("timestamp", since, None),
    ):
        if not lowest is highest is None:
            yield Test(name, SEGMENT_SCHEMA.field(name).type, lowest, highest)
    yield Test("kind", pa.string(), values=tuple(kind.name.lower() for kind in wanted.kinds))
    if wanted.request_ids is not None:
        yield Test("request_id", pa.string(), values=wanted.request_ids)


log = structlog.get_logger("holdfast.spark")


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
    """The pieces of a read, or of a micro-batch, in log order: a piece for each segment, then those of the log.

    Raises: as ``index_of_log`` and ``plan_read``.
    """
    assert options.segments_url is not None, "asked for with segments only"
    head = log_head(options.url)
    if options.starting_after is not None:
        require_log(Lineage(head.log_id), options.starting_after)
    index = index_of_log(options.segments_url, head)
    # Segments know versions, not the objects that a time or an offset names.
    ending = ending_version(options.url, options)
    options = replace(options, ending_version=ending, ending_at=None, ending_ms=None, as_of_ms=None)
    assert options.segments_url is not None, "kept"
    wanted = _wanted(options, head)
    if pushed is not None:
        wanted = wanted.and_also(pushed)
    lowest = wanted.version_min or 0
    highest = min(VERSION_MAX if wanted.version_max is None else wanted.version_max, index.through)
    rows, since_ms = replace(wanted, version_max=highest), options.starting_ms
    pieces: list[SegmentPartition | LogPartition] = [
        SegmentPartition(options.segments_url, each.path, each.version_min, each.version_max, rows, since_ms)
        for each in index.between(lowest, highest)
    ]
    if options.ending_version is not None and options.ending_version <= index.through:
        return pieces
    after = replace(options, starting_version=max(lowest, index.through + 1), starting_after=None, from_latest=False)
    plan: ReadPlan = with_store(options.url, lambda store: plan_read(store, after, wanted))
    return [*pieces, *(LogPartition(piece, plan.wanted) for piece in plan.pieces)]


def _wanted(options: ReadOptions, head: LogHead) -> RowFilter:
    """The rows that the options ask for; a starting time, which no row filter knows, is looked at in each segment."""
    starting = head.version if options.from_latest else options.starting_version
    seq_min = None
    if options.starting_after is not None:
        starting = options.starting_after.version + 1
        seq_min = None if options.starting_after.seq is None else options.starting_after.seq + 1
    return replace(row_filter(options), version_min=starting, version_max=options.ending_version, seq_min=seq_min)


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
    log.warning("segment_unreadable", segment=partition.path, cause=statement_of(damage))
    wanted = partition.wanted.and_also(RowFilter(partition.version_min, partition.version_max))
    part = replace(
        options,
        starting_version=wanted.version_min,
        ending_version=wanted.version_max,
        ending_at=None,
        ending_ms=None,
        as_of_ms=None,
        starting_after=None,
        starting_ms=partition.since_ms,
        from_latest=False,
        fail_on_data_loss=True,
    )
    try:
        plan = with_store(options.url, lambda store: plan_read(store, part, wanted))
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
