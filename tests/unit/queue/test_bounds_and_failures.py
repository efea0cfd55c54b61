"""What happens at a bound, on a full disk, after a failed sync."""

from __future__ import annotations

import errno
import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.worlds.queue import CrashFiles

from holdfast.errors import Backpressure, Closed, Code, InvalidRequest, LimitExceeded, Unavailable
from holdfast.queue import Queue, Trimmed
from holdfast.queue.files.local import LocalFiles
from holdfast.queue.queue import core_of
from holdfast.queue.serializers import Serializer

SMALL = 16 << 10
MESSAGE = b"x" * 1000


class FailingFiles(LocalFiles):
    """Real files whose next operation of one kind fails; without maps, so that every write is an operation."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: dict[str, int] = {}
        self.calls: dict[str, int] = {}

    def _maybe_fail(self, operation: str) -> None:
        self.calls[operation] = self.calls.get(operation, 0) + 1
        if operation in self.failing:
            raise OSError(self.failing[operation], os.strerror(self.failing[operation]))

    def allocate(self, file: int, length: int) -> None:
        self._maybe_fail("allocate")
        super().allocate(file, length)

    def sync_data(self, file: int) -> None:
        self._maybe_fail("sync_data")
        super().sync_data(file)

    def write(self, file: int, offset: int, parts: Any) -> None:
        if "write" in self.failing:
            # A part of it is there: the worst that a short write leaves.
            whole = b"".join(parts)
            super().write(file, offset, (whole[: len(whole) // 2],))
        self._maybe_fail("write")
        super().write(file, offset, parts)

    def map(self, file: int, length: int) -> None:
        return None


def payloads(queue: Queue, **where: Any) -> list[bytes]:
    return [message.payload for message in queue.read(**where)]


def disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.page"))


def test_a_full_disk_is_told_and_nothing_is_wrong_when_there_is_room_again(tmp_path: Path) -> None:
    files = FailingFiles()
    expected = []
    with Queue(tmp_path / "q", page_size=SMALL, files=files, background=False) as queue:
        for number in range(60):
            if number % 20 == 10:
                files.failing = {"allocate": errno.ENOSPC}
                with pytest.raises(Unavailable) as caught:  # noqa: PT012
                    for _ in range(20):
                        queue.append(b"%d" % len(expected) + MESSAGE)
                        expected.append(b"%d" % len(expected) + MESSAGE)
                assert caught.value.code is Code.DISK_FULL
                files.failing = {}
            expected.append(b"%d" % number)
            queue.append(expected[-1])
        assert payloads(queue) == expected
    with Queue(tmp_path / "q", read_only=True) as queue:
        assert payloads(queue) == expected


def test_a_short_write_leaves_the_position_where_it_was(tmp_path: Path) -> None:
    files = FailingFiles()
    with Queue(tmp_path / "q", files=files, background=False) as queue:
        queue.append(b"before")
        files.failing = {"write": errno.ENOSPC}
        with pytest.raises(Unavailable):
            queue.append_many([MESSAGE] * 5)
        files.failing = {}
        assert payloads(queue) == [b"before"]
        assert queue.append(b"after") == 2
        assert payloads(queue) == [b"before", b"after"]


def test_a_failed_sync_is_never_tried_again(tmp_path: Path) -> None:
    files = FailingFiles()
    queue = Queue(tmp_path / "q", files=files, background=False)
    queue.append(b"durable")
    queue.flush()
    queue.append(b"in doubt")
    files.failing = {"sync_data": errno.EIO}
    with pytest.raises(Closed) as caught:
        queue.flush()
    assert caught.value.code is Code.SYNC_FAILED
    files.failing = {}
    syncs = files.calls["sync_data"]
    for refused in (lambda: queue.append(b"more"), queue.flush, lambda: queue.append_many([b"x"])):
        with pytest.raises(Closed):
            refused()
    assert queue.durable_seq == 1
    with pytest.raises(Closed):
        queue.close()
    assert files.calls["sync_data"] == syncs
    # The next start writes what it found once more, on the same page, and begins another.
    with Queue(tmp_path / "q") as again:
        assert payloads(again) == [b"durable", b"in doubt"]
        assert again.append(b"new page") == 3
        again.flush()
    assert (tmp_path / "q-2.page").exists()


def test_the_level_always_refuses_those_whose_sync_failed(tmp_path: Path) -> None:
    files = FailingFiles()
    queue = Queue(tmp_path / "q", sync="always", files=files, background=False)
    queue.append(b"first")
    files.failing = {"sync_data": errno.EIO}
    with pytest.raises(Closed):
        queue.append(b"second")
    assert queue.durable_seq == 1
    with pytest.raises(Closed):
        queue.close()


def test_threads_that_wait_for_a_sync_share_one(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", sync="always") as queue:
        seqs: list[int] = []
        lock = threading.Lock()

        def work() -> None:
            for _ in range(50):
                seq = queue.append(b"x")
                assert queue.durable_seq >= seq
                with lock:
                    seqs.append(seq)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(seqs) == list(range(1, 401))
        assert len(payloads(queue)) == 400


def test_threads_at_every_path_never_lose_or_repeat(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", page_size=SMALL) as queue:

        def work(name: int) -> None:
            for number in range(150):
                queue.append(b"%d %d" % (name, number))
                queue.append_many([b"%d %d-%d" % (name, number, part) for part in range(3)])

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = payloads(queue)
        assert len(found) == len(set(found)) == 4 * 150 * 4
    with Queue(tmp_path / "q") as queue:
        assert payloads(queue) == found


@pytest.mark.parametrize("background", [True, False])
def test_dropping_the_oldest_keeps_the_disk_within_the_limit_and_a_page(tmp_path: Path, background: bool) -> None:
    limit = 6 * SMALL
    with Queue(tmp_path / "q", page_size=SMALL, max_bytes=limit, background=background) as queue:
        for number in range(500):
            queue.append(b"%d" % number + MESSAGE)
            assert disk_bytes(tmp_path) <= limit + SMALL
        first = queue.first_seq
        assert first > 300
        found = list(queue.read())
        assert [message.seq for message in found] == list(range(first, 501))
        with pytest.raises(Trimmed) as caught:
            payloads(queue, seq=1)
        assert caught.value.first_seq == first


def test_a_reader_that_is_overtaken_is_told_where_the_queue_begins(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", page_size=SMALL, max_bytes=4 * SMALL) as queue:
        queue.append(MESSAGE)
        reports: list[Exception] = []
        reader = core_of(queue).reader(damage=reports.append)
        assert [message.seq for message in reader.read_messages() or []] == [1]
        for _ in range(200):
            queue.append(MESSAGE)
        seen = [message.seq for part in iter(reader.read_messages, None) for message in part]
        reader.close()
        (report,) = reports
        assert isinstance(report, Trimmed)
        assert seen[-1] == 201
        assert report.first_seq in seen


def test_raise_refuses_what_would_not_fit_and_takes_it_when_a_consumer_moved_on(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", page_size=SMALL, max_bytes=4 * SMALL, full="raise", background=False) as queue:
        consumer = queue.consumer("slow")
        appended = 0
        with pytest.raises(Backpressure) as caught:  # noqa: PT012
            while appended < 1000:
                queue.append(MESSAGE)
                appended += 1
        assert caught.value.code is Code.QUEUE_FULL
        assert len(list(consumer)) == appended
        consumer.commit()
        assert queue.append(MESSAGE) == appended + 1
        assert queue.first_seq > 1


def test_block_waits_until_a_consumer_confirms(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", page_size=SMALL, max_bytes=4 * SMALL, full="block") as queue:
        consumer = queue.consumer("slow")
        total = 300

        def write() -> None:
            for _ in range(total):
                queue.append(MESSAGE)

        writing = threading.Thread(target=write)
        writing.start()
        for message in consumer.follow():
            consumer.commit(message)
            if message.seq == total:
                break
        writing.join()
        assert queue.last_seq == total
        assert disk_bytes(tmp_path) <= 5 * SMALL


def test_a_page_goes_when_both_its_messages_and_its_file_are_old(tmp_path: Path) -> None:
    now = [int(datetime.now(UTC).timestamp() * 1e9)]
    lifetime = timedelta(hours=1)
    queue = Queue(
        tmp_path / "q", page_size=SMALL, lifetime=lifetime, clock=lambda: now[0], background=False, max_message=SMALL
    )
    for _ in range(100):
        queue.append(MESSAGE)
    now[0] += int(7200e9)
    core_of(queue).run_background_work()
    assert queue.first_seq > 1
    old = queue.first_seq
    # The clock jumps, the files are new: nothing goes.
    for path in tmp_path.glob("*.page"):
        os.utime(path, ns=(now[0], now[0]))
    now[0] += int(1800e9)
    core_of(queue).run_background_work()
    assert queue.first_seq == old
    queue.close()


def test_compressed_frames_are_smaller_and_read_the_same(tmp_path: Path) -> None:
    expected = [b"%d " % number * 100 for number in range(1000)]
    with Queue(tmp_path / "q", compression=6) as queue:
        queue.append_many(expected[:-1])
        queue.append(expected[-1])
        assert payloads(queue) == expected
        assert payloads(queue, seq=500) == expected[499:]
        assert [bytes(item) for block in queue.batches(seq=990) for item in block] == expected[989:]


def test_a_serializer_makes_bytes_of_values_and_values_of_bytes(tmp_path: Path) -> None:
    for name, serializer, values in (
        ("text", "str", ["a", "ü", ""]),
        ("json", "json", [{"a": [1, None]}, "x", 3]),
        ("own", Serializer(lambda value: repr(value).encode(), len), [7, 77]),
    ):
        with Queue(tmp_path / name, serializer=serializer) as queue:
            queue.append(values[0])
            queue.append_many(values[1:])
            assert list(queue.values()) == (values if name != "own" else [1, 2])


def test_settings_that_cannot_be_are_refused(tmp_path: Path) -> None:
    wrong: list[dict[str, Any]] = [
        {"page_size": 100},
        {"sync": "sometimes"},
        {"max_bytes": SMALL, "page_size": SMALL},
        {"full": "maybe", "max_bytes": 1 << 30},
        {"serializer": "yaml"},
        {"max_message": 0},
        {"checksum": 9},
        {"lifetime": timedelta(0)},
    ]
    for settings in wrong:
        with pytest.raises(InvalidRequest):
            Queue(tmp_path / "q", **settings)
    with Queue(tmp_path / "q", max_message=10) as queue:
        for refused in (b"x" * 11,):
            with pytest.raises(LimitExceeded):
                queue.append(refused)
            with pytest.raises(LimitExceeded):
                queue.append_many([b"x", refused])
        with pytest.raises(InvalidRequest):
            queue.append_many([])
        with pytest.raises(InvalidRequest):
            queue.append("text")
        assert payloads(queue) == []
        assert queue.append(b"x") == 1


@pytest.mark.parametrize("from_elsewhere", [False, True])
def test_following_delivers_what_is_appended_while_it_waits(tmp_path: Path, from_elsewhere: bool) -> None:
    with Queue(tmp_path / "q", page_size=SMALL) as queue:
        queue.append(b"first")
        started = threading.Event()

        def write() -> None:
            started.wait()
            for number in range(300):
                queue.append(b"%d" % number)

        writing = threading.Thread(target=write)
        writing.start()
        reading = Queue(tmp_path / "q", read_only=True) if from_elsewhere else queue
        found = []
        for message in reading.read(follow=True):
            started.set()
            found.append(message.payload)
            if len(found) == 301:
                break
        writing.join()
        assert found == [b"first", *(b"%d" % number for number in range(300))]
        if from_elsewhere:
            reading.close()


@pytest.mark.parametrize("helper", [True, False])
def test_on_a_full_disk_what_has_grown_old_makes_room(helper: bool) -> None:
    files = CrashFiles(Random(1))
    now_ns = [1_000_000_000_000]

    def four_pages(operation: str, name: str) -> OSError | None:
        pages = sum(found.endswith(".page") for found in files.directories["d"].entries)
        if operation == "allocate" and ".page" in name and pages >= 4:
            return OSError(errno.ENOSPC, "no space left on device")
        return None

    queue = Queue(
        "d/q", page_size=4096, files=files, lifetime=timedelta(seconds=1), clock=lambda: now_ns[0], background=False
    )
    files.refuse = four_pages

    def fill() -> None:
        while True:
            queue.append(b"x" * 200)

    with pytest.raises(Unavailable) as refused:
        fill()
    assert refused.value.code is Code.DISK_FULL
    last = queue.last_seq
    queue.flush()
    now_ns[0] += 3_600_000_000_000
    files.now_ns = now_ns[0]
    if helper:
        with pytest.raises(OSError, match="no space"):
            core_of(queue).run_background_work()
        assert queue.first_seq > 1
        core_of(queue).run_background_work()
    assert queue.append(b"y" * 200) == last + 1
    assert queue.first_seq > 1
    queue.close()
