"""The messages of one standard or shared durable, and where each of them is.

An unacknowledged message is in exactly one place: ``backlog`` (from the cursor on, or delayed), ``leases``,
``redelivery`` (to be handed out again) or ``dying`` (it waits for its dead letter, or is parked for an operator). The
durable holds exactly one reference to it until it leaves the last place. ``consumption`` has the transitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from holdfast.stores.definitions.cluster import Discard, DurableDefinition
from holdfast.stores.durables.backlog import Backlog, ScanResult, Shelf, expires_ms
from holdfast.stores.durables.leases import Entry, HolderState, Lease, Leases, RedeliveryQueue, Removals, Run, joined
from holdfast.stores.values import deadlines
from holdfast.stores.values.deadlines import Budget, Deadlines
from holdfast.stores.values.effects import Ready, Withdrawn
from holdfast.stores.values.messages import MessageBatch
from holdfast.stores.values.ports import BLOCK_MESSAGES, Kept
from holdfast.stores.values.sequence_set import SequenceSet

SET_APART_MAX = 262_144
"""Messages put back, delayed by a subscriber or dying; above it a durable hands out nothing new."""
_HIGH = 1 << 62

Browsed = tuple[list[tuple[int, int]], int | None, int]
"""Numbers with their deliveries; above which number to go on, None for the end; how many looks are left."""


class ConsumptionState(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="consumed"):
    """A durable in a snapshot."""

    start: int
    cursor: int
    floor: int | None
    excluded: list[tuple[int, int]]
    delayed: list[tuple[int, int, int]]
    delayed_total: int
    holders: list[HolderState]
    redelivery: list[tuple[int, int, int]]
    later: list[tuple[int, int, int]]
    dying: list[tuple[int, str, int]]
    dying_retry_ms: int
    retention_done_ms: int
    pending: int
    pending_bytes: int
    tally: list[int]
    causes: dict[str, int]
    keys: list[tuple[int, str]]
    """Of a key-ordered durable: of each unacknowledged message."""
    cursor_ms: int
    floor_ms: int
    replayed: list[tuple[int, int]]
    discards_ms: int
    rewind_to: int | None
    rewind_ms: int
    removed: list[tuple[str, list[Entry]]]
    removed_keys: list[tuple[int, str]]
    """Those that it keeps for who works on removed messages."""


@dataclass(slots=True)
class Tally:
    """What happened to a durable's messages since it was made."""

    delivered: int = 0
    redelivered: int = 0
    acknowledged: int = 0
    lapsed: int = 0
    dead_letters: int = 0


_LIMITS: Final = frozenset({"limit_old", "limit_new"})


class PendingMessages:
    """Base of ``Consumption``. ``pending`` and ``pending_bytes`` are what it keeps and is not acknowledged."""

    def __init__(self, definition: DurableDefinition, shelf: Shelf) -> None:
        self.definition = definition
        self.name = definition.name
        self.shelf = shelf
        self.backlog = Backlog(shelf, definition.matcher, shelf.counts.next_seq)
        if definition.retention_time_ms:
            self.backlog.move_floor(self.backlog.cursor)
        self.leases = Leases()
        self.redelivery = RedeliveryQueue()
        self.removed = Removals()
        self.dying: dict[int, tuple[str, int]] = {}  # cause and deliveries of each, in the order in which they died
        self.dying_retry_ms = 0
        self.discards_ms = 0  # when a command left more than the limits allow, for Expire to discard; 0 for never
        self.rewind_to: int | None = None
        """How far back a rewind goes that a command has left to ``Expire``; None without one."""
        self.rewind_ms = 0  # when it began
        self.parked_ms: Deadlines[int] | None = None
        """When each of the parked began to live; made when it is asked for."""
        self.retention_done_ms = 0
        self.replayed = SequenceSet()  # where the cursor was before a rewind, of what may still be delivered
        self.pending = 0
        self.pending_bytes = 0
        self._woken = 0
        self.tally = Tally()
        self.causes: dict[str, int] = {}  # how many messages were lost to what
        self.ready_effect = Ready(shelf.store, definition.name)

    @property
    def undelivered(self) -> int:
        """Messages in the backlog, including delayed ones that the cursor did not reach."""
        apart = self.redelivery.total + len(self.dying) + self.backlog.delayed_total
        return self.pending - self.leases.held - apart

    @property
    def looks_on(self) -> bool:
        """Whether the cursor may move: it stops while too many messages are set apart."""
        return self.redelivery.total + len(self.dying) < SET_APART_MAX

    @property
    def parks(self) -> bool:
        """Whether dying messages wait for an operator: there is no dead-letter store."""
        return not self.definition.dead_letter_store

    def oldest_ms(self) -> int:
        """When the oldest unacknowledged message was published, 0 for none; with a matcher perhaps another's. Cost:
        O(subscribers)."""
        oldest = self.oldest_apart()
        if self.undelivered > 0:
            oldest.append(self.backlog.cursor)
        return self.shelf.counts.published_ms(min(oldest)) if oldest else 0

    def oldest_apart(self) -> list[int]:
        """Numbers of messages outside the backlog, the lowest among them. Cost: O(subscribers)."""
        oldest = [holder.runs[0][0] for holder in self.leases.of.values() if holder.runs]
        oldest += [run[0] for run in self.redelivery.runs[:1]] + list(self.dying)[:1]
        return oldest + [seq for _, seq, _ in self.redelivery.later]

    def apart(self) -> list[Run]:
        """The runs of messages outside the backlog with their deliveries, in no particular order."""
        runs = [(run[0], run[1], run[2]) for run in self.leases.runs()] + self.redelivery.all_runs()
        return runs + [(seq, seq, deliveries) for seq, (_, deliveries) in self.dying.items()]

    def arrived_ms(self, seq: int) -> int:
        """When a message that is kept began to live: when it was published, or became due."""
        block = self.shelf.counts.block(seq // BLOCK_MESSAGES)
        if block is None:
            return 0
        if block.timed:
            for kept in self.shelf.messages.read(self.shelf.store, seq, seq):
                return max(kept.published_ms, kept.deliver_at_ms)
        return block.published_ms[seq % BLOCK_MESSAGES]

    def wants(self, kept: Kept) -> bool:
        """Whether a message that somebody keeps was given to this durable."""
        return self.backlog.wants(kept, self.shelf.counts.block(kept.seq // BLOCK_MESSAGES))

    def is_swept(self, kept: Kept) -> bool:
        """Whether a message that is not held was released when its own time ended."""
        block = self.shelf.counts.block(kept.seq // BLOCK_MESSAGES)
        return block is None or 0 < expires_ms(kept) <= block.swept_ms

    def is_waiting(self, seq: int) -> bool:
        """Whether the durable has this message and no subscriber holds it. Cost: O(unacknowledged)."""
        page, _, _ = self.browse_page(seq - 1, 1, 1)
        return bool(page) and page[0][0] == seq and self.leases.holder_of(seq) is None

    def browse(self, after: int, count: int) -> list[tuple[int, int]]:
        """Up to ``count`` messages above ``after`` with their deliveries, ascending. Cost: as ``browse_page``."""
        return self.browse_page(after, count, _HIGH)[0]

    def browse_page(self, after: int, count: int, looks: int) -> Browsed:
        """Like ``browse``, but stop after about ``looks`` messages of the backlog.

        Also returns the number above which to continue, None at the end, and how many looks are left. Cost: O(messages
        outside the backlog), and ``looks`` messages read, about 5 microseconds each.
        """
        page = [
            (seq, max(deliveries, 0))
            for first, last, deliveries in self.apart()
            for seq in range(max(first, after + 1), last + 1)
        ]
        page += [(kept.seq, 0) for kept in self.backlog.passed_delayed() if kept.seq > after]
        page.sort()
        if len(page) >= count:
            return page[:count], page[count - 1][0] if count else after, looks
        seen, reached, left = self.backlog.look(after, count - len(page), looks)
        return page + [(seq, 0) for seq in seen], reached, left

    def scan(self, want: int, now_ms: int, end: int | None = None, budget: Budget | None = None) -> ScanResult:
        """Move the cursor; messages that expired by their own time are released here, the caller places the rest.

        Without a budget it examines up to ``SCAN_MAX`` messages.
        """
        next_seq = self.shelf.counts.next_seq
        if budget is None:
            budget = Budget(_HIGH, _HIGH)
        self._wake_delayed(now_ms, budget)
        if self._has_due_delayed(now_ms):
            return ScanResult()
        if self.undelivered <= 0:
            if self.backlog.cursor < next_seq:
                # Nothing above the cursor is this durable's: what does not match need not be read.
                self.backlog.cursor = next_seq
                self.backlog.forget_passed()
            return ScanResult()
        # After the last of its own it need not look, either.
        end = next_seq if end is None else end
        result = self.backlog.scan(now_ms, min(want, self.undelivered), end, budget.looks)
        budget.looks -= result.looks
        for seq in result.expired:
            self.gone(seq, seq, "own_ttl")
        return result

    def _has_due_delayed(self, now_ms: int) -> bool:
        """Whether passed delayed messages are due: the cursor must not pass their block again before."""
        next_ms = self.backlog.delayed.next_ms()
        return next_ms is not None and next_ms <= now_ms

    def _wake_delayed(self, now_ms: int, budget: Budget) -> None:
        """Set apart the delayed messages that are due. Cost: reads their blocks."""
        next_ms = self.backlog.delayed.next_ms()
        self._woken += next_ms is not None and next_ms <= now_ms
        while next_ms is not None and next_ms <= now_ms and not budget.is_spent:
            budget.looks -= BLOCK_MESSAGES
            result = self.backlog.due(now_ms)
            for seq in result.expired:
                self.gone(seq, seq, "own_ttl")
            for first, last in result.runs:
                self.set_apart(first, last)
            next_ms = self.backlog.delayed.next_ms()

    def set_apart(self, first: int, last: int) -> None:
        """These can be handed out and wait for it."""
        self.redelivery.add(first, last, 0)

    def withdraw(self, subscriber: str, runs: Sequence[Lease], cause: str) -> None:
        """A subscriber does not hold these any more, and did not give them up itself."""
        if runs:
            ranges = joined(sorted(runs))
            self.shelf.withdrawn.append(Withdrawn(self.shelf.store, self.name, subscriber, ranges, cause))

    def forget(self, first: int, last: int) -> None:
        """These have left the durable."""

    def lose(self, cause: str, count: int) -> None:
        """Count messages that are lost, by cause."""
        if cause in _LIMITS:
            self.shelf.discarded += count
        self.causes[cause] = self.causes.get(cause, 0) + count

    def gone(self, first: int, last: int, cause: str) -> None:
        """These leave the durable without an acknowledgement."""
        self.release(first, last)
        self.lose(cause, last - first + 1)

    def release(self, first: int, last: int) -> None:
        """These leave the durable, uncounted; their place has released them before."""
        self.pending -= last - first + 1
        self.pending_bytes -= self.shelf.counts.release(first, last)
        self.forget(first, last)
        floor = self.backlog.floor
        if floor is not None and last >= floor:
            self.backlog.exclude(max(first, floor), last)

    def take_dying(self, seq: int) -> tuple[str, int] | None:
        """Remove a message from the dying; returns its cause and deliveries, None if it is not one."""
        if self.parked_ms is not None:
            self.parked_ms.set(seq, None)
        return self.dying.pop(seq, None)

    def release_one_retained(self, seq: int) -> bool:
        """Retain one acknowledged message no longer; whether the durable did."""
        floor = self.backlog.floor
        if floor is None or seq < floor:
            return False
        self.shelf.counts.release(seq, seq)
        self.backlog.exclude(seq, seq)
        return True

    @property
    def takes_all(self) -> bool:
        """Whether every message that is published is accepted, so that a batch is counted at once."""
        definition = self.definition
        limited = definition.discard is Discard.NEW and (definition.message_limit or definition.bytelimit)
        return self.backlog.matcher.everything and not limited

    def admits(self, candidates: Sequence[int], batch: MessageBatch) -> Sequence[int]:
        """Which of these matching positions in the batch the limits admit. Changes nothing."""
        definition = self.definition
        messages, size = definition.message_limit, definition.bytelimit
        if definition.discard is Discard.OLD or not (messages or size):
            return candidates
        admitted: list[int] = []
        pending, pending_bytes = self.pending, self.pending_bytes
        for position in candidates:
            if (messages and pending >= messages) or (size and pending_bytes + batch.sizes[position] > size):
                continue
            pending += 1
            pending_bytes += batch.sizes[position]
            admitted.append(position)
        return admitted

    def keep_limits(self, now_ms: int, budget: Budget | None = None) -> None:
        """Where the durable discards its oldest messages, discard what is over its limits."""
        definition = self.definition
        if definition.discard is Discard.OLD and (definition.message_limit or definition.bytelimit):
            if self.rewind_to is None:
                self.discard_old(now_ms, budget)
            elif self.is_over():
                # The oldest messages are those that the rewind has not reached.
                self.discards_ms = now_ms
        else:
            self.discards_ms = 0

    def discard_old(self, now_ms: int, budget: Budget | None = None) -> None:
        """Discard the oldest messages, held or not, until the limits hold; parked ones first.

        Without a budget, one call examines about ``DISCARD_LOOKS`` messages. The rest is due at once (``discards_ms``).
        """
        if budget is None:
            budget = Budget(deadlines.DISCARD_LOOKS, deadlines.DISCARD_LOOKS)
        self.discards_ms = 0
        while self.is_over() and not budget.is_spent:
            before = self.pending
            if not self._discard_some(now_ms, budget):
                return
            budget.messages -= before - self.pending
        if budget.is_spent and self.is_over():
            self.discards_ms = now_ms

    def is_over(self) -> bool:
        """Whether the durable keeps more than its limits allow."""
        messages, size = self.definition.message_limit, self.definition.bytelimit
        return 0 < messages < self.pending or 0 < size < self.pending_bytes

    def _discard_some(self, now_ms: int, budget: Budget) -> bool:
        """Discard the oldest messages, held or not, or search further for them; False if there is none."""
        if self.parks and self.dying:
            parked = next(iter(self.dying))
            self.take_dying(parked)
            self.gone(parked, parked, "limit_old")
            return True
        limit = self.definition.message_limit
        want = min(budget.messages, max(1, self.pending - limit)) if limit else 1
        oldest = self._oldest(budget)
        first, place = oldest[0]
        if self.undelivered > 0 and self.backlog.cursor < first:
            cursor, passed = self.backlog.cursor, self.backlog.delayed_total
            runs = self.scan(want, now_ms, None if first == _HIGH else first, budget).runs
            for low, high in runs:
                if self.backlog.delayed_total > passed:
                    self.set_apart(low, high)  # an older one is delayed: it goes first
                else:
                    self.gone(low, high, "limit_old")
            if runs or self.backlog.cursor > cursor or budget.is_spent:
                return True
        if first == _HIGH:
            return False
        # Up to the next place that has an older one.
        last = min(first + want, oldest[1][0]) - 1
        match place:
            case "waiting":
                run = self.redelivery.take(last - first + 1)
                assert run is not None, "it waits"
                last = run[1]
            case "returned later":
                self.redelivery.remove(first)
                last = first
            case "delayed":
                delayed = self.backlog.take_oldest_delayed()
                assert delayed == first, "it is the oldest"
                last = first
            case _:
                last = self.remove_held(place.removeprefix("held "), first, last, "limit_old")
        self.gone(first, last, "limit_old")
        return True

    def _oldest(self, budget: Budget) -> list[tuple[int, str]]:
        """The lowest number in each place outside the backlog, ascending, and an end. Cost: O(subscribers + messages
        that came back with a delay), and reads one block of delayed ones."""
        redelivery = self.redelivery
        oldest = [(holder.runs[0][0], f"held {name}") for name, holder in self.leases.of.items() if holder.runs]
        oldest += [(run[0], "waiting") for run in redelivery.runs[:1]]
        if redelivery.later:
            budget.looks -= len(redelivery.later)
            oldest.append((min(seq for _, seq, _ in redelivery.later), "returned later"))
        delayed = self.backlog.oldest_delayed()
        if delayed is not None:
            budget.looks -= BLOCK_MESSAGES
            oldest.append((delayed, "delayed"))
        return [*sorted(oldest), (_HIGH, ""), (_HIGH, "")]

    def remove_held(self, subscriber: str, first: int, last: int, cause: str) -> int:
        """Take from a subscriber, without giving it back, what it holds from ``first`` on, up to ``last`` or the end of
        the run. Returns its last number."""
        holder = self.leases.of[subscriber]
        last = holder.held_of(first, last)[0][1]
        runs = self.leases.take(holder, first, last)
        self.withdraw(subscriber, runs, cause)
        self.let_go(self.removed.add(subscriber, runs, cause))
        return last

    def let_go(self, entries: Sequence[Entry]) -> None:
        """The application does not work any more on these, which were removed from the durable."""

    def state(self) -> ConsumptionState:
        """What a snapshot keeps. Cost: O(messages outside the backlog)."""
        backlog, tally, redelivery = self.backlog, self.tally, self.redelivery
        scanned_ms = backlog.scanned_ms
        return ConsumptionState(
            backlog.start,
            backlog.cursor,
            backlog.floor,
            backlog.excluded.runs() if backlog.excluded else [],
            [(number, at_ms, scanned_ms[number]) for number, at_ms in backlog.delayed.items().items()]
            if scanned_ms
            else [],
            backlog.delayed_total,
            [holder.state(name) for name, holder in self.leases.of.items()],
            redelivery.runs,
            sorted(redelivery.later) if redelivery.later else [],
            [(seq, cause, deliveries) for seq, (cause, deliveries) in self.dying.items()] if self.dying else [],
            self.dying_retry_ms,
            self.retention_done_ms,
            self.pending,
            self.pending_bytes,
            [tally.delivered, tally.redelivered, tally.acknowledged, tally.lapsed, tally.dead_letters],
            self.causes,
            [],
            backlog.cursor_ms,
            backlog.floor_ms,
            self.replayed.runs() if self.replayed else [],
            self.discards_ms,
            self.rewind_to,
            self.rewind_ms,
            list(self.removed.of.items()),
            [],
        )

    def restore(self, state: ConsumptionState) -> None:
        """Load ``state`` into a new durable."""
        backlog = self.backlog
        backlog.start, backlog.cursor = state.start, state.cursor
        backlog.move_floor(state.floor)
        backlog.floor_ms = state.floor_ms
        backlog.cursor_ms = state.cursor_ms
        backlog.excluded = SequenceSet(state.excluded)
        for number, at_ms, scanned_ms in state.delayed:
            backlog.delayed.set(number, at_ms)
            backlog.scanned_ms[number] = scanned_ms
        backlog.delayed_total = state.delayed_total
        for holder in state.holders:
            self.leases.restore(holder)
        for first, last, deliveries in state.redelivery:
            self.redelivery.add(first, last, deliveries)
        for at_ms, seq, deliveries in state.later:
            self.redelivery.add_later(at_ms, seq, deliveries)
        self.dying = {seq: (cause, deliveries) for seq, cause, deliveries in state.dying}
        self.dying_retry_ms = state.dying_retry_ms
        self.retention_done_ms = state.retention_done_ms
        self.pending, self.pending_bytes = state.pending, state.pending_bytes
        self.tally = Tally(*state.tally)
        self.causes = dict(state.causes)
        self.replayed = SequenceSet(state.replayed)
        self.discards_ms = state.discards_ms
        self.rewind_to, self.rewind_ms = state.rewind_to, state.rewind_ms
        self.removed.of = {name: list(entries) for name, entries in state.removed}
