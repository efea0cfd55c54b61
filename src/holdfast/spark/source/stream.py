"""``readStream.format("holdfast")``: follow the end of the log, one micro-batch at a time.

An offset is ``{"seq": 41, "version": 1043, "log_id": "..."}``: every object up to that ``seq`` and every row up to
that version of that log has been returned. ``tail`` has the walk.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Final

from holdfast.errors import HoldfastError
from holdfast.spark.options import Admission, ReadOptions
from holdfast.spark.positions import Given, Offset, Position, foreign, offset_of, position_in
from holdfast.spark.runtime.processes import states_errors
from holdfast.spark.runtime.store_thread import StoreThread, is_directory
from holdfast.spark.source.plan import LogPartition, SegmentPartition
from holdfast.spark.source.reader import rows_of
from holdfast.spark.source.reading import PolledStream
from holdfast.spark.source.shapes import row_filter
from holdfast.spark.source.tail import (
    ChainTail,
    TailLag,
    head_position,
    lag_after,
    pieces_between,
    starting_position,
)

POLL_MS_DIRECTORY: Final = 10
POLL_MS_REMOTE: Final = 200
PROVE_END_EVERY_MS: Final = 30_000
LAG_EVERY_MS: Final = 1000
"""A stream that is behind asks at most this often by how much: the answer costs a listing."""
OBJECTS_MIN: Final = 64
"""A smaller micro-batch is read from the log alone, and the Delta log of the segments is not read."""
_EVERYTHING: Final = Admission()


@states_errors
class HoldfastStreamReader(PolledStream[Position]):
    """One streaming query's view of the log."""

    def __init__(self, options: ReadOptions) -> None:
        default_ms = POLL_MS_DIRECTORY if is_directory(options.url) else POLL_MS_REMOTE
        is_bounded = options.admission.is_limited or options.admission.rows_min is not None
        super().__init__(partial(rows_of, options), options.poll_ms or default_ms, is_bounded=is_bounded)
        self._options = options
        self._thread = StoreThread(options.url)
        self._tail = ChainTail(options)
        self._proved_ms: float | None = None
        self._batch_ms: float | None = None
        self._seen: Position | None = None
        self._is_at_end = False
        self._lag: TailLag | None = None
        self._lag_asked_ms: float | None = None

    def initialOffset(self) -> Offset:  # noqa: N802  Spark's name
        """Where a query without a checkpoint begins. Raises: NotFound, CorruptData, Unavailable."""
        options = self._options
        return offset_of(self._thread.run(lambda store: starting_position(store, options)))

    def _newest(self) -> Position:
        return self._thread.run(head_position)

    def _next_offset(self, start: Given, *, is_bounded: bool) -> Offset | None:
        begin = _position(start)
        now_ms = time.monotonic() * 1000
        is_bounded_run = self._target is not None
        prove_end = self._proved_ms is None or now_ms - self._proved_ms > PROVE_END_EVERY_MS
        self._proved_ms = now_ms if prove_end else self._proved_ms
        bounds = self._options.admission if is_bounded else _EVERYTHING
        target = self._target
        end = self._thread.run(lambda store: self._tail.end_of_batch(store, begin, bounds, target, prove_end=prove_end))
        self._seen, self._is_at_end = end.end, end.is_end_of_log and not is_bounded_run
        self._batch_ms = now_ms if self._batch_ms is None else self._batch_ms
        too_few = bounds.rows_min is not None and end.transactions < bounds.rows_min and end.is_end_of_log
        waits = too_few and not is_bounded_run and now_ms - self._batch_ms < bounds.delay_ms_max
        if end.end == begin or waits:
            return None
        self._batch_ms = now_ms
        return offset_of(end.end)

    def reportLatestOffset(self) -> dict[str, object] | None:  # noqa: N802  Spark's name
        """The newest offset seen so far, for the query's progress, with the lag of the micro-batch that ends there.

        A source in Python cannot fill the ``metrics`` of a progress; this is the only place that it can.
        """
        seen = self._seen
        if seen is None:
            return None
        now_ms = time.monotonic() * 1000
        if self._is_at_end:
            self._lag = TailLag(0, 0.0)
        elif self._lag_asked_ms is None or now_ms - self._lag_asked_ms > LAG_EVERY_MS:
            self._lag_asked_ms = now_ms
            # A store that does not respond fails the next micro-batch, if it has to, but not a report.
            with suppress(HoldfastError):
                self._lag = self._thread.run(lambda store: lag_after(store, seen))
        progress: dict[str, object] = {**offset_of(seen)}
        if self._lag is not None:
            progress["lag"] = asdict(self._lag)
        return progress

    def partitions(self, start: Given, end: Given) -> Sequence[LogPartition | SegmentPartition]:
        """The pieces between two offsets. Raises: NotFound (``log_truncated``), CorruptData, Unavailable."""
        options = self._options
        begin, until = _position(start), _position(end)
        assert begin.seq is not None and until.seq is not None, "an offset of a stream names its object"
        # A start in the history of another log is looked up by the tail, and segments are of one log.
        is_of_one_log = begin.log_id in (None, until.log_id)
        if options.segments_url is not None and is_of_one_log and until.seq - begin.seq >= OBJECTS_MIN:
            # Here: a worker process that reads no segments should not load Parquet and Delta.
            from holdfast.spark.source.segments import plan_with_segments

            after, pieces_min = Position(begin.seq, begin.version), options.partitions_min or 1
            options = replace(options, starting_version=None, starting_ms=None, from_latest=False)
            between = replace(options, starting_after=after, ending_at=until, partitions_min=pieces_min)
            return plan_with_segments(between, None)
        wanted = replace(row_filter(options), version_min=begin.version + 1 if begin.version else None)
        pieces = self._thread.run(lambda store: pieces_between(store, self._tail, options, begin, until))
        return [LogPartition(piece, wanted) for piece in pieces]

    def stop(self) -> None:
        """Close what is open; the query has ended."""
        self._thread.close()


def _position(offset: Given) -> Position:
    position = position_in(offset, Position)
    if position.seq is None or position.log_id is None:
        raise foreign(offset, "seq or log_id is missing")
    return position
