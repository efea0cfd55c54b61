"""``holdfast.aio.Queue``: the asyncio twin of ``Queue``, over the same files and code.

    from holdfast.aio import Queue

    async with Queue("data/orders", sync="always") as queue:
        seq = await queue.append(b"on disk when this returns")
        async for message in queue.read(since="earliest", follow=True):
            ...

Nothing that may wait for the disk runs on the event loop. A task that is cancelled while it appends may have appended.
A cancelled ``open`` leaves nothing open; a cancelled ``close`` has closed when the cancellation is reported. A queue
belongs to the event loop on which it was opened; its tasks may share it.

Appends share syncs (``AppendLane``): requests wait while the thread is busy, then it writes them as one batch with one
sync; an ``atomic`` batch has its own. When a write ends in the middle (a full disk), the requests that are wholly in
the log succeed; each other one gets its own error, whose ``appended`` counts its own messages.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from typing import Self, TypeVar
from weakref import WeakMethod

from holdfast.errors import Closed, HoldfastError, InternalError, InvalidRequest, LimitExceeded
from holdfast.queue.aio.consumers import AsyncWithBlock, Consumer, WorkQueue, on_helper, open_by, to_its_end
from holdfast.queue.files.port import FilePort
from holdfast.queue.files.process import opened_at, opening_from
from holdfast.queue.format.checksum import CRC32
from holdfast.queue.format.frame import octets
from holdfast.queue.log.messages import Block, Gap, Message, Trimmed
from holdfast.queue.log.reader import PAUSE_MAX_S, PAUSE_MIN_S, DamagePolicy, LogReader
from holdfast.queue.options import SyncLevel, each_of, sync_level
from holdfast.queue.queue import Queue as BlockingQueue
from holdfast.queue.serializers import Serializer

Result = TypeVar("Result")


def _unreached() -> InternalError:
    return InternalError("the thread that appends ended before it came to this")


def _own(failure: BaseException, appended: int = 0) -> BaseException:
    """The error of one request of a joined batch, with its own count of ``appended``. Each caller gets a copy."""
    if not isinstance(failure, HoldfastError):
        return failure
    own = copy(failure)
    if "appended" in failure.fields:
        own.fields = {**failure.fields, "appended": appended}
    own.__cause__ = failure
    return own


class _Batch:
    """Messages that are appended together, and the futures of their requests."""

    __slots__ = ("futures", "atomic", "counts", "failure", "first", "payloads", "written")

    def __init__(self, *, atomic: bool) -> None:
        self.atomic = atomic
        self.payloads: list[bytes] = []
        self.futures: list[asyncio.Future[int]] = []
        self.counts: list[int] = []
        self.first = 0
        self.written = 0
        self.failure: BaseException = _unreached()

    def write(self, queue: BlockingQueue) -> None:
        try:
            self.first = queue.last_seq + 1
            queue.append_encoded(self.payloads, atomic=self.atomic)
            self.written = len(self.payloads)
        except BaseException as error:  # noqa: BLE001 - raised by the futures
            self.failure = error
            appended = error.fields.get("appended") if isinstance(error, HoldfastError) else None
            self.written = appended if isinstance(appended, int) else 0

    def complete(self) -> None:
        """Complete the futures with the first number of their messages, if all of them are in the log."""
        seq = self.first
        end = seq + self.written
        for future, count in zip(self.futures, self.counts, strict=True):
            first, seq = seq, seq + count
            if future.done():
                continue  # cancelled while it waited
            if seq <= end:
                future.set_result(first)
            else:
                # Part of the batch may be in the log: count the messages of this request before the end.
                future.set_exception(_own(self.failure, max(0, end - first)))


class _Work:
    """One run of the thread: batches, then a flush if one is requested."""

    __slots__ = ("batches", "failure", "flushes")

    def __init__(self) -> None:
        self.batches: list[_Batch] = []
        self.flushes: list[asyncio.Future[int]] = []
        self.failure: BaseException | None = _unreached()

    def carry_out(self, queue: BlockingQueue) -> None:
        for batch in self.batches:
            batch.write(queue)
        if self.flushes:
            try:
                queue.flush()
                self.failure = None
            except BaseException as error:  # noqa: BLE001 - raised by the futures
                self.failure = error

    def complete(self) -> None:
        for batch in self.batches:
            batch.complete()
        for flush in self.flushes:
            if flush.done():
                continue
            if self.failure is not None:
                flush.set_exception(_own(self.failure))
            else:
                flush.set_result(0)


class AppendLane:
    """Appends to ``queue`` from one event loop, on one thread. ``moved`` is called on the loop after each batch. Call
    every method except ``run`` on the loop.
    """

    __slots__ = ("_executor", "_loop", "_moved", "_queue", "_running", "_shared", "_waiting")

    def __init__(self, moved: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="holdfast-queue-append")
        self._moved = moved
        self._queue: BlockingQueue | None = None
        self._waiting: _Work | None = None
        self._shared: _Batch | None = None  # the last one of what waits, if others may join it
        self._running: asyncio.Future[None] | None = None

    def serve(self, queue: BlockingQueue) -> None:
        """Write to this queue from now on."""
        self._queue = queue

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is being written."""
        return self._running is None

    def append(self, payload: bytes) -> asyncio.Future[int]:
        """Append after everything submitted before. The result is the sequence number."""
        batch = self._shared or self._add_batch(atomic=False)
        future: asyncio.Future[int] = self._loop.create_future()
        batch.payloads.append(payload)
        batch.counts.append(1)
        batch.futures.append(future)
        return future

    def append_many(self, payloads: Sequence[bytes], *, atomic: bool) -> asyncio.Future[int]:
        """As ``append``, with no others between them. The result is the first sequence number."""
        batch = None if atomic else self._shared
        batch = batch or self._add_batch(atomic=atomic)
        future: asyncio.Future[int] = self._loop.create_future()
        batch.payloads.extend(payloads)
        batch.counts.append(len(payloads))
        batch.futures.append(future)
        return future

    def flush(self) -> asyncio.Future[int]:
        """Make everything durable that was submitted before."""
        future: asyncio.Future[int] = self._loop.create_future()
        self._to_do().flushes.append(future)
        return future

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
                # Later, so that every task that appends in this turn of the loop joins.
                self._loop.call_soon(self._start)
        return self._waiting

    def _start(self) -> None:
        work, self._waiting, self._shared = self._waiting, None, None
        assert work is not None, "the thread is started when something waits"
        self._executor.submit(self._carry_out, work)

    def _carry_out(self, work: _Work) -> None:
        """On the lane's thread. Every error reaches the requests it belongs to."""
        queue = self._queue
        assert queue is not None, "a lane serves a queue before it gets a request"
        try:
            work.carry_out(queue)
        finally:
            self._loop.call_soon_threadsafe(self._finish, work)

    def _finish(self, work: _Work) -> None:
        work.complete()
        self._moved()
        if self._waiting is not None:
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


class Queue(AsyncWithBlock):
    """A durable queue for asyncio, opened by ``async with`` or ``await queue.open()``. The arguments are those of
    ``holdfast.Queue``. What tasks append at the same time is one batch at every level.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        page_size: int = 64 << 20,
        sync: SyncLevel | str = "os",
        lifetime: timedelta | None = None,
        max_bytes: int | None = None,
        full: str = "drop_oldest",
        keep: str = "all",
        serializer: Serializer | str | None = None,
        compression: int = 0,
        max_message: int = 64 << 20,
        checksum: int = CRC32,
        read_only: bool = False,
        damage: DamagePolicy = "raise",
        files: FilePort | None = None,
        clock: Callable[[], int] = time.time_ns,
        entropy: Callable[[int], bytes] = os.urandom,
        background: bool = True,
    ) -> None:
        level = sync_level(sync)
        self._direct = not compression and level.name == "os"
        self._serializer: Serializer | None = None  # known when it is open
        self._max_message = max_message
        self._read_only = read_only
        self._open: Callable[[], BlockingQueue] = partial(
            BlockingQueue,
            path,
            page_size=page_size,
            sync=level,
            lifetime=lifetime,
            max_bytes=max_bytes,
            full=full,
            keep=keep,
            serializer=serializer,
            compression=compression,
            max_message=max_message,
            checksum=checksum,
            read_only=read_only,
            damage=damage,
            files=files,
            clock=clock,
            entropy=entropy,
            background=background,
        )
        self._lane: AppendLane | None = None
        self._queue: BlockingQueue | None = None
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
        self._serializer = self._queue.serializer
        lane.serve(self._queue)
        return self

    async def close(self) -> None:
        """Finish all appends, make everything durable, release the files. Closing twice is harmless; a second task
        waits for the first.

        An append that waits for space (``full="block"``) gets ``Closed``. *Raises*: as ``holdfast.Queue.close``.
        """
        queue, lane = self._queue, self._lane
        self._queue = None
        if queue is None or lane is None:
            if self._ended is not None:
                await asyncio.shield(self._ended)
            return
        self._ended = asyncio.get_running_loop().create_future()
        if queue.writable:
            # Before waiting for the appends: one that waits for space might wait forever.
            queue.space.close()
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

    def _opened(self) -> tuple[BlockingQueue, AppendLane]:
        queue, lane = self._queue, self._lane
        if queue is None or lane is None:
            raise Closed("the queue is closed" if lane is not None else "the queue is not open yet")
        return queue, lane

    # ---- writing ----------------------------------------------------------------------------------------------------

    async def append(self, payload: object) -> int:
        """Append one message and return its sequence number, after as much durability as the sync level promises.

        *Raises*: as ``holdfast.Queue.append``.
        *Cost*: a few microseconds at the level "os"; at "always" one sync for all tasks that append meanwhile.
        """
        queue, lane = self._queue, self._lane
        if queue is None or lane is None:
            queue, lane = self._opened()
        # The fast path for plain bytes.
        if type(payload) is bytes and self._serializer is None and len(payload) <= self._max_message:
            data = payload
        else:
            data = self._encoded(payload)
        if self._direct and lane.idle and (seq := queue.append_at_once(data)) is not None:
            if self._followers:
                self._wake()
            return seq
        return await lane.append(data)

    async def append_many(self, payloads: Iterable[object], *, atomic: bool = False) -> tuple[int, int]:
        """As ``holdfast.Queue.append_many``: returns the first and the last sequence number."""
        lane = self._opened()[1]
        data = [self._encoded(payload) for payload in each_of(payloads)]
        if not data:
            raise InvalidRequest("append_many needs a message")
        first = await lane.append_many(data, atomic=atomic)
        return first, first + len(data) - 1

    async def flush(self) -> None:
        """Return when everything appended so far is durable. *Raises*: ``Closed`` after a failed sync."""
        lane = self._opened()[1]
        await lane.flush()

    async def trim(self, *, before_seq: int) -> int:
        """Remove the pages whose messages are all below ``before_seq``. Returns how many pages."""
        queue = self._opened()[0]
        # Not on the lane: an append there may be waiting for this space.
        work = asyncio.get_running_loop().run_in_executor(None, partial(queue.trim, before_seq=before_seq))
        self._trims.add(work)
        work.add_done_callback(self._trims.discard)
        return await to_its_end(work)

    def _encoded(self, payload: object) -> bytes:
        data = octets(payload if self._serializer is None else self._serializer.dump(payload))
        if len(data) > self._max_message:
            raise LimitExceeded("message is too large", bytes=len(data), max=self._max_message)
        return data

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

    # ---- consumers --------------------------------------------------------------------------------------------------

    def consumer(
        self,
        name: str,
        *,
        since: datetime | str | None = None,
        damage: DamagePolicy | None = None,
        hold: bool | None = None,
    ) -> Consumer:
        """A reader whose position is kept under ``name``, for ``async with``; as ``holdfast.Queue.consumer``."""
        queue = self._opened()[0]
        return Consumer(self.wait_until, name, partial(queue.consumer, name, since=since, damage=damage, hold=hold))

    def work_queue(
        self,
        name: str,
        *,
        ack_wait: float = 30.0,
        max_deliveries: int = 5,
        retry_delay: float = 1.0,
        max_retry_delay: float = 300.0,
        max_started: int = 100_000,
        since: datetime | str | None = None,
        damage: DamagePolicy | None = None,
        hold: bool = True,
    ) -> WorkQueue:
        """Jobs for workers, for ``async with``; as ``holdfast.Queue.work_queue``."""
        queue = self._opened()[0]
        return WorkQueue(
            self.wait_until,
            name,
            partial(
                queue.work_queue,
                name,
                ack_wait=ack_wait,
                max_deliveries=max_deliveries,
                retry_delay=retry_delay,
                max_retry_delay=max_retry_delay,
                max_started=max_started,
                since=since,
                damage=damage,
                hold=hold,
            ),
        )

    # ---- reading ----------------------------------------------------------------------------------------------------

    async def read(
        self,
        *,
        since: datetime | str | None = None,
        seq: int | None = None,
        follow: bool = False,
        damage: DamagePolicy | None = None,
    ) -> AsyncIterator[Message]:
        """The messages from a starting point on, in order; as ``holdfast.Queue.read``.

        With ``follow`` it waits for the next message and ends when the queue is closed, with ``Closed``. A callable
        for ``damage`` is called on the event loop.
        """
        async for parts in self._along(_read_messages, since, seq, follow, damage):
            for message in chain.from_iterable(parts):
                yield message

    async def read_payloads(
        self,
        *,
        since: datetime | str | None = None,
        seq: int | None = None,
        follow: bool = False,
        damage: DamagePolicy | None = None,
    ) -> AsyncIterator[bytes]:
        """As ``read``, the bytes of each message alone, also with a serializer."""
        async for blocks in self._along(LogReader.read_payloads, since, seq, follow, damage):
            for payload in chain.from_iterable(blocks):
                yield payload

    async def batches(
        self,
        *,
        since: datetime | str | None = None,
        seq: int | None = None,
        follow: bool = False,
        damage: DamagePolicy | None = None,
    ) -> AsyncIterator[Block]:
        """As ``read``, in blocks of consecutive messages without an object for each. This is the fastest way to read
        all of a log: ``async for`` takes a step for each block, not for each message.
        """
        async for blocks in self._along(LogReader.read_blocks, since, seq, follow, damage):
            for block in blocks:
                yield block

    async def values(
        self,
        *,
        since: datetime | str | None = None,
        seq: int | None = None,
        follow: bool = False,
        damage: DamagePolicy | None = None,
    ) -> AsyncIterator[object]:
        """As ``read``, what the serializer makes of each payload; bytes without one."""
        async for message in self.read(since=since, seq=seq, follow=follow, damage=damage):
            yield message.value

    async def _along(
        self,
        step: Callable[[LogReader], Result | None],
        since: datetime | str | None,
        seq: int | None,
        follow: bool,
        damage: DamagePolicy | None,
    ) -> AsyncIterator[Result]:
        queue = self._opened()[0]
        if callable(damage):
            damage = _on_loop(damage)
        reader = await open_by(on_helper, partial(queue.begin_reading, since, seq, damage))
        wait = _Wait(self._followers, polls=self._read_only)
        try:
            while True:
                if follow:
                    wait.arm()
                with queue.asking():
                    result = await on_helper(partial(step, reader))
                if result is not None:
                    wait.reset_pause()
                    yield result
                elif follow:
                    await wait.until_appended(None)
                else:
                    return
                if self._queue is None:
                    raise Closed("the queue was closed under a reader")
        finally:
            wait.disarm()
            reader.close()

    async def wait_until(
        self, look: Callable[[], Awaitable[bool]], timeout: float | None, *, look_again_s: float | None = None
    ) -> bool:
        """Look until there is something: after each append, and every ``look_again_s``. False after ``timeout``."""
        loop = asyncio.get_running_loop()
        until = None if timeout is None else loop.time() + timeout
        wait = _Wait(self._followers, polls=self._read_only)
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
        self._pause_s = PAUSE_MIN_S
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
        await asyncio.sleep(self._pause_s if limit_s is None else min(self._pause_s, limit_s))
        self._pause_s = min(PAUSE_MAX_S, self._pause_s * 1.25)

    def reset_pause(self) -> None:
        """There was something: poll soon after the next miss."""
        self._pause_s = PAUSE_MIN_S


def _on_loop(callback: Callable[[Gap | Trimmed], None]) -> Callable[[Gap | Trimmed], None]:
    loop = asyncio.get_running_loop()

    def call(report: Gap | Trimmed) -> None:
        loop.call_soon_threadsafe(callback, report)

    return call


def _read_messages(reader: LogReader) -> list[list[Message]] | None:
    parts = reader.read_message_parts()
    return None if parts is None else list(parts)
