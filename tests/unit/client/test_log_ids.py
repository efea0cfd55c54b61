"""What a client does with log ids: it sends the one it heard, and notices a log that was replaced."""

from __future__ import annotations

import pytest
from tests.unit.client.conftest import QUICK
from tests.unit.client.scripted_server import Reply, ScriptedServer, Stream, coded
from tests.unit.client.test_commit_retries import WRITE, asked_status_of, commits_of, committed
from tests.unit.client.test_subscription import checkpoint, event, query_of, transaction
from tests.view_events import apply_txns

from holdfast.client import Client
from holdfast.client.protocol.messages import position_of
from holdfast.commit.format.transaction import PointRead, Transaction, Write
from holdfast.errors import Code, InvalidRequest, OutcomeUnknown
from holdfast.values import LogPosition
from holdfast.view import View

LOG = "1" * 32
OTHER = "2" * 32
VERSION = Reply(200, {"version": 50, "leader_id": "l", "log_id": LOG})
VERSION_OF_OTHER = Reply(200, {"version": 70, "leader_id": "m", "log_id": OTHER})


def mismatch(served: str = OTHER) -> Reply:
    return Reply(409, {"error": {"code": "log_mismatch", "message": "another log", "log_id": served}})


def of_log(text: bytes, log_id: str = LOG) -> bytes:
    """An event of the stream with the log id that its service puts into event ids."""
    first, rest = text.split(b"\n", 1)
    return first + b"@" + log_id.encode() + b"\n" + rest


def log_event(log_id: str = LOG) -> bytes:
    return event("log", None, log_id=log_id)


def test_a_position_is_a_number_a_text_or_what_was_returned():
    assert position_of(7) == position_of("7") == LogPosition(7)
    assert position_of(f"7@{LOG}") == position_of(LogPosition(7, LOG)) == LogPosition(7, LOG)
    for wrong in (-1, "", "x", f"7@{LOG[1:]}", f"@{LOG}"):
        with pytest.raises(InvalidRequest, match="position"):
            position_of(wrong)


def test_a_version_tells_its_log_and_commits_carry_it(connect):
    with ScriptedServer(VERSION, committed(60), committed(61)) as server:
        client = connect(server.url)
        assert client.call("version").position == LogPosition(50, LOG)
        client.call("commit", WRITE)
        client.call("commit", WRITE, read_version=60)
        assert [sent["log_id"] for sent in commits_of(server)] == [LOG, LOG]


def test_a_service_before_log_ids_is_sent_none(connect):
    with ScriptedServer(Reply(200, {"version": 50, "leader_id": "l"}), committed(60)) as server:
        client = connect(server.url)
        assert client.call("version").log_id is None
        client.call("commit", WRITE)
        assert "log_id" not in commits_of(server)[0]


def test_a_number_belongs_to_the_log_last_heard_of(connect):
    found = Reply(200, {"key": "aw==", "value": "dg==", "version": 5})
    status = Reply(200, {"status": "not_committed"})
    with ScriptedServer(found, VERSION, found, found, status) as server:
        client = connect(server.url)
        client.call("get", b"k", at=5)
        client.call("version")
        client.call("get", b"k", at=55)
        client.call("get", b"k", at=f"5@{OTHER}")
        client.call("status", "an-id-of-twenty-chars", 7)
        targets = [asked.target for asked in server.asked if "/v1/keys" in asked.target]
        assert [target.partition("?")[2] for target in targets] == ["at=5", f"at=55@{LOG}", f"at=5@{OTHER}"]
        assert asked_status_of(server) == [("an-id-of-twenty-chars", f"min_version=7@{LOG}")]


def test_a_blind_write_goes_on_in_the_log_that_is_served_now(connect):
    with ScriptedServer(VERSION, committed(60), mismatch(), VERSION_OF_OTHER, committed(71)) as server:
        client = connect(server.url)
        client.call("commit", WRITE)
        assert client.call("commit", WRITE).version == 71
        sent = commits_of(server)
        assert [(one["read_version"], one["log_id"]) for one in sent] == [(50, LOG), (60, LOG), (70, OTHER)]
        assert len({str(one["request_id"]) for one in sent}) == 3


@pytest.mark.parametrize(
    "more",
    [{"read_version": 50}, {"preconditions": [PointRead(b"k", 40)]}, {"log_id": LOG}],
    ids=["read_version", "precondition", "log_id"],
)
def test_a_commit_that_was_read_from_the_log_before_is_refused_and_the_next_one_learns_the_log(connect, more):
    with ScriptedServer(VERSION, mismatch(), VERSION_OF_OTHER, committed(71)) as server:
        client = connect(server.url)
        client.call("version")
        with pytest.raises(InvalidRequest) as caught:
            client.call("commit", WRITE, **more)
        assert (caught.value.code, caught.value.fields["log_id"]) == (Code.LOG_MISMATCH, OTHER)
        assert client.call("commit", WRITE).version == 71
        assert [sent["log_id"] for sent in commits_of(server)] == [LOG, OTHER]


def test_a_stream_of_commits_stays_in_its_log(connect):
    error = {"index": 1, "error": {"code": "log_mismatch", "message": "", "log_id": OTHER}}
    lines = b'{"status":"committed","version":60,"leader_id":"l"}\n' + Reply(200, error).encoded().split(b"\r\n\r\n")[1]
    with ScriptedServer(VERSION, Reply(200, lines + b"\n")) as server:
        first, second = connect(server.url).results([Transaction(WRITE), Transaction(WRITE)])
        assert first.version == 60
        assert second.code is Code.LOG_MISMATCH
        sent = [line.count(LOG.encode()) for line in server.asked[1].body.splitlines()]
        assert sent == [1, 1]


def test_an_outcome_that_the_new_log_cannot_know_stays_unknown(connect):
    with ScriptedServer(VERSION, coded(504, "outcome_unknown"), mismatch()) as server:
        client = connect(server.url)
        with pytest.raises(OutcomeUnknown) as caught:
            client.call("commit", WRITE)
        assert isinstance(caught.value.__cause__, InvalidRequest)
        assert asked_status_of(server)[0][1] == f"min_version=50@{LOG}"


def test_a_transaction_commits_to_the_log_that_it_read(connect):
    def body(txn):
        yield txn.get(b"k")
        txn.write(b"k", b"v")

    found = Reply(200, {"key": "aw==", "value": "dg==", "version": 5})
    with ScriptedServer(VERSION, found, mismatch(), VERSION_OF_OTHER, found, committed(75)) as server:
        connect(server.url).transact(body)
        reads = [asked.target.partition("?")[2] for asked in server.asked if "/v1/keys" in asked.target]
        assert reads == [f"at=50@{LOG}", f"at=70@{OTHER}"]
        assert [sent["log_id"] for sent in commits_of(server)] == [LOG, OTHER]


def test_a_transaction_on_a_view_commits_to_the_log_of_the_view(connect):
    def body(txn):
        yield txn.get(b"k")
        txn.write(b"k", b"v")

    view = View.memory()
    apply_txns(view, [(50, [Write(b"k", b"1")])], prev_version=0, log_id=LOG)
    with ScriptedServer(committed(60)) as server:
        connect(server.url).transact(body, view=view)
        assert commits_of(server)[0]["log_id"] == LOG


def test_a_start_without_an_id_is_accepted_once_and_resumed_with_the_id(connect):
    script = (
        Stream((log_event(), of_log(transaction(5, 0)))),
        Stream((log_event(),)),
        Stream((log_event(), of_log(checkpoint(20)))),
        Stream((log_event(), of_log(transaction(21, 5))), hold=True),
    )
    with ScriptedServer(*script) as server:
        first, second = connect(server.url).take(2, 3)
        assert (first.log_id, second.log_id) == (LOG, LOG)
        assert [query_of(server, index)["after"] for index in range(4)] == ["3", f"5@{LOG}", f"5@{LOG}", f"20@{LOG}"]
        assert [server.asked[index].headers.get("last-event-id") for index in (1, 2, 3)] == [f"5@{LOG}"] * 2 + [None]


def test_an_idle_stream_learns_the_log_from_its_first_event(connect):
    with ScriptedServer(Stream((log_event(),)), Stream((of_log(transaction(5, 0)),), hold=True)) as server:
        connect(server.url).take(1, 3)
        assert [query_of(server, index)["after"] for index in (0, 1)] == ["3", f"3@{LOG}"]


@pytest.mark.parametrize("after", [f"3@{LOG}", LogPosition(3, LOG)])
def test_a_stream_ends_when_the_log_was_replaced(connect, after):
    with ScriptedServer(Stream((log_event(), of_log(transaction(5, 3)))), mismatch()) as server:
        with pytest.raises(InvalidRequest) as caught:
            connect(server.url).take(2, after)
        assert (caught.value.code, caught.value.fields["log_id"]) == (Code.LOG_MISMATCH, OTHER)
        assert len(server.asked) == 2


def test_a_subscription_tells_a_position_with_its_log():
    events_of_stream = log_event() + of_log(transaction(5, 0)) + of_log(transaction(9, 5)) + of_log(checkpoint(9))
    with (
        ScriptedServer(Stream((events_of_stream,), hold=True)) as server,
        Client(server.url, options=QUICK) as client,
        client.subscribe() as events,
    ):
        assert events.position == LogPosition(0)
        next(events)
        assert str(events.position) == f"5@{LOG}"
        assert {item.log_id for item in next(iter(events.batches()))} == {LOG}
        assert events.position == LogPosition(9, LOG)


def test_ids_that_change_along_a_stream_that_the_service_accepted_are_taken_over(connect):
    script = (
        Stream((log_event(OTHER), of_log(transaction(5, 3), LOG), of_log(transaction(9, 5), OTHER))),
        Stream((of_log(transaction(12, 9), OTHER),), hold=True),
    )
    with ScriptedServer(*script) as server:
        assert [got.log_id for got in connect(server.url).take(3, f"3@{LOG}")] == [LOG, OTHER, OTHER]
        assert query_of(server, 1)["after"] == f"9@{OTHER}"


def test_a_read_is_never_older_than_what_the_client_was_answered(connect):
    found = Reply(200, {"key": "aw==", "value": "dg==", "version": 62})
    with ScriptedServer(VERSION, committed(60), found, found, found) as server:
        client = connect(server.url)
        client.call("version")
        client.call("commit", WRITE)
        client.call("get", b"k")
        client.call("get", b"k", at=61)
        client.call("get", b"k", at=70)
        asked = [each.target.partition("?")[2] for each in server.asked if "/v1/keys" in each.target]
        assert asked == [f"at=60@{LOG}", f"at=62@{LOG}", f"at=70@{LOG}"]


def test_a_read_at_a_position_that_the_client_chose_goes_on_in_the_log_that_is_served_now(connect):
    found = Reply(200, {"key": "aw==", "value": "dg==", "version": 5})
    with ScriptedServer(VERSION, mismatch(), found, mismatch()) as server:
        client = connect(server.url)
        client.call("version")
        assert client.call("get", b"k").version == 5
        with pytest.raises(InvalidRequest) as refused:
            client.call("get", b"k", at=f"5@{LOG}")
        assert refused.value.code is Code.LOG_MISMATCH
        asked = [each.target.partition("?")[2] for each in server.asked if "/v1/keys" in each.target]
        assert asked == [f"at=50@{LOG}", "", f"at=5@{LOG}"]


@pytest.mark.parametrize("reads", [True, False])
def test_a_transaction_goes_on_in_the_log_that_is_served_now(connect, reads):
    def body(txn):
        if reads:
            yield txn.get(b"k")
        txn.write(b"k", b"v")

    found = Reply(200, {"key": "aw==", "value": "dg==", "version": 65, "at": 72})
    script = [VERSION, mismatch(), VERSION_OF_OTHER, *([found] if reads else []), committed(75)]
    with ScriptedServer(*script) as server:
        client = connect(server.url)
        client.call("version")
        assert client.transact(body).version == 75
        assert commits_of(server)[-1]["log_id"] == OTHER
        assert commits_of(server)[-1]["read_version"] == (72 if reads else 70)


def test_a_transaction_that_is_refused_by_log_twice_says_so(connect):
    def body(txn):
        yield txn.get(b"k")

    with ScriptedServer(VERSION, mismatch(), VERSION_OF_OTHER, mismatch(LOG)) as server:
        client = connect(server.url)
        client.call("version")
        with pytest.raises(InvalidRequest) as refused:
            client.transact(body)
        assert refused.value.code is Code.LOG_MISMATCH
