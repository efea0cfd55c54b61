"""The buffer before a writer and the helper thread beside it: each message once, under the number that was told,
whatever is refused, interrupted or closed meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import Backpressure, Closed
from holdfast.queue import Queue
from holdfast.queue.background import Background
from holdfast.queue.writer import Writer

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


def test_what_waits_is_written_once_although_a_full_queue_cut_it(tmp_path: Path) -> None:
    with nearly_full(tmp_path / "q", "buffered") as queue, queue.consumer("c") as consumer:
        first, last = queue.append_many(TWO_FRAMES)
        with pytest.raises(Backpressure):
            queue.flush()
        while consumer.poll():
            consumer.commit()
        queue.flush()
        assert (queue.last_seq, last - first) == (last, 4999)
        assert [message.payload for message in queue.read(seq=first)] == TWO_FRAMES


@pytest.mark.parametrize("atomic", [False, True])
def test_who_is_refused_because_of_what_waited_is_told_that_none_of_its_own_is_there(
    tmp_path: Path, atomic: bool
) -> None:
    with nearly_full(tmp_path / "q", "buffered") as queue, queue.consumer("c") as consumer:
        first, _ = queue.append_many(TWO_FRAMES)
        mine = [b"mine"] * 700
        with pytest.raises(Backpressure) as refused:
            queue.append_many(mine, atomic=atomic)
        assert not refused.value.fields.get("appended")
        while consumer.poll():
            consumer.commit()
        queue.flush()
        assert [message.payload for message in queue.read(seq=first)] == TWO_FRAMES


@pytest.mark.parametrize("behind", ["a frame", "everything"])
def test_an_interrupted_write_of_the_buffer_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: str
) -> None:
    sent = [b"%d" % number for number in range(5)]
    with Queue(tmp_path / "q", sync="buffered", background=False) as queue:
        for payload in sent:
            queue.append(payload)
        writer: Any = queue._writer
        if behind == "a frame":  # written and not published yet
            interrupting(monkeypatch, type(writer._tail), "_move")
        else:
            interrupting(monkeypatch, Writer, "_after_append")
        with pytest.raises(KeyboardInterrupt):
            queue.flush()
        assert queue.append(b"5") == 6
        queue.flush()
        assert [message.payload for message in queue.read()] == [*sent, b"5"]


def interrupting(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """Once, in the place of that method."""

    def interrupted(*_: object, **__: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, interrupted)


def test_an_atomic_batch_is_behind_what_waits_and_before_what_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Queue(tmp_path / "q", sync="buffered", background=False) as queue:
        queue.append(b"one")
        real: Callable[..., tuple[int, int]] = Writer.append_many
        told: list[int] = []
        other = threading.Thread(target=lambda: told.append(queue.append(b"four")))

        def append_many(self: Writer, payloads: list[bytes], *, atomic: bool) -> tuple[int, int]:
            if atomic:
                other.start()
                other.join(0.2)  # it waits for its turn
            return real(self, payloads, atomic=atomic)

        monkeypatch.setattr(Writer, "append_many", append_many)
        assert queue.append_many([b"two", b"three"], atomic=True) == (2, 3)
        other.join()
        assert told == [4]
        assert [message.payload for message in queue.read()][:3] == [b"one", b"two", b"three"]


def test_what_comes_while_the_buffer_is_closed_is_refused_and_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(tmp_path / "q", sync="buffered", background=False)
    queue.append(b"one")
    append = queue.append  # as a thread has it that was about to call it
    real: Callable[[Writer], None] = Writer.close
    answers: list[object] = []

    def close(self: Writer) -> None:
        try:
            answers.append(append(b"two"))
        except Closed as refused:
            answers.append(refused)
        real(self)

    monkeypatch.setattr(Writer, "close", close)
    queue.close()
    assert isinstance(answers[0], Closed)
    with Queue(tmp_path / "q", read_only=True) as again:
        assert [message.payload for message in again.read()] == [b"one"]


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
