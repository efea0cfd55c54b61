"""What a durable was never handed: everything from its cursor on that it wants, as one number.

Owns: the cursor; which messages above it are not the durable's although they match; delayed messages that the cursor
passed. Does not own: counts of who keeps what (``reference_counts``), what becomes of what is found (``consumption``).

Failure model: pure. What a durable wants is decided when a message is published, because that is when it is counted,
and found again when the cursor gets there; both decide by the same facts:

- its matcher, which never changes;
- ``excluded``: what was refused it then, or taken from it since;
- an own time-to-live that was carried out meanwhile is behind its block's ``swept_ms``.

Without a matcher and without own times the cursor is arithmetic. Memory: a run for each gap in ``excluded``, and an
item for each block with delayed messages that the cursor passed, whatever the backlog.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from holdfast.stores.values.commands import RULES
from holdfast.stores.values.expiry import Deadlines
from holdfast.stores.values.ports import BLOCK_MESSAGES, Block, Kept, Messages
from holdfast.stores.values.reference_counts import MAP_VALUE
from holdfast.stores.values.sequence_set import SequenceSet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.stores.matching.matcher import Matcher
    from holdfast.stores.values.reference_counts import ReferenceCounts

__all__ = ["SCAN_MAX", "Backlog", "Fate", "Found", "Shelf", "expires_ms", "fate"]

SCAN_MAX = 16_384
"""Messages looked at by one scan; what is behind them is the next command's."""
CHUNK = 256
_ALL = 1 << 62


@dataclass(slots=True)
class Shelf:
    """Where a durable's messages are: those of its store. ``rules`` are those of the command that is carried out."""

    store: str
    counts: ReferenceCounts
    messages: Messages
    rules: int = RULES


class Fate(Enum):
    """What a message's own times say of it."""

    LIVE = "live"
    DELAYED = "delayed"
    EXPIRED = "expired"
    GONE = "gone"


def expires_ms(kept: Kept) -> int:
    """When a message's own time-to-live ends, 0 for never. A delayed message begins to live when it is due."""
    return max(kept.published_ms, kept.deliver_at_ms) + kept.ttl_ms if kept.ttl_ms else 0


def fate(kept: Kept, swept_ms: int, now_ms: int) -> Fate:
    """``GONE``: it expired and was given back by a sweep; ``EXPIRED``: it is for the finder to give it back."""
    end_ms = expires_ms(kept)
    if end_ms and end_ms <= now_ms:
        return Fate.GONE if end_ms <= swept_ms else Fate.EXPIRED
    return Fate.DELAYED if kept.deliver_at_ms > now_ms else Fate.LIVE


class Found:
    """What a scan found: runs to hand out, and numbers that have expired by their own time. ``looks`` is its cost."""

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

    __slots__ = (
        "cursor",
        "cursor_ms",
        "delayed",
        "delayed_total",
        "excluded",
        "floor",
        "floor_ms",
        "matcher",
        "scanned_ms",
        "shelf",
        "start",
    )

    def __init__(self, shelf: Shelf, matcher: Matcher, cursor: int) -> None:
        self.shelf = shelf
        self.matcher = matcher
        self.cursor = cursor
        self.cursor_ms = shelf.counts.time_from(cursor)
        """Nothing that the durable wants from the cursor on was published before. It moves with the cursor and no
        other durable moves it, so deadlines follow from it exactly."""
        self.start = cursor
        """Below are messages from before the durable, or from before its purge."""
        self.floor: int | None = None
        """From here on acknowledged messages are retained; None where the durable retains nothing."""
        self.floor_ms = 0
        """Nothing that is retained was published before."""
        self.excluded = SequenceSet()
        self.delayed: Deadlines[int] = Deadlines()
        self.scanned_ms: dict[int, int] = {}
        """When a block's delayed messages were last looked at: those due later were passed, those due earlier not."""
        self.delayed_total = 0

    # ---- questions --------------------------------------------------------------------------------------------------

    def wants(self, kept: Kept, block: Block | None) -> bool:
        """Whether a message that somebody keeps was given to this durable, but for its own times."""
        return block is not None and self.wants_matching(kept.seq, block) and self.matcher.matches(kept.fields)

    def wants_matching(self, seq: int, block: Block) -> bool:
        """As ``wants``, of a message that the matcher takes."""
        return 0 < block.references[seq % BLOCK_MESSAGES] < MAP_VALUE and seq >= self.start and seq not in self.excluded

    def is_passed_delayed(self, seq: int, deliver_at_ms: int) -> bool:
        """Whether the cursor passed this message, which the durable wants, because it was not due."""
        scanned_ms = self.scanned_ms.get(seq // BLOCK_MESSAGES)
        return seq < self.cursor and scanned_ms is not None and deliver_at_ms > scanned_ms

    @property
    def arithmetic(self) -> bool:
        """Whether every message is wanted, so that none need be read but those with own times."""
        return self.matcher.everything

    # ---- scanning ---------------------------------------------------------------------------------------------------

    def scan(self, now_ms: int, want: int, end: int, looks: int = _ALL) -> Found:
        """Move the cursor on, below ``end``, until ``want`` messages are found, or ``SCAN_MAX`` or ``looks`` examined.

        Delayed messages that are due must have been taken with ``due`` before.
        """
        found = Found()
        looked = 0
        counts = self.shelf.counts
        while self.cursor < end and found.total < want and looked < min(looks, SCAN_MAX):
            cursor = self.cursor = self.excluded.after(self.cursor) if self.excluded else self.cursor
            if cursor >= end:
                break
            number = cursor // BLOCK_MESSAGES
            stop = min(end, (number + 1) * BLOCK_MESSAGES)
            block = counts.block(number)
            if block is None or not block.live:
                self.cursor = stop
                looked += 16
            elif self.arithmetic and not block.timed:
                if self.excluded:
                    stop = self.excluded.next_member(cursor, stop)
                self.cursor = min(stop, cursor + want - found.total)
                found.add(cursor, self.cursor - 1)
            else:
                looked += self._read_on(block, min(stop, cursor + CHUNK), now_ms, want, found)
        found.looks += looked
        self.cursor_ms = max(self.cursor_ms, counts.time_from(self.cursor))
        self.forget_passed()
        return found

    def move_floor(self, seq: int | None) -> None:
        """Retain from ``seq`` on, or nothing."""
        self.floor = seq
        self.floor_ms = 0 if seq is None else self.shelf.counts.time_from(seq)

    def _read_on(self, block: Block, end: int, now_ms: int, want: int, found: Found) -> int:
        """Read messages of one block up to ``end`` and sort them; returns how many numbers the cursor passed."""
        start = self.cursor
        self.cursor = end
        for kept in self.shelf.messages.read(self.shelf.store, start, end - 1):
            if not self.wants(kept, block):
                continue
            match fate(kept, block.swept_ms, now_ms) if kept.ttl_ms or kept.deliver_at_ms else Fate.LIVE:
                case Fate.LIVE:
                    found.add(kept.seq, kept.seq)
                    if found.total == want:
                        self.cursor = kept.seq + 1
                        break
                case Fate.EXPIRED:
                    found.expired.append(kept.seq)
                case Fate.DELAYED:
                    self._pass_delayed(block.number, kept.deliver_at_ms)
                case Fate.GONE:
                    pass
        if block.number in self.scanned_ms:
            self.scanned_ms[block.number] = now_ms
        return self.cursor - start

    def _pass_delayed(self, number: int, due_ms: int) -> None:
        self.delayed_total += 1
        known_ms = self.delayed.get(number)
        self.delayed.set(number, due_ms if known_ms is None else min(due_ms, known_ms))
        self.scanned_ms.setdefault(number, 0)

    def peek(self, after: int, count: int) -> list[int]:
        """Up to ``count`` messages from the cursor on and above ``after``, due or not; the cursor stays."""
        return self.look(after, count, _ALL)[0]

    def look(self, after: int, count: int, looks: int) -> tuple[list[int], int | None, int]:
        """As ``peek``, and after about ``looks`` messages that were looked at it stops; also answers above which number
        to go on, None where there is nothing behind, and how many looks are left."""
        counts = self.shelf.counts
        seq, found = max(self.cursor, after + 1), list[int]()
        while seq < counts.next_seq and len(found) < count and looks > 0:
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
                    found.append(kept.seq)
            looks -= stop - seq
            seq = stop
        if len(found) >= count:
            return found[:count], found[count - 1] if count else after, looks
        return found, None if seq >= counts.next_seq else seq - 1, looks

    def due(self, now_ms: int) -> Found:
        """Delayed messages below the cursor whose time has come: those of one block, whole. Cost: reads the block."""
        found = Found()
        number = self.delayed.pop(now_ms)
        if number is None:
            return found
        before_ms, next_ms = self.scanned_ms.pop(number), 0
        for kept, block in self._passed(number):
            if kept.deliver_at_ms <= before_ms:
                continue
            match fate(kept, block.swept_ms, now_ms):
                case Fate.DELAYED:
                    next_ms = min(next_ms or kept.deliver_at_ms, kept.deliver_at_ms)
                    continue
                case Fate.LIVE:
                    found.add(kept.seq, kept.seq)
                case Fate.EXPIRED:
                    found.expired.append(kept.seq)
                case Fate.GONE:
                    continue
            self.delayed_total -= 1
        if next_ms:
            self.delayed.set(number, next_ms)
            self.scanned_ms[number] = now_ms
        self.forget_passed()
        return found

    def _passed(self, number: int) -> Iterator[tuple[Kept, Block]]:
        """Messages of one block below the cursor that the durable wants and somebody keeps."""
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
        found: list[Kept] = []
        for kept, block in self._passed(number):
            end_ms = expires_ms(kept)
            if kept.deliver_at_ms > scanned_ms and not (end_ms and end_ms <= block.swept_ms):
                found.append(kept)
        return found

    def forget_delayed(self) -> None:
        """Give up every delayed message below the cursor."""
        self.delayed, self.scanned_ms, self.delayed_total = Deadlines(), {}, 0

    def go_back(self, seq: int) -> None:
        """Move the cursor back to ``seq``; delayed messages from there on are found again when it gets there."""
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

    def take_oldest_delayed(self) -> int | None:
        """Give up the oldest delayed message below the cursor. Cost: reads its block."""
        for number in sorted(self.scanned_ms):
            for kept in self._passed_delayed_of(number):
                self.exclude(kept.seq, kept.seq)
                self.delayed_total -= 1
                return kept.seq
        return None

    def exclude(self, first: int, last: int) -> None:
        """These are the durable's no more, though they match."""
        self.excluded.add(first, last)

    def forget_passed(self) -> None:
        """Forget about numbers that will not be looked at again."""
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
        assert self.floor is None or self.floor <= self.cursor, "what is retained lies below the cursor"
