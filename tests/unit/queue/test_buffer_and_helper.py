"""The buffer before a writer and the helper thread beside it: each message once, under the number that was told,
whatever is refused, interrupted or closed meanwhile."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.errors import Backpressure
from holdfast.queue import Queue
from holdfast.queue.files.process import Background

PAGE = 128 << 10
TWO_FRAMES = [b"%08d" % number for number in range(5000)]
"""4,096 messages and 904."""


def nearly_full(path: Path, sync: str) -> Queue:
    """There is room for one of two frames."""
    queue = Queue(path, page_size=PAGE, max_bytes=2 * PAGE, full="raise", sync=sync, background=False)
    for count in (200, 186):
        queue.append_many([bytes(408)] * count)
        queue.flush()
    return queue


def test_a_batch_that_a_full_queue_cuts_says_how_much_of_it_is_there(tmp_path: Path) -> None:
    with nearly_full(tmp_path / "q", "os") as queue, queue.consumer("c"):
        before = queue.last_seq
        with pytest.raises(Backpressure) as refused:
            queue.append_many(TWO_FRAMES)
        assert refused.value.fields["appended"] == queue.last_seq - before == 4096


def interrupting(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """Once, in the place of that method."""

    def interrupted(*_: object, **__: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, interrupted)


def test_the_first_wakes_of_two_threads_start_one_helper_and_stopping_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[threading.Thread] = []
    real = threading.Thread.start
    both = threading.Barrier(2)

    def start(self: threading.Thread) -> None:
        if self.name == "holdfast-queue":
            started.append(self)
        real(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    for _ in range(50):
        started.clear()
        worked = threading.Event()
        background = Background(worked.set, None)

        def wake(background: Background = background) -> None:
            both.wait()
            background.wake()

        wakers = [threading.Thread(target=wake) for _ in range(2)]
        for waker in wakers:
            waker.start()
        for waker in wakers:
            waker.join()
        assert worked.wait(60)
        background.stop()
        assert len(started) == 1 and not started[0].is_alive()


def test_stopping_waits_for_a_helper_that_is_being_started(monkeypatch: pytest.MonkeyPatch) -> None:
    made, go_on = threading.Event(), threading.Event()
    real = threading.Thread.start

    def start(self: threading.Thread) -> None:
        if self.name == "holdfast-queue":
            made.set()
            go_on.wait(60)
        real(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    background = Background(lambda: None, None)
    waker = threading.Thread(target=background.wake)
    waker.start()
    assert made.wait(60)
    stopper = threading.Thread(target=background.stop)
    stopper.start()
    go_on.set()
    for thread in (waker, stopper):
        thread.join(60)
        assert not thread.is_alive()
    assert not [one for one in threading.enumerate() if one.name == "holdfast-queue"]


def test_a_message_that_is_in_the_log_is_not_refused_because_the_system_has_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with Queue(tmp_path / "q", page_size=4096) as queue:
        monkeypatch.setattr(threading.Thread, "start", no_thread)
        for number in range(100):
            assert queue.append(b"%0100d" % number) == number + 1
        monkeypatch.undo()
        assert len(list(queue.read())) == 100


def test_an_opening_without_the_thread_that_its_level_needs_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    with pytest.raises(RuntimeError, match="thread"):
        Queue(tmp_path / "q", lifetime=timedelta(days=1))
    monkeypatch.undo()
    with Queue(tmp_path / "q", lifetime=timedelta(days=1)) as queue:
        assert queue.append(b"a") == 1
