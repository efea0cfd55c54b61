"""What an administrator does with a durable's messages: purge, delete one, browse.

Owns: these. Does not own: the way of a message otherwise (``consumption``). Failure model: pure.
"""

from __future__ import annotations

from heapq import nsmallest

from holdfast.stores.durables.aging import is_swept, release_one_retained, wants, without_expired
from holdfast.stores.durables.backlog import Backlog
from holdfast.stores.durables.residue import Residue
from holdfast.stores.durables.retention import leave_retained
from holdfast.stores.durables.returned import HANDED_OUT, Returned
from holdfast.stores.matching.matcher import Matcher
from holdfast.stores.values.commands import Redeliver, Redelivered
from holdfast.stores.values.sequence_set import SequenceSet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.stores.durables.consumption import Consumption
    from holdfast.stores.values.ports import Kept

__all__ = ["Browsed", "browse", "browse_page", "drop", "is_waiting", "purge", "redeliver"]

Browsed = tuple[list[tuple[int, int]], int | None, int]
"""Numbers with their deliveries; above which number to go on, None for the end; how many looks are left."""
_HIGH = 1 << 62


def purge(durable: Consumption, now_ms: int) -> tuple[int, int, list[Residue]]:
    """Forget everything that the durable keeps; what subscribers hold is theirs no more.

    Returns messages and bytes, and what of a large backlog, and of much that was retained, is to be given back in
    further steps. Cost: O(not settled), and three steps.
    """
    messages, size = durable.pending, durable.pending_bytes
    retained = leave_retained(durable, now_ms)
    delayed = Residue.of_delayed(durable.backlog, now_ms)
    if durable.is_stepwise:
        durable.pending -= durable.backlog.delayed_total
    else:
        delayed.left = 0
        for kept in durable.backlog.passed_delayed():
            durable.release(kept.seq, kept.seq)
    durable.backlog.forget_delayed()
    for holding in durable.holdings.of.values():
        for run in durable.holdings.take(holding, 0, _HIGH):
            durable.release(run[0], run[1])
    for first, last, _ in durable.returned.all_runs():
        durable.release(first, last)
    durable.returned = Returned()
    for seq in durable.dying:
        durable.release(seq, seq)
    durable.dying, durable.parked_ms = {}, None
    left = [delayed, retained, _leave_backlog(durable, now_ms)]
    for residue in left:
        if not residue.is_done:
            residue.step(now_ms)
    return messages, size, [residue for residue in left if not residue.is_done]


def _leave_backlog(durable: Consumption, now_ms: int) -> Residue:
    """Begin a new backlog behind the store's last message; returns what was left of the old one."""
    old, next_seq = durable.backlog, durable.shelf.counts.next_seq
    residue = Residue(old, next_seq, durable.pending, now_ms)
    # What the cursor passed is settled; delayed messages of its block must not be seen again.
    old.start = old.cursor
    durable.backlog = Backlog(durable.shelf, old.matcher, next_seq)
    if old.floor is not None:
        durable.backlog.move_floor(next_seq)
        old.move_floor(None)
    durable.pending = durable.pending_bytes = 0
    return residue


def drop(durable: Consumption, kept: Kept) -> bool:
    """Delete one message, wherever it is; whether the durable had it. Its holder finds it stale."""
    seq = kept.seq
    # A rewind keeps the dying from coming again, so these are not among what is wanted.
    if seq not in durable.dying and not wants(durable, kept):
        return False
    holder = durable.holdings.holder(seq)
    if holder is not None:
        durable.holdings.take(durable.holdings.of[holder], seq, seq)
    elif durable.take_dying(seq) is None and durable.returned.remove(seq) is None:
        if is_swept(durable, kept):
            return False
        if seq >= durable.backlog.cursor:
            durable.backlog.exclude(seq, seq)
        elif durable.backlog.is_passed_delayed(kept.seq, kept.deliver_at_ms):
            durable.backlog.delayed_total -= 1
            durable.backlog.exclude(seq, seq)
        else:
            return release_one_retained(durable, seq)
    durable.gone(seq, seq, "deleted")
    return True


def redeliver(durable: Consumption, command: Redeliver) -> Redelivered:
    """Put parked messages back, counted from one; those whose time has ended meanwhile go, and are not counted.

    Cost: O(parked), and reads ``count`` where there is a matcher.
    """
    ranges = SequenceSet(sorted(command.messages))
    candidates = [seq for seq in durable.dying if seq > command.after and (not command.messages or seq in ranges)]
    seqs = nsmallest(max(1, command.count) + 1, candidates)
    more = len(seqs) > max(1, command.count)
    if more:
        seqs.pop()
    if command.match:
        matcher, shelf = Matcher.parse(command.match), durable.shelf
        read = (kept for seq in seqs for kept in shelf.messages.read(shelf.store, seq, seq))
        chosen = [kept.seq for kept in read if matcher.matches(kept.fields)]
    else:
        chosen = seqs
    put_back = 0
    for seq in chosen:
        durable.take_dying(seq)
        # Under older rules an expired message came back, and nothing was left to end it but a delivery.
        if not durable.is_stepwise or without_expired(durable, seq, seq, command.at_ms):
            _put_back(durable, seq)
            put_back += 1
    return Redelivered(put_back, seqs[-1] if more else 0)


def _put_back(durable: Consumption, seq: int) -> None:
    """A message that was dying waits again. A rewind may have excluded it from the backlog."""
    backlog = durable.backlog
    if seq in backlog.excluded:
        backlog.excluded.remove(seq, seq)
        if seq >= backlog.cursor:
            backlog.cursor_ms = min(backlog.cursor_ms, durable.shelf.counts.published_ms(seq))
            return
    durable.returned.add(seq, seq, HANDED_OUT)


def is_waiting(durable: Consumption, seq: int) -> bool:
    """Whether the durable has this message and no subscriber holds it. Cost: O(not settled)."""
    found, _, _ = browse_page(durable, seq - 1, 1, 1)
    return bool(found) and found[0][0] == seq and durable.holdings.holder(seq) is None


def browse(durable: Consumption, after: int, count: int) -> list[tuple[int, int]]:
    """Up to ``count`` messages above ``after`` with their deliveries, ascending, whoever holds them.

    Changes nothing. Cost: O(not settled), and what is read of the backlog.
    """
    return browse_page(durable, after, count, _HIGH)[0]


def browse_page(durable: Consumption, after: int, count: int, looks: int) -> Browsed:
    """As ``browse``, and after about ``looks`` messages of the backlog it stops; also answers above which number to go
    on, None where there is nothing behind, and how many looks are left.

    Cost: O(not settled), and ``looks`` messages read, about 5 microseconds each.
    """
    apart = [(run[0], run[1], run[2]) for run in durable.holdings.runs()] + durable.returned.all_runs()
    apart += [(seq, seq, deliveries) for seq, (_, deliveries) in durable.dying.items()]
    found = [
        (seq, max(deliveries, 0)) for first, last, deliveries in apart for seq in range(max(first, after + 1), last + 1)
    ]
    found += [(kept.seq, 0) for kept in durable.backlog.passed_delayed() if kept.seq > after]
    found.sort()
    if len(found) >= count:
        return found[:count], found[count - 1][0] if count else after, looks
    seen, reached, left = durable.backlog.look(after, count - len(found), looks)
    return found + [(seq, 0) for seq in seen], reached, left
