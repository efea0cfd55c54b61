"""What the file system refuses under an open queue, call by call: an error of Holdfast, nothing held, nothing promised
that is not so."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from random import Random

import pytest
from tests.worlds.queue.files import CrashFiles

from holdfast import aio
from holdfast.errors import Closed, Code, HoldfastError, InvalidRequest, Unavailable
from holdfast.queue import Queue
from holdfast.queue.consumers.consumer import Consumer
from holdfast.queue.files.cursors import committed_seqs, first_held_seq
from holdfast.queue.files.meta_files import read_write_position
from holdfast.queue.files.pages import PageDirectory
from holdfast.queue.format.file_names import FileNames
from holdfast.queue.queue import core_of
from holdfast.queue.work.work_queue import Job, WorkQueue

OPERATIONS = ["names", "create", "open", "size", "modified_ns", "size_of", "read", "write", "allocate", "truncate"]
OPERATIONS += ["sync_data", "sync_directory", "rename", "unlink", "lock", "map"]


PATH = "/d/q"


class FailsOnce(CrashFiles):
    """Files in memory of which one operation fails, whichever comes as the ``at``-th."""

    def __init__(self) -> None:
        super().__init__(Random(1))
        self.at, self.done, self.failed = 0, 0, ""
        for operation in OPERATIONS:
            setattr(self, operation, self.counted(operation, getattr(self, operation)))

    def counted(self, operation: str, call: Callable[..., object]) -> Callable[..., object]:
        def counting(*args: object, **named: object) -> object:
            self.done += self.at > 0
            if self.done == self.at > 0:
                self.at, self.failed = 0, operation
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return call(*args, **named)

        return counting

    def fail(self, at: int) -> None:
        self.at, self.done, self.failed = at, 0, ""


Followers = tuple[Queue, Consumer, WorkQueue, Job]


def append_and_flush(queue: Queue) -> None:
    queue.append(b"m")
    queue.flush()


def poll_and_commit(followers: Followers, *, durable: bool) -> None:
    followers[1].poll()
    followers[1].commit(durable=durable)


def give_back_and_get(followers: Followers) -> None:
    followers[2].nack(followers[3])
    followers[2].get(timeout=0)


YESTERDAY = timedelta(days=1)
CALLS: dict[str, Callable[[Followers], object]] = {
    "append": lambda found: found[0].append(b"m"),
    "append_many": lambda found: found[0].append_many([b"m"] * 300),
    "flush": lambda found: append_and_flush(found[0]),
    "trim": lambda found: found[0].trim(before_seq=found[0].last_seq),
    "first_seq": lambda found: found[0].first_seq,
    "read": lambda found: list(found[0].read()),
    "read seq": lambda found: list(found[0].read(seq=5)),
    "read since": lambda found: list(found[0].read(since=datetime.now(UTC) - YESTERDAY)),
    "read latest": lambda found: list(found[0].read(since="latest")),
    "batches": lambda found: list(found[0].batches()),
    "read_payloads": lambda found: list(found[0].read_payloads()),
    "values": lambda found: list(found[0].values()),
    "consumer": lambda found: found[0].consumer("new"),
    "work_queue": lambda found: found[0].work_queue("new"),
    "iterate": lambda found: list(found[1]),
    "poll": lambda found: found[1].poll(),
    "commit": lambda found: poll_and_commit(found, durable=False),
    "commit durably": lambda found: poll_and_commit(found, durable=True),
    "reset seq": lambda found: found[1].reset(seq=3),
    "reset since": lambda found: found[1].reset(since="latest"),
    "consumer lag": lambda found: found[1].lag(),
    "get": lambda found: found[2].get(timeout=0),
    "get_many": lambda found: found[2].get_many(5),
    "ack": lambda found: found[2].ack(found[3]),
    "nack and get": give_back_and_get,
    "dead_letter": lambda found: found[2].dead_letter(found[3]),
    "dead_letters": lambda found: list(found[2].dead_letters()),
    "work queue lag": lambda found: found[2].lag(),
    "close the work queue": lambda found: found[2].close(),
    "close": lambda found: found[0].close(),
}
READER_CALLS: dict[str, Callable[[Queue], object]] = {
    "last_seq": lambda queue: queue.last_seq,
    "durable_seq": lambda queue: queue.durable_seq,
    "first_seq": lambda queue: queue.first_seq,
    "read": lambda queue: list(queue.read()),
    "read latest": lambda queue: list(queue.read(since="latest")),
}


def failures(files: FailsOnce, call: Callable[[], object]) -> Iterator[None]:
    """Run ``call`` with its first operation failing, its second, and so on, until none fails. What it raises is an
    error of Holdfast; after each the files are whole again."""
    for at in count(1):
        files.fail(at)
        with suppress(HoldfastError):
            call()
        files.at = 0
        yield
        if not files.failed:
            return


def filled() -> FailsOnce:
    files = FailsOnce()
    with Queue(PATH, page_size=4096, files=files, background=False) as queue:
        for number in range(60):
            queue.append(b"%d" % number * 40)
    return files


@pytest.mark.parametrize(
    ("sync", "name"),
    [("os", name) for name in CALLS]
    + [(sync, name) for sync in ("always",) for name in ("append", "flush", "ack", "dead_letter", "close")],
)
def test_whatever_fails_is_an_error_of_holdfast_and_nothing_stays_held(sync: str, name: str) -> None:
    files = filled()
    opened: list[Followers] = []

    def begin() -> None:
        queue = Queue(
            PATH, page_size=4096, sync=sync, max_bytes=1 << 20, lifetime=YESTERDAY, files=files, background=False
        )
        consumer, work = queue.consumer("c", hold=True), queue.work_queue("w", damage="skip")
        job = work.get(timeout=0)
        assert job is not None
        opened.append((queue, consumer, work, job))

    begin()
    for _ in failures(files, lambda: CALLS[name](opened[-1])):
        queue = opened[-1][0]
        with suppress(Closed):
            queue.close()
        assert not files.open_handles, f"after {files.failed}"
        begin()
    with suppress(Closed):
        opened[-1][0].close()


@pytest.mark.parametrize("name", READER_CALLS)
def test_a_reader_without_a_writers_place_is_told_the_same(name: str) -> None:
    files = filled()
    with Queue(PATH, read_only=True, files=files) as queue:
        before = files.open_handles
        for _ in failures(files, lambda: READER_CALLS[name](queue)):
            assert files.open_handles == before


def test_the_asyncio_twin_is_told_the_same() -> None:
    async def read() -> None:
        files = FailsOnce()
        async with aio.Queue(PATH, files=files) as queue:
            await queue.append(b"m")
            files.fail(1)
            with pytest.raises(Unavailable):
                async for _ in queue.read():
                    pass

    asyncio.run(read())


def test_a_commit_that_could_not_be_written_leaves_the_old_place_and_can_be_tried_again() -> None:
    files = FailsOnce()
    with Queue(PATH, files=files) as queue, queue.consumer("c") as consumer:
        queue.append_many([b"1", b"2"])
        consumer.poll()
        files.fail(1)
        with pytest.raises(Unavailable) as refused:
            consumer.commit()
        assert (files.failed, refused.value.code, consumer.committed_seq) == ("write", Code.STORE_UNAVAILABLE, 0)
        error: object = refused.value
        assert isinstance(error, OSError), "for who looks after the disk"
        assert error.errno == errno.EIO
        consumer.commit()
        assert consumer.committed_seq == 2


class LostSyncs(CrashFiles):
    """A disk on which the next sync of one kind fails and is lost: the system says so once."""

    failing = ""

    def sync_data(self, file: int) -> None:
        self._once("sync_data", super().sync_data, file)

    def sync_directory(self, directory: int) -> None:
        self._once("sync_directory", super().sync_directory, directory)

    def _once(self, operation: str, sync: Callable[[int], None], file: int) -> None:
        if self.failing == operation:
            self.failing = ""
            self.refuse = lambda *_: OSError(errno.EIO, "injected")
        try:
            sync(file)
        finally:
            self.refuse = None


def queue_on(files: CrashFiles) -> Queue:
    return Queue(PATH, page_size=4096, files=files, clock=lambda: 1, entropy=Random(1).randbytes, background=False)


@pytest.mark.parametrize("seed", range(8))
def test_a_durable_commit_whose_sync_failed_is_not_promised_by_the_next_one(seed: int) -> None:
    files = LostSyncs(Random(seed))
    queue = queue_on(files)
    queue.append_many([b"1", b"2"])
    consumer = queue.consumer("c")
    consumer.poll()
    queue.flush()
    files.failing = "sync_data"
    promised = 0
    for _ in range(2):
        with suppress(HoldfastError):
            consumer.commit(durable=True)
            promised = 2
    with queue_on(files.after_power_loss(Random(seed))) as after, after.consumer("c") as found:
        assert found.committed_seq >= promised
    # Opened again, it can promise.
    consumer.close()
    again = queue.consumer("c")
    again.poll()
    again.commit(durable=True)
    with queue_on(files.after_power_loss(Random(seed))) as after, after.consumer("c") as found:
        assert found.committed_seq == 2


@pytest.mark.parametrize("operation", ["sync_data", "sync_directory"])
@pytest.mark.parametrize("seed", range(8))
def test_a_cursor_whose_making_failed_is_durable_when_it_is_opened_again(seed: int, operation: str) -> None:
    files = LostSyncs(Random(seed))
    queue = queue_on(files)
    queue.append_many([b"1", b"2"])
    queue.flush()
    files.failing = operation
    with pytest.raises(Unavailable):
        queue.consumer("c")
    consumer = queue.consumer("c")
    consumer.poll()
    consumer.commit(durable=True)
    with queue_on(files.after_power_loss(Random(seed))) as after, after.consumer("c") as found:
        assert found.committed_seq == 2


@pytest.mark.parametrize("call", ["consumer", "work_queue"])
def test_a_cursor_is_durable_before_the_first_message_wherever_an_earlier_start_was_killed(call: str) -> None:
    whole = CrashFiles(Random(0))
    queue = queue_on(whole)
    queue.append_many([b"1", b"2"])
    queue.flush()
    images: list[CrashFiles] = []
    whole.before = lambda _: images.append(whole.after_kill(Random(0)))
    getattr(queue, call)("c", since="latest")
    assert len(images) > 3
    for image in images:
        again = queue_on(image)
        getattr(again, call)("c", since="latest")
        for seed in range(12):
            with queue_on(image.after_power_loss(Random(seed))) as after, getattr(after, call)("c") as found:
                assert found.lag() == 0, "where it begins is kept"


@pytest.mark.parametrize("call", ["consumer", "work_queue"])
def test_whatever_fails_while_a_cursor_is_opened_it_keeps_its_place_and_its_hold(call: str) -> None:
    files = FailsOnce()
    with queue_on(files) as queue:
        queue.append_many([b"1", b"2", b"3"])
        with getattr(queue, call)("c", hold=True) as found:
            if isinstance(found, Consumer):
                found.poll()
                found.commit(2)
            else:
                found.ack_many(found.get_many(2))
        for _ in failures(files, lambda: getattr(queue, call)("c", since="latest", hold=True).close()):
            assert committed_seqs(core_of(queue).pages) == {"c": 2}, f"after {files.failed}"
            assert first_held_seq(core_of(queue).pages) == 3, f"after {files.failed}"


def test_a_damaged_cursor_begins_anew_and_is_never_removed_with_what_it_holds() -> None:
    files = FailsOnce()
    with queue_on(files) as queue:
        queue.append_many([b"1", b"2"])
        damaged = b"what is left of it"
        opened: list[int] = []

        def begin() -> None:
            files.set_content("/d", "q-c.cursor", damaged)
            with queue.consumer("c") as consumer:
                opened.append(consumer.next_seq)

        for _ in failures(files, begin):
            assert files.contents("/d")["q-c.cursor"].startswith(damaged), f"after {files.failed}"
        assert set(opened) == {1}


@pytest.mark.parametrize("call", ["consumer", "work_queue"])
@pytest.mark.parametrize("how", ["killed", "failed", "not written"])
@pytest.mark.parametrize("starts", [1, 2, 3])
def test_a_cursor_is_durable_before_the_first_message_however_many_starts_did_not_sync_it(
    call: str, how: str, starts: int
) -> None:
    files = CrashFiles(Random(0))
    queue = queue_on(files)
    queue.append_many([b"1", b"2"])
    queue.flush()
    for _ in range(starts):
        images: list[CrashFiles] = []

        def before_the_sync(
            operation: str, name: str, files: CrashFiles = files, images: list[CrashFiles] = images
        ) -> OSError | None:
            if operation != ("write" if how == "not written" else "sync") or name != "q-c.cursor":
                return None
            if operation == "sync" and not any(files.contents("/d")[name]):
                return None
            images.append(files.after_kill(Random(0)))
            return OSError(errno.EIO, "injected")

        files.refuse = before_the_sync
        with pytest.raises(Unavailable):
            getattr(queue, call)("c", since="latest")
        files.refuse = None
        if how == "killed":
            files = images[0]
            queue = queue_on(files)
    getattr(queue, call)("c", since="latest")
    for seed in range(12):
        with queue_on(files.after_power_loss(Random(seed))) as after, getattr(after, call)("c") as found:
            assert found.lag() == 0, "where it begins is kept"


def killed_before_the_name_of_a_page_was_durable(seed: int) -> LostSyncs:
    """The files of a process that was killed when it made a page ahead, which has its name and no more."""
    whole, killed = CrashFiles(Random(seed)), LostSyncs(Random(seed))

    def before(operation: str) -> None:
        if operation == "sync directory" and "q-2.page" in whole.contents("/d"):
            killed.directories = whole.after_kill(Random(seed)).directories

    whole.before = before
    queue = queue_on(whole)
    while not killed.directories:
        queue.append(bytes(200))
        core_of(queue).run_background_work()
    return killed


@pytest.mark.parametrize("call", ["append", "close"])
@pytest.mark.parametrize("seed", range(8))
def test_a_sync_of_the_names_that_failed_is_not_tried_again(seed: int, call: str) -> None:
    files = killed_before_the_name_of_a_page_was_durable(seed)
    queue = queue_on(files)
    last_seq = queue.last_seq
    files.failing = "sync_directory"
    calls: dict[str, Callable[[], object]] = {"append": lambda: queue.append(b"m"), "close": queue.close}
    for _ in range(2 if call == "append" else 1):
        with pytest.raises(Closed) as refused:
            calls[call]()
        assert refused.value.code is Code.SYNC_FAILED
    assert not files.failing
    with suppress(Closed):
        queue.close()
    assert not files.open_handles
    mark = read_write_position(PageDirectory(files, files.open_directory("/d"), FileNames("q")))
    assert mark is not None
    assert not mark.clean, "nothing says that the names are durable"
    # Opened again it begins another page, of which it knows.
    again = queue_on(files)
    assert again.last_seq == last_seq
    for _ in range(40):
        again.append(bytes(200))
    again.flush()
    with queue_on(files.after_power_loss(Random(seed))) as after:
        assert after.last_seq == last_seq + 40
        assert len(list(after.read())) == last_seq + 40


def test_dead_letters_that_could_not_be_synced_hold_neither_the_name_nor_a_file() -> None:
    files = filled()
    with Queue(PATH, files=files, background=False) as queue:
        work = queue.work_queue("w")
        first, second = work.get_many(2)
        work.dead_letter(first)
        setattr(files, "sync_data", refuse)  # noqa: B010 - a method of this one object
        with pytest.raises(Closed):
            work.dead_letter(second)
        del files.sync_data
        with pytest.raises(Closed):
            work.close()
        queue.work_queue("w").close()
    assert not files.open_handles


def refuse(_: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("call", ["consumer", "work_queue"])
def test_closing_a_queue_gives_back_the_names_that_nobody_refers_to_any_more(call: str) -> None:
    files = FailsOnce()
    with Queue(PATH, files=files) as queue:
        queue.append(b"m")
        getattr(queue, call)("c")
    assert not files.open_handles
    with Queue(PATH, files=files) as queue, getattr(queue, call)("c"):
        pass


def test_a_closed_queue_says_so_whatever_it_is_asked(tmp_path: Path) -> None:
    queue = Queue(tmp_path / "q")
    queue.close()
    for ask in (lambda: queue.first_seq, lambda: queue.last_seq, lambda: queue.durable_seq, lambda: queue.read()):
        with pytest.raises(Closed):
            ask()


def test_arguments_are_refused_where_they_are_given(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue:
        queue.append(b"m")
        consumer, work = queue.consumer("c"), queue.work_queue("w")
        job = work.get(timeout=0)
        assert job is not None
        error = ValueError("no text")
        calls: list[Callable[[], object]] = [
            lambda: queue.read(seq="1"),  # type: ignore[arg-type]
            lambda: queue.read(seq=1.5),  # type: ignore[arg-type]
            lambda: queue.trim(before_seq="1"),  # type: ignore[arg-type]
            lambda: queue.consumer("d", damage="ignore"),
            lambda: queue.work_queue("d", damage="ignore"),
            lambda: consumer.reset(seq="1"),  # type: ignore[arg-type]
            lambda: consumer.poll(max_messages="1"),  # type: ignore[arg-type]
            lambda: work.get_many("1"),  # type: ignore[arg-type]
            lambda: work.retry(job, reason=error),  # type: ignore[arg-type]
            lambda: work.nack(job, reason=error),  # type: ignore[arg-type]
            lambda: work.dead_letter(job, reason=error),  # type: ignore[arg-type]
        ]
        for call in calls:
            with pytest.raises(InvalidRequest):
                call()
        work.ack(job)
    assert not [name for name in os.listdir(tmp_path) if name.startswith("q-d")], "and no file is made"
