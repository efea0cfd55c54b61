"""When the index is brought up to date: beside the traffic, one checkpoint at a time.

Owns: when a checkpoint is due, its thread, the retry after a failure. Does not own: what a checkpoint holds
(``storage``), the index, the log.

Failure model: a checkpoint that could not be written (a full disk, say) is written again after ``RETRY_S``; nothing new
is frozen meanwhile, the log grows, and ``failure`` says why. When the log itself has failed there are no more. Where
more than ``OVERDUE`` times as much was written as a checkpoint is due for, and the last one is still being written,
everyone waits for it: what a start applies, and what is held in memory until then, stays bounded. Nobody waits for one
that itself waits for a group of theirs, as it does until the frames it rests on are in the log; nor for one that ended
in whatever way.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from contextlib import asynccontextmanager, suppress
from typing import Final

from holdfast.errors import Closed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from holdfast.stores.group_commit import GroupCommit
    from holdfast.stores.storage.index import Checkpoint
    from holdfast.stores.storage.storage import Storage

__all__ = ["Checkpoints"]

LOG_BYTES: Final = 32 << 20
"""A checkpoint is due when this much was written since the last one was begun."""
OVERDUE: Final = 4
BLOCKS: Final = 1_024
ENTRIES: Final = 50_000
INTERVAL_S: Final = 10.0
"""Space comes back this soon after the last change, however little was written."""
RETRY_S: Final = 1.0

_logger = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of one storage. Every method belongs on the event loop.

    ``after`` is called when one was written.
    """

    def __init__(self, storage: Storage, groups: GroupCommit) -> None:
        self._storage = storage
        self._groups = groups
        self._loop = asyncio.get_running_loop()
        self._running: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self._closed = False
        self._held = 0
        self._writing = False
        """The one that runs rests on nothing that is not in the log: it waits for no group any more."""
        self.after: Callable[[], None] = _nothing
        self.failure: BaseException | None = None
        self.count = 0
        self.pages_removed = 0

    def consider(self) -> None:
        """Called between commands: begin a checkpoint if one is due."""
        storage = self._storage
        if self._running is not None:
            if storage.log_bytes >= OVERDUE * LOG_BYTES and self._writing and self.failure is None:
                self._groups.hold()
            return
        if not storage.log_bytes or self._closed or self._held:
            return
        index = storage.index
        if storage.log_bytes >= LOG_BYTES or index.blocks.changes >= BLOCKS or index.entries.changes >= ENTRIES:
            self._begin()
        elif self._timer is None:
            self._timer = self._loop.call_later(INTERVAL_S, self._begin_if_idle)

    def _begin_if_idle(self) -> None:
        self._timer = None
        if self._running is None and not self._closed and not self._held and self._groups.failure is None:
            self._begin()

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        checkpoint = self._storage.begin_checkpoint()
        appended: asyncio.Future[None] = self._loop.create_future()

        def safe(error: BaseException | None) -> None:
            if error is None and not appended.done():
                appended.set_result(None)
            else:
                appended.cancel()

        # The frames it rests on may not be written yet: it takes its turn behind them.
        self._groups.add(None, safe)
        self._running = self._loop.create_task(self._write(checkpoint, appended))

    async def _write(self, checkpoint: Checkpoint, appended: asyncio.Future[None]) -> None:
        await appended
        self._writing = self._groups.disk_is_busy = True
        try:
            written = await self._write_until_done(checkpoint)
        finally:
            # However it ended, a cancelled one included: who is held would wait for it for ever.
            self._writing = self._groups.disk_is_busy = False
            self._groups.release()
        if written:
            self.failure = None
            self.count += 1
            self._running = None
            self.after()

    async def _write_until_done(self, checkpoint: Checkpoint) -> bool:
        """Write it, however often that takes; whether the index has it."""
        while True:
            try:
                self.pages_removed += await asyncio.to_thread(self._storage.write_checkpoint, checkpoint)
                break
            except Closed as error:
                self._groups.poison(error)  # the log has failed
                return False
            except (sqlite3.Error, OSError) as error:
                if self.failure is None:
                    _logger.warning("the index of the stores could not be written error=%s", error)
                self.failure = error
                self._groups.release()
                for waiting in self._waiting:
                    if not waiting.done():
                        waiting.set_exception(error)
                if self._closed:
                    return False  # the next start applies the log instead
                await asyncio.sleep(RETRY_S)
            except Exception as bug:  # noqa: BLE001 - told to everyone who waits, or they would wait for ever
                self._groups.poison(bug)
                return False
        try:
            self._storage.end_checkpoint()
        except Exception as error:  # noqa: BLE001 - told to everyone: what was frozen is half let go
            self._groups.poison(error)
            return False
        return True

    async def now(self) -> None:
        """Return when everything applied so far is in the index.

        *Raises*: ``Closed`` when the log has failed or while ``held``; what kept the index from being written, which is
        tried again.
        """
        await self._settle()
        if self._held or self._groups.failure is not None:
            raise Closed("no checkpoint can be taken now", hint="a backup is being made")
        self._begin()
        await self._settle()
        if self._groups.failure is not None:
            raise Closed("the log has failed", cause=str(self._groups.failure)) from self._groups.failure

    @asynccontextmanager
    async def held(self) -> AsyncGenerator[None]:
        """A checkpoint, and then no other while this is entered: the files stay as they are, but for what is appended.

        Memory grows with what changes meanwhile.
        """
        await self.now()
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    async def _settle(self) -> None:
        """Return when none is being written. *Raises*: what kept it from that, at the first try that failed."""
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
        with suppress(sqlite3.Error, OSError):
            await self._settle()
            if self._storage.log_bytes and self._groups.failure is None and self.failure is None and not self._held:
                self._begin()
                await self._settle()
        if self._running is not None:
            await asyncio.wait([self._running])


def _nothing() -> None:
    """Nobody to tell."""
