"""Laws of a subscriber whose standard durable another one has: it waits, says so once, and takes over once at most."""

from __future__ import annotations

import math

import msgspec
import pytest
from tests.unit.client.stores.test_consuming import Service

from holdfast.client.protocol.effects import Wait
from holdfast.client.protocol.endpoint import ClientRoute, parse_endpoint
from holdfast.client.protocol.options import FOR_EVER, SubscriberOptions, busy_wait_ms
from holdfast.client.protocol.retry_budget import Session
from holdfast.client.protocol.stores.subscriber import Connect, SubscriberMachine, SubscriptionEnded
from holdfast.errors import AlreadyOpen, Code

BUSY = msgspec.json.encode({"error": {"code": "durable_busy", "message": "no", "holder": "other", "since_ms": 7}})


def is_busy(service: Service) -> None:
    assert isinstance(service.step(), Connect)
    service.machine.refused(service.now_ms, 409, {}, BUSY)


def test_a_busy_durable_is_asked_for_again_and_reported_once_for_each_wait() -> None:
    service = Service()
    for _ in range(3):
        is_busy(service)
        service.waits()
    (advisory,) = service.machine.advisories.take()
    assert (advisory.kind, advisory.facts) == ("durable_busy", {"holder": "other", "since_ms": 7})
    service.attaches()
    service.loses()
    service.waits()
    is_busy(service)
    assert [each.kind for each in service.machine.advisories.take()] == ["store_unavailable", "durable_busy"]


def test_a_busy_durable_is_no_reason_to_ask_a_standby() -> None:
    session = Session(ClientRoute((parse_endpoint("http://leader:1"), parse_endpoint("http://standby:1"))))
    machine = SubscriberMachine(session, "/x?subscriber=me", SubscriberOptions())
    first = machine.next_step(0)
    machine.refused(0, 409, {}, BUSY)
    assert isinstance(machine.next_step(0), Wait)
    machine.waited()
    again = machine.next_step(0)
    assert isinstance(first, Connect) and isinstance(again, Connect)
    assert first.endpoint == again.endpoint


def test_who_has_waited_in_the_line_asks_again_at_once_and_others_back_off() -> None:
    service = Service()
    pauses = []
    for _ in range(6):
        is_busy(service)
        pauses.append(service.waits().at_most_ms)
    assert pauses == sorted(set(pauses)), "refused at once: doubled each time"
    assert isinstance(service.step(), Connect)
    service.now_ms += busy_wait_ms(service.options)
    service.machine.refused(service.now_ms, 409, {}, BUSY)
    assert service.waits().at_most_ms == pauses[0]


def test_a_busy_durable_raises_after_the_retry_duration() -> None:
    service = Service(retry_duration=1)
    is_busy(service)
    service.waits()
    service.now_ms += 1_000
    is_busy(service)
    assert isinstance(service.step(), SubscriptionEnded)
    assert isinstance(service.machine.failure, AlreadyOpen)
    assert service.machine.failure.code is Code.DURABLE_BUSY
    assert (service.machine.failure.fields["holder"], service.machine.failure.fields["since_ms"]) == ("other", 7)


@pytest.mark.parametrize("seconds", [1, 2, 3, 6, 7, 30])
def test_waits_in_the_line_end_with_the_retry_duration(seconds: float) -> None:
    service = Service(retry_duration=seconds)
    began_ms = service.now_ms
    while service.machine.failure is None:
        assert isinstance(service.step(), Connect)
        service.now_ms += busy_wait_ms(service.options) + 1  # the service refuses when the time is over
        service.machine.refused(service.now_ms, 409, {}, BUSY)
        if not isinstance(service.step(), SubscriptionEnded):
            service.waits()
    half_a_wait = busy_wait_ms(service.options) / 2
    assert seconds * 1000 <= service.now_ms - began_ms < seconds * 1000 + half_a_wait


def test_a_durable_is_taken_over_once_and_not_back_after_a_lost_connection() -> None:
    service = Service()
    machine = service.machine = SubscriberMachine(
        Session(ClientRoute((parse_endpoint("http://store:1"),))),
        "/x?subscriber=me",
        SubscriberOptions(),
        takes_over=True,
    )
    assert service.connects().target.endswith("&take_over=true")
    service.loses()
    service.waits()
    assert service.connects().target.endswith("&take_over=true"), "it was not attached"
    service.says({"type": "attached", "created": False, "prefetch": 8})
    service.loses()
    service.waits()
    assert "take_over" not in service.connects().target
    assert machine.was_attached


@pytest.mark.parametrize(
    ("options", "wait_ms"),
    [
        ({}, 2_500),
        ({"timeout_ms": 900_000.0}, 60_000),
        ({"retry_duration": 0}, 0),
        ({"retry_duration": 1.5}, 1_500),
        ({"retry_duration": 6}, 2_000),
    ],
)
def test_a_request_waits_less_than_the_client_does(options: dict[str, float], wait_ms: int) -> None:
    assert busy_wait_ms(SubscriberOptions(**options)) == wait_ms  # type: ignore[arg-type]


@pytest.mark.parametrize("without_end", [FOR_EVER, math.inf])
def test_a_subscriber_without_a_bound_waits_for_half_a_time_out_each_time(without_end: float) -> None:
    assert busy_wait_ms(SubscriberOptions(retry_duration=without_end, timeout_ms=5_000)) == 2_500
