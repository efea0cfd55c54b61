"""What a publisher tells while its store takes nothing: advisories, and a warning line from time to time.

The first warning comes after ``WARN_AFTER_MS``, the next ones each ``WARN_EVERY_MS``.

Failure model: pure but for the log. An exception of the callback is the application's.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from holdfast.client.stores.steps import Advisory
from holdfast.errors import Code, HoldfastError

__all__ = ["LOOK_EVERY_MS", "WARN_AFTER_MS", "WARN_EVERY_MS", "Blockage", "kind_of"]

WARN_AFTER_MS: Final = 5_000.0
WARN_EVERY_MS: Final = 60_000.0
LOOK_EVERY_MS: Final = 1_000.0
ADVISORIES_MAX: Final = 1_000
_OWN_KINDS: Final = frozenset({Code.STORE_FULL, Code.CLUSTER_FULL, Code.DISK_LIMIT, Code.NO_QUORUM})
_logger = logging.getLogger("holdfast.publisher")


def kind_of(error: HoldfastError) -> str:
    """The advisory of an error: that of a limit by its code, everything else as ``store_unavailable``."""
    return str(error.code) if error.code in _OWN_KINDS else "store_unavailable"


class Blockage:
    """Since when, and by what, one publisher is blocked."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._kind = ""
        self._reason = ""
        self._since_ms = self._warn_ms = 0.0
        self._advisories: deque[Advisory] = deque(maxlen=ADVISORIES_MAX)
        self.on_advisory: Callable[[Advisory], None] | None = None

    def met(self, kind: str, reason: str, since_ms: float) -> None:
        """A request was not confirmed, for a reason that may pass."""
        if not self._kind:
            self._since_ms, self._warn_ms = since_ms, since_ms + WARN_AFTER_MS
        self._reason = reason
        if kind != self._kind:
            self._kind = kind
            self._advise(Advisory(kind, {"store": self._store, "reason": reason}))

    def over(self, now_ms: float) -> None:
        """The store confirmed something."""
        if self._kind:
            self._kind = ""
            self._advise(
                Advisory("store_available", {"store": self._store, "blocked_ms": round(now_ms - self._since_ms)})
            )

    def look(self, now_ms: float, unsettled: int) -> None:
        """Write the warning that is due, if any."""
        if not self._kind or now_ms < self._warn_ms:
            return
        self._warn_ms = now_ms + WARN_EVERY_MS
        _logger.warning(
            "a publisher is blocked store=%s kind=%s seconds=%.0f unconfirmed=%d reason=%s",
            self._store,
            self._kind,
            (now_ms - self._since_ms) / 1000,
            unsettled,
            self._reason,
        )

    def take_advisories(self) -> list[Advisory]:
        """What was advised since the last call, oldest first; older than the last 1,000 are forgotten."""
        advisories = list(self._advisories)
        self._advisories.clear()
        return advisories

    def _advise(self, advisory: Advisory) -> None:
        self._advisories.append(advisory)
        if self.on_advisory is not None:
            self.on_advisory(advisory)
