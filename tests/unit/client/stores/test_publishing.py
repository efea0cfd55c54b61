"""Laws of the publisher's machine: what is sent, when again, and what each message comes to. No I/O, no clock."""

from __future__ import annotations

import random

import msgspec
import pytest

from holdfast.client.protocol.effects import Failed, Response, Send, Wait
from holdfast.client.protocol.endpoint import ClientRoute, parse_endpoint
from holdfast.client.protocol.options import PublisherOptions
from holdfast.client.protocol.retry_budget import Session
from holdfast.client.protocol.stores.publisher import LINGER, PublisherMachine, Sent
from holdfast.errors import (
    Backpressure,
    Closed,
    Code,
    CorruptData,
    InvalidRequest,
    LimitExceeded,
    OutcomeUnknown,
    PermissionDenied,
    Unavailable,
)
from holdfast.wire.parts import Message


class Body(msgspec.Struct):
    messages: list[Message]
    publisher_id: str = ""
    token: str = ""


class Store:
    """A store that dedupes as the real one does, on the other side of a line that the test cuts where it likes."""

    def __init__(self, **options: object) -> None:
        self.options = PublisherOptions(**options)  # type: ignore[arg-type]
        self.machine = self.new_machine()
        self.now_ms = self.timeout_ms = 0.0
        self.kept: list[bytes] = []
        self.known: dict[tuple[str, int], int] = {}
        self.last: dict[str, int] = {}
        self.requests: list[Body] = []

    def new_machine(self, publisher_id: str | None = None, next_seq: int | None = None) -> PublisherMachine:
        session = Session(ClientRoute((parse_endpoint("http://store:1"),)))
        self.request_timeout_ms = session.options.request_timeout_ms
        self.machine = PublisherMachine(
            session, "s", self.options, entropy="e", publisher_id=publisher_id, next_seq=next_seq
        )
        return self.machine

    def add(self, *bodies: bytes) -> list[Sent]:
        return [self.machine.add(Message(body), self.now_ms) for body in bodies]

    def sends(self) -> Body:
        step = self.machine.next_step(self.now_ms)
        assert isinstance(step, Send)
        self.timeout_ms = step.timeout_ms
        self.machine.check()
        body = msgspec.msgpack.decode(step.request.body, type=Body)
        self.requests.append(body)
        return body

    def keep(self, body: Body) -> bytes:
        """What the store does, and its answer's body."""
        numbers = []
        duplicates = 0
        for message in body.messages:
            name = (body.publisher_id, message.publisher_seq)
            if message.publisher_seq and name in self.known:
                duplicates += 1
            else:
                if message.publisher_seq:
                    last = self.last.get(body.publisher_id)
                    assert last is None or message.publisher_seq == last + 1, "sequence_gap"
                    self.last[body.publisher_id] = message.publisher_seq
                self.kept.append(message.body)
                self.known[name] = len(self.kept)
            numbers.append(self.known[name])
        return msgspec.msgpack.encode(
            {"first_seq": numbers[0], "last_seq": numbers[-1], "duplicates": duplicates, "unmatched": 0}
        )

    def replies(self, status: int, body: bytes) -> None:
        self.machine.on_response(Response(self.now_ms, status, {"content-type": "application/msgpack"}, body))
        self.machine.check()

    def accepts(self) -> Body:
        body = self.sends()
        self.replies(200, self.keep(body))
        return body

    def refuses(self, status: int, code: Code) -> None:
        self.sends()
        self.replies(status, msgspec.msgpack.encode({"error": {"code": code.value, "message": "no"}}))

    def errs(self, status: int, code: str, *, keeps: bool) -> None:
        body = self.sends()
        if keeps:
            self.keep(body)
        self.replies(status, msgspec.msgpack.encode({"error": {"code": code, "message": "no"}}))

    def loses_the_answer(self, *, keeps: bool) -> None:
        body = self.sends()
        if keeps:
            self.keep(body)
        self.machine.on_response(Failed(self.now_ms, True, "silence"))
        self.machine.check()

    def waits(self) -> Wait:
        step = self.machine.next_step(self.now_ms)
        assert isinstance(step, Wait)
        self.now_ms += step.at_most_ms
        self.machine.waited()
        return step

    def accepts_everything(self) -> None:
        while self.machine.unconfirmed:
            self.accepts()


def test_messages_that_come_while_a_request_is_under_way_make_the_next_one() -> None:
    store = Store()
    first = store.add(b"a")
    body = store.sends()
    rest = store.add(b"b", b"c")
    store.replies(200, store.keep(body))
    store.accepts()
    assert [len(request.messages) for request in store.requests] == [1, 2]
    assert [sent.seq for sent in first + rest] == [1, 2, 3]


def test_a_lost_answer_is_asked_for_with_the_same_bytes_and_nothing_is_kept_twice() -> None:
    store = Store()
    sent = store.add(b"a", b"b")
    store.loses_the_answer(keeps=True)
    store.waits()
    store.accepts()
    assert store.requests[0] == store.requests[1]
    assert store.kept == [b"a", b"b"]
    assert [item.seq for item in sent] == [1, 2]
    assert sent[0].receipt is not None and sent[0].receipt.duplicates == 2


def test_a_process_that_does_not_lead_is_left_for_the_next_address() -> None:
    store = Store()
    session = Session(ClientRoute((parse_endpoint("http://standby:1"), parse_endpoint("http://store:1"))))
    store.machine = PublisherMachine(session, "s", store.options, entropy="e")
    (sent,) = store.add(b"a")
    store.refuses(409, Code.NOT_LEADER)
    store.waits()
    assert session.route.current == parse_endpoint("http://store:1")
    store.accepts()
    assert sent.done and store.kept == [b"a"]


def test_order_holds_whatever_is_lost() -> None:
    store = Store(batch_messages=2)
    store.add(*(bytes([i]) for i in range(7)))
    for keeps in (True, False, False, True):
        store.loses_the_answer(keeps=keeps)
        store.waits()
    store.accepts_everything()
    assert store.kept == [bytes([i]) for i in range(7)]


def test_waits_double_up_to_their_bound_and_start_anew_after_success() -> None:
    store = Store()
    store.add(b"a")
    lengths = []
    for _ in range(9):
        store.loses_the_answer(keeps=False)
        lengths.append(store.waits().at_most_ms)
    assert lengths == [20, 40, 80, 160, 320, 640, 1280, 2000, 2000]
    store.accepts()
    store.add(b"b")
    store.loses_the_answer(keeps=False)
    assert store.waits().at_most_ms == 20


@pytest.mark.parametrize("code", [Code.STORE_FULL, Code.DISK_LIMIT, Code.NO_QUORUM, Code.CLUSTER_FULL, Code.OVERLOADED])
def test_what_may_pass_is_tried_again_for_ever_by_default(code: Code) -> None:
    store = Store()
    sent = store.add(b"a")
    for _ in range(50):
        store.refuses(409, code)
        store.waits()
    store.accepts()
    assert sent[0].seq == 1 and store.machine.failed == 0


UNCLEAR_ANSWERS = [
    (504, "outcome_unknown"),
    (500, "internal"),
    (500, "sync_failed"),
    (503, "disk_full"),
    (503, "store_unavailable"),
    (409, "leader_changed"),
    (503, "a_code_of_a_newer_service"),
]


@pytest.mark.parametrize(("status", "code"), UNCLEAR_ANSWERS)
def test_what_an_error_leaves_open_is_sent_again_under_its_numbers_until_the_store_says(status: int, code: str) -> None:
    store = Store()
    sent = store.add(b"a")
    store.errs(status, code, keeps=True)
    store.waits()
    following = store.add(b"b")
    store.accepts_everything()
    assert store.requests[0] == store.requests[1]
    assert store.kept == [b"a", b"b"] and [sent[0].seq, following[0].seq] == [1, 2]


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize(("status", "code"), UNCLEAR_ANSWERS)
def test_the_number_of_what_may_be_kept_goes_to_no_other_message(status: int, code: str, keeps: bool) -> None:
    store = Store(retry_duration=0)
    sent = store.add(b"a")
    store.errs(status, code, keeps=keeps)
    assert isinstance(sent[0].error, OutcomeUnknown)
    following = store.add(b"b")
    store.accepts()
    assert store.requests[0].publisher_id != store.requests[1].publisher_id
    assert following[0].error is None and store.kept[-1] == b"b"


def test_damage_is_not_asked_for_twice_and_leaves_open_what_is_kept() -> None:
    store = Store()
    sent = store.add(b"a")
    store.errs(500, "corrupt_queue", keeps=False)
    assert isinstance(sent[0].error, OutcomeUnknown) and isinstance(sent[0].error.__cause__, CorruptData)


def test_numbers_that_were_never_sent_before_are_not_confirmed_as_duplicates() -> None:
    store = Store(batch_messages=2)
    store.known = {(store.machine.publisher_id, 1): 1}
    store.last = {store.machine.publisher_id: 1}
    store.kept = [b"somebody else's"]
    mistaken = store.add(b"a", b"b")
    following = store.add(b"c")
    store.accepts()
    for item in mistaken:
        assert isinstance(item.error, OutcomeUnknown)
        assert (item.error.fields["duplicates"], item.error.fields["first_publisher_seq"]) == (1, 1)
    store.accepts()
    assert store.requests[0].publisher_id != store.requests[1].publisher_id
    assert following[0].error is None and store.kept[-1] == b"c"


def test_retry_duration_0_tries_once_and_tells_the_error() -> None:
    store = Store(retry_duration=0)
    sent = store.add(b"a")
    store.refuses(409, Code.STORE_FULL)
    assert isinstance(sent[0].error, Backpressure) and sent[0].error.code is Code.STORE_FULL
    assert store.machine.next_step(store.now_ms) is None


def test_retry_duration_n_ends_after_n_seconds_with_the_last_error() -> None:
    store = Store(retry_duration=1.0)
    sent = store.add(b"a")
    while not sent[0].done:
        store.refuses(412, Code.NO_QUORUM)
        if not sent[0].done:
            store.waits()
    assert isinstance(sent[0].error, Unavailable) and sent[0].error.code is Code.NO_QUORUM
    assert 1000 <= store.now_ms < 1100


def test_a_message_that_may_have_been_kept_fails_as_unknown_and_never_as_refused() -> None:
    store = Store(retry_duration=0.5)
    sent = store.add(b"a")
    store.loses_the_answer(keeps=True)
    while not sent[0].done:
        store.waits()
        store.refuses(409, Code.STORE_FULL)
    assert isinstance(sent[0].error, OutcomeUnknown)


def test_what_follows_an_unknown_outcome_goes_out_under_a_new_id() -> None:
    store = Store(retry_duration=0, batch_messages=1)
    store.add(b"a", b"b")
    before = store.machine.publisher_id
    store.loses_the_answer(keeps=False)
    body = store.accepts()
    assert body.publisher_id != before and body.messages[0].publisher_seq == 1
    assert store.kept == [b"b"]


def test_numbers_of_a_refused_batch_are_used_again_so_that_there_is_no_gap() -> None:
    store = Store(batch_messages=1)
    sent = store.add(b"a", b"b", b"c")
    store.accepts()
    store.refuses(403, Code.PERMISSION_DENIED)
    store.accepts()
    assert isinstance(sent[1].error, PermissionDenied)
    assert [request.messages[0].publisher_seq for request in store.requests] == [1, 2, 2]
    assert store.kept == [b"a", b"c"]


def test_one_message_that_is_too_large_fails_alone_and_the_others_keep_their_order() -> None:
    store = Store()
    sent = store.add(*(b"x" * (100 if i == 5 else 1) + bytes([i]) for i in range(9)))
    while store.machine.unconfirmed:
        request = store.sends()
        if any(len(message.body) > 50 for message in request.messages):
            store.replies(413, msgspec.msgpack.encode({"error": {"code": "message_too_large", "message": "no"}}))
        else:
            store.replies(200, store.keep(request))
    assert [isinstance(item.error, LimitExceeded) for item in sent] == [i == 5 for i in range(9)]
    assert store.kept == [b"x" + bytes([i]) for i in range(9) if i != 5]


def test_a_batch_of_the_application_is_never_divided() -> None:
    store = Store(retry_duration=0)
    items = store.machine.add_batch([Message(b"a"), Message(b"b" * 99)], 0)
    store.refuses(413, Code.MESSAGE_TOO_LARGE)
    assert all(isinstance(item.error, LimitExceeded) for item in items)
    assert len(store.requests) == 1 and store.machine.failed == 0, "who waits for a batch is told there"


@pytest.mark.parametrize("retry_duration", [0.0, 0.01])
def test_with_no_time_to_retry_the_others_of_a_refused_batch_have_the_time_of_a_request(retry_duration: float) -> None:
    store = Store(retry_duration=retry_duration)
    sent = store.add(*(b"x" * (100 if i == 3 else 1) + bytes([i]) for i in range(8)))
    while store.machine.unconfirmed:
        request = store.sends()
        assert store.timeout_ms == store.request_timeout_ms or len(store.requests) == 1
        store.now_ms += 20
        if any(len(message.body) > 50 for message in request.messages):
            store.replies(413, msgspec.msgpack.encode({"error": {"code": "message_too_large", "message": "no"}}))
        else:
            store.replies(200, store.keep(request))
    assert [isinstance(item.error, LimitExceeded) for item in sent] == [i == 3 for i in range(8)]


def test_with_no_time_to_retry_what_a_full_store_has_room_for_is_kept_without_a_pause() -> None:
    store = Store(retry_duration=0)
    sent = store.add(*(bytes([i]) for i in range(8)))
    while store.machine.unconfirmed:
        request = store.sends()
        assert store.timeout_ms == store.request_timeout_ms
        if len(store.kept) + len(request.messages) > 5:
            store.replies(409, msgspec.msgpack.encode({"error": {"code": "store_full", "message": "no"}}))
        else:
            store.replies(200, store.keep(request))
    assert store.kept == [bytes([i]) for i in range(5)]
    assert [item.error is None for item in sent] == [i < 5 for i in range(8)]


def test_with_no_time_to_retry_a_forgotten_publisher_has_the_time_of_a_request_under_its_new_id() -> None:
    store = Store(retry_duration=0)
    store.add(b"a")
    store.accepts()
    sent = store.add(b"b")
    store.refuses(409, Code.UNKNOWN_PUBLISHER)
    store.now_ms += 20
    store.accepts()
    assert store.timeout_ms == store.request_timeout_ms
    assert sent[0].error is None and store.kept == [b"a", b"b"]


def test_the_last_try_before_the_end_has_time_for_an_answer_and_what_it_says_counts() -> None:
    store = Store(retry_duration=2.0)
    sent = store.add(b"a")
    store.refuses(409, Code.STORE_FULL)
    store.machine.waited()
    store.now_ms = 1_999.0
    store.sends()
    assert store.timeout_ms == 250.0, "cut after a millisecond, the refusal would be an unknown outcome"
    store.now_ms = 2_080.0
    store.replies(409, msgspec.msgpack.encode({"error": {"code": "store_full", "message": "no"}}))
    assert sent[0].error is not None and sent[0].error.code is Code.STORE_FULL


def test_a_store_with_room_for_less_than_a_batch_gets_smaller_ones() -> None:
    store = Store()
    store.add(*(bytes([i]) for i in range(8)))
    store.refuses(409, Code.STORE_FULL)
    store.waits()
    assert len(store.accepts().messages) == 4


def test_what_follows_a_batch_that_was_divided_twice_after_a_lost_answer_has_numbers_of_its_own() -> None:
    store = Store(batch_messages=8)
    sent = store.add(*[b"%d" % number for number in range(8)])
    store.loses_the_answer(keeps=False)
    store.waits()
    for _ in range(2):
        store.refuses(409, Code.STORE_FULL)
        store.waits()
    sent += store.add(b"8", b"9")
    store.accepts_everything()
    assert store.kept == [b"%d" % number for number in range(10)]
    assert all(one.done and one.error is None for one in sent)


def test_a_forgotten_publisher_goes_on_under_a_new_id() -> None:
    store = Store()
    store.add(b"a")
    store.accepts()
    sent = store.add(b"b")
    store.refuses(409, Code.UNKNOWN_PUBLISHER)
    store.accepts()
    assert store.kept == [b"a", b"b"] and sent[0].seq == 2
    assert store.requests[1].publisher_id != store.requests[2].publisher_id


def test_a_forgotten_publisher_does_not_send_again_what_may_have_been_kept() -> None:
    store = Store()
    store.add(b"a")
    store.accepts()
    sent = store.add(b"b")
    store.loses_the_answer(keeps=True)
    store.waits()
    store.refuses(409, Code.UNKNOWN_PUBLISHER)
    assert isinstance(sent[0].error, OutcomeUnknown)
    assert store.kept == [b"a", b"b"]


def test_a_numbered_publisher_keeps_its_numbers_across_a_restart() -> None:
    store = Store()
    store.new_machine("orders", 41)
    store.add(b"41", b"42")
    store.accepts()
    store.new_machine("orders", 42)
    sent = store.add(b"42", b"43")
    store.accepts()
    assert store.kept == [b"41", b"42", b"43"]
    assert sent[0].receipt is not None and sent[0].receipt.duplicates == 1


def test_a_numbered_publisher_ends_with_its_first_failure() -> None:
    store = Store(retry_duration=0, batch_messages=1)
    store.new_machine("orders", 1)
    sent = store.add(b"a", b"b")
    store.refuses(409, Code.STORE_FULL)
    assert [item.error.code for item in sent if item.error] == [Code.STORE_FULL, Code.STORE_FULL]
    with pytest.raises(Closed):
        store.add(b"c")


def test_a_number_without_an_id_or_an_id_without_a_number_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        Store().new_machine("orders", None)
    with pytest.raises(InvalidRequest):
        Store().new_machine(None, 1)


def test_without_confirmation_nothing_is_numbered_repeated_or_reported() -> None:
    store = Store(mode="store_send_noconfirm")
    sent = store.add(b"a", b"b")
    body = store.sends()
    assert body.publisher_id == "" and [message.publisher_seq for message in body.messages] == [0, 0]
    store.machine.on_response(Failed(0, True, "silence"))
    assert all(item.done and item.error is None for item in sent)
    assert store.machine.next_step(0) is None and store.machine.failed == 0


def test_the_window_bounds_messages_and_bytes() -> None:
    store = Store(window_messages=2)
    store.add(b"a")
    assert store.machine.has_room
    store.add(b"b")
    assert not store.machine.has_room
    store.accepts()
    assert store.machine.has_room
    large = Store(window_bytes=1_000)
    assert large.machine.has_room, "one message is admitted whatever its size"
    large.add(b"x" * 5_000)
    assert not large.machine.has_room


def test_a_lone_message_lingers_and_a_flush_ends_it() -> None:
    store = Store(linger_ms=50)
    store.add(b"a")
    step = store.machine.next_step(20)
    assert isinstance(step, Wait) and step.reason == LINGER and step.at_most_ms == 30
    store.machine.flush()
    store.accepts()
    store.add(b"b")
    assert isinstance(store.machine.next_step(store.now_ms), Wait), "a flush is over when everything is settled"


def test_a_full_batch_does_not_linger() -> None:
    store = Store(linger_ms=50, batch_messages=2)
    store.add(b"a", b"b")
    assert len(store.accepts().messages) == 2


def test_every_failure_is_reported_once_with_its_message() -> None:
    store = Store(retry_duration=0)
    store.add(b"a", b"b")
    store.refuses(403, Code.PERMISSION_DENIED)
    assert isinstance(store.machine.first_error, PermissionDenied)
    assert [failure.message.body for failure in store.machine.take_failures()] == [b"a", b"b"]
    assert store.machine.take_failures() == [] and store.machine.first_error is None


def test_failures_beyond_the_bound_are_counted() -> None:
    store = Store(retry_duration=0, failures_max=2)
    store.add(b"a", b"b", b"c")
    store.refuses(403, Code.PERMISSION_DENIED)
    assert store.machine.failed == 3 and len(store.machine.take_failures()) == 2


def test_closing_fails_what_is_queued_as_closed_and_what_is_under_way_as_unknown() -> None:
    store = Store(batch_messages=1)
    sent = store.add(b"a", b"b")
    store.sends()
    store.machine.end(Closed("closed"))
    assert isinstance(sent[0].error, OutcomeUnknown) and isinstance(sent[1].error, Closed)
    store.machine.on_response(Failed(0, True, "late"))
    store.machine.check()


def test_an_answer_that_is_not_the_apis_is_no_confirmation() -> None:
    store = Store()
    sent = store.add(b"a")
    body = store.sends()
    store.keep(body)
    store.replies(200, b"<html>")
    assert not sent[0].done
    store.waits()
    store.accepts()
    assert store.kept == [b"a"] and sent[0].seq == 1


def test_a_proxys_refusal_says_nothing_about_the_message() -> None:
    store = Store(retry_duration=0)
    sent = store.add(b"a")
    store.sends()
    store.replies(502, b"<html>bad gateway</html>")
    assert isinstance(sent[0].error, OutcomeUnknown)


@pytest.mark.parametrize("seed", range(200))
def test_nothing_confirmed_is_missing_twice_or_out_of_order_under_any_answers(seed: int) -> None:
    choice = random.Random(seed)
    store = Store(
        batch_messages=choice.choice([1, 3, 10]), retry_duration=choice.choice([-1.0, 0.0, 0.3]), window_messages=50
    )
    sent: list[Sent] = []
    for _ in range(60):
        for _ in range(choice.randrange(3)):
            if store.machine.has_room:
                sent += store.add(b"%d" % len(sent))
        step = store.machine._pause
        if step is not None:
            store.waits()
        if not store.machine.unconfirmed:
            continue
        match choice.randrange(8):
            case 6 | 7:
                status, code = choice.choice(UNCLEAR_ANSWERS)
                store.errs(status, code, keeps=choice.random() < 0.5)
            case 0:
                store.loses_the_answer(keeps=True)
            case 1:
                store.loses_the_answer(keeps=False)
            case 2:
                # The store that refuses has not kept these; one that had would confirm them as duplicates.
                body = store.sends()
                if (body.publisher_id, body.messages[0].publisher_seq) in store.known:
                    store.replies(200, store.keep(body))
                else:
                    store.replies(409, msgspec.msgpack.encode({"error": {"code": "store_full", "message": "no"}}))
            case _:
                store.accepts()
    while store.machine.unconfirmed:
        if store.machine._pause is not None:
            store.waits()
        store.accepts()
    confirmed = [item.message.body for item in sent if item.error is None]
    unclear = {item.message.body for item in sent if isinstance(item.error, OutcomeUnknown)}
    assert [body for body in store.kept if body not in unclear] == confirmed
    assert len(set(store.kept)) == len(store.kept)
    for item in sent:
        if item.seq:
            assert store.kept[item.seq - 1] == item.message.body


def test_a_token_of_a_store_travels_with_remembered_numbers_only() -> None:
    session = Session(ClientRoute((parse_endpoint("http://store:1"),)))
    options = PublisherOptions()
    with pytest.raises(InvalidRequest, match="give publisher_id and next_seq"):
        PublisherMachine(session, "s", options, entropy="e", store_token="00000001.00000002")
    machine = PublisherMachine(
        session, "s", options, entropy="e", publisher_id="p", next_seq=7, store_token="00000001.00000002"
    )
    machine.add(Message(b"x"), 0.0)
    step = machine.next_step(0.0)
    assert isinstance(step, Send)
    assert msgspec.msgpack.decode(step.request.body)["token"] == "00000001.00000002"
