"""Lives of a queue with a crash at any operation: what comes back is a prefix that holds all that was durable.

Who takes the marks away after a loss of power may get messages from behind a hole; the hole is told.
"""

from __future__ import annotations

import os
import random

import pytest
from tests.matrix import matrix
from tests.property.queue_memory_files import Crash, MemoryFiles

from holdfast.errors import Closed, HoldfastError
from holdfast.queue import Gap, Queue, Trimmed
from holdfast.queue.files.meta_files import read_write_position
from holdfast.queue.queue import core_of

SEEDS = range(4000 if os.environ.get("HOLDFAST_PROVE") else 250)


class Life:
    """One machine's queue and what its program knows of it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.files = MemoryFiles()
        self.messages: dict[int, bytes] = {}
        self.durable = 0
        self.now = 1_000_000
        self.holes: set[int] = set()  # what is missing and was told
        self.marks_taken = False  # since the last reading: only then may it find a hole

    def open(self) -> Queue:
        return Queue(
            "q",
            page_size=self.page_size,
            files=self.files,
            clock=self.clock,
            entropy=self.chance.randbytes,
            background=False,
            sync=self.chance.choice(("os", "os", "always")),
        )

    page_size = 4096

    def clock(self) -> int:
        self.now += self.chance.choice((0, 0, 1, 5, -3))
        return self.now

    def message(self) -> bytes:
        size = self.chance.choice((0, 20, 20, 20, 20, 700, 1500, 5000))
        return self.chance.randbytes(size)

    def work(self, queue: Queue) -> None:
        for _ in range(self.chance.randrange(1, 60)):
            action = self.chance.random()
            if action < 0.7:
                message = self.message()
                self.messages[queue.last_seq + 1] = message
                queue.append(message)
            elif action < 0.85:
                batch = [self.message() for _ in range(self.chance.randrange(1, 12))]
                for number, message in enumerate(batch):
                    self.messages[queue.last_seq + 1 + number] = message
                queue.append_many(batch, atomic=self.chance.random() < 0.5)
            elif action < 0.95:
                queue.flush()
            else:
                core_of(queue).run_background_work()
            self.durable = max(self.durable, queue.durable_seq)

    def crash(self) -> bool:
        """True where the page cache survived."""
        if self.chance.random() < 0.3:
            self.files = self.files.killed()
            return True
        self.files = self.files.after_power_loss(self.chance)
        return False

    def forget_metadata(self) -> None:
        for name in list(self.files.names_now):
            if name.endswith("writeMeta") and not any(other.endswith(".page") for other in self.files.names_durable):
                continue  # the last proof that the queue is empty
            if not name.endswith(".page") and self.chance.random() < 0.5:
                if name.endswith("writeMeta"):
                    self.marks_taken = True
                del self.files.names_now[name]
                self.files.names_durable.pop(name, None)

    def check(self, queue: Queue, at_least: int) -> None:
        reports: list[Gap | Trimmed] = []
        found = list(queue.read(damage=reports.append))
        told = {seq for report in reports if isinstance(report, Gap) for seq in range(report.first, report.last + 1)}
        if new := told - self.holes:
            assert self.marks_taken and min(new) > self.durable, "only what was not durable may be missing"
        assert told >= self.holes, "what is told stays told"
        self.holes, self.marks_taken = told, False
        assert [message.seq for message in found] == sorted(set(range(1, queue.last_seq + 1)) - told)
        assert queue.last_seq >= at_least
        for message in found:
            assert message.payload == self.messages[message.seq]
        times = [message.time_ns for message in found]
        assert times == sorted(times)


def durable_seq(queue: Queue) -> int:
    """Also of one that has stopped in the middle of closing: what its last mark says."""
    try:
        return queue.durable_seq
    except Closed:
        mark = read_write_position(core_of(queue).pages)
        return mark.durable.next_seq - 1 if mark is not None else 0


def live(seed: int) -> None:
    life = Life(seed)
    life.page_size = life.chance.choice((4096, 8192))
    seen = 0  # what the last reading saw: a killed process loses none of it
    for _ in range(6):
        life.files.budget = life.chance.choice((1 << 60, life.chance.randrange(200), life.chance.randrange(60)))
        queue = None
        acknowledged = life.durable
        try:
            queue = life.open()
            acknowledged = queue.last_seq
            life.check(queue, max(seen, life.durable))
            life.work(queue)
            acknowledged = queue.last_seq
            if life.chance.random() < 0.3:
                queue.close()
                life.durable = acknowledged
        except Crash:
            if queue is not None:
                life.durable = max(life.durable, durable_seq(queue))
                acknowledged = max(acknowledged, 0)
        finally:
            if queue is not None:
                life.files.budget = 0
        cache_survived = life.crash()
        seen = max(acknowledged, life.durable) if cache_survived else life.durable
        if life.chance.random() < 0.2:
            life.forget_metadata()
    queue = life.open()
    life.check(queue, max(seen, life.durable))
    queue.close()


@pytest.mark.parametrize("part", matrix(range(10), 3))
def test_a_recovered_log_is_a_prefix_that_holds_all_that_was_durable(part: int, record_property: object) -> None:
    for seed in list(SEEDS)[part::10]:
        try:
            live(seed)
        except (AssertionError, HoldfastError, OSError, KeyError) as error:
            raise AssertionError(f"seed {seed}") from error
    if callable(record_property):
        record_property("seeds", len(SEEDS))
