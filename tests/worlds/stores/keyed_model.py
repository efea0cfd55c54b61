"""The plain models of last-value durables and maps: dictionaries of values, of what subscribers saw, and of locks.

An answer that the model does not allow raises ``PromiseBroken``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.worlds.stores.promises import promise

from holdfast.errors import Code
from holdfast.stores.definitions.cluster import Discard, DurableDefinition
from holdfast.stores.durables import keyed as keyed_residue
from holdfast.stores.values.commands import Delivered, MapChange, MapLock, MapUnlock
from holdfast.stores.values.effects import Advise, Effect
from holdfast.wire.parts import Message

Watched = Sequence[tuple[str, int, str]] | None

__all__ = ["LastValueModel", "LockModel", "MapModel", "Value"]


@dataclass(frozen=True, slots=True)
class Value:
    """What a key has. ``ends_ms`` is of its own time-to-live, 0 for none."""

    revision: int
    published_ms: int
    size: int
    body: bytes
    ends_ms: int = 0


class _Keyed:
    """Values by key."""

    def __init__(self, definition: DurableDefinition) -> None:
        self.definition = definition
        self.values: dict[str, Value] = {}

    def kept(self) -> set[int]:
        """The messages that it keeps."""
        return {value.revision for value in self.values.values()}

    def ends_ms(self, value: Value) -> int:
        """When a value expires, 0 for never."""
        ttl_ms = self.definition.message_ttl_ms
        ends = [value.ends_ms] if value.ends_ms else []
        return min([*ends, value.published_ms + ttl_ms] if ttl_ms else ends, default=0)

    def next_event_ms(self, now_ms: int) -> int | None:
        """The earliest time to come at which a value expires."""
        return min((ends for value in self.values.values() if (ends := self.ends_ms(value)) > now_ms), default=None)

    def expire(self, now_ms: int) -> None:
        """Follow every deadline up to now."""
        self.values = {key: value for key, value in self.values.items() if not 0 < self.ends_ms(value) <= now_ms}

    def purge(self) -> tuple[int, int]:
        """Follow a purge; returns messages and bytes."""
        purged = len(self.values), sum(value.size for value in self.values.values())
        self.values.clear()
        return purged

    def drop(self, seq: int) -> bool:
        """Follow the deletion of one message; returns whether there was one."""
        keys = [key for key, value in self.values.items() if value.revision == seq]
        for key in keys:
            del self.values[key]
        return bool(keys)


class LastValueModel(_Keyed):
    """One last-value durable."""

    def __init__(self, definition: DurableDefinition) -> None:
        super().__init__(definition)
        self.seen: dict[str, tuple[str, int]] = {}

    def publish(self, batch: Sequence[tuple[int, Message, int]], now_ms: int) -> set[int]:
        """Follow a batch of (number, message, size); returns the numbers that it kept, if only for a moment."""
        kept: set[int] = set()
        for seq, message, size in batch:
            field = self.definition.key_field
            key = message.fields.get(field) if field else message.key
            if (
                message.deliver_at_ms
                or not isinstance(key, str)
                or not key
                or not self.definition.matcher.matches(message.fields)
            ):
                continue
            ends_ms = now_ms + message.ttl_ms if message.ttl_ms else 0
            self.values[key] = Value(seq, now_ms, size, message.body, ends_ms)
            kept.add(seq)
        return kept

    def attach(self, subscriber: str, key: str) -> None:
        """Follow an attachment: the current value is new to it."""
        self.seen[subscriber] = key, 0

    def detach(self, subscriber: str) -> None:
        """Follow a subscriber's end."""
        del self.seen[subscriber]

    def deliver(self, subscriber: str, result: Delivered) -> None:
        """Judge and follow a delivery: the key's newest value, once."""
        key, seen = self.seen[subscriber]
        value = self.values.get(key)
        expected = [(value.revision, value.revision, 1)] if value is not None and value.revision > seen else []
        promise(result.runs == expected, "the last value of the key, once", delivered=result.runs, expected=expected)
        if value is not None:
            self.seen[subscriber] = key, value.revision


@dataclass(frozen=True, slots=True)
class LockModel:
    """One lock."""

    owner: str
    fence: int
    until_ms: int


class MapModel(_Keyed):
    """One map with its locks."""

    def __init__(self, definition: DurableDefinition) -> None:
        super().__init__(definition)
        self.locks: dict[str, LockModel] = {}
        self.fence = 0
        self.sessions: dict[str, None] = {}
        self.unreported: list[tuple[str, int, str]] = []
        """What a clear has still to report to watchers, in steps."""
        self.unsure = False
        """Whether some of that was reported already, by commands that are only followed."""

    def cleared(self, changes: list[tuple[str, int, str]]) -> list[tuple[str, int, str]]:
        """Follow what a clear reports: one step now, which is returned, the rest later."""
        self.unreported += changes[keyed_residue.STEP_ENTRIES :]
        return changes[: keyed_residue.STEP_ENTRIES]

    def reported_later(self, change: tuple[str, int, str]) -> None:
        """Judge and follow what a later step of a clear reports."""
        promise(
            change in self.unreported, "watchers see once what a clear removed", change=change, left=self.unreported
        )
        self.unreported.remove(change)

    def swept(self) -> None:
        """Nothing is due any more."""
        self.unreported, self.unsure = [], False

    def detach(self, subscriber: str, effects: Sequence[Effect] | None) -> None:
        """Judge and follow a session's end: the locks of its name go with it, by key."""
        del self.sessions[subscriber]
        lost = [(key, lock.fence) for key, lock in sorted(self.locks.items()) if lock.owner == subscriber]
        for key, _ in lost:
            del self.locks[key]
        if effects is not None:
            facts = [dict(effect.facts) for effect in effects if isinstance(effect, Advise)]
            released = [(one["key"], one["fence"]) for one in facts if one["cause"] == "disconnected"]
            promise(released == lost, "the locks of a session go with it", released=released, expected=lost)

    # ---- changes ----------------------------------------------------------------------------------------------------

    def refusal(self, command: MapChange) -> Code | None:
        """Why a change must be refused, or None."""
        keys = [key for key, _, _ in command.changes]
        if command.fence and not self._is_fenced(command, keys or [""]):
            return Code.NOT_HOLDER
        locked = {key for key, lock in self.locks.items() if command.at_ms < lock.until_ms}
        if not command.fence and (locked if command.remove_all else locked & {"", *keys}):
            return Code.NOT_HOLDER
        for key, _, condition in command.changes:
            value = self.values.get(key)
            if condition is not None and condition != (value.revision if value is not None else 0):
                return Code.REVISION_MISMATCH
        return Code.STORE_FULL if not command.remove_all and self._is_over(command) else None

    def _is_fenced(self, command: MapChange, keys: Sequence[str]) -> bool:
        locks = [self.locks[key] for key in {"", *keys} if key in self.locks]
        locks = [lock for lock in locks if command.at_ms < lock.until_ms]
        return len({lock.owner for lock in locks}) == 1 and any(lock.fence == command.fence for lock in locks)

    def _is_over(self, command: MapChange) -> bool:
        definition = self.definition
        sets = {key: len(key.encode()) + len(body) for key, body, _ in command.changes if body is not None}
        removed = {key for key, body, _ in command.changes if body is None}
        sizes = {key: value.size for key, value in self.values.items() if key not in removed}
        grows = len(sizes | sets) > len(self.values)
        grows_bytes = sum((sizes | sets).values()) > sum(value.size for value in self.values.values())
        if definition.discard is Discard.OLD:
            return 0 < definition.message_limit < len(sets) or 0 < definition.bytelimit < sum(sets.values())
        over = grows and 0 < definition.message_limit < len(sizes | sets)
        return over or (grows_bytes and 0 < definition.bytelimit < sum((sizes | sets).values()))

    def added(self, command: MapChange) -> tuple[int, int]:
        """By how many messages and bytes a change that is allowed makes the map grow."""
        messages = size = 0
        for key, body, _ in command.changes:
            before = self.values.get(key)
            messages += (body is not None) - (before is not None)
            size += len(key.encode()) + len(body) if body is not None else 0
            size -= before.size if before is not None else 0
        return messages, size

    def change(
        self, command: MapChange, first_seq: int, watched: Watched
    ) -> tuple[list[tuple[str, int, str]], int, int]:
        """Follow a change; returns what watchers must see, the revision and how many keys changed.

        ``watched`` is what they saw, None where that is not known.
        """
        if command.remove_all:
            keys = sorted(self.values)
            self.values.clear()
            changes = self.cleared([(key, first_seq, "removed") for key in keys])
            return changes, first_seq if keys else 0, len(keys)
        changes = self._cleared_first(command, watched)
        before_count = len(changes)
        seq = first_seq
        for key, body, _ in command.changes:
            before = self.values.pop(key, None)
            if body is None and before is None:
                continue
            if body is not None:
                self.values[key] = Value(seq, command.at_ms, len(key.encode()) + len(body), body)
            changes.append((key, seq, "removed" if body is None else "set"))
            seq += 1
        changed = len(changes) - before_count
        return changes + self._discard_old(), seq - 1 if changed else 0, changed

    def _cleared_first(self, command: MapChange, watched: Watched) -> list[tuple[str, int, str]]:
        """What a clear has still to report of the keys that change now."""
        keys = [key for key, body, _ in command.changes if body is not None or key in self.values]
        found = [one for key in keys for one in self.unreported if one[0] == key]
        self.unreported = [one for one in self.unreported if one not in found]
        return [one for one in found if not self.unsure or watched is None or one in watched]

    def _discard_old(self) -> list[tuple[str, int, str]]:
        definition = self.definition
        changes: list[tuple[str, int, str]] = []

        def is_over() -> bool:
            size = sum(value.size for value in self.values.values())
            return 0 < definition.message_limit < len(self.values) or 0 < definition.bytelimit < size

        while definition.discard is Discard.OLD and is_over():
            key = min(self.values, key=lambda key: self.values[key].revision)
            changes.append((key, self.values.pop(key).revision, "discarded"))
        return changes

    # ---- locks ------------------------------------------------------------------------------------------------------

    def excluding(self, command: MapLock) -> list[str]:
        """The keys of other owners' locks that stand in the way."""
        return [
            key
            for key, lock in self.locks.items()
            if lock.owner != command.owner
            and command.at_ms < lock.until_ms
            and (key == command.key or not key or not command.key)
        ]

    def lock(self, command: MapLock) -> LockModel:
        """Follow a lock that is taken or extended; returns what it must be."""
        for key in self.excluding(command):
            del self.locks[key]
        mine = self.locks.get(command.key)
        extends = mine is not None and mine.owner == command.owner and command.at_ms < mine.until_ms
        if mine is None or not extends:
            self.fence += 1
        fence = mine.fence if mine is not None and extends else self.fence
        self.locks[command.key] = LockModel(command.owner, fence, command.at_ms + command.ttl_ms)
        return self.locks[command.key]

    def is_holder(self, command: MapUnlock) -> bool:
        """Whether a lock can be given back so."""
        lock = self.locks.get(command.key)
        return (
            lock is not None
            and (lock.owner, lock.fence) == (command.owner, command.fence)
            and (command.at_ms < lock.until_ms)
        )

    def unlock(self, command: MapUnlock) -> None:
        """Follow a lock's return."""
        del self.locks[command.key]
