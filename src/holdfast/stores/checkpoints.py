"""Checkpoints of the index and compaction of the log, while clients work.

``Checkpoints`` writes one checkpoint at a time and retries a failed one after ``RETRY_S``; ``failure`` says why. If
``OVERDUE`` times the due bytes were written meanwhile, commits pause, so that memory and recovery stay bounded. While a
full disk keeps frames out of the files (``LogCommit``), none begins, and one that has begun waits for its frames.

``Compaction`` frees pages from the front of the log: it appends their kept messages again. A move is a frame like any
other and the next checkpoint releases the old copy, so a crash loses only the work of moving.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

from holdfast.errors import Closed, CorruptData, HoldfastError, Unavailable
from holdfast.stores.group_commit import GroupCommit
from holdfast.stores.log_commit import LogCommit, disk_full
from holdfast.stores.storage.frames import MessageRun, Relocated, encode_relocated
from holdfast.stores.storage.index import IndexChanges
from holdfast.stores.storage.locations import Extent
from holdfast.stores.storage.storage import Storage
from holdfast.stores.values.ports import BLOCK_MESSAGES, BlockCounts

LOG_BYTES: Final = 32 << 20  # a checkpoint is due when this much was written since the last one was begun
OVERDUE: Final = 4
BLOCKS: Final = 1_024
ENTRIES: Final = 50_000
INTERVAL_S: Final = 10.0  # space comes back this soon after the last change, however little was written
RETRY_S: Final = 1.0

_logger = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of one storage, on the event loop. ``after`` is called after each one."""

    def __init__(self, storage: Storage, groups: GroupCommit | LogCommit) -> None:
        self._storage = storage
        self._groups = groups
        self._loop = asyncio.get_running_loop()
        self._running: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self._closed = False
        self._held = 0
        self._writing = False  # the log has every frame that the running checkpoint needs
        self.after: Callable[[], None] = lambda: None
        self.failure: BaseException | None = None
        self.count = 0

    def consider(self) -> None:
        """Called between commands: begin a checkpoint if one is due."""
        storage = self._storage
        if self._running is not None:
            if storage.log_bytes >= OVERDUE * LOG_BYTES and self._writing and self.failure is None:
                self._groups.pause()
            return
        if not storage.log_bytes or self._closed or self._held or self._groups.disk_is_full:
            return
        index = storage.index
        if storage.log_bytes >= LOG_BYTES or index.blocks.changes >= BLOCKS or index.entries.changes >= ENTRIES:
            self._begin()
        elif self._timer is None:
            self._timer = self._loop.call_later(INTERVAL_S, self._begin_if_idle)

    def _begin_if_idle(self) -> None:
        self._timer = None
        groups = self._groups
        if self._running is None and not (self._closed or self._held or groups.failure or groups.disk_is_full):
            self._begin()

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        checkpoint = self._storage.begin_checkpoint()
        appended: asyncio.Future[int | None] = self._loop.create_future()

        def safe(error: BaseException | None) -> None:
            if error is None and not appended.done():
                appended.set_result(self._storage.version)
            else:
                appended.cancel()

        # The frames it rests on may not be written yet: it takes its turn after them.
        self._groups.end_group(safe)
        self._running = self._loop.create_task(self._write(checkpoint, appended))

    async def _write(self, checkpoint: IndexChanges, appended: asyncio.Future[int | None]) -> None:
        while not appended.done():
            await asyncio.wait([appended], timeout=RETRY_S)
            if self._groups.disk_is_full:
                self._fail_waiting(disk_full())
        if appended.cancelled():
            return  # the log has failed, or this is closed while the disk is full: the next start applies the log
        checkpoint = checkpoint._replace(version=appended.result())
        self._writing = self._groups.disk_is_busy = True
        try:
            written = await self._write_until_done(checkpoint)
        finally:
            # However it ended, also when cancelled: paused commits must not wait forever.
            self._writing = self._groups.disk_is_busy = False
            self._groups.resume()
        if written:
            self.failure = None
            self.count += 1
            self._running = None
            self.after()

    async def _write_until_done(self, checkpoint: IndexChanges) -> bool:
        """Retry until the index has it; False if the log failed or this is closed."""
        while True:
            try:
                await asyncio.to_thread(self._storage.write_checkpoint, checkpoint)
                break
            except Closed as error:
                self._groups.poison(error)  # the log has failed
                return False
            except (sqlite3.Error, OSError) as error:
                if self.failure is None:
                    _logger.warning("the index of the stores could not be written error=%s", error)
                self.failure = error
                self._groups.resume()
                self._fail_waiting(error)
                if self._closed:
                    return False  # the next start applies the log instead
                await asyncio.sleep(RETRY_S)
            except Exception as bug:  # noqa: BLE001 - reported to every waiting caller, or they would wait forever
                self._groups.poison(bug)
                return False
        try:
            self._storage.end_checkpoint()
        except Exception as error:  # noqa: BLE001 - reported to every caller: the frozen changes are half released
            self._groups.poison(error)
            return False
        return True

    def _fail_waiting(self, error: BaseException) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(error)

    async def now(self) -> None:
        """Return when everything applied so far is in the index.

        *Raises*: ``Closed`` when the log has failed or while ``held``; ``Unavailable`` (disk_full) while the files lack
        frames; what kept the index from being written (it is retried).
        """
        await self._wait()
        if self._held or self._groups.failure is not None:
            raise Closed("no checkpoint can be taken now", hint="a backup is being made")
        if self._groups.disk_is_full:
            raise disk_full()
        self._begin()
        await self._wait()
        if self._groups.failure is not None:
            raise Closed("the log has failed", cause=str(self._groups.failure)) from self._groups.failure

    @asynccontextmanager
    async def held(self) -> AsyncGenerator[None]:
        """Write a checkpoint, then no other until exit: files only grow. Memory grows with what changes."""
        await self.now()
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    async def _wait(self) -> None:
        """Wait for the running checkpoint. *Raises*: the error of its first failed attempt."""
        while (running := self._running) is not None and not running.done():
            failed = self._loop.create_future()
            self._waiting.append(failed)
            try:
                await asyncio.wait([running, failed], return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._waiting.remove(failed)
            if failed.done():
                failed.result()
        self._running = None

    async def close(self) -> None:
        """A last checkpoint, so that the next start has nothing to apply."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # One that cannot be written is no reason not to close: the next start applies the log instead.
        with suppress(sqlite3.Error, OSError, Unavailable):
            await self._wait()
            broken = self._groups.failure or self.failure or self._groups.disk_is_full
            if self._storage.log_bytes and not broken and not self._held:
                self._begin()
                await self._wait()
        if self._running is not None:
            await asyncio.wait([self._running])


STEP_BYTES: Final = 1 << 20
PASS_EXTENTS: Final = 1_024  # extents moved before a checkpoint lets pages go: about 64 MiB of messages
MESSAGE_LOG_BYTES: Final = 48  # about what a message takes in the log in addition to its bytes
PAGES_MIN: Final = 4  # logs shorter than this are left alone


@dataclass(frozen=True, slots=True)
class SpaceUse:
    """Bytes of the log: of all pages, and about what kept messages take of them. ``pages`` counts them."""

    allocated: int
    in_use: int
    pages: int

    @property
    def ratio(self) -> float:
        """The part that is kept, 1 for an empty log."""
        return min(1.0, self.in_use / self.allocated) if self.allocated else 1.0


class Compaction:
    """Moves kept messages from the front of the log to its end. Every method belongs on the event loop."""

    def __init__(self, storage: Storage, groups: GroupCommit | LogCommit, checkpoints: Checkpoints) -> None:
        self._storage = storage
        self._groups = groups
        self._checkpoints = checkpoints
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.automatic = True
        self.ratio_min = 0.5
        self.runs = 0
        self._reported = ""  # the damage that was reported last: each run meets it again

    def space(self) -> SpaceUse:
        """How much the log takes, and how much of it is kept. *Cost*: the size of each page."""
        pages, state = self._storage.log.page_bytes(), self._storage.state
        counts = [store.counts for name, store in state.stores.items() if name not in state.volatile_names]
        in_use = sum(each.live_bytes + MESSAGE_LOG_BYTES * each.live for each in counts)
        return SpaceUse(sum(pages), in_use, len(pages))

    def consider(self) -> None:
        """Called after a checkpoint: begin if it is worth it."""
        if self.automatic and self._task is None and not self._closed and self._is_worth_it():
            self._task = asyncio.get_running_loop().create_task(self._run(all_of_it=False))

    def _is_worth_it(self) -> bool:
        use = self.space()
        return use.pages >= PAGES_MIN and use.ratio < self.ratio_min

    async def now(self) -> SpaceUse:
        """Append all kept messages again and remove the pages before them. Returns the use after it.

        *Raises*: what a checkpoint raises; the failure of the log.
        """
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(all_of_it=True))
        await asyncio.shield(self._task)
        return self.space()

    async def _run(self, *, all_of_it: bool) -> None:
        self.runs += 1
        try:
            await self._checkpoints.now()
            end = self._storage.messages.next_frame
            while not self._closed and self._groups.failure is None and (all_of_it or self._is_worth_it()):
                extents = [
                    extent for extent in self._storage.index.oldest_extents(PASS_EXTENTS) if extent.first_frame < end
                ]
                if not extents:
                    break
                await self._move_all(extents)
                await self._checkpoints.now()
        except (HoldfastError, OSError, sqlite3.Error) as error:
            if all_of_it:
                raise  # a caller waits for it; else a full disk is retried, and a failed log is reported elsewhere
            if isinstance(error, CorruptData) and str(error) != self._reported:
                # The space after it is never freed, and no caller waits for this error.
                self._reported = str(error)
                _logger.error(
                    "messages that cannot be read cannot be moved error=%s hint=%s", error.statement(), error.hint
                )
        finally:
            self._task = None

    async def _move_all(self, extents: list[Extent]) -> None:
        step = 0
        for extent in extents:
            if self._closed or self._groups.failure is not None or self._groups.disk_is_full:
                return
            # As it is now: while this waited it may have grown, moved, or gone.
            current = self._storage.locations.current(extent)
            if current is not None:
                step += self._move(current)
            if step >= STEP_BYTES:
                step = 0
                await self._groups.turn()

    def _move(self, extent: Extent) -> int:
        storage = self._storage
        runs = [
            kept
            for run in storage.messages.runs(extent.store, extent.first_seq, extent.last_seq)
            for kept in self._kept(run, extent)
        ]
        if not runs:
            return 0  # the next checkpoint finds that nothing is kept
        relocated = Relocated(extent.store, extent.first_seq, extent.last_seq, runs)
        frame = encode_relocated(relocated)
        try:
            storage.messages.relocate(relocated, storage.messages.next_frame)
        except BaseException as error:
            self._groups.poison(error)  # the locations may be half changed, which the log does not record
            raise
        storage.note_frame(len(frame))
        storage.messages.next_frame += 1
        self._groups.add(frame, lambda _error: None)  # every caller hears of the failure of a group
        return len(frame)

    def _kept(self, run: MessageRun, extent: Extent) -> list[MessageRun]:
        kept_runs: list[MessageRun] = []
        block: BlockCounts | None = None
        number = first = -1
        for seq in range(max(run.first_seq, extent.first_seq), min(run.last_seq, extent.last_seq) + 2):
            is_kept = False
            if seq <= run.last_seq and seq <= extent.last_seq:
                if seq // BLOCK_MESSAGES != number:
                    number = seq // BLOCK_MESSAGES
                    block = self._storage.index.blocks.get(run.store, number)
                is_kept = block is not None and block.references[seq % BLOCK_MESSAGES] > 0
            if is_kept and first < 0:
                first = seq
            elif not is_kept and first >= 0:
                part = run.messages[first - run.first_seq : seq - run.first_seq]
                kept_runs.append(MessageRun(run.store, first, run.published_ms, part))
                first = -1
        return kept_runs

    async def close(self) -> None:
        """Stop after the step that is being done."""
        self._closed = True
        if self._task is not None:
            await asyncio.wait([self._task])
