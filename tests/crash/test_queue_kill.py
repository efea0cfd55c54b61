"""The queue on real files: killed writers, flipped bits, full disks, forks, a second writer."""

from __future__ import annotations

import itertools
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from tests.crash.queue_writer import LEVELS, PAGE_BYTES, payload_of

from holdfast.errors import AlreadyOpen, Closed, Code, Unavailable
from holdfast.queue import Gap, Message, Queue, Trimmed

PROVE = os.environ.get("HOLDFAST_PROVE") == "1"
KILLS = 60 if PROVE else 4
SEED = int(os.environ.get("HOLDFAST_CRASH_SEED", "20250101"))
WRITER = Path(__file__).parent / "queue_writer.py"
RecordProperty = Callable[[str, object], None]

pytestmark = pytest.mark.timeout(1_800 if PROVE else 120)


def start_writer(path: Path, level: str, seed: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(WRITER), str(path), level, str(seed)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
    )


def promised_before_a_kill(writer: subprocess.Popen[bytes], lines: int) -> int:
    """Kill the writer after so many promises; returns the last that it made, read to the end of its pipe."""
    assert writer.stdout is not None
    promised = 0
    with writer.stdout as pipe:
        for _ in range(lines):
            promised = int(pipe.readline())
        writer.kill()
        for line in pipe.read().splitlines(keepends=True):
            if line.endswith(b"\n"):
                promised = int(line)
    writer.wait()
    return promised


@pytest.mark.parametrize("level", LEVELS)
def test_a_killed_writer_loses_nothing_that_it_promised(
    tmp_path: Path, level: str, record_property: RecordProperty
) -> None:
    random = Random(f"{SEED}/{level}")
    last_seq = 0
    for round_number in range(KILLS):
        writer = start_writer(tmp_path / "q", level, random.randrange(1 << 30))
        promised = promised_before_a_kill(writer, random.randint(1, 120))
        with Queue(tmp_path / "q", read_only=True) as reader:
            found = list(reader.read())
            assert [message.seq for message in found] == list(range(1, len(found) + 1)), f"round {round_number}"
            assert all(message.payload == payload_of(message.seq) for message in found), f"round {round_number}"
            assert len(found) >= max(promised, last_seq), f"round {round_number}: {promised} promised"
        last_seq = len(found)
    assert last_seq > KILLS
    record_property("queue_kills", KILLS)


def a_small_log(path: Path) -> list[bytes]:
    expected = [b"message %d " % number + b"x" * (number % 60) for number in range(150)]
    with Queue(path, page_size=4096) as queue:
        for message in expected[:60]:
            queue.append(message)
        queue.append_many(expected[60:90])
        for message in expected[90:]:
            queue.append(message)
    return expected


def told_by(report: Gap | Trimmed) -> range:
    """The messages that a report says are not there."""
    if isinstance(report, Gap):
        return range(report.first, report.last + 1)
    return range(report.wanted_seq, report.first_seq)


def check_flipped(path: Path, expected: list[bytes], *, hint: bool) -> int:
    """Read the damaged log to its end; returns how many messages are missing, each of them told."""
    reports: list[Gap | Trimmed] = []
    with Queue(path, read_only=True) as reader:
        found = {message.seq: message.payload for message in reader.read(damage=reports.append)}
    assert all(payload == expected[seq - 1] for seq, payload in found.items())
    told = {seq for report in reports for seq in told_by(report)}
    missing = set(range(1, len(expected) + 1)) - found.keys()
    assert missing <= told
    assert not (hint and missing)
    return len(missing)


def test_every_flipped_bit_is_told_or_harmless(tmp_path: Path, record_property: RecordProperty) -> None:
    """Every bit of every file in the proof, one in 199 otherwise."""
    expected = a_small_log(tmp_path / "q")
    flips = 0
    for file in sorted(tmp_path.iterdir()):
        whole = bytearray(file.read_bytes())
        hint = file.suffix != ".page"
        for bit in range(0, 8 * len(whole), 1 if PROVE else 199):
            whole[bit // 8] ^= 1 << bit % 8
            file.write_bytes(whole)
            check_flipped(tmp_path / "q", expected, hint=hint)
            whole[bit // 8] ^= 1 << bit % 8
            flips += 1
        file.write_bytes(whole)
    assert check_flipped(tmp_path / "q", expected, hint=True) == 0
    record_property("queue_bits_flipped", flips)


def test_every_flipped_bit_is_told_or_harmless_from_every_starting_point(
    tmp_path: Path, record_property: RecordProperty
) -> None:
    """Reading from the middle trusts an index where reading from the start does not; one bit in 37, or all of them."""
    clock = itertools.count(1_700_000_000_000_000_000, 1_000_000)
    path = tmp_path / "q"
    with Queue(path, page_size=4096, clock=lambda: next(clock)) as queue:
        for number in range(5):
            queue.append_many([b"%d" % (10 * number + each) for each in range(10)])
    with Queue(path, read_only=True) as reader:
        whole = {message.seq: message for message in reader.read()}
    flips = 0
    for file in (tmp_path / "q-1.page", tmp_path / "q-1.idx"):
        data = bytearray(file.read_bytes())
        used = len(data.rstrip(b"\0")) + 64
        for bit in range(0, 8 * min(used, len(data)), 1 if PROVE else 37):
            data[bit // 8] ^= 1 << bit % 8
            file.write_bytes(data)
            for start in (1, 25, 45, 50):
                check_flipped_from(path, whole, start)
            data[bit // 8] ^= 1 << bit % 8
            flips += 1
        file.write_bytes(data)
    record_property("queue_bits_flipped_before_seeks", flips)


def check_flipped_from(path: Path, whole: dict[int, Message], start: int) -> None:
    """By number and by time, nothing is wrong and nothing is missing without a report."""
    with Queue(path, read_only=True) as reader:
        for by_time in (False, True):
            told: list[Gap | Trimmed] = []
            messages = (
                reader.read(since=whole[start].time, damage=told.append)
                if by_time
                else reader.read(seq=start, damage=told.append)
            )
            found = {message.seq: message for message in messages}
            assert all(whole.get(seq) == message for seq, message in found.items()), f"from {start}"
            missing = set(range(start, len(whole) + 1)) - found.keys()
            assert missing <= {seq for report in told for seq in told_by(report)}, f"from {start}"


@pytest.mark.parametrize("sync", ["os", "always"])
def test_a_full_disk_refuses_and_the_queue_works_again_when_there_is_room(tmp_path: Path, sync: str) -> None:
    """The limit on the size of files stands for the disk: pages beyond it cannot be made."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    expected: list[bytes] = []
    try:
        with Queue(tmp_path / "q", page_size=PAGE_BYTES, sync=sync, background=False) as queue:
            expected.append(b"first")
            queue.append(expected[-1])
            resource.setrlimit(resource.RLIMIT_FSIZE, (PAGE_BYTES // 2, before[1]))
            refusal: Unavailable | None = None
            while refusal is None and len(expected) < 100:
                message = b"%d" % len(expected) * 300
                try:
                    queue.append(message)
                    expected.append(message)
                except Unavailable as error:
                    refusal = error
            assert refusal is not None
            assert refusal.code is Code.DISK_FULL
            with pytest.raises(Unavailable):
                queue.append(b"too large for any page" * 2_000)
            assert [message.payload for message in queue.read()] == expected
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            for message in (b"room again", b"large" * 10_000):
                assert queue.append(message) == len(expected) + 1
                expected.append(message)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    with Queue(tmp_path / "q") as again:
        assert [message.payload for message in again.read()] == expected


def test_a_second_writer_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    writer = start_writer(tmp_path / "q", "os", 1)
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"0\n"
    with pytest.raises(AlreadyOpen) as caught:
        Queue(tmp_path / "q")
    assert caught.value.fields["pid"] == str(writer.pid)
    promised = promised_before_a_kill(writer, 5)
    with Queue(tmp_path / "q") as queue:
        assert queue.append(b"after it") > promised


def test_a_forked_child_is_refused_and_does_not_keep_the_queue_open(tmp_path: Path) -> None:
    """With the helper thread running and messages on their way: the child may have forked in any state."""
    queue = Queue(tmp_path / "q", page_size=PAGE_BYTES, sync="always")
    for number in range(50):
        queue.append(b"%d" % number * 100)
    hold, release = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(release)
        refused = 0
        for call in (lambda: queue.append(b"child"), queue.flush, lambda: queue.append_many([b"child"])):
            try:
                call()
            except Closed:
                refused += 1
        os.read(hold, 1)  # until the parent has opened the queue anew
        os._exit(0 if refused == 3 else 1)
    os.close(hold)
    try:
        assert queue.append(b"parent") == 51
        queue.close()
        with Queue(tmp_path / "q") as again:
            assert [message.payload for message in again.read()][-1] == b"parent"
            assert again.last_seq == 51
    finally:
        os.close(release)
        assert os.waitpid(child, 0)[1] == 0


def test_two_processes_with_different_hash_seeds_write_the_same_bytes(tmp_path: Path) -> None:
    program = (
        "import itertools, sys\n"
        "from holdfast.queue import Queue\n"
        "from holdfast.queue.queue import core_of\n"
        "ticks = itertools.count(1_700_000_000_000_000_000, 1000)\n"
        "salts = itertools.count(1)\n"
        "queue = Queue(sys.argv[1], page_size=4096, background=False, clock=lambda: next(ticks),\n"
        "              entropy=lambda size: next(salts).to_bytes(size, 'little'))\n"
        "for number in range(300):\n"
        "    queue.append(b'%d' % number * (number % 40))\n"
        "    if number % 50 == 0: queue.append_many([b'batch', b'', b'x' * number])\n"
        "    if number % 50 == 0: core_of(queue).run_background_work()\n"
        "queue.close()\n"
    )
    contents: list[dict[str, bytes]] = []
    for hash_seed in ("0", "4711"):
        folder = tmp_path / hash_seed
        subprocess.run(
            [sys.executable, "-c", program, str(folder / "q")],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(e for e in sys.path if e)},
            check=True,
        )
        contents.append({path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".lock"})
    assert contents[0] == contents[1]
    assert len(contents[0]) > 5
