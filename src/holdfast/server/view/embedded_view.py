"""The view that a leader keeps of its own log, for ``/v1/keys`` and ``/v1/range``.

A ``file:`` log keeps it in its own directory (``view/LOG_ID.sqlite``), so a restart continues it; a ``memory:`` log in
memory; other logs in a temporary directory, rebuilt by every leader. The log never depends on it. It shows durable
transactions only. In a damaged log it stops before the damage; commits go on.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Final
from urllib.parse import urlsplit

import msgspec
import structlog

from holdfast.commit.format.transaction import job_operations
from holdfast.commit.leadership.log_remains import view_directory
from holdfast.commit.reading.feed import EventBatch, FeedTransaction, StoresEvent
from holdfast.commit.subscription import FeedSource
from holdfast.errors import Closed, Code, CorruptData, Fenced, HoldfastError, InvalidRequest, Unavailable
from holdfast.files.temporary_files import temporary_directory
from holdfast.server.http.answers import Room
from holdfast.server.http.buffers import MARK_BYTES
from holdfast.server.http.responses import NOT_LEADING_RETRY_MS
from holdfast.server.view.child import ReadCounts, ViewChild
from holdfast.server.view.current_reads import CATCH_UP_SECONDS_MAX, CurrentReads, Each
from holdfast.server.view.messages import ViewDamage, ViewStart
from holdfast.view import View
from holdfast.view.newest_changes import NOT_HERE
from holdfast.view.sqlite import Table
from holdfast.view.storage import (
    PAGE_BYTES,
    Asked,
    KeyRange,
    Larger,
    Layer,
    Stored,
    ViewAnswer,
    ViewPage,
    answer_within,
    page_of,
    page_within,
    within,
)

MEMORY_BYTES: Final = 64 << 20
"""Of recent writes, by default."""


class EmbeddedView:
    """The view of the current leadership, when there is one."""

    def __init__(self, enabled: bool, start: ViewStart, subscribe: Subscribe, memory_bytes: int = MEMORY_BYTES) -> None:
        """``memory_bytes``: of the newest changes, in memory."""
        self.enabled = enabled
        self._memory_bytes = memory_bytes
        self.counts = ReadCounts()
        """What failed requests to the store cost it, since this process began."""
        self._start = start
        self._subscribe = subscribe
        self._kept: ViewChild | ViewInProcess | None = None
        self._reads: CurrentReads | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    # Reading

    def find_now(self, key: bytes, *, at: int) -> tuple[Stored | None, int] | None:
        """As ``get``, if it can be answered without waiting, else None."""
        reads = self._reads
        if reads is None:
            return None
        stored = reads.find_now(key, at)
        return None if stored is NOT_HERE else (stored, reads.recent.version)

    async def get(
        self, key: bytes, *, at: int, room: Room | None, table: Table = "latest"
    ) -> tuple[Stored | None, int]:
        """The key's value and the version that wrote it, and the version at which this is so, not older than ``at``.

        ``table``: of keys, or of jobs.

        ``room``: that of the answer, for which a large value waits; None for the service itself.
        Raises: InvalidRequest (view_disabled), Unavailable (view_behind, after ``CATCH_UP_SECONDS_MAX``), CorruptData,
        Backpressure.
        """
        answer_now = self.find_now(key, at=at) if table == "latest" else None
        if answer_now is not None:
            return answer_now
        answer = await self._read((key,), at, room, table, MARK_BYTES)
        result = answer.results[0]
        assert not isinstance(result, ViewPage), "a key has a value"
        return result, answer.version

    async def read_page(
        self, begin: bytes, end: bytes | None, limit: int, *, at: int, room: Room | None, table: Table = "latest"
    ) -> ViewPage:
        """At most ``limit`` keys of ``[begin, end)``, as far as a page goes. Raises: as ``get``."""
        answer = await self._read((KeyRange(begin, end, limit),), at, room, table, PAGE_BYTES)
        page = answer.results[0]
        assert isinstance(page, ViewPage), "a range has a page"
        return page._replace(version=answer.version)

    async def read(self, asked: Sequence[Asked], *, at: int, room: Room) -> Each:
        """Keys and ranges, all at one version: as many of the first as fit in a page.

        Where the view cannot be read, keys that memory has are answered, and the others have its error.
        Raises: as ``get``, where that is true of the version itself.
        """
        try:
            answer = await self._read(asked, at, room, "latest", MARK_BYTES)
        except (Unavailable, CorruptData) as error:
            if self._reads is None:
                raise
            return self._reads.known(asked, at, error)
        return Each(answer.version, answer.results)

    async def _read(
        self, asked: Sequence[Asked], at: int, room: Room | None, table: Table, bytes_max: int
    ) -> ViewAnswer:
        """The state at one version, for at least the first item. More than ``MARK_BYTES`` wait for room."""
        if bytes_max > MARK_BYTES and room is not None:
            await room.page()
        answer = await self._read_once(asked, at, table, bytes_max)
        if len(answer.results) < len(asked) and bytes_max < PAGE_BYTES:
            if room is not None:
                await room.page()
            answer = await self._read_once(asked, at, table, PAGE_BYTES)
        if asked and not answer.results:
            if room is not None:
                await room.alone()
            answer = await self._read_once(asked[:1], at, table, sys.maxsize)
        return answer

    async def _read_once(self, asked: Sequence[Asked], at: int, table: Table, bytes_max: int) -> ViewAnswer:
        if not self.enabled:
            raise InvalidRequest(
                "this service keeps no view",
                code=Code.VIEW_DISABLED,
                hint="set view.enabled, or subscribe and keep one",
            )
        kept, reads = self._kept, self._reads
        if kept is None or reads is None:
            raise self._behind(at)
        try:
            if table == "latest":
                return await reads.read(asked, at, bytes_max)
            async with asyncio.timeout(CATCH_UP_SECONDS_MAX):
                # Just after the start the view may still be opening.
                view = await kept.at(at)
            return await view.read(asked, table, bytes_max)
        except (Closed, sqlite3.Error, TimeoutError) as error:
            raise self._behind(at) from error

    def _behind(self, asked: int) -> Unavailable:
        return Unavailable(
            "the view has not come this far yet",
            code=Code.VIEW_BEHIND,
            retry_after_ms=NOT_LEADING_RETRY_MS,
            view_version=self.version,
            asked=asked,
        )

    @property
    def version(self) -> int:
        """Everything at or below is shown; 0 without a view."""
        return 0 if self._kept is None else self._kept.version

    @property
    def pid(self) -> int | None:
        """The process that keeps the view; None without one."""
        return self._kept.pid if isinstance(self._kept, ViewChild) else None

    # Following

    def follow(self, service: FeedSource, *, in_log_directory: bool = True) -> None:
        """Keep the view up with this leadership. Its file is next to the log, or it is temporary."""
        if not self.enabled:
            return
        if urlsplit(self._start.log_url).scheme == "memory":
            self._kept = ViewInProcess(service, self._subscribe)
        else:
            directory = view_directory(self._start.log_url) if in_log_directory else None
            start = msgspec.structs.replace(self._start, log_id=service.log_id)
            place = self._temporary_directory if directory is None else partial(str, directory)
            self._kept = ViewChild(start, service, self.counts, place)
        self._reads = CurrentReads(service, self._kept, self._memory_bytes)

    def _temporary_directory(self) -> str:
        """It stays for the next leadership of this process, whose view then goes on with the file."""
        self._temporary = self._temporary or temporary_directory("holdfast-view-")
        return self._temporary.name

    async def stop(self) -> None:
        """Stop following."""
        kept, self._kept, self._reads = self._kept, None, None
        if kept is not None:
            await kept.close()

    async def close(self) -> None:
        """Stop following, and release everything."""
        await self.stop()
        temporary, self._temporary = self._temporary, None
        if temporary is not None:
            await asyncio.to_thread(temporary.cleanup)


log = structlog.get_logger("holdfast.server.view")

YIELD_EVERY_BYTES: Final = 8 << 20
RETRY_SECONDS: Final = 1.0

Subscribe = Callable[[int, bool], AsyncIterator[EventBatch]]


class ViewInProcess:
    """One leadership's view in memory, with the records of jobs next to it."""

    def __init__(self, service: FeedSource, subscribe: Subscribe) -> None:
        self._service = service
        self._subscribe = subscribe
        self._view = View.memory()
        self._jobs = Layer(is_ground=True)
        self._damage: ViewDamage | None = None
        self._following = asyncio.get_running_loop().create_task(self._follow())

    @property
    def version(self) -> int:
        """Everything at or below is shown."""
        return self._view.version

    async def at(self, version: int) -> ViewInProcess:
        """The view, once it shows everything up to ``version``. Raises: Closed, CorruptData."""
        if self.version < version:
            reached = asyncio.ensure_future(self._view.reached(version))
            try:
                await asyncio.wait({reached, self._following}, return_when=asyncio.FIRST_COMPLETED)
                if self._damage is not None:
                    raise self._damage.error()
                if not reached.done():
                    raise Closed("this view is not kept any more")
                reached.result()
            finally:
                reached.cancel()
        return self

    async def read(self, asked: Sequence[Asked], table: Table, bytes_max: int) -> ViewAnswer:
        """As ``ViewFile.read``."""

        def find(key: bytes, left: int) -> Stored | Larger | None:
            return within(self._jobs.changes.get(key) if table == "jobs" else self._view.get(key), left)

        def read_page(asked: KeyRange, left: int) -> ViewPage | Larger:
            return page_within(self._page(asked, table, left), left)

        return answer_within(asked, self._view.version, find, read_page, bytes_max)

    def _page(self, asked: KeyRange, table: Table, bytes_max: int) -> ViewPage:
        begin, end, limit = asked
        if table == "latest":
            return self._view.read_page(begin, end, limit, bytes_max)
        entries = ((key, self._jobs.changes[key]) for key in self._jobs.walk(begin, end))
        rows = ((key, *stored) for key, stored in entries if stored is not None)
        return page_of(rows, self._view.version, limit, bytes_max)

    async def close(self) -> None:
        """Stop following."""
        self._following.cancel()
        await asyncio.wait({self._following})
        self._view.close()

    async def _follow(self) -> None:
        while not self._service.ended.done():
            try:
                await self._apply_stream()
            except (Fenced, Closed):
                return
            except CorruptData as error:
                log.error("view_stops_at_damage", error=str(error), view_version=self._view.version)
                self._damage = ViewDamage.of(error)
                return
            except HoldfastError as error:
                log.warning("view_interrupted", error=str(error))
            await asyncio.sleep(RETRY_SECONDS)

    async def _apply_stream(self) -> None:
        since_yield = 0
        async for batch in self._subscribe(self._view.version, True):
            for event in batch.events:
                if isinstance(event, FeedTransaction) and event.jobs and event.version > self._view.version:
                    self._jobs.apply(event.version, job_operations(event.jobs))
            # On the loop on purpose: a thread would hold the interpreter while commits wait for it.
            self._view.apply(event for event in batch.events if not isinstance(event, StoresEvent))
            since_yield += batch.size
            if since_yield >= YIELD_EVERY_BYTES:
                since_yield = 0
                await asyncio.sleep(0)
