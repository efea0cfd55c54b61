"""The one thread on which an asyncio queue writes: what tasks append at the same time is one batch and one sync.

Owns: the order of appends and flushes, joining them, who gets which answer. Does not own: writing and syncing
(``queue``), which appends may be done at once on the event loop (``asynchronous``).

Failure model: each request is answered once, on the event loop. Where a write ends in the middle (a full disk), the
requests that are wholly in the log succeed and all others of that batch get the error. A failed sync is the answer of
every request that needs one, and of all that follow. A task that is cancelled while it waits has still appended.

How it shares syncs: requests wait in a list while the thread is busy. When it is free it takes the whole list, writes
it as one batch, for which the queue syncs once if its level demands it, and answers all. A request so waits for two
syncs at most; only an ``atomic`` batch has one of its own.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from holdfast.errors import Closed, PermissionDenied

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    from holdfast.queue.queue import Queue

    Result = TypeVar("Result")

__all__ = ["AppendLane"]


class _Request:
    """Messages to append, none for a flush."""

    __slots__ = ("answer", "atomic", "error", "first", "payloads")

    def __init__(self, payloads: Sequence[bytes], answer: asyncio.Future[int], *, atomic: bool) -> None:
        self.payloads = payloads
        self.answer = answer
        self.atomic = atomic
        self.first = 0
        self.error: BaseException | None = None


class AppendLane:
    """Appends to ``queue`` from one event loop. ``moved`` is called on the loop after each batch.

    Every method but ``run`` belongs on the loop.
    """

    __slots__ = ("_executor", "_loop", "_moved", "_queue", "_running", "_waiting")

    def __init__(self, moved: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="holdfast-queue-append")
        self._moved = moved
        self._queue: Queue | None = None
        self._waiting: list[_Request] = []
        self._running: asyncio.Future[None] | None = None

    def serve(self, queue: Queue) -> None:
        """Write to this queue from now on."""
        self._queue = queue

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is being written."""
        return self._running is None and not self._waiting

    def submit(self, payloads: Sequence[bytes], *, atomic: bool = False) -> asyncio.Future[int]:
        """Append after everything submitted before, none: flush. The answer is the first sequence number, or 0."""
        answer: asyncio.Future[int] = self._loop.create_future()
        self._waiting.append(_Request(payloads, answer, atomic=atomic))
        if self._running is None:
            self._running = self._loop.create_future()
            # Not now: every task that is ready to append in this turn of the loop comes along.
            self._loop.call_soon(self._start)
        return answer

    def _start(self) -> None:
        requests, self._waiting = self._waiting, []
        self._executor.submit(self._carry_out, requests)

    def _carry_out(self, requests: list[_Request]) -> None:
        """On the lane's thread. Every error ends in the requests that it belongs to."""
        queue = self._queue
        assert queue is not None, "a lane serves a queue before it gets a request"
        try:
            for batch in _batches(requests):
                _write(queue, batch)
            if not all(request.payloads for request in requests):
                queue.flush()
        except BaseException as error:  # noqa: BLE001 - told to those who wait
            for request in requests:
                if not request.payloads:
                    request.error = error
        finally:
            self._loop.call_soon_threadsafe(self._finish, requests)

    def _finish(self, requests: list[_Request]) -> None:
        for request in requests:
            if request.answer.done():
                continue  # cancelled while it waited
            if request.error is not None:
                request.answer.set_exception(request.error)
            else:
                request.answer.set_result(request.first)
        self._moved()
        if self._waiting:
            self._start()
        elif self._running is not None:
            self._running.set_result(None)
            self._running = None

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run ``work`` on the lane's thread; whatever happens to the caller, it has ended when this returns."""
        future = self._loop.run_in_executor(self._executor, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise

    async def drain(self) -> None:
        """Return when everything that was submitted has been answered."""
        while self._running is not None:
            await asyncio.shield(self._running)

    def close(self) -> None:
        """End the thread."""
        self._executor.shutdown(wait=False)


def _batches(requests: list[_Request]) -> list[list[_Request]]:
    """Neighbours that may be one append; an atomic request stands alone, a flush writes nothing."""
    batches: list[list[_Request]] = []
    for request in requests:
        if not request.payloads:
            continue
        if batches and not request.atomic and not batches[-1][-1].atomic:
            batches[-1].append(request)
        else:
            batches.append([request])
    return batches


def _write(queue: Queue, batch: list[_Request]) -> None:
    """Append one batch and note who got which sequence numbers, or which error."""
    payloads = batch[0].payloads
    if len(batch) > 1:
        payloads = [payload for request in batch for payload in request.payloads]
    before = queue.last_seq
    failure: BaseException | None = None
    try:
        queue.append_many(payloads, atomic=batch[0].atomic)
    except BaseException as error:  # noqa: BLE001 - told to those who wait
        failure = error
    # Nobody else appends while this runs, so the numbers tell what is in the log even after an error. Where nothing may
    # be written they are another process's.
    written = 0 if isinstance(failure, Closed | PermissionDenied) else queue.last_seq - before
    for request in batch:
        request.first = before + 1
        before += len(request.payloads)
        written -= len(request.payloads)
        if written < 0:
            request.error = failure
