"""The rules of ``gathering``, one by one, on the machine alone."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from holdfast.client.protocol.effects import ALONE, Failed, Item, KeyRead, Response
from holdfast.client.protocol.endpoint import ClientRoute, parse_endpoint
from holdfast.client.protocol.gathered_commits import Commits, item_of
from holdfast.client.protocol.gathered_reads import Reads
from holdfast.client.protocol.gathered_reads import item_of as item_of_read
from holdfast.client.protocol.gathering import (
    UNDER_WAY_MAX,
    Effects,
    Gathering,
    SharedRequest,
)
from holdfast.client.protocol.options import ClientOptions
from holdfast.commit.format.transaction import Transaction, Write
from holdfast.errors import CorruptData
from holdfast.values import LogPosition
from holdfast.wire.log import CommitReceipt, NotCommitted

OPTIONS = ClientOptions(request_timeout_ms=100, gather_ms=1, commits_per_request_max=5, commits_bytes_max=2_000)
LOST = Failed(50.0, True, "the connection broke")


class Stage:
    """A machine, and what a shell would do. A turn ends at once, unless a test says when."""

    def __init__(self, options: ClientOptions = OPTIONS, *, has_turns: bool = True, ends_turns: bool = True) -> None:
        self.route = ClientRoute((parse_endpoint("http://a.example:1"), parse_endpoint("http://b.example:1")))
        self.machine = Gathering(Commits(options), self.route, options, has_turns=has_turns)
        self.begun: list[SharedRequest] = []
        self.broken: list[SharedRequest] = []
        self.turns = 0
        self._ends_turns = ends_turns
        self._number = 0

    def offer(self, now_ms: float = 0.0, *, size: int = 10) -> Item:
        self._number += 1
        item = item_of(Transaction([Write(b"k", b"v" * size)], [], f"id-{self._number}", None, 7))
        self.take(self.machine.offered(item, now_ms))
        return item

    def take(self, effects: Effects) -> None:
        if effects.to_open is not None:
            self.begun.append(effects.to_open)
        if effects.broken is not None:
            self.broken.append(effects.broken)
        self.turns += effects.ends_turn
        self.machine.check()
        if effects.ends_turn and self._ends_turns:
            self.take(self.machine.turn_ended(0.0))

    def look(self, now_ms: float) -> None:
        self.take(self.machine.look(now_ms))

    def open(self, now_ms: float = 0.0) -> tuple[SharedRequest, list[str]]:
        """Send the request that was begun last; the ids in it."""
        shared = self.begun[-1]
        request = self.machine.opened(shared, now_ms)
        self.machine.check()
        lines = [] if request is None else request.body.splitlines()
        return shared, [json.loads(line)["request_id"] for line in lines]

    def answer(self, shared: SharedRequest, *lines: object, now_ms: float = 0.0) -> None:
        data = b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)
        self.take(self.machine.received(shared, data, now_ms))

    def end(self, shared: SharedRequest, reply: Response | Failed) -> None:
        self.take(self.machine.ended(shared, reply))

    def crowd(self, count: int) -> tuple[Item, list[Item], SharedRequest]:
        """One that travels alone, and the others in a request that is sent."""
        first, *others = [self.offer() for _ in range(count + 1)]
        self.take(self.machine.alone_ended(first, 0.0))
        shared, _ = self.open()
        return first, others, shared


def committed(item: Item, version: int = 9) -> dict[str, object]:
    return {"status": "committed", "version": version, "leader_id": "x", "request_id": item.key}


def error(code: str, index: int, *, ends: bool = False) -> dict[str, object]:
    return {"error": {"code": code, "message": code}, "index": index, **({"ends": True} if ends else {})}


def refused(code: str, status: int = 503) -> Response:
    return Response(5.0, status, {}, json.dumps({"error": {"code": code, "message": code}}).encode())


# ---- what leaves when


def test_one_alone_waits_for_nothing() -> None:
    stage = Stage()
    for _ in range(3):
        item = stage.offer()
        assert item.settled is ALONE
        assert stage.machine.alone_request(item).target == "/v1/commit"
        stage.take(stage.machine.alone_ended(item, 0.0))
    assert stage.begun == []


def test_what_waits_leaves_together_when_nothing_is_under_way_any_more() -> None:
    stage = Stage()
    first, *others = [stage.offer() for _ in range(4)]
    assert first.settled is ALONE
    assert stage.begun == []
    stage.take(stage.machine.alone_ended(first, 0.2))
    _, sent = stage.open(0.2)
    assert sent == [item.key for item in others]


def test_what_waits_leaves_when_its_first_has_waited_for_gather_ms() -> None:
    stage = Stage()
    stage.offer()
    one = stage.offer(3.0)
    assert stage.machine.due_ms == 4.0
    stage.look(3.9)
    assert stage.begun == []
    other = stage.offer(3.9)
    stage.look(4.0)
    _, sent = stage.open(4.0)
    assert sent == [one.key, other.key]


def test_no_more_than_sixteen_requests_are_under_way() -> None:
    stage = Stage()
    alone = stage.offer()
    for number in range(1, UNDER_WAY_MAX):
        stage.offer(number * 10.0)
        stage.look(number * 10.0 + 1)
        stage.open(number * 10.0 + 1)
    assert len(stage.begun) == UNDER_WAY_MAX - 1
    late = stage.offer(500.0)
    stage.look(505.0)
    assert len(stage.begun) == UNDER_WAY_MAX - 1
    stage.take(stage.machine.alone_ended(alone, 506.0))
    stage.look(506.0)
    assert stage.open(506.0)[1] == [late.key]


def test_a_request_has_a_bound_of_items_and_of_bytes() -> None:
    stage = Stage()
    first, *others = [stage.offer() for _ in range(8)]
    stage.take(stage.machine.alone_ended(first, 0.0))
    shared, sent = stage.open()
    assert sent == [item.key for item in others[:5]]
    stage.look(1.0)
    assert stage.open(1.0)[1] == [item.key for item in others[5:]]
    assert not shared.is_over
    large = [stage.offer(2.0, size=700) for _ in range(3)]
    stage.look(3.0)
    assert stage.open(3.0)[1] == [item.key for item in large[:1]]


def test_a_request_of_one_has_the_form_of_one_alone() -> None:
    stage = Stage()
    stage.offer()
    stage.offer()
    stage.look(1.0)
    request = stage.machine.opened(stage.begun[-1], 1.0)
    assert request is not None
    assert (request.target, request.accepted_in_parts) == ("/v1/commit", False)


def test_what_waits_for_a_connection_is_joined_by_what_is_offered_meanwhile() -> None:
    stage = Stage()
    first, second = stage.offer(), stage.offer()
    stage.take(stage.machine.alone_ended(first, 0.0))
    third = stage.offer(0.5)
    assert stage.open(0.6)[1] == [second.key, third.key]


def test_with_turns_those_that_were_just_answered_travel_together_again() -> None:
    stage = Stage(ends_turns=False)
    first, second, third = stage.offer(), stage.offer(), stage.offer()
    stage.take(stage.machine.alone_ended(first, 0.0))
    assert (stage.begun, stage.turns) == ([], 1)
    again = stage.offer()
    stage.take(stage.machine.turn_ended(0.0))
    shared, sent = stage.open()
    assert sent == [second.key, third.key, again.key]
    stage.answer(shared, committed(second), committed(third), committed(again))
    stage.offer()
    assert (len(stage.begun), stage.turns) == (1, 2)
    stage.take(stage.machine.turn_ended(0.0))
    shared, (last,) = stage.open()
    stage.answer(shared, committed(Item(last, b"")))
    assert stage.offer().settled is ALONE  # the crowd is over


def test_without_turns_what_waits_leaves_when_those_that_were_answered_have_come_back() -> None:
    stage = Stage(has_turns=False)
    first, second, third = stage.offer(), stage.offer(), stage.offer()
    stage.take(stage.machine.alone_ended(first, 0.1))
    assert stage.begun == []
    again = stage.offer(0.2)
    shared, sent = stage.open(0.2)
    assert sent == [second.key, third.key, again.key]
    stage.answer(shared, committed(second), committed(third), committed(again), now_ms=2.0)
    one, two = stage.offer(2.0), stage.offer(2.1)
    assert (len(stage.begun), one.settled) == (1, None)
    three = stage.offer(2.2)
    assert stage.open(2.2)[1] == [one.key, two.key, three.key]


def test_without_turns_it_waits_for_them_no_longer_than_a_millisecond() -> None:
    stage = Stage(dataclasses.replace(OPTIONS, gather_ms=50), has_turns=False)
    first, second = stage.offer(), stage.offer(0.5)
    stage.take(stage.machine.alone_ended(first, 0.6))
    assert stage.machine.due_ms == 1.5
    stage.look(1.5)
    shared, sent = stage.open(1.5)
    assert sent == [second.key]
    stage.answer(shared, committed(second), now_ms=3.0)
    assert stage.offer(4.0).settled is ALONE  # one comes back, and nobody else is expected


# ---- answers


def test_every_item_gets_its_own_answer_as_soon_as_it_is_known() -> None:
    stage = Stage()
    _, (one, two, three), shared = stage.crowd(3)
    line = json.dumps(committed(one, 41)).encode() + b"\n"
    stage.answer(shared, line[:20])
    assert one.settled is None
    stage.answer(shared, line[20:])
    assert isinstance(one.settled, CommitReceipt)
    assert one.settled.version == 41
    stage.answer(shared, {"status": "not_committed", "reason": "conflict", "version": 42, "request_id": two.key})
    assert isinstance(two.settled, NotCommitted)
    assert three.settled is None
    stage.answer(shared, committed(three, 43))
    assert shared.is_over


def test_an_answer_to_another_commit_settles_nothing() -> None:
    stage = Stage()
    _, (one, two, three), shared = stage.crowd(3)
    stage.answer(shared, committed(one), committed(three), committed(two))
    assert isinstance(one.settled, CommitReceipt)
    for item in (two, three):
        assert isinstance(item.settled, Failed)
        assert item.settled.perhaps_accepted
    assert stage.broken == [shared]


@pytest.mark.parametrize("line", [b"nonsense\n", b'{"error":{"code":"of the future","message":""},"index":1}\n', b"\n"])
def test_after_a_line_that_cannot_be_read_every_outcome_is_open(line: bytes) -> None:
    stage = Stage()
    _, (one, two, three), shared = stage.crowd(3)
    stage.answer(shared, committed(one), line, committed(three))
    assert isinstance(one.settled, CommitReceipt)
    for item in (two, three):
        assert isinstance(item.settled, Failed)
        assert item.settled.perhaps_accepted


def test_more_answers_than_items_end_the_connection() -> None:
    stage = Stage()
    _, (one,), shared = stage.crowd(1)
    stage.answer(shared, committed(one), committed(one))
    assert stage.broken == [shared] or shared.is_over


def test_an_item_that_is_refused_is_refused_alone() -> None:
    stage = Stage()
    _, (one, two), shared = stage.crowd(2)
    stage.answer(shared, error("bad_range", 0), committed(two))
    assert isinstance(one.settled, Response)
    assert one.settled.status == 400
    assert json.loads(one.settled.body)["error"]["code"] == "bad_range"
    assert isinstance(two.settled, CommitReceipt)


def test_an_open_outcome_of_one_item_is_open_for_it_alone() -> None:
    stage = Stage()
    _, (one, two), shared = stage.crowd(2)
    stage.answer(shared, error("outcome_unknown", 0), committed(two))
    assert isinstance(one.settled, Response)
    assert one.settled.status == 500
    assert isinstance(two.settled, CommitReceipt)


def test_what_comes_after_the_end_of_a_stream_waits_again_as_the_first_and_leaves_at_once() -> None:
    stage = Stage()
    _, (one, two, three, four), shared = stage.crowd(4)
    late = stage.offer()
    stage.answer(shared, committed(one), error("too_large", 1, ends=True))
    assert isinstance(one.settled, CommitReceipt)
    assert isinstance(two.settled, Response)
    assert (three.settled, four.settled) == (None, None)
    assert stage.open(0.1)[1] == [three.key, four.key, late.key]
    stage.end(shared, LOST)  # the service closes the connection
    assert (three.settled, four.settled) == (None, None)


def test_an_item_at_which_the_service_ended_the_stream_was_not_accepted_whatever_the_code() -> None:
    stage = Stage()
    _, (one, two), shared = stage.crowd(2)
    stage.answer(shared, error("closed", 0, ends=True))
    assert isinstance(one.settled, Failed)
    assert not one.settled.perhaps_accepted
    assert two.settled is None


def test_a_response_that_ends_before_its_answers_leaves_them_open() -> None:
    stage = Stage()
    _, (one, two), shared = stage.crowd(2)
    stage.answer(shared, committed(one))
    stage.end(shared, Response(5.0, 200, {}, b""))
    assert isinstance(two.settled, Failed)
    assert two.settled.perhaps_accepted


def test_a_connection_that_breaks_leaves_every_item_without_an_answer_open() -> None:
    stage = Stage()
    _, (one, two, three), shared = stage.crowd(3)
    stage.answer(shared, committed(one))
    stage.end(shared, LOST)
    assert isinstance(one.settled, CommitReceipt)
    assert two.settled == three.settled == LOST


@pytest.mark.parametrize(("code", "status"), [("overloaded", 503), ("not_leader", 503), ("unauthenticated", 401)])
def test_a_refused_request_refuses_each_item_as_one_alone(code: str, status: int) -> None:
    stage = Stage()
    _, others, shared = stage.crowd(2)
    stage.end(shared, refused(code, status))
    assert all(item.settled == refused(code, status) for item in others)


def test_a_server_that_does_not_know_the_route_gets_each_commit_alone_from_then_on() -> None:
    stage = Stage()
    _, others, shared = stage.crowd(2)
    stage.end(shared, Response(5.0, 404, {}, b"no such page"))
    assert [item.settled for item in others] == [ALONE, ALONE]
    assert [stage.offer().settled for _ in range(3)] == [ALONE] * 3
    stage.route.failed(stage.route.current)  # another server may know it
    assert [stage.offer().settled for _ in range(2)] == [None, None]


@pytest.mark.parametrize("reply", [Response(5.0, 413, {}, b"<html>"), refused("too_large", 413)])
def test_items_travel_alone_where_only_the_form_of_the_request_was_refused(reply: Response) -> None:
    stage = Stage()
    _, others, shared = stage.crowd(2)
    stage.end(shared, reply)
    assert [item.settled for item in others] == [ALONE, ALONE]


def test_without_a_connection_nothing_was_sent() -> None:
    stage = Stage()
    first, second = stage.offer(), stage.offer()
    stage.take(stage.machine.alone_ended(first, 1.0))
    late = stage.offer(2.0)
    stage.take(stage.machine.not_opened(stage.begun[-1], Failed(3.0, False, "refused")))
    assert isinstance(second.settled, Failed)
    assert not second.settled.perhaps_accepted
    assert late.settled is None
    assert stage.open(3.0)[1] == [late.key]


# ---- callers that leave, and time


def test_of_an_item_that_leaves_before_it_is_sent_nothing_is_sent() -> None:
    stage = Stage()
    first, gone, other = stage.offer(), stage.offer(), stage.offer()
    stage.take(stage.machine.alone_ended(first, 0.0))
    stage.machine.left(gone)
    assert stage.open()[1] == [other.key]


def test_a_request_that_everybody_left_before_it_was_sent_is_not_sent() -> None:
    stage = Stage()
    first, gone = stage.offer(), stage.offer()
    stage.take(stage.machine.alone_ended(first, 0.0))
    stage.machine.left(gone)
    shared, sent = stage.open()
    assert (sent, shared.is_over) == ([], True)
    assert stage.offer().settled is ALONE


def test_the_answer_to_an_item_that_has_left_is_read_and_dropped() -> None:
    stage = Stage()
    _, (one, gone, three), shared = stage.crowd(3)
    stage.machine.left(gone)
    stage.answer(shared, committed(one), committed(gone), committed(three, 77))
    assert gone.settled is None
    assert isinstance(three.settled, CommitReceipt)
    assert three.settled.version == 77
    assert stage.broken == []


def test_an_item_that_was_not_sent_in_time_was_not_accepted() -> None:
    stage = Stage()
    for number in range(UNDER_WAY_MAX):
        stage.offer(number * 2.0)
        stage.look(number * 2.0 + 1)
        if number:
            stage.open(number * 2.0 + 1)
    late = stage.offer(40.0)
    stage.look(139.9)
    assert late.settled is None
    stage.look(140.0)
    assert isinstance(late.settled, Failed)
    assert not late.settled.perhaps_accepted


def test_the_time_of_an_item_begins_when_it_is_offered_and_its_connection_stays() -> None:
    stage = Stage()
    first, early = stage.offer(), stage.offer(0.0)
    late = stage.offer(60.0)
    stage.take(stage.machine.alone_ended(first, 60.0))
    shared, _ = stage.open(60.0)
    assert stage.machine.due_ms == 100.0
    stage.look(100.0)
    assert isinstance(early.settled, Failed)
    assert early.settled.perhaps_accepted
    assert (late.settled, shared.is_over) == (None, False)
    stage.answer(shared, committed(early), committed(late))
    assert isinstance(late.settled, CommitReceipt)
    assert stage.broken == []


def test_nothing_is_offered_without_an_id_and_a_read_version() -> None:
    for txn in (Transaction([], [], None, None, 7), Transaction([], [], "id", None, None)):
        with pytest.raises(CorruptData):
            item_of(txn)


@pytest.mark.parametrize("ends_sent", [True, False])
def test_a_client_that_is_closed_sends_nothing_more(ends_sent: bool) -> None:
    stage = Stage()
    _, (sent,), shared = stage.crowd(1)
    waiting = stage.offer()
    stage.take(stage.machine.closed(1.0, ends_sent=ends_sent))
    assert isinstance(waiting.settled, Failed)
    assert not waiting.settled.perhaps_accepted
    assert (sent.settled is not None, shared.is_over) == (ends_sent, ends_sent)


# ---- reads


LOG, OTHER = "ab" * 16, "cd" * 16


class Reading(Stage):
    """The same for reads."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = Gathering(Reads(OPTIONS), self.route, OPTIONS, has_turns=True)

    def read(self, version: int, log_id: str = LOG, *, linearizable: bool = False) -> Item:
        self._number += 1
        key = b"k%d" % self._number
        item = item_of_read(key, LogPosition(version, log_id), linearizable=linearizable)
        self.take(self.machine.offered(item, 0.0))
        return item

    def sent(self, alone: Item) -> tuple[SharedRequest, dict[str, Any]]:
        self.take(self.machine.alone_ended(alone, 0.0))
        request = self.machine.opened(self.begun[-1], 0.0)
        assert request is not None
        assert request.target == "/v1/read"
        return self.begun[-1], json.loads(request.body)

    def answer_all(self, shared: SharedRequest, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.take(self.machine.received(shared, data[:10], 0.0))
        self.take(self.machine.received(shared, data[10:], 0.0))
        self.end(shared, Response(0.0, 200, {}, b""))


def test_reads_travel_together_at_the_newest_position_that_one_of_them_must_reach() -> None:
    stage = Reading()
    alone = stage.read(5)
    assert stage.machine.alone_request(alone).target == f"/v1/keys/azE?at=5@{LOG}"
    items = [stage.read(7), stage.read(9), stage.read(8)]
    shared, body = stage.sent(alone)
    assert body["at"] == f"9@{LOG}"
    assert [item["key"] for item in body["items"]] == ["azI=", "azM=", "azQ="]
    found = [{"index": 0, "value": "dg==", "version": 3}, {"index": 1}, {"index": 2, "value": "dw==", "version": 9}]
    stage.answer_all(shared, {"version": 12, "items": found})
    assert [item.settled for item in items] == [
        KeyRead(12, b"v", 3), KeyRead(12, None, None), KeyRead(12, b"w", 9),
    ]  # fmt: skip


def test_reads_of_another_log_or_another_consistency_have_a_request_of_their_own() -> None:
    stage = Reading()
    alone = stage.read(5)
    first, second = stage.read(7), stage.read(7)
    other = [stage.read(7, OTHER), stage.read(7, OTHER)]
    last = stage.read(7, linearizable=True), stage.read(7, linearizable=True)
    _, body = stage.sent(alone)
    assert (len(body["items"]), body["at"]) == (2, f"7@{LOG}")
    stage.look(1.0)
    request = stage.machine.opened(stage.begun[-1], 1.0)
    assert request is not None
    assert json.loads(request.body)["at"] == f"7@{OTHER}"
    stage.look(2.0)
    request = stage.machine.opened(stage.begun[-1], 2.0)
    assert request is not None
    assert json.loads(request.body)["consistency"] == "linearizable"
    assert not any(item.settled for item in (first, second, *other, *last))


def test_reads_that_did_not_fit_into_the_response_are_sent_again() -> None:
    stage = Reading()
    alone = stage.read(5)
    one, two, three = stage.read(5), stage.read(5), stage.read(5)
    shared, _ = stage.sent(alone)
    stage.answer_all(shared, {"version": 12, "items": [{"index": 0}], "more": True})
    assert one.settled == KeyRead(12, None, None)
    request = stage.machine.opened(stage.begun[-1], 1.0)
    assert request is not None
    assert len(json.loads(request.body)["items"]) == 2
    assert (two.settled, three.settled) == (None, None)


def test_a_read_that_is_refused_is_refused_alone() -> None:
    stage = Reading()
    alone = stage.read(5)
    one, two = stage.read(5), stage.read(5)
    shared, _ = stage.sent(alone)
    found = [{"index": 0, "error": {"code": "permission_denied", "message": "no"}}, {"index": 1}]
    stage.answer_all(shared, {"version": 12, "items": found})
    assert isinstance(one.settled, Response)
    assert b"permission_denied" in one.settled.body
    assert two.settled == KeyRead(12, None, None)


@pytest.mark.parametrize("body", [b"nonsense", b'{"version":12,"items":[{"index":1},{"index":0}]}', b"x" * 3_000])
def test_a_response_to_reads_that_cannot_be_read_answers_none(body: bytes) -> None:
    stage = Reading()
    alone = stage.read(5)
    items = [stage.read(5), stage.read(5)]
    shared, _ = stage.sent(alone)
    stage.machine._kind._response_bytes_max = 2_000  # type: ignore[attr-defined]
    shared.reader = stage.machine._kind.reader(2)
    stage.take(stage.machine.received(shared, body, 0.0))
    stage.end(shared, Response(0.0, 200, {}, b""))
    if len(body) > 2_000:  # each alone may fit
        assert [item.settled for item in items] == [ALONE, ALONE]
    else:
        assert all(isinstance(item.settled, Failed) for item in items)
