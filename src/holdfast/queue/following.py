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
    """Waits between two looks. ``subscribe`` registers a callback for the next append where a writer is near."""

    __slots__ = ("_pause_s", "_subscribe", "_woken")

    def __init__(self, subscribe: Callable[[Callable[[], None]], None] | None) -> None:
        self._subscribe = subscribe
        self._woken = threading.Event()
        self._pause_s = PAUSE_MIN_S

    def arm(self) -> None:
        """Call before the look that decides whether to wait: an append after it ends the wait."""
        if self._subscribe is not None and not self._woken.is_set():
            self._subscribe(self._woken.set)

    def wait(self) -> None:
        """Wait for an append, or a little while."""
        if self._subscribe is not None:
            self._woken.wait(HEARTBEAT_S)
            self._woken.clear()
            return
        time.sleep(self._pause_s)
        self._pause_s = min(PAUSE_MAX_S, self._pause_s * 1.25)

    def found(self) -> None:
        """There was a message: look again soon after the next miss."""
        self._pause_s = PAUSE_MIN_S
