"""Laws of the subscriber's buffer: only what is still this subscriber's is handed over. No I/O, no clock."""

from __future__ import annotations

import pytest
from tests.unit.client.stores.test_consuming import Service

from holdfast.client.protocol.stores.acknowledgements import RANGES_MAX

Frame = dict[str, object]


def delivers(service: Service, *numbers: int, wait_ms: int = 30_000, keys: str = "", redelivered: bool = False) -> None:
    messages = [
        {
            "seq": seq,
            "fields": {},
            "key": keys[index] if keys else None,
            "body": b"",
            "published_ms": 1,
            "delivery_count": 1,
            "redelivered": redelivered,
        }
        for index, seq in enumerate(numbers)
    ]
    service.says({"type": "messages", "messages": messages, "buffer_wait_ms": wait_ms})


def withdraws(service: Service, *ranges: tuple[int, int]) -> None:
    service.says({"type": "withdrawn", "ranges": list(ranges), "cause": "lapsed"})


def given(service: Service) -> int:
    return sum(frame["messages"] for frame in service.hears() if frame["type"] == "credit")  # type: ignore[misc]


def test_what_is_withdrawn_is_not_handed_over() -> None:
    service = Service()
    service.attaches(prefetch=8)
    delivers(service, 1, 2, 3, 4, 5)
    withdraws(service, (2, 3), (5, 5))
    assert service.takes() == [1, 4]


@pytest.mark.parametrize("own", [None, 8])
def test_credit_for_what_was_withdrawn_comes_back_once(own: int | None) -> None:
    """The service counts what it may send: what it withdraws it may send again, here and there alike."""
    service = Service(**({} if own is None else {"prefetch": own}))
    service.attaches(prefetch=8)
    room, held, seq = given(service), list[int](), 0
    for turn in range(400):
        while room:
            seq, room = seq + 1, room - 1
            held.append(seq)
            delivers(service, seq)
        assert len(held) <= 8 + (own is None) * len(held), "never more than the prefetch"
        if turn % 3 == 1 and held:
            lost, held = held[: 1 + turn % 4], held[1 + turn % 4 :]
            room += len(lost)
            withdraws(service, *[(one, one) for one in lost])
        taken = service.takes()
        assert set(taken) <= set(held), "only what is still held"
        for one in taken[: len(taken) - turn % 2]:
            held.remove(one)
            service.machine.acknowledge([(one, one)], service.now_ms)
        service.machine.flush()
        room += given(service)
    assert service.machine.window == 8
    assert seq > 400, "the credit never ran out"


def test_what_has_waited_too_long_is_not_handed_over() -> None:
    service = Service()
    service.attaches(prefetch=8)
    delivers(service, 1, 2, wait_ms=1_000)
    delivers(service, 3, wait_ms=2_000)
    service.now_ms += 1_000
    assert service.takes() == [3]


def test_with_a_late_message_go_the_later_ones_of_its_durable() -> None:
    service = Service()
    service.attaches(prefetch=8, order="durable")
    delivers(service, 1, wait_ms=5_000)
    delivers(service, 2, wait_ms=1_000)
    delivers(service, 3, 4, wait_ms=5_000)
    service.now_ms += 1_000
    assert service.takes() == [1]


def test_with_a_late_message_go_the_later_ones_of_its_key() -> None:
    service = Service()
    service.attaches(prefetch=8, order="key")
    delivers(service, 1, wait_ms=1_000, keys="a")
    delivers(service, 2, 3, 4, wait_ms=5_000, keys="bab")
    service.now_ms += 1_000
    assert service.takes() == [2, 4]


def test_what_was_late_and_is_withdrawn_then_costs_no_credit() -> None:
    service = Service()
    service.attaches(prefetch=8)
    delivers(service, 1)
    service.takes()
    assert given(service) == 1 + 4
    delivers(service, 2, 3, wait_ms=1_000)
    service.now_ms += 1_000
    assert service.takes() == []
    assert given(service) == 0, "the service has not taken them back yet"
    withdraws(service, (2, 3))
    assert given(service) == 0, "the service may send two again by itself"
    delivers(service, 4)
    assert service.takes() == [4]
    assert given(service) == 5, "the window is eight now, and the service has three, with the two that it took back"


def test_after_a_silence_that_is_too_long_nothing_that_lies_unread_is_handed_over() -> None:
    """A laptop slept, or the event loop was blocked: the service has given the messages to others."""
    service = Service()
    service.attaches(prefetch=8)
    service.now_ms += 3_600_000
    service.machine.bytes_arrived(service.now_ms)
    delivers(service, 1, 2)
    assert service.takes() == []
    service.waits()
    service.connects()


@pytest.mark.parametrize("own", [None, 8])
@pytest.mark.parametrize("settles", ["acknowledge", "put back"])
def test_what_was_late_and_is_settled_by_an_earlier_delivery_stops_no_other_message(
    own: int | None, settles: str
) -> None:
    """The service withdraws nothing then: its number would order the messages behind it without end."""
    service = Service(explicit_ack=True, **({} if own is None else {"prefetch": own}))
    service.attaches(prefetch=8, order="durable", ack_batch_count=1)
    delivers(service, 1)
    assert service.takes() == [1]
    room = given(service)
    withdraws(service, (1, 1))
    delivers(service, 1, wait_ms=1_000, redelivered=True)
    service.now_ms += 1_000
    assert service.takes() == [], "it is late here, and not yet there"
    if settles == "acknowledge":
        service.machine.acknowledge([(1, 1)], service.now_ms)
    else:
        service.machine.put_back(1, 5_000)
    room += given(service)
    service.says({"type": "answer", "id": 1, "acknowledged": 1, "stale": []})
    delivers(service, 2, 3)
    assert service.takes() == [2, 3]
    room += given(service) + 1 - 4  # one withdrawn, four delivered
    assert room == service.machine.window - (0 if own is None else 2), "its credit came back"


@pytest.mark.parametrize("own", [None, 8])
@pytest.mark.parametrize("is_sent", [False, True])
@pytest.mark.parametrize("settles", ["acknowledge", "put back", "reject"])
def test_what_comes_again_while_its_acknowledgement_is_on_its_way_is_not_handed_over(
    own: int | None, is_sent: bool, settles: str
) -> None:
    """The service carries the acknowledgement out after this delivery: else its reply had come before."""
    service = Service(explicit_ack=True, **({} if own is None else {"prefetch": own}))
    service.attaches(prefetch=8, ack_batch_count=1 if is_sent else 8)
    delivers(service, 1)
    assert service.takes() == [1]
    room = given(service)
    match settles:
        case "acknowledge":
            service.machine.acknowledge([(1, 1)], service.now_ms)
        case "put back":
            service.machine.put_back(1, 5_000)
        case _:
            service.machine.reject(1)
    room += given(service) if is_sent else 0
    withdraws(service, (1, 1))
    delivers(service, 1, redelivered=True)
    assert service.takes() == []
    service.machine.flush()
    room += given(service)
    service.says({"type": "answer", "id": 1, "acknowledged": 1, "stale": []})
    room += given(service) + 1 - 2  # one withdrawn, two delivered
    assert room == service.machine.window, "its credit came back once"


def test_a_withdrawal_of_many_is_answered_in_frames_that_the_service_takes() -> None:
    service = Service(prefetch=RANGES_MAX + 2)
    service.attaches(prefetch=RANGES_MAX + 2, order="key")
    numbers = range(1, RANGES_MAX + 2)
    delivers(service, *numbers, keys="k" * len(numbers))
    service.says({"type": "withdrawn", "ranges": [[1, RANGES_MAX + 1]], "cause": "purged"})
    answers = [frame["messages"] for frame in service.hears() if frame["type"] == "nack"]
    assert [len(each) for each in answers] == [RANGES_MAX, 1]  # type: ignore[arg-type]


def test_many_messages_taken_together_are_reported_in_frames_that_the_service_takes() -> None:
    service = Service(prefetch=RANGES_MAX + 2)
    service.attaches(prefetch=RANGES_MAX + 2, started_reports=True)
    delivers(service, *range(1, 2 * RANGES_MAX + 2, 2))  # every other message: the rest is another worker's
    service.hears()
    assert len(service.machine.take_all(service.now_ms)) == RANGES_MAX + 1
    reports = [frame["ranges"] for frame in service.hears() if frame["type"] == "started"]
    assert [len(each) for each in reports] == [RANGES_MAX, 1]  # type: ignore[arg-type]
