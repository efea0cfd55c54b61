"""Laws of the subscriber's machine: credit, acknowledgements, coming back. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from holdfast.client.protocol.effects import Wait
from holdfast.client.protocol.endpoint import ClientRoute, parse_endpoint
from holdfast.client.protocol.options import SubscriberOptions
from holdfast.client.protocol.retry_budget import Session
from holdfast.client.protocol.stores.acknowledgements import Pace
from holdfast.client.protocol.stores.messages import subscribe_target
from holdfast.client.protocol.stores.subscriber import Connect, SubscriberMachine, SubscriptionEnded, Talk
from holdfast.errors import (
    Closed,
    Code,
    CorruptData,
    HoldfastError,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    Unavailable,
)

Frame = dict[str, object]


def encoded(frame: Frame) -> bytes:
    return msgspec.msgpack.encode(frame)


class Service:
    """The other side of the line, spoken by the test."""

    def __init__(self, **options: object) -> None:
        self.options = SubscriberOptions(**options)  # type: ignore[arg-type]
        session = Session(ClientRoute((parse_endpoint("http://store:1"),)))
        self.machine = SubscriberMachine(session, subscribe_target("s", "d", "me"), self.options)
        self.now_ms = 0.0
        self.said: list[Frame] = []
        self.probes = 0

    def step(self) -> Connect | Talk | Wait | SubscriptionEnded:
        step = self.machine.next_step(self.now_ms)
        self.machine.check()
        if isinstance(step, Talk | SubscriptionEnded):
            self.said += [msgspec.msgpack.decode(payload) for payload in step.outgoing]
        if isinstance(step, Talk):
            self.probes += step.probes
        return step

    def connects(self) -> Connect:
        step = self.step()
        assert isinstance(step, Connect)
        self.machine.opened(self.now_ms)
        return step

    def attaches(self, **terms: object) -> None:
        self.connects()
        self.says({"type": "attached", "created": False, "prefetch": 8, "ack_batch_count": 3, **terms})
        self.step()

    def says(self, frame: Frame) -> None:
        self.machine.received(encoded(frame), self.now_ms)
        self.machine.check()

    def delivers(self, *numbers: int) -> None:
        messages = [
            {
                "seq": seq,
                "fields": {},
                "key": None,
                "body": b"%d" % seq,
                "published_ms": 1,
                "delivery_count": 1,
                "redelivered": False,
            }
            for seq in numbers
        ]
        self.says({"type": "messages", "messages": messages})

    def takes(self) -> list[int]:
        taken = []
        while (message := self.machine.take(self.now_ms)) is not None:
            taken.append(message.seq)
        self.step()
        return taken

    def hears(self) -> list[Frame]:
        self.step()
        said, self.said = self.said, []
        return said

    def loses(self) -> None:
        self.machine.lost(self.now_ms, "cut")
        self.machine.check()

    def waits(self) -> Wait:
        step = self.step()
        assert isinstance(step, Wait)
        self.now_ms += step.at_most_ms
        self.machine.waited()
        return step


class Answers:
    def __init__(self) -> None:
        self.stale: Sequence[int] | None = None
        self.error: HoldfastError | None = None

    def __call__(self, stale: Sequence[int], error: HoldfastError | None) -> None:
        self.stale, self.error = stale, error


def test_the_target_names_everything_that_the_subscriber_asks_for() -> None:
    session = Session(ClientRoute((parse_endpoint("http://store:1"),)))
    target = subscribe_target("a b", "d/1", "me", template="t", matcher={"x": [1]}, key="k", prefetch=5)
    machine = SubscriberMachine(session, target, SubscriberOptions())
    step = machine.next_step(0)
    assert isinstance(step, Connect)
    assert step.target == (
        "/v1/stores/a%20b/durables/d%2F1/subscribe"
        "?subscriber=me&template=t&matcher=%7B%22x%22%3A%5B1%5D%7D&key=k&prefetch=5"
    )


def credit_of(service: Service) -> list[object]:
    return [frame["messages"] for frame in service.hears() if frame["type"] == "credit"]


def grow(service: Service, *, first: int = 1) -> int:
    """Take what the credit allows, at once, until it grows no more. Returns the next number."""
    seq, given = first, sum(credit_of(service))  # type: ignore[arg-type]
    while given:
        service.delivers(*range(seq, seq + given))
        service.takes()
        service.machine.acknowledge([(seq, seq + given - 1)], service.now_ms)
        service.machine.flush()
        seq += given
        if given == service.machine.window:
            break
        given = sum(credit_of(service))  # type: ignore[arg-type]
    return seq


def test_credit_begins_at_one_and_doubles_up_to_the_prefetch_while_it_is_used_up() -> None:
    service = Service()
    service.attaches()
    windows, seq = [service.machine.window], 0
    for _ in range(8):
        for _ in range(sum(credit_of(service))):  # type: ignore[arg-type]
            seq += 1
            service.delivers(seq)
        service.takes()
        windows.append(service.machine.window)
    assert windows == [1, 4, 8, 8, 8, 8, 8, 8, 8]


def test_the_window_has_what_the_application_takes_in_a_third_of_the_time_it_has() -> None:
    service = Service()
    service.attaches(prefetch=64, buffer_wait_ms=30_000)
    room = seq = 0
    for _ in range(60):
        room += sum(credit_of(service))  # type: ignore[arg-type]
        if not service.machine.has_ready:  # as from far away
            service.delivers(*range(seq + 1, seq + room + 1))
            seq, room = seq + room, 0
        assert service.machine.take(service.now_ms) is not None
        service.step()
        service.now_ms += 1_000
        service.machine.heard(service.now_ms)
        assert service.machine.window <= 10, "a message a second, and 30 seconds"
    assert service.machine.window == 10


@pytest.mark.parametrize(("each_ms", "expected"), [(0.5, 1_000), (2.0, 500), (10.0, 100), (40.0, 64)])
def test_above_64_messages_the_window_has_what_the_application_takes_in_a_second(each_ms: float, expected: int) -> None:
    pace = Pace()
    now_ms = 0.0
    for _ in range(8):
        taken = pace.limit(1_000, 30_000)
        pace.took(taken, now_ms, waiting=0)
        now_ms += each_ms * taken
    assert pace.limit(1_000, 30_000) == expected


def test_large_messages_make_the_window_small() -> None:
    pace = Pace()
    for _ in range(6):
        pace.took(pace.window, 0.0, waiting=0)
        pace.limit(256, 30_000)
    assert pace.window == 256
    pace.arrived(2, 2 << 20)
    assert pace.limit(256, 30_000) == 16
    pace.arrived(1, 64 << 20)
    assert pace.limit(256, 30_000) == 1
    for _ in range(40):
        pace.arrived(16, 16 << 10)
        pace.took(pace.window, 0.0, waiting=0)
        pace.limit(256, 30_000)
    assert pace.window == 256, "small ones make it large again"


def test_a_subscribers_own_prefetch_bounds_what_it_holds_unsettled() -> None:
    service = Service(prefetch=4)
    service.attaches()
    seq = grow(service)
    assert service.machine.window == 4
    service.hears()
    service.delivers(*range(seq, seq + 4))
    assert service.takes() == [*range(seq, seq + 4)]
    assert credit_of(service) == [], "taking gives no credit"
    service.machine.acknowledge([(seq, seq)], 0)
    assert service.hears() == []
    service.machine.acknowledge([(seq + 1, seq + 1)], 0)
    frames = service.hears()
    assert [frame["type"] for frame in frames] == ["ack", "credit"]
    assert frames[1]["messages"] == 2
    service.machine.put_back(seq + 2, 0)
    assert [frame["type"] for frame in service.hears()] == ["nack", "credit"]
    service.machine.extend(seq + 3)
    assert [frame["type"] for frame in service.hears()] == ["extend"]
    service.machine.reject(seq + 3)
    assert service.hears()[-1] == {"type": "credit", "messages": 1}


def test_acknowledgements_go_out_together_as_ranges() -> None:
    service = Service()
    service.attaches()
    service.hears()
    for seq in (1, 2):
        service.machine.acknowledge([(seq, seq)], service.now_ms)
    assert service.hears() == []
    service.machine.acknowledge([(4, 4)], service.now_ms)
    assert service.hears() == [{"type": "ack", "id": 1, "ranges": [[1, 2], [4, 4]]}]
    assert service.machine.unconfirmed == 3
    service.says({"type": "answer", "id": 1, "acknowledged": 3, "stale": []})
    assert service.machine.unconfirmed == 0


def test_more_ranges_than_a_frame_takes_go_out_in_several() -> None:
    service = Service(ack_batch_count=1_000_000)
    service.attaches(prefetch=65_536, ack_batch_count=1_000_000)
    service.hears()
    replies = Answers()
    service.machine.acknowledge([(seq, seq) for seq in (*range(1, 24_002, 2), 30_000)], 0, replies)
    frames = service.hears()
    assert [len(frame["ranges"]) for frame in frames] == [10_000, 2_002]  # type: ignore[arg-type]
    service.says({"type": "answer", "id": 1, "acknowledged": 9_998, "stale": [1, [3, 3]]})
    assert replies.stale is None
    service.says({"type": "answer", "id": 2, "acknowledged": 2_001, "stale": [30_000]})
    assert replies.stale == [1, 3, 30_000] and service.machine.unconfirmed == 0


def test_a_lone_acknowledgement_goes_out_when_its_time_is_over() -> None:
    service = Service()
    service.attaches(ack_batch_time_ms=100)
    service.hears()
    service.machine.acknowledge([(1, 1)], 50)
    service.now_ms = 60
    step = service.step()
    assert isinstance(step, Talk) and step.timeout_ms == 90
    service.now_ms = 150
    assert service.hears() == [{"type": "ack", "id": 1, "ranges": [[1, 1]]}]


def test_who_waits_for_the_answer_sends_at_once_and_hears_what_was_stale() -> None:
    service = Service()
    service.attaches()
    service.hears()
    replies = Answers()
    service.machine.acknowledge([(5, 7)], 0, replies)
    assert [frame["type"] for frame in service.hears()] == ["ack"]
    service.says({"type": "answer", "id": 1, "acknowledged": 1, "stale": [[6, 7]]})
    assert replies.stale == [6, 7] and service.machine.stale == 2
    assert [advisory.kind for advisory in service.machine.advisories.take()] == ["stale_acknowledgement"]


def test_a_call_does_not_return_the_stale_numbers_of_other_calls() -> None:
    service = Service()
    service.attaches()
    service.hears()
    service.machine.acknowledge([(1, 1), (3, 3)], 0)
    replies = Answers()
    service.machine.acknowledge([(2, 2), (4, 6)], 0, replies)
    service.hears()
    service.says({"type": "answer", "id": 1, "acknowledged": 3, "stale": [1, 3, 5]})
    assert replies.stale == [5] and service.machine.stale == 3
    (advisory,) = service.machine.advisories.take()
    assert (advisory.kind, advisory.facts["messages"]) == ("stale_acknowledgement", 3)


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_who_acknowledges_several_hears_of_every_one_that_was_stale(mode: str) -> None:
    service = Service()
    service.attaches(ack_mode=mode, ack_batch_count=2)
    service.hears()
    replies = Answers()
    service.machine.acknowledge([(seq, seq) for seq in (1, 3, 4, 5, 7, 7)], 0, replies)
    (frame,) = service.hears()
    assert frame["ranges"] == [[1, 1], [3, 5], [7, 7], [7, 7]]
    service.says({"type": "answer", "id": 1, "acknowledged": 3, "stale": [1, [4, 5]]})
    assert replies.stale == [1, 4, 5]


def test_one_error_is_told_of_several_frames_and_no_answer_behind_it() -> None:
    service = Service()
    service.attaches(prefetch=65_536)
    awaited: list[HoldfastError | None] = []
    numbers = [(seq, seq) for seq in range(1, 24_002, 2)]
    service.machine.acknowledge(numbers, 0, lambda _stale, error: awaited.append(error))
    assert len([frame for frame in service.hears() if frame["type"] == "ack"]) == 2
    service.says({"type": "error", "id": 1, "code": "permission_denied", "message": "no"})
    service.says({"type": "answer", "id": 2, "acknowledged": 2_001, "stale": []})
    assert [error.code for error in awaited if error is not None] == [Code.PERMISSION_DENIED] and len(awaited) == 1
    assert not service.machine.has_ended


def test_a_durable_with_sync_acknowledgements_gets_each_at_once() -> None:
    service = Service()
    service.attaches(ack_mode="sync")
    service.hears()
    service.machine.acknowledge([(1, 1)], 0)
    assert service.hears() == [{"type": "ack", "id": 1, "ranges": [[1, 1]]}]


@pytest.mark.parametrize(("kind", "what"), [("nack", [[9, 500]]), ("reject", [9]), ("extend", [9])])
def test_the_other_ways_to_settle_go_out_at_once(kind: str, what: list[object]) -> None:
    service = Service()
    service.attaches()
    service.hears()
    match kind:
        case "nack":
            service.machine.put_back(9, 500)
        case "reject":
            service.machine.reject(9)
        case _:
            service.machine.extend(9)
    assert service.hears() == [{"type": kind, "id": 1, "messages": what}]


def test_a_lost_connection_is_replaced_and_unanswered_acknowledgements_go_out_first() -> None:
    service = Service()
    service.attaches()
    service.delivers(1, 2, 3, 4)
    service.machine.take(service.now_ms)
    service.machine.acknowledge([(1, 1)], 0, Answers())
    service.machine.acknowledge([(2, 2)], 0)
    service.hears()
    service.loses()
    assert service.machine.take(service.now_ms) is None, "what was not handed out is delivered again by the service"
    service.waits()
    service.attaches()
    kinds = [(frame["type"], frame.get("ranges")) for frame in service.hears()]
    assert kinds == [("ack", [[1, 1]]), ("ack", [[2, 2]]), ("credit", None)]
    assert [advisory.kind for advisory in service.machine.advisories.take()] == [
        "store_unavailable",
        "store_available",
    ]


def test_an_answer_that_was_asked_for_comes_through_a_lost_connection() -> None:
    service = Service()
    service.attaches()
    replies = Answers()
    service.machine.acknowledge([(1, 1)], 0, replies)
    service.loses()
    service.waits()
    service.attaches()
    frame = next(frame for frame in service.hears() if frame["type"] == "ack" and frame["id"] != 1)
    service.says({"type": "answer", "id": frame["id"], "acknowledged": 0, "stale": [[1, 1]]})
    assert replies.stale == [1]


def test_a_silent_service_is_probed_and_then_lost() -> None:
    service = Service(heartbeat_ms=2_000, timeout_ms=5_000)
    service.attaches()
    service.now_ms = 2_000
    service.step()
    assert service.probes == 1
    service.machine.heard(2_500)
    service.now_ms = 6_000
    assert isinstance(service.step(), Talk)
    service.now_ms = 7_500
    assert isinstance(service.step(), Wait)


def test_a_frame_that_takes_long_on_its_way_is_no_silence_and_probes_go_on_meanwhile() -> None:
    service = Service(heartbeat_ms=2_000, timeout_ms=5_000)
    service.attaches()
    for now_ms in range(1_000, 30_001, 1_000):
        service.now_ms = now_ms
        service.machine.bytes_arrived(now_ms)
        assert isinstance(service.step(), Talk)
    assert service.probes == 15, "the service hears that somebody is there"
    service.delivers(1)
    assert service.takes() == [1]
    service.now_ms = 35_000
    assert isinstance(service.step(), Wait)


@pytest.mark.parametrize("attached", [False, True])
def test_a_service_that_does_not_finish_the_handshake_is_lost(attached: bool) -> None:
    service = Service()
    assert isinstance(service.step(), Connect)
    if attached:
        service.machine.opened(0)
    service.now_ms = 5_000
    assert isinstance(service.step(), Wait)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [(404, "not_found", NotFound), (409, "matcher_mismatch", InvalidRequest), (409, "type_mismatch", InvalidRequest)],
)
def test_what_will_not_pass_ends_the_subscription(status: int, code: str, kind: type[HoldfastError]) -> None:
    service = Service()
    service.step()
    service.machine.refused(0, status, {}, msgspec.json.encode({"error": {"code": code, "message": "no"}}))
    assert isinstance(service.step(), SubscriptionEnded)
    assert isinstance(service.machine.failure, kind) and service.machine.failure.code == code


def test_a_service_that_is_not_ready_is_asked_again() -> None:
    service = Service()
    service.step()
    service.machine.refused(0, 503, {}, b"starting")
    service.waits()
    assert isinstance(service.step(), Connect)


def test_retry_duration_0_ends_with_the_first_loss_and_n_after_n_seconds() -> None:
    service = Service(retry_duration=0)
    service.attaches()
    service.loses()
    assert isinstance(service.step(), SubscriptionEnded) and isinstance(service.machine.failure, Unavailable)
    service = Service(retry_duration=1.0)
    service.attaches()
    service.loses()
    while isinstance(service.step(), Wait):
        service.waits()
        assert isinstance(service.step(), Connect)
        service.loses()
    assert 1_000 <= service.now_ms < 2_000


def test_what_is_larger_than_this_client_takes_ends_it_and_names_the_bound() -> None:
    service = Service()
    service.attaches()
    service.machine.too_large()
    assert isinstance(service.step(), SubscriptionEnded)
    failure = service.machine.failure
    assert isinstance(failure, LimitExceeded)
    assert failure.fields == {"event_bytes_max": 64 << 20} and "event_bytes_max" in failure.hint


def test_being_attached_alone_is_no_connection_that_was_found_again() -> None:
    service = Service(retry_duration=1.0)
    lengths = []
    service.attaches()
    service.delivers(1)
    while True:
        service.loses()
        if isinstance(service.step(), SubscriptionEnded):
            break
        lengths.append(service.waits().at_most_ms)
        service.attaches()
    assert lengths == [20, 40, 80, 160, 320, 640], "each is twice as long, though each connection was attached"
    kinds = [advisory.kind for advisory in service.machine.advisories.take()]
    assert kinds == ["store_unavailable", "store_available"] * 6 + ["store_unavailable"]


def test_the_time_while_it_was_attached_is_no_time_of_looking_for_the_service() -> None:
    service = Service(retry_duration=1.0)
    service.attaches()
    service.delivers(1)
    service.loses()
    service.waits()
    service.attaches()
    service.now_ms += 40_000
    service.loses()
    assert isinstance(service.step(), Wait)


@pytest.mark.parametrize("what", ["messages", "answer", "pong"])
def test_what_a_connection_brings_starts_pauses_and_time_anew(what: str) -> None:
    service = Service(retry_duration=1.0)
    service.attaches()
    for _ in range(20):
        service.loses()
        assert service.waits().at_most_ms == 20
        service.attaches()
        if what == "messages":
            service.delivers(1)
        elif what == "answer":
            service.machine.acknowledge([(1, 1)], service.now_ms, Answers())
            frame = service.hears()[-1]
            service.says({"type": "answer", "id": frame["id"], "acknowledged": 1, "stale": []})
        else:
            service.machine.heard(service.now_ms)
        service.now_ms += 500


def test_a_newer_subscriber_ends_this_one_by_name() -> None:
    service = Service()
    service.attaches()
    service.machine.lost(0, "closed", 4409, "durable_collision")
    assert isinstance(service.step(), SubscriptionEnded)
    assert service.machine.failure is not None and service.machine.failure.code is Code.DURABLE_COLLISION


def test_damage_ends_the_subscription_as_corrupt_and_says_where() -> None:
    service = Service()
    service.attaches()
    service.says({"type": "advisory", "kind": "corrupt_queue", "facts": {"first": 7, "page": 1}})
    service.machine.lost(0, "closed", 4500, "corrupt_queue")
    assert isinstance(service.machine.failure, CorruptData)
    assert "first=7 page=1" in str(service.machine.failure)


def test_a_service_that_restarts_ends_nothing() -> None:
    service = Service()
    service.attaches()
    service.machine.lost(0, "closed", 4503, "closed")
    service.waits()
    assert isinstance(service.step(), Connect)


@pytest.mark.parametrize("code", ["outcome_unknown", "sync_failed", "disk_full", "store_unavailable", "internal"])
def test_a_service_whose_log_failed_is_connected_to_again_with_what_it_left_open(code: str) -> None:
    service = Service()
    service.attaches()
    service.machine.lost(0, "closed", 4500, code)
    service.waits()
    service.attaches()
    service.hears()
    replies = Answers()
    service.machine.acknowledge([(1, 1)], 0, replies)
    service.hears()
    service.says({"type": "error", "id": 1, "code": code, "message": "no"})
    service.waits()
    service.attaches()
    assert [(frame["type"], frame.get("ranges")) for frame in service.hears()] == [("ack", [[1, 1]]), ("credit", None)]
    service.says({"type": "answer", "id": 2, "acknowledged": 1, "stale": []})
    assert replies.stale == [] and replies.error is None


def test_a_refused_acknowledgement_is_told_to_who_waits_for_it() -> None:
    service = Service()
    service.attaches()
    replies = Answers()
    service.machine.acknowledge([(1, 1)], 0, replies)
    service.says({"type": "error", "id": 1, "code": "permission_denied", "message": "no"})
    assert replies.error is not None and replies.error.code is Code.PERMISSION_DENIED
    assert not service.machine.has_ended


def test_a_refused_acknowledgement_that_nobody_waits_for_ends_the_subscription() -> None:
    service = Service()
    service.attaches()
    service.machine.reject(1)
    service.says({"type": "error", "id": 1, "code": "permission_denied", "message": "no"})
    assert service.machine.failure is not None


def test_closing_sends_what_is_acknowledged_waits_for_the_answers_and_says_good_bye() -> None:
    service = Service()
    service.attaches()
    service.hears()
    service.machine.acknowledge([(1, 1)], 0)
    service.machine.close()
    assert service.hears() == [{"type": "ack", "id": 1, "ranges": [[1, 1]]}]
    assert not service.machine.has_ended
    service.says({"type": "answer", "id": 1, "acknowledged": 1, "stale": []})
    assert service.hears() == [{"type": "close"}]
    assert service.machine.has_ended and service.machine.failure is None
    with pytest.raises(Closed):
        service.machine.acknowledge([(2, 2)], 0)


def test_closing_while_the_service_is_away_ends_at_once() -> None:
    service = Service()
    service.attaches()
    service.loses()
    service.machine.close()
    assert isinstance(service.step(), SubscriptionEnded)


def test_an_unreadable_frame_ends_the_subscription_as_corrupt() -> None:
    service = Service()
    service.attaches()
    service.machine.received(b"\xc1", 0)
    assert isinstance(service.machine.failure, CorruptData)


def test_advisories_of_the_service_reach_the_application() -> None:
    service = Service()
    service.attaches()
    heard = []
    service.machine.advisories.on_advisory = heard.append
    service.says({"type": "advisory", "kind": "data_loss", "facts": {"messages": 3}})
    assert [advisory.kind for advisory in heard] == ["data_loss"]
    assert dict(service.machine.advisories.take()[0].facts) == {"messages": 3}


def test_unknown_advisories_beyond_the_bound_push_out_the_oldest() -> None:
    service = Service(advisories_max=2)
    service.attaches()
    for number in range(4):
        service.says({"type": "advisory", "kind": f"k{number}", "facts": {}})
    assert [advisory.kind for advisory in service.machine.advisories.take()] == ["k2", "k3"]


def test_every_attachment_begins_with_an_empty_report_before_credit() -> None:
    service = Service(retry_duration=60.0)
    for _ in range(2):  # the second one is a reconnection
        service.said.clear()
        service.attaches(started_reports=True)
        assert [frame["type"] for frame in service.said] == ["started", "credit"]
        assert service.said[0]["ranges"] == []
        service.machine.lost(service.now_ms, "cut")
        assert isinstance(service.step(), Wait)
        service.machine.waited()


def test_a_service_that_takes_no_reports_gets_none() -> None:
    service = Service()
    service.attaches(started_reports=False)
    assert [frame["type"] for frame in service.said] == ["credit"]
