"""What a purged or deleted durable still has to give back of its backlog and of its retained messages, in steps.

A purge takes effect at once and its result is exact. To give back a large backlog, every message must be passed, and
read if there is a matcher; one command must not block all others for that. Until the residue is done its messages count
against the store's limits.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.stores.durables.backlog import SCAN_MAX, Backlog, Shelf, expires_ms
from holdfast.stores.matching import Matcher
from holdfast.stores.values.ports import BLOCK_MESSAGES, Kept
from holdfast.stores.values.sequence_set import SequenceSet

STEP_MESSAGES: Final = 262_144
"""Messages given back in one step where nothing is read for it; else ``backlog.SCAN_MAX`` are looked at."""


class ResidueState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A residue in a snapshot. Append only."""

    since_ms: int
    matcher: bytes
    start: int
    cursor: int
    end: int
    left: int
    """-1 where it was not counted."""
    excluded: list[tuple[int, int]]
    delayed: list[tuple[int, int]] = []
    only_delayed: bool = False


class Residue:
    """The messages of ``backlog`` from its cursor up to ``end``. ``since_ms`` is when it was left.

    ``left`` is how many they are, None if not counted (retained messages). ``delayed`` has the blocks with
    delayed messages that the durable keeps: those that are due later than the time given there. ``only_delayed``: the
    residue has these, and no others.
    """

    def __init__(
        self, backlog: Backlog, end: int, left: int | None, since_ms: int, delayed: dict[int, int] | None = None
    ) -> None:
        self.delayed = delayed or {}
        self.only_delayed = False
        self.backlog = backlog
        self.end = end
        self.left = left
        self.since_ms = since_ms

    @property
    def is_done(self) -> bool:
        """Whether everything was given back."""
        return self.left == 0 or (self.backlog.cursor >= self.end and not self.only_delayed)

    @classmethod
    def of_delayed(cls, old: Backlog, now_ms: int) -> Residue:
        """The delayed messages that the cursor of ``old`` has passed. Reads nothing."""
        backlog = Backlog(old.shelf, old.matcher, old.cursor)
        backlog.start, backlog.excluded = old.start, SequenceSet(old.excluded.runs())
        residue = cls(backlog, old.cursor, old.delayed_total, now_ms, dict(old.scanned_ms))
        residue.only_delayed = True
        return residue

    def step(self, now_ms: int) -> int:
        """Give some back; returns how many."""
        if self.only_delayed:
            return self._step_delayed()
        backlog, counts = self.backlog, self.backlog.shelf.counts
        most = STEP_MESSAGES if self.left is None else min(self.left, STEP_MESSAGES)
        found = backlog.scan(now_ms, most, self._without_delayed())
        runs = found.runs + [(seq, seq) for seq in found.expired]
        runs += [(kept.seq, kept.seq) for kept in backlog.passed_delayed()]
        backlog.forget_delayed()
        backlog.start = backlog.cursor
        for first, last in runs:
            counts.release(first, last)
        total = sum(last - first + 1 for first, last in runs)
        if self.left is not None:
            self.left -= total
            assert self.left == 0 or (self.left > 0 and backlog.cursor < self.end), "what is left is found"
        return total

    def _step_delayed(self) -> int:
        """Give back the delayed messages of some blocks. Cost: reads them."""
        assert self.left is not None, "delayed messages are counted"
        total = 0
        for number in sorted(self.delayed)[: max(1, SCAN_MAX // BLOCK_MESSAGES)]:
            for kept in self._only_delayed_of(number):
                self.backlog.shelf.counts.release(kept.seq, kept.seq)
                total += 1
            del self.delayed[number]
        self.left -= total
        assert self.left == 0 or self.delayed, "what is left is found"
        return total

    def _only_delayed_of(self, number: int) -> list[Kept]:
        """The delayed messages of a block that are not given back."""
        shelf = self.backlog.shelf
        block, first = shelf.counts.block(number), number * BLOCK_MESSAGES
        if block is None:
            return []
        read = shelf.messages.read(shelf.store, first, min(self.end, first + BLOCK_MESSAGES) - 1)
        return [
            kept
            for kept in read
            if kept.deliver_at_ms > self.delayed[number]
            and self.backlog.wants(kept, block)
            and not 0 < expires_ms(kept) <= block.swept_ms
        ]

    def _without_delayed(self) -> int:
        """Exclude what the durable keeps of the block at the cursor; returns up to where the others can be given back.

        Cost: reads one block.
        """
        backlog = self.backlog
        numbers = sorted(number for number in self.delayed if (number + 1) * BLOCK_MESSAGES > backlog.cursor)
        if numbers and numbers[0] * BLOCK_MESSAGES <= backlog.cursor:
            for seq in self._delayed_of(numbers.pop(0)):
                backlog.exclude(seq, seq)
        self.delayed = {number: self.delayed[number] for number in numbers}
        return min(self.end, numbers[0] * BLOCK_MESSAGES) if numbers else self.end

    def _delayed_of(self, number: int) -> list[int]:
        """The delayed messages of a block that the durable keeps."""
        first = max(self.backlog.cursor, number * BLOCK_MESSAGES)
        last = min(self.end, (number + 1) * BLOCK_MESSAGES) - 1
        shelf = self.backlog.shelf
        found = shelf.messages.read(shelf.store, first, last) if first <= last else ()
        return [kept.seq for kept in found if kept.deliver_at_ms > self.delayed[number]]

    def expire_own(self, kept: Kept) -> bool:
        """A message's own time-to-live has ended; whether it was given back."""
        scanned_ms = self.delayed.get(kept.seq // BLOCK_MESSAGES)
        is_delayed = scanned_ms is not None and kept.deliver_at_ms > scanned_ms
        if is_delayed is not self.only_delayed:
            return False
        block = self.backlog.shelf.counts.block(kept.seq // BLOCK_MESSAGES)
        first = 0 if self.only_delayed else self.backlog.cursor
        if not first <= kept.seq < self.end or not self.backlog.wants(kept, block):
            return False
        self.backlog.shelf.counts.release(kept.seq, kept.seq)
        if self.left is not None:
            self.left -= 1
        return True

    def kept(self) -> list[int]:
        """Every message that is not given back yet. Cost: O(backlog); for checks."""
        if self.only_delayed:
            return [kept.seq for number in self.delayed for kept in self._only_delayed_of(number)]
        delayed = {seq for number in self.delayed for seq in self._delayed_of(number)}
        return [seq for seq in self.backlog.peek(0, 1 << 62) if seq < self.end and seq not in delayed]

    def state(self) -> ResidueState:
        """What a snapshot keeps."""
        backlog = self.backlog
        matcher = b"" if backlog.matcher.everything else backlog.matcher.json()
        excluded = backlog.excluded.runs()
        left = -1 if self.left is None else self.left
        return ResidueState(
            self.since_ms,
            matcher,
            backlog.start,
            backlog.cursor,
            self.end,
            left,
            excluded,
            sorted(self.delayed.items()),
            self.only_delayed,
        )

    @classmethod
    def of(cls, state: ResidueState, shelf: Shelf) -> Residue:
        """From what ``state`` gave."""
        backlog = Backlog(shelf, Matcher.parse(state.matcher), state.cursor)
        backlog.start = state.start
        backlog.excluded = SequenceSet(state.excluded)
        left = None if state.left < 0 else state.left
        residue = cls(backlog, state.end, left, state.since_ms, dict(state.delayed))
        residue.only_delayed = state.only_delayed
        return residue
