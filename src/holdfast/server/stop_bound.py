"""The time that a stop of the process may take."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Final

import structlog

log = structlog.get_logger("holdfast.server")


CLOSING_SECONDS_MAX: Final = 5.0
"""Reserved for replies and closing, after the log was drained."""


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
        os._exit(6)
