"""Keys and values as typed columns: the schema's text, what fits a type, and the way there and back."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import InvalidRequest
from holdfast.spark.sink.task import _plain, encode
from holdfast.spark.typed.ddl import parse_schema, type_text
from holdfast.spark.typed.decode import Decoded, Encoding, Format, Misfit, _Reader, decode
from holdfast.spark.typed.exact import Exact

NAMES = st.text(st.characters(codec="utf-8", exclude_characters='"\\', exclude_categories=["C"]), min_size=1)
SCALARS = [
    "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary", "date", "timestamp",
    "timestamp_ntz", "decimal(9,2)", "decimal(38,0)", "decimal(38,38)", "decimal(1,0)",
]  # fmt: skip


def structs(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.lists(st.tuples(NAMES, inner), min_size=1, max_size=4, unique_by=lambda pair: pair[0].casefold())
    return fields.map(lambda pairs: pa.struct([pa.field(name, kind) for name, kind in pairs]))


def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    lists = inner.map(lambda kind: pa.list_(pa.field("element", kind)))
    return st.one_of(lists, inner.map(lambda kind: pa.map_(pa.string(), kind)), structs(inner))


TYPES = st.recursive(st.sampled_from(SCALARS).map(parse_schema), nested, max_leaves=6)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of this type as Arrow takes them; a field or an element may be null, the value itself is not."""
    if pa.types.is_struct(kind):
        return st.fixed_dictionaries({each.name: st.none() | values_of(each.type) for each in kind})
    if pa.types.is_map(kind):
        entries = st.dictionaries(TEXTS, st.none() | values_of(kind.item_type), max_size=3)
        return entries.map(lambda entry: list(entry.items()))
    if pa.types.is_list(kind):
        return st.lists(st.none() | values_of(kind.value_type), max_size=3)
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        return st.integers(-most, most).map(lambda n: Decimal(n).scaleb(-kind.scale, CONTEXT))
    if pa.types.is_integer(kind):
        return st.integers(-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)
    if pa.types.is_floating(kind):
        return st.floats(width=kind.bit_width, allow_nan=False, allow_infinity=False)
    if pa.types.is_timestamp(kind):
        return st.datetimes(timezones=st.just(dt.UTC)) if kind.tz else st.datetimes()
    chosen: dict[pa.DataType, st.SearchStrategy[Any]] = {
        pa.bool_(): st.booleans(), pa.string(): TEXTS, pa.binary(): st.binary(max_size=8), pa.date32(): st.dates()
    }  # fmt: skip
    return chosen[kind]


CONTEXT = Context(prec=76)


def encoded(column: pa.Array, encoder: Callable[[Any, pa.DataType], bytes] = encode) -> pa.Array:
    return pa.array([None if each is None else encoder(each, column.type) for each in column.to_pylist()], pa.binary())


@given(st.data(), st.sampled_from([Format.JSON, Format.MSGPACK]))
@settings(max_examples=100, deadline=None)
def test_what_is_encoded_decodes_to_the_same_column(data: st.DataObject, chosen: Format) -> None:
    kind = data.draw(TYPES)
    rows = data.draw(st.lists(st.none() | values_of(kind), max_size=5))
    column = pa.array(rows, kind)
    encoder = encode if chosen is Format.JSON else lambda value, of: msgspec.msgpack.encode(_plain(value, of))
    found = decode(encoded(column, encoder), Encoding(chosen, kind))
    assert (found.misfits, found.column.type) == ([], kind)
    found.column.validate(full=True)
    assert found.column.to_pylist() == column.to_pylist()


POOL = [
    b'{"a": 1, "t": "2026-01-31T12:00:00.123456Z", "b": [{"c": 1.5}, null]}',
    b'{"a": 1, "a": 2}', b'{"a": null, "a": 2}',
    b'{"a": 9007199254740993}', b'{"a": 9007199254740992}', b'{"a": 1e16}', b'{"a": 0.1}',
    b'{"b": [{"c": 16777217}]}',
    b'{"b": [{"c": 1, "c": 2}]}', b'{"b": [{"c": 1}, {"c": 2}]}', b'{"t": "2026-01-31T12:00:00.1234567Z"}', b"",
    b"null",
    b'{"t": "0001-01-01T00:00:00+01:00"}', b'{"x": {"a": 1, "c": 2}, "a": 3}', b'{"\\u0061": 1, "a": 2}', b'{"a":\n1}',
    b'{"a": 1}\n{"a": 2}', b'{"a": "text"}', b'{"b": null, "a": null}', b"{}", None,
]  # fmt: skip


@given(st.lists(st.sampled_from(POOL), max_size=6))
@settings(max_examples=300, deadline=None)
def test_values_that_are_decoded_together_are_what_each_is_alone(rows: list[bytes | None]) -> None:
    encoding = Encoding(Format.JSON, parse_schema("a double, t timestamp, b array<struct<c: float>>"))
    together = decode(pa.array(rows, pa.binary()), encoding)
    with patch.object(_Reader, "_all_at_once", lambda *_: None):  # each value by itself, and every search made
        alone = [decode(pa.array([row], pa.binary()), encoding) for row in rows]
    assert together.column.to_pylist() == [each.column.to_pylist()[0] for each in alone]
    assert list(together.misfits) == [
        Misfit(row, misfit.path, misfit.reason) for row, each in enumerate(alone) for misfit in each.misfits
    ]


def test_only_what_may_be_lost_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a search was needed shows in what it costs: the columns alone say that nothing was lost."""
    monkeypatch.setattr(Exact, "problems", lambda *_: pytest.fail("no value can have lost anything"))
    encoding = Encoding(Format.JSON, parse_schema("a double, t timestamp, b array<struct<c: float>>"))
    assert not decode(pa.array([POOL[0], POOL[6], b"{}", None], pa.binary()), encoding).misfits


def test_a_float_that_was_written_as_a_double_is_the_same_float() -> None:
    column = pa.array([2.0**55, 2.0**127, 1e20], pa.float32())
    found = decode(encoded(column), Encoding(Format.JSON, pa.float32()))
    assert (found.misfits, found.column.to_pylist()) == ([], column.to_pylist())


@given(TYPES)
@settings(deadline=None)
def test_the_text_of_a_type_reads_as_that_type(kind: pa.DataType) -> None:
    assert parse_schema(type_text(kind)) == kind


@given(st.binary(max_size=40) | TEXTS.map(str.encode), TYPES, st.sampled_from(list(Format)))
@settings(max_examples=100, deadline=None)
def test_any_bytes_fit_or_are_named_and_leave_a_valid_column(data: bytes, kind: pa.DataType, chosen: Format) -> None:
    found = decode(pa.array([data, None], pa.binary()), Encoding(chosen, kind))
    found.column.validate(full=True)
    assert len(found.column) == 2 and found.column[1].as_py() is None
    assert [misfit.row for misfit in found.misfits] in ([], [0])


def of(text: str, *values: object, chosen: Format = Format.JSON) -> Decoded:
    held = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in values]
    return decode(pa.array(held, pa.binary()), Encoding.of(chosen, parse_schema(text), "value"))


def test_a_field_that_does_not_fit_is_null_and_named_and_the_others_stay() -> None:
    found = of("origin string, delay int, tags array<string>", {"origin": "JFK", "delay": "2", "tags": ["a", 7]})
    assert found.column.to_pylist() == [{"origin": "JFK", "delay": None, "tags": None}]
    assert list(found.misfits) == [Misfit(0, "delay", "Expected `int`, got `str`")]


@pytest.mark.parametrize(
    ("kind", "value", "path", "reason"),
    [
        ("int", 2**31, "", "Expected `int` <= 2147483647"),
        ("int", 1.5, "", "Expected `int`, got `float`"),
        ("string", 1, "", "Expected `str`, got `int`"),
        ("boolean", 1, "", "Expected `bool`, got `int`"),
        ("decimal(5,2)", 1.005, "", r"1.005 does not fit decimal(5,2)"),
        ("decimal(5,2)", 1000, "", r"1000 does not fit decimal(5,2)"),
        ("float", 1e39, "", "1e+39 does not fit float"),
        ("timestamp", "2026-01-31T12:00:00", "", "Expected `datetime` with a timezone component"),
        ("date", "31.1.2026", "", "Invalid RFC3339 encoded date"),
        ("a struct<b: array<decimal(3,1)>>", {"a": {"b": [1, 2.25]}}, "a.b[1]", "2.25 does not fit decimal(3,1)"),
        ("a int not null", {}, "a", "required field is missing or null"),
        ("a int", [1], "", "Expected `object`, got `array`"),
        ("a int", b"{", "", "Input data was truncated"),
        ("a int", b"\xff", "", "JSON is malformed: invalid character (byte 0)"),
    ],
)
def test_a_misfit_names_its_place_and_its_reason(kind: str, value: object, path: str, reason: str) -> None:
    assert list(of(kind, value).misfits) == [Misfit(0, path, reason)]


def test_text_that_is_not_utf8_is_named() -> None:
    found = decode(pa.array([b"gr\xc3\xbcn", b"a\xff", None]), Encoding.of(Format.UTF8, None, "key"))
    assert found.column.to_pylist() == ["grün", None, None]
    assert list(found.misfits) == [Misfit(1, "", "not UTF-8: invalid start byte at byte 1")]


def test_msgpack_has_binary_and_times_of_its_own() -> None:
    time = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
    found = of("b binary, t timestamp", msgspec.msgpack.encode({"b": b"\0", "t": time}), chosen=Format.MSGPACK)
    assert (found.column.to_pylist(), found.misfits) == ([{"b": b"\0", "t": time}], [])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it is empty"),
        ("name", "'name' is not a type; valid: boolean, tinyint"),
        ("name strin", "'strin' is not a type"),
        ("a int, A string", "field A is there twice"),
        ("a array<int", "'>' is missing"),
        ("a map<int,int>", "the keys of a map are strings"),
        ("a decimal(40,2)", r"decimal\(40,2\) has 1 to 38 digits"),
        ("a int,", "a name is missing"),
        ("a int; b int", "unexpected '; b int'"),
        ("a int comment", "a comment is a text in single quotes"),
        ('`a"` int', "a name is expected"),
        ("a " + "array<" * 40 + "int" + ">" * 40, "nested more than 32 deep"),
    ],
)
def test_a_schema_that_cannot_be_read_is_refused_with_the_place(text: str, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        parse_schema(text)


def test_a_format_and_its_schema_belong_together() -> None:
    with pytest.raises(InvalidRequest, match="the value format json needs a schema"):
        Encoding.of(Format.JSON, None, "value")
    with pytest.raises(InvalidRequest, match="the key format utf8 has no schema"):
        Encoding.of(Format.UTF8, pa.string(), "key")
    with pytest.raises(InvalidRequest, match="JSON does not have"):
        encode(float("nan"), pa.float64())
