"""One run of ``persist`` without threads. ``persist_flow`` has its rules.

One thread at a time uses the producer's side, and one uses the consumer's side. The page that holds the last item is
kept, so that a source can resume.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from typing import Generic, TypeVar

from holdfast.errors import Closed, Code, InternalError, InvalidRequest
from holdfast.queue.consumers.consumer import Consumer
from holdfast.queue.core import PAGE_BYTES_MIN, QueueCore
from holdfast.queue.files.cursors import first_unconsumed_seq, sync_holds
from holdfast.queue.files.process import poison_in_children
from holdfast.queue.format.file_names import FileNames
from holdfast.queue.format.frame import octets
from holdfast.queue.format.page import PAGE_BYTES_MAX
from holdfast.queue.log.messages import Block, Message
from holdfast.queue.log.reader import LogReader
from holdfast.queue.options import SyncLevel, lifetime_ns, sync_level, whole_number
from holdfast.queue.persist_flow import Ending, Flow, FlowStep, Work
from holdfast.queue.queue import Queue, core_of
from holdfast.queue.serializers import Serializer, check_named, serializer_named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.queue.files.pages import PageDirectory
    from holdfast.queue.options import Since

Item = TypeVar("Item")

PREFIX = "persist"
CONSUMER = "main"
BYTES_MAX = 1 << 60
TAKE_ITEMS = 1000


@dataclass(frozen=True, slots=True)
class Stored(Generic[Item]):
    """What earlier runs have stored: ``count`` items, the last one is ``last``; None before the first item, and when
    ``lifetime`` has removed it.
    """

    count: int
    last: Item | None


@dataclass(slots=True)
class PersistArguments:
    """The arguments of ``persist``, checked. *Raises*: ``InvalidRequest``."""

    directory: str | os.PathLike[str]
    _: KW_ONLY
    consumer: str | None
    since: Since | Callable[[], Since]
    serializer: Serializer | str | None
    lifetime: timedelta | None
    max_bytes: int | None
    sync: SyncLevel | str
    page_size: int
    prefix: str | None
    path: str = field(init=False)

    def __post_init__(self) -> None:
        if self.consumer is not None and self.since is not None:
            raise InvalidRequest(
                "consumer and since exclude each other",
                consumer=self.consumer,
                since=repr(self.since),
                hint="a consumer resumes at its position; since starts there and keeps no position",
            )
        # All arguments are refused before a file is touched.
        if self.lifetime is not None:
            lifetime_ns(self.lifetime)
        sync_level(self.sync)
        name: object = PREFIX if self.prefix is None else self.prefix
        if not isinstance(name, str):
            raise InvalidRequest("prefix is the name of the queue", prefix=repr(name))
        FileNames(name)
        self.path = os.path.join(os.fsdecode(self.directory), name)
        if self.since is None and self.consumer is None:
            self.consumer = CONSUMER
        if self.serializer is not None:
            serializer_named(self.serializer)
        if self.max_bytes is not None:
            whole_number("max_bytes", self.max_bytes, 1, BYTES_MAX)
        whole_number("page_size", self.page_size, PAGE_BYTES_MIN, PAGE_BYTES_MAX)

    def open(self) -> Queue:
        """The queue on the files of the system."""
        return Queue(
            self.path, page_size=self.page_size, sync=self.sync, lifetime=self.lifetime, serializer=self.serializer
        )


def not_an_end(error: BaseException) -> BaseException:
    """The error to raise for one of the source or serializer: an escaped ``StopIteration`` would look like the end."""
    if not isinstance(error, StopIteration | StopAsyncIteration):
        return error
    wrapped = RuntimeError(f"the source or its serializer raised {type(error).__name__}, which is not an end here")
    wrapped.__cause__ = error
    return wrapped


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

    def __init__(self, settings: PersistArguments, open_queue: Callable[[], Queue]) -> None:
        # With a lifetime, items are removed by age. A subscription without a position removes none.
        self._keeps_consumed = settings.lifetime is not None or settings.consumer is None
        self._closed: Closed | None = None  # why nothing is given out any more
        self._ready: deque[Message] = deque()
        self.given: Message | None = None
        """The item that the consumer has and that is not done. Set by the shell, as the last step of giving it."""
        self._ending: Ending | None = None  # what is left to give: closing on the way there may be interrupted
        self.queue = open_queue()
        core = self._core = core_of(self.queue)
        try:
            check_named(settings.serializer, core.identity.serializer)
            self._serializer = core.serializer
            self._subscription = self._subscribe(settings)
            self._left_count = core.last_seq - self.queue.skipped
            self._left_seq = last_stored(core.pages, core.last_seq)
            consumed_seq = self._subscription.committed_seq
            self.flow = Flow(
                consumed_seq=consumed_seq,
                left_seq=max(self._left_seq, consumed_seq),
                max_bytes=settings.max_bytes,
                page_bytes=settings.page_size,
            )
            self._left: Iterator[Block] | None = None
            self._free()
        except BaseException:
            self.queue.close()
            raise
        poison_in_children(self)

    def _subscribe(self, settings: PersistArguments) -> Consumer | _Since:
        if settings.consumer is not None:
            return self.queue.consumer(settings.consumer, hold=True)
        since = settings.since() if callable(settings.since) else settings.since
        if since is None:
            raise InvalidRequest("since must return a starting point", hint="return a time, earliest or latest")
        return _Since(self._core, since)

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
        seq = self._core.append_at_once(payload)
        if seq is not None:
            self._stored(seq, payload)
        return seq is not None

    def append(self, payload: bytes) -> None:
        """Store an item, as durably as the sync level promises."""
        self._stored(self._core.append(payload), payload)

    def _stored(self, seq: int, payload: bytes) -> None:
        try:
            self.flow.stored(seq, len(payload))
        except AssertionError as error:
            self._core.soundness.break_off(error)

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

    def look(self) -> Ending | bool:
        """Whether an item comes next; or the end of the source, also after a close. *Raises*: ``Closed``."""
        if self._ending is None:
            step = self.flow.step
            if step is FlowStep.CLOSED:
                raise self.closed_error()
            if step is not FlowStep.END:
                return step is FlowStep.GIVE
            self._ending = self.flow.ending
        assert self._ending is not None, "the end of a source says how it ended"
        return self._ending

    def commit(self, *, durable: bool) -> None:
        """As ``consume``, explicitly. *Raises*: also ``Closed``."""
        if self.flow.stopped:
            raise self.closed_error()
        self.consume(durable=durable)

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
        core = self._core
        if self._keeps_consumed:
            return
        unconsumed = first_unconsumed_seq(core.pages)
        if unconsumed is not None and unconsumed > core.first_seq:
            sync_holds(core.pages, self._sync_failed, every=True)
            core.trim(before_seq=min(unconsumed, last_stored(core.pages, core.last_seq)))

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

    def _poison_after_fork(self) -> None:
        """In a forked child: refuse everything."""
        self._closed = Closed("a forked child cannot use its parent's subscription", code=Code.FORKED)
        self.flow.stopped = self.flow.source_closed = True


class _Since:
    """The position of a subscription without a name, with the methods of ``Consumer`` that ``PersistRun`` calls."""

    def __init__(self, core: QueueCore, since: Since) -> None:
        self._core = core
        self._reader: LogReader | None = None
        self._reading = threading.RLock()  # another thread that closes must not take the file from under a read
        with core.asking():
            self.committed_seq = core.seq_since(since) - 1
        self._taken_seq = self.committed_seq

    def poll(self, timeout: float, max_messages: int) -> list[Message]:  # noqa: ARG002 - as the consumer's
        with self._reading:
            try:
                with self._core.asking():
                    if self._reader is None:
                        self._reader = self._core.reader(seq=self._taken_seq + 1)
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
