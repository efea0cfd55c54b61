"""The one thread on which an asyncio queue writes: what tasks append at the same time is one batch and one sync.

Owns: the order of appends and flushes, joining them, who gets which answer. Does not own: writing and syncing
(``queue``), which appends may be done at once on the event loop (``asynchronous``).

Failure model: each request is answered once, on the event loop. Where a write ends in the middle (a full disk), the
requests that are wholly in the log succeed and each of the others gets an error of its own, whose ``appended`` counts
its own messages. A failed sync is the answer of every request that needs one, and of all that follow. A task that is
cancelled while it waits has still appended.

How it shares syncs: requests wait in a list while the thread is busy. When it is free it takes the whole list, writes
it as one batch, for which the queue syncs once if its level demands it, and answers all. A request so waits for two
syncs at most; only an ``atomic`` batch has one of its own.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from copy import copy

from holdfast.errors import HoldfastError, InternalError
from holdfast.queue.aio.work_queue import to_its_end

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    from holdfast.queue.queue import Queue

    Result = TypeVar("Result")

__all__ = ["AppendLane"]


def _unreached() -> InternalError:
    return InternalError("the thread that appends ended before it came to this")


def _own(failure: BaseException, appended: int = 0) -> BaseException:
    """The error of one request among those that it ends: of the joined batch so many messages in the log are this
    request's, and who raises it does not change what the others raise."""
    if not isinstance(failure, HoldfastError):
        return failure
    own = copy(failure)
    if "appended" in failure.fields:
        own.fields = {**failure.fields, "appended": appended}
    own.__cause__ = failure
    return own


class _Batch:
    """Messages that are appended together, and who waits for how many of them."""

    __slots__ = ("answers", "atomic", "counts", "failure", "first", "payloads", "written")

    def __init__(self, *, atomic: bool) -> None:
        self.atomic = atomic
        self.payloads: list[bytes] = []
        self.answers: list[asyncio.Future[int]] = []
        self.counts: list[int] = []
        self.first = 0
        self.written = 0
        self.failure: BaseException = _unreached()

    def write(self, queue: Queue) -> None:
        """Append to the queue, and note how much of it is in the log."""
        try:
            self.first = queue.last_seq + 1
            queue.append_encoded(self.payloads, atomic=self.atomic)
            self.written = len(self.payloads)
        except BaseException as error:  # noqa: BLE001 - told to those who wait
            self.failure = error
            appended = error.fields.get("appended") if isinstance(error, HoldfastError) else None
            self.written = appended if isinstance(appended, int) else 0

    def answer(self) -> None:
        """Tell all that wait: the first number of their messages, if all of them are in the log."""
        seq = self.first
        end = seq + self.written
        for answer, count in zip(self.answers, self.counts, strict=True):
            first, seq = seq, seq + count
            if answer.done():
                continue  # cancelled while it waited
            if seq <= end:
                answer.set_result(first)
            else:
                # Of the whole batch some may be in the log: of this request those that come before the end.
                answer.set_exception(_own(self.failure, max(0, end - first)))


class _Work:
    """What the thread does at a time: batches, then a flush if somebody waits for one."""

    __slots__ = ("batches", "failure", "flushes")

    def __init__(self) -> None:
        self.batches: list[_Batch] = []
        self.flushes: list[asyncio.Future[int]] = []
        self.failure: BaseException | None = _unreached()

    def carry_out(self, queue: Queue) -> None:
        """On the lane's thread."""
        for batch in self.batches:
            batch.write(queue)
        if self.flushes:
            try:
                queue.flush()
                self.failure = None
            except BaseException as error:  # noqa: BLE001 - told to those who wait
                self.failure = error

    def answer(self) -> None:
        """Tell all that wait."""
        for batch in self.batches:
            batch.answer()
        for flush in self.flushes:
            if flush.done():
                continue
            if self.failure is not None:
                flush.set_exception(_own(self.failure))
            else:
                flush.set_result(0)


class AppendLane:
    """Appends to ``queue`` from one event loop. ``moved`` is called on the loop after each batch.

    Every method but ``run`` belongs on the loop.
    """

    __slots__ = ("_executor", "_loop", "_moved", "_queue", "_running", "_shared", "_waiting")

    def __init__(self, moved: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="holdfast-queue-append")
        self._moved = moved
        self._queue: Queue | None = None
        self._waiting: _Work | None = None
        self._shared: _Batch | None = None  # the last one of what waits, if others may join it
        self._running: asyncio.Future[None] | None = None

    def serve(self, queue: Queue) -> None:
        """Write to this queue from now on."""
        self._queue = queue

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is being written."""
        return self._running is None

    def append(self, payload: bytes) -> asyncio.Future[int]:
        """Append after everything submitted before. The answer is the sequence number."""
        batch = self._shared or self._add_batch(atomic=False)
        answer: asyncio.Future[int] = self._loop.create_future()
        batch.payloads.append(payload)
        batch.counts.append(1)
        batch.answers.append(answer)
        return answer

    def append_many(self, payloads: Sequence[bytes], *, atomic: bool) -> asyncio.Future[int]:
        """As ``append``, with none between them. The answer is the first sequence number."""
        batch = None if atomic else self._shared
        batch = batch or self._add_batch(atomic=atomic)
        answer: asyncio.Future[int] = self._loop.create_future()
        batch.payloads.extend(payloads)
        batch.counts.append(len(payloads))
        batch.answers.append(answer)
        return answer

    def flush(self) -> asyncio.Future[int]:
        """Make everything durable that was submitted before."""
        answer: asyncio.Future[int] = self._loop.create_future()
        self._to_do().flushes.append(answer)
        return answer

    def _add_batch(self, *, atomic: bool) -> _Batch:
        batch = _Batch(atomic=atomic)
        self._to_do().batches.append(batch)
        self._shared = None if atomic else batch
        return batch

    def _to_do(self) -> _Work:
        if self._waiting is None:
            self._waiting = _Work()
            if self._running is None:
                self._running = self._loop.create_future()
                # Not now: every task that is ready to append in this turn of the loop comes along.
                self._loop.call_soon(self._start)
        return self._waiting

    def _start(self) -> None:
        work, self._waiting, self._shared = self._waiting, None, None
        assert work is not None, "the thread is started when something waits"
        self._executor.submit(self._carry_out, work)

    def _carry_out(self, work: _Work) -> None:
        """On the lane's thread. Every error ends in those that it belongs to."""
        queue = self._queue
        assert queue is not None, "a lane serves a queue before it gets a request"
        try:
            work.carry_out(queue)
        finally:
            self._loop.call_soon_threadsafe(self._finish, work)

    def _finish(self, work: _Work) -> None:
        work.answer()
        self._moved()
        if self._waiting is not None:
            self._start()
        elif self._running is not None:
            self._running.set_result(None)
            self._running = None

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run ``work`` on the lane's thread, behind everything submitted before; whatever happens to the caller, it has
        ended when this returns."""
        return await to_its_end(self._loop.run_in_executor(self._executor, work))

    async def drain(self) -> None:
        """Return when everything that was submitted has been answered."""
        while self._running is not None:
            await asyncio.shield(self._running)

    def close(self) -> None:
        """End the thread."""
        self._executor.shutdown(wait=False)
