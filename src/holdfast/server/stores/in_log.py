"""The stores of a log that holds them: brought up to date by a new leader, and written to the log from then on.

Their directory here is a cache, ``DIRECTORY/LOG ID/ADDRESS``: the log alone says what is in the stores, so it may be
removed while the service does not run, and a machine that never had it makes it from the log.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Final
from urllib.parse import quote

import structlog

from holdfast.commit.format.batch import LoggedEntry, StoresMode
from holdfast.commit.reading.entries import entries_before
from holdfast.commit.reading.lineage import lineage_of
from holdfast.commit.reading.reader import find_frontier
from holdfast.commit.service import CommitService
from holdfast.commit.stages.events import Records
from holdfast.errors import Code, CorruptData, HoldfastError, InvalidRequest, NotFound
from holdfast.objects.port import ObjectStore
from holdfast.private_files import make_private_directory
from holdfast.settings import StoresSettings
from holdfast.stores.checkpoint_objects import KeptCheckpoints, fetch_newest, make_checkpoint
from holdfast.stores.clock import StoreClock
from holdfast.stores.followed import FollowedStores
from holdfast.stores.log_commit import Durable
from holdfast.stores.service import StoreService

PROGRESS_SECONDS: Final = 5.0
APPLIED_BYTES: Final = 4 << 20
"""Entries are applied on a thread in groups of about this size."""

_log = structlog.get_logger("holdfast.stores")


async def require_durability(store: ObjectStore, settings: StoresSettings) -> None:
    """Return if this process may lead the log with these settings. Raises: InvalidRequest; as ``find_frontier``."""
    frontier = await find_frontier(store)
    if frontier is None:
        return
    mode = frontier[0].stores_mode.name.lower()
    if settings.durability not in (None, mode):
        raise InvalidRequest(
            f"the stores of this log are of durability {mode}, which was decided when the log began",
            code=Code.BAD_CONFIGURATION,
            hint=f"leave stores.durability out, or set it to {mode}",
            key="stores.durability",
            value=settings.durability,
        )
    if mode == "log" and settings.hosted is None:
        raise InvalidRequest(
            "the log has stores, and this service would serve none",
            code=Code.BAD_CONFIGURATION,
            hint="set stores.directory to a directory on a local disk (the service keeps a copy of the stores there), "
            "and stores.enabled to true",
            key="stores.directory",
        )


class LogJournal:
    """The log as the stores' journal."""

    def __init__(self, service: CommitService) -> None:
        self._service = service

    def write(self, records: list[tuple[str, bytes]], durable: Durable) -> None:
        """See ``stores.log_commit.Journal``."""

        def reply(error: HoldfastError | None) -> None:
            durable(entry.version if error is None else error)

        entry = Records(records, reply)
        self._service.record(entry)


async def open_in_log(directory: str, leader: CommitService, settings: StoresSettings) -> StoreService:
    """The stores as of the claim of ``leader``, which they belong to from now on.

    Raises: AlreadyOpen when another process has the directory; NotFound (``log_truncated``); what reading the log and
    opening the directory raise.
    """
    assert leader.claim.stores_mode is StoresMode.LOG, "the log has stores"
    cache = os.path.join(directory, leader.log_id, quote(leader.address, safe=":[]"))
    make_private_directory(os.path.dirname(cache))
    if not await asyncio.to_thread(os.path.isdir, cache):
        await _begin_with_checkpoint(cache, leader)
    try:
        stores = await _up_to_date(cache, leader, settings)
    except (CorruptData, NotFound) as error:
        # Damaged files, records that give another result with this code, or a log that was truncated meanwhile.
        _log.warning("stores_made_again", directory=cache, error=error.statement())
        await asyncio.to_thread(FollowedStores.remove, cache)
        await _begin_with_checkpoint(cache, leader)
        stores = await _up_to_date(cache, leader, settings)
    return stores.lead(LogJournal(leader), StoreClock(follows_wall=settings.clock == "wall"))


async def _begin_with_checkpoint(cache: str, leader: CommitService) -> None:
    """Make the cache of the newest checkpoint, if there is one."""
    began = time.monotonic()
    lineage = await lineage_of(leader.store, leader.claim)
    made = await fetch_newest(leader.store, lineage, leader.claim.last_version, cache)
    if made is not None:
        seconds = round(time.monotonic() - began, 2)
        _log.info("stores_begin_with_checkpoint", version=made.version, bytes=made.size, seconds=seconds)


async def _up_to_date(cache: str, leader: CommitService, settings: StoresSettings) -> FollowedStores:
    stores = await asyncio.to_thread(
        FollowedStores.open, cache, page_bytes=settings.page_size_bytes, memory_bytes=settings.memory_bytes
    )
    progress = _Progress(stores.version, leader.claim.last_version)
    waiting: list[LoggedEntry] = []
    waiting_bytes = 0
    try:
        async with aclosing(entries_before(leader.store, leader.claim, after=stores.version)) as batches:
            async for header, entries in batches:
                waiting += entries
                waiting_bytes += header.body_length
                if waiting_bytes >= APPLIED_BYTES:
                    await asyncio.to_thread(stores.follow, _plain(waiting))
                    progress.tell(stores.version)
                    waiting, waiting_bytes = [], 0
        await asyncio.to_thread(stores.follow, _plain(waiting))
    except BaseException:
        await asyncio.to_thread(stores.close)
        raise
    _log.info("stores_up_to_date", version=stores.version, seconds=round(progress.seconds(), 2))
    return stores


def _plain(entries: Sequence[LoggedEntry]) -> list[tuple[int, list[bytes]]]:
    return [(entry.version, [record for _, record in entry.records]) for entry in entries]


class _Progress:
    def __init__(self, first: int, last: int) -> None:
        self._first = first
        self._last = last
        self._began = self._told = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self._began

    def tell(self, version: int) -> None:
        if time.monotonic() - self._told >= PROGRESS_SECONDS:
            self._told = time.monotonic()
            _log.info("stores_follow_the_log", version=version, last_version=self._last)


LOOK_SECONDS: Final = 5.0
AGAIN_SECONDS: Final = 60.0
"""After a failure, before the next try."""
KEEP: Final = 2
STRAY_MS: Final = 86_400_000.0


class CheckpointSchedule:
    """When a leader makes a checkpoint of its stores: after so many bytes, after so much time, or for retention.

    ``run`` it until the leadership ends.
    """

    def __init__(
        self, service: StoreService, leader: CommitService, settings: StoresSettings, *, wanted: Callable[[], bool]
    ) -> None:
        """``wanted``: retention waits for one."""
        self._service = service
        self._leader = leader
        self._settings = settings
        self._wanted = wanted
        self._kept: KeptCheckpoints | None = None
        self._bytes = service.written_bytes
        self._made = time.monotonic()
        self._is_known = False
        self.count = 0

    async def run(self) -> None:
        """Look from time to time. A failure is logged, and tried again."""
        while True:
            pause = LOOK_SECONDS
            try:
                if self._is_due():
                    await self._make()
            except (HoldfastError, OSError) as error:
                if self._leader.ended.done():
                    return
                _log.warning("stores_checkpoint_failed", error=str(error))
                pause = AGAIN_SECONDS
            await asyncio.sleep(pause)

    def _is_due(self) -> bool:
        written = self._service.written_bytes - self._bytes
        if not written and self.count:
            return False
        passed = time.monotonic() - self._made
        settings = self._settings
        return (
            written >= settings.checkpoint_bytes
            or (written > 0 and passed >= settings.checkpoint_seconds)
            or self._wanted()
        )

    async def _make(self) -> None:
        began = time.monotonic()
        self._bytes = self._service.written_bytes
        made = await make_checkpoint(self._service, self._leader.store, self._leader.log_id)
        self._made = time.monotonic()
        self.count += 1
        seconds = round(self._made - began, 2)
        _log.info("stores_checkpoint_made", version=made.version, bytes=made.size, seconds=seconds)

    async def oldest(self) -> int:
        """From which version on the stores need the log: that of the oldest checkpoint that is kept, 0 without one.

        Raises: Unavailable, CorruptData.
        """
        if self._kept is None:
            lineage = await lineage_of(self._leader.store, self._leader.claim)
            self._kept = KeptCheckpoints(self._leader.store, lineage, keep=KEEP, stray_ms=STRAY_MS)
        return await self._kept.oldest(time.monotonic() * 1000.0) or 0
