"""Which messages were handed to the application, and when the service is told so.

The service counts the delivery of a message that was started. A report is exact where that matters: it is written
before the message is handed out for the first ``EXACT_MESSAGES`` of a connection, and for every message that was
delivered before. After that one report goes out each ``INTERVAL_MS``, so that reports cost little under load.

Failure model: pure. What is not reported when the connection ends does not count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from holdfast.client.stores.wire import started_frame
from holdfast.stores.values.messages import Delivery

__all__ = ["EXACT_MESSAGES", "INTERVAL_MS", "StartedReports"]

EXACT_MESSAGES: Final = 1_024
INTERVAL_MS: Final = 1.0


class StartedReports:
    """The reports of one subscriber."""

    def __init__(self) -> None:
        self._is_taken = False
        self._exact_left = 0
        self._ranges: list[list[int]] = []
        self._since_ms = math.inf
        self.is_exact = False
        """Whether what was taken last is to be reported before it is handed out."""

    @property
    def due_ms(self) -> float:
        """When what waits has to be reported."""
        return self._since_ms if not self._ranges else (-math.inf if self.is_exact else self._since_ms + INTERVAL_MS)

    def begin(self, *, is_taken: bool) -> None:
        """A connection begins. ``is_taken``: the service takes reports, and is told at once that they will come."""
        self._is_taken = is_taken
        self._exact_left = EXACT_MESSAGES
        self.lost()

    def lost(self) -> None:
        """The connection is gone: what it delivered is delivered again."""
        self._ranges, self._since_ms, self.is_exact = [], math.inf, False

    def took(self, messages: Sequence[Delivery], now_ms: float) -> None:
        """The application is about to get these."""
        if not self._is_taken or not messages:
            return
        self.is_exact = self._exact_left > 0 or any(message.redelivered for message in messages)
        self._exact_left = max(0, self._exact_left - len(messages))
        if not self._ranges:
            self._since_ms = now_ms
        for message in messages:
            if self._ranges and self._ranges[-1][1] + 1 == message.seq:
                self._ranges[-1][1] = message.seq
            else:
                self._ranges.append([message.seq, message.seq])

    def take_frame(self) -> bytes | None:
        """The report of everything that waits, None where nothing does."""
        if not self._ranges:
            return None
        frame = started_frame(self._ranges)
        self.lost()
        return frame
