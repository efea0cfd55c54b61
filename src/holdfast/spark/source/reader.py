"""A batch read of a log, and the meaning of the filters that Spark pushes down to it.

Spark evaluates every pushed filter again, so a filter may only narrow what is read; an unknown filter narrows nothing.
Spark pickles the reader into tasks, so the reader holds plain values. Each query runs the reader in two processes: one
plans, one reads. An import that only one of the two needs is inside the method that needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import Filter, InputPartition

from holdfast.commit.format.batch import ItemKind
from holdfast.spark.columns import RowShape, arrow_schema
from holdfast.spark.options import ReadOptions
from holdfast.spark.runtime.refusals import bad_configuration
from holdfast.spark.source.reading import BatchReader
from holdfast.spark.source.shapes import RowFilter
from holdfast.spark.source.table_filters import Test, pushed_tests
from holdfast.spark.typed.decode import Format
from holdfast.spark.typed.infer import infer_type
from holdfast.spark.typed.rows import Typing

if TYPE_CHECKING:
    from holdfast.spark.source.plan import LogPartition, ReadPlan, SegmentPartition

_PUSHED: Final[Mapping[RowShape, tuple[str, ...]]] = {
    RowShape.OPERATIONS: ("version", "seq", "key", "request_id"),
    RowShape.TRANSACTIONS: ("version", "seq", "request_id"),
    RowShape.BATCHES: ("seq",),
}
"""The columns whose filters narrow what is read. Other filters, and ids that only begin with a text, are Spark's."""


def row_filter_of(filters: Iterable[Filter], shape: RowShape) -> RowFilter:
    """What all of these filters together may leave.

    >>> from pyspark.sql.datasource import GreaterThan, LessThanOrEqual
    >>> row_filter_of([GreaterThan(("version",), 7), LessThanOrEqual(("version",), 9)], RowShape.OPERATIONS).version_min
    8
    """
    combined = RowFilter()
    for test in pushed_tests(filters, arrow_schema(shape, _PUSHED[shape])):
        combined = combined.and_also(_narrowing(test))
    return combined


def _narrowing(test: Test) -> RowFilter:
    if test.column == "request_id":
        ids = test.values if test.values is not None else (test.lowest,) if test.lowest == test.highest else None
        return RowFilter(request_ids=ids)
    low, high = (test.lowest, test.highest) if not test.values else (min(test.values), max(test.values))
    if test.column == "key":
        begin = b"" if low is None else low + b"\0" if test.is_open else low
        return RowFilter(key_begin=begin, key_end=high if high is None or test.is_open else high + b"\0")
    low, high = (None if low is None else low + test.is_open), (None if high is None else high - test.is_open)
    if test.column == "seq":
        return RowFilter(seq_min=low, seq_max=high)
    return RowFilter(version_min=low, version_max=high)


def log_reader(options: ReadOptions) -> BatchReader:
    """The reader of one batch."""
    return BatchReader(partial(plan_log, options), partial(rows_of, options), pushdown=options.pushdown)


def plan_log(options: ReadOptions, filters: Iterable[Filter] = ()) -> Sequence[LogPartition | SegmentPartition]:
    """The pieces to read for a query with these filters. Raises: NotFound, InvalidRequest, CorruptData, Unavailable."""
    # A filter on a decoded key does not say which bytes the key has.
    keys_are_bytes = options.typing.key.format is Format.BINARY
    narrowing = [each for each in filters if keys_are_bytes or getattr(each, "attribute", ()) != ("key",)]
    pushed = row_filter_of(narrowing, options.shape) if narrowing else None
    if options.segments_url is not None:
        from holdfast.spark.source.segments import plan_with_segments

        return plan_with_segments(options, pushed)
    from holdfast.spark.runtime.store_thread import with_store
    from holdfast.spark.source.plan import LogPartition, plan_read

    plan: ReadPlan = with_store(options.url, lambda store: plan_read(store, options, pushed))
    return [LogPartition(piece, plan.wanted) for piece in plan.pieces]


def rows_of(options: ReadOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of one piece of a batch or a micro-batch."""
    from holdfast.spark.source.plan import LogPartition, SegmentPartition
    from holdfast.spark.source.scan import scan, typed_scan

    if isinstance(partition, LogPartition):
        yield from typed_scan(options, lambda of: scan(of, partition.wanted, partition.piece))
    elif isinstance(partition, SegmentPartition):
        from holdfast.spark.source.segments import scan_segment

        yield from typed_scan(options, lambda of: scan_segment(of, partition))


def with_value_type(options: ReadOptions, value: pa.DataType | None) -> ReadOptions:
    """The options with the type of values: ``value``, or that of the first ``options.infer`` values of the read.

    Raises: InvalidRequest when no value has a type or two values differ; as the read itself. Cost without ``value``:
    the plan of the read, and its first objects.
    """
    assert options.infer is not None, "the read infers its type"
    kind = value
    if kind is None:
        kind = infer_type(_first_values(options, options.infer), options.typing.value.format)
    if kind is None:
        raise bad_configuration(
            "no value says which fields values have",
            hint="give valueSchema instead of infer, for example: origin string, delay int",
            url=options.url.partition("?")[0],
        )
    return replace(options, typing=replace(options.typing, value=replace(options.typing.value, type=kind)))


def _first_values(options: ReadOptions, count: int) -> list[bytes]:
    wanted = replace(options, columns=("value",), kinds=(ItemKind.WRITE,), typing=Typing(), infer=None)
    values: list[bytes] = []
    for partition in plan_log(wanted):
        for batch in rows_of(wanted, partition):
            values += batch["value"].to_pylist()
            if len(values) >= count:
                return values[:count]
    return values
