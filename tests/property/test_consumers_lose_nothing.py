"""At the level "os" a loss of power takes what was not synced, in any part: messages, cursors, commands.

The law that is left: whatever message is in the log afterwards was handed out to its consumer before the crash, or is
handed out after it. Nothing that nobody has seen is skipped, however much the log and the cursor disagree.
"""

from __future__ import annotations

import os
from random import Random
from unittest.mock import patch

import pytest
from tests.worlds.queue import CrashFiles

from holdfast.errors import CorruptData
from holdfast.queue import Gap, Queue, Trimmed
from holdfast.queue.files.pages import PageDirectory
from holdfast.queue.queue import core_of

PAGE_BYTES = 4096
SEEDS = 1000 if os.environ.get("HOLDFAST_PROVE") == "1" else 15


class Life:
    """A queue with a consumer and a work queue, over losses of power."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.files = CrashFiles(Random(seed))
        self.now = 10**18
        self.serial = 0
        self.seen: set[bytes] = set()
        self.done: set[bytes] = set()
        self.losses = 0

    def clock(self) -> int:
        self.now += 1000
        return self.now

    def open(self) -> Queue:
        return Queue(
            "d/q", page_size=PAGE_BYTES, files=self.files, clock=self.clock, entropy=self.random.randbytes,
            background=False,
        )  # fmt: skip

    def append(self, queue: Queue, count: int) -> None:
        for _ in range(count):
            self.serial += 1
            queue.append(b"%d:" % self.serial + b"x" * self.random.choice((0, 100, 500)))

    def live(self) -> None:
        """Append, consume, commit and sync, each now and then; then lose power."""
        random = self.random
        queue = self.open()
        self.append(queue, random.choice((0, 0, 10, 100)))  # before anybody has looked at what the crash left
        consumer, work = queue.consumer("c", damage="skip"), queue.work_queue("w", ack_wait=0.001, max_deliveries=10**6)
        for _ in range(random.randrange(1, 40)):
            what = random.random()
            if what < 0.4:
                self.append(queue, random.randrange(1, 40))
            elif what < 0.6:
                for message in consumer.poll(max_messages=random.randrange(1, 400)):
                    self.seen.add(message.payload)
                    if random.random() < 0.3:
                        consumer.commit(message, durable=random.random() < 0.01)
            elif what < 0.8:
                for job in work.get_many(random.randrange(1, 60)):
                    if random.random() < 0.8:
                        work.ack(job)
                        self.done.add(job.payload)
            elif what < 0.9:
                queue.flush()
            core_of(queue).run_background_work()
        self.losses += 1
        self.files = self.files.after_power_loss(Random(random.random()))

    def check(self) -> None:
        """The law, and that the rest of the log is handed out in order."""
        with self.open() as queue:
            self.append(queue, self.random.choice((1, 20, 100)))
            self.now += 10**10
            self.judge(queue)

    def judge(self, queue: Queue) -> None:
        with queue.consumer("c", damage="skip") as consumer, queue.work_queue("w", max_deliveries=10**6) as work:
            reports: list[Gap | Trimmed] = []
            payloads = {message.payload for message in queue.read(damage=reports.append)}
            assert all(isinstance(gap, Gap) and gap.reason == "crash" for gap in reports)
            first = consumer.committed_seq + 1
            lost = {seq for gap in reports if isinstance(gap, Gap) for seq in range(gap.first, gap.last + 1)}
            found = list(consumer)
            assert [message.seq for message in found] == sorted({*range(first, queue.last_seq + 1)} - lost)
            missed = payloads - self.seen - {message.payload for message in found}
            assert not missed, "the consumer never saw a message"
            missed = payloads - self.done - {job.payload for job in work.get_many(10**6)}
            assert not missed, "no worker ever had a message"
            work._machine.check()


def lose_power_often(seeds: range) -> None:
    for seed in seeds:
        life = Life(seed)
        for _ in range(4):
            life.live()
            image = life.files
            life.files = image.after_kill(Random(seed))
            life.check()
            life.files = image
        assert life.losses == 4


def test_no_message_is_skipped_when_power_is_lost() -> None:
    lose_power_often(range(SEEDS))


def asks_nobody(_pages: PageDirectory, _name: str) -> int:
    """The numbers that workers have taken are given to other messages."""
    return 1


def test_an_opening_that_does_not_ask_the_work_queues_is_caught() -> None:
    # That it asks the consumers is checked by hand-made crashes: tests/unit/queue/test_consumer.py.
    with patch("holdfast.queue.evidence._taken_seq", asks_nobody), pytest.raises((AssertionError, CorruptData)):
        lose_power_often(range(60))
