"""The end of messages by time: time-to-live, retention, and rewinding to retained messages.

Leased messages are examined when they come back. The time-to-live of a delayed message starts when it is due. A durable
retains the acknowledged messages from the backlog's ``floor`` up to its cursor. There is no list of them: what left
without an acknowledgement is in ``excluded``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.stores.durables.backlog import Backlog, Residue, ScanResult, expires_ms
from holdfast.stores.durables.leases import Arrivals
from holdfast.stores.durables.pending import PendingMessages
from holdfast.stores.values.commands import EXPIRE_LOOKS, Rewind
from holdfast.stores.values.deadlines import Budget, Deadlines, earlier
from holdfast.stores.values.ports import BLOCK_MESSAGES, BlockCounts, Kept, block_parts
from holdfast.stores.values.sequence_set import SequenceSet

RETENTION_STEP_MS = 1_000
"""Messages whose retention has ended are released at most this often, so that it is done for many at once."""
REPLAYED_RUNS_MAX = 1_024
"""Of more rewinds to places apart the oldest is forgotten: its messages do not say that they are replayed."""
UNREAD_LOOKS = 16
"""What a block that a rewind need not read costs of its budget."""
_HIGH = 1 << 62


def ttl_next_ms(durable: PendingMessages) -> int | None:
    """When the next message may be older than the durable's time-to-live, or None."""
    ttl_ms = durable.definition.message_ttl_ms
    if not ttl_ms:
        return None
    redelivery = durable.redelivery
    if redelivery.arrivals is None and redelivery.runs:
        redelivery.arrivals = Arrivals(durable.shelf, redelivery)
    waiting_ms = redelivery.arrivals.earliest_ms() if redelivery.arrivals is not None else None
    next_ms = earlier(waiting_ms, _parked_next_ms(durable))
    next_ms = next_ms + ttl_ms if next_ms is not None else None
    if durable.undelivered > 0:
        at_ms = durable.backlog.cursor_ms + ttl_ms
        next_ms = at_ms if next_ms is None or at_ms < next_ms else next_ms
    return next_ms


def _parked_next_ms(durable: PendingMessages) -> int | None:
    """When the first parked message began to live, or None. Those that wait for a dead letter do not expire."""
    if not durable.dying or not durable.parks:
        return None
    if durable.parked_ms is None:
        durable.parked_ms = Deadlines({seq: durable.arrived_ms(seq) for seq in durable.dying})
    return durable.parked_ms.next_ms()


def expire_parked(durable: PendingMessages, now_ms: int, budget: Budget) -> None:
    """Remove parked messages that are too old. Cost: O(log parked) each."""
    ttl_ms = durable.definition.message_ttl_ms
    while not budget.is_spent and (next_ms := _parked_next_ms(durable)) is not None and next_ms + ttl_ms <= now_ms:
        assert durable.parked_ms is not None, "it is made when it is asked for"
        seq = durable.parked_ms.pop(next_ms)
        assert seq is not None, "its deadline has come"
        durable.take_dying(seq)
        durable.gone(seq, seq, "ttl")
        budget.messages -= 1
        budget.looks -= 1


def expire_newly_parked(durable: PendingMessages, now_ms: int) -> None:
    """Remove what expired while it waited for a dead letter that now has no store. Cost: O(parked)."""
    for seq in list(durable.dying) if durable.parks else ():
        if not without_expired(durable, seq, seq, now_ms):
            durable.take_dying(seq)


def wake_ms(durable: PendingMessages, seq: int, at_ms: int) -> int:
    """When a message with a delay until ``at_ms`` is examined again: earlier if it expires before."""
    ttl_ms = durable.definition.message_ttl_ms
    return min(at_ms, durable.arrived_ms(seq) + ttl_ms) if ttl_ms else at_ms


def without_expired(durable: PendingMessages, first: int, last: int, now_ms: int) -> list[tuple[int, int]]:
    """Release the expired among messages that the durable has; returns the others as runs."""
    ttl_ms = durable.definition.message_ttl_ms
    left = ScanResult()
    for number, begin, end in block_parts(first, last):
        block = durable.shelf.counts.block(number)
        assert block is not None, "a message that is kept has a block"
        if block.timed:
            _sort_expired(durable, durable.shelf.messages.read(durable.shelf.store, begin, end), now_ms, left)
        else:
            live = durable.shelf.counts.first_since(now_ms - ttl_ms + 1, begin, end + 1) if ttl_ms else begin
            if live > begin:
                durable.gone(begin, live - 1, "ttl")
            if live <= end:
                left.add(live, end)
    return left.runs


def _sort_expired(durable: PendingMessages, messages: Sequence[Kept], now_ms: int, left: ScanResult) -> None:
    ttl_ms = durable.definition.message_ttl_ms
    for kept in messages:
        end_ms = expires_ms(kept)
        if end_ms and end_ms <= now_ms:
            durable.gone(kept.seq, kept.seq, "own_ttl")
        elif ttl_ms and max(kept.published_ms, kept.deliver_at_ms) + ttl_ms <= now_ms:
            durable.gone(kept.seq, kept.seq, "ttl")
        else:
            left.add(kept.seq, kept.seq)


def without_old(durable: PendingMessages, runs: list[tuple[int, int]], now_ms: int) -> list[tuple[int, int]]:
    """Release what the cursor just found that is older than the durable's time-to-live.

    Nothing is read unless more is too old than one delivery examines.
    """
    ttl_ms = durable.definition.message_ttl_ms
    if not ttl_ms or not runs or durable.shelf.counts.published_ms(runs[0][0]) + ttl_ms > now_ms:
        return runs
    return [live for first, last in runs for live in without_expired(durable, first, last, now_ms)]


def expire_returned(durable: PendingMessages, now_ms: int, budget: Budget) -> None:
    """Remove waiting messages that are too old. Cost: a look for each of them."""
    cutoff_ms = now_ms - durable.definition.message_ttl_ms
    old = [run for run in durable.redelivery.runs if durable.shelf.counts.published_ms(run[0]) <= cutoff_ms]
    for first, last, deliveries in old:
        if budget.is_spent:
            return
        end = min(last, first + max(0, budget.looks - 1))
        durable.redelivery.take_run(first, end)
        budget.looks -= end - first + 1
        before = durable.pending
        for live_first, live_last in without_expired(durable, first, end, now_ms):
            durable.redelivery.add(live_first, live_last, deliveries)
        budget.messages -= before - durable.pending


def expire_backlog(durable: PendingMessages, now_ms: int, budget: Budget) -> None:
    """Move the cursor over messages older than the time-to-live, within the budget. A block that is not read costs one
    look."""
    backlog, counts = durable.backlog, durable.shelf.counts
    cutoff_ms = now_ms - durable.definition.message_ttl_ms
    while durable.undelivered > 0 and not budget.is_spent:
        cursor, before = backlog.cursor, durable.pending
        block = counts.block(cursor // BLOCK_MESSAGES)
        is_read = block is not None and bool(block.live) and (block.timed or not backlog.matcher.everything)
        reach = min(BLOCK_MESSAGES - cursor % BLOCK_MESSAGES, budget.looks if is_read else budget.messages)
        end = counts.first_since(cutoff_ms + 1, cursor, min(counts.next_seq, cursor + reach))
        if end == cursor:
            break
        for first, last in durable.scan(reach, now_ms, end).runs:
            for live_first, live_last in without_expired(durable, first, last, now_ms):
                durable.set_apart(live_first, live_last)
        budget.messages -= before - durable.pending
        budget.looks -= end - cursor if is_read else 1


def expire_own(durable: PendingMessages, kept: Kept) -> bool:
    """A message's own time-to-live has ended; whether the durable released it. Not while it is leased."""
    seq = kept.seq
    if seq in durable.dying:
        if not durable.parks:
            return False
        durable.take_dying(seq)
        durable.gone(seq, seq, "own_ttl")
        return True
    if not durable.wants(kept) or durable.leases.holder_of(seq) is not None:
        return False
    if durable.redelivery.remove(seq) is None and seq < durable.backlog.cursor:
        if not durable.backlog.is_passed_delayed(kept.seq, kept.deliver_at_ms):
            return durable.release_one_retained(seq)
        durable.backlog.delayed_total -= 1
    durable.gone(seq, seq, "own_ttl")
    return True


def retain(durable: PendingMessages, first: int, last: int, now_ms: int) -> None:
    """Keep acknowledged messages, except those whose own time ended while they were leased."""
    for number, begin, end in block_parts(first, last):
        block = durable.shelf.counts.block(number)
        if block is not None and block.timed:
            for kept in durable.shelf.messages.read(durable.shelf.store, begin, end):
                if 0 < expires_ms(kept) <= now_ms:
                    durable.shelf.counts.release(kept.seq, kept.seq)
                    durable.backlog.exclude(kept.seq, kept.seq)


def retained(durable: PendingMessages, first: int, end: int) -> list[tuple[int, int]]:
    """The retained messages of ``first..end - 1``, which is below the cursor.

    Cost: O(blocks + unacknowledged outside the backlog); with a matcher or a timed block, reads the block.
    """
    backlog = durable.backlog
    apart = sorted((low, high) for low, high, _ in durable.apart() if first <= high and low < end)
    unacknowledged = SequenceSet(apart)
    result = ScanResult()
    for number, begin, last in block_parts(first, end - 1):
        block, stop = durable.shelf.counts.block(number), last + 1
        if block is not None and block.live:
            if _is_read(backlog, block):
                _read(durable, block, unacknowledged, begin, stop, result)
            elif unacknowledged.next_member(begin, stop) == backlog.excluded.next_member(begin, stop) == stop:
                result.add(begin, last)
            else:
                _without(unacknowledged, backlog.excluded, begin, stop, result)
    return result.runs


def _without(unacknowledged: SequenceSet, excluded: SequenceSet, first: int, end: int, result: ScanResult) -> None:
    while first < end:
        first = excluded.after(unacknowledged.after(first))
        if first in unacknowledged:
            continue
        stop = min(unacknowledged.next_member(first, end), excluded.next_member(first, end))
        if first < stop:
            result.add(first, stop - 1)
        first = max(stop, first)


def _is_read(backlog: Backlog, block: BlockCounts) -> bool:
    """Whether the messages of a block must be read to know which of them a durable was given."""
    # A timed block may have a map's values, which a matcher cannot distinguish from messages.
    return block.timed or not backlog.matcher.everything


def _read(
    durable: PendingMessages, block: BlockCounts, unacknowledged: SequenceSet, first: int, end: int, result: ScanResult
) -> None:
    backlog = durable.backlog
    for kept in backlog.shelf.messages.read(backlog.shelf.store, first, end - 1):
        seq, end_ms = kept.seq, expires_ms(kept)
        if not backlog.matcher.matches(kept.fields) or seq in unacknowledged or not backlog.wants_matching(seq, block):
            continue
        if not (end_ms and end_ms <= block.swept_ms) and not backlog.is_passed_delayed(seq, kept.deliver_at_ms):
            result.add(seq, seq)


def retention_next_ms(durable: PendingMessages) -> int | None:
    """When the oldest retained message may be released, or None."""
    floor = durable.backlog.floor
    if floor is None or floor >= durable.backlog.cursor:
        return None
    due_ms = durable.backlog.floor_ms + durable.definition.retention_time_ms
    return max(due_ms, durable.retention_done_ms + RETENTION_STEP_MS)


def expire_retained(durable: PendingMessages, now_ms: int, budget: Budget) -> int:
    """Release what was published ``retention_time`` ago, within the budget. Returns how many."""
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


def release_retained(durable: PendingMessages, end: int) -> int:
    """Retain nothing below ``end``. Returns how many messages were released."""
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


def _target(backlog: Backlog, command: Rewind) -> int:
    assert backlog.floor is not None, "only a durable that retains is rewound"
    if command.time_ms:
        return backlog.shelf.counts.first_since(command.time_ms, backlog.floor, backlog.cursor)
    return max(command.seq, backlog.floor)


def rewind(durable: PendingMessages, command: Rewind) -> bool:
    """Begin to deliver again from a number or a time on, as far back as is retained; delivery counts start again.

    Leases from there on end. Returns whether anything changed. Cost: that of one step of ``rewind_on``.
    """
    target = _target(durable.backlog, command)
    if target >= durable.backlog.cursor:
        return False
    if durable.rewind_to is not None:
        target = min(target, durable.rewind_to)
    durable.rewind_to, durable.rewind_ms = target, command.at_ms
    rewind_on(durable, command.at_ms, Budget(EXPIRE_LOOKS, EXPIRE_LOOKS))
    return True


def rewind_reads(durable: PendingMessages, command: Rewind) -> Iterator[tuple[int, int]]:
    """The ranges of numbers whose messages this rewind reads, the newest first."""
    target, low = _target(durable.backlog, command), durable.backlog.cursor
    while low > target:
        end, low = low, max(target, (low - 1) // BLOCK_MESSAGES * BLOCK_MESSAGES)
        if _reads(durable.backlog, low):
            yield low, end - 1


def _reads(backlog: Backlog, seq: int) -> bool:
    block = backlog.shelf.counts.block(seq // BLOCK_MESSAGES)
    return block is not None and bool(block.live) and _is_read(backlog, block)


def rewind_on(durable: PendingMessages, now_ms: int, budget: Budget) -> bool:
    """Take one step of a rewind: move the cursor back, as far as the budget goes. Returns whether it was the last.

    What it leaves is a whole rewind to a later number. Cost: reads a block at most beyond the budget.
    """
    backlog = durable.backlog
    assert durable.rewind_to is not None and backlog.floor is not None, "only a durable that retains is rewound"
    target, low = max(durable.rewind_to, backlog.floor), backlog.cursor
    while low > target and not budget.is_spent:
        end, low = low, max(target, (low - 1) // BLOCK_MESSAGES * BLOCK_MESSAGES)
        budget.looks -= end - low if _reads(backlog, low) else UNREAD_LOOKS
    if low < backlog.cursor:
        _go_back(durable, low, now_ms)
    if low > target:
        return False
    durable.rewind_to = None
    return True


def _go_back(durable: PendingMessages, target: int, now_ms: int) -> None:
    backlog = durable.backlog
    for first, last in retained(durable, target, backlog.cursor):
        durable.pending += last - first + 1
        durable.pending_bytes += durable.shelf.counts.size(first, last)
    for name, holder in durable.leases.of.items():
        held = durable.leases.take(holder, target, _HIGH)
        durable.withdraw(name, held, "rewound")
        for run in held:
            # Their own time may have ended while they were held; the cursor would take that for carried out.
            without_expired(durable, run[0], run[1], now_ms)
    durable.redelivery.clear_from(target)
    for dying in [seq for seq in durable.dying if seq >= target]:
        if durable.parks:
            durable.take_dying(dying)
        else:
            backlog.exclude(dying, dying)
    durable.forget(target, _HIGH)
    durable.replayed.add(target, backlog.cursor - 1)
    replayed = durable.replayed.runs()
    if len(replayed) > REPLAYED_RUNS_MAX:
        durable.replayed.forget_below(replayed[1][0])
    backlog.go_back(target)


def leave_retained(durable: PendingMessages, now_ms: int) -> Residue:
    """The retained messages as a residue, uncounted. Cost: O(unacknowledged outside the backlog)."""
    old = durable.backlog
    floor = old.cursor if old.floor is None else old.floor
    backlog = Backlog(durable.shelf, old.matcher, floor)
    backlog.excluded = SequenceSet(old.excluded.runs())
    for first, last, _ in sorted(durable.apart()):
        backlog.exclude(first, last)
    return Residue(backlog, old.cursor, None, now_ms, dict(old.scanned_ms))


def set_retention(durable: PendingMessages, retention_ms: int, now_ms: int) -> Residue | None:
    """Change the retention time; returns what is to be given back in steps."""
    backlog = durable.backlog
    if retention_ms and backlog.floor is None:
        backlog.move_floor(backlog.cursor)
    elif not retention_ms and backlog.floor is not None:
        durable.rewind_to = None
        residue = leave_retained(durable, now_ms)
        backlog.move_floor(None)
        backlog.forget_passed()
        durable.replayed.forget_below(min([backlog.cursor, *durable.oldest_apart()]))
        return None if residue.is_done else residue
    return None
