"""A map: keys with a value each, changed on conditions, watched, and locked.

Owns: the conditions of a change, its limits, what watchers are told. Does not own: the entries (``keyed``), the locks
(``locks``), the store's and the cluster's limits (``limits``), who watches (the shell).

A change is two steps, so that a refusal changes nothing: ``plan`` checks every condition and tells what the change
would add; where the store agrees, ``change`` gives every changed key its revision, which is a number of the store. A
removal takes a number, too, so that watchers have one order.

Failure model: pure.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.errors import Backpressure, Code, Conflict, InvalidRequest
from holdfast.stores.definitions.definitions import Discard, DurableDefinition
from holdfast.stores.durables.backlog import Shelf
from holdfast.stores.durables.keyed import KeyedMessages, KeyedState
from holdfast.stores.durables.locks import Locks, LocksState
from holdfast.stores.values.commands import MapChange
from holdfast.stores.values.expiry import Budget
from holdfast.stores.values.messages import KEY_BYTES_MAX, Message
from holdfast.stores.values.ports import Entries, Entry, Kept

__all__ = ["Change", "Map", "MapState", "Plan"]

MapState = tuple[KeyedState, LocksState]
ROOM_LOOKS: Final = 16_384
"""The most messages that one change examines to make room; ``Expire`` continues after it."""
_ALL: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Change:
    """What watchers are told of one key. ``cause``: set, removed, expired, discarded, deleted (see ``Changed``)."""

    key: str
    revision: int
    """The new value's; of what is gone the number of its removal, or of its last value where none was taken."""
    cause: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A change whose conditions hold. Items correspond: each changed key takes the next number of the store."""

    keys: tuple[str, ...]
    messages: list[Message]
    """What the store keeps under each number; a removal is a message without a body that nobody keeps."""
    sizes: array[int]
    references: array[int]
    """1 for a value that is set, 0 for a removal."""
    added_messages: int
    """By how many messages the store grows; below 0 where it shrinks."""
    added_bytes: int


class Map:
    """One map. *Memory*: an item for each lock. *Cost*: a look-up for each key changed."""

    __slots__ = ("definition", "keyed", "locks", "sessions")

    def __init__(self, definition: DurableDefinition, shelf: Shelf, entries: Entries, place: str = "") -> None:
        self.definition = definition
        self.keyed = KeyedMessages(shelf, definition.name, entries, place=place)
        self.locks = Locks()
        self.sessions: dict[str, None] = {}
        """Who is connected: with its session goes every lock that has its name for an owner."""

    # ---- changes ----------------------------------------------------------------------------------------------------

    def plan(self, command: MapChange) -> Plan:
        """Check a change. Nothing is changed.

        Raises ``Conflict`` with code ``revision_mismatch`` (the key's revision is among the facts, 0 for none) or
        ``not_holder``; ``Backpressure`` (``store_full``) at the map's own limits with ``discard`` new;
        ``InvalidRequest`` for a key given twice or out of bounds.
        """
        self.check_change(command)
        plan = self._plan_all() if command.remove_all else self._plan_keys(command)
        self._check_limits(plan)
        return plan

    def check_change(self, command: MapChange) -> None:
        """Raises as ``plan`` where a change has wrong keys, or not the lock that it names."""
        keys = [key for key, _, _ in command.changes]
        if len(set(keys)) < len(keys) or (command.remove_all and keys):
            raise InvalidRequest("a change names each key once, and none to remove all", map=command.map)
        for key in keys:
            if not 0 < len(key.encode()) <= KEY_BYTES_MAX:
                raise InvalidRequest("a key has 1 to 1,024 bytes", map=command.map, bytes=len(key.encode()))
        if command.fence:
            # To remove all needs the whole map's lock: no single key stands for it.
            self.locks.require(command.fence, keys or [""], command.at_ms)

    def _plan_all(self) -> Plan:
        keys = tuple(entry.key for entry in self.keyed.scan())
        messages = [Message(key=key) for key in keys]
        zeros = array("H", bytes(2 * len(keys)))
        return Plan(keys, messages, array("I", bytes(4 * len(keys))), zeros, -self.keyed.messages, -self.keyed.bytes)

    def _plan_keys(self, command: MapChange) -> Plan:
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
        return Plan(tuple(keys), messages, sizes, references, added_messages, added_bytes)

    def _check_limits(self, plan: Plan) -> None:
        """At a limit ``discard`` new refuses, old makes room; what alone is above a limit is refused in any case."""
        definition = self.definition
        keeps_old = definition.discard is Discard.NEW
        messages = (self.keyed.messages if keeps_old else 0) + plan.added_messages
        total = self.keyed.bytes + plan.added_bytes if keeps_old else sum(plan.sizes)
        if not keeps_old:
            messages = sum(plan.references)
        if definition.message_limit and messages > definition.message_limit and plan.added_messages > 0:
            raise _full(definition.name, messages=messages, message_limit=definition.message_limit)
        if definition.bytelimit and total > definition.bytelimit and plan.added_bytes > 0:
            raise _full(definition.name, bytes=total, bytelimit=definition.bytelimit)

    def change(self, plan: Plan, first_seq: int) -> list[Change]:
        """Carry out a plan whose messages have the numbers from ``first_seq`` on and are counted already."""
        changes: list[Change] = []
        for seq, (key, size, kept) in enumerate(zip(plan.keys, plan.sizes, plan.references, strict=True), first_seq):
            if kept:
                self.keyed.set(key, seq, size)
            else:
                self.keyed.remove(key)
            changes.append(Change(key, seq, "set" if kept else "removed"))
        looks = ROOM_LOOKS if self.keyed.is_stepwise else _ALL
        changes.extend(self._make_room(Budget(looks, looks)))
        return changes

    @property
    def is_over(self) -> bool:
        """Whether the map is above a limit, so that the oldest values go."""
        definition = self.definition
        over = (0 < definition.message_limit < self.keyed.messages) or (0 < definition.bytelimit < self.keyed.bytes)
        return over and definition.discard is Discard.OLD

    def _make_room(self, budget: Budget) -> list[Change]:
        """Discard the oldest values down to the limits, as far as the budget goes; the rest is due at once."""
        discarded: list[Change] = []
        while self.is_over and (entry := self.keyed.discard_oldest(budget)) is not None:
            discarded.append(Change(entry.key, entry.revision, "discarded"))
        return discarded

    # ---- time and administration ------------------------------------------------------------------------------------

    def next_ms(self) -> int | None:
        """When a value or a lock ends next."""
        times = [self.keyed.next_ms(self.definition.message_ttl_ms), self.locks.next_ms()]
        if self.keyed.is_stepwise and self.is_over:
            times.append(self.keyed.oldest_ms)
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    def expire(self, now_ms: int, budget: Budget) -> list[Change]:
        """Remove values that are older than ``message_ttl``, and those above the limits that a change has left.

        See ``KeyedMessages.expire``. Locks: ``locks.expire``.
        """
        ttl_ms = self.definition.message_ttl_ms
        expired = self.keyed.expire(now_ms, ttl_ms, budget) if ttl_ms else []
        changes = [Change(entry.key, entry.revision, "expired") for entry in expired]
        return changes + (self._make_room(budget) if self.keyed.is_stepwise else [])

    def drop(self, kept: Sequence[Kept]) -> Entry | None:
        """Delete one value by its revision: ``kept`` is what the store has under that number, nothing or one."""
        return self.keyed.lose_message(kept[0], "deleted") if kept else None

    # ---- state ------------------------------------------------------------------------------------------------------

    def state(self) -> MapState:
        """What a snapshot keeps besides the entries."""
        return self.keyed.state(), self.locks.state()

    def restore(self, state: MapState) -> None:
        """Take up ``state``."""
        totals, locks = state
        self.keyed.restore(totals)
        self.locks.restore(locks)

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
