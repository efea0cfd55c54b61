"""The commands of maps: change, lock, unlock, and the end of values, locks and sessions. A refusal changes nothing."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from holdfast.errors import Code, InvalidRequest, LimitExceeded, NotFound
from holdfast.stores.durables.keyed import KeyedResidue
from holdfast.stores.durables.map import Change, KeyLock, MapDurable, MapPlan
from holdfast.stores.machine.store import Cluster, Store, check_store
from holdfast.stores.values.commands import Done, MapChange, MapChanged, MapLock, MapLocked, MapUnlock, Result
from holdfast.stores.values.deadlines import Budget
from holdfast.stores.values.effects import Advise, Changed, Effect
from holdfast.stores.values.ports import KeyEntry
from holdfast.wire.parts import Message


def map_of(store: Store, name: str) -> MapDurable:
    """A map of a store. Raises ``NotFound``, ``InvalidRequest`` (type_mismatch)."""
    durable = store.durable(name)
    if not isinstance(durable, MapDurable):
        raise InvalidRequest(
            "the durable is not a map", code=Code.TYPE_MISMATCH, durable=name, type=str(durable.definition.type)
        )
    return durable


def change(cluster: Cluster, command: MapChange, effects: list[Effect]) -> tuple[Result, bool]:
    """Set or remove keys. Raises what ``MapDurable.plan`` does, and the limits of message, store and cluster."""
    store = cluster.store(command.store)
    durable = map_of(store, command.map)
    if command.remove_all:
        return _remove_all(cluster, store, durable, command, effects)
    plan = checked_plan(store, durable, command)
    if not plan.keys:
        return MapChanged(0, 0), False
    store.room(plan.added_messages, plan.added_bytes)
    check_store(store.definition, store.counts, plan.added_messages, plan.added_bytes)
    first = store.counts.append_values(plan.sizes, plan.references, command.at_ms)
    store.shelf.messages.add(store.name, first, command.at_ms, plan.messages, plan.sizes)
    for key in plan.keys if store.keyed_residues else ():
        _notify_first(store, command.map, key, effects)
    _notify(store, command.map, durable.change(plan, first), effects)
    if not durable.attached:
        store.idle_since_ms[command.map] = command.at_ms
    cluster.arm(store, command.map)
    absent: list[int] = []
    if len(plan.keys) < len(command.changes):
        changed = set(plan.keys)
        absent = [position for position, (key, _, _) in enumerate(command.changes) if key not in changed]
    return MapChanged(first + len(plan.keys) - 1, len(plan.keys), absent), True


def checked_plan(store: Store, durable: MapDurable, command: MapChange) -> MapPlan:
    """What a change does. Changes nothing. Raises as ``MapDurable.plan``, ``LimitExceeded`` (message_too_large)."""
    plan = durable.plan(command)
    size_max = store.definition.max_message_size
    if any(size > size_max for size in plan.sizes):
        raise LimitExceeded(
            "value is too large for the store",
            code=Code.MESSAGE_TOO_LARGE,
            facts={"bytes": max(plan.sizes), "max": size_max},
        )
    return plan


def _remove_all(
    cluster: Cluster, store: Store, durable: MapDurable, command: MapChange, effects: list[Effect]
) -> tuple[Result, bool]:
    durable.check_change(command)
    messages = durable.keyed.messages
    if not messages:
        return MapChanged(0, 0), False
    revision = store.counts.append_values(array("I", [0]), array("H", [0]), command.at_ms)
    store.shelf.messages.add(store.name, revision, command.at_ms, [Message()], array("I", [0]))
    clear(store, durable, command.at_ms, "removed", revision, effects)
    if not durable.attached:
        store.idle_since_ms[command.map] = command.at_ms
    cluster.arm(store, command.map)
    return MapChanged(revision, messages), True


def clear(store: Store, durable: MapDurable, now_ms: int, cause: str, revision: int, effects: list[Effect]) -> None:
    """Forget every key of a map. Watchers receive ``cause`` for the first step now, for the rest later."""
    residue = store.leave(durable.definition.name, now_ms, cause, revision)
    if residue is not None:
        _notify_given_back(store, residue, residue.step(), effects)
        store.forget_done()


def give_back(store: Store, budget: Budget, effects: list[Effect]) -> int:
    """Take one step of the oldest residue; returns the number of entries given back."""
    residue = store.keyed_residues[0]
    entries = residue.step(min(budget.messages, budget.looks))
    budget.looks -= len(entries)
    _notify_given_back(store, residue, entries, effects)
    store.forget_done()
    return len(entries)


def _notify_first(store: Store, name: str, key: str, effects: list[Effect]) -> None:
    """Report the removal of a key before its next change, so that watchers see changes in order."""
    for residue in store.keyed_residues:
        if residue.of.cause and residue.of.durable == name and (entry := residue.take(key)) is not None:
            _notify_given_back(store, residue, [entry], effects)
    store.forget_done()


def _notify_given_back(store: Store, residue: KeyedResidue, entries: Iterable[KeyEntry], effects: list[Effect]) -> None:
    of = residue.of
    if of.cause:
        changes = [Change(entry.key, of.revision or entry.revision, of.cause) for entry in entries]
        _notify(store, of.durable, changes, effects)


def lock(cluster: Cluster, command: MapLock, effects: list[Effect]) -> tuple[Result, bool]:
    """Take, extend or steal a lock. Raises what ``Locks.take`` does."""
    store = cluster.store(command.store)
    durable = map_of(store, command.map)
    holding, lost = durable.locks.take(command.key, command.owner, command.ttl_ms, command.at_ms, steal=command.steal)
    _notify_lost(store, command.map, lost, "stolen", effects)
    cluster.arm(store, command.map)
    return MapLocked(holding.fence, holding.until_ms), True


def unlock(cluster: Cluster, command: MapUnlock, effects: list[Effect]) -> tuple[Result, bool]:
    """Give a lock back. Raises ``Conflict`` (not_holder)."""
    del effects
    store = cluster.store(command.store)
    map_of(store, command.map).locks.release(command.key, command.owner, command.fence, command.at_ms)
    cluster.arm(store, command.map)
    return Done(), True


def detach(store: Store, durable: MapDurable, subscriber: str, effects: list[Effect]) -> None:
    """End a session and release its locks. Raises ``NotFound`` if there is no such session.

    If the session returns, its old token gets ``not_holder``: requests in flight cannot overwrite the next holder.
    """
    name = durable.definition.name
    if subscriber not in durable.attached:
        raise NotFound("this subscriber is not attached", durable=name, subscriber=subscriber)
    del durable.attached[subscriber]
    _notify_lost(store, name, durable.locks.release_owner(subscriber), "disconnected", effects)


def expire(store: Store, durable: MapDurable, now_ms: int, budget: Budget, effects: list[Effect]) -> int:
    """End locks and values; returns how many values were removed."""
    name = durable.definition.name
    ended = durable.locks.expire(now_ms, budget.looks)
    budget.looks -= len(ended)
    _notify_lost(store, name, ended, "expired", effects)
    changes = durable.expire(now_ms, budget)
    _notify(store, name, changes, effects)
    return len(changes)


def notify_deleted(store: Store, durable: MapDurable, entries: Iterable[KeyEntry], effects: list[Effect]) -> None:
    """Notify watchers of what an administrator removes."""
    _notify(
        store, durable.definition.name, [Change(entry.key, entry.revision, "deleted") for entry in entries], effects
    )


def _notify(store: Store, name: str, changes: Iterable[Change], effects: list[Effect]) -> None:
    reported = tuple((item.key, item.revision, item.cause) for item in changes)
    if reported:
        effects.append(Changed(store.name, name, reported))


def _notify_lost(store: Store, name: str, locks: Iterable[KeyLock], cause: str, effects: list[Effect]) -> None:
    for lost in locks:
        facts = (("key", lost.key), ("fence", lost.fence), ("cause", cause))
        effects.append(Advise(store.name, name, lost.owner, "lock_lost", facts))
