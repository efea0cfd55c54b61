"""The rules of ``persist``: how far the source runs ahead, which items are consumed, when the end arrives. Pure.

Two sides use one ``Flow`` at the same time without a lock: each field has one writer, the producer's or the consumer's
side; either sets ``stopped``, once. What the producer does next (``work``), first row that holds:

| state | work |
|---|---|
| stopped, or the source has ended; the source is not closed | CLOSE_SOURCE |
| stopped, or the source has ended | NOTHING |
| unconsumed bytes above the limit | WAIT |
| items of an earlier run are not measured | MEASURE |
| else | PULL |

The producer asks for an item while fewer than ``max_bytes`` are unconsumed. Once it has waited, it continues when at
most half of ``max_bytes`` are. So at most ``max_bytes`` and one item are unconsumed. What the consumer gets next
(``step``), first row that holds:

| state | step |
|---|---|
| stopped | CLOSED |
| an item is stored and not consumed | GIVE |
| the source has ended | END |
| else | WAIT |
"""

from __future__ import annotations

from enum import Enum

ITEM_BYTES = 24
"""What an item counts in addition to its bytes: the head of a frame. So empty items are bounded, too."""


class Work(Enum):
    """What the producer does next."""

    CLOSE_SOURCE = "close the source"
    NOTHING = "nothing"
    WAIT = "wait"
    MEASURE = "measure"
    PULL = "pull"


class FlowStep(Enum):
    """What the consumer gets next."""

    CLOSED = "closed"
    GIVE = "give"
    END = "end"
    WAIT = "wait"


class Ending:
    """How the source ended: with ``error``, or without one."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error

    def closing_failed(self, failure: Exception) -> None:
        """Closing after this end has failed. The source's error carries the failure; without one it is raised."""
        if self.error is None:
            raise failure
        self.error.add_note(f"closing failed, too: {failure!r}")
        if self.error.__context__ is None and failure is not self.error:
            self.error.__context__ = failure


class Flow:
    """The state of one run. The subscription begins at ``consumed_seq``; ``left_seq`` is the last item of earlier
    runs; ``max_bytes`` None is no bound; after ``page_bytes`` consumed bytes space is freed.

    >>> flow = Flow(consumed_seq=0, left_seq=0, max_bytes=100, page_bytes=4096)
    >>> flow.stored(1, 90)
    >>> flow.work, flow.step
    (<Work.WAIT: 'wait'>, <FlowStep.GIVE: 'give'>)
    >>> flow.consumed(1, 90)
    >>> flow.work, flow.step
    (<Work.PULL: 'pull'>, <FlowStep.WAIT: 'wait'>)
    """

    def __init__(self, *, consumed_seq: int, left_seq: int, max_bytes: int | None, page_bytes: int) -> None:
        self.left_seq = left_seq
        self._max_bytes = max_bytes
        self._page_bytes = page_bytes
        # Written by the producer's side.
        self.stored_seq = left_seq
        self.measured_seq = consumed_seq if max_bytes is not None else left_seq
        self._stored_bytes = 0
        self.waiting = False
        self.ending: Ending | None = None
        self.source_closed = False
        # Written by the consumer's side.
        self.consumed_seq = consumed_seq
        self._consumed_bytes = 0
        self._passed = consumed_seq, 0  # how far, and with how many bytes, in one value
        self._freed_bytes = 0
        # Written by either, once.
        self.stopped = False

    @property
    def ahead_bytes(self) -> int:
        """Unconsumed bytes, as far as they are measured."""
        return self._stored_bytes - self._consumed_bytes

    # ---- the producer's side ----------------------------------------------------------------------------------------

    @property
    def work(self) -> Work:
        """See the module's table."""
        if self.stopped or self.ending is not None:
            return Work.NOTHING if self.source_closed else Work.CLOSE_SOURCE
        most = self._max_bytes
        if most is not None and self.ahead_bytes > (most // 2 if self.waiting else most - 1):
            return Work.WAIT
        return Work.MEASURE if self.measured_seq < self.left_seq else Work.PULL

    def pass_consumed(self) -> None:
        """Items that are consumed need no measuring: retention may have removed them."""
        seq, size = self._passed
        if seq > self.measured_seq:
            self._stored_bytes = size  # all that was measured is consumed, too
            self.measured_seq = seq

    def measured(self, last_seq: int, count: int, size: int) -> None:
        """Items of earlier runs up to ``last_seq`` are this many more, with this many bytes."""
        assert self.measured_seq <= last_seq <= self.left_seq, "items of earlier runs are measured once, in order"
        self._stored_bytes += size + ITEM_BYTES * count
        self.measured_seq = last_seq

    def stored(self, seq: int, size: int) -> None:
        """The queue has one more item."""
        assert seq > self.stored_seq, "items are stored in order"
        assert self.ending is None, "nothing is stored after the end"
        # The bytes first: the consumer's side may take the item as soon as it has a number.
        self._stored_bytes += size + ITEM_BYTES
        self.stored_seq = seq

    def ended(self, error: BaseException | None) -> None:
        """The source has no more items, or has failed. The first end counts."""
        if self.ending is None:
            self.ending = Ending(error)

    # ---- the consumer's side ----------------------------------------------------------------------------------------

    @property
    def step(self) -> FlowStep:
        """See the module's table."""
        if self.stopped:
            return FlowStep.CLOSED
        # Read the end before the items: no unseen item comes after an end that was seen.
        ended = self.ending is not None
        if self.consumed_seq < self.stored_seq:
            return FlowStep.GIVE
        return FlowStep.END if ended else FlowStep.WAIT

    def consumed(self, seq: int, size: int) -> None:
        """The item that comes next is done. One that was done already changes nothing."""
        if seq <= self.consumed_seq:
            return
        assert seq <= self.stored_seq, "an item is stored before it is consumed"
        self._consumed_bytes += size + ITEM_BYTES
        self._passed = seq, self._consumed_bytes
        self.consumed_seq = seq

    @property
    def frees(self) -> bool:
        """Whether to free the space of consumed items: a page of them, and none left to measure."""
        return self._consumed_bytes - self._freed_bytes >= self._page_bytes and self.measured_seq >= self.left_seq

    def freed(self) -> None:
        """The space of what is consumed so far is free."""
        self._freed_bytes = self._consumed_bytes

    def check(self) -> None:
        """Assert what always holds while neither side is inside a method."""
        assert self.consumed_seq <= self.stored_seq, "no item is consumed before it is stored"
        assert self.left_seq <= self.stored_seq, "what earlier runs left is stored"
        assert self.ending is None or not self.source_closed or self.work is Work.NOTHING, "an end is an end"
        if self._max_bytes is None or self.consumed_seq <= self.measured_seq:
            assert self._max_bytes is None or self.ahead_bytes >= 0, "unconsumed bytes are not negative"
