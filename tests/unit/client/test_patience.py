"""The bound in time of an operation holds for its waits too, and its last word is the reason, not the lack of time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator
from typing import Any

import pytest
from tests.unit.client.conftest import QUICK

from holdfast.client.protocol import log_operations, stream
from holdfast.client.protocol.effects import (
    Decide,
    Effect,
    Failed,
    Learn,
    Open,
    Reply,
    Request,
    Response,
    Send,
    Wait,
    Woken,
)
from holdfast.client.protocol.endpoint import ClientRoute, parse_endpoint
from holdfast.client.protocol.gathered_commits import item_of
from holdfast.client.protocol.retry_budget import Session
from holdfast.client.protocol.stores.administration import ask
from holdfast.client.protocol.transaction import ServiceSource, TransactionAttempts
from holdfast.commit.format.transaction import Transaction, Write
from holdfast.errors import Backpressure, Conflict, HoldfastError, Unavailable

WITHIN_MS = 1_000.0
OPTIONS = dataclasses.replace(
    QUICK, give_up_after_ms=WITHIN_MS, stream_give_up_after_ms=WITHIN_MS, retry_base_ms=400, retry_max_ms=2_000
)
TXN = Transaction(operations=[Write(b"k", b"v")], request_id="r" * 24, read_version=0)
LATER = b'{"error": {"code": "overloaded", "message": "full", "retry_after_ms": 3600000}}'


def session() -> Session:
    return Session(ClientRoute((parse_endpoint("http://a.example:1"),)), OPTIONS)


def following() -> Generator[Effect, Reply, None]:
    continuity = stream.Continuity(0, durable=True, filtered=False)
    return stream.follow(session(), continuity, stream.Filter(), durable=True, now_ms=0)


OPERATIONS: dict[str, Callable[[], Generator[Effect, Reply, Any]]] = {
    "question": lambda: log_operations.version(session(), 0, local=True),
    "stores": lambda: ask(session(), Request("GET", "/v1/status/r?min_version=0"), 0, WITHIN_MS),
    "commit": lambda: log_operations.attempt(session(), TXN, 0),
    "commits": lambda: log_operations.commit_group(session(), [item_of(TXN)], 0),
    "stream": following,
}


def driven(operation: Generator[Effect, Reply, Any], reply: Callable[[float], Reply]) -> tuple[list[float], Any]:
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
                effect = operation.send(reply(now_ms))
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
    moments, error = driven(OPERATIONS[name](), lambda now_ms: Response(now_ms, 503, {}, LATER))
    assert moments[-1] <= WITHIN_MS + 1
    assert isinstance(error, Backpressure)


def test_nobody_waits_after_the_last_attempt_of_a_transaction() -> None:
    options = dataclasses.replace(OPTIONS, attempts_max=3, gather=False)
    here = Session(ClientRoute((parse_endpoint("http://a.example:1"),)), options)
    attempts = TransactionAttempts(here, ServiceSource(here), "e" * 24)
    procedure = attempts.run(0)
    seen: list[type[Effect]] = []

    def after(effect: Effect) -> Effect:
        reply: Reply = Woken(0)
        if isinstance(effect, Decide):
            attempts.builder.write(b"k", b"v")
        elif isinstance(effect, Learn):
            here.saw(5, None)
        elif isinstance(effect, Send):
            newer = b'{"status": "not_committed", "reason": "conflict", "version": %d}' % (5 + len(seen))
            reply = Response(0, 200, {}, newer)
        seen.append(type(effect))
        return procedure.send(reply)

    def to_the_end(effect: Effect) -> None:
        while True:
            effect = after(effect)

    with pytest.raises(Conflict):
        to_the_end(next(procedure))
    assert seen == [Learn, Decide, Send, Wait, Decide, Send, Wait, Decide, Send]
