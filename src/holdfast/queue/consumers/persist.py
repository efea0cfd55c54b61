"""``holdfast.persist``: an iterable whose items go through a queue on disk.

    with holdfast.persist(read_orders(), "data/orders", max_bytes=1 << 30, serializer="json") as orders:
        for order in orders:
            send(order)

Owns: the thread or executor that runs the source, waiting on both sides, closing. Does not own: the rules
(``persist_flow``), the queue and the subscription (``persist_run``).

Failure model: as ``persist_run``. The source runs in *turns* on the scheduler: a turn stores items until the bound is
reached, and then ends, so that a source that waits takes no thread of an executor. One turn runs at a time. No lock is
held while a side waits, so an interrupt (Ctrl-C) leaves none locked; the thread is a daemon.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Executor, Future, wait
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from time import monotonic
from typing import Generic, TypeVar, cast

from holdfast.errors import AlreadyOpen, Closed, HoldfastError, InvalidRequest
from holdfast.queue.arguments import seconds_ns
from holdfast.queue.consumers.persist_flow import Step, Work
from holdfast.queue.consumers.persist_run import (
    DROPPED_S,
    PAGE_BYTES,
    PersistRun,
    PersistSettings,
    Stored,
    check_executor,
    close_dropped,
    not_an_end,
)
from holdfast.queue.files.dropped import close_when_dropped

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from datetime import timedelta
    from types import TracebackType
    from typing import NoReturn, Self

    from holdfast.queue.consumers.persist_flow import Ending
    from holdfast.queue.consumers.persist_run import Since
    from holdfast.queue.queue import Queue
    from holdfast.queue.serializers import Serializer
    from holdfast.queue.sync_levels import SyncLevel

__all__ = ["Persisted", "Stored", "persist"]

Item = TypeVar("Item")

CLOSE_S = 5.0
EXIT_S = 1.0


def persist(
    source: Iterable[Item] | Callable[[Stored[Item]], Iterable[Item]],
    directory: str | os.PathLike[str],
    *,
    consumer: str | None = None,
    since: Since | None = None,
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
    place, "main" by default; with ``since`` (a time, "earliest", "latest", or a callable that gives one) the
    subscription starts there and keeps no place. ``lifetime`` keeps consumed items for that long; without it their
    space is freed. ``sync`` and ``page_size`` are those of ``Queue``.
    *Raises*: ``AlreadyOpen`` when another subscription, or writer, has the queue; ``InvalidRequest`` for arguments that
    cannot be, and for a serializer that is not the recorded one; else as ``Queue``. An error of the source is raised
    after the items before it.
    *Cost*: about 10 microseconds for each item; memory for 256 KiB of items, or for one.
    *After a crash*: the next run continues after the last consumed item.
    """
    settings = PersistSettings(
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


def check_source(source: object, *, is_result: bool = False) -> None:
    """Refuse objects that give no items, and text and bytes, which are not iterables of items. *Raises*:
    ``InvalidRequest``."""
    is_text = isinstance(source, str | bytes | bytearray | memoryview)
    if is_text or not (isinstance(source, Iterable) or (callable(source) and not is_result)):
        wrong = "source must return an iterable of items" if is_result else "source is an iterable, or returns one"
        raise InvalidRequest(wrong, source=type(source).__name__)


class Persisted(Iterator[Item]):
    """The result of ``persist``: an iterator, and a context manager that closes it. One thread at a time.

    It closes itself after the last item and after an error of the source. One that is dropped without that is closed on
    another thread, with a ``ResourceWarning``; an opening in the meantime waits for it.
    """

    def __init__(
        self,
        source: Iterable[Item] | Callable[[Stored[Item]], Iterable[Item]],
        settings: PersistSettings,
        *,
        scheduler: Executor | None = None,
        open_queue: Callable[[], Queue] | None = None,
    ) -> None:
        self._run = PersistRun(settings, open_queue or settings.open)
        self._producer = _Producer(self._run, source, scheduler if scheduler is not None else _DaemonThread())
        self._ending: Ending | None = None  # what is left to give: closing on the way there may be interrupted
        self._finished = False
        self._asker = 0
        release = partial(close_dropped, partial(self._producer.close, DROPPED_S))
        self._keep = close_when_dropped(self, "the subscription", settings.path, release, warn=True)
        atexit.register(self._producer.close_at_exit)
        self._producer.start_turn()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item:
        """The next item; the one before is consumed by asking for it. Waits for the source.

        *Raises*: what the source raised, after the items before it, also where an interrupt has stopped the closing
        that comes before it; ``Closed`` after ``close``; ``Gap`` and ``Trimmed``, and again the next time;
        ``Unavailable`` where the file system refuses: then nothing has moved.
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
            while True:
                if self._ending is not None:
                    self._end(self._ending)
                step = run.step
                if step is Step.GIVE:
                    break
                if step is Step.CLOSED:
                    raise run.closed_error()
                if step is Step.END:
                    self._ending = run.flow.ending
                else:
                    producer.start_turn()
                    producer.wait_for_change()
            if run.flow.waiting:
                producer.start_turn()
            message, item = run.next_item()
        finally:
            self._asker = 0
        # The last step: after an interrupt before it, the same item is given again, and no unseen item is consumed.
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
        """The item that was given last is consumed, before the next one is asked for; ``durable`` survives lost power.

        *Raises*: as ``Consumer.commit``; ``Closed``.
        """
        if self._run.flow.stopped:
            raise self._run.closed_error()
        self._run.consume(durable=durable)
        if self._run.flow.waiting:
            self._producer.start_turn()

    @property
    def waiting(self) -> bool:
        """Whether the source waits until more is consumed."""
        return self._run.flow.waiting

    @property
    def stored_seq(self) -> int:
        """How many items are stored, in all runs: the number of the last one."""
        return self._run.flow.stored_seq

    @property
    def consumed_seq(self) -> int:
        """The number of the last item that is consumed."""
        return self._run.flow.consumed_seq

    def close(self, timeout: float = CLOSE_S) -> bool:
        """Stop the source, close it where it is a generator or the result of ``persist``, and close the queue. The item
        that was given last is not consumed by it.

        Waits ``timeout`` seconds at most for a source that is busy with its next item. False when it still is: it is
        abandoned then, that item is not stored, and its generator is closed when it comes back. Twice is harmless.
        *Raises*: what closing the generator raised; ``Closed`` when the queue could not be made durable.
        """
        seconds_ns("timeout", timeout)
        self._keep()
        return self._producer.close(timeout)

    def _stop(self) -> None:
        """Give nothing more and return at once, also where another thread waits for an item: it gets ``Closed``."""
        self._run.stop()
        self._producer.ring()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Producer(Generic[Item]):
    """The source, its turns on the scheduler, and the end of a run.

    It does not know the ``Persisted``, so that this can be collected while a turn runs.
    """

    def __init__(
        self,
        run: PersistRun,
        source: Iterable[Item] | Callable[[Stored[Item]], Iterable[Item]],
        scheduler: Executor,
    ) -> None:
        self._run = run
        self._source = source
        self._items: Iterator[Item] | None = None
        self._scheduler = scheduler
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._baton = threading.Lock()  # held by the turn that runs; a turn that does not get it ends
        self._turn: Future[None] | None = None
        self._thread = 0
        self._failure: BaseException | None = None  # of closing the source

    # ---- on the scheduler -------------------------------------------------------------------------------------------

    def run_turn(self) -> None:
        """Store items until the bound is reached or the source has ended, and close the source then."""
        run = self._run
        while self._baton.acquire(blocking=False):
            self._thread = threading.get_ident()
            try:
                while run.produce(self._pull, self._close_source):
                    self.ring()
            finally:
                self._thread = 0
                self._baton.release()
            # What was consumed since the last look, or a stop, found the baton taken and counts on this one.
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

    def ring(self) -> None:
        """Let the consumer look again."""
        if self._bell.empty():
            self._bell.put(None)

    def wait_for_change(self) -> None:
        """Wait until an item is stored, the source has ended, or a turn has. May return without a change."""
        self._bell.get()

    def start_turn(self) -> None:
        """Let the source run, if it has something to do and is not at it."""
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
        self.ring()

    # ---- the end ----------------------------------------------------------------------------------------------------

    def close(self, timeout_s: float) -> bool:
        """See ``Persisted.close``."""
        run = self._run
        run.stop()
        self.ring()
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
        """Wait until the source is closed; False where that takes too long."""
        flow, until = self._run.flow, monotonic() + timeout_s
        if self._thread == threading.get_ident():
            return False  # the source itself closes: it is closed when it comes back
        # A turn that is under way closes the source. Where none is, another one does.
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
        """Close at the exit of the interpreter, where the program has not."""
        with suppress(HoldfastError, OSError):
            self.close(EXIT_S)


class _DaemonThread(Executor):
    """An executor of one thread that the interpreter does not wait for. The thread starts at the first turn."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[tuple[Future[None], Callable[[], None]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, turn: Callable[[], None]) -> Future[None]:  # type: ignore[override]  # of this kind alone
        """Run ``turn`` on the thread."""
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
        """End the thread after its task."""
        self._tasks.put(None)
