"""The bound of a stop: whatever hangs, the process ends in time.

Owns: when a stop began, how much of its time is left, and the end of a process that takes longer. Does not own: what is
done meanwhile (``run``).

The bound is kept by a thread, because the event loop itself may be what hangs, and so may a thread that the interpreter
would wait for at its end (a read of a disk that does not answer). What was answered is durable; the rest is unknown, as
after a crash, and the next leader recovers.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Final

import structlog

__all__ = ["StopBound"]

EXIT_CODE: Final = 6
CLOSING_SECONDS_MAX: Final = 5.0
"""What is kept of the time for answering and closing, after the log was drained."""

log = structlog.get_logger("holdfast.server")


class StopBound:
    """One stop, which takes at most ``seconds_max`` from ``begin`` on. With ``exits`` the process is ended then."""

    def __init__(self, seconds_max: float, *, exits: bool) -> None:
        self._seconds_max = seconds_max
        self._exits = exits
        self._began: float | None = None

    def begin(self) -> None:
        """The process is about to end. Only the first call counts."""
        if self._began is not None:
            return
        self._began = time.monotonic()
        if self._exits:
            timer = threading.Timer(self._seconds_max, self._give_up)
            timer.daemon = True
            timer.start()

    def seconds_left(self) -> float:
        """How long the stop may still take, at least a moment."""
        began = time.monotonic() if self._began is None else self._began
        return max(0.01, began + self._seconds_max - time.monotonic())

    def drain_seconds(self) -> float:
        """How long draining may take, so that there is time left to answer and to close."""
        return max(0.01, self.seconds_left() - min(CLOSING_SECONDS_MAX, self._seconds_max / 2))

    def _give_up(self) -> None:
        log.error("stop_given_up", seconds=self._seconds_max)
        sys.stderr.flush()
        os._exit(EXIT_CODE)
