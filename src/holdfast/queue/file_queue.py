"""``queue.Queue`` in files: the methods of the standard library's class over a work queue.

Owns: ``maxsize``, ``join``, which job a ``task_done`` finishes. Does not own: the messages and jobs (``queue``,
``work_queue``).

Failure model: an item is gone when its ``task_done`` has returned. What was got and not done when the process ends
comes again at the next opening, before newer items. Items whose pages are done with are removed (``keep="consumed"``).
"""

from __future__ import annotations

import threading
from collections import deque
from queue import Empty, Full
from time import monotonic

from holdfast.errors import Closed, Code
from holdfast.queue.arguments import whole_number
from holdfast.queue.queue import Queue
from holdfast.queue.work_queue import DELIVERIES_MAX, LEASE_S_MAX, STARTED_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from holdfast.queue.serializers import Serializer
    from holdfast.queue.sync_levels import SyncLevel
    from holdfast.queue.work_job import Job

__all__ = ["FileQueue"]

NAME = "tasks"
MAXSIZE_MAX = 1 << 60


class FileQueue:
    """A first-in, first-out queue of items for the threads of one process, which survives the process.

    ``maxsize`` is a number of items; 0 is no limit. A million items may be got and not done; ``get`` waits for room
    then. Items are bytes, or what the ``serializer`` takes; ``sync`` as for ``holdfast.Queue``. Thread-safe.
    *Raises*: as ``holdfast.Queue``; every method ``Closed`` once it is closed.
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
        self._queue = Queue(path, serializer=serializer, sync=sync, keep="consumed")
        try:
            self._work = self._queue.work_queue(
                NAME, visibility=LEASE_S_MAX, max_deliveries=DELIVERIES_MAX, max_started=STARTED_MAX
            )
            # Only this process has them: what an earlier one got and did not finish is next.
            self._work.return_leased()
            self._unfinished = self._size = self._work.lag()
        except BaseException:
            self._queue.close()
            raise
        self._mutex = threading.Lock()
        self._not_full = threading.Condition(self._mutex)
        self._all_done = threading.Condition(self._mutex)
        self._got: dict[int, deque[Job]] = {}  # by thread, in the order in which they were got
        self._closed = False

    def put(self, item: object, block: bool = True, timeout: float | None = None) -> None:
        """Append an item. *Raises*: ``queue.Full`` where there is no room, at once or after ``timeout`` seconds."""
        with self._mutex:
            if not self._wait_for(self._not_full, self._has_room, block, timeout):
                raise Full
            self._queue.append(item)
            self._size += 1
            self._unfinished += 1

    def get(self, block: bool = True, timeout: float | None = None) -> object:
        """The oldest item. *Raises*: ``queue.Empty`` where there is none, at once or after ``timeout`` seconds."""
        if block and timeout is not None and timeout < 0:
            raise ValueError("'timeout' must be a non-negative number")
        job = self._work.get(timeout if block else 0)
        if job is None:
            raise Empty
        with self._mutex:
            self._got.setdefault(threading.get_ident(), deque()).append(job)
            self._size -= 1
            self._not_full.notify()
        return job.value

    def put_nowait(self, item: object) -> None:
        """As ``put(item, block=False)``."""
        self.put(item, block=False)

    def get_nowait(self) -> object:
        """As ``get(block=False)``."""
        return self.get(block=False)

    def task_done(self) -> None:
        """The oldest item that this thread got and has not finished is done, and never comes again.

        In a thread that has none: the oldest of any thread. *Raises*: ``ValueError`` where no item is got and not done;
        the standard class also counts items that nobody got.
        """
        with self._mutex:
            thread = threading.get_ident()
            if thread not in self._got:
                if not self._got:
                    raise ValueError("task_done() called too many times")
                thread = min(self._got, key=lambda other: self._got[other][0].seq)
            jobs = self._got[thread]
            self._work.ack(jobs[0])
            jobs.popleft()
            if not jobs:
                del self._got[thread]
            self._unfinished -= 1
            if not self._unfinished:
                self._all_done.notify_all()

    def join(self) -> None:
        """Return when every item that was put, also by an earlier process, is done."""
        with self._mutex:
            self._wait_for(self._all_done, lambda: not self._unfinished, True, None)

    def qsize(self) -> int:
        """How many items wait to be got."""
        return self._size

    def empty(self) -> bool:
        """Whether no item waits."""
        return not self._size

    def full(self) -> bool:
        """Whether there is no room for an item now."""
        return not self._has_room()

    def _has_room(self) -> bool:
        return not self.maxsize or self._size < self.maxsize

    def _wait_for(
        self, condition: threading.Condition, holds: Callable[[], bool], block: bool, timeout: float | None
    ) -> bool:
        """Wait as the standard library does; call with the mutex held. False where the time is over."""
        if self.maxsize and block and timeout is not None and timeout < 0:
            raise ValueError("'timeout' must be a non-negative number")
        until = None if timeout is None else monotonic() + timeout
        while True:
            if self._closed:
                raise Closed("the queue is closed", code=Code.CLOSED)
            if holds():
                return True
            left_s = None if until is None else until - monotonic()
            if not block or (left_s is not None and left_s <= 0):
                return False
            condition.wait(left_s)

    def close(self) -> None:
        """Make everything durable and close the files; every wait ends with ``Closed``. Doing it twice is harmless."""
        with self._mutex:
            self._closed = True
            self._not_full.notify_all()
            self._all_done.notify_all()
        self._queue.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
