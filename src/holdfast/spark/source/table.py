"""``option("table", url)``: a Delta table, read as a batch and as a stream without JVM packages.

The driver reads the Delta log with deltalake and plans whole files; tasks read them through the table's own object
store, so a table on S3 needs no Hadoop. The reader sees tables of Delta reader version 1: every table that a pipeline
keeps, and those of other writers without deletion vectors and column mapping. The option ``filters`` leaves out files
and row groups by partition and statistics, then rows; with ``pushdown`` the filters of a query do, too (decision 0009).

A stream begins with the table as it is, then returns the files that later versions add. A version that removes rows
raises InvalidRequest, unless ``skipChangeCommits`` leaves such versions out. An offset is ``{"version": 12, "table_id":
"..."}``: everything up to that version has been returned. With ``"files": 3`` also the first three files of what comes
next: of the table as of the version ``"base"`` while ``version`` is -1, else of what the next version adds.

Source: the Delta transaction protocol, PROTOCOL.md of the delta-io project.
"""

# deltalake and pyarrow ship few types, so the checker cannot know their classes; mypy checks the rest.
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyspark.sql.datasource import Filter
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from holdfast.errors import NotFound
from holdfast.segments.table_location import open_table_reader, table_failure, table_location
from holdfast.spark.options import TableOptions
from holdfast.spark.positions import Given, Offset, TablePosition, offset_of, position_in
from holdfast.spark.runtime.processes import states_errors
from holdfast.spark.runtime.refusals import bad_configuration
from holdfast.spark.source.reading import BatchReader, PolledStream
from holdfast.spark.source.table_filters import pushed_tests, tests_of
from holdfast.spark.source.table_rows import TablePartition, constant, packed, rows

Row: TypeAlias = Mapping[str, Any]

BEFORE_FIRST: Final = -1
"""The version of a stream that has not returned the table as it was at its start."""


@dataclass(frozen=True, slots=True)
class Addition:
    """Files that come next in a stream, in their order: those after ``begin``, and ``end`` when all are returned."""

    begin: TablePosition
    rows: Sequence[Row]
    end: TablePosition


def end_of_batch(
    start: TablePosition, additions: Iterable[Addition], files_max: int | None, bytes_max: int | None
) -> TablePosition:
    """Where a micro-batch from ``start`` ends: within the bounds, but after at least one file if there is one.

    >>> first, second = TablePosition(0, "x"), TablePosition(1, "x")
    >>> one = Addition(first, [{"size_bytes": 5}, {"size_bytes": 5}], second)
    >>> end_of_batch(first, [one], 1, None).files, end_of_batch(TablePosition(0, "x", 1), [one], 1, None) == second
    (1, True)
    """
    files = size = 0
    place = start
    for each in additions:
        done = start.files if each.begin.version == start.version else 0
        for index, row in enumerate(each.rows[done:], done):
            size += row["size_bytes"]
            is_over = (files_max is not None and files >= files_max) or (bytes_max is not None and size > bytes_max)
            if files and is_over:
                return msgspec.structs.replace(each.begin, files=index) if index else place
            files += 1
        place = each.end
        if each.begin.version == BEFORE_FIRST:
            break  # what the table was is returned whole, even if a later version cannot be
    return place


def rows_between(start: TablePosition, end: TablePosition, additions: Iterable[Addition]) -> list[Row]:
    """The files from one place to another."""
    rows: list[Row] = []
    for each in additions:
        done = start.files if each.begin.version == start.version else 0
        if each.end.version <= end.version:
            rows += each.rows[done:]
        elif each.begin.version == end.version:
            rows += each.rows[done : end.files]
    return rows


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
    planned, wanted = partial(plan, options, schema.names), partial(rows, options.table, schema)
    return BatchReader(planned, wanted, pushdown=options.pushdown)


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
        if (begin.version, begin.files) >= (last.version, last.files):
            return []
        base = last.version if last.base is None else last.base
        newest = base if begin.version == BEFORE_FIRST and begin.base is None else last.version + bool(last.files)
        files = rows_between(begin, last, self._additions(begin, newest))
        schema = _schema_of(open_table(self._options.table, base if begin.version == BEFORE_FIRST else None))
        return packed(files, tests_of(self._options.filters, schema), self._options.target_partition_bytes)

    def _additions(self, begin: TablePosition, newest: int) -> Iterator[Addition]:
        """What comes after a place: the table as it was at the start of the stream, then what each version adds."""
        version, table_id = begin.version, begin.table_id
        if version == BEFORE_FIRST:
            base = newest if begin.base is None else begin.base
            table = open_table(self._options.table, base)
            _require_same(table, begin)
            yield Addition(TablePosition(BEFORE_FIRST, table_id, 0, base), _files(table), TablePosition(base, table_id))
            version = base
        if version >= newest:
            return
        schema = _schema_of(open_table(self._options.table))
        for each in range(version + 1, newest + 1):
            added = asyncio.run(_added(self._options, schema, each))
            yield Addition(TablePosition(each - 1, table_id), added, TablePosition(each, table_id))


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
