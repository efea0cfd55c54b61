"""``option("table", url)``: a Delta table, read as a batch and as a stream without JVM packages.

The driver reads the Delta log with deltalake and plans whole files; tasks read them through the table's own object
store, so a table on S3 needs no Hadoop. The reader sees tables of Delta reader version 1: every table that a pipeline
keeps, and those of other writers without deletion vectors and column mapping. The option ``filters`` leaves out files
and row groups by partition and statistics, then rows; with ``pushdown`` the filters of a query do, too (decision 0009).

A stream begins with the table as it is, then returns the files that later versions add; ``table_places`` says what its
offsets are. A version that removes rows raises InvalidRequest, unless ``skipChangeCommits`` leaves such versions out.

Source: the Delta transaction protocol, PROTOCOL.md of the delta-io project.
"""

# deltalake and pyarrow ship few types, so the checker cannot know their classes; mypy checks the rest.
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

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

from holdfast.errors import Code, InvalidRequest, NotFound
from holdfast.segments.table_location import open_table_reader, table_failure, table_location
from holdfast.spark.options import TableOptions
from holdfast.spark.positions import Given, Offset
from holdfast.spark.runtime.worker_errors import states_errors
from holdfast.spark.source.table_filters import PushWhereItIsOn, pushed_tests, tests_of
from holdfast.spark.source.table_places import (
    BEFORE_FIRST,
    Addition,
    Place,
    end_of_batch,
    place_of,
    rows_between,
)
from holdfast.spark.source.table_rows import TablePartition, constant, packed, rows

READER_VERSION_MAX: Final = 1


def open_table(options: TableOptions) -> DeltaTable:
    """The table at the version that the options name, else the newest.

    Raises: NotFound (no table, or no such version), InvalidRequest (a table of a later reader version), CorruptData (a
    file of its log is missing), Unavailable.
    Cost: the Delta log.
    """
    return _opened(options.table, options.version_as_of, options.timestamp_as_of)


def _opened(url: str, version: int | None, moment: datetime | None = None) -> DeltaTable:
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
        raise InvalidRequest(
            "the table needs a newer Delta reader",
            code=Code.BAD_CONFIGURATION,
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
        raise InvalidRequest(
            f"unknown columns {', '.join(unknown)}; the table has {', '.join(schema.names)}",
            code=Code.BAD_CONFIGURATION,
        )


def spark_columns(options: TableOptions) -> StructType:
    """The columns of a read, in Spark's types.

    Raises: as ``open_table``; InvalidRequest for an unknown column, and for a filter that does not fit the table.
    """
    schema = _schema_of(open_table(options))
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
    table = open_table(options)
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
        table = _opened(self._options.table, None)
        starting = self._options.starting_version
        return Place(table.version() if starting is None else starting - 1).offset(table.metadata().id)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        """What a micro-batch takes: all that is there without bounds. Spark shows it, and the options decide."""
        if self._options.files_max is not None:
            return ReadMaxFiles(self._options.files_max)
        return ReadAllAvailable() if self._options.bytes_max is None else ReadMaxBytes(self._options.bytes_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        """The table as it is now is all that this query reads, in micro-batches within the bounds."""
        self._target = _opened(self._options.table, None).version()

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
            table = _opened(self._options.table, None)
            _require_same(table, start)
            newest = table.version()
            self._asked_s = now_s
        if begin.version >= newest:
            return dict(start)
        end = Place(newest)
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
        schema = _schema_of(_opened(self._options.table, base if begin.version == BEFORE_FIRST else None))
        return packed(files, tests_of(self._options.filters, schema), self._options.target_partition_bytes)

    def _additions(self, start: Given, begin: Place, newest: int) -> Iterator[Addition]:
        """What comes after a place: the table as it was at the start of the stream, then what each version adds."""
        version = begin.version
        if version == BEFORE_FIRST:
            base = newest if begin.base is None else begin.base
            table = _opened(self._options.table, base)
            _require_same(table, start)
            yield Addition(Place(BEFORE_FIRST, 0, base), _files(table), Place(base))
            version = base
        if version >= newest:
            return
        schema = _schema_of(_opened(self._options.table, None))
        for each in range(version + 1, newest + 1):
            yield Addition(Place(each - 1), asyncio.run(_added(self._options, schema, each)), Place(each))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one piece."""
        if isinstance(partition, TablePartition):
            yield from rows(self._options.table, self._schema, partition)


def _require_same(table: DeltaTable, offset: Given) -> None:
    found = str(table.metadata().id)
    if offset["table_id"] != found:
        raise InvalidRequest(
            "the checkpoint is of another table",
            code=Code.BAD_CONFIGURATION,
            hint="the table was made again: begin a new query with a new checkpoint",
            table_id=found,
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
            raise InvalidRequest(
                "a version of the table replaces or removes rows, which a stream cannot return",
                code=Code.BAD_CONFIGURATION,
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
