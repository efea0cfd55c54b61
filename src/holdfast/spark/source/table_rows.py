"""The rows of a piece of a table: the wanted columns of the row groups that may have a wanted row.

Filtered columns are read first. The other columns are read for those row groups alone in which a row passes. Memory:
``FETCH_BYTES`` of packed row groups, and one row group as rows. Each query plans in a process of its own: what tasks
alone need is imported inside their functions.
"""

# pyarrow ships few types, so the checker cannot know its classes; mypy checks the rest.
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from holdfast.errors import CorruptData, InvalidRequest
from holdfast.spark.runtime.refusals import bad_configuration
from holdfast.spark.runtime.tasks import grouped
from holdfast.spark.source.table_filters import Test

if TYPE_CHECKING:
    from holdfast.spark.runtime.table_reads import RangedParquet, TableReads

STATISTICS_ERROR: Final = timedelta(milliseconds=1)
"""Writers may cut the times in a file's statistics to milliseconds."""


class PlannedFile(NamedTuple):
    """A file of the table: its path in the Delta log, its size in bytes, and the texts of its partition columns."""

    path: str
    size: int
    partition: Mapping[str, str | None]


@dataclass
class TablePartition(InputPartition):
    """Some files of a table, and what their rows are narrowed to."""

    files: tuple[PlannedFile, ...]
    tests: tuple[Test, ...] = ()


def packed(files: Iterable[Mapping[str, Any]], tests: tuple[Test, ...], target_bytes: int) -> list[TablePartition]:
    """The pieces of these files, without those that have no wanted row.

    Shape: a file is a row with its statistics and partition values by dotted names.
    """
    wanted = (_planned(row) for row in files if all(_may_hold(row, test) for test in tests))
    return [TablePartition(tuple(group), tests) for group in grouped(wanted, attrgetter("size"), target_bytes)]


def _planned(row: Mapping[str, Any]) -> PlannedFile:
    prefix = "partition."
    partition = {name.removeprefix(prefix): _text(row[name]) for name in row if name.startswith(prefix)}
    return PlannedFile(row["path"], row["size_bytes"], partition)


def _may_hold(row: Mapping[str, Any], test: Test) -> bool:
    partition = f"partition.{test.column}"
    if partition in row:
        value = row[partition]
        return value is not None and test.may_hold(value, value)
    lowest, highest = row.get(f"min.{test.column}"), row.get(f"max.{test.column}")
    if isinstance(highest, datetime):
        highest += STATISTICS_ERROR
    return test.may_hold(lowest, highest)


def _text(value: object) -> str | None:
    """A partition's value as a Delta log writes it."""
    if value is None or isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)


def rows(url: str, schema: pa.Schema, piece: TablePartition) -> Iterator[pa.RecordBatch]:
    """The rows of these files of the table at ``url``, with ``schema``. A column that a file lacks is null in it.

    Raises: NotFound (a vacuum has removed the file), CorruptData, InvalidRequest (a file has wider types),
    Unavailable. Cost: the footer of each file, and the chunks of the wanted columns.
    """
    from holdfast.spark.runtime.table_reads import TableReads

    with TableReads(url) as reads:
        for file in piece.files:
            for columns, count in _found(reads, file, schema, piece.tests):
                yield from _as_asked(columns, count, file, schema).to_batches()


def _found(
    reads: TableReads, planned: PlannedFile, schema: pa.Schema, tests: Sequence[Test]
) -> Iterator[tuple[pa.Table, int]]:
    """The wanted rows of a file, one row group after the other: the columns that it has, and the number of rows."""
    from holdfast.spark.runtime.table_reads import RangedParquet

    tests = [test for test in tests if test.column not in planned.partition]
    try:
        # The Delta log has paths as URLs.
        file = RangedParquet(partial(reads.ranges, unquote(planned.path)), planned.size)
        if any(test.column not in file.schema.names for test in tests):
            return  # the column is null in this file
        names = [name for name in schema.names if name in file.schema.names and name not in planned.partition]
        if not names and not tests:
            yield pa.table({}), sum(file.rows_in(group) for group in file.groups)
            return
        groups = [each for each in file.groups if all(test.may_hold(*file.bounds(each, test.column)) for test in tests)]
        for run in file.runs(groups, list(dict.fromkeys([*_tested(tests), *names]))):
            yield from _of_run(file, planned, run, names, tests)
    except (pa.ArrowException, OSError) as error:
        raise CorruptData("a file of the table is damaged", path=planned.path, cause=str(error)[:300]) from error


def _of_run(
    file: RangedParquet, planned: PlannedFile, run: Sequence[int], asked: Sequence[str], tests: Sequence[Test]
) -> Iterator[tuple[pa.Table, int]]:
    if not tests:
        file.fetch(run, asked)
        for group in run:
            yield file.read(group, asked), file.rows_in(group)
        return
    tested = _tested(tests)
    file.fetch(run, tested)
    passing: list[tuple[int, pa.ChunkedArray, pa.Table]] = []
    for group in run:
        looked_at = file.read(group, tested)
        mask = _mask(tests, looked_at, planned)
        passing_rows = looked_at.filter(mask)
        if passing_rows.num_rows:
            passing.append((group, mask, passing_rows))
    others = [name for name in asked if name not in tested]
    file.fetch([group for group, _, _ in passing], others)
    for group, mask, passing_rows in passing:
        columns = passing_rows.select([name for name in asked if name in tested])
        if others:
            rest = file.read(group, others).filter(mask)
            for name in others:
                columns = columns.append_column(rest.schema.field(name), rest[name])
        yield columns, passing_rows.num_rows


def _tested(tests: Sequence[Test]) -> list[str]:
    return list(dict.fromkeys(test.column for test in tests))


def _mask(tests: Sequence[Test], looked_at: pa.Table, file: PlannedFile) -> pa.ChunkedArray:
    """Which rows pass all tests."""
    import pyarrow.compute as pc

    mask = None
    for test in tests:
        try:
            passed = test.passes(looked_at[test.column])
        except pa.ArrowInvalid as error:
            raise _wider(file, error) from error
        mask = passed if mask is None else pc.call_function("and", [mask, passed])
    assert mask is not None, "asked for with tests only"
    return mask


def _as_asked(found: pa.Table, count: int, file: PlannedFile, schema: pa.Schema) -> pa.Table:
    """The rows with the columns of ``schema``."""
    try:
        columns = [
            constant(file.partition[field.name], field.type, count)
            if field.name in file.partition
            else found[field.name].cast(field.type)
            if field.name in found.column_names
            else pa.nulls(count, field.type)
            for field in schema
        ]
    except pa.ArrowInvalid as error:
        raise _wider(file, error) from error
    return pa.Table.from_arrays(columns, schema=schema)


def constant(text: str | None, kind: pa.DataType, count: int) -> pa.Array:
    """``count`` times a partition's value."""
    value = pa.scalar(None, kind) if text is None else pa.array([text], pa.string()).cast(kind)[0]
    return pa.repeat(value, count)


def _wider(file: PlannedFile, error: Exception) -> InvalidRequest:
    return bad_configuration(
        "a file of the table has wider types than the query began with",
        hint="start the query again; a stream also needs a new checkpoint",
        path=file.path,
        cause=str(error)[:300],
    )
