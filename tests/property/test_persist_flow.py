"""The rules of ``persist`` against a plain list of items, over any order of what both sides do."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.queue.persist_flow import ITEM_BYTES, Flow, FlowStep, Work

COUNTED = st.sampled_from((100, 200, 300))
"""What an item counts. Few values, so that a bound is often reached exactly."""


class FlowAndList(RuleBasedStateMachine):
    """``sizes`` are all items, stored or left; of these ``consumed`` are done."""

    @initialize(
        left=st.lists(COUNTED, max_size=6),
        consumed=st.integers(0, 6),
        max_bytes=st.sampled_from((None, 1, 100, 200, 500)),
    )
    def begin(self, left: list[int], consumed: int, max_bytes: int | None) -> None:
        self.sizes = left
        self.left = len(left)
        self.consumed = min(consumed, len(left))
        self.max_bytes = max_bytes
        self.flow = Flow(consumed_seq=self.consumed, left_seq=self.left, max_bytes=max_bytes, page_bytes=4096)
        self.measured = self.consumed if max_bytes is not None else self.left
        self.waiting = self.ended = self.closed = False

    @property
    def expected_work(self) -> Work:
        if self.ended:
            return Work.NOTHING if self.closed else Work.CLOSE_SOURCE
        known = self.sizes[: self.measured] + self.sizes[self.left :]
        ahead = sum(known) - sum(self.sizes[: self.consumed])
        if self.max_bytes is not None and (ahead > self.max_bytes / 2 if self.waiting else ahead >= self.max_bytes):
            return Work.WAIT
        return Work.MEASURE if self.measured < self.left else Work.PULL

    @precondition(lambda self: self.flow.work is Work.PULL)
    @rule(size=COUNTED)
    def pull(self, size: int) -> None:
        self.flow.waiting = self.waiting = False
        self.sizes.append(size)
        self.flow.stored(len(self.sizes), size - ITEM_BYTES)

    @precondition(lambda self: self.flow.work is Work.MEASURE)
    @rule(count=st.integers(1, 3))
    def measure(self, count: int) -> None:
        self.flow.waiting = self.waiting = False
        first, self.measured = self.measured, min(self.left, self.measured + count)
        found = self.sizes[first : self.measured]
        self.flow.measured(self.measured, len(found), sum(found) - ITEM_BYTES * len(found))

    @precondition(lambda self: self.flow.work is Work.MEASURE)
    @rule()
    def pass_consumed(self) -> None:
        self.flow.pass_consumed()
        self.measured = max(self.measured, self.consumed)

    @precondition(lambda self: self.flow.work is Work.WAIT)
    @rule()
    def wait(self) -> None:
        self.flow.waiting = self.waiting = True

    @rule()
    def end(self) -> None:
        self.flow.ended(None)
        self.ended = True

    @precondition(lambda self: self.flow.step is FlowStep.GIVE)
    @rule()
    def consume(self) -> None:
        self.flow.consumed(self.consumed + 1, self.sizes[self.consumed] - ITEM_BYTES)
        self.consumed += 1

    @precondition(lambda self: self.flow.work is Work.CLOSE_SOURCE)
    @rule()
    def close_source(self) -> None:
        self.flow.source_closed = self.closed = True

    @invariant()
    def the_source_is_asked_below_the_bound_and_after_a_wait_below_the_half(self) -> None:
        assert self.flow.work is self.expected_work

    @invariant()
    def the_consumer_gets_every_item_and_then_the_end(self) -> None:
        left = len(self.sizes) - self.consumed
        assert self.flow.step is (FlowStep.GIVE if left else FlowStep.END if self.ended else FlowStep.WAIT)

    @invariant()
    def neither_side_waits_for_the_other(self) -> None:
        assert not (self.flow.step is FlowStep.WAIT and self.flow.work in (Work.WAIT, Work.NOTHING))

    @invariant()
    def the_state_is_whole(self) -> None:
        self.flow.check()


FlowAndList.TestCase.settings = settings(stateful_step_count=40)
TestFlowAndList = FlowAndList.TestCase
