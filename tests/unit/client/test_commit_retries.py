"""The table of ``client.core``, row by row, on a real socket."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
import time
import urllib.parse

import pytest
from tests.unit.client.conftest import QUICK
from tests.unit.client.scripted_server import CutInside, Drop, Reply, ScriptedServer, Silence, coded

from holdfast import StoreClient, aio
from holdfast.client import Client, CommitReceipt, NotCommitted
from holdfast.client.protocol.endpoint import ClientRoute, anywhere, parse_endpoint
from holdfast.client.protocol.http1 import BadResponse, ResponseReader
from holdfast.client.transport import aio as transports
from holdfast.client.transport import sync as sockets
from holdfast.commit.format.transaction import PointRead, RangeDelete, Transaction, Write
from holdfast.errors import (
    Backpressure,
    Code,
    Conflict,
    Fenced,
    InvalidRequest,
    LimitExceeded,
    OutcomeUnknown,
    PermissionDenied,
    Unavailable,
)

LEADER = "ab" * 16
WRITE = [Write(b"k", b"v")]
VERSION = Reply(200, {"version": 50, "leader_id": LEADER})


def committed(version: int) -> Reply:
    return Reply(200, {"status": "committed", "version": version, "leader_id": LEADER, "request_id": None})


def not_committed(version: int, reason: str = "conflict") -> Reply:
    conflicts = [{"precondition": 0, "version": version}] if reason == "conflict" else []
    return Reply(
        200,
        {
            "status": "not_committed",
            "reason": reason,
            "conflicts": conflicts,
            "version": version,
            "leader_id": LEADER,
            "request_id": None,
        },
    )


def status(reply: str, version: int | None = None) -> Reply:
    return Reply(200, {"status": reply} if version is None else {"status": reply, "version": version})


def commits_of(server: ScriptedServer) -> list[dict[str, object]]:
    return [asked.json() for asked in server.asked if asked.target == "/v1/commit"]


def asked_status_of(server: ScriptedServer) -> list[tuple[str, str]]:
    parts = [urllib.parse.urlsplit(asked.target) for asked in server.asked if "/v1/status/" in asked.target]
    return [(urllib.parse.unquote(part.path.rsplit("/", 1)[1]), part.query) for part in parts]


def test_a_commit_without_a_read_version_asks_for_one_once_and_names_its_attempt(connect):
    with ScriptedServer(VERSION, committed(60), committed(61)) as server:
        client = connect(server.url)
        assert client.call("commit", WRITE).version == 60
        assert client.call("commit", WRITE).version == 61
        first, second = commits_of(server)
        assert (first["read_version"], second["read_version"]) == (50, 60)
        assert len(str(first["request_id"])) >= 24
        assert first["request_id"] != second["request_id"]
        assert server.connections == 1


@pytest.mark.parametrize(
    "trouble",
    [
        Drop(),
        Drop(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{"),
        Drop(b"\x00garbage\r\n\r\n"),
        Silence(),
        coded(504, "outcome_unknown"),
        coded(500, "internal"),
        coded(503, "store_unavailable"),
        coded(409, "leader_changed"),
        Reply(502, b"<html>bad gateway</html>"),
        Reply(503, b"<html>service unavailable</html>", {"retry-after": "0"}),
        Reply(429, b"slow down"),
        Reply(200, b"not json"),
        Reply(503, {"error": {"code": "a_code_of_the_future", "message": ""}}),
    ],
    ids=lambda step: f"{type(step).__name__}-{getattr(step, 'status', '')}-{str(getattr(step, 'body', ''))[10:35]}",
)
def test_after_an_unknown_outcome_the_client_asks_and_never_sends_again(connect, trouble):
    with ScriptedServer(trouble, status("committed", 77)) as server:
        receipt = connect(server.url).call("commit", WRITE, read_version=40)
        assert receipt.version == 77
        (sent,) = commits_of(server)
        assert asked_status_of(server) == [(sent["request_id"], "min_version=40")]


def test_asking_goes_on_until_the_outcome_is_final(connect):
    script = (Drop(), Drop(), coded(503, "overloaded"), coded(409, "leader_changed"), Silence(), status("committed", 9))
    with ScriptedServer(*script) as server:
        assert connect(server.url).call("commit", WRITE, read_version=4).version == 9
        assert len(commits_of(server)) == 1
        assert server.finished()


def test_an_attempt_that_asking_closed_is_made_anew_with_another_request_id(connect):
    with ScriptedServer(Drop(), status("not_committed"), committed(81)) as server:
        assert connect(server.url).call("commit", WRITE, read_version=40).version == 81
        first, second = commits_of(server)
        assert first["request_id"] != second["request_id"]
        assert first["operations"] == second["operations"]


def test_a_callers_own_request_id_is_used_for_one_attempt_only(connect):
    own = "the-callers-own-request-id"
    with ScriptedServer(Drop(), status("not_committed")) as server:
        with pytest.raises(Conflict) as caught:
            connect(server.url).call("commit", WRITE, read_version=40, request_id=own)
        assert caught.value.code is Code.BANNED
        assert [sent["request_id"] for sent in commits_of(server)] == [own]


@pytest.mark.parametrize("refusal", [coded(503, "overloaded"), coded(429, "rate_limited"), coded(503, "not_leader")])
def test_a_refusal_before_acceptance_repeats_the_very_same_attempt(connect, refusal):
    with ScriptedServer(refusal, refusal, committed(12)) as server:
        assert connect(server.url).call("commit", WRITE, read_version=3).version == 12
        sent = [asked.body for asked in server.asked]
        assert len(sent) == 3
        assert len(set(sent)) == 1


def test_a_refusal_is_waited_out_as_long_as_it_asks(connect):
    clock_before = time.monotonic()
    with ScriptedServer(coded(503, "overloaded", retry_after_ms=120), committed(12)) as server:
        patient = dataclasses.replace(QUICK, request_timeout_ms=60_000, give_up_after_ms=60_000)
        connect(server.url, options=patient).call("commit", WRITE, read_version=3)
    assert time.monotonic() - clock_before >= 0.12


def test_an_unbounded_refusal_ends_with_the_refusal(connect):
    impatient = dataclasses.replace(QUICK, give_up_after_ms=30)
    with ScriptedServer(*[coded(503, "overloaded")] * 200) as server:
        with pytest.raises(Backpressure):
            connect(server.url, options=impatient).call("commit", WRITE, read_version=3)
        assert asked_status_of(server) == []


def test_nobody_listening_is_not_an_unknown_outcome(connect):
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    impatient = dataclasses.replace(QUICK, give_up_after_ms=30)
    with pytest.raises(Unavailable):
        connect(f"http://127.0.0.1:{port}", options=impatient).call("commit", WRITE, read_version=3)


def test_a_place_that_is_down_is_left_for_the_next_one(connect):
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with ScriptedServer(committed(5)) as server:
        client = connect([f"http://127.0.0.1:{port}", server.url])
        assert client.call("commit", WRITE, read_version=3).version == 5


def test_an_outcome_that_nobody_can_tell_carries_all_that_is_needed_to_ask_later(connect):
    impatient = dataclasses.replace(QUICK, resolve_within_ms=30)
    own = "the-callers-own-request-id"
    with ScriptedServer(Drop(), *[coded(503, "overloaded")] * 200) as server:
        with pytest.raises(OutcomeUnknown) as caught:
            connect(server.url, options=impatient).call("commit", WRITE, read_version=3, request_id=own)
        assert caught.value.fields == {"request_id": own, "min_version": 3}


def test_a_truncated_log_leaves_the_outcome_unknown(connect):
    with ScriptedServer(Drop(), status("log_truncated")) as server:
        with pytest.raises(OutcomeUnknown) as caught:
            connect(server.url).call("commit", WRITE, read_version=3)
        assert caught.value.code is Code.LOG_TRUNCATED


def test_losing_the_right_to_ask_does_not_hide_that_the_outcome_is_unknown(connect):
    with ScriptedServer(Drop(), coded(401, "unauthenticated")) as server:
        with pytest.raises(OutcomeUnknown) as caught:
            connect(server.url).call("commit", WRITE, read_version=3)
        assert isinstance(caught.value.__cause__, PermissionDenied)


def test_a_named_leader_is_followed_at_once_with_the_same_attempt(connect):
    with (
        ScriptedServer(committed(30), committed(31)) as leader,
        ScriptedServer(coded(503, "not_leader", leader_address=leader.address, retry_after_ms=60_000)) as other,
    ):
        client = connect(other.url)
        assert client.call("commit", WRITE, read_version=3).version == 30
        assert client.call("commit", WRITE, read_version=3).version == 31
        assert other.asked[0].body == leader.asked[0].body


def test_a_deposed_leaders_word_sends_the_question_not_the_commit_to_the_next(connect):
    with (
        ScriptedServer(status("committed", 30)) as leader,
        ScriptedServer(coded(409, "leader_changed", leader_address=leader.address)) as other,
    ):
        assert connect(other.url).call("commit", WRITE, read_version=3).version == 30
        assert [asked.target.split("?")[0][:11] for asked in leader.asked] == ["/v1/status/"]


def test_two_servers_that_name_each_other_are_not_followed_for_ever(connect):
    impatient = dataclasses.replace(QUICK, give_up_after_ms=60, retry_base_ms=20, retry_max_ms=20)
    with ScriptedServer() as one, ScriptedServer() as two:
        one.add(*[coded(503, "not_leader", leader_address=two.address)] * 100)
        two.add(*[coded(503, "not_leader", leader_address=one.address)] * 100)
        with pytest.raises(Unavailable):
            connect(one.url, options=impatient).call("commit", WRITE, read_version=3)
        assert len(one.asked) + len(two.asked) <= 60


def test_a_token_is_not_taken_to_a_place_without_tls():
    secure = parse_endpoint("https://log.example")
    route = ClientRoute((secure,), anywhere)
    assert not route.follow(secure, "http://elsewhere.example:8080")
    assert route.current == secure
    assert route.follow(secure, "other.example:8443")
    assert str(route.current) == "https://other.example:8443"


def test_another_leader_than_the_named_one_is_an_error_once_nothing_was_committed(connect):
    with ScriptedServer(coded(409, "leader_changed"), status("not_committed")) as server, pytest.raises(Fenced):
        connect(server.url).call("commit", WRITE, read_version=3, leader_id="cd" * 16)


@pytest.mark.parametrize("trouble", [coded(504, "outcome_unknown"), coded(500, "internal")], ids=["504", "500"])
def test_an_outcome_that_was_proved_is_never_told_as_unknown_because_a_leader_was_named(connect, trouble):
    with ScriptedServer(trouble, status("not_committed"), committed(81)) as server:
        receipt = connect(server.url).call("commit", WRITE, read_version=3, leader_id=LEADER)
        assert receipt.version == 81


def test_a_conflict_names_the_version_to_retry_from_and_the_preconditions_that_failed(connect):
    with ScriptedServer(not_committed(90)) as server:
        with pytest.raises(Conflict) as caught:
            connect(server.url).call("commit", WRITE, [PointRead(b"k")], read_version=3)
        assert caught.value.fields["version"] == 90
        assert caught.value.fields["conflicts"] == ((0, 90),)
        assert len(server.asked) == 1


def test_a_read_version_of_our_own_choosing_that_is_too_old_is_chosen_again(connect):
    with ScriptedServer(VERSION, not_committed(900, "too_old"), committed(901)) as server:
        assert connect(server.url).call("commit", WRITE).version == 901
        assert [sent["read_version"] for sent in commits_of(server)] == [50, 900]


def test_a_version_chosen_before_the_leader_changed_is_chosen_again_for_an_attempt_made_anew_too(connect):
    with ScriptedServer(
        VERSION, Drop(), status("not_committed"), not_committed(900, "too_old"), committed(901)
    ) as server:
        assert connect(server.url).call("commit", WRITE).version == 901
        assert [sent["read_version"] for sent in commits_of(server)] == [50, 50, 900]
        assert len({sent["request_id"] for sent in commits_of(server)}) == 3


def test_a_callers_read_version_that_is_too_old_is_the_callers_business(connect):
    with ScriptedServer(not_committed(900, "too_old")) as server:
        with pytest.raises(Conflict) as caught:
            connect(server.url).call("commit", WRITE, read_version=3)
        assert caught.value.code is Code.TOO_OLD


@pytest.mark.parametrize(
    ("operations", "preconditions", "code"),
    [
        ([], [], Code.NO_OPERATIONS),
        ([RangeDelete(b"b", b"a")], [], Code.BAD_RANGE),
        (WRITE, [PointRead(b"k")], Code.READ_VERSION_REQUIRED),
    ],
)
def test_what_the_service_would_refuse_is_refused_before_it_is_sent(connect, operations, preconditions, code):
    with ScriptedServer() as server:
        with pytest.raises(InvalidRequest) as caught:
            connect(server.url).call("commit", operations, preconditions)
        assert caught.value.code is code
        assert server.asked == []


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (coded(400, "malformed"), InvalidRequest),
        (coded(401, "unauthenticated"), PermissionDenied),
        (coded(409, "request_id_reused"), InvalidRequest),
    ],
)
def test_a_refusal_for_good_is_raised_and_nothing_is_asked(connect, reply, kind):
    with ScriptedServer(reply) as server:
        with pytest.raises(kind):
            connect(server.url).call("commit", WRITE, read_version=3)
        assert len(server.asked) == 1


def test_a_connection_that_the_server_closed_while_idle_is_not_used_again(connect):
    with ScriptedServer(committed(5), committed(6)) as server:
        server._steps[0] = dataclasses.replace(server._steps[0], close=True)
        client = connect(server.url)
        assert client.call("commit", WRITE, read_version=3).version == 5
        assert client.call("commit", WRITE, read_version=3).version == 6
        assert server.connections == 2
        assert asked_status_of(server) == []


def test_a_unix_socket_and_a_token_work(connect, tmp_path):
    with ScriptedServer(committed(5), unix_path=str(tmp_path / "s")) as server:
        assert connect(server.url, token="secret").call("commit", WRITE, read_version=3).version == 5
        assert server.asked[0].headers["authorization"] == "Bearer secret"


# ---- streams of commits


def lines(*replies: Reply) -> bytes:
    return b"".join(reply.encoded().partition(b"\r\n\r\n")[2] + b"\n" for reply in replies)


def test_every_item_of_a_stream_gets_its_own_result_in_order(connect):
    error = b'{"error":{"code":"bad_range","message":"no"},"index":2}\n'
    with ScriptedServer(VERSION, Reply(200, lines(committed(60), not_committed(60)) + error)) as server:
        results = connect(server.url).results([Transaction(WRITE)] * 3)
        assert [type(result) for result in results] == [CommitReceipt, NotCommitted, InvalidRequest]
        items = [json.loads(line) for line in server.asked[1].body.splitlines()]
        assert len({item["request_id"] for item in items}) == 3
        assert {item["read_version"] for item in items} == {50}


def test_items_without_a_line_are_asked_about_one_by_one(connect):
    body = lines(committed(60)) + b'{"status":"comm'
    broken = Drop(b"HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n" + body)
    with ScriptedServer(VERSION, broken, status("committed", 61), status("not_committed")) as server:
        results = connect(server.url).results([Transaction(WRITE)] * 3)
        assert [result.version for result in results[:2]] == [60, 61]
        assert results[2].reason == "banned"
        items = [json.loads(line) for line in server.asked[1].body.splitlines()]
        assert asked_status_of(server) == [(item["request_id"], "min_version=50") for item in items[1:]]


def test_an_item_of_unknown_outcome_is_asked_about(connect):
    unknown = b'{"error":{"code":"outcome_unknown","message":"?"},"index":0}\n'
    with ScriptedServer(VERSION, Reply(200, unknown), status("committed", 61)) as server:
        (result,) = connect(server.url).results([Transaction(WRITE)])
        assert result.version == 61


def test_a_stream_of_commits_that_broke_on_the_way_out_is_asked_about_and_never_sent_again(connect, tmp_path):
    """The service takes items as they arrive: those before the break may be committed."""
    large = [Write(b"k", bytes(4 << 20))]
    with ScriptedServer(VERSION, CutInside(), status("committed", 61), unix_path=str(tmp_path / "s")) as server:
        (result,) = connect(server.url).results([Transaction(large)])
        assert isinstance(result, CommitReceipt)
        assert result.version == 61
        assert [asked.target for asked in server.asked].count("/v1/commits") == 1


def test_an_item_with_a_code_of_the_future_is_asked_about(connect):
    unheard_of = b'{"error":{"code":"a_code_of_the_future","message":"?"},"index":0}\n'
    with ScriptedServer(VERSION, Reply(200, unheard_of), status("committed", 61)) as server:
        (result,) = connect(server.url).results([Transaction(WRITE)])
        assert result.version == 61


def test_a_long_stream_is_cut_into_bounded_requests_that_follow_the_log(connect):
    options = dataclasses.replace(QUICK, commits_per_request_max=2)
    script = (VERSION, Reply(200, lines(committed(60), committed(61))), Reply(200, lines(committed(62))))
    with ScriptedServer(*script) as server:
        results = connect(server.url, options=options).results([Transaction(WRITE)] * 3)
        assert [result.version for result in results] == [60, 61, 62]
        assert b'"read_version":61' in server.asked[2].body


# ---- answers


def test_bytes_behind_an_answer_are_never_taken_for_it():
    reader = ResponseReader(1000)
    with pytest.raises(BadResponse):
        reader.feed(committed(60).encoded() + coded(503, "overloaded").encoded())
    assert reader.status == 200
    assert json.loads(reader.take())["version"] == 60


# ---- connections


def test_connections_that_a_burst_left_behind_are_not_kept_for_ever(monkeypatch):
    now_ms = [0.0]
    monkeypatch.setattr(sockets, "now_ms", lambda: now_ms[0])
    with ScriptedServer() as server:
        place = parse_endpoint(server.url)
        pool = sockets.Pool(QUICK, None, None)
        old, new = (sockets.Connection(sockets.Awaited(place, 0.0), None, 5.0) for _ in range(2))
        pool.give_back(place, old)
        now_ms[0] += QUICK.idle_connection_ms
        pool.give_back(place, new)
        assert old.socket.fileno() == -1
        assert new.socket.fileno() != -1
        pool.close()


def test_an_answer_above_the_bound_is_not_asked_for_again(connect):
    options = dataclasses.replace(QUICK, response_bytes_max=1_000)
    large = Reply(200, {"version": 50, "leader_id": "x" * 1_000})
    with ScriptedServer(large, large, status("committed", 61)) as server:
        client = connect(server.url, options=options)
        with pytest.raises(LimitExceeded, match="response_bytes_max=1000"):
            client.call("version")
        assert len(server.asked) == 1
        assert client.call("commit", WRITE, read_version=50).version == 61  # whose outcome has a short form
        assert len(asked_status_of(server)) == 1


def test_an_answer_of_the_stores_above_the_bound_is_not_asked_for_again():
    options = dataclasses.replace(QUICK, response_bytes_max=1_000)
    with ScriptedServer(Reply(200, {"x": "x" * 1_000})) as server, StoreClient(server.url, options=options) as client:
        with pytest.raises(LimitExceeded):
            client.describe_store("orders")
        assert len(server.asked) == 1


@pytest.mark.parametrize("unix", [False, True])
def test_who_is_refused_before_it_was_read_hears_why(tmp_path, unix):
    """Of sockets. A transport of asyncio tells of a broken one at its next write, whatever has arrived."""
    refused = CutInside(coded(413, "too_large").encoded())
    path = str(tmp_path / "s") if unix else None
    large = [Write(b"k", bytes(16 << 20))]  # more than the kernel holds
    with ScriptedServer(refused, refused, committed(60), unix_path=path) as server, Client(server.url) as client:
        for _ in range(2):
            with pytest.raises(LimitExceeded):
                client.commit(large, read_version=50)
        assert client.commit(WRITE, read_version=50).version == 60
        assert server.connections == 3  # one that was not read to its end carries nothing more


def test_connections_that_an_asynchronous_burst_left_behind_are_not_kept_for_ever(monkeypatch):
    now_ms = [0.0]
    monkeypatch.setattr(transports, "now_ms", lambda: now_ms[0])

    async def scenario() -> None:
        with ScriptedServer() as server:
            place = parse_endpoint(server.url)
            pool = transports.Pool(QUICK, None, None)
            deadline = asyncio.get_running_loop().time() + 60
            old, new = await pool.connect(place, deadline), await pool.connect(place, deadline)
            pool.give_back(place, old, now_ms[0])
            now_ms[0] += QUICK.idle_connection_ms
            pool.give_back(place, new, now_ms[0])
            assert (old.lost, new.lost) == (True, False)
            pool.close()
            await asyncio.sleep(0)  # lets the transports call connection_lost

    asyncio.run(scenario())


@pytest.mark.parametrize("token", ["secret\n", "a\r\nx-other: b", "two words", "gehe\u0131m", ""])
@pytest.mark.parametrize("kind", [Client, aio.Client], ids=["blocking", "asyncio"])
def test_a_token_that_no_header_can_carry_is_refused_before_anything_is_sent(kind, token):
    with pytest.raises(InvalidRequest) as caught:
        kind("http://127.0.0.1:1", token=token)
    assert not token or token not in str(caught.value)
