"""Segments: the log's operations rewritten into large Parquet files, and how a read finds and uses them.

Owns: the format of segments, the index of a table of them, reading one file back as rows of the shape ``operations``.
Does not own: writing them (``pipeline.segments``), reading the log itself (``plan``, ``scan``).

Format. A table of segments is a Delta table; its Delta log is the manifest:

    description                 {"holdfast": {"pipeline": "segments", "log_id": 32 hexadecimal digits, "format": 1}}
    application transaction     ``holdfast/segments``: every version of the log up to this one is in the table
    each file's statistics      ``numRecords``, and the lowest and highest ``version`` and ``seq`` in it

Each file holds the rows of the shape ``operations`` with every column of it, in log order: by version, then by
position. The versions of two files do not overlap. Keys and request ids have Parquet's bloom filters in every row
group. A version that is in no file and not above the offset has no operation.

So a read of versions [a, b] takes the files that meet [a, min(b, offset)], and the log from offset + 1 on.

Failure model: a table that is not one of segments, or of another log, raises InvalidRequest; a store that does not
answer raises Unavailable. A segment that was removed by a vacuum after a rewrite raises NotFound, and reading again
finds the new ones.
"""

# deltalake and pyarrow ship few types, so the checker cannot know their classes; mypy checks the rest.
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from holdfast.commit.transaction import VERSION_MAX
from holdfast.errors import Code, InvalidRequest, NotFound, Unavailable
from holdfast.spark.shapes import OPERATION_KINDS, RowFilter, Shape, arrow_schema, column_names

__all__ = ["SEGMENT_SCHEMA", "Segment", "SegmentIndex", "read_segment_index", "segment_rows"]

SEGMENT_SCHEMA: Final = arrow_schema(Shape.OPERATIONS, column_names(Shape.OPERATIONS))
APPLICATION: Final = "holdfast/segments"


@dataclass(frozen=True, slots=True)
class Segment:
    """One file: its path in the table, its size, its rows, and the versions in it (both inclusive)."""

    path: str
    size: int
    rows: int
    version_min: int
    version_max: int


@dataclass(frozen=True, slots=True)
class SegmentIndex:
    """The segments of one log, oldest first. ``through``: every version up to it is in them."""

    log_id: str
    through: int
    segments: tuple[Segment, ...]

    def between(self, version_min: int, version_max: int) -> tuple[Segment, ...]:
        """The segments that hold any version of ``[version_min, version_max]``. Cost: O(segments)."""
        return tuple(s for s in self.segments if s.version_min <= version_max and s.version_max >= version_min)


def read_segment_index(uri: str, options: Mapping[str, str]) -> SegmentIndex:
    """The index of the table of segments at ``uri``, with the storage ``options`` of deltalake.

    Raises: NotFound (no table), InvalidRequest, Unavailable. Cost: the Delta log. Memory: a row a segment.
    """
    try:
        table = DeltaTable(uri, storage_options=dict(options))
    except TableNotFoundError:
        raise NotFound("there are no segments here", url=uri) from None
    except (DeltaError, OSError) as error:
        raise Unavailable("the table of segments cannot be read", url=uri, cause=str(error)) from error
    about = json.loads(table.metadata().description or "{}").get("holdfast", {})
    through = table.transaction_version(APPLICATION)
    if about.get("pipeline") != "segments" or about.get("format") != 1 or through is None:
        raise InvalidRequest("this is not a table of segments", code=Code.BAD_CONFIGURATION, url=uri)
    flat = pa.table(table.get_add_actions(flatten=True))
    found: list[Segment] = []
    if flat.num_rows:
        names = ("path", "size_bytes", "num_records", "min.version", "max.version")
        columns = (flat[name].to_pylist() for name in names)
        found = [Segment(*row) for row in zip(*columns, strict=True)]
    return SegmentIndex(about["log_id"], through, tuple(sorted(found, key=lambda each: each.version_min)))


def segment_rows(
    data: bytes, columns: Sequence[str], wanted: RowFilter, *, since_ms: int | None = None
) -> Iterator[pa.RecordBatch]:
    """The wanted rows of one segment's bytes, in log order, with these ``columns`` of the shape ``operations``.

    Units: ``since_ms`` is milliseconds since the Unix epoch, inclusive. Row groups without a wanted version are not
    decoded.
    """
    file = pq.ParquetFile(pa.BufferReader(data))
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
