"""How many messages a subscriber asks for, by the measured pace of its application and the size of the messages."""

from __future__ import annotations

import math
from typing import Final

PART: Final = 3
"""Messages that wait longer than one part in this many of their time may come back before they are handed over."""
GROWTH: Final = 4
"""From 1 to the default of 256 in four round trips."""
SOON_MS: Final = 1_000
ALWAYS: Final = 64
"""More messages than this are asked for only if the application takes them in ``SOON_MS``: others may be idle."""
BYTES: Final = 16 << 20
"""About what may wait here, above one message."""
WEIGHT: Final = 0.25
"""How much the newest message counts in the measured pace."""


class Pace:
    """The measured pace of one application. The window begins at 1 and grows as long as it is used up."""

    def __init__(self) -> None:
        self._each_ms = 0.0
        self._each_bytes = 1.0
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

    def arrived(self, count: int, size: int) -> None:
        """``count`` messages came, in ``size`` bytes. Larger ones count at once, like a slower pace."""
        if count:
            each = size / count
            self._each_bytes = max(1.0, each, self._each_bytes + WEIGHT * (each - self._each_bytes))

    def waited(self) -> None:
        """Nothing was here when the application asked: the time until the next message is not its own."""
        self._since_ms = None

    def limit(self, most: int, wait_ms: int) -> int:
        """The window now, at most ``most``, where a message may wait for ``wait_ms`` (0: no limit)."""
        fits = BYTES / self._each_bytes
        if self._each_ms:
            in_time = wait_ms / PART / self._each_ms if wait_ms else math.inf
            fits = min(fits, in_time, max(ALWAYS, SOON_MS / self._each_ms))
        self.window = max(1, int(min(self.window, most, fits)))
        return self.window
