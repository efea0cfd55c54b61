"""One run of ``persist``: the queue, the subscription and the source, without threads and tasks.

Owns: what is opened and in what order, storing items, giving them out, when a place is committed, when space is freed.
Does not own: the rules (``persist_flow``), who calls the two sides and how each waits (``persist``,
``asynchronous_persist``).

Failure model: at least once, in order. An item is committed when the next one is asked for, not when it is given: a
crash in between gives it again. What the queue raises ends the run like an error of the source: it arrives after the
items that were stored before it. One thread at a time uses the producer's side, one the consumer's side.

Order of freeing space, and what a crash leaves:

1. find the oldest item that a consumer or work queue of the queue has not passed: nothing has changed;
2. sync all cursors, also of consumers that do not hold: they stand at this item or after it;
3. remove the pages before it: no cursor ever stands before the first page.

The page of the last item stays, also where a new page has none yet, so a source that resumes always finds that item.

``holdfast.persist``: an iterable whose items go through a queue on disk.

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
import os
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Executor, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from time import monotonic
from typing import Generic, TypeVar, cast

from holdfast.errors import AlreadyOpen, Closed, Code, HoldfastError, InternalError, InvalidRequest
from holdfast.queue.consumers.cursor_file import first_unconsumed_seq, seq_since, sync_holds
from holdfast.queue.files.process import close_when_dropped, poison_in_children
from holdfast.queue.format.file_names import FileNames
from holdfast.queue.format.frame import octets
from holdfast.queue.format.page import PAGE_BYTES_MAX
from holdfast.queue.options import lifetime_ns, seconds_ns, sync_level, whole_number
from holdfast.queue.persist_flow import Flow, Step, Work
from holdfast.queue.queue import PAGE_BYTES_MIN, Queue
from holdfast.queue.serializers import check_named, serializer_named

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor
    from datetime import datetime, timedelta
    from typing import NoReturn, Protocol, Self, TypeAlias

    from holdfast.queue.consumers.consumer import Consumer
    from holdfast.queue.log.messages import Block, Message
    from holdfast.queue.log.reader import LogReader
    from holdfast.queue.options import SyncLevel
    from holdfast.queue.persist_flow import Ending
    from holdfast.queue.queue import Queue
    from holdfast.queue.serializers import Serializer

    Since: TypeAlias = datetime | str | Callable[[], datetime | str]

    class Place(Protocol):
        """Where a subscription stands: kept under a name, or not kept."""

        consumed_seq: int

        def take(self) -> list[Message]:
            """The next items that are stored, at least one where there is one."""
            ...

        def rewind(self) -> None:
            """Take again what was taken and not committed."""
            ...

        def commit(self, seq: int, *, durable: bool) -> None:
            """All items up to this one are done."""
            ...

        def close(self) -> None:
            """Close the files. Twice is harmless."""
            ...


Item = TypeVar("Item")

PAGE_BYTES = 16 << 20
PREFIX = "persist"
CONSUMER = "main"
BYTES_MAX = 1 << 60
TAKE_ITEMS = 1000
POOLS_THAT_PICKLE = ("ProcessPoolExecutor", "InterpreterPoolExecutor")
DROPPED_S = 1.0
"""How long the end of a source is waited for after its subscription was dropped. Openings wait for that, too."""


@dataclass(frozen=True, slots=True)
class Stored(Generic[Item]):
    """What earlier runs have stored, for a source that resumes: ``count`` items, the last one is ``last``.

    ``last`` is None before the first item, and where ``lifetime`` has removed it.
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
                hint="a consumer resumes at its place; since starts there and keeps no place",
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
    """Refuse executors of other processes or interpreters, to which no source can be sent. *Raises*:
    ``InvalidRequest``."""
    for kind in type(scheduler).__mro__:
        if kind.__module__.startswith("concurrent.futures") and kind.__name__ in POOLS_THAT_PICKLE:
            raise InvalidRequest(
                "the source cannot run in another process or interpreter",
                scheduler=type(scheduler).__name__,
                hint="ThreadPoolExecutor",
            )


def not_an_end(error: BaseException) -> BaseException:
    """What to raise for an error of the source or of the serializer. ``StopIteration`` that one of them lets escape
    would look like the end of the items."""
    if not isinstance(error, StopIteration | StopAsyncIteration):
        return error
    found = RuntimeError(f"the source or its serializer raised {type(error).__name__}, which is not an end here")
    found.__cause__ = error
    return found


def close_dropped(close: Callable[[], object]) -> None:
    """Close a subscription that the program dropped, on the thread of ``dropped``, which reports these errors alone.

    *Raises*: ``HoldfastError`` and ``OSError``; ``Closed`` for what the source raises.
    """
    try:
        close()
    except (HoldfastError, OSError):
        raise
    except BaseException as error:
        raise Closed("closing the source failed", error=repr(error)) from error


class PersistRun:
    """An open queue with one subscription and the items that pass. See the module; ``flow`` is the state.

    *Raises*: ``AlreadyOpen`` when another run has it; ``InvalidRequest`` for a serializer that is not the recorded one,
    and where that has to be named and is not; else as ``Queue`` and ``Queue.consumer``.
    """

    def __init__(self, settings: PersistSettings, open_queue: Callable[[], Queue]) -> None:
        # With a lifetime, consumed items go by their age. A subscription without a place removes none.
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
            self._place = self._subscribe(settings)
            try:
                left_seq = self.queue.last_seq
                self.flow = Flow(
                    consumed_seq=self._place.consumed_seq,
                    left_seq=left_seq,
                    max_bytes=settings.max_bytes,
                    page_bytes=settings.page_bytes,
                )
                self._left: Iterator[Block] | None = None
                self._free()
            except BaseException:
                self._place.close()
                raise
        except BaseException:
            self.queue.close()
            raise
        poison_in_children(self)

    def _subscribe(self, settings: PersistSettings) -> Place:
        if settings.consumer is not None:
            return _Named(self.queue.consumer(settings.consumer, hold=True))
        since = settings.since() if callable(settings.since) else settings.since
        if since is None:
            raise InvalidRequest("since must return a starting point", hint="a time, earliest or latest")
        return _Since(self.queue, since)

    # ---- the producer's side ----------------------------------------------------------------------------------------

    def stored(self) -> Stored[object]:
        """What is stored when the run begins. *Raises*: as ``Queue.read`` and the serializer."""
        count = self.flow.stored_seq
        last = next(self.queue.read(seq=count), None) if count and count >= self.queue.first_seq else None
        return Stored(count, None if last is None else last.value)

    def encode(self, item: object) -> bytes:
        """The bytes of an item. *Raises*: ``InvalidRequest`` for what is not bytes; as the serializer."""
        return octets(item if self._serializer is None else self._serializer.dump(item))

    def append_at_once(self, payload: bytes) -> bool:
        """Store an item if that waits for nothing, else do nothing and return False."""
        seq = self.queue.append_at_once(payload)
        if seq is not None:
            self.flow.stored(seq, len(payload))
        return seq is not None

    def append(self, payload: bytes) -> None:
        """Store an item; it is as durable on return as the sync level says."""
        queue = self.queue
        if self._serializer is None:
            seq = queue.append(payload)
        else:  # ``Queue.append`` would encode it again
            at_once = queue.append_at_once(payload) if self._syncs_nothing else None
            seq = at_once or queue.append_encoded((payload,))[0]
        self.flow.stored(seq, len(payload))

    def measure(self) -> None:
        """Count the bytes of some items that earlier runs have left; nothing is done when the work is another."""
        flow = self.flow
        if self._left is None:
            self._left = self.queue.batches(seq=flow.measured_seq + 1, damage="skip")
        block = next(self._left, None)
        flow.pass_consumed()  # after the read: what retention has removed meanwhile is consumed
        if block is None:
            self._left = None
            flow.measured(flow.left_seq, 0)
        elif block.last_seq > flow.measured_seq:
            found = block.bounds[max(0, flow.measured_seq + 1 - block.first_seq) :]
            flow.measured(block.last_seq, sum(end - start for start, end in found))

    def produce(self, pull: Callable[[], object], close_source: Callable[[], None]) -> bool:
        """One step of the producer: ``pull`` gives the next item or raises ``StopIteration``. False when there is
        nothing to do until an item is consumed."""
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
        """The item that was given last is done; ``durable`` syncs that. *Raises*: as ``Consumer.commit``; then the item
        is not done, and will be the next time."""
        given, flow = self.given, self.flow
        if given is not None:
            self._place.commit(given.seq, durable=durable)
            flow.consumed(given.seq, len(given.payload))
            self.given = None
        elif durable:
            self._place.commit(flow.consumed_seq, durable=True)

    def free(self) -> None:
        """Free the space of consumed items, if ``flow.frees``. *Raises*: as ``Queue.trim``; then it is tried again the
        next time."""
        if self.flow.frees:
            self._free()
            self.flow.freed()

    @property
    def step(self) -> Step:
        """What the consumer gets next."""
        return self.flow.step

    @property
    def has_next(self) -> bool:
        """Whether ``next_item`` needs no file."""
        ready = self._ready
        while ready and ready[0].seq <= self.flow.consumed_seq:
            ready.popleft()
        return bool(ready)

    def take(self) -> None:
        """Fetch the next items. They stay here until they are consumed, so an interrupt loses none.

        *Raises*: ``Gap`` and ``Trimmed``, and again the next time; ``Unavailable``; ``Closed``.
        """
        self._ready.extend(self._place.take())
        if not self._is_in_order():
            # An interrupt on the way from the queue to here has dropped items.
            self._ready.clear()
            self._place.rewind()
            self._ready.extend(self._place.take())
        if not self._is_in_order():
            raise InternalError("a stored item cannot be read", seq=self.flow.consumed_seq + 1)

    def _is_in_order(self) -> bool:
        return self.has_next and self._ready[0].seq == self.flow.consumed_seq + 1

    def next_item(self) -> tuple[Message, object]:
        """The next item as stored, and as the source gave it. The same one again until it is consumed.

        *Raises*: as ``take`` and the serializer.
        """
        if not self._is_in_order():
            self.take()
        message = self._ready[0]
        try:
            return message, message.value
        except (StopIteration, StopAsyncIteration) as error:
            raise not_an_end(error) from error

    def _free(self) -> None:
        """Remove the pages that every cursor has passed, whether it holds or not; see the module. Not with a lifetime,
        nor for ``since``."""
        queue = self.queue
        if self._keeps_consumed:
            return
        unconsumed = first_unconsumed_seq(queue.pages, lambda: queue.last_seq)
        if unconsumed is not None and unconsumed > queue.first_seq:
            sync_holds(queue.pages, self._sync_failed, every=True)
            # A kill may leave a new page without an item: the page of the last item stays, for a source that resumes.
            queue.trim(before_seq=min(unconsumed, queue.last_seq))

    def _sync_failed(self, error: OSError) -> None:
        self._closed = Closed(
            "a sync failed: this subscription is finished", code=Code.SYNC_FAILED, hint="open it again"
        )
        self.flow.stopped = True
        raise self._closed from error

    # ---- the end ----------------------------------------------------------------------------------------------------

    def closed_error(self) -> Closed:
        """What to raise at the step CLOSED."""
        return Closed("the subscription is closed") if self._closed is None else self._closed.with_traceback(None)

    def stop(self) -> None:
        """Ask the source for nothing more, and give nothing more out."""
        self.flow.stopped = True

    def close(self) -> None:
        """Close the subscription and the queue, which makes everything durable. The place stays where it was committed.

        *Raises*: as ``Queue.close``.
        """
        self.flow.stopped = True
        self._left = None
        try:
            self._place.close()
        finally:
            self.queue.close()

    def poison_after_fork(self) -> None:
        """In a forked child, which has neither the producer's thread nor the lock: refuse everything."""
        self._closed = Closed("a forked child cannot use its parent's subscription", code=Code.FORKED)
        self.flow.stopped = self.flow.source_closed = True


class _Named:
    """A place that is kept under a consumer's name."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self.consumed_seq = consumer.committed_seq

    def take(self) -> list[Message]:
        return self._consumer.poll(0.0, TAKE_ITEMS)

    def rewind(self) -> None:
        self._consumer.rewind()

    def commit(self, seq: int, *, durable: bool) -> None:
        self._consumer.commit(seq, durable=durable)

    def close(self) -> None:
        self._consumer.close()


class _Since:
    """A place that is kept nowhere."""

    def __init__(self, queue: Queue, since: datetime | str) -> None:
        self._queue = queue
        self._reader: LogReader | None = None
        self._reading = threading.RLock()  # another thread that closes must not take the file from under a read
        with queue.asking():
            self.consumed_seq = seq_since(queue, since) - 1
        self._taken_seq = self.consumed_seq

    def take(self) -> list[Message]:
        with self._reading:
            try:
                with self._queue.asking():
                    if self._reader is None:
                        self._reader = self._queue.reader(seq=self._taken_seq + 1)
                    found = self._reader.read_messages() or []
            except BaseException:
                self.close()
                raise
        if found:
            self._taken_seq = found[-1].seq
        return found

    def rewind(self) -> None:
        self.close()
        self._taken_seq = self.consumed_seq

    def commit(self, seq: int, *, durable: bool) -> None:  # noqa: ARG002 - there is nothing to keep
        self.consumed_seq = seq

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

    def __exit__(self, *_: object) -> None:
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
