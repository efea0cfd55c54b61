"""Laws of questions to the stores: what is asked again after which answer, and what an error leaves open."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.client.protocol.effects import Procedure, Reply, Request, Response, Send, Wait, Woken
from holdfast.client.protocol.endpoint import Route, parse_endpoint
from holdfast.client.protocol.retry_budget import Session
from holdfast.client.protocol.stores.administration import MapOperations, ask
from holdfast.errors import CorruptData, OutcomeUnknown
from holdfast.wire.parts import ChangedResponse

HEADERS = {"content-type": "application/msgpack"}
SET = Response(0, 200, HEADERS, msgspec.msgpack.encode({"revision": 7, "changed": 1}))
OPEN_CODES = [(504, "outcome_unknown"), (500, "sync_failed"), (503, "disk_full"), (503, "store_unavailable")]


def refusal(status: int, code: str) -> Response:
    return Response(0, status, HEADERS, msgspec.msgpack.encode({"error": {"code": code, "message": "no"}}))


def change(if_revision: int | None) -> Procedure[ChangedResponse]:
    session = Session(Route((parse_endpoint("http://store:1"),)))
    return MapOperations(session, "s", "m", 10_000).change("k", b"v", if_revision, 0, 0)


def awaited(procedure: Procedure[object], *replies: Response) -> tuple[object, int]:
    """What comes of it with these answers, and how many requests it took."""
    left, sent = list(replies), 0
    effect = next(procedure)
    try:
        while True:
            reply: Reply = Woken(0)
            if not isinstance(effect, Wait):
                assert isinstance(effect, Send)
                reply, sent = left.pop(0), sent + 1
            effect = procedure.send(reply)
    except StopIteration as end:
        return end.value, sent


@pytest.mark.parametrize(("status", "code"), OPEN_CODES)
def test_a_conditional_change_that_an_error_leaves_open_is_never_sent_again(status: int, code: str) -> None:
    with pytest.raises(OutcomeUnknown):
        awaited(change(6), refusal(status, code))


@pytest.mark.parametrize(("status", "code"), OPEN_CODES)
def test_a_change_without_a_condition_is_sent_again(status: int, code: str) -> None:
    assert awaited(change(None), refusal(status, code), SET) == (ChangedResponse(7, 1), 2)


@pytest.mark.parametrize(("status", "code"), [(503, "closed"), (507, "disk_limit"), (503, "overloaded")])
def test_a_conditional_change_that_was_certainly_not_made_is_sent_again(status: int, code: str) -> None:
    assert awaited(change(6), refusal(status, code), SET) == (ChangedResponse(7, 1), 2)


def test_a_process_that_does_not_lead_is_left_for_the_next_address() -> None:
    standby, store = parse_endpoint("http://standby:1"), parse_endpoint("http://store:1")
    session = Session(Route((standby, store)))
    procedure = MapOperations(session, "s", "m", 10_000).change("k", b"v", None, 0, 0)
    first = next(procedure)
    assert isinstance(first, Send) and first.endpoint == standby
    assert isinstance(procedure.send(refusal(409, "not_leader")), Wait)
    second = procedure.send(Woken(0))
    assert isinstance(second, Send) and second.endpoint == store


def test_damage_is_told_at_once() -> None:
    session = Session(Route((parse_endpoint("http://store:1"),)))
    with pytest.raises(CorruptData):
        awaited(ask(session, Request("GET", "/v1/stores/s"), 0, 10_000), refusal(500, "corrupt_queue"))
