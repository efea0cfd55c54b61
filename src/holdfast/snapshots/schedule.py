"""When a leader has a snapshot made: after so many bytes of log, after so much time, or when retention waits for one.

The snapshot itself is made by a process of its own (``make``), because it takes as much memory and processor time as
the state needs. A leader that dies meanwhile leaves it to end by itself: a snapshot that is made twice is one snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog

from holdfast.commit.format.batch import FIRST_SLOT, PREFIX, slot_of
from holdfast.commit.reading.lineage import lineage_of
from holdfast.commit.reading.reader import find_header
from holdfast.commit.service import CommitService
from holdfast.errors import HoldfastError
from holdfast.objects.port import ObjectStore, Pages
from holdfast.snapshots.manifest import Manifest
from holdfast.snapshots.reading import newest_snapshot

log = structlog.get_logger("holdfast.snapshots")

AGAIN_SECONDS: Final = 600.0
"""After a failure, before the next try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions:
    """``make`` makes the snapshot of the newest version, or raises HoldfastError. ``wanted``: one is awaited now."""

    every_bytes: int
    every_seconds: float
    check_seconds: float
    make: Callable[[], Awaitable[None]]
    wanted: Callable[[], bool]


class SnapshotSchedule:
    """The schedule of one leadership. ``run`` it until the leadership ends."""

    def __init__(self, service: CommitService, store: ObjectStore, options: ScheduleOptions) -> None:
        self._service = service
        self._store = store
        self._options = options
        self._newest: Manifest | None = None
        self._known = False
        self._bytes_before = 0
        """The bytes between the newest snapshot and the counter's value ``_counted``."""
        self._counted = 0
        self._made_ms = 0.0
        self.made = 0
        self.failed = 0

    def look_again(self) -> None:
        """A snapshot may have been made that this schedule did not ask for."""
        self._known = False

    async def run(self) -> None:
        """Look every ``check_seconds``. A failure is logged, and tried again after ``AGAIN_SECONDS``."""
        while True:
            pause = self._options.check_seconds
            try:
                reason = await self.reason()
                if reason is not None:
                    log.info("snapshot_begins", reason=reason)
                    await self._options.make()
                    self.made += 1
                    self._known = False
            except HoldfastError as error:
                self.failed += 1
                log.warning("snapshot_failed", error=str(error))
                pause = max(pause, AGAIN_SECONDS)
            await asyncio.sleep(pause)

    async def reason(self) -> str | None:
        """Why a snapshot is to be made now, None for not now. Raises: Unavailable, CorruptData."""
        head = self._service.durable_header()
        if not self._known:
            await self._look_back()
        if self._newest is not None and self._newest.last_transaction >= head.last_transaction_version:
            return None
        if self._newest is None and not head.last_transaction_version:
            return None
        if self._options.wanted():
            return "retention"
        if self._bytes_before + self._written() - self._counted >= self._options.every_bytes:
            return "bytes"
        if self._service.moment().time_ms - self._made_ms >= self._options.every_seconds * 1000.0:
            return "age"
        return None

    def _written(self) -> int:
        return self._service.pipeline.persist.counters.bytes

    async def _look_back(self) -> None:
        """Find the newest snapshot, its time, and how many bytes the log has after it (no more than matter)."""
        service = self._service
        head = service.durable_header()
        lineage = await lineage_of(self._store, service.claim)
        self._newest = await newest_snapshot(self._store, lineage, head.last_version)
        slot = FIRST_SLOT if self._newest is None else int(self._newest.slot)
        self._counted = self._written()
        self._bytes_before = 0
        async for rows in Pages(self._store, PREFIX):
            newer = [row for row in rows if (number := slot_of(row.key)) is not None and number < slot]
            self._bytes_before += sum(row.size for row in newer)
            if len(newer) < len(rows) or self._bytes_before >= self._options.every_bytes:
                break
        header = await find_header(self._store, slot)
        # Where retention removed the object, the snapshot is older than everything that stays.
        self._made_ms = 0.0 if header is None else header.time_ms
        self._known = True
