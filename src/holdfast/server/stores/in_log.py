"""The stores of a log that holds them: brought up to date by a new leader, and written to the log from then on.

Their directory here is a cache, ``DIRECTORY/LOG ID/ADDRESS``: the log alone says what is in the stores, so it may be
removed while the service does not run, and a machine that never had it makes it from the log.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import quote

import structlog

from holdfast.commit.following import FollowedLog
from holdfast.commit.format.batch import Header, LoggedEntry, StoresMode
from holdfast.commit.reading.entries import Entries
from holdfast.commit.reading.lineage import lineage_of
from holdfast.commit.reading.reader import find_frontier
from holdfast.commit.service import CommitService
from holdfast.errors import Code, CorruptData, HoldfastError, InvalidRequest, NotFound, Unavailable
from holdfast.objects.port import ObjectStore
from holdfast.settings import StoresSettings
from holdfast.stores.checkpoint_objects import KeptCheckpoints, fetch_newest, make_checkpoint
from holdfast.stores.clock import HEARD_MS, TRUSTED_MS, Anchor, ByLog, StoreClock, anchor_now, read_anchor
from holdfast.stores.followed import FollowedStores
from holdfast.stores.service import StoreService

PROGRESS_SECONDS: Final = 5.0
FOLLOW_AGAIN_SECONDS: Final = 5.0
"""After a refusal of this machine's disk, until a standby opens its copy again."""
APPLIED_BYTES: Final = 4 << 20
"""Entries are applied on a thread in groups of about this size."""

_log = structlog.get_logger("holdfast.stores")


async def require_durability(store: ObjectStore, settings: StoresSettings) -> None:
    """Return if this process may lead the log with these settings. Raises: InvalidRequest; as ``find_frontier``."""
    frontier = await find_frontier(store)
    if frontier is None:
        return
    mode = frontier[0].stores_mode.durability
    if settings.durability not in (None, mode):
        raise InvalidRequest(
            f"the stores of this log are of durability {mode}",
            code=Code.BAD_CONFIGURATION,
            hint=f"leave stores.durability out, or set it to {mode}; `holdfast stores move --to "
            f"{settings.durability}` moves the stores of a log that no service leads",
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


async def open_in_log(copy: LocalCopy, leader: CommitService, settings: StoresSettings) -> StoreService:
    """The stores as of the claim of ``leader``, which they belong to from now on.

    Raises: AlreadyOpen when another process has the directory; NotFound (``log_truncated``); what reading the log and
    opening the directory raise.
    """
    assert leader.claim.stores_mode is StoresMode.LOG, "the log has stores"
    stores = await copy.bring_up_to(leader.claim, leader.claim)
    own = await asyncio.to_thread(read_anchor, copy.directory)
    known = known_time(stores.last_ms, leader.moment().time_ms, copy.newest, copy.heard, own)
    copy.give_away()
    return stores.lead(
        leader,
        StoreClock(follows_wall=settings.clock == "wall"),
        *known,
        log_id=leader.log_id,
        leader=leader.leader_id,
    )


class Heard(NamedTuple):
    """When a standby first knew of a record. ``at_once``: it was following when the record was made. Otherwise that may
    be long ago."""

    anchor: Anchor
    at_once: bool


def known_time(
    last_ms: int, log_ms: int, newest: Header | None, heard: Heard | None, own: Anchor | None
) -> tuple[list[Anchor], ByLog | None]:
    """What is known of the stores' time, for ``StoreClock.start``, when the log's is ``log_ms``.

    ``newest``: of the object with the last record, which is of ``last_ms``; None where no object has it. ``own``: the
    anchor of this directory.
    """
    if newest is None:
        return [], None
    anchors: list[Anchor] = []
    if heard is not None and heard.anchor.store_ms >= last_ms:  # else the time of later records says how far they were
        anchors.append(heard.anchor)
    if own is not None and own.leader == newest.leader_id.hex():  # else another leader's stores may have lost time
        anchors.append(own)
    most_ms = HEARD_MS if heard is not None and heard.at_once else TRUSTED_MS
    return anchors, ByLog(last_ms + log_ms - newest.time_ms, most_ms)


class LocalCopy:
    """This machine's copy of the stores of a log: kept up to date while another process leads, and served afterwards.

    Its directory is ``DIRECTORY/LOG ID/ADDRESS``. A copy that cannot be used is removed and made again: of the newest
    checkpoint, or from the beginning of the log.
    """

    def __init__(self, store: ObjectStore, settings: StoresSettings, log_id: str, address: str) -> None:
        assert settings.hosted is not None, "the service hosts stores"
        self.directory = os.path.join(settings.hosted, log_id, quote(address, safe=":[]"))
        self._store = store
        self._settings = settings
        self._stores: FollowedStores | None = None
        self._entries = Entries(store)
        self._running: asyncio.Future[FollowedStores | None] | None = None
        self.heard: Heard | None = None
        """The last record that this process knows of as a standby; None: it has not stood by. At a take-over the time
        goes on from there by this process's own count."""
        self._keeps_up = False
        """Whether what it hears next was made a moment ago: it has heard everything, and nothing failed since."""
        self.newest: Header | None = None
        """Of the newest object in which the stores did something: its time is that of the last record, or later."""

    async def keep_up(self, followed: FollowedLog) -> None:
        """Follow the log with ``followed`` until that ends.

        A disk that refuses is logged once, and tried again. Another error is logged and ends it; the next call goes on.
        """
        reported = ""
        while not followed.ended.done():
            try:
                await self._keep_up(followed)
                return
            except (HoldfastError, OSError) as error:
                self._keeps_up = False
                problem = str(error.code if isinstance(error, HoldfastError) else error.errno)
                if problem != reported:
                    reported = problem
                    _log.warning("stores_do_not_follow", directory=self.directory, error=str(error))
                if not isinstance(error, Unavailable | OSError):
                    return
            await asyncio.sleep(FOLLOW_AGAIN_SECONDS)

    async def _keep_up(self, followed: FollowedLog) -> None:
        newest: Header | None = None
        while not followed.ended.done():
            position = followed.feed.durable.end
            if newest is not (newest := followed.durable_header()):
                stores = await self.bring_up_to(followed.claim, newest)
                if self.heard is None or stores.last_ms > self.heard.anchor.store_ms:
                    await self._hear(stores.last_ms)
                self._keeps_up = True
            await followed.feed.durable.wait(position)

    async def _hear(self, last_ms: int) -> None:
        now = await asyncio.to_thread(anchor_now, last_ms)
        if now is not None:
            self.heard = Heard(now, at_once=self._keeps_up)

    async def bring_up_to(self, claim: Header, newest: Header) -> FollowedStores:
        """Apply all that the stores did up to ``newest``. Raises: as ``open_in_log``."""
        try:
            return await self._bring_up_to(claim, newest)
        except (CorruptData, NotFound) as error:
            # Damaged files, records that give another result with this code, or a log that was truncated meanwhile.
            _log.warning("stores_made_again", directory=self.directory, error=error.statement())
            await self.close()
            await asyncio.to_thread(FollowedStores.remove, self.directory)
            return await self._bring_up_to(claim, newest)

    async def _bring_up_to(self, claim: Header, newest: Header) -> FollowedStores:
        await self._settle()
        stores = self._stores
        if stores is None:
            stores = await self._open(claim, newest)
            self._entries = Entries(self._store)
        progress = _FollowProgress(newest.last_version)
        waiting: list[LoggedEntry] = []
        waiting_bytes = 0
        async with aclosing(self._entries.through(claim, newest, after=stores.version or 0)) as batches:
            async for header, entries in batches:
                self.newest = header
                waiting += entries
                waiting_bytes += header.body_length
                if waiting_bytes >= APPLIED_BYTES:
                    await self._apply(stores, waiting)
                    progress.tell(stores.version or 0)
                    waiting, waiting_bytes = [], 0
        await self._apply(stores, waiting)
        progress.end(stores.version or 0)
        return stores

    async def _open(self, claim: Header, newest: Header) -> FollowedStores:
        if not await asyncio.to_thread(os.path.isdir, self.directory):
            began = time.monotonic()
            lineage = await lineage_of(self._store, claim)
            start = await fetch_newest(self._store, lineage, newest.last_version, self.directory)
            if start is not None:
                seconds = round(time.monotonic() - began, 2)
                _log.info("stores_begin_with_checkpoint", version=start.version, bytes=start.size, seconds=seconds)
        page, memory = self._settings.page_size_bytes, self._settings.memory_bytes
        await self._run(partial(FollowedStores.open, self.directory, page_bytes=page, memory_bytes=memory))
        assert self._stores is not None, "they are open"
        return self._stores

    async def _apply(self, stores: FollowedStores, entries: Sequence[LoggedEntry]) -> None:
        if entries:
            plain = [(entry.version, [record for _, record in entry.records]) for entry in entries]
            await self._run(partial(stores.follow, plain))

    async def _run(self, work: Callable[[], FollowedStores | None]) -> None:
        """On a thread, which cannot be stopped: a caller that is cancelled leaves it, and the next one waits for it."""
        running = self._running = asyncio.ensure_future(asyncio.to_thread(work))
        await asyncio.shield(asyncio.wait({running}))
        await self._settle()
        running.result()

    async def _settle(self) -> None:
        """Wait for what was left. Stores that it opened are kept. Stores that could not apply it are half changed: they
        are opened again."""
        running = self._running
        if running is None:
            return
        await asyncio.wait({running})
        self._running = None
        if running.exception() is not None:
            await self.close()
        elif (opened := running.result()) is not None:
            self._stores = opened

    def give_away(self) -> None:
        """The stores are served: they are not this object's any more, and what it heard ends with them."""
        self._stores = self.heard = None
        self._keeps_up = False

    async def close(self) -> None:
        """Close the files."""
        await self._settle()
        stores, self._stores = self._stores, None
        if stores is not None:
            await asyncio.to_thread(stores.close)


class _FollowProgress:
    def __init__(self, last: int) -> None:
        self._last = last
        self._began = self._told = time.monotonic()

    def tell(self, version: int) -> None:
        if time.monotonic() - self._told >= PROGRESS_SECONDS:
            self._told = time.monotonic()
            _log.info("stores_follow_the_log", version=version, last_version=self._last)

    def end(self, version: int) -> None:
        seconds = time.monotonic() - self._began
        if seconds >= PROGRESS_SECONDS:
            _log.info("stores_up_to_date", version=version, seconds=round(seconds, 2))


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
        written = self._service.written_bytes
        checkpoint = await make_checkpoint(self._service, self._leader.store, self._leader.log_id)
        self._bytes = written
        self._made = time.monotonic()
        self.count += 1
        seconds = round(self._made - began, 2)
        _log.info("stores_checkpoint_made", version=checkpoint.version, bytes=checkpoint.size, seconds=seconds)

    async def oldest(self, held: Collection[int]) -> int:
        """From which version on the stores need the log: that of the oldest checkpoint that is kept, 0 without one.

        ``held``: checkpoints that a hold names.

        Raises: Unavailable, CorruptData.
        """
        if self._kept is None:
            lineage = await lineage_of(self._leader.store, self._leader.claim)
            self._kept = KeptCheckpoints(self._leader.store, lineage, keep=KEEP, stray_ms=STRAY_MS)
        return await self._kept.oldest(time.monotonic() * 1000.0, held) or 0
