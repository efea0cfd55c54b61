"""A token goes to addresses that a client was given or trusts, whatever address a response names as the leader's."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from tests.unit.client.conftest import QUICK
from tests.unit.client.scripted_server import Reply, ScriptedServer, Stream, coded
from tests.unit.client.test_subscription import transaction
from tests.unit.client.test_turns import NOT_LEADER, ROUNDED_UP, A, X

from holdfast.client.protocol.effects import Response, Send, Wait
from holdfast.client.protocol.endpoint import ClientRoute, TrustedHosts, parse_endpoint
from holdfast.client.protocol.options import ClientOptions, PublisherOptions, SubscriberOptions
from holdfast.client.protocol.retry_budget import Session
from holdfast.client.protocol.stores.publisher import PublisherMachine
from holdfast.client.protocol.stores.subscriber import Connect, SubscriberMachine
from holdfast.commit.format.transaction import Write
from holdfast.errors import Code, HoldfastError, InvalidRequest, OutcomeUnknown, Unavailable
from holdfast.spark.bulk.leadership import ask_to_step_down
from holdfast.wire.parts import Message

TOKEN = "a-token-that-is-long-enough"
IMPATIENT = dataclasses.replace(QUICK, give_up_after_ms=300, resolve_within_ms=300, stream_give_up_after_ms=300)
WRITE = [Write(b"k", b"v")]
COMMITTED = Reply(200, {"status": "committed", "version": 30, "leader_id": "ab" * 16})
CALLS: list[tuple[str, Callable[[Any], object]]] = [
    ("commit", lambda client: client.call("commit", WRITE, read_version=3)),
    ("version", lambda client: client.call("version", local=True)),
    ("subscribe", lambda client: client.take(1)),
    ("get", lambda client: client.call("get", b"k")),
]


@pytest.mark.parametrize("call", [call for _, call in CALLS], ids=[name for name, _ in CALLS])
def test_a_leader_that_is_only_named_gets_no_request_and_the_error_names_it_and_the_setting(
    connect: Callable[..., Any], call: Callable[[Any], object]
) -> None:
    with ScriptedServer() as thief, ScriptedServer() as server:
        server.add(*[coded(503, "not_leader", leader_address=thief.address)] * 300)
        client = connect(server.url, token=TOKEN, options=IMPATIENT)
        with pytest.raises(Unavailable) as refused:
            call(client)
        assert thief.connections == 0
        assert server.asked
        assert thief.address in refused.value.hint and "trusted_hosts" in refused.value.hint


def test_an_attempt_that_may_have_been_accepted_is_unknown_with_its_id(connect: Callable[..., Any]) -> None:
    with ScriptedServer() as thief, ScriptedServer() as server:
        changed = coded(409, "leader_changed", leader_address=thief.address)
        server.add(changed, *[coded(503, "not_leader", leader_address=thief.address)] * 300)
        client = connect(server.url, token=TOKEN, options=IMPATIENT)
        with pytest.raises(OutcomeUnknown) as unknown:
            client.call("commit", WRITE, read_version=3)
        assert unknown.value.fields["request_id"] == server.asked[0].json()["request_id"]
        assert thief.address in unknown.value.hint and "trusted_hosts" in unknown.value.hint
        assert thief.connections == 0


def test_a_leader_among_the_given_addresses_and_one_that_is_trusted_are_followed(connect: Callable[..., Any]) -> None:
    for pattern in (None, "127.0.0.0/8:{port}", "127.0.0.1:{port}"):
        with ScriptedServer(COMMITTED, Stream((transaction(5, 0),), hold=True)) as leader, ScriptedServer() as other:
            other.add(*[coded(503, "not_leader", leader_address=leader.address)] * 2)
            port = leader.address.rpartition(":")[2]
            trusted = () if pattern is None else (pattern.format(port=port),)
            url = f"{other.url}, {leader.url}" if pattern is None else other.url
            client = connect(url, token=TOKEN, options=dataclasses.replace(QUICK, trusted_hosts=trusted))
            assert client.call("commit", WRITE, read_version=3).version == 30
            assert [event.version for event in client.take(1)] == [5]
            assert leader.asked[0].headers["authorization"] == f"Bearer {TOKEN}"


def test_a_success_forgets_what_was_named_before(connect: Callable[..., Any]) -> None:
    with ScriptedServer() as thief, ScriptedServer() as server:
        server.add(coded(503, "not_leader", leader_address=thief.address), COMMITTED, *[Reply(503, b"")] * 300)
        client = connect(server.url, token=TOKEN, options=IMPATIENT)
        assert client.call("commit", WRITE, read_version=3).version == 30
        with pytest.raises(Unavailable) as refused:
            client.call("version", local=True)
        assert thief.address not in refused.value.hint


def test_an_error_that_names_a_leader_is_explained_although_another_operation_succeeded_since() -> None:
    for configured, is_explained in (((A,), True), ((A, X), False)):
        route = ClientRoute(configured)
        error = Unavailable("not the leader", code=Code.NOT_LEADER, leader_address=str(X))
        route.follow(A, str(X))
        route.succeeded()
        route.explain(error)
        assert ("trusted_hosts" in error.hint and str(X) in error.hint) is is_explained


def _publish(session: Session) -> HoldfastError | None:
    machine = PublisherMachine(session, "s", PublisherOptions(retry_duration=1), entropy="e")
    machine.add(Message(b"1"), 0)
    for now_ms in (0, 10_000):
        send = machine.next_step(now_ms)
        assert isinstance(send, Send) and send.endpoint == A
        machine.on_response(Response(now_ms, 503, ROUNDED_UP, NOT_LEADER))
        step = machine.next_step(now_ms)
        if isinstance(step, Wait):
            assert step.at_least_ms, "no other address is asked at once"
            machine.waited()
    return machine.first_error


def _subscribe(session: Session) -> HoldfastError | None:
    machine = SubscriberMachine(session, "/x?subscriber=me", SubscriberOptions(retry_duration=1))
    for now_ms in (0, 10_000):
        connect = machine.next_step(now_ms)
        assert isinstance(connect, Connect) and connect.endpoint == A
        machine.refused(now_ms, 503, ROUNDED_UP, NOT_LEADER)
        step = machine.next_step(now_ms)
        if isinstance(step, Wait):
            assert step.at_least_ms, "no other address is asked at once"
            machine.waited()
    return machine.failure


@pytest.mark.parametrize("operation", [_publish, _subscribe])
def test_publishers_and_sockets_go_nowhere_else_either(operation: Callable[[Session], HoldfastError | None]) -> None:
    session = Session(ClientRoute((A,)), ClientOptions())
    error = operation(session)
    assert session.route.current == A
    assert error is not None and str(X) in error.hint and "trusted_hosts" in error.hint


@pytest.mark.parametrize("kind", ["publisher", "subscriber"])
def test_what_waits_without_end_logs_the_setting(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    session = Session(ClientRoute((A,)), ClientOptions())
    publisher = PublisherMachine(session, "s", PublisherOptions(), entropy="e")
    subscriber = SubscriberMachine(session, "/x?subscriber=me", SubscriberOptions())
    publisher.add(Message(b"1"), 0)
    for now_ms in range(0, 600_000, 10_000):
        if kind == "publisher":
            assert isinstance(publisher.next_step(now_ms), Send)
            publisher.on_response(Response(now_ms, 503, ROUNDED_UP, NOT_LEADER))
        else:
            assert isinstance(subscriber.next_step(now_ms), Connect)
            subscriber.refused(now_ms, 503, ROUNDED_UP, NOT_LEADER)
        machine = publisher if kind == "publisher" else subscriber
        assert isinstance(machine.next_step(now_ms), Wait)
        machine.waited()
    said = [record.getMessage() for record in caplog.records]
    assert said and all(str(X) in line and "trusted_hosts" in line for line in said)
    assert len(said) == 1 or kind == "publisher", "a subscriber says it once"


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "log.example",
        "log.example:",
        "log.example:0",
        "log.example:70000",
        "a/b:80",
        "http://a:80",
        "*:80",
        "a.*:80",
    ],
)
def test_a_pattern_that_could_mean_anything_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ClientOptions(trusted_hosts=(pattern,))
    assert refused.value.code is Code.BAD_CONFIGURATION
    assert "NAME:PORT" in refused.value.hint


def test_what_patterns_allow() -> None:
    trusted = TrustedHosts(["Log-2.example:8080", "*.log.example:8080", "10.0.0.0/24:8080", "fd00::/64:80", "[::1]:9"])
    allowed = ("log-2.example:8080", "a.b.log.example:8080", "10.0.0.255:8080", "[fd00::7]:80", "[::1]:9")
    refused = (
        "log-2.example:80", "xlog.example:8080", "log.example:8080", "10.0.1.0:8080", "[fd01::7]:80", "unix:/a",
        "log-2.example.evil:8080", "10.0.0.1.evil:8080",
    )  # fmt: skip
    assert [text for text in (*allowed, *refused) if trusted.allows(parse_endpoint(text))] == list(allowed)


@pytest.mark.parametrize("trusted", [False, True])
def test_a_job_sends_its_token_only_to_a_leader_that_the_machine_trusts(
    trusted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive = Reply(200, {"leader_id": "ab" * 16, "leading": True, "address": "here"}, close=True)
    with ScriptedServer(alive, Reply(200, {"stepped_down": True, "leader_id": "ab" * 16}), alive) as leader:
        monkeypatch.setenv("HOLDFAST_TRUSTED_HOSTS", leader.address if trusted else "log.example:8080")
        asyncio.run(ask_to_step_down(leader.address, 5_000.0, token=TOKEN))
        sent = [asked for asked in leader.asked if "authorization" in asked.headers]
        assert [asked.target.partition("?")[0] for asked in sent] == (["/v1/admin/step-down"] if trusted else [])
    with suppress(InvalidRequest):
        asyncio.run(ask_to_step_down("nonsense", 100.0, token=TOKEN))
