"""``option("table", url)``: a Delta table, read as a batch and as a stream without JVM packages.

The driver reads the Delta log with deltalake and plans whole files; tasks read them through the table's own object
store, so a table on S3 needs no Hadoop. The reader sees tables of Delta reader version 1: every table that a pipeline
keeps, and those of other writers without deletion vectors and column mapping. The option ``filters`` leaves out files
and row groups by partition and statistics, then rows; with ``pushdown`` the filters of a query do, too (decision 0009).

In a task the filtered columns are read first, and the others for those row groups alone in which a row passes. Memory:
``FETCH_BYTES`` of packed row groups, and one row group as rows. Each query plans in a process of its own: what tasks
alone need is imported inside their functions.

A stream begins with the table as it is, then returns the files that later versions add. A version that removes rows
raises InvalidRequest, unless ``skipChangeCommits`` leaves such versions out. An offset is ``{"version": 12, "table_id":
"..."}``: everything up to that version has been returned. With ``"files": 3`` also the first three files of what comes
next: of the table as of the version ``"base"`` while ``version`` is -1, else of what the next version adds.

Source: the Delta transaction protocol, PROTOCOL.md of the delta-io project.
"""

# deltalake and pyarrow ship few types, so the checker cannot know their classes; mypy checks the rest.
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyspark.sql.datasource import Filter, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from holdfast.errors import CorruptData, InvalidRequest, NotFound
from holdfast.segments.table_location import open_table_reader, table_failure, table_location
from holdfast.spark.options import TableOptions
from holdfast.spark.positions import Given, Offset, TablePosition, offset_of, position_in
from holdfast.spark.runtime.processes import states_errors
from holdfast.spark.runtime.refusals import bad_configuration
from holdfast.spark.runtime.tasks import grouped
from holdfast.spark.source.reading import BatchReader, PolledStream
from holdfast.spark.source.table_filters import Test, pushed_tests, tests_of

if TYPE_CHECKING:
    from holdfast.spark.runtime.table_files import RangedParquet, TableReads

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
    from holdfast.spark.runtime.table_files import TableReads

    with TableReads(url) as reads:
        for file in piece.files:
            for columns, count in _found(reads, file, schema, piece.tests):
                yield from _as_asked(columns, count, file, schema).to_batches()


def _found(
    reads: TableReads, planned: PlannedFile, schema: pa.Schema, tests: Sequence[Test]
) -> Iterator[tuple[pa.Table, int]]:
    """The wanted rows of a file, one row group after the other: the columns that it has, and the number of rows."""
    from holdfast.spark.runtime.table_files import RangedParquet

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


Row: TypeAlias = Mapping[str, Any]

BEFORE_FIRST: Final = -1
"""The version of a stream that has not returned the table as it was at its start."""


Addition: TypeAlias = tuple[TablePosition, Row | None]
"""A file that comes next in a stream, and the place after it; no file: a version that adds none."""


def _place(position: TablePosition) -> tuple[int, int]:
    return position.version, position.files


def end_of_batch(
    start: TablePosition, additions: Iterable[Addition], files_max: int | None, bytes_max: int | None
) -> TablePosition:
    """Where a micro-batch from ``start`` ends: within the bounds, but after at least one file if there is one.

    >>> places = TablePosition(0, "x", 1), TablePosition(1, "x")
    >>> files = [(place, {"size_bytes": 5}) for place in places]
    >>> end_of_batch(TablePosition(0, "x"), files, 1, None) == places[0], end_of_batch(places[0], files[1:], 1, None)
    (True, TablePosition(version=1, table_id='x', files=0, base=None))
    """
    files = size = 0
    end = start
    for place, row in additions:
        if row is not None:
            size += row["size_bytes"]
            is_over = (files_max is not None and files >= files_max) or (bytes_max is not None and size > bytes_max)
            if files and is_over:
                break
            files += 1
        end = place
        if start.version == BEFORE_FIRST != end.version:
            break  # what the table was is returned whole, even if a later version cannot be
    return end


READER_VERSION_MAX: Final = 1


def open_table(url: str, version: int | None = None, moment: datetime | None = None) -> DeltaTable:
    """The table at a version or a time, else the newest. Cost: the Delta log.

    Raises: NotFound (no table, or no such version), InvalidRequest (a table of a later reader version), CorruptData (a
    file of its log is missing), Unavailable.
    """
    location = table_location(url)
    try:
        table = DeltaTable(location.uri, version=version, storage_options=dict(location.options))
        if moment is not None:
            table.load_as_version(moment)
    except TableNotFoundError:
        raise NotFound("there is no table here", url=location.uri) from None
    except (DeltaError, OSError) as error:
        cause = " ".join(str(error).split())[:300]
        if version is not None or moment is not None:
            raise NotFound(
                "the table does not have this version",
                hint="holdfast keeps old versions until a vacuum; read without versionAsOf and timestampAsOf",
                url=location.uri,
                asked=version if version is not None else str(moment),
                cause=cause,
            ) from error
        raise table_failure(error, location.uri, "the table cannot be read") from error
    if table.protocol().min_reader_version > READER_VERSION_MAX:
        raise bad_configuration(
            "the table needs a newer Delta reader",
            hint="read it with delta-spark; tables with deletion vectors or column mapping are not read here",
            url=location.uri,
            min_reader_version=table.protocol().min_reader_version,
        )
    return table


def _schema_of(table: DeltaTable) -> pa.Schema:
    return pa.schema(table.schema().to_arrow())


def _require_columns(names: Iterable[str], schema: pa.Schema) -> None:
    unknown = [name for name in names if name not in schema.names]
    if unknown:
        raise bad_configuration(f"unknown columns {', '.join(unknown)}; the table has {', '.join(schema.names)}")


def spark_columns(options: TableOptions) -> StructType:
    """The columns of a read, in Spark's types.

    Raises: as ``open_table``; InvalidRequest for an unknown column, and for a filter that does not fit the table.
    """
    schema = _schema_of(open_table(options.table, options.version_as_of, options.timestamp_as_of))
    names = schema.names if options.columns is None else options.columns
    _require_columns(names, schema)
    tests_of(options.filters, schema)
    return from_arrow_schema(pa.schema([schema.field(name).with_nullable(True) for name in names]))


def arrow_columns(schema: StructType) -> pa.Schema:
    """The columns of a read in Arrow's types, from Spark's."""
    return to_arrow_schema(schema, timezone="UTC")


def plan(options: TableOptions, columns: Iterable[str], pushed: Iterable[Filter] = ()) -> list[TablePartition]:
    """The pieces of the table: whole files, those that may have a wanted row, packed to ``target_partition_bytes``.

    The ``pushed`` filters of a query narrow it further. Raises: as ``spark_columns``. Cost: the Delta log, a row for
    each file.
    """
    table = open_table(options.table, options.version_as_of, options.timestamp_as_of)
    schema = _schema_of(table)
    _require_columns(columns, schema)
    tests = (*tests_of(options.filters, schema), *pushed_tests(pushed, schema))
    return packed(_files(table), tests, options.target_partition_bytes)


def _files(table: DeltaTable) -> list[dict[str, Any]]:
    """A row for each live file, oldest first, with its statistics and partition values by dotted names."""
    # Not pa.table, which imports pandas.
    rows = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all().to_pylist()
    return sorted(rows, key=lambda row: (row["modification_time"], row["path"]))


def table_reader(options: TableOptions, schema: pa.Schema) -> BatchReader:
    """The reader of one batch of a table."""
    read = partial(rows, options.table, schema)
    return BatchReader(partial(plan, options, schema.names), read, pushdown=options.pushdown)


@states_errors
class HoldfastTableStreamReader(PolledStream[int]):
    """One streaming query's view of a table."""

    def __init__(self, options: TableOptions, schema: pa.Schema) -> None:
        is_bounded = options.files_max is not None or options.bytes_max is not None
        super().__init__(partial(rows, options.table, schema), options.poll_ms, is_bounded=is_bounded)
        self._options = options

    def initialOffset(self) -> Offset:  # noqa: N802  Spark's name
        """Where a query without a checkpoint begins. Raises: as ``open_table``."""
        table = open_table(self._options.table)
        starting = self._options.starting_version
        version = table.version() if starting is None else starting - 1
        return offset_of(TablePosition(version, str(table.metadata().id)))

    def _newest(self) -> int:
        return open_table(self._options.table).version()

    def _next_offset(self, start: Given, *, is_bounded: bool) -> Offset | None:
        """The newest version, or what the bounds allow. Raises: as ``open_table``; with bounds as ``partitions``."""
        begin, newest = position_in(start, TablePosition), self._target
        if newest is None:
            table = open_table(self._options.table)
            _require_same(table, begin)
            newest = table.version()
        if begin.version >= newest:
            return None
        if not (is_bounded and self._is_bounded):
            return offset_of(TablePosition(newest, begin.table_id))
        bounds = (self._options.files_max, self._options.bytes_max)
        return offset_of(end_of_batch(begin, self._additions(begin, newest), *bounds))

    def partitions(self, start: Given, end: Given) -> Sequence[TablePartition]:
        """The pieces between two offsets, always the same ones. Raises: as ``open_table``; NotFound (a version was
        removed), InvalidRequest (a version removes rows).
        """
        begin, last = position_in(start, TablePosition), position_in(end, TablePosition)
        if _place(begin) >= _place(last):
            return []
        base = last.version if last.base is None else last.base
        newest = base if begin.version == BEFORE_FIRST and begin.base is None else last.version + bool(last.files)
        additions = self._additions(begin, newest)
        files = [row for place, row in additions if row is not None and _place(place) <= _place(last)]
        schema = _schema_of(open_table(self._options.table, base if begin.version == BEFORE_FIRST else None))
        return packed(files, tests_of(self._options.filters, schema), self._options.target_partition_bytes)

    def _additions(self, begin: TablePosition, newest: int) -> Iterator[Addition]:
        """What comes after a place: the table as it was at the start of the stream, then what each version adds."""
        version = begin.version
        if version == BEFORE_FIRST:
            version = newest if begin.base is None else begin.base
            table = open_table(self._options.table, version)
            _require_same(table, begin)
            before = TablePosition(BEFORE_FIRST, begin.table_id, begin.files, version)
            yield from _after(before, _files(table), version)
        if version >= newest:
            return
        schema = _schema_of(open_table(self._options.table))
        for each in range(version + 1, newest + 1):
            files = begin.files if each == begin.version + 1 else 0
            added = asyncio.run(_added(self._options, schema, each))
            yield from _after(TablePosition(each - 1, begin.table_id, files), added, each)


def _after(before: TablePosition, rows: Sequence[Row], version: int) -> Iterator[Addition]:
    """The files of a version after a place in it, and the end of the version after the last."""
    for index in range(before.files, len(rows) - 1):
        yield msgspec.structs.replace(before, files=index + 1), rows[index]
    yield TablePosition(version, before.table_id), rows[-1] if before.files < len(rows) else None


def _require_same(table: DeltaTable, position: TablePosition) -> None:
    table_id = str(table.metadata().id)
    if position.table_id != table_id:
        raise bad_configuration(
            "the checkpoint is of another table",
            hint="the table was made again: begin a new query with a new checkpoint",
            table_id=table_id,
            checkpoint=position.table_id,
        )


async def _added(options: TableOptions, schema: pa.Schema, version: int) -> list[dict[str, Any]]:
    """A row for each file that the version adds, as ``_files``, without statistics."""
    store = open_table_reader(options.table)
    try:
        data = await store.read(f"_delta_log/{version:020d}.json")
    except NotFound as gone:
        raise NotFound(
            "data loss: the table's log no longer has a version that this stream has not read",
            hint="begin a new query with a new checkpoint",
            version=version,
        ) from gone
    finally:
        await store.close()
    actions: list[Mapping[str, Any]] = [json.loads(line) for line in data.splitlines() if line.strip()]
    if any(action.get("remove", {}).get("dataChange") for action in actions):
        if not options.skip_change_commits:
            raise bad_configuration(
                "a version of the table replaces or removes rows, which a stream cannot return",
                hint="stream the table changes, or set skipChangeCommits=true to leave such versions out",
                version=version,
            )
        return []
    return [
        {
            "path": add["path"],
            "size_bytes": add["size"],
            **{
                f"partition.{name}": constant(text, schema.field(name).type, 1)[0].as_py()
                for name, text in add["partitionValues"].items()
            },
        }
        for add in (action["add"] for action in actions if action.get("add", {}).get("dataChange"))
    ]
