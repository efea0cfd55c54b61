"""``queue.Queue`` in files: the methods of the standard library's class over a work queue.

The next item is the oldest one, by its number in the queue, that no thread has: also after a restart, a failed load or
an interrupt. An item is removed when its ``task_done`` has returned; else it comes again at the next opening, first.
Pages of finished items are removed (``keep="consumed"``). The work queue counts the items, so an interrupt (Ctrl-C)
ends the call that it hits: an interrupted ``put`` or ``task_done`` is done or not, an interrupted ``get`` is not. If it
cut a step of the work queue, the work queue is opened again, which reads what was done.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from queue import Empty, Full
from time import monotonic

from holdfast.errors import Closed, Code, HoldfastError
from holdfast.queue.files.disk_errors import opening
from holdfast.queue.files.process import WithBlock, forked, poison_in_children
from holdfast.queue.options import SyncLevel, sync_level, whole_number
from holdfast.queue.queue import Queue, core_of
from holdfast.queue.work.work_queue import DELIVERIES_MAX, LEASE_S_MAX, STARTED_MAX, WorkQueue

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection
    from typing import TypeVar

    from holdfast.queue.serializers import Serializer
    from holdfast.queue.work.work_queue import Job

    Result = TypeVar("Result")

NAME = "tasks"
MAXSIZE_MAX = 1 << 60
LOOK_S = 1.0
"""A waiting thread looks this often: an interrupt may lose a notification."""


class _Tasks(WorkQueue):
    """A work queue whose owner knows all workers and promises the order of the queue."""

    _by_seq = True

    def unfinished(self) -> int:
        """As ``lag``, without reading files: trimmed messages that were never handed out count, too."""
        with self._lock:
            self._raise_if_closed()
            return max(0, self._core.last_seq - self._machine.next_seq + 1) + len(self._machine.started)

    def has(self, job: Job) -> bool:
        """Whether the worker still has this delivery."""
        with self._lock:
            return self._machine.is_leased(job[0], job.deliveries)

    def flush(self) -> None:
        """Make every step so far durable. *Raises*: ``Closed``, also after a failed sync."""
        with self._lock:
            self._raise_if_closed()
        self._log.flush()

    @property
    def usable(self) -> bool:
        """Whether it is open and no interrupt has cut a step off."""
        return self._closed is None and not self._log.in_step

    def return_leased(self, keep: Collection[int] = ()) -> None:
        """Return the messages that workers have, except ``keep``, before all others. For an owner that knows all
        workers.
        """
        with self._lock:
            self._raise_if_closed()
            self._return_leased(0, keep)


class FileQueue(WithBlock):
    """A first-in, first-out queue of items for the threads of one process, which survives the process. Thread-safe.

    ``maxsize`` is a number of items; 0 is no limit. A million items may be got and not done; then ``get`` waits. Items
    are bytes, or what the ``serializer`` takes; ``sync`` as for ``holdfast.Queue``. *Raises*: as ``holdfast.Queue``;
    every method ``Closed`` once it is closed, a sync has failed, or in a forked child.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        maxsize: int = 0,
        *,
        serializer: Serializer | str | None = None,
        sync: SyncLevel | str = "os",
    ) -> None:
        self.maxsize = whole_number("maxsize", maxsize, 0, MAXSIZE_MAX)
        # Durable steps are synced without the mutex: threads share a sync, and a get does not wait.
        self._synced = sync_level(sync).name == "always"
        self._queue = Queue(path, serializer=serializer, sync="os" if self._synced else sync, keep="consumed")
        try:
            self._work = self._open_work()
            # Jobs that an earlier process got and did not finish are next.
            self._work.return_leased()
        except BaseException:
            self._queue.close()
            raise
        self._loading: dict[int, Job] = {}  # by message: taken by a get that has not returned
        self._got: dict[int, deque[Job]] = {}  # by thread, in the order in which they were got
        # One entry per interrupted call, with its job if any. While there are entries, ``_loading`` and ``_got`` may
        # differ from the leases.
        self._cut_off: list[Job | None] = []
        self._closed: Closed | None = None
        self._make_locks()
        poison_in_children(self)

    def _open_work(self) -> _Tasks:
        core = core_of(self._queue)
        with opening(core.path):
            work = _Tasks(
                core, NAME, ack_wait=LEASE_S_MAX, max_deliveries=DELIVERIES_MAX, retry_delay=0.0, max_retry_delay=0.0,
                max_started=STARTED_MAX, since=None, damage=core.damage, hold=True,
            )  # fmt: skip
        core.add(work)
        return work

    def _make_locks(self) -> None:
        # An interrupt in the wait of a condition over a plain lock can release a lock that another thread holds.
        self._mutex = threading.RLock()
        self._not_empty = threading.Condition(self._mutex)
        self._not_full = threading.Condition(self._mutex)
        self._all_done = threading.Condition(self._mutex)

    # ---- the methods of queue.Queue ---------------------------------------------------------------------------------

    def put(self, item: object, block: bool = True, timeout: float | None = None) -> None:
        """Append an item. *Raises*: ``queue.Full`` if there is no room, immediately or after ``timeout`` seconds.

        *Cost*: a few microseconds; at "always" one sync, shared by the threads that put at the same time.
        """
        if self.maxsize and block and timeout is not None and timeout < 0:
            raise ValueError("'timeout' must be a non-negative number")
        with self._mutex:
            if not self._wait_until(self._not_full, self._has_room, block, timeout):
                raise Full
            try:
                seq = self._queue.append(item)
            except Closed as error:
                self._end(error)
                raise
            self._not_empty.notify()
        if self._synced:
            try:
                core_of(self._queue).wait_durable(seq)
            except Closed as error:
                self._end(error)
                raise

    def get(self, block: bool = True, timeout: float | None = None) -> object:
        """The oldest item. *Raises*: ``queue.Empty`` if there is none, immediately or after ``timeout`` seconds.

        *Raises* also what the serializer's ``load`` raises. That item stays the oldest: each ``get`` raises until a
        serializer loads it or a work queue removes it (see the reference of the queue).
        """
        if block and timeout is not None and timeout < 0:
            raise ValueError("'timeout' must be a non-negative number")
        job: Job | None = None
        try:
            with self._mutex:
                job = self._wait_until(self._not_empty, lambda: self._work.get(0), block, timeout)
                if job is not None:
                    self._loading[job.seq] = job
                    self._not_full.notify()
            if job is not None:
                value = job.value
                with self._mutex:
                    self._check()
                    self._got.setdefault(threading.get_ident(), deque()).append(job)
                    del self._loading[job.seq]
                    return value
        except BaseException:
            self._cut_off.append(job)  # first of all: a second interrupt leaves the rest to the next call
            self._recover_now()
            raise
        raise Empty

    def put_nowait(self, item: object) -> None:
        """As ``put(item, block=False)``."""
        self.put(item, block=False)

    def get_nowait(self) -> object:
        """As ``get(block=False)``."""
        return self.get(block=False)

    def task_done(self) -> None:
        """The oldest item that this thread got and has not finished is done, and never comes again.

        In a thread without items: the oldest of any thread. *Raises*: ``ValueError`` if no item is got and not done;
        the standard class also counts items that no thread got.
        """
        with self._mutex:
            self._check()
            thread = threading.get_ident()
            if thread not in self._got:
                if not self._got:
                    raise ValueError("task_done() called too many times")
                thread = min(self._got, key=lambda other: self._got[other][0].seq)
            jobs, work = self._got[thread], self._work
            try:
                work.ack(jobs[0])
                jobs.popleft()
                if not jobs:
                    del self._got[thread]
            except BaseException:
                self._cut_off.append(None)
                self._recover_now()
                raise
            self._not_empty.notify()  # a get may wait for room among the items that are got
            if not work.unfinished():
                self._all_done.notify_all()
        self._make_durable(work)

    def join(self) -> None:
        """Return when every item, also of an earlier process, is done."""
        with self._mutex:
            self._wait_until(self._all_done, lambda: not self._work.unfinished(), True, None)
            work = self._work
        self._make_durable(work)

    def qsize(self) -> int:
        """How many items wait to be got."""
        with self._mutex:
            self._check()
            return self._waiting()

    def empty(self) -> bool:
        """Whether no item waits."""
        return not self.qsize()

    def full(self) -> bool:
        """Whether there is no room for an item now."""
        with self._mutex:
            self._check()
            return not self._has_room()

    # ---- steps; call with the mutex held ----------------------------------------------------------------------------

    def _waiting(self) -> int:
        got = sum(map(len, self._got.values())) + len(self._loading)
        return max(0, self._work.unfinished() - got)

    def _has_room(self) -> bool:
        return not self.maxsize or self._waiting() < self.maxsize

    def _wait_until(
        self, condition: threading.Condition, look: Callable[[], Result], block: bool, timeout: float | None
    ) -> Result:
        """The first true result of ``look``, or the last false one at the timeout."""
        until = None if timeout is None else monotonic() + timeout
        while True:
            self._check()
            result = look()
            left_s = LOOK_S if until is None else until - monotonic()
            if result or not block or left_s <= 0:
                return result
            condition.wait(min(left_s, LOOK_S))

    def _check(self) -> None:
        """Raise ``Closed``, or make the jobs agree with the work queue's."""
        if self._closed is not None:
            raise self._closed.with_traceback(None)  # else it would keep the frames of every caller
        if self._cut_off:
            self._recover()

    def _recover_now(self) -> None:
        """Recover in the interrupted call, which raises the interrupt. The next call reports a refusal."""
        with suppress(HoldfastError, OSError), self._mutex:
            self._check()

    def _recover(self) -> None:
        """Return each job that no thread has. An interrupt repeats it. Call with the mutex held."""
        count = len(self._cut_off)  # threads that do not have the mutex may add to it
        if not self._work.usable:
            self._open_work_again()
        work = self._work
        lost = {job.seq for job in self._cut_off[:count] if job is not None}
        self._loading = {seq: job for seq, job in self._loading.items() if seq not in lost}
        left: dict[int, deque[Job]] = {}
        for thread, jobs in self._got.items():
            kept = deque(job for job in jobs if job.seq not in lost and work.has(job))
            if kept:
                left[thread] = kept
        self._got = left
        work.return_leased(keep={*self._loading, *(job.seq for jobs in left.values() for job in jobs)})
        del self._cut_off[:count]
        self._wake_all()

    def _open_work_again(self) -> None:
        """An interrupt left a command half done; only the log has its result."""
        try:
            self._work.close()
            self._work = self._open_work()
        except (HoldfastError, OSError) as error:
            closed = Closed(
                "an interrupt stopped a call half way, and then the jobs could not be opened again",
                name=NAME,
                hint="close this FileQueue and open it again",
            )
            self._end(closed)
            raise closed from error

    def _make_durable(self, work: _Tasks) -> None:
        """Sync the steps of ``work`` if the level requires it. Call without the mutex."""
        if not self._synced:
            return
        try:
            work.flush()
        except Closed as error:
            with self._mutex:
                self._check()
                if self._work is work:
                    self._end(error)
                    raise
            # An interrupt in another thread closed this work queue, which made its steps durable.

    def _end(self, error: Closed) -> None:
        """Refuse every call from now on, and end every wait."""
        with self._mutex:
            if self._closed is None:
                self._closed = error
            self._wake_all()

    def _wake_all(self) -> None:
        for condition in (self._not_empty, self._not_full, self._all_done):
            condition.notify_all()

    def close(self) -> None:
        """Make everything durable and close the files; waiting calls raise ``Closed``. Closing twice is harmless."""
        self._end(Closed("the queue is closed", code=Code.CLOSED))
        self._queue.close()

    def _poison_after_fork(self) -> None:
        """In a forked child: replace the locks, which the parent's threads may hold, and refuse everything."""
        self._make_locks()
        if self._closed is None:
            self._closed = forked("use its parent's queue")
