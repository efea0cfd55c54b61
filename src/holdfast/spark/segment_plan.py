"""A read that prefers segments: which of them, which part of the log behind them, and one of them as rows.

Owns: the border between segments and log, and the wanted rows on either side of it. Does not own: the format of
segments (``segment_reading``), planning and reading the log (``plan``, ``scan``).

The border is the version through which the segments go when the read is planned: rows up to it come from segments, rows
above it from the log, and both are what the log alone would give. So a log from which retention has removed what is in
segments is read whole.

Failure model: segments of another log raise InvalidRequest. A segment that a rewrite replaced and a vacuum removed
while the read ran raises NotFound; reading again plans with the new ones. Nothing is written.

Cost: the Delta log of the segments on top of a plan; a request for each segment. Memory of a task: one segment.
"""

# pyarrow ships no types, so the checker cannot know its classes where they are parameters; mypy checks the rest.
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from holdfast.commit.transaction import VERSION_MAX
from holdfast.errors import Code, InvalidRequest
from holdfast.spark.options import ReadOptions
from holdfast.spark.partition import LogPartition, SegmentPartition
from holdfast.spark.pipeline.increments import LogHead, log_head
from holdfast.spark.pipeline.table_files import read_objects
from holdfast.spark.pipeline.table_location import table_location
from holdfast.spark.plan import Plan, plan_read
from holdfast.spark.segment_reading import SegmentIndex, read_segment_index, segment_rows
from holdfast.spark.shapes import RowFilter
from holdfast.spark.store_thread import StoreThread

__all__ = ["index_of_log", "plan_with_segments", "scan_segment"]


def index_of_log(segments_url: str, head: LogHead) -> SegmentIndex:
    """The segments at ``segments_url``, which must be of the log with this head.

    Raises: NotFound (no segments), InvalidRequest (of another log), Unavailable.
    """
    location = table_location(segments_url)
    index = read_segment_index(location.uri, location.options)
    if index.log_id != head.log_id:
        raise InvalidRequest(
            "the segments are of another log",
            code=Code.BAD_CONFIGURATION,
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
    index = index_of_log(options.segments_url, head)
    wanted = _wanted(options, head)
    if pushed is not None:
        wanted = wanted.and_also(pushed)
    lowest = wanted.version_min or 0
    highest = min(VERSION_MAX if wanted.version_max is None else wanted.version_max, index.through)
    pieces: list[SegmentPartition | LogPartition] = [
        SegmentPartition(options.segments_url, segment.path, replace(wanted, version_max=highest), options.starting_ms)
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


def scan_segment(options: ReadOptions, partition: SegmentPartition) -> Iterator[pa.RecordBatch]:
    """The wanted rows of one segment, in log order. Raises: NotFound, Unavailable."""
    for data in read_objects(partition.table_url, [partition.path]):
        yield from segment_rows(data, options.columns, partition.wanted, since_ms=partition.since_ms)
