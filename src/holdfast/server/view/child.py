"""The server's side of its view process: starting it, announcing durable slots, reading the file it keeps.

A process, because the view would take 5 microseconds a commit from the leader's interpreter. The leader sends at most
one announcement per round trip and per ``PACE_SECONDS`` while no reader waits. A process that ends is started again
after a growing pause. A report follows the file's transaction, so a read that begins after it sees that version. After
damage of the log the file stays readable, and a reader of a later version gets the damage at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import sqlite3
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import structlog

from holdfast.commit.subscription import FeedSource
from holdfast.errors import Closed, HoldfastError
from holdfast.files.durable_directory import make_durable_directory
from holdfast.server.children.background_process import KILLED_SECONDS, STOP_SECONDS, BackgroundProcess
from holdfast.server.view.messages import Announcement, ViewDamage, ViewReport, ViewStart
from holdfast.view.sqlite import Table, open_for_readers
from holdfast.view.storage import PAGE_BYTES, Asked, KeyRange, Larger, Row, Stored, ViewAnswer, ViewPage, answer_within

PACE_SECONDS: Final = 0.1
READ_THREADS: Final = 2
RESTART_SECONDS: Final = (0.1, 5.0)
"""The first and the longest pause before a new process."""
SETTLED_SECONDS: Final = 30.0
CLOSE_SECONDS: Final = STOP_SECONDS + KILLED_SECONDS + 5.0

log = structlog.get_logger("holdfast.server.view")

T = TypeVar("T")


class ViewFile:
    """Reads of one view's file, in a few threads with a connection each. Every read is of one position."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._threads = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="holdfast-view")
        self._own = threading.local()
        self._connections: list[sqlite3.Connection] = []

    async def read(self, asked: Sequence[Asked], table: Table, bytes_max: int) -> ViewAnswer:
        """What the file has, all of one version. Raises: Closed, sqlite3.Error."""

        def read(connection: sqlite3.Connection) -> ViewAnswer:
            connection.execute("BEGIN")
            try:
                (version,) = connection.execute("SELECT version FROM position").fetchone()
                return answer_within(
                    asked,
                    version,
                    partial(_find, connection, table),
                    partial(_read_page, connection, table, version),
                    bytes_max,
                )
            finally:
                connection.execute("COMMIT")

        return await self._run(read)

    async def _run(self, read: Callable[[sqlite3.Connection], T]) -> T:
        def in_thread() -> T:
            connection: sqlite3.Connection | None = getattr(self._own, "connection", None)
            if connection is None:
                connection = self._own.connection = open_for_readers(self._path)
                self._connections.append(connection)
            return read(connection)

        try:
            reading = self._threads.submit(in_thread)
        except RuntimeError:
            raise Closed("this file is not read any more") from None
        return await asyncio.wrap_future(reading)

    def close(self) -> None:
        """Let go of the file once the reads under way are done."""
        self._threads.shutdown()
        for connection in self._connections:
            connection.close()


def _find(connection: sqlite3.Connection, table: Table, key: bytes, bytes_max: int) -> Stored | Larger | None:
    row: tuple[bytes | None, int, int] | None = connection.execute(
        f"SELECT CASE WHEN length(value) <= ? THEN value END, version, length(value) FROM {table} WHERE key = ?",
        (bytes_max, key),
    ).fetchone()
    if row is None:
        return None
    value, version, size = row
    return Larger(size) if value is None else (value, version)


def _read_page(
    connection: sqlite3.Connection, table: Table, version: int, asked: KeyRange, bytes_max: int
) -> ViewPage | Larger:
    begin, end, limit = asked
    rows = connection.execute(
        "SELECT key, CASE WHEN length(value) <= ? THEN value END, version, length(value)"
        f" FROM {table} WHERE key >= ? AND (? IS NULL OR key < ?) ORDER BY key LIMIT ?",
        (bytes_max, begin, end, end, limit + 1),
    )
    with contextlib.closing(rows):
        return page_of_file(rows, version, limit, bytes_max)


def page_of_file(
    rows: Iterable[tuple[bytes, bytes | None, int, int]], version: int, limit: int, bytes_max: int = PAGE_BYTES
) -> ViewPage | Larger:
    """A page of rows that end with the sizes of their values. A value that was not read ends a page before it."""
    page: list[Row] = []
    size = 0
    for key, value, written, value_bytes in rows:
        size += len(key) + value_bytes
        if len(page) >= limit or (page and size > bytes_max):
            return ViewPage(page, version, more=True)
        if value is None:
            return Larger(value_bytes)
        page.append((key, value, written))
    return ViewPage(page, version, more=False)


@dataclass(slots=True)
class ReadCounts:
    """What failed requests to the store cost the view: ``retries`` time, ``interruptions`` more of it."""

    retries: int = 0
    interruptions: int = 0


class ViewChild:
    """One leadership's view process, and the file it keeps."""

    def __init__(self, start: ViewStart, service: FeedSource, counts: ReadCounts, place: Callable[[], str]) -> None:
        """``counts`` goes on counting from what it has. ``place`` names the directory, which is made if absent."""
        self._start = start
        self._place = place
        self._service = service
        self._file: ViewFile | None = None
        self.version = 0
        """The file shows everything at or below; 0 while there is none."""
        self.pid: int | None = None
        """The process, while it runs."""
        self._damage: ViewDamage | None = None
        self._counts = counts
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._poked = asyncio.Event()
        self._done = asyncio.Event()
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    async def at(self, version: int) -> ViewFile:
        """The file, once it shows everything up to ``version``. Raises: CorruptData when it never will."""
        while self._file is None or self.version < version:
            if self._damage is not None:
                raise self._damage.error()
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiters, (version, next(self._numbers), waiter))
            self._poked.set()
            try:
                await waiter
            finally:
                if not waiter.done() or waiter.cancelled():
                    self._waiters = [item for item in self._waiters if item[2] is not waiter]
                    heapq.heapify(self._waiters)
        return self._file

    async def close(self) -> None:
        """End the process and release the file. Returns although the process cannot be ended."""
        self._keeping.cancel()
        await asyncio.wait({self._keeping}, timeout=CLOSE_SECONDS)

    # The process

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        pause, longest = RESTART_SECONDS
        while True:
            began = loop.time()
            try:
                await self._live()
            except (HoldfastError, OSError, ValueError, msgspec.DecodeError) as error:
                # A report that cannot be read, or is longer than a line may be, costs its process, not the view.
                log.warning("view_process_lost", error=f"{type(error).__name__}: {error}")
            if loop.time() - began > SETTLED_SECONDS:
                pause = RESTART_SECONDS[0]
            await asyncio.sleep(pause)
            pause = min(pause * 2, longest)

    async def _live(self) -> None:
        directory = await asyncio.to_thread(self._make_place)
        process = await self._begin(msgspec.structs.replace(self._start, directory=directory))
        self.pid = process.pid
        announcing = asyncio.ensure_future(self._announce(process))
        decode = msgspec.json.Decoder(ViewReport).decode
        before = replace(self._counts)
        code: int | None = None
        try:
            async for line in process.output:
                report = decode(line)
                self._counts.retries = before.retries + report.retries
                self._counts.interruptions = before.interruptions + report.interruptions
                self._reported(report)
        finally:
            self.pid = None
            announcing.cancel()
            process.end_input()
            file, self._file, self.version, self._damage = self._file, None, 0, None
            try:
                if file is not None:
                    await asyncio.to_thread(file.close)
                code = await process.exit_code()
                if code is None:
                    raise TimeoutError("it survives being killed")
            except (OSError, sqlite3.Error) as error:
                # An error from here would replace a cancellation, and the stop would never end.
                log.warning("view_process_not_ended", error=f"{type(error).__name__}: {error}")
        log.warning("view_process_ended", exit_code=code)

    def _make_place(self) -> str:
        directory = self._place()
        make_durable_directory(directory)
        return directory

    async def _begin(self, start: ViewStart) -> BackgroundProcess:
        words = (sys.executable, "-P", "-m", "holdfast.server.view.process", msgspec.json.encode(start).decode())
        return await BackgroundProcess.start(words, nice=0, has_input=True)

    async def _announce(self, process: BackgroundProcess) -> None:
        """Announce durable slots to the process, one announcement at a time."""
        service, channel = self._service, self._service.feed.durable
        newest_sent: int | None = None
        while not service.ended.done():
            self._poked.clear()
            header = service.durable_header()
            flush = bool(self._waiters) and self._waiters[0][0] <= header.last_version
            if header.slot == newest_sent and not flush:
                await self._news(channel.wait(channel.end))
                continue
            newest_sent = header.slot
            self._done.clear()
            process.send(msgspec.json.encode(Announcement(newest_sent, header.claim, flush)) + b"\n")
            await self._done.wait()
            if not self._waiters:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PACE_SECONDS):
                        await self._poked.wait()

    async def _news(self, published: Coroutine[object, object, None]) -> None:
        """Wait until more is durable, or a reader waits."""
        tasks = {asyncio.ensure_future(published), asyncio.ensure_future(self._poked.wait())}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    def _reported(self, report: ViewReport) -> None:
        if self._file is None:
            self._file = ViewFile(Path(report.path))
        if report.damage is not None and self._damage is None:
            self._service.damage.note("view", report.damage.error())
        self.version, self._damage = report.version, report.damage
        while self._waiters and (self._damage is not None or self._waiters[0][0] <= report.version):
            waiter = heapq.heappop(self._waiters)[2]
            if not waiter.done():
                waiter.set_result(None)
        if report.done:
            self._done.set()
