"""Worlds of ``persist``: a source, a subscription and their queue, with crashes at any moment.

There are no threads and no tasks: the world calls the two sides in any order. ``PromiseBroken`` begins with the promise:

| promise | |
|---|---|
| P1 | each item of the source is given at least once, in order, whole; nothing is skipped |
| P2 | an item is consumed when the next one is asked for, or explicitly, not before; that survives a kill, and lost power where it was made durable |
| P3 | what was stored survives a kill, and what was durable survives lost power |
| P4 | the end and the error of a source come after all items before them |
| P5 | the source is asked for nothing while ``max_bytes`` are unconsumed |
| P6 | a source that resumes learns how many items are stored and which is the last |
| P7 | space is freed only of what every consumer has consumed |

Item ``n`` of the source is always the same bytes. It is the message with number ``n + 1`` and the numbers skipped before.
"""  # noqa: E501 - a row of a table is a line

from __future__ import annotations

from datetime import timedelta
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from tests.worlds.harness import PromiseBroken, WorldReport
from tests.worlds.queue.files import DIRECTORY, CrashFiles, QueueWorld

from holdfast.errors import HoldfastError
from holdfast.queue import Queue, every
from holdfast.queue.files.cursors import committed_seqs
from holdfast.queue.persist_flow import ITEM_BYTES, FlowStep
from holdfast.queue.persist_run import PersistArguments, PersistRun
from holdfast.queue.queue import core_of

if TYPE_CHECKING:
    from holdfast.queue.persist_run import Stored

__all__ = ["PERSIST_KINDS", "run_persist"]

PAGE_BYTES: Final = 4096
NAMES: Final = ("main", "main", "main", "audit")
PERSIST_KINDS: Final = (
    *("stored", "given", "consumed durably", "source waits", "space freed", "left from an earlier run"),
    *("source ended", "source failed", "crash with a given item", "crash before the first item", "read since"),
    *("persist killed", "persist lost power", "consumer went back", "items stored again"),
    "reader without a hold",
)


class SourceFailed(Exception):
    """What the source of a world raises."""


class Kept:
    """One consumer's place. ``called`` may have been kept, ``returned`` is, ``durable`` survives lost power."""

    __slots__ = ("called", "durable", "returned")

    def __init__(self, seq: int) -> None:
        self.called = self.returned = self.durable = seq


class Side:
    """An open run with its source, as both sides use it."""

    def __init__(self, world: PersistWorld, run: PersistRun, *, fails_at: int | None) -> None:
        self.run = run
        self.given_seq = run.flow.consumed_seq
        self._world = world
        self._fails_at = fails_at
        self._next: int | None = None

    def produce(self) -> bool:
        """One step of the producer."""
        return self.run.produce(self._pull, self._close_source)

    def _pull(self) -> object:
        world, run = self._world, self.run
        if self._next is None:
            self._next = world.check_resumed(run.stored(), self.items_up_to(run.queue.last_seq))
        first, last = self.items_up_to(run.flow.consumed_seq), self.items_up_to(run.queue.last_seq)
        ahead = sum(len(world.item(n)) + ITEM_BYTES for n in range(first, last))
        if world.max_bytes is not None and ahead >= world.max_bytes:
            raise PromiseBroken(f"P5: the source is asked while {ahead} of {world.max_bytes} bytes are unconsumed")
        if self._next == self._fails_at:
            raise SourceFailed
        if self._next == world.items:
            raise StopIteration
        self._next += 1
        return world.item(self._next - 1)

    def items_up_to(self, seq: int) -> int:
        """How many items have a number up to this one."""
        pages, later = core_of(self.run.queue).pages, None
        for number in reversed(pages.numbers()):
            header = pages.header_of(number)
            if header is None or header.prepared:
                continue
            if header.base_seq <= seq + 1:
                return (seq if later is None else min(seq, later.after_seq - 1)) - header.skipped_in_all
            later = header
        return seq

    def _close_source(self) -> None:
        self.run.flow.source_closed = True

    def ask(self) -> FlowStep:
        """Ask for the next item, as a consumer does, and check what comes."""
        run, flow = self.run, self.run.flow
        run.consume()
        run.free()
        step = run.flow.step
        if step is FlowStep.GIVE:
            message, item = run.next_item()
            number = self.items_up_to(self.given_seq)
            if self.items_up_to(message.seq) != number + 1 or item != self._world.item(number):
                raise PromiseBroken(f"P1: after item {self.given_seq} comes {message.seq}, {message.payload[:20]!r}")
            self.given_seq = message.seq
            run.given = message
        elif step is FlowStep.END:
            self._check_end()
        flow.check()
        return step

    def _check_end(self) -> None:
        ending, stored = self.run.flow.ending, self.run.queue.last_seq
        stored = self.items_up_to(stored)
        if ending is None or self.items_up_to(self.given_seq) != stored:
            raise PromiseBroken(f"P4: the end comes after item {self.given_seq} of {stored}")
        if isinstance(ending.error, SourceFailed):
            self._world.seen["source failed"] += 1
            expected = self._fails_at
        elif ending.error is not None:
            raise ending.error
        else:
            self._world.seen["source ended"] += 1
            expected = self._world.items
        if stored != expected:
            raise PromiseBroken(f"P4: the source ended at {expected}, and {stored} items were stored")


class PersistWorld(QueueWorld):
    """See the module."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, Random(f"persist/{seed}"))
        self.now_ns = 1_700_000_000_000_000_000
        self.items = self.random.randint(10, 50)
        self.max_bytes = self.random.choice((None, 1, 700, 4000))
        self.sync = self.random.choice(("os", "os", every(messages=3), "always"))
        self.lifetime = self.random.choice((None, None, None, timedelta(milliseconds=100)))
        # In some worlds nothing is synced but what the queue syncs by itself.
        self.sync_rate = self.random.choice((0.0, 0.25))
        self.files = CrashFiles(Random(self.random.random()), seen=self.seen)
        self.kept: dict[str, Kept] = {}
        self.accepted = self.durable = self._reached_seq = 0
        self._side: Side | None = None
        self._name = ""

    def item(self, number: int) -> bytes:
        """What the source gives as its item ``number``, from 0."""
        random = Random(f"{self.seed}/{number}")
        return b"%d/%d:" % (self.seed, number) + b"x" * random.choice((0, 60, 300, 900, 1500))

    # ---- what a run is given ----------------------------------------------------------------------------------------

    def open(self, files: CrashFiles, *, name: str | None, fails_at: int | None = None) -> Side:
        """A run on these files: of a consumer, or from the earliest item on."""
        settings = PersistArguments(
            DIRECTORY,
            consumer=name,
            since=None if name is not None else (lambda: "earliest"),
            serializer=None,
            lifetime=self.lifetime,
            max_bytes=self.max_bytes,
            sync=self.sync,
            page_size=PAGE_BYTES,
            prefix="q",
        )
        open_queue = partial(
            Queue,
            settings.path,
            page_size=settings.page_size,
            sync=settings.sync,
            lifetime=settings.lifetime,
            files=files,
            clock=self.clock,
            entropy=self.random.randbytes,
            background=False,
        )
        return Side(self, PersistRun(settings, open_queue), fails_at=fails_at)

    def check_resumed(self, stored: Stored[object], items: int) -> int:
        """Check the argument of a source (P6). Returns the item from which the source continues."""
        if stored.count != items:
            raise PromiseBroken(f"P6: {items} items are stored, the source learns {stored.count}")
        last = self.item(stored.count - 1) if stored.count else None
        if stored.last != last and (stored.last is not None or self.lifetime is None):
            raise PromiseBroken(f"P6: the last of {stored.count} items is {stored.last!r:.40}")
        return stored.count

    # ---- the world --------------------------------------------------------------------------------------------------

    def run(self) -> WorldReport:
        """Live some lives; raises ``PromiseBroken``."""
        for _ in range(self.random.randint(1, 4)):
            self._live()
            self.digest_files()
        return self.report()

    def _live(self) -> None:
        self._name = self.random.choice(NAMES)
        self.files.before = self._crash_point
        fails_at = self.random.randrange(self.items) if self.random.random() < 0.3 else None
        side = self.open(self.files, name=self._name, fails_at=fails_at)
        start, stored = side.run.flow.consumed_seq, side.run.queue.last_seq
        kept = self.kept.setdefault(self._name, Kept(start))
        self.seen["consumer went back"] += start < kept.called
        self.seen["items stored again"] += stored < self._reached_seq
        self.seen["left from an earlier run"] += start < stored
        self.accepted, self.durable = stored, side.run.queue.durable_seq
        kept.called = kept.returned = start
        # The opening has synced the cursor. What it stands at may be lost with the log.
        kept.durable = min(start, self.durable)
        self._side = side
        if self.lifetime is None and self.random.random() < 0.25:  # else its messages may go by their age
            self._read(side.run.queue)
        if fails_at is None or fails_at >= stored:
            for _ in range(self.random.randint(5, 150)):
                act = self.random.choice((self._produce, self._produce, self._ask, self._ask, self._ask, self._upkeep))
                if not act(side, kept):
                    break
        self._end_life(side)

    def _end_life(self, side: Side) -> None:
        self.files.before = None
        self._side = None
        how = self.random.choice(("close", "kill", "power loss"))
        if how == "close":
            side.run.close()
            if self.files.open_handles:
                raise PromiseBroken(f"a closed run holds {self.files.open_handles} handles")
            self.durable = self.accepted
        self.files = self.after_crash(killed=how != "power loss")
        if how == "power loss":
            self.accepted = self.durable
            for kept in self.kept.values():
                kept.returned = kept.durable

    def _read(self, queue: Queue) -> None:
        """A consumer of the queue itself, which does not hold, consumes some and is closed."""
        self.seen["reader without a hold"] += 1
        with queue.consumer("reader", hold=False) as reader:
            found = reader.poll(0.0, self.random.choice((1, 10, 1000)))
            if found:
                reader.commit(found[-1])

    # ---- acts -------------------------------------------------------------------------------------------------------

    def _produce(self, side: Side, kept: Kept) -> bool:
        for _ in range(self.random.choice((1, 1, 4))):
            side.produce()
            self.seen["stored"] += side.run.queue.last_seq > self.accepted
            self._note(side)
        self.seen["source waits"] += side.run.flow.waiting
        return True

    def _ask(self, side: Side, kept: Kept) -> bool:
        if side.run.given is not None:
            kept.called = side.run.given.seq
            if self.random.random() < self.sync_rate:
                side.run.consume(durable=True)
                kept.durable = kept.called
                self.seen["consumed durably"] += 1
        first_seq = side.run.queue.first_seq
        step = side.ask()
        kept.returned = kept.called
        self.seen["given"] += step is FlowStep.GIVE
        self.seen["space freed"] += side.run.queue.first_seq > first_seq
        self._note(side)
        return step in (FlowStep.GIVE, FlowStep.WAIT)

    def _upkeep(self, side: Side, kept: Kept) -> bool:
        if self.random.random() < self.sync_rate:
            side.run.queue.flush()
        core_of(side.run.queue).run_background_work()
        self._note(side)
        return True

    def _note(self, side: Side) -> None:
        self.accepted = max(self.accepted, side.run.queue.last_seq)
        self._reached_seq = max(self._reached_seq, self.accepted)
        self.durable = max(self.durable, side.run.queue.durable_seq)

    # ---- crash points -----------------------------------------------------------------------------------------------

    def _crash_point(self, operation: str) -> None:
        if operation != "half a write" and self.random.random() < 0.5:
            return
        killed = self.random.random() < 0.5
        self.seen["persist killed" if killed else "persist lost power"] += 1
        side = self._side
        if side is not None:
            self.seen["crash with a given item"] += side.run.given is not None
            self.seen["crash before the first item"] += side.run.queue.last_seq == 0
        with self.files.quiet():
            image = self.after_crash(killed=killed)
        saved_ns = self.now_ns
        try:
            self._judge(image, killed=killed)
        except HoldfastError as error:
            raise PromiseBroken(f"P1: what a crash leaves cannot be read: {error}") from error
        self.now_ns = saved_ns

    def _judge(self, image: CrashFiles, *, killed: bool) -> None:
        """Open the image, sometimes by another consumer, and let the source go on to its end."""
        self.states += 1
        name = self.random.choice([self._name, *self.kept])
        floor = self.accepted if killed else self.durable
        if self.random.random() < 0.15:
            self.seen["read since"] += 1
            reading = self.open(image, name=None)
            first_seq = reading.run.queue.first_seq
            if reading.run.flow.consumed_seq != first_seq - 1:
                raise PromiseBroken(f"P1: since the earliest begins after {reading.run.flow.consumed_seq}")
            self._drain(reading)
        side = self.open(image, name=name)
        start, stored = side.run.flow.consumed_seq, side.run.queue.last_seq
        if stored < floor:
            raise PromiseBroken(f"P3: {stored} items are left of {floor}")
        kept = self.kept.get(name)
        if kept is not None and start > kept.called:
            raise PromiseBroken(f"P2: {name} stands at {start}, and asked for no item after {kept.called}")
        if kept is not None and start < (kept.returned if killed else kept.durable):
            raise PromiseBroken(f"P2: {name} stands at {start}, and had consumed {kept.returned}")
        if start < side.run.queue.first_seq - 1:
            raise PromiseBroken(f"P7: {name} stands at {start}, the queue begins at {side.run.queue.first_seq}")
        self._check_nothing_unconsumed_is_gone(side.run.queue)
        self._drain(side)
        if image.open_handles:
            raise PromiseBroken(f"a closed run holds {image.open_handles} handles")

    def _check_nothing_unconsumed_is_gone(self, queue: Queue) -> None:
        for name, seq in committed_seqs(core_of(queue).pages).items():
            if seq < queue.first_seq - 1 and self.lifetime is None:
                raise PromiseBroken(f"P7: {name} has consumed {seq}, the queue begins at {queue.first_seq}")

    def _drain(self, side: Side) -> None:
        """Both sides, in any order, until the end."""
        step = FlowStep.WAIT
        while step is not FlowStep.END:
            for _ in range(self.random.choice((0, 1, 3, 9))):
                side.produce()
            step = side.ask()
            while step is FlowStep.GIVE and self.random.random() < 0.7:
                step = side.ask()
        if side.items_up_to(side.given_seq) != self.items:
            raise PromiseBroken(f"P1: the end comes after item {side.given_seq} of {self.items}")
        side.run.close()


def run_persist(seed: int) -> WorldReport:
    """Run one world to its end.

    Raises: ``PromiseBroken``, or whatever the queue raises that it should not.
    """
    return PersistWorld(seed).run()
