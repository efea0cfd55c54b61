"""``FileQueue`` follows the rules of ``queue.Queue``, and keeps its items."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, Full, Queue

import pytest

from holdfast.errors import AlreadyOpen, Closed, InvalidRequest
from holdfast.queue import FileQueue

Make = Callable[[int], "Queue[object] | FileQueue"]


@pytest.fixture(params=["standard library", "files"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """One law, both kinds of queue."""
    opened: list[FileQueue] = []

    def made(maxsize: int) -> Queue[object] | FileQueue:
        if request.param == "standard library":
            return Queue(maxsize)
        opened.append(FileQueue(tmp_path / "q", maxsize))
        return opened[-1]

    yield made
    for queue in opened:
        queue.close()


def test_items_come_out_in_order_of_put(make: Make) -> None:
    queue = make(0)
    for number in range(5):
        queue.put({"n": number})
    assert (queue.qsize(), queue.empty(), queue.full()) == (5, False, False)
    assert [queue.get() for _ in range(5)] == [{"n": number} for number in range(5)]
    assert (queue.qsize(), queue.empty(), queue.unfinished_tasks) == (0, True, 5)
    for _ in range(5):
        queue.task_done()
    queue.join()
    assert queue.unfinished_tasks == 0


def test_get_without_an_item_raises_empty(make: Make) -> None:
    queue = make(0)
    for get in (queue.get_nowait, lambda: queue.get(False), lambda: queue.get(timeout=0.01)):
        with pytest.raises(Empty):
            get()
    with pytest.raises(ValueError, match="non-negative"):
        queue.get(timeout=-1)


def test_put_above_maxsize_raises_full_until_get(make: Make) -> None:
    queue = make(2)
    queue.put(1)
    queue.put(2)
    assert queue.full()
    for put in (queue.put_nowait, lambda item: queue.put(item, False), lambda item: queue.put(item, timeout=0.01)):
        with pytest.raises(Full):
            put(3)
    with pytest.raises(ValueError, match="non-negative"):
        queue.put(3, timeout=-1)
    assert queue.get() == 1  # maxsize counts items that wait for get, not items without task_done
    queue.put_nowait(3)
    assert (queue.qsize(), queue.unfinished_tasks) == (2, 3)


def test_task_done_without_get_raises_value_error(make: Make) -> None:
    queue = make(0)
    with pytest.raises(ValueError, match="task_done"):
        queue.task_done()


def test_put_waits_for_room_and_get_for_an_item(make: Make) -> None:
    queue, got = make(1), list[object]()

    def consume() -> None:
        while (item := queue.get()) is not None:
            got.append(item)
            queue.task_done()
        queue.task_done()

    consumer = threading.Thread(target=consume)
    consumer.start()
    for number in range(200):
        queue.put(number)
    queue.put(None)
    queue.join()
    consumer.join()
    assert got == list(range(200))


def test_many_threads_never_exceed_maxsize_and_lose_nothing(tmp_path: Path) -> None:
    queue, got, sizes = FileQueue(tmp_path / "q", 3), list[object](), list[int]()

    def produce(first: int) -> None:
        for number in range(first, first + 100):
            queue.put(number)
            sizes.append(queue.qsize())

    def consume() -> None:
        while (item := queue.get()) != "end":
            got.append(item)
            queue.task_done()
        queue.task_done()

    producers = [threading.Thread(target=produce, args=(100 * number,)) for number in range(3)]
    consumers = [threading.Thread(target=consume) for _ in range(3)]
    for thread in producers + consumers:
        thread.start()
    for thread in producers:
        thread.join()
    for _ in consumers:
        queue.put("end")
    queue.join()
    for thread in consumers:
        thread.join()
    queue.close()
    assert sorted(got) == list(range(300))  # type: ignore[type-var]
    assert max(sizes) <= 3


def test_items_without_task_done_come_back_first_after_a_kill(tmp_path: Path) -> None:
    import subprocess
    import sys

    program = (
        "import os, sys; from holdfast.queue import FileQueue\n"
        "q = FileQueue(sys.argv[1])\n"
        "for n in range(6): q.put(n)\n"
        "for n in range(4): q.get()\n"
        "q.task_done(); q.task_done()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path / "q")], check=False).returncode == -9
    with FileQueue(tmp_path / "q") as queue:
        assert (queue.qsize(), queue.unfinished_tasks) == (4, 4)
        queue.put(6)
        assert [queue.get(block=False) for _ in range(5)] == [2, 3, 4, 5, 6]
        queue.task_done()
    with FileQueue(tmp_path / "q") as queue:
        assert [queue.get(block=False) for _ in range(4)] == [3, 4, 5, 6]


def test_a_second_opening_is_refused_and_close_ends_waiting(tmp_path: Path) -> None:
    queue = FileQueue(tmp_path / "q")
    with pytest.raises(AlreadyOpen):
        FileQueue(tmp_path / "q")
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            queue.get()
        except Closed as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    queue.close()
    queue.close()
    thread.join()
    assert len(raised) == 1
    for call in (queue.get, queue.qsize, queue.join, lambda: queue.put(1)):
        with pytest.raises(Closed):
            call()


def test_bad_arguments_are_refused_before_a_file_is_made(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="maxsize"):
        FileQueue(tmp_path / "q", "3")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="serializer"):
        FileQueue(tmp_path / "q", serializer="yaml")
    assert not list(tmp_path.iterdir())


def test_an_item_that_cannot_be_written_is_not_put(tmp_path: Path) -> None:
    with FileQueue(tmp_path / "q", 2) as queue:
        with pytest.raises(TypeError):
            queue.put(object())
        assert queue.empty()
