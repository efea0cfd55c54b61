"""Which failures of a connection end an operation at once: the rules on the procedures, and the words of sockets."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import ssl
import threading
from collections.abc import Generator, Iterator
from typing import Any

import msgspec
import pytest
from tests.unit.client.conftest import QUICK
from tests.unit.client.scripted_server import Drop, ScriptedServer, Silence
from tests.unit.client.scripted_server import Reply as Said

from holdfast import StoreClient, aio
from holdfast.client.protocol import log_operations, stream
from holdfast.client.protocol.effects import (
    Chunk,
    DeliverEvents,
    Effect,
    Failed,
    Open,
    Opened,
    Receive,
    Reply,
    Request,
    Response,
    Send,
    Wait,
    Woken,
)
from holdfast.client.protocol.endpoint import ClientRoute, anywhere, parse_endpoint
from holdfast.client.protocol.gathered_commits import item_of
from holdfast.client.protocol.http1 import ResponseReader, problem_with
from holdfast.client.protocol.options import PublisherOptions, SubscriberOptions
from holdfast.client.protocol.retry_budget import Session
from holdfast.client.protocol.stores.publisher import PublisherMachine
from holdfast.client.protocol.stores.subscriber import Connect, SubscriberMachine
from holdfast.client.transport import aio as transports
from holdfast.client.transport import sync as sockets
from holdfast.commit.format.transaction import Transaction, Write
from holdfast.errors import Code, HoldfastError, InvalidRequest, OutcomeUnknown, Unavailable
from holdfast.wire.parts import Message

A, B, X = (parse_endpoint(f"https://{name}.example:1") for name in "abx")
BAD = InvalidRequest("the certificate does not verify", code=Code.BAD_CONFIGURATION)
WORSE = InvalidRequest("does not speak TLS", code=Code.BAD_CONFIGURATION)
TXN = Transaction(operations=[Write(b"k", b"v")], request_id="r" * 24, read_version=0)
DOWN = Failed(0, False, "down")


def unusable(problem: InvalidRequest = BAD) -> Failed:
    return Failed(0, False, "unusable", problem=problem)


def response(status: int, body: bytes) -> Response:
    return Response(0, status, {}, body)


def sent_on(to: object) -> Response:
    return response(503, b'{"error": {"code": "not_leader", "message": "", "leader_address": "%b"}}' % str(to).encode())


VERSION = response(200, b'{"version": 7, "leader_id": "x"}')


def places(procedure: Generator[Effect, Reply, Any], *replies: Reply) -> tuple[list[object], Any]:
    """Which places are asked, one answer for each, and the result. Waits pass without time."""
    asked: list[object] = []
    left = list(replies)
    reply: Reply | None = None
    try:
        while True:
            effect = next(procedure) if reply is None else procedure.send(reply)
            if isinstance(effect, Wait | DeliverEvents):
                reply = Woken(0)
            else:
                assert isinstance(effect, Send | Open | Receive)
                if not isinstance(effect, Receive):
                    asked.append(effect.endpoint)
                reply = left.pop(0)
    except StopIteration as stop:
        assert not left
        return asked, stop.value
    except HoldfastError as error:
        assert not left
        return asked, error


def session(*configured: Any) -> Session:
    return Session(ClientRoute(configured, anywhere), QUICK)


def test_the_only_place_that_cannot_be_used_ends_an_operation_at_once() -> None:
    assert places(log_operations.version(session(A), 0, local=True), unusable()) == ([A], BAD)
    assert places(log_operations.attempt(session(A), TXN, 0), unusable()) == ([A], BAD)
    assert places(log_operations.commit_group(session(A), [item_of(TXN)], 0), unusable()) == ([A], BAD)


def test_the_other_places_are_asked_first() -> None:
    assert places(log_operations.version(session(A, B), 0, local=True), unusable(), VERSION)[0] == [A, B]
    assert places(log_operations.version(session(A, B), 0, local=True), unusable(), unusable(WORSE)) == ([A, B], WORSE)
    asked, error = places(
        log_operations.version(session(A, B), 0, local=True), unusable(), DOWN, unusable(), DOWN, VERSION
    )
    assert asked == [A, B, A, B, A]
    assert error.version == 7


def test_who_had_no_connection_free_asks_the_same_place_again() -> None:
    busy = Failed(0, False, "busy", asked=False)
    assert places(log_operations.version(session(A, B), 0, local=True), busy, busy, VERSION)[0] == [A, A, A]
    machine = PublisherMachine(session(A, B), "orders", PublisherOptions(), entropy="e" * 24)
    machine.add(Message(b"1"), 0)
    assert isinstance(machine.next_step(0), Send)
    machine.on_response(busy)
    machine.waited()
    step = machine.next_step(0)
    assert isinstance(step, Send)
    assert step.endpoint == A


def test_a_client_without_a_free_connection_says_so() -> None:
    one = dataclasses.replace(QUICK, connections_max=1)
    request = Request("GET", "/")

    async def asynchronous(server: ScriptedServer) -> Any:
        pool = transports.Pool(one, None, None)
        holding = asyncio.ensure_future(pool.exchange(Send(parse_endpoint(server.url), request, 60_000)))
        await asyncio.sleep(0)  # it has the connection
        reply = await pool.exchange(Send(parse_endpoint(server.url), request, 1))
        pool.close()
        await pool.wait_closed()
        await asyncio.gather(holding, return_exceptions=True)  # closed before or after it was connected
        return reply

    with ScriptedServer(Silence(), Silence()) as server:
        pool = sockets.Pool(one, None, None)
        assert pool._slots.acquire(timeout=1)
        for reply in (pool.exchange(Send(parse_endpoint(server.url), request, 1)), asyncio.run(asynchronous(server))):
            assert isinstance(reply, Failed)
            assert (reply.asked, reply.perhaps_accepted) == (False, False)


def test_a_place_that_answers_again_is_of_use_again() -> None:
    busy = response(503, b'{"error": {"code": "overloaded", "message": ""}}')
    asked, reply = places(
        log_operations.version(session(A, B), 0, local=True), unusable(), DOWN, busy, DOWN, unusable(), VERSION
    )
    assert (asked, reply.version) == ([A, B, A, A, B, A], 7)


def test_a_named_leader_that_cannot_be_used_ends_it_only_when_no_place_names_another() -> None:
    assert places(log_operations.version(session(A), 0, local=True), sent_on(X), unusable()) == ([A, X], BAD)
    asked, reply = places(log_operations.version(session(A, B), 0, local=True), sent_on(X), unusable(), VERSION)
    assert (asked, reply.version) == ([A, X, B], 7)
    steps = (sent_on(X), unusable(), sent_on(X), unusable())
    assert places(log_operations.version(session(A, B), 0, local=True), *steps) == ([A, X, B, X], BAD)


def test_a_stream_ends_at_once_too_and_when_it_comes_back() -> None:
    def following(*configured: Any) -> Generator[Effect, Reply, None]:
        continuity = stream.Continuity(0, durable=True, filtered=False)
        return stream.follow(session(*configured), continuity, stream.Filter(), durable=True, now_ms=0)

    assert places(following(A), unusable()) == ([A], BAD)
    assert places(following(A), Opened(0), Chunk(0, b":\n\n"), Failed(0, False, "cut"), unusable()) == ([A, A], BAD)
    assert places(following(A, B), unusable(), unusable(WORSE)) == ([A, B], WORSE)


def test_a_commit_whose_answer_was_lost_stays_unknown_and_says_why_nobody_can_be_asked() -> None:
    asked, error = places(log_operations.attempt(session(A), TXN, 0), Failed(0, True, "cut"), unusable())
    assert asked == [A, A]
    assert isinstance(error, OutcomeUnknown)
    assert error.__cause__ is BAD


def test_when_time_is_up_a_place_that_waiting_does_not_mend_is_told_too() -> None:
    late = Failed(QUICK.give_up_after_ms, False, "down")
    asked, error = places(log_operations.version(session(A, B), 0, local=True), unusable(), late)
    assert asked == [A, B]
    assert isinstance(error, Unavailable)
    assert error.fields["elsewhere"] == str(BAD)


def test_a_publisher_fails_what_it_has_at_once_and_goes_on_when_it_is_mended() -> None:
    machine = PublisherMachine(session(A, B), "orders", PublisherOptions(), entropy="e" * 24)
    sent = machine.add(Message(b"1"), 0)

    def tried(reply: Response | Failed) -> object:
        step = machine.next_step(0)
        if isinstance(step, Wait):
            machine.waited()
            step = machine.next_step(0)
        assert isinstance(step, Send)
        machine.on_response(reply)
        machine.check()
        return step.endpoint

    assert tried(unusable()) == A
    assert not sent.done
    assert tried(unusable(WORSE)) == B
    assert sent.error is WORSE
    again = machine.add(Message(b"2"), 0)
    assert tried(response(200, b'{"first_seq": 1, "last_seq": 1}')) == A
    assert (again.done, again.error) == (True, None)
    third = machine.add(Message(b"3"), 0)
    assert tried(unusable()) == A
    assert not third.done  # the other was of no use once, and is not known to be now
    assert tried(unusable()) == B
    assert third.error is BAD


def test_a_subscriber_ends_at_once() -> None:
    machine = SubscriberMachine(session(A, B), "/v1/stores/orders/durables/work/subscribe", SubscriberOptions())
    step = machine.next_step(0)
    assert isinstance(step, Connect)
    assert step.endpoint == A
    machine.unreached(0, "unusable", BAD)
    machine.check()
    assert not machine.has_ended
    assert isinstance(machine.next_step(0), Wait)
    machine.waited()
    step = machine.next_step(0)
    assert isinstance(step, Connect)
    assert step.endpoint == B
    machine.unreached(0, "unusable", WORSE)
    assert machine.has_ended
    assert machine.failure is WORSE


ALERT = b"\x15\x03\x01\x00\x02\x02\x0a"
"""What servers of TLS say of a first record that is none: unexpected_message, fatal."""


@pytest.fixture
def alerting() -> Iterator[str]:
    """A port that answers whatever comes as OpenSSL's servers do."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                accepted, _ = listening.accept()
            except OSError:
                return
            with accepted:
                accepted.recv(1 << 16)
                accepted.sendall(ALERT)

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join()


def test_an_alert_of_tls_is_no_lost_answer(connect: Any, alerting: str) -> None:
    client = connect(alerting)
    for call in (lambda: client.call("commit", [Write(b"k", b"v")], read_version=0), lambda: client.take(1)):
        with pytest.raises(InvalidRequest, match="speaks TLS") as raised:
            call()
        assert raised.value.code is Code.BAD_CONFIGURATION


class Broken:
    """A socket whose TLS is broken. OpenSSL says the same of a first record that is none of TLS."""

    def __init__(self) -> None:
        self.error = ssl.SSLError(1, "wrong version number")
        self.error.reason = "WRONG_VERSION_NUMBER"

    def settimeout(self, _: float) -> None:
        pass

    def sendall(self, _: bytes) -> None:
        raise self.error

    def recv(self, _: int) -> bytes:
        raise self.error


def test_tls_that_breaks_on_a_connection_that_was_made_is_no_problem_of_the_place() -> None:
    connection: Any = object.__new__(sockets.Connection)
    connection.socket = Broken()
    assert problem_with(A, connection.socket.error) is not None
    for use in (lambda: connection.send(b"1", 1.0), lambda: connection.receive(ResponseReader(1), 1.0)):
        with pytest.raises(OSError, match="wrong version number") as raised:
            use()
        assert problem_with(A, raised.value) is None


SAID = {"version": 50, "leader_id": "ab" * 16}


def test_an_alert_of_tls_where_something_was_answered_before_is_a_lost_answer(connect: Any) -> None:
    found = Said(200, {"status": "committed", "version": 7})
    for before in (Said(200, SAID), Said(404, b"no")):  # a head that is kept, and one that is not
        with ScriptedServer(before, Drop(ALERT), found) as server:
            client = connect(server.url)
            with contextlib.suppress(HoldfastError):
                client.call("version")
            assert client.call("commit", [Write(b"k", b"v")], read_version=0).version == 7
            assert [asked.target for asked in server.asked][1] == "/v1/commit"
            assert server.connections == 2


def test_a_number_is_nobody_elses_after_an_alert_of_tls_where_something_was_answered_before() -> None:
    kept = [Said(200, {"first_seq": seq, "last_seq": seq, "duplicates": 0, "unmatched": 0}) for seq in (1, 2, 3)]
    sent = [b"first", b"second", b"third"]

    async def asynchronous(url: str) -> list[int]:
        async with aio.StoreClient(url, options=QUICK) as stores, stores.publisher("orders") as publisher:
            return [(await publisher.publish(body)).first_seq for body in sent]

    def blocking(url: str) -> list[int]:
        with StoreClient(url, options=QUICK) as stores, stores.publisher("orders") as publisher:
            return [publisher.publish(body).first_seq for body in sent]

    for publish in (blocking, lambda url: asyncio.run(asynchronous(url))):
        with ScriptedServer(kept[0], Drop(ALERT), kept[1], kept[2]) as server:
            assert publish(server.url) == [1, 2, 3]
            requests = [msgspec.msgpack.decode(asked.body)["messages"] for asked in server.asked]
            assert [one["publisher_seq"] for (one,) in requests] == [1, 2, 2, 3]


def test_what_was_perhaps_accepted_has_no_problem_that_ends_an_operation() -> None:
    with pytest.raises(AssertionError):
        Failed(0, True, "cut", problem=BAD)
    with pytest.raises(AssertionError):
        msgspec.structs.replace(unusable(), perhaps_accepted=True)
