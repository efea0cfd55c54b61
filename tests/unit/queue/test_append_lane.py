"""What tasks of one event loop that append together are told."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from holdfast.aio import Queue
from holdfast.errors import Backpressure, Closed, Code, Unavailable
from holdfast.queue import Queue as BlockingQueue
from holdfast.queue.files.local import LocalFiles

PAGE_BYTES = 300_000
"""One frame of a shared append goes into a page, a second does not."""
FULL_QUEUE = [(1, 1_900), (2, 300), (3, 200)]
"""Tasks, and how many messages of a thousand bytes each appends: two pages of 1 MiB end within those of the second."""


def together(count: int) -> list[bytes]:
    return [b"%05d" % number + bytes(1_000) for number in range(count)]


class FullDisk(LocalFiles):
    """Has room for ``pages`` pages."""

    pages = 2

    def allocate(self, file: int, length: int) -> None:
        self.pages -= 1
        if self.pages < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().allocate(file, length)


def test_who_is_told_that_a_message_is_durable_has_it_on_disk_also_where_others_found_the_disk_full(
    tmp_path: Path,
) -> None:
    told = {"kept": 0, "full": 0}

    async def run() -> None:
        async with Queue(tmp_path / "q", sync="always", page_size=PAGE_BYTES, files=FullDisk()) as queue:

            async def one(payload: bytes) -> None:
                try:
                    seq = await queue.append(payload)
                except Unavailable:
                    told["full"] += 1
                else:
                    assert queue.durable_seq >= seq
                    told["kept"] += 1

            while not told["full"]:
                await asyncio.gather(*map(one, together(600)))
            assert queue.last_seq == queue.durable_seq == told["kept"] > 0

    asyncio.run(run())


def test_what_is_counted_as_appended_is_as_safe_as_the_level_wants_it(tmp_path: Path) -> None:
    with BlockingQueue(tmp_path / "q", sync="always", page_size=PAGE_BYTES, files=FullDisk()) as queue:
        with pytest.raises(Unavailable) as full:
            queue.append_many(together(900))
        appended = full.value.fields["appended"]
        assert isinstance(appended, int)
        assert 0 < appended < 900
        assert queue.durable_seq == queue.last_seq == appended


def test_each_task_is_told_how_many_of_its_own_messages_are_in_a_full_queue(tmp_path: Path) -> None:
    """``appended`` is what a program goes on behind: counted over the messages of others, it would skip its own."""
    batches = [[b"%d/%04d" % (task, number) + bytes(1_000) for number in range(count)] for task, count in FULL_QUEUE]

    async def run() -> None:
        queue = Queue(tmp_path / "q", sync="always", page_size=1 << 20, max_bytes=2 << 20, full="raise")
        async with queue:
            answers = await asyncio.gather(*map(queue.append_many, batches), return_exceptions=True)
            in_log = {message.payload async for message in queue.read()}
            rest: list[bytes] = []
            told: list[int] = []
            for mine, answer in zip(batches, answers, strict=True):
                if isinstance(answer, tuple):
                    assert in_log.issuperset(mine)
                    continue
                assert isinstance(answer, Backpressure)
                assert answer.code is Code.QUEUE_FULL
                assert isinstance(answer.__cause__, Backpressure)
                appended = answer.fields["appended"]
                assert isinstance(appended, int)
                assert appended == len(in_log.intersection(mine))
                rest += mine[appended:]
                told.append(appended)
            assert len(told) == 2
            assert told[0] > told[1] == 0, "one is cut, one is not begun"
            assert in_log.isdisjoint(rest)
            assert len(in_log) + len(rest) == sum(map(len, batches))

    asyncio.run(run())


def test_whose_messages_are_in_the_log_is_told_so_also_where_a_closing_ends_the_wait_of_others(tmp_path: Path) -> None:
    async def run() -> None:
        queue = Queue(tmp_path / "q", sync="always", page_size=PAGE_BYTES, max_bytes=2 * PAGE_BYTES, full="block")
        async with queue:
            async with queue.consumer("slow"):
                waiting = [asyncio.ensure_future(queue.append(payload)) for payload in together(1_200)]
                last_seq = 0
                while not 0 < last_seq == queue.last_seq:
                    last_seq = queue.last_seq
                    await asyncio.sleep(0.2)
            await queue.close()
            answers = await asyncio.gather(*waiting, return_exceptions=True)
        with BlockingQueue(tmp_path / "q", read_only=True) as log:
            last_seq = log.last_seq
        assert 0 < last_seq < 1_200
        assert answers[:last_seq] == list(range(1, last_seq + 1))
        assert {type(answer) for answer in answers[last_seq:]} == {Closed}

    asyncio.run(run())
