"""Worlds of a named consumer and a work queue that follow one queue, with crashes at any moment.

``PromiseBroken`` begins with the promise:

| promise | |
|---|---|
| C1 | a cursor is never ahead of what was committed: all at or below it was |
| C2 | a commit survives a kill, a durable one survives lost power |
| C3 | a consumer is handed everything above its cursor, once, in order |
| W1 | no message is lost: each one is finished, handed out again, or a dead letter |
| W2 | what was acknowledged never comes back: after a kill, and at "always" after lost power |
| W3 | what was given up is among the dead letters, once |
| R1 | retention removes only what both of them have done |

In a third of the worlds the queue has ``keep="consumed"``, and then also

| promise | |
|---|---|
| K1 | a page goes when all have committed it durably: both of them, and a visitor, a consumer that is seldom open |
| K2 | what all have committed goes with the next background work |
| K3 | reading what has gone raises ``Trimmed`` |

Messages are distinguished by their bytes, because a crash may give a number to another message.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from tests.worlds.harness import PromiseBroken, WorldReport
from tests.worlds.queue.files import PATH, CrashFiles, QueueWorld
from tests.worlds.queue.ledger import LOST, Ledger, never_durable
from tests.worlds.queue.shape import FIRST_PAGE_BYTES

from holdfast.errors import Backpressure
from holdfast.queue import Gap, Queue, Trimmed
from holdfast.queue.core import QueueCore
from holdfast.queue.files.cursors import committed_seqs
from holdfast.queue.queue import core_of

if TYPE_CHECKING:
    from holdfast.queue import Message
    from holdfast.queue.consumers.consumer import Consumer
    from holdfast.queue.work.work_queue import Job, WorkQueue

__all__ = ["FOLLOWER_KINDS", "run_followers"]

PAGE_BYTES: Final = 4096
SECOND_NS: Final = 1_000_000_000
DELIVERIES_MAX: Final = 3
ROUNDS_MAX: Final = 40
FOLLOWER_KINDS: Final = (
    *("committed", "committed durably", "acknowledged", "given back", "given up", "extended", "held", "page removed"),
    *("follower killed", "follower lost power", "appended before following"),
    *("visited", "consumed page removed", "read what has gone", "crash after consumed pages went"),
)


class Promised:
    """What was asked and what was answered, by payload. ``called`` may have happened; ``returned`` has."""

    def __init__(self) -> None:
        self.called: set[bytes] = set()
        self.returned: set[bytes] = set()
        self.durable: set[bytes] = set()

    def call(self, payloads: set[bytes], action: Callable[[], object], *, durable: bool) -> None:
        """Do something that finishes these."""
        self.called |= payloads
        action()
        self.returned |= payloads
        if durable:
            self.durable |= payloads

    def surviving(self, *, killed: bool) -> set[bytes]:
        """What a crash may not take."""
        return self.returned if killed else self.durable


class GrowingCore(QueueCore):
    """A queue with a small first page."""

    _first_page_bytes = FIRST_PAGE_BYTES


class GrowingQueue(Queue):
    """The same, for a program."""

    _core_class = GrowingCore


class FollowersWorld(QueueWorld):
    """See the module."""

    def __init__(self, seed: int, *, consumed: bool | None = None) -> None:
        super().__init__(seed, Random(f"followers/{seed}"))
        self.serial = 0
        self.now_ns = 1_700_000_000 * SECOND_NS
        self.sync = self.random.choice(("os", "os", "always"))
        self.max_bytes = self.random.choice((None, 4 * PAGE_BYTES))
        self.files = CrashFiles(Random(self.random.random()), seen=self.seen)
        self.ledger = Ledger()
        self.commits, self.acks, self.deaths = Promised(), Promised(), Promised()
        drawn = Random(f"keep/{seed}")  # of its own, so that a seed keeps the rest of its world
        self.keep = drawn.choice(("all", "all", "consumed"))
        self.page_bytes = PAGE_BYTES
        self.hold = True
        if consumed if consumed is not None else self.keep == "consumed":
            self.keep = "consumed"
            self.page_bytes = drawn.choice((FIRST_PAGE_BYTES, 8 * FIRST_PAGE_BYTES))
            self.max_bytes = drawn.choice((None, 4 * self.page_bytes))
            # Without it max_bytes removes what this consumer needs.
            self.hold = self.max_bytes is not None or drawn.random() < 0.5
        self.visits = Promised()
        self.visitor_exists = False
        self.found_seq = 0  # what the present life began with
        self.jobs: list[Job] = []
        self._power_lost = False

    # ---- the world --------------------------------------------------------------------------------------------------

    def run(self) -> WorldReport:
        """Live some lives; raises ``PromiseBroken``."""
        for _ in range(self.random.randint(1, 3)):
            self._live()
            self.digest_files()
        return self.report()

    def open(self, files: CrashFiles) -> Queue:
        """A writer on these files."""
        return GrowingQueue(
            PATH,
            page_size=self.page_bytes,
            sync=self.sync,
            max_bytes=self.max_bytes,
            keep=self.keep,
            full="raise",
            files=files,
            clock=self.clock,
            entropy=self.random.randbytes,
            background=False,
        )

    def follow(self, queue: Queue) -> tuple[Consumer, WorkQueue]:
        """Both of them, each from the beginning."""
        return queue.consumer("c", hold=self.hold), queue.work_queue("w", ack_wait=30, max_deliveries=DELIVERIES_MAX)

    def _live(self) -> None:
        self.files.before = self._crash_point
        queue = self.open(self.files)
        with self.files.quiet():
            self.ledger.recovered(queue.last_seq)
            reports: list[Gap | Trimmed] = []
            list(queue.read(damage=reports.append))
            self.ledger.forget(never_durable(reports))
        self.ledger.accepted = self.found_seq = queue.last_seq
        consumer, work = self.follow(queue)
        self.jobs = []
        for _ in range(self.random.randint(8, 40)):
            acts = [self._append, self._append, self._consume, self._work, self._work, self._upkeep]
            if self.keep == "consumed":
                acts += [self._append, self._consume, self._consume, self._visit, self._visit, self._work_much]
                acts += [self._work_much, self._upkeep, self._upkeep, self._upkeep]
            self.random.choice(acts)(queue, consumer, work)
            self.ledger.durable = max(self.ledger.durable, queue.durable_seq)
        self.seen["page removed"] += queue.first_seq > 1
        self._end(queue)

    def _end(self, queue: Queue) -> None:
        self.files.before = None
        how = self.random.choice(("close", "kill", "power loss"))
        if how == "close":
            queue.close()
            if self.files.open_handles:
                raise PromiseBroken(f"a closed queue and its followers hold {self.files.open_handles} handles")
            self.acks.durable |= self.acks.returned
            self.ledger.durable = self.ledger.accepted = len(self.ledger.payloads)
        self.files = self.after_crash(killed=how != "power loss")
        if how == "power loss":
            self.ledger.accepted = self.ledger.durable
            self._power_lost = True
            for promised in (self.commits, self.acks, self.deaths, self.visits):
                promised.returned = set(promised.durable)

    # ---- acts -------------------------------------------------------------------------------------------------------

    def _payload(self) -> bytes:
        self.serial += 1
        return b"%d/%d:" % (self.seed, self.serial) + b"x" * self.random.choice((0, 60, 300, 900, 1500))

    def _append(self, queue: Queue, consumer: Consumer, work: WorkQueue) -> None:
        payloads = [self._payload() for _ in range(self.random.choice((1, 1, 3, 6)))]
        self.ledger.begin(payloads, self.now_ns, frame=False)
        try:
            first, last = queue.append_many(payloads)
        except Backpressure as error:
            self.seen["held"] += 1
            appended = error.fields.get("appended", 0)
            self.ledger.refused(appended if isinstance(appended, int) else 0)
            return
        self.ledger.appended(first, last)

    def _consume(self, queue: Queue, consumer: Consumer, work: WorkQueue) -> None:
        found = consumer.poll(max_messages=self.random.choice((1, 5, 100)))
        if not found:
            return
        upto = self.random.randrange(len(found) + 1)
        if upto < len(found):
            done, durable = found[:upto], False
        else:
            done, durable = found, self.random.random() < 0.4
        if done:
            # A commit covers all before it: what was handed out earlier and not committed yet is done, too.
            until = done[-1].seq
            payloads = set(self.ledger.payloads[max(0, consumer.committed_seq) : until])
            self.commits.call(payloads, lambda: consumer.commit(until, durable=durable), durable=durable)
            if durable:
                self.commits.durable |= set(self.ledger.payloads[:until])
            self.seen["committed durably" if durable else "committed"] += 1
        if self.random.random() < 0.3:
            consumer.rewind()

    def _work(self, queue: Queue, consumer: Consumer, work: WorkQueue) -> None:
        self.jobs += work.get_many(self.random.choice((1, 2, 5)))
        self.random.shuffle(self.jobs)
        always = self.sync == "always"
        for _ in range(self.random.randrange(4)):
            if not self.jobs:
                return
            job = self.jobs.pop()
            payload = {job.payload}
            act = self.random.choice(("ack", "ack", "ack", "nack", "dead", "extend"))
            if act == "ack":
                self.acks.call(payload, partial(work.ack, job), durable=always)
                self.seen["acknowledged"] += 1
            elif act == "dead" or (act == "nack" and job.deliveries >= DELIVERIES_MAX):
                self.deaths.call(payload, partial(work.dead_letter, job), durable=True)
                self.seen["given up"] += 1
            elif act == "nack":
                work.nack(job, delay=self.random.choice((0.0, 5.0)))
                self.seen["given back"] += 1
            else:
                work.extend(job, 60)
                self.jobs.append(job)
                self.seen["extended"] += 1

    def _upkeep(self, queue: Queue, consumer: Consumer, work: WorkQueue) -> None:
        flushed = self.random.random() < 0.5
        if flushed:
            queue.flush()
            self.ledger.durable = self.ledger.accepted
        first_seq = queue.first_seq
        core_of(queue).run_background_work()
        if self.keep == "consumed":
            self.seen["consumed page removed"] += queue.first_seq > first_seq
            self._check_consumed(queue, durable_end=flushed and queue.last_seq > self.found_seq)

    def _visit(self, queue: Queue, consumer: Consumer, work: WorkQueue) -> None:
        """A third one that is open for a moment: it counts while it is not."""
        gone = set(self.ledger.payloads[: queue.first_seq - 1])
        with queue.consumer("visitor", hold=self.hold) as visitor:
            # A new one begins after what had gone already.
            self.visits.called |= gone if not self.visitor_exists else set()
            self.visitor_exists = True
            found = visitor.poll(max_messages=self.random.choice((5, 100)))
            if found:
                payloads = set(self.ledger.payloads[visitor.committed_seq : found[-1].seq])
                durable = self.random.random() < 0.3
                self.visits.call(payloads, lambda: visitor.commit(durable=durable), durable=durable)
                if durable:
                    self.visits.durable |= set(self.ledger.payloads[: found[-1].seq])
        self.seen["visited"] += 1

    def _work_much(self, queue: Queue, consumer: Consumer, work: WorkQueue) -> None:
        """Finish what is there, so that pages go."""
        jobs, self.jobs = [*self.jobs, *work.get_many(100)], []
        for job in jobs:
            self.acks.call({job.payload}, partial(work.ack, job), durable=self.sync == "always")

    def _check_consumed(self, queue: Queue, *, durable_end: bool) -> None:
        """K2 and K3 of a queue whose background work is done. ``durable_end``: this life has appended, and that is
        durable. Before, a log whose last page was just closed when its writer was killed knows no later page."""
        headers = [
            header
            for number in core_of(queue).pages.numbers()
            if (header := core_of(queue).pages.header_of(number)) is not None
        ]
        bases = [header.base_seq for header in headers if not header.prepared]
        found = committed_seqs(core_of(queue).pages)
        cursors = [
            name for name in core_of(queue).pages.port.names(core_of(queue).pages.directory) if name.endswith(".cursor")
        ]
        # The cursor that a crash has left without a value has committed nothing.
        committed = min(found.values(), default=0) if len(found) == len(cursors) else 0
        if durable_end and len(bases) > 1 and bases[1] - 1 <= committed:
            raise PromiseBroken(f"K2: all have committed {committed}, and the first page ends at {bases[1] - 1}")
        if queue.first_seq > 1:
            try:
                next(queue.read(seq=self.random.randrange(1, queue.first_seq)), None)
            except Trimmed as error:
                self.seen["read what has gone"] += error.first_seq == queue.first_seq
            else:
                raise PromiseBroken(f"K3: the queue begins at {queue.first_seq}, and less can be read")

    # ---- crash points -----------------------------------------------------------------------------------------------

    def _crash_point(self, operation: str) -> None:
        if operation != "half a write" and self.random.random() < 0.5:
            return
        killed = self.random.random() < 0.5
        self.seen["follower killed" if killed else "follower lost power"] += 1
        with self.files.quiet():
            image = self.after_crash(killed=killed)
        saved_ns = self.now_ns
        self._judge(image, killed=killed)
        self.now_ns = saved_ns

    def _judge(self, image: CrashFiles, *, killed: bool) -> None:
        """Open the image, sometimes write on before the followers come, and hold them to what was promised."""
        self.states += 1
        queue = self.open(image)
        ledger = self.ledger.copy()
        ledger.trimmed_max = len(ledger.payloads) + len(ledger.pending)
        reports: list[Gap | Trimmed] = []
        messages = list(queue.read(damage=reports.append))
        floor = ledger.accepted if killed else ledger.durable
        first_seq = messages[0].seq if messages else queue.first_seq
        ledger.check(messages, first_seq, queue.last_seq, floor=floor, skipped=never_durable(reports))
        history = [*ledger.payloads, *ledger.pending][: queue.last_seq]
        if self.random.random() < 0.5:
            self.seen["appended before following"] += 1
            try:
                queue.append_many([self._payload() for _ in range(self.random.randint(1, 12))])
            except Backpressure:
                self.seen["held"] += 1
        if self.keep == "consumed":
            self.seen["crash after consumed pages went"] += queue.first_seq > 1
            if self.random.random() < 0.7:  # while no consumer is open
                queue.flush()
                core_of(queue).run_background_work()
                self._check_consumed(queue, durable_end=queue.last_seq > len(history))
        messages = list(queue.read())
        removed = set(history[: queue.first_seq - 1]) - {LOST}
        consumer, work = self.follow(queue)
        self._judge_consumer(consumer, self.commits, messages, removed, first_seq=queue.first_seq, killed=killed)
        if self.visitor_exists:
            with queue.consumer("visitor", hold=self.hold) as visitor:
                self._judge_consumer(visitor, self.visits, messages, removed, first_seq=queue.first_seq, killed=killed)
        self._judge_work(work, messages, removed, killed=killed)
        queue.close()
        if image.open_handles:
            raise PromiseBroken(f"a closed queue and its followers hold {image.open_handles} handles")

    def _judge_consumer(
        self,
        consumer: Consumer,
        promised: Promised,
        messages: list[Message],
        removed: set[bytes],
        *,
        first_seq: int,
        killed: bool,
    ) -> None:
        if consumer.committed_seq < first_seq - 1:
            raise PromiseBroken(f"K1: the cursor is at {consumer.committed_seq}, {first_seq} is the first left")
        committed = {message.payload for message in messages if message.seq <= consumer.committed_seq}
        if not committed <= promised.called:
            raise PromiseBroken(f"C1: the cursor is at {consumer.committed_seq}, which was never committed")
        lost = promised.surviving(killed=killed) - committed - removed - {LOST}
        if lost:
            raise PromiseBroken(f"C2: at {consumer.committed_seq}, {len(lost)} commits are lost, or their messages")
        if not removed <= promised.called:
            raise PromiseBroken(f"R1: retention has removed what {consumer.name} has yet to commit")
        found = list(consumer)
        if found != [message for message in messages if message.seq > consumer.committed_seq]:
            raise PromiseBroken(f"C3: {len(found)} messages are handed out above {consumer.committed_seq}")

    def _judge_work(self, work: WorkQueue, messages: list[Message], removed: set[bytes], *, killed: bool) -> None:
        found: list[bytes] = []
        for _ in range(ROUNDS_MAX):
            while (job := work.get(timeout=0)) is not None:
                found.append(job.payload)
                work.ack(job)
            if not work.lag():
                break
            self.now_ns += 120 * SECOND_NS  # leases and delays end
        dead = [letter.payload for letter in work.dead_letters()]
        there = {message.payload for message in messages}
        if not (there | removed) <= self.acks.called | set(found) | set(dead):
            lost = (there | removed) - self.acks.called - set(found) - set(dead)
            raise PromiseBroken(f"{'R1' if lost <= removed else 'W1'}: messages are lost, {sorted(lost)[:3]}")
        if len(found) != len(set(found)):
            raise PromiseBroken("W1: a message is handed out again after it was acknowledged")
        if back := self.acks.surviving(killed=killed) & {*found, *(set(dead) - self.deaths.called)}:
            raise PromiseBroken(f"W2: {sorted(back)[:3]} were acknowledged and come back")
        if not self.deaths.surviving(killed=killed) <= set(dead):
            raise PromiseBroken(f"W3: {len(dead)} dead letters, {len(self.deaths.returned)} were given up")
        # Lost power may take the TAKE of a message whose dead letter it spares: then it comes back besides.
        if killed and not self._power_lost and len({*dead, *found}) < len(dead) + len(found):
            raise PromiseBroken("W3: a dead letter is handed out, or is there twice")


def run_followers(seed: int, *, consumed: bool | None = None) -> WorldReport:
    """Run one world to its end. ``consumed``: one with ``keep="consumed"``, else as the seed draws it.

    Raises: ``PromiseBroken``, or whatever the queue raises that it should not.
    """
    return FollowersWorld(seed, consumed=consumed).run()
