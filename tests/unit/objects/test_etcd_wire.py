"""The codec of etcd's messages, against the runtime of protocol buffers with the same field numbers."""

from __future__ import annotations

from typing import Any, Final

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.objects.etcd.wire import (
    Compact,
    Condition,
    EtcdReply,
    Exists,
    GetKeys,
    Holds,
    Malformed,
    Operation,
    PutKey,
    RemoveKey,
    Request,
    Row,
    RowPage,
    Status,
    Txn,
    decode_reply,
    decode_status,
    decode_token,
    encode_login,
    encode_request,
)

MESSAGES: Final = {
    "Range": "bytes key=1, bytes range_end=2, int64 limit=3, bool serializable=7, bool keys_only=8",
    "Put": "bytes key=1, bytes value=2, int64 lease=3",
    "DeleteRange": "bytes key=1, bytes range_end=2",
    "Op": "Range range=1, Put put=2, DeleteRange delete_range=3",
    "Compare": "int32 result=1, int32 target=2, bytes key=3, int64 create_revision=5, bytes value=7",
    "Txn": "Compare* compare=1, Op* success=2, Op* failure=3",
    "Login": "string name=1, string password=2",
    "Header": "uint64 cluster_id=1, uint64 member_id=2, int64 revision=3, uint64 raft_term=4",
    "KeyValue": "bytes key=1, int64 create_revision=2, int64 mod_revision=3, int64 version=4, bytes value=5",
    "Found": "Header header=1, KeyValue* kvs=2, bool more=3, int64 count=4, fixed64 later=90, fixed32 last=91",
    "Changed": "Header header=1, int64 deleted=2",
    "Compaction": "int64 revision=1, bool physical=2",
    "Compacted": "Header header=1",
    "Described": "Header header=1, string version=2, int64 dbSize=3, uint64 leader=4, uint64 raftIndex=5, "
    "uint64 raftTerm=6, uint64 raftAppliedIndex=7, string* errors=8, int64 dbSizeInUse=9, bool isLearner=10, "
    "string storageVersion=11",
    "OpReply": "Found range=1, Changed put=2, Changed delete_range=3",
    "TxnReply": "Header header=1, bool succeeded=2, OpReply* responses=3",
    "Token": "Header header=1, string token=2",
}


def messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="test_etcd.proto", package="test_etcd", syntax="proto3")
    kinds = {
        name.removeprefix("TYPE_").lower(): number for name, number in descriptor_pb2.FieldDescriptorProto.Type.items()
    }
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for text in fields.split(", "):
            kind, _, rest = text.partition(" ")
            field_name, _, number = rest.partition("=")
            field = message.field.add(name=field_name, number=int(number))
            field.label = 3 if kind.endswith("*") else 1
            if kind.removesuffix("*") in kinds:
                field.type = kinds[kind.removesuffix("*")]
            else:
                field.type, field.type_name = kinds["message"], f".test_etcd.{kind.removesuffix('*')}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"test_etcd.{name}")) for name in MESSAGES}


OF: Final = messages()
KEYS = st.binary(min_size=1, max_size=200)
VALUES = st.binary(max_size=300)
GETS = st.builds(GetKeys, KEYS, st.binary(max_size=40), st.integers(0, 2**40), st.booleans())
OPERATIONS = GETS | st.builds(PutKey, KEYS, VALUES) | st.builds(RemoveKey, KEYS)
CONDITIONS = st.builds(Exists, KEYS, st.booleans()) | st.builds(Holds, KEYS, VALUES)
TXNS = st.builds(
    Txn, st.lists(CONDITIONS, max_size=4), st.lists(OPERATIONS, max_size=4), st.lists(OPERATIONS, max_size=4)
)
FOUND = st.builds(RowPage, st.lists(st.builds(Row, KEYS, VALUES), max_size=5), st.booleans())


def a_get(get: GetKeys) -> Any:
    return OF["Range"](key=get.key, range_end=get.end, limit=get.limit, serializable=get.any_member)


def a_condition(condition: Condition) -> Any:
    if isinstance(condition, Holds):
        return OF["Compare"](target=3, key=condition.key, value=condition.value)
    return OF["Compare"](result=0 if condition.negated else 3, target=1, key=condition.key)


def an_operation(operation: Operation) -> Any:
    match operation:
        case GetKeys():
            return OF["Op"](range=a_get(operation))
        case PutKey(key, value):
            return OF["Op"](put=OF["Put"](key=key, value=value))
        case RemoveKey(key):
            return OF["Op"](delete_range=OF["DeleteRange"](key=key))


@given(GETS | TXNS | st.builds(Compact, st.integers(0, 2**60)))
def test_a_request_reads_as_the_message_that_was_meant(request: Request) -> None:
    if isinstance(request, GetKeys):
        expected = a_get(request)
    elif isinstance(request, Compact):
        expected = OF["Compaction"](revision=request.revision)
    else:
        expected = OF["Txn"](
            compare=[a_condition(each) for each in request.conditions],
            success=[an_operation(each) for each in request.then],
            failure=[an_operation(each) for each in request.otherwise],
        )
    found = type(expected)()
    found.ParseFromString(encode_request(request))
    assert found == expected


@given(st.text(max_size=50), st.text(max_size=50))
def test_a_login_reads_as_the_message_that_was_meant(name: str, password: str) -> None:
    found = OF["Login"]()
    found.ParseFromString(encode_login(name, password))
    assert (found.name, found.password) == (name, password)


def test_an_end_that_is_not_asked_for_is_not_sent() -> None:
    """etcd takes an empty range_end that was sent for an end above all keys: a read of one key would find another."""
    assert b"\x12" not in encode_request(GetKeys(b"a"))


def some_found(found: RowPage, cluster_id: int) -> Any:
    rows = [OF["KeyValue"](key=row.key, value=row.value, version=1, mod_revision=2**60) for row in found.rows]
    header = OF["Header"](cluster_id=cluster_id, member_id=2**64 - 1, revision=300)
    return OF["Found"](header=header, kvs=rows, more=found.more, count=len(rows), later=9, last=7)


@given(FOUND, st.integers(0, 2**64 - 1))
def test_the_answer_to_a_read_is_what_was_found(found: RowPage, cluster_id: int) -> None:
    data = some_found(found, cluster_id).SerializeToString()
    page = RowPage(list(found.rows), found.more)
    assert decode_reply(GetKeys(b"a"), data) == EtcdReply(cluster_id, (page,), revision=300)


@given(st.lists(FOUND | st.none(), max_size=5), st.booleans(), st.integers(0, 2**64 - 1))
def test_the_answer_to_a_transaction_has_a_part_for_each_operation(
    parts: list[RowPage | None], succeeded: bool, cluster_id: int
) -> None:
    operations = [RemoveKey(b"a") if part is None else GetKeys(b"a") for part in parts]
    request = Txn((), operations if succeeded else (), () if succeeded else operations)
    replies = [
        OF["OpReply"](delete_range=OF["Changed"](deleted=1))
        if part is None
        else OF["OpReply"](range=some_found(part, 0))
        for part in parts
    ]
    data = OF["TxnReply"](header=OF["Header"](cluster_id=cluster_id), succeeded=succeeded, responses=replies)
    found = [RowPage() if part is None else RowPage(list(part.rows), part.more) for part in parts]
    assert decode_reply(request, data.SerializeToString()) == EtcdReply(cluster_id, found, succeeded)
    with pytest.raises(Malformed):
        decode_reply(Txn((), [*operations, RemoveKey(b"b")], [*operations, RemoveKey(b"b")]), data.SerializeToString())


@given(st.binary(max_size=200))
@example(b"\x0a\xff")
@example(b"\xff" * 20)
@example(b"\x09\x00")
def test_any_bytes_are_an_answer_or_malformed(data: bytes) -> None:
    for decode in (
        lambda: decode_reply(GetKeys(b"a"), data),
        lambda: decode_reply(Txn((), ()), data),
        lambda: decode_reply(Compact(1), data),
        lambda: decode_token(data),
        lambda: decode_status(data),
    ):
        try:
            decode()
        except Malformed:
            pass


@given(FOUND, st.data())
def test_an_answer_that_was_cut_is_malformed_or_shorter(found: RowPage, data: st.DataObject) -> None:
    whole = some_found(found, 7).SerializeToString()
    cut = data.draw(st.integers(0, len(whole) - 1))
    try:
        reply = decode_reply(GetKeys(b"a"), whole[:cut])
    except Malformed:
        return
    assert list(reply.pages[0].rows) == list(found.rows[: len(reply.pages[0].rows)])


def test_a_token_is_read() -> None:
    assert decode_token(OF["Token"](header=OF["Header"](cluster_id=1), token="abc.12").SerializeToString()) == "abc.12"


def test_the_answer_to_a_compaction_is_where_it_came_from() -> None:
    data = OF["Compacted"](header=OF["Header"](cluster_id=7, revision=9)).SerializeToString()
    assert decode_reply(Compact(8), data) == EtcdReply(7, (), revision=9)


@given(
    st.builds(
        Status,
        *(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.text(max_size=9), st.integers(0, 2**64 - 1)),
        *(st.integers(0, 2**62), st.integers(0, 2**62), st.booleans(), st.lists(st.text(max_size=20), max_size=3)),
    )
)
def test_what_a_member_says_of_itself_is_read(status: Status) -> None:
    message = OF["Described"](
        header=OF["Header"](cluster_id=status.cluster_id, member_id=status.member_id, revision=3),
        version=status.version,
        dbSize=status.bytes_allocated,
        leader=status.leader,
        raftIndex=5,
        raftTerm=6,
        raftAppliedIndex=7,
        errors=status.errors,
        dbSizeInUse=status.bytes_used,
        isLearner=status.is_learner,
        storageVersion="3.6",
    )
    assert decode_status(message.SerializeToString()) == status
