"""A named consumer: a reader whose place is kept.

    with queue.consumer("billing") as consumer:
        for message in consumer:
            charge(message.payload)
            consumer.commit(message)

Owns: what was handed out and what is committed, in what order a durable commit syncs, the lock of the name. Does not
own: the cursor's bytes (``cursor``) and file (``cursor_file``), reading (``reader``), waiting (``following``).

Failure model: at least once, in order. After a crash the consumer goes on behind the last commit that survived: a
commit survives a killed process, a durable one survives lost power. Messages that were handed out and not committed are
handed out again; where the cursor is damaged (``cursor_file``), all that there are. Where a crash has taken messages
that were committed already, the cursor goes back with the log (``cursor``), so that what is appended in their place is
not skipped. A report (``Gap``, ``Trimmed``) that is raised moves nothing: reading again raises it again, until
``reset`` or another policy for damage. What the file system refuses is ``Unavailable`` and has moved nothing, but for a
failed sync: it is never tried again, and the consumer is finished.

Order of a durable commit, and what a crash leaves:

1. sync the log up to the committed message: before it, the old cursor;
2. write the cursor: the old one or the new one, both true;
3. sync the cursor: from here on, the new one.

Any number of consumers read one queue independently, each in at most one process. Each has four files open.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from functools import partial
from itertools import chain, islice

from holdfast.errors import Closed, Code, InvalidRequest
from holdfast.queue.arguments import whole_number
from holdfast.queue.cursor import HISTORY_PAGES_MAX, cursor_pages, encode_cursor
from holdfast.queue.cursor_file import CursorFile, history_at, kept_in, lock_name, log_history, seq_since
from holdfast.queue.disk_errors import Refusal, refusals
from holdfast.queue.forks import poison_in_children
from holdfast.queue.reader import check_damage_policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import datetime
    from types import TracebackType
    from typing import Self

    from holdfast.queue.cursor import Place
    from holdfast.queue.messages import Message
    from holdfast.queue.page_files import PageDirectory
    from holdfast.queue.queue import Queue
    from holdfast.queue.reader import DamagePolicy, LogReader

__all__ = ["Consumer"]

POLL_MESSAGES = 1000
COUNT_MAX = 1 << 60


class Consumer:
    """A place in the log that is kept under a name. Made by ``Queue.consumer``. One thread at a time.

    ``committed_seq`` is the last message that is done, ``next_seq`` the next one to be handed out.
    """

    def __init__(
        self,
        queue: Queue,
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
        self._reader: LogReader | None = None
        self._ready: Iterator[Message] = iter(())
        self._waiter = queue.waiter()
        self._closed: Closed | None = None  # why nothing is accepted any more
        self._released = False
        # A queue that is closed by another thread must not take the file from under a commit, nor the files from under
        # what reads: their numbers may soon be those of others. Taken again where a callback for damage closes.
        self._file_lock = threading.Lock()
        self._reading = threading.RLock()
        self.read_by = 0
        """The thread that reads at the moment: a callback for damage runs on it, and may close the queue."""
        # Pages that were read and not committed yet: the first message of each, and the history up to it, packed.
        self._page_starts: list[int] = []
        self._page_values: list[bytes] = []
        self._history: list[Place] = []
        self._lock_file = lock_name(pages, name)
        try:
            self._cursor = CursorFile(pages, name)
            try:
                self._start(since)
            except BaseException:
                self._cursor.close()
                raise
        except BaseException:
            pages.port.unlock(self._lock_file)
            raise
        poison_in_children(self)

    def _start(self, since: datetime | str | None) -> None:
        """Where the cursor says, or where a new consumer begins."""
        found = self._cursor.found
        if found is None:
            # What was handed out before a damage is not known: from "latest" on, messages would be skipped unseen.
            self._stand(seq_since(self._queue, "earliest" if self._cursor.damaged else since) - 1)
        elif found.of_work_queue:
            raise InvalidRequest("this name is a work queue's", name=self.name)
        else:
            self._stand(kept_in(self._pages, found, self._queue.last_seq))
        # Before the first message: lost power would take the hold, and retention what was not handed out yet.
        self._cursor.sync()

    def _stand(self, committed_seq: int) -> None:
        """Be at a place, and say so in the cursor."""
        history = history_at(self._pages, committed_seq)
        packed = cursor_pages(history)
        self._cursor.write(encode_cursor(committed_seq, packed, of_work_queue=False, holds=self._hold))
        self._drop_reader()
        self._history = history
        self._page_starts, self._page_values = [0], [packed]
        self.committed_seq = committed_seq
        self._delivered_seq = committed_seq

    # ---- reading ----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Message]:
        """The messages that are there, from the first that was not handed out yet. Ends where the log does now.

        ``rewind``, ``reset`` and ``poll`` in the middle of a loop count: it goes on with what is next then.
        *Raises*: ``Gap`` and ``Trimmed`` as the policy says; ``Unavailable`` where the file system refuses, after which
        reading goes on from the same message; ``Closed``.
        """
        while True:
            try:
                ready = self._ready
                for message in ready:
                    self._delivered_seq = message[0]
                    yield message
                    if self._ready is not ready:
                        break  # moved elsewhere meanwhile: what is left of these is not next any more
                else:
                    if not self._refill():
                        return
            except GeneratorExit:
                raise
            except BaseException:
                # Decoding or reading stopped half-way: begin again at the first message that was not handed out.
                self._drop_reader()
                raise

    def follow(self, timeout: float | None = None) -> Iterator[Message]:
        """As iterating, but waits for more; ends after ``timeout`` seconds without a message, without one never."""
        while True:
            yield from self
            if not self._wait(timeout):
                return

    def poll(self, timeout: float | None = 0.0, max_messages: int = POLL_MESSAGES) -> list[Message]:
        """The next messages, at least one and at most ``max_messages``; none after ``timeout`` seconds (None: waits).

        *Raises*: ``InvalidRequest`` for ``max_messages`` below 1; else as iterating.
        """
        whole_number("max_messages", max_messages, 1, COUNT_MAX)
        while True:
            try:
                found = list(islice(self._ready, max_messages))
                while not found and self._refill():
                    found = list(islice(self._ready, max_messages))
            except BaseException:
                self._drop_reader()
                raise
            if found:
                self._delivered_seq = found[-1].seq
                return found
            if timeout == 0 or not self._wait(timeout):
                return []

    def _wait(self, timeout: float | None) -> bool:
        """Wait until there may be a message; False when ``timeout`` seconds have passed without one."""
        from time import monotonic

        waiter = self._waiter
        until = None if timeout is None else monotonic() + timeout
        try:
            while True:
                waiter.arm()
                if self._refill():
                    waiter.found()
                    return True
                limit_s = None if until is None else until - monotonic()
                if limit_s is not None and limit_s <= 0:
                    return False
                waiter.wait(limit_s)
        finally:
            waiter.disarm()

    def _refill(self) -> bool:
        """Fetch the next messages. False where there are none now."""
        with self._reading:
            self._raise_if_closed()
            self.read_by = threading.get_ident()
            try:
                with self._queue.asking():
                    parts = self._read_on()
            except BaseException as error:
                self._drop_reader()
                if isinstance(error, Exception):
                    self._raise_if_closed()
                raise
            finally:
                self.read_by = 0
            self._raise_if_closed()  # by a callback for damage: then the reader went from under itself
            if parts is None:
                return False
            self._ready = chain.from_iterable(parts)
            return True

    def _read_on(self) -> Iterator[Iterable[Message]] | None:
        reader = self._reader
        if reader is None:
            reader = self._reader = self._queue.reader(seq=self._delivered_seq + 1, damage=self._damage)
        parts = reader.read_message_parts()
        if parts is not None:
            page = reader.page
            assert page is not None, "messages come from a page"
            if not self._history or self._history[-1] != (page.number, page.salt):
                self._note_page(page.number)
        return parts

    def _note_page(self, number: int) -> None:
        """Remember which page the messages from here on are in, for the commits to come."""
        history = log_history(self._pages, number)
        self._history = history[-HISTORY_PAGES_MAX:]
        self._page_starts.append(self._delivered_seq + 1)
        self._page_values.append(cursor_pages(self._history))

    def _drop_reader(self) -> None:
        with self._reading:
            self._ready = iter(())
            reader, self._reader = self._reader, None
            if reader is not None:
                reader.close()

    @property
    def next_seq(self) -> int:
        """The next message to be handed out."""
        return self._delivered_seq + 1

    # ---- keeping the place ------------------------------------------------------------------------------------------

    def commit(self, message: Message | int | None = None, *, durable: bool = False) -> None:
        """This message and all before it are done; without one, all that were handed out.

        A commit never goes back: one for an earlier message than the last is none (``reset`` goes back). *Raises*:
        ``InvalidRequest`` for a message that was not handed out; ``Unavailable`` when the cursor cannot be written, and
        the old place stands then; ``Closed`` (sync_failed) when ``durable`` and a sync has failed, and from then on:
        the consumer, opened again, stands at the old place or the new one.
        *Cost*: about 2 microseconds; when ``durable`` a data sync of the log, if it is behind, and one of the cursor.
        *After a crash*: survives a killed process, and lost power when ``durable``.
        """
        if message is None:
            seq = self._delivered_seq
        else:
            seq = message if isinstance(message, int) else message.seq
        if seq > self._delivered_seq:
            raise InvalidRequest("this message was not handed out", seq=seq, next_seq=self._delivered_seq + 1)
        self._raise_if_closed()
        if durable:
            self._sync_log(seq, self._history)
        with self._file_lock:
            self._raise_if_closed()
            if seq > self.committed_seq:
                starts = self._page_starts
                if len(starts) > 1 and seq >= starts[1]:
                    self._forget_pages(seq)
                try:
                    self._cursor.write(encode_cursor(seq, self._page_values[0], of_work_queue=False, holds=self._hold))
                except OSError as error:
                    raise Refusal(error) from error
                self.committed_seq = seq
            if durable:
                self._sync(self._cursor.sync)

    def _forget_pages(self, seq: int) -> None:
        """Drop the pages that a commit leaves behind; whoever waits for their space looks again."""
        behind = bisect_right(self._page_starts, seq) - 1
        del self._page_starts[:behind]
        del self._page_values[:behind]
        if self._hold and self._queue.writable:
            self._queue.space.confirmed()

    def _sync_log(self, seq: int, history: list[Place]) -> None:
        """The log is durable up to ``seq`` on return; ``history`` are the pages up to there."""
        queue, port = self._queue, self._pages.port
        if queue.durable_seq >= seq:
            return
        if queue.writable:
            queue.flush()
            return
        # Another process writes. A sync is of the file, whoever asks for it; at most nine pages wait for theirs.
        with queue.asking():
            for number, _ in history:
                file = self._pages.open(number)
                if file is not None:
                    try:
                        self._sync(partial(port.sync_data, file))
                    finally:
                        port.close(file)

    def _sync(self, sync: Callable[[], None]) -> None:
        """Sync, and never again once that has failed: the system may count as clean what the disk does not have, and
        answer the second try with success."""
        try:
            sync()
        except OSError as error:
            self._closed = Closed(
                "a sync failed: this consumer is finished",
                code=Code.SYNC_FAILED,
                hint="open it again; it stands where the cursor says",
                name=self.name,
                cause=error,
            )
            raise self._closed from error

    def rewind(self) -> None:
        """Hand out again what was handed out and not committed."""
        self._raise_if_closed()
        self._drop_reader()
        self._delivered_seq = self.committed_seq

    def reset(self, *, since: datetime | str | None = None, seq: int | None = None) -> None:
        """Go on from elsewhere: ``seq``, a time (aware), ``"earliest"`` or ``"latest"``; committed at once, durably.

        ``seq`` is the next message to be handed out; it may have yet to come only by one. *Raises*:
        ``InvalidRequest`` for both, none, or a place that is not there; ``Unavailable`` and ``Closed`` as ``commit``.
        """
        self._raise_if_closed()
        if (since is None) == (seq is None):
            raise InvalidRequest("reset needs either since or seq")
        with self._queue.asking():
            if seq is None:
                seq = seq_since(self._queue, since)
            else:
                seq = whole_number("seq", seq, 1, self._queue.last_seq + 1)
            history = history_at(self._pages, seq - 1)
        self._sync_log(seq - 1, history)
        with self._file_lock:
            self._raise_if_closed()
            with refusals:
                self._stand(seq - 1)
            self._sync(self._cursor.sync)

    def lag(self) -> int:
        """How many messages of the log are not committed; those that were removed do not count.

        *Raises*: ``Unavailable``; ``Closed``. *Cost*: one listing; a walk along what is not synced where another
        process writes the queue.
        """
        self._raise_if_closed()
        done = max(self.committed_seq, self._queue.first_seq - 1)
        return max(0, self._queue.last_seq - done)

    # ---- the end ----------------------------------------------------------------------------------------------------

    def _raise_if_closed(self) -> None:
        if self._closed is not None:
            raise self._closed.with_traceback(None)  # else it would keep the frames of all who met it

    def close(self) -> None:
        """Let go of the files and the name. Commits nothing. Doing it twice is harmless.

        From another thread: waits until a commit, or the reading of the next messages, that is under way has ended.
        """
        with self._file_lock:
            if self._released:
                return
            self._released = True
            self._closed = Closed("the consumer is closed", name=self.name)
            self._cursor.close()
            self._pages.port.unlock(self._lock_file)
        self._queue.forget(self)
        self._drop_reader()
        self._waiter.wake()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def poison_after_fork(self) -> None:
        """In a forked child: let go of the lock, which is the parent's, and refuse everything."""
        self._file_lock, self._reading = threading.Lock(), threading.RLock()  # a thread of the parent may have held any
        if not self._released:
            self._released = True
            self._pages.port.close(self._lock_file)
            self._closed = Closed(
                "a forked child cannot use its parent's consumer", code=Code.FORKED, hint="open it in one process"
            )
