"""How many messages a subscriber asks for: as many as its application takes in a third of the time it has for one."""

from __future__ import annotations

import math
from typing import Final

PART: Final = 3
"""Messages that wait longer than one part in this many of their time may come back before they are handed over."""
GROWTH: Final = 4
"""From 1 to the default of 64 in three round trips."""
WEIGHT: Final = 0.25
"""How much the newest message counts in the measured pace."""


class Pace:
    """The measured pace of one application. The window begins at 1 and grows as long as it is used up."""

    def __init__(self) -> None:
        self._each_ms = 0.0
        self._since_ms: float | None = None
        self._taken = 1
        self.window = 1

    def begin(self) -> None:
        """A connection begins. What was measured is kept."""
        self._since_ms = None
        self.window = 1

    def took(self, count: int, now_ms: float, *, waiting: int) -> None:
        """The application takes ``count`` messages now, and ``waiting`` more are here.

        The time since it took the last ones is what it needed for them, if it did not have to wait for these.
        """
        if self._since_ms is not None:
            each_ms = (now_ms - self._since_ms) / max(1, self._taken)
            # Slower counts at once: the window must be right before the messages are late.
            self._each_ms = max(each_ms, self._each_ms + WEIGHT * (each_ms - self._each_ms))
        self._since_ms, self._taken = now_ms, count
        if not waiting:
            self.window *= GROWTH

    def waited(self) -> None:
        """Nothing was here when the application asked: the time until the next message is not its own."""
        self._since_ms = None

    def limit(self, most: int, wait_ms: int) -> int:
        """The window now, at most ``most``, where a message may wait for ``wait_ms`` (0: no limit)."""
        fits = math.inf if not wait_ms or not self._each_ms else wait_ms / PART / self._each_ms
        self.window = max(1, int(min(self.window, most, fits)))
        return self.window
