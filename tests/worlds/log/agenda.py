"""The virtual time of one world of the log: planned events, in the order in which they happen.

Events at the same time happen in the order in which they were planned. The digest is of each event's time and name.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from typing import Any, Protocol

__all__ = ["Agenda", "Owner"]


class Owner(Protocol):
    """A process: its events wait while it is paused, and vanish when it crashes."""

    incarnation: int
    paused_until: float


class Cancellable(Protocol):
    """A timer that may be cancelled before its time."""

    def cancelled(self) -> bool:
        """Whether it was."""
        ...


class Agenda:
    """Happenings in time order. ``now`` is in milliseconds and never falls."""

    __slots__ = ("_digest", "_heap", "_planned", "_put_off", "happened", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self.happened = 0
        self._planned = 0
        self._heap: list[
            tuple[float, int, Owner | None, int, Cancellable | None, Callable[..., None], tuple[Any, ...]]
        ] = []
        self._put_off: set[int] = set()
        """The numbers of events that wait for the end of their owner's pause."""
        self._digest = blake2b(digest_size=16)

    def after(
        self,
        delay_ms: float,
        owner: Owner | None,
        action: Callable[..., None],
        *arguments: object,
        handle: Cancellable | None = None,
    ) -> None:
        """Plan ``action(*arguments)``. It is dropped once its owner has crashed or its handle is cancelled."""
        self._planned += 1
        incarnation = owner.incarnation if owner is not None else 0
        heappush(self._heap, (self.now + delay_ms, self._planned, owner, incarnation, handle, action, arguments))

    def step(self) -> bool:
        """Let the next thing happen; False when nothing is planned."""
        while self._heap:
            at, number, owner, incarnation, handle, action, arguments = heappop(self._heap)
            self._put_off.discard(number)
            if handle is not None and handle.cancelled():
                continue
            self.now = max(self.now, at)
            if owner is not None:
                if owner.incarnation != incarnation:
                    continue
                if owner.paused_until > self.now:
                    self._planned += 1
                    again = (owner.paused_until, self._planned, owner, incarnation, handle, action, arguments)
                    heappush(self._heap, again)
                    self._put_off.add(self._planned)
                    continue
            self.happened += 1
            self._digest.update(b"%d %s;" % (int(self.now * 1000), action.__name__.encode()))
            action(*arguments)
            return True
        return False

    def resume(self, owner: Owner) -> None:
        """The owner's pause ends now: what waits for its end happens next, in its order."""
        owner.paused_until = min(owner.paused_until, self.now)
        self._heap = [
            (self.now, *each[1:]) if each[1] in self._put_off and each[2] is owner else each for each in self._heap
        ]
        heapify(self._heap)

    def note(self, fact: bytes) -> None:
        """Put a fact into the digest."""
        self._digest.update(fact)

    def digest(self) -> str:
        """A digest of everything that happened so far."""
        return self._digest.hexdigest()
