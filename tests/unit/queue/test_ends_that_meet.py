"""What ends on a thread that is in the middle of something, or that another end waits for, ends all the same.

Each call that could wait for itself runs on a thread of its own, which is left behind where it does.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import Closed
from holdfast.queue import Queue
from holdfast.queue.files.local import LocalFiles
from holdfast.queue.queue import core_of

PATIENCE_S = 60.0
PAGE_BYTES = 64 << 10


def ends(work: Callable[[], object]) -> None:
    """Run it, and fail where it waits for ever; raises nothing of it."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it waits for ever"


def test_an_iterator_may_end_where_its_thread_holds_the_lock_of_the_log(tmp_path: Path) -> None:
    """The collector ends what is in a cycle, on whatever thread it runs, wherever that is."""
    with Queue(tmp_path / "q") as queue:
        queue.append(b"x")
        cycle: list[object] = [queue.read(follow=True)]
        assert next(cycle[0]).seq == 1  # type: ignore[call-overload]
        cycle.append(cycle)
        assert core_of(queue)._writer is not None
        lock = core_of(queue)._writer.tail.lock

        def collect() -> None:
            with lock:
                cycle.clear()
                gc.collect()

        ends(collect)
        assert queue.append(b"y") == 2


def test_a_listener_that_is_taken_back_by_another_hides_nobody(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue:
        queue.append(b"x")
        writer = core_of(queue)._writer
        assert writer is not None
        told: list[str] = []
        second, third = (lambda: told.append("second")), (lambda: told.append("third"))

        def first() -> None:
            told.append("first")
            writer.notify_no_more(second)

        for listener in (first, second, third):
            writer.notify_once(listener)
        queue.append(b"y")
        assert told[0] == "first"
        assert told[-1] == "third"


def test_a_callback_for_damage_may_close_a_queue_that_another_thread_closes(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", page_size=PAGE_BYTES) as queue:
        for number in range(100):
            queue.append(b"%05d" % number * 40)
    page = tmp_path / "q-1.page"
    data = bytearray(page.read_bytes())
    at = data.index(b"%05d" % 50 * 40)
    data[at : at + 40] = b"#" * 40
    page.write_bytes(data)
    queue = Queue(tmp_path / "q", page_size=PAGE_BYTES)
    told, closing = threading.Event(), threading.Event()

    def damage(_: object) -> None:
        told.set()
        assert closing.wait(PATIENCE_S)
        queue.close()

    consumer = queue.consumer("c", damage=damage)
    met: list[type[BaseException]] = []

    def read() -> None:
        try:
            list(consumer)
        except Closed as error:
            met.append(type(error))

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    assert told.wait(PATIENCE_S)
    others = threading.Thread(target=queue.close, daemon=True)
    others.start()
    others.join(0.1)  # by now it waits for the one that reads
    closing.set()
    reading.join(PATIENCE_S)
    others.join(PATIENCE_S)
    assert not reading.is_alive()
    assert not others.is_alive()
    assert met == [Closed]


def test_a_handler_of_a_signal_may_close_a_queue_that_its_thread_closes(tmp_path: Path) -> None:
    class Interrupted(LocalFiles):
        def sync_data(self, file: int) -> None:
            super().sync_data(file)
            if armed:
                armed.clear()
                signal.raise_signal(signal.SIGUSR1)

    armed: list[bool] = []
    queue = Queue(tmp_path / "q", files=Interrupted(), background=False)
    queue.append(b"x")
    before = signal.signal(signal.SIGUSR1, lambda *_: queue.close())
    try:
        armed.append(True)
        queue.close()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not armed
    with Queue(tmp_path / "q", background=False) as found:
        assert found.last_seq == 1


@pytest.mark.parametrize("read_only", [False, True])
def test_a_forked_child_may_close_a_queue_that_its_parent_has_closed(tmp_path: Path, read_only: bool) -> None:
    with Queue(tmp_path / "q", background=False) as queue:
        queue.append(b"x")
    queue = Queue(tmp_path / "q", background=False, read_only=read_only)
    queue.close()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            queue.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
