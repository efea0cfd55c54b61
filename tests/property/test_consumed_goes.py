"""``keep="consumed"``: what goes was acknowledged by every consumer, also after losses of power; and it goes.

The law: whatever message is missing in front of the log was committed by the consumer, and acknowledged in the work
queue.
The mutants break one rule each, and the law must catch every one of them.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest
from tests.worlds.queue import CrashFiles

from holdfast.errors import InvalidRequest
from holdfast.queue import Queue, Trimmed
from holdfast.queue.core import QueueCore
from holdfast.queue.files import cursors as cursor_file
from holdfast.queue.files.pages import PageDirectory
from holdfast.queue.format.meta import Cursor
from holdfast.queue.log import space
from holdfast.queue.log.space import ClosedPage
from holdfast.queue.queue import core_of

PAGE_BYTES = 4096
SEEDS = 500 if os.environ.get("HOLDFAST_PROVE") == "1" else 12
MESSAGE = b"x" * 100


class Life:
    """A queue with a consumer that does not hold and a work queue, over losses of power."""

    page_bytes = PAGE_BYTES

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.files = CrashFiles(Random(seed))
        self.now = 10**18
        self.appended: dict[int, bytes] = {}
        self.serial = 0
        self.committed: set[bytes] = set()
        self.acknowledged: set[bytes] = set()
        self.gone = 0

    def clock(self) -> int:
        self.now += 1000
        return self.now

    def open(self) -> Queue:
        return Queue(
            "d/q", page_size=self.page_bytes, files=self.files, clock=self.clock, entropy=self.random.randbytes,
            background=False, keep="consumed",
        )  # fmt: skip

    def append(self, queue: Queue, count: int) -> None:
        for _ in range(count):
            self.serial += 1
            payload = b"%d:" % self.serial + b"x" * self.random.choice((0, 100, 500))
            self.appended[queue.append(payload)] = payload

    def live(self) -> None:
        random = self.random
        queue = self.open()
        consumer = queue.consumer("c", hold=False, damage="skip")
        work = queue.work_queue("w", ack_wait=10, max_deliveries=10**6)
        taken: list[bytes] = []
        for _ in range(random.randrange(5, 60)):
            what = random.random()
            if what < 0.3:
                self.append(queue, random.randrange(1, 40))
            elif what < 0.6:
                taken += [message.payload for message in consumer.poll(max_messages=random.randrange(1, 100))]
                if taken and random.random() < 0.6:
                    consumer.commit()
                    self.committed.update(taken)
            elif what < 0.9:
                for job in work.get_many(random.randrange(1, 100)):
                    if random.random() < 0.97:
                        work.ack(job)
                        self.acknowledged.add(job.payload)
            else:
                queue.flush()
            core_of(queue).run_background_work()
        self.files = self.files.after_power_loss(Random(random.random()))
        self.forget_what_was_lost()

    def forget_what_was_lost(self) -> None:
        """Messages that were never durable are gone, and nobody gets their numbers."""
        files, self.files = self.files, self.files.after_kill(Random(0))
        with self.open() as queue:
            left, first_seq = {message.seq for message in queue.read(damage="skip")}, queue.first_seq
        self.files = files
        self.appended = {seq: payload for seq, payload in self.appended.items() if seq < first_seq or seq in left}

    def check(self) -> None:
        with self.open() as queue:
            self.now += 10**11
            self.gone = max(self.gone, queue.first_seq - 1)
            missing = {payload for seq, payload in self.appended.items() if seq < queue.first_seq}
            assert not missing - self.committed, "gone, and the consumer has not committed it"
            assert not missing - self.acknowledged, "gone, and the work queue has not acknowledged it"
            consumer = queue.consumer("c", hold=False, damage="skip")
            with consumer, queue.work_queue("w", max_deliveries=10**6) as work:
                left = sorted(seq for seq in self.appended if seq > consumer.committed_seq)
                assert [message.seq for message in consumer] == left
                consumer.rewind()
                list(consumer)  # raises where something that it needs has gone
                work.get_many(10**6)


def live_often(seeds: range) -> int:
    gone = 0
    for seed in seeds:
        life = Life(seed)
        for _ in range(3):
            life.live()
            life.check()
        gone += life.gone
    return gone


def test_what_goes_was_acknowledged_by_every_consumer() -> None:
    assert live_often(range(SEEDS)) > 100 * SEEDS / 12


def only_consumers(pages: PageDirectory) -> int | None:
    """The work queue is forgotten."""
    return min((one.committed_seq + 1 for _, one in cursors(pages) if not one.of_work_queue), default=None)


def only_those_that_hold(pages: PageDirectory) -> int | None:
    return cursor_file.first_held_seq(pages)


def one_page_more(pages: list[ClosedPage], unconsumed_seq: int | None) -> list[int]:
    """The page that holds the next message goes, too."""
    return [page.number for page in pages if unconsumed_seq is not None and page.last_seq < unconsumed_seq + 40]


def no_sync(pages: PageDirectory, failed: object, *, every: bool = False) -> None:
    """Cursors are not made durable before a page goes."""
    del pages, failed, every


def cursors(pages: PageDirectory) -> list[tuple[str, Cursor]]:
    return list(cursor_file._cursors(pages))


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (space, "first_unconsumed_seq", only_consumers),
        (space, "first_unconsumed_seq", only_those_that_hold),
        (space, "pages_consumed", one_page_more),
        (space, "sync_holds", no_sync),
    ],
    ids=["the work queue", "who does not hold", "the page in use", "without a sync"],
)
def test_a_broken_rule_is_caught(owner: object, name: str, broken: object) -> None:
    with patch.object(owner, name, broken), pytest.raises((AssertionError, Trimmed)):
        live_often(range(60))


def fill(queue: Queue, count: int = 300) -> None:
    for _ in range(count):
        queue.append(MESSAGE)


def test_a_reader_below_the_floor_is_told_and_nothing_goes_by_default(tmp_path: Path) -> None:
    for keep, first in (("all", 1), ("consumed", 250)):
        with Queue(tmp_path / keep, page_size=PAGE_BYTES, keep=keep, background=False) as queue:
            fill(queue)
            with queue.consumer("c") as consumer:
                while consumer.poll():
                    consumer.commit()
            queue.flush()
            core_of(queue).run_background_work()
            assert queue.first_seq >= first
            assert (queue.first_seq == 1) == (keep == "all")
            if keep == "consumed":
                with pytest.raises(Trimmed):
                    list(queue.read(seq=1))


def test_without_a_consumer_with_one_that_is_behind_or_damaged_nothing_goes(tmp_path: Path) -> None:
    path = tmp_path / "q"

    def first_seq() -> int:
        with Queue(path, page_size=PAGE_BYTES, keep="consumed", background=False) as queue:
            queue.flush()
            core_of(queue).run_background_work()
            return queue.first_seq

    with Queue(path, page_size=PAGE_BYTES) as queue:
        fill(queue)
    assert first_seq() == 1
    with Queue(path, page_size=PAGE_BYTES) as queue, queue.consumer("done", hold=False) as consumer:
        queue.consumer("behind", hold=False).close()
        while consumer.poll():
            consumer.commit()
    assert first_seq() == 1
    (tmp_path / "q-behind.cursor").write_bytes(b"damaged" * 100)
    assert first_seq() == 1
    (tmp_path / "q-behind.cursor").write_bytes(b"")
    assert first_seq() == 1
    (tmp_path / "q-behind.cursor").unlink()
    assert first_seq() > 200


def test_an_unknown_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest):
        Queue(tmp_path / "q", keep="unread")


def test_pages_that_grow_keep_the_law_over_losses_of_power() -> None:
    with patch.object(QueueCore, "_first_page_bytes", PAGE_BYTES), patch.object(Life, "page_bytes", 8 * PAGE_BYTES):
        live_often(range(SEEDS))


def test_the_pages_of_a_queue_double_up_to_the_size_that_was_asked_for(tmp_path: Path) -> None:
    queues = [Queue(tmp_path / f"q{number}", background=False) for number in range(20)]
    for queue in queues:
        queue.append(MESSAGE)
    assert sum(file.stat().st_blocks * 512 for file in tmp_path.iterdir()) < 40 << 20
    for queue in queues:
        queue.close()
    for opening in range(2):  # what was written before is written on, and grows on
        with Queue(tmp_path / "q0", page_size=4 << 20, background=False) as queue:
            for _ in range(6):
                queue.append(bytes(1 << 20))
            numbers = core_of(queue).pages.numbers()
            headers = [header for number in numbers if (header := core_of(queue).pages.header_of(number)) is not None]
            sizes = [header.page_bytes >> 20 for header in headers]
            assert sizes[:4] == [1, 2, 4, 4][: len(sizes)] and len(sizes) >= 3
            assert queue.last_seq == 1 + 6 * (opening + 1)
    with Queue(tmp_path / "q0", read_only=True) as queue:
        assert [len(message.payload) for message in queue.read()] == [100] + [1 << 20] * 12


class SmallFirstPageCore(QueueCore):
    """Its marks, and the work ahead, follow the small page and not ``page_size``."""

    _first_page_bytes = PAGE_BYTES


class SmallFirstPage(Queue):
    """The same, for a program."""

    _core_class = SmallFirstPageCore


def test_the_page_after_a_small_one_is_asked_for_ahead_of_its_use(tmp_path: Path) -> None:
    with SmallFirstPage(tmp_path / "q", page_size=16 * PAGE_BYTES, background=False) as queue:
        asked_at: list[int] = []
        assert core_of(queue)._writer is not None
        core_of(queue)._writer.on_work = lambda: asked_at.append(queue.last_seq)
        fill(queue, 30)
        assert core_of(queue).pages.numbers() == [1]
        assert any(15 < seq < 30 for seq in asked_at)
