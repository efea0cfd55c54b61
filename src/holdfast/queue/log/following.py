"""Waiting for the next message.

Owns: how a reader waits, in the writer's process and in others. Does not own: reading (``reader``).

Failure model: a wake-up may come without a message, and may be missed for at most 5 ms: waiting only saves work,
reading decides. In the writer's process the appending thread wakes the reader. Elsewhere the reader looks, every 50
microseconds at first and every 5 ms after some time without a message.
"""

from __future__ import annotations

import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PAUSE_MAX_S", "PAUSE_MIN_S", "Waiter"]

PAUSE_MIN_S = 50e-6
PAUSE_MAX_S = 5e-3
HEARTBEAT_S = 0.25


class Waiter:
    """Waits between two looks. ``subscribe`` registers a callback for the next append where a writer is near, and
    ``unsubscribe`` takes it back. Whoever has armed it disarms it when the wait is over."""

    __slots__ = ("_armed", "_pause_s", "_subscribe", "_unsubscribe", "_woken")

    def __init__(
        self,
        subscribe: Callable[[Callable[[], None]], None] | None,
        unsubscribe: Callable[[Callable[[], None]], None] | None,
    ) -> None:
        self._subscribe = subscribe
        self._unsubscribe = unsubscribe
        self._woken = threading.Event()
        self._armed = False
        self._pause_s = PAUSE_MIN_S

    def arm(self) -> None:
        """Call before the look that decides whether to wait: an append after it ends the wait."""
        if self._subscribe is not None and not self._armed:
            # Once until it has fired: a reader that waits for hours is one listener, not one for each look.
            self._armed = True
            self._subscribe(self._fired)

    def disarm(self) -> None:
        """Call when the wait is over, whatever ended it: the writer would keep the callback until the next append, and
        where nothing is appended there may be thousands of waits."""
        if self._unsubscribe is not None:
            self._unsubscribe(self._fired)
            self._armed = False

    def _fired(self) -> None:
        self._armed = False
        self._woken.set()

    def wake(self) -> None:
        """End a wait from another thread; at once in the writer's process, within 5 ms elsewhere."""
        self._woken.set()

    def wait(self, limit_s: float | None = None) -> None:
        """Wait for an append, or a little while, no longer than ``limit_s``."""
        if self._subscribe is not None:
            self._woken.wait(HEARTBEAT_S if limit_s is None else min(HEARTBEAT_S, limit_s))
            self._woken.clear()
            return
        time.sleep(self._pause_s if limit_s is None else min(self._pause_s, limit_s))
        self._pause_s = min(PAUSE_MAX_S, self._pause_s * 1.25)

    def found(self) -> None:
        """There was a message: look again soon after the next miss."""
        self._pause_s = PAUSE_MIN_S
