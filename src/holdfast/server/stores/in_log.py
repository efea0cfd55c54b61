"""The stores of a log that holds them: brought up to date by a new leader, and written to the log from then on.

Their directory here is a cache, ``DIRECTORY/LOG ID/ADDRESS``: the log alone says what is in the stores, so it may be
removed while the service does not run, and a machine that never had it makes it from the log.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Final
from urllib.parse import quote

import structlog

from holdfast.commit.format.batch import LoggedEntry, StoresMode
from holdfast.commit.reading.entries import entries_before
from holdfast.commit.reading.reader import find_frontier
from holdfast.commit.service import CommitService
from holdfast.commit.stages.events import Records
from holdfast.errors import Code, CorruptData, HoldfastError, InvalidRequest
from holdfast.objects.port import ObjectStore
from holdfast.private_files import make_private_directory
from holdfast.settings import StoresSettings
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
    try:
        stores = await _up_to_date(cache, leader, settings)
    except CorruptData as error:
        # Damaged files, or records that give another result with this code: the log decides which.
        _log.warning("stores_made_again", directory=cache, error=error.statement())
        await asyncio.to_thread(FollowedStores.remove, cache)
        stores = await _up_to_date(cache, leader, settings)
    return stores.lead(LogJournal(leader), StoreClock(follows_wall=settings.clock == "wall"))


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
