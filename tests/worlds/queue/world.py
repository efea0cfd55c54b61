"""A world of the queue's log: it is written, read, killed and cut off from power, and judged after every such moment.

A world has several lives of one queue, each ended by a clean close, a kill or a loss of power; the next life begins
with what that leaves. Before every operation that changes a file, in the middle of every write and after every call of
a method, an image is taken of what a crash at that moment leaves. On every image the queue is opened, judged, written
to and read again. On some, the recovery itself crashes at each of its operations, and must end where it would have
ended.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any, Final

from tests.worlds.harness import PromiseBroken, WorldReport
from tests.worlds.queue.damage import check_damaged, check_seals
from tests.worlds.queue.files import DIRECTORY, PATH, PREFIX, CrashFiles, QueueWorld
from tests.worlds.queue.ledger import Ledger, check_reading
from tests.worlds.queue.shape import FIRST_PAGE_BYTES, FRAME_BYTES, Shape, draw_shape

from holdfast.errors import Backpressure, Closed, HoldfastError, Unavailable
from holdfast.queue import Gap, Message, Queue, Trimmed
from holdfast.queue.format.frame import HEAD_BYTES as FRAME_HEAD_BYTES
from holdfast.queue.format.frame import SEAL_BYTES, batch_body, compress_body
from holdfast.queue.format.page import HEADER_BYTES
from holdfast.queue.queue import core_of
from holdfast.queue.stores_log import StoresLog

__all__ = ["World", "run_world"]

HEAD_BYTES: Final = 24
HOUR_NS: Final = 3_600_000_000_000
DERIVED_SUFFIXES: Final = (".idx", "Meta", ".lock")


def run_world(seed: int, **focus: object) -> WorldReport:
    """Run one world to its end. ``focus`` replaces fields of its ``Shape``, to look where something is expected.

    Raises: ``PromiseBroken``, or whatever the queue raises that it should not.
    """
    return World(seed, **focus).run()


class GrowingLog(StoresLog):
    """The log with a small first page, so that a few kilobytes reach the configured size."""

    _first_page_bytes = FIRST_PAGE_BYTES


class LogQueue(Queue):
    """A program's queue over the log of stores."""

    _core_class = StoresLog


class GrowingQueue(Queue):
    """The same, with a small first page."""

    _core_class = GrowingLog


class World(QueueWorld):
    """See the module. ``seen`` counts what happened."""

    def __init__(self, seed: int, **focus: Any) -> None:
        super().__init__(seed, Random(seed))
        self.shape: Shape = replace(draw_shape(self.random, Random(f"growth/{seed}")), **focus)
        self.ledger = Ledger()
        self.now_ns = 1_700_000_000_000_000_000
        self.latest_ns = self.now_ns
        self.serial = 0
        self.frame_pages: set[int] = set()
        self.files = CrashFiles(Random(self.random.random()), seen=self.seen)
        self._queue: Queue | None = None
        self._lives_lived = 0
        self._unrepaired = False  # power was lost, and no start has come to its end since
        # A sync has failed, and the mark does not say so yet, or could not: what was not durable may be damaged.
        self._doubt = self._poison_refused = False
        self._older: dict[str, bytes] = {}
        if self.shape.stale:
            self.files.graveyard = self._earlier_life()

    # ---- what a queue is given --------------------------------------------------------------------------------------

    def clock(self) -> int:
        """The world's wall clock: often stands still, mostly goes on."""
        if self.random.random() < 0.5:
            self.now_ns += self.random.choice((1000, 1000, 50_000, 1_000_000_000))
        self.latest_ns = max(self.latest_ns, self.now_ns)
        return self.now_ns

    def entropy(self, count: int) -> bytes:
        """Salts and identifiers."""
        return self.random.randbytes(count)

    def open(self, files: CrashFiles) -> Queue:
        """A writer on these files."""
        shape = self.shape
        return (GrowingQueue if shape.grows else LogQueue)(
            PATH,
            page_size=shape.page_bytes,
            sync=shape.sync,
            lifetime=None if shape.lifetime_ns is None else timedelta(microseconds=shape.lifetime_ns // 1000),
            max_bytes=shape.max_bytes,
            keep=shape.keep,
            compression=shape.compression,
            files=files,
            clock=self.clock,
            entropy=self.entropy,
            background=False,
        )

    def payload(self, size: int | None = None) -> bytes:
        """A message like no other."""
        self.serial += 1
        head = b"%d/%d:" % (self.seed, self.serial)
        if self.shape.uniform:
            size = FRAME_BYTES - HEAD_BYTES
            return (head + self.random.randbytes(size).hex().encode())[:size]
        if size is None:
            size = self.random.choice((0, 1, 30, 90, 90, 200, 488, 700, 1500))
        return (head + self.random.randbytes(8).hex().encode() * (size // 16 + 1))[:size] if size >= 16 else head

    def _earlier_life(self) -> dict[str, bytes]:
        """What the disk held before: pages of a queue of the same name, whose clock was ahead, removed since."""
        files = CrashFiles(Random(self.random.random()))
        self.now_ns += 24 * HOUR_NS
        with self.open(files) as queue:
            for _ in range(200):
                queue.append(self.payload())
        self.now_ns -= 48 * HOUR_NS
        return files.contents(DIRECTORY)

    # ---- lives ------------------------------------------------------------------------------------------------------

    def run(self) -> WorldReport:
        """Live every life; raises ``PromiseBroken``."""
        for _ in range(self.shape.lives):
            queue = self._begin_or_hear_of_the_loss()
            if queue is None:
                break
            self._live(queue)
            self.digest_files()
        return self.report()

    def _begin_or_hear_of_the_loss(self) -> Queue | None:
        """None where the world ends: a sync has failed, and so has the mark that was to say so.

        The next start cannot know then that the cache shows what no sync will ever write. The appender got
        ``Closed``; what later starts call durable is not, until the machine has been restarted.
        """
        in_doubt, restarted = self._doubt, self._unrepaired
        try:
            queue = self._begin()
        except Gap:
            if not in_doubt:
                raise
            self.seen["loss by a failed sync reported"] += 1
            return None
        if in_doubt and not restarted:
            self.seen["failed sync with a refused mark"] += 1
            return None
        return queue

    def _live(self, queue: Queue) -> None:
        self._queue = queue
        poisoned = False
        for _ in range(self.shape.steps):
            try:
                self._act(queue)
            except Closed:
                # A sync has failed. What was accepted since the last good one is in doubt, also for a reader.
                self.seen["poisoned"] += 1
                poisoned = True
                break
            finally:
                self._doubt = self._doubt and self._poison_refused
            self.ledger.durable = max(self.ledger.durable, queue.durable_seq)
            self._crash_point("between calls")
        self._end(queue, poisoned=poisoned)

    def _begin(self) -> Queue:
        """Open, with a crash at every operation; then take what was found as the truth."""
        files, ledger = self.files, self.ledger
        self.seen["opened"] += 1
        files.before, files.refuse = self._crash_point, self._refuse
        try:
            queue = self.open(files)
        except (OSError, HoldfastError):
            self.seen["opening refused"] += 1
            files.refuse = None
            queue = self.open(files)
        with files.quiet():
            messages = list(queue.read())
            first = messages[0].seq if messages else queue.first_seq
            ledger.check(messages, first, queue.last_seq, floor=ledger.durable)
            self._check_pages(queue)
        self._doubt = self._unrepaired = False
        ledger.recovered(queue.last_seq)
        ledger.accepted = queue.last_seq
        ledger.durable = max(ledger.durable, queue.durable_seq)
        return queue

    def _end(self, queue: Queue, *, poisoned: bool) -> None:
        files, random = self.files, self.random
        how = random.choice(("clean close", "kill", "kill", "power loss", "power loss"))
        if how == "clean close":
            try:
                queue.close()
            except HoldfastError as error:
                if not poisoned and not isinstance(error, Closed | Unavailable):
                    raise
                how = "close refused"
            except OSError:
                how = "close refused"
            else:
                self.ledger.durable = self.ledger.accepted = len(self.ledger.payloads)
                self._end_of_a_clean_close(files)
                if files.open_handles:
                    raise PromiseBroken(f"a closed queue holds {files.open_handles} handles")
        self.seen[how] += 1
        self._queue = None
        self._doubt = self._doubt and self._poison_refused
        self._lives_lived += 1
        files.before = files.refuse = None
        after = Random(random.random())
        self.files = files.after_power_loss(after) if how == "power loss" else files.after_kill(after)
        if how == "power loss":
            self.ledger.accepted = self.ledger.durable
            self._unrepaired = True
        with suppress(HoldfastError, OSError):
            queue.close()  # of the old world, whose files are gone
        self._damage(how)

    def _end_of_a_clean_close(self, files: CrashFiles) -> None:
        """SEALs, where no crash has taken one."""
        with files.quiet():
            if self._lives_lived == 0:
                check_seals(files, DIRECTORY, PREFIX)

    def _damage(self, how: str) -> None:
        """Media damage, on copies of what this life has left."""
        rounds = self.shape.damage_rounds
        if how != "clean close":
            rounds = min(rounds, 5)
        if not (self._doubt or (self._unrepaired and self.shape.stale)):
            self.states += check_damaged(
                self.files,
                self._older,
                [*self.ledger.payloads, *self.ledger.pending],
                self._open_without_retention,
                Random(self.random.random()),
                rounds,
                self.seen,
            )
        self._older = self.files.contents(DIRECTORY)

    def _open_without_retention(self, files: CrashFiles) -> Queue:
        return GrowingQueue(
            PATH,
            page_size=self.shape.page_bytes,
            files=files,
            clock=self.clock,
            entropy=self.entropy,
            background=False,
        )

    # ---- acts -------------------------------------------------------------------------------------------------------

    def _act(self, queue: Queue) -> None:
        act = self.random.choice((
            self._append, self._append, self._append, self._append, self._append_many, self._append_many,
            self._flush, self._background_work, self._background_work, self._clock_jump, self._read,
        ))  # fmt: skip
        self.files.now_ns = self.now_ns
        self._allow_retention()
        act(queue)

    def _others_append(self) -> None:
        """Another thread appends while a sync is under way, where it needs neither a sync nor room."""
        queue, ledger, shape = self._queue, self.ledger, self.shape
        self.files.during_sync = None
        if shape.sync != "os" or shape.max_bytes is not None or queue is None:
            return
        while self.random.random() < shape.crowd:
            if sum(map(len, ledger.payloads[ledger.durable :])) > 2 * shape.grown_bytes(1):
                return  # a few pages more, and an append waits for this sync
            self._append(queue)
            self.seen["append during a sync"] += 1

    def _append(self, queue: Queue) -> None:
        size = self.random.randint(4500, 14_000) if not self.shape.uniform and self.random.random() < 0.06 else None
        if size is not None:
            self.seen["jumbo"] += 1
        self._put(queue, [self.payload(size)], frame=True)

    def _append_many(self, queue: Queue) -> None:
        count = self.random.choice((1, 2, 3, 8, 20))
        if self.shape.uniform:
            for _ in range(2 * count):
                self._put(queue, [self.payload()], frame=True)
            return
        self._put(queue, [self.payload() for _ in range(count)], frame=True)

    def _put(self, queue: Queue, payloads: list[bytes], *, frame: bool) -> None:
        ledger = self.ledger
        arrival_ns = self.now_ns  # the clock does not go back while this runs
        ledger.begin(payloads, arrival_ns, frame=frame)
        self._note_frame(payloads)
        self._allow_retention()
        try:
            if len(payloads) == 1 and (self.shape.uniform or self.random.random() < 0.9):
                first = last = queue.append(payloads[0])
            else:
                first, last = queue.append_many(payloads, atomic=self.random.random() < 0.3)
        except (Unavailable, Backpressure) as error:
            appended = error.fields.get("appended", 0)
            assert isinstance(appended, int), "the count of messages is a number"
            self.seen["append refused"] += 1
            ledger.refused(appended)
            return
        ledger.appended(first, last)

    def _allow_retention(self) -> None:
        """Any page but the newest may go for its size; for its age, those that are old by the clock."""
        ledger, shape = self.ledger, self.shape
        if shape.max_bytes is not None:
            ledger.trimmed_max = len(ledger.payloads) + len(ledger.pending)
        elif shape.lifetime_ns is not None:
            arrivals = ledger.arrivals
            while (
                ledger.trimmed_max < len(arrivals) and self.latest_ns - arrivals[ledger.trimmed_max] > shape.lifetime_ns
            ):
                ledger.trimmed_max += 1

    def _flush(self, queue: Queue) -> None:
        log = core_of(queue)
        assert isinstance(log, StoresLog), "the world opens it"
        wanted = len(self.ledger.payloads)
        self.files.during_sync = self._others_append
        try:
            if wanted % 3:
                queue.flush()
            else:
                log.flush_data()
                if wanted % 2:
                    log.record_position()
        except Unavailable:
            self.seen["flush refused"] += 1
            return
        finally:
            self.files.during_sync = None
        self.ledger.durable, self.ledger.accepted = wanted, max(wanted, self.ledger.accepted)
        self.seen["flushed"] += 1

    def _background_work(self, queue: Queue) -> None:
        self._allow_retention()
        try:
            core_of(queue).run_background_work()
        except Closed:
            raise
        except (OSError, HoldfastError):
            self.seen["background work refused"] += 1

    def _clock_jump(self, queue: Queue) -> None:
        hours = self.random.choice((-1000, -5, 5, 1000))
        self.seen["clock back" if hours < 0 else "clock ahead"] += 1
        self.now_ns += hours * HOUR_NS
        self.latest_ns = max(self.latest_ns, self.now_ns)

    def _read(self, queue: Queue) -> None:
        """In the writer's process, and in another one, which sees the same files and holds no lock."""
        with self.files.quiet():
            messages = list(queue.read())
            self._check_live(messages)
            check_reading(queue, self.ledger, messages, messages[-1].seq if messages else 0, self.random)
            if self.ledger.accepted:
                self._read_from_elsewhere()
        self.seen["read"] += 1

    def _read_from_elsewhere(self) -> None:
        with Queue(PATH, files=self.files, read_only=True) as other:
            self._check_live(list(other.read()))
        self.seen["read from another process"] += 1

    def _check_live(self, messages: list[Message]) -> None:
        ledger = self.ledger
        if not messages and ledger.accepted <= ledger.trimmed_max:
            return
        first, last = (messages[0].seq, messages[-1].seq) if messages else (1, 0)
        ledger.check(messages, first, last, floor=min(ledger.accepted, len(ledger.payloads)))

    def _refuse(self, operation: str, name: str) -> OSError | None:
        if self.random.random() >= self.shape.fault_rate:
            return None
        self.seen[f"{operation} refused"] += 1
        if operation in ("sync", "sync directory"):
            self.ledger.accepted = self.ledger.durable
            self._doubt, self._poison_refused = True, False
            return OSError(errno.EIO, f"{operation} {name}")
        self._poison_refused = self._doubt and name.endswith("writeMeta")
        return OSError(self.random.choice((errno.ENOSPC, errno.EIO)), f"{operation} {name}")

    # ---- crash points -----------------------------------------------------------------------------------------------

    def _crash_point(self, operation: str) -> None:
        """Take an image of what a crash now leaves, and judge it."""
        files, random = self.files, self.random
        self.seen[f"crash before {operation}" if operation != "half a write" else "crash in a write"] += 1
        killed = random.random() < 0.3
        if self._queue is not None:
            self.ledger.durable = max(self.ledger.durable, self._queue.durable_seq)
        with files.quiet():
            image_random = Random(random.random())
            image = files.after_kill(image_random) if killed else files.after_power_loss(image_random)
        try:
            self._judge(image, self.ledger, floor=self.ledger.accepted if killed else self.ledger.durable)
        except Gap:
            if not (killed and self._doubt):
                raise
            self.seen["loss by a failed sync reported"] += 1

    def _judge(self, image: CrashFiles, ledger: Ledger, *, floor: int) -> None:
        """Open the image, hold it to the promises, write on, and sometimes lose power once more."""
        self.states += 1
        random = self.random
        saved_ns = self.now_ns
        during: list[CrashFiles] = []
        if random.random() < 0.08:
            # What was killed is in doubt on disk until it is synced, so only a second kill has to find the same.
            crash = (
                image.after_power_loss if image.boot > self.files.boot and random.random() < 0.7 else image.after_kill
            )
            image.before = lambda _: during.append(crash(Random(random.random())))
        hintless = self._without_hints(image) if random.random() < 0.1 else None
        queue = self.open(image)
        image.before = None
        last_seq = self._check(queue, ledger, floor)
        for interrupted in during:
            self._judge_exactly(interrupted, ledger, last_seq, "a recovery that was interrupted")
            self.seen["crash in recovery"] += 1
        if hintless is not None:
            if image.boot > self.files.boot or self._unrepaired:
                self._judge_without_hints(hintless, ledger, last_seq)
            else:
                self._judge_exactly(hintless, ledger, last_seq, "I5: without index and metadata files, the log")
            self.seen["hints deleted"] += 1
        self._write_on(image, queue, ledger, last_seq)
        self.now_ns = saved_ns

    def _check(self, queue: Queue, ledger: Ledger, floor: int) -> int:
        messages = list(queue.read())
        last_seq = queue.last_seq
        for loss in core_of(queue).recovered:
            raise Gap(loss.first, loss.last, loss.page, loss.reason)
        ledger.check(messages, messages[0].seq if messages else queue.first_seq, last_seq, floor=floor)
        self._check_pages(queue)
        if self.random.random() < 0.15:
            found = ledger.copy()
            found.recovered(last_seq)
            check_reading(queue, found, messages, last_seq, self.random)
        return last_seq

    def _note_frame(self, payloads: list[bytes]) -> None:
        """A page may have the size that this frame needs."""
        body = batch_body(payloads)
        if self.shape.compression:
            body = compress_body(body, self.shape.compression)
        self.frame_pages.add(HEADER_BYTES + FRAME_HEAD_BYTES + sum(map(len, body)) + SEAL_BYTES)

    def _check_pages(self, queue: Queue) -> None:
        """The size of a page follows from its number, also over crashes, but for a page of one large frame."""
        shape, pages = self.shape, core_of(queue).pages
        for number in pages.numbers():
            header = pages.header_of(number)
            if header is None:
                continue  # its header was never synced
            grown = shape.grown_bytes(number)
            size = header.page_bytes
            if size != grown and (size < grown or size not in self.frame_pages):
                raise PromiseBroken(f"I7: page {number} has {size} bytes, not {grown}")
            self.seen["page grown"] += grown > shape.grown_bytes(1)

    def _judge_exactly(self, image: CrashFiles, ledger: Ledger, last_seq: int, what: str) -> None:
        self.states += 1
        queue = self.open(image)
        found = self._check(queue, ledger, 0)
        queue.close()
        if found != last_seq:
            raise PromiseBroken(f"I2: {what} ends at {found}, not at {last_seq}")

    def _judge_without_hints(self, image: CrashFiles, ledger: Ledger, last_seq: int) -> None:
        """Who takes the marks away after a loss of power gets at least what the marks would have left, and may get
        messages after the hole, which is reported."""
        self.states += 1
        with self.open(image) as queue:
            reports: list[Gap | Trimmed] = []
            messages = list(queue.read(damage=reports.append))
            ledger.check_reported(messages, reports, queue.first_seq, max(last_seq, queue.last_seq))
        self.seen["hole reported without marks"] += any(isinstance(report, Gap) for report in reports)

    def _without_hints(self, image: CrashFiles) -> CrashFiles:
        copy = image.after_kill(Random(self.random.random()))
        for name in copy.contents(DIRECTORY):
            if name.endswith(DERIVED_SUFFIXES):
                copy.set_content(DIRECTORY, name, None)
        return copy

    def _write_on(self, image: CrashFiles, queue: Queue, ledger: Ledger, last_seq: int) -> None:
        """Append what has the length of what was lost, the worst case; then all must be there, and stay."""
        then = ledger.copy()
        lost = [*then.payloads, *then.pending][last_seq : last_seq + 1]
        then.recovered(last_seq)
        then.durable = queue.durable_seq
        for _ in range(self.random.randint(1, 2)):
            then.begin([self.payload(len(lost[0]) if lost else None)], self.now_ns, frame=True)
            self._note_frame(then.pending)
            self._allow_retention_of(then)
            seq = queue.append(then.pending[0])
            then.appended(seq, seq)
        if self.random.random() < 0.3:
            queue.flush()
            then.durable = len(then.payloads)
        then.durable = max(then.durable, queue.durable_seq)
        if self.random.random() < 0.3:
            again = image.after_power_loss(Random(self.random.random()))
            self.states += 1
            self.seen["crash after a crash"] += 1
            successor = self.open(again)
            # Killed between a sync that failed and the mark that says so: the start after it believes the next sync.
            self._check(successor, then, 0 if self._doubt and image.boot == self.files.boot else then.durable)
            successor.close()
        queue.close()
        then.durable = len(then.payloads)
        with Queue(PATH, files=image, read_only=True) as reader:
            messages = list(reader.read())
            then.check(messages, messages[0].seq if messages else reader.first_seq, reader.last_seq, floor=then.durable)

    def _allow_retention_of(self, ledger: Ledger) -> None:
        if self.shape.max_bytes is not None:
            ledger.trimmed_max = max(ledger.trimmed_max, len(ledger.payloads))
