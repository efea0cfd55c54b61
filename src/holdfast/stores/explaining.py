"""What became of one message in every durable of its store.

A durable knows what it has. Of what it has no more it does not know whether that was acknowledged, expired or deleted,
unless it retains what is acknowledged: then the answer is ``gone``.

Failure model: pure; changes nothing.
"""

from __future__ import annotations

from typing import Final

from holdfast.errors import InvalidRequest, NotFound
from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.durables.last_value import LastValue
from holdfast.stores.durables.retention import retained

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.stores.ports import Kept
    from holdfast.stores.state import State
    from holdfast.stores.store import Durable

__all__ = ["FATES", "explain"]

Facts = dict[str, object]

FATES: Final = {
    "waiting": "nobody holds it; it is delivered next, or when its key is free",
    "delayed": "it is delivered to nobody before ``until_ms``",
    "held": "``subscriber`` has it since ``since_ms``, until ``until_ms``",
    "dying": "it waits for its dead letter to be stored",
    "parked": "it was delivered too often and waits for an operator",
    "acknowledged": "it is retained, to be rewound to",
    "value": "it is the value of its key",
    "not_wanted": "the durable's matcher does not take it, or it is no value of a map",
    "earlier": "it was published before the durable was made, or purged",
    "gone": "acknowledged, expired, dead-lettered, discarded or deleted: the durable does not know which",
    "unknown": "no durable keeps it, so what it was cannot be told",
}
"""What ``fate`` says."""


def explain(state: State, name: str, seq: int) -> Facts:
    """The message and its fate in each durable. Cost: O(durables + what they have not settled).

    *Raises*: ``NotFound`` for the store, or a number that it has not given out.
    """
    store = state.store(name)
    if seq < 1:
        raise InvalidRequest("the number of a message is at least 1", seq=seq)
    if seq >= store.counts.next_seq:
        raise NotFound(
            "the store has not given out this number", store=name, seq=seq, last_seq=store.counts.next_seq - 1
        )
    kept = next(iter(state.messages.read(name, seq, seq)), None) if store.counts.is_kept(seq) else None
    durables = [
        {"name": durable, "type": str(found.definition.type), **_fate(found, seq, kept, state.at_ms)}
        for durable, found in sorted(store.durables.items())
    ]
    return {
        "store": name,
        "seq": seq,
        "is_kept": kept is not None,
        "published_ms": kept.published_ms if kept is not None else None,
        "key": kept.key if kept is not None else None,
        "durables": durables,
    }


def _fate(durable: Durable, seq: int, kept: Kept | None, now_ms: int) -> Facts:
    if isinstance(durable, Consumption):
        return _consumed(durable, seq, kept, now_ms)
    if kept is None:
        return {"fate": "unknown"}
    entry = durable.keyed.get(kept.key) if kept.key is not None else None
    if isinstance(durable, LastValue) and durable.definition.key_field:
        key = kept.fields.get(durable.definition.key_field)
        entry = durable.keyed.get(key) if isinstance(key, str) else None
    if entry is not None and entry.revision == seq:
        return {"fate": "value", "key": entry.key}
    if not isinstance(durable, LastValue) or not durable.definition.matcher.matches(kept.fields):
        return {"fate": "not_wanted", **_matcher_of(durable)}
    return {"fate": "gone"}


def _consumed(durable: Consumption, seq: int, kept: Kept | None, now_ms: int) -> Facts:
    backlog = durable.backlog
    if seq in durable.dying:
        cause, deliveries = durable.dying[seq]
        return {"fate": "parked" if durable.parks else "dying", "cause": cause, "delivery_count": deliveries}
    for name, holding in durable.holdings.of.items():
        for first, last, deliveries, lapses_ms in holding.runs:
            if first <= seq <= last:
                since_ms = lapses_ms - durable.definition.ack_wait_ms
                return {
                    "fate": "held",
                    "subscriber": name,
                    "delivery_count": deliveries,
                    "since_ms": since_ms,
                    "until_ms": lapses_ms,
                }
    for first, last, deliveries in durable.returned.runs:
        if first <= seq <= last:
            return {"fate": "waiting", "delivery_count": max(deliveries, 0)}
    for until_ms, later, deliveries in durable.returned.later:
        if later == seq:
            return {"fate": "delayed", "until_ms": until_ms, "delivery_count": max(deliveries, 0)}
    if kept is None:
        return {"fate": "gone" if backlog.matcher.everything and seq >= backlog.start else "unknown"}
    if not backlog.matcher.matches(kept.fields):
        return {"fate": "not_wanted", **_matcher_of(durable)}
    if seq < backlog.start:
        return {"fate": "earlier"}
    if backlog.is_passed_delayed(seq, kept.deliver_at_ms) and seq not in backlog.excluded:
        return {"fate": "delayed", "until_ms": kept.deliver_at_ms, "delivery_count": 0}
    if seq >= backlog.cursor and seq not in backlog.excluded:
        delayed = kept.deliver_at_ms > now_ms
        return (
            {"fate": "delayed", "until_ms": kept.deliver_at_ms} if delayed else {"fate": "waiting", "delivery_count": 0}
        )
    if backlog.floor is not None and backlog.floor <= seq < backlog.cursor and retained(durable, seq, seq + 1):
        return {"fate": "acknowledged"}
    return {"fate": "gone"}


def _matcher_of(durable: Durable) -> Facts:
    return {"matcher": durable.definition.matcher.document()}
