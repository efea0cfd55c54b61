"""Which values would lose something in their type: a whole number that a float rounds, a time with nanoseconds, a key
that an object has twice.

The decoders of ``decode`` round such values and take the last of two equal keys. Most columns show by themselves that
no value has one. Else only the values that may have one are parsed again, digit by digit. Cost: the bytes are looked
through once for each name; some microseconds for each value that is parsed again.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.values import GivenTwice, pairs_once

Numbers: TypeAlias = npt.NDArray[np.int64]
Problem: TypeAlias = tuple[str, str]
"""A path in a value, and the reason why it does not fit."""

_FRACTION: Final = re.compile(r"\.([0-9]{7,})")
_NOTHING: Final[Mapping[str, Problem]] = {}


@dataclass(frozen=True, slots=True)
class Suspects:
    """The rows of values that a type may round, and of those in which a key may be twice."""

    rounded: frozenset[int]
    twice: frozenset[int]


_ROUNDED_FROM: Final[Mapping[pa.DataType, float]] = {pa.float32(): 2.0**24, pa.float64(): 2.0**53}
"""By type: below it every whole number has a float of its own."""
_YEARS_US: Final = 1900 * 365 * 86_400 * 1_000_000
"""Times that are nearer to 1970 than this are far from both ends of the calendar."""
_MANY_DIGITS: Final = re.compile(rb"\.[0-9]{7}")
_MANY_DIGITS_OR_OWN: Final = re.compile(rb"\.[0-9]{7}|\xd7\xff|\xc7\x0c\xff")


class Exact:
    """What the type of a column does not keep of values in JSON, or in msgpack (``is_json`` False)."""

    def __init__(self, kind: pa.DataType, *, is_json: bool) -> None:
        self._kind = kind
        self._is_json = is_json
        self._json = json.JSONDecoder(object_pairs_hook=pairs_once, parse_int=float, parse_float=float)
        self._digits = json.JSONDecoder(object_pairs_hook=_marked, parse_int=_Number, parse_float=_Number)

    def suspects(self, rows: Sequence[bytes | None], column: pa.Array, joined: bytes) -> Suspects:
        """The rows that may have lost something in ``column``. ``joined`` are the bytes of all.

        Most columns show that nothing was lost: no number is as large as those that round, and each name is in the
        bytes as often as the column has a value for it.
        """
        import pyarrow.compute as pc  # tasks need it, and planning, which starts a process, does not

        digits = _MANY_DIGITS if self._is_json else _MANY_DIGITS_OR_OWN
        rounded, given, has_map = set[int](), Counter[bytes](), False
        for name, kind, array, owners in _places(column, self._kind, None, np.arange(len(column))):
            has_map = has_map or pa.types.is_map(kind)
            if name is not None:
                key = json.dumps(name, ensure_ascii=False) if self._is_json else name
                given[key.encode()] += len(array) - array.null_count
            is_time = pa.types.is_timestamp(kind)
            if is_time and digits.search(joined) is not None:
                rounded.update(row for row, data in enumerate(rows) if data and digits.search(data))
            if is_time or kind in _ROUNDED_FROM:
                size = pc.call_function("abs", [array.cast(pa.int64()) if is_time else array])
                bound = _YEARS_US if is_time else _ROUNDED_FROM[kind]
                is_large = pc.call_function("greater_equal", [size, pa.scalar(bound, size.type)]).fill_null(False)
                rounded.update(owners[is_large.to_numpy(zero_copy_only=False)].tolist())
        if has_map:
            return Suspects(frozenset(rounded), frozenset(range(len(rows))))
        is_escaped = self._is_json and bool(given) and b"\\" in joined
        twice = [name for name, times in given.items() if joined.count(name) > times]
        return Suspects(
            frozenset(rounded),
            frozenset(
                row
                for row, data in enumerate(rows if twice or is_escaped else ())
                if data and ((is_escaped and b"\\" in data) or any(data.count(name) > 1 for name in twice))
            ),
        )

    def problems(self, data: bytes, row: int, suspects: Suspects) -> Mapping[str, Problem]:
        """What the type does not keep of this value, by field of the first level; "" for the whole value.

        Bytes that are not of the format have none: their decoder reports them.
        """
        if row not in suspects.rounded and row not in suspects.twice:
            return _NOTHING
        try:
            if row in suspects.twice and not self._has_twice(data) and row not in suspects.rounded:
                return _NOTHING
            value = self._parsed(data)
        except (ValueError, TypeError, RecursionError):
            return _NOTHING
        if pa.types.is_struct(self._kind) and isinstance(value, dict) and _twice(value, self._kind) is None:
            return dict(_of_fields(value, self._kind))
        problem = _problem(value, self._kind)
        return _NOTHING if problem is None else {"": problem}

    def _has_twice(self, data: bytes) -> bool:
        """Whether any object has a key twice. The parse that costs least."""
        try:
            if self._is_json:
                self._json.decode(data.decode())
            else:
                _unpack(data, pairs_once)
        except GivenTwice:
            return True
        return False

    def _parsed(self, data: bytes) -> Any:
        """The value with numbers of JSON as ``_Number``, times as ``msgpack.Timestamp``, and objects as ``_Twice``."""
        if self._is_json:
            return self._digits.decode(data.decode())
        return _unpack(data, _marked)


def _unpack(data: bytes, pairs: Callable[[Any], Any]) -> Any:
    """The value in msgpack, whose package only those have who read that format."""
    import msgpack

    return msgpack.unpackb(data, object_pairs_hook=pairs, strict_map_key=False)


class _Twice(dict[Any, Any]):
    """An object that has ``keys_twice`` twice."""

    keys_twice: frozenset[Any] = frozenset()


class _Number(str):
    """A number of JSON as its text."""

    __slots__ = ()


def _marked(pairs: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    twice = _Twice(members)
    twice.keys_twice = frozenset(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
    return twice


def _places(
    column: pa.Array, kind: pa.DataType, name: str | None, owners: Numbers
) -> Iterator[tuple[str | None, pa.DataType, pa.Array, Numbers]]:
    """The parts of a column: each with its name if it is a field, its type, and the row of each of its values."""
    yield name, kind, column, owners
    if pa.types.is_struct(kind):
        for index, each in enumerate(kind):
            yield from _places(column.field(index), each.type, each.name, owners)
    elif pa.types.is_map(kind) or pa.types.is_list(kind):
        is_map = pa.types.is_map(kind)
        inner, values = (kind.item_type, column.items) if is_map else (kind.value_type, column.values)
        yield from _places(values, inner, None, np.repeat(owners, np.diff(column.offsets.to_numpy())))


def joined(name: str, path: str) -> str:
    """The path of a place in the part ``name``.

    >>> joined("a", "b"), joined("a", "[2]"), joined("a", "")
    ('a.b', 'a[2]', 'a')
    """
    return f"{name}{'.' if path and not path.startswith('[') else ''}{path}"


def _of_fields(value: dict[Any, Any], kind: pa.DataType) -> Iterator[tuple[str, Problem]]:
    for field in kind:
        problem = _problem(value.get(field.name), field.type)
        if problem is not None:
            yield field.name, (joined(field.name, problem[0]), problem[1])


def _problem(value: Any, kind: pa.DataType) -> Problem | None:
    """The first thing that the type does not keep. A value of another type has its own misfit."""
    if (problem := _twice(value, kind)) is not None:
        return problem
    if pa.types.is_struct(kind) and isinstance(value, dict):
        return next((problem for _, problem in _of_fields(value, kind)), None)
    if pa.types.is_map(kind) and isinstance(value, dict):
        parts = ((str(key), _problem(each, kind.item_type)) for key, each in value.items())
    elif pa.types.is_list(kind) and isinstance(value, list):
        parts = ((f"[{at}]", _problem(each, kind.value_type)) for at, each in enumerate(value))
    else:
        reason = _lost(value, kind)
        return None if reason is None else ("", reason)
    return next(((joined(name, found[0]), found[1]) for name, found in parts if found is not None), None)


def _twice(value: Any, kind: pa.DataType) -> Problem | None:
    if not isinstance(value, _Twice) or not (pa.types.is_struct(kind) or pa.types.is_map(kind)):
        return None
    described = {field.name for field in kind} if pa.types.is_struct(kind) else value.keys_twice
    lost = sorted(map(str, value.keys_twice & described))
    return ("", f"the key {lost[0][:64]!r} is there twice") if lost else None


def _lost(value: Any, kind: pa.DataType) -> str | None:
    if pa.types.is_floating(kind):
        is_number = isinstance(value, (int, float, _Number)) and not isinstance(value, bool)
        return _rounded(value, kind) if is_number else None
    if pa.types.is_timestamp(kind):
        nanoseconds = getattr(value, "nanoseconds", None)  # of a ``msgpack.Timestamp``
        if nanoseconds is not None:
            return f"{nanoseconds} ns do not fit a time in microseconds" if nanoseconds % 1000 else None
        if isinstance(value, str) and not isinstance(value, _Number):
            fraction = _FRACTION.search(value)
            if fraction is not None and fraction[1][6:].strip("0"):
                return f"{value[:64]} has more digits than a time in microseconds"
            if kind.tz is not None and _leaves_calendar(value):
                return f"{value[:64]} is in UTC not in the years 1 to 9999"
    return None


def _leaves_calendar(text: str) -> bool:
    try:
        datetime.fromisoformat(text).astimezone(UTC)
    except OverflowError:
        return True
    except ValueError:
        pass  # no time: a misfit of its own
    return False


def _rounded(value: Any, kind: pa.DataType) -> str | None:
    """Why a float of this type is another whole number than ``value``; None if it is the same.

    The same: equal, or ``value`` is the shortest text of the float, or of the same number as a double, as programs
    write large floats. A number with a fraction has no equal float: the nearest one is what the type means.
    """
    exact = Decimal(value)
    if not exact.is_finite() or exact != exact.to_integral_value():
        return None
    nearest = float(exact)
    if kind == pa.float32():
        try:
            (nearest,) = struct.unpack("f", struct.pack("f", nearest))
        except OverflowError:
            return None  # out of range: a misfit of its own
        shortest = next(
            (
                text
                for text in (f"{nearest:.{digits}g}" for digits in range(6, 10))
                if struct.pack("f", float(text)) == struct.pack("f", nearest)
            ),
            "",
        )
    else:
        shortest = repr(nearest)
    if not math.isfinite(nearest) or exact == nearest or exact in (Decimal(shortest), Decimal(repr(nearest))):
        return None
    name = "float" if kind == pa.float32() else "double"
    return f"{str(value)[:64]} does not fit {name}: it would become {f'{Decimal(nearest):f}'[:64]}"
