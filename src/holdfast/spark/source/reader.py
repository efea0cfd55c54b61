"""The batch reader of ``format("holdfast")``, and the meaning of the filters that Spark pushes down to it.

Spark evaluates every pushed filter again, so a filter may only narrow what is read; an unknown filter narrows nothing.
Spark pickles the reader into tasks, so the reader holds plain values. Each query runs the reader in two processes: one
plans, one reads. An import that only one of the two needs is inside the method that needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from holdfast.spark.columns import Shape
from holdfast.spark.options import ReadOptions
from holdfast.spark.runtime.worker_errors import states_errors
from holdfast.spark.source.pushdown import PushWhereItIsOn
from holdfast.spark.source.shapes import RowFilter
from holdfast.spark.typed.decode import Format

if TYPE_CHECKING:
    from holdfast.spark.source.plan import LogPartition, Plan, SegmentPartition

T = TypeVar("T")

REQUEST_IDS_MAX: Final = 10_000
"""A longer list is left to Spark: it would travel to every task."""


def row_filter_of(filters: Iterable[Filter], shape: Shape) -> RowFilter:
    """What all of these filters together may leave.

    >>> row_filter_of([GreaterThan(("version",), 7), LessThanOrEqual(("version",), 9)], Shape.OPERATIONS).version_min
    8
    """
    combined = RowFilter()
    for each in filters:
        combined = combined.and_also(_narrowing(each, shape))
    return combined


def _narrowing(one: Filter, shape: Shape) -> RowFilter:
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    value: object = getattr(one, "value", None)
    match ".".join(attribute):
        case "version" if shape is not Shape.BATCHES:
            low, high = _bounds(one, value)
            return RowFilter(version_min=low, version_max=high)
        case "seq":
            low, high = _bounds(one, value)
            return RowFilter(seq_min=low, seq_max=high)
        case "key" if shape is Shape.OPERATIONS:
            return _key_range(one, value)
        case "request_id" if shape is not Shape.BATCHES:
            return RowFilter(request_ids=_texts(one, value))
        case _:
            return RowFilter()


def _half_open(one: Filter, value: T, after: T) -> tuple[T | None, T | None]:
    """The range ``[begin, end)`` of a comparison with ``value``; ``after`` is the next value. None for no bound."""
    match one:
        case EqualTo() | EqualNullSafe():
            return value, after
        case GreaterThan():
            return after, None
        case GreaterThanOrEqual():
            return value, None
        case LessThan():
            return None, value
        case LessThanOrEqual():
            return None, after
        case _:
            return None, None


def _bounds(one: Filter, value: object) -> tuple[int | None, int | None]:
    """Inclusive bounds of a whole number."""
    if isinstance(one, In):
        numbers = [each for each in one.value if isinstance(each, int)]
        return (min(numbers), max(numbers)) if numbers and len(numbers) == len(one.value) else (None, None)
    if not isinstance(value, int):
        return None, None
    begin, end = _half_open(one, value, value + 1)
    return begin, None if end is None else end - 1


def _key_range(one: Filter, value: object) -> RowFilter:
    if not isinstance(value, bytes | bytearray):
        return RowFilter()
    begin, end = _half_open(one, bytes(value), bytes(value) + b"\0")
    return RowFilter(key_begin=begin or b"", key_end=end)


def _texts(one: Filter, value: object) -> tuple[str, ...] | None:
    """The ids that are wanted, None for any. Ids that only have to start with something are left to Spark."""
    if isinstance(one, EqualTo | EqualNullSafe) and isinstance(value, str):
        return (value,)
    if isinstance(one, In) and len(one.value) <= REQUEST_IDS_MAX:
        texts = tuple(each for each in one.value if isinstance(each, str))
        return texts if len(texts) == len(one.value) else None
    return None


@states_errors
class HoldfastBatchReader(DataSourceReader):
    """One batch read: planned once, read piece by piece."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._pushed: RowFilter | None = None
        if options.pushdown:
            self.pushFilters = PushWhereItIsOn(self._narrow)  # type: ignore[method-assign]

    def _narrow(self, filters: Iterable[Filter]) -> None:
        # A filter on a decoded key does not say which bytes the key has.
        keys_are_bytes = self._options.typing.key.format is Format.BINARY
        narrowing = [each for each in filters if keys_are_bytes or getattr(each, "attribute", ()) != ("key",)]
        self._pushed = row_filter_of(narrowing, self._options.shape)

    def partitions(self) -> Sequence[LogPartition | SegmentPartition]:
        """The pieces to read. Raises: NotFound, InvalidRequest, CorruptData, Unavailable."""
        options, pushed = self._options, self._pushed
        if options.segments_url is not None:
            from holdfast.spark.source.segments import plan_with_segments

            return plan_with_segments(options, pushed)
        from holdfast.spark.runtime.store_thread import with_store
        from holdfast.spark.source.plan import LogPartition, plan_read

        plan: Plan = with_store(options.url, lambda store: plan_read(store, options, pushed))
        return [LogPartition(piece, plan.wanted) for piece in plan.pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one piece. For a read without pieces Spark passes an empty partition of its own."""
        from holdfast.spark.source.plan import LogPartition, SegmentPartition
        from holdfast.spark.source.typed import typed_scan

        if isinstance(partition, LogPartition):
            from holdfast.spark.source.scan import scan

            yield from typed_scan(self._options, lambda options: scan(options, partition.wanted, partition.piece))
        elif isinstance(partition, SegmentPartition):
            from holdfast.spark.source.segments import scan_segment

            yield from typed_scan(self._options, lambda options: scan_segment(options, partition))
