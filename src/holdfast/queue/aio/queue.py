"""``holdfast.aio.Queue``: asyncio over ``Queue``.

Nothing that may wait for the disk runs on the event loop. A task that is cancelled while it appends may have appended.
A cancelled ``open`` leaves nothing open; a cancelled ``close`` has closed when the cancellation is reported. A queue
belongs to the event loop on which it was opened; its tasks may share it.

Appends share syncs (``AppendLane``): requests wait while the thread is busy, then it writes them as one batch with one
sync. When a write ends in the middle (a full disk), the requests that are wholly in the log succeed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import partial
from itertools import chain, groupby
from typing import Any, ParamSpec, Self, TypeVar
from weakref import WeakMethod

from holdfast.errors import Closed, HoldfastError, InternalError, InvalidRequest, LimitExceeded
from holdfast.queue.aio.consumers import (
    AsyncWithBlock,
    Consumer,
    WorkQueue,
    check_arguments,
    on_helper,
    open_by,
    shown_as,
    to_its_end,
)
from holdfast.queue.core import QueueCore
from holdfast.queue.files.process import opened_at, opening_from
from holdfast.queue.format.frame import octets
from holdfast.queue.log.messages import Gap, Message, Trimmed
from holdfast.queue.log.reader import PAUSE_MAX_S, PAUSE_MIN_S, LogReader
from holdfast.queue.options import each_of, same_arguments
from holdfast.queue.queue import Queue as BlockingQueue
from holdfast.queue.queue import core_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.queue.log.messages import Block, Damage
    from holdfast.queue.options import Since

Arguments = ParamSpec("Arguments")
Blocking = TypeVar("Blocking")
Item = TypeVar("Item")
Result = TypeVar("Result")
Shell = TypeVar("Shell")


class _Request:
    """Messages of one call, appended together; a flush without messages. ``outcome`` is their first number, or the
    error; None if the thread has ended before.
    """

    __slots__ = ("atomic", "future", "outcome", "payloads")

    def __init__(self, future: asyncio.Future[int], payloads: Sequence[bytes], *, atomic: bool) -> None:
        self.future = future
        self.payloads = payloads
        self.atomic = atomic
        self.outcome: int | BaseException | None = None

    def complete(self) -> None:
        outcome = self.outcome
        if self.future.done():
            return  # cancelled while it waited
        if isinstance(outcome, int):
            self.future.set_result(outcome)
        else:
            self.future.set_exception(outcome or InternalError("the thread that appends ended before it came to this"))


def _own(failure: BaseException, appended: int = 0) -> BaseException:
    """The error of one request of a joined batch, with its own count of ``appended``. Each caller gets a copy."""
    if not isinstance(failure, HoldfastError):
        return failure
    own = copy(failure)
    if "appended" in failure.fields:
        own.fields = {**failure.fields, "appended": appended}
    own.__cause__ = failure
    return own


def _append(core: QueueCore, batch: list[_Request]) -> None:
    """Append the messages of these requests with no others between them."""
    payloads = [payload for request in batch for payload in request.payloads]
    first, count, failure = 0, 0, BaseException()
    try:
        first = core.last_seq + 1
        core.append_many(payloads, atomic=batch[0].atomic)
        count = len(payloads)
    except BaseException as error:  # noqa: BLE001 - raised by the futures
        failure = error
        appended = error.fields.get("appended") if isinstance(error, HoldfastError) else None
        count = appended if isinstance(appended, int) else 0
    end = first + count
    for request in batch:
        # Part of the batch may be in the log: count the messages of this request before the end.
        after = first + len(request.payloads)
        request.outcome = first if after <= end else _own(failure, max(0, end - first))
        first = after


class AppendLane:
    """Appends from one event loop, on one thread. ``moved`` is called on the loop after each run of the thread. Call
    every method except ``run`` on the loop; ``core`` is set before the first request.
    """

    def __init__(self, moved: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="holdfast-queue-append")
        self._moved = moved
        self.core: QueueCore | None = None
        self._waiting: list[_Request] = []
        self._running: asyncio.Future[None] | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is being written."""
        return self._running is None

    def append(self, payloads: Sequence[bytes], *, atomic: bool = False) -> asyncio.Future[int]:
        """Append after everything submitted before, with no others between them. The result is the first sequence
        number. Without messages: make everything durable that was submitted before.
        """
        if self._running is None:
            self._running = self._loop.create_future()
            # Later, so that every task that appends in this turn of the loop joins.
            self._loop.call_soon(self._start)
        future: asyncio.Future[int] = self._loop.create_future()
        self._waiting.append(_Request(future, payloads, atomic=atomic))
        return future

    def _start(self) -> None:
        requests, self._waiting = self._waiting, []
        self._executor.submit(self._carry_out, requests)

    def _carry_out(self, requests: list[_Request]) -> None:
        """On the lane's thread: batches, then one flush if any is requested. Every error reaches its requests."""
        core = self.core
        assert core is not None, "a lane has a queue before it gets a request"
        try:
            appends = (request for request in requests if request.payloads)
            for _, batch in groupby(appends, lambda request: id(request) if request.atomic else 0):
                _append(core, [*batch])
            if flushes := [request for request in requests if not request.payloads]:
                failure: BaseException | None = None
                try:
                    core.flush()
                except BaseException as error:  # noqa: BLE001 - raised by the futures
                    failure = error
                for flush in flushes:
                    flush.outcome = 0 if failure is None else _own(failure)
        finally:
            self._loop.call_soon_threadsafe(self._finish, requests)

    def _finish(self, requests: list[_Request]) -> None:
        for request in requests:
            request.complete()
        self._moved()
        if self._waiting:
            self._start()
        elif self._running is not None:
            self._running.set_result(None)
            self._running = None

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run ``work`` on the thread, after everything submitted before, to its end, also after a cancellation."""
        return await to_its_end(self._loop.run_in_executor(self._executor, work))

    async def drain(self) -> None:
        """Return when every submitted request is completed."""
        while self._running is not None:
            await asyncio.shield(self._running)

    def close(self) -> None:
        """End the thread."""
        self._executor.shutdown(wait=False)


def _encoded(core: QueueCore, payload: object) -> bytes:
    data = octets(payload if core.serializer is None else core.serializer.dump(payload))
    if len(data) > core.max_message:
        raise LimitExceeded("message is too large", bytes=len(data), max=core.max_message)
    return data


def _read_messages(reader: LogReader) -> list[list[Message]] | None:
    parts = reader.read_message_parts()
    return None if parts is None else list(parts)


class Queue(AsyncWithBlock):
    """A durable queue for asyncio, opened by ``async with`` or ``await queue.open()``. The arguments and methods are
    those of ``holdfast.Queue``. What tasks append at the same time is one batch at every level.

    With ``follow`` a reader waits for the next message and ends when the queue is closed, with ``Closed``. A callable
    for ``damage`` is called on the event loop. ``batches`` is the fastest way to read all of a log: ``async for`` takes
    a step for each block, not for each message. ``consumer`` and ``work_queue`` are opened by ``async with``.
    """

    @same_arguments(QueueCore.__init__)
    def __init__(self, *args: Any, **options: Any) -> None:
        check_arguments(BlockingQueue.__init__, self, *args, **options)
        self._open: Callable[[], BlockingQueue] = partial(BlockingQueue, *args, **options)
        self._lane: AppendLane | None = None
        self._queue: BlockingQueue | None = None
        self._core: QueueCore | None = None
        self._at_once: Callable[[bytes], int | None] | None = None
        self._polls = False
        self._followers: dict[asyncio.Future[None], None] = {}  # in the order in which they came
        self._trims: set[asyncio.Future[int]] = set()
        self._ended: asyncio.Future[None] | None = None

    async def open(self) -> Self:
        """Open the files. *Raises*: as ``holdfast.Queue``; ``Closed`` if it was opened before."""
        if self._lane is not None:
            raise Closed("a queue is opened once", hint="make another Queue")
        location, open_blocking, wake = opened_at(), self._open, WeakMethod(self._wake)

        def moved() -> None:
            """Not the method itself: that would keep this queue, and it could not be dropped."""
            if (wake_now := wake()) is not None:
                wake_now()

        def open_here() -> BlockingQueue:
            with opening_from(location):
                return open_blocking()

        lane = self._lane = AppendLane(moved)
        try:
            self._queue = await open_by(lane.run, open_here)
        except BaseException:
            lane.close()
            raise
        core = self._core = lane.core = core_of(self._queue)
        self._polls = not core.writable
        if core.writable and core.writer.stores:
            self._at_once = core.writer.tail.append_at_once
        return self

    async def close(self) -> None:
        """Finish all appends, make everything durable, release the files. Closing twice is harmless; a second task
        waits for the first.

        An append that waits for space (``full="block"``) gets ``Closed``. *Raises*: as ``holdfast.Queue.close``.
        """
        queue, core, lane = self._queue, self._core, self._lane
        self._queue = self._core = None
        if queue is None or core is None or lane is None:
            if self._ended is not None:
                await asyncio.shield(self._ended)
            return
        self._ended = asyncio.get_running_loop().create_future()
        if core.writable:
            # Before waiting for the appends: one that waits for space might wait forever.
            core.space.close()
        cancelled: asyncio.CancelledError | None = None
        while self._trims or not lane.idle:
            try:
                await lane.drain()
                if self._trims:
                    await asyncio.wait(self._trims)
            except asyncio.CancelledError as error:
                # Not yet: no other task can close it, and its lock would stay.
                cancelled = error
        try:
            await lane.run(queue.close)
        finally:
            lane.close()
            self._wake()
            self._ended.set_result(None)
            if cancelled is not None:
                raise cancelled

    def _opened(self) -> tuple[BlockingQueue, QueueCore, AppendLane]:
        queue, lane = self._queue, self._lane
        if queue is None or lane is None:
            raise Closed("the queue is closed" if lane is not None else "the queue is not open yet")
        return queue, core_of(queue), lane

    # ---- writing ----------------------------------------------------------------------------------------------------

    async def append(self, payload: object) -> int:
        """Append one message and return its sequence number, after as much durability as the sync level promises.

        *Raises*: as ``holdfast.Queue.append``.
        *Cost*: a few microseconds at the level "os"; at "always" one sync for all tasks that append meanwhile.
        """
        core, lane = self._core, self._lane
        if core is None or lane is None:
            _, core, lane = self._opened()
        # The fast path for plain bytes.
        if type(payload) is bytes and core.serializer is None and len(payload) <= core.max_message:
            data = payload
        else:
            data = _encoded(core, payload)
        if self._at_once is not None and lane.idle and (seq := self._at_once(data)) is not None:
            if self._followers:
                self._wake()
            return seq
        return await lane.append((data,))

    async def append_many(self, payloads: Iterable[object], *, atomic: bool = False) -> tuple[int, int]:
        """As ``holdfast.Queue.append_many``: returns the first and the last sequence number."""
        _, core, lane = self._opened()
        data = [_encoded(core, payload) for payload in each_of(payloads)]
        if not data:
            raise InvalidRequest("append_many needs a message")
        first = await lane.append(data, atomic=atomic)
        return first, first + len(data) - 1

    async def flush(self) -> None:
        """Return when everything appended so far is durable. *Raises*: ``Closed`` after a failed sync."""
        await self._opened()[2].append(())

    async def trim(self, *, before_seq: int) -> int:
        """Remove the pages whose messages are all below ``before_seq``. Returns how many pages."""
        queue = self._opened()[0]
        # Not on the lane: an append there may be waiting for this space.
        work = asyncio.get_running_loop().run_in_executor(None, partial(queue.trim, before_seq=before_seq))
        self._trims.add(work)
        work.add_done_callback(self._trims.discard)
        return await to_its_end(work)

    @property
    def first_seq(self) -> int:
        """The oldest message that was not removed; ``last_seq + 1`` if there is none."""
        return self._opened()[0].first_seq

    @property
    def last_seq(self) -> int:
        """The newest message, 0 before the first."""
        return self._opened()[0].last_seq

    @property
    def durable_seq(self) -> int:
        """Messages up to this one are on disk."""
        return self._opened()[0].durable_seq

    # ---- reading ----------------------------------------------------------------------------------------------------

    @shown_as(BlockingQueue.consumer)
    def consumer(self, name: str, **options: Any) -> Consumer:
        """As ``holdfast.Queue.consumer``."""
        return Consumer(self._wait_until, name, partial(self._opened()[0].consumer, name, **options))

    @shown_as(BlockingQueue.work_queue)
    def work_queue(self, name: str, **options: Any) -> WorkQueue:
        """As ``holdfast.Queue.work_queue``."""
        return WorkQueue(self._wait_until, name, partial(self._opened()[0].work_queue, name, **options))

    @shown_as(BlockingQueue.read)
    async def read(self, **start: Any) -> AsyncIterator[Message]:
        """As ``holdfast.Queue.read``."""
        async for parts in self._along(_read_messages, **start):
            for message in chain.from_iterable(parts):
                yield message

    @shown_as(BlockingQueue.values)
    async def values(self, **start: Any) -> AsyncIterator[object]:
        """As ``holdfast.Queue.values``."""
        async for parts in self._along(_read_messages, **start):
            for message in chain.from_iterable(parts):
                yield message.value

    @shown_as(BlockingQueue.read_payloads)
    async def read_payloads(self, **start: Any) -> AsyncIterator[bytes]:
        """As ``holdfast.Queue.read_payloads``."""
        async for parts in self._along(LogReader.read_payloads, **start):
            for payload in chain.from_iterable(parts):
                yield payload

    @shown_as(BlockingQueue.batches)
    async def batches(self, **start: Any) -> AsyncIterator[Block]:
        """As ``holdfast.Queue.batches``."""
        async for blocks in self._along(LogReader.read_blocks, **start):
            for block in blocks:
                yield block

    async def _along(
        self,
        step: Callable[[LogReader], Result | None],
        *,
        since: Since = None,
        seq: int | None = None,
        follow: bool = False,
        damage: Damage = None,
    ) -> AsyncIterator[Result]:
        core = self._opened()[1]
        if callable(damage):
            damage = _on_loop(damage)
        reader = await open_by(on_helper, partial(core.begin_reading, since, seq, damage))
        wait = _Wait(self._followers, polls=self._polls)
        try:
            while True:
                if follow:
                    wait.arm()
                with core.asking():
                    result = await on_helper(partial(step, reader))
                if result is not None:
                    wait.pause_s = PAUSE_MIN_S
                    yield result
                elif follow:
                    await wait.until_appended(None)
                else:
                    return
                if self._core is None:
                    raise Closed("the queue was closed under a reader")
        finally:
            wait.disarm()
            reader.close()

    async def _wait_until(
        self, look: Callable[[], Awaitable[bool]], timeout: float | None, *, look_again_s: float | None = None
    ) -> bool:
        """Look until there is something: after each append, and every ``look_again_s``. False after ``timeout``."""
        loop = asyncio.get_running_loop()
        until = None if timeout is None else loop.time() + timeout
        wait = _Wait(self._followers, polls=self._polls)
        try:
            while True:
                wait.arm()
                if await look():
                    return True
                left_s = None if until is None else until - loop.time()
                if left_s is not None and left_s <= 0:
                    return False
                limits = [limit for limit in (left_s, look_again_s) if limit is not None]
                await wait.until_appended(min(limits, default=None))
        finally:
            wait.disarm()

    def _wake(self) -> None:
        for follower in self._followers:
            if not follower.done():
                follower.set_result(None)
        self._followers.clear()


class _Wait:
    """Waits for an append: a writer on this loop notifies, one elsewhere is polled."""

    def __init__(self, followers: dict[asyncio.Future[None], None], *, polls: bool) -> None:
        self._followers = followers
        self._polls = polls
        self.pause_s = PAUSE_MIN_S  # after a miss; it grows with each
        self._appended: asyncio.Future[None] | None = None

    def arm(self) -> None:
        """Call before the look that decides whether to wait: an append after it ends the wait."""
        if not self._polls and (self._appended is None or self._appended.done()):
            self._appended = asyncio.get_running_loop().create_future()
            self._followers[self._appended] = None

    def disarm(self) -> None:
        """Call when the wait is over, also after an error."""
        if self._appended is not None:
            self._followers.pop(self._appended, None)

    async def until_appended(self, limit_s: float | None) -> None:
        if self._appended is not None:
            await asyncio.wait([self._appended], timeout=limit_s)
            return
        await asyncio.sleep(self.pause_s if limit_s is None else min(self.pause_s, limit_s))
        self.pause_s = min(PAUSE_MAX_S, self.pause_s * 1.25)


def _on_loop(callback: Callable[[Gap | Trimmed], None]) -> Callable[[Gap | Trimmed], None]:
    loop = asyncio.get_running_loop()

    def call(report: Gap | Trimmed) -> None:
        loop.call_soon_threadsafe(callback, report)

    return call
