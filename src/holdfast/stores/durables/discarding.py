"""The limits of a durable: what is let in, or what is let go for it.

Owns: which message does not fit, and which is the oldest that can go. Does not own: when (``consumption``).
Failure model: pure.
"""

from __future__ import annotations

from holdfast.stores.definitions import Discard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.stores.batch import Batch
    from holdfast.stores.durables.consumption import Consumption

__all__ = ["admits", "discard_old"]


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


def discard_old(durable: Consumption, now_ms: int) -> None:
    """Let the oldest messages go that nobody holds, until the limits hold (or everything else is held).

    Parked ones go first, in the order in which they were parked.
    """
    messages, size = durable.definition.message_limit, durable.definition.bytelimit
    while (messages and durable.pending > messages) or (size and durable.pending_bytes > size):
        if durable.parks and durable.dying:
            parked = next(iter(durable.dying))
            durable.take_dying(parked)
            durable.gone(parked, parked, "limit_old")
            continue
        want = max(1, durable.pending - messages) if messages else 1
        run = durable.returned.take(want)
        if run is not None:
            durable.gone(run[0], run[1], "limit_old")
            continue
        if durable.undelivered > 0:
            cursor = durable.backlog.cursor
            found = durable.scan(want, now_ms)
            for first, last in found.runs:
                durable.gone(first, last, "limit_old")
            if found.total or durable.backlog.cursor > cursor:
                continue
        seq = durable.backlog.take_oldest_delayed()
        if seq is None and durable.returned.later:
            seq = min(waiting for _, waiting, _ in durable.returned.later)
            durable.returned.remove(seq)
        if seq is None:
            break
        durable.gone(seq, seq, "limit_old")
