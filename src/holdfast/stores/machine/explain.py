"""Explains the fate of one message in every durable of its store.

A durable does not record how each message left it. So ``gone`` comes with ``possible``: the causes that the durable's
counters and parameters allow. A single possible cause is certain. ``docs/reference/stores.md`` lists both.
"""

from __future__ import annotations

from typing import Final

from holdfast.errors import InvalidRequest, NotFound
from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.durables.expiry import retained
from holdfast.stores.durables.keyed import LastValue, key_of
from holdfast.stores.machine.repairs import CAUSE
from holdfast.stores.machine.state import State
from holdfast.stores.machine.store import Durable
from holdfast.stores.values.ports import BLOCK_MESSAGES, Kept

Facts = dict[str, object]

LETTERS_MAX: Final = 4_096
"""Numbers of the dead-letter store, from the newest, among which the letter of one message is searched."""


def explain(state: State, name: str, seq: int) -> Facts:
    """The message and its fate in each durable.

    *Raises*: ``NotFound`` for the store, or a number that it has not given out. Cost: O(durables and their
    unacknowledged messages), and up to ``LETTERS_MAX`` messages read for each durable that may have dead-lettered it.
    """
    store = state.store(name)
    if seq < 1:
        raise InvalidRequest("the number of a message is at least 1", seq=seq)
    if seq >= store.counts.next_seq:
        raise NotFound(
            "the store has not given out this number", store=name, seq=seq, last_seq=store.counts.next_seq - 1
        )
    message = next(iter(store.shelf.messages.read(name, seq, seq)), None) if store.counts.is_kept(seq) else None
    durables = [
        {"name": durable, "type": str(each.definition.type), **_fate(state, each, seq, message)}
        for durable, each in sorted(store.durables.items())
    ]
    return {
        "store": name,
        "seq": seq,
        "is_kept": message is not None,
        "published_ms": message.published_ms if message is not None else None,
        "key": message.key if message is not None else None,
        "durables": durables,
    }


def _fate(state: State, durable: Durable, seq: int, kept: Kept | None) -> Facts:
    if isinstance(durable, Consumption):
        facts = _consumed(durable, seq, kept, state.at_ms)
        letter = _letter(state, durable, seq) if facts["fate"] in ("gone", "unknown") else None
        return facts if letter is None else letter
    if isinstance(durable, LastValue):
        return _last_value(durable, seq, kept)
    if kept is None:
        return {"fate": "unknown"}
    entry = durable.keyed.get(kept.key) if kept.key is not None else None
    if entry is not None and entry.revision == seq:
        return {"fate": "value", "key": entry.key}
    return {"fate": "not_wanted", "reason": "no_map_value"}


def _last_value(durable: LastValue, seq: int, kept: Kept | None) -> Facts:
    if kept is None:
        return {"fate": "earlier" if seq < durable.keyed.start else "unknown"}
    key = key_of(kept, durable.definition.key_field)
    entry = durable.keyed.get(key) if key else None
    if entry is not None and entry.revision == seq:
        return {"fate": "value", "key": entry.key}
    if not durable.definition.matcher.matches(kept.fields):
        return {"fate": "not_wanted", **_matcher_of(durable)}
    if not key:
        return {"fate": "not_wanted", "reason": "no_key"}
    if kept.deliver_at_ms:
        return {"fate": "not_wanted", "reason": "delayed"}
    if seq < durable.keyed.start:
        return {"fate": "earlier"}
    expires = bool(durable.definition.message_ttl_ms or kept.ttl_ms)
    return {"fate": "gone", "possible": ["expired", "deleted", "replaced"] if expires else ["deleted", "replaced"]}


def _consumed(durable: Consumption, seq: int, kept: Kept | None, now_ms: int) -> Facts:
    backlog = durable.backlog
    facts = _set_apart(durable, seq)
    if facts is not None:
        return facts
    if kept is None and seq >= backlog.start:
        return {"fate": "gone" if backlog.matcher.everything else "unknown", "possible": _possible(durable, seq)}
    if kept is not None and not backlog.matcher.matches(kept.fields):
        return {"fate": "not_wanted", **_matcher_of(durable)}
    if kept is None or seq < backlog.start:
        return {"fate": "earlier"}
    is_excluded = seq in backlog.excluded
    is_ahead = not is_excluded and (seq >= backlog.cursor or backlog.is_passed_delayed(seq, kept.deliver_at_ms))
    if is_ahead and durable.is_swept(kept):
        return {"fate": "expired"}
    if is_ahead and kept.deliver_at_ms > now_ms:
        return {"fate": "delayed", "until_ms": kept.deliver_at_ms, "delivery_count": 0}
    if is_ahead:
        return {"fate": "waiting", "delivery_count": 0}
    if backlog.floor is not None and backlog.floor <= seq < backlog.cursor and retained(durable, seq, seq + 1):
        return {"fate": "acknowledged"}
    return {"fate": "gone", "possible": _possible(durable, seq)}


def _set_apart(durable: Consumption, seq: int) -> Facts | None:
    if seq in durable.dying:
        cause, deliveries = durable.dying[seq]
        return {"fate": "parked" if durable.parks else "dying", "cause": cause, "delivery_count": deliveries}
    for name, holder in durable.leases.of.items():
        for first, last, deliveries, lapses_ms in holder.runs:
            if first <= seq <= last:
                since_ms = holder.handed_out_ms(seq)
                since: Facts = {} if since_ms is None else {"since_ms": since_ms}
                held: Facts = {"fate": "held", "subscriber": name, "delivery_count": deliveries}
                return {**held, **since, "until_ms": lapses_ms}
    for first, last, deliveries in durable.redelivery.runs:
        if first <= seq <= last:
            return {"fate": "waiting", "delivery_count": max(deliveries, 0)}
    for until_ms, later, deliveries in durable.redelivery.later:
        if later == seq:
            return {"fate": "delayed", "until_ms": until_ms, "delivery_count": max(deliveries, 0)}
    return None


def _possible(durable: Consumption, seq: int) -> list[str]:
    tally, causes = durable.tally, durable.causes
    died = causes.get("rejected", 0) + causes.get("max_delivery", 0)
    met = {
        "acknowledged": tally.acknowledged,
        "expired": causes.get("ttl", 0) + causes.get("own_ttl", 0),
        "discarded": causes.get("limit_old", 0) + causes.get("limit_new", 0),
        "dead_lettered": tally.dead_letters,
        "rejected": died - tally.dead_letters,
        "deleted": causes.get("deleted", 0),
        "lost": causes.get(CAUSE, 0),
        "not_wanted": seq in durable.backlog.excluded,
    }
    return [cause for cause, count in met.items() if count > 0]


def _letter(state: State, durable: Consumption, seq: int) -> Facts | None:
    """The dead letter of a message, None if it is not among the newest of its store."""
    name = durable.definition.dead_letter_store
    store = state.stores.get(name) if durable.tally.dead_letters else None
    if store is None:
        return None
    wanted = (durable.shelf.store, durable.name, seq)
    for last in range(store.counts.next_seq - 1, max(0, store.counts.next_seq - 1 - LETTERS_MAX), -BLOCK_MESSAGES):
        first = max(1, last - BLOCK_MESSAGES + 1, store.counts.next_seq - LETTERS_MAX)
        for kept in store.shelf.messages.read(name, first, last):
            origin = kept.origin
            if origin is None or (origin.store, origin.durable, origin.seq) != wanted:
                continue
            if store.counts.is_kept(kept.seq):
                return {
                    "fate": "dead_lettered",
                    "dead_letter_store": name,
                    "letter_seq": kept.seq,
                    "cause": origin.cause,
                    "delivery_count": origin.delivery_count,
                }
    return None


def _matcher_of(durable: Durable) -> Facts:
    return {"matcher": durable.definition.matcher.document()}
