"""Values with types as JSON: the way back from ``decode``.

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

_JSON: Final = msgspec.json.Encoder(decimal_format="number")


def encode(value: Any, kind: pa.DataType) -> bytes:
    """One value that is not null, as ``to_pylist`` gives it for this type. Raises: InvalidRequest for a number that
    JSON does not have (NaN).

    >>> encode({"a": 1, "b": None}, pa.struct([("a", pa.int32()), ("b", pa.int32())]))
    b'{"a":1}'
    """
    return _JSON.encode(_plain(value, kind))


def _plain(value: Any, kind: pa.DataType) -> Any:
    """A value in the types that the encoder writes. ``value`` is not null."""
    if pa.types.is_struct(kind):
        named = ((each, value[each.name]) for each in kind)
        return {each.name: _plain(held, each.type) for each, held in named if held is not None}
    if pa.types.is_map(kind):
        return {key: _or_none(item, kind.item_type) for key, item in value}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_or_none(item, kind.value_type) for item in value]
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return value.astimezone(UTC)
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequest("a value has a number that JSON does not have", hint="replace it by null", found=value)
    return value


def _or_none(value: Any, kind: pa.DataType) -> Any:
    return None if value is None else _plain(value, kind)
