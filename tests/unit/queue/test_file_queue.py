"""``FileQueue`` against the standard library's ``queue.Queue``: the same answers, and nothing lost with the process."""

from __future__ import annotations

import queue as standard
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Closed
from holdfast.queue import FileQueue


@given(st.lists(st.sampled_from(("put", "get", "done")), max_size=40), st.integers(0, 3))
def test_it_answers_as_the_standard_class(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], maxsize: int
) -> None:
    expected: standard.Queue[object] = standard.Queue(maxsize)
    with FileQueue(tmp_path_factory.mktemp("d") / "q", maxsize, serializer="json") as found:
        got = 0
        for number, step in enumerate(steps):
            if step == "done" and not got:
                with pytest.raises(ValueError, match="too many times"):
                    found.task_done()  # the standard class would count an item that nobody got
                continue
            answers: list[object] = []
            for one in (expected, found):
                try:
                    if step == "put":
                        answers.append(one.put(number, block=number % 2 == 0, timeout=0.0))
                    elif step == "get":
                        answers.append(one.get(block=number % 2 == 0, timeout=0.0))
                    else:
                        answers.append(one.task_done())
                except (standard.Full, standard.Empty, ValueError) as error:
                    answers.append((type(error), str(error)))
                answers.append((one.qsize(), one.empty(), one.full()))
            assert answers[:2] == answers[2:]
            got += {"get": not isinstance(answers[0], tuple), "done": -1, "put": 0}[step]


def test_a_timeout_below_zero_is_refused_as_there(tmp_path: Path) -> None:
    with FileQueue(tmp_path / "q", maxsize=1) as tasks:
        with pytest.raises(ValueError, match="non-negative"):
            tasks.get(timeout=-1)
        with pytest.raises(ValueError, match="non-negative"):
            tasks.put(b"x", timeout=-1)
        with pytest.raises(standard.Empty):
            tasks.get_nowait()
        tasks.put_nowait(b"x")
        with pytest.raises(standard.Full):
            tasks.put_nowait(b"x")


def test_what_was_not_done_comes_again_after_a_kill_and_what_was_done_does_not(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from holdfast.queue import FileQueue\n"
        "tasks = FileQueue(sys.argv[1])\n"
        "for n in range(5): tasks.put(b'%d' % n)\n"
        "for n in range(3): tasks.get()\n"
        "tasks.task_done()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", script, tmp_path / "q"], check=False)
    with FileQueue(tmp_path / "q") as tasks:
        assert tasks.qsize() == 4
        assert [tasks.get() for _ in range(4)] == [b"1", b"2", b"3", b"4"]
        for _ in range(4):
            tasks.task_done()
        tasks.join()
    with FileQueue(tmp_path / "q") as tasks:
        assert tasks.empty()


def test_threads_put_get_and_join(tmp_path: Path) -> None:
    found: list[object] = []
    with FileQueue(tmp_path / "q", maxsize=5, serializer="json") as tasks:

        def work() -> None:
            while (item := tasks.get()) is not None:
                found.append(item)
                tasks.task_done()
            tasks.task_done()

        workers = [threading.Thread(target=work, daemon=True) for _ in range(4)]
        for worker in workers:
            worker.start()
        for number in range(300):
            tasks.put(number)
        tasks.join()
        assert sorted(map(str, found)) == sorted(map(str, range(300)))
        for _ in workers:
            tasks.put(None)
        for worker in workers:
            worker.join(60)
            assert not worker.is_alive()


def test_a_close_ends_every_wait(tmp_path: Path) -> None:
    tasks = FileQueue(tmp_path / "q", maxsize=1)
    tasks.put(b"x")
    errors: list[BaseException] = []

    def wait(call: str) -> None:
        try:
            tasks.put(b"y") if call == "put" else tasks.join()
        except Closed as error:
            errors.append(error)

    threads = [threading.Thread(target=wait, args=(call,), daemon=True) for call in ("put", "join")]
    for thread in threads:
        thread.start()
    tasks.close()
    for thread in threads:
        thread.join(60)
    assert len(errors) == 2
    with FileQueue(tmp_path / "q") as again:
        assert again.qsize() == 1


def test_a_second_process_is_shown_the_way_to_message_stores(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from holdfast.queue import Queue\n"
        "from holdfast.errors import AlreadyOpen\n"
        "try: Queue(sys.argv[1])\n"
        "except AlreadyOpen as error: print(error.hint)\n"
    )
    with FileQueue(tmp_path / "q"):
        done = subprocess.run(
            [sys.executable, "-c", script, tmp_path / "q"], capture_output=True, check=True, text=True
        )
    assert "message stores" in done.stdout
