"""Another program removes files of an open queue: the next sync raises ``Closed`` and names the removed file."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from tests.worlds.queue import CrashFiles

from holdfast import aio
from holdfast.errors import Closed, Code, HoldfastError
from holdfast.queue import FileQueue, Queue, every
from holdfast.queue.files.local import LocalFiles
from holdfast.queue.files.port import RemovedFile
from holdfast.queue.queue import core_of

PAGE_BYTES = 4096


def opened(folder: Path, **settings: object) -> Queue:
    return Queue(folder / "q", page_size=PAGE_BYTES, background=False, **settings)  # type: ignore[arg-type]


def refused(call: Callable[[], object], removed: Path) -> Closed:
    """The error of the call, which names the removed file."""
    with pytest.raises(Closed) as caught:
        call()
    assert caught.value.code is Code.SYNC_FAILED
    assert f"another program removed this file: '{removed}'" in str(caught.value)
    return caught.value


def closed_quietly(queue: Queue) -> None:
    with pytest.raises(Closed):
        queue.close()


def test_a_flush_after_the_page_was_removed_is_refused_and_nothing_more_is_durable(tmp_path: Path) -> None:
    queue = opened(tmp_path)
    queue.append(b"before")
    queue.flush()
    page = tmp_path / "q-1.page"
    page.unlink()
    queue.append(b"after")
    refused(queue.flush, page)
    assert queue.durable_seq == 1
    refused(lambda: queue.append(b"later"), page)
    refused(queue.close, page)


def test_a_page_that_is_removed_while_its_sync_is_under_way_is_not_durable(tmp_path: Path) -> None:
    page = tmp_path / "q-1.page"
    queue = opened(tmp_path)
    queue.append(b"one")
    sync = os.fdatasync

    def removing(file: int) -> None:
        sync(file)
        page.unlink(missing_ok=True)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fdatasync", removing)
        refused(queue.flush, page)
    assert queue.durable_seq == 0
    closed_quietly(queue)


@pytest.mark.parametrize("level", ["always", every(messages=1)], ids=str)
def test_an_append_that_syncs_is_refused_after_the_page_was_removed(tmp_path: Path, level: object) -> None:
    queue = opened(tmp_path, sync=level)
    queue.append(b"before")
    page = tmp_path / "q-1.page"
    page.unlink()
    refused(lambda: queue.append(b"after"), page)
    assert queue.durable_seq == 1
    closed_quietly(queue)


def test_the_helper_s_sync_of_a_closed_page_is_refused_after_it_was_removed(tmp_path: Path) -> None:
    queue = opened(tmp_path)
    while not (tmp_path / "q-2.page").exists():
        queue.append(bytes(900))
    page = tmp_path / "q-1.page"
    page.unlink()
    refused(core_of(queue).run_background_work, page)
    assert queue.durable_seq == 0
    refused(lambda: queue.append(b"later"), page)
    closed_quietly(queue)


def test_a_flush_after_the_directory_was_removed_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    queue = opened(folder)
    queue.append(b"before")
    queue.flush()
    shutil.rmtree(folder)
    queue.append(b"after")
    refused(queue.flush, folder / "q-1.page")
    assert queue.durable_seq == 1
    closed_quietly(queue)
    assert not folder.exists()


def test_the_first_append_is_refused_if_the_write_position_was_removed(tmp_path: Path) -> None:
    queue = opened(tmp_path)
    marks = tmp_path / "q-writeMeta"
    marks.unlink()
    refused(lambda: queue.append(b"one"), marks)
    assert queue.last_seq == 0
    queue.close()


def test_a_close_is_refused_if_the_write_position_was_removed(tmp_path: Path) -> None:
    queue = opened(tmp_path)
    queue.append(b"one")
    marks = tmp_path / "q-writeMeta"
    marks.unlink()
    refused(queue.close, marks)
    with opened(tmp_path) as found:
        assert [message.payload for message in found.read()] == [b"one"]


def test_a_durable_commit_is_refused_if_the_cursor_was_removed(tmp_path: Path) -> None:
    with opened(tmp_path) as queue, queue.consumer("c") as consumer:
        queue.append(b"one")
        message = next(iter(consumer))
        cursor = tmp_path / "q-c.cursor"
        cursor.unlink()
        error = refused(lambda: consumer.commit(message, durable=True), cursor)
        assert error.hint == "open the consumer again; without the file it begins at the first message there is"
        queue.append(b"the queue goes on")


def test_a_step_of_a_work_queue_is_refused_if_its_log_was_removed(tmp_path: Path) -> None:
    with opened(tmp_path, sync="always") as queue:
        queue.append(b"one")
        work = queue.work_queue("w")
        job = work.get(0)
        assert job is not None
        log = tmp_path / "q-w.work-1.page"
        log.unlink()
        refused(lambda: work.ack(job), log)
        refused(work.close, log)
        queue.append(b"the queue goes on")


def test_a_dead_letter_is_refused_if_the_dead_letters_were_removed(tmp_path: Path) -> None:
    with opened(tmp_path) as queue:
        queue.append_many([b"one", b"two"])
        work = queue.work_queue("w")
        jobs = work.get_many(2)
        work.dead_letter(jobs[0])
        dead = tmp_path / "q-w-dead-1.page"
        dead.unlink()
        refused(lambda: work.dead_letter(jobs[1]), dead)
        with pytest.raises(Closed):
            work.close()


def test_a_put_is_refused_if_the_page_was_removed(tmp_path: Path) -> None:
    tasks = FileQueue(tmp_path / "q", sync="always")
    tasks.put(b"one")
    page = tmp_path / "q-1.page"
    page.unlink()
    refused(lambda: tasks.put(b"two"), page)
    with pytest.raises(Closed):
        tasks.close()


def test_a_flush_of_a_task_is_refused_if_the_page_was_removed(tmp_path: Path) -> None:
    async def scenario() -> None:
        queue = await aio.Queue(tmp_path / "q").open()
        await queue.append(b"one")
        page = tmp_path / "q-1.page"
        page.unlink()
        with pytest.raises(Closed) as caught:
            await queue.flush()
        assert str(page) in str(caught.value)
        assert queue.durable_seq == 0
        with pytest.raises(Closed):
            await queue.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["q-allMeta", "q-1.idx", "q.lock"])
def test_a_file_that_no_message_depends_on_may_be_removed(tmp_path: Path, name: str) -> None:
    with opened(tmp_path) as queue:
        queue.append(b"one")
        (tmp_path / name).unlink()
        queue.append(b"two")
        queue.flush()
        assert queue.durable_seq == 2
    with opened(tmp_path) as queue:
        assert [message.payload for message in queue.read()] == [b"one", b"two"]


def test_a_directory_that_is_moved_stays_the_queue_s(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    with opened(before, sync="always", keep="consumed") as queue, queue.consumer("c") as consumer:
        work = queue.work_queue("w", max_deliveries=1)
        queue.append(b"one")
        before.rename(after)
        while not (after / "q-3.page").exists():
            queue.append(bytes(900))
        consumer.commit(consumer.poll()[-1], durable=True)
        job = work.get(0)
        assert job is not None
        work.dead_letter(job)
        assert [letter.payload for letter in work.dead_letters()] == [b"one"]
        with queue.work_queue("later") as later:
            assert later.lag() == queue.last_seq
        core_of(queue).run_background_work()
        last_seq = queue.last_seq
        work.close()
    assert not before.exists()
    with opened(after) as queue, queue.work_queue("w") as work:
        assert queue.durable_seq == last_seq
        assert [letter.seq for letter in work.dead_letters()] == [1]
        job = work.get(0)
        assert job is not None
        assert job.seq == 2


def test_dead_letters_can_be_read_after_the_queue_is_closed(tmp_path: Path) -> None:
    with opened(tmp_path) as queue:
        queue.append(b"one")
        work = queue.work_queue("w")
        job = work.get(0)
        assert job is not None
        work.dead_letter(job)
    assert [letter.payload for letter in work.dead_letters()] == [b"one"]


def test_a_page_that_its_writer_removes_under_a_consumer_elsewhere_needs_no_sync(tmp_path: Path) -> None:
    class Removing(LocalFiles):
        """The writer removes the page just before the consumer syncs it."""

        page: Path | None = None

        def sync_data(self, file: int) -> None:
            if self.page is not None and os.path.samestat(os.fstat(file), os.stat(self.page)):
                self.page.unlink()
                self.page = None
            super().sync_data(file)

    files = Removing()
    with opened(tmp_path) as queue, opened(tmp_path, read_only=True, files=files) as reader:
        queue.append(b"one")
        with reader.consumer("c") as consumer:
            message = next(iter(consumer))
            files.page = tmp_path / "q-1.page"
            consumer.commit(message, durable=True)
            assert files.page is None
            assert consumer.committed_seq == 1
        queue.append(b"two")
        with pytest.raises(Closed):
            queue.flush()
        closed_quietly(queue)


def test_a_cursor_that_goes_while_retention_makes_it_durable_holds_nothing() -> None:
    class Removing(CrashFiles):
        """A program removes the cursor just before retention syncs it."""

        armed = False

        def sync_data(self, file: int) -> None:
            directory, name, _ = self._handles[file]
            if self.armed and name == "q-c.cursor":
                self.armed = False
                directory.put(name, None)
            super().sync_data(file)

    files = Removing(Random(1))
    with Queue("d/q", page_size=PAGE_BYTES, files=files, background=False, keep="consumed") as queue:
        for _ in range(20):
            queue.append(bytes(900))
        queue.flush()
        with queue.consumer("c") as consumer:
            consumer.commit(consumer.poll()[-1])
        files.armed = True
        core_of(queue).run_background_work()
        assert not files.armed
        assert queue.append(b"goes on") == 21


def test_a_file_system_that_counts_no_links_hides_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = LocalFiles()
    path = tmp_path / "file"
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        found = os.stat_result([0] * 10)
        monkeypatch.setattr(os, "fstat", lambda _: found)
        files.sync_data(file)
        path.unlink()
        with pytest.raises(RemovedFile) as caught:
            files.sync_data(file)
        assert caught.value.filename == str(path)
        monkeypatch.setattr(os, "readlink", no_such_place)
        with pytest.raises(RemovedFile) as caught:
            files.sync_data(file)
        assert caught.value.filename is None
    finally:
        os.close(file)


def no_such_place(path: str) -> str:
    raise FileNotFoundError(path)


def test_after_a_removal_every_flush_is_refused_in_the_same_way(tmp_path: Path) -> None:
    queue = opened(tmp_path)
    queue.append(b"one")
    (tmp_path / "q-1.page").unlink()
    for _ in range(2):
        with pytest.raises(HoldfastError) as caught:
            queue.flush()
        assert isinstance(caught.value, Closed)
    closed_quietly(queue)
