"""Subscribers that wait for a standard durable which another subscriber has: first come, first served.

Only this process knows them: after a fail-over they ask again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

LINE_MAX: Final = 1_024
"""Subscribers that wait for one durable; one more is refused at once."""

DurableName = tuple[str, str]


class Newcomer(Protocol):
    """One session of a subscriber."""

    store: str
    durable: str
    name: str


class _Place:
    __slots__ = ("ask", "newcomer", "timer")

    def __init__(self, newcomer: Newcomer, ask: Callable[[], None], timer: asyncio.TimerHandle) -> None:
        self.newcomer = newcomer
        self.ask = ask
        self.timer = timer


class Newcomers:
    """The lines of all durables.

    ``ask`` of a newcomer asks the state machine for the durable, which gives or refuses it. It is called once at most:
    in its turn, when its time is over, or when a newer session of its name takes its place in the line.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lines: dict[DurableName, dict[str, _Place]] = {}

    def wait(self, newcomer: Newcomer, wait_seconds: float, ask: Callable[[], None]) -> bool:
        """Stand at the end of the line, or at the place of an older session. False if the line is full."""
        line = self._lines.setdefault((newcomer.store, newcomer.durable), {})
        older = line.get(newcomer.name)
        if older is None and len(line) >= LINE_MAX:
            return False
        timer = self._loop.call_later(max(0.0, wait_seconds), self.hurry, newcomer)
        line[newcomer.name] = _Place(newcomer, ask, timer)
        if older is not None:
            older.timer.cancel()
            older.ask()
        return True

    def hurry(self, newcomer: Newcomer) -> None:
        """This one waits no longer, if it does: it asks now."""
        place = self._take(newcomer)
        if place is not None:
            place.ask()

    def forget(self, newcomer: Newcomer) -> None:
        """This one is gone."""
        self._take(newcomer)

    def first(self, durable: DurableName) -> Newcomer | None:
        """The first in line."""
        return next((place.newcomer for place in self._lines.get(durable, {}).values()), None)

    def durables(self) -> list[DurableName]:
        """The durables that somebody waits for."""
        return list(self._lines)

    def dismiss(self, durable: DurableName) -> None:
        """The durable is another one now, or gone: everybody in its line asks, in turn."""
        for place in list(self._lines.get(durable, {}).values()):
            self.hurry(place.newcomer)

    def _take(self, newcomer: Newcomer) -> _Place | None:
        durable = newcomer.store, newcomer.durable
        line = self._lines.get(durable, {})
        place = line.get(newcomer.name)
        if place is None or place.newcomer is not newcomer:
            return None
        place.timer.cancel()
        del line[newcomer.name]
        if not line:
            del self._lines[durable]
        return place
