"""The process that keeps the embedded view's file: ``python -m holdfast.server.view_process DESCRIPTOR START``.

Owns: where in the log the file stands, reading on up to what the server announced, when the file is written. Does not
own: what the objects amount to (``view_builder``), who started the process and why it is one (``view_child``).

What is read waits in memory until ``FLUSH_BYTES`` of it do, ``FLUSH_SECONDS`` have passed, or the server says that a
reader waits: small transactions would write the same pages again and again.

One process at a time writes the file of a directory (a lock): a deposed leader that has not noticed yet could otherwise
write older values over newer ones. Whoever does not get the lock keeps its file in a temporary directory.

Failure model: a convenience, on which nothing of the log depends. Killed at any point, it leaves the file at a position
it had, and the next process goes on from there. A file that does not fit the log is removed and the process ends; the
next one begins anew. Damage that is the log's own (an object that is broken in itself, or a rule that breaks for a file
begun anew too) would be met again and again: it is logged and told to the server once, and what was before it stays
readable. A store that does not answer is asked again. The end of the socket is the end of the server, and
ends the process; signals do not, because a terminal sends them to the whole group while the server still drains.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Final, NoReturn

import msgspec
import structlog
import uvloop

from holdfast.commit.chain import ChainWalker
from holdfast.commit.reader import Reign, follow, read_header, reigns_back, start_after
from holdfast.commit.subscription import OlderHistory
from holdfast.errors import Code, CorruptData, HoldfastError, InvalidRequest, NotFound, Unavailable
from holdfast.objects.open import open_durable_reader
from holdfast.objects.port import ObjectReader
from holdfast.objects.time_slice import BACKGROUND_NS, ask_for_time_slice
from holdfast.private_files import private, take_rights_of_others
from holdfast.server.logs import configure_logs
from holdfast.server.older_history import segment_history
from holdfast.server.pandas_absent import keep_pandas_out
from holdfast.server.view_builder import ViewBuilder
from holdfast.server.view_messages import Announcement, Damage, Report, ViewStart
from holdfast.values import Slot

__all__ = ["ViewProcess", "main"]

NICE: Final = 5
FLUSH_BYTES: Final = 16 << 20
FLUSH_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 1.0
LOCK_SECONDS: Final = 2.0
LOCK_EVERY_SECONDS: Final = 0.05
PREFETCH: Final = 8

log = structlog.get_logger("holdfast.server.view")


class ViewProcess:
    """Keeps one file; ``announced`` tells it how far it may read."""

    def __init__(
        self, start: ViewStart, store: ObjectReader, reports: asyncio.StreamWriter, older: OlderHistory | None
    ) -> None:
        self._start = start
        self._older = older
        self._store = store
        self._reports = reports
        self._newest: Announcement | None = None
        self._news = asyncio.Event()
        self._flush_due = 0.0

    def announced(self, announcement: Announcement) -> None:
        """The server knows more to be durable; the newest announcement stands for all."""
        self._newest = announcement
        self._news.set()

    async def keep(self, path: Path) -> None:
        """Keep the file at ``path`` up with the log. Returns when it did not fit, and is gone."""
        while True:
            try:
                builder = ViewBuilder(path, self._start.log_id)
                began_at = builder.position[0]
                with contextlib.closing(builder):
                    try:
                        await self._follow(path, builder)
                    except CorruptData as error:
                        if began_at and error.code is not Code.CORRUPT_BATCH:
                            raise
                        await self._stay_before(error, path, builder)
            except (CorruptData, InvalidRequest, NotFound) as error:
                log.warning("view_starts_over", error=str(error))
                for suffix in ("", "-wal", "-shm"):
                    path.with_name(path.name + suffix).unlink(missing_ok=True)
                return
            except (HoldfastError, OSError, sqlite3.Error) as error:
                log.warning("view_interrupted", error=str(error))
            await asyncio.sleep(RETRY_SECONDS)
            if self._newest is not None:
                self._news.set()

    async def _stay_before(self, error: CorruptData, path: Path, builder: ViewBuilder) -> NoReturn:
        """Show what stands before the damage, until the server ends this process."""
        builder.flush()
        log.error("view_stops_at_damage", error=str(error), code=str(error.code), view_version=builder.position[0])
        self._report(path, builder, done=False, damage=Damage.of(error))
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nothing sets this future")

    async def _follow(self, path: Path, builder: ViewBuilder) -> None:
        loop = asyncio.get_running_loop()
        announcement = await self._next(path, builder)
        if self._older is not None:
            announcement = await self._add_older(self._older, path, builder, announcement)
        walker = await self._walker_after(builder, announcement)
        if walker.head is not None and walker.head.last_version > builder.seen[0]:
            # Before genesis there is nothing to stand on: the walk begins at the claim, whose version is settled too.
            builder.add(walker.head, b"")
        self._flush_due = loop.time() + FLUSH_SECONDS
        self._report(path, builder, done=False)
        while True:
            async for logged in follow(self._store, walker, until=Slot(announcement.slot), prefetch=PREFETCH):
                builder.add(logged.header, logged.data)
                if builder.waiting_bytes >= FLUSH_BYTES or loop.time() >= self._flush_due:
                    self._flush(path, builder)
            if announcement.flush:
                self._flush(path, builder)
            self._report(path, builder, done=True)
            announcement = await self._next(path, builder)

    async def _add_older(
        self, older: OlderHistory, path: Path, builder: ViewBuilder, announcement: Announcement
    ) -> Announcement:
        """Take what segments have behind the file's position, up to what was announced; the log has the rest, and what
        they turn out not to have. Returns the newest announcement."""
        through = await older.through(self._start.log_id)
        newest = await read_header(self._store, announcement.slot)
        version = builder.position[0]
        if newest is None or min(through, newest.last_version) <= version:
            return announcement
        if version:
            await self._walker_after(builder, announcement)  # first of all the file has to be of this log
        log.info("view_reads_segments", after=version, until=min(through, newest.last_version))
        try:
            async with contextlib.aclosing(older.events(version, min(through, newest.last_version))) as batches:
                async for batch in batches:
                    builder.add_events(batch.events)
                    if builder.waiting_bytes >= FLUSH_BYTES:
                        self._flush(path, builder)
        except (CorruptData, Unavailable) as error:
            log.warning("view_goes_on_in_the_log", view_version=builder.seen[0], cause=str(error))
        builder.flush()
        return self._newest or announcement

    async def _next(self, path: Path, builder: ViewBuilder) -> Announcement:
        """The newest announcement, when there is a new one; what waits for the file is written meanwhile, when due."""
        while builder.seen != builder.position and not self._news.is_set():
            try:
                async with asyncio.timeout_at(self._flush_due):
                    await self._news.wait()
            except TimeoutError:
                self._flush(path, builder)
        await self._news.wait()
        self._news.clear()
        assert self._newest is not None, "news is an announcement"
        return self._newest

    def _flush(self, path: Path, builder: ViewBuilder) -> None:
        builder.flush()
        self._flush_due = asyncio.get_running_loop().time() + FLUSH_SECONDS
        self._report(path, builder, done=False)

    def _report(self, path: Path, builder: ViewBuilder, *, done: bool, damage: Damage | None = None) -> None:
        self._reports.write(msgspec.json.encode(Report(str(path), builder.position[0], done, damage)) + b"\n")

    async def _walker_after(self, builder: ViewBuilder, announcement: Announcement) -> ChainWalker:
        """A walker on the object whose state the file holds. Raises: CorruptData when the log has no such object."""
        version, last, _ = builder.position
        newest = await read_header(self._store, announcement.slot)
        claim = await read_header(self._store, announcement.claim)
        if newest is None or claim is None or claim.log_id.hex() != self._start.log_id:
            raise NotFound("the log is not where the server said", slot=announcement.slot)
        if version > newest.last_version:
            raise CorruptData("the view is past the log", view_version=version, log_version=newest.last_version)
        reign = Reign(claim, None)
        async with contextlib.aclosing(reigns_back(self._store, claim)) as reigns:
            async for reign in reigns:
                if reign.base <= version or reign.before is None:
                    break
                if version > reign.rolled_back_to:
                    raise CorruptData("the view shows what was rolled back", view_version=version)
                newest = reign.before
        walker = await start_after(self._store, reign, newest, version)
        if walker.head is not None and last not in (None, walker.head.last_transaction_version):
            raise CorruptData("the view shows a transaction that the log does not hold", view_version=version)
        return walker


def _open_lock(directory: Path) -> int:
    """The server has made the directory. A process that a killed server left behind must not make it again."""
    lock = private(str(directory / "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    take_rights_of_others(str(directory / "lock"))
    return lock


async def _place(start: ViewStart, stack: contextlib.ExitStack) -> Path:
    """Where the file is kept, by this process alone until ``stack`` ends."""
    name = f"{start.log_id}.sqlite"
    lock = _open_lock(Path(start.directory))
    stack.callback(os.close, lock)
    # The process of a server that was killed a moment ago may still be on its way out.
    for _ in range(round(LOCK_SECONDS / LOCK_EVERY_SECONDS)):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return Path(start.directory, name)
        await asyncio.sleep(LOCK_EVERY_SECONDS)
    log.info("view_in_temporary_directory", reason="another process keeps the view of this directory")
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-view-"))) / name


async def _keep(start: ViewStart, stack: contextlib.ExitStack, process: ViewProcess) -> None:
    await process.keep(await _place(start, stack))


async def _run(server: socket.socket, start: ViewStart) -> None:
    """Until the server's end of the socket closes, or the file has to be begun anew."""
    announcements, reports = await asyncio.open_connection(sock=server)
    store = open_durable_reader(start.log_url, request_timeout_ms=start.request_timeout_ms)
    process = ViewProcess(start, store, reports, segment_history(start.segments_url))
    decode = msgspec.json.Decoder(Announcement).decode

    async def listen() -> None:
        with contextlib.suppress(ConnectionError):
            while (line := await announcements.readline()).endswith(b"\n"):
                process.announced(decode(line))

    with contextlib.ExitStack() as stack:
        tasks = {asyncio.ensure_future(listen()), asyncio.ensure_future(_keep(start, stack, process))}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            reports.transport.abort()
            await store.close()


def main(descriptor: int, start: ViewStart) -> None:
    """What the process does with the socket it inherits."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICE)
    ask_for_time_slice(BACKGROUND_NS)
    configure_logs(start.log_format, start.log_level)
    keep_pandas_out()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(socket.socket(fileno=descriptor), start))


if __name__ == "__main__":
    main(int(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=ViewStart))
