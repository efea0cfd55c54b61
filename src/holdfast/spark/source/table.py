"""``option("table", url)``: a Delta table, read as a batch and as a stream without JVM packages.

The driver reads the Delta log with deltalake and plans whole files; tasks read them through the table's own object
store, so a table on S3 needs no Hadoop. The reader sees tables of Delta reader version 1: every table that a pipeline
keeps, and those of other writers without deletion vectors and column mapping. The option ``filters`` leaves out files
by partition and statistics, then rows; Spark's own filters are not pushed down (decision 0009). Memory of a task: one
file, packed and as rows.

The offset of a stream is ``{"version": 12, "table_id": "..."}``: everything up to that version of the table has been
returned. A stream begins with the table as it is, then returns the files that later versions add. A version that
removes rows raises InvalidRequest, unless ``skipChangeCommits`` leaves such versions out.

Source: the Delta transaction protocol, PROTOCOL.md of the delta-io project.
"""

# deltalake and pyarrow ship few types, so the checker cannot know their classes; mypy checks the rest.
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from holdfast.errors import Code, CorruptData, InvalidRequest, NotFound, Unavailable
from holdfast.segments.table_location import open_table_store, table_location
from holdfast.spark.options import TableFilter, TableOptions
from holdfast.spark.runtime.table_files import read_objects

READER_VERSION_MAX: Final = 1
STATISTICS_ERROR: Final = timedelta(milliseconds=1)
"""Writers may cut the times in a file's statistics to milliseconds."""
BEFORE_FIRST: Final = -1
"""The offset of a stream that has not returned the table as it was at its start."""


@dataclass
class TablePartition(InputPartition):
    """Some files of a table, each with the texts of its partition columns, and what its rows may be narrowed to."""

    files: tuple[tuple[str, Mapping[str, str | None]], ...]
    tests: tuple[Test, ...] = ()


@dataclass(frozen=True, slots=True)
class Test:
    """What a wanted row passes: ``column`` is not null, and within ``[lowest, highest]`` or among ``values``.

    None for no bound.
    """

    column: str
    lowest: Any = None
    highest: Any = None
    values: tuple[Any, ...] | None = None

    def may_hold(self, lowest: Any, highest: Any) -> bool:
        """Whether a row of a file with these bounds of the column may pass. None: the bound is unknown."""
        if lowest is None or highest is None:
            return True
        if self.values is not None:
            return any(lowest <= value <= highest for value in self.values)
        return (self.highest is None or lowest <= self.highest) and (self.lowest is None or self.lowest <= highest)

    def expression(self, kind: pa.DataType) -> pc.Expression:
        """The same as a filter of a Parquet file."""
        field = pc.field(self.column)
        if self.values is not None:
            return field.isin(pa.array(self.values, kind))
        found = field.is_valid()
        if self.lowest is not None:
            found &= field >= pa.scalar(self.lowest, kind)
        if self.highest is not None:
            found &= field <= pa.scalar(self.highest, kind)
        return found


def tests_of(filters: Iterable[TableFilter], schema: pa.Schema) -> tuple[Test, ...]:
    """The filters with values of their columns' types. Raises: InvalidRequest naming the filter.

    Columns are whole numbers, texts, booleans, days and times, the latter two as ISO texts.

    >>> tests_of([("x", ">=", 3)], pa.schema([("x", pa.int64())]))
    (Test(column='x', lowest=3, highest=None, values=None),)
    """
    return tuple(_test(each, schema) for each in filters)


def _test(one: TableFilter, schema: pa.Schema) -> Test:
    column, operator, value = one
    if column not in schema.names:
        raise _bad_filter(one, f"the table has {', '.join(schema.names)}")
    kind = schema.field(column).type
    given = value if operator == "in" else [value]
    if not isinstance(given, list):
        raise _bad_filter(one, "in needs a list of values")
    values = tuple(_typed(each, kind, one) for each in given)
    match operator:
        case "=":
            return Test(column, *values, *values)
        case ">=":
            return Test(column, lowest=values[0])
        case "<=":
            return Test(column, highest=values[0])
        case _:
            return Test(column, values=values)


def _typed(value: object, kind: pa.DataType, one: TableFilter) -> Any:
    """Not of floats: NaN has no place in an order, and statistics leave it out."""
    try:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if (
            (pa.types.is_boolean(kind) and isinstance(value, bool))
            or (pa.types.is_integer(kind) and is_number)
            or (pa.types.is_string(kind) and isinstance(value, str))
        ):
            return pa.scalar(value, kind).as_py()
        if pa.types.is_date32(kind) and isinstance(value, str):
            return date.fromisoformat(value)
        if pa.types.is_timestamp(kind) and isinstance(value, str):
            moment = datetime.fromisoformat(value)
            if moment.tzinfo is not None:
                return moment
    except (ValueError, OverflowError):
        pass  # named below
    raise _bad_filter(
        one, f"the column is {kind}; values are whole numbers, texts, booleans, ISO days, and ISO times with a zone"
    )


def _bad_filter(one: TableFilter, hint: str) -> InvalidRequest:
    return InvalidRequest(
        "this filter cannot be used on the table", code=Code.BAD_CONFIGURATION, hint=hint, filter=json.dumps(one)
    )


def open_table(options: TableOptions) -> DeltaTable:
    """The table at the version that the options name, else the newest.

    Raises: NotFound (no table, or no such version), InvalidRequest (a table of a later reader version), Unavailable.
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
        raise Unavailable("the table cannot be read", url=location.uri, cause=cause) from error
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
    """The columns of a read, in Spark's types. Raises: as ``open_table``; InvalidRequest for an unknown column."""
    schema = _schema_of(open_table(options))
    names = schema.names if options.columns is None else options.columns
    _require_columns(names, schema)
    return from_arrow_schema(pa.schema([schema.field(name).with_nullable(True) for name in names]))


def arrow_columns(schema: StructType) -> pa.Schema:
    """The columns of a read in Arrow's types, from Spark's."""
    return to_arrow_schema(schema, timezone="UTC")


def plan(options: TableOptions, columns: Iterable[str]) -> list[TablePartition]:
    """The pieces of the table: whole files, those that may have a wanted row, packed to ``target_partition_bytes``.

    Raises: as ``spark_columns``. Cost: the Delta log, a row for each file.
    """
    table = open_table(options)
    schema = _schema_of(table)
    _require_columns(columns, schema)
    return _packed(options, _files(table), tests_of(options.filters, schema))


def _files(table: DeltaTable) -> list[dict[str, Any]]:
    """A row for each live file, oldest first, with its statistics and partition values by dotted names."""
    rows = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return sorted(rows, key=lambda row: (row["modification_time"], row["path"]))


def _may_hold(row: Mapping[str, Any], test: Test) -> bool:
    partition = f"partition.{test.column}"
    if partition in row:
        value = row[partition]
        return value is not None and test.may_hold(value, value)
    highest = row.get(f"max.{test.column}")
    if isinstance(highest, datetime):
        highest += STATISTICS_ERROR
    return test.may_hold(row.get(f"min.{test.column}"), highest)


def _packed(options: TableOptions, files: Iterable[Mapping[str, Any]], tests: tuple[Test, ...]) -> list[TablePartition]:
    """The pieces of these files, without those that have no wanted row."""
    pieces: list[TablePartition] = []
    waiting: list[tuple[str, Mapping[str, str | None]]] = []
    size = 0
    for row in files:
        if not all(_may_hold(row, test) for test in tests):
            continue
        if waiting and size + row["size_bytes"] > options.target_partition_bytes:
            pieces.append(TablePartition(tuple(waiting), tests))
            waiting, size = [], 0
        prefix = "partition."
        waiting.append(
            (row["path"], {name.removeprefix(prefix): _text(row[name]) for name in row if name.startswith(prefix)})
        )
        size += row["size_bytes"]
    return [*pieces, TablePartition(tuple(waiting), tests)] if waiting else pieces


def _text(value: object) -> str | None:
    """A partition's value as a Delta log writes it."""
    if value is None or isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)


def rows(options: TableOptions, schema: pa.Schema, piece: TablePartition) -> Iterator[pa.RecordBatch]:
    """The rows of these files, with ``schema``. A column that a file lacks is null: the table got it later.

    Raises: NotFound (a vacuum has removed the file), CorruptData, Unavailable.
    """
    for path, partition in piece.files:
        (data,) = read_objects(options.table, [unquote(path)])  # the Delta log has paths as URLs
        tests = [test for test in piece.tests if test.column not in partition]
        try:
            file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
            there = set(file.schema_arrow.names)
            if any(test.column not in there for test in tests):
                continue  # the column is null in this file
            narrowing = [test.expression(file.schema_arrow.field(test.column).type) for test in tests]
            names = [name for name in schema.names if name in there and name not in partition]
            found = pq.read_table(pa.BufferReader(data), columns=names, filters=_all(narrowing))
            count = found.num_rows if names else _count(file, data, tests, narrowing)
        except (pa.ArrowException, OSError) as error:
            raise CorruptData("a file of the table is damaged", path=path, cause=str(error)[:300]) from error
        try:
            columns = [
                _constant(partition[field.name], field.type, count)
                if field.name in partition
                else found[field.name].cast(field.type)
                if field.name in names
                else pa.nulls(count, field.type)
                for field in schema
            ]
        except pa.ArrowInvalid as error:
            raise InvalidRequest(
                "a file of the table has wider types than the query began with",
                code=Code.BAD_CONFIGURATION,
                hint="start the query again; a stream also needs a new checkpoint",
                path=path,
                cause=str(error)[:300],
            ) from error
        yield from pa.Table.from_arrays(columns, schema=schema).to_batches()


def _all(expressions: Sequence[pc.Expression]) -> pc.Expression | None:
    found: pc.Expression | None = None
    for each in expressions:
        found = each if found is None else found & each
    return found


def _count(file: pq.ParquetFile, data: bytes, tests: Sequence[Test], narrowing: Sequence[pc.Expression]) -> int:
    """The number of wanted rows where no column of the file is wanted."""
    if not narrowing:
        count: int = file.metadata.num_rows
        return count
    wanted = list({test.column for test in tests})
    found: int = pq.read_table(pa.BufferReader(data), columns=wanted, filters=_all(narrowing)).num_rows
    return found


def _constant(text: str | None, kind: pa.DataType, count: int) -> pa.Array:
    value = pa.scalar(None, kind) if text is None else pa.array([text], pa.string()).cast(kind)[0]
    return pa.repeat(value, count)


class HoldfastTableReader(DataSourceReader):
    """One batch read of a table: planned once, read piece by piece."""

    def __init__(self, options: TableOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[TablePartition]:
        """The pieces to read. Raises: as ``plan``."""
        return plan(self._options, self._schema.names)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one piece. For a read without pieces Spark passes an empty partition of its own."""
        if isinstance(partition, TablePartition):
            yield from rows(self._options, self._schema, partition)


Offset: TypeAlias = dict[str, int | str]


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
        version = table.version() if starting is None else starting - 1
        return {"version": version, "table_id": str(table.metadata().id)}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        """A micro-batch takes all versions that are there."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        """The table as it is now is all that this query reads."""
        self._target = _opened(self._options.table, None).version()

    def latestOffset(self, start: Mapping[str, int | str], limit: ReadLimit) -> Offset:  # noqa: ARG002, N802  Spark's names
        """The newest version of the table; ``start`` itself when there is none yet. Raises: as ``open_table``."""
        begin = _version_of(start)
        if self._target is not None:
            return {**start, "version": max(begin, self._target)}
        now_s = time.monotonic()
        if self._asked_s is not None and (now_s - self._asked_s) * 1000 < self._options.poll_ms:
            return dict(start)
        self._asked_s = now_s
        table = _opened(self._options.table, None)
        _require_same(table, start)
        return {**start, "version": max(begin, table.version())}

    def partitions(self, start: Mapping[str, int | str], end: Mapping[str, int | str]) -> Sequence[TablePartition]:
        """The pieces between two offsets, always the same ones. Raises: as ``open_table``; NotFound (a version was
        removed), InvalidRequest (a version removes rows).
        """
        begin, last = _version_of(start), _version_of(end)
        if begin >= last:
            return []
        if begin == BEFORE_FIRST:
            table = _opened(self._options.table, last)
            _require_same(table, start)
            return _packed(self._options, _files(table), tests_of(self._options.filters, _schema_of(table)))
        schema = _schema_of(_opened(self._options.table, None))
        added = asyncio.run(_added(self._options, schema, begin + 1, last))
        return _packed(self._options, added, tests_of(self._options.filters, schema))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one piece."""
        if isinstance(partition, TablePartition):
            yield from rows(self._options, self._schema, partition)


def _version_of(offset: Mapping[str, int | str]) -> int:
    version = offset.get("version")
    if not isinstance(version, int) or "table_id" not in offset:
        raise InvalidRequest(
            "checkpoint holds an offset that is not a table's", code=Code.BAD_CONFIGURATION, offset=dict(offset)
        )
    return version


def _require_same(table: DeltaTable, offset: Mapping[str, int | str]) -> None:
    found = str(table.metadata().id)
    if offset["table_id"] != found:
        raise InvalidRequest(
            "the checkpoint is of another table",
            code=Code.BAD_CONFIGURATION,
            hint="the table was made again: begin a new query with a new checkpoint",
            table_id=found,
            checkpoint=offset["table_id"],
        )


async def _added(options: TableOptions, schema: pa.Schema, first: int, last: int) -> list[dict[str, Any]]:
    """A row for each file that the versions ``first`` to ``last`` add, as ``_files``, without statistics."""
    store = open_table_store(options.table)
    try:
        found: list[dict[str, Any]] = []
        for version in range(first, last + 1):
            try:
                data = await store.read(f"_delta_log/{version:020d}.json")
            except NotFound as gone:
                raise NotFound(
                    "data loss: the table's log no longer has a version that this stream has not read",
                    hint="begin a new query with a new checkpoint",
                    version=version,
                ) from gone
            found += _added_by(
                options, schema, version, [json.loads(line) for line in data.splitlines() if line.strip()]
            )
        return found
    finally:
        await store.close()


def _added_by(
    options: TableOptions, schema: pa.Schema, version: int, actions: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    adds = [action["add"] for action in actions if action.get("add", {}).get("dataChange")]
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
                f"partition.{name}": _constant(text, schema.field(name).type, 1)[0].as_py()
                for name, text in add["partitionValues"].items()
            },
        }
        for add in adds
    ]
