"""Rows as messages of a store.

Columns: ``body`` (binary, or string written as UTF-8), and optionally ``key`` (string), ``fields`` (a JSON object as a
string, a map with string keys, or a struct), ``ttl_ms`` (a whole number) and ``deliver_at`` (a timestamp). A null in
``fields``, and a null of the other optional columns, means that the message has none. The columns ``seq``, ``time`` and
``publisher_seq`` of the source are ignored, so rows of one store can be written into another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, cast

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from holdfast.errors import Code, InvalidRequest
from holdfast.values import GivenTwice, pairs_once
from holdfast.wire.formats import UNDECODABLE, decode_each_once
from holdfast.wire.parts import FieldValue, Message

_COLUMNS: Final = ("body", "key", "fields", "ttl_ms", "deliver_at")
_IGNORED: Final = frozenset({"seq", "time", "publisher_seq"})
_FIELD_TYPES: Final = (BooleanType, IntegralType, StringType)


def check_message_schema(schema: StructType) -> None:
    """Raise InvalidRequest unless rows of this schema are messages."""
    kinds: Mapping[str, DataType] = {field.name: field.dataType for field in schema}
    extra = [name for name in kinds if name not in _COLUMNS and name not in _IGNORED]
    if extra:
        raise _misfit(f"columns {', '.join(extra)} would be lost")
    if "body" not in kinds:
        raise _misfit("there is no column body")
    for name, types, text in (
        ("body", (BinaryType, StringType), "binary or string"),
        ("key", (StringType,), "string"),
        ("fields", (StringType, MapType, StructType), "a JSON string, a map or a struct"),
        ("ttl_ms", (IntegralType,), "a whole number"),
        ("deliver_at", (TimestampType,), "a timestamp"),
    ):
        if name in kinds and not isinstance(kinds[name], types):
            raise _misfit(f"{name} is {text}, not {kinds[name].simpleString()}")
    match kinds.get("fields"):
        case StructType() as struct:
            values = {f"fields.{field.name}": field.dataType for field in struct}
        case MapType(keyType=StringType()) as mapped:
            values = {"a value of fields": mapped.valueType}
        case MapType():
            raise _misfit("fields is a map whose keys are not strings")
        case _:
            values = {}
    for name, kind in values.items():
        if not isinstance(kind, _FIELD_TYPES):
            raise _misfit(f"{name} is {kind.simpleString()}, not a string, a whole number or a boolean")


def _misfit(reason: str) -> InvalidRequest:
    return InvalidRequest(
        f"the rows cannot be written as messages: {reason}",
        code=Code.BAD_CONFIGURATION,
        hint=f"the sink into a store takes the columns {', '.join(_COLUMNS)}; rename with select()",
    )


def messages_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Message]:
    """The message of one row after the other. Raises: InvalidRequest for a row that is not a message."""
    for batch in batches:
        names: list[str] = batch.schema.names
        none: list[object] = [None] * batch.num_rows

        def column(
            name: str, names: list[str] = names, none: list[object] = none, batch: pa.RecordBatch = batch
        ) -> list[object]:
            return cast("list[object]", batch.column(name).to_pylist()) if name in names else none

        as_fields = _fields_of(batch.schema.field("fields").type) if "fields" in names else lambda _: {}
        bodies, keys, fields, lifetimes = map(column, ("body", "key", "fields", "ttl_ms"))
        times = _milliseconds(batch.column("deliver_at")) if "deliver_at" in names else none
        for body, key, described, ttl_ms, at_ms in zip(bodies, keys, fields, lifetimes, times, strict=True):
            if body is None:
                raise InvalidRequest(
                    "a row has no body", hint='leave rows without a body out: where("body IS NOT NULL")', key=key
                )
            yield Message(
                body.encode() if isinstance(body, str) else cast("bytes", body),
                as_fields(described),
                cast("str | None", key),
                ttl_ms=_bound(ttl_ms, "ttl_ms"),
                deliver_at_ms=_bound(at_ms, "deliver_at"),
            )


def plain(message: Message) -> tuple[object, ...]:
    """What the digest of a row covers: everything but the order of its fields."""
    return message.body, sorted(message.fields.items()), message.key, message.ttl_ms, message.deliver_at_ms


def _milliseconds(times: pa.Array) -> list[object]:
    """The milliseconds since 1970 of a column of timestamps, rounded up: no message is delivered early."""
    micros = cast("list[int | None]", times.cast(pa.timestamp("us", tz=times.type.tz)).cast(pa.int64()).to_pylist())
    return [None if each is None else -(-each // 1000) for each in micros]


def _bound(value: object, name: str) -> int:
    number = 0 if value is None else cast("int", value)
    if number < 0:
        raise InvalidRequest(f"a row has a {name} below 0", value=number)
    return number


def _fields_of(kind: pa.DataType) -> Callable[[object], dict[str, FieldValue]]:
    if pa.types.is_map(kind):
        return lambda value: _without_nulls(cast("list[tuple[str, FieldValue | None]]", value or []))
    if pa.types.is_struct(kind):
        return lambda value: _without_nulls(cast("dict[str, FieldValue | None]", value or {}).items())
    return _fields_of_text


def _without_nulls(items: Iterable[tuple[str, FieldValue | None]]) -> dict[str, FieldValue]:
    given = [(name, value) for name, value in items if value is not None]
    try:
        return pairs_once(given)
    except GivenTwice as error:
        raise InvalidRequest(f"a field of a row {error}", fields=given) from None


def _fields_of_text(value: object) -> dict[str, FieldValue]:
    if value is None:
        return {}
    try:
        return decode_each_once(cast("str", value).encode(), dict[str, FieldValue])
    except UNDECODABLE as error:
        raise InvalidRequest(
            "fields of a row are not a JSON object whose values are texts, whole numbers, true or false",
            fields=value,
            cause=error,
        ) from error
