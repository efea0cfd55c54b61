"""Messages that were handed out, or set apart, and wait to be handed out (again).

Owns: their order, delivery counts and delays. Does not own: why they came back (``consumption``). Failure model: pure.

A run is ``(first, last, deliveries so far)``. What has a delay waits apart, by its time.
"""

from __future__ import annotations

from bisect import bisect_right
from heapq import heapify, heappop, heappush
from typing import Final

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.stores.durables.arrivals import Arrivals

__all__ = ["HANDED_OUT", "Returned", "Run", "count_after"]

Run = tuple[int, int, int]
HANDED_OUT: Final = -1
"""Instead of 0 deliveries: a subscriber had the message, and that did not count."""
_HIGH = 1 << 62


def count_after(deliveries: int) -> int:
    """How a delivery after so many tells its count: one below 0 is the first that counts, and not the first.

    >>> count_after(0), count_after(1), count_after(HANDED_OUT)
    (1, 2, -1)
    """
    return deliveries + 1 if deliveries >= 0 else -1


class Returned:
    """Ascending runs, lowest number first. Cost: O(log runs), and O(runs) to insert in the middle."""

    __slots__ = ("arrivals", "later", "runs", "total")

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.later: list[tuple[int, int, int]] = []
        """A heap of (time, number, deliveries so far)."""
        self.total = 0
        """Messages, those with a delay included."""
        self.arrivals: Arrivals | None = None
        """Made where the durable has a time-to-live, when it is asked for."""

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
