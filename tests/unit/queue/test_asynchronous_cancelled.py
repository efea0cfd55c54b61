"""Tasks of the asyncio queue that are cancelled in the middle of a call: nothing is lost, counted twice or left locked.

Rules that these tests are proved to catch when they are broken: what a cancelled look has read goes with it; a queue
is forgotten before it is closed; what a cancelled opening has opened is nobody's; closing waits for an append that
waits for space.

No test depends on time. A helper thread begins, or a file is touched, when the test opens its gate, and the task was
cancelled before.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from holdfast.aio import Queue
from holdfast.errors import Closed, Unavailable
from holdfast.queue import Queue as BlockingQueue
from holdfast.queue.aio.queue import AppendLane
from holdfast.queue.files.local import LocalFiles
from holdfast.queue.work import work_queue as work_queue_module

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future
    from pathlib import Path
    from typing import ParamSpec, TypeVar

    from holdfast.queue.log.messages import Message
    from holdfast.queue.work.work_queue import Job

    P = ParamSpec("P")
    T = TypeVar("T")

ONCE_AND_TWICE = pytest.mark.parametrize("times", [1, 2])
DAY_NS = 86_400 * 10**9


class GatedThreads(ThreadPoolExecutor):
    """Helper threads that begin nothing while the gate is closed. ``asked`` is set when they are given something."""

    def __init__(self) -> None:
        super().__init__(4)
        self.gate = threading.Event()
        self.gate.set()
        self.asked = asyncio.Event()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        self.asked.set()

        def run() -> T:
            assert self.gate.wait(60)
            return fn(*args, **kwargs)

        return super().submit(run)


class GatedFiles(LocalFiles):
    """The real files, with a gate before locks and syncs, which tells that somebody stands at it.

    ``surveyed`` is set when a page was measured, as for room for another.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.at_gate = threading.Event()
        self.surveyed = threading.Event()

    def pass_gate(self) -> None:
        if not self.gate.is_set():
            self.at_gate.set()
            assert self.gate.wait(60)

    def lock(self, directory: int, name: str) -> int:
        self.pass_gate()
        return super().lock(directory, name)

    def sync_data(self, file: int) -> None:
        self.pass_gate()
        super().sync_data(file)

    def size_of(self, directory: int, name: str) -> int:
        self.surveyed.set()
        return super().size_of(directory, name)


class Clock:
    """The time of day, set ahead by the test."""

    def __init__(self) -> None:
        self.ahead_ns = 0

    def __call__(self) -> int:
        return time.time_ns() + self.ahead_ns


def gated_threads() -> GatedThreads:
    """Those of the loop that runs, from now on."""
    threads = GatedThreads()
    asyncio.get_running_loop().set_default_executor(threads)
    return threads


async def cancel(task: asyncio.Task[T], gate: threading.Event, times: int = 1) -> None:
    """Cancel a task that waits for what is behind the gate, then open it: the task must have waited until then."""
    for _ in range(times):
        task.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
    ended_early = task.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not ended_early, "it left its call running"


async def cancel_in_thread(threads: GatedThreads, work: Coroutine[None, None, T], times: int = 1) -> None:
    """Run until the first call on a helper thread is asked for, and cancel before that has begun."""
    threads.gate.clear()
    threads.asked.clear()
    task = asyncio.create_task(work)
    await threads.asked.wait()
    await cancel(task, threads.gate, times)


def seqs(messages: list[Message] | list[Job]) -> list[int]:
    return [message.seq for message in messages]


# ---- consumers ------------------------------------------------------------------------------------------------------


@ONCE_AND_TWICE
def test_what_a_cancelled_poll_has_read_is_handed_out_by_the_next(tmp_path: Path, times: int) -> None:
    async def main() -> None:
        threads = gated_threads()
        async with Queue(tmp_path / "q") as queue, queue.consumer("c") as consumer:
            await queue.append_many([b"x"] * 10)
            await cancel_in_thread(threads, consumer.poll(None, 5), times)
            assert consumer.next_seq == 1
            await consumer.commit()
            assert (consumer.committed_seq, await consumer.lag()) == (0, 10)
            assert seqs(await consumer.poll(max_messages=5)) == [1, 2, 3, 4, 5]
            await consumer.commit()
            assert consumer.committed_seq == 5
            assert seqs(await consumer.poll()) == [6, 7, 8, 9, 10]
            assert await consumer.poll() == []

    asyncio.run(main())


def test_what_a_cancelled_follower_has_read_is_handed_out_by_the_next(tmp_path: Path) -> None:
    async def main() -> None:
        threads = gated_threads()
        async with Queue(tmp_path / "q") as queue, queue.consumer("c") as consumer:
            await queue.append_many([b"x"] * 3)
            await cancel_in_thread(threads, anext(consumer.follow()))
            assert [message.seq async for message in consumer.follow(timeout=0)] == [1, 2, 3]

    asyncio.run(main())


def test_after_a_cancelled_reset_or_rewind_nothing_of_the_place_before_is_handed_out(tmp_path: Path) -> None:
    async def main() -> None:
        threads = gated_threads()
        async with Queue(tmp_path / "q") as queue, queue.consumer("c") as consumer:
            await queue.append_many([b"x"] * 10)
            assert seqs(await consumer.poll(max_messages=5)) == [1, 2, 3, 4, 5]
            await consumer.commit(2)
            await cancel_in_thread(threads, consumer.rewind())
            assert seqs(await consumer.poll(max_messages=2)) == [3, 4]
            await cancel_in_thread(threads, consumer.reset(seq=9))
            assert seqs(await consumer.poll()) == [9, 10]
            await consumer.commit()
            assert consumer.committed_seq == 10

    asyncio.run(main())


# ---- work queues ----------------------------------------------------------------------------------------------------


@ONCE_AND_TWICE
def test_a_job_of_a_cancelled_get_is_the_next_ones_and_is_counted_once(tmp_path: Path, times: int) -> None:
    async def main() -> None:
        threads = gated_threads()
        async with Queue(tmp_path / "q") as queue, queue.work_queue("w", max_deliveries=1) as work:
            await queue.append(b"job")
            await cancel_in_thread(threads, work.get(), times)
            job = await work.get(timeout=0)
            assert job is not None and (job.seq, job.deliveries) == (1, 1)
            await work.ack(job)
            assert (work.started, await work.get(timeout=0)) == (0, None)
            assert [letter async for letter in work.dead_letters()] == []

    asyncio.run(main())


def test_jobs_of_a_cancelled_get_many_are_handed_out_once_each(tmp_path: Path) -> None:
    async def main() -> None:
        threads = gated_threads()
        async with Queue(tmp_path / "q") as queue, queue.work_queue("w") as work:
            await queue.append_many([b"job"] * 6)
            await cancel_in_thread(threads, work.get_many(4))
            assert seqs(await work.get_many(3)) == [1, 2, 3]
            # What is kept is not mixed with what is taken anew: another look gets that.
            assert seqs(await work.get_many(3)) == [4]
            assert seqs(await work.get_many(3)) == [5, 6]
            assert await work.get_many(3) == []

    asyncio.run(main())


def test_a_kept_job_is_its_workers_for_the_whole_visibility(tmp_path: Path) -> None:
    clock = Clock()

    async def main() -> None:
        threads = gated_threads()
        queue = Queue(tmp_path / "q", clock=clock)
        async with queue, queue.work_queue("w", ack_wait=3600, max_deliveries=1) as work:
            await queue.append(b"job")
            await cancel_in_thread(threads, work.get())
            # Its lease ends, and the next who asks is cancelled, too: nobody was given it yet.
            clock.ahead_ns += DAY_NS
            await cancel_in_thread(threads, work.get())
            clock.ahead_ns += DAY_NS
            job = await work.get(timeout=0)
            assert job is not None and job.deliveries == 1
            clock.ahead_ns += 1800 * 10**9
            assert await work.get(timeout=0) is None, "its lease began when it was handed out"
            await work.ack(job)

    asyncio.run(main())


def test_a_kept_job_that_somebody_else_was_given_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    blocking = work_queue_module.WorkQueue
    extend = blocking.extend
    elsewhere: list[Job] = []

    def extend_too_late(self: work_queue_module.WorkQueue, job: Job, ack_wait: float | None = None) -> None:
        if not elsewhere:
            clock.ahead_ns += DAY_NS
            elsewhere.extend(self.get_many(1))
        extend(self, job, ack_wait)

    async def main() -> None:
        threads = gated_threads()
        async with Queue(tmp_path / "q", clock=clock) as queue, queue.work_queue("w") as work:
            await queue.append(b"job")
            await cancel_in_thread(threads, work.get())
            monkeypatch.setattr(blocking, "extend", extend_too_late)
            assert await work.get(timeout=0) is None
            assert [job.deliveries for job in elsewhere] == [2]
            await work.ack(elsewhere[0])
            assert (work.started, await work.get(timeout=0)) == (0, None)

    asyncio.run(main())


def test_a_kept_job_whose_handing_out_is_refused_stays_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: work_queue_module.WorkQueue, job: Job, ack_wait: float | None = None) -> None:
        raise Unavailable("the disk is full")

    async def main() -> None:
        threads = gated_threads()
        async with Queue(tmp_path / "q") as queue, queue.work_queue("w") as work:
            await queue.append(b"job")
            await cancel_in_thread(threads, work.get())
            with monkeypatch.context() as patch:
                patch.setattr(work_queue_module.WorkQueue, "extend", refuse)
                with pytest.raises(Unavailable):
                    await work.get(timeout=0)
            job = await work.get(timeout=0)
            assert job is not None and (job.seq, job.deliveries) == (1, 1)

    asyncio.run(main())


# ---- opening and closing --------------------------------------------------------------------------------------------


@ONCE_AND_TWICE
def test_a_cancelled_opening_leaves_no_name_taken(tmp_path: Path, times: int) -> None:
    async def main() -> None:
        threads = gated_threads()
        async with Queue(tmp_path / "q") as queue:
            consumer, work = queue.consumer("c"), queue.work_queue("w")
            await cancel_in_thread(threads, consumer.open(), times)
            await cancel_in_thread(threads, work.open(), times)
            async with queue.consumer("c"), queue.work_queue("w"):
                pass
            # It was not opened: it may be now.
            async with consumer, work:
                pass

    asyncio.run(main())


@ONCE_AND_TWICE
def test_a_cancelled_opening_of_a_queue_leaves_it_unlocked(tmp_path: Path, times: int) -> None:
    files = GatedFiles()

    async def main() -> None:
        files.gate.clear()
        task = asyncio.create_task(Queue(tmp_path / "q", files=files).open())
        assert await asyncio.to_thread(files.at_gate.wait, 60)
        await cancel(task, files.gate, times)
        async with Queue(tmp_path / "q") as queue:
            assert await queue.append(b"x") == 1

    asyncio.run(main())


@ONCE_AND_TWICE
@pytest.mark.parametrize("appending", [True, False])
def test_a_cancelled_close_has_closed(tmp_path: Path, times: int, *, appending: bool) -> None:
    """Cancelled while it waits for what was appended before, and while the files are being closed."""
    files = GatedFiles()

    async def main() -> None:
        queue = await Queue(tmp_path / "q", files=files, background=False).open()
        await queue.append(b"x")
        files.gate.clear()
        appended = asyncio.create_task(queue.flush()) if appending else None
        await asyncio.sleep(0)
        task = asyncio.create_task(queue.close())
        assert await asyncio.to_thread(files.at_gate.wait, 60)
        await cancel(task, files.gate, times)
        if appended is not None:
            await appended
        await queue.close()
        async with Queue(tmp_path / "q") as again:
            assert [message.payload async for message in again.read()] == [b"x"]

    asyncio.run(main())


def test_a_cancelled_close_gives_the_name_back(tmp_path: Path) -> None:
    async def main() -> None:
        threads = gated_threads()
        async with Queue(tmp_path / "q") as queue:
            consumer, work = await queue.consumer("c").open(), await queue.work_queue("w").open()
            await cancel_in_thread(threads, consumer.close(), 2)
            await cancel_in_thread(threads, work.close(), 2)
            async with queue.consumer("c"), queue.work_queue("w"):
                pass

    asyncio.run(main())


@pytest.mark.parametrize("given_up", [True, False])
def test_closing_ends_an_append_that_waits_for_space(tmp_path: Path, *, given_up: bool) -> None:
    clock, files = Clock(), GatedFiles()

    async def main() -> None:
        queue = Queue(
            tmp_path / "q",
            page_size=4096,
            max_bytes=8192,
            full="block",
            lifetime=timedelta(days=1),
            files=files,
            clock=clock,
            background=False,
        )
        await queue.open()
        await queue.append(b"x")
        files.surveyed.clear()
        # More than there will ever be room for: nobody confirms, and no lifetime ends.
        task = asyncio.create_task(queue.append_many([b"x" * 1000] * 20))
        assert await asyncio.to_thread(files.surveyed.wait, 60)
        if given_up:
            task.cancel()
        try:
            async with asyncio.timeout(30):
                await queue.close()
        finally:
            clock.ahead_ns += 10 * DAY_NS  # where closing has not ended it: pages go now, and the test can end
        with pytest.raises(asyncio.CancelledError if given_up else Closed):
            await task
        async with Queue(tmp_path / "q", page_size=4096) as again:
            assert again.last_seq == 1

    asyncio.run(main())


# ---- what must not wait behind an append, and what must be waited for -----------------------------------------------


def test_a_trim_frees_the_space_that_an_append_waits_for(tmp_path: Path) -> None:
    clock, files = Clock(), GatedFiles()

    async def main() -> None:
        async with Queue(
            tmp_path / "q",
            page_size=4096,
            max_bytes=8192,
            full="block",
            lifetime=timedelta(days=1),
            files=files,
            clock=clock,
            background=False,
        ) as queue:
            for _ in range(6):  # three to a page
                await queue.append(b"x" * 1000)
            await queue.flush()
            files.surveyed.clear()
            waiting = asyncio.create_task(queue.append(b"x" * 1000))
            assert await asyncio.to_thread(files.surveyed.wait, 60)
            try:
                async with asyncio.timeout(30):
                    assert await queue.trim(before_seq=4) == 1
                    assert await waiting == 7
            finally:
                clock.ahead_ns += 10 * DAY_NS  # where the trim has not ended the wait: the test can end

    asyncio.run(main())


@ONCE_AND_TWICE
def test_a_cancelled_trim_has_ended(tmp_path: Path, times: int) -> None:
    async def main() -> None:
        threads = gated_threads()
        async with Queue(tmp_path / "q") as queue:
            await queue.append(b"x")
            await cancel_in_thread(threads, queue.trim(before_seq=1), times)

    asyncio.run(main())


def test_closing_lets_a_trim_end_that_has_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files, and the directory whose names it removes, are not closed under it."""
    ended: list[str] = []

    class Noted(BlockingQueue):
        def trim(self, *, before_seq: int) -> int:
            removed = super().trim(before_seq=before_seq)
            ended.append("trim")
            return removed

        def close(self) -> None:
            ended.append("close")
            super().close()

    monkeypatch.setattr("holdfast.queue.aio.queue.BlockingQueue", Noted)

    async def main() -> None:
        threads = gated_threads()
        queue = await Queue(tmp_path / "q", page_size=4096).open()
        for _ in range(6):
            await queue.append(b"x" * 1000)
        await queue.flush()
        threads.gate.clear()
        threads.asked.clear()
        trim = asyncio.create_task(queue.trim(before_seq=4))
        await threads.asked.wait()
        closing = asyncio.create_task(queue.close())
        for _ in range(10):
            await asyncio.sleep(0)
        threads.gate.set()
        await closing
        assert await trim == 1
        assert ended == ["trim", "close"]

    asyncio.run(main())


@ONCE_AND_TWICE
def test_what_the_lane_runs_has_ended_when_a_cancelled_caller_goes_on(times: int) -> None:
    async def main() -> None:
        began, gate = threading.Event(), threading.Event()

        def work() -> None:
            began.set()
            assert gate.wait(60)

        lane = AppendLane(lambda: None)
        task = asyncio.create_task(lane.run(work))
        assert await asyncio.to_thread(began.wait, 60)
        await cancel(task, gate, times)
        lane.close()

    asyncio.run(main())
