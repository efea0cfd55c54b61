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
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from holdfast.errors import NotFound
from holdfast.segments.table_location import open_table_reader, table_failure, table_location
from holdfast.spark.options import TableOptions
from holdfast.spark.positions import Given, Offset, TablePosition, offset_of, position_in
from holdfast.spark.runtime.processes import states_errors
from holdfast.spark.runtime.refusals import bad_configuration
from holdfast.spark.source.table_filters import PushWhereItIsOn, pushed_tests, tests_of
from holdfast.spark.source.table_rows import TablePartition, constant, packed, rows

Row: TypeAlias = Mapping[str, Any]

BEFORE_FIRST: Final = -1
"""The version of a stream that has not returned the table as it was at its start."""


class TablePlace(NamedTuple):
    """All of ``version``, then ``files`` of what comes next; ``base`` is the version of a table under way."""

    version: int
    files: int = 0
    base: int | None = None

    def offset(self, table_id: object) -> Offset:
        """The place as a checkpoint keeps it."""
        base = self.base if self.files else None
        return offset_of(TablePosition(self.version, str(table_id), self.files or None, base))


def place_of(offset: Given) -> TablePlace:
    """The place that a checkpoint keeps. Raises: InvalidRequest for an offset that is not a table's.

    >>> place_of({"version": 7, "table_id": "x", "files": 3})
    TablePlace(version=7, files=3, base=None)
    """
    position = position_in(offset, TablePosition)
    return TablePlace(position.version, position.files or 0, position.base)


@dataclass(frozen=True, slots=True)
class Addition:
    """Files that come next in a stream, in their order: those after ``begin``, and ``end`` when all are returned."""

    begin: TablePlace
    rows: Sequence[Row]
    end: TablePlace


def end_of_batch(
    start: TablePlace, additions: Iterable[Addition], files_max: int | None, bytes_max: int | None
) -> TablePlace:
    """Where a micro-batch from ``start`` ends: within the bounds, but after at least one file if there is one.

    >>> one = Addition(TablePlace(0), [{"size_bytes": 5}, {"size_bytes": 5}], TablePlace(1))
    >>> end_of_batch(TablePlace(0), [one], 1, None), end_of_batch(TablePlace(0, 1), [one], 1, None)
    (TablePlace(version=0, files=1, base=None), TablePlace(version=1, files=0, base=None))
    """
    files = size = 0
    place = start
    for each in additions:
        done = start.files if each.begin.version == start.version else 0
        for index, row in enumerate(each.rows[done:], done):
            size += row["size_bytes"]
            is_over = (files_max is not None and files >= files_max) or (bytes_max is not None and size > bytes_max)
            if files and is_over:
                return each.begin._replace(files=index) if index else place
            files += 1
        place = each.end
        if each.begin.version == BEFORE_FIRST:
            break  # what the table was is returned whole, even if a later version cannot be
    return place


def rows_between(start: TablePlace, end: TablePlace, additions: Iterable[Addition]) -> list[Row]:
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


@states_errors
class HoldfastTableReader(DataSourceReader):
    """One batch read of a table: planned once, read piece by piece."""

    def __init__(self, options: TableOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._pushed: tuple[Filter, ...] = ()
        if options.pushdown:
            self.pushFilters = PushWhereItIsOn(self._narrow)  # type: ignore[method-assign]

    def _narrow(self, filters: Iterable[Filter]) -> None:
        self._pushed = tuple(filters)

    def partitions(self) -> Sequence[TablePartition]:
        """The pieces to read. Raises: as ``plan``."""
        return plan(self._options, self._schema.names, self._pushed)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one piece. For a read without pieces Spark passes an empty partition of its own."""
        if isinstance(partition, TablePartition):
            yield from rows(self._options.table, self._schema, partition)


@states_errors
class HoldfastTableStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query's view of a table."""

    def __init__(self, options: TableOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._target: int | None = None
        self._asked_s: float | None = None

    def initialOffset(self) -> Offset:  # noqa: N802  Spark's name
        """Where a query without a checkpoint begins. Raises: as ``open_table``."""
        table = open_table(self._options.table)
        starting = self._options.starting_version
        return TablePlace(table.version() if starting is None else starting - 1).offset(table.metadata().id)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        """What a micro-batch takes: all that is there without bounds. Spark shows it, and the options decide."""
        if self._options.files_max is not None:
            return ReadMaxFiles(self._options.files_max)
        return ReadAllAvailable() if self._options.bytes_max is None else ReadMaxBytes(self._options.bytes_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        """The table as it is now is all that this query reads, in micro-batches within the bounds."""
        self._target = open_table(self._options.table).version()

    def latestOffset(self, start: Given, limit: ReadLimit) -> Offset:  # noqa: N802  Spark's name
        """Where the next micro-batch ends: the newest version, or what its bounds allow; ``start`` for nothing new.

        Raises: as ``open_table``; with bounds as ``partitions``.
        """
        begin = place_of(start)
        newest = self._target
        if newest is None:
            now_s = time.monotonic()
            if self._asked_s is not None and (now_s - self._asked_s) * 1000 < self._options.poll_ms:
                return dict(start)
            table = open_table(self._options.table)
            _require_same(table, start)
            newest = table.version()
            self._asked_s = now_s
        if begin.version >= newest:
            return dict(start)
        end = TablePlace(newest)
        bounds = (self._options.files_max, self._options.bytes_max)
        if bounds != (None, None) and not isinstance(limit, ReadAllAvailable):
            end = end_of_batch(begin, self._additions(start, begin, newest), *bounds)
            if end.version < newest:
                self._asked_s = None  # there is more: the next micro-batch does not wait
        return end.offset(start["table_id"])

    def partitions(self, start: Given, end: Given) -> Sequence[TablePartition]:
        """The pieces between two offsets, always the same ones. Raises: as ``open_table``; NotFound (a version was
        removed), InvalidRequest (a version removes rows).
        """
        begin, last = place_of(start), place_of(end)
        if begin >= last:
            return []
        base = last.version if last.base is None else last.base
        newest = base if begin.version == BEFORE_FIRST and begin.base is None else last.version + bool(last.files)
        files = rows_between(begin, last, self._additions(start, begin, newest))
        schema = _schema_of(open_table(self._options.table, base if begin.version == BEFORE_FIRST else None))
        return packed(files, tests_of(self._options.filters, schema), self._options.target_partition_bytes)

    def _additions(self, start: Given, begin: TablePlace, newest: int) -> Iterator[Addition]:
        """What comes after a place: the table as it was at the start of the stream, then what each version adds."""
        version = begin.version
        if version == BEFORE_FIRST:
            base = newest if begin.base is None else begin.base
            table = open_table(self._options.table, base)
            _require_same(table, start)
            yield Addition(TablePlace(BEFORE_FIRST, 0, base), _files(table), TablePlace(base))
            version = base
        if version >= newest:
            return
        schema = _schema_of(open_table(self._options.table))
        for each in range(version + 1, newest + 1):
            yield Addition(TablePlace(each - 1), asyncio.run(_added(self._options, schema, each)), TablePlace(each))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one piece."""
        if isinstance(partition, TablePartition):
            yield from rows(self._options.table, self._schema, partition)


def _require_same(table: DeltaTable, offset: Given) -> None:
    table_id = str(table.metadata().id)
    if offset["table_id"] != table_id:
        raise bad_configuration(
            "the checkpoint is of another table",
            hint="the table was made again: begin a new query with a new checkpoint",
            table_id=table_id,
            checkpoint=offset["table_id"],
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
