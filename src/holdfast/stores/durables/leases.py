"""Leases: which subscriber holds which messages of a durable, since which delivery, and until when.

A ``Lease`` is a run ``(first, last, delivery count, deadline)``. The leases of one subscriber are ascending, and no
message is in two leases. Their number is bounded by the number of messages held, so by windows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import pairwise

from holdfast.stores.values.sequence_set import SequenceSet

Lease = tuple[int, int, int, int]  # first, last, delivery count, deadline in milliseconds (0 for none)
_HIGH = 1 << 62
HANDED_OUT_MAX = 256
"""Hand-outs whose time is noted for one subscriber; above it those are forgotten of which nothing is held, then the
oldest."""


class Holder:
    """What one subscriber holds."""

    __slots__ = ("_handed_out", "carried", "held", "key", "polls", "runs", "started")

    def __init__(self, key: str | None = None, *, polls: bool = False) -> None:
        self.runs: list[Lease] = []
        self.held = 0
        self.key = key
        self.polls = polls  # whether it asks for each portion; otherwise it has a connection
        self.started: SequenceSet | None = None
        """What of it the application was handed, None for a subscriber that does not report it."""
        self.carried = SequenceSet()
        """What it held when the service started, and what is due after a part that has lapsed."""
        self._handed_out: list[tuple[int, int, int]] = []
        """First, last and time of the newest hand-outs, oldest first. Not in a snapshot: absent after a restart."""

    def handed_out(self, first: int, last: int, now_ms: int) -> None:
        """Note when a run was handed out. Cost: O(1), amortized O(log runs)."""
        noted = self._handed_out
        if noted and noted[-1][1] + 1 == first and noted[-1][2] == now_ms:
            noted[-1] = (noted[-1][0], last, now_ms)
            return
        noted.append((first, last, now_ms))
        if len(noted) > HANDED_OUT_MAX:
            noted[:] = [one for one in noted if self.held_of(one[0], one[1])][-HANDED_OUT_MAX // 2 :]

    def handed_out_ms(self, seq: int) -> int | None:
        """When a message that it holds was handed out; None where that was before a restart, or too long ago."""
        return next((at_ms for first, last, at_ms in reversed(self._handed_out) if first <= seq <= last), None)

    def counting(self) -> SequenceSet:
        """The messages whose delivery counts if they come back now.

        Without a report that is the oldest, on which the application most likely works. A restart of the service
        counts for nothing.

        >>> holder = Holder()
        >>> Leases().hold(holder, (4, 9, 1, 0))
        >>> holder.counting().runs()
        [(4, 4)]
        """
        if self.started is not None:
            return SequenceSet(self.started.runs())
        if not self.runs or self.runs[0][0] in self.carried:
            return SequenceSet()
        return SequenceSet([(self.runs[0][0], self.runs[0][0])])

    def start(self, ranges: Iterable[tuple[int, int]]) -> None:
        """The subscriber reports which messages the application was handed; only those that it holds are noted."""
        started = self.started if self.started is not None else SequenceSet()
        for first, last in ranges:
            for low, high in self.held_of(first, last):
                started.add(low, high)
        self.started = started

    def check(self) -> None:
        """Noted hand-outs are bounded."""
        assert len(self._handed_out) <= HANDED_OUT_MAX, "noted hand-outs are bounded"

    def held_of(self, first: int, last: int) -> list[tuple[int, int]]:
        """What of a range it holds. Cost: O(log runs + runs touched)."""
        runs = self.runs
        place = max(0, bisect_right(runs, (first, _HIGH, 0, 0)) - 1)
        found: list[tuple[int, int]] = []
        while place < len(runs) and runs[place][0] <= last:
            low, high = max(first, runs[place][0]), min(last, runs[place][1])
            if low <= high:
                found.append((low, high))
            place += 1
        return found

    def lapses_on(self, now_ms: int) -> None:
        """Only a part of what is due has lapsed. Without a report the oldest of all has counted: the rest does not."""
        if self.started is None:
            for first, last, _, deadline_ms in self.runs:
                if 0 < deadline_ms <= now_ms:
                    self.carried.add(first, last)

    def restarted(self) -> bool:
        """The service has started: what it holds was handed out before. Returns whether anything changed."""
        carried = SequenceSet((run[0], run[1]) for run in self.runs)
        if self.started is None and carried.runs() == self.carried.runs():
            return False
        self.started, self.carried = None, carried
        return True


class Leases:
    """What all subscribers of a durable hold. Cost of a range: O(log runs + runs touched)."""

    def __init__(self) -> None:
        self.of: dict[str, Holder] = {}
        self.held = 0
        self._due: dict[int, int] = {}
        """How many messages lapse at each deadline: a deadline without messages does not wake the timer."""
        self._deadlines: list[int] = []

    def hold(self, holder: Holder, run: Lease) -> None:
        """Give a run to a subscriber."""
        count = run[1] - run[0] + 1
        holder.held += count
        self.held += count
        if not holder.runs or holder.runs[-1][1] < run[0]:
            holder.runs.append(run)
        else:
            insort(holder.runs, run)
        deadline_ms = run[3]
        if deadline_ms:
            if deadline_ms in self._due:
                self._due[deadline_ms] += count
            else:
                self._due[deadline_ms] = count
                heappush(self._deadlines, deadline_ms)

    def take(self, holder: Holder, first: int, last: int) -> list[Lease]:
        """Take from a subscriber what it holds of ``first..last``, as runs."""
        runs = holder.runs
        if runs and runs[0][0] == first and runs[0][1] == last:
            taken = [runs.pop(0)]
        else:
            taken = _cut(runs, first, last)
        for run in taken:
            count = run[1] - run[0] + 1
            holder.held -= count
            self.held -= count
            if run[3]:
                self._forget_due(run[3], count)
            if holder.started:
                holder.started.remove(run[0], run[1])
            if holder.carried:
                holder.carried.remove(run[0], run[1])
        return taken

    def renew(self, holder: Holder, first: int, last: int, deadline_ms: int) -> list[Lease]:
        """Give what a subscriber holds of ``first..last`` another deadline; returns it as it was."""
        started, carried = holder.started, holder.carried
        holder.started, holder.carried = None, SequenceSet()
        renewed = self.take(holder, first, last)
        for run in renewed:
            self.hold(holder, (run[0], run[1], run[2], deadline_ms))
        holder.started, holder.carried = started, carried
        return renewed

    def _forget_due(self, deadline_ms: int, count: int) -> None:
        left = self._due[deadline_ms] - count
        if left:
            self._due[deadline_ms] = left
        else:
            del self._due[deadline_ms]

    def next_ms(self) -> int | None:
        """When the next held message lapses, or None."""
        deadlines = self._deadlines
        while deadlines and deadlines[0] not in self._due:
            heappop(deadlines)
        return deadlines[0] if deadlines else None

    def lapsed(self, now_ms: int, looks: int) -> list[tuple[Lease, SequenceSet]]:
        """Take away up to ``looks`` messages whose deadline has come, as runs, each with the messages whose delivery
        counts. The others lapse with the next call, and count as if they lapsed now.

        Cost: O(runs), and O(1) where none has.
        """
        next_ms = self.next_ms()
        if next_ms is None or next_ms > now_ms:
            return []
        found: list[tuple[Lease, SequenceSet]] = []
        for holder in self.of.values():
            due = [run for run in holder.runs if 0 < run[3] <= now_ms]
            counting = holder.counting() if due else SequenceSet()
            for run in due:
                last = min(run[1], run[0] + looks - 1)
                looks -= last - run[0] + 1
                found += [(part, counting) for part in self.take(holder, run[0], last)]
                if not looks:
                    holder.lapses_on(now_ms)
                    return found
        return found

    def holder_of(self, seq: int) -> str | None:
        """The name of the subscriber that holds a message, or None."""
        for name, holder in self.of.items():
            place = bisect_right(holder.runs, (seq, _HIGH, 0, 0)) - 1
            if place >= 0 and holder.runs[place][1] >= seq:
                return name
        return None

    def runs(self) -> Iterator[Lease]:
        """Every run of every subscriber."""
        for holder in self.of.values():
            yield from holder.runs

    def check(self) -> None:
        """Totals and deadlines are those of the runs, and no message is held twice."""
        total = 0
        due: dict[int, int] = {}
        for holder in self.of.values():
            assert holder.runs == sorted(holder.runs), "runs are ascending"
            held = sum(run[1] - run[0] + 1 for run in holder.runs)
            assert held == holder.held, "a subscriber's total is that of its runs"
            holder.check()
            marked = [*(holder.started.runs() if holder.started else ()), *holder.carried.runs()]
            for first, last in marked:
                held_of = sum(high - low + 1 for low, high in holder.held_of(first, last))
                assert held_of == last - first + 1, "only what is held is marked"
            total += held
            for run in holder.runs:
                if run[3]:
                    due[run[3]] = due.get(run[3], 0) + run[1] - run[0] + 1
        assert total == self.held, "the total is that of all subscribers"
        assert due == self._due, "deadlines are those of the runs"
        assert set(due) <= set(self._deadlines), "every deadline wakes somebody"
        runs = sorted(self.runs())
        assert all(low[1] < high[0] for low, high in pairwise(runs)), "nothing is held twice"


def joined(runs: Iterable[Lease]) -> list[tuple[int, int]]:
    """First and last of ascending runs; those that touch are one.

    >>> joined([(1, 2, 1, 0), (3, 3, 2, 500), (5, 6, 1, 0)])
    [(1, 3), (5, 6)]
    """
    found: list[tuple[int, int]] = []
    for run in runs:
        if found and found[-1][1] == run[0] - 1:
            found[-1] = found[-1][0], run[1]
        else:
            found.append((run[0], run[1]))
    return found


def _cut(runs: list[Lease], first: int, last: int) -> list[Lease]:
    """Remove ``first..last`` from ascending runs; returns what was removed."""
    low = bisect_left(runs, (first, 0, 0, 0))
    if low and runs[low - 1][1] >= first:
        low -= 1
    high = bisect_right(runs, (last, _HIGH, 0, 0), low)
    touched = runs[low:high]
    if not touched:
        return []
    taken: list[Lease] = []
    left: list[Lease] = []
    for run_first, run_last, count, deadline_ms in touched:
        if run_first < first:
            left.append((run_first, first - 1, count, deadline_ms))
        taken.append((max(first, run_first), min(last, run_last), count, deadline_ms))
        if run_last > last:
            left.append((last + 1, run_last, count, deadline_ms))
    runs[low:high] = left
    return taken
