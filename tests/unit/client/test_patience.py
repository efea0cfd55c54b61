"""The bound in time of an operation holds for its waits too, and its last word is the reason, not the lack of time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator
from typing import Any

import pytest
from tests.unit.client.conftest import QUICK

from holdfast.client.protocol import core, stream
from holdfast.client.protocol.effects import Answer, Decide, Effect, Failed, Open, Reply, Send, Wait, Woken
from holdfast.client.protocol.endpoint import Route, parse_endpoint
from holdfast.client.protocol.messages import status_request
from holdfast.client.protocol.transaction import ServiceSource, transact
from holdfast.client.stores.administration import ask
from holdfast.commit.format.transaction import Transaction, Write
from holdfast.errors import Backpressure, Conflict, HoldfastError, Unavailable

WITHIN_MS = 1_000.0
OPTIONS = dataclasses.replace(
    QUICK, give_up_after_ms=WITHIN_MS, stream_give_up_after_ms=WITHIN_MS, retry_base_ms=400, retry_max_ms=2_000
)
TXN = Transaction(operations=[Write(b"k", b"v")], request_id="r" * 24, read_version=0)
LATER = b'{"error": {"code": "overloaded", "message": "full", "retry_after_ms": 3600000}}'


def session() -> core.Session:
    return core.Session(Route((parse_endpoint("http://a.example:1"),)), OPTIONS)


def following() -> Generator[Effect, Answer, None]:
    continuity = stream.Continuity(0, durable=True, filtered=False)
    return stream.follow(session(), continuity, stream.Filter(), durable=True, now_ms=0)


OPERATIONS: dict[str, Callable[[], Generator[Effect, Answer, Any]]] = {
    "question": lambda: core.version(session(), 0, local=True),
    "stores": lambda: ask(session(), status_request("r", 0), 0, WITHIN_MS),
    "commit": lambda: core.attempt(session(), TXN, 0),
    "commits": lambda: core.commit_group(session(), [TXN], 0),
    "stream": following,
}


def driven(operation: Generator[Effect, Answer, Any], answer: Callable[[float], Answer]) -> tuple[list[float], Any]:
    """When each request was sent, and the end. Requests take no time, and waits as long as they may."""
    now_ms = 0.0
    sent: list[float] = []
    effect = next(operation)
    try:
        while True:
            if isinstance(effect, Wait):
                assert effect.at_least_ms <= effect.at_most_ms
                now_ms += effect.at_most_ms
                effect = operation.send(Woken(now_ms))
            else:
                assert isinstance(effect, Send | Open)
                assert effect.timeout_ms > 1  # a try without time is none
                sent.append(now_ms)
                effect = operation.send(answer(now_ms))
    except HoldfastError as error:
        return [*sent, now_ms], error


@pytest.mark.parametrize("name", OPERATIONS)
def test_no_wait_outlasts_the_operation(name: str) -> None:
    moments, error = driven(OPERATIONS[name](), lambda now_ms: Failed(now_ms, False, "the cause"))
    assert len(moments) > 2
    assert moments[-1] <= WITHIN_MS + 1
    assert isinstance(error, Unavailable)
    assert "the cause" in str(error)


@pytest.mark.parametrize("name", OPERATIONS)
def test_nor_does_one_that_the_service_asks_for(name: str) -> None:
    moments, error = driven(OPERATIONS[name](), lambda now_ms: Reply(now_ms, 503, {}, LATER))
    assert moments[-1] <= WITHIN_MS + 1
    assert isinstance(error, Backpressure)


def test_nobody_waits_after_the_last_attempt_of_a_transaction() -> None:
    options = dataclasses.replace(OPTIONS, attempts_max=3)
    here = core.Session(Route((parse_endpoint("http://a.example:1"),)), options)
    procedure = transact(here, ServiceSource(here), "e" * 24, 0)
    seen: list[type[Effect]] = []

    def after(effect: Effect) -> Effect:
        answer: Answer = Woken(0)
        if isinstance(effect, Decide):
            effect.builder.write(b"k", b"v")
        elif isinstance(effect, Send):
            newer = b'{"status": "not_committed", "reason": "conflict", "version": %d}' % (5 + len(seen))
            answer = Reply(0, 200, {}, newer if seen else b'{"version": 5, "leader_id": "x"}')
        seen.append(type(effect))
        return procedure.send(answer)

    def to_the_end(effect: Effect) -> None:
        while True:
            effect = after(effect)

    with pytest.raises(Conflict):
        to_the_end(next(procedure))
    assert seen == [Send, Decide, Send, Wait, Decide, Send, Wait, Decide, Send]
