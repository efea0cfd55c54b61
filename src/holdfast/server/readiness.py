"""Whether this process should be sent commits now: what ``/readyz`` answers.

Owns: the reasons for not being ready, in the order they are looked for. Does not own: refusing a commit (``front`` and
``commit.service``, which refuse with Retry-After for some of these reasons: a brown-out is back-pressure and no end).

    not_leader         another process leads, or nobody yet
    overloaded         stopping
    store_unavailable  the oldest batch, or the question who owns the log, has waited for the store for too long, or
                       nothing is heard from the store
    overloaded         as full as it may be

Message stores that are not open are no reason: who balances commits must not take a leader away from them because
another process still has its stores. ``/readyz`` tells their condition, and ``/readyz?stores=true`` asks for them, too.

Failure model: pure but for two clocks; nothing is asked of the store, so it answers while the store hangs. It recovers
by itself: a leader sends its batches again, and an idle one looks at its store every few seconds.
"""

from __future__ import annotations

import time
from typing import Final

from holdfast.commit.leadership.takeover import now
from holdfast.commit.service import CommitService
from holdfast.errors import Code, HoldfastError, Unavailable
from holdfast.objects.budget import StoreMetrics
from holdfast.server.gateway import Front

__all__ = ["STALLED_MS_MAX", "StoreWatch"]

STALLED_MS_MAX: Final = 3_000.0
"""Far above a slow request to a cloud store, far below giving up."""
RETRY_AFTER_MS: Final = 1_000


class StoreWatch:
    """Looks at what the parts of one serving process know. ``service`` is None while it does not lead."""

    def __init__(self, front: Front, *, stalled_ms_max: float = STALLED_MS_MAX) -> None:
        self._front = front
        self._stalled_ms_max = stalled_ms_max
        self.service: CommitService | None = None
        self.store: StoreMetrics | None = None

    def problem(self) -> HoldfastError | None:
        """None when commits are welcome and get through, else why not."""
        problem = self._front.admission()
        if problem is not None and (problem.code is not Code.OVERLOADED or self._front.draining):
            return problem
        # Before a refusal of commits: it says what the store does.
        return self._stalled_batch() or self._unanswered_check() or self._silent_store() or problem

    def damage(self) -> str | None:
        """The newest damage that anything met in the log under this leader, None for none."""
        return None if self.service is None else self.service.damage.newest

    def _stalled_batch(self) -> HoldfastError | None:
        service = self.service
        if service is None or not (in_flight := service.pipeline.persist.in_flight):
            return None
        waited_ms = now().boot_ms - in_flight[0].formed_ms
        if waited_ms <= self._stalled_ms_max:
            return None
        return self._unavailable("the oldest batch waits for the store", waited_ms)

    def _unanswered_check(self) -> HoldfastError | None:
        """An idle leader has no batch that could stall, and its first request into a black hole takes long to fail."""
        service = self.service
        if service is None or (since_ms := service.pipeline.unproved_since_ms) is None:
            return None
        waited_ms = now().boot_ms - since_ms
        if waited_ms <= self._stalled_ms_max:
            return None
        return self._unavailable("the store does not tell who owns the log", waited_ms)

    def _silent_store(self) -> HoldfastError | None:
        store = self.store
        if store is None or store.is_healthy or store.last_success_seconds is None:
            return None  # before its first answer nobody leads
        silent_ms = (time.monotonic() - store.last_success_seconds) * 1000
        if silent_ms <= self._stalled_ms_max:
            return None
        return self._unavailable("the store does not answer", silent_ms)

    def _unavailable(self, what: str, waited_ms: float) -> HoldfastError:
        # Anybody may ask; where that is not everybody's service, what a store says is for the log alone.
        failure = "" if self.store is None or self._front.authenticator.required else self.store.last_failure
        return Unavailable(
            what,
            code=Code.STORE_UNAVAILABLE,
            retry_after_ms=RETRY_AFTER_MS,
            waited_ms=round(waited_ms),
            cause=failure or None,
        )
