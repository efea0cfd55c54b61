"""What a subscription proves, and how it comes back."""

from __future__ import annotations

import base64
import dataclasses
import json
import threading
import urllib.parse
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.client.conftest import QUICK
from tests.unit.client.scripted_server import Drop, Reply, ScriptedServer, Stream, coded

from holdfast.client import Checkpoint, Client, PublishedEvent, RolledBack, TransactionEvent
from holdfast.client.protocol.stream import Continuity, PendingEvents, ServerSentEvents
from holdfast.client.transport.sync import Connection
from holdfast.commit.format.transaction import Delete, RangeDelete, Write
from holdfast.errors import Closed, Code, CorruptData, InvalidRequest, NotFound, PermissionDenied, Unavailable
from holdfast.values import LogPosition

LEADER = "ab" * 16
NEXT_LEADER = "cd" * 16


def event(kind: str, event_id: str | None, **data: object) -> bytes:
    identity = f"id: {event_id}\n" if event_id is not None else ""
    return f"{identity}event: {kind}\ndata: {json.dumps(data)}\n\n".encode()


def transaction(version: int, prev: int, *, durable: bool = True, key: bytes = b"k") -> bytes:
    return event(
        "transaction",
        str(version) if durable else f"{version}~{LEADER}",
        version=version,
        prev_version=prev,
        request_id=None,
        leader_id=LEADER,
        timestamp="2024-02-03T04:05:06.789Z",
        operations=[{"type": "write", "key": base64.b64encode(key).decode(), "value": "dg=="}],
    )


def checkpoint(version: int, *, durable: bool = True) -> bytes:
    return event("checkpoint", str(version) if durable else None, committed_version=version, leader_id=LEADER)


def published(version: int, *seqs: int, more: bool = False) -> bytes:
    return event(
        "published",
        None if more else str(version),
        **({"more": True} if more else {}),
        version=version,
        leader_id=LEADER,
        timestamp="2024-02-03T04:05:06.789Z",
        published=[{"store": "orders", "seq": seq, "published_ms": 7, "body": "Ym9keQ=="} for seq in seqs],
    )


def leader_change(to: int) -> bytes:
    return event("leader_change", f"{to}~{NEXT_LEADER}", roll_back_to=to, leader_id=NEXT_LEADER)


def query_of(server: ScriptedServer, index: int) -> dict[str, str]:
    return dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(server.asked[index].target).query))


def test_events_arrive_whole_with_operations_in_order(connect):
    operations = [
        {"type": "write", "key": "YQ==", "value": "MQ=="},
        {"type": "delete", "key": "YQ=="},
        {"type": "range_delete", "begin": "YQ==", "end": None},
    ]
    data = {"version": 7, "prev_version": 0, "request_id": "r", "leader_id": LEADER, "operations": operations}
    data["timestamp"] = "1970-01-01T00:00:01.500Z"
    with ScriptedServer(Stream((event("transaction", "7", **data),), hold=True)) as server:
        (got,) = connect(server.url).take(1)
        assert got.operations == (Write(b"a", b"1"), Delete(b"a"), RangeDelete(b"a", None))
        assert (got.version, got.prev_version, got.request_id, got.time_ms, got.durable) == (7, 0, "r", 1500, True)
        assert query_of(server, 0) == {"after": "0", "durable": "true"}


@pytest.mark.parametrize("ending", ["ended", "broken", "silent"])
def test_a_stream_that_stops_is_opened_again_behind_the_last_event(connect, ending):
    first = transaction(5, 3) + transaction(9, 5)
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    step = {
        "ended": Stream((first,)),
        "broken": Drop(head + b"%x\r\n%b\r\n" % (len(first), first) + b"ff\r\nid: 1"),
        "silent": Stream((first,), hold=True),
    }[ending]
    with ScriptedServer(step, Stream((transaction(12, 9),), hold=True)) as server:
        assert [got.version for got in connect(server.url).take(3, 3)] == [5, 9, 12]
        assert server.asked[1].headers["last-event-id"] == "9"
        assert query_of(server, 1)["after"] == "9"


def test_a_comment_keeps_a_quiet_stream_open(connect):
    options = dataclasses.replace(QUICK, stream_silence_ms=5_000)
    with ScriptedServer(Stream((b": keepalive\n\n", transaction(5, 0)), hold=True)) as server:
        assert connect(server.url, options=options).take(1)[0].version == 5
        assert len(server.asked) == 1


def test_an_event_that_arrives_twice_is_delivered_once(connect):
    again = Stream((transaction(5, 0), transaction(9, 5), transaction(12, 9)), hold=True)
    with ScriptedServer(Stream((transaction(5, 0), transaction(9, 5))), again) as server:
        assert [got.version for got in connect(server.url).take(3)] == [5, 9, 12]


@pytest.mark.parametrize("reconnect", [False, True])
def test_a_gap_stops_the_reader_and_names_the_versions(connect, reconnect):
    parts = (transaction(5, 0), transaction(12, 9))
    script = (Stream(parts[:1]), Stream(parts[1:], hold=True)) if reconnect else (Stream(parts, hold=True),)
    with ScriptedServer(*script) as server:
        with pytest.raises(CorruptData) as caught:
            connect(server.url).take(2)
        assert caught.value.fields["last_delivered"] == 5
        assert (caught.value.fields["version"], caught.value.fields["prev_version"]) == (12, 9)


def test_a_gap_right_behind_the_start_point_is_found(connect):
    with ScriptedServer(Stream((transaction(12, 9),), hold=True)) as server, pytest.raises(CorruptData):
        connect(server.url).take(1, 8)


def test_what_came_before_a_gap_is_delivered_before_the_gap_is_told(connect):
    with ScriptedServer(Stream((transaction(5, 0) + transaction(12, 9),), hold=True)) as server:
        assert [got.version for got in connect(server.url).take(1)] == [5]


def test_a_filtered_stream_skips_versions_and_says_that_it_cannot_prove(connect):
    parts = (transaction(5, 3), checkpoint(20), transaction(31, 30))
    with ScriptedServer(Stream(parts), Stream((), hold=True)) as server:
        face = connect(server.url)
        assert not face.client.subscribe(prefix=b"k").proves_completeness
        assert face.client.subscribe().proves_completeness
        assert [got.version for got in face.take(2, prefix=b"k")] == [5, 31]
        assert query_of(server, 0)["prefix"] == "aw"


def test_a_filtered_stream_goes_on_behind_its_last_checkpoint(connect):
    with ScriptedServer(Stream((checkpoint(20),)), Stream((transaction(31, 30),), hold=True)) as server:
        assert connect(server.url).take(1, prefix=b"k")[0].version == 31
        assert query_of(server, 1)["after"] == "20"
        assert "last-event-id" not in server.asked[1].headers


def test_checkpoints_are_progress_and_are_yielded_when_asked_for(connect):
    with ScriptedServer(Stream((transaction(5, 0), checkpoint(20)), hold=True)) as server:
        assert connect(server.url).take(2, checkpoints=True)[1] == Checkpoint(20, LEADER)


def test_messages_come_between_transactions_and_a_resumed_stream_repeats_none(connect):
    first = (transaction(5, 0), published(7, 1, 2))
    again = (published(7, 1, 2), transaction(9, 5), published(12, 3))
    with ScriptedServer(Stream(first), Stream(again, hold=True)) as server:
        got = connect(server.url).take(4, stores=["orders", "invoices"])
        assert [type(one) for one in got] == [TransactionEvent, PublishedEvent, TransactionEvent, PublishedEvent]
        assert [one.seq for each in got for one in each.published] == [1, 2, 3]
        assert [each.version for each in got] == [5, 7, 9, 12]
        assert query_of(server, 0)["stores"] == "orders,invoices"
        assert server.asked[1].headers["last-event-id"] == "7"


def test_messages_that_come_after_the_stream_was_past_them_are_refused(connect):
    parts = (published(5, 1), checkpoint(20), published(15, 2))
    with ScriptedServer(Stream(parts, hold=True)) as server, pytest.raises(CorruptData):
        connect(server.url).take(2, stores=["orders"])


def test_a_transaction_behind_its_checkpoint_is_refused(connect):
    with (
        ScriptedServer(Stream((checkpoint(20), transaction(15, 0)), hold=True)) as server,
        pytest.raises(CorruptData),
    ):
        connect(server.url).take(1)


def test_messages_that_come_in_parts_are_delivered_once_across_a_reconnect(connect):
    broken = Stream((transaction(5, 0), published(8, 1, 2, more=True), published(8, 3, more=True)))
    again = Stream((published(8, 1, more=True), published(8, 2, 3, 4, more=True), published(8, 5), transaction(9, 5)))
    with ScriptedServer(broken, again) as server:
        got = connect(server.url).take(6, stores=["orders"])
        assert "after=5" in server.asked[1].target and server.asked[1].headers["last-event-id"] == "5"
    parts = [each for each in got if isinstance(each, PublishedEvent)]
    assert [[message.seq for message in each.published] for each in parts] == [[1, 2], [3], [4], [5]]
    assert [each.more for each in parts] == [True, True, True, False]
    assert [each.committed_version for each in parts] == [7, 7, 7, 8]


def test_a_position_is_not_past_a_version_whose_messages_are_not_all_delivered():
    continuity = Continuity(0, durable=True, filtered=True)
    delivery = PendingEvents(continuity)
    for text in (published(8, 1, more=True), published(8, 2)):
        ((kind, event_id, data),) = ServerSentEvents(1 << 20).feed(text)
        found = continuity.accept(kind, event_id, data)
        assert found is not None
        delivery.offer((found,))
    assert [delivery.take_one(checkpoints=True) and delivery.position.version for _ in range(2)] == [0, 8]


def test_an_error_that_stands_ends_the_stream_after_what_came_before_it(connect):
    damage = event("error", None, code="corrupt_log", message="an object is damaged", hint="repair it")
    with ScriptedServer(Stream((transaction(5, 0) + damage,), hold=True)) as server:
        with pytest.raises(CorruptData, match="an object is damaged") as ended:
            connect(server.url).take(2)
        assert ended.value.code is Code.CORRUPT_LOG and ended.value.hint == "repair it"


@pytest.mark.parametrize("code", ["store_unavailable", "a_code_of_a_later_version"])
def test_a_stream_that_ended_with_an_error_that_may_pass_is_opened_again(connect, code):
    passing = event("error", None, code=code, message="for a moment")
    with ScriptedServer(
        Stream((transaction(5, 0) + passing,), hold=True), Stream((transaction(6, 5),), hold=True)
    ) as s:
        assert [got.version for got in connect(s.url).take(2)] == [5, 6]


def test_a_lagging_reader_comes_back_where_it_was(connect):
    lagging = event("lagging", None, unsent_bytes=1)
    with ScriptedServer(
        Stream((transaction(5, 0) + lagging,), hold=True), Stream((transaction(6, 5),), hold=True)
    ) as s:
        assert [got.version for got in connect(s.url).take(2)] == [5, 6]


def test_a_rollback_is_yielded_and_the_proof_goes_on_from_what_is_left(connect):
    before = (
        transaction(5, 0),
        transaction(7, 5, durable=False),
        checkpoint(7, durable=False),
        transaction(8, 7, durable=False),
        transaction(9, 8, durable=False),
        leader_change(8),
    )
    after = Stream((transaction(100, 8),), hold=True)
    with ScriptedServer(Stream(before), after) as server:
        events = connect(server.url).take(6, durable=False)
        assert events[4] == RolledBack(8, NEXT_LEADER)
        assert [got.durable for got in events[:4]] == [True, False, False, False]
        assert events[5].version == 100
        assert query_of(server, 1) == {"after": "8", "durable": "false"}


def test_a_gap_behind_a_rollback_is_found(connect):
    parts = (transaction(5, 0), transaction(7, 5, durable=False), leader_change(5), transaction(100, 99))
    with ScriptedServer(Stream(parts, hold=True)) as server, pytest.raises(CorruptData):
        connect(server.url).take(4, durable=False)


def test_durable_transactions_are_never_rolled_back_unnoticed(connect):
    with (
        ScriptedServer(Stream((transaction(5, 0), leader_change(4)), hold=True)) as server,
        pytest.raises(CorruptData),
    ):
        connect(server.url).take(2)


@pytest.mark.parametrize(
    ("reply", "kind", "code"),
    [
        (coded(410, "log_truncated"), NotFound, Code.LOG_TRUNCATED),
        (coded(401, "unauthenticated"), PermissionDenied, Code.UNAUTHENTICATED),
        (coded(409, "rolled_back", roll_back_to=7), InvalidRequest, Code.ROLLED_BACK),
    ],
)
def test_a_start_point_that_cannot_be_served_is_an_error(connect, reply, kind, code):
    with ScriptedServer(reply) as server:
        with pytest.raises(kind) as caught:
            connect(server.url).take(1, 9)
        assert caught.value.code is code
        assert caught.value.fields["roll_back_to"] == (7 if code is Code.ROLLED_BACK else None)


def test_refusals_that_pass_are_waited_out_and_leaders_followed(connect):
    with ScriptedServer(Stream((transaction(5, 0),), hold=True)) as leader:
        script = (coded(503, "overloaded"), Reply(502, b""), coded(503, "not_leader", leader_address=leader.address))
        with ScriptedServer(*script) as other:
            assert connect(other.url).take(1)[0].version == 5
            assert other.finished()


def test_a_stream_that_never_opens_gives_up(connect):
    options = dataclasses.replace(QUICK, stream_give_up_after_ms=30)
    with ScriptedServer(*[Drop()] * 200) as server, pytest.raises(Unavailable):
        connect(server.url, options=options).take(1)


def test_batches_lose_nothing_when_the_caller_stops_between_two_events():
    from holdfast.client import Client

    with (
        ScriptedServer(Stream((transaction(5, 0) + transaction(9, 5) + checkpoint(9),), hold=True)) as server,
        Client(server.url, options=QUICK) as client,
        client.subscribe() as events,
    ):
        assert next(events).version == 5
        assert events.position == LogPosition(5)
        rest = next(iter(events.batches()))
        assert [type(item).__name__ for item in rest] == ["TransactionEvent", "Checkpoint"]
        assert events.position == LogPosition(9)
        assert events.committed_version == 9


def test_a_filter_is_a_prefix_or_a_range():
    from holdfast.client import Client

    with Client("http://127.0.0.1:1") as client, pytest.raises(InvalidRequest):
        client.subscribe(prefix=b"a", begin=b"a")


@given(st.data())
def test_events_do_not_depend_on_how_their_bytes_were_cut(data):
    text = (
        b": hello\r\n\r\n"
        + b"".join(transaction(v, v - 1) for v in range(1, 6))
        + b"data: a\ndata:b\n\n"
        + checkpoint(9)
    )
    whole = ServerSentEvents(1 << 20).feed(text)
    decoder = ServerSentEvents(1 << 20)
    got = []
    start = 0
    while start < len(text):
        size = data.draw(st.integers(1, 200))
        got += decoder.feed(text[start : start + size])
        start += size
    assert got == whole
    assert len(whole) == 7
    assert whole[5] == (b"", b"5", b"a\nb")


def test_an_event_beyond_the_bound_is_refused():
    decoder = ServerSentEvents(100)
    for _ in range(2):
        assert decoder.feed(b"data: " + b"x" * 30) == []
    with pytest.raises(CorruptData):
        decoder.feed(b"x" * 40)


@given(st.binary(max_size=60))
def test_no_bytes_escape_as_anything_but_corrupt_data(noise):
    continuity = Continuity(0, durable=True, filtered=False)
    for kind in (b"transaction", b"published", b"checkpoint", b"leader_change", noise):
        try:
            continuity.accept(kind, b"1", noise)
        except CorruptData:
            pass


@given(st.lists(st.integers(1, 5), min_size=2, max_size=20), st.data())
def test_leaving_out_any_event_is_always_noticed(steps, data):
    versions = [sum(steps[: index + 1]) for index in range(len(steps))]
    texts = [transaction(v, p) for p, v in zip([0, *versions], versions, strict=False)]
    missing = data.draw(st.integers(0, len(texts) - 2))
    continuity = Continuity(0, durable=True, filtered=False)
    decoded = ServerSentEvents(1 << 20).feed(b"".join(texts))
    for item in decoded[:missing]:
        assert continuity.accept(*item) is not None
    with pytest.raises(CorruptData):
        continuity.accept(*decoded[missing + 1])


def test_closing_the_client_ends_its_streams():
    opened = threading.Event()
    ended: list[BaseException] = []

    def read(events: Any) -> None:
        try:
            next(events)
            opened.set()
            next(events)
        except Closed as error:
            ended.append(error)

    options = dataclasses.replace(QUICK, stream_silence_ms=60_000)
    with ScriptedServer(Stream((transaction(5, 0),), hold=True)) as server:
        client = Client(server.url, options=options)
        reader = threading.Thread(target=read, args=(client.subscribe(),))
        reader.start()
        assert opened.wait(30)
        client.close()
        reader.join(30)
        assert [type(error) for error in ended] == [Closed]


def test_a_closed_client_opens_no_stream():
    with ScriptedServer(Stream((transaction(5, 0),), hold=True)) as server:
        client = Client(server.url, options=QUICK)
        client.close()
        with pytest.raises(Closed):
            next(client.subscribe())
        assert not server.asked


def test_a_closed_stream_has_no_next_event():
    with ScriptedServer(Stream((transaction(5, 0),), hold=True)) as server, Client(server.url, options=QUICK) as client:
        events = client.subscribe()
        assert next(events).version == 5
        events.close()
        assert next(events, None) is None


def test_a_reader_that_was_interrupted_goes_on_behind_the_last_event(monkeypatch):
    receive = Connection.receive
    interrupts = [KeyboardInterrupt()]

    def interrupted(self: Connection, reader: Any, timeout_s: float) -> None:
        if reader.status and interrupts:
            raise interrupts.pop()
        receive(self, reader, timeout_s)

    with ScriptedServer(Stream((transaction(5, 0),), hold=True), Stream((transaction(7, 5),), hold=True)) as server:
        with Client(server.url, options=QUICK) as client, client.subscribe() as events:
            assert next(events).version == 5
            monkeypatch.setattr(Connection, "receive", interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(events)
            assert next(events).version == 7
        assert server.asked[1].headers["last-event-id"] == "5"


def test_after_a_rollback_the_next_transaction_follows_the_newest_that_is_left(connect):
    before = (transaction(5, 0), transaction(7, 5, durable=False), transaction(8, 7, durable=False), leader_change(7))
    with ScriptedServer(Stream((*before, transaction(100, 5)), hold=True)) as server:
        with pytest.raises(CorruptData) as caught:
            connect(server.url).take(5, durable=False)
        assert caught.value.fields["last_delivered"] == 7
