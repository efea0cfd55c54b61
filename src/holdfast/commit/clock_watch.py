"""The leader's watch over its wall clock: show a step in the log, and accept it on the word of a better one.

every look                what happens
a step began or ended     an empty batch shows it, at most one a minute
the clock is doubted      the operator's records are read; the store's clock is asked once a minute
either says it is right   the log's time follows the wall clock again
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from holdfast.commit.leadership.accepted_clocks import read_accepted, remove_accepted
from holdfast.commit.leadership.takeover import Clock
from holdfast.commit.service import CommitService
from holdfast.errors import HoldfastError
from holdfast.objects.port import ObjectStore
from holdfast.objects.store_clock import AGREES_MS, compare_with_store
from holdfast.values import Instant

log = structlog.get_logger("holdfast.commit.clock_watch")

LOOK_SECONDS: Final = 5.0
MINUTE_MS: Final = 60_000.0
WARN_AGAIN_MS: Final = 3_600_000.0
HINT: Final = "set the machine's clock right; where it is right now, run `holdfast log clock accept`"


class ClockWatch:
    """One leadership's watch. ``run`` it until the leadership ends."""

    def __init__(self, service: CommitService, store: ObjectStore, clock: Clock) -> None:
        self._service = service
        self._store = store
        self._clock = clock
        self._shown_ms = self._asked_ms = -MINUTE_MS
        self._warned_ms = -WARN_AGAIN_MS
        self._followed: list[str] = []

    async def run(self) -> None:
        """Look every ``LOOK_SECONDS``. Errors of the store are logged, and tried again."""
        while not self._service.ended.done():
            try:
                await self.look()
            except HoldfastError as error:
                log.warning("clock_watch_waits", error=str(error))
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """One round of the table above. Raises: Unavailable."""
        moment, head, boot_ms = self._service.moment(), self._service.durable_header(), self._clock().boot_ms
        is_shown = (moment.doubted, moment.clock_steps) == (head.doubts_clock, head.clock_steps)
        if not is_shown and boot_ms - self._shown_ms >= MINUTE_MS:
            self._shown_ms = boot_ms
            self._service.show_clock()
        if not moment.doubted:
            self._warned_ms = -WARN_AGAIN_MS
            if self._followed and is_shown:
                followed, self._followed = self._followed, []
                await remove_accepted(self._store, followed)
            return
        if boot_ms - self._warned_ms >= WARN_AGAIN_MS:
            self._warned_ms = boot_ms
            log.warning("clock_stepped", seconds=moment.step_ms // 1000, hint=HINT)
        by, clocks = await self._accepted_by(boot_ms)
        if clocks is not None:
            self._service.accept_clock(clocks)
            log.info("clock_accepted", by=by, seconds=moment.step_ms // 1000)

    async def _accepted_by(self, boot_ms: float) -> tuple[str, Instant | None]:
        """Who says that the wall clock is right, and when: it may be set again before the answer is here.

        Nobody: None. Raises: Unavailable.
        """
        claim = self._service.claim
        for key, record in (await read_accepted(self._store)).items():
            now = self._clock()
            if record.fits(claim.scope.boot_id, claim.leader_id, now):
                self._followed.append(key)
                return "operator", now
        if boot_ms - self._asked_ms < MINUTE_MS:
            return "", None
        self._asked_ms = boot_ms
        compared = await compare_with_store(self._store, self._clock)
        if compared is None or abs(compared.ahead_ms) > AGREES_MS:
            return "", None
        return "store", compared.asked
