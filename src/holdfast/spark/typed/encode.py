"""Columns with types as bytes: the way back from ``decode``.

Fields that are null are left out, as ``to_json`` of Spark does; an element of an array that is null stays. Decimals are
JSON numbers with all their digits, binary is base64, and dates and times are ISO texts, a timestamp in UTC. A map is an
object.
"""

from __future__ import annotations

import math
from datetime import UTC
from typing import Any, Final

import msgspec
import pyarrow as pa

from holdfast.errors import InvalidRequest
from holdfast.spark.typed.decode import Format

_JSON: Final = msgspec.json.Encoder(decimal_format="number")
_MSGPACK: Final = msgspec.msgpack.Encoder()


def encode(column: pa.Array | pa.ChunkedArray, chosen: Format = Format.JSON) -> pa.Array:
    """The column as bytes; null stays null. Raises: InvalidRequest for a number that JSON does not have (NaN).

    >>> encode(pa.array([{"a": 1, "b": None}])).to_pylist()
    [b'{"a":1}']
    """
    kind = column.type
    match chosen:
        case Format.BINARY:
            return column
        case Format.UTF8:
            return column.cast(pa.binary())
        case Format.JSON | Format.MSGPACK:
            values = column.to_pylist()
            return pa.array([None if each is None else encode_one(each, kind, chosen) for each in values], pa.binary())


def encode_one(value: Any, kind: pa.DataType, chosen: Format = Format.JSON) -> bytes:
    """One value that is not null, as ``to_pylist`` gives it for this type. Raises: as ``encode``."""
    encoder = _JSON if chosen is Format.JSON else _MSGPACK
    return encoder.encode(_plain(value, kind, chosen))


def _plain(value: Any, kind: pa.DataType, chosen: Format) -> Any:
    """A value in the types that the encoder writes. ``value`` is not null."""
    if pa.types.is_struct(kind):
        named = ((each, value[each.name]) for each in kind)
        return {each.name: _plain(held, each.type, chosen) for each, held in named if held is not None}
    if pa.types.is_map(kind):
        return {key: _or_none(item, kind.item_type, chosen) for key, item in value}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_or_none(item, kind.value_type, chosen) for item in value]
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return value.astimezone(UTC)
    if chosen is Format.JSON and isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequest("a value has a number that JSON does not have", hint="replace it by null", found=value)
    return value


def _or_none(value: Any, kind: pa.DataType, chosen: Format) -> Any:
    return None if value is None else _plain(value, kind, chosen)
