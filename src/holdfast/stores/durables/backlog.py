"""The messages that a durable was never given: all that it wants from its cursor on, as one number.

A durable counts a message that it wants when it is published, and finds it when the cursor gets there. Both use the
same facts: the matcher, which never changes; ``excluded``, the messages refused then or removed since; and the block's
``swept_ms``, up to which own times were carried out. Without a matcher and own times the cursor is arithmetic. Memory:
a run for each gap in ``excluded``, and an item for each block with delayed messages that the cursor passed.

``Residue`` is what a purged or deleted durable still has to give back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import msgspec

from holdfast.stores.matching import Matcher
from holdfast.stores.values.deadlines import Deadlines
from holdfast.stores.values.effects import Withdrawn
from holdfast.stores.values.ports import BLOCK_MESSAGES, BlockCounts, Kept, Messages
from holdfast.stores.values.reference_counts import MAP_VALUE, ReferenceCounts
from holdfast.stores.values.sequence_set import SequenceSet

SCAN_MAX = 16_384  # messages examined by one scan; the next command continues after them
CHUNK = 256
_ALL = 1 << 62


@dataclass(slots=True)
class Shelf:
    """A store's messages."""

    store: str
    counts: ReferenceCounts
    messages: Messages
    discarded: int = 0
    """Messages that durables gave up because of their limits, since the service started."""
    withdrawn: list[Withdrawn] = field(default_factory=list[Withdrawn])
    """What the current command takes from subscribers; the state machine takes it as effects."""


class MessageFate(Enum):
    """What a message's own times say of it."""

    LIVE = "live"
    DELAYED = "delayed"
    EXPIRED = "expired"
    GONE = "gone"


def expires_ms(kept: Kept) -> int:
    """When a message's own time-to-live ends, 0 for never. A delayed message begins to live when it is due."""
    return max(kept.published_ms, kept.deliver_at_ms) + kept.ttl_ms if kept.ttl_ms else 0


def fate(kept: Kept, swept_ms: int, now_ms: int) -> MessageFate:
    """``GONE``: it expired and a sweep released it; ``EXPIRED``: the finder must release it."""
    end_ms = expires_ms(kept)
    if end_ms and end_ms <= now_ms:
        return MessageFate.GONE if end_ms <= swept_ms else MessageFate.EXPIRED
    return MessageFate.DELAYED if kept.deliver_at_ms > now_ms else MessageFate.LIVE


class ScanResult:
    """What a scan found: runs to hand out, and messages that expired by their own time. ``looks`` is its cost."""

    __slots__ = ("expired", "looks", "runs", "total")

    def __init__(self) -> None:
        self.runs: list[tuple[int, int]] = []
        self.expired: list[int] = []
        self.looks = 0
        self.total = 0

    def add(self, first: int, last: int) -> None:
        """Found, ascending."""
        self.total += last - first + 1
        if self.runs and self.runs[-1][1] == first - 1:
            self.runs[-1] = (self.runs[-1][0], last)
        else:
            self.runs.append((first, last))


class Backlog:
    """A durable's cursor over its store. ``delayed`` has the blocks with delayed messages below the cursor."""

    def __init__(self, shelf: Shelf, matcher: Matcher, cursor: int) -> None:
        self.shelf = shelf
        self.matcher = matcher
        self.cursor = cursor
        self.cursor_ms = shelf.counts.time_from(cursor)
        """Nothing that the durable wants from the cursor on was published before. It moves with the cursor and no
        other durable moves it, so deadlines follow from it exactly."""
        self.start = cursor  # below are messages from before the durable, or from before its purge
        self.floor: int | None = None
        """From here on acknowledged messages are retained; None where the durable retains nothing."""
        self.floor_ms = 0  # nothing that is retained was published before
        self.excluded = SequenceSet()
        self.delayed: Deadlines[int] = Deadlines()
        self.scanned_ms: dict[int, int] = {}
        """When a block's delayed messages were last looked at: those due later were passed, those due earlier not."""
        self.delayed_total = 0

    def wants(self, kept: Kept, block: BlockCounts | None) -> bool:
        """Whether this kept message was given to this durable, apart from its own times."""
        return block is not None and self.wants_matching(kept.seq, block) and self.matcher.matches(kept.fields)

    def wants_matching(self, seq: int, block: BlockCounts) -> bool:
        """As ``wants``, of a message that the matcher takes."""
        return 0 < block.references[seq % BLOCK_MESSAGES] < MAP_VALUE and seq >= self.start and seq not in self.excluded

    def is_passed_delayed(self, seq: int, deliver_at_ms: int) -> bool:
        """Whether the cursor passed this wanted message because it was not due."""
        scanned_ms = self.scanned_ms.get(seq // BLOCK_MESSAGES)
        return seq < self.cursor and scanned_ms is not None and deliver_at_ms > scanned_ms

    def scan(self, now_ms: int, want: int, end: int, looks: int = _ALL) -> ScanResult:
        """Move the cursor, below ``end``, until ``want`` messages are found, or ``SCAN_MAX`` or ``looks`` examined.

        Delayed messages that are due must have been taken with ``due`` before.
        """
        result = ScanResult()
        looked = 0
        counts = self.shelf.counts
        while self.cursor < end and result.total < want and looked < min(looks, SCAN_MAX):
            cursor = self.cursor = self.excluded.after(self.cursor) if self.excluded else self.cursor
            if cursor >= end:
                break
            number = cursor // BLOCK_MESSAGES
            stop = min(end, (number + 1) * BLOCK_MESSAGES)
            block = counts.block(number)
            if block is None or not block.live:
                self.cursor = stop
                looked += 16
            elif self.matcher.everything and not block.timed:
                if self.excluded:
                    stop = self.excluded.next_member(cursor, stop)
                self.cursor = min(stop, cursor + want - result.total)
                result.add(cursor, self.cursor - 1)
            else:
                looked += self._read_on(block, min(stop, cursor + CHUNK), now_ms, want, result)
        result.looks += looked
        self.cursor_ms = max(self.cursor_ms, counts.time_from(self.cursor))
        self.forget_passed()
        return result

    def move_floor(self, seq: int | None) -> None:
        """Retain from ``seq`` on, or nothing."""
        self.floor = seq
        self.floor_ms = 0 if seq is None else self.shelf.counts.time_from(seq)

    def _read_on(self, block: BlockCounts, end: int, now_ms: int, want: int, result: ScanResult) -> int:
        """Read messages of one block up to ``end`` and sort them; returns how many numbers the cursor passed."""
        start = self.cursor
        self.cursor = end
        for kept in self.shelf.messages.read(self.shelf.store, start, end - 1):
            if not self.wants(kept, block):
                continue
            match fate(kept, block.swept_ms, now_ms) if kept.ttl_ms or kept.deliver_at_ms else MessageFate.LIVE:
                case MessageFate.LIVE:
                    result.add(kept.seq, kept.seq)
                    if result.total == want:
                        self.cursor = kept.seq + 1
                        break
                case MessageFate.EXPIRED:
                    result.expired.append(kept.seq)
                case MessageFate.DELAYED:
                    due_ms, known_ms = kept.deliver_at_ms, self.delayed.get(block.number)
                    self.delayed_total += 1
                    self.delayed.set(block.number, due_ms if known_ms is None else min(due_ms, known_ms))
                    self.scanned_ms.setdefault(block.number, 0)
                case MessageFate.GONE:
                    pass
        if block.number in self.scanned_ms:
            self.scanned_ms[block.number] = now_ms
        return self.cursor - start

    def look(self, after: int, count: int, looks: int) -> tuple[list[int], int | None, int]:
        """Up to ``count`` messages from the cursor on and above ``after``, due or not, with about ``looks`` read; the
        cursor stays. Also returns above which number to continue (None: end) and the looks left."""
        counts = self.shelf.counts
        seq, numbers = max(self.cursor, after + 1), list[int]()
        while seq < counts.next_seq and len(numbers) < count and looks > 0:
            looks -= 1
            number = seq // BLOCK_MESSAGES
            stop = min(counts.next_seq, (number + 1) * BLOCK_MESSAGES, seq + CHUNK)
            block = counts.block(number)
            if block is None or not block.live:
                seq = min(counts.next_seq, (number + 1) * BLOCK_MESSAGES)
                continue
            for kept in self.shelf.messages.read(self.shelf.store, seq, stop - 1):
                end_ms = expires_ms(kept)
                gone = end_ms and end_ms <= block.swept_ms
                if self.wants(kept, block) and not gone:
                    numbers.append(kept.seq)
            looks -= stop - seq
            seq = stop
        if len(numbers) >= count:
            return numbers[:count], numbers[count - 1] if count else after, looks
        return numbers, None if seq >= counts.next_seq else seq - 1, looks

    def due(self, now_ms: int) -> ScanResult:
        """Delayed messages of one block below the cursor that are due. Cost: reads the block."""
        result = ScanResult()
        number = self.delayed.pop(now_ms)
        if number is None:
            return result
        before_ms, next_ms = self.scanned_ms.pop(number), 0
        for kept, block in self._passed(number):
            if kept.deliver_at_ms <= before_ms:
                continue
            match fate(kept, block.swept_ms, now_ms):
                case MessageFate.DELAYED:
                    next_ms = min(next_ms or kept.deliver_at_ms, kept.deliver_at_ms)
                    continue
                case MessageFate.LIVE:
                    result.add(kept.seq, kept.seq)
                case MessageFate.EXPIRED:
                    result.expired.append(kept.seq)
                case MessageFate.GONE:
                    continue
            self.delayed_total -= 1
        if next_ms:
            self.delayed.set(number, next_ms)
            self.scanned_ms[number] = now_ms
        self.forget_passed()
        return result

    def _passed(self, number: int) -> Iterator[tuple[Kept, BlockCounts]]:
        block = self.shelf.counts.block(number)
        first = number * BLOCK_MESSAGES
        last = min(first + BLOCK_MESSAGES, self.cursor) - 1
        if block is None or last < first:
            return
        for kept in self.shelf.messages.read(self.shelf.store, first, last):
            if self.wants(kept, block):
                yield kept, block

    def passed_delayed(self) -> list[Kept]:
        """Every delayed message below the cursor, ascending. Cost: reads their blocks."""
        return [kept for number in sorted(self.scanned_ms) for kept in self._passed_delayed_of(number)]

    def _passed_delayed_of(self, number: int) -> list[Kept]:
        scanned_ms = self.scanned_ms[number]
        delayed: list[Kept] = []
        for kept, block in self._passed(number):
            end_ms = expires_ms(kept)
            if kept.deliver_at_ms > scanned_ms and not (end_ms and end_ms <= block.swept_ms):
                delayed.append(kept)
        return delayed

    def forget_delayed(self) -> None:
        """Give up every delayed message below the cursor."""
        self.delayed, self.scanned_ms, self.delayed_total = Deadlines(), {}, 0

    def go_back(self, seq: int) -> None:
        """Move the cursor back to ``seq``; it finds the delayed messages from there on again."""
        last = seq // BLOCK_MESSAGES
        for number in sorted(self.scanned_ms):
            if number < last:
                continue
            delayed = self._passed_delayed_of(number)
            below = [kept.deliver_at_ms for kept in delayed if kept.seq < seq]
            self.delayed_total -= len(delayed) - len(below)
            self.delayed.set(number, min(below, default=None))
            if not below:
                del self.scanned_ms[number]
        self.cursor = seq
        self.cursor_ms = self.shelf.counts.time_from(seq)

    def oldest_delayed(self) -> int | None:
        """The oldest delayed message below the cursor. Cost: reads its block."""
        return next((kept.seq for number in sorted(self.scanned_ms) for kept in self._passed_delayed_of(number)), None)

    def take_oldest_delayed(self) -> int | None:
        """Give it up. Cost: reads its block."""
        seq = self.oldest_delayed()
        if seq is not None:
            self.exclude(seq, seq)
            self.delayed_total -= 1
        return seq

    def exclude(self, first: int, last: int) -> None:
        """The durable does not have these, though they match."""
        self.excluded.add(first, last)

    def forget_passed(self) -> None:
        """Forget numbers that will not be examined again."""
        if not self.excluded:
            return
        # Not above the cursor's block, because it may get delayed messages yet, and is then looked at as a whole.
        here = self.cursor - self.cursor % BLOCK_MESSAGES
        below = min([here, *(number * BLOCK_MESSAGES for number in self.scanned_ms)])
        if self.floor is not None:
            below = min(below, self.floor)
        self.excluded.forget_below(below)

    def check(self) -> None:
        """Delayed messages are counted, and each block of them has its time. Cost: reads them."""
        self.excluded.check()
        assert set(self.delayed.items()) == set(self.scanned_ms), "a block with delayed messages has a time"
        assert len(self.passed_delayed()) == self.delayed_total, "delayed messages are counted"
        assert self.cursor <= self.shelf.counts.next_seq, "the cursor is not ahead of the store"
        assert self.floor is None or self.floor <= self.cursor, "retained messages are below the cursor"


STEP_MESSAGES: Final = 262_144
"""Messages given back in one step where nothing is read for it; else ``backlog.SCAN_MAX`` are looked at."""


class ResidueState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A residue in a snapshot."""

    since_ms: int
    matcher: bytes
    start: int
    cursor: int
    end: int
    left: int
    """-1 where it was not counted."""
    excluded: list[tuple[int, int]]
    delayed: list[tuple[int, int]]
    only_delayed: bool


@dataclass(eq=False)
class Residue:
    """The messages of ``backlog`` from its cursor up to ``end``, given back in steps; ``since_ms`` is when it was left.

    A purge takes effect at once and its result is exact, but one command must not pass a large backlog while all others
    wait. Until the residue is done its messages count against the store's limits. ``left`` is their number, None if not
    counted (retained messages). ``delayed`` has, by block, the time of the last scan: messages due later are the
    durable's, not the residue's; with ``only_delayed`` exactly these are the residue's.
    """

    backlog: Backlog
    end: int
    left: int | None
    since_ms: int
    delayed: dict[int, int]
    only_delayed: bool = False

    @property
    def is_done(self) -> bool:
        """Whether everything was given back."""
        return self.left == 0 or (self.backlog.cursor >= self.end and not self.only_delayed)

    @classmethod
    def of_delayed(cls, old: Backlog, now_ms: int) -> Residue:
        """The delayed messages that the cursor of ``old`` has passed. Reads nothing."""
        backlog = Backlog(old.shelf, old.matcher, old.cursor)
        backlog.start, backlog.excluded = old.start, SequenceSet(old.excluded.runs())
        return cls(backlog, old.cursor, old.delayed_total, now_ms, dict(old.scanned_ms), only_delayed=True)

    def step(self, now_ms: int) -> int:
        """Give some back; returns how many."""
        if self.only_delayed:
            return self._step_delayed()
        backlog, counts = self.backlog, self.backlog.shelf.counts
        most = STEP_MESSAGES if self.left is None else min(self.left, STEP_MESSAGES)
        result = backlog.scan(now_ms, most, self._without_delayed())
        runs = result.runs + [(seq, seq) for seq in result.expired]
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
        """Exclude the durable's delayed messages of the block at the cursor; returns the end of the rest."""
        backlog = self.backlog
        numbers = sorted(number for number in self.delayed if (number + 1) * BLOCK_MESSAGES > backlog.cursor)
        if numbers and numbers[0] * BLOCK_MESSAGES <= backlog.cursor:
            for seq in self._delayed_of(numbers.pop(0)):
                backlog.exclude(seq, seq)
        self.delayed = {number: self.delayed[number] for number in numbers}
        return min(self.end, numbers[0] * BLOCK_MESSAGES) if numbers else self.end

    def _delayed_of(self, number: int) -> list[int]:
        first = max(self.backlog.cursor, number * BLOCK_MESSAGES)
        last = min(self.end, (number + 1) * BLOCK_MESSAGES) - 1
        shelf = self.backlog.shelf
        messages = shelf.messages.read(shelf.store, first, last) if first <= last else ()
        return [kept.seq for kept in messages if kept.deliver_at_ms > self.delayed[number]]

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
        return [seq for seq in self.backlog.look(0, _ALL, _ALL)[0] if seq < self.end and seq not in delayed]

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
        return cls(backlog, state.end, left, state.since_ms, dict(state.delayed), state.only_delayed)
