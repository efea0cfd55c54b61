"""Group commit: a confirmation waits until the log has the frame of its command.

Each confirmation is given once, in the order of the commands. It is never given before the log holds the command as
safely as the persistence demands. After the first error of a write, a sync, ``before_group`` or a confirmation, every
waiting and later confirmation gets this error, and ``group_failed`` is called once. The content of the disk is then
unknown, and memory is ahead of it.

Frames gather while the thread writes the previous group. Together they are the next group: one write, one sync, one
wake-up of the loop. So a confirmation waits for two syncs at most. If no write is under way, a group is taken in the
next turn of the loop.

Fast path: after ``SINGLE_GROUPS`` groups of one confirmation each, the next group is taken at once. The loop itself
writes and syncs a group of one confirmation after ``FAST_GROUPS`` groups in a row that were synced and confirmed within
``FAST_SECONDS``. This saves waking the thread, which costs an eighth of the time of a single message. The thread does
the work again after a slower group or a group without sync, and during a checkpoint
(``docs/decisions/0019-log-of-the-stores.md``).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import Protocol

from holdfast.errors import Fenced
from holdfast.stores.storage.log import MessageLog

Confirm = Callable[[BaseException | None], None]
"""Called once, with None when the log has what was added, or with the error."""
_Group = tuple[list[bytes], bool, list[Confirm], float]
"""Frames, whether to sync, confirmations, when it was taken."""

SINGLE_GROUPS = 4  # after this many groups of one confirmation, the next one is expected to be single, too
FAST_SECONDS = 0.001  # from taking a group to its confirmations
FAST_GROUPS = 32
LOOP_BYTES_MAX = 64 << 10


class GroupOwner(Protocol):
    """The stores whose commands a group has: what is called around it, on the loop."""

    def before_group(self) -> None:
        """A group is about to be taken. This may add to it."""
        ...

    def after_group(self) -> None:
        """The confirmations of a group were given."""
        ...

    def group_failed(self, error: BaseException) -> None:
        """The final error. Called once."""
        ...

    def disk_changed(self) -> None:
        """``disk_is_full`` is another one now."""
        ...


class Confirmations:
    """What ``GroupCommit`` and ``LogCommit`` share: confirmations in the order of commands, and the first failure."""

    frame_overhead = 0
    """Bytes that a frame is longer in the log than when it is added."""

    def __init__(self, owner: GroupOwner) -> None:
        self._loop = asyncio.get_running_loop()
        self._owner = owner
        self.disk_is_busy = False  # then the thread writes all groups, because a sync may take long
        self.disk_is_full = False  # only ``LogCommit`` survives it
        self.failure: BaseException | None = None
        self.groups = 0
        self.waiting_bytes = 0  # of frames that are not written yet
        self._frames: list[bytes] = []
        self._unconfirmed: list[Confirm] = []
        self._paused = False
        self._idle: list[asyncio.Future[None]] = []

    def add(self, frame: bytes | None, confirm: Confirm, *, at_once: bool = False, store: str = "") -> None:
        """Write ``frame``, then call ``confirm`` with None or the error, never before this returns.

        Without a frame the confirmation only waits its turn. ``at_once``: a group may be taken before this returns, so
        ``before_group`` may be called. ``store`` is for ``LogCommit``.
        """
        raise NotImplementedError

    def _give(self, confirms: list[Confirm]) -> None:
        """Give the confirmations of one group."""
        self.groups += 1
        for confirm in confirms:
            try:
                confirm(self.failure)
            except Exception as bug:  # noqa: BLE001 - reported to every waiting caller, or the rest would wait forever
                self._fail(bug)
        if self.failure is None:
            self._owner.after_group()

    def _fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
            if not isinstance(error, Fenced):  # the log says itself that its leadership is over
                self._owner.group_failed(error)

    def pause(self) -> None:
        """Take no more groups until ``resume``."""
        self._paused = True

    async def turn(self) -> None:
        """Return when everything added until now was confirmed, or the log has failed, or the leadership is over."""
        waiting: asyncio.Future[None] = self._loop.create_future()
        # Who waited may have been cancelled meanwhile.
        self.add(None, lambda _error: None if waiting.done() else waiting.set_result(None))
        await waiting

    def files_held(self) -> AbstractContextManager[None]:
        """Only ``LogCommit`` holds files while they are copied: others may grow meanwhile."""
        return nullcontext()

    async def _wait_until_idle(self) -> None:
        waiting: asyncio.Future[None] = self._loop.create_future()
        self._idle.append(waiting)
        await waiting

    def _wake_idle(self) -> None:
        for waiting in self._idle:
            if not waiting.done():
                waiting.set_result(None)
        self._idle.clear()


class GroupCommit(Confirmations):
    """One log, one thread, one event loop. Every method belongs on the loop.

    ``clock`` returns seconds. With ``syncs`` a group counts when it is on the disk, else when the operating system has
    it.
    """

    def __init__(self, log: MessageLog, owner: GroupOwner, *, clock: Callable[[], float] = perf_counter) -> None:
        super().__init__(owner)
        self._log = log
        self._clock = clock
        self._syncs = True
        self._owes_sync = False
        self._busy = False
        self._single_groups = 0
        self._fast_groups = 0
        self._parked = False
        self._group: _Group | None = None  # for the thread to write; None: end
        self._handed_over = threading.Lock()  # cheaper than a queue, and there is one group at a time
        self._handed_over.acquire()
        self._thread = threading.Thread(target=self._write_groups, name="holdfast-stores-log", daemon=True)
        self._thread.start()

    @property
    def syncs(self) -> bool:
        """Whether a group is synced before its confirmations."""
        return self._syncs

    @syncs.setter
    def syncs(self, syncs: bool) -> None:
        self._owes_sync = self._owes_sync or self._syncs
        self._syncs = syncs

    def add(self, frame: bytes | None, confirm: Confirm, *, at_once: bool = False, store: str = "") -> None:
        """See ``Confirmations``."""
        del store
        if frame is not None:
            self._frames.append(frame)
            self.waiting_bytes += len(frame)
        self._unconfirmed.append(confirm)
        if self._busy:
            return
        if at_once and frame is not None and self._single_groups >= SINGLE_GROUPS and self.failure is None:
            self._busy = True
            self._take(adding=True)
        else:
            self.wake()

    def end_group(self, written: Confirm) -> None:
        """As ``LogCommit.end_group``: here a checkpoint may rest on a part of a group."""
        self.add(None, written)

    def wake(self) -> None:
        """Take a group soon, in this turn of the loop if nothing is being written."""
        if not self._busy:
            self._busy = True
            # Not now: everything that is ready in this turn of the loop comes along.
            self._loop.call_soon(self._take)

    def _take(self, *, adding: bool = False) -> None:
        """``adding``: no confirmation may be given before this returns."""
        single = len(self._unconfirmed) == 1
        if self.failure is None:
            try:
                self._owner.before_group()
            except Exception as error:  # noqa: BLE001 - reported to every waiting caller, or they would wait forever
                self._fail(error)
                self._loop.call_soon(self._take)  # who has just come hears of it when its call has returned
                return
        if self._paused and self.failure is None:
            self._parked = True
            self._log.write_mark()
            return
        self._single_groups = self._single_groups + 1 if single else 0
        frames, confirms = self._frames, self._unconfirmed
        self._frames, self._unconfirmed = [], []
        if not frames or self.failure is not None:
            if adding:
                self._loop.call_soon(self._finish, confirms, self.failure)
            else:
                self._finish(confirms, self.failure)
            return
        group = frames, self._syncs or self._owes_sync, confirms, self._clock()
        self._owes_sync = False
        if self._may_write_on_loop(frames):
            caught = self._write(group, mark=False)
            interrupted = isinstance(caught, KeyboardInterrupt | SystemExit)
            if adding or interrupted:
                self._loop.call_soon(self._written, group, caught)
            else:
                self._written(group, caught)
            if caught is not None and interrupted:
                raise caught
        else:
            self._group = group
            self._handed_over.release()

    def _may_write_on_loop(self, frames: list[bytes]) -> bool:
        return (
            self._single_groups > SINGLE_GROUPS
            and self._fast_groups >= FAST_GROUPS
            and not self.disk_is_busy
            and sum(map(len, frames)) <= LOOP_BYTES_MAX
        )

    def resume(self) -> None:
        """Take groups again after ``pause``."""
        self._paused = False
        if self._parked:
            self._parked = False
            self._loop.call_soon(self._take)

    def _write_groups(self) -> None:
        while True:
            self._handed_over.acquire()
            if self._group is None:
                return
            self._loop.call_soon_threadsafe(self._written, self._group, self._write(self._group, mark=True))

    def _write(self, group: _Group, *, mark: bool) -> BaseException | None:
        """On the thread, or on the loop while the thread is idle."""
        frames, sync, _, _ = group
        try:
            self._log.append(frames)
            if sync:
                self._log.sync(mark=mark)
        except BaseException as caught:  # noqa: BLE001 - reported to the waiting callers
            return caught
        return None

    def _written(self, group: _Group, error: BaseException | None) -> None:
        frames, synced, confirms, since = group
        fast = synced and self._clock() - since <= FAST_SECONDS
        self._fast_groups = self._fast_groups + 1 if fast else 0
        self.waiting_bytes -= sum(map(len, frames))
        self._finish(confirms, error)

    def _finish(self, confirms: list[Confirm], error: BaseException | None) -> None:
        if error is not None:
            self._fail(error)
        self._give(confirms)
        if self._frames or self._unconfirmed:
            self._single_groups = 0
            self._loop.call_soon(self._take)
            return
        self._busy = False
        self._log.write_mark()  # what the loop wrote itself has none yet, because no confirmation waits for it
        self._wake_idle()

    def poison(self, error: BaseException) -> None:
        """Memory cannot be trusted any more: write nothing of it, and fail every confirmation with this error."""
        self._frames = []
        self._fail(error)
        self.resume()
        self.wake()

    async def drain(self) -> None:
        """Return when every confirmation was given."""
        while self._busy:
            await self._wait_until_idle()

    async def close(self) -> None:
        """Give every confirmation, then end the thread."""
        await self.drain()
        self._group = None
        self._handed_over.release()
        await self._loop.run_in_executor(None, self._thread.join)
