"""The type of JSON or msgpack values from a sample of them.

Whole numbers are ``bigint``, or ``decimal(38,0)`` if one is larger; other numbers are ``double``; texts are ``string``,
also when they look like a date: a type that a later value could leave is not chosen. A field that is null in the whole
sample is left out; it becomes a column when a value has it. Fields are in the order in which they first appear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
import pyarrow as pa

from holdfast.spark.runtime.refusals import bad_configuration
from holdfast.spark.typed.ddl import type_text
from holdfast.spark.typed.decode import Format

SAMPLE_MAX: Final = 1_000_000
"""Values that one process looks at, which it holds in memory."""

LARGE: Final = pa.decimal128(38, 0)
"""The type of whole numbers beyond ``bigint``."""


def infer_type(values: Iterable[bytes], chosen: Format) -> pa.DataType | None:
    """The narrowest type that every value fits, None for no value. Bytes that are not of the format do not count.

    Raises: InvalidRequest when a field is, for example, a number in one value and a text in another.

    >>> infer_type([b'{"a": 1}', b'{"a": 1.5, "b": ["x"]}'], Format.JSON)
    StructType(struct<a: double, b: list<element: string>>)
    """
    decode: Callable[[bytes], Any] = msgspec.json.decode if chosen is Format.JSON else msgspec.msgpack.decode
    kind: pa.DataType | None = None
    for value in values:
        try:
            decoded = decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
        kind = _wider(kind, _type_of(decoded, "value"), "value")
    return None if kind is None else _without_empty(kind)


def merged(table: pa.DataType | None, sample: pa.DataType | None) -> pa.DataType | None:
    """The fields of the table with those that only the sample has. A field of both keeps the table's type."""
    if table is None or sample is None or not (pa.types.is_struct(table) and pa.types.is_struct(sample)):
        return table if table is not None else sample
    names = {each.name.casefold() for each in table}
    return pa.struct([*table, *(each for each in sample if each.name.casefold() not in names)])


def _type_of(value: Any, place: str) -> pa.DataType:
    match value:
        case None:
            return pa.null()
        case bool():
            return pa.bool_()
        case int():
            return pa.int64() if -(2**63) <= value < 2**63 else LARGE if abs(value) < 10**38 else pa.float64()
        case float():
            return pa.float64()
        case str():
            return pa.string()
        case bytes():
            return pa.binary()
        case dict():
            return pa.struct([pa.field(str(name), _type_of(each, f"{place}.{name}")) for name, each in value.items()])
        case list():
            element: pa.DataType | None = pa.null()
            for each in value:
                element = _wider(element, _type_of(each, f"{place}[]"), f"{place}[]")
            return pa.list_(pa.field("element", element))
        case _:  # a timestamp of msgpack
            return pa.timestamp("us", tz="UTC")


def _wider(one: pa.DataType | None, other: pa.DataType, place: str) -> pa.DataType:
    """The narrowest type of both."""
    if one is None or pa.types.is_null(one) or one == other:
        return other
    if pa.types.is_null(other):
        return one
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        fields = {each.name: each.type for each in one}
        for each in other:
            fields[each.name] = _wider(fields.get(each.name), each.type, f"{place}.{each.name}")
        return pa.struct([pa.field(name, kind) for name, kind in fields.items()])
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(pa.field("element", _wider(one.value_type, other.value_type, f"{place}[]")))
    numbers = {one, other}
    if numbers <= {pa.int64(), LARGE}:
        return LARGE
    if numbers <= {pa.int64(), LARGE, pa.float64()}:
        return pa.float64()  # a whole number that it rounds is a misfit then
    raise bad_configuration(
        f"values differ in {place}: {type_text(one)} in one and {type_text(other)} in another",
        hint="give a schema instead of infer, and choose by unfit what happens to values that do not fit it",
    )


def _without_empty(kind: pa.DataType) -> pa.DataType | None:
    """The type without what no value has shown: fields that are always null, elements of empty lists."""
    if pa.types.is_null(kind):
        return None
    if pa.types.is_struct(kind):
        fields = [(each.name, _without_empty(each.type)) for each in kind]
        seen = [pa.field(name, inner) for name, inner in fields if inner is not None]
        return pa.struct(seen) if seen else None
    if pa.types.is_list(kind):
        inner = _without_empty(kind.value_type)
        return None if inner is None else pa.list_(pa.field("element", inner))
    return kind
