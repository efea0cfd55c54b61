"""The rows that are commit requests, and their one form on Spark.

Owns: which columns a request may have, in which types, and the Spark expressions that bring them into one form, sorted.
Does not own: checks of single requests and their packed form (``request_chunk``).

Columns of a request, one row each:

    order           the place in the total order: any type that sorts; no two requests share one (the name is an option)
    operations      array of structs: ``kind`` (or ``type``: write, delete, range_delete), ``key`` (or ``begin``),
                    ``value``, ``end``; without a kind a null value deletes. Or the columns key, value, kind, end: one
                    operation a row
    preconditions   array of structs: ``kind`` (or ``type``: point_read, range_read), ``key`` (or ``begin``), ``end``,
                    ``version``; without a kind, one with an end is a range read
    read_version    a log version, or ``#k``: as the log was after the k-th request of this input, ``#0`` before all
    request_id      names the attempt

Keys and values are binary, or strings: their UTF-8, or base64 as in the HTTP API. An array given as a string is JSON.

Failure model: columns that do not fit raise InvalidRequest before anything runs. What is no base64 is found by Spark
where the rows are first read: whoever reads them does it within ``frame_errors``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark program uses
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from holdfast.errors import Code, InvalidRequest

__all__ = ["AS_NAMED", "RequestFormat", "frame_errors", "in_order"]

_COLUMNS: Final = ("operations", "preconditions", "read_version", "request_id", "key", "value", "kind", "end")
_OPERATION_JSON: Final = "array<struct<kind string, type string, key string, begin string, value string, end string>>"
_READ_JSON: Final = "array<struct<kind string, type string, key string, begin string, end string, version string>>"

_TEXT: Final = (StringType, ByteType, ShortType, IntegerType, LongType)
_AS_IT_IS: Final[Mapping[str, tuple[type[DataType], ...]]] = {
    "kind": (StringType,),
    "type": (StringType,),
    "version": _TEXT,
    **dict.fromkeys(("key", "begin", "end", "value"), (StringType, BinaryType)),
}
"""Types of fields that need no expression on Spark: where they are packed they are as good."""


@dataclass(frozen=True, slots=True)
class RequestFormat:
    """How rows are to be read as requests. ``text`` says what strings are that stand for keys and values."""

    order_by: str = "order"
    text: Literal["utf8", "base64"] = "utf8"

    def __post_init__(self) -> None:
        if self.text not in ("utf8", "base64"):
            raise InvalidRequest("text is utf8 or base64", code=Code.BAD_CONFIGURATION, text=self.text)


AS_NAMED: Final = RequestFormat()
SHOWN_MAX: Final = 80
"""How much of a key or value an error shows."""


def in_order(frame: DataFrame, request_format: RequestFormat, partitions: int) -> DataFrame:
    """``frame`` in the one form, range-partitioned and sorted by its order.

    Shape: ``order`` string; ``operations`` array of struct with the fields of the module's table, whose keys and values
    are bytes, or strings that stand for their UTF-8; or the columns kind, key, end, value where each row is one
    operation; ``reads`` likewise an array; ``read_version`` and ``request_id`` strings, each only where the frame has
    it. Raises: InvalidRequest.
    """
    types: Mapping[str, DataType] = {field.name: field.dataType for field in frame.schema}
    order = request_format.order_by
    if order not in types:
        raise _misfit(f"there is no column {order}, which gives their order")
    extra = [name for name in types if name not in _COLUMNS and name != order]
    if extra:
        raise _misfit(f"columns {', '.join(extra)} would be lost")
    columns = _operations(types, request_format)
    if "preconditions" in types:
        columns.append(_reads(types, request_format).alias("reads"))
    texts = [name for name in ("read_version", "request_id") if name in types]
    columns += [F.col(name).cast("string").alias(name) for name in texts]
    # Sorted as they come, and brought into form where they arrive: what is sampled and shuffled is as narrow as it was.
    ordered = frame.repartitionByRange(partitions, _quoted(order)).sortWithinPartitions(_quoted(order))
    return ordered.select(F.col(_quoted(order)).cast("string").alias("order"), *columns)


@contextmanager
def frame_errors(request_format: RequestFormat) -> Generator[None]:
    """Raise InvalidRequest where Spark finds a key or value that is no base64; every other error as it comes."""
    try:
        yield
    except PySparkException as error:
        told = error.getMessageParameters() or {}
        ours = request_format.text == "base64" and told.get("fmt", "").strip("'").upper() == "BASE64"
        if not ours or error.getCondition() != "CONVERSION_INVALID_INPUT":
            raise
        raise InvalidRequest(
            "a key or value is not base64",
            code=Code.BAD_BASE64,
            hint="standard base64, as in the HTTP API; keys and values that are text themselves are read as utf8",
            found=told.get("str", "").strip("'")[:SHOWN_MAX],
        ) from error


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _misfit(reason: str) -> InvalidRequest:
    return InvalidRequest(
        f"rows are no commit requests: {reason}",
        code=Code.BAD_CONFIGURATION,
        hint="a request has an order, operations (or key, value, kind, end), preconditions, read_version, request_id",
    )


def _bytes(column: Column, kind: DataType, request_format: RequestFormat) -> Column:
    if isinstance(kind, BinaryType):
        return column
    if not isinstance(kind, StringType):
        raise _misfit(f"a key or value is binary or string, not {kind.simpleString()}")
    # Not unbase64, which passes over what is no base64 and makes another key of the rest.
    return F.to_binary(column, F.lit("base64")) if request_format.text == "base64" else column.cast("binary")


class _Fields:
    """The fields of an array's structs, or of a row: each by the first of its names that is there."""

    def __init__(self, types: Mapping[str, DataType], column: Callable[[str], Column], form: RequestFormat) -> None:
        self.types = types
        self._column = column
        self._format = form

    def text(self, *names: str) -> Column:
        found = [self._column(name).cast("string") for name in names if name in self.types]
        return F.coalesce(*found) if found else F.lit(None).cast("string")

    def data(self, *names: str) -> Column:
        found = [_bytes(self._column(name), self.types[name], self._format) for name in names if name in self.types]
        if not found:
            return F.lit(None).cast("binary")
        return found[0] if len(found) == 1 else F.coalesce(*found)


def _operation(fields: _Fields) -> list[Column]:
    value = fields.data("value")
    by_value = F.when(value.isNull(), F.lit("delete")).otherwise(F.lit("write"))
    kind = F.coalesce(fields.text("kind", "type"), by_value) if {"kind", "type"} & set(fields.types) else by_value
    return [
        kind.alias("kind"), fields.data("key", "begin").alias("key"), fields.data("end").alias("end"),
        value.alias("value"),
    ]  # fmt: skip


def _read(fields: _Fields) -> list[Column]:
    end = fields.data("end")
    by_end = F.when(end.isNull(), F.lit("point_read")).otherwise(F.lit("range_read"))
    kind = F.coalesce(fields.text("kind", "type"), by_end) if {"kind", "type"} & set(fields.types) else by_end
    return [
        kind.alias("kind"), fields.data("key", "begin").alias("key"), end.alias("end"),
        fields.text("version").alias("version"),
    ]  # fmt: skip


def _operations(types: Mapping[str, DataType], request_format: RequestFormat) -> list[Column]:
    if "operations" in types:
        if "key" in types:
            raise _misfit("a row of operations has no key of its own")
        each = _each(types["operations"], "operations", _OPERATION_JSON, _operation, request_format)
        return [each.alias("operations")]
    if "key" not in types or not ("value" in types or "kind" in types):
        raise _misfit("operations are needed, or key and value (or key and kind)")
    return _operation(_Fields(types, F.col, request_format))


def _reads(types: Mapping[str, DataType], request_format: RequestFormat) -> Column:
    return _each(types["preconditions"], "preconditions", _READ_JSON, _read, request_format)


def _each(
    kind: DataType, name: str, json: str, make: Callable[[_Fields], list[Column]], request_format: RequestFormat
) -> Column:
    column = F.col(name)
    if isinstance(kind, StringType):
        column = F.from_json(column, json, {"mode": "FAILFAST"})
        struct: DataType = DataType.fromDDL(json).elementType  # type: ignore[attr-defined]
    elif isinstance(kind, ArrayType):
        struct = kind.elementType
    else:
        raise _misfit(f"{name} is an array of structs, or its JSON")
    if not isinstance(struct, StructType):
        raise _misfit(f"{name} is an array of structs")
    types = {field.name: field.dataType for field in struct}
    if request_format.text == "utf8" and all(
        isinstance(of, _AS_IT_IS.get(name, DataType)) for name, of in types.items()
    ):
        return column  # a lambda for each element is half of what staging costs
    return F.transform(column, lambda each: F.struct(*make(_Fields(types, lambda field: each[field], request_format))))
