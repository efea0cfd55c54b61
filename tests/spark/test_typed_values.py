"""The reference's table of typed values, row by row, and the same rules for msgpack and for inferred types."""

from __future__ import annotations

import re
import struct
from decimal import Decimal
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from holdfast.errors import InvalidRequest
from holdfast.spark.typed.ddl import parse_schema
from holdfast.spark.typed.decode import Decoded, Encoding, Format, Unfit, decode
from holdfast.spark.typed.infer import infer_type
from holdfast.spark.typed.rows import Typing, typed_batch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "typed-values.md"
ROW = re.compile(r"^\| `([^`]+)` \| `([^`]+)` \| (error: )?`+(.+?)`+ \|$", re.MULTILINE)
CASES = ROW.findall(PAGE.read_text(encoding="utf-8"))


def decoded(text: str, *values: bytes, chosen: Format = Format.JSON) -> Decoded:
    return decode(pa.array(values, pa.binary()), Encoding.of(chosen, parse_schema(text), "value"))


def test_every_row_of_the_table_is_a_case() -> None:
    assert len(CASES) == PAGE.read_text(encoding="utf-8").count("\n| `") > 60


@pytest.mark.parametrize(("value", "kind", "is_error", "becomes"), CASES)
def test_a_value_becomes_what_the_reference_says(value: str, kind: str, is_error: str, becomes: str) -> None:
    found = decoded(kind, value.encode())
    reasons = [f"{each.path}: {each.reason}".removeprefix(": ") for each in found.misfits]
    if is_error:
        assert len(reasons) == 1 and becomes.strip() in reasons[0], reasons
        assert found.column[0].as_py() in (None, {"a": None})
    else:
        assert (str(found.column[0].as_py()), reasons) == (becomes, [])


def in_nanoseconds(seconds: int, nanoseconds: int, *, wide: bool) -> bytes:
    if wide:
        return b"\xc7\x0c\xff" + struct.pack(">Iq", nanoseconds, seconds)
    return b"\xd7\xff" + struct.pack(">Q", nanoseconds << 34 | seconds)


@pytest.mark.parametrize(
    ("kind", "data", "reason"),
    [
        ("timestamp", in_nanoseconds(5, 123_456_789, wide=False), "123456789 ns do not fit"),
        ("timestamp", in_nanoseconds(-5, 1, wide=True), "1 ns do not fit"),
        ("timestamp", in_nanoseconds(5, 123_456_000, wide=False), ""),
        ("timestamp", msgspec.msgpack.encode("2026-01-31T12:00:00.123456789Z"), "has more digits"),
        ("float", msgspec.msgpack.encode(16_777_217), "does not fit float"),
        ("float", msgspec.msgpack.encode(16_777_217.0), "does not fit float"),
        ("double", msgspec.msgpack.encode(2**53 + 1), "does not fit double"),
        ("double", msgspec.msgpack.encode(2**64 - 1), "does not fit double"),
        ("double", msgspec.msgpack.encode(float("nan")), ""),
        ("float", msgspec.msgpack.encode(float("inf")), ""),
        ("a int", b"\x82\xa1a\x01\xa1a\x02", "the key 'a' is there twice"),
        ("map<string,int>", b"\x82\xa1a\x01\xa1a\x02", "the key 'a' is there twice"),
    ],
)
def test_msgpack_has_the_same_rules(kind: str, data: bytes, reason: str) -> None:
    found = decoded(kind, data, chosen=Format.MSGPACK)
    assert [bool(reason) and reason in each.reason for each in found.misfits] == ([True] if reason else [])


def test_each_field_that_is_not_kept_is_null_and_the_others_stay() -> None:
    values = [b'{"a": 16777217, "b": 7, "c": "2026-01-31T12:00:00.0000001Z"}', b'{"a": 1, "b": 8}']
    found = decoded("a float, b int, c timestamp", *values)
    assert found.column.to_pylist() == [{"a": None, "b": 7, "c": None}, {"a": 1.0, "b": 8, "c": None}]
    assert [(each.row, each.path) for each in found.misfits] == [(0, "a")]


def test_a_key_twice_is_found_among_many_fields_whatever_its_text() -> None:
    many = ", ".join(f"f{number} int" for number in range(20))
    for schema, name in (
        (many, "f7"),
        ("`Größe` int", "Größe"),
        ("`a.*b` int", "a.*b"),
        ("a array<struct<b: int>>", "x"),
    ):
        once = f'{{"{name}": 1, "other": {{"{name}": 2}}}}'.encode()
        twice = f'{{"{name}": 1, "{name}": 1}}'.encode()
        found = decoded(schema, once, twice, twice.replace(b'"' + name[:1].encode(), b'"\\u%04x' % ord(name[0]), 1))
        wanted = {1, 2} if name != "x" else set()
        assert {each.row for each in found.misfits if "twice" in each.reason} == wanted, schema
    nested = [b'{"a": [{"b": 1}, {"b": 2}]}', b'{"a": [{"b": 1, "b": 1}]}', b'{"a": [], "x": {"y": 1, "y": 2}}']
    assert [each.row for each in decoded("a array<struct<b: int>>", *nested).misfits] == [1]


def test_the_error_names_the_value_the_key_and_the_column() -> None:
    value = b'{"n": 9007199254740993}'
    names = ("version", "kind", "key", "value")
    batch = pa.RecordBatch.from_pydict(dict(zip(names, [[7], ["write"], [b"k/1"], [value]], strict=True)))
    typing = Typing(value=Encoding.of(Format.JSON, parse_schema("n double"), "value"), unfit=Unfit.FAIL)
    with pytest.raises(InvalidRequest, match="9007199254740993 does not fit double") as refused:
        typed_batch(batch, typing)
    named = {name: refused.value.fields[name] for name in ("column", "version", "key", "value")}
    assert named == {"column": "value.n", "version": 7, "key": b"k/1", "value": value}


def test_inferred_types_are_wide_enough_for_whole_numbers() -> None:
    large = 2**63
    assert infer_type([b"1", str(large).encode()], Format.JSON) == pa.decimal128(38, 0)
    found = decoded("decimal(38,0)", b"1", str(large).encode())
    assert found.column.to_pylist() == [Decimal(1), Decimal(large)]
    assert infer_type([b"1", b"1.5"], Format.JSON) == pa.float64()
    assert infer_type([str(large).encode(), b"1.5"], Format.JSON) == pa.float64()
    assert [each.row for each in decoded("double", str(large + 1).encode(), b"1.5").misfits] == [0]
