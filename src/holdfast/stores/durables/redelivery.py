"""Messages that wait to be handed out again, with their order, delivery counts and delays.

A run is ``(first, last, deliveries so far)``. Messages with a delay are kept apart, by time.

``Arrivals`` is an index over the runs: when the first waiting message began to live. It is not part of the state, and
is built when a durable with a time-to-live first asks. A block without own times has one entry, corrected when it is
the earliest, because its times ascend; a message of any other block has an entry of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from heapq import heapify, heappop, heappush
from typing import Final

from holdfast.stores.durables.backlog import Shelf
from holdfast.stores.values.deadlines import Deadlines, earlier
from holdfast.stores.values.ports import BLOCK_MESSAGES

Run = tuple[int, int, int]
HANDED_OUT: Final = -1  # instead of 0 deliveries: a subscriber had the message, and that did not count
_HIGH = 1 << 62


def count_after(deliveries: int) -> int:
    """The delivery count that is reported after this many deliveries; negative: the first that counts, not the first.

    >>> count_after(0), count_after(1), count_after(HANDED_OUT)
    (1, 2, -1)
    """
    return deliveries + 1 if deliveries >= 0 else -1


class RedeliveryQueue:
    """Ascending runs, lowest number first. Cost: O(log runs), and O(runs) to insert in the middle."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.later: list[tuple[int, int, int]] = []  # a heap of (time, number, deliveries so far)
        self.total = 0  # messages, those with a delay included
        self.arrivals: Arrivals | None = None  # made where the durable has a time-to-live, when it is asked for

    def add(self, first: int, last: int, deliveries: int) -> None:
        """These can be handed out now."""
        self.total += last - first + 1
        added = first, last
        runs = self.runs
        place = bisect_right(runs, (first, _HIGH, 0))
        if place and runs[place - 1][1] == first - 1 and runs[place - 1][2] == deliveries:
            place -= 1
            first = runs.pop(place)[0]
        if place < len(runs) and runs[place][0] == last + 1 and runs[place][2] == deliveries:
            last = runs.pop(place)[1]
        runs.insert(place, (first, last, deliveries))
        if self.arrivals is not None:
            self.arrivals.add(*added)

    def waits(self, seq: int) -> bool:
        """Whether this message can be handed out now. Cost: O(log runs)."""
        return self.first_from(seq) == seq

    def first_from(self, seq: int) -> int | None:
        """The first message from ``seq`` on that can be handed out now, or None. Cost: O(log runs)."""
        place = bisect_right(self.runs, (seq, _HIGH, 0)) - 1
        if place >= 0 and self.runs[place][1] >= seq:
            return seq
        return self.runs[place + 1][0] if place + 1 < len(self.runs) else None

    def between(self, first: int, last: int) -> list[tuple[int, int]]:
        """The messages of a range that can be handed out now, as runs. Cost: O(log runs + runs found)."""
        place = max(0, bisect_right(self.runs, (first, _HIGH, 0)) - 1)
        found: list[tuple[int, int]] = []
        while place < len(self.runs) and self.runs[place][0] <= last:
            low, high = max(first, self.runs[place][0]), min(last, self.runs[place][1])
            if low <= high:
                found.append((low, high))
            place += 1
        return found

    def add_later(self, at_ms: int, seq: int, deliveries: int) -> None:
        """This one can be handed out from ``at_ms`` on."""
        self.total += 1
        heappush(self.later, (at_ms, seq, deliveries))

    def wake(self, now_ms: int, most: int = _HIGH) -> bool:
        """Whether delays have ended; up to ``most`` of those messages can be handed out now, the others are due."""
        later = self.later
        woken = False
        while later and later[0][0] <= now_ms and most > 0:
            most -= 1
            _, seq, deliveries = heappop(later)
            self.total -= 1
            self.add(seq, seq, deliveries)
            woken = True
        return woken

    def next_ms(self) -> int | None:
        """When the next delay ends, or None."""
        return self.later[0][0] if self.later else None

    def take(self, want: int) -> Run | None:
        """The lowest run that can be handed out, up to ``want`` messages of it."""
        if not self.runs:
            return None
        first, last, deliveries = self.runs[0]
        if last - first < want:
            del self.runs[0]
        else:
            last = first + want - 1
            self.runs[0] = (last + 1, self.runs[0][1], deliveries)
        self.total -= last - first + 1
        return first, last, deliveries

    def take_run(self, first: int, last: int) -> None:
        """Take out the messages up to ``last`` of the run that begins with ``first``."""
        place = bisect_right(self.runs, (first, _HIGH, 0)) - 1
        run = self.runs[place]
        assert run[0] == first and last <= run[1], "the run is there"
        self.runs[place : place + 1] = [(last + 1, run[1], run[2])] if last < run[1] else []
        self.total -= last - first + 1

    def remove(self, seq: int) -> int | None:
        """Take one message out, wherever it waits. Returns its deliveries so far, or None where it does not wait."""
        place = bisect_right(self.runs, (seq, _HIGH, 0)) - 1
        if place >= 0 and self.runs[place][1] >= seq:
            first, last, deliveries = self.runs[place]
            left = [(first, seq - 1, deliveries)] if first < seq else []
            left += [(seq + 1, last, deliveries)] if seq < last else []
            self.runs[place : place + 1] = left
            self.total -= 1
            return deliveries
        for index, (_, waiting, deliveries) in enumerate(self.later):
            if waiting == seq:
                del self.later[index]
                heapify(self.later)
                self.total -= 1
                return deliveries
        return None

    def clear_from(self, seq: int) -> None:
        """Forget every message from ``seq`` on."""
        self.runs = [(first, min(last, seq - 1), count) for first, last, count in self.runs if first < seq]
        self.later = [item for item in self.later if item[1] < seq]
        heapify(self.later)
        self.total = sum(last - first + 1 for first, last, _ in self.runs) + len(self.later)

    def all_runs(self) -> list[Run]:
        """Every run, those with a delay included, in no order that means anything."""
        return self.runs + [(seq, seq, count) for _, seq, count in sorted(self.later)]

    def check(self) -> None:
        """Runs are ascending and apart; the total is theirs."""
        before = 0
        for first, last, deliveries in self.runs:
            assert before < first <= last and deliveries >= HANDED_OUT, "runs are ascending"
            before = last
        total = sum(last - first + 1 for first, last, _ in self.runs) + len(self.later)
        assert total == self.total, "the total is that of the runs"


class Arrivals:
    """*Cost*: O(log) for each block and each message with a time of its own, amortised; each of these is read once.

    Entries of messages that do not wait any more are removed when they are the earliest, or are too many.
    """

    def __init__(self, shelf: Shelf, redelivery: RedeliveryQueue) -> None:
        self._shelf = shelf
        self._redelivery = redelivery
        self._by_block: Deadlines[int] = Deadlines()
        self._by_message: Deadlines[int] = Deadlines()
        for first, last, _ in redelivery.runs:
            self.add(first, last)

    def add(self, first: int, last: int) -> None:
        """These wait now."""
        while first <= last:
            number = first // BLOCK_MESSAGES
            end = min(last, (number + 1) * BLOCK_MESSAGES - 1)
            block = self._shelf.counts.block(number)
            if block is not None and block.timed:
                self._add_each(first, end)
            else:
                known_ms, at_ms = self._by_block.get(number), self._shelf.counts.published_ms(first)
                self._by_block.set(number, at_ms if known_ms is None else min(known_ms, at_ms))
            first = end + 1
        if len(self._by_message) > 64 + 2 * self._redelivery.total:
            left = {seq: at_ms for seq, at_ms in self._by_message.items().items() if self._redelivery.waits(seq)}
            self._by_message = Deadlines(left)

    def _add_each(self, first: int, last: int) -> None:
        if all(self._by_message.get(seq) is not None for seq in range(first, last + 1)):
            return
        found = {
            kept.seq: max(kept.published_ms, kept.deliver_at_ms)
            for kept in self._shelf.messages.read(self._shelf.store, first, last)
        }
        for seq in range(first, last + 1):
            at_ms = found.get(seq)
            self._by_message.set(seq, self._shelf.counts.published_ms(seq) if at_ms is None else at_ms)

    def earliest_ms(self) -> int | None:
        """When the first of those that wait began to live, None where none waits."""
        return earlier(self._earliest_of_blocks(), self._earliest_of_messages())

    def _earliest_of_messages(self) -> int | None:
        found = self._by_message
        while (at_ms := found.next_ms()) is not None:
            seq = found.pop(at_ms)
            assert seq is not None, "the earliest is there"
            if self._redelivery.waits(seq):
                found.set(seq, at_ms)
                return at_ms
        return None

    def _earliest_of_blocks(self) -> int | None:
        found, counts = self._by_block, self._shelf.counts
        while (at_ms := found.next_ms()) is not None:
            number = found.pop(at_ms)
            assert number is not None, "the earliest is there"
            begin, end = number * BLOCK_MESSAGES, (number + 1) * BLOCK_MESSAGES
            block = counts.block(number)
            if block is not None and block.timed:
                # A later message of the block has a time of its own.
                for first, last in self._redelivery.between(begin, end - 1):
                    self._add_each(first, last)
                continue
            seq = self._redelivery.first_from(begin)
            if seq is not None and seq < end:
                found.set(number, counts.published_ms(seq))
                if counts.published_ms(seq) == at_ms:
                    return at_ms
        return None
