"""A standard or shared durable in a snapshot, and all the laws that hold in it.

Owns: the snapshot's fields, taking one up, the checks. Does not own: what changes the state (``consumption``).
Failure model: pure.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from holdfast.stores.durables.administration import browse
from holdfast.stores.durables.aging import arrived_ms
from holdfast.stores.durables.holdings import Holding
from holdfast.stores.durables.retention import retained
from holdfast.stores.values.sequence_set import SequenceSet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.stores.durables.consumption import Consumption

__all__ = ["ConsumptionState", "Tally", "capture", "check", "kept", "take_up"]

_HIGH = 1 << 62


Marks = tuple[str, bool, list[tuple[int, int]] | None, list[tuple[int, int]]]
"""A subscriber, whether it polls, what it reported as started, what it held when the service started."""


class ConsumptionState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A durable in a snapshot. Append only."""

    start: int
    cursor: int
    floor: int | None
    excluded: list[tuple[int, int]]
    delayed: list[tuple[int, int, int]]
    delayed_total: int
    subscribers: list[tuple[str, str | None, list[tuple[int, int, int, int]]]]
    returned: list[tuple[int, int, int]]
    later: list[tuple[int, int, int]]
    dying: list[tuple[int, str, int]]
    dying_retry_ms: int
    retention_done_ms: int
    pending: int
    pending_bytes: int
    tally: list[int]
    causes: dict[str, int]
    keys: list[tuple[int, str]] = []
    cursor_ms: int | None = None
    """None in a snapshot of rules 1, as the next."""
    floor_ms: int | None = None
    marks: list[Marks] = []
    """Of the subscribers whose messages are marked."""
    replayed: list[tuple[int, int]] = []
    discards_ms: int = 0


@dataclass(slots=True)
class Tally:
    """What happened to a durable's messages since it was made."""

    delivered: int = 0
    redelivered: int = 0
    acknowledged: int = 0
    lapsed: int = 0
    dead_letters: int = 0


def capture(durable: Consumption) -> ConsumptionState:
    """What a snapshot keeps. Cost: O(not settled)."""
    backlog, tally, returned = durable.backlog, durable.tally, durable.returned
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
        [(name, holding.key, holding.runs) for name, holding in durable.holdings.of.items()],
        returned.runs,
        sorted(returned.later) if returned.later else [],
        [(seq, cause, deliveries) for seq, (cause, deliveries) in durable.dying.items()] if durable.dying else [],
        durable.dying_retry_ms,
        durable.retention_done_ms,
        durable.pending,
        durable.pending_bytes,
        [tally.delivered, tally.redelivered, tally.acknowledged, tally.lapsed, tally.dead_letters],
        durable.causes,
        durable.keys_state(),
        backlog.cursor_ms,
        backlog.floor_ms,
        [
            (name, of.polls, None if of.started is None else of.started.runs(), of.carried.runs())
            for name, of in durable.holdings.of.items()
            if of.polls or of.started is not None or of.carried
        ],
        durable.replayed.runs() if durable.replayed else [],
        durable.discards_ms,
    )


def take_up(durable: Consumption, state: ConsumptionState) -> None:
    """Take up what ``state`` gave, in a durable just made."""
    backlog = durable.backlog
    backlog.start, backlog.cursor = state.start, state.cursor
    backlog.move_floor(state.floor)
    backlog.floor_ms = backlog.floor_ms if state.floor_ms is None else state.floor_ms
    counts = durable.shelf.counts
    backlog.cursor_ms = counts.time_from(state.cursor) if state.cursor_ms is None else state.cursor_ms
    backlog.excluded = SequenceSet(state.excluded)
    for number, at_ms, scanned_ms in state.delayed:
        backlog.delayed.set(number, at_ms)
        backlog.scanned_ms[number] = scanned_ms
    backlog.delayed_total = state.delayed_total
    durable.restore_keys(state.keys)
    for name, key, runs in state.subscribers:
        holding = durable.holdings.of[name] = Holding(key)
        for run in runs:
            durable.holdings.hold(holding, run)
    for name, polls, started, carried in state.marks:
        holding = durable.holdings.of[name]
        holding.polls, holding.carried = polls, SequenceSet(carried)
        holding.started = None if started is None else SequenceSet(started)
    for first, last, deliveries in state.returned:
        durable.returned.add(first, last, deliveries)
    for at_ms, seq, deliveries in state.later:
        durable.returned.add_later(at_ms, seq, deliveries)
    durable.dying = {seq: (cause, deliveries) for seq, cause, deliveries in state.dying}
    durable.dying_retry_ms = state.dying_retry_ms
    durable.retention_done_ms = state.retention_done_ms
    durable.pending, durable.pending_bytes = state.pending, state.pending_bytes
    durable.tally = Tally(*state.tally)
    durable.causes = dict(state.causes)
    durable.replayed = SequenceSet(state.replayed)
    durable.discards_ms = state.discards_ms


def kept(durable: Consumption) -> SequenceSet:
    """Every message that the durable holds a reference to. Cost: O(backlog); for checks."""
    numbers = SequenceSet(sorted((seq, seq) for seq, _ in browse(durable, 0, _HIGH)))
    if durable.backlog.floor is not None:
        for first, last in retained(durable, durable.backlog.floor, durable.backlog.cursor):
            numbers.add(first, last)
    return numbers


def check(durable: Consumption) -> None:
    """Every law of the parts; each message is in one place; totals are those of the messages. Cost: O(backlog)."""
    durable.backlog.check()
    durable.holdings.check()
    durable.returned.check()
    pending = [seq for seq, _ in browse(durable, 0, _HIGH)]
    assert len(set(pending)) == len(pending), "a message is in one place"
    assert len(pending) == durable.pending, "the total is that of the messages"
    assert sum(durable.shelf.counts.size(seq, seq) for seq in pending) == durable.pending_bytes, "and so are the bytes"
    assert durable.undelivered >= 0, "the backlog has no less than nothing"
    arrivals = durable.returned.arrivals
    if arrivals is not None:
        waiting = [seq for first, last, _ in durable.returned.runs for seq in range(first, last + 1)]
        first_ms = min((arrived_ms(durable, seq) for seq in waiting), default=None)
        assert arrivals.earliest_ms() == first_ms, "the index has the first of those that wait"
    if durable.parked_ms is not None:
        assert set(durable.parked_ms.items()) == set(durable.dying), "each of the parked has its time"
