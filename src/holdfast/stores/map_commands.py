"""The commands of maps: change, lock, unlock, and the end of values, locks and sessions.

Owns: joining a map with its store's numbers, limits and deadlines, and what watchers are told. Does not own: conditions
and locks themselves (``durables.map``, ``durables.locks``). Failure model: pure; a refusal changes nothing.
"""

from __future__ import annotations

from holdfast.errors import Code, InvalidRequest, LimitExceeded, NotFound
from holdfast.stores.commands import Done, MapChange, MapChanged, MapLock, MapLocked, MapUnlock
from holdfast.stores.durables.map import Change, Map
from holdfast.stores.effects import Advise, Changed
from holdfast.stores.limits import check_store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.stores.commands import Result
    from holdfast.stores.durables.locks import Lock
    from holdfast.stores.effects import Effect
    from holdfast.stores.expiry import Budget
    from holdfast.stores.ports import Entry
    from holdfast.stores.state import State
    from holdfast.stores.store import Store

__all__ = ["change", "detach", "expire", "lock", "tell_deleted", "unlock"]


def _map(store: Store, name: str) -> Map:
    durable = store.durable(name)
    if not isinstance(durable, Map):
        raise InvalidRequest(
            "this durable is no map", code=Code.TYPE_MISMATCH, durable=name, type=str(durable.definition.type)
        )
    return durable


def change(state: State, command: MapChange, effects: list[Effect]) -> tuple[Result, bool]:
    """Set or remove keys. Raises what ``Map.plan`` does, and the limits of message, store and cluster."""
    store = state.store(command.store)
    found = _map(store, command.map)
    plan = found.plan(command)
    size_max = store.definition.max_message_size
    if any(size > size_max for size in plan.sizes):
        raise LimitExceeded(
            "a value is larger than the store takes",
            code=Code.MESSAGE_TOO_LARGE,
            facts={"bytes": max(plan.sizes), "max": size_max},
        )
    if not plan.keys:
        return MapChanged(0, 0), False
    store.room(plan.added_messages, plan.added_bytes)
    check_store(store.definition, store.counts, plan.added_messages, plan.added_bytes)
    first = store.counts.append_values(plan.sizes, plan.references, command.at_ms)
    state.messages.add(store.name, first, command.at_ms, plan.messages, plan.sizes)
    _tell(store, command.map, found.change(plan, first), effects)
    if not found.sessions:
        store.idle_since_ms[command.map] = command.at_ms
    state.arm(store, command.map)
    absent: list[int] = []
    if len(plan.keys) < len(command.changes):
        changed = set(plan.keys)
        absent = [place for place, (key, _, _) in enumerate(command.changes) if key not in changed]
    return MapChanged(first + len(plan.keys) - 1, len(plan.keys), absent), True


def lock(state: State, command: MapLock, effects: list[Effect]) -> tuple[Result, bool]:
    """Take, extend or steal a lock. Raises what ``Locks.take`` does."""
    store = state.store(command.store)
    found = _map(store, command.map)
    taken, lost = found.locks.take(command.key, command.owner, command.ttl_ms, command.at_ms, steal=command.steal)
    _tell_lost(store, command.map, lost, "stolen", effects)
    state.arm(store, command.map)
    return MapLocked(taken.fence, taken.until_ms), True


def unlock(state: State, command: MapUnlock, effects: list[Effect]) -> tuple[Result, bool]:
    """Give a lock back. Raises ``Conflict`` (not_holder)."""
    del effects
    store = state.store(command.store)
    _map(store, command.map).locks.release(command.key, command.owner, command.fence, command.at_ms)
    state.arm(store, command.map)
    return Done(), True


def detach(store: Store, found: Map, subscriber: str, effects: list[Effect]) -> None:
    """A session ends, and with it the locks of its name. Raises ``NotFound`` where there is no such session.

    Whoever comes again under the name is told ``not_holder`` by what it does with its old token: the fence of the next
    holder is higher, so what was under way when the connection went cannot write over that holder.
    """
    name = found.definition.name
    if subscriber not in found.sessions:
        raise NotFound("this subscriber is not attached", durable=name, subscriber=subscriber)
    del found.sessions[subscriber]
    _tell_lost(store, name, found.locks.release_owner(subscriber), "disconnected", effects)


def expire(store: Store, found: Map, now_ms: int, budget: Budget, effects: list[Effect]) -> int:
    """Carry out the ends of locks and of values; returns how many values went."""
    name = found.definition.name
    ended = found.locks.expire(now_ms, budget.looks)
    budget.looks -= len(ended)
    _tell_lost(store, name, ended, "expired", effects)
    changes = found.expire(now_ms, budget)
    _tell(store, name, changes, effects)
    return len(changes)


def tell_deleted(store: Store, found: Map, entries: Iterable[Entry], effects: list[Effect]) -> None:
    """Tell watchers what an administrator takes out."""
    _tell(store, found.definition.name, [Change(entry.key, entry.revision, "deleted") for entry in entries], effects)


def _tell(store: Store, name: str, changes: Iterable[Change], effects: list[Effect]) -> None:
    told = tuple((item.key, item.revision, item.cause) for item in changes)
    if told:
        effects.append(Changed(store.name, name, told))


def _tell_lost(store: Store, name: str, locks: Iterable[Lock], cause: str, effects: list[Effect]) -> None:
    for lost in locks:
        facts = (("key", lost.key), ("fence", lost.fence), ("cause", cause))
        effects.append(Advise(store.name, name, lost.owner, "lock_lost", facts))
