"""``queue.Queue`` of the standard library, with its items on disk.

    from holdfast.queue import FileQueue

    with FileQueue("data/mail", maxsize=10_000) as mail:
        mail.put({"to": "ann"})
        item = mail.get()
        send(item)
        mail.task_done()

Owns: the names and rules of ``queue.Queue``. Does not own: items on disk and their leases (``work_queue``).

Failure model: at least once. An item that was put survives a killed process. An item that was got and has no
``task_done`` comes back when the queue is opened again, before new ones.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from queue import Empty, Full

from holdfast.errors import InvalidRequest
from holdfast.queue.queue import Queue
from holdfast.queue.serializers import serializer_named
from holdfast.queue.work_queue import DELIVERIES_MAX, STARTED_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from types import TracebackType
    from typing import Self

    from holdfast.queue.serializers import Serializer
    from holdfast.queue.sync_levels import SyncLevel
    from holdfast.queue.work_job import Job

__all__ = ["FileQueue"]

LEASE_S = 10 * 365 * 86_400.0
"""A lease ends with ``task_done`` or with the process: no other process can have a worker."""


class _Held(threading.local):
    """The jobs that this thread got and has not reported as done, oldest first."""

    def __init__(self) -> None:
        self.jobs: deque[Job] = deque()


class FileQueue:
    """A queue for the threads of one process that keeps its items in files.

    *Shape*: ``maxsize`` is the most items that wait for ``get``; 0 or less: no limit. Items are JSON values by default;
    a tuple comes back as a list. ``name`` is the work queue's name in the directory.

    *Differences from* ``queue.Queue``: ``task_done`` must be called by the thread that got the item; without it the
    item comes back after the next opening. At most 1,000,000 items may wait for their ``task_done``; then ``get``
    waits. ``join`` and ``unfinished_tasks`` count the items of earlier runs too.

    *Raises*: ``AlreadyOpen`` while another object or process has it open: one process at a time. For several processes
    use a message store. Every method raises ``Closed`` after ``close``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        maxsize: int = 0,
        *,
        serializer: Serializer | str = "json",
        sync: SyncLevel | str = "os",
        name: str = "main",
    ) -> None:
        if not isinstance(maxsize, int):
            raise InvalidRequest("maxsize must be a whole number", maxsize=maxsize)
        self.maxsize = maxsize
        self._serializer = serializer_named(serializer)
        self._queue = Queue(path, serializer=serializer, sync=sync)
        try:
            self._work = self._queue.work_queue(
                name,
                visibility=LEASE_S,
                max_deliveries=DELIVERIES_MAX,
                max_started=STARTED_MAX,
                since="earliest",
            )
            self._work.release_leases()
        except BaseException:
            self._queue.close()
            raise
        self._changed = threading.Condition()
        self._held = 0
        self._mine = _Held()

    # ---- producers --------------------------------------------------------------------------------------------------

    def put(self, item: object, block: bool = True, timeout: float | None = None) -> None:
        """Append an item; while the queue is full, wait up to ``timeout`` seconds (None: without limit).

        *Raises*: ``queue.Full``; ``ValueError`` for a negative timeout; what the serializer raises. *After a crash*:
        an item whose ``put`` returned is there; with ``sync="always"`` also after a loss of power.
        """
        if self.maxsize <= 0:
            self._queue.append(item)
            return
        until = _deadline(block, timeout)
        with self._changed:
            while self.qsize() >= self.maxsize:
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise Full
                self._changed.wait(left)
            self._queue.append(item)

    def put_nowait(self, item: object) -> None:
        """As ``put(item, block=False)``."""
        self.put(item, block=False)

    # ---- consumers --------------------------------------------------------------------------------------------------

    def get(self, block: bool = True, timeout: float | None = None) -> object:
        """The next item; while there is none, wait up to ``timeout`` seconds (None: without limit).

        *Raises*: ``queue.Empty``; ``ValueError`` for a negative timeout; what the serializer raises: then the item
        counts as got.
        """
        until = _deadline(block, timeout)
        job = self._work.get(None if until is None else max(0.0, until - time.monotonic()))
        if job is None:
            raise Empty
        with self._changed:
            self._held += 1
            self._changed.notify_all()
        self._mine.jobs.append(job)
        return job.payload if self._serializer is None else self._serializer.load(job.payload)

    def get_nowait(self) -> object:
        """As ``get(block=False)``."""
        return self.get(block=False)

    def task_done(self) -> None:
        """The oldest item that this thread got is done and never comes back. *Raises*: ``ValueError`` for none."""
        if not self._mine.jobs:
            raise ValueError("task_done() called more often than get() in this thread")
        with self._changed:
            self._work.ack(self._mine.jobs[0])
            self._mine.jobs.popleft()
            self._held -= 1
            self._changed.notify_all()

    def join(self) -> None:
        """Wait until every item was got and is done."""
        with self._changed:
            while self._work.lag():
                self._changed.wait()

    # ---- sizes ------------------------------------------------------------------------------------------------------

    @property
    def unfinished_tasks(self) -> int:
        """Items that are not done."""
        return self._work.lag()

    def qsize(self) -> int:
        """Items that wait for ``get``. Another thread may change it at once."""
        with self._changed:
            return max(0, self._work.lag() - self._held)

    def empty(self) -> bool:
        """Whether no item waits for ``get``."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Whether ``put`` would wait."""
        return 0 < self.maxsize <= self.qsize()

    # ---- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the files; threads that wait get ``Closed``. A second call does nothing."""
        self._queue.close()
        with self._changed:
            self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _deadline(block: bool, timeout: float | None) -> float | None:
    """When to stop waiting, on the monotonic clock; None: never."""
    if not block:
        return time.monotonic()
    if timeout is None:
        return None
    if timeout < 0:
        raise ValueError("'timeout' must be a non-negative number")
    return time.monotonic() + timeout
