"""Laws of decoding and checking commit requests: any bytes end in a transaction or in one coded error."""

from __future__ import annotations

import base64
import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.commit.format.json_request import decode_json
from holdfast.commit.format.transaction import Committed, Transaction
from holdfast.errors import Code, InvalidRequest
from holdfast.server.commit.item_readers import ItemReader, JsonLines, MsgpackItems
from holdfast.server.http.requests import decode_msgpack, key_from_text, problem_with
from holdfast.server.http.responses import CommitResponses, LeaderHint
from holdfast.wire.formats import encode
from holdfast.wire.log import CommitReceipt

KEYS = st.binary(max_size=12)
VERSIONS = st.none() | st.integers(0, 2**53 - 1)
OPERATIONS = st.lists(
    st.fixed_dictionaries({"type": st.just("write"), "key": KEYS, "value": KEYS})
    | st.fixed_dictionaries({"type": st.just("delete"), "key": KEYS})
    | st.fixed_dictionaries({"type": st.just("range_delete"), "begin": KEYS, "end": st.none() | KEYS}),
    max_size=4,
)
READS = st.lists(
    st.fixed_dictionaries({"type": st.just("point_read"), "key": KEYS, "version": VERSIONS})
    | st.fixed_dictionaries(
        {"type": st.just("range_read"), "begin": KEYS, "end": st.none() | KEYS, "version": VERSIONS}
    ),
    max_size=4,
)
REQUESTS = st.fixed_dictionaries(
    {"operations": OPERATIONS},
    optional={
        "preconditions": READS,
        "request_id": st.none() | st.text(max_size=40),
        "read_version": VERSIONS,
        "leader_id": st.none() | st.sampled_from(["here", "there"]),
    },
)


@given(st.binary(max_size=300) | st.text(max_size=300).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_a_transaction_or_one_coded_error(data: bytes) -> None:
    for decode in (decode_json, decode_msgpack):
        try:
            found = decode(data)
        except InvalidRequest as error:
            assert error.code in (Code.MALFORMED, Code.BAD_BASE64)  # noqa: PT017  # either end is lawful
        else:
            assert isinstance(found, Transaction)


@given(REQUESTS)
def test_json_and_msgpack_mean_the_same_transaction(made: dict[str, object]) -> None:
    assert decode_json(msgspec.json.encode(made)) == decode_msgpack(msgspec.msgpack.encode(made))


@given(REQUESTS)
def test_a_transaction_without_a_problem_keeps_every_rule(made: dict[str, object]) -> None:
    txn = decode_json(msgspec.json.encode(made))
    if problem_with(txn, leader_id="here", log_id="this", request_id_length_min=20) is not None:
        return
    assert txn.operations and txn.leader_id in (None, "here") and txn.log_id in (None, "this")
    if txn.request_id is not None:
        assert 20 <= len(txn.request_id) <= 255 and txn.request_id.isprintable() and txn.read_version is not None
    assert all(read.version is not None or txn.read_version is not None for read in txn.preconditions)
    for item in (*txn.operations, *txn.preconditions):
        end = getattr(item, "end", None)
        assert end is None or item.begin < end  # type: ignore[union-attr]


@pytest.mark.parametrize("text", ["a2V", "a2V5=", "YQ", "YQ=", "a-_=", "a 2V5", "=", "YQ==YQ==", "Y\\nQ="])
def test_only_padded_standard_base64_is_a_key(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_json(b'{"operations":[{"type":"delete","key":"%b"}]}' % text.encode())
    assert caught.value.code is Code.BAD_BASE64
    assert "$.operations[0].key" in str(caught.value)


@given(KEYS)
def test_a_key_in_a_url_is_base64url_with_or_without_padding(key: bytes) -> None:
    padded = base64.urlsafe_b64encode(key).decode()
    assert key_from_text("key", padded) == key_from_text("key", padded.rstrip("=")) == key


@pytest.mark.parametrize(
    "text",
    [
        "YR==",
        "YR",
        "YW==",
        "YWJ=",
        "YWK",
        "a",
        "YQ=",
        "YQ===",
        "====",
        "a+b/",
        "seat/12A",
        "a b=",
        "YQ==YQ==",
        "é",
        "YQ\n",
    ],
)
def test_another_text_for_a_key_in_a_url_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        key_from_text("prefix", text, hint="text goes into prefix_text")
    assert caught.value.code is Code.BAD_BASE64
    assert str(caught.value) == "prefix is not base64url; text goes into prefix_text"


@given(st.integers(1, 2**53 - 1), st.none() | st.text(max_size=30))
def test_the_quick_encoding_of_a_committed_answer_is_the_encoding(version: int, request_id: str | None) -> None:
    answers = CommitResponses(LeaderHint("leader", "address"))
    assert answers.committed_json(version, request_id) == encode(CommitReceipt(version, "leader", request_id))
    line = answers.stream_item(
        Committed(version), durable_version=version, request_id=request_id, index=0, wire_format="json"
    )
    assert json.loads(line)["version"] == version and line.endswith(b"\n")


@settings(max_examples=200)
@given(st.lists(REQUESTS, max_size=8), st.lists(st.integers(1, 60), min_size=1, max_size=20), st.booleans())
def test_items_are_the_same_however_the_stream_is_cut(
    made: list[dict[str, object]], cuts: list[int], is_json: bool
) -> None:
    texts = [msgspec.json.encode(one) + b"\n" if is_json else msgspec.msgpack.encode(one) for one in made]
    whole = b"".join(texts)
    reader: ItemReader = JsonLines(100_000) if is_json else MsgpackItems(100_000)
    found: list[Transaction] = []
    at = 0
    while at < len(whole):
        size = cuts[at % len(cuts)]
        found += reader.take(whole[at : at + size])
        at += size
    found += reader.take(b"", last=True)
    assert reader.problem is None
    assert found == [decode_json(text) if is_json else decode_msgpack(text) for text in texts]
