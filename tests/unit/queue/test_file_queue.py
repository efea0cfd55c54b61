"""``FileQueue`` against the standard library's ``queue.Queue``: the same answers, and nothing lost with the process."""

from __future__ import annotations

import queue as standard
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.queue.line_interrupts import interrupted

from holdfast.errors import Closed, Code, HoldfastError, Unavailable
from holdfast.queue import FileQueue, Queue, Serializer
from holdfast.queue.files.local import LocalFiles
from holdfast.queue.work.log import WorkLog
from holdfast.queue.work.work_queue import WorkQueue

CALLS: dict[str, Callable[[FileQueue], object]] = {
    "put": lambda tasks: tasks.put(b"d"),
    "get": lambda tasks: tasks.get_nowait(),
    "task_done": lambda tasks: tasks.task_done(),
}


def in_a_thread(call: Callable[[], object]) -> list[object]:
    """The result, or the error, of a call that must end."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(call())
        except HoldfastError as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    return found


def drained(tasks: FileQueue) -> list[object]:
    """What is left, in order; everything that was got is done afterwards."""
    found: list[object] = []
    with suppress(standard.Empty):
        while True:
            found.append(tasks.get_nowait())
    with suppress(ValueError):
        while True:
            tasks.task_done()
    return found


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


def got(tasks: FileQueue, count: int) -> list[object]:
    return [tasks.get_nowait() for _ in range(count)]


@pytest.mark.parametrize("first", [1, 2, 3])
def test_items_that_are_not_done_come_in_order_at_each_opening(tmp_path: Path, first: int) -> None:
    with FileQueue(tmp_path / "q", serializer="json") as tasks:
        for number in range(1, 5):
            tasks.put(number)
        assert got(tasks, 3) == [1, 2, 3]
    for _ in range(2):
        with FileQueue(tmp_path / "q") as tasks:
            assert got(tasks, first) == [1, 2, 3][:first]
    with FileQueue(tmp_path / "q") as tasks:
        assert drained(tasks) == [1, 2, 3, 4]


def test_items_come_in_order_after_kills_that_follow_each_other(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from holdfast.queue import FileQueue\n"
        "tasks = FileQueue(sys.argv[1], serializer='json')\n"
        "if tasks.empty():\n"
        "    for number in range(1, 5): tasks.put(number)\n"
        "print([tasks.get() for _ in range(int(sys.argv[2]))], flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    found = []
    for count in (3, 1, 4):
        run = [sys.executable, "-c", script, str(tmp_path / "q"), str(count)]
        found.append(subprocess.run(run, capture_output=True, check=False, text=True).stdout.strip())
    assert found == ["[1, 2, 3]", "[1]", "[1, 2, 3, 4]"]


def test_an_item_that_another_program_returns_keeps_its_delay_and_its_place(tmp_path: Path) -> None:
    with FileQueue(tmp_path / "q", serializer="json") as tasks:
        for number in range(1, 5):
            tasks.put(number)
    with Queue(tmp_path / "q") as queue, queue.work_queue("tasks") as work:
        for job, delay in zip(work.get_many(3), (3_600, 0, 0), strict=True):
            work.nack(job, delay=delay)
    with FileQueue(tmp_path / "q") as tasks:
        assert got(tasks, 1) == [2]
        clock = tasks._work._clock
        clock.not_before(clock() + 3_600 * 10**9)
        assert drained(tasks) == [1, 3, 4]


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


@pytest.mark.parametrize("sync", ["os", "always"])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_is_interrupted_at_any_line_loses_and_repeats_nothing(tmp_path: Path, name: str, sync: str) -> None:
    line, more = 0, True
    with FileQueue(tmp_path / "q", maxsize=9, sync=sync) as tasks:
        while more:
            for item in (b"a", b"b", b"c"):
                tasks.put(item)
            assert tasks.get() == b"a"
            more = interrupted(lambda: CALLS[name](tasks), line)
            found = drained(tasks)
            if name == "put":
                assert found in ([b"b", b"c"], [b"b", b"c", b"d"])
            else:
                # The caller has an item only if the call returned.
                assert found == ([b"b", b"c"] if more or name == "task_done" else [b"c"])
            assert in_a_thread(tasks.join) == [None]
            assert (tasks.qsize(), tasks._got, tasks._loading, tasks._cut_off) == (0, {}, {}, [])
            line += 1
    with FileQueue(tmp_path / "q") as again:
        assert again.empty()
    assert line > 15


def cut_off_the_next_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next command of a work queue is written, and an interrupt comes before it is applied."""
    record = WorkLog.record

    def cut_off(log: WorkLog, command: bytes) -> None:
        monkeypatch.setattr(WorkLog, "record", record)
        record(log, command)
        raise KeyboardInterrupt

    monkeypatch.setattr(WorkLog, "record", cut_off)


@pytest.mark.parametrize("name", ["get", "task_done"])
def test_after_a_command_was_cut_off_the_queue_goes_on_without_a_new_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with FileQueue(tmp_path / "q") as tasks:
        for item in (b"a", b"b", b"c"):
            tasks.put(item)
        assert tasks.get() == b"a"
        cut_off_the_next_command(monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            CALLS[name](tasks)
        tasks.put(b"d")
        assert drained(tasks) == [b"b", b"c", b"d"]
        assert in_a_thread(tasks.join) == [None]
    with FileQueue(tmp_path / "q") as again:
        assert again.empty()


def test_a_command_that_was_cut_off_and_cannot_be_read_again_ends_every_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FileQueue(tmp_path / "q", maxsize=1) as tasks:
        tasks.put(b"a")
        ended: list[object] = []
        joining = threading.Thread(target=lambda: ended.extend(in_a_thread(tasks.join)), daemon=True)
        joining.start()
        cut_off_the_next_command(monkeypatch)
        with monkeypatch.context() as broken:
            broken.setattr(WorkQueue, "_open", lambda *_: (_ for _ in ()).throw(Unavailable("the disk is full")))
            with pytest.raises(KeyboardInterrupt):
                tasks.get()
        joining.join(60)
        assert isinstance(ended[0], Closed)
        for call in (lambda: tasks.put(b"b"), tasks.get, tasks.task_done, tasks.join):
            with pytest.raises(Closed) as refused:
                call()
            assert refused.value.hint == "close this FileQueue and open it again"
    with FileQueue(tmp_path / "q") as again:
        assert drained(again) == [b"a"]


def test_a_failed_sync_ends_every_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = FileQueue(tmp_path / "q", sync="always")
    tasks.put(b"a")

    def fail(files: LocalFiles, file: int) -> None:
        raise OSError(5, "input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(LocalFiles, "sync_data", fail)
        with pytest.raises(Closed):
            tasks.put(b"b")
    for call in (tasks.join, lambda: tasks.put(b"c"), tasks.get, tasks.qsize):
        found = in_a_thread(call)
        assert isinstance(found[0], Closed)
        assert found[0].code is Code.SYNC_FAILED
    with pytest.raises(Closed):
        tasks.close()


def test_an_item_that_cannot_be_loaded_is_not_got_and_stays_the_oldest(tmp_path: Path) -> None:
    number = Serializer(lambda value: str(value).encode(), int, "number")
    with FileQueue(tmp_path / "q", serializer=number) as tasks:
        for item in ("bad", 2, 3):
            tasks.put(item)
        for _ in range(2):
            with pytest.raises(ValueError, match="invalid literal"):
                tasks.get()
            assert tasks.qsize() == 3
            with pytest.raises(ValueError, match="too many times"):
                tasks.task_done()
    # What the reference says to do about it.
    with Queue(tmp_path / "q", serializer=number) as queue, queue.work_queue("tasks") as work:
        job = work.get(timeout=0)
        assert job is not None
        work.dead_letter(job, "cannot be loaded")
        assert [letter.payload for letter in work.dead_letters()] == [b"bad"]
    with FileQueue(tmp_path / "q", serializer=number) as tasks:
        assert drained(tasks) == [2, 3]


def test_an_item_that_cannot_be_loaded_is_the_next_job_after_restarts(tmp_path: Path) -> None:
    """So what the reference says to do about it hits this item, not one that waited for longer."""
    number = Serializer(lambda value: str(value).encode(), int, "number")
    failing = Serializer(number.dump, lambda payload: int(payload.replace(b"1", b"bad")), "number")
    with FileQueue(tmp_path / "q", serializer=number) as tasks:
        for item in (1, 2, 3):
            tasks.put(item)
        assert got(tasks, 3) == [1, 2, 3]
    with FileQueue(tmp_path / "q", serializer=failing) as tasks:
        for _ in range(3):
            with pytest.raises(ValueError, match="invalid literal"):
                tasks.get()
    with Queue(tmp_path / "q", serializer=number) as queue, queue.work_queue("tasks") as work:
        job = work.get(timeout=0)
        assert job is not None
        assert job.seq == 1
        work.dead_letter(job, "cannot be loaded")
    with FileQueue(tmp_path / "q", serializer=number) as tasks:
        assert drained(tasks) == [2, 3]


def test_at_always_a_sync_is_shared_and_a_get_does_not_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncing, go_on = threading.Event(), threading.Event()
    real = LocalFiles.sync_data
    syncs: list[int] = []

    def sync(files: LocalFiles, file: int) -> None:
        syncs.append(file)
        syncing.set()
        assert go_on.wait(60)
        real(files, file)

    with FileQueue(tmp_path / "q", sync="always") as tasks:
        tasks.put(b"")  # the first after an opening syncs a mark, too
        tasks.get()
        monkeypatch.setattr(LocalFiles, "sync_data", sync)
        putters = [threading.Thread(target=tasks.put, args=(b"%d" % n,), daemon=True) for n in range(8)]
        putters[0].start()
        assert syncing.wait(60)
        for putter in putters[1:]:
            putter.start()
        found: list[object] = []
        for _ in putters:
            found += in_a_thread(tasks.get)
        assert sorted(map(str, found)) == sorted(str(b"%d" % n) for n in range(8))
        assert all(putter.is_alive() for putter in putters)
        go_on.set()
        for putter in putters:
            putter.join(60)
            assert not putter.is_alive()
        assert len(syncs) <= 3


def test_every_method_is_closed_after_close(tmp_path: Path) -> None:
    tasks = FileQueue(tmp_path / "q")
    tasks.put(b"a")
    tasks.get()
    tasks.close()
    calls: list[Callable[[], object]] = [
        lambda: tasks.put(b"b"),
        lambda: tasks.put_nowait(b"b"),
        tasks.get,
        tasks.get_nowait,
        tasks.task_done,
        tasks.join,
        tasks.qsize,
        tasks.empty,
        tasks.full,
    ]
    for call in calls:
        with pytest.raises(Closed):
            call()
    tasks.close()


def test_a_forked_child_is_refused_although_a_thread_of_the_parent_holds_the_mutex(tmp_path: Path) -> None:
    script = (
        "import os, sys, threading\n"
        "from holdfast.errors import Closed\n"
        "from holdfast.queue import FileQueue\n"
        "tasks = FileQueue(sys.argv[1])\n"
        "held, over = threading.Event(), threading.Event()\n"
        "def hold():\n"
        "    with tasks._mutex: held.set(); over.wait()\n"
        "thread = threading.Thread(target=hold); thread.start(); held.wait()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try: tasks.qsize()\n"
        "    except Closed as error: os._exit(3 if error.code == 'forked' else 1)\n"
        "    os._exit(2)\n"
        "status = os.waitpid(child, 0)[1]; over.set(); thread.join()\n"
        "assert os.waitstatus_to_exitcode(status) == 3, status\n"
        "tasks.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path / "q"], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
