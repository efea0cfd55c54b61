"""The locks of one map: who may change a key, until when, and the token that fences whoever lost it.

Owns: holders, deadlines, fencing tokens. Does not own: the keys' values (``map``).

A lock is a lease: it ends at its deadline if it is not extended, because a holder may be gone for ever. So a lock
alone protects nothing; the *fence* does. It rises with every new holder of any lock of the map, and a change that
carries it is refused unless that very lock is held still: a holder that slept through its deadline cannot write over
its successor.

The empty key is the whole map: it excludes every key's lock of others, and they exclude it. Changes without a fence are
not hindered: locks are for those who ask for them.

Failure model: pure. A refusal changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from holdfast.errors import Code, Conflict, InvalidRequest, LimitExceeded, Unavailable
from holdfast.stores.definitions.values import TIME_MS_MAX
from holdfast.stores.values.expiry import Deadlines

__all__ = ["LOCKS_MAX", "WHOLE_MAP", "Lock", "Locks", "LocksState"]

LOCKS_MAX: Final = 65_536
"""Locks of one map at a time; one more is refused."""
WHOLE_MAP: Final = ""

LocksState = tuple[int, list[tuple[str, str, int, int]]]


@dataclass(frozen=True, slots=True)
class Lock:
    """One lock: it is free again at ``until_ms``, not before."""

    key: str
    owner: str
    fence: int
    until_ms: int


class Locks:
    """The locks of one map. *Cost*: O(1); of the whole map's lock O(locks)."""

    __slots__ = ("_due", "_held", "fence")

    def __init__(self) -> None:
        self.fence = 0
        """The highest token given out."""
        self._held: dict[str, Lock] = {}
        self._due: Deadlines[str] = Deadlines()

    def __len__(self) -> int:
        return len(self._held)

    def held(self, key: str, now_ms: int) -> Lock | None:
        """The lock on exactly this key, if it has not ended."""
        lock = self._held.get(key)
        return lock if lock is not None and now_ms < lock.until_ms else None

    def next_ms(self) -> int | None:
        """When the next lock ends."""
        return self._due.next_ms()

    def take(self, key: str, owner: str, ttl_ms: int, now_ms: int, *, steal: bool = False) -> tuple[Lock, list[Lock]]:
        """Take a lock, or extend one's own (its fence stays). Returns it and those taken away by ``steal``.

        What has ended should be taken out with ``expire`` before, so that its owner is told.

        Raises ``Unavailable`` (code ``lock_held``, with when it is free at the latest) where another owner has it, or
        has one that excludes it; ``InvalidRequest`` for a time out of bounds; ``LimitExceeded`` at ``LOCKS_MAX``.
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
        lock = Lock(key, owner, fence, now_ms + ttl_ms)
        self._held[key] = lock
        self._due.set(key, lock.until_ms)
        return lock, others

    def release(self, key: str, owner: str, fence: int, now_ms: int) -> None:
        """Give a lock back. Raises ``Conflict`` (code ``not_holder``) where it is not, or no more, this one."""
        lock = self.held(key, now_ms)
        if lock is None or (lock.owner, lock.fence) != (owner, fence):
            raise _not_holder(key, fence, lock)
        self._forget(key)

    def require(self, fence: int, keys: Iterable[str], now_ms: int) -> None:
        """Nothing where ``fence`` is of a lock, held now, on each key or on the whole map; else as ``release``."""
        whole = self.held(WHOLE_MAP, now_ms)
        if whole is not None and whole.fence == fence:
            return
        for key in keys:
            lock = self.held(key, now_ms)
            if lock is None or lock.fence != fence:
                raise _not_holder(key, fence, lock or whole)

    def release_owner(self, owner: str) -> list[Lock]:
        """The owner is gone: every lock of it is free. Returns them, by key."""
        lost = [lock for _, lock in sorted(self._held.items()) if lock.owner == owner]
        for lock in lost:
            self._forget(lock.key)
        return lost

    def expire(self, now_ms: int, count: int) -> list[Lock]:
        """Up to ``count`` locks whose time has ended, by deadline; they are forgotten."""
        ended: list[Lock] = []
        while len(ended) < count and (key := self._due.pop(now_ms)) is not None:
            ended.append(self._held.pop(key))
        return ended

    def state(self) -> LocksState:
        """What a snapshot keeps."""
        return self.fence, [(lock.key, lock.owner, lock.fence, lock.until_ms) for lock in self._held.values()]

    def restore(self, state: LocksState) -> None:
        """Take up ``state``."""
        self.fence, locks = state
        for key, owner, fence, until_ms in locks:
            self._held[key] = Lock(key, owner, fence, until_ms)
            self._due.set(key, until_ms)

    def check(self) -> None:
        """Each lock has its own token and a deadline; no lock of another excludes one. O(n)."""
        fences = [lock.fence for lock in self._held.values()]
        assert len(set(fences)) == len(fences) and all(0 < fence <= self.fence for fence in fences), "tokens are unique"
        assert self._due.items() == {key: lock.until_ms for key, lock in self._held.items()}, "each lock has its end"
        assert all(key == lock.key for key, lock in self._held.items()), "a lock is under its key"

    def _excluding(self, key: str) -> list[Lock]:
        if key == WHOLE_MAP:
            return [lock for _, lock in sorted(self._held.items())]
        return [lock for name in (key, WHOLE_MAP) if (lock := self._held.get(name)) is not None]

    def _forget(self, key: str) -> None:
        del self._held[key]
        self._due.set(key, None)


def _not_holder(key: str, fence: int, lock: Lock | None) -> Conflict:
    return Conflict(
        "the lock is not held with this token",
        code=Code.NOT_HOLDER,
        hint="another may hold it since: take it again, and read again what it protects",
        key=key,
        fence=fence,
        held_with=lock.fence if lock is not None else None,
    )
