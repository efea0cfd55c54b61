"""The process that keeps the embedded view's file: ``python -m holdfast.server.view.process START``.

Changes wait in memory until ``FLUSH_BYTES`` or ``FLUSH_SECONDS`` are reached or a reader waits. A lock keeps a second
process, of a deposed leader, from writing older values; without the lock the file is in a temporary directory. Killed
at any point, the process leaves the file at a position from which the next one continues. A store that cannot be read
interrupts it: it keeps what it has read, and goes on there. A file that does not fit the log is removed, and the
process ends. Damage of the log is reported once; the part before it stays readable. The process ends when the server
closes its standard input; it ignores signals, because a terminal sends them to the whole group.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import sqlite3
import sys
from collections.abc import Sequence
from io import FileIO, RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NoReturn

import msgspec
import structlog
import uvloop

from holdfast.commit.format.batch import Header, ItemKind, job_of_row, read_body_table
from holdfast.commit.format.chain import ChainWalker
from holdfast.commit.format.transaction import Delete, RangeDelete, Write
from holdfast.commit.reading.feed import Event, FeedCheckpoint, FeedTransaction
from holdfast.commit.reading.lineage import lineage_of
from holdfast.commit.reading.reader import Leadership, LeadershipWalk, find_header, follow, start_after
from holdfast.commit.subscription import OlderHistory
from holdfast.errors import Code, CorruptData, HoldfastError, InvalidRequest, NotFound, Unavailable
from holdfast.files.private_files import private, restrict_to_owner
from holdfast.files.temporary_files import temporary_directory
from holdfast.objects.budget import StoreMetrics
from holdfast.objects.directory.time_slice import BACKGROUND_NS, ask_for_time_slice
from holdfast.objects.open import open_durable_reader, open_store
from holdfast.objects.port import ObjectReader, StoreDenies
from holdfast.objects.retrying import ANSWERING, RetryingReader, RetryingStore
from holdfast.server.commit.replaced_log import segment_history
from holdfast.server.logs import configure_logs, keep_pandas_out
from holdfast.server.view.messages import Announcement, ViewDamage, ViewReport, ViewStart
from holdfast.snapshots.manifest import Manifest
from holdfast.snapshots.reading import load_view_file, position_of, snapshots_back
from holdfast.values import Slot, slot_text
from holdfast.view.sqlite import open_for_writer, write_layer
from holdfast.view.storage import Layer, StatePosition, Stored

if TYPE_CHECKING:
    import pyarrow as pa

NICE: Final = 5
FLUSH_BYTES: Final = 16 << 20
FLUSH_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 1.0
LOCK_SECONDS: Final = 2.0
LOCK_EVERY_SECONDS: Final = 0.05
PREFETCH: Final = 8
NO_PLACE: Final = 1
"""The exit code of a process that has no directory for its file."""

log = structlog.get_logger("holdfast.server.view")


class ViewProcess:
    """Keeps one file; ``announced`` tells it how far it may read."""

    def __init__(self, start: ViewStart, store: ObjectReader, reports: RawIOBase, older: OlderHistory | None) -> None:
        self._start = start
        self._older = older
        self._metrics = StoreMetrics()
        self._store = RetryingReader(store, ANSWERING, metrics=self._metrics)
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
                with contextlib.closing(ViewBuilder(path, self._start.log_id)) as builder:
                    await self._keep(builder)
            except (CorruptData, InvalidRequest, NotFound) as error:
                log.warning("view_starts_over", error=str(error))
                for suffix in ("", "-wal", "-shm"):
                    path.with_name(path.name + suffix).unlink(missing_ok=True)
                return
            except (HoldfastError, OSError, sqlite3.Error) as error:
                log.warning("view_interrupted", error=str(error))
            await self._pause()

    async def _keep(self, builder: ViewBuilder) -> None:
        """Follow the log with one builder, over every interruption of the store."""
        began_at = builder.position[0]
        walker: ChainWalker | None = None
        while True:
            try:
                if walker is None:
                    walker = await self._stand(builder)
                await self._follow(builder, walker)
            except CorruptData as error:
                if began_at and error.code is not Code.CORRUPT_BATCH:
                    raise
                await self._stay_before(error, builder)
            except Unavailable as error:
                log.warning("view_interrupted", error=str(error), view_version=builder.seen[0])
                if walker is not None:  # before it stands, the file may be of another state than the log's
                    self._flush(builder)
            await self._pause()

    async def _pause(self) -> None:
        """Wait a moment, and then go on with the newest announcement again."""
        await asyncio.sleep(RETRY_SECONDS)
        if self._newest is not None:
            self._news.set()

    async def _stay_before(self, error: CorruptData, builder: ViewBuilder) -> NoReturn:
        """Show the part before the damage, until the server ends this process."""
        builder.flush()
        log.error("view_stops_at_damage", error=str(error), code=str(error.code), view_version=builder.position[0])
        self._report(builder, done=False, damage=ViewDamage.of(error))
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nothing sets this future")

    async def _stand(self, builder: ViewBuilder) -> ChainWalker:
        """Bring the builder to where the log goes on, and return a walker there. An interruption keeps what it has."""
        announcement = await self._next(builder)
        if not builder.seen.version:
            await self._load_snapshot(builder, announcement)
        if self._older is not None:
            announcement = await self._add_older(self._older, builder, announcement)
        walker = await self._walker_after(builder.position, announcement)
        if walker.head is not None and walker.head.last_version > builder.seen[0]:
            # Before genesis there is nothing to stand on: the walk begins at the claim, whose version is settled too.
            builder.add(walker.head, b"")
        self._flush_due = asyncio.get_running_loop().time() + FLUSH_SECONDS
        self._report(builder, done=False)
        self._news.set()
        return walker

    async def _follow(self, builder: ViewBuilder, walker: ChainWalker) -> None:
        """Read on from ``walker``, which stays at the last object that the builder took."""
        loop = asyncio.get_running_loop()
        while True:
            announcement = await self._next(builder)
            async for logged in follow(self._store, walker, until=Slot(announcement.slot), prefetch=PREFETCH):
                builder.add(logged.header, logged.data)
                if builder.waiting_bytes >= FLUSH_BYTES or loop.time() >= self._flush_due:
                    self._flush(builder)
            if announcement.flush:
                self._flush(builder)
            self._report(builder, done=True)

    async def _load_snapshot(self, builder: ViewBuilder, announcement: Announcement) -> None:
        """Begin a new file with the newest snapshot of the log, if there is one that can be read."""
        newest = await find_header(self._store, announcement.slot)
        claim = await find_header(self._store, announcement.claim)
        if newest is None or claim is None:
            return
        opened = open_store(
            self._start.log_url, request_timeout_ms=self._start.request_timeout_ms, connections_max=8, retry=None
        )
        store = RetryingStore(opened, metrics=self._metrics)
        try:
            lineage = await lineage_of(store, claim)
            async with contextlib.aclosing(snapshots_back(store, lineage, newest.last_version)) as manifests:
                async for manifest in manifests:
                    if await self._load(builder, announcement, store, manifest):
                        return
        except (CorruptData, NotFound, StoreDenies) as error:
            log.warning("view_passes_over_snapshot", error=str(error))
        finally:
            await store.close()

    async def _load(
        self, builder: ViewBuilder, announcement: Announcement, store: ObjectReader, manifest: Manifest
    ) -> bool:
        """Whether the file now has this snapshot. A damaged one leaves the file as it was: an older one may do."""
        try:
            await self._walker_after(position_of(manifest), announcement)  # it has to be of this log
            await builder.load(store, manifest)
        except (CorruptData, NotFound) as error:
            log.warning("view_passes_over_snapshot", error=str(error))
            return False
        log.info("view_reads_snapshot", version=manifest.version, rows=manifest.rows)
        self._report(builder, done=False)
        return True

    async def _add_older(self, older: OlderHistory, builder: ViewBuilder, announcement: Announcement) -> Announcement:
        """Read segments from the file's position up to the announcement. Returns the newest announcement."""
        through = await older.through(self._start.log_id)
        newest = await find_header(self._store, announcement.slot)
        version = builder.position[0]
        if newest is None or min(through, newest.last_version) <= version:
            return announcement
        if version:
            await self._walker_after(builder.position, announcement)  # first of all the file has to be of this log
        log.info("view_reads_segments", after=version, until=min(through, newest.last_version))
        try:
            async with contextlib.aclosing(older.events(version, min(through, newest.last_version))) as batches:
                async for batch in batches:
                    builder.add_events(batch.events)
                    if builder.waiting_bytes >= FLUSH_BYTES:
                        self._flush(builder)
        except (CorruptData, Unavailable) as error:
            if isinstance(error, Unavailable) and newest.truncated_through > builder.seen[0]:
                raise  # the log alone does not have what comes next
            log.warning("view_goes_on_in_the_log", view_version=builder.seen[0], cause=str(error))
        finally:
            builder.flush()
        return self._newest or announcement

    async def _next(self, builder: ViewBuilder) -> Announcement:
        """Wait for a new announcement, and flush meanwhile when that is due."""
        while builder.seen != builder.position and not self._news.is_set():
            try:
                async with asyncio.timeout_at(self._flush_due):
                    await self._news.wait()
            except TimeoutError:
                self._flush(builder)
        await self._news.wait()
        self._news.clear()
        assert self._newest is not None, "news is an announcement"
        return self._newest

    def _flush(self, builder: ViewBuilder) -> None:
        builder.flush()
        self._flush_due = asyncio.get_running_loop().time() + FLUSH_SECONDS
        self._report(builder, done=False)

    def _report(self, builder: ViewBuilder, *, done: bool, damage: ViewDamage | None = None) -> None:
        counts = self._metrics.kinds().values()
        report = ViewReport(
            str(builder.path),
            builder.position[0],
            done,
            damage,
            retries=sum(each.retries for each in counts),
            interruptions=sum(each.interruptions for each in counts),
        )
        with contextlib.suppress(BrokenPipeError):  # the server has gone, and this process ends
            self._reports.write(msgspec.json.encode(report) + b"\n")

    async def _walker_after(self, position: StatePosition, announcement: Announcement) -> ChainWalker:
        """A walker on the object whose state a position is. Raises: CorruptData when the log has no such object."""
        version, last, _ = position
        newest = await find_header(self._store, announcement.slot)
        claim = await find_header(self._store, announcement.claim)
        if newest is None or claim is None or claim.log_id.hex() != self._start.log_id:
            raise NotFound("the log is not where the server said", slot=announcement.slot)
        if version > newest.last_version:
            raise CorruptData("the view is past the log", view_version=version, log_version=newest.last_version)
        leadership = Leadership(claim, None, newest)
        async for leadership in LeadershipWalk(self._store, claim, newest):
            if leadership.rolls_back(version):
                raise CorruptData("the view shows what was rolled back", view_version=version)
            if leadership.base <= version:
                break
        walker = await start_after(self._store, leadership, version)
        if walker.head is not None and last not in (None, walker.head.last_transaction_version):
            raise CorruptData("the view shows a transaction that the log does not hold", view_version=version)
        return walker


async def _place(start: ViewStart, stack: contextlib.ExitStack) -> Path:
    """Where the file is kept, by this process alone until ``stack`` ends."""
    name = f"{start.log_id}.sqlite"
    # In the server's directory, which an orphaned process must not make again.
    path = os.path.join(start.directory, "lock")
    lock = private(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    stack.callback(os.close, lock)
    restrict_to_owner(path)
    # The process of a server that was killed a moment ago may still be on its way out.
    for _ in range(round(LOCK_SECONDS / LOCK_EVERY_SECONDS)):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return Path(start.directory, name)
        await asyncio.sleep(LOCK_EVERY_SECONDS)
    log.info("view_in_temporary_directory", reason="another process keeps the view of this directory")
    return Path(stack.enter_context(temporary_directory("holdfast-view-"))) / name


async def _keep(start: ViewStart, stack: contextlib.ExitStack, process: ViewProcess) -> int:
    """Keep the view until its file does not fit the log. Returns the exit code."""
    try:
        path = await _place(start, stack)
    except (HoldfastError, OSError) as error:
        # A full disk, no inode left, a directory that has gone: the server starts another process after a while.
        log.warning("view_has_no_place", directory=start.directory, error=str(error))
        return NO_PLACE
    await process.keep(path)
    return 0


async def _run(start: ViewStart) -> int:
    announcements = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(announcements)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    store = open_durable_reader(start.log_url, request_timeout_ms=start.request_timeout_ms, retry=None)
    reports = FileIO(sys.stdout.fileno(), "w", closefd=False)
    process = ViewProcess(start, store, reports, segment_history(start.segments_url))
    decode = msgspec.json.Decoder(Announcement).decode

    async def listen() -> int:
        async for line in announcements:
            process.announced(decode(line))
        return 0

    with contextlib.ExitStack() as stack:
        tasks = {asyncio.ensure_future(listen()), asyncio.ensure_future(_keep(start, stack, process))}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return max([task.result() for task in done])
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await store.close()


def main(start: ViewStart) -> None:
    """What the process does."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICE)
    ask_for_time_slice(BACKGROUND_NS)
    configure_logs(start.log_format, start.log_level)
    keep_pandas_out()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(_run(start)))


# pyarrow ships no types, so its arrays are unknown to the checker; what leaves this module is not.
# pyright: reportUnknownParameterType=false

_SELDOM: Final = (ItemKind.DELETE, ItemKind.RANGE_DELETE, ItemKind.JOB)


class ViewBuilder:
    """The writer of one view's file. ``position`` is in the file; ``seen`` is what ``flush`` will put there.

    Raises: CorruptData when the file belongs to another log.
    """

    def __init__(self, path: Path, log_id: str) -> None:
        self.path = path
        self._connection, self.position = open_for_writer(path)
        if self.position.log_id not in (None, log_id):
            self._connection.close()
            raise CorruptData("the view is of another log", view_log_id=self.position.log_id, log_id=log_id)
        self.seen: StatePosition = self.position
        self._log_id = log_id
        self._layer = Layer(is_ground=False)

    @property
    def waiting_bytes(self) -> int:
        """About the memory of what is seen and not in the file."""
        return self._layer.size

    async def load(self, store: ObjectReader, manifest: Manifest) -> None:
        """Fill an empty file with a snapshot. Raises: as ``load_view_file``, and then the file is still empty."""
        self.seen = self.position = await load_view_file(self._connection, store, manifest, self._log_id)

    def add(self, header: Header, data: bytes) -> None:
        """Take the next live object. Raises: CorruptData."""
        version, last, _ = self.seen
        if header.transactions:
            if header.first_version <= version:
                raise CorruptData(
                    "a transaction was passed already", version=header.first_version, view_version=version
                )
            if header.prev_version != last and (last is not None or header.prev_version > version):
                raise CorruptData(
                    "a transaction is missing",
                    version=header.first_version,
                    prev_version=header.prev_version,
                    last_applied=version if last is None else last,
                )
            table = read_body_table(data, header)
            versions = [item for batch in table.to_batches() for item in _unsigned(batch.column("version"))]
            rising = sorted(set(versions))
            if (
                len(rising) != header.transactions
                or not header.spans(rising[0], rising[-1])
                or versions != sorted(versions)
            ):
                raise CorruptData(
                    "rows do not keep the versions of the header", code=Code.CORRUPT_BATCH, slot=slot_text(header.slot)
                )
            for batch in table.to_batches():
                self._lay(batch)
            last = header.last_transaction_version
        self.seen = StatePosition(max(version, header.last_version), last, self._log_id)

    def add_events(self, events: Sequence[Event]) -> None:
        """Take what older history says comes next. Raises: CorruptData."""
        version, last, _ = self.seen
        for event in events:
            if isinstance(event, FeedTransaction):
                if event.version <= version or (event.prev_version != last and (last or event.prev_version > version)):
                    raise CorruptData(
                        "a transaction is missing from older history",
                        version=event.version,
                        prev_version=event.prev_version,
                        last_applied=version if last is None else last,
                    )
                self._layer.apply(event.version, event.operations)
                if event.jobs:
                    self._layer.apply_jobs(event.version, event.jobs)
                version = last = event.version
            elif isinstance(event, FeedCheckpoint):
                version = max(version, event.committed_version)
        self.seen = StatePosition(version, last, self._log_id)

    def _lay(self, batch: pa.RecordBatch) -> None:
        """Apply one record batch in order."""
        versions = _unsigned(batch.column("version"))
        kinds = _bytes_of(batch.column("kind"))
        keys, key_at = _parts(batch.column("key"), "i")
        values, value_at = _parts(batch.column("value"), "q")
        if not any(kind in kinds for kind in _SELDOM):
            written: dict[bytes, Stored] = {
                keys[key_at[row] : key_at[row + 1]]: (values[value_at[row] : value_at[row + 1]], versions[row])
                for row, kind in enumerate(kinds)
                if not kind
            }
            self._layer.write(written)
            return
        ends: list[bytes | None] = batch.column("end").to_pylist()
        nulls: list[bool] = batch.column("value").is_null().to_pylist()
        for row, kind in enumerate(kinds):
            key = keys[key_at[row] : key_at[row + 1]]
            if kind == ItemKind.WRITE:
                self._layer.apply(versions[row], (Write(key, values[value_at[row] : value_at[row + 1]]),))
            elif kind == ItemKind.DELETE:
                self._layer.apply(versions[row], (Delete(key),))
            elif kind == ItemKind.RANGE_DELETE:
                self._layer.apply(versions[row], (RangeDelete(key, ends[row]),))
            elif kind == ItemKind.JOB:
                record = None if nulls[row] else values[value_at[row] : value_at[row + 1]]
                self._layer.apply_jobs(versions[row], (job_of_row(key, record),))

    def flush(self) -> None:
        """Bring the file to what is seen, in one transaction. Raises: sqlite3.Error, and then nothing has changed."""
        if self.seen != self.position:
            write_layer(self._connection, self._layer, self.seen)
            self._layer = Layer(is_ground=False)
            self.position = self.seen

    def close(self) -> None:
        """Let go of the file. What was not flushed is read from the log again."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()


# Straight from the columns' buffers: making an Arrow scalar of every cell costs ten times as much.


def _bytes_of(column: pa.Array) -> bytes:
    if not len(column):
        return b""
    return bytes(memoryview(column.buffers()[1])[column.offset : column.offset + len(column)])


def _unsigned(column: pa.Array) -> list[int]:
    if not len(column):
        return []
    numbers = memoryview(column.buffers()[1]).cast("B")[column.offset * 8 : (column.offset + len(column)) * 8]
    return numbers.cast("Q").tolist()


def _parts(column: pa.Array, offset_format: Literal["i", "q"]) -> tuple[bytes, list[int]]:
    """A column of byte strings: all of them joined, and their starts."""
    if not len(column):
        return b"", [0]
    _, offsets, data = column.buffers()
    width = 4 if offset_format == "i" else 8
    starts = memoryview(offsets).cast("B")[column.offset * width : (column.offset + len(column) + 1) * width]
    return b"" if data is None else data.to_pybytes(), starts.cast(offset_format).tolist()


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=ViewStart))
