"""``holdfast.persist``: an iterable whose items go through a queue on disk.

    with holdfast.persist(read_orders(), "data/orders", max_bytes=1 << 30, serializer="json") as orders:
        for order in orders:
            send(order)

Delivery is at least once, in order. ``PersistRun`` is one run without threads; ``persist_flow`` has its rules. One
thread at a time uses the producer's side, and one uses the consumer's side. The source runs in *turns* on the
scheduler: a turn stores items until the bound is reached and then ends, so a waiting source takes no thread of an
executor. No lock is held during a wait, so an interrupt (Ctrl-C) leaves none locked.

The page that holds the last item is kept, so that a source can resume.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from queue import SimpleQueue
from time import monotonic
from typing import Generic, NoReturn, Self, TypeVar, cast

from holdfast.errors import AlreadyOpen, Closed, Code, HoldfastError, InternalError, InvalidRequest
from holdfast.queue.consumers.consumer import Consumer
from holdfast.queue.consumers.cursor_file import first_unconsumed_seq, seq_since, sync_holds
from holdfast.queue.files.process import WithBlock, close_when_dropped, poison_in_children
from holdfast.queue.format.file_names import FileNames
from holdfast.queue.format.frame import octets
from holdfast.queue.format.page import PAGE_BYTES_MAX
from holdfast.queue.log.messages import Block, Message
from holdfast.queue.log.reader import LogReader
from holdfast.queue.options import SyncLevel, lifetime_ns, seconds_ns, sync_level, whole_number
from holdfast.queue.persist_flow import Ending, Flow, Step, Work
from holdfast.queue.queue import PAGE_BYTES_MIN, Queue
from holdfast.queue.serializers import Serializer, check_named, serializer_named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.queue.files.pages import PageDirectory

Since = datetime | str | Callable[[], datetime | str]

Item = TypeVar("Item")

PAGE_BYTES = 16 << 20
PREFIX = "persist"
CONSUMER = "main"
BYTES_MAX = 1 << 60
TAKE_ITEMS = 1000
POOLS_THAT_PICKLE = ("ProcessPoolExecutor", "InterpreterPoolExecutor")
DROPPED_S = 1.0
"""How long the end of a dropped subscription's source is awaited. Openings wait for that, too."""


@dataclass(frozen=True, slots=True)
class Stored(Generic[Item]):
    """What earlier runs have stored: ``count`` items, the last one is ``last``; None before the first item, and when
    ``lifetime`` has removed it.
    """

    count: int
    last: Item | None


class PersistSettings:
    """The arguments of ``persist``, checked. *Raises*: ``InvalidRequest``."""

    __slots__ = ("consumer", "lifetime", "max_bytes", "page_bytes", "path", "serializer", "since", "sync")

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        consumer: str | None,
        since: Since | None,
        serializer: Serializer | str | None,
        lifetime: timedelta | None,
        max_bytes: int | None,
        sync: SyncLevel | str,
        page_size: int,
        prefix: str | None,
    ) -> None:
        if consumer is not None and since is not None:
            raise InvalidRequest(
                "consumer and since exclude each other",
                consumer=consumer,
                since=repr(since),
                hint="a consumer resumes at its position; since starts there and keeps no position",
            )
        if lifetime is not None:
            lifetime_ns(lifetime)
        level = sync_level(sync)
        name: object = PREFIX if prefix is None else prefix
        if not isinstance(name, str):
            raise InvalidRequest("prefix is the name of the queue", prefix=repr(name))
        FileNames(name)
        self.path = os.path.join(os.fsdecode(directory), name)
        self.consumer = CONSUMER if consumer is None and since is None else consumer
        self.since = since
        if serializer is not None:
            serializer_named(serializer)  # refused before a file is touched
        self.serializer = serializer
        self.lifetime = lifetime
        self.max_bytes = None if max_bytes is None else whole_number("max_bytes", max_bytes, 1, BYTES_MAX)
        self.sync = level
        self.page_bytes = whole_number("page_size", page_size, PAGE_BYTES_MIN, PAGE_BYTES_MAX)

    def open(self) -> Queue:
        """The queue on the files of the system."""
        return Queue(
            self.path, page_size=self.page_bytes, sync=self.sync, lifetime=self.lifetime, serializer=self.serializer
        )


def check_executor(scheduler: Executor) -> None:
    """Refuse executors that cannot get the source. *Raises*: ``InvalidRequest``."""
    for kind in type(scheduler).__mro__:
        if kind.__module__.startswith("concurrent.futures") and kind.__name__ in POOLS_THAT_PICKLE:
            raise InvalidRequest(
                "the source cannot run in another process or interpreter",
                scheduler=type(scheduler).__name__,
                hint="use a ThreadPoolExecutor",
            )


def not_an_end(error: BaseException) -> BaseException:
    """The error to raise for one of the source or serializer: an escaped ``StopIteration`` would look like the end."""
    if not isinstance(error, StopIteration | StopAsyncIteration):
        return error
    wrapped = RuntimeError(f"the source or its serializer raised {type(error).__name__}, which is not an end here")
    wrapped.__cause__ = error
    return wrapped


def close_dropped(close: Callable[[], object]) -> None:
    """Close a dropped subscription, on the thread that reports only these errors: ``HoldfastError`` and ``OSError``."""
    try:
        close()
    except (HoldfastError, OSError):
        raise
    except BaseException as error:
        raise Closed("closing the source failed", error=repr(error)) from error


def last_stored(pages: PageDirectory, seq: int) -> int:
    """The last number up to ``seq`` that was not skipped: the last pages may be empty after a crash."""
    for number in reversed(pages.numbers()):
        header = pages.header_of(number)
        if header is not None and not header.prepared:
            if header.base_seq <= seq:
                break
            seq = header.after_seq - 1
    return seq


class PersistRun:
    """An open queue with one subscription and the passing items. ``flow`` is the state. *Raises*: ``AlreadyOpen``;
    ``InvalidRequest`` for a missing or different serializer; else as ``Queue`` and ``Queue.consumer``.
    """

    def __init__(self, settings: PersistSettings, open_queue: Callable[[], Queue]) -> None:
        # With a lifetime, items are removed by age. A subscription without a position removes none.
        self._keeps_consumed = settings.lifetime is not None or settings.consumer is None
        self._syncs_nothing = settings.sync.name == "os"
        self._closed: Closed | None = None  # why nothing is given out any more
        self._ready: deque[Message] = deque()
        self.given: Message | None = None
        """The item that the consumer has and that is not done. Set by the shell, as the last step of giving it."""
        self.queue = open_queue()
        try:
            check_named(settings.serializer, self.queue.identity.serializer)
            self._serializer = self.queue.serializer
            self._subscription = self._subscribe(settings)
            try:
                self._left_count = self.queue.last_seq - self.queue.skipped
                self._left_seq = last_stored(self.queue.pages, self.queue.last_seq)
                consumed_seq = self._subscription.committed_seq
                self.flow = Flow(
                    consumed_seq=consumed_seq,
                    left_seq=max(self._left_seq, consumed_seq),
                    max_bytes=settings.max_bytes,
                    page_bytes=settings.page_bytes,
                )
                self._left: Iterator[Block] | None = None
                self._free()
            except BaseException:
                self._subscription.close()
                raise
        except BaseException:
            self.queue.close()
            raise
        poison_in_children(self)

    def _subscribe(self, settings: PersistSettings) -> Consumer | _Since:
        if settings.consumer is not None:
            return self.queue.consumer(settings.consumer, hold=True)
        since = settings.since() if callable(settings.since) else settings.since
        if since is None:
            raise InvalidRequest("since must return a starting point", hint="return a time, earliest or latest")
        return _Since(self.queue, since)

    # ---- the producer's side ----------------------------------------------------------------------------------------

    def stored(self) -> Stored[object]:
        """What is stored when the run begins. *Raises*: as ``Queue.read`` and the serializer."""
        queue = self.queue
        seq = self._left_seq
        last = next(queue.read(seq=seq), None) if seq and seq >= queue.first_seq else None
        return Stored(self._left_count, None if last is None else last.value)

    def encode(self, item: object) -> bytes:
        """The bytes of an item. *Raises*: ``InvalidRequest`` for what is not bytes; as the serializer."""
        return octets(item if self._serializer is None else self._serializer.dump(item))

    def append_at_once(self, payload: bytes) -> bool:
        """Store an item if that waits for nothing; else do nothing and return False."""
        seq = self.queue.append_at_once(payload)
        if seq is not None:
            self._stored(seq, payload)
        return seq is not None

    def append(self, payload: bytes) -> None:
        """Store an item, as durably as the sync level promises."""
        queue = self.queue
        if self._serializer is None:
            seq = queue.append(payload)
        else:  # ``Queue.append`` would encode it again
            at_once = queue.append_at_once(payload) if self._syncs_nothing else None
            seq = at_once or queue.append_encoded((payload,))[0]
        self._stored(seq, payload)

    def _stored(self, seq: int, payload: bytes) -> None:
        try:
            self.flow.stored(seq, len(payload))
        except AssertionError as error:
            self.queue.soundness.break_off(error)

    def measure(self) -> None:
        """Count the bytes of some items of earlier runs."""
        flow = self.flow
        if self._left is None:
            self._left = self.queue.batches(seq=flow.measured_seq + 1, damage="skip")
        block = next(self._left, None)
        flow.pass_consumed()  # after the read: what retention has removed meanwhile is consumed
        if block is None:
            self._left = None
            flow.measured(flow.left_seq, 0, 0)
        elif block.last_seq > flow.measured_seq:
            bounds = block.bounds[max(0, flow.measured_seq + 1 - block.first_seq) :]
            flow.measured(block.last_seq, len(bounds), sum(end - start for start, end in bounds))

    def produce(self, pull: Callable[[], object], close_source: Callable[[], None]) -> bool:
        """One step of the producer: ``pull`` returns an item or raises ``StopIteration``. False without work."""
        flow = self.flow
        work = flow.work
        try:
            if work is Work.PULL:
                flow.waiting = False
                try:
                    item = pull()
                except StopIteration:
                    flow.ended(None)
                else:
                    self.append(self.encode(item))
            elif work is Work.MEASURE:
                flow.waiting = False
                self.measure()
            elif work is Work.CLOSE_SOURCE:
                close_source()
            else:
                flow.waiting = work is Work.WAIT
                return False
        except BaseException as error:  # noqa: BLE001 - raised to the consumer, after the items before it
            flow.ended(not_an_end(error))
        return True

    # ---- the consumer's side ----------------------------------------------------------------------------------------

    def consume(self, *, durable: bool = False) -> None:
        """The last item is done; ``durable`` syncs that. *Raises*: as ``Consumer.commit``; then it is not done."""
        given, flow = self.given, self.flow
        if given is not None:
            self._subscription.commit(given.seq, durable=durable)
            flow.consumed(given.seq, len(given.payload))
            self.given = None
        elif durable:
            self._subscription.commit(flow.consumed_seq, durable=True)

    def free(self) -> None:
        """Free the space of consumed items, if ``flow.frees``. *Raises*: as ``Queue.trim``; then it is tried again."""
        if self.flow.frees:
            self._free()
            self.flow.freed()

    @property
    def has_next(self) -> bool:
        """Whether ``next_item`` needs no file."""
        ready = self._ready
        while ready and ready[0].seq <= self.flow.consumed_seq:
            ready.popleft()
        return bool(ready)

    def take(self) -> None:
        """Fetch the next items. They stay here until they are consumed, so an interrupt loses none. *Raises*: ``Gap``
        and ``Trimmed``, again the next time; ``Unavailable``; ``Closed``.
        """
        self._ready.extend(self._subscription.poll(0.0, TAKE_ITEMS))
        if not self._is_in_order():
            # An interrupt has dropped items.
            self._ready.clear()
            self._subscription.rewind()
            self._ready.extend(self._subscription.poll(0.0, TAKE_ITEMS))
        # The numbers in between may have been skipped; a loss was raised.
        if not self.has_next:
            raise InternalError("a stored item cannot be read", seq=self.flow.consumed_seq + 1)

    def _is_in_order(self) -> bool:
        return self.has_next and self._ready[0].seq == self.flow.consumed_seq + 1

    def next_item(self) -> tuple[Message, object]:
        """The next item as stored, and its value; the same until it is consumed. *Raises*: also what loading raises."""
        if not self._is_in_order():
            self.take()
        message = self._ready[0]
        try:
            return message, message.value
        except (StopIteration, StopAsyncIteration) as error:
            raise not_an_end(error) from error

    def _free(self) -> None:
        """Remove the pages that every cursor has passed. Not with a lifetime, nor for ``since``."""
        queue = self.queue
        if self._keeps_consumed:
            return
        unconsumed = first_unconsumed_seq(queue.pages)
        if unconsumed is not None and unconsumed > queue.first_seq:
            sync_holds(queue.pages, self._sync_failed, every=True)
            queue.trim(before_seq=min(unconsumed, last_stored(queue.pages, queue.last_seq)))

    def _sync_failed(self, error: OSError) -> None:
        self._closed = Closed(
            "a sync failed: this subscription is finished", code=Code.SYNC_FAILED, hint="open it again"
        )
        self.flow.stopped = True
        raise self._closed from error

    def closed_error(self) -> Closed:
        """The error for the step CLOSED."""
        return Closed("the subscription is closed") if self._closed is None else self._closed.with_traceback(None)

    def close(self) -> None:
        """Close the subscription and the queue, which makes everything durable. *Raises*: as ``Queue.close``."""
        self.flow.stopped = True
        self._left = None
        try:
            self._subscription.close()
        finally:
            self.queue.close()

    def poison_after_fork(self) -> None:
        """In a forked child: refuse everything."""
        self._closed = Closed("a forked child cannot use its parent's subscription", code=Code.FORKED)
        self.flow.stopped = self.flow.source_closed = True


class _Since:
    """The position of a subscription without a name, with the methods of ``Consumer`` that ``PersistRun`` calls."""

    def __init__(self, queue: Queue, since: datetime | str) -> None:
        self._queue = queue
        self._reader: LogReader | None = None
        self._reading = threading.RLock()  # another thread that closes must not take the file from under a read
        with queue.asking():
            self.committed_seq = seq_since(queue, since) - 1
        self._taken_seq = self.committed_seq

    def poll(self, timeout: float, max_messages: int) -> list[Message]:  # noqa: ARG002 - as the consumer's
        with self._reading:
            try:
                with self._queue.asking():
                    if self._reader is None:
                        self._reader = self._queue.reader(seq=self._taken_seq + 1)
                    messages = self._reader.read_messages() or []
            except BaseException:
                self.close()
                raise
        if messages:
            self._taken_seq = messages[-1].seq
        return messages

    def rewind(self) -> None:
        self.close()
        self._taken_seq = self.committed_seq

    def commit(self, seq: int, *, durable: bool) -> None:  # noqa: ARG002 - there is nothing to keep
        self.committed_seq = seq

    def close(self) -> None:
        with self._reading:
            reader, self._reader = self._reader, None
            if reader is not None:
                reader.close()


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
    position, "main" by default; with ``since`` (a time, "earliest", "latest", or a callable that gives one) the
    subscription starts there and keeps no position. ``lifetime`` keeps consumed items for that long; without it their
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
    """Refuse objects without items, and text and bytes. *Raises*: ``InvalidRequest``."""
    is_text = isinstance(source, str | bytes | bytearray | memoryview)
    if is_text or not (isinstance(source, Iterable) or (callable(source) and not is_result)):
        wrong = "source must return an iterable of items" if is_result else "source is an iterable, or returns one"
        raise InvalidRequest(wrong, source=type(source).__name__)


class Persisted(WithBlock, Iterator[Item]):
    """The result of ``persist``: an iterator and a context manager. One thread at a time. It closes itself after the
    last item and after an error of the source. A dropped one is closed on another thread, with a ``ResourceWarning``.
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
            while True:
                if self._ending is not None:
                    self._end(self._ending)
                step = run.flow.step
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
        """How many items all runs have stored: the number of the last one."""
        return self._run.flow.stored_seq

    @property
    def consumed_seq(self) -> int:
        """The number of the last consumed item."""
        return self._run.flow.consumed_seq

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
        self._wakeups: SimpleQueue[None] = SimpleQueue()
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
        if self._wakeups.empty():
            self._wakeups.put(None)

    def wait_for_change(self) -> None:
        """Wait until an item is stored, the source has ended, or a turn has. May return early."""
        self._wakeups.get()

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
