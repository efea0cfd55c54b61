"""The asking about a group of commits has one bound, however many of its items nobody tells of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import msgspec
import pytest
from tests.unit.client.conftest import QUICK

from holdfast.client.protocol import log_operations
from holdfast.client.protocol.effects import Failed, Reply, Response, Send, Wait, Woken
from holdfast.client.protocol.endpoint import ClientRoute, parse_endpoint
from holdfast.client.protocol.gathered_commits import item_of
from holdfast.client.protocol.retry_budget import Session
from holdfast.commit.format.transaction import JobChange, Transaction, Write
from holdfast.errors import Code, OutcomeUnknown
from holdfast.values import LogPosition
from holdfast.wire.log import NotCommitted

WITHIN_MS = 60_000.0
OPTIONS = dataclasses.replace(
    QUICK, request_timeout_ms=15_000, give_up_after_ms=WITHIN_MS, resolve_within_ms=WITHIN_MS, retry_max_ms=2_000
)
GROUP = [Transaction([Write(b"k", b"v")], [], f"id-{number:020d}", None, 1) for number in range(1_000)]
CLOSED = b'{"status": "not_committed"}'


def driven(reply: Callable[[Send, float], Reply]) -> tuple[list[log_operations.ItemResult], list[float]]:
    """The results of a group whose own answer was lost, and when each question ended. Waits take what they may."""
    session = Session(ClientRoute((parse_endpoint("http://a.example:1"),)), OPTIONS)
    now_ms = 0.0
    asked: list[float] = []
    procedure = log_operations.commit_group(session, [item_of(txn) for txn in GROUP], now_ms)
    assert isinstance(next(procedure), Send)
    effect = procedure.send(Failed(now_ms, True, "the answer was lost"))
    while True:
        response: Reply
        if isinstance(effect, Send):
            response = reply(effect, now_ms)
            asked.append(response.now_ms)
        else:
            assert isinstance(effect, Wait)
            response = Woken(now_ms + effect.at_most_ms)
        now_ms = response.now_ms
        try:
            effect = procedure.send(response)
        except StopIteration as stop:
            results: list[log_operations.ItemResult] = stop.value
            return results, asked


def silence(send: Send, now_ms: float) -> Reply:
    return Failed(now_ms + send.timeout_ms, False, "no answer in time")


def test_a_vanished_service_is_asked_about_all_items_for_one_bound() -> None:
    results, asked = driven(silence)
    assert asked[-1] <= WITHIN_MS + 1
    assert len(results) == len(GROUP)


def test_what_the_bound_does_not_reach_is_unknown_under_its_own_name() -> None:
    results, asked = driven(silence)
    assert len(asked) < 10
    for txn, result in zip(GROUP, results, strict=True):
        assert isinstance(result, OutcomeUnknown)
        assert result.code is Code.OUTCOME_UNKNOWN
        assert (result.fields["request_id"], result.fields["min_version"]) == (txn.request_id, txn.read_version)


@pytest.mark.parametrize("each_ms", [10.0, 100.0])
def test_slow_answers_use_up_the_same_bound(each_ms: float) -> None:
    results, asked = driven(lambda _, now_ms: Response(now_ms + each_ms, 200, {}, CLOSED))
    awaited = [isinstance(result, NotCommitted) for result in results]
    reached = min(len(GROUP), int(WITHIN_MS / each_ms))
    assert awaited == [True] * reached + [False] * (len(GROUP) - reached)
    assert asked[-1] <= WITHIN_MS


def test_a_service_that_comes_back_settles_the_items_that_are_left() -> None:
    def reply(send: Send, now_ms: float) -> Reply:
        return silence(send, now_ms) if now_ms < 20_000 else Response(now_ms + 1, 200, {}, CLOSED)

    results, _ = driven(reply)
    assert all(isinstance(result, NotCommitted) for result in results)


def test_a_stream_of_commits_keeps_everything_that_a_transaction_has() -> None:
    session = Session(
        ClientRoute((parse_endpoint("http://a.example:1"),)), dataclasses.replace(OPTIONS, commits_bytes_max=900)
    )
    grouping = log_operations.Grouping(session, LogPosition(7, "c" * 32), "entropy")
    part = msgspec.Raw(b'[{"store": "orders", "messages": [{}]}]')
    given = Transaction([], acknowledge=part, maps=part, publish=part, jobs=(JobChange("job", b"record"),))
    assert grouping.add(given) == []
    (item,) = grouping.rest()
    one = item.txn
    assert one is not None
    filled = msgspec.structs.replace(one, request_id=None, read_version=None, log_id=None)
    assert filled == given
    assert (one.read_version, one.log_id) == (7, "c" * 32)
    large = msgspec.structs.replace(given, publish=msgspec.Raw(b"[" + b" " * 900 + b"]"))
    assert len(grouping.add(large)) == 1, "what it has for the stores counts"
