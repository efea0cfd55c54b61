"""Work queues over real files: done once, lost never, counted exactly.

Rules that these tests are proved to catch when they are broken (see the mutants at the end):

- an acknowledgement that returns before it is durable;
- a timer that begins anew at a restart;
- a command that is applied before it is written;
- a dead letter that is forgotten before it is there;
- a work queue that trusts its numbers after a crash has taken messages.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.errors import AlreadyOpen, Closed, Code, CorruptData, Fenced, InvalidRequest, Unavailable
from holdfast.queue import Queue, Trimmed
from holdfast.queue.file_queue import _Tasks
from holdfast.queue.files.cursors import committed_seqs
from holdfast.queue.files.local import LocalFiles
from holdfast.queue.format.commands import DeadLetter
from holdfast.queue.queue import core_of
from holdfast.queue.work.log import WorkClock, WorkLog, find_state
from holdfast.queue.work.machine import WorkMachine
from holdfast.queue.work.work_queue import Job, WorkQueue

NS = 10**9
SMALL = 4096


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1_000 * NS

    def __call__(self) -> int:
        return self.now

    def pass_s(self, seconds: float) -> None:
        self.now += int(seconds * NS)


class OtherBoot(LocalFiles):
    """The files of a machine that is started anew each time."""

    def boot_id(self) -> bytes:
        return os.urandom(16)


class FullDisk(LocalFiles):
    """Refuses to make room for pages while ``full``."""

    full = False

    def allocate(self, file: int, length: int) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        super().allocate(file, length)


def fill(queue: Queue, count: int, size: int = 20) -> None:
    for _ in range(count):
        queue.append(b"%d-" % (queue.last_seq + 1) + b"x" * size)


# ---- the life of a job ----------------------------------------------------------------------------------------------


def test_every_message_goes_to_one_worker_in_order(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", page_size=SMALL) as queue, queue.work_queue("w") as work:
        fill(queue, 300)
        found = []
        while job := work.get(timeout=0):
            assert (job.deliveries, job.payload[: len(b"%d-" % job.seq)]) == (1, b"%d-" % job.seq)
            found.append(job.seq)
            work.ack(job)
        assert found == list(range(1, 301))
        assert (work.lag(), work.started) == (0, 0)


def test_a_lease_that_ends_gives_the_job_to_the_next_and_counts(tmp_path: Path) -> None:
    clock = Clock()
    with Queue(tmp_path / "q", clock=clock) as queue, queue.work_queue("w", ack_wait=30) as work:
        fill(queue, 2)
        first = work.get(timeout=0)
        clock.pass_s(29)
        second = work.get(timeout=0)
        assert second is not None
        assert second.seq == 2
        clock.pass_s(1)
        again = work.get(timeout=0)
        assert first is not None
        assert again is not None
        assert (again.seq, again.deliveries, again.payload) == (1, 2, first.payload)
        assert again.time_ns == first.time_ns
        with pytest.raises(Fenced) as caught:
            work.ack(first)
        assert caught.value.code is Code.LEASE_LOST
        work.ack(again)
        clock.pass_s(1000)
        late = work.get(timeout=0)
        assert late is not None
        assert (late.seq, late.deliveries) == (2, 2)
        with pytest.raises(Fenced):
            work.ack(again)


def test_a_late_acknowledgement_counts_while_nobody_else_has_the_job(tmp_path: Path) -> None:
    clock = Clock()
    with Queue(tmp_path / "q", clock=clock) as queue, queue.work_queue("w") as work:
        fill(queue, 1)
        job = work.get(timeout=0)
        clock.pass_s(1000)
        assert job is not None
        work.ack(job)
        assert work.get(timeout=0) is None


def test_extending_keeps_a_job(tmp_path: Path) -> None:
    clock = Clock()
    with Queue(tmp_path / "q", clock=clock) as queue, queue.work_queue("w", ack_wait=30) as work:
        fill(queue, 1)
        job = work.get(timeout=0)
        assert job is not None
        for _ in range(5):
            clock.pass_s(29)
            work.extend(job)
        work.extend(job, ack_wait=100)
        clock.pass_s(99)
        assert work.get(timeout=0) is None
        clock.pass_s(1)
        again = work.get(timeout=0)
        assert again is not None
        assert again.deliveries == 2


def test_what_is_given_back_waits_for_its_delay(tmp_path: Path) -> None:
    clock = Clock()
    with Queue(tmp_path / "q", clock=clock) as queue:
        with queue.work_queue("w", retry_delay=1, max_retry_delay=3) as work:
            fill(queue, 1)
            for deliveries, delay in ((1, 1), (2, 2), (3, 3), (4, 3)):
                job = work.get(timeout=0)
                assert job is not None
                assert job.deliveries == deliveries
                work.retry(job)
                with pytest.raises(Fenced):
                    work.ack(job)
                clock.pass_s(delay - 0.001)
                assert work.get(timeout=0) is None
                clock.pass_s(0.001)
        with queue.work_queue("v", max_deliveries=1000) as work:
            for deliveries in range(1, 500):
                job = work.get(timeout=0)
                assert job is not None
                assert job.deliveries == deliveries
                work.nack(job)
            work._machine.check()
            assert len(work._machine.dues) < 200  # out of date entries do not pile up


@pytest.mark.parametrize("how", ["nack", "expired", "dead_letter"])
def test_a_message_that_nobody_could_do_becomes_a_dead_letter_with_its_reason(tmp_path: Path, how: str) -> None:
    clock = Clock()
    with Queue(tmp_path / "q", clock=clock) as queue, queue.work_queue("w", max_deliveries=3) as work:
        fill(queue, 2)
        for deliveries in (1, 2, 3):
            job = work.get(timeout=0)
            assert job is not None
            assert (job.seq, job.deliveries) == (1, deliveries)
            if how == "nack":
                work.nack(job, reason="no such address")
            elif how == "expired":
                clock.pass_s(31)
            else:
                work.dead_letter(job, "no such address")
                break
        other = work.get(timeout=0)
        assert other is not None
        assert other.seq == 2
        (letter,) = work.dead_letters()
        assert (letter.seq, letter.payload[:2]) == (1, b"1-")
        assert letter.deliveries == (1 if how == "dead_letter" else 3)
        assert letter.reason == ("delivered 3 times: its last lease ended" if how == "expired" else "no such address")
        assert work.started == 1
    with Queue(tmp_path / "q-w-dead", read_only=True) as dead:
        assert [DeadLetter.decode(message.payload).seq for message in dead.read()] == [1]


def test_a_dead_letter_that_is_none_is_refused() -> None:
    letter = DeadLetter(1, 2, b"payload", deliveries=3, reason="é" * 5000)
    assert DeadLetter.decode(letter.encode()).reason == "é" * 2048
    assert DeadLetter.decode(letter.encode()).value == b"payload"
    for wrong in (b"", letter.encode()[:23], b"\x02" + letter.encode()[1:], letter.encode()[:30]):
        with pytest.raises(CorruptData):
            DeadLetter.decode(wrong)


class SparseDisk(LocalFiles):
    """Has no room for a frame, on demand; what is stored through a map was allocated before."""

    armed = False

    def write(self, file: int, offset: int, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        if self.armed:
            raise OSError(errno.ENOSPC, "no space")
        super().write(file, offset, parts)


def test_no_more_is_started_than_allowed(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue, queue.work_queue("w", max_started=3) as work:
        fill(queue, 10)
        jobs = work.get_many(10)
        assert [job.seq for job in jobs] == [1, 2, 3]
        assert work.get(timeout=0) is None
        assert work.lag() == 10
        work.ack_many(jobs[:2])
        assert [job.seq for job in work.get_many(10)] == [4, 5]


def test_jobs_that_are_taken_together_are_taken_by_one_command_or_not_at_all(tmp_path: Path) -> None:
    full = SparseDisk()
    with Queue(tmp_path / "q", files=full) as queue, queue.work_queue("w") as work:
        queue.append_many([b"%d" % number for number in range(1, 2001)])
        before = work._log._log.last_seq
        assert [job.seq for job in work.get_many(100)] == [*range(1, 101)]
        # One command for the first, and one for all after it.
        assert work._log._log.last_seq == before + 2
        full.armed = True
        assert [job.seq for job in work.get_many(1000)] == [101]
        full.armed = False
        assert [(job.seq, job.payload, job.deliveries) for job in work.get_many(3)] == [
            (102, b"102", 1),
            (103, b"103", 1),
            (104, b"104", 1),
        ]
        assert [job.seq for job in work.get_many(5000)] == [*range(105, 2001)]
        work._machine.check()


# ---- threads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", ["os", "always"])
def test_workers_on_several_threads_share_the_jobs(tmp_path: Path, sync: str) -> None:
    count = 2000 if sync == "os" else 100
    with Queue(tmp_path / "q", sync=sync) as queue, queue.work_queue("w") as work:
        queue.append_many([b"%d" % number for number in range(count)])
        done: list[list[int]] = [[] for _ in range(4)]

        def run(mine: list[int]) -> None:
            while job := work.get(timeout=0):
                mine.append(job.seq)
                work.ack(job)

        threads = [threading.Thread(target=run, args=(mine,)) for mine in done]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(seq for mine in done for seq in mine) == list(range(1, count + 1))
        work._machine.check()


def test_a_waiting_worker_is_woken_by_an_append_a_return_a_due_time_and_the_end(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue:
        work = queue.work_queue("w", ack_wait=0.05)
        found: list[int] = []
        ended: list[Exception] = []

        def run() -> None:
            try:
                while True:
                    job = work.get()
                    assert job is not None
                    found.append(job.deliveries)
                    taken.release()
            except Closed as error:
                ended.append(error)

        taken = threading.Semaphore(0)
        thread = threading.Thread(target=run)
        thread.start()
        queue.append(b"x")
        for _ in range(3):  # the append, then two leases that end
            assert taken.acquire(timeout=30)
        work.close()
        thread.join(30)
        assert not thread.is_alive()
        assert found[:3] == [1, 2, 3]
        assert len(ended) == 1


def test_a_timeout_without_a_job_is_none(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue, queue.work_queue("w") as work:
        assert work.get(timeout=0) is None
        assert work.get(timeout=0.001) is None
        assert work.get_many(5) == []


# ---- restarts -------------------------------------------------------------------------------------------------------


def reopened_as_after_a_kill(folder: Path, clock: Clock, **arguments: object) -> tuple[Queue, WorkQueue]:
    """What another process would find: the same files, none of this one's memory."""
    copy = folder.parent / f"{folder.name}+"
    shutil.copytree(folder, copy)
    queue = Queue(copy / "q", clock=clock, page_size=SMALL)
    return queue, queue.work_queue("w", **arguments)  # type: ignore[arg-type]


def deadlines_survive(folder: Path) -> None:
    folder.mkdir()
    clock = Clock()
    with Queue(folder / "q", clock=clock, page_size=SMALL) as queue, queue.work_queue("w", ack_wait=30) as work:
        fill(queue, 4)
        leased, delayed, done, extended = work.get_many(4)
        work.nack(delayed, delay=100)
        work.ack(done)
        clock.pass_s(20)
        work.extend(extended, ack_wait=50)
        other, again = reopened_as_after_a_kill(folder, clock, ack_wait=30)
        with other, again:
            assert again.get(timeout=0) is None, "a lease ended early"
            clock.pass_s(10)
            job = again.get(timeout=0)
            assert job is not None, "a lease ended late"
            assert (job.seq, job.deliveries) == (leased.seq, 2)
            again.ack(job)
            clock.pass_s(40)
            job = again.get(timeout=0)
            assert job is not None
            assert (job.seq, job.deliveries) == (4, 2)
            again.ack(job)
            clock.pass_s(30)
            job = again.get(timeout=0)
            assert job is not None
            assert (job.seq, job.deliveries) == (delayed.seq, 2)
            again.ack(job)
            clock.pass_s(10**6)
            assert again.get(timeout=0) is None, "an acknowledged message came back"
            assert again.lag() == 0


def test_deadlines_and_counts_survive_a_kill(tmp_path: Path) -> None:
    deadlines_survive(tmp_path / "files")


def test_closing_gives_back_what_workers_had(tmp_path: Path) -> None:
    clock = Clock()
    with Queue(tmp_path / "q", clock=clock) as queue:
        fill(queue, 3)
        with queue.work_queue("w") as work:
            jobs = work.get_many(3)
            work.nack(jobs[1], delay=5)
            work.ack(jobs[2])
        with pytest.raises(Closed):
            work.ack(jobs[0])
        with queue.work_queue("w") as work:
            job = work.get(timeout=0)
            assert job is not None
            assert (job.seq, job.deliveries) == (1, 2)
            assert work.get(timeout=0) is None
            clock.pass_s(5)
            job = work.get(timeout=0)
            assert job is not None
            assert (job.seq, job.deliveries) == (2, 2)


def test_jobs_of_a_closed_work_queue_wait_behind_those_that_are_due_for_longer(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue:
        fill(queue, 4)
        for count in (3, 1):
            with queue.work_queue("w") as work:
                assert [job.seq for job in work.get_many(count)] == [1, 2, 3][:count]
        with queue.work_queue("w") as work:
            assert [job.seq for job in work.get_many(9)] == [2, 3, 1, 4]


def test_an_owner_that_wants_the_order_of_the_queue_gets_the_lowest_due_number(tmp_path: Path) -> None:
    clock = Clock()
    with Queue(tmp_path / "q", clock=clock) as queue, queue.work_queue("w", ack_wait=30) as work:
        work._by_seq = True
        fill(queue, 6)
        jobs = work.get_many(4)
        for job, delay in zip(jobs, (9, 3, 1, 2), strict=True):
            work.nack(job, delay=delay)
        clock.pass_s(3)
        work._machine.check()
        found = [work.get(timeout=0), work.get(timeout=0)]
        clock.pass_s(6)
        found += work.get_many(9)
        assert [job.seq for job in found if job is not None] == [2, 3, 1, 4, 5, 6]
        work._machine.check()


def test_jobs_that_an_owner_returns_are_next(tmp_path: Path) -> None:
    clock = Clock()
    with Queue(tmp_path / "q", clock=clock) as queue, queue.work_queue("w") as work:
        fill(queue, 4)
        jobs = work.get_many(3)
        work.nack(jobs[0])
        clock.pass_s(1)
        _Tasks.return_leased(work, keep=[2])  # type: ignore[arg-type]  # it needs nothing of its own
        assert [job.seq for job in work.get_many(9)] == [3, 1, 4]


def test_a_clock_that_was_set_back_holds_no_lease_longer(tmp_path: Path) -> None:
    clock = Clock()
    with Queue(tmp_path / "q", clock=clock) as queue:
        fill(queue, 1)
        with queue.work_queue("w") as work:
            job = work.get(timeout=0)
            assert job is not None
            work.nack(job, delay=10)
        clock.pass_s(-900)
        with queue.work_queue("w") as work:
            assert work.get(timeout=0) is None
            clock.pass_s(10)
            assert work.get(timeout=0) is not None


def test_every_acknowledgement_that_was_told_survives_kill(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from holdfast.queue import Queue\n"
        "queue = Queue(sys.argv[1], page_size=16384)\n"
        "work = queue.work_queue('w', ack_wait=0, max_deliveries=10**6)\n"
        "queue.append_many([b'x'] * 500)\n"
        "for number in range(int(sys.argv[2])):\n"
        "    job = work.get(timeout=0)\n"
        "    os.write(1, b'got %d %d\\n' % (job.seq, job.deliveries))\n"
        "    if number % 3: work.ack(job); os.write(1, b'did %d\\n' % job.seq)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done: set[int] = set()
    counts: dict[int, int] = {}
    for stop in (313, 100, 471):
        run = subprocess.run(
            [sys.executable, "-c", script, tmp_path / "q", str(stop)], capture_output=True, check=False
        )
        for line in run.stdout.splitlines():
            word, *numbers = line.split()
            seq = int(numbers[0])
            if word == b"got":
                assert seq not in done, "an acknowledged message came back"
                counts[seq] = counts.get(seq, 0) + 1
                assert int(numbers[1]) == counts[seq], "a delivery was not counted, or twice"
            else:
                done.add(seq)
    with Queue(tmp_path / "q") as queue, queue.work_queue("w", max_deliveries=10**6) as work:
        rest = {job.seq for job in work.get_many(10**4)}
    assert rest == set(range(1, 1501)) - done, "a message was lost"


def test_the_log_of_commands_stays_short_and_says_the_same(tmp_path: Path) -> None:
    clock = Clock()
    folder = tmp_path / "files"
    folder.mkdir()
    with (
        Queue(folder / "q", clock=clock, page_size=SMALL) as queue,
        queue.work_queue("w", max_deliveries=10**9) as work,
    ):
        fill(queue, 40)
        kept = work.get_many(20)
        for number in range(20_000):
            job = work.get(timeout=0)
            assert job is not None
            if number % 100 == 0:
                queue.append(b"more")
                work.ack(job)
            else:
                work.nack(job, delay=0)
        size = sum(path.stat().st_size for path in folder.glob("q-w.work-*.page"))
        assert size <= 5 * (512 << 10)
        before = work._machine.state()
        other, again = reopened_as_after_a_kill(folder, clock)
        with other, again:
            after = again._machine.state()
            assert (after.next_seq, after.dead_seq, after.started) == (
                before.next_seq, before.dead_seq, before.started
            )  # fmt: skip
        work.ack_many(kept)


# ---- crashes that take messages, files that are lost ----------------------------------------------------------------


def a_crash_takes_messages_that_were_done(folder: Path, lost: int) -> None:
    folder.mkdir()
    with Queue(folder / "q", page_size=SMALL, files=OtherBoot(), background=False) as queue:
        fill(queue, 50)
        queue.flush()
        shutil.copytree(folder, folder.parent / "disk")
        fill(queue, lost)
        with queue.work_queue("w") as work:
            for job in work.get_many(50 + lost):
                if job.seq not in (7, 52):
                    work.ack(job)
    for path in folder.iterdir():
        if not path.name.startswith(("q-w.", "q-w-")):
            path.unlink()
    shutil.copytree(folder.parent / "disk", folder, dirs_exist_ok=True)
    with Queue(folder / "q", page_size=SMALL, files=OtherBoot(), background=False) as queue:
        assert queue.last_seq == 50 + lost, "a number was free again that a worker has seen"
        fill(queue, 2 * lost)
        with queue.work_queue("w") as work:
            found = sorted(job.seq for job in work.get_many(1000))
            assert found == [7, *range(51 + lost, 51 + 3 * lost)], "a message that nobody has seen was skipped"


@pytest.mark.parametrize("lost", [3, 100, 300])
def test_numbers_that_workers_have_seen_are_never_given_to_other_messages(tmp_path: Path, lost: int) -> None:
    a_crash_takes_messages_that_were_done(tmp_path / "files", lost)


def test_a_lost_log_of_commands_begins_behind_the_cursor(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue:
        fill(queue, 10)
        with queue.work_queue("w") as work:
            jobs = work.get_many(8)
            work.ack_many([*jobs[:4], jobs[6]])
    for path in tmp_path.glob("q-w.work*"):
        path.unlink()
    with Queue(tmp_path / "q") as queue, queue.work_queue("w") as work:
        assert [job.seq for job in work.get_many(100)] == [5, 6, 7, 8, 9, 10]


def test_a_lost_cursor_changes_nothing(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue:
        fill(queue, 10)
        with queue.work_queue("w") as work:
            work.ack_many(work.get_many(8)[2:])
        (tmp_path / "q-w.cursor").unlink()
        with queue.work_queue("w") as work:
            assert [job.seq for job in work.get_many(100)] == [1, 2, 9, 10]


@pytest.mark.parametrize("damaged", range(3, 19, 2))
def test_damage_to_the_commands_is_told_and_loses_no_message(tmp_path: Path, damaged: int) -> None:
    clock = Clock()
    done = set()
    with Queue(tmp_path / "q", clock=clock) as queue, queue.work_queue("w", ack_wait=5) as work:
        fill(queue, 10)
        for _ in range(10):
            job = work.get(timeout=0)
            assert job is not None
            if job.seq % 3 == 0:
                work.nack(job, delay=3)
            elif job.seq % 3 == 1:
                work.ack(job)
                done.add(job.seq)
    path = tmp_path / "q-w.work-1.page"
    page = bytearray(path.read_bytes())
    position, frames = 64, []
    while length := int.from_bytes(page[position : position + 4], "little"):
        frames.append(position)
        position += 24 + length
    assert len(frames) > damaged
    page[frames[damaged] + 24 + 10] ^= 1
    path.write_bytes(page)
    clock.pass_s(100)
    with Queue(tmp_path / "q", clock=clock) as queue:
        with pytest.raises(CorruptData):
            queue.work_queue("w")
        told: list[object] = []
        with queue.work_queue("w", damage=told.append) as work:
            found = {job.seq for job in work.get_many(100)}
            work._machine.check()
            assert found >= set(range(1, 11)) - done, "a message was lost"
            assert len(told) == 1
        with queue.work_queue("w") as work:  # what was found is written down: nothing is missing any more
            assert {job.seq for job in work.get_many(100)} == found


# ---- errors on the way ----------------------------------------------------------------------------------------------


def extend_for_ever(work: WorkQueue, job: Job) -> None:
    while True:
        work.extend(job)


def test_what_could_not_be_written_was_not_done_and_nothing_is_skipped(tmp_path: Path) -> None:
    files = FullDisk()
    with Queue(tmp_path / "q", files=files, background=False) as queue:
        fill(queue, 200)
        work = queue.work_queue("w", ack_wait=3600)
        held = work.get(timeout=0)
        assert held is not None
        # Fill the page of commands with extensions until the next one does not fit.
        files.full = True
        with pytest.raises(Unavailable):
            extend_for_ever(work, held)
        seen = []
        for _ in range(3):
            with pytest.raises(Unavailable):
                work.get(timeout=0)
            with pytest.raises(Unavailable):
                work.ack(held)
        files.full = False
        work.nack(held)
        while job := work.get(timeout=0):
            seen.append(job.seq)
            work.ack(job)
        assert seen == list(range(1, 201))
        work._machine.check()


def test_a_failed_sync_refuses_the_acknowledgement_and_all_after_it(tmp_path: Path) -> None:
    class Failing(LocalFiles):
        failing = False

        def sync_data(self, file: int) -> None:
            if self.failing:
                raise OSError(5, "injected")
            super().sync_data(file)

    files = Failing()
    queue = Queue(tmp_path / "q", files=files, sync="always")
    fill(queue, 3)
    work = queue.work_queue("w")
    job = work.get(timeout=0)
    assert job is not None
    files.failing = True
    for _ in range(2):
        with pytest.raises(Closed) as caught:
            work.ack(job)
        assert caught.value.code in (Code.SYNC_FAILED, Code.LEASE_LOST)
        with pytest.raises(Closed):
            work.get(timeout=0)
    files.failing = False
    with pytest.raises(Closed):
        work.close()
    queue.close()


def test_messages_that_retention_took_are_told_or_skipped(tmp_path: Path) -> None:
    clock = Clock()
    with Queue(tmp_path / "q", clock=clock, page_size=SMALL) as queue:
        fill(queue, 200)
        queue.flush()
        with queue.work_queue("w", hold=False) as work:
            first = work.get(timeout=0)
            assert first is not None
            queue.trim(before_seq=150)
            clock.pass_s(31)
            for _ in range(2):
                with pytest.raises(Trimmed):
                    work.get(timeout=0)
        told: list[object] = []
        with queue.work_queue("w", hold=False, damage=told.append) as work:
            rest = [job.seq for job in work.get_many(1000)]
            assert rest == list(range(queue.first_seq, 201))
            assert told
            assert work.lag() == len(rest)


def test_retention_waits_for_a_work_queue(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", page_size=SMALL, max_bytes=3 * SMALL, full="raise") as queue:
        work = queue.work_queue("w")
        fill(queue, 30)
        job = work.get(timeout=0)
        assert job is not None
        with pytest.raises(Exception, match="the queue is full"):
            fill(queue, 1000)
        assert queue.first_seq == 1
        work.ack(job)
        while job := work.get(timeout=0):
            work.ack(job)
        fill(queue, 30)
        assert queue.first_seq > 1


def test_a_name_is_open_once_and_of_one_kind(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue:
        with queue.work_queue("w"):
            for again in (queue.work_queue, queue.consumer):
                with pytest.raises(AlreadyOpen):
                    again("w")
        with pytest.raises(InvalidRequest):
            queue.consumer("w")
        queue.consumer("c").close()
        with pytest.raises(InvalidRequest):
            queue.work_queue("c")
        queue.work_queue("w").close()
        assert committed_seqs(core_of(queue).pages) == {"c": 0, "w": 0}


@pytest.mark.parametrize(
    "wrong", [{"ack_wait": -1}, {"max_deliveries": 0}, {"max_started": 0}, {"retry_delay": 1e99}, {"since": "never"}]
)
def test_settings_that_cannot_be_are_refused_and_leave_the_name_free(tmp_path: Path, wrong: dict[str, object]) -> None:
    with Queue(tmp_path / "q") as queue:
        with pytest.raises(InvalidRequest):
            queue.work_queue("w", **wrong)  # type: ignore[arg-type]
        with queue.work_queue("w") as work:
            fill(queue, 1)
            job = work.get(timeout=0)
            assert job is not None
            for use in (
                lambda: work.nack(job, delay=-1),
                lambda: work.extend(job, ack_wait=-1),
                lambda: work.ack_many([]),
                lambda: work.get_many(0),
            ):
                with pytest.raises(InvalidRequest):
                    use()
            work.ack(job)


def test_a_forked_child_gets_nothing(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from holdfast.errors import Closed\n"
        "from holdfast.queue import Queue\n"
        "queue = Queue(sys.argv[1]); queue.append(b'x'); queue.append(b'y')\n"
        "work = queue.work_queue('w'); job = work.get()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    refused = 0\n"
        "    for use in (lambda: work.ack(job), lambda: work.get(timeout=0)):\n"
        "        try: use()\n"
        "        except Closed as error: refused += error.code == 'forked'\n"
        "    os._exit(7 if refused == 2 else 1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
        "work.ack(job); assert work.get(timeout=0).seq == 2; queue.close()\n"
    )
    subprocess.run([sys.executable, "-c", script, tmp_path / "q"], check=True)


def test_another_process_works_off_what_this_one_appends(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", page_size=SMALL) as queue, Queue(tmp_path / "q", read_only=True) as other:
        fill(queue, 5)
        with other.work_queue("w") as work:
            fill(queue, 200)
            jobs = work.get_many(1000)
            assert len(jobs) == 205
            work.ack_many(jobs)
            assert work.get(timeout=0.01) is None
            assert work.lag() == 0


# ---- dead letters and crashes ---------------------------------------------------------------------------------------


def a_dead_letter_is_there_once_whenever_it_is_killed(folder: Path) -> None:
    """Kill at each of the two steps of giving a message up."""
    folder.mkdir()
    clock = Clock()
    with Queue(folder / "q", clock=clock, page_size=SMALL) as queue, queue.work_queue("w", max_deliveries=1) as work:
        fill(queue, 2)
        job = work.get(timeout=0)
        assert job is not None
        before_both = folder.parent / "before"
        shutil.copytree(folder, before_both)
        work.dead_letter(job, "why")
        after_both = folder.parent / "after"
        shutil.copytree(folder, after_both)
        # Between the steps: the dead letter is there, the command is not.
        between = folder.parent / "between"
        shutil.copytree(after_both, between)
        for path in before_both.glob("q-w.work*"):
            shutil.copy(path, between / path.name)
    for copy in (before_both, between, after_both):
        for _ in range(2):
            with (
                Queue(copy / "q", clock=clock, page_size=SMALL) as queue,
                queue.work_queue("w", max_deliveries=1) as work,
            ):
                clock.pass_s(100)
                found = [job.seq for job in work.get_many(10)]
                dead = [letter.seq for letter in work.dead_letters()]
                assert dead.count(1) == 1, "a message was lost, or is twice among the dead letters"
                assert 1 not in found


def test_a_dead_letter_is_there_once_wherever_it_crashes(tmp_path: Path) -> None:
    a_dead_letter_is_there_once_whenever_it_is_killed(tmp_path / "files")


# ---- mutants: each broken rule is caught by the check above it ------------------------------------------------------


class SyncsCounted(LocalFiles):
    """Counts the syncs of the work queue's pages."""

    def __init__(self) -> None:
        super().__init__()
        self.work: set[int] = set()
        self.syncs = 0

    def create(self, directory: int, name: str) -> int:
        file = super().create(directory, name)
        if ".work-" in name and ".page" in name:
            self.work.add(file)
        return file

    def sync_data(self, file: int) -> None:
        super().sync_data(file)
        self.syncs += file in self.work


def a_step_is_durable_when_it_returns(folder: Path) -> None:
    files = SyncsCounted()
    with Queue(folder / "q", files=files, sync="always", background=False) as queue, queue.work_queue("w") as work:
        fill(queue, 2)
        for step in ("get", "ack", "get", "nack"):
            before = files.syncs
            if step == "get":
                job = work.get(timeout=0)
            else:
                assert job is not None
                getattr(work, step)(job)
            assert files.syncs > before, "it returned before it was durable"


def test_at_always_every_step_is_durable_when_it_returns(tmp_path: Path) -> None:
    a_step_is_durable_when_it_returns(tmp_path)


def test_an_acknowledgement_before_it_is_durable_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WorkLog, "wait", lambda _self, _written: None)
    with pytest.raises(AssertionError, match="before it was durable"):
        a_step_is_durable_when_it_returns(tmp_path)


def test_a_timer_that_begins_anew_at_a_restart_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reset(
        queue: Queue, name: str, log: WorkLog, clock: WorkClock, *arguments: object, **more: object
    ) -> WorkMachine:
        machine = find_state(queue, name, log, clock, *arguments, **more)  # type: ignore[arg-type]
        for seq, (_, count, leased) in list(machine.started.items()):
            machine.started[seq] = (clock() + 30 * NS, count, leased)
            machine._push(clock() + 30 * NS, seq)
        return machine

    monkeypatch.setattr("holdfast.queue.work.work_queue.find_state", reset)
    with pytest.raises(AssertionError, match="a lease ended late"):
        deadlines_survive(tmp_path / "files")


def test_a_command_that_is_not_written_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = WorkLog.record

    def forgetful(log: WorkLog, command: bytes) -> None:
        if command[0] != 2:
            record(log, command)

    monkeypatch.setattr(WorkLog, "record", forgetful)
    with pytest.raises(AssertionError):
        deadlines_survive(tmp_path / "files")


def test_a_dead_letter_that_is_not_looked_for_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.queue.work.log.find_buried", lambda _queue, _name, _machine: None)
    with pytest.raises(AssertionError, match="twice among the dead letters"):
        a_dead_letter_is_there_once_whenever_it_is_killed(tmp_path / "files")


def test_an_opening_that_does_not_ask_the_work_queues_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.queue.evidence._taken_seq", lambda _pages, _name: 1)
    with pytest.raises((AssertionError, CorruptData)):
        a_crash_takes_messages_that_were_done(tmp_path / "files", 100)
