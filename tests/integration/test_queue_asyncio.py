"""The asyncio queue over real files: the promises of the blocking one, shared syncs, an event loop that never waits."""

from __future__ import annotations

import asyncio
import errno
import inspect
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast import Queue as BlockingQueue
from holdfast.aio import Queue
from holdfast.errors import AlreadyOpen, Closed, Fenced, InvalidRequest, LimitExceeded, PermissionDenied, Unavailable
from holdfast.queue import Gap, every
from holdfast.queue.aio import consumers as asynchronous_work
from holdfast.queue.consumers.consumer import Consumer
from holdfast.queue.files.local import LocalFiles
from holdfast.queue.work.work_queue import WorkQueue


class WatchedFiles(LocalFiles):
    """The real files, with a count of syncs, a gate before them, and errors on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0
        self.gate = threading.Event()
        self.gate.set()
        self.at_gate = threading.Event()
        self.sync_error: OSError | None = None
        self.pages_left = 1 << 30

    def sync_data(self, file: int) -> None:
        self.at_gate.set()
        assert self.gate.wait(60)
        self.syncs += 1
        if self.sync_error is not None:
            raise self.sync_error
        super().sync_data(file)

    def allocate(self, file: int, length: int) -> None:
        if self.pages_left == 0:
            raise OSError(errno.ENOSPC, "no space left on device")
        self.pages_left -= 1
        super().allocate(file, length)


def stored(path: Path) -> list[bytes]:
    with BlockingQueue(path, read_only=True) as queue:
        return [message.payload for message in queue.read()]


def test_the_twin_has_the_names_and_the_arguments_of_the_blocking_queue() -> None:
    assert list(inspect.signature(Queue).parameters) == list(inspect.signature(BlockingQueue).parameters)
    for name in ("append", "append_many", "flush", "trim", "read", "read_payloads", "batches", "values", "close"):
        blocking = list(inspect.signature(getattr(BlockingQueue, name)).parameters)
        assert list(inspect.signature(getattr(Queue, name)).parameters) == blocking, name
    for name in ("first_seq", "last_seq", "durable_seq"):
        assert isinstance(inspect.getattr_static(Queue, name), property)


@pytest.mark.parametrize(
    ("twin", "blocking"),
    [(Queue, BlockingQueue), (asynchronous_work.Consumer, Consumer), (asynchronous_work.WorkQueue, WorkQueue)],
)
def test_a_twin_method_takes_what_the_blocking_one_takes(twin: type, blocking: type) -> None:
    own = {"open"}
    names = {name for name in vars(twin) if not name.startswith("_")} - own
    assert names, "the twin has methods"
    for name in sorted(names):
        found = inspect.getattr_static(twin, name)
        if isinstance(found, property):
            continue
        wanted = inspect.getattr_static(blocking, name)
        parameters = [(p.name, p.kind, p.default) for p in inspect.signature(found).parameters.values()]
        assert parameters == [(p.name, p.kind, p.default) for p in inspect.signature(wanted).parameters.values()], name


@pytest.mark.parametrize(
    ("twin", "blocking"), [(asynchronous_work.Consumer, Consumer), (asynchronous_work.WorkQueue, WorkQueue)]
)
def test_nothing_of_a_consumer_or_work_queue_is_left_out(twin: type, blocking: type) -> None:
    wanted = {name for name in vars(blocking) if not name.startswith("_")}
    assert wanted <= {name for name in dir(twin) if not name.startswith("_")}


def test_importing_the_twin_needs_the_standard_library_alone() -> None:
    script = (
        "import sys; from holdfast.aio import Queue\n"
        "found = {m.partition('.')[0] for m in sys.modules} - set(sys.stdlib_module_names)\n"
        "print(sorted(m for m in found if not m.startswith(('_', 'sitecustomize', 'holdfast'))))\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_what_tasks_append_is_read_in_order_by_both_twins(tmp_path: Path) -> None:
    async def main() -> list[bytes]:
        async with Queue(tmp_path / "q", page_size=16384) as queue:
            assert await queue.append(b"first") == 1
            assert await queue.append_many([b"a" * 9000, b"b" * 9000, bytearray(b"c")]) == (2, 4)
            assert await queue.append(b"last") == 5
            await queue.flush()
            assert queue.durable_seq == queue.last_seq == 5
            assert queue.first_seq == 1
            found = [message.payload async for message in queue.read()]
            assert [bytes(item) async for block in queue.batches() for item in block] == found
            assert [payload async for payload in queue.read_payloads()] == found
            assert [message.seq async for message in queue.read(seq=4)] == [4, 5]
            return found

    assert asyncio.run(main()) == stored(tmp_path / "q") == [b"first", b"a" * 9000, b"b" * 9000, b"c", b"last"]


def test_a_thousand_tasks_that_append_at_once_share_a_sync(tmp_path: Path) -> None:
    files = WatchedFiles()

    async def main() -> None:
        async with Queue(tmp_path / "q", sync="always", files=files) as queue:
            await queue.append(b"the page is made")
            before = files.syncs

            async def append(number: int) -> tuple[int, int]:
                seq = await queue.append(b"%d" % number)
                assert queue.durable_seq >= seq
                return seq, number

            answers = await asyncio.gather(*(append(number) for number in range(1000)))
            assert files.syncs - before == 1
            found = {message.seq: message.payload async for message in queue.read()}
            assert all(found[seq] == b"%d" % number for seq, number in answers)
            assert sorted(found) == list(range(1, 1002))

    asyncio.run(main())


@pytest.mark.parametrize("sync", ["always", "every", "os"])
def test_the_event_loop_goes_on_while_a_sync_takes_its_time(tmp_path: Path, sync: str) -> None:
    files = WatchedFiles()

    async def main() -> None:
        level = every(messages=1) if sync == "every" else sync
        async with Queue(tmp_path / "q", sync=level, files=files) as queue:
            await queue.append(b"the page is made")
            await queue.flush()
            files.at_gate.clear()
            files.gate.clear()
            if sync == "os":
                await queue.append(b"one")
            waiting = asyncio.create_task(queue.flush() if sync == "os" else queue.append(b"one"))
            await asyncio.to_thread(files.at_gate.wait)
            for _ in range(100):
                await asyncio.sleep(0)
            assert not waiting.done()
            assert queue.durable_seq == 1
            files.gate.set()
            await waiting
            assert queue.durable_seq == 2

    asyncio.run(main())


def test_after_a_failed_sync_nobody_is_told_that_it_is_durable(tmp_path: Path) -> None:
    files = WatchedFiles()

    async def main() -> None:
        queue = await Queue(tmp_path / "q", sync="always", files=files).open()
        await queue.append(b"durable")
        files.sync_error = OSError(errno.EIO, "broken")
        answers = await asyncio.gather(*(queue.append(b"lost") for _ in range(10)), return_exceptions=True)
        assert all(isinstance(answer, Closed) for answer in answers)
        files.sync_error = None
        with pytest.raises(Closed):
            await queue.append(b"after")
        assert queue.durable_seq == 1
        with pytest.raises(Closed):
            await queue.close()

    asyncio.run(main())
    assert stored(tmp_path / "q")[0] == b"durable"


def test_on_a_full_disk_exactly_those_who_were_told_so_are_in_the_log(tmp_path: Path) -> None:
    files = WatchedFiles()

    async def main() -> list[int]:
        async with Queue(tmp_path / "q", page_size=4096, files=files, background=False) as queue:
            files.pages_left = 2
            texts = [b"%d" % number + b"." * 100_000 for number in range(20)]
            answers = await asyncio.gather(*map(queue.append, texts), return_exceptions=True)
            good = [number for number, answer in enumerate(answers) if isinstance(answer, int)]
            assert all(isinstance(answer, int | Unavailable) for answer in answers)
            assert 0 < len(good) < 20
            files.pages_left = 10
            assert await queue.append(b"again") == len(good) + 1
            return good

    good = asyncio.run(main())
    assert stored(tmp_path / "q") == [b"%d" % number + b"." * 100_000 for number in good] + [b"again"]


def test_a_message_that_is_refused_is_refused_to_its_own_task_only(tmp_path: Path) -> None:
    async def main() -> None:
        async with Queue(tmp_path / "q", sync="always", max_message=100) as queue:
            answers = await asyncio.gather(
                queue.append(b"good"),
                queue.append(b"x" * 101),
                queue.append("text"),
                queue.append_many([]),
                queue.append(b"good too"),
                return_exceptions=True,
            )
            assert [type(answer) for answer in answers] == [int, LimitExceeded, InvalidRequest, InvalidRequest, int]

    asyncio.run(main())
    assert stored(tmp_path / "q") == [b"good", b"good too"]


def test_a_cancelled_append_harms_nobody_else(tmp_path: Path) -> None:
    files = WatchedFiles()

    async def main() -> None:
        async with Queue(tmp_path / "q", sync="always", files=files) as queue:
            files.at_gate.clear()
            files.gate.clear()
            impatient, patient = (asyncio.create_task(queue.append(text)) for text in (b"impatient", b"patient"))
            await asyncio.to_thread(files.at_gate.wait)
            impatient.cancel()
            await asyncio.wait([impatient])
            files.gate.set()
            assert await patient == 2
            assert impatient.cancelled()

    asyncio.run(main())
    assert stored(tmp_path / "q") == [b"impatient", b"patient"]


def test_closing_finishes_what_was_submitted(tmp_path: Path) -> None:
    async def main() -> None:
        queue = await Queue(tmp_path / "q", sync="always").open()
        appends = [asyncio.create_task(queue.append(b"%d" % number)) for number in range(50)]
        await asyncio.sleep(0)
        await queue.close()
        await queue.close()
        assert await asyncio.gather(*appends) == list(range(1, 51))
        with pytest.raises(Closed):
            await queue.append(b"late")
        with pytest.raises(Closed):
            await queue.open()

    asyncio.run(main())
    assert len(stored(tmp_path / "q")) == 50


@pytest.mark.parametrize("sync", ["os", "always"])
def test_followers_get_every_message_once_and_end_when_the_queue_is_closed(tmp_path: Path, sync: str) -> None:
    async def main() -> None:
        queue = await Queue(tmp_path / "q", sync=sync, page_size=8192).open()
        got: list[list[int]] = [[], [], []]

        async def follow(mine: list[int]) -> None:
            async for message in queue.read(follow=True):
                mine.append(message.seq)
                if len(mine) == 300:
                    arrived.release()

        arrived = asyncio.Semaphore(0)
        followers = [asyncio.create_task(follow(mine)) for mine in got]
        for number in range(300):
            await queue.append(b"%d" % number * 20)
            if number == 100:
                followers[2].cancel()
        for _ in got[:2]:
            await arrived.acquire()
        await queue.close()
        answers = await asyncio.gather(*followers, return_exceptions=True)
        assert [type(answer) for answer in answers] == [Closed, Closed, asyncio.CancelledError]
        assert got[0] == got[1] == list(range(1, 301))
        assert got[2] == list(range(1, len(got[2]) + 1))

    asyncio.run(main())


def test_a_reader_follows_a_writer_in_another_process(tmp_path: Path) -> None:
    script = (
        "import sys; from holdfast import Queue\n"
        "with Queue(sys.argv[1], page_size=8192) as queue:\n"
        "    print('open', flush=True)\n"
        "    for line in sys.stdin: queue.append(line.strip().encode())\n"
    )

    async def main() -> None:
        writer = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, tmp_path / "q", stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert writer.stdin is not None and writer.stdout is not None
        assert await writer.stdout.readline() == b"open\n"
        writer.stdin.write(b"first\n")
        async with Queue(tmp_path / "q", read_only=True) as queue:
            with pytest.raises(PermissionDenied):
                await queue.append(b"refused")
            got: list[bytes] = []
            async for message in queue.read(follow=True):
                got.append(message.payload)
                if len(got) == 500:
                    break
                writer.stdin.write(b"%d\n" % len(got))
            assert got == [b"first", *(b"%d" % number for number in range(1, 500))]
        writer.stdin.close()
        assert await writer.wait() == 0

    asyncio.run(main())


def test_serializers_and_damage_reports_are_those_of_the_blocking_queue(tmp_path: Path) -> None:
    async def main() -> None:
        async with Queue(tmp_path / "q", serializer="json") as queue:
            for number in range(5):
                await queue.append({"n": number})
            assert [value async for value in queue.values(seq=3)] == [{"n": 2}, {"n": 3}, {"n": 4}]
        page = tmp_path / "q-1.page"
        data = bytearray(page.read_bytes())
        data[data.index(b'{"n":2}')] ^= 1
        page.write_bytes(data)
        told: list[Gap] = []
        async with Queue(tmp_path / "q", serializer="json", read_only=True) as queue:
            found = [value async for value in queue.values(damage=told.append)]
            assert found == [{"n": 0}, {"n": 1}, {"n": 3}, {"n": 4}]
            with pytest.raises(Gap):
                [message async for message in queue.read()]
        assert [(gap.first, gap.last) for gap in told] == [(3, 3)]

    asyncio.run(main())


def test_a_second_writer_is_refused_and_leaves_nothing_open(tmp_path: Path) -> None:
    async def main() -> None:
        async with Queue(tmp_path / "q"):
            with pytest.raises(Unavailable):
                await Queue(tmp_path / "q").open()
        async with Queue(tmp_path / "q") as queue:
            assert await queue.append(b"x") == 1

    asyncio.run(main())


# ---- consumers and work queues --------------------------------------------------------------------------------------


def test_a_consumer_goes_on_behind_its_last_commit(tmp_path: Path) -> None:
    async def main() -> None:
        async with Queue(tmp_path / "q") as queue:
            await queue.append_many([b"%d" % number for number in range(1, 3001)])
            async with queue.consumer("billing") as consumer:
                with pytest.raises(AlreadyOpen):
                    await queue.consumer("billing").open()
                async for message in consumer:
                    if message.seq == 10:
                        break
                assert consumer.next_seq == 11
                with pytest.raises(InvalidRequest):
                    await consumer.commit(11)
                await consumer.commit(message)
                assert [found.seq for found in await consumer.poll(max_messages=3)] == [11, 12, 13]
                await consumer.rewind()
                assert [found.seq for found in await consumer.poll(max_messages=3)] == [11, 12, 13]
                await consumer.commit(durable=True)
                assert (consumer.committed_seq, queue.durable_seq, await consumer.lag()) == (13, 3000, 2987)
                assert [found.seq for found in await consumer.poll(max_messages=1)] == [14]
            async with queue.consumer("billing") as consumer:
                assert [message.seq async for message in consumer] == list(range(14, 3001))
                assert await consumer.poll(timeout=0.01) == []
                await consumer.reset(seq=2999)
                assert [message.seq async for message in consumer] == [2999, 3000]

    asyncio.run(main())


def test_a_consumer_follows_and_ends_when_it_has_waited_long_enough(tmp_path: Path) -> None:
    async def main() -> None:
        async with Queue(tmp_path / "q") as queue, queue.consumer("c") as consumer:
            seen = asyncio.Semaphore(0)

            async def follow() -> list[int]:
                found = []
                async for message in consumer.follow():
                    found.append(message.seq)
                    seen.release()
                    if len(found) == 100:
                        break
                return found

            task = asyncio.create_task(follow())
            for _ in range(100):
                await queue.append(b"x")
                await seen.acquire()
            assert await task == list(range(1, 101))
            await consumer.commit()
            assert [message.seq async for message in consumer.follow(timeout=0)] == []

    asyncio.run(main())


@pytest.mark.parametrize("sync", ["os", "always"])
def test_every_job_is_done_once_by_one_of_many_tasks(tmp_path: Path, sync: str) -> None:
    done: list[int] = []

    async def main() -> None:
        async with Queue(tmp_path / "q", sync=sync) as queue, queue.work_queue("mailer") as work:

            async def worker() -> None:
                while (job := await work.get()) is not None:
                    if job.payload == b"stop":
                        await work.ack(job)
                        return
                    if job.seq % 10 == 0 and job.deliveries == 1:
                        await work.nack(job)
                        continue
                    done.append(job.seq)
                    await work.ack(job)
                    finished.release()

            finished = asyncio.Semaphore(0)
            workers = [asyncio.create_task(worker()) for _ in range(8)]
            await asyncio.gather(*(queue.append(b"%d" % number) for number in range(100)))
            for _ in range(100):
                await finished.acquire()
            await queue.append_many([b"stop"] * 8)
            await asyncio.gather(*workers)
            assert await work.get(timeout=0) is None
            assert (work.started, await work.lag()) == (0, 0)

    asyncio.run(main())
    assert sorted(done) == list(range(1, 101))


def test_a_job_that_is_given_back_with_a_delay_wakes_a_waiting_task(tmp_path: Path) -> None:
    async def main() -> None:
        async with Queue(tmp_path / "q") as queue, queue.work_queue("w", max_deliveries=2) as work:
            await queue.append(b"job")
            first = await work.get()
            assert first is not None
            await work.nack(first, delay=0.05)
            second = await work.get(timeout=60)
            assert second is not None and second.deliveries == 2
            with pytest.raises(Fenced):
                await work.ack(first)
            await work.dead_letter(second, "no such address")
            assert [letter.payload async for letter in work.dead_letters()] == [b"job"]
            assert await work.get(timeout=0.01) is None

    asyncio.run(main())
