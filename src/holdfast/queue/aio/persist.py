"""``holdfast.aio.persist``: an asynchronous iterable whose items go through a queue on disk.

Nothing that may wait for the disk runs on an event loop. A task that is cancelled while it waits for an item loses
nothing: the next one gets that item. Closing the subscription cancels the source. If something else cancels the
source's task, or its event loop is closed or stopped for two seconds, that is an error of the source.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from concurrent.futures import Executor, Future, InvalidStateError, wait
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Generic, NoReturn, Self, TypeVar, cast

from holdfast.errors import AlreadyOpen, Closed, InvalidRequest
from holdfast.queue.aio.consumers import AsyncWithBlock, on_helper, open_by
from holdfast.queue.files.process import close_when_dropped
from holdfast.queue.options import SyncLevel, seconds_ns
from holdfast.queue.persist import CLOSE_S, DROPPED_S, PAGE_BYTES, Progress, check_executor, close_dropped
from holdfast.queue.persist_flow import Ending, Flow, Work
from holdfast.queue.persist_run import PersistArguments, PersistRun, Stored, not_an_end
from holdfast.queue.queue import Queue
from holdfast.queue.serializers import Serializer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.queue.options import Since

Item = TypeVar("Item")

QUICK_BYTES = 64 << 10
TURN_ITEMS = 64
"""After this many items the source yields to other tasks: it may never wait by itself."""
LOOK_S = 0.25
STOPPED_LOOKS = 8
"""After this many looks in a row at a stopped event loop, the source counts as stopped."""


def persist(
    source: AsyncIterable[Item] | Callable[[Stored[Item]], AsyncIterable[Item]],
    directory: str | os.PathLike[str],
    *,
    consumer: str | None = None,
    since: Since | Callable[[], Since] = None,
    serializer: Serializer | str | None = None,
    lifetime: timedelta | None = None,
    max_bytes: int | None = None,
    sync: SyncLevel | str = "os",
    page_size: int = PAGE_BYTES,
    prefix: str | None = None,
    scheduler: asyncio.AbstractEventLoop | Executor | None = None,
) -> Persisted[Item]:
    """As ``holdfast.persist``, for an asynchronous iterable. Opened by ``async with``, or by asking for the first
    item.

    The source runs as a task of this event loop; with ``scheduler`` as a task of that event loop in another thread, or
    in its own event loop on a thread of that executor. If that loop is closed or stopped, ``Closed`` comes after the
    stored items.
    *Raises*: ``InvalidRequest`` for impossible arguments; opening raises everything else.
    """
    settings = PersistArguments(
        directory,
        consumer=consumer,
        since=since,
        serializer=serializer,
        lifetime=lifetime,
        max_bytes=max_bytes,
        sync=sync,
        page_size=page_size,
        prefix=prefix,
    )
    if scheduler is not None and not isinstance(scheduler, asyncio.AbstractEventLoop | Executor):
        raise InvalidRequest("scheduler is an event loop or an executor", scheduler=type(scheduler).__name__)
    if isinstance(scheduler, Executor):
        check_executor(scheduler)
    check_source(source)
    return Persisted(source, settings, scheduler=scheduler)


def check_source(source: object, *, is_result: bool = False) -> None:
    """Refuse a source without items. *Raises*: ``InvalidRequest``."""
    if not isinstance(source, AsyncIterable) and (is_result or not callable(source)):
        wrong = (
            "source must return an asynchronous iterable" if is_result else "source is asynchronous, or returns that"
        )
        raise InvalidRequest(wrong, source=type(source).__name__, hint="holdfast.persist takes an iterable")


class Persisted(Progress, AsyncWithBlock, AsyncIterator[Item]):
    """The result of ``persist``: an asynchronous iterator and context manager, for one task at a time. It belongs to
    the event loop on which it was opened, and is closed as the blocking one.
    """

    def __init__(
        self,
        source: AsyncIterable[Item] | Callable[[Stored[Item]], AsyncIterable[Item]],
        settings: PersistArguments,
        *,
        scheduler: asyncio.AbstractEventLoop | Executor | None = None,
        open_queue: Callable[[], Queue] | None = None,
    ) -> None:
        self._source = source
        self._settings = settings
        self._scheduler = scheduler
        self._open_queue = open_queue or settings.open
        self._opened = False
        self._running: tuple[PersistRun, _Producer[Item]] | None = None
        self._finished = False
        self._asks = False

    async def open(self) -> Self:
        """Open the files and start the source, once. *Raises*: as ``holdfast.persist``; ``Closed``."""
        if self._opened:
            raise Closed("a subscription is opened once", hint="call persist again")
        self._opened = True
        try:
            run = await open_by(on_helper, partial(PersistRun, self._settings, self._open_queue))
        except BaseException:
            self._opened = False
            raise
        producer = _Producer(run, self._source)
        self._running = run, producer
        release = partial(close_dropped, producer.close_dropped)
        self._keep = close_when_dropped(self, "the subscription", self._settings.path, release, warn=True)
        producer.start(self._scheduler)
        return self

    def _parts(self) -> tuple[PersistRun, _Producer[Item]]:
        if self._running is None:
            raise Closed("the subscription is not open", hint="use async with")
        return self._running

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        """The next item; asking for it consumes the one before. Waits for the source. *Raises*: as the blocking one."""
        if self._finished:
            raise StopAsyncIteration
        if self._asks:
            raise AlreadyOpen("another task asks for the next item", hint="one task at a time")
        self._asks = True
        try:
            if not self._opened:
                await self.open()
            run, producer = self._parts()
            if not run.flow.stopped:
                run.consume()
                producer.resume_source()
                if run.flow.frees:
                    await on_helper(run.free)
            while True:
                producer.item_event.clear()
                if (now := run.look()) is True:
                    break
                if now:
                    await self._end(now)
                await producer.item_event.wait()
            if not run.has_next:
                await on_helper(run.take)
            message, item = run.next_item()
        finally:
            self._asks = False
        # The last step: a cancellation before it returns the same item again.
        run.given = message
        return cast("Item", item)

    async def _end(self, ending: Ending) -> NoReturn:
        try:
            await self.close()
        except Exception as failure:  # noqa: BLE001 - raised with the error of the source, or by itself
            ending.closing_failed(failure)
        error = StopAsyncIteration() if ending.error is None else ending.error
        self._finished = True
        raise error

    async def commit(self, *, durable: bool = False) -> None:
        """The last item is consumed; ``durable`` survives lost power. *Raises*: as ``Consumer.commit``; ``Closed``."""
        run, producer = self._parts()
        if durable:
            await on_helper(partial(run.commit, durable=True))
        else:
            run.commit(durable=False)
        producer.resume_source()

    @property
    def _flow(self) -> Flow:
        return self._parts()[0].flow

    async def close(self, timeout: float = CLOSE_S) -> bool:
        """Cancel the source, close it if it is a generator or the result of ``persist``, and close the queue. Consumes
        nothing.

        Waits ``timeout`` seconds at most for the source. False if it has not ended: it is abandoned. Closing twice is
        harmless; a cancelled caller has closed, too. *Raises*: what closing the generator raised; ``Closed`` when the
        queue could not be made durable.
        """
        seconds_ns("timeout", timeout)
        if self._running is None:
            self._opened = True
            return True
        run, producer = self._running
        self._keep()
        producer.stop()
        try:
            await asyncio.wait([asyncio.wrap_future(producer.ended)], timeout=timeout)
        finally:
            await on_helper(run.close)
        failure, producer.failure = producer.failure, None
        if failure is not None:
            raise failure
        return run.flow.source_closed


class _LoopEvent:
    """Wakes a task of the event loop on which it was made, from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._event = asyncio.Event()
        self.clear, self.wait = self._event.clear, self._event.wait

    def set(self) -> None:
        """Call after a change. The waiting task clears the event, looks, then waits, so it misses nothing."""
        if self._event.is_set():
            return
        if self._thread == threading.get_ident():
            self._event.set()
        else:
            with suppress(RuntimeError):  # the loop is closed: no task waits
                self._loop.call_soon_threadsafe(self._event.set)


class _Producer(Generic[Item]):
    """The source and its task. It does not reference the ``Persisted``, so that one can be collected."""

    def __init__(
        self, run: PersistRun, source: AsyncIterable[Item] | Callable[[Stored[Item]], AsyncIterable[Item]]
    ) -> None:
        self.run = run
        self.item_event = _LoopEvent()
        self.ended: Future[None] = Future()
        self.failure: BaseException | None = None  # of closing the source
        self._source = source
        self._items: AsyncIterator[Item] | None = None
        self._room_event: _LoopEvent | None = None
        self._task: asyncio.Task[None] | None = None
        self._consumers_loop = asyncio.get_running_loop()
        self._loop = self._consumers_loop

    # ---- on the consumer's loop -------------------------------------------------------------------------------------

    def start(self, scheduler: asyncio.AbstractEventLoop | Executor | None) -> None:
        if scheduler is None or scheduler is self._consumers_loop:
            self._task = self._consumers_loop.create_task(self._produce())
            self._task.add_done_callback(partial(self._scheduled_done, self._consumers_loop))
            return
        try:
            if isinstance(scheduler, Executor):
                scheduled: Future[None] = scheduler.submit(lambda: asyncio.run(self._produce_while_consumed()))
            else:
                scheduled = self._schedule(scheduler)
        except RuntimeError as error:  # it is shut down or closed
            self._refused(scheduler, error)
        else:
            scheduled.add_done_callback(partial(self._scheduled_done, scheduler))
            if not isinstance(scheduler, Executor):
                self._watch(scheduler)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> Future[None]:
        producing = self._produce()
        try:
            return asyncio.run_coroutine_threadsafe(producing, loop)
        except RuntimeError:
            producing.close()
            raise

    def _scheduled_done(self, scheduler: object, scheduled: Future[None] | asyncio.Task[None]) -> None:
        """A task may be cancelled before it begins. Otherwise the source itself has reported its end."""
        if not self.ended.done():
            self._refused(scheduler, None if scheduled.cancelled() else scheduled.exception())

    def _watch(self, loop: asyncio.AbstractEventLoop, looks_in_vain: int = 0) -> None:
        """Look from time to time whether the loop of the source runs: a stopped loop reports nothing."""
        if self.ended.done() or self.run.flow.stopped:
            return
        looks_in_vain = 0 if loop.is_running() else looks_in_vain + 1
        if loop.is_closed() or looks_in_vain >= STOPPED_LOOKS:
            self._refused(loop, None)
        else:
            self._consumers_loop.call_later(LOOK_S, self._watch, loop, looks_in_vain)

    def _refused(self, scheduler: object, cause: BaseException | None) -> None:
        refusal = Closed("the scheduler does not run the source", scheduler=type(scheduler).__name__)
        refusal.__cause__ = cause
        self.run.flow.ended(refusal)
        self._set_ended()

    def resume_source(self) -> None:
        """An item was consumed: a waiting source may continue."""
        if self.run.flow.waiting and self.run.flow.work is not Work.WAIT and self._room_event is not None:
            self._room_event.set()

    def stop(self) -> None:
        self.run.flow.stopped = True
        self.item_event.set()
        if self._task is not None:
            with suppress(RuntimeError):  # its loop is closed
                self._loop.call_soon_threadsafe(self._task.cancel)

    # ---- on the source's loop ---------------------------------------------------------------------------------------

    async def _produce_while_consumed(self) -> None:
        """On an executor's thread, which the interpreter joins at exit: end when the consumer's loop is closed."""
        producing = asyncio.ensure_future(self._produce())
        while not producing.done():
            if self._consumers_loop.is_closed():
                self.run.flow.stopped = True
                producing.cancel()
            await asyncio.wait([producing], timeout=LOOK_S)

    async def _produce(self) -> None:
        """Run the source to its end. Raises nothing."""
        flow = self.run.flow
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._room_event = _LoopEvent()
        try:
            await self._store_items()
        except asyncio.CancelledError as error:
            cancelled = Closed("the task of the source was cancelled")
            cancelled.__cause__ = error
            flow.ended(cancelled)
        except BaseException as error:  # noqa: BLE001 - raised to the consumer, after the items before it
            flow.ended(not_an_end(error))
        try:
            await self._close_source()
        except BaseException as error:  # noqa: BLE001 - raised by ``close``
            if not isinstance(error, asyncio.CancelledError):
                self.failure = error
        self._task = None
        self._set_ended()

    async def _store_items(self) -> None:
        flow, event = self.run.flow, self._room_event
        assert event is not None, "the event is made before the first item"
        count = 0
        while True:
            event.clear()
            work = flow.work
            if work is Work.WAIT:
                if flow.waiting:
                    await event.wait()
                flow.waiting = True  # by another limit: look again before waiting
                continue
            if work not in (Work.PULL, Work.MEASURE):
                return
            flow.waiting = False
            if work is Work.MEASURE:
                await on_helper(self.run.measure)
                continue
            items = await self._begin() if self._items is None else self._items
            try:
                item = await anext(items)
            except StopAsyncIteration:
                flow.ended(None)
                return
            await self._store(item)
            self.item_event.set()
            count += 1
            if not count % TURN_ITEMS:
                await asyncio.sleep(0)

    async def _begin(self) -> AsyncIterator[Item]:
        source = self._source
        if not isinstance(source, AsyncIterable):
            source = source(cast("Stored[Item]", await on_helper(self.run.stored)))
            check_source(source, is_result=True)
        items = self._items = aiter(source)
        return items

    async def _store(self, item: object) -> None:
        payload = self.run.encode(item)
        if not (len(payload) <= QUICK_BYTES and self.run.append_at_once(payload)):
            await on_helper(partial(self.run.append, payload))

    async def _close_source(self) -> None:
        items = self._items or self._source
        if isinstance(items, AsyncGenerator):
            await items.aclose()
        elif isinstance(items, Persisted):
            await items.close()

    def _set_ended(self) -> None:
        self.run.flow.source_closed = True
        with suppress(InvalidStateError):  # the consumer's side has given up this loop
            self.ended.set_result(None)
        self.item_event.set()

    # ---- on the thread that closes dropped objects -----------------------------------------------------------------

    def close_dropped(self) -> None:
        """Close after the ``Persisted`` was dropped. *Raises*: as ``Persisted.close``."""
        self.stop()
        wait([self.ended], DROPPED_S)
        self.run.close()
        if self.failure is not None:
            raise self.failure
