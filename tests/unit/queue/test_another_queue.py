"""Deleted, made again, copied, replaced: what a queue's positions are of when its directory is another one.

All that the product remembers of a queue between two calls is in files of the same directory, so it goes with the
queue. What Spark remembers elsewhere has the queue's id and the message's time (``tests/spark/test_queue_source.py``).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.queue import Queue
from holdfast.queue.queue import core_of


def filled(path: Path, word: bytes) -> None:
    """Five messages, of which a consumer has committed three, and a work queue's worker has done three."""
    with Queue(path) as queue:
        queue.append_many([word + b" %d" % number for number in range(1, 6)])
        with queue.consumer("billing") as consumer, queue.work_queue("mail") as work:
            messages = [message for message in consumer if message.seq <= 3]
            consumer.commit(messages[-1])
            for _ in range(3):
                job = work.get(timeout=5)
                assert job is not None
                work.ack(job)


def rest(path: Path) -> tuple[list[bytes], list[bytes]]:
    """What is left to the consumer and to the workers."""
    with Queue(path) as queue, queue.consumer("billing") as consumer, queue.work_queue("mail") as work:
        jobs = iter(lambda: work.get(timeout=0), None)
        return [message.payload for message in consumer], [job.payload for job in jobs]


def made_again(folder: Path) -> None:
    shutil.rmtree(folder)
    with Queue(folder / "q") as queue:
        queue.append_many([b"new 1", b"new 2", b"new 3", b"new 4", b"new 5"])


def restored(folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(folder.with_name("copy"), folder)


def replaced(folder: Path) -> None:
    filled(folder.with_name("other") / "q", b"other")
    shutil.rmtree(folder)
    folder.with_name("other").rename(folder)


EVENTS: dict[Callable[[Path], None], list[bytes]] = {
    made_again: [b"new 1", b"new 2", b"new 3", b"new 4", b"new 5"],
    restored: [b"old 4", b"old 5"],
    replaced: [b"other 4", b"other 5"],
}


@pytest.mark.parametrize("event", EVENTS)
def test_positions_of_consumers_and_workers_go_with_the_files_of_their_queue(
    tmp_path: Path, event: Callable[[Path], None]
) -> None:
    folder = tmp_path / "queue"
    filled(folder / "q", b"old")
    shutil.copytree(folder, tmp_path / "copy")
    with Queue(folder / "q") as queue:  # goes on after the copy was made
        queue.append(b"old 6")
        with queue.consumer("billing") as consumer:
            consumer.commit(list(consumer)[-1])
    event(folder)
    assert rest(folder / "q") == (EVENTS[event], EVENTS[event])


def test_a_consumer_that_is_open_while_its_directory_is_replaced_takes_nothing_of_the_new_queue(tmp_path: Path) -> None:
    folder = tmp_path / "queue"
    filled(folder / "q", b"old")
    with Queue(folder / "q") as queue, queue.consumer("billing") as consumer, queue.work_queue("mail") as work:
        folder.rename(tmp_path / "away")
        filled(folder / "q", b"new")
        assert [message.payload for message in consumer] == [b"old 4", b"old 5"]
        consumer.commit()
        job = work.get(timeout=5)
        assert job is not None and job.payload == b"old 4"
        work.ack(job)
    assert rest(folder / "q") == ([b"new 4", b"new 5"], [b"new 4", b"new 5"])
    assert rest(tmp_path / "away" / "q") == ([], [b"old 5"])


def test_each_queue_has_an_id_of_its_own_and_a_copy_has_that_of_its_source(tmp_path: Path) -> None:
    folder, ids = tmp_path / "queue", []
    for _ in range(2):
        filled(folder / "q", b"old")
        with Queue(folder / "q") as queue:
            ids.append(core_of(queue).identity.queue_id)
        shutil.copytree(folder, tmp_path / "copy", dirs_exist_ok=True)
        shutil.rmtree(folder)
    assert ids[0] != ids[1]
    with Queue(tmp_path / "copy" / "q") as queue:
        assert core_of(queue).identity.queue_id == ids[1]
