"""Laws of where an operation asks next: each endpoint at once, then a short wait; waits double for everything else."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from holdfast.client.protocol.effects import Request, Response, Send, Wait
from holdfast.client.protocol.endpoint import ClientRoute, Endpoint, anywhere, parse_endpoint
from holdfast.client.protocol.options import ClientOptions, PublisherOptions, SubscriberOptions
from holdfast.client.protocol.retry_budget import TAKE_OVER_WAIT_MS_MAX, Session, Turns
from holdfast.client.protocol.stores.administration import ask
from holdfast.client.protocol.stores.publisher import PublisherMachine
from holdfast.client.protocol.stores.subscriber import Connect, SubscriberMachine
from holdfast.errors import Code
from holdfast.wire.parts import Message

A, B, C, X, Y = (parse_endpoint(f"http://{name}.example:1") for name in "abcxy")


class Operation:
    """One operation that is never done: what each endpoint says, and which are asked between two waits."""

    def __init__(self, *configured: Endpoint, **options: Any) -> None:
        self.session = Session(ClientRoute(configured, anywhere), ClientOptions(**options))
        self.turns = Turns(self.session)

    def round(self, says: dict[Endpoint, dict[str, Any]]) -> tuple[list[Endpoint], float, float]:
        """The endpoints that are asked until it waits, and the bounds of that wait."""
        asked: list[Endpoint] = []
        while True:
            assert len(asked) < 10, "it asks without a wait"
            endpoint = self.session.route.current
            asked.append(endpoint)
            wait = self.turns.after(endpoint, **says[endpoint])
            if wait.at_most_ms:
                return asked, wait.at_least_ms, wait.at_most_ms


REFUSES = {"is_lost": True}
FULL = {"code": Code.OVERLOADED}


def stands_by(named: Endpoint | None = None) -> dict[str, Any]:
    address = None if named is None else named.authority
    return {"code": Code.NOT_LEADER, "leader_address": address, "at_least_ms": 250.0}


def test_a_standby_is_asked_at_once_after_a_dead_leader_and_the_wait_does_not_grow() -> None:
    operation = Operation(A, B)
    says = {A: REFUSES, B: stands_by(A)}
    assert operation.round(says) == ([A, B], 250.0, 312.5)
    for _ in range(20):
        asked, at_least_ms, at_most_ms = operation.round(says)
        assert sorted(asked, key=str) == [A, B]
        assert (at_least_ms, at_most_ms) == (250.0, 312.5)


def test_a_silent_leader_that_is_named_is_not_asked_while_a_standby_answers() -> None:
    operation = Operation(A, B)
    operation.session.route.silent = frozenset({A})
    operation.session.route.failed(A)
    for _ in range(20):
        assert operation.round({B: stands_by(A)}) == ([B], 250.0, 312.5)


def test_where_nobody_can_be_reached_the_wait_is_bounded_for_several_endpoints() -> None:
    operation = Operation(A, B)
    waits = [operation.round({A: REFUSES, B: REFUSES})[2] for _ in range(10)]
    assert waits == [20, 40, 80, 160, 320, *[TAKE_OVER_WAIT_MS_MAX] * 5]


def test_a_single_endpoint_is_asked_after_waits_that_double() -> None:
    operation = Operation(A)
    waits = [operation.round({A: REFUSES})[2] for _ in range(10)]
    assert waits == [20, 40, 80, 160, 320, 640, 1280, 2000, 2000, 2000]


def test_a_full_service_is_asked_after_waits_that_double_and_no_other_one_is() -> None:
    operation = Operation(A, B)
    rounds = [operation.round({A: FULL}) for _ in range(9)]
    assert [asked for asked, *_ in rounds] == [[A]] * 9
    assert rounds[-1][2] == 2000


@pytest.mark.parametrize("rounds", [50])
def test_two_servers_that_name_each_other_are_asked_twice_for_each_wait(rounds: int) -> None:
    operation = Operation(A, B)
    for _ in range(rounds):
        asked, at_least_ms, _ = operation.round({A: stands_by(B), B: stands_by(A)})
        assert len(asked) <= 2
        assert at_least_ms == 250.0


def test_a_chain_of_servers_that_name_each_other_has_an_end() -> None:
    chain = [parse_endpoint(f"http://h{number}.example:1") for number in range(100)]
    operation = Operation(chain[0])
    says = {one: stands_by(following) for one, following in pairwise(chain)}
    for _ in range(10):
        asked, at_least_ms, _ = operation.round(says)
        assert len(asked) <= 2
        assert at_least_ms == 250.0


def test_three_endpoints_are_each_asked_between_two_waits() -> None:
    operation = Operation(A, B, C)
    for _ in range(10):
        asked, at_least_ms, at_most_ms = operation.round({A: REFUSES, B: stands_by(A), C: stands_by(A)})
        assert set(asked) == {A, B, C}
        assert (at_least_ms, at_most_ms) == (250.0, 312.5)


def test_a_client_that_follows_nobody_goes_to_the_next_endpoint() -> None:
    operation = Operation(A, B, follow_leader=False)
    assert operation.round({A: stands_by(X), B: stands_by(X)})[0] == [A, B]


def test_who_named_the_leader_is_known_while_it_is_asked() -> None:
    operation = Operation(A, B)
    operation.turns.after(A, Code.NOT_LEADER, leader_address=X.authority)
    assert (operation.session.route.current, operation.turns.sent_by) == (X, A)
    operation.turns.after(X, is_lost=True)
    assert (operation.session.route.current, operation.turns.sent_by) == (B, None)


def test_progress_makes_the_next_wait_short() -> None:
    operation = Operation(A)
    for _ in range(5):
        operation.round({A: FULL})
    operation.turns.progressed()
    assert operation.round({A: FULL})[2] == dataclasses.replace(operation.session.options).retry_base_ms


NOT_LEADER = msgspec.json.encode(
    {"error": {"code": "not_leader", "message": "", "leader_address": X.authority, "retry_after_ms": 250}}
)
ROUNDED_UP = {"retry-after": "1"}
"""The header has whole seconds; the body knows better."""


def _ask(session: Session) -> tuple[Wait, Endpoint]:
    procedure = ask(session, Request("GET", "/v1/stores"), 0, 60_000)
    next(procedure)
    send = procedure.send(Response(0, 503, ROUNDED_UP, NOT_LEADER))
    assert isinstance(send, Send)
    wait = procedure.send(Response(0, 503, ROUNDED_UP, NOT_LEADER))
    assert isinstance(wait, Wait)
    return wait, send.endpoint


def _publish(session: Session) -> tuple[Wait, Endpoint]:
    machine = PublisherMachine(session, "s", PublisherOptions(), entropy="e")
    machine.add(Message(b"1"), 0)
    machine.next_step(0)
    machine.on_response(Response(0, 503, ROUNDED_UP, NOT_LEADER))
    assert machine.next_step(0) == Wait(0, 0, "not_leader")
    machine.waited()
    send = machine.next_step(0)
    assert isinstance(send, Send)
    machine.on_response(Response(0, 503, ROUNDED_UP, NOT_LEADER))
    wait = machine.next_step(0)
    assert isinstance(wait, Wait)
    return wait, send.endpoint


def _subscribe(session: Session) -> tuple[Wait, Endpoint]:
    machine = SubscriberMachine(session, "/x?subscriber=me", SubscriberOptions())
    machine.next_step(0)
    machine.refused(0, 503, ROUNDED_UP, NOT_LEADER)
    at_once = machine.next_step(0)
    assert isinstance(at_once, Wait) and at_once.at_most_ms == 0
    machine.waited()
    connect = machine.next_step(0)
    assert isinstance(connect, Connect)
    machine.refused(0, 503, ROUNDED_UP, NOT_LEADER)
    wait = machine.next_step(0)
    assert isinstance(wait, Wait)
    return wait, connect.endpoint


@pytest.mark.parametrize("operation", [_ask, _publish, _subscribe])
def test_every_client_follows_the_address_at_once_and_waits_as_the_body_asks(
    operation: Callable[[Session], tuple[Wait, Endpoint]],
) -> None:
    wait, followed = operation(Session(ClientRoute((A,), anywhere)))
    assert followed == X
    assert (wait.at_least_ms, wait.at_most_ms) == (250.0, 312.5)


def test_a_subscriber_awaits_a_sign_of_life_while_a_reply_is_due() -> None:
    machine = SubscriberMachine(Session(ClientRoute((A, B))), "/x?subscriber=me", SubscriberOptions())
    assert machine.awaited is None
    machine.next_step(100)
    assert machine.awaited == (A, 100)
    machine.opened(200)
    assert machine.awaited == (A, 200)
    machine.received(msgspec.msgpack.encode({"type": "attached", "created": False, "prefetch": 8}), 300)
    machine.next_step(300)
    assert machine.awaited is None
    machine.next_step(2_400)  # a probe is due
    assert machine.awaited == (A, 2_400)
    machine.heard(2_500)
    assert machine.awaited is None
    machine.acknowledge([(1, 1)], 2_600, lambda *_: None)
    assert machine.awaited == (A, 2_500)
    machine.lost(2_700, "cut")
    assert machine.awaited is None
