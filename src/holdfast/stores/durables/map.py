"""A map: keys with a value each, changed on conditions, watched, and locked.

A change has two steps, so that a refusal changes nothing: ``plan`` checks every condition and returns what the change
would add; if the store agrees, ``change`` gives every changed key its revision, a number of the store. A removal takes
a number too, so that watchers have one order.

A lock is a lease. Its *fence* rises with every new owner of any lock of the map. A change that carries a fence is
refused unless exactly that lock is still held, on one of its keys or on the whole map (the empty key). A key on which
somebody has another lock is not changed, with or without a fence.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Final

import msgspec

from holdfast.errors import Backpressure, Code, Conflict, InvalidRequest, LimitExceeded, Unavailable
from holdfast.stores.definitions.cluster import Discard, DurableDefinition
from holdfast.stores.definitions.reader import TIME_MS_MAX
from holdfast.stores.durables.backlog import Shelf
from holdfast.stores.durables.keyed import KeyedDurable, KeyedState
from holdfast.stores.values.commands import MapChange
from holdfast.stores.values.deadlines import Budget, Deadlines
from holdfast.stores.values.ports import KeyEntries
from holdfast.wire.parts import KEY_BYTES_MAX, Message

LOCKS_MAX: Final = 65_536  # locks of one map at a time; one more is refused
WHOLE_MAP: Final = ""


class KeyLock(msgspec.Struct, frozen=True, array_like=True):
    """One lock: it is free again at ``until_ms``, not before."""

    key: str
    owner: str
    fence: int
    until_ms: int


LocksState = tuple[int, list[KeyLock]]
"""The highest token given out, and the locks."""


class Locks:
    """The locks of one map. *Cost*: O(1); of the whole map's lock O(locks)."""

    __slots__ = ("_due", "_held", "fence")

    def __init__(self) -> None:
        self.fence = 0  # the highest token given out
        self._held: dict[str, KeyLock] = {}
        self._due: Deadlines[str] = Deadlines()

    def __len__(self) -> int:
        return len(self._held)

    def held(self, key: str, now_ms: int) -> KeyLock | None:
        """The lock on exactly this key, if it has not ended."""
        lock = self._held.get(key)
        return lock if lock is not None and now_ms < lock.until_ms else None

    def newest(self, count: int) -> list[KeyLock]:
        """Up to ``count`` locks, the highest fence first; one whose time is over may be there for a moment. *Cost*:
        O(locks)."""
        return nlargest(count, self._held.values(), key=lambda lock: lock.fence)

    def next_ms(self) -> int | None:
        """When the next lock ends."""
        return self._due.next_ms()

    def take(
        self, key: str, owner: str, ttl_ms: int, now_ms: int, *, steal: bool = False
    ) -> tuple[KeyLock, list[KeyLock]]:
        """Take a lock, or extend one's own (its fence stays). Returns it and those taken away by ``steal``.

        Call ``expire`` before, so that owners of ended locks are notified. Raises ``Unavailable`` (code ``lock_held``,
        with when it is free at the latest) if another owner has it, or one that excludes it; ``InvalidRequest`` for a
        time out of bounds; ``LimitExceeded`` at ``LOCKS_MAX``.
        """
        if not 0 < ttl_ms <= TIME_MS_MAX or not owner:
            raise InvalidRequest("a lock has an owner and a time", owner=owner, ttl_ms=ttl_ms, max=TIME_MS_MAX)
        others = [lock for lock in self._excluding(key) if lock.owner != owner and now_ms < lock.until_ms]
        if others and not steal:
            until_ms = max(lock.until_ms for lock in others)
            raise Unavailable(
                "the lock is held",
                code=Code.LOCK_HELD,
                retry_after_ms=until_ms - now_ms,
                key=key,
                owner=others[0].owner,
                until_ms=until_ms,
            )
        mine = self.held(key, now_ms)
        extends = mine is not None and mine.owner == owner
        if not extends and key not in self._held and len(self._held) - len(others) >= LOCKS_MAX:
            raise LimitExceeded("the map has too many locks", max=LOCKS_MAX)
        for lock in others:
            self._forget(lock.key)
        if mine is None or not extends:
            self.fence += 1
        fence = mine.fence if mine is not None and extends else self.fence
        lock = KeyLock(key, owner, fence, now_ms + ttl_ms)
        self._held[key] = lock
        self._due.set(key, lock.until_ms)
        return lock, others

    def release(self, key: str, owner: str, fence: int, now_ms: int) -> None:
        """Return a lock. Raises ``Conflict`` (code ``not_holder``) if it is not held with this fence."""
        lock = self.held(key, now_ms)
        if lock is None or (lock.owner, lock.fence) != (owner, fence):
            raise _not_holder(key, fence, lock)
        self._forget(key)

    def require(self, fence: int, keys: Sequence[str], now_ms: int) -> None:
        """Check that a lock with ``fence`` is held now, on one of the keys or on the whole map, and that no other owner
        has a lock on any of them. Raises as ``release``."""
        locks = [lock for key in (WHOLE_MAP, *keys) if (lock := self.held(key, now_ms)) is not None]
        owner = next((lock.owner for lock in locks if lock.fence == fence), None)
        for lock in locks:
            if lock.owner != owner:
                raise _not_holder(lock.key, fence, lock)
        if owner is None:
            raise _not_holder(next(iter(keys), WHOLE_MAP), fence, None)

    def require_none(self, keys: Sequence[str] | None, now_ms: int) -> None:
        """Check that nobody has a lock on the keys (None: on any), or on the whole map. Raises as ``release``."""
        for key in (WHOLE_MAP, *(sorted(self._held) if keys is None else keys)):
            lock = self.held(key, now_ms)
            if lock is not None:
                raise _not_holder(key, 0, lock)

    def release_owner(self, owner: str) -> list[KeyLock]:
        """Free every lock of an owner that is gone. Returns them, by key."""
        lost = [lock for _, lock in sorted(self._held.items()) if lock.owner == owner]
        for lock in lost:
            self._forget(lock.key)
        return lost

    def expire(self, now_ms: int, count: int) -> list[KeyLock]:
        """Up to ``count`` locks whose time has ended, by deadline; they are forgotten."""
        ended: list[KeyLock] = []
        while len(ended) < count and (key := self._due.pop(now_ms)) is not None:
            ended.append(self._held.pop(key))
        return ended

    def state(self) -> LocksState:
        """What a snapshot keeps."""
        return self.fence, list(self._held.values())

    def restore(self, state: LocksState) -> None:
        """Take up ``state``."""
        self.fence, locks = state
        for lock in locks:
            self._held[lock.key] = lock
            self._due.set(lock.key, lock.until_ms)

    def check(self) -> None:
        """Each lock has its own token and a deadline; no lock of another excludes one. O(n)."""
        fences = [lock.fence for lock in self._held.values()]
        assert len(set(fences)) == len(fences) and all(0 < fence <= self.fence for fence in fences), "tokens are unique"
        assert self._due.items() == {key: lock.until_ms for key, lock in self._held.items()}, "each lock has its end"
        assert all(key == lock.key for key, lock in self._held.items()), "a lock is under its key"

    def _excluding(self, key: str) -> list[KeyLock]:
        if key == WHOLE_MAP:
            return [lock for _, lock in sorted(self._held.items())]
        return [lock for name in (key, WHOLE_MAP) if (lock := self._held.get(name)) is not None]

    def _forget(self, key: str) -> None:
        del self._held[key]
        self._due.set(key, None)


def _not_holder(key: str, fence: int, lock: KeyLock | None) -> Conflict:
    return Conflict(
        "the lock is not held with this fence" if fence else "the key is locked, and the change has no fence",
        code=Code.NOT_HOLDER,
        hint="another client may hold the lock now: take the lock again, then read again the data that it protects",
        key=key,
        fence=fence,
        held_with=lock.fence if lock is not None else None,
    )


class MapState(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="map"):
    """A map in a snapshot."""

    keyed: KeyedState
    locks: LocksState
    attached: list[str]


ROOM_LOOKS: Final = 16_384  # the most messages that one change examines to make room; Expire continues after it


@dataclass(frozen=True, slots=True)
class Change:
    """What watchers receive for one key. ``cause``: set, removed, expired, discarded, deleted (see ``Changed``)."""

    key: str
    revision: int
    """The new value's; of what is gone the number of its removal, or of its last value where none was taken."""
    cause: str


@dataclass(frozen=True, slots=True)
class MapPlan:
    """A change whose conditions hold. Items correspond: each changed key takes the next number of the store."""

    keys: tuple[str, ...]
    messages: list[Message]
    """What the store keeps under each number; a removal is a message without a body that is not kept."""
    sizes: array[int]
    references: array[int]
    """1 for a value that is set, 0 for a removal."""
    added_messages: int
    """By how many messages the store grows; below 0 where it shrinks."""
    added_bytes: int


class MapDurable(KeyedDurable):
    """One map. *Memory*: an item for each lock. *Cost*: a look-up for each key changed."""

    __slots__ = ("attached", "locks")

    def __init__(self, definition: DurableDefinition, shelf: Shelf, entries: KeyEntries, namespace: str = "") -> None:
        super().__init__(definition, shelf, entries, namespace)
        self.locks = Locks()
        self.attached: dict[str, None] = {}
        """Who is connected: with its session goes every lock that has its name for an owner."""

    def plan(self, command: MapChange) -> MapPlan:
        """Check a change. Changes nothing.

        Raises ``Conflict`` with code ``revision_mismatch`` (the facts have the key's revision, 0 for none) or
        ``not_holder``; ``Backpressure`` (``store_full``) at the map's own limits with ``discard`` new;
        ``InvalidRequest`` for a key given twice or out of bounds.
        """
        assert not command.remove_all, "to remove all needs no plan"
        self.check_change(command)
        plan = self._plan_keys(command)
        self._check_limits(plan)
        return plan

    def check_change(self, command: MapChange) -> None:
        """Raises as ``plan`` for wrong keys, or if the lock that the change names is not held."""
        keys = [key for key, _, _ in command.changes]
        if len(set(keys)) < len(keys) or (command.remove_all and keys):
            raise InvalidRequest("a change names each key once, and none to remove all", map=command.map)
        for key in keys:
            if not 0 < len(key.encode()) <= KEY_BYTES_MAX:
                raise InvalidRequest("a key has 1 to 1,024 bytes", map=command.map, bytes=len(key.encode()))
        if command.fence:
            # To remove all needs the whole map's lock: no single key stands for it.
            self.locks.require(command.fence, keys or [""], command.at_ms)
        elif len(self.locks):
            self.locks.require_none(None if command.remove_all else keys, command.at_ms)

    def _plan_keys(self, command: MapChange) -> MapPlan:
        keys: list[str] = []
        messages: list[Message] = []
        sizes, references = array("I"), array("H")
        added_messages = added_bytes = 0
        for key, body, if_revision in command.changes:
            entry = self.keyed.get(key)
            revision = entry.revision if entry is not None else 0
            if if_revision is not None and if_revision != revision:
                raise Conflict(
                    "the key has another revision",
                    code=Code.REVISION_MISMATCH,
                    map=command.map,
                    key=key,
                    revision=revision,
                    expected=if_revision,
                )
            if body is None and entry is None:
                continue
            size = len(key.encode()) + len(body) if body is not None else 0
            keys.append(key)
            messages.append(Message(body=body or b"", key=key))
            sizes.append(size)
            references.append(1 if body is not None else 0)
            added_messages += (body is not None) - (entry is not None)
            added_bytes += size - (entry.size if entry is not None else 0)
        return MapPlan(tuple(keys), messages, sizes, references, added_messages, added_bytes)

    def _check_limits(self, plan: MapPlan) -> None:
        """At a limit ``discard`` new refuses and old makes room; a change above a limit by itself is refused."""
        definition = self.definition
        messages, total = sum(plan.references), sum(plan.sizes)
        if definition.discard is Discard.NEW:
            messages, total = self.keyed.messages + plan.added_messages, self.keyed.bytes + plan.added_bytes
        if definition.message_limit and messages > definition.message_limit and plan.added_messages > 0:
            raise _full(definition.name, messages=messages, message_limit=definition.message_limit)
        if definition.bytelimit and total > definition.bytelimit and plan.added_bytes > 0:
            raise _full(definition.name, bytes=total, bytelimit=definition.bytelimit)

    def change(self, plan: MapPlan, first_seq: int) -> list[Change]:
        """Carry out a plan whose messages are counted already, with numbers from ``first_seq`` on."""
        changes: list[Change] = []
        for seq, (key, size, kept) in enumerate(zip(plan.keys, plan.sizes, plan.references, strict=True), first_seq):
            if kept:
                self.keyed.set(key, seq, size)
            else:
                self.keyed.remove(key)
            changes.append(Change(key, seq, "set" if kept else "removed"))
        changes.extend(self._make_room(Budget(ROOM_LOOKS, ROOM_LOOKS)))
        return changes

    @property
    def is_over(self) -> bool:
        """Whether the map is above a limit, so that the oldest values are discarded."""
        definition = self.definition
        over = (0 < definition.message_limit < self.keyed.messages) or (0 < definition.bytelimit < self.keyed.bytes)
        return over and definition.discard is Discard.OLD

    def _make_room(self, budget: Budget) -> list[Change]:
        """Discard the oldest values down to the limits, within the budget; the rest is due at once."""
        discarded: list[Change] = []
        while self.is_over and (entry := self.keyed.discard_oldest(budget)) is not None:
            discarded.append(Change(entry.key, entry.revision, "discarded"))
        return discarded

    def ready(self) -> bool:
        """Nothing is delivered: it is read by key, and watched."""
        return False

    def ready_for(self, subscriber: str) -> bool:
        """As ``ready``."""
        del subscriber
        return False

    def next_deadline_ms(self) -> int | None:
        """When a value or a lock ends next."""
        times = [self.keyed.next_ms(self.definition.message_ttl_ms), self.locks.next_ms()]
        if self.is_over:
            times.append(self.keyed.oldest_ms)
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    def expire(self, now_ms: int, budget: Budget) -> list[Change]:
        """Remove values older than ``message_ttl``, and those above the limits. Locks: ``locks.expire``."""
        ttl_ms = self.definition.message_ttl_ms
        expired = self.keyed.expire(now_ms, ttl_ms, budget) if ttl_ms else []
        changes = [Change(entry.key, entry.revision, "expired") for entry in expired]
        return changes + self._make_room(budget)

    def state(self) -> MapState:
        """What a snapshot keeps besides the entries."""
        return MapState(self.keyed.state(), self.locks.state(), list(self.attached))

    def restore(self, state: MapState) -> None:
        """Take up ``state``."""
        self.keyed.restore(state.keyed)
        self.locks.restore(state.locks)
        self.attached = dict.fromkeys(state.attached)

    def check(self) -> None:
        """Every law of the entries and the locks; limits hold. O(n)."""
        self.keyed.check()
        self.locks.check()


def _full(name: str, **numbers: int) -> Backpressure:
    return Backpressure(
        "the map is full",
        code=Code.STORE_FULL,
        hint="remove keys, raise the limit, or let the map discard old ones",
        facts={"map": name, **numbers},
    )
