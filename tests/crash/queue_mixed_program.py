"""A process that uses every kind of queue from several threads until it is killed, and reports each step.

    python queue_mixed_program.py DIRECTORY SEED FIRST

A log with a named consumer and a work queue, a ``FileQueue`` and ``persist``. A step is one line on standard output: a
word and numbers. A word with ``?`` is written before the step, the same word without it after the step. ``FIRST`` is
the number of the first item that this process puts into the ``FileQueue``.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random

from tests.crash.persist_program import Source, number_in
from tests.crash.queue_writer import LEVELS

import holdfast
from holdfast.errors import Fenced
from holdfast.queue import FileQueue, Queue, Serializer
from holdfast.queue.consumers.consumer import Consumer
from holdfast.queue.work.work_queue import Job, WorkQueue

PAGE_BYTES = 64 << 10
LOG, TASKS, ITEMS, CONSUMER, WORK = "log", "tasks", "items", "reader", "worker"
UNFINISHED_MAX = 300
MAXSIZE = 40
HELD = (1, 1, 3, 20)
LOADS_FAIL = 0.05
DELIVERIES_MAX = 1 << 30


def message_of(seq: int) -> bytes:
    """The message of the log with this number."""
    return b"%d:" % seq + b"x" * (seq % 90)


def dump(number: object) -> bytes:
    """The bytes of an item of the ``FileQueue``."""
    assert isinstance(number, int)
    return b"%d:" % number + b"x" * (number % 900)


def load(payload: bytes) -> int:
    """The number of an item, whose bytes are checked."""
    number = int(payload.partition(b":")[0])
    assert payload == dump(number)
    return number


def serializer(load_item: Callable[[bytes], object] = load) -> Serializer:
    """The serializer of the items. Its name is recorded, so every program gives it."""
    return Serializer(dump, load_item, "item")


def tell(word: str, *numbers: int) -> None:
    """One line, in one write."""
    os.write(1, f"{word} {' '.join(map(str, numbers))}\n".encode())


class Program:
    """The open queues and their threads."""

    def __init__(self, directory: Path, seed: int, first: int) -> None:
        self.random = Random(seed)
        self.first = first
        self.log = Queue(directory / LOG, page_size=PAGE_BYTES, sync=LEVELS[self.random.choice([*LEVELS])])
        self.consumer: Consumer = self.log.consumer(CONSUMER)
        self.work: WorkQueue = self.log.work_queue(
            WORK, ack_wait=self.random.choice((0.05, 1.0)), max_deliveries=DELIVERIES_MAX, retry_delay=0.001
        )
        self.room = threading.Semaphore(max(0, UNFINISHED_MAX - self.work.lag()))
        self.one_gets_a_job, self.one_takes_an_item = threading.Lock(), threading.Lock()
        self.tasks = self.open_tasks(directory)
        self.items = holdfast.persist(
            Source(1 << 40).plain, directory / ITEMS, max_bytes=5_000, page_size=PAGE_BYTES,
            sync=LEVELS[self.random.choice([*LEVELS])],
        )  # fmt: skip

    def open_tasks(self, directory: Path) -> FileQueue:
        """Open it; now and then work with it, close it and open it again."""
        while True:
            sync = self.random.choice(("os", "os", "always"))
            tasks = FileQueue(directory / TASKS, MAXSIZE, serializer=serializer(self.load), sync=sync)
            tell("open")
            if self.random.random() < 0.6:
                return tasks
            held: deque[int] = deque()
            for _ in range(self.random.randint(0, min(tasks.qsize(), 20))):
                self.take(tasks, held)
            for _ in range(self.random.randint(0, len(held) // 2)):
                self.finish(tasks, held)
            tasks.close()

    def load(self, payload: bytes) -> int:
        """An item; now and then it cannot be loaded, and the same get succeeds later."""
        if self.random.random() < LOADS_FAIL:
            raise LookupError
        return load(payload)

    # ---- the log and its consumers ----------------------------------------------------------------------------------

    def append(self, random: Random) -> None:
        """Append while not too many messages are unfinished jobs."""
        while True:
            following = self.log.last_seq + 1
            messages = [message_of(following + index) for index in range(random.choice((1, 1, 1, 5)))]
            for _ in messages:
                self.room.acquire()
            last = self.log.append(messages[0]) if len(messages) == 1 else self.log.append_many(messages)[1]
            tell("append", last)

    def consume(self, random: Random) -> None:
        """Read and now and then commit."""
        for message in self.consumer.follow():
            tell("read", message.seq)
            if random.random() < 0.3:
                tell("commit?", message.seq)
                self.consumer.commit(message, durable=random.random() < 0.05)
                tell("commit", message.seq)

    def do_jobs(self, random: Random) -> None:
        """Acknowledge most jobs, return some, forget some."""
        while True:
            with self.one_gets_a_job:
                job = self.work.get()
                assert job is not None
                tell("job", job.seq, job.deliveries)
            assert job.payload == message_of(job.seq)
            what = random.random()
            if what < 0.75:
                self.acknowledge(job)
            elif what < 0.95:
                with suppress(Fenced):
                    self.work.nack(job, delay=random.choice((0, 0.01))) if what < 0.85 else self.work.retry(job)

    def acknowledge(self, job: Job) -> None:
        """One job is done, unless its lease ended."""
        tell("ack?", job.seq)
        try:
            self.work.ack(job)
        except Fenced:
            tell("late", job.seq)
        else:
            tell("ack", job.seq)
            self.room.release()

    # ---- the FileQueue ----------------------------------------------------------------------------------------------

    def put(self, _: Random) -> None:
        """Put item after item."""
        for number in count(self.first):
            tell("put?", number)
            self.tasks.put(number)
            tell("put", number)

    def work_on_items(self, random: Random) -> None:
        """Take some items, and finish some of them."""
        held: deque[int] = deque()
        while True:
            for _ in range(random.choice(HELD)):
                with self.one_takes_an_item:
                    self.take(self.tasks, held)
            for _ in range(random.randrange(1, 1 + len(held))):
                self.finish(self.tasks, held)

    def take(self, tasks: FileQueue, held: deque[int]) -> None:
        """Get the next item, once it can be loaded."""
        while True:
            try:
                number = tasks.get()
            except LookupError:
                continue
            assert isinstance(number, int)
            tell("take", number)
            held.append(number)
            return

    def finish(self, tasks: FileQueue, held: deque[int]) -> None:
        """The oldest item of this thread is done."""
        tell("done?", held[0])
        tasks.task_done()
        tell("done", held.popleft())

    # ---- all of them ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Start the threads, and pass items through ``persist``."""
        threads = (self.append, self.consume, self.do_jobs, self.do_jobs, self.put) + 2 * (self.work_on_items,)
        for target in threads:
            threading.Thread(target=target, args=(Random(self.random.random()),), daemon=True).start()
        for item in self.items:
            tell("item", number_in(item))


def end(failed: threading.ExceptHookArgs) -> None:
    """A thread that fails ends the process."""
    traceback.print_exception(failed.exc_value)
    os._exit(1)


if __name__ == "__main__":
    tell("start")
    sys.setswitchinterval(0.0005)
    threading.excepthook = end
    Program(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])).run()
