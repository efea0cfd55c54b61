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
"""

from __future__ import annotations

import os
import threading
from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from holdfast.errors import Closed, Code, HoldfastError, InternalError, InvalidRequest
from holdfast.queue.arguments import whole_number
from holdfast.queue.consumers.cursor_file import first_unconsumed_seq, seq_since, sync_holds
from holdfast.queue.consumers.persist_flow import Flow, Step, Work
from holdfast.queue.datetimes import lifetime_ns
from holdfast.queue.files.forks import poison_in_children
from holdfast.queue.format.file_names import FileNames
from holdfast.queue.format.frame import octets
from holdfast.queue.format.page_header import PAGE_BYTES_MAX
from holdfast.queue.queue import PAGE_BYTES_MIN, Queue
from holdfast.queue.serializers import check_named, serializer_named
from holdfast.queue.sync_levels import sync_level

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor
    from datetime import datetime, timedelta
    from typing import Protocol, TypeAlias

    from holdfast.queue.consumers.consumer import Consumer
    from holdfast.queue.log.messages import Block, Message
    from holdfast.queue.log.reader import LogReader
    from holdfast.queue.serializers import Serializer
    from holdfast.queue.sync_levels import SyncLevel

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


__all__ = [
    "DROPPED_S",
    "PAGE_BYTES",
    "PersistRun",
    "PersistSettings",
    "Stored",
    "check_executor",
    "close_dropped",
    "not_an_end",
]

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
