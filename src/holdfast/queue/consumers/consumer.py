"""A named consumer: a reader whose position is kept in a file.

    with queue.consumer("billing") as consumer:
        for message in consumer:
            charge(message.payload)
            consumer.commit(message)

Delivery is at least once, in order. After a crash the consumer continues after the last commit that survived: a commit
survives a killed process; a durable commit, which is the default at the level "always", also survives a power failure.
If a crash took committed messages, new messages get numbers above the position (``cursor``). A raised ``Gap`` or
``Trimmed`` does not change the position. A failed sync closes the consumer.

Threads may share a consumer; each message goes to one of them. The committed position is below every message that is
not done (decision 0049):

| call | what it finishes |
|---|---|
| asking for the next message | nothing: only a commit finishes a message |
| ``commit(m)`` | ``m``, and every earlier message that the **calling** thread was given |
| ``commit()`` | every message that the calling thread was given; if only one thread took messages, all that it took |
| ``commit(m)`` in another thread | ``m``, and what the calling thread itself was given before ``m`` |
| ``commit(messages)``, a list, in any thread | these messages, and all that ``commit`` of the last one finishes |
| ``commit`` of a message that is done already | nothing; a commit never goes back |
| the end of a thread, ``close()`` in any thread | nothing: what is not done comes again when the consumer is opened |

If an interrupt (Ctrl-C) stops the consumer while it hands out a message, the message is taken back. So no commit
finishes a message that the program did not get.
"""

from __future__ import annotations

import threading
import warnings
from bisect import bisect_right
from contextlib import nullcontext, suppress
from functools import partial
from itertools import islice, pairwise
from operator import itemgetter
from reprlib import repr as shortened
from time import monotonic

from holdfast.errors import Closed, Code, HoldfastError, InternalError, InvalidRequest, LimitExceeded
from holdfast.queue.consumers.cursor_file import (
    ConsumerFiles,
    CursorFile,
    lock_name,
    seq_since,
)
from holdfast.queue.files.disk_errors import Refusal, refusals
from holdfast.queue.files.pages import open_page
from holdfast.queue.files.port import RemovedFile
from holdfast.queue.files.process import WithBlock, forked, poison_in_children
from holdfast.queue.format.cursor import encode_cursor
from holdfast.queue.log.messages import Message
from holdfast.queue.log.reader import DamagePolicy, Waiter, check_damage_policy
from holdfast.queue.log.walk import UNSYNCED_PAGES_MAX
from holdfast.queue.options import whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import datetime

    from holdfast.queue.files.pages import PageDirectory
    from holdfast.queue.log.port import QueuePort


RANGES_MAX = 1_000_000
"""Ranges that may be handed out and not done: about 200 bytes each."""


class MessageChunk:
    """Messages in memory, up to ``last_seq``, and the last one taken. Taking one or all is one atomic step: an iterator
    over a list makes no objects, so no finalizer runs in the middle of it and lets another thread in.
    """

    __slots__ = ("last_seq", "messages", "taken_seq")

    def __init__(self, messages: list[Message] | tuple[()], taken_seq: int, last_seq: int) -> None:
        self.messages = iter(messages)
        self.taken_seq = taken_seq
        self.last_seq = last_seq


class Owner:
    """A thread or task that takes messages, ``last_seq`` the last of them, 0 for none; ``moves`` is the consumer's
    count of moves at that time. An object, because numbers of threads are reused.
    """

    __slots__ = ("last_seq", "moves")

    def __init__(self) -> None:
        self.last_seq = 0
        self.moves = 0


class HandOuts:
    """The messages from ``committed_seq + 1`` to ``given_seq``: each is done or in a range of one owner. Numbers
    without a message count as done. Pure.

    >>> a, b = Owner(), Owner()
    >>> outs = HandOuts(0)
    >>> outs.give(a, 3), outs.give(b, 5), outs.give(a, 6)
    (None, None, None)
    >>> outs.finish(b, 5), outs.committed_seq
    (None, 0)
    >>> outs.finish(a, 3), outs.committed_seq
    (None, 5)
    """

    __slots__ = ("_given_seq", "_ranges")

    def __init__(self, committed_seq: int) -> None:
        self._given_seq = committed_seq
        self._ranges: list[tuple[int, int, Owner]] = []  # first, last, owner

    @property
    def given_seq(self) -> int:
        """The last message that was handed out. An interrupt in ``give`` may leave only the range."""
        return max(self._given_seq, self._ranges[-1][1]) if self._ranges else self._given_seq

    @property
    def committed_seq(self) -> int:
        """The last message that is done together with all before it."""
        return self._ranges[0][0] - 1 if self._ranges else self._given_seq

    def give(self, owner: Owner, until: int, moves: int = 0, *, first: int = 0) -> None:
        """Give the messages from ``first`` (0: the next) to ``until``. Raises: ``LimitExceeded``; nothing changed."""
        given_seq = self.given_seq
        first = first or given_seq + 1
        assert given_seq < first <= until, "messages are handed out in order"
        last = self._ranges[-1] if self._ranges else None
        if last is not None and last[1] == first - 1 and last[2] is owner:
            self._ranges[-1] = (last[0], until, owner)
        else:
            self.check_room()
            self._ranges.append((first, until, owner))
        self._given_seq = until
        owner.last_seq, owner.moves = until, moves

    def take_back(self, owner: Owner, after: int, until: int) -> bool:
        """The owner never got its messages above ``after``, up to ``until``. True if these are handed out next; False
        if later ones were handed out: then they belong to an owner that commits nothing.
        """
        if self.given_seq <= until:
            self._given_seq = after
            while self._ranges and self._ranges[-1][1] > after:
                first = self._ranges[-1][0]
                self._ranges[-1:] = [(first, after, owner)] if first <= after else []
            return True
        missed = Owner()
        kept: list[tuple[int, int, Owner]] = []
        for first, last, of in self._ranges:
            if of is not owner or last <= after or first > until:
                kept.append((first, last, of))
                continue
            if first <= after:
                kept.append((first, after, owner))
            kept.append((max(first, after + 1), min(last, until), missed))
            if last > until:
                kept.append((until + 1, last, owner))
        self._ranges = kept
        return False

    def check_room(self) -> None:
        """Raises: ``LimitExceeded`` if there is no room for another range."""
        count = len(self._ranges)
        if count >= RANGES_MAX:
            raise LimitExceeded("too many messages are handed out and not committed", ranges=count, max=RANGES_MAX)

    def finish(self, owner: Owner, seq: int) -> None:
        """This message is done, and every earlier message of this owner."""
        self._given_seq = self.given_seq
        end = bisect_right(self._ranges, seq, key=itemgetter(0))
        begin = 0 if owner.last_seq else max(0, end - 1)  # an owner without messages finishes this one alone
        kept: list[tuple[int, int, Owner]] = []
        for first, last, of in self._ranges[begin:end]:
            if last < seq:
                if of is not owner:
                    kept.append((first, last, of))
                continue
            if of is not owner and first < seq:
                kept.append((first, seq - 1, of))
            if last > seq:
                kept.append((seq + 1, last, of))
        self._ranges[begin:end] = kept

    def finish_run(self, first: int, last: int) -> None:
        """These messages are done, whichever owner has them.

        >>> a, outs = Owner(), HandOuts(0)
        >>> outs.give(a, 9), outs.finish_run(4, 6), outs.committed_seq
        (None, None, 0)
        >>> outs.finish_run(1, 3), outs.committed_seq
        (None, 6)
        """
        self._given_seq = self.given_seq
        begin = max(0, bisect_right(self._ranges, first, key=itemgetter(0)) - 1)
        end = bisect_right(self._ranges, last, key=itemgetter(0))
        kept: list[tuple[int, int, Owner]] = []
        for begun, ended, of in self._ranges[begin:end]:
            if begun < first:
                kept.append((begun, min(ended, first - 1), of))
            if ended > last:
                kept.append((max(begun, last + 1), ended, of))
        self._ranges[begin:end] = kept

    @property
    def ranges(self) -> int:
        """How many ranges are not done."""
        return len(self._ranges)

    @property
    def holes(self) -> int:
        """How many ranges have finished messages directly below. Cost: O(ranges)."""
        return sum(before[1] + 1 < after[0] for before, after in pairwise(self._ranges))

    def check(self) -> None:
        """Assert the invariants."""
        before = 0
        for first, last, _ in self._ranges:
            assert before < first <= last, "ranges are in order and do not overlap"
            before = last
        assert before <= self.given_seq, "only messages that were handed out are in a range"


def runs_of(seqs: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The runs of consecutive numbers in rising numbers.

    >>> list(runs_of([1, 2, 3, 7, 9, 10]))
    [(1, 3), (7, 7), (9, 10)]
    """
    first = last = 0
    for seq in seqs:
        if last and seq > last + 1:
            yield first, last
            last = 0
        if not last:
            first = seq
        last = seq
    if last:
        yield first, last


def give_messages(outs: HandOuts, owner: Owner, messages: list[Message], taken_seq: int, moves: int) -> None:
    """Hand out these messages, the next after ``taken_seq``, without the numbers that have no message."""
    if messages[-1][0] - taken_seq == len(messages):
        outs.give(owner, messages[-1][0], moves)
        return
    for first, last in runs_of(message[0] for message in messages):
        outs.give(owner, last, moves, first=first)


def seq_of(message: object) -> int:
    """The number of a message, by it or by its number. Raises: ``InvalidRequest`` for anything else.

    >>> seq_of(7), seq_of(Message((7, 0, b"hello")))
    (7, 7)
    """
    seq = message[0] if isinstance(message, Message) else message
    if not isinstance(seq, int) or isinstance(seq, bool) or seq < 0:
        hint = "commit a message, its number, or a list of either"
        raise InvalidRequest("this is not a message", given=shortened(message), hint=hint)
    return seq


def seqs_of(messages: list[Message] | list[int]) -> list[int]:
    """The numbers of messages, rising. Raises: ``InvalidRequest`` for anything else.

    >>> seqs_of([Message((8, 0, b"b")), Message((7, 0, b"a"))])
    [7, 8]
    """
    if all(issubclass(kind, Message) for kind in set(map(type, messages))):  # quicker than to look at each of them
        return sorted(map(itemgetter(0), messages))  # type: ignore[arg-type]
    return sorted(map(seq_of, messages))


POLL_MESSAGES = 1000
COUNT_MAX = 1 << 60
GAPS_WARNED = 1000
"""This many uncommitted runs below committed messages mean that a program commits one message for many."""


class Consumer(WithBlock):
    """A position in the log that is kept under a name. Made by ``Queue.consumer``. Thread-safe: see the module."""

    def __init__(
        self,
        queue: QueuePort,
        pages: PageDirectory,
        name: str,
        *,
        since: datetime | str | None,
        damage: DamagePolicy | None,
        hold: bool,
    ) -> None:
        if damage is not None:
            check_damage_policy(damage)
        self.name = name
        self._queue = queue
        self._pages = pages
        self._damage = damage
        self._hold = hold
        self.commits_durably = queue.syncs_always
        """Whether ``commit`` is durable by default."""
        self._parts: Iterator[tuple[int, list[Message]]] = iter(())  # read, and not in a chunk yet
        self._waiters: list[Waiter] = []
        self._closed: HoldfastError | None = None  # why nothing is accepted any more
        self._look_at_ranges = GAPS_WARNED
        self._released = False
        # Lock order: reading, the file, the state. A reader waits for the disk, a commit for the cursor's file, the
        # state for nothing.
        self._lock = threading.Lock()
        self._owners = threading.local()
        # A single owner takes messages from the chunk without a lock. ``_outs`` serves several owners. The change takes
        # the file's lock and the state's.
        self._sole: Owner | None = None
        self._outs: HandOuts | None = None
        self._moves = self._drops = 0
        self._chunk = MessageChunk((), 0, 0)
        # The last message read into a chunk. An interrupt may cut a chunk short; then ``fill`` reads the rest again.
        self._read_seq = 0
        # A thread that closes waits for commits and reads: file numbers are reused. A callback for damage may close,
        # hence an RLock.
        self._file_lock = threading.Lock()
        self._reading = threading.RLock()
        self.read_by = 0
        """The thread that reads at the moment: a callback for damage runs on it, and may close the queue."""
        # The first uncommitted message of each page that was read, and the last of these pages.
        self._page_starts: list[int] = []
        self._page_noted = 0
        held = self._resources = ConsumerFiles(pages, lock_name(pages, name))
        try:
            # The writer must not miss this cursor and then remove pages.
            with queue.space.removes_nothing() if queue.writable else nullcontext():
                self._cursor = held.cursor = CursorFile(pages, name)
                self._start(since)
        except BaseException:
            held.release()
            raise
        poison_in_children(self)
        queue.soundness.tell(self._break_off)
        self._keep = queue.close_when_dropped(self, "the consumer", held.release)

    def _start(self, since: datetime | str | None) -> None:
        cursor = self._cursor.stored
        if cursor is None:
            # After damage the position is unknown: from "latest" on, messages would be skipped silently.
            self._stand(seq_since(self._queue, "earliest" if self._cursor.damaged else since) - 1)
        elif cursor.of_work_queue:
            raise InvalidRequest("this name is a work queue's", name=self.name)
        else:
            self._stand(cursor.committed_seq)
        # Before the first message: lost power could take the hold, and retention the messages.
        self._cursor.sync()
        if cursor is None and self._queue.first_seq > self.committed_seq + 1:
            # A writer in another process read the cursors before this one existed.
            self._stand(self._queue.first_seq - 1)
            self._cursor.sync()

    def _stand(self, committed_seq: int) -> None:
        """Move to a position, and write it to the cursor."""
        self._cursor.write(encode_cursor(committed_seq, of_work_queue=False, holds=self._hold))
        with self._reading:
            self._move_to(committed_seq)
            self._page_starts, self._page_noted = [0], 0
            self.committed_seq = committed_seq

    def _move_to(self, seq: int) -> None:
        """Continue after this message; no owner has messages. Call with the reading lock held."""
        self._drop_reader()
        with self._lock:
            self._read_seq = seq
            self._chunk = MessageChunk((), seq, seq)
            self._sole = self._outs = None
            self._moves += 1

    # ---- reading ----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Message]:
        """The messages from the first that was not handed out. Ends at the end of the log.

        ``rewind``, ``reset`` and ``poll`` inside the loop take effect immediately. *Raises*: ``Gap`` and ``Trimmed`` by
        the policy; ``Unavailable``, and reading continues from the same message; ``LimitExceeded`` when a million
        ranges of messages are not committed; ``Closed``.
        """
        while True:
            owner = self.owner
            self._admit(owner)
            chunk = self._chunk
            if self._sole is not owner:
                for message in self._take_or_read(owner, 1):
                    yield message
                    break
                else:
                    return
                continue
            try:
                for message in chunk.messages:
                    chunk.taken_seq = message[0]
                    yield message
                    if self._chunk is not chunk:
                        break  # moved elsewhere meanwhile: what is left of these is not next any more
            except GeneratorExit:
                raise
            except BaseException:
                self._drop_reader()  # begin again at the first message that was not handed out
                raise
            if self._chunk is chunk and not self.fill():
                return

    def values(self) -> Iterator[object]:
        """As iterating, what the queue's serializer makes of each payload. *Raises*: also what the serializer raises;
        that message was handed out.
        """
        return (message.value for message in self)

    def follow(self, timeout: float | None = None) -> Iterator[Message]:
        """As iterating, but waits for more; ends after ``timeout`` seconds without a message (None: never)."""
        while True:
            yield from self
            if not self._wait(None if timeout is None else monotonic() + timeout):
                return

    def poll(self, timeout: float | None = 0.0, max_messages: int = POLL_MESSAGES) -> list[Message]:
        """The next messages, at least one and at most ``max_messages``; none after ``timeout`` seconds (None: waits).
        *Raises*: as iterating; ``InvalidRequest`` for ``max_messages`` below 1.
        """
        whole_number("max_messages", max_messages, 1, COUNT_MAX)
        until = None if timeout is None else monotonic() + timeout
        owner = self.owner
        while True:
            messages = self._take_or_read(owner, max_messages)
            if messages or timeout == 0 or not self._wait(until):
                return messages

    @property
    def owner(self) -> Owner:
        """The owner of the messages that the calling thread takes."""
        try:
            owner: Owner = self._owners.value
        except AttributeError:
            owner = self._owners.value = Owner()
        return owner

    def _take_or_read(self, owner: Owner, count: int) -> list[Message]:
        while True:
            messages = self.take(owner, count)
            if messages or not self.fill(count):
                return messages

    def take(self, owner: Owner, count: int) -> list[Message]:
        """Hand out up to ``count`` messages from memory. Waits for no disk. An interrupt takes the hand-out back:
        signals are handled after calls and at backward jumps, so none comes between the last ``except`` and the return.
        """
        self._admit(owner)
        messages: list[Message] = []
        taken_seq, moves, was, given = 0, 0, (0, 0), False
        try:
            with self._lock:
                self._raise_if_closed()
                chunk, outs, moves = self._chunk, self._outs, self._moves
                if outs is None and self._sole is not owner:
                    return messages  # moved elsewhere just now: asking again finds out
                taken_seq, was = chunk.taken_seq, (chunk.taken_seq, moves)
                if outs is not None:
                    outs.check_room()
                    was = owner.last_seq, owner.moves
                try:
                    messages.extend(islice(chunk.messages, count))
                    if messages:
                        if outs is not None:
                            give_messages(outs, owner, messages, taken_seq, moves)
                        chunk.taken_seq = messages[-1][0]
                except BaseException:
                    # Under the lock: another thread must not take the messages after ``messages``.
                    self._take_back(owner, messages, taken_seq, moves, was)
                    raise
                given = True
        except AssertionError as error:
            self._queue.soundness.break_off(error)
        except BaseException:
            if given:
                with self._lock:
                    self._take_back(owner, messages, taken_seq, moves, was)
            raise
        return messages

    def _take_back(
        self, owner: Owner, messages: list[Message], taken_seq: int, moves: int, was: tuple[int, int]
    ) -> None:
        """Hand ``messages`` out again, now or after ``rewind``: the owner never got it. Call with the lock held."""
        owner.last_seq, owner.moves = was
        if self._moves != moves:
            return
        until = messages[-1][0] if messages else taken_seq
        if self._outs is None or self._outs.take_back(owner, taken_seq, until):
            self._chunk = MessageChunk((), taken_seq, taken_seq)

    def _admit(self, owner: Owner) -> None:
        """The first owner takes messages without a lock; a second one ends that."""
        if self._outs is None and self._sole is not owner:
            with self._file_lock:
                self._admit_now(owner)

    def _admit_now(self, owner: Owner) -> None:
        """Call with the file's lock held."""
        with self._lock:
            sole, chunk = self._sole, self._chunk
            if self._outs is not None or sole is owner:
                return
            if sole is None:
                self._sole = owner
                return
            try:
                # One atomic step: the first owner keeps what it has taken, the rest is shared.
                rest = list(chunk.messages)
                taken_seq = rest[0][0] - 1 if rest else chunk.last_seq
                outs = HandOuts(self.committed_seq)
                if taken_seq > self.committed_seq:
                    outs.give(sole, taken_seq, self._moves)
                self._chunk = MessageChunk(rest, taken_seq, chunk.last_seq)
                self._outs, self._sole = outs, None
            except BaseException:
                # An interrupt: the rest has left the chunk, and no owner has it.
                self._chunk = MessageChunk((), chunk.taken_seq, chunk.taken_seq)
                raise

    def fill(self, count: int = 1) -> bool:
        """Read about ``count`` messages into memory if it has none. False if there are none. *Raises*: as iterating."""
        with self._reading:
            self._raise_if_closed()
            if self._chunk.last_seq != self._read_seq:
                self._drop_reader()
            chunk, drops = self._chunk, self._drops
            if chunk.taken_seq < chunk.last_seq:
                return True  # another thread was here
            try:
                part = next(self._parts, None)
                while part is None and self._refill():
                    part = next(self._parts, None)
                if part is None:
                    return False
                last_seq, messages = part
                while len(messages) < count and (part := next(self._parts, None)) is not None:
                    last_seq = part[0]
                    messages += part[1]
                self._read_seq = last_seq
                with self._lock:
                    # Otherwise a callback has moved the consumer, or ``take`` was interrupted.
                    if self._drops == drops and self._chunk.last_seq == chunk.last_seq:
                        self._chunk = MessageChunk(messages, chunk.last_seq, last_seq)
            except BaseException:
                # Begin again at the first message that was not handed out.
                self._drop_reader()
                raise
            return True

    def _wait(self, until: float | None) -> bool:
        """Wait until there may be a message; False at the time ``until``."""
        waiter = self._queue.waiter()
        with self._lock:
            self._waiters.append(waiter)
        try:
            while True:
                waiter.arm()
                if self.fill():
                    return True
                limit_s = None if until is None else until - monotonic()
                if limit_s is not None and limit_s <= 0:
                    return False
                waiter.wait(limit_s)
        finally:
            waiter.disarm()
            with self._lock:
                self._waiters.remove(waiter)

    def _refill(self) -> bool:
        """Read the next messages. False if there are none now. Call with the reading lock held."""
        drops = self._drops
        self.read_by = threading.get_ident()
        try:
            with self._queue.asking():
                parts = self._read_on()
        except Exception:
            self._raise_if_closed()
            raise
        finally:
            self.read_by = 0
        self._raise_if_closed()  # by a callback for damage: then the reader went from under itself
        if parts is None:
            return False
        if self._drops == drops:  # else a callback has moved this elsewhere
            self._parts = parts
        return True

    def _read_on(self) -> Iterator[tuple[int, list[Message]]] | None:
        reader = self._resources.reader
        if reader is None:
            reader = self._resources.reader = self._queue.reader(seq=self._read_seq + 1, damage=self._damage)
        parts = reader.read_bounded_parts()
        if parts is not None:
            page = reader.page
            assert page is not None, "messages come from a page"
            if page.number != self._page_noted:
                with self._lock:
                    self._page_starts.append(self._read_seq + 1)
                    self._page_noted = page.number
        return parts

    def _drop_reader(self) -> None:
        """Read again from the first message that was not handed out."""
        with self._reading:
            with self._lock:
                given_seq = 0 if self._outs is None else self._outs.given_seq  # an interrupt may have left it ahead
                taken_seq = max(self._chunk.taken_seq, given_seq)
                self._chunk = MessageChunk((), taken_seq, taken_seq)
            self._read_seq = taken_seq
            self._parts = iter(())
            self._drops += 1
            reader, self._resources.reader = self._resources.reader, None
            if reader is not None:
                reader.close()

    @property
    def next_seq(self) -> int:
        """The next message to be handed out."""
        return self._chunk.taken_seq + 1

    def commit(
        self, message: Message | int | list[Message] | list[int] | None = None, *, durable: bool | None = None
    ) -> None:
        """This message and all earlier ones that this thread was given are done; without an argument, all that it was
        given. ``durable`` by default when the queue's sync level is "always".

        Each message of a list is done, whichever thread has it; an empty list commits nothing. A commit never goes back
        (``reset`` does). Messages are known by their numbers. *Raises*: ``InvalidRequest`` for a message that was not
        handed out, for what is not a message, and without an argument when only other threads have messages;
        ``Unavailable`` when the cursor cannot be written, and the old position stays; ``Closed`` (sync_failed) when
        ``durable`` and a sync has failed, and from then on.
        *Cost*: about 2 microseconds; when ``durable`` a data sync of the log, if needed, and one of the cursor.
        *After a crash*: survives a killed process, and lost power when ``durable``.
        """
        try:
            owner: Owner = self._owners.value
        except AttributeError:
            owner = self.owner
        self.commit_by(owner, message, durable)

    def commit_by(
        self,
        owner: Owner,
        message: Message | int | list[Message] | list[int] | None = None,
        durable: bool | None = None,
    ) -> None:
        """As ``commit``, for any owner."""
        taken_seq = asked_seq = 0
        several: list[int] = []
        if isinstance(message, Message):
            asked_seq = message[0]
        elif isinstance(message, list):
            if not message:
                self._raise_if_closed()
                return
            several = seqs_of(message)
            asked_seq = several[-1]
        elif message is not None:
            asked_seq = message if type(message) is int and message >= 0 else seq_of(message)
        if durable is None:
            durable = self.commits_durably
        if durable:
            # Also messages that other threads have finished: the position may pass this message.
            self._raise_if_closed()
            taken_seq = seq = self._chunk.taken_seq
            if message is not None and self._sole is owner:
                seq = asked_seq
            self._sync_log(seq)
        try:
            with self._file_lock:
                self._raise_if_closed()
                seq = self._last_of(owner) if message is None else asked_seq
                if seq > self._chunk.taken_seq:
                    raise InvalidRequest("this message was not handed out", seq=seq, next_seq=self.next_seq)
                if self._sole is not owner and (message is not None or self._outs is not None):
                    if seq > self.committed_seq:
                        seq = self._finish(owner, seq, several)
                    else:  # a durable commit may have left behind what others have finished
                        seq = 0 if self._outs is None else self._outs.committed_seq
                    if durable and seq > taken_seq:
                        # Others have finished messages that came later; at the level "always" these are durable.
                        seq = max(taken_seq, min(seq, self._queue.durable_seq if self._queue.writable else 0))
                if seq > self.committed_seq:
                    starts = self._page_starts
                    if len(starts) > 1 and seq >= starts[1]:
                        self._pages_passed(seq)
                    try:
                        self._cursor.write(encode_cursor(seq, of_work_queue=False, holds=self._hold))
                    except OSError as error:
                        raise Refusal(error) from error
                    self.committed_seq = seq
                if durable:
                    self._sync(self._cursor.sync)
        except AssertionError as error:
            self._queue.soundness.break_off(error)
        outs = self._outs
        if outs is not None and outs.ranges >= self._look_at_ranges:
            self._warn_about_gaps(outs)

    def _warn_about_gaps(self, outs: HandOuts) -> None:
        """Warn, once, when a program seems to commit only the last message of each list of another thread."""
        with self._lock:
            self._look_at_ranges *= 2  # a look costs as much as there are ranges
            holes = outs.holes
            if holes < GAPS_WARNED:
                return
            self._look_at_ranges = RANGES_MAX + 1
        warnings.warn(
            f"consumer {self.name!r}: messages are committed, and earlier ones that another thread took are not "
            f"(committed_seq={self.committed_seq}, runs={holes}); commit the list of messages, or each of them",
            RuntimeWarning,
            stacklevel=4,
        )

    def _finish(self, owner: Owner, seq: int, several: list[int]) -> int:
        """A commit among several owners. Returns the position to commit. Call with the file's lock held."""
        self._admit_now(owner)
        outs = self._outs
        assert outs is not None, "messages that are not committed have an owner"
        with self._lock:
            if several:
                for first, last in runs_of(several):
                    outs.finish_run(first, last)
            outs.finish(owner, seq)
            return outs.committed_seq

    def _last_of(self, owner: Owner) -> int:
        """The last message of an owner. Call with the file's lock held."""
        taken_seq = self._chunk.taken_seq
        if self._outs is None or taken_seq == self.committed_seq:
            return taken_seq
        if owner.moves != self._moves:
            raise InvalidRequest(
                "this thread was given no messages to commit",
                next_seq=taken_seq + 1,
                hint="commit(message) finishes a message that another thread was given",
            )
        return owner.last_seq

    @property
    def may_wait(self) -> bool:
        """Whether a commit may have to wait for a durable one."""
        return self._file_lock.locked()

    def _pages_passed(self, seq: int) -> None:
        """A commit finishes pages: wake those that wait for their space."""
        with self._lock:
            del self._page_starts[: bisect_right(self._page_starts, seq) - 1]
        if self._queue.writable:
            self._queue.space.confirmed()

    def _sync_log(self, seq: int) -> None:
        """Make the log durable up to ``seq``."""
        queue = self._queue
        if queue.durable_seq >= seq:
            return
        if queue.writable:
            queue.flush()
            return
        # Another process writes. A sync covers all writes to the file; only the newest pages wait for theirs.
        with queue.asking():
            for number in self._pages.numbers()[-UNSYNCED_PAGES_MAX - 2 :]:
                with open_page(self._pages, number) as file:
                    if file is not None:
                        self._sync(partial(self._sync_page, file))

    def _sync_page(self, file: int) -> None:
        with suppress(RemovedFile):  # meanwhile: the writer removes durable pages only
            self._pages.port.sync_data(file)

    def _sync(self, sync: Callable[[], None]) -> None:
        """Sync, and never again after a failure: the system may report success although the disk lacks the data."""
        try:
            sync()
        except OSError as error:
            if isinstance(error, RemovedFile):
                hint = "open the consumer again; without the file it begins at the first message there is"
            else:
                hint = "open the consumer again; it continues from the position in its cursor file"
            self._closed = Closed(
                "a sync failed: this consumer is finished",
                code=Code.SYNC_FAILED,
                hint=hint,
                name=self.name,
                cause=error,
            )
            raise self._closed from error

    def rewind(self) -> None:
        """Hand out again what was not committed, to any thread; no thread has messages after this."""
        self._raise_if_closed()
        with self._reading, self._file_lock:
            self._move_to(self.committed_seq)
            # They are read again.
            del self._page_starts[1:]
            self._page_noted = 0

    def reset(self, *, since: datetime | str | None = None, seq: int | None = None) -> None:
        """Continue elsewhere: ``seq``, a time (aware), ``"earliest"`` or ``"latest"``; committed immediately, durably.

        ``seq`` is the next message to be handed out, at most one above the last. *Raises*: ``InvalidRequest`` for both,
        none, or a missing position; ``Unavailable`` and ``Closed`` as ``commit``.
        """
        self._raise_if_closed()
        if (since is None) == (seq is None):
            raise InvalidRequest("reset needs either since or seq")
        with self._queue.asking():
            if seq is None:
                seq = seq_since(self._queue, since)
            else:
                seq = whole_number("seq", seq, 1, self._queue.last_seq + 1)
        self._sync_log(seq - 1)
        with self._reading, self._file_lock:
            self._raise_if_closed()
            with refusals:
                self._stand(seq - 1)
            self._sync(self._cursor.sync)

    def lag(self) -> int:
        """How many numbers of the log are not committed. Removed messages do not count, lost ones do.

        *Raises*: ``Unavailable``; ``Closed``. *Cost*: one listing; a walk along what is not synced if another process
        writes.
        """
        self._raise_if_closed()
        done = max(self.committed_seq, self._queue.first_seq - 1)
        return max(0, self._queue.last_seq - done)

    def _raise_if_closed(self) -> None:
        if self._closed is not None:
            raise self._closed.with_traceback(None)  # else it would keep the frames of every caller

    def close(self) -> None:
        """Release the files and the name, after calls of other threads. Commits nothing. Closing twice is harmless."""
        with self._file_lock:
            if self._released:
                return
            self._released = True
            self._closed = self._queue.soundness.broken or Closed("the consumer is closed", name=self.name)
            self._keep()
            self._resources.release_name()
        self._queue.forget(self)
        self._drop_reader()
        with self._lock:
            waiters = list(self._waiters)
        for waiter in waiters:
            waiter.wake()

    def _break_off(self, reason: InternalError) -> None:
        """Refuse everything from now on, also what a loop has in memory: an invariant is broken. Touches no file."""
        self._closed = reason
        self._chunk = MessageChunk((), self._chunk.taken_seq, self._chunk.taken_seq)
        for waiter in tuple(self._waiters):
            waiter.wake()

    def poison_after_fork(self) -> None:
        """In a forked child: release the lock, which is the parent's, and refuse everything."""
        # The parent's threads may have held any of them.
        self._lock, self._file_lock, self._reading = threading.Lock(), threading.Lock(), threading.RLock()
        if not self._released:
            self._released = True
            self._keep()
            self._pages.port.close(self._resources.lock_file)
            self._closed = forked("use its parent's consumer")
