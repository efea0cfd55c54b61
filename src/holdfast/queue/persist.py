"""``holdfast.persist``: an iterable whose items go through a queue on disk, at least once, in order.

The source runs in *turns* on the scheduler: a turn stores items until the bound is reached and then ends, so a waiting
source takes no thread of an executor. No lock is held during a wait, so an interrupt (Ctrl-C) leaves none locked.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future, wait
from contextlib import suppress
from datetime import timedelta
from functools import partial
from queue import SimpleQueue
from time import monotonic
from typing import Generic, NoReturn, Self, TypeVar, cast

from holdfast.errors import AlreadyOpen, Closed, HoldfastError, InvalidRequest
from holdfast.queue.files.process import WithBlock, close_when_dropped
from holdfast.queue.options import SyncLevel, seconds_ns
from holdfast.queue.persist_flow import Ending, Flow, Work
from holdfast.queue.persist_run import PersistArguments, PersistRun, Stored, not_an_end
from holdfast.queue.queue import Queue
from holdfast.queue.serializers import Serializer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.queue.options import Since

Item = TypeVar("Item")

PAGE_BYTES = 16 << 20
POOLS_THAT_PICKLE = ("ProcessPoolExecutor", "InterpreterPoolExecutor")
DROPPED_S = 1.0
"""How long the end of a dropped subscription's source is awaited. Openings wait for that, too."""
CLOSE_S = 5.0
EXIT_S = 1.0


def persist(
    source: Iterable[Item] | Callable[[Stored[Item]], Iterable[Item]],
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
    scheduler: Executor | None = None,
) -> Persisted[Item]:
    """The items of ``source``, after each was stored in the queue ``directory/prefix``: first what earlier runs have
    left, then what the source gives now.

    The source runs on a thread of its own, or on ``scheduler``, an executor. It is asked for an item only after the one
    before is stored, and while fewer than ``max_bytes`` are stored and not consumed; else it waits. An item is consumed
    when the next one is asked for, or by ``commit``. An item that is not consumed comes again in the next run, first.

    A ``source`` that is a callable is called with ``Stored(count, last)``, how many items are stored and the last of
    them, and returns the iterable of what comes after.

    *Shape*: items are bytes, or what ``serializer`` takes ("str", "json", a ``Serializer``). The queue records the name
    of the first serializer and refuses another; without the argument it uses the recorded one. ``consumer`` names the
    position, "main" by default; with ``since`` (a time, "earliest", "latest", or a callable that gives one) the
    subscription starts there and keeps no position. ``lifetime`` keeps consumed items for that long; without it their
    space is freed. ``sync`` and ``page_size`` are those of ``Queue``.
    *Raises*: ``AlreadyOpen`` when another subscription, or writer, has the queue; ``InvalidRequest`` for arguments that
    cannot be, and for a serializer that is not the recorded one; else as ``Queue``. An error of the source is raised
    after the items before it.
    *Cost*: about 10 microseconds for each item; memory for 256 KiB of items, or for one.
    *After a crash*: the next run continues after the last consumed item.
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
    if scheduler is not None and not isinstance(scheduler, Executor):
        raise InvalidRequest("scheduler is an executor", scheduler=type(scheduler).__name__, hint="ThreadPoolExecutor")
    if scheduler is not None:
        check_executor(scheduler)
    check_source(source)
    return Persisted(source, settings, scheduler=scheduler)


def check_executor(scheduler: Executor) -> None:
    """Refuse executors that cannot get the source. *Raises*: ``InvalidRequest``."""
    for kind in type(scheduler).__mro__:
        if kind.__module__.startswith("concurrent.futures") and kind.__name__ in POOLS_THAT_PICKLE:
            raise InvalidRequest(
                "the source cannot run in another process or interpreter",
                scheduler=type(scheduler).__name__,
                hint="use a ThreadPoolExecutor",
            )


def close_dropped(close: Callable[[], object]) -> None:
    """Close a dropped subscription, on the thread that reports only these errors: ``HoldfastError`` and ``OSError``."""
    try:
        close()
    except (HoldfastError, OSError):
        raise
    except BaseException as error:
        raise Closed("closing the source failed", error=repr(error)) from error


def check_source(source: object, *, is_result: bool = False) -> None:
    """Refuse objects without items, and text and bytes. *Raises*: ``InvalidRequest``."""
    is_text = isinstance(source, str | bytes | bytearray | memoryview)
    if is_text or not (isinstance(source, Iterable) or (callable(source) and not is_result)):
        wrong = "source must return an iterable of items" if is_result else "source is an iterable, or returns one"
        raise InvalidRequest(wrong, source=type(source).__name__)


class _Progress:
    """What both results of ``persist`` show. A private name, as ``WithBlock`` in ``process``."""

    @property
    def _flow(self) -> Flow:
        raise NotImplementedError

    @property
    def waiting(self) -> bool:
        """Whether the source waits until more is consumed."""
        return self._flow.waiting

    @property
    def stored_seq(self) -> int:
        """How many items all runs have stored: the number of the last one."""
        return self._flow.stored_seq

    @property
    def consumed_seq(self) -> int:
        """The number of the last consumed item."""
        return self._flow.consumed_seq


Progress = _Progress


class Persisted(Progress, WithBlock, Iterator[Item]):
    """The result of ``persist``: an iterator and a context manager. One thread at a time. It closes itself after the
    last item and after an error of the source. A dropped one is closed on another thread, with a ``ResourceWarning``.
    """

    def __init__(
        self,
        source: Iterable[Item] | Callable[[Stored[Item]], Iterable[Item]],
        settings: PersistArguments,
        *,
        scheduler: Executor | None = None,
        open_queue: Callable[[], Queue] | None = None,
    ) -> None:
        self._run = PersistRun(settings, open_queue or settings.open)
        self._producer = _Producer(self._run, source, scheduler if scheduler is not None else _DaemonThread())
        self._finished = False
        self._asker = 0
        release = partial(close_dropped, partial(self._producer.close, DROPPED_S))
        self._keep = close_when_dropped(self, "the subscription", settings.path, release, warn=True)
        atexit.register(self._producer.close_at_exit)
        self._producer.start_turn()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item:
        """The next item; asking for it consumes the one before. Waits for the source.

        *Raises*: what the source raised, after the items before it; ``Closed`` after ``close``; ``Gap`` and
        ``Trimmed``, again the next time; ``Unavailable`` when the file system refuses: then nothing has moved.
        """
        if self._finished:
            raise StopIteration
        if self._asker not in (0, threading.get_ident()):
            raise AlreadyOpen("another thread asks for the next item", hint="one thread at a time")
        self._asker = threading.get_ident()
        try:
            run, producer = self._run, self._producer
            if not run.flow.stopped:
                run.consume()
                run.free()
            while (now := run.look()) is not True:
                if now:
                    self._end(now)
                producer.start_turn()
                producer.wakeups.get()
            if run.flow.waiting:
                producer.start_turn()
            message, item = run.next_item()
        finally:
            self._asker = 0
        # The last step: an interrupt before it returns the same item again, and consumes no unseen item.
        run.given = message
        return cast("Item", item)

    def _end(self, ending: Ending) -> NoReturn:
        try:
            self.close()
        except Exception as failure:  # noqa: BLE001 - raised with the error of the source, or by itself
            ending.closing_failed(failure)
        error = StopIteration() if ending.error is None else ending.error
        self._finished = True
        raise error

    def commit(self, *, durable: bool = False) -> None:
        """The last item is consumed; ``durable`` survives lost power. *Raises*: as ``Consumer.commit``; ``Closed``."""
        self._run.commit(durable=durable)
        if self._run.flow.waiting:
            self._producer.start_turn()

    @property
    def _flow(self) -> Flow:
        return self._run.flow

    def close(self, timeout: float = CLOSE_S) -> bool:
        """Stop the source, close it if it is a generator or the result of ``persist``, and close the queue. Consumes
        nothing.

        Waits ``timeout`` seconds at most for a busy source. False if it still is: that item is not stored, and its
        generator is closed when it returns. Closing twice is harmless. *Raises*: what closing the generator raised;
        ``Closed`` when the queue could not be made durable.
        """
        seconds_ns("timeout", timeout)
        self._keep()
        return self._producer.close(timeout)

    def _stop(self) -> None:
        """Return nothing more; another thread that waits for an item gets ``Closed``."""
        self._run.flow.stopped = True
        self._producer.wake_consumer()


class _Producer(Generic[Item]):
    """The source, its turns on the scheduler, and the end of a run. It does not reference the ``Persisted``."""

    def __init__(
        self, run: PersistRun, source: Iterable[Item] | Callable[[Stored[Item]], Iterable[Item]], scheduler: Executor
    ) -> None:
        self._run = run
        self._source = source
        self._items: Iterator[Item] | None = None
        self._scheduler = scheduler
        self.wakeups: SimpleQueue[None] = SimpleQueue()  # an item is stored, or the source or a turn has ended
        self._baton = threading.Lock()  # held by the turn that runs; a turn that does not get it ends
        self._turn: Future[None] | None = None
        self._thread = 0
        self._failure: BaseException | None = None  # of closing the source

    # ---- on the scheduler -------------------------------------------------------------------------------------------

    def run_turn(self) -> None:
        """Store items until the bound is reached or the source has ended; then close the source."""
        run = self._run
        while self._baton.acquire(blocking=False):
            self._thread = threading.get_ident()
            try:
                while run.produce(self._pull, self._close_source):
                    self.wake_consumer()
            finally:
                self._thread = 0
                self._baton.release()
            # A consume or a stop since the last look saw the turn taken and relies on this one.
            if run.flow.work in (Work.NOTHING, Work.WAIT):
                return

    def _pull(self) -> Item:
        items = self._items
        if items is None:
            try:
                items = self._items = self._begin()
            except StopIteration as error:
                raise not_an_end(error) from error
        return next(items)

    def _begin(self) -> Iterator[Item]:
        source = self._source
        if not isinstance(source, Iterable):
            source = source(cast("Stored[Item]", self._run.stored()))
            check_source(source, is_result=True)
        return iter(source)

    def _close_source(self) -> None:
        items = self._items or self._source
        if isinstance(items, Generator | Persisted):
            try:
                items.close()
            except BaseException as error:  # noqa: BLE001 - raised by ``close``
                self._failure = error
        self._run.flow.source_closed = True

    # ---- on the consumer's thread -----------------------------------------------------------------------------------

    def wake_consumer(self) -> None:
        if self.wakeups.empty():
            self.wakeups.put(None)

    def start_turn(self) -> None:
        flow = self._run.flow
        if flow.work in (Work.NOTHING, Work.WAIT) or (self._turn is not None and not self._turn.done()):
            return
        try:
            turn = self._scheduler.submit(self.run_turn)
        except RuntimeError as error:  # it is shut down, or the system has no thread to give
            refusal = Closed("the scheduler takes no work", scheduler=type(self._scheduler).__name__)
            refusal.__cause__ = error
            flow.ended(refusal)
            self.run_turn()  # only closes the source
            return
        self._turn = turn
        turn.add_done_callback(self._turn_done)

    def _turn_done(self, turn: Future[None]) -> None:
        if not turn.cancelled() and (error := turn.exception()) is not None:
            self._run.flow.ended(error)  # the scheduler has failed: a turn itself raises nothing
        self.wake_consumer()

    def close(self, timeout_s: float) -> bool:
        run = self._run
        run.flow.stopped = True
        self.wake_consumer()
        items = self._items or self._source
        if isinstance(items, Persisted):
            # The turn may wait for its next item.
            items._stop()  # pyright: ignore[reportPrivateUsage] - of this module
        try:
            ended = self._end_source(timeout_s)
        finally:
            run.close()
            atexit.unregister(self.close_at_exit)
            if isinstance(self._scheduler, _DaemonThread):
                self._scheduler.shutdown(wait=False)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return ended

    def _end_source(self, timeout_s: float) -> bool:
        """Wait until the source is closed; False if that takes too long."""
        flow, until = self._run.flow, monotonic() + timeout_s
        if self._thread == threading.get_ident():
            return False  # the source itself closes: it is closed when it comes back
        # A running turn closes the source. Otherwise a new one does.
        under_way = self._turn
        if under_way is not None and not under_way.cancel():
            wait([under_way], timeout_s)
        self.start_turn()
        if self._turn is not None and self._turn is not under_way:
            wait([self._turn], max(0.0, until - monotonic()))
        if not flow.source_closed:
            self.run_turn()  # does nothing while a turn is under way
        return flow.source_closed

    def close_at_exit(self) -> None:
        with suppress(HoldfastError, OSError):
            self.close(EXIT_S)


class _DaemonThread(Executor):
    """An executor of one thread that the interpreter does not join. It starts at the first turn."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[tuple[Future[None], Callable[[], None]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, turn: Callable[[], None]) -> Future[None]:  # type: ignore[override]  # of this kind alone
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name="holdfast-persist", daemon=True)
            thread.start()
            self._thread = thread
        future: Future[None] = Future()
        self._tasks.put((future, turn))
        return future

    def _serve(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, turn = task
            if future.set_running_or_notify_cancel():
                try:
                    turn()
                except BaseException as error:  # noqa: BLE001 - raised by the future
                    future.set_exception(error)
                else:
                    future.set_result(None)
            del task, future, turn
        self._tasks.put(None)  # for another that an interrupt of its start has left unknown

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002 - the base's
        self._tasks.put(None)
