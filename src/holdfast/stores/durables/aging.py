"""The end of messages by time: a durable's time-to-live, and messages' own.

Owns: which of a durable's messages have expired, and letting them go. Does not own: when it is done (``consumption``
for one durable, ``state`` for all), delays and retention. Failure model: pure.

What a subscriber holds is not taken from it: it is looked at again when it comes back. A delayed message begins to live
when it is due.
"""

from __future__ import annotations

from holdfast.stores.durables.arrivals import Arrivals
from holdfast.stores.durables.backlog import Found, expires_ms
from holdfast.stores.values.expiry import Deadlines, earlier
from holdfast.stores.values.ports import BLOCK_MESSAGES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.stores.durables.consumption import Consumption
    from holdfast.stores.values.expiry import Budget
    from holdfast.stores.values.ports import Kept

__all__ = [
    "arrived_ms",
    "expire_backlog",
    "expire_newly_parked",
    "expire_own",
    "expire_parked",
    "expire_returned",
    "is_swept",
    "release_one_retained",
    "retain",
    "ttl_next_ms",
    "wake_ms",
    "wants",
    "without_expired",
    "without_old",
]


def ttl_next_ms(durable: Consumption) -> int | None:
    """When the next message may be older than the durable's time-to-live, or None."""
    ttl_ms = durable.definition.message_ttl_ms
    if not ttl_ms:
        return None
    found = earlier(_earliest_ms(durable), _parked_next_ms(durable))
    found = found + ttl_ms if found is not None else None
    if durable.undelivered > 0:
        at_ms = durable.backlog.cursor_ms + ttl_ms
        found = at_ms if found is None or at_ms < found else found
    return found


def _earliest_ms(durable: Consumption) -> int | None:
    """When the first to begin to live of those that came back did so, or None. Cost: as ``Arrivals``."""
    returned = durable.returned
    if returned.arrivals is None and returned.runs:
        returned.arrivals = Arrivals(durable.shelf, returned)
    return returned.arrivals.earliest_ms() if returned.arrivals is not None else None


def _parked_next_ms(durable: Consumption) -> int | None:
    """When the first to begin to live of those that are parked did so, or None. Dying ones wait for their letter."""
    if not durable.dying or not durable.parks:
        return None
    if durable.parked_ms is None:
        durable.parked_ms = Deadlines({seq: arrived_ms(durable, seq) for seq in durable.dying})
    return durable.parked_ms.next_ms()


def expire_parked(durable: Consumption, now_ms: int, budget: Budget) -> None:
    """Remove what is parked and too old. Cost: O(log parked) for each message that goes."""
    ttl_ms = durable.definition.message_ttl_ms
    while not budget.is_spent and (next_ms := _parked_next_ms(durable)) is not None and next_ms + ttl_ms <= now_ms:
        assert durable.parked_ms is not None, "it is made when it is asked for"
        seq = durable.parked_ms.pop(next_ms)
        assert seq is not None, "its deadline has come"
        durable.take_dying(seq)
        durable.gone(seq, seq, "ttl")
        budget.messages -= 1
        budget.looks -= 1


def expire_newly_parked(durable: Consumption, now_ms: int) -> None:
    """Remove what expired while it waited for its dead letter, which now has no place to go. Cost: O(parked)."""
    for seq in list(durable.dying) if durable.parks else ():
        if not without_expired(durable, seq, seq, now_ms):
            durable.take_dying(seq)


def wake_ms(durable: Consumption, seq: int, at_ms: int) -> int:
    """When a message that is put back until ``at_ms`` is looked at again: before that, if it expires before."""
    ttl_ms = durable.definition.message_ttl_ms
    return min(at_ms, arrived_ms(durable, seq) + ttl_ms) if ttl_ms else at_ms


def arrived_ms(durable: Consumption, seq: int) -> int:
    """When a message that is kept began to live: when it was published, or became due."""
    block = durable.shelf.counts.block(seq // BLOCK_MESSAGES)
    if block is None:
        return 0
    if block.timed:
        for kept in durable.shelf.messages.read(durable.shelf.store, seq, seq):
            return max(kept.published_ms, kept.deliver_at_ms)
    return block.published_ms[seq % BLOCK_MESSAGES]


def without_expired(durable: Consumption, first: int, last: int, now_ms: int) -> list[tuple[int, int]]:
    """Let those go that have expired among messages the durable has; returns the others as runs."""
    ttl_ms = durable.definition.message_ttl_ms
    left = Found()
    while first <= last:
        number = first // BLOCK_MESSAGES
        end = min(last + 1, (number + 1) * BLOCK_MESSAGES)
        block = durable.shelf.counts.block(number)
        assert block is not None, "a message that is kept has a block"
        if block.timed:
            _sort_expired(durable, durable.shelf.messages.read(durable.shelf.store, first, end - 1), now_ms, left)
        else:
            live = durable.shelf.counts.first_since(now_ms - ttl_ms + 1, first, end) if ttl_ms else first
            if live > first:
                durable.gone(first, live - 1, "ttl")
            if live < end:
                left.add(live, end - 1)
        first = end
    return left.runs


def _sort_expired(durable: Consumption, messages: Sequence[Kept], now_ms: int, left: Found) -> None:
    ttl_ms = durable.definition.message_ttl_ms
    for kept in messages:
        end_ms = expires_ms(kept)
        if end_ms and end_ms <= now_ms:
            durable.gone(kept.seq, kept.seq, "own_ttl")
        elif ttl_ms and max(kept.published_ms, kept.deliver_at_ms) + ttl_ms <= now_ms:
            durable.gone(kept.seq, kept.seq, "ttl")
        else:
            left.add(kept.seq, kept.seq)


def without_old(durable: Consumption, runs: list[tuple[int, int]], now_ms: int) -> list[tuple[int, int]]:
    """Of what the cursor has just found, ascending, let those go that are older than the durable's time-to-live.

    There are none, and nothing is read, unless more is too old than one delivery looks through.
    """
    ttl_ms = durable.definition.message_ttl_ms
    if not ttl_ms or not runs or durable.shelf.counts.published_ms(runs[0][0]) + ttl_ms > now_ms:
        return runs
    return [live for first, last in runs for live in without_expired(durable, first, last, now_ms)]


def expire_returned(durable: Consumption, now_ms: int, budget: Budget) -> None:
    """Remove what waits to be handed out again and is too old. Cost: a look for each message that is too old."""
    cutoff_ms = now_ms - durable.definition.message_ttl_ms
    old = [run for run in durable.returned.runs if durable.shelf.counts.published_ms(run[0]) <= cutoff_ms]
    for first, last, deliveries in old:
        if budget.is_spent:
            return
        end = min(last, first + max(0, budget.looks - 1))
        durable.returned.take_run(first, end)
        budget.looks -= end - first + 1
        before = durable.pending
        for live_first, live_last in without_expired(durable, first, end, now_ms):
            durable.returned.add(live_first, live_last, deliveries)
        budget.messages -= before - durable.pending


def expire_backlog(durable: Consumption, now_ms: int, budget: Budget) -> None:
    """Move the cursor over what is older than the durable's time-to-live, as far as the budget goes.

    Where nothing has to be read, a block costs one look.
    """
    backlog, counts = durable.backlog, durable.shelf.counts
    cutoff_ms = now_ms - durable.definition.message_ttl_ms
    while durable.undelivered > 0 and not budget.is_spent:
        cursor, before = backlog.cursor, durable.pending
        block = counts.block(cursor // BLOCK_MESSAGES)
        is_read = block is not None and bool(block.live) and (block.timed or not backlog.arithmetic)
        reach = min(BLOCK_MESSAGES - cursor % BLOCK_MESSAGES, budget.looks if is_read else budget.messages)
        end = counts.first_since(cutoff_ms + 1, cursor, min(counts.next_seq, cursor + reach))
        if end == cursor:
            break
        for first, last in durable.scan(reach, now_ms, end).runs:
            for live_first, live_last in without_expired(durable, first, last, now_ms):
                durable.set_apart(live_first, live_last)
        budget.messages -= before - durable.pending
        budget.looks -= end - cursor if is_read else 1


def expire_own(durable: Consumption, kept: Kept) -> bool:
    """A message's own time-to-live has ended; whether the durable let it go. Not while somebody holds it."""
    seq = kept.seq
    if seq in durable.dying:
        if not durable.parks:
            return False
        durable.take_dying(seq)
        durable.gone(seq, seq, "own_ttl")
        return True
    if not wants(durable, kept) or durable.holdings.holder(seq) is not None:
        return False
    if durable.returned.remove(seq) is None and seq < durable.backlog.cursor:
        if not durable.backlog.is_passed_delayed(kept.seq, kept.deliver_at_ms):
            return release_one_retained(durable, seq)
        durable.backlog.delayed_total -= 1
    durable.gone(seq, seq, "own_ttl")
    return True


def release_one_retained(durable: Consumption, seq: int) -> bool:
    """Retain one acknowledged message no more; whether the durable did."""
    floor = durable.backlog.floor
    if floor is None or seq < floor:
        return False
    durable.shelf.counts.release(seq, seq)
    durable.backlog.exclude(seq, seq)
    return True


def retain(durable: Consumption, first: int, last: int, now_ms: int) -> None:
    """Acknowledged messages stay, but for those whose own time has ended while they were held."""
    while first <= last:
        number = first // BLOCK_MESSAGES
        end = min(last + 1, (number + 1) * BLOCK_MESSAGES)
        block = durable.shelf.counts.block(number)
        if block is not None and block.timed:
            for kept in durable.shelf.messages.read(durable.shelf.store, first, end - 1):
                if 0 < expires_ms(kept) <= now_ms:
                    durable.shelf.counts.release(kept.seq, kept.seq)
                    durable.backlog.exclude(kept.seq, kept.seq)
        first = end


def wants(durable: Consumption, kept: Kept) -> bool:
    """Whether a message that somebody keeps was given to this durable."""
    return durable.backlog.wants(kept, durable.shelf.counts.block(kept.seq // BLOCK_MESSAGES))


def is_swept(durable: Consumption, kept: Kept) -> bool:
    """Whether a message that nobody holds was let go when its own time ended."""
    block = durable.shelf.counts.block(kept.seq // BLOCK_MESSAGES)
    return block is None or 0 < expires_ms(kept) <= block.swept_ms
