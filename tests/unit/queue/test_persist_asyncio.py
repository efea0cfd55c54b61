"""``holdfast.aio.persist``: the same promises with tasks, and what cancellation does."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import holdfast
import holdfast.aio
from holdfast.errors import AlreadyOpen, Closed, InvalidRequest
from holdfast.queue import Queue, Serializer, Stored
from holdfast.queue.aio import persist as asynchronous_persist
from holdfast.queue.persist_run import PersistRun

PAGE_BYTES = 4096
WAIT_S = 60

persist = partial(holdfast.aio.persist, page_size=PAGE_BYTES)


class SourceFailed(Exception):
    """What a source raises."""


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, count)]


async def each(items: list[bytes]) -> AsyncIterator[bytes]:
    for item in items:
        yield item


async def nothing(_stored: object = None) -> AsyncIterator[bytes]:
    for item in ():
        yield item


def resuming(count: int) -> Callable[[Stored[bytes]], AsyncIterable[bytes]]:
    return lambda stored: each(numbers(count, stored.count))


async def taken(items: AsyncIterator[bytes], count: int) -> list[bytes]:
    return [await anext(items) for _ in range(count)]


async def whole(items: AsyncIterable[bytes]) -> list[bytes]:
    return [item async for item in items]


async def until(reached: Callable[[], bool]) -> None:
    """Let all other tasks have turns until something has happened."""
    while not reached():  # noqa: ASYNC110 - what is waited for sets no event
        await asyncio.sleep(0)


class Watched:
    """A source without an end that says when its generator is closed, and in which thread."""

    def __init__(self, *, waits: bool = False) -> None:
        self.closed = threading.Event()
        self.threads: list[str] = []
        self._waits = waits

    async def items(self) -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"item"
                if self._waits:
                    await asyncio.Event().wait()
        finally:
            self.threads.append(threading.current_thread().name)
            self.closed.set()


@pytest.mark.parametrize("sync", ["os", "always"])
def test_all_items_pass_in_order_and_the_result_closes_itself_at_the_end(tmp_path: Path, sync: str) -> None:
    async def main() -> None:
        items = persist(each(numbers(300)), tmp_path, sync=sync)
        assert await whole(items) == numbers(300)
        assert await whole(items) == []
        assert await whole(persist(each([b"more"]), tmp_path)) == [b"more"]

    asyncio.run(main())


@pytest.mark.parametrize("sync", ["os", "always"])
def test_the_serializer_is_recorded_and_each_item_is_encoded_once(tmp_path: Path, sync: str) -> None:
    async def values(first: int) -> AsyncIterator[object]:
        for number in range(first, first + 3):
            yield {"n": number}

    async def main() -> None:
        assert await whole(persist(values(0), tmp_path, serializer="json", sync=sync)) == [{"n": n} for n in range(3)]
        assert await whole(persist(values(3), tmp_path, sync=sync)) == [{"n": n} for n in range(3, 6)]
        with pytest.raises(InvalidRequest, match="recorded=json"):
            await persist(values(6), tmp_path, serializer="str").open()

    asyncio.run(main())
    with Queue(tmp_path / "persist") as queue:
        assert list(queue.values()) == [{"n": n} for n in range(6)]


def test_a_run_continues_after_the_last_consumed_item(tmp_path: Path) -> None:
    async def main() -> None:
        async with persist(resuming(20), tmp_path) as items:
            assert await taken(items, 5) == numbers(5)
        async with persist(resuming(20), tmp_path) as items:
            assert await taken(items, 3) == numbers(7, 4)
            await items.commit()
            assert items.consumed_seq == 7
            await items.commit(durable=True)
        assert await whole(persist(resuming(20), tmp_path)) == numbers(20, 7)

    asyncio.run(main())


def test_the_source_waits_at_the_bound_and_space_is_freed(tmp_path: Path) -> None:
    source = [b"%d" % number * 100 for number in range(500)]

    async def main() -> None:
        async with persist(each(source), tmp_path, max_bytes=3 * PAGE_BYTES) as items:
            assert not items.waiting
            found = [await anext(items)]
            await until(lambda: items.waiting)
            ahead = sum(len(item) + 24 for item in source[: items.stored_seq])
            assert 3 * PAGE_BYTES <= ahead <= 3 * PAGE_BYTES + 324
            found += await whole(items)
        assert found == source

    asyncio.run(main())
    assert sum(path.suffix == ".page" for path in tmp_path.iterdir()) < 10


def test_a_source_that_never_waits_lets_its_consumer_have_items(tmp_path: Path) -> None:
    async def main() -> None:
        async with persist(Watched().items(), tmp_path, page_size=1 << 20) as items:
            assert await taken(items, 1000) == [b"item"] * 1000

    asyncio.run(main())


def test_what_is_left_counts_against_the_bound_and_comes_first(tmp_path: Path) -> None:
    async def main() -> None:
        async with persist(each([b"x" * 76] * 30), tmp_path) as items:
            await until(lambda: items.stored_seq == 30)
        watched = Watched()
        async with persist(watched.items(), tmp_path, max_bytes=1000) as items:
            await until(lambda: items.waiting)
            assert items.stored_seq == 30
            assert await taken(items, 30) == [b"x" * 76] * 30
            assert await anext(items) == b"item"

    asyncio.run(main())


def test_an_error_of_the_source_comes_after_the_items_before_it(tmp_path: Path) -> None:
    async def source() -> AsyncIterator[bytes]:
        for item in numbers(100):
            yield item
        raise SourceFailed

    async def main() -> None:
        items = persist(source(), tmp_path)
        assert await taken(items, 100) == numbers(100)
        with pytest.raises(SourceFailed):
            await anext(items)
        assert await whole(items) == []
        items = persist(each([b"good", "text"]), tmp_path)  # type: ignore[list-item]
        assert await anext(items) == b"good"
        with pytest.raises(InvalidRequest, match="str"):
            await anext(items)

    asyncio.run(main())


@pytest.mark.parametrize("fails", [True, False])
def test_the_end_comes_although_the_closing_before_it_was_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    closing, go_on = threading.Event(), threading.Event()
    real = PersistRun.close

    def slow_close(self: PersistRun) -> None:
        closing.set()
        go_on.wait(WAIT_S)
        real(self)

    async def source() -> AsyncIterator[bytes]:
        yield b"a"
        if fails:
            raise SourceFailed

    async def main() -> None:
        items = persist(source(), tmp_path)
        assert await anext(items) == b"a"
        asking = asyncio.ensure_future(anext(items))
        await until(closing.is_set)
        asking.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await asking
        with pytest.raises(SourceFailed if fails else StopAsyncIteration):
            await anext(items)
        assert await whole(items) == []

    monkeypatch.setattr(PersistRun, "close", slow_close)
    asyncio.run(main())


def test_an_error_of_the_source_is_raised_with_the_failure_of_closing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = PersistRun.close

    def failed(self: PersistRun) -> None:
        real(self)
        raise Closed("not durable")

    async def source() -> AsyncIterator[bytes]:
        yield b"a"
        raise SourceFailed

    async def main() -> None:
        items = persist(source(), tmp_path)
        await anext(items)
        with pytest.raises(SourceFailed) as caught:
            await anext(items)
        assert "not durable" in caught.value.__notes__[0]
        assert await whole(items) == []

    monkeypatch.setattr(PersistRun, "close", failed)
    asyncio.run(main())


def test_stop_async_iteration_that_is_not_the_end_is_an_error(tmp_path: Path) -> None:
    def leaks(_: object) -> Any:
        raise StopAsyncIteration

    async def main() -> None:
        items = persist(leaks, tmp_path)
        with pytest.raises(RuntimeError, match="StopAsyncIteration"):
            await anext(items)
        for number, serializer in enumerate((Serializer(leaks, int), Serializer(lambda _: b"1", leaks))):
            async with persist(each([b"item"]), tmp_path / str(number), serializer=serializer) as items:
                with pytest.raises(RuntimeError, match="StopAsyncIteration"):
                    await anext(items)
                assert items.consumed_seq == 0

    asyncio.run(main())


def test_a_cancelled_task_loses_no_item(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def source() -> AsyncIterator[bytes]:
        for item in numbers(50):
            await go.wait()
            go.clear()
            yield item

    async def main() -> None:
        async with persist(source(), tmp_path) as items:
            found: list[bytes] = []
            while len(found) < 50:
                asking = asyncio.ensure_future(anext(items))
                await asyncio.sleep(0)
                asking.cancel()
                go.set()
                await asyncio.wait([asking])
                if not asking.cancelled():
                    found.append(asking.result())
                else:
                    found.append(await anext(items))
            assert found == numbers(50)

    asyncio.run(main())


def test_a_cancelled_opening_leaves_nothing_open(tmp_path: Path) -> None:
    async def main() -> None:
        items = persist(each([b"item"]), tmp_path)
        opening = asyncio.ensure_future(items.open())
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert await whole(items) == [b"item"]

    asyncio.run(main())


@pytest.mark.parametrize("waits", [True, False])
def test_closing_cancels_the_source_and_closes_its_generator(tmp_path: Path, waits: bool) -> None:
    watched = Watched(waits=waits)

    async def main() -> None:
        items = persist(watched.items(), tmp_path, max_bytes=100)
        assert await anext(items) == b"item"
        assert await items.close()
        assert watched.closed.is_set()
        assert await items.close()
        with pytest.raises(Closed):
            await anext(items)
        with pytest.raises(Closed):
            await items.commit()

    asyncio.run(main())


def test_closing_wakes_a_task_that_waits(tmp_path: Path) -> None:
    async def main() -> None:
        items = persist(Watched(waits=True).items(), tmp_path)
        await anext(items)
        asking = asyncio.ensure_future(anext(items))
        await asyncio.sleep(0)
        await items.close()
        with pytest.raises(Closed):
            await asking

    asyncio.run(main())


def test_a_source_that_is_deaf_to_cancellation_is_abandoned(tmp_path: Path) -> None:
    release = asyncio.Event()
    ended = asyncio.Event()

    async def source() -> AsyncIterator[bytes]:
        yield b"item"
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        try:
            yield b"too late"
        finally:
            ended.set()

    async def main() -> None:
        items = persist(source(), tmp_path)
        await anext(items)
        assert not await items.close(timeout=0.01)
        async with persist(nothing, tmp_path, consumer="other") as again:
            release.set()
            await asyncio.wait_for(ended.wait(), WAIT_S)
            assert await whole(again) == [b"item"]

    asyncio.run(main())


def test_a_source_whose_task_is_cancelled_by_another_is_an_error_after_the_items(tmp_path: Path) -> None:
    async def source() -> AsyncIterator[bytes]:
        yield b"item"
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    async def main() -> None:
        items = persist(source(), tmp_path)
        assert await anext(items) == b"item"
        with pytest.raises(Closed, match="cancelled"):
            await anext(items)

    asyncio.run(main())


def test_a_source_whose_task_is_cancelled_before_it_begins_is_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        items = await persist(each([b"never"]), tmp_path).open()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        with pytest.raises(Closed, match="scheduler"):
            await anext(items)

    asyncio.run(main())


def test_an_error_in_the_loop_closes_and_the_item_comes_again(tmp_path: Path) -> None:
    watched = Watched()

    async def fail() -> None:
        async with persist(watched.items(), tmp_path, max_bytes=100) as items:
            await anext(items)
            raise SourceFailed

    with pytest.raises(SourceFailed):
        asyncio.run(fail())
    assert watched.closed.is_set()
    with Queue(tmp_path / "persist", read_only=True) as queue, queue.consumer("main") as main:
        assert main.committed_seq == 0


def test_a_dropped_result_is_closed_with_a_warning_and_the_queue_can_be_opened_at_once(tmp_path: Path) -> None:
    watched = Watched(waits=True)

    async def drop_after_one() -> None:
        async for _ in persist(watched.items(), tmp_path):
            break

    async def main() -> None:
        with pytest.warns(ResourceWarning, match=r"persist was not closed; .*test_persist_asyncio\.py:\d+"):
            await drop_after_one()
        async with persist(nothing, tmp_path) as again:
            assert watched.closed.is_set()
            assert await anext(again) == b"item"

    asyncio.run(main())


@pytest.mark.parametrize("begun", [True, False])
def test_closing_closes_the_result_of_persist_that_is_the_source(tmp_path: Path, *, begun: bool) -> None:
    watched = Watched(waits=True)

    async def main() -> None:
        inner = await persist(watched.items(), tmp_path / "inner").open()
        outer = await persist(inner, tmp_path / "outer").open()
        if begun:
            assert await anext(outer) == b"item"
        assert await outer.close()
        with pytest.raises(Closed):
            await anext(inner)
        async with persist(nothing, tmp_path / "inner"):
            pass

    asyncio.run(main())
    assert watched.closed.is_set() or not begun


# ---- schedulers ------------------------------------------------------------------------------------------------------


def test_the_source_runs_on_another_event_loop(tmp_path: Path) -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="other loop")
    thread.start()
    watched = Watched()
    try:

        async def main() -> None:
            async with persist(watched.items(), tmp_path, max_bytes=500, scheduler=loop) as items:
                assert await taken(items, 200) == [b"item"] * 200

        asyncio.run(main())
        assert watched.threads == ["other loop"]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    async def refused() -> None:
        items = persist(each([b"never"]), tmp_path, consumer="main", scheduler=loop)
        with pytest.raises(Closed, match="scheduler"):
            await whole(items)

    asyncio.run(refused())


@pytest.mark.parametrize("closed", [False, True])
def test_an_event_loop_of_the_source_that_stops_is_an_error_after_the_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, closed: bool
) -> None:
    monkeypatch.setattr(asynchronous_persist, "LOOK_S", 0.01)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def main() -> None:
        items = persist(Watched(waits=True).items(), tmp_path, scheduler=loop)
        await anext(items)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        if closed:
            loop.close()
        with pytest.raises(Closed, match="scheduler"):
            await asyncio.wait_for(anext(items), WAIT_S)
        assert await whole(items) == []
        async with persist(nothing, tmp_path) as again:
            assert await whole(again) == []

    asyncio.run(main())
    if not closed:  # it goes on, and finds the subscription closed
        loop.run_until_complete(asyncio.wait(asyncio.all_tasks(loop)))
        loop.close()


def test_an_event_loop_of_the_source_that_is_stopped_for_a_moment_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asynchronous_persist, "LOOK_S", 0.01)
    monkeypatch.setattr(asynchronous_persist, "STOPPED_LOOKS", 1 << 30)
    loop = asyncio.new_event_loop()

    async def main() -> None:
        items = await persist(each(numbers(3)), tmp_path, scheduler=loop).open()
        asking = asyncio.ensure_future(whole(items))
        await asyncio.wait([asking], timeout=0.05)  # some looks in vain
        assert not asking.done()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        assert await asking == numbers(3)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()

    asyncio.run(main())
    loop.close()


def test_the_source_runs_on_a_thread_of_an_executor(tmp_path: Path) -> None:
    watched = Watched()
    with ThreadPoolExecutor(1, thread_name_prefix="pool") as pool:

        async def main() -> None:
            async with persist(watched.items(), tmp_path, max_bytes=500, scheduler=pool) as items:
                assert await taken(items, 200) == [b"item"] * 200

        asyncio.run(main())
        assert watched.threads == ["pool_0"]
    pool.shutdown()

    async def refused() -> None:
        items = persist(each([b"never"]), tmp_path, scheduler=pool)
        with pytest.raises(Closed, match="scheduler"):
            await whole(items)

    asyncio.run(refused())


EXIT = """
import asyncio, sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
import holdfast.aio

async def source():
    try:
        while True:
            yield b"item"
            if sys.argv[2] == "blocks":
                await asyncio.Event().wait()
    finally:
        print("source closed", flush=True)

pool = ThreadPoolExecutor(1) if sys.argv[3] == "executor" else None
items = holdfast.aio.persist(source(), sys.argv[1], max_bytes=100, page_size=4096, scheduler=pool)

async def main():
    print(await anext(items), flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("where", ["task", "executor"])
@pytest.mark.parametrize("how", ["waits", "blocks"])
def test_an_interpreter_that_exits_without_closing_is_not_held_up(tmp_path: Path, how: str, where: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXIT, tmp_path, how, where],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "b'item'\nsource closed\n"


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_a_second_subscription_and_a_second_task_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with persist(Watched(waits=True).items(), tmp_path) as items:
            with pytest.raises(AlreadyOpen):
                await anext(persist(nothing, tmp_path))
            await anext(items)
            asking = asyncio.ensure_future(anext(items))
            await asyncio.sleep(0)
            with pytest.raises(AlreadyOpen, match="task"):
                await anext(items)
            await items.close()
            with pytest.raises(Closed):
                await asking
            with pytest.raises(Closed):
                await items.open()

    asyncio.run(main())


def test_an_executor_of_processes_is_refused(tmp_path: Path) -> None:
    with ProcessPoolExecutor(1) as pool, pytest.raises(InvalidRequest, match="another process"):
        persist(nothing, tmp_path, scheduler=pool)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"consumer": "a", "since": "earliest"}, "exclude"),
        ({"source": [b"item"]}, "source=list"),
        ({"source": lambda _: [b"item"]}, "source=list"),
        ({"max_bytes": 0}, "max_bytes"),
        ({"sync": "buffered"}, "buffered"),
        ({"since": "yesterday"}, "since"),
        ({"scheduler": 7}, "scheduler"),
    ],
)
def test_bad_arguments_are_named_and_leave_nothing_open(tmp_path: Path, arguments: dict[str, Any], named: str) -> None:
    async def refused() -> None:
        await anext(persist(**{"source": nothing, "directory": tmp_path, **arguments}))

    with pytest.raises(InvalidRequest, match=named):
        asyncio.run(refused())

    async def main() -> None:
        assert await whole(persist(each([b"item"]), tmp_path)) == [b"item"]

    asyncio.run(main())
