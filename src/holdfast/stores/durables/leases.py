"""Runs of messages that subscribers hold (``Leases``), or that wait to be handed out again (``RedeliveryQueue``).

A ``Lease`` is a run ``(first, last, delivery count, deadline)``. The leases of one subscriber are ascending, and no
message is in two leases. A run of the queue is ``(first, last, deliveries so far)``; messages with a delay are kept
apart, by time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from operator import itemgetter
from typing import Final

import msgspec

from holdfast.stores.durables.backlog import Shelf
from holdfast.stores.values.deadlines import Deadlines, earlier
from holdfast.stores.values.ports import BLOCK_MESSAGES, block_parts
from holdfast.stores.values.sequence_set import SequenceSet

Lease = tuple[int, int, int, int]  # first, last, delivery count, deadline in milliseconds (0 for none)
_HIGH = 1 << 62
HANDED_OUT_MAX = 256
"""Hand-outs whose time is noted for one subscriber; above it those are forgotten of which nothing is held, then the
oldest."""


class HolderState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A subscriber in a snapshot; see ``Holder``."""

    name: str
    polls: bool
    since_ms: int
    session: str
    runs: list[Lease]
    started: list[tuple[int, int]] | None
    carried: list[tuple[int, int]]
    unsent: list[tuple[int, int]]
    again: list[tuple[int, int]]


class Holder:
    """What one subscriber holds."""

    __slots__ = (
        *("again", "carried", "hand_outs", "held", "polls", "runs"),
        *("session", "since_ms", "started", "unsent"),
    )

    def __init__(self, *, polls: bool = False, since_ms: int = 0, session: str = "") -> None:
        self.runs: list[Lease] = []
        self.held = 0
        self.polls = polls  # whether it asks for each portion; otherwise it has a connection
        self.since_ms = since_ms  # when it was attached
        self.session = session  # see ``Attach``
        self.started: SequenceSet | None = None
        """What of it the application was handed, None for a subscriber that does not report it."""
        self.carried = SequenceSet()
        """What it held when the service started, and what is due after a part that has lapsed."""
        self.unsent = SequenceSet()
        """What of it was reported as never sent."""
        self.again = SequenceSet()
        """What of it a subscriber had before, without a delivery that counted (``HANDED_OUT``)."""
        self.hand_outs: list[tuple[int, int, int]] = []
        """First, last and time of the newest hand-outs, oldest first."""

    def handed_out(self, first: int, last: int, now_ms: int, deliveries: int = 0) -> None:
        """Note when a run was handed out that had this many deliveries before. Cost: O(1), amortized O(log runs)."""
        if deliveries == HANDED_OUT:
            self.again.add(first, last)
        noted = self.hand_outs
        if noted and noted[-1][1] + 1 == first and noted[-1][2] == now_ms:
            noted[-1] = (noted[-1][0], last, now_ms)
            return
        noted.append((first, last, now_ms))
        if len(noted) > HANDED_OUT_MAX:
            noted[:] = [one for one in noted if self.held_of(one[0], one[1])][-HANDED_OUT_MAX // 2 :]

    def handed_out_ms(self, seq: int) -> int | None:
        """When a message that it holds was handed out; None if before a restart, or too long ago."""
        return next((at_ms for first, last, at_ms in reversed(self.hand_outs) if first <= seq <= last), None)

    def counting(self) -> SequenceSet:
        """The messages whose delivery counts if they come back now.

        Without a report that is the oldest: the application most likely works on it. A restart of the service does not
        count.

        >>> holder = Holder()
        >>> Leases().hold(holder, (4, 9, 1, 0))
        >>> holder.counting().runs()
        [(4, 4)]
        """
        if self.started is not None:
            return SequenceSet(self.started.runs())
        if not self.runs or self.runs[0][0] in self.carried or self.runs[0][0] in self.unsent:
            return SequenceSet()
        return SequenceSet([(self.runs[0][0], self.runs[0][0])])

    def start(self, ranges: Iterable[tuple[int, int]]) -> None:
        """The subscriber reports which messages the application was handed; only leased ones are noted."""
        started = self.started if self.started is not None else SequenceSet()
        for first, last in ranges:
            for low, high in self.held_of(first, last):
                started.add(low, high)
        self.started = started

    def not_sent(self, ranges: Iterable[tuple[int, int]]) -> None:
        """These were never sent to it; only leased ones are noted."""
        for first, last in ranges:
            for low, high in self.held_of(first, last):
                self.unsent.add(low, high)

    def fresh(self) -> SequenceSet:
        """The messages that nobody has seen, if this is their first delivery: it was not sent."""
        fresh = SequenceSet(self.unsent.runs())
        for first, last in self.again.runs() if fresh else ():
            fresh.remove(first, last)
        return fresh

    def state(self, name: str) -> HolderState:
        """What a snapshot keeps. When it was handed out is not known after a restart."""
        started = None if self.started is None else self.started.runs()
        marks = self.carried.runs(), self.unsent.runs(), self.again.runs()
        return HolderState(name, self.polls, self.since_ms, self.session, self.runs, started, *marks)

    def held_of(self, first: int, last: int) -> list[tuple[int, int]]:
        """What of a range it holds. Cost: O(log runs + runs touched)."""
        return _within(self.runs, first, last)

    def unstarted(self, first: int, last: int) -> list[tuple[int, int]]:
        """What it holds of a range that the application was not handed. For a subscriber that reports it."""
        assert self.started is not None, "without reports nothing is known"
        held = [part for run in self.held_of(first, last) for part in self.started.parts(*run)]
        return [(low, high) for low, high, is_started in held if not is_started]

    def lapses_on(self, now_ms: int) -> None:
        """More is due than was taken. Without a report the oldest has counted: the rest does not."""
        if self.started is None:
            for first, last, _, deadline_ms in self.runs:
                if 0 < deadline_ms <= now_ms:
                    self.carried.add(first, last)

    def does_not_count(self) -> None:
        """What it holds comes back for a reason of the service's own. Reports of what was started stay true."""
        if self.started is None:
            self.carried = SequenceSet((run[0], run[1]) for run in self.runs)

    def restarted(self) -> bool:
        """The service has started: all leases are from before. Returns whether anything changed."""
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
        """Take the leases in ``first..last`` from a subscriber, as runs."""
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
                self._due[run[3]] -= count
                if not self._due[run[3]]:
                    del self._due[run[3]]
            for marked in (holder.started, holder.carried, holder.unsent, holder.again):
                if marked:
                    marked.remove(run[0], run[1])
        return taken

    def renew(self, holder: Holder, first: int, last: int, deadline_ms: int) -> list[Lease]:
        """Give the leases in ``first..last`` another deadline; returns them as they were."""
        marks = holder.started, holder.carried, holder.unsent, holder.again
        holder.started, holder.carried, holder.unsent, holder.again = None, SequenceSet(), SequenceSet(), SequenceSet()
        renewed = self.take(holder, first, last)
        for run in renewed:
            self.hold(holder, (run[0], run[1], run[2], deadline_ms))
        holder.started, holder.carried, holder.unsent, holder.again = marks
        return renewed

    def postpone(self, holder: Holder, until_ms: int) -> bool:
        """Let nothing of a subscriber lapse before then. Returns whether anything would have."""
        early = [run for run in holder.runs if 0 < run[3] < until_ms]
        for first, last, *_ in early:
            self.renew(holder, first, last, until_ms)
        return bool(early)

    def next_ms(self) -> int | None:
        """When the next held message lapses, or None."""
        deadlines = self._deadlines
        while deadlines and deadlines[0] not in self._due:
            heappop(deadlines)
        return deadlines[0] if deadlines else None

    def lapsed(self, now_ms: int, looks: int) -> list[tuple[str, Lease, SequenceSet]]:
        """Take away up to ``looks`` messages whose deadline has come, as runs, each with its subscriber and the
        messages whose delivery counts.

        The others lapse with the next call. Cost: O(runs), and O(1) if none has.
        """
        next_ms = self.next_ms()
        if next_ms is None or next_ms > now_ms:
            return []
        lapsed_runs: list[tuple[str, Lease, SequenceSet]] = []
        for name, holder in self.of.items():
            due = [run for run in holder.runs if 0 < run[3] <= now_ms]
            counting = holder.counting() if due else SequenceSet()
            for run in due:
                last = min(run[1], run[0] + looks - 1)
                looks -= last - run[0] + 1
                lapsed_runs += [(name, part, counting) for part in self.take(holder, run[0], last)]
                if not looks:
                    holder.lapses_on(now_ms)
                    return lapsed_runs
        return lapsed_runs

    def holder_of(self, seq: int) -> str | None:
        """The name of the subscriber that holds a message, or None."""
        for name, holder in self.of.items():
            index = bisect_right(holder.runs, (seq, _HIGH, 0, 0)) - 1
            if index >= 0 and holder.runs[index][1] >= seq:
                return name
        return None

    def runs(self) -> Iterator[Lease]:
        """Every run of every subscriber."""
        for holder in self.of.values():
            yield from holder.runs

    def restore(self, state: HolderState) -> None:
        """Take up a subscriber with what it holds."""
        holder = Holder(polls=state.polls, since_ms=state.since_ms, session=state.session)
        self.of[state.name] = holder
        for run in state.runs:
            self.hold(holder, run)
        holder.started = None if state.started is None else SequenceSet(state.started)
        holder.carried, holder.unsent = SequenceSet(state.carried), SequenceSet(state.unsent)
        holder.again = SequenceSet(state.again)

    def check(self) -> None:
        """Totals and deadlines are those of the runs, and no message is held twice."""
        total = 0
        due: dict[int, int] = {}
        for holder in self.of.values():
            assert holder.runs == sorted(holder.runs), "runs are ascending"
            held = sum(run[1] - run[0] + 1 for run in holder.runs)
            assert held == holder.held, "a subscriber's total is that of its runs"
            assert len(holder.hand_outs) <= HANDED_OUT_MAX, "noted hand-outs are bounded"
            marks = [holder.started or SequenceSet(), holder.carried, holder.unsent, holder.again]
            for first, last in [run for marked in marks for run in marked.runs()]:
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
    ranges: list[tuple[int, int]] = []
    for run in runs:
        if ranges and ranges[-1][1] == run[0] - 1:
            ranges[-1] = ranges[-1][0], run[1]
        else:
            ranges.append((run[0], run[1]))
    return ranges


def _within(runs: Sequence[Lease | Run], first: int, last: int) -> list[tuple[int, int]]:
    parts: list[tuple[int, int]] = []
    for index in range(max(0, bisect_right(runs, first, key=itemgetter(0)) - 1), len(runs)):
        run = runs[index]
        if run[0] > last:
            break
        if run[1] >= first:
            parts.append((max(first, run[0]), min(last, run[1])))
    return parts


def _cut(runs: list[Lease], first: int, last: int) -> list[Lease]:
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


Run = tuple[int, int, int]
HANDED_OUT: Final = -1  # instead of 0 deliveries: a subscriber had the message, and that did not count


def count_after(deliveries: int) -> int:
    """The delivery count reported after this many deliveries; negative: the first that counts, not the first.

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
        index = bisect_right(runs, (first, _HIGH, 0))
        if index and runs[index - 1][1] == first - 1 and runs[index - 1][2] == deliveries:
            index -= 1
            first = runs.pop(index)[0]
        if index < len(runs) and runs[index][0] == last + 1 and runs[index][2] == deliveries:
            last = runs.pop(index)[1]
        runs.insert(index, (first, last, deliveries))
        if self.arrivals is not None:
            self.arrivals.add(*added)

    def waits(self, seq: int) -> bool:
        """Whether this message can be handed out now. Cost: O(log runs)."""
        return self.first_from(seq) == seq

    def first_from(self, seq: int) -> int | None:
        """The first message from ``seq`` on that can be handed out now, or None. Cost: O(log runs)."""
        index = bisect_right(self.runs, (seq, _HIGH, 0)) - 1
        if index >= 0 and self.runs[index][1] >= seq:
            return seq
        return self.runs[index + 1][0] if index + 1 < len(self.runs) else None

    def add_later(self, at_ms: int, seq: int, deliveries: int) -> None:
        """This one can be handed out from ``at_ms`` on."""
        self.total += 1
        heappush(self.later, (at_ms, seq, deliveries))

    def wake(self, now_ms: int, most: int = _HIGH) -> bool:
        """Whether delays have ended; up to ``most`` of those messages can be handed out now."""
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
        """Remove the messages up to ``last`` of the run that begins with ``first``."""
        index = bisect_right(self.runs, (first, _HIGH, 0)) - 1
        run = self.runs[index]
        assert run[0] == first and last <= run[1], "the run is there"
        self.runs[index : index + 1] = [(last + 1, run[1], run[2])] if last < run[1] else []
        self.total -= last - first + 1

    def remove(self, seq: int) -> int | None:
        """Remove one message. Returns its deliveries so far, or None if it does not wait."""
        position = bisect_right(self.runs, (seq, _HIGH, 0)) - 1
        if position >= 0 and self.runs[position][1] >= seq:
            first, last, deliveries = self.runs[position]
            left = [(first, seq - 1, deliveries)] if first < seq else []
            left += [(seq + 1, last, deliveries)] if seq < last else []
            self.runs[position : position + 1] = left
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
        """Every run, including those with a delay, in no particular order."""
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
    """When the first waiting message began to live: an index over the runs, not part of the state.

    A block without own times has one entry, corrected when it is the earliest, because its times ascend; a message of
    any other block has its own. *Cost*: O(log) for each block and each message with an own time, amortized. Entries of
    messages that do not wait any more are removed when they are the earliest, or are too many.
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
        for number, begin, end in block_parts(first, last):
            block = self._shelf.counts.block(number)
            if block is not None and block.timed:
                self._add_each(begin, end)
            else:
                known_ms, at_ms = self._by_block.get(number), self._shelf.counts.published_ms(begin)
                self._by_block.set(number, at_ms if known_ms is None else min(known_ms, at_ms))
        if len(self._by_message) > 64 + 2 * self._redelivery.total:
            left = {seq: at_ms for seq, at_ms in self._by_message.items().items() if self._redelivery.waits(seq)}
            self._by_message = Deadlines(left)

    def _add_each(self, first: int, last: int) -> None:
        if all(self._by_message.get(seq) is not None for seq in range(first, last + 1)):
            return
        arrived_ms = {
            kept.seq: max(kept.published_ms, kept.deliver_at_ms)
            for kept in self._shelf.messages.read(self._shelf.store, first, last)
        }
        for seq in range(first, last + 1):
            at_ms = arrived_ms.get(seq)
            self._by_message.set(seq, self._shelf.counts.published_ms(seq) if at_ms is None else at_ms)

    def earliest_ms(self) -> int | None:
        """When the first of those that wait began to live, None where none waits."""
        return earlier(self._earliest_of_blocks(), self._earliest_of_messages())

    def _earliest_of_messages(self) -> int | None:
        due = self._by_message
        while (at_ms := due.next_ms()) is not None:
            seq = due.pop(at_ms)
            assert seq is not None, "the earliest is there"
            if self._redelivery.waits(seq):
                due.set(seq, at_ms)
                return at_ms
        return None

    def _earliest_of_blocks(self) -> int | None:
        due, counts = self._by_block, self._shelf.counts
        while (at_ms := due.next_ms()) is not None:
            number = due.pop(at_ms)
            assert number is not None, "the earliest is there"
            begin, end = number * BLOCK_MESSAGES, (number + 1) * BLOCK_MESSAGES
            block = counts.block(number)
            if block is not None and block.timed:
                # A later message of the block has a time of its own.
                for first, last in _within(self._redelivery.runs, begin, end - 1):
                    self._add_each(first, last)
                continue
            seq = self._redelivery.first_from(begin)
            if seq is not None and seq < end:
                due.set(number, counts.published_ms(seq))
                if counts.published_ms(seq) == at_ms:
                    return at_ms
        return None


REMOVED_MAX: Final = 1_024
"""Entries of one subscriber. Above it the oldest is forgotten: its acknowledgement is stale without a cause."""

Entry = tuple[int, int, int, str]
"""First, last, deadline in milliseconds (0 for none), and cause."""


class Removals:
    """What left a durable while a subscriber held it: why its acknowledgement is stale, and who has its key.

    Entries by subscriber, in the order in which they were removed. One ends when the subscriber answers for its message
    or is detached, and is of no use from its deadline on: then the message would have been taken back in any case.
    Cost of each method: O(entries).
    """

    def __init__(self) -> None:
        self.of: dict[str, list[Entry]] = {}

    def add(self, subscriber: str, runs: Sequence[Lease], cause: str) -> list[Entry]:
        """These left the durable. Returns what is forgotten for it."""
        entries = self.of.setdefault(subscriber, [])
        for first, last, _, deadline_ms in runs:
            if entries and (entries[-1][1], *entries[-1][2:]) == (first - 1, deadline_ms, cause):
                entries[-1] = entries[-1][0], last, deadline_ms, cause
            else:
                entries.append((first, last, deadline_ms, cause))
        forgotten = entries[:-REMOVED_MAX]
        del entries[:-REMOVED_MAX]
        return forgotten

    def take(self, subscriber: str, first: int, last: int) -> tuple[list[Entry], list[Entry]]:
        """The subscriber answers for these. Returns what of them was removed, and what is forgotten for the parts of
        entries that are left."""
        entries = self.of.get(subscriber)
        if not entries:
            return [], []
        taken: list[Entry] = []
        left: list[Entry] = []
        for low, high, deadline_ms, cause in entries:
            begin, end = max(low, first), min(high, last)
            if begin > end:
                left.append((low, high, deadline_ms, cause))
                continue
            taken.append((begin, end, deadline_ms, cause))
            left += [(low, begin - 1, deadline_ms, cause)] if low < begin else []
            left += [(end + 1, high, deadline_ms, cause)] if end < high else []
        return taken, self._keep(subscriber, left)

    def renew(self, subscriber: str, first: int, last: int, deadline_ms: int) -> tuple[list[Entry], list[Entry]]:
        """The application works on these: their time begins. Returns those that were removed, and what is forgotten."""
        taken, forgotten = self.take(subscriber, first, last)
        renewed = [(low, high, deadline_ms, cause) for low, high, _, cause in taken]
        if renewed:
            forgotten += self._keep(subscriber, self.of.get(subscriber, []) + renewed)
        return renewed, forgotten

    def leave(self, subscriber: str) -> list[Entry]:
        """The subscriber is detached."""
        return self.of.pop(subscriber, [])

    def end(self, now_ms: int) -> list[Entry]:
        """Forget those whose deadline has come."""
        ended = [entry for entries in self.of.values() for entry in entries if 0 < entry[2] <= now_ms]
        for name, entries in list(self.of.items()) if ended else ():
            self._keep(name, [entry for entry in entries if not 0 < entry[2] <= now_ms])
        return ended

    def postpone(self, until_ms: int) -> bool:
        """No deadline comes before then. Returns whether one would have."""
        early = any(0 < entry[2] < until_ms for entries in self.of.values() for entry in entries)
        for name, entries in self.of.items() if early else ():
            self.of[name] = [
                (first, last, max(deadline_ms, until_ms) if deadline_ms else 0, cause)
                for first, last, deadline_ms, cause in entries
            ]
        return early

    def next_ms(self) -> int | None:
        """The first deadline, or None."""
        return min((entry[2] for entries in self.of.values() for entry in entries if entry[2]), default=None)

    def _keep(self, subscriber: str, entries: list[Entry]) -> list[Entry]:
        """Keep these, the newest of them above the bound. Returns what is forgotten."""
        if entries:
            self.of[subscriber] = entries[-REMOVED_MAX:]
        else:
            self.of.pop(subscriber, None)
        return entries[:-REMOVED_MAX]

    def check(self) -> None:
        """Entries are bounded, and none is empty."""
        for entries in self.of.values():
            assert 0 < len(entries) <= REMOVED_MAX, "entries are bounded"
            assert all(first <= last for first, last, *_ in entries), "an entry is not empty"
