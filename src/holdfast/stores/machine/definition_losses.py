"""How many messages a change of the definition would delete, and the refusal of such a change.

Owns: the count for one durable, the list of the error. Does not own: which durables a change reaches (``redefine``),
the deletion itself.

Counted are unacknowledged and retained messages, values of maps and last values: with a durable or store that is
removed, above a limit that discards old ones, and those whose time ends at once because ``message_ttl``,
``retention_time`` or ``durable_ttl`` is shorter. Not counted: messages that subscribers hold, and what ends later.

Failure model: pure. *Cost*: ``LOOKS_MAX`` messages are read for one change; above that a count is a lower bound, and a
durable that nothing is known of counts as a loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Final

from holdfast.errors import Code, Conflict
from holdfast.stores.definitions.definitions import Discard
from holdfast.stores.durables.aging import arrived_ms
from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.durables.retention import retained

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.stores.definitions.definitions import DurableDefinition
    from holdfast.stores.durables.keyed import KeyedMessages
    from holdfast.stores.machine.store import Durable, Store

__all__ = ["Losses"]

LOOKS_MAX: Final = 16_384
PLACES_SHOWN_MAX: Final = 20
"""Places that an error names."""


@dataclass(frozen=True, slots=True)
class _Loss:
    messages: int = 0
    is_exact: bool = True

    def __bool__(self) -> bool:
        return self.messages > 0 or not self.is_exact

    def __str__(self) -> str:
        if self.is_exact:
            return str(self.messages)
        return f"at least {self.messages}" if self.messages else "an unknown number"

    def __add__(self, other: _Loss) -> _Loss:
        return _Loss(self.messages + other.messages, self.is_exact and other.is_exact)


class Losses:
    """What one change at ``now_ms`` would delete, by place."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._looks = LOOKS_MAX
        self._of: dict[str, _Loss] = {}

    def remove_store(self, store: Store) -> None:
        """The store goes, with every durable."""
        loss = sum((self._kept(durable) for durable in store.durables.values()), _Loss())
        # ``live`` includes what a purge has left to give back, and has each message of several durables once.
        self._of[store.name] = _Loss(min(loss.messages, store.counts.live), loss.is_exact)

    def remove(self, store: Store, durable: Durable) -> None:
        """The durable goes."""
        self._of[f"{store.name}/{durable.definition.name}"] = self._kept(durable)

    def change(self, store: Store, durable: Durable, after: DurableDefinition) -> None:
        """The durable gets another definition."""
        if durable.definition != after:
            self._of[f"{store.name}/{after.name}"] = self._changed(store, durable, after)

    def refuse(self) -> None:
        """Raises ``Conflict`` where any message would go."""
        lost = {place: loss for place, loss in self._of.items() if loss}
        if not lost:
            return
        shown = ", ".join(f"{place} ({loss})" for place, loss in islice(lost.items(), PLACES_SHOWN_MAX))
        more = f" and {len(lost) - PLACES_SHOWN_MAX} more" if len(lost) > PLACES_SHOWN_MAX else ""
        raise Conflict(
            f"the change would delete messages of {shown}{more}",
            code=Code.DELETES_MESSAGES,
            facts={"messages": sum(loss.messages for loss in lost.values()), "places": len(lost)},
            hint="delete=true allows it",
        )

    def _kept(self, durable: Durable) -> _Loss:
        if not isinstance(durable, Consumption):
            return _Loss(durable.keyed.messages)
        floor = durable.backlog.floor
        settled = _Loss() if floor is None else self._retained(durable, floor, durable.backlog.cursor)
        return _Loss(durable.pending) + settled

    def _changed(self, store: Store, durable: Durable, after: DurableDefinition) -> _Loss:
        before, now_ms = durable.definition, self._now_ms
        idle_ms = store.idle_since_ms.get(after.name)
        if idle_ms is not None and _ends(idle_ms, after.durable_ttl_ms, now_ms):
            return _Loss() if _ends(idle_ms, before.durable_ttl_ms, now_ms) else self._kept(durable)
        over = _Loss(max(0, _over(durable, after) - _over(durable, before)))
        expired = self._expired(store, durable, before.message_ttl_ms, after.message_ttl_ms)
        # Both end the oldest ones, so the larger includes the smaller.
        first = expired if expired.messages >= over.messages else _Loss(over.messages, expired.is_exact)
        return first + self._ended_retained(durable, after.retention_time_ms)

    # ---- by time ----------------------------------------------------------------------------------------------------

    def _expired(self, store: Store, durable: Durable, before_ms: int, after_ms: int) -> _Loss:
        if not after_ms or 0 < before_ms <= after_ms:
            return _Loss()
        low_ms, high_ms = self._now_ms - before_ms if before_ms else -1, self._now_ms - after_ms
        if not isinstance(durable, Consumption):
            return self._expired_values(store, durable.keyed, low_ms, high_ms)
        backlog, counts = durable.backlog, store.counts
        apart = [(first, last) for first, last, _ in durable.returned.all_runs()]
        apart += [(seq, seq) for seq in durable.dying] if durable.parks else []
        loss = self._arrived(durable, apart, low_ms, high_ms)
        first = counts.first_since(max(0, low_ms + 1), backlog.cursor, counts.next_seq)
        end = counts.first_since(max(0, high_ms + 1), first, counts.next_seq)
        looks = min(self._looks, end - first)
        seqs, reached, left = backlog.look(first - 1, looks, looks)
        self._looks -= looks - max(0, left)
        found = self._arrived(durable, [(seq, seq) for seq in seqs if seq < end], low_ms, high_ms)
        return loss + found + _Loss(0, first == end or reached is None or reached >= end - 1)

    def _arrived(self, durable: Consumption, runs: Iterable[tuple[int, int]], low_ms: int, high_ms: int) -> _Loss:
        """Those that began to live after ``low_ms`` and up to ``high_ms``."""
        found = 0
        for first, last in runs:
            if durable.shelf.counts.published_ms(first) > high_ms:
                continue
            for seq in range(first, last + 1):
                if self._looks <= 0:
                    return _Loss(found, is_exact=False)
                self._looks -= 1
                found += low_ms < arrived_ms(durable, seq) <= high_ms
        return _Loss(found)

    def _expired_values(self, store: Store, keyed: KeyedMessages, low_ms: int, high_ms: int) -> _Loss:
        if not keyed.messages:
            return _Loss()
        counts = store.counts
        first = counts.first_since(max(0, low_ms + 1), keyed.oldest, counts.next_seq)
        end = counts.first_since(max(0, high_ms + 1), first, counts.next_seq)
        looks = min(self._looks, end - first)
        entries, reached, left = keyed.browse_page(first - 1, looks, looks)
        self._looks -= looks - max(0, left)
        found = sum(entry.revision < end for entry in entries)
        return _Loss(found, first == end or reached is None or reached >= end - 1 or found == keyed.messages)

    def _ended_retained(self, durable: Durable, after_ms: int) -> _Loss:
        """Retained messages that a shorter ``retention_time`` ends, or none at all."""
        if not isinstance(durable, Consumption) or durable.backlog.floor is None:
            return _Loss()
        before_ms, floor, cursor = durable.definition.retention_time_ms, durable.backlog.floor, durable.backlog.cursor
        if before_ms <= after_ms:
            return _Loss()
        first_since = durable.shelf.counts.first_since
        first = first_since(max(0, self._now_ms - before_ms + 1), floor, cursor)
        end = first_since(max(0, self._now_ms - after_ms + 1), first, cursor) if after_ms else cursor
        return self._retained(durable, first, end)

    def _retained(self, durable: Consumption, first: int, end: int) -> _Loss:
        stop = min(end, first + max(0, self._looks))
        self._looks -= max(0, stop - first)
        found = sum(high - low + 1 for low, high in retained(durable, first, stop)) if first < stop else 0
        return _Loss(found, stop >= end)


def _ends(since_ms: int, ttl_ms: int, now_ms: int) -> bool:
    return 0 < ttl_ms <= now_ms - since_ms


def _over(durable: Durable, wanted: DurableDefinition) -> int:
    """How many messages a limit would discard; about as many, where it is one of bytes."""
    if wanted.discard is not Discard.OLD:
        return 0
    if isinstance(durable, Consumption):
        messages, size = durable.pending, durable.pending_bytes
    else:
        messages, size = durable.keyed.messages, durable.keyed.bytes
    over = max(0, messages - wanted.message_limit) if wanted.message_limit else 0
    if wanted.bytelimit and size > wanted.bytelimit:
        average = max(1, size // max(1, messages))
        over = max(over, -(-(size - wanted.bytelimit) // average))
    return over
