"""Keys and values in JSON: base64 or text, never guessed, and two texts are never the same key."""

from __future__ import annotations

import base64
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.commit.format.json_request import (
    JsonDelete,
    JsonPointRead,
    JsonRangeDelete,
    JsonRangeRead,
    JsonTransaction,
    JsonWrite,
    decode_json,
    decode_json_lines,
)
from holdfast.commit.format.transaction import (
    Delete,
    PointRead,
    RangeDelete,
    RangeRead,
    Transaction,
    Write,
    prefix_end,
)
from holdfast.errors import Code, InvalidRequest

BYTES = st.binary(max_size=12)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def write(**fields: object) -> bytes:
    return json.dumps({"operations": [{"type": "write", **fields}]}).encode()


def test_every_field_has_a_text() -> None:
    given = {
        "operations": [
            {"type": "write", "key_text": "seat/12A", "value_text": "frei ☂"},
            {"type": "write", "key_text": "k", "value": encoded(b"\xff")},
            {"type": "delete", "key_text": ""},
            {"type": "range_delete", "begin_text": "a", "end_text": "b"},
            {"type": "range_delete", "begin_text": "a", "end": None},
            {"type": "range_delete", "begin": encoded(b"a"), "end_text": "b"},
        ],
        "preconditions": [
            {"type": "point_read", "key_text": "k", "version": 7},
            {"type": "range_read", "begin_text": "a", "end_text": "b"},
        ],
        "request_id": "id",
        "leader_id": "leader",
        "read_version": 9,
        "log_id": "log",
    }
    assert decode_json(json.dumps(given).encode()) == Transaction(
        [
            Write(b"seat/12A", "frei ☂".encode()),
            Write(b"k", b"\xff"),
            Delete(b""),
            RangeDelete(b"a", b"b"),
            RangeDelete(b"a"),
            RangeDelete(b"a", b"b"),
        ],
        [PointRead(b"k", 7), RangeRead(b"a", b"b")],
        "id",
        "leader",
        9,
        "log",
    )


@pytest.mark.parametrize(
    ("exact", "usual"),
    [
        (JsonTransaction, Transaction),
        (JsonWrite, Write),
        (JsonDelete, Delete),
        (JsonRangeDelete, RangeDelete),
        (JsonPointRead, PointRead),
        (JsonRangeRead, RangeRead),
    ],
)
def test_both_decoders_have_the_same_fields(exact: type[msgspec.Struct], usual: type[msgspec.Struct]) -> None:
    names = [field.encode_name for field in msgspec.structs.fields(exact)]
    assert [name for name in names if not name.endswith("_text")] == list(usual.__struct_encode_fields__)


PLAIN = {
    "request_id": st.text(),
    "leader_id": st.text(),
    "read_version": st.integers(0, 2**53 - 1),
    "log_id": st.text(),
}
OPERATIONS = [
    pytest.param('{"type":"write","key":"YQ==","value":"Yg=="}', id="base64"),
    pytest.param('{"type":"write","key_text":"a","value_text":"b"}', id="text"),
    pytest.param('{"type":"write","key\\u005ftext":"a","value":"Yg=="}', id="escape"),
]


@pytest.mark.parametrize("operation", OPERATIONS)
@given(st.fixed_dictionaries({}, optional=PLAIN), st.sampled_from(["", "="]))
def test_the_form_of_keys_changes_no_other_field(operation: str, fields: dict[str, object], end: str) -> None:
    if "request_id" in fields:
        fields = {**fields, "request_id": f"{fields['request_id']}{end}"}
    body = json.dumps({"operations": [], **fields}).replace("[]", f"[{operation}]", 1).encode()
    wanted = Transaction([Write(b"a", b"b")], **fields)
    assert decode_json(body) == wanted
    assert decode_json_lines(body) == [wanted]


@given(TEXTS, BYTES)
def test_text_is_its_utf8_and_bytes_are_their_base64(text: str, data: bytes) -> None:
    for ascii_only in (True, False):
        body = {"operations": [{"type": "write", "key_text": text, "value": encoded(data)}]}
        txn = decode_json(json.dumps(body, ensure_ascii=ascii_only).encode())
        assert txn.operations == [Write(text.encode(), data)]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"key": "YQ==", "key_text": "a", "value": ""}, "key and key_text exclude each other - at `$.operations[0]`"),
        ({"key": "YQ==", "value": "YQ==", "value_text": "a"}, "value and value_text exclude each other"),
        ({"key_text": "a"}, "value or value_text is required - at `$.operations[0]`"),
        ({"value_text": "a"}, "key or key_text is required"),
        ({"key_text": None, "value": ""}, "Expected `str`, got `null`"),
        ({"key_text": 7, "value": ""}, "Expected `str`, got `int`"),
        ({"key_text": "a", "value": "", "key_texts": ""}, "unknown field `key_texts`"),
        ({"key_text": "\ud800", "value": ""}, "the request cannot be decoded: "),
    ],
)
def test_a_field_is_given_once_as_text_or_as_base64(fields: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_json(write(**fields))
    assert caught.value.code is Code.MALFORMED
    assert says in str(caught.value)


def test_the_two_ends_of_a_range_exclude_each_other_too() -> None:
    with pytest.raises(InvalidRequest, match="end and end_text exclude each other"):
        decode_json(b'{"operations":[{"type":"range_delete","begin":"","end":null,"end_text":"b"}]}')


@pytest.mark.parametrize(
    "text",
    [
        "seat/12A",
        "seat12A",
        "a2V",
        "a2V5=",
        "YQ",
        "YQ=",
        "a-_=",
        "a 2V5",
        "=",
        "YQ==YQ==",
        "YR==",
        "YW==",
        "YWJ=",
        "YQ==\n",
        "é",
    ],
)
@pytest.mark.parametrize("field", ["key", "value"])
@pytest.mark.parametrize("beside_text", [True, False])
def test_what_is_not_canonical_is_refused_with_its_field_and_the_field_for_text(
    text: str, field: str, beside_text: bool
) -> None:
    if text == "seat/12A":
        # Eight letters of the alphabet are base64 of six bytes, and nobody can tell: that is not guessed either.
        assert decode_json(write(key=text, value="")).operations == [Write(base64.b64decode(text), b"")]
        return
    other = "value" if field == "key" else "key"
    fields = {field: text, (f"{other}_text" if beside_text else other): ""}
    with pytest.raises(InvalidRequest) as caught:
        decode_json(write(**fields))
    assert caught.value.code is Code.BAD_BASE64
    assert f"`$.operations[0].{field}`" in str(caught.value)
    assert caught.value.hint.endswith(f"give plain text in {field}_text")


@pytest.mark.parametrize("request_id", ["x=", "=", "==", "a=\\u003d", "YR=="])
def test_other_texts_that_end_so_are_no_base64(request_id: str) -> None:
    body = b'{"operations":[{"type":"delete","key":"YQ=="}],"request_id":"%b","read_version":1}' % request_id.encode()
    assert decode_json(body).operations == [Delete(b"a")]
    assert decode_json(body).request_id == json.loads(f'"{request_id}"')


@given(st.text(st.sampled_from("ABQYgw=+/_- aeimq048"), max_size=9))
def test_a_text_is_a_key_exactly_when_it_is_what_the_key_encodes_to(text: str) -> None:
    body = msgspec.json.encode({"operations": [{"type": "delete", "key": text}]})
    try:
        data = base64.b64decode(text, validate=True)
        canonical = encoded(data) == text
    except ValueError:
        canonical = False
    if canonical:
        assert decode_json(body).operations == [Delete(data)]
    else:
        with pytest.raises(InvalidRequest) as caught:
            decode_json(body)
        assert caught.value.code is Code.BAD_BASE64


@given(st.lists(st.tuples(TEXTS, BYTES, st.booleans()), max_size=6))
def test_a_block_of_lines_is_its_lines(items: list[tuple[str, bytes, bool]]) -> None:
    lines = [
        write(key_text=text, value=encoded(data)) if as_text else write(key=encoded(text.encode()), value=encoded(data))
        for text, data, as_text in items
    ]
    block = b"".join(line + b"\n" for line in lines)
    wanted = [Transaction([Write(text.encode(), data)]) for text, data, _ in items]
    assert decode_json_lines(block) == wanted == [decode_json(line) for line in lines]
    with pytest.raises(InvalidRequest):
        decode_json_lines(block + write(key="YR==", value="") + b"\n")


@given(
    st.lists(st.binary(max_size=4), max_size=30),
    st.binary(max_size=3) | st.sampled_from([b"", b"\xff", b"\xff\xff", b"a\xff"]),
)
def test_the_range_of_a_prefix_is_what_starts_with_it(keys: list[bytes], prefix: bytes) -> None:
    keys += [prefix, prefix + b"\0", prefix + b"\xff\xff", prefix[:-1]]
    end = prefix_end(prefix)
    assert [key for key in keys if prefix <= key and (end is None or key < end)] == [
        key for key in keys if key.startswith(prefix)
    ]
