"""Laws of the lookout: who is asked for a sign of life, who counts as silent, and which waits are given up."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import pytest

from holdfast.client.protocol.effects import Failed, Response
from holdfast.client.protocol.endpoint import ClientRoute, Endpoint, anywhere, parse_endpoint
from holdfast.client.protocol.lookout import (
    AGAIN_MS,
    LIVES_AGAIN_MS,
    LOOK_AFTER_MS,
    REMEMBERED_MS,
    Lookout,
    leads,
)

A, B, C, X = (parse_endpoint(f"http://{name}.example:1") for name in "abcx")
FROZEN, STANDBY, LEADER = None, False, True


class Client:
    """A client that waits at some endpoints, and what each endpoint says when it is asked."""

    def __init__(self, *configured: Endpoint) -> None:
        self.route = ClientRoute(configured, anywhere)
        self.lookout = Lookout(self.route)
        self.says: dict[Endpoint, bool | None] = dict.fromkeys((*configured, X), STANDBY)
        self.now_ms = 0.0
        self.asked: list[Endpoint] = []
        self.left: list[Endpoint] = []

    def waits(self, *overdue: Endpoint, for_ms: float = AGAIN_MS) -> None:
        """Some waits are overdue for this long. Each answer comes at once, and a wait that is given up ends."""
        end_ms = self.now_ms + for_ms
        while True:
            waiting = [endpoint for endpoint in overdue if endpoint not in self.left]
            for endpoint in self.lookout.look(waiting, self.now_ms):
                self.lookout.check()
                self.asked.append(endpoint)
                self.left += self.lookout.answered(endpoint, self.says[endpoint], self.now_ms)
                self.lookout.check()
            self.now_ms += AGAIN_MS
            if self.now_ms >= end_ms:
                return


def test_a_slow_leader_is_asked_for_a_sign_of_life_and_a_standby_for_nothing() -> None:
    client = Client(A, B)
    client.says[A] = LEADER
    client.waits(A, for_ms=10 * LIVES_AGAIN_MS)
    assert client.asked == [A] * 10
    assert client.left == []
    assert client.route.current == A


def test_a_wait_at_a_silent_endpoint_ends_when_another_one_leads_and_not_before() -> None:
    client = Client(A, B)
    client.says[A] = FROZEN
    client.waits(A, for_ms=60_000)
    assert client.left == []
    assert client.route.current == A
    client.says[B] = LEADER
    client.waits(A)
    assert client.left == [A]
    assert client.route.current == B


def test_every_endpoint_is_asked_who_leads_again_and_again_while_the_leader_is_silent() -> None:
    client = Client(A, B)
    client.says[A] = FROZEN
    client.waits(A, for_ms=AGAIN_MS * 20)
    assert client.asked.count(B) == 19


def test_no_wait_ends_at_an_endpoint_that_lives() -> None:
    client = Client(A, B)
    client.says |= {A: LEADER, B: LEADER}  # B was frozen, and does not know yet
    client.waits(A, B, for_ms=10_000)
    assert client.left == []


def test_a_leader_of_which_nobody_else_knows_is_not_looked_for() -> None:
    client = Client(A)
    client.says[A] = FROZEN
    client.waits(A, for_ms=10_000)
    assert client.asked == [] and not client.lookout.is_busy


def test_a_named_leader_that_is_silent_is_left_too() -> None:
    client = Client(A, B)
    assert client.route.follow(A, "x.example:1")
    client.says |= {X: FROZEN, B: LEADER}
    client.waits(X, for_ms=1_000)
    assert client.left == [X]
    assert client.route.current == B


def test_where_every_endpoint_is_silent_nothing_is_given_up_and_each_is_asked_at_a_bounded_rate() -> None:
    client = Client(A, B, C)
    client.says = dict.fromkeys((A, B, C), FROZEN)
    client.waits(A, for_ms=60_000)
    assert client.left == []
    assert max(client.asked.count(each) for each in (A, B, C)) <= 60_000 / AGAIN_MS


def test_a_silent_endpoint_is_forgotten_and_one_that_answers_at_once() -> None:
    client = Client(A, B)
    client.says |= {A: FROZEN}
    client.waits(A)
    assert client.route.silent == {A}
    client.waits(for_ms=REMEMBERED_MS + 2 * AGAIN_MS)
    assert client.route.silent == frozenset()
    assert not client.lookout.is_busy
    client.waits(A)
    client.says[A] = LEADER
    client.waits(A, for_ms=2 * AGAIN_MS)
    assert client.route.silent == frozenset()


def test_an_endpoint_that_stays_silent_is_not_asked_for_ever() -> None:
    client = Client(A, B)
    client.says |= {A: FROZEN, B: LEADER}
    client.waits(A, for_ms=3_600_000)
    assert client.left == [A]
    assert len(client.asked) <= 2 + REMEMBERED_MS / AGAIN_MS


class Part(NamedTuple):
    """A part of a client that has waited for one endpoint."""

    endpoint: Endpoint
    waited_ms: float

    def awaited(self, at_ms: float) -> list[tuple[Endpoint, float]]:
        return [(self.endpoint, at_ms - self.waited_ms)]

    def leave(self, endpoints: Collection[Endpoint], at_ms: float) -> None:
        raise AssertionError((endpoints, at_ms))


def overdue(client: Client, *parts: Part) -> tuple[bool, list[Endpoint]]:
    return client.lookout.overdue(parts, client.now_ms)


def test_a_wait_at_an_endpoint_that_is_known_to_be_silent_is_overdue_at_once() -> None:
    client = Client(A, B)
    assert overdue(client, Part(A, LOOK_AFTER_MS - 1)) == (True, [])
    assert overdue(client, Part(A, LOOK_AFTER_MS)) == (True, [A])
    client.says[A] = FROZEN
    client.waits(A)
    assert overdue(client, Part(A, 0.0), Part(B, 0.0)) == (True, [A])
    assert overdue(client) == (False, [])


def test_one_question_at_a_time_is_asked_of_an_endpoint_and_a_late_answer_counts_once() -> None:
    lookout = Lookout(ClientRoute((A, B)))
    assert lookout.look([A], 0) == [A]
    assert lookout.look([A], 10_000) == []
    assert lookout.look([], 20_000) == []
    assert lookout.answered(A, FROZEN, 30_000) == []
    lookout.check()
    assert not lookout.is_busy


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Response(0, 200, {}, b'{"leader_id": "x", "leading": true, "address": "a:1"}'), True),
        (Response(0, 200, {}, b'{"leader_id": "", "leading": false, "address": ""}'), False),
        (Response(0, 200, {}, b'{"leading": true, "job": true}'), False),
        (Response(0, 502, {}, b'{"leading": true}'), False),
        (Response(0, 200, {}, b"<html>"), False),
        (Failed(0, True, "silent"), None),
        (Failed(0, False, "refused"), None),
    ],
)
def test_only_a_service_that_takes_requests_leads(reply: Response | Failed, said: bool | None) -> None:
    assert leads(reply) is said


@pytest.mark.parametrize(
    ("silent", "asked", "following"), [((), A, B), ((A,), B, B), ((B,), A, A), ((A, B), A, B), ((A, B), B, A)]
)
def test_a_failed_endpoint_is_left_for_one_that_is_not_silent(
    silent: Sequence[Endpoint], asked: Endpoint, following: Endpoint
) -> None:
    route = ClientRoute((A, B))
    if asked == B:
        route.failed(A)
    route.silent = frozenset(silent)
    route.failed(asked)
    assert route.current == following


def test_no_hint_to_a_silent_endpoint_is_followed() -> None:
    route = ClientRoute((A, B))
    route.failed(A)
    route.silent = frozenset({A})
    assert not route.follow(B, "a.example:1")
    assert route.current == B
    route.silent = frozenset()
    assert route.follow(B, "a.example:1")
    assert route.current == A
