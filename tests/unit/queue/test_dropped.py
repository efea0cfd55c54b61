"""What is dropped without ``close`` is closed, with a warning, and can be opened again at once."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.aio import Queue as AsyncQueue
from holdfast.errors import AlreadyOpen, Closed, Unavailable
from holdfast.queue import Queue
from holdfast.queue.files import process
from holdfast.queue.files.process import _Closer
from holdfast.queue.log.messages import Message
from holdfast.queue.queue import core_of


@pytest.mark.parametrize("lifetime", [None, timedelta(days=1)], ids=["", "with a helper thread"])
def test_a_dropped_queue_can_be_opened_again_and_its_messages_are_durable(
    tmp_path: Path, lifetime: timedelta | None
) -> None:
    gc.disable()  # no cycle keeps it
    try:
        queue = Queue(tmp_path / "q", page_size=4096, lifetime=lifetime)
        for _ in range(100):
            queue.append(b"x" * 100)
        with pytest.warns(ResourceWarning, match=r"q was not closed; it was opened at .*test_dropped\.py:\d+"):
            del queue
        with Queue(tmp_path / "q") as again:
            assert (again.last_seq, again.durable_seq, core_of(again).recovered) == (100, 100, [])
    finally:
        gc.enable()


def test_a_queue_of_a_reader_is_dropped_without_a_warning(tmp_path: Path) -> None:
    Queue(tmp_path / "q").close()
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(20):
        assert Queue(tmp_path / "q", read_only=True).last_seq == 0
    with Queue(tmp_path / "q"):
        pass
    assert not before or len(os.listdir("/proc/self/fd")) <= before + 1


def test_a_dropped_consumer_and_a_dropped_work_queue_can_be_opened_again(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue:
        queue.append_many([b"x"] * 9)
        consumer, work = queue.consumer("c"), queue.work_queue("w", ack_wait=0)
        consumer.commit(consumer.poll(max_messages=4)[-1])
        job = work.get()
        assert job is not None
        with pytest.warns(ResourceWarning, match="the consumer .*q-c was not closed"):
            del consumer
        with pytest.warns(ResourceWarning, match="the work queue .*q-w was not closed"):
            del work
        with queue.consumer("c") as again, queue.work_queue("w") as work_again:
            assert again.poll()[0].seq == 5
            assert sorted(job.seq for job in work_again.get_many(20)) == list(range(1, 10))


def test_a_dropped_queue_of_the_twin_can_be_opened_again(tmp_path: Path) -> None:
    async def main() -> None:
        queue = await AsyncQueue(tmp_path / "q").open()
        await queue.append(b"x")
        consumer = await queue.consumer("c").open()
        assert len(await consumer.poll()) == 1
        with pytest.raises(AlreadyOpen) as refused:
            await AsyncQueue(tmp_path / "q").open()
        assert "test_dropped.py:" in str(refused.value.fields["opened_at"])
        with pytest.warns(ResourceWarning):
            del consumer, queue, refused
        async with AsyncQueue(tmp_path / "q") as again:
            assert again.last_seq == 1

    asyncio.run(main())


def test_opening_twice_names_where_it_was_opened_first(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue:
        with pytest.raises(AlreadyOpen) as refused:
            Queue(tmp_path / "q")
        assert str(refused.value.fields["opened_at"]).startswith(f"{__file__}:")
        with queue.consumer("c"), pytest.raises(AlreadyOpen) as refused:
            queue.consumer("c")
        assert str(refused.value.fields["opened_at"]).startswith(f"{__file__}:")


def test_a_finalizer_in_a_thread_that_holds_every_lock_of_the_queue_does_not_wait(tmp_path: Path) -> None:
    queue = Queue(tmp_path / "q")
    append: Callable[[bytes], int] = queue.append
    writer = core_of(queue)._writer
    assert writer is not None
    dropped = threading.Event()

    def drop() -> None:
        nonlocal queue
        with writer._slow_turn, writer.tail.lock:
            with pytest.warns(ResourceWarning):
                del queue
            dropped.set()

    thread = threading.Thread(target=drop, daemon=True)
    thread.start()
    assert dropped.wait(60)
    thread.join(60)
    with Queue(tmp_path / "q") as again:
        again.append(b"x")
        with pytest.raises(Closed):
            append(b"y")


def test_a_forked_child_closes_nothing_of_its_parent(tmp_path: Path) -> None:
    script = (
        "import gc, os, sys, warnings\n"
        "warnings.simplefilter('error')\n"
        "from holdfast.queue import Queue\n"
        "queue = Queue(sys.argv[1]); consumer = queue.consumer('c'); queue.append(b'x')\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    del queue, consumer; gc.collect()\n"
        "    os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert queue.append(b'y') == 2\n"
        "assert len(consumer.poll()) == 2\n"
    )
    # It ends with the queue open: no error and no wait at the interpreter's exit.
    done = subprocess.run([sys.executable, "-c", script, tmp_path / "q"], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    with Queue(tmp_path / "q") as queue:
        assert [message.payload for message in queue.read()] == [b"x", b"y"]


def test_an_iterator_keeps_its_queue(tmp_path: Path) -> None:
    queue = Queue(tmp_path / "q")
    queue.append_many([b"x"] * 3)
    messages = queue.read()
    del queue
    gc.collect()
    found: list[Message] = []

    def read_on() -> None:
        nonlocal messages
        found.extend(messages)
        del messages
        gc.collect()

    with pytest.warns(ResourceWarning):  # the end of the iterator drops it
        read_on()
    assert len(found) == 3
    with Queue(tmp_path / "q") as again:  # waits for the closing
        assert again.last_seq == 3


def drop(path: Path, *, fail: BaseException | None = None) -> None:
    queue = Queue(path)
    queue.append(b"x")
    if fail is not None:
        close = core_of(queue)._resources.close_handles

        def closing() -> None:
            close()
            raise fail

        # The lock is given back, and then the closing fails.
        core_of(queue)._resources.__class__ = type(
            "Failing", (type(core_of(queue)._resources),), {"__slots__": (), "close_handles": lambda _: closing()}
        )
    with pytest.warns(ResourceWarning, match="was not closed"):
        del queue


@pytest.mark.parametrize("error", [Unavailable("the disk is full"), ValueError("a bug")], ids=["refused", "bug"])
def test_a_closing_that_fails_under_w_error_does_not_end_the_closing_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    reported: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", reported.append)
    drop(tmp_path / "first", fail=error)
    with Queue(tmp_path / "first") as again:  # waits for the closing
        assert again.last_seq == 1
    assert [args.exc_type for args in reported] == [ResourceWarning if isinstance(error, Unavailable) else ValueError]
    drop(tmp_path / "second")
    with Queue(tmp_path / "second") as again:
        assert again.last_seq == 1


def test_a_hook_that_fails_ends_the_closing_thread_and_the_next_drop_starts_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_closer", _Closer())
    hooked: list[int] = []

    def failing_hook(_: threading.ExceptHookArgs) -> None:
        hooked.append(threading.get_ident())
        raise SystemExit

    monkeypatch.setattr(threading, "excepthook", failing_hook)
    drop(tmp_path / "first", fail=ValueError("a bug"))
    with Queue(tmp_path / "first") as again:
        assert again.last_seq == 1
    drop(tmp_path / "second")
    with Queue(tmp_path / "second") as again:
        assert again.last_seq == 1
    assert len(hooked) == 1


def test_a_queue_that_is_not_dropped_starts_no_thread_to_close_it(tmp_path: Path) -> None:
    program = f"""if True:
        import os
        from holdfast.queue import Queue
        queue = Queue({str(tmp_path / "q")!r})
        with queue.consumer("c"):
            print(len(os.listdir("/proc/self/task")))
        queue.close()
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "1\n"


def test_a_queue_consumer_or_work_queue_in_a_cycle_can_be_opened_again(tmp_path: Path) -> None:
    gc.collect()
    gc.disable()  # only the opening collects
    try:

        def keep_in_a_cycle(kept: object) -> None:
            cycle: list[object] = [kept]
            cycle.append(cycle)

        keep_in_a_cycle(Queue(tmp_path / "q"))
        with pytest.warns(ResourceWarning, match="the queue"):
            queue = Queue(tmp_path / "q")
        with queue:
            keep_in_a_cycle(queue.consumer("c"))
            with pytest.warns(ResourceWarning, match="the consumer"), queue.consumer("c"):
                pass
            keep_in_a_cycle(queue.work_queue("w"))
            with pytest.warns(ResourceWarning, match="the work queue"), queue.work_queue("w"):
                pass
    finally:
        gc.enable()


def test_a_variable_that_is_assigned_again_is_what_the_hint_names(tmp_path: Path) -> None:
    queue = Queue(tmp_path / "q")
    with pytest.raises(AlreadyOpen, match="assigned again") as refused:
        queue = Queue(tmp_path / "q")
    assert str(refused.value.fields["opened_at"]).startswith(f"{__file__}:")
    queue.close()
