"""The queue over real files: what it promises to a program."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast.errors import AlreadyOpen, Closed, InvalidRequest, LimitExceeded, PermissionDenied
from holdfast.queue import Gap, Queue, Trimmed, every

SMALL = 16 << 10


class Clock:
    """Nanoseconds, one more at each look unless it is set."""

    def __init__(self, now: int = 1_000_000_000) -> None:
        self.now = now
        self.step = 1

    def __call__(self) -> int:
        self.now += self.step
        return self.now


def payloads(queue: Queue, **where: object) -> list[bytes]:
    return [message.payload for message in queue.read(**where)]  # type: ignore[arg-type]


def test_what_was_appended_is_read_in_order_with_rising_numbers(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue:
        assert queue.append(b"first") == 1
        assert queue.append_many([b"", b"second", b"x" * 5000]) == (2, 4)
        found = list(queue.read())
    assert [message.seq for message in found] == [1, 2, 3, 4]
    assert [message.payload for message in found] == [b"first", b"", b"second", b"x" * 5000]
    assert [message.time_ns for message in found] == sorted(message.time_ns for message in found)


@pytest.mark.parametrize("size", [0, 1, 90, 900, 9000])
def test_everything_is_there_after_many_pages_and_a_clean_close(tmp_path: Path, size: int) -> None:
    expected = []
    for round_number in range(3):
        with Queue(tmp_path / "q", page_size=SMALL) as queue:
            for number in range(200):
                expected.append(b"%d-%d-" % (round_number, number) + b"x" * size)
                assert queue.append(expected[-1]) == len(expected)
            batch = [b"%d" % number * (size // 4) for number in range(100)]
            queue.append_many(batch)
            expected += batch
            assert payloads(queue) == expected
    with Queue(tmp_path / "q", read_only=True) as queue:
        assert payloads(queue) == expected
        assert queue.last_seq == queue.durable_seq == len(expected)
        for seq in range(1, len(expected), 97):
            assert payloads(queue, seq=seq) == expected[seq - 1 :]
        assert [bytes(item) for block in queue.batches(seq=5) for item in block] == expected[4:]


def test_a_killed_writer_loses_nothing_and_the_next_goes_on(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from holdfast.queue import Queue\n"
        "queue = Queue(sys.argv[1], page_size=16384)\n"
        "base = queue.last_seq\n"
        "for number in range(base, base + 500): queue.append(b'%d' % number)\n"
        "queue.append_many([b'%d' % number for number in range(base + 500, base + 1000)])\n"
        "os.kill(os.getpid(), 9)\n"
    )
    for round_number in range(1, 4):
        subprocess.run([sys.executable, "-c", script, tmp_path / "q"], check=False)
        with Queue(tmp_path / "q", read_only=True) as queue:
            assert payloads(queue) == [b"%d" % number for number in range(1000 * round_number)]


def test_reading_since_a_time_never_misses_equal_times_across_a_page_border(tmp_path: Path) -> None:
    clock = Clock()
    with Queue(tmp_path / "q", page_size=4096, clock=clock) as queue:
        clock.step = 0
        for number in range(300):
            if number % 50 == 0:
                clock.now += 1_000_000_000
            queue.append(b"%d" % number)
        for moment in range(1, 8):
            since = datetime.fromtimestamp(moment + 1, UTC)
            first = min(50 * moment, 300) - 50
            expected = [b"%d" % number for number in range(max(0, first), 300)] if moment < 7 else []
            assert payloads(queue, since=since) == expected


def test_a_clock_that_steps_back_delivers_more_never_less(tmp_path: Path) -> None:
    clock = Clock(10_000_000_000)
    with Queue(tmp_path / "q", clock=clock) as queue:
        queue.append(b"before")
        clock.now = 5_000_000_000
        queue.append(b"after")
        since = datetime.fromtimestamp(5, UTC) + timedelta(microseconds=1)
        assert payloads(queue, since=since) == [b"before", b"after"]


def test_a_second_writer_is_refused_and_told_who_holds_the_first(tmp_path: Path) -> None:
    with Queue(tmp_path / "q"):
        with pytest.raises(AlreadyOpen) as caught:
            Queue(tmp_path / "q")
        assert caught.value.fields["pid"] == str(os.getpid())
    Queue(tmp_path / "q").close()


def test_a_forked_child_cannot_write_and_does_not_keep_the_lock(tmp_path: Path) -> None:
    queue = Queue(tmp_path / "q", background=False)
    queue.append(b"parent")
    child = os.fork()
    if child == 0:
        try:
            queue.append(b"child")
        except Closed:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert queue.append(b"parent again") == 2
    queue.close()
    with Queue(tmp_path / "q") as again:
        assert payloads(again) == [b"parent", b"parent again"]


@pytest.mark.parametrize("sync", ["os", "always", every(messages=3), every(bytes=100), every(ms=5)])
def test_flush_makes_everything_durable_at_every_level(tmp_path: Path, sync: str) -> None:
    with Queue(tmp_path / "q", sync=sync) as queue:
        for number in range(10):
            queue.append(b"%d" % number)
        queue.flush()
        assert queue.durable_seq == 10


def test_always_has_synced_before_it_answers(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", sync="always") as queue:
        for number in range(5):
            assert queue.append(b"x") == queue.durable_seq == number + 1


def test_a_message_larger_than_a_page_gets_a_page_of_its_own(tmp_path: Path) -> None:
    expected = [b"a", b"B" * 50_000, b"c", b"D" * 40_000, b"e"]
    with Queue(tmp_path / "q", page_size=4096, max_message=50_000) as queue:
        for message in expected:
            queue.append(message)
        with pytest.raises(LimitExceeded):
            queue.append(b"x" * 50_001)
        assert payloads(queue) == expected
    with Queue(tmp_path / "q", page_size=4096) as queue:
        assert payloads(queue) == expected


def test_a_flipped_bit_is_never_delivered_and_the_gap_is_told(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", page_size=SMALL, background=False) as queue:
        for number in range(400):
            queue.append(b"message %d" % number)
        queue.append_many([b"batch %d" % number for number in range(300)])
        queue.append(b"last")
        expected = payloads(queue)
    pages = sorted(tmp_path.glob("q-*.page"))
    for page in pages[:2]:
        whole = page.read_bytes()
        for place in range(64, 12_000, 611):
            page.write_bytes(whole[:place] + bytes([whole[place] ^ 8]) + whole[place + 1 :])
            reports: list[Gap | Trimmed] = []
            with Queue(tmp_path / "q", read_only=True) as queue:
                found = list(queue.read(damage=reports.append))
                assert all(message.payload == expected[message.seq - 1] for message in found)
                missing = set(range(1, len(expected) + 1)) - {message.seq for message in found}
                told = {seq for gap in reports if isinstance(gap, Gap) for seq in range(gap.first, gap.last + 1)}
                assert missing == told
                if missing:
                    assert len(missing) <= 400
                    with pytest.raises(Gap):
                        payloads(queue)
        page.write_bytes(whole)


def test_indexes_and_metadata_may_all_be_deleted(tmp_path: Path) -> None:
    expected = [b"%d" % number * 50 for number in range(2000)]
    with Queue(tmp_path / "q", page_size=SMALL) as queue:
        for message in expected:
            queue.append(message)
    for path in tmp_path.iterdir():
        if path.suffix != ".page":
            path.unlink()
    with Queue(tmp_path / "q", page_size=SMALL) as queue:
        assert payloads(queue) == expected
        assert queue.append(b"more") == 2001
        assert payloads(queue, seq=2000) == [expected[-1], b"more"]


def test_an_unaware_time_and_an_unknown_starting_point_are_refused(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue:
        for bad in ({"since": datetime(2026, 1, 1)}, {"since": "sometime"}, {"seq": 0}, {"since": "latest", "seq": 3}):  # noqa: DTZ001
            with pytest.raises(InvalidRequest):
                payloads(queue, **bad)


def test_a_reader_cannot_write_and_a_closed_queue_is_closed(tmp_path: Path) -> None:
    queue = Queue(tmp_path / "q")
    queue.append(b"x")
    queue.close()
    queue.close()
    with pytest.raises(Closed):
        queue.append(b"y")
    with Queue(tmp_path / "q", read_only=True) as reader:
        with pytest.raises(PermissionDenied) as refused:
            reader.append(b"y")
        assert refused.value.message == "the queue is open for reading only"


def test_a_damaged_index_never_hides_a_message(tmp_path: Path) -> None:
    clock = Clock()
    clock.step = 1_000_000
    with Queue(tmp_path / "q", page_size=SMALL, clock=clock) as queue:
        for number in range(600):
            queue.append_many([b"%d" % number, b"x" * 20])
        found = list(queue.read())
    chance = random.Random(7)
    indexes = sorted(tmp_path.glob("*.idx"))
    whole = {path: path.read_bytes() for path in indexes}
    for _ in range(60):
        for path in indexes:
            damaged = bytearray(whole[path])
            for _ in range(chance.randrange(1, 6)):
                place = chance.randrange(len(damaged))
                damaged[place] ^= 1 << chance.randrange(8)
            path.write_bytes(damaged[: chance.choice((len(damaged), chance.randrange(len(damaged))))])
        with Queue(tmp_path / "q", read_only=True) as queue:
            since = chance.choice(found)
            assert list(queue.read(since=since.time)) == [m for m in found if m.time_ns >= since.time_ns]
            assert list(queue.read(seq=since.seq)) == found[since.seq - 1 :]
