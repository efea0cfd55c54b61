"""Defects of the queue that worlds have found, each as the plainest test."""

from __future__ import annotations

import errno
import itertools
from random import Random

import pytest
from tests.worlds.queue import CrashFiles, run_followers
from tests.worlds.queue.ledger import moment
from tests.worlds.queue.mutants import MUTANTS
from tests.worlds.queue.world import run_world

from holdfast.errors import Unavailable
from holdfast.queue import Queue
from holdfast.queue.queue import core_of

PAGE_BYTES = 4096


class Disk:
    """A queue on files whose operations are refused on demand, under a clock that is set by hand."""

    def __init__(self) -> None:
        self.files = CrashFiles(Random(1))
        self.now_ns = 1_000_000_000
        self.page_bytes = PAGE_BYTES
        self.refused = ""
        self.files.refuse = lambda operation, name: (
            OSError(errno.EIO, name) if self.refused and f"{operation} {name}".startswith(self.refused) else None
        )

    def open(self) -> Queue:
        return Queue("d/q", page_size=self.page_bytes, files=self.files, clock=lambda: self.now_ns, background=False)

    def lose_power(self) -> None:
        self.files = self.files.after_power_loss(Random(2))


def payloads(queue: Queue) -> list[bytes]:
    return [message.payload for message in queue.read()]


def test_no_message_is_earlier_than_its_page_after_a_refused_write_and_a_clock_that_went_back() -> None:
    disk = Disk()
    queue = disk.open()
    queue.append(b"a" * 1000)
    disk.now_ns = 9_000_000_000
    writes = itertools.count(1)
    disk.files.refuse = lambda operation, name: (
        OSError(errno.EIO, name)
        # The header when the page is made, the header when it is begun, and then the frame.
        if operation == "write" and name.startswith("q-2.page") and next(writes) == 3
        else None
    )
    with pytest.raises(Unavailable):
        queue.append(b"larger than a page" * 1000)
    disk.files.refuse = None
    disk.now_ns = 2_000_000_000
    queue.append_many([b"e" * 1000])
    queue.flush()
    expected = payloads(queue)
    assert expected[-1] == b"e" * 1000
    disk.lose_power()
    for name in disk.files.contents("d"):
        if not name.endswith(".page"):
            disk.files.set_content("d", name, None)
    with disk.open() as again:
        assert payloads(again) == expected


def test_a_page_whose_name_was_taken_by_one_that_failed_is_not_written_to() -> None:
    disk = Disk()
    queue = disk.open()
    queue.append(b"a" * 3000)
    core_of(queue).run_background_work()  # the next page is made ahead
    disk.files.before = lambda operation: setattr(disk, "refused", operation if operation == "sync directory" else "")
    with pytest.raises(Unavailable):
        queue.append(b"larger than a page" * 1000)
    disk.files.before, disk.refused = None, ""
    queue.append(b"b" * 2000)
    disk.files = disk.files.after_kill(Random(3))
    with disk.open() as again:
        assert payloads(again) == [b"a" * 3000, b"b" * 2000]


def test_messages_and_flushes_succeed_while_the_mark_cannot_be_written() -> None:
    disk = Disk()
    queue = disk.open()
    queue.append(b"0" * 100)  # the first after an opening says durably that the queue is open
    disk.refused = "write q-writeMeta"
    for number in range(1, 50):
        assert queue.append(b"%d" % number * 100) == number + 1
    queue.flush()
    disk.lose_power()
    with disk.open() as again:
        assert payloads(again) == [b"%d" % number * 100 for number in range(50)]


def test_a_page_that_lost_its_end_is_not_read_beyond_it_through_its_index() -> None:
    """A start closed a page before frames that its index still named: reading since a time delivered them."""
    disk = Disk()
    disk.page_bytes = 65_536
    with disk.files.quiet():
        queue = disk.open()
        queue.append(b"durable")
        queue.flush()
        for number in range(30):
            disk.now_ns += 1_000_000
            queue.append_many([b"%d" % number * 500, b"second"])
        cached = disk.files.contents("d")
    disk.lose_power()
    hole = 4096 * 2
    page = cached["q-1.page"]
    disk.files.set_content("d", "q-1.page", page[:hole] + bytes(4096) + page[hole + 4096 :])
    disk.files.set_content("d", "q-1.idx", cached["q-1.idx"])
    images: list[CrashFiles] = []
    files = disk.files
    files.before = lambda operation: images.append(files.after_kill(Random(3))) if operation == "truncate" else None
    disk.open().close()
    # The SEAL is there, and so is what follows it.
    (disk.files,) = images
    with Queue("d/q", files=disk.files, read_only=True) as again:
        whole = list(again.read())
        assert 1 < len(whole) < 30
        for number in range(30):
            found = list(again.read(since=moment(1_000_000_000 + number * 1_000_000)))
            assert found == whole[len(whole) - len(found) :]


def test_the_hold_of_a_new_work_queue_survives_lost_power() -> None:
    """Its first cursor was not synced: retention took what was not done, before the work queue was opened again."""
    run_followers(100)


def test_stale_frames_of_one_size_are_not_taken_for_messages() -> None:
    """Their numbers were all wrong by the same bits and followed one another, after a hole without marks."""
    MUTANTS["no_salt"].play(4)


@pytest.mark.parametrize(
    "seed",
    [
        1222,  # a page of zeros without a record counted as unused
        4446,  # behind damage, a reader took up numbers that an opening had given out again
    ],
)
def test_these_worlds_keep_every_promise_now(seed: int) -> None:
    run_world(seed, lives=2, steps=6, damage_rounds=10)
