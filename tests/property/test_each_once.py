"""Laws of names that are given twice: refused however they are spelled, against Python's own reader of JSON."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.commit.format import json_request
from holdfast.commit.format.json_request import decode_json, decode_json_lines
from holdfast.commit.format.transaction import Transaction
from holdfast.errors import InvalidRequest
from holdfast.server.http.requests import decode_msgpack, decode_msgpack_items
from holdfast.values import GivenTwice, pairs_once
from holdfast.wire.formats import UNDECODABLE, decode_each_once, require_each_once

EXAMPLES = 30 if os.environ.get("HOLDFAST_SMALL") == "1" else 150

Pairs = list[tuple[str, object]]
"""An object, whose names may be given more than once. A list is a tuple here."""

LETTERS = st.text(st.sampled_from('ab:"\\u003\n\u00e9{},'), max_size=4)


def objects(names: st.SearchStrategy[str], values: st.SearchStrategy[object]) -> st.SearchStrategy[Pairs]:
    return st.lists(st.tuples(names, values), max_size=4)


SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
VALUES: st.SearchStrategy[object] = st.recursive(
    SCALARS | LETTERS,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | objects(LETTERS, inner),
    max_leaves=12,
)
DOCUMENTS = objects(LETTERS, VALUES)


def text_of(value: object, draw: Callable[[st.SearchStrategy[object]], object]) -> str:
    """The value as JSON, with spaces and escapes as they fall."""
    space = st.sampled_from(["", "", " ", "\n\t"])
    match value:
        case str():
            return '"' + "".join(_letter(one, draw) for one in value) + '"'
        case tuple():
            return "[" + ",".join(f"{draw(space)}{text_of(one, draw)}{draw(space)}" for one in value) + "]"
        case list():
            members = (f"{text_of(name, draw)}{draw(space)}:{draw(space)}{text_of(one, draw)}" for name, one in value)
            return "{" + ",".join(f"{draw(space)}{member}" for member in members) + "}"
        case _:
            return json.dumps(value)


def _letter(letter: str, draw: Callable[[st.SearchStrategy[object]], object]) -> str:
    if draw(st.integers(0, 3)) == 0:
        return f"\\u{ord(letter):04x}" if draw(st.booleans()) else f"\\u{ord(letter):04X}"
    return json.dumps(letter, ensure_ascii=False)[1:-1]


def repeats_json(text: str) -> bool:
    """The truth, of another reader."""
    found = False

    def look(pairs: list[tuple[str, object]]) -> None:
        nonlocal found
        found = found or len({name for name, _ in pairs}) < len(pairs)

    json.loads(text, object_pairs_hook=look)
    return found


def is_refused(check: Callable[[], object]) -> bool:
    try:
        check()
    except (GivenTwice, InvalidRequest) as error:
        return "is given twice" in str(error)
    return False


@settings(max_examples=EXAMPLES)
@given(st.data(), DOCUMENTS)
def test_a_json_document_is_refused_exactly_if_a_name_is_given_twice(data: st.DataObject, document: Pairs) -> None:
    text = text_of(document, data.draw)
    assert is_refused(lambda: require_each_once(text.encode())) == repeats_json(text)


@pytest.mark.parametrize(
    "text",
    [
        r'{"a":1,"a":2}',
        r'{"a":1,"\u0061":2}',
        r'{"x":[{"a":{"b":1,"b":1}}]}',
        r'{"a":":","a":"\u003a"}',  # as many colons are kept as are written
        r'{"a":":::","a":"\u003a\u003A\u003a\u003a"}',
        r'{"a:":1,"a\u003a":"\\u003a"}',
        r'{"":1,"":2}',
        r'{"a":1,"a":18446744073709551616000000}',
    ],
)
def test_no_spelling_hides_a_second_name(text: str) -> None:
    assert repeats_json(text)
    with pytest.raises(GivenTwice, match="is given twice"):
        decode_each_once(text.encode(), object)


@pytest.mark.parametrize(
    "text",
    [
        r'{"a":"\u003a","b":"\\u003a","c":"\\\u003a"}',
        r'{"a":"{\"b\":1,\"b\":2}"}',
        r'{"a":{"a":{"a":[{"a":1},{"a":1}]}}}',
        r'{"a":"a","A":":"}',
        "{}",
        "[]",
        '"a:a"',
        '{"a":' + "9" * 5000 + "}",
    ],
)
def test_what_only_looks_like_a_second_name_is_taken(text: str) -> None:
    require_each_once(text.encode())


# ---- msgpack --------------------------------------------------------------------------------------------------------


def packed(value: object, draw: Callable[[st.SearchStrategy[object]], object]) -> bytes:
    """The value as msgpack, each head in one of the sizes that fit."""
    match value:
        case str():
            data = value.encode()
            return _head(draw, len(data), 0xA0, 32, (0xD9, 0xDA, 0xDB)) + data
        case tuple():
            parts = b"".join(packed(one, draw) for one in value)
            return _head(draw, len(value), 0x90, 16, (None, 0xDC, 0xDD)) + parts
        case list():
            parts = b"".join(packed(name, draw) + packed(one, draw) for name, one in value)
            return _head(draw, len(value), 0x80, 16, (None, 0xDE, 0xDF)) + parts
        case float() if draw(st.booleans()):
            return b"\xca" + struct.pack(">f", 1.5)
        case int() if not isinstance(value, bool):
            return (
                b"\xd3" + struct.pack(">q", value % 1000)
                if draw(st.booleans())
                else msgspec.msgpack.encode(value % 1000)
            )
        case _:
            return msgspec.msgpack.encode(value)


def _head(
    draw: Callable[[st.SearchStrategy[object]], object], size: int, fix: int, limit: int, codes: tuple[int | None, ...]
) -> bytes:
    heads = [bytes([fix | size])] if size < limit else []
    heads += [
        bytes([code]) + size.to_bytes(width, "big")
        for code, width in zip(codes, (1, 2, 4), strict=True)
        if code is not None
    ]
    head = draw(st.sampled_from(heads))
    assert isinstance(head, bytes)
    return head


def repeats(value: object) -> bool:
    """The truth, of the document itself."""
    match value:
        case tuple():
            return any(map(repeats, value))
        case list():
            return len({name for name, _ in value}) < len(value) or any(repeats(one) for _, one in value)
        case _:
            return False


@settings(max_examples=EXAMPLES)
@given(st.data(), DOCUMENTS)
def test_a_msgpack_document_is_refused_exactly_if_a_name_is_given_twice(data: st.DataObject, document: Pairs) -> None:
    body = packed(document, data.draw)
    assert is_refused(lambda: require_each_once(body, "msgpack")) == repeats(document)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_have_each_name_once(data: bytes) -> None:
    for wire_format in ("json", "msgpack"):
        try:
            decode_each_once(data, object, wire_format)
        except UNDECODABLE:
            continue


# ---- commits --------------------------------------------------------------------------------------------------------

KEYS = st.sampled_from(["", "YQ==", "YWI="])
VERSIONS = st.none() | st.integers(0, 9)
OPERATIONS = (
    st.tuples(KEYS, KEYS).map(lambda it: [("type", "write"), ("key", it[0]), ("value", it[1])])
    | KEYS.map(lambda key: [("type", "delete"), ("key", key)])
    | st.tuples(KEYS, st.none() | KEYS).map(
        lambda it: [("type", "range_delete"), ("begin", it[0]), ("end", it[1])][: 2 if it[1] == "" else 3]
    )
)
READS = st.tuples(KEYS, VERSIONS).map(
    lambda it: [("type", "point_read"), ("key", it[0]), ("version", it[1])]
) | st.tuples(KEYS, st.none() | KEYS, VERSIONS).map(
    lambda it: [("type", "range_read"), ("begin", it[0]), ("end", it[1]), ("version", it[2])]
)
PART = st.just([("store", "s"), ("messages", ([("body", "YQ==")],))])
MEMBERS = st.one_of(
    st.tuples(st.just("operations"), st.lists(OPERATIONS, max_size=2).map(tuple)),
    st.tuples(st.just("preconditions"), st.lists(READS, max_size=2).map(tuple)),
    st.tuples(st.just("request_id"), st.none() | st.sampled_from(["a:b", "c", "\u00e9"])),
    st.tuples(st.just("read_version"), VERSIONS),
    st.tuples(st.just("leader_id"), st.none() | st.just("l")),
    st.tuples(st.just("log_id"), st.none() | st.just("l")),
    st.tuples(st.just("publish"), st.lists(PART, max_size=1).map(tuple)),
)


@st.composite
def requests(draw: st.DrawFn) -> Pairs:
    """A commit request, with members twice here and there."""
    members: Pairs = [("operations", tuple(draw(st.lists(OPERATIONS, max_size=2)))), *draw(st.lists(MEMBERS))]
    if draw(st.booleans()):
        members = list(dict(members).items())

    def doubled(value: object) -> object:
        match value:
            case tuple():
                return tuple(map(doubled, value))
            case list():
                inner = [(name, doubled(one)) for name, one in value]
                if inner and draw(st.integers(0, 15)) == 0:
                    inner.append(draw(st.sampled_from(inner)))
                return inner
            case _:
                return value

    found = doubled(draw(st.permutations(members)))
    assert isinstance(found, list)
    return found


@settings(max_examples=EXAMPLES)
@given(st.data(), requests())
def test_a_commit_is_refused_exactly_if_a_name_is_given_twice(data: st.DataObject, request: Pairs) -> None:
    text = text_of(request, data.draw if data.draw(st.booleans()) else lambda _: "")
    line = text.encode().replace(b"\n", b" ")
    twice = repeats_json(text)
    assert is_refused(lambda: decode_json(line)) == twice
    assert is_refused(lambda: decode_json_lines(b'{"operations":[]}\n' + line + b"\n")) == twice
    if not twice:
        assert decode_json_lines(line) == [decode_json(line)] == [msgspec.json.decode(line, type=Transaction)]


def binary(value: object, name: str = "") -> object:
    """The request as msgpack has it: keys are bytes."""
    match value:
        case tuple():
            return [binary(one) for one in value]
        case str() if name in ("key", "value", "begin", "end", "body"):
            return value.encode()
        case _:
            return value


def map_of(value: object, name: str = "") -> bytes:
    match value:
        case tuple():
            return bytes([0x90 | len(value)]) + b"".join(map(map_of, value))
        case list():
            members = b"".join(msgspec.msgpack.encode(inner) + map_of(one, inner) for inner, one in value)
            return (
                b"\xde" + len(value).to_bytes(2, "big") + members
                if len(value) > 15
                else (bytes([0x80 | len(value)]) + members)
            )
        case _:
            return msgspec.msgpack.encode(binary(value, name))


@settings(max_examples=EXAMPLES)
@given(requests())
def test_a_commit_in_msgpack_is_refused_exactly_if_a_name_is_given_twice(request: Pairs) -> None:
    data = map_of(request)
    twice = repeats(request)
    assert is_refused(lambda: decode_msgpack(data)) == twice
    assert is_refused(lambda: decode_msgpack_items(2, data + data)) == twice


@pytest.mark.parametrize("long", [False, True])
def test_the_quick_proof_takes_the_usual_commit_without_reading_it_again(
    long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_again(*_: object) -> None:
        raise AssertionError("the usual commit is not read a second time")

    monkeypatch.setattr(json_request, "require_each_once", read_again)
    value = "YWJj" * (100_000 if long else 10)
    body = (
        f'{{"preconditions": [{{"type": "point_read", "key": "YQ==", "version": 7}}], "request_id": "{"i" * 20}", '
        f'"operations": [{{"type": "write", "key": "YQ==", "value": "{value}"}}, {{"type": "delete", "key": "YQ=="}}], '
        '"read_version": 7}'
    )
    decode_json(body.encode())
    assert len(decode_json_lines(body.encode() + b"\n" + body.encode())) == 2


def test_a_proof_that_believes_everything_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: without the count, the second name passes."""
    body = b'{"operations":[],"preconditions":[{"type":"point_read","key":"YQ==","version":1}],"preconditions":[]}'
    assert is_refused(lambda: decode_json(body))
    monkeypatch.setattr(json_request, "_has_colons", lambda *_: True)
    assert decode_json(body).preconditions == []


def test_the_hook_of_other_parsers_names_what_is_twice() -> None:
    assert pairs_once([("a", 1), ("b", 2)]) == {"a": 1, "b": 2}
    with pytest.raises(ValueError, match="'b' is given twice"):
        pairs_once([("a", 1), ("b", 2), ("b", 2)])


def test_a_document_that_is_too_deep_for_the_check_is_refused() -> None:
    for text in (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b'{"a":1,"a":' + b"[" * 900 + b"]" * 900 + b"}"):
        with pytest.raises(UNDECODABLE):
            decode_each_once(text, object)
