"""Laws of questions to the stores: what is asked again after which answer, and what an error leaves open."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from holdfast.client.protocol.effects import Procedure, Reply, Request, Response, Send, Wait, Woken
from holdfast.client.protocol.endpoint import ClientRoute, parse_endpoint
from holdfast.client.protocol.retry_budget import Session
from holdfast.client.protocol.stores.administration import ask
from holdfast.client.sync.client import Client
from holdfast.client.sync.stores import Map
from holdfast.errors import CorruptData, OutcomeUnknown

HEADERS = {"content-type": "application/msgpack"}
SET = Response(0, 200, HEADERS, msgspec.msgpack.encode({"revision": 7, "changed": 1}))
OPEN_CODES = [(504, "outcome_unknown"), (500, "sync_failed"), (503, "disk_full"), (503, "store_unavailable")]


def refusal(status: int, code: str) -> Response:
    return Response(0, status, HEADERS, msgspec.msgpack.encode({"error": {"code": code, "message": "no"}}))


class ReplyingClient:
    """Gives a procedure these replies, and counts the requests."""

    def __init__(self, *replies: Response) -> None:
        self.session = Session(ClientRoute((parse_endpoint("http://store:1"),)))
        self._replies = replies
        self.sent = 0

    def run(self, procedure: Procedure[object]) -> object:
        value, self.sent = awaited(procedure, *self._replies)
        return value


def change(if_revision: int | None, *replies: Response) -> tuple[int, int]:
    """The revision of a change of a map, and how many requests it took."""
    client = ReplyingClient(*replies)

    def no_watch(*_: object) -> Any:
        raise AssertionError

    of_replies = Map(cast(Client, client), "s", "m", 10_000, no_watch)
    return of_replies.set("k", b"v", if_revision=if_revision), client.sent


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
        change(6, refusal(status, code))


@pytest.mark.parametrize(("status", "code"), OPEN_CODES)
def test_a_change_without_a_condition_is_sent_again(status: int, code: str) -> None:
    assert change(None, refusal(status, code), SET) == (7, 2)


@pytest.mark.parametrize(("status", "code"), [(503, "closed"), (507, "disk_limit"), (503, "overloaded")])
def test_a_conditional_change_that_was_certainly_not_made_is_sent_again(status: int, code: str) -> None:
    assert change(6, refusal(status, code), SET) == (7, 2)


def test_a_process_that_does_not_lead_is_left_for_the_next_address() -> None:
    standby, store = parse_endpoint("http://standby:1"), parse_endpoint("http://store:1")
    session = Session(ClientRoute((standby, store)))
    procedure = ask(session, Request("PUT", "/v1/stores/s/maps/m/k"), 0, 10_000)
    first = next(procedure)
    assert isinstance(first, Send) and first.endpoint == standby
    second = procedure.send(refusal(409, "not_leader"))
    assert isinstance(second, Send) and second.endpoint == store


def test_damage_is_told_at_once() -> None:
    session = Session(ClientRoute((parse_endpoint("http://store:1"),)))
    with pytest.raises(CorruptData):
        awaited(ask(session, Request("GET", "/v1/stores/s"), 0, 10_000), refusal(500, "corrupt_queue"))
