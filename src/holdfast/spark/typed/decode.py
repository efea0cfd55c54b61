"""Keys and values as columns: bytes of a format become an Arrow array of a type, and each misfit is named.

A value fits or it does not; nothing is guessed or rounded (``exact``). A number is not a string, ``1.0`` is not an
``int``, and a time without a zone is not a ``timestamp``. A field that the type does not name is ignored; one that a
value does not have is null. JSON: ``binary`` is base64, ``date`` and the timestamps are ISO texts, ``decimal`` is a
number or a text. msgpack: the same, but ``binary`` is binary, and a timestamp may be the format's own. Cost: about
0.3 us a field, in native code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from itertools import accumulate
from operator import attrgetter
from types import GenericAlias
from typing import Annotated, Any, Final, TypeAlias

import msgspec
import pyarrow as pa
from msgspec import Meta

from holdfast.spark.runtime.refusals import bad_configuration
from holdfast.spark.typed.exact import Exact, Problem, joined


class Format(StrEnum):
    """How an application wrote its keys or values."""

    UTF8 = "utf8"
    JSON = "json"
    MSGPACK = "msgpack"
    BINARY = "binary"


class Unfit(StrEnum):
    """The policy for a key or a value that does not fit: an error, null columns, or a table of its own."""

    FAIL = "fail"
    NULL = "null"
    QUARANTINE = "quarantine"


@dataclass(frozen=True, slots=True)
class Encoding:
    """The format of a column of bytes, and the type of what it holds. Raises: InvalidRequest when they do not agree."""

    format: Format = Format.BINARY
    type: pa.DataType = field(default_factory=pa.binary)

    @classmethod
    def of(cls, chosen: Format, schema: pa.DataType | None, column: str) -> Encoding:
        """The encoding of ``column``. Raises: InvalidRequest for a schema that the format lacks, or cannot have."""
        match chosen, schema:
            case Format.BINARY, None:
                return cls()
            case Format.UTF8, None:
                return cls(chosen, pa.string())
            case ((Format.BINARY | Format.UTF8), _):
                raise bad_configuration(
                    f"the {column} format {chosen} has no schema",
                    hint="leave the schema out, or name another format",
                )
            case _, None:
                raise bad_configuration(
                    f"the {column} format {chosen} needs a schema", hint="for example: origin string, delay int"
                )
            case _:
                return cls(chosen, schema)

    @property
    def column_type(self) -> pa.DataType:
        """The type of the decoded column: every field may be null."""
        return nullable(self.type)


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why the value in row ``row`` does not fit. ``path`` names the place in it, for example ``tags[2]``; "": all."""

    row: int
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded column, and its misfits in the order of the rows.

    Shape: null where the bytes are null. In a struct the fields of the first level that do not fit are null, and the
    others keep their values; any other misfit is null as a whole.
    """

    column: pa.Array
    misfits: Sequence[Misfit]


def decode(values: pa.Array | pa.ChunkedArray, encoding: Encoding) -> Decoded:
    """The column of these bytes. Never raises for what a value holds: misfits are part of the result."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    match encoding.format:
        case Format.BINARY:
            return Decoded(values, ())
        case Format.UTF8:
            return _texts(values)
        case Format.JSON | Format.MSGPACK:
            return _reader(encoding).decode(values)


def nullable(kind: pa.DataType) -> pa.DataType:
    """The type with every field nullable, at each depth."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, nullable(each.type)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, nullable(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", nullable(kind.value_type)))
    return kind


def _texts(values: pa.Array) -> Decoded:
    try:
        return Decoded(values.cast(pa.string()), ())
    except pa.ArrowInvalid:
        pass
    texts: list[str | None] = []
    misfits: list[Misfit] = []
    for row, value in enumerate(values.to_pylist()):
        try:
            texts.append(None if value is None else value.decode())
        except UnicodeDecodeError as error:
            texts.append(None)
            misfits.append(Misfit(row, "", f"not UTF-8: {error.reason} at byte {error.start}"))
    return Decoded(pa.array(texts, pa.string()), misfits)


Check: TypeAlias = Callable[[Any], Problem | None]
"""What a decoded value must pass in addition to its Python type; None for a value that does."""


class _Reader:
    """The decoders of one encoding: of a whole value, and, for a struct, of its fields one by one."""

    def __init__(self, encoding: Encoding) -> None:
        self._type = encoding.type
        self._decoder = _decoder(encoding.format, _python_type(encoding.type))
        self._check = _check(encoding.type)
        self._parts: _Parts | None = _Parts(encoding) if pa.types.is_struct(encoding.type) else None
        self._exact = Exact(encoding.type, is_json=encoding.format is Format.JSON)

    def decode(self, values: pa.Array) -> Decoded:
        """As ``decode``."""
        rows: list[bytes | None] = values.to_pylist()
        texts = [each for each in rows if each is not None]
        whole, problems = self._all_at_once(texts), dict[int, Problem]()
        if whole is not None:
            decoded = iter(whole)
            values_read = [None if each is None else next(decoded) for each in rows] if values.null_count else whole
        else:
            values_read = [
                None if data is None else self._one(data, row, {}, problems) for row, data in enumerate(rows)
            ]
        column = _array(values_read, self._type)
        suspects = self._exact.suspects(rows, column, b"\n".join(texts))
        is_changed = False
        for row in sorted(suspects.rounded | suspects.twice):
            data = rows[row]
            if data is not None and (lost := self._exact.problems(data, row, suspects)):
                values_read[row], is_changed = self._one(data, row, lost, problems), True
        return Decoded(
            _array(values_read, self._type) if is_changed else column,
            [Misfit(row, *problems[row]) for row in sorted(problems)],
        )

    def _one(self, data: bytes, row: int, lost: Mapping[str, Problem], problems: dict[int, Problem]) -> Any:
        """The value of one row, and its first problem in ``problems``. ``lost``: as ``Exact``."""
        value, problem = _read(self._decoder, self._check, data)
        if problem is not None or lost:
            first = problem or next(iter(lost.values()))
            value, problems[row] = (None, first) if self._parts is None else self._parts.read(data, first, lost)
        return value

    def _all_at_once(self, rows: Sequence[bytes]) -> list[Any] | None:
        """The values of these rows; None where one does not fit, or is not on one line."""
        try:
            if isinstance(self._decoder, msgspec.json.Decoder):
                joined = b"\n".join(rows)
                is_lines = joined.count(b"\n") == max(0, len(rows) - 1)
                values = self._decoder.decode_lines(joined) if is_lines else []
            else:
                values = list(map(self._decoder.decode, rows))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None  # which row it is, and why, is seen row by row
        fits = self._check is None or all(self._check(each) is None for each in values)
        return values if fits and len(values) == len(rows) else None


@lru_cache(maxsize=256)
def _reader(encoding: Encoding) -> _Reader:
    return _Reader(encoding)


def _read(decoder: Decoder, check: Check | None, data: bytes) -> tuple[Any, Problem | None]:
    try:
        value = decoder.decode(data)
    except UnicodeDecodeError as error:
        return None, ("", f"not UTF-8: {error.reason}")
    except RecursionError:
        return None, ("", "nested too deeply")
    except msgspec.MsgspecError as error:
        reason, _, place = str(error).partition(" - at `$")
        return None, (place.rstrip("`").removeprefix("."), reason.replace(" | null", ""))
    problem = None if check is None else check(value)
    return (value, None) if problem is None else (None, problem)


class _Parts:
    """A struct field by field, for a value that does not fit as a whole."""

    def __init__(self, encoding: Encoding) -> None:
        self._split = _decoder(encoding.format, dict[str, msgspec.Raw])
        self._value_type = _python_type(encoding.type)
        self._fields = [
            (each, _decoder(encoding.format, _field_type(each)), _check(each.type)) for each in encoding.type
        ]

    def read(self, data: bytes, problem: Problem, lost: Mapping[str, Problem]) -> tuple[Any, Problem]:
        """The value with null for each field that does not fit, and the first problem. ``lost``: as ``Exact``."""
        parts, _ = _read(self._split, None, data)
        if parts is None or "" in lost:
            return None, problem
        members: dict[str, Any] = {}
        problems: list[Problem] = []
        for index, (named, decoder, check) in enumerate(self._fields):
            raw: msgspec.Raw | None = parts.get(named.name)
            if raw is None and not named.nullable:
                problems.append((named.name, "required field is missing or null"))
            value, wrong = (None, None) if raw is None else _read(decoder, check, bytes(raw))
            if wrong is not None:
                problems.append((joined(named.name, wrong[0]), wrong[1]))
            elif named.name in lost:
                value = None
                problems.append(lost[named.name])
            members[f"f{index}"] = value
        return self._value_type(**members), problems[0] if problems else problem


Decoder: TypeAlias = "msgspec.json.Decoder[Any] | msgspec.msgpack.Decoder[Any]"


def _decoder(chosen: Format, kind: Any) -> Decoder:
    return msgspec.json.Decoder(kind) if chosen is Format.JSON else msgspec.msgpack.Decoder(kind)


_SCALARS: Final[dict[pa.DataType, Any]] = {
    pa.bool_(): bool,
    pa.float32(): float,
    pa.float64(): float,
    pa.string(): str,
    pa.binary(): bytes,
    pa.date32(): date,
    pa.timestamp("us", tz="UTC"): Annotated[datetime, Meta(tz=True)],
    pa.timestamp("us"): Annotated[datetime, Meta(tz=False)],
}


def _python_type(kind: pa.DataType) -> Any:
    """The type by which msgspec reads and checks a value."""
    if pa.types.is_struct(kind):
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
        for index, each in enumerate(kind):
            named = (f"f{index}", _field_type(each))
            fields.append((*named, None) if each.nullable else named)
        renames = {f"f{index}": each.name for index, each in enumerate(kind)}
        return msgspec.defstruct("Value", fields, rename=renames, kw_only=True)
    if pa.types.is_map(kind):
        return GenericAlias(dict, (str, _python_type(kind.item_type) | None))
    if pa.types.is_list(kind):
        return GenericAlias(list, (_python_type(kind.value_type) | None,))
    if pa.types.is_decimal(kind):
        return Decimal
    if pa.types.is_integer(kind):
        bound = 2 ** (kind.bit_width - 1)
        return Annotated[int, Meta(ge=-bound, le=bound - 1)]
    return _SCALARS[kind]


def _field_type(field: pa.Field) -> Any:
    kind = _python_type(field.type)
    return kind | None if field.nullable else kind


def _check(kind: pa.DataType) -> Check | None:
    """What the Python types do not say: digits of decimals and the range of a float. None: nothing."""
    if pa.types.is_decimal(kind):
        return lambda value: _decimal_problem(value, kind.precision, kind.scale)
    if kind == pa.float32():
        return _float_problem
    if pa.types.is_struct(kind):
        checks = [(attrgetter(f"f{at}"), each.name, _check(each.type)) for at, each in enumerate(kind)]
        wanted = [(of, name, check) for of, name, check in checks if check is not None]
        return _of_parts(lambda value: ((name, check(of(value))) for of, name, check in wanted)) if wanted else None
    is_map = pa.types.is_map(kind)
    if not is_map and not pa.types.is_list(kind):
        return None
    inner = _check(kind.item_type if is_map else kind.value_type)
    if inner is None:
        return None
    if is_map:
        return _of_parts(lambda value: ((key, inner(each)) for key, each in value.items()))
    return _of_parts(lambda value: ((f"[{at}]", inner(each)) for at, each in enumerate(value)))


def _of_parts(problems: Callable[[Any], Iterable[tuple[str, Problem | None]]]) -> Check:
    """The first problem among the parts of a value."""

    def check(value: Any) -> Problem | None:
        pairs = () if value is None else problems(value)
        return next(((joined(name, path), reason) for name, each in pairs if each for path, reason in [each]), None)

    return check


def _decimal_problem(value: Decimal | None, precision: int, scale: int) -> Problem | None:
    if value is None:
        return None
    if not value.is_finite():
        return "", f"{value} is not a decimal"
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "a finite decimal has a number as exponent"
    used = len(digits)
    while used > 1 and digits[used - 1] == 0:
        used, exponent = used - 1, exponent + 1
    is_zero = used == 1 and digits[0] == 0
    if not is_zero and (-exponent > scale or used + exponent > precision - scale):
        return "", f"{str(value)[:64]} does not fit decimal({precision},{scale})"
    return None


_FLOAT_MAX: Final = 3.4028235677973366e38
"""The smallest number that rounds to infinity in 32 bits."""


def _float_problem(value: float | None) -> Problem | None:
    if value is None or math.isinf(value) or not abs(value) >= _FLOAT_MAX:
        return None
    return "", f"{value} does not fit float"


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """The values of one column. Values fit ``kind``: the decoder and the check have seen to it."""
    if pa.types.is_struct(kind):
        return _struct_array(values, kind)
    if pa.types.is_map(kind):
        pairs = [pair for each in values if each for pair in each.items()]
        keys, items = [key for key, _ in pairs], [item for _, item in pairs]
        return pa.MapArray.from_arrays(_offsets(values), pa.array(keys, pa.string()), _array(items, kind.item_type))
    if pa.types.is_list(kind):
        elements = _array([item for each in values if each for item in each], kind.value_type)
        return pa.ListArray.from_arrays(_offsets(values), elements, type=nullable(kind))
    if pa.types.is_decimal(kind):
        # Arrow infers one precision for all of them, unless each has the digits of the column.
        return pa.array([None if each is None else _with_scale(each, kind.scale) for each in values], kind)
    return pa.array(values, kind)


def _struct_array(values: list[Any], kind: pa.DataType) -> pa.Array:
    absent = [each is None for each in values]
    fields = [pa.field(each.name, nullable(each.type)) for each in kind]
    if all(absent) or not fields:
        return pa.array([None if each else {} for each in absent], pa.struct(fields))
    if any(absent):
        like = next(each for each in values if each is not None)
        empty = type(like)(**{f"f{index}": None for index in range(len(fields))})
        values = [empty if each is None else each for each in values]
    columns = [_array(list(map(attrgetter(f"f{index}"), values)), each.type) for index, each in enumerate(kind)]
    return pa.StructArray.from_arrays(columns, fields=fields, mask=pa.array(absent, pa.bool_()))


def _offsets(values: Sequence[Any]) -> pa.Array:
    """The offsets of lists; an offset is null where its list is."""
    ends: Iterator[int] = accumulate((len(each) if each else 0 for each in values), initial=0)
    last_is_set = [*(each is None for each in values), False]
    return pa.array([None if absent else end for end, absent in zip(ends, last_is_set, strict=True)], pa.int32())


def _with_scale(value: Decimal, scale: int) -> Decimal:
    """The same number with ``scale`` digits after the point. Exact: the check has seen that it fits."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "a finite decimal has a number as exponent"
    shift = exponent + scale
    number = int("".join(map(str, digits)))
    number = number * 10**shift if shift >= 0 else number // 10**-shift
    return Decimal((sign, tuple(map(int, str(number))), -scale))
