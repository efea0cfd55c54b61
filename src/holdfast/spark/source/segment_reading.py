"""One segment back as rows of the shape ``operations``.

Owns: the columns of a segment, and which of its rows are wanted. Does not own: the table of segments and its index
(``holdfast.segments``), writing them (``pipeline.segments``), reading the log itself (``plan``, ``scan``).

The format of a table of segments is in ``holdfast.segments.index``.

Failure model: a damaged file raises what pyarrow raises; whoever reads goes back to the log then.
"""

# deltalake and pyarrow ship few types, so the checker cannot know their classes; mypy checks the rest.
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.commit.format.transaction import VERSION_MAX
from holdfast.spark.source.shapes import OPERATION_KINDS, RowFilter, Shape, arrow_schema, column_names

__all__ = ["SEGMENT_SCHEMA", "segment_rows"]

SEGMENT_SCHEMA: Final = arrow_schema(Shape.OPERATIONS, column_names(Shape.OPERATIONS))


def segment_rows(
    data: bytes, columns: Sequence[str], wanted: RowFilter, *, since_ms: int | None = None
) -> Iterator[pa.RecordBatch]:
    """The wanted rows of one segment's bytes, in log order, with these ``columns`` of the shape ``operations``.

    Units: ``since_ms`` is milliseconds since the Unix epoch, inclusive. Row groups without a wanted version are not
    decoded.
    """
    file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
    at = file.schema_arrow.get_field_index("version")
    schema = arrow_schema(Shape.OPERATIONS, columns)
    tests = list(_tests(wanted, since_ms))
    needed = list(dict.fromkeys([*columns, *(name for test in tests for name in test.columns)]))
    lowest, highest = wanted.version_min or 0, VERSION_MAX if wanted.version_max is None else wanted.version_max
    for group in range(file.num_row_groups):
        bounds = file.metadata.row_group(group).column(at).statistics
        if bounds is not None and (bounds.min > highest or bounds.max < lowest):
            continue
        rows = file.read_row_group(group, columns=needed)
        for test in tests:
            rows = rows.filter(test.passes(rows))
        yield from rows.select(list(columns)).cast(schema).to_batches()


@dataclass(frozen=True, slots=True)
class _Test:
    """What a wanted row passes, and the columns that this looks at."""

    columns: tuple[str, ...]
    passes: Callable[[pa.Table], pa.ChunkedArray]


def _tests(wanted: RowFilter, since_ms: int | None) -> Iterator[_Test]:
    for name, lowest, highest in (
        ("version", wanted.version_min, wanted.version_max),
        ("seq", wanted.seq_min, wanted.seq_max),
    ):
        if lowest is not None:
            yield _compares(name, "greater_equal", pa.scalar(lowest, pa.int64()))
        if highest is not None:
            yield _compares(name, "less_equal", pa.scalar(highest, pa.int64()))
    if since_ms is not None:
        yield _compares(
            "timestamp", "greater_equal", pa.scalar(since_ms * 1000, SEGMENT_SCHEMA.field("timestamp").type)
        )
    if wanted.kinds != OPERATION_KINDS:
        yield _is_among("kind", [kind.name.lower() for kind in wanted.kinds])
    if wanted.request_ids is not None:
        yield _is_among("request_id", wanted.request_ids)
    if wanted.key_begin:
        yield _Test(("kind", "key", "end"), lambda rows: _reaches(rows, pa.scalar(wanted.key_begin, pa.binary())))
    if wanted.key_end is not None:
        yield _compares("key", "less", pa.scalar(wanted.key_end, pa.binary()))


def _compares(name: str, how: str, value: pa.Scalar) -> _Test:
    return _Test((name,), lambda rows: pc.call_function(how, [rows[name], value]))


def _is_among(name: str, texts: Sequence[str]) -> _Test:
    options = pc.SetLookupOptions(value_set=pa.array(texts, pa.string()))
    return _Test((name,), lambda rows: pc.call_function("is_in", [rows[name]], options))


def _reaches(rows: pa.Table, begin: pa.Scalar) -> pa.ChunkedArray:
    """Points at or above ``begin``, and range deletes that end above it."""
    point = pc.call_function("greater_equal", [rows["key"], begin])
    ends_above = pc.call_function("greater", [rows["end"], begin]).fill_null(True)
    is_range = pc.call_function("equal", [rows["kind"], "range_delete"])
    return pc.call_function("if_else", [is_range, ends_above, point])
