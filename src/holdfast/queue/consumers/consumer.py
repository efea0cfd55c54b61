"""A named consumer: a reader whose position is kept in a file.

Delivery is at least once, in order. A commit survives a killed process; a durable commit, which is the default at the
level "always", also survives a power failure. If a crash took committed messages, new messages get numbers above the
position (``cursor``). A failed sync closes the consumer.

Threads may share a consumer; each message goes to one of them. The committed position is below every message that is
not done (decision 0034). Only a commit finishes a message, never the next one, the end of a thread or ``close``. If an
interrupt (Ctrl-C) stops the consumer while it hands out a message, the message is taken back.
"""

from __future__ import annotations

import threading
import warnings
from bisect import bisect_right
from contextlib import nullcontext, suppress
from functools import partial
from itertools import islice
from operator import itemgetter
from reprlib import repr as shortened
from time import monotonic

from holdfast.errors import Closed, Code, HoldfastError, InternalError, InvalidRequest
from holdfast.queue.consumers.hand_outs import RANGES_MAX, HandOuts, Owner, give_messages, runs_of
from holdfast.queue.files.cursors import CursorFile, lock_name
from holdfast.queue.files.disk_errors import Refusal, refusals
from holdfast.queue.files.pages import open_page
from holdfast.queue.files.port import RemovedFile
from holdfast.queue.files.process import WithBlock, forked, poison_in_children
from holdfast.queue.format.meta import encode_cursor
from holdfast.queue.log.messages import Message
from holdfast.queue.log.reader import LogReader, Waiter, check_damage_policy
from holdfast.queue.log.walk import UNSYNCED_PAGES_MAX
from holdfast.queue.options import whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.queue.core import QueueCore
    from holdfast.queue.files.pages import PageDirectory
    from holdfast.queue.log.messages import Damage
    from holdfast.queue.options import Since


class MessageChunk:
    """Messages in memory, up to ``last_seq``, and the last one taken. Taking one or all is one atomic step: an iterator
    over a list makes no objects, so no finalizer runs in the middle of it and lets another thread in.
    """

    __slots__ = ("last_seq", "messages", "taken_seq")

    def __init__(self, messages: list[Message] | tuple[()], taken_seq: int, last_seq: int) -> None:
        self.messages = iter(messages)
        self.taken_seq = taken_seq
        self.last_seq = last_seq


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


class ConsumerFiles:
    """The files of a consumer, and how to close them without it."""

    def __init__(self, pages: PageDirectory, lock_file: int) -> None:
        self.pages = pages
        self.lock_file = lock_file
        self.cursor: CursorFile | None = None
        self.reader: LogReader | None = None

    def release_name(self) -> None:
        """Close all but the reader, which another thread may use."""
        try:
            if self.cursor is not None:
                self.cursor.close()
        finally:
            self.pages.port.unlock(self.lock_file)

    def release(self) -> None:
        """Close everything."""
        if self.reader is not None:
            self.reader.close()
        self.release_name()


POLL_MESSAGES = 1000
COUNT_MAX = 1 << 60
GAPS_WARNED = 1000
"""This many uncommitted runs below committed messages mean that a program commits one message for many."""


class Consumer(WithBlock):
    """A position in the log that is kept under a name. Made by ``Queue.consumer``. Thread-safe: see the module."""

    def __init__(self, core: QueueCore, name: str, *, since: Since, damage: Damage, hold: bool) -> None:
        if damage is not None:
            check_damage_policy(damage)
        self.name = name
        self._core = core
        pages = self._pages = core.pages
        self._damage = damage
        self._hold = hold
        self._commits_durably = core.syncs_always
        """Whether ``commit`` is durable by default."""
        self._parts: Iterator[list[Message]] = iter(())  # read, and not in a chunk yet
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
        self._read_by = 0
        """The thread that reads at the moment: a callback for damage runs on it, and may close the queue."""
        # The first uncommitted message of each page that was read, and the last of these pages.
        self._page_starts: list[int] = []
        self._page_noted = 0
        held = self._resources = ConsumerFiles(pages, lock_name(pages, name))
        try:
            # The writer must not miss this cursor and then remove pages.
            with core.space.removes_nothing() if core.writable else nullcontext():
                self._cursor = held.cursor = CursorFile(pages, name)
                self._start(since)
        except BaseException:
            held.release()
            raise
        poison_in_children(self)
        core.soundness.tell(self._break_off)
        self._keep = core.close_when_dropped(self, "the consumer", held.release)

    def _start(self, since: Since) -> None:
        cursor = self._cursor.stored
        if cursor is None:
            # After damage the position is unknown: from "latest" on, messages would be skipped silently.
            self._stand(self._core.seq_since("earliest" if self._cursor.damaged else since) - 1)
        elif cursor.of_work_queue:
            raise InvalidRequest("this name is a work queue's", name=self.name)
        else:
            self._stand(cursor.committed_seq)
        # Before the first message: lost power could take the hold, and retention the messages.
        self._cursor.sync()
        if cursor is None and self._core.first_seq > self.committed_seq + 1:
            # A writer in another process read the cursors before this one existed.
            self._stand(self._core.first_seq - 1)
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
            owner = self._owner
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
            if self._chunk is chunk and not self._fill():
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
        owner = self._owner
        while True:
            messages = self._take_or_read(owner, max_messages)
            if messages or timeout == 0 or not self._wait(until):
                return messages

    @property
    def _owner(self) -> Owner:
        """The owner of the messages that the calling thread takes."""
        try:
            owner: Owner = self._owners.value
        except AttributeError:
            owner = self._owners.value = Owner()
        return owner

    def _take_or_read(self, owner: Owner, count: int) -> list[Message]:
        while True:
            messages = self._take(owner, count)
            if messages or not self._fill(count):
                return messages

    def _take(self, owner: Owner, count: int) -> list[Message]:
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
            self._core.soundness.break_off(error)
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

    def _fill(self, count: int = 1) -> bool:
        """Read about ``count`` messages into memory if it has none. False if there are none. *Raises*: as iterating."""
        with self._reading:
            self._raise_if_closed()
            if self._chunk.last_seq != self._read_seq:
                self._drop_reader()
            chunk, drops = self._chunk, self._drops
            if chunk.taken_seq < chunk.last_seq:
                return True  # another thread was here
            try:
                messages = next(self._parts, None)
                while messages is None and self._refill():
                    messages = next(self._parts, None)
                if messages is None:
                    return False
                while len(messages) < count and (part := next(self._parts, None)) is not None:
                    messages += part
                last_seq = self._read_seq = messages[-1][0]
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
        waiter = self._core.waiter()
        with self._lock:
            self._waiters.append(waiter)
        try:
            while True:
                waiter.arm()
                if self._fill():
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
        self._read_by = threading.get_ident()
        try:
            with self._core.asking():
                parts = self._read_on()
        except Exception:
            self._raise_if_closed()
            raise
        finally:
            self._read_by = 0
        self._raise_if_closed()  # by a callback for damage: then the reader went from under itself
        if parts is None:
            return False
        if self._drops == drops:  # else a callback has moved this elsewhere
            self._parts = parts
        return True

    def _read_on(self) -> Iterator[list[Message]] | None:
        reader = self._resources.reader
        if reader is None:
            reader = self._resources.reader = self._core.reader(seq=self._read_seq + 1, damage=self._damage)
        parts = reader.read_message_parts()
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
            owner = self._owner
        self._commit_by(owner, message, durable)

    def _commit_by(
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
            number_of: Callable[..., int] = seq_of
            if all(issubclass(kind, Message) for kind in set(map(type, message))):
                number_of = itemgetter(0)  # quicker than to look at each of them
            several = sorted(map(number_of, message))
            asked_seq = several[-1]
        elif message is not None:
            asked_seq = message if type(message) is int and message >= 0 else seq_of(message)
        if durable is None:
            durable = self._commits_durably
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
                        seq = max(taken_seq, min(seq, self._core.durable_seq if self._core.writable else 0))
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
            self._core.soundness.break_off(error)
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

    def _pages_passed(self, seq: int) -> None:
        """A commit finishes pages: wake those that wait for their space."""
        with self._lock:
            del self._page_starts[: bisect_right(self._page_starts, seq) - 1]
        if self._core.writable:
            self._core.space.confirmed()

    def _sync_log(self, seq: int) -> None:
        """Make the log durable up to ``seq``."""
        core = self._core
        if core.durable_seq >= seq:
            return
        if core.writable:
            core.flush()
            return
        # Another process writes. A sync covers all writes to the file; only the newest pages wait for theirs.
        with core.asking():
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

    def reset(self, *, since: Since = None, seq: int | None = None) -> None:
        """Continue elsewhere: ``seq``, a time (aware), ``"earliest"`` or ``"latest"``; committed immediately, durably.

        ``seq`` is the next message to be handed out, at most one above the last. *Raises*: ``InvalidRequest`` for both,
        none, or a missing position; ``Unavailable`` and ``Closed`` as ``commit``.
        """
        self._raise_if_closed()
        if (since is None) == (seq is None):
            raise InvalidRequest("reset needs either since or seq")
        with self._core.asking():
            if seq is None:
                seq = self._core.seq_since(since)
            else:
                seq = whole_number("seq", seq, 1, self._core.last_seq + 1)
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
        done = max(self.committed_seq, self._core.first_seq - 1)
        return max(0, self._core.last_seq - done)

    def _raise_if_closed(self) -> None:
        if self._closed is not None:
            raise self._closed.with_traceback(None)  # else it would keep the frames of every caller

    def close(self) -> None:
        """Release the files and the name, after calls of other threads. Commits nothing. Closing twice is harmless."""
        with self._file_lock:
            if self._released:
                return
            self._released = True
            self._closed = self._core.soundness.broken or Closed("the consumer is closed", name=self.name)
            self._keep()
            self._resources.release_name()
        self._core.forget(self)
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

    def _poison_after_fork(self) -> None:
        """In a forked child: release the lock, which is the parent's, and refuse everything."""
        # The parent's threads may have held any of them.
        self._lock, self._file_lock, self._reading = threading.Lock(), threading.Lock(), threading.RLock()
        if not self._released:
            self._released = True
            self._keep()
            self._pages.port.close(self._resources.lock_file)
            self._closed = forked("use its parent's consumer")
