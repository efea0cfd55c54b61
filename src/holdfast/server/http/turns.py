"""Fairness among connections: what each gets of a turn of the event loop, and how many may be without a valid token.

A request costs 1 and 1 more for each ``BYTES_PER_UNIT`` of it; for a WebSocket see its module. One connection gets
``VISIT`` a turn, and all together ``TURN``, of which those that have not sent a valid token share ``UNKNOWN``, in
small visits, so that the first request of a client waits for few requests of each of them. Input above that stays in
its connection, which reads no more until its next visit, in a circle. A single request may cost more than is left: then
nothing else is taken in this turn.

Cost: a callback for each ``TURN // 2`` units: turns that take less share a budget, as one more round of the loop would
cost as much as a request. Memory: one reference for each connection that waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

VISIT: Final = 64
TURN: Final = 256
UNKNOWN: Final = TURN // 4
UNKNOWN_VISIT: Final = 4
BYTES_PER_UNIT: Final = 4_096


class Visited(Protocol):
    """A connection, with input that waits for its visit or without a valid token."""

    @property
    def is_known(self) -> bool:
        """Whether it has sent a valid token, or the service needs none."""
        ...

    def go_on(self) -> None:
        """Take more input now. It may wait again."""

    def abort(self) -> None:
        """Close at once."""


class LoopTurns:
    """The budget of this turn, and who waits for the next. ``call_soon`` is the loop's."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._left = TURN
        self._unknown_left = UNKNOWN
        self._waiting: tuple[deque[Visited], deque[Visited]] = (deque(), deque())
        """Without a valid token, and with one."""
        self._ends = False

    def left(self, connection: Visited) -> int:
        """What this connection may take now; 0 or less means that it must ``wait``."""
        if connection.is_known:
            return min(self._left, VISIT)
        return min(self._left, self._unknown_left, UNKNOWN_VISIT)

    def took(self, units: int, *, is_known: bool) -> None:
        """A connection has taken this much."""
        self._left -= units
        if not is_known:
            self._unknown_left -= units
        if not self._ends and (self._left < TURN // 2 or self._unknown_left < UNKNOWN // 2):
            self._ends = True
            self._call_soon(self._next)

    def wait(self, connection: Visited) -> None:
        """Visit this connection in the next turn in which there is something left for it."""
        self._waiting[connection.is_known].append(connection)
        if not self._ends:
            self._ends = True
            self._call_soon(self._next)

    def _next(self) -> None:
        self._left, self._unknown_left, self._ends = TURN, UNKNOWN, False
        try:
            for waiting in self._waiting:
                for _ in range(len(waiting)):
                    if self.left(waiting[0]) <= 0:
                        break
                    waiting.popleft().go_on()
        finally:  # what one of them raises must not leave the others waiting
            if not self._ends and any(self._waiting):
                self._ends = True
                self._call_soon(self._next)


class UnknownConnections:
    """Those that are open without a valid token, the longest silent one first. ``most`` of them may be open.

    Cost: a move in a dict for each read of such a connection. Memory: one entry for each.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.closed = 0
        """How many had to go."""
        self._open: dict[Visited, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, connection: Visited) -> None:
        """One more. At the bound the one that has been silent longest is closed."""
        if len(self._open) >= self.most:
            silent = next(iter(self._open))
            del self._open[silent]
            self.closed += 1
            silent.abort()
        self._open[connection] = None

    def heard(self, connection: Visited) -> None:
        """It has sent something."""
        if connection in self._open:
            del self._open[connection]
            self._open[connection] = None

    def ended(self, connection: Visited) -> None:
        """It is gone, or has sent a valid token."""
        self._open.pop(connection, None)
