"""What a durable retains of what was acknowledged, and going back to it.

Owns: which numbers below the cursor are retained, their release by age, rewinding. Does not own: the places of messages
that are not settled (``consumption``). Failure model: pure.

Retained are the messages from the backlog's ``floor`` up to its cursor that the durable wants and that are not in any
place of ``consumption``. Nothing is kept to know them: what left without an acknowledgement is in ``excluded``.
"""

from __future__ import annotations

from holdfast.stores.durables.aging import without_expired
from holdfast.stores.durables.backlog import Backlog, Found, expires_ms
from holdfast.stores.durables.look_ahead import LookAhead, Looked
from holdfast.stores.durables.residue import Residue
from holdfast.stores.values.ports import BLOCK_MESSAGES
from holdfast.stores.values.sequence_set import SequenceSet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.stores.durables.consumption import Consumption
    from holdfast.stores.values.commands import Rewind
    from holdfast.stores.values.expiry import Budget
    from holdfast.stores.values.ports import Block

__all__ = [
    "RETENTION_STEP_MS",
    "expire_retained",
    "looking_ahead",
    "release_retained",
    "retained",
    "retention_next_ms",
    "rewind",
    "set_retention",
]

RETENTION_STEP_MS = 1_000
"""Messages whose retention has ended are released at most this often, so that it is done for many at once."""
REPLAYED_RUNS_MAX = 1_024
"""Of more rewinds to places apart the oldest is forgotten: its messages do not say that they are replayed."""
_HIGH = 1 << 62


def retained(durable: Consumption, first: int, end: int, ahead: LookAhead | None = None) -> list[tuple[int, int]]:
    """The retained messages of ``first..end - 1``, which is below the cursor.

    Cost: O(blocks); where there is a matcher or the block is timed, reads those that ``ahead`` has not.
    """
    backlog = durable.backlog
    unsettled = SequenceSet(
        sorted(
            [
                *((run[0], run[1]) for run in durable.holdings.runs()),
                *((run[0], run[1]) for run in durable.returned.all_runs()),
                *((seq, seq) for seq in durable.dying),
            ]
        )
    )
    found = Found()
    while first < end:
        number = first // BLOCK_MESSAGES
        stop = min(end, (number + 1) * BLOCK_MESSAGES)
        block = durable.shelf.counts.block(number)
        if block is not None and block.live:
            # A timed block may have a map's values, which a matcher cannot tell from messages.
            runs = ahead.runs(first, stop) if ahead is not None and not block.timed else None
            if backlog.arithmetic and not block.timed:
                runs = [(first, stop - 1)]
            if runs is None:
                _read(durable, block, unsettled, first, stop, found, ahead)
            elif _has_none(unsettled, first, stop) and _has_none(backlog.excluded, first, stop):
                for run in runs:
                    found.add(*run)
            else:
                for run in runs:
                    _without(unsettled, backlog.excluded, run[0], run[1] + 1, found)
        first = stop
    return found.runs


def _has_none(numbers: SequenceSet, first: int, end: int) -> bool:
    return numbers.next_member(first, end) == end


def _without(unsettled: SequenceSet, excluded: SequenceSet, first: int, end: int, found: Found) -> None:
    while first < end:
        first = excluded.after(unsettled.after(first))
        if first in unsettled:
            continue
        stop = min(unsettled.next_member(first, end), excluded.next_member(first, end))
        if first < stop:
            found.add(first, stop - 1)
        first = max(stop, first)


def _read(
    durable: Consumption,
    block: Block,
    unsettled: SequenceSet,
    first: int,
    end: int,
    found: Found,
    ahead: LookAhead | None,
) -> None:
    backlog = durable.backlog
    looked = ahead.messages(first, end) if ahead is not None else None
    for seq, end_ms, deliver_at_ms in _look(backlog, first, end) if looked is None else looked:
        if seq in unsettled or not backlog.wants_matching(seq, block):
            continue
        if not (end_ms and end_ms <= block.swept_ms) and not backlog.is_passed_delayed(seq, deliver_at_ms):
            found.add(seq, seq)


def _look(backlog: Backlog, first: int, end: int) -> Iterator[Looked]:
    for kept in backlog.shelf.messages.read(backlog.shelf.store, first, end - 1):
        if backlog.matcher.matches(kept.fields):
            yield Looked(kept.seq, expires_ms(kept), kept.deliver_at_ms)


def retention_next_ms(durable: Consumption) -> int | None:
    """When the oldest retained message may be released, or None."""
    floor = durable.backlog.floor
    if floor is None or floor >= durable.backlog.cursor:
        return None
    due_ms = durable.backlog.floor_ms + durable.definition.retention_time_ms
    return max(due_ms, durable.retention_done_ms + RETENTION_STEP_MS)


def expire_retained(durable: Consumption, now_ms: int, budget: Budget) -> int:
    """Release what was published ``retention_time`` ago, as far as the budget goes. Returns how many went."""
    next_ms = retention_next_ms(durable)
    if next_ms is None or next_ms > now_ms or budget.is_spent:
        return 0
    backlog = durable.backlog
    assert backlog.floor is not None, "only a durable that retains has a deadline"
    # A look for each number bounds what is read where there is a matcher, or a block is timed.
    high = min(backlog.cursor, backlog.floor + min(budget.messages, budget.looks))
    cutoff_ms = now_ms - durable.definition.retention_time_ms
    end = durable.shelf.counts.first_since(cutoff_ms + 1, backlog.floor, high)
    if end < high or end == backlog.cursor:
        durable.retention_done_ms = now_ms
    budget.looks -= end - backlog.floor
    total = release_retained(durable, end)
    budget.messages -= total
    return total


def release_retained(durable: Consumption, end: int) -> int:
    """Retain nothing below ``end`` any more. Returns how many messages went."""
    backlog = durable.backlog
    if backlog.floor is None:
        return 0
    total = 0
    for first, last in retained(durable, backlog.floor, min(end, backlog.cursor)):
        durable.shelf.counts.release(first, last)
        total += last - first + 1
    floor = max(backlog.floor, min(end, backlog.cursor))
    backlog.move_floor(floor)
    backlog.forget_passed()
    if durable.replayed:
        durable.replayed.forget_below(min([floor, *durable.oldest_apart()]))
    return total


def looking_ahead(durable: Consumption, command: Rewind) -> LookAhead:
    """What reads what this rewind would read, as things are."""
    return LookAhead(durable.backlog, _target(durable.backlog, command))


def _target(backlog: Backlog, command: Rewind) -> int:
    assert backlog.floor is not None, "only a durable that retains is rewound"
    if command.time_ms:
        return backlog.shelf.counts.first_since(command.time_ms, backlog.floor, backlog.cursor)
    return max(command.seq, backlog.floor)


def rewind(durable: Consumption, command: Rewind, ahead: LookAhead | None = None) -> bool:
    """Deliver again from a number or a time on, as far back as is retained; counts of delivery begin anew.

    What subscribers hold from there on is theirs no more. Returns whether anything changed. ``ahead`` spares it reading
    and changes nothing else.
    *Cost*: one step, and everybody waits for it: some 10 microseconds for each block that is passed; without ``ahead``
    also up to 10 for each message of a block that is timed, or of any where there is a matcher, because it is read.
    """
    backlog = durable.backlog
    target = _target(backlog, command)
    if target >= backlog.cursor:
        return False
    if ahead is not None and not ahead.is_of(backlog):
        ahead = None
    for first, last in retained(durable, target, backlog.cursor, ahead):
        durable.pending += last - first + 1
        durable.pending_bytes += durable.shelf.counts.size(first, last)
    for holding in durable.holdings.of.values():
        for run in durable.holdings.take(holding, target, _HIGH):
            # Their own time may have ended while they were held; the cursor would take that for carried out.
            without_expired(durable, run[0], run[1], command.at_ms)
    durable.returned.clear_from(target)
    for dying in [seq for seq in durable.dying if seq >= target]:
        if durable.parks:
            durable.take_dying(dying)
        else:
            backlog.exclude(dying, dying)
    durable.forget(target, _HIGH)
    _mark_replayed(durable, target, backlog.cursor - 1)
    backlog.go_back(target)
    return True


def _mark_replayed(durable: Consumption, first: int, last: int) -> None:
    durable.replayed.add(first, last)
    runs = durable.replayed.runs()
    if len(runs) > REPLAYED_RUNS_MAX:
        durable.replayed.forget_below(runs[1][0])


def leave_retained(durable: Consumption, now_ms: int) -> Residue:
    """What is below the cursor and settled, uncounted: the residue's when the floor moves. Cost: O(not settled)."""
    old = durable.backlog
    floor = old.cursor if old.floor is None else old.floor
    backlog = Backlog(durable.shelf, old.matcher, floor)
    backlog.excluded = SequenceSet(old.excluded.runs())
    unsettled = [(run[0], run[1]) for run in durable.holdings.runs()]
    unsettled += [(first, last) for first, last, _ in durable.returned.all_runs()]
    unsettled += [(seq, seq) for seq in durable.dying]
    if not durable.is_stepwise:
        unsettled += [(kept.seq, kept.seq) for kept in old.passed_delayed()]
    for first, last in sorted(unsettled):
        backlog.exclude(first, last)
    return Residue(backlog, old.cursor, None, now_ms, dict(old.scanned_ms) if durable.is_stepwise else None)


def set_retention(durable: Consumption, retention_ms: int, now_ms: int) -> Residue | None:
    """The definition retains for another time, or not at all; returns what is to be given back in steps."""
    backlog = durable.backlog
    if retention_ms and backlog.floor is None:
        backlog.move_floor(backlog.cursor)
    elif not retention_ms and backlog.floor is not None:
        if durable.is_stepwise:
            residue = leave_retained(durable, now_ms)
            backlog.move_floor(None)
            backlog.forget_passed()
            durable.replayed.forget_below(min([backlog.cursor, *durable.oldest_apart()]))
            return None if residue.is_done else residue
        release_retained(durable, backlog.cursor)
        backlog.move_floor(None)
    return None
