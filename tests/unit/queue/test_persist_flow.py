"""The rules of ``persist``, by table: what the producer does next, and what the consumer gets next."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.queue.persist_flow import ITEM_BYTES, Flow, FlowStep, Work

BOUND = 1000


def flow(*, consumed: int = 0, left: int = 0, max_bytes: int | None = BOUND) -> Flow:
    return Flow(consumed_seq=consumed, left_seq=left, max_bytes=max_bytes, page_bytes=4096)


def after(*events: Callable[[Flow], object], start: Flow | None = None) -> Flow:
    found = start or flow()
    for event in events:
        event(found)
        found.check()
    return found


def stored(seq: int, size: int) -> Callable[[Flow], object]:
    return lambda found: found.stored(seq, size - ITEM_BYTES)


def consumed(seq: int, size: int) -> Callable[[Flow], object]:
    return lambda found: found.consumed(seq, size - ITEM_BYTES)


def measured(seq: int, size: int, count: int) -> Callable[[Flow], object]:
    return lambda found: found.measured(seq, count, size - count * ITEM_BYTES)


def waits(found: Flow) -> None:
    assert found.work is Work.WAIT
    found.waiting = True


def stopped(found: Flow) -> None:
    found.stopped = True


def closed(found: Flow) -> None:
    found.source_closed = True


def ended(found: Flow) -> None:
    found.ended(None)


@pytest.mark.parametrize(
    ("state", "work"),
    [
        (after(), Work.PULL),
        (after(stored(1, BOUND - 1)), Work.PULL),
        (after(stored(1, BOUND)), Work.WAIT),
        (after(stored(1, BOUND - 1), stored(2, 500)), Work.WAIT),
        (after(stored(1, 5 * BOUND)), Work.WAIT),
        (after(stored(1, 5 * BOUND), waits, consumed(1, 5 * BOUND)), Work.PULL),
        (after(stored(1, 500), stored(2, 500), consumed(1, 500)), Work.PULL),
        (after(stored(1, 501), stored(2, 499), waits, consumed(1, 501)), Work.PULL),
        (after(stored(1, 499), stored(2, 501), waits, consumed(1, 499)), Work.WAIT),
        (after(stored(1, 5 * BOUND), start=flow(max_bytes=None)), Work.PULL),
        (after(start=flow(left=9)), Work.MEASURE),
        (after(start=flow(consumed=9, left=9)), Work.PULL),
        (after(start=flow(left=9, max_bytes=None)), Work.PULL),
        (after(measured(4, BOUND - 1, 4), start=flow(left=9)), Work.MEASURE),
        (after(measured(4, BOUND, 4), start=flow(left=9)), Work.WAIT),
        (after(measured(4, BOUND, 4), waits, consumed(1, 700), start=flow(left=9)), Work.MEASURE),
        (after(measured(9, BOUND - 1, 9), start=flow(left=9)), Work.PULL),
        (after(measured(9, BOUND, 9), start=flow(left=9)), Work.WAIT),
        (after(ended), Work.CLOSE_SOURCE),
        (after(stored(1, BOUND), ended), Work.CLOSE_SOURCE),
        (after(stopped), Work.CLOSE_SOURCE),
        (after(stored(1, BOUND), waits, stopped), Work.CLOSE_SOURCE),
        (after(ended, closed), Work.NOTHING),
        (after(stopped, closed), Work.NOTHING),
    ],
)
def test_what_the_producer_does_next(state: Flow, work: Work) -> None:
    assert state.work is work


@pytest.mark.parametrize(
    ("state", "step"),
    [
        (after(), FlowStep.WAIT),
        (after(stored(1, 100)), FlowStep.GIVE),
        (after(stored(1, 100), ended), FlowStep.GIVE),
        (after(stored(1, 100), consumed(1, 100)), FlowStep.WAIT),
        (after(stored(1, 100), ended, consumed(1, 100)), FlowStep.END),
        (after(ended), FlowStep.END),
        (after(start=flow(left=2)), FlowStep.GIVE),
        (after(ended, start=flow(left=2)), FlowStep.GIVE),
        (after(ended, start=flow(consumed=2, left=2)), FlowStep.END),
        (after(stored(1, 100), stopped), FlowStep.CLOSED),
        (after(ended, stopped), FlowStep.CLOSED),
    ],
)
def test_what_the_consumer_gets_next(state: Flow, step: FlowStep) -> None:
    assert state.step is step


def test_the_first_end_of_a_source_counts() -> None:
    found = flow()
    first = ValueError("first")
    found.ended(first)
    found.ended(None)
    assert found.ending is not None
    assert found.ending.error is first


def test_consuming_an_item_twice_counts_once() -> None:
    found = after(stored(1, 100), stored(2, 100), consumed(1, 100), consumed(1, 100))
    assert found.ahead_bytes == 100
    assert found.consumed_seq == 1


def test_consumed_items_need_no_measuring() -> None:
    found = after(measured(1, 100, 1), consumed(1, 100), consumed(2, 300), start=flow(left=3))
    found.pass_consumed()
    assert (found.measured_seq, found.ahead_bytes) == (2, 0)
    after(measured(3, 50, 1), start=found)
    found.pass_consumed()
    assert (found.measured_seq, found.ahead_bytes) == (3, 50)


def test_space_is_freed_after_a_page_and_not_before_all_that_was_left_is_measured() -> None:
    found = after(stored(1, 4095), consumed(1, 4095), start=flow(max_bytes=None))
    assert not found.frees
    after(stored(2, 30), consumed(2, 30), start=found)
    assert found.frees
    found.freed()
    assert not found.frees
    left = after(measured(1, 5000, 1), consumed(1, 5000), start=flow(left=2))
    assert not left.frees
    after(measured(2, 100, 1), start=left)
    assert left.frees


def test_what_cannot_be_is_an_error_of_ours() -> None:
    with pytest.raises(AssertionError, match="in order"):
        after(stored(2, 10)).stored(2, 10)
    with pytest.raises(AssertionError, match="after the end"):
        after(ended).stored(1, 10)
    with pytest.raises(AssertionError, match="before it is consumed"):
        flow().consumed(1, 10)
