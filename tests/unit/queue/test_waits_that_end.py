"""A wait that is over leaves nothing behind: neither with the writer, which tells each listener once, nor on the loop.

Where nothing is appended, workers and consumers ask again and again; what each call left would grow without bound, and
the next append would tell all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import aio
from holdfast.errors import Closed
from holdfast.queue import Queue
from holdfast.queue.files.local import LocalFiles
from holdfast.queue.queue import core_of

TINY_S = 1e-6


def listeners(queue: Queue) -> int:
    """Those that the writer still has to call."""
    assert core_of(queue)._writer is not None
    return len(core_of(queue)._writer._listeners)


def test_a_worker_that_asks_for_jobs_again_and_again_is_no_listener_between(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue, queue.work_queue("w") as work:
        for _ in range(20):
            assert work.get(TINY_S) is None
            assert work.get_many(3, TINY_S) == []
            assert listeners(queue) == 0
        queue.append(b"x")
        job = work.get(TINY_S)
        assert job is not None
        work.ack(job)


def test_a_consumer_that_asks_again_and_again_is_no_listener_between(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue:
        for number in range(20):
            with queue.consumer(f"c{number}") as consumer:
                assert consumer.poll(TINY_S) == []
                assert list(consumer.follow(TINY_S)) == []
            assert listeners(queue) == 0


def test_an_iterator_that_follows_and_is_let_go_is_no_listener_any_more(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue:
        queue.append(b"x")
        for _ in range(20):
            assert next(queue.read(follow=True)).seq == 1
            assert len(next(queue.batches(follow=True))) == 1
            assert next(queue.read_payloads(follow=True)) == b"x"
            assert listeners(queue) == 0


class Counted(LocalFiles):
    """How many files are open."""

    count = 0

    def open(self, directory: int, name: str, *, write: bool) -> int:
        self.count += 1
        return super().open(directory, name, write=write)

    def close(self, file: int) -> None:
        self.count -= 1
        super().close(file)


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("name", ["read", "read_payloads", "batches", "values"])
def test_an_iterator_that_nobody_asked_lets_go_of_its_files(tmp_path: Path, name: str, *, follow: bool) -> None:
    files = Counted()
    with Queue(tmp_path / "q", files=files, background=False) as queue:
        queue.append(b"x")
        before = files.count
        for asked in (0, 1):
            found = getattr(queue, name)(follow=follow)
            for _ in range(asked):
                next(found)
            assert files.count > before
            del found
            assert files.count == before
        assert listeners(queue) == 0


def test_a_listener_that_was_taken_back_is_not_called_and_the_others_are(tmp_path: Path) -> None:
    told: list[int] = []
    calls: list[Callable[[], None]] = [lambda number=number: told.append(number) for number in range(3)]  # type: ignore[misc]
    with Queue(tmp_path / "q") as queue:
        writer = core_of(queue)._writer
        assert writer is not None
        for call in calls:
            writer.notify_once(call)
        for _ in range(2):
            writer.notify_no_more(calls[1])
        assert [queue.append(b"x") for _ in range(3)] == [1, 2, 3]
        assert told == [0, 2]
        writer.notify_no_more(calls[0])
        assert queue.append(b"x") == 4


@pytest.mark.parametrize("read_only", [False, True])
def test_waits_of_tasks_that_are_over_leave_nothing_on_the_loop(tmp_path: Path, *, read_only: bool) -> None:
    async def main() -> None:
        async with aio.Queue(tmp_path / "q") as writer:
            await writer.append(b"x")
            queue = aio.Queue(tmp_path / "q", read_only=True) if read_only else writer
            if read_only:
                await queue.open()
            async with queue.consumer("c") as consumer, queue.work_queue("w") as work:
                job = await work.get(0)
                assert job is not None
                await work.ack(job)
                assert len(await consumer.poll()) == 1
                for _ in range(5):
                    for timeout in (0.0, TINY_S):
                        assert await consumer.poll(timeout) == []
                        assert await work.get(timeout) is None
                    assert [message.seq async for message in queue.read()] == [1]
                    assert [len(block) async for block in queue.batches(seq=1)] == [1]
                    async for message in queue.read(follow=True):
                        assert message.seq == 1
                        break
                await asyncio.sleep(0)  # the generators that were let go are closed by the loop
                waiting = asyncio.create_task(consumer.poll(None))
                for _ in range(3):
                    await asyncio.sleep(0)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
            for _ in range(10):
                await asyncio.sleep(0)
            assert not queue._followers
            if read_only:
                await queue.close()

    asyncio.run(main())


def test_who_waits_when_the_queue_is_closed_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        queue = await aio.Queue(tmp_path / "q").open()
        consumer = await queue.consumer("c").open()
        waiting = asyncio.create_task(consumer.poll(None))
        await asyncio.sleep(0)
        assert queue._followers
        await queue.close()
        with pytest.raises(Closed):
            await waiting
        assert not queue._followers

    asyncio.run(main())
