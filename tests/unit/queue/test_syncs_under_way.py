"""What comes while a sync is under way, or while a queue is closed, is told durable by a later sync, or not at all."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path
from random import Random
from typing import cast

import pytest
from tests.worlds.queue import CrashFiles

from holdfast import aio
from holdfast.errors import Closed, Code
from holdfast.queue import Queue
from holdfast.queue.files.local import LocalFiles
from holdfast.queue.files.meta_files import WritePositionFile
from holdfast.queue.files.pages import PageDirectory
from holdfast.queue.format.file_names import FileNames
from holdfast.queue.format.meta import PagePosition, WritePosition
from holdfast.queue.log.durability import Durability, SyncProgress, SyncTarget
from holdfast.soundness import Soundness

PAGE_BYTES = 4096


def opened(files: CrashFiles, **settings: object) -> Queue:
    return Queue("d/q", page_size=PAGE_BYTES, files=files, background=False, **settings)  # type: ignore[arg-type]


def test_what_a_page_got_while_its_sync_was_under_way_is_synced_again_though_it_was_closed_meanwhile() -> None:
    for seed in range(20):
        files = CrashFiles(Random(seed))
        queue = opened(files)
        queue.append(b"before")

        def others(queue: Queue = queue, files: CrashFiles = files) -> None:
            files.during_sync = None
            for number in range(60):
                queue.append(b"meanwhile %02d" % number * 9)

        files.during_sync = others
        queue.flush()
        assert queue.durable_seq == 1
        queue.append(b"after, in another page")
        queue.flush()
        assert queue.durable_seq == queue.last_seq == 62
        with opened(files.after_power_loss(Random(seed))) as found:
            assert len(list(found.read())) == 62


class HeldDisk(CrashFiles):
    """The next sync of data lasts until it is released."""

    def __init__(self) -> None:
        super().__init__(Random(1))
        self.syncing = threading.Event()
        self.released = threading.Event()
        self.error: OSError | None = None

    def sync_data(self, file: int) -> None:
        self.syncing.set()
        assert self.released.wait(60)
        if self.error is not None:
            raise self.error


class Lone:
    """The durability of a log of one file, whose first message is not durable yet."""

    def __init__(self) -> None:
        self.disk = HeldDisk()
        self.told: list[str] = []
        self.telling = threading.Event()
        self.told_all = threading.Event()
        self.told_all.set()
        self.durable = PagePosition(1, 0, 1, 0, 64)
        self.durability = Durability(self.disk, cast("SyncProgress", self), Soundness("queue", ""))

    def take(self, sealed_only: bool) -> SyncTarget:
        del sealed_only
        return SyncTarget([], 7, 2, None)

    def reached(self, target: SyncTarget) -> None:
        del target
        self.told.append("reached")

    def poison(self) -> None:
        self.telling.set()
        assert self.told_all.wait(60)
        self.told.append("failed")

    def wait(self) -> threading.Thread:
        def run() -> None:
            try:
                self.durability.wait_for(2)
            except Closed as error:
                self.told.append(str(error.code))
            else:
                self.told.append("durable")

        thread = threading.Thread(target=run)
        thread.start()
        return thread


def test_who_waits_for_a_sync_when_its_log_ends_is_not_told_that_anything_is_durable() -> None:
    lone = Lone()
    leader = lone.wait()
    assert lone.disk.syncing.wait(60)
    follower = lone.wait()
    lone.durability.end(Closed("the queue is closed"))
    lone.disk.released.set()
    leader.join()
    follower.join()
    assert lone.told == [str(Code.CLOSED), str(Code.CLOSED)]
    assert lone.durability.next_seq == 1
    lone.wait().join()
    assert lone.told[2:] == [str(Code.CLOSED)], "there is nothing to sync any more, and nothing is durable by that"


def test_the_files_stay_open_until_a_failed_sync_was_told_to_the_mark() -> None:
    lone = Lone()
    lone.told_all.clear()
    lone.disk.error = OSError(errno.EIO, "input/output error")
    lone.disk.released.set()
    leader = lone.wait()
    assert lone.telling.wait(60)

    def end() -> None:
        lone.durability.end(Closed("the queue is closed"))
        lone.told.append("ended")

    ending = threading.Thread(target=end)
    ending.start()
    ending.join(0.1)  # it would have ended by now, if it did not wait
    lone.told_all.set()
    leader.join()
    ending.join()
    assert sorted(lone.told[1:]) == ["ended", str(Code.SYNC_FAILED)]
    assert lone.told[0] == "failed"


def test_a_mark_is_not_written_into_a_file_that_was_closed() -> None:
    files = CrashFiles(Random(1))
    directory = PageDirectory(files, _directory(files), FileNames("q"))
    marks = WritePositionFile(directory)
    marks.close()
    place = PagePosition(1, 0, 1, 0, 64)
    marks.write(
        WritePosition(
            place, frames=0, index_records=0, index_check=0, index_due=0, clean=False,
            durable=place, boot_id=bytes(16), first_page=1, first_seq=1,
        ).encode()
    )  # fmt: skip
    marks.close()


def _directory(files: CrashFiles) -> int:
    files.make_directory("d")
    return files.open_directory("d")


def test_who_closes_a_queue_while_another_does_returns_when_all_is_durable(tmp_path: Path) -> None:
    syncing, released = threading.Event(), threading.Event()

    class Held(LocalFiles):
        def sync_data(self, file: int) -> None:
            super().sync_data(file)
            if armed.is_set():
                syncing.set()
                assert released.wait(60)

    armed = threading.Event()
    queue = Queue(tmp_path / "q", files=Held(), background=False)
    queue.append(b"a")
    work = queue.work_queue("w")
    armed.set()
    ended: list[str] = []

    def close(name: str) -> None:
        queue.close()
        ended.append(name)

    first = threading.Thread(target=close, args=("first",))
    first.start()
    assert syncing.wait(60)
    second = threading.Thread(target=close, args=("second",))
    second.start()
    second.join(0.1)  # it would have ended by now, if it did not wait
    assert ended == []
    released.set()
    first.join()
    second.join()
    assert sorted(ended) == ["first", "second"]
    with pytest.raises(Closed):
        work.get()
    with Queue(tmp_path / "q", background=False) as found:
        assert [message.payload for message in found.read()] == [b"a"]


def test_a_task_that_closes_a_queue_while_another_does_returns_when_all_is_durable(tmp_path: Path) -> None:
    released = threading.Event()

    class Held(LocalFiles):
        def sync_data(self, file: int) -> None:
            assert released.wait(60)
            super().sync_data(file)

    async def scenario() -> None:
        released.set()
        queue = await aio.Queue(tmp_path / "q", files=Held(), background=False).open()
        await queue.append(b"a")
        released.clear()
        first, second = (asyncio.ensure_future(queue.close()) for _ in range(2))
        ended, _ = await asyncio.wait({first, second}, timeout=0.1)  # the second would have ended, if it did not wait
        assert not ended
        released.set()
        await asyncio.gather(first, second)
        await queue.close()

    asyncio.run(scenario())
