"""Which values would lose something in their type: a whole number that a float rounds, a time with nanoseconds, a key
that an object has twice.

The decoders of ``decode`` round such values and take the last of two equal keys. Most columns show by themselves that
no value has one. Else a search in native code finds the values that may, and only these are parsed again, digit by
digit. Cost: the bytes are looked through once for each name; a search takes about 0.3 us for each field, and some
microseconds for each value that it finds.
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

import pyarrow as pa
import pyarrow.compute as pc

Problem: TypeAlias = tuple[str, str]
"""A path in a value, and the reason why it does not fit."""

_FRACTION: Final = re.compile(r"\.([0-9]{7,})")
_TIMES: Final = r'[^"]*\.[0-9]{7}|0001-01-01|9999-12-31'
_EXPONENT: Final = r"[0-9.]*[0-9][eE]\+?[0-9]"
_JSON_SUSPECTS: Final[dict[pa.DataType, str]] = {
    pa.float32(): rf"-?(?:[0-9]{{8}}|{_EXPONENT})",
    pa.float64(): rf"-?(?:[0-9]{{16}}|{_EXPONENT})",
    **{pa.timestamp("us", tz=tz): f'"(?:{_TIMES})' for tz in ("UTC", None)},
}
"""By type: how a value begins that the type may round."""
_MSGPACK_SUSPECTS: Final[dict[pa.DataType, str]] = {
    pa.float32(): r"[\xcb\xce\xcf\xd2\xd3]",
    pa.float64(): r"[\xcf\xd3]",
    **{pa.timestamp("us", tz=tz): rf"\xd7\xff|\xc7\x0c\xff|{_TIMES}" for tz in ("UTC", None)},
}
"""By type: what a value contains that the type may round."""
_ESCAPED_KEY: Final = r'\\(?:[^"\\]|\\.)*"\s*:'


_NOTHING: Final[Mapping[str, Problem]] = {}

SEARCHED_NAMES_MAX: Final = 8
"""With more names than this, one more parse of a value costs less than a search for each name."""


@dataclass(frozen=True, slots=True)
class Suspects:
    """The rows of values that a type may round, and of those in which a key may be twice."""

    rounded: frozenset[int]
    twice: frozenset[int]


_NO_SUSPECTS: Final = Suspects(frozenset(), frozenset())
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
        parts = list(_parts_of(kind, None))
        patterns = [found for name, each in parts if (found := _suspects(name, each, is_json=is_json)) is not None]
        self._rounding = "|".join(dict.fromkeys(patterns))
        names = {name for name, _ in parts if name is not None}
        self._names = [json.dumps(name, ensure_ascii=False) if is_json else name for name in sorted(names)]
        self._looks_at_all = len(names) > SEARCHED_NAMES_MAX or any(pa.types.is_map(each) for _, each in parts)
        self._json = json.JSONDecoder(object_pairs_hook=_once, parse_int=float, parse_float=float)
        self._digits = json.JSONDecoder(object_pairs_hook=_marked, parse_int=_Number, parse_float=_Number)

    def suspects_of(self, values: pa.Array, column: pa.Array, joined: bytes) -> Suspects:
        """As ``suspects``, for values that were decoded as ``column``. ``joined`` are their bytes.

        Most columns show that nothing was lost: no number is as large as those that round, and each name is in the
        bytes as often as the column has a value for it.
        """
        places = list(_places(column, self._kind, None))
        may_round = any(self._may_round(kind, array, joined) for _, kind, array in places)
        given: Counter[str] = Counter()
        for name, _, array in places:
            if name is not None:
                given[json.dumps(name, ensure_ascii=False) if self._is_json else name] += len(array) - array.null_count
        may_be_twice = any(pa.types.is_map(kind) for _, kind, _ in places) or (
            bool(given)
            and (
                (self._is_json and b"\\" in joined)
                or any(joined.count(name.encode()) > times for name, times in given.items())
            )
        )
        if not may_round and not may_be_twice:
            return _NO_SUSPECTS
        found = self.suspects(values)
        return Suspects(found.rounded if may_round else frozenset(), found.twice if may_be_twice else frozenset())

    def _may_round(self, kind: pa.DataType, array: pa.Array, joined: bytes) -> bool:
        """Whether a number or a time in this part of a column may have been rounded."""
        if kind not in _ROUNDED_FROM and not pa.types.is_timestamp(kind):
            return False
        bounds = pc.call_function("min_max", [array.cast(pa.int64()) if pa.types.is_timestamp(kind) else array]).as_py()
        low, high = bounds["min"], bounds["max"]
        if low is None:
            return False
        if kind in _ROUNDED_FROM:
            return not (-_ROUNDED_FROM[kind] < low and high < _ROUNDED_FROM[kind])
        has_more_digits = _MANY_DIGITS if self._is_json else _MANY_DIGITS_OR_OWN
        return not (low > -_YEARS_US and high < _YEARS_US) or has_more_digits.search(joined) is not None

    def suspects(self, values: pa.Array) -> Suspects:
        """The rows of values that may lose something. Shape: ``values`` are binary."""
        rounded = _rows(_matches(values, self._rounding)) if self._rounding else frozenset[int]()
        if self._looks_at_all:
            return Suspects(rounded, frozenset(range(len(values))))
        twice: Any = (
            _matches(values, _ESCAPED_KEY) if self._names and self._is_json else pa.nulls(len(values), pa.bool_())
        )
        for name in self._names:
            count = pc.call_function("count_substring", [values], pc.MatchSubstringOptions(name))
            twice = pc.call_function("or_kleene", [twice, pc.call_function("greater", [count, pa.scalar(1)])])
        return Suspects(rounded, _rows(twice))

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
                _unpack(data, _once)
        except _TwiceError:
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


def _matches(values: pa.Array, pattern: str) -> Any:
    return pc.call_function("match_substring_regex", [values], pc.MatchSubstringOptions(pattern))


def _rows(mask: Any) -> frozenset[int]:
    return frozenset(pc.call_function("indices_nonzero", [mask.fill_null(False)]).to_pylist())


class _TwiceError(Exception):
    """An object has a key twice."""


class _Twice(dict[Any, Any]):
    """An object that has ``keys_twice`` twice."""

    keys_twice: frozenset[Any] = frozenset()


class _Number(str):
    """A number of JSON as its text."""

    __slots__ = ()


def _once(pairs: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _TwiceError
    return found


def _marked(pairs: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    twice = _Twice(found)
    twice.keys_twice = frozenset(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
    return twice


def _parts_of(kind: pa.DataType, name: str | None) -> Iterator[tuple[str | None, pa.DataType]]:
    """The type and the types in it, each once for each place, with its name if it is a field."""
    yield name, kind
    if pa.types.is_struct(kind):
        for each in kind:
            yield from _parts_of(each.type, each.name)
    elif pa.types.is_map(kind):
        yield from _parts_of(kind.item_type, None)
    elif pa.types.is_list(kind):
        yield from _parts_of(kind.value_type, None)


def _places(
    column: pa.Array, kind: pa.DataType, name: str | None
) -> Iterator[tuple[str | None, pa.DataType, pa.Array]]:
    """The parts of a column, as ``_parts_of`` those of its type."""
    yield name, kind, column
    if pa.types.is_struct(kind):
        for index, each in enumerate(kind):
            yield from _places(column.field(index), each.type, each.name)
    elif pa.types.is_map(kind):
        yield from _places(column.items, kind.item_type, None)
    elif pa.types.is_list(kind):
        yield from _places(column.flatten(), kind.value_type, None)


def _suspects(name: str | None, kind: pa.DataType, *, is_json: bool) -> str | None:
    """A pattern of every value in which this part may be rounded; None for a type that rounds nothing."""
    if not is_json:
        return _MSGPACK_SUSPECTS.get(kind)
    if kind not in _JSON_SUSPECTS:
        return None
    before = r"(?:^|[\[:,\s])" if name is None else rf"{re.escape(json.dumps(name, ensure_ascii=False))}\s*:\s*"
    return f"{before}(?:{_JSON_SUSPECTS[kind]})"


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
    kept = float(exact)
    if kind == pa.float32():
        try:
            (kept,) = struct.unpack("f", struct.pack("f", kept))
        except OverflowError:
            return None  # out of range: a misfit of its own
        shortest = next((text for text in (f"{kept:.{digits}g}" for digits in range(6, 10)) if _same(text, kept)), "")
    else:
        shortest = repr(kept)
    if not math.isfinite(kept) or exact == kept or exact in (Decimal(shortest), Decimal(repr(kept))):
        return None
    name = "float" if kind == pa.float32() else "double"
    return f"{str(value)[:64]} does not fit {name}: it would become {f'{Decimal(kept):f}'[:64]}"


def _same(text: str, kept: float) -> bool:
    return struct.pack("f", float(text)) == struct.pack("f", kept)
