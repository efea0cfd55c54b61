"""Data frames of a log: read with options as arguments, and with values decoded into Spark's types.

Spark 4.3 keeps the filters that it pushed down last with the frame, and reads every use of the frame by them. So the
option ``pushdown`` is off by default, also in ``read_log``; options such as ``startingVersion`` narrow a read safely.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator, Sequence
from datetime import date
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark program uses
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from holdfast.errors import InvalidRequest
from holdfast.spark.option_values import Mode, one_of
from holdfast.spark.options import parse_read_options, parse_table_options
from holdfast.spark.runtime.refusals import bad_configuration
from holdfast.spark.runtime.session import task_errors
from holdfast.spark.source.table_filters import VALUES
from holdfast.spark.typed.ddl import parse_schema
from holdfast.spark.typed.decode import Encoding, Format, decode
from holdfast.spark.typed.exact import joined


def with_decoded(
    frame: DataFrame,
    value_format: Format | str,
    schema: StructType | str | None = None,
    *,
    column: str = "value",
    into: str | None = None,
    strict: bool = False,
) -> DataFrame:
    """``frame`` with the binary ``column`` decoded into ``into`` (default: in its place), by the rules of typed reads.

    ``schema`` is what JSON and msgpack values are, as a struct type or its text (``"name string, age int"``); UTF-8
    needs none. What does not fit is null, field by field; with ``strict`` it is an error. Raises: InvalidRequest.
    """
    chosen = one_of(Format)("value format", value_format)
    kind = to_arrow_type(schema) if isinstance(schema, StructType) else schema and parse_schema(schema)
    encoding = Encoding.of(chosen, kind, column)
    name = into if into is not None else column
    at = frame.columns.index(name) if name in frame.columns else len(frame.columns)
    fields = list(frame.schema.fields)
    fields[at : at + 1] = [StructField(name, from_arrow_type(encoding.column_type))]
    return frame.mapInArrow(partial(_decoded, column, name, at, encoding, strict), StructType(fields))


def _decoded(
    column: str, into: str, at: int, encoding: Encoding, strict: bool, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        decoded = decode(batch[column], encoding)
        if strict and decoded.misfits:
            misfit = decoded.misfits[0]
            value = batch[column][misfit.row].as_py()[:64]
            raise InvalidRequest(
                f"a value does not fit: {misfit.reason}", column=joined(column, misfit.path), value=value
            )
        arrays, names = list(batch.columns), list(batch.schema.names)
        arrays[at : at + 1], names[at : at + 1] = [decoded.column], [into]
        yield pa.RecordBatch.from_arrays(arrays, names)


def read_log(spark: SparkSession, url: str, **options: object) -> DataFrame:
    """The log at ``url`` as a frame. ``options`` are those of ``format("holdfast")``; they narrow what is read.

    With ``pushdown=True`` filters narrow it, too: use the frame at one place of one query at a time, because Spark
    reads all uses of a frame in a query by the filters of one of them. Raises: InvalidRequest.

    >>> read_log(spark, "s3://bucket/log", startingVersion=1000, keyPrefix="seat/")           # doctest: +SKIP
    """
    texts = {"url": url, **{name: str(value) for name, value in options.items()}}
    parsed = parse_read_options(texts, Mode.BATCH)
    reader = spark.read.format("holdfast").options(**texts)
    if not parsed.pushdown:
        return reader.load()
    # A filter that every row passes and that is pushed down: Spark then plans each query of the frame again.
    guard = next((name for name in ("seq", "version") if name in parsed.columns), None)
    return reader.option("pushdown", "false").load() if guard is None else reader.load().where(f"{guard} >= 0")


def read_table(
    spark: SparkSession, url: str, filters: Sequence[tuple[str, str, object]] = (), **options: object
) -> DataFrame:
    """The Delta table at ``url`` as a frame of the rows that pass all ``filters``, such as ``("version", ">=", 7)``.

    The filters leave out files and row groups by partition and statistics, then rows; operators are ``=``, ``<``,
    ``<=``, ``>``, ``>=`` and ``in``. ``options`` are those of ``format("holdfast")`` with ``table``; columns that
    ``columns`` leaves out are not read. With ``pushdown=True`` filters of the query narrow the read as well: use the
    frame at one place of one query at a time, as with ``read_log``.

    Raises: InvalidRequest, also for a filter that does not fit the table; NotFound; Unavailable.

    >>> read_table(spark, "s3://lake/latest", [("key", "=", b"seat/1")], columns="key,value")  # doctest: +SKIP
    """
    texts = {"table": url, **{name: str(value) for name, value in options.items()}}
    if filters:
        texts["filters"] = json.dumps([_json_filter(each) for each in filters])
    parsed = parse_table_options(texts, Mode.BATCH)
    reader = spark.read.format("holdfast").options(**texts)
    with task_errors():
        frame = reader.load()
        if not parsed.pushdown:
            return frame
        guarded = [each.name for each in frame.schema.fields if isinstance(each.dataType, BinaryType | StringType)]
        if not guarded:
            return reader.option("pushdown", "false").load()
        # A filter that every row passes and that is pushed down: Spark then plans each query of the frame again.
        return frame.where(~F.col(f"`{guarded[0]}`").eqNullSafe(F.lit(uuid.uuid4().hex)))


def _json_filter(one: Sequence[object]) -> list[object]:
    """The filter with values of JSON. Raises: InvalidRequest naming a value that JSON cannot stand for."""

    def plain(value: object) -> object:
        match value:
            case None | bool() | int() | float() | str():
                return value
            case bytes() | bytearray():
                return {"base64": base64.b64encode(value).decode()}
            case date():  # a datetime is one
                return value.isoformat()
            case list() | tuple() | set() | frozenset():
                return [plain(each) for each in value]
            case _:
                raise bad_configuration(
                    f"a filter has a value of the type {type(value).__name__}",
                    hint=f"values are {VALUES}",
                    filter=repr(one),
                )

    return [plain(each) for each in one]
