"""A named work queue: it gives each message of a queue to one worker at a time, until one has done the work.

Delivery is at least once. A step counts when it is written to the work queue's own log, with the sync level of the
queue; after a crash it has its whole effect or none. An interrupt (Ctrl-C) inside a step has the effect of a crash:
every call is refused until the next opening. If a crash of the machine lost messages of the queue, their jobs are gone,
and no other message gets their numbers.

Two steps give a message up: it is appended to the dead letters, which are synced; then BURY is written to the work
queue's log. If BURY is lost, the next opening replaces it from the dead letters.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, nullcontext, suppress
from itertools import chain, islice
from operator import itemgetter
from typing import cast

from holdfast.errors import Closed, Code, Fenced, HoldfastError, InternalError, InvalidRequest, NotFound
from holdfast.queue.files.cursors import CursorFile, lock_name
from holdfast.queue.files.disk_errors import refusals
from holdfast.queue.files.process import WithBlock, forked, poison_in_children
from holdfast.queue.format.commands import (
    COMMAND_NUMBERS_MAX,
    CommandKind,
    DeadLetter,
    check_reason,
    encode_command,
    encode_one,
)
from holdfast.queue.format.meta import encode_cursor
from holdfast.queue.log.messages import Message, class_with_value
from holdfast.queue.log.reader import LogReader, Waiter, check_damage_policy
from holdfast.queue.options import DELAY_S_MAX, NS, seconds_ns, whole_number
from holdfast.queue.work.log import DEAD_PAGE_BYTES, LOG_PAGE_BYTES, WorkClock, WorkLog, find_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from typing import Self

    from holdfast.queue.core import QueueCore
    from holdfast.queue.files.pages import PageDirectory
    from holdfast.queue.log.messages import DamagePolicy
    from holdfast.queue.options import Since


class Job(Message):
    """One delivery of a message to a worker: a ``Message`` with ``deliveries``, 1 at the first.

    A tuple of the four. It identifies the delivery: a later delivery of the same message is another job.

    >>> job = Job((7, 0, b"hello", 2))
    >>> job.seq, job.payload, job.deliveries
    (7, b'hello', 2)
    """

    __slots__ = ()

    deliveries = cast("int", property(itemgetter(3), doc="How often the message was handed out, this time included."))

    if TYPE_CHECKING:

        def __new__(cls, fields: tuple[int, int, bytes, int]) -> Self:  # noqa: D102
            ...

    def __repr__(self) -> str:
        return f"Job(seq={self.seq}, deliveries={self.deliveries}, payload={self.payload!r})"


class WorkSource:
    """The messages of jobs: new ones in order, and returned ones from anywhere. Not thread-safe. A method that raises
    a report (such as ``Gap``) has moved nothing.
    """

    def __init__(self, core: QueueCore, damage: DamagePolicy) -> None:
        self._core = core
        self._damage: DamagePolicy = damage
        self._reader: LogReader | None = None
        self._ready: Iterator[Message] = iter(())
        self._peeked: Message | None = None
        self._near: list[Message] = []

    def peek(self, next_seq: int) -> Message | None:
        """The message ``next_seq``, or the first readable one after it; the same one until it is ``taken``."""
        message = self._peeked
        if message is None:
            try:
                message = self._peeked = next(self._ready, None) or self._refill(next_seq)
            except BaseException:  # an interrupt after ``next``: that message would be passed over
                self.close()
                raise
        return message

    def taken(self, message: Message) -> None:
        """Continue after this message if it is the one that was peeked."""
        if message is self._peeked:
            self._peeked = None

    def read_ahead(self, next_seq: int, count: int) -> list[Message]:
        """Up to ``count`` consecutive messages from ``next_seq`` on that are in memory; none while one is peeked.
        Continues after them. Call ``close`` if they cannot be handed out.
        """
        if self._peeked is not None:
            return []
        try:
            messages = list(islice(self._ready, count))
        except BaseException:
            self.close()
            raise
        if messages and messages[-1][0] != next_seq + len(messages) - 1:
            self._ready = chain(messages, self._ready)
            return []
        return messages

    def _refill(self, next_seq: int) -> Message | None:
        """Read on; after an error the next call begins at the first message that was not taken."""
        try:
            reader = self._reader
            if reader is None:
                reader = self._reader = self._core.reader(seq=next_seq, damage=self._damage)
            parts = reader.read_message_parts()
            if parts is None:
                return None
            self._ready = chain.from_iterable(parts)
            return next(self._ready, None)
        except BaseException:
            self.close()
            raise

    def fetch(self, seq: int) -> Message | None:
        """One message from anywhere; None if it is lost and the policy continues."""
        # Returned messages were mostly appended together: read a batch once.
        near = self._near
        index = seq - near[0].seq if near else -1
        if not 0 <= index < len(near) or near[index].seq != seq:
            reader = self._core.reader(seq=seq, damage=self._damage)
            try:
                near = self._near = reader.read_near() or []
            finally:
                reader.close()
            index = 0
            if not near or near[0].seq != seq:
                return None  # a loss was reported, or the message was never durable
        return near[index]

    def close(self) -> None:
        """Close the reader and forget what was read ahead."""
        self._ready = iter(())
        self._peeked = None
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


TAKE, DONE = int(CommandKind.TAKE), int(CommandKind.DONE)
CURSOR_EVERY = 256
"""Acknowledgements between two writes of the cursor, which only retention and a lost log need."""
STARTED_MAX = 1_000_000
DELIVERIES_MAX = 1 << 31
LEASE_S_MAX = DELAY_S_MAX


class _Resources:
    """The files of a work queue, and how to close them without it. Jobs then come back when their leases end."""

    def __init__(self, pages: PageDirectory, lock_file: int, source: WorkSource) -> None:
        self.pages = pages
        self.lock_file = lock_file
        self.source = source
        self.cursor: CursorFile | None = None
        self.log: WorkLog | None = None
        self.dead: QueueCore | None = None

    def release(self) -> None:
        with ExitStack() as closing:
            closing.callback(self.pages.port.unlock, self.lock_file)
            for opened in (self.cursor, self.dead, self.log, self.source):
                if opened is not None:
                    closing.callback(opened.close)


class WorkQueue(WithBlock):
    """Jobs for any number of threads. Made by ``Queue.work_queue``, which describes the arguments. Thread-safe.

    Every method raises ``Closed`` in a forked child, and after a close, a failed sync or an interrupt inside a step. It
    raises ``Unavailable`` when the file system refuses a step; that step was not done.
    """

    _by_seq = False
    """Whether the due job with the lowest number is next, not the one that is due for longest."""

    def __init__(
        self,
        core: QueueCore,
        name: str,
        *,
        ack_wait: float,
        max_deliveries: int,
        retry_delay: float,
        max_retry_delay: float,
        max_started: int,
        since: Since,
        damage: DamagePolicy,
        hold: bool,
    ) -> None:
        self.name = name
        self._core = core
        pages = self._pages = core.pages
        self._damage: DamagePolicy = damage
        self._hold = hold
        self._job = class_with_value(Job, core.serializer)
        self._clock = WorkClock(core.clock)
        self._ack_wait_ns = seconds_ns("ack_wait", ack_wait)
        self._retry_delay_ns = seconds_ns("retry_delay", retry_delay)
        self._max_retry_delay_ns = seconds_ns("max_retry_delay", max_retry_delay)
        self._max_deliveries = whole_number("max_deliveries", max_deliveries, 1, DELIVERIES_MAX)
        self._max_started = whole_number("max_started", max_started, 1, STARTED_MAX)
        check_damage_policy(damage)
        self._lock = threading.Lock()
        self._synced = core.syncs_always
        self._closed: HoldfastError | None = None
        self._released = False
        self._waiters: list[Waiter] = []
        self._source = WorkSource(core, damage)
        self._letters: dict[int, int] = {}  # messages that have a letter, and its number: BURY is written or owed
        self._until_cursor = CURSOR_EVERY
        resources = self._resources = _Resources(pages, lock_name(pages, name, of_work_queue=True), self._source)
        try:
            self._open(resources, since)
        except BaseException:
            with suppress(HoldfastError):  # the first error is raised
                resources.release()
            raise
        poison_in_children(self)
        core.soundness.tell(self._break_off)
        self._keep = core.close_when_dropped(self, "the work queue", resources.release)

    def _open(self, resources: _Resources, since: Since) -> None:
        core = self._core
        resources.cursor = self._cursor = CursorFile(self._pages, self.name)
        cursor = self._cursor.stored
        if cursor is not None and not cursor.of_work_queue:
            raise InvalidRequest("this name is a consumer's", name=self.name)
        commands = core.sibling(f"{self.name}.work", page_size=LOG_PAGE_BYTES, clock=self._clock)
        resources.log = self._log = WorkLog(commands, synced=self._synced)
        self._machine = find_state(core, self.name, self._log, self._clock, cursor, since=since, damage=self._damage)
        # Before the first job: lost power could take the hold, and retention unfinished messages.
        self._note_cursor(durable=True)

    # ---- getting ----------------------------------------------------------------------------------------------------

    def get(self, timeout: float | None = None) -> Job | None:
        """The next job, or None after ``timeout`` seconds without one (None: waits; 0: looks).

        Due jobs come first, then new ones in order. The worker has it for ``ack_wait`` seconds, or as ``extend`` says.
        While ``max_started`` messages are started, new ones wait. *Raises*: ``Gap`` and ``Trimmed`` by the policy;
        nothing has moved then. *Cost*: a few microseconds; one shared sync at "always"; 0.1 ms to 1 ms for a returned
        job.
        """
        with self._lock:
            job, written = self._take(), self._log.written
        if job is None and timeout != 0:
            job, written = self._take_later(timeout)
        if job is not None and self._synced:
            self._log.wait(written)
        return job

    def get_many(self, max_jobs: int, timeout: float | None = 0.0) -> list[Job]:
        """As ``get``, up to ``max_jobs`` that are there now; waits only for the first.

        *Raises*: as ``get``, but not once it has a job. *Cost*: one ``get``, and about a microsecond for each further
        new job. *After a crash* inside it, the first few were taken, or none.
        """
        whole_number("max_jobs", max_jobs, 1, DELIVERIES_MAX)
        first, written = self._take_later(timeout)
        if first is None:
            return []
        jobs = [first]
        job: Job | None = first
        with self._lock:
            try:
                while job is not None and len(jobs) < max_jobs:
                    # After a new job there are only new ones: due jobs go first.
                    more = self._take_read_ahead(max_jobs - len(jobs)) if job.deliveries == 1 else []
                    job = more[-1] if more else self._take()
                    jobs += more or ([job] if job else [])
            except HoldfastError:
                # Jobs that were taken belong to their worker, whatever error follows.
                if self._closed is not None:
                    raise
            written = max(written, self._log.written)
        self._log.wait(written)
        return jobs

    def _take_later(self, timeout: float | None) -> tuple[Job | None, int]:
        """Wait for a job. Returns it and the command to wait for."""
        waiter = self._core.waiter()
        until = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            self._waiters.append(waiter)
        try:
            while True:
                if timeout != 0:
                    waiter.arm()
                with self._lock:
                    job, written = self._take(), self._log.written
                    due_ns = self._machine.next_due_ns()
                limit_s = None if until is None else until - time.monotonic()
                if job is not None or (limit_s is not None and limit_s <= 0):
                    return job, written
                if due_ns is not None:
                    due_s = max(0.0, (due_ns - self._clock()) / NS)
                    limit_s = due_s if limit_s is None else min(limit_s, due_s)
                waiter.wait(limit_s)
        finally:
            waiter.disarm()
            with self._lock:
                self._waiters.remove(waiter)

    def _take(self) -> Job | None:
        """The next job, written as taken. Call with the lock held."""
        self._raise_if_closed()
        machine, log = self._machine, self._log
        now_ns = self._clock()
        with refusals:
            may_be_due = machine.ready or (machine.dues and machine.dues[0][0] <= now_ns)
            message = self._next_due(now_ns) if may_be_due else None
            if message is None and len(machine.started) < self._max_started:
                message = self._next_new()
        if message is None:
            if self._until_cursor < CURSOR_EVERY:
                self._note_cursor()
            return None
        seq, time_ns, payload = message
        ends_ns = now_ns + self._ack_wait_ns
        log.record(encode_one(TAKE, ends_ns, seq))
        # Forget the message only after the command is written.
        self._source.taken(message)
        try:
            job = self._job((seq, time_ns, payload, machine.take(seq, ends_ns)))
        except AssertionError as error:
            self._core.soundness.break_off(error)
        log.in_step = False
        if log.left < 0:
            log.keep_short(machine)
        return job

    def _take_read_ahead(self, count: int) -> list[Job]:
        """Up to ``count`` new jobs from memory, by one command: all or none. Call with the lock held."""
        machine = self._machine
        count = min(count, COMMAND_NUMBERS_MAX, self._max_started - len(machine.started))
        try:
            messages = self._source.read_ahead(machine.next_seq, max(0, count))
            if messages:
                self._do(CommandKind.TAKE, self._clock() + self._ack_wait_ns, *[message[0] for message in messages])
        except BaseException:
            self._source.close()  # it reads on from the first one that was not taken
            raise
        return [self._job((seq, time_ns, payload, 1)) for seq, time_ns, payload in messages]

    def _next_new(self) -> Message | None:
        """The next message that was never handed out; the same one until it is taken."""
        source, next_seq = self._source, self._machine.next_seq
        message = source.peek(next_seq)
        if message is None:
            return None
        if message[0] > next_seq:
            self._do(CommandKind.SKIP, 0, next_seq, message[0] - 1)
        return message

    def _next_due(self, now_ns: int) -> Message | None:
        """The first due message that may be handed out again; gives up those that may not."""
        machine = self._machine
        first_due = machine.oldest_due if self._by_seq else machine.due
        while (seq := first_due(now_ns)) is not None:
            _, deliveries, leased = machine.started[seq]
            message = self._source.fetch(seq)
            if message is None:
                self._do(CommandKind.SKIP, 0, seq, seq)
            elif deliveries < self._max_deliveries:
                return message
            else:
                how = "its last lease ended" if leased else "it was given back"
                self._bury(message, deliveries, f"delivered {deliveries} times: {how}")
        return None

    # ---- finishing --------------------------------------------------------------------------------------------------

    def ack(self, job: Job) -> None:
        """This job is done and never comes back.

        *Raises*: ``Fenced`` (lease_lost) when its lease ended and another worker got it, or it was finished before.
        *Cost*: about two microseconds; one shared sync at "always".
        """
        with self._lock:
            seq = job[0]
            if self._closed is not None or self._log.in_step or not self._machine.is_leased(seq, job.deliveries):
                self._owned((job,))
            self._log.record(encode_one(DONE, 0, seq))
            try:
                self._machine.finish(seq)
            except AssertionError as error:
                self._core.soundness.break_off(error)
            self._log.in_step = False
            written, waiters = self._log.written, self._finished(1)
        if self._synced:
            self._log.wait(written)
        for waiter in waiters:
            waiter.wake()

    def ack_many(self, jobs: Sequence[Job]) -> None:
        """As ``ack``, all or none of them, in one command. *Raises*: also ``InvalidRequest`` for none."""
        with self._lock:
            seqs = self._owned(jobs)
            written = self._do(CommandKind.DONE, 0, *seqs)
            waiters = self._finished(len(seqs))
        self._log.wait(written)
        for waiter in waiters:
            waiter.wake()

    def _finished(self, count: int) -> Sequence[Waiter]:
        """After acknowledgements: do due work. Returns the workers that waited for room."""
        self._until_cursor -= count
        if self._until_cursor <= 0:
            self._note_cursor()
        if self._log.left < 0:
            self._log.keep_short(self._machine)
        return self._waiters.copy() if len(self._machine.started) + count >= self._max_started else ()

    def nack(self, job: Job, *, delay: float = 0.0, reason: str = "") -> None:
        """Return this job: it comes again after ``delay`` seconds, or is a dead letter after ``max_deliveries``.
        *Raises*: as ``ack``; ``InvalidRequest`` for a delay below zero or above ten years, or a reason that is not
        text.
        """
        self._give_back(job, seconds_ns("delay", delay), reason)

    def retry(self, job: Job, *, reason: str = "") -> None:
        """As ``nack`` with a delay that doubles, from ``retry_delay`` up to ``max_retry_delay``."""
        doubled = self._retry_delay_ns << min(job.deliveries - 1, 62)
        self._give_back(job, min(doubled, self._max_retry_delay_ns), reason)

    def _give_back(self, job: Job, delay_ns: int, reason: str) -> None:
        check_reason(reason)
        with self._lock:
            (seq,) = self._owned((job,))
            if job.deliveries >= self._max_deliveries:
                written = self._bury(
                    job, job.deliveries, reason or f"delivered {job.deliveries} times: it was given back"
                )
            else:
                written = self._do(CommandKind.RETURN, self._clock() + delay_ns, seq)
            waiters = list(self._waiters)
        self._log.wait(written)
        for waiter in waiters:
            waiter.wake()

    def extend(self, job: Job, ack_wait: float | None = None) -> None:
        """Keep this job for ``ack_wait`` seconds from now, by default the work queue's. *Raises*: as ``ack``."""
        extension_ns = self._ack_wait_ns if ack_wait is None else seconds_ns("ack_wait", ack_wait)
        with self._lock:
            (seq,) = self._owned((job,))
            written = self._do(CommandKind.EXTEND, self._clock() + extension_ns, seq)
        self._log.wait(written)

    def dead_letter(self, job: Job, reason: str = "given up") -> None:
        """Give this job up now: it goes to the dead letters. *Raises*: as ``ack``. *Cost*: a data sync."""
        check_reason(reason)
        with self._lock:
            self._owned((job,))
            written = self._bury(job, job.deliveries, reason)
        self._log.wait(written)

    def dead_letters(self) -> Iterator[DeadLetter]:
        """The dead letters, oldest first: the messages of the queue ``<prefix>-<name>-dead``."""
        try:
            dead = self._core.sibling(f"{self.name}-dead", read_only=True)
        except NotFound:
            return
        with dead:
            for message in dead.read():
                yield DeadLetter.decode(message.payload, self._core.serializer)

    def _owned(self, jobs: Sequence[Job]) -> list[int]:
        """The messages of jobs that their workers still have. Call with the lock held."""
        self._raise_if_closed()
        if not jobs:
            raise InvalidRequest("no jobs")
        for job in jobs:
            if not self._machine.is_leased(job[0], job.deliveries):
                raise Fenced(
                    "this job is not yours any more",
                    code=Code.LEASE_LOST,
                    hint="its lease ended or it was finished: a longer ack_wait, or extend()",
                    facts={"seq": job.seq, "deliveries": job.deliveries},
                )
        return list(dict.fromkeys(job[0] for job in jobs))

    def _bury(self, message: Message, deliveries: int, reason: str) -> int:
        """Write the dead letter, unless an earlier try did; then BURY."""
        seq, started = message[0], self._machine.started
        letters = self._letters = {other: number for other, number in self._letters.items() if other in started}
        if self._resources.dead is None:
            self._resources.dead = self._core.sibling(f"{self.name}-dead", page_size=DEAD_PAGE_BYTES, sync="always")
        with self._log.step():
            if seq not in letters:
                letter = DeadLetter(seq, message[1], message[2], deliveries=deliveries, reason=reason)
                letters[seq] = self._resources.dead.append(letter.encode())
            # An opening looks after this number: no letter whose BURY is owed may be before it.
            owed = [number - 1 for other, number in letters.items() if other != seq]
            return self._do(CommandKind.BURY, 0, seq, min([self._resources.dead.last_seq, *owed]))

    def _do(self, kind: CommandKind, time_ns: int, *numbers: int) -> int:
        """Write a command, then apply it. Call with the lock held."""
        self._log.record(encode_command(kind, time_ns, *numbers))
        try:
            self._machine.apply(kind, time_ns, numbers)
        except AssertionError as error:
            self._core.soundness.break_off(error)
        self._log.in_step = False
        if self._log.left < 0:
            self._log.keep_short(self._machine)
        return self._log.written

    @property
    def started(self) -> int:
        """Messages that were handed out and are not finished: leased, or waiting for their delay."""
        with self._lock:
            return len(self._machine.started)

    def lag(self) -> int:
        """Messages that are not finished. *Cost*: as ``Consumer.lag``."""
        with self._lock:
            self._raise_if_closed()
            first = max(self._machine.next_seq, self._core.first_seq)
            return max(0, self._core.last_seq - first + 1) + len(self._machine.started)

    def _note_cursor(self, *, durable: bool = False) -> None:
        """Write the cursor for retention. Call with the lock held."""
        machine = self._machine
        # The step counts also if this fails: finished messages only stay longer.
        with nullcontext() if durable else suppress(OSError):
            self._cursor.write(encode_cursor(machine.committed_seq(), of_work_queue=True, holds=self._hold))
        if durable:
            self._cursor.sync()
        self._until_cursor = CURSOR_EVERY
        if self._core.writable:
            self._core.space.confirmed()

    def _raise_if_closed(self) -> None:
        """Call with the lock held."""
        if self._closed is not None:
            raise self._closed.with_traceback(None)  # else it would keep the frames of every caller
        if self._log.in_step:
            raise Closed("a step was interrupted", name=self.name, hint="close the work queue and open it again")

    def _return_leased(self, due_ns: int, keep: Collection[int] = ()) -> None:
        """Call with the lock held."""
        leased = [seq for seq in self._machine.leased() if seq not in keep]
        for first in range(0, len(leased), COMMAND_NUMBERS_MAX):
            self._do(CommandKind.RETURN, due_ns, *leased[first : first + COMMAND_NUMBERS_MAX])

    def close(self) -> None:
        """Return the jobs of workers, make everything durable, release the name. Closing twice is harmless.

        Returned jobs are available at the next opening; their deliveries count. *Raises*: ``Closed`` when a sync has
        failed; ``Unavailable`` as ``Queue.close``; the files are always released.
        """
        with self._lock:
            if self._released:
                return
            self._released = True
            if self._core.soundness.broken is not None:
                self._release()
                self._core.soundness.require()
            self._closed = Closed("the work queue is closed", name=self.name)
            waiters = list(self._waiters)
            try:
                if not self._log.in_step:  # an interrupted step is for the next opening to find out
                    self._return_leased(self._clock())
                    self._note_cursor()
            finally:
                self._release()
        for waiter in waiters:
            waiter.wake()

    def _release(self) -> None:
        self._keep()
        self._resources.release()
        self._core.forget(self)

    def _break_off(self, reason: InternalError) -> None:
        """Refuse everything from now on: an invariant is broken. Touches no file."""
        self._closed = reason
        for waiter in tuple(self._waiters):
            waiter.wake()

    def _poison_after_fork(self) -> None:
        """In a forked child: release the lock, which is the parent's, and refuse everything."""
        self._lock = threading.Lock()
        if not self._released:
            self._released = True
            self._keep()
            self._pages.port.close(self._resources.lock_file)
            self._closed = forked("use its parent's work queue")
