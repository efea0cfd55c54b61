"""The limits of a durable: what is let in, or what is let go for it.

Owns: which message does not fit, and which is the oldest that can go. Does not own: when (``consumption``).
Failure model: pure.
"""

from __future__ import annotations

from holdfast.stores.definitions.definitions import Discard
from holdfast.stores.values import expiry
from holdfast.stores.values.expiry import Budget
from holdfast.stores.values.ports import BLOCK_MESSAGES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.stores.durables.consumption import Consumption
    from holdfast.stores.values.batch import Batch

__all__ = ["admits", "discard_old", "is_over"]

_ALL = 1 << 62


def admits(durable: Consumption, candidates: Sequence[int], batch: Batch) -> Sequence[int]:
    """Which of these positions in the batch, which match, the limits let in. Changes nothing."""
    definition = durable.definition
    messages, size = definition.message_limit, definition.bytelimit
    if definition.discard is Discard.OLD or not (messages or size):
        return candidates
    admitted: list[int] = []
    pending, pending_bytes = durable.pending, durable.pending_bytes
    for position in candidates:
        if (messages and pending >= messages) or (size and pending_bytes + batch.sizes[position] > size):
            continue
        pending += 1
        pending_bytes += batch.sizes[position]
        admitted.append(position)
    return admitted


def discard_old(durable: Consumption, now_ms: int, budget: Budget | None = None) -> None:
    """Discard the oldest messages that no subscriber holds, until the limits hold or every other message is held.

    Parked ones go first, in the order in which they were parked. Without a budget, one call examines about
    ``DISCARD_LOOKS`` messages. The rest is due at once (``discards_ms``).
    """
    if budget is None:
        looks = expiry.DISCARD_LOOKS if durable.is_stepwise else _ALL
        budget = Budget(looks, looks)
    durable.discards_ms = 0
    while is_over(durable) and not budget.is_spent:
        before = durable.pending
        if not _discard_some(durable, now_ms, budget):
            return
        budget.messages -= before - durable.pending
    if budget.is_spent and is_over(durable):
        durable.discards_ms = now_ms


def is_over(durable: Consumption) -> bool:
    """Whether the durable keeps more than its limits allow."""
    messages, size = durable.definition.message_limit, durable.definition.bytelimit
    return 0 < messages < durable.pending or 0 < size < durable.pending_bytes


def _discard_some(durable: Consumption, now_ms: int, budget: Budget) -> bool:
    """Discard the oldest messages, or search further for them; False where every message is held."""
    if durable.parks and durable.dying:
        parked = next(iter(durable.dying))
        durable.take_dying(parked)
        durable.gone(parked, parked, "limit_old")
        return True
    limit = durable.definition.message_limit
    want = min(budget.messages, max(1, durable.pending - limit)) if limit else 1
    run = durable.returned.take(want)
    if run is not None:
        durable.gone(run[0], run[1], "limit_old")
        return True
    if durable.undelivered > 0:
        cursor = durable.backlog.cursor
        found = durable.scan(want, now_ms, budget=budget)
        for first, last in found.runs:
            durable.gone(first, last, "limit_old")
        if found.total or durable.backlog.cursor > cursor or budget.is_spent:
            return True
    seq = durable.backlog.take_oldest_delayed()
    if seq is not None:
        budget.looks -= BLOCK_MESSAGES
    elif durable.returned.later:
        budget.looks -= len(durable.returned.later)
        seq = min(waiting for _, waiting, _ in durable.returned.later)
        durable.returned.remove(seq)
    if seq is None:
        return False
    durable.gone(seq, seq, "limit_old")
    return True
