"""Named consumers over real files: at least once, in order, and never past a message that nobody has seen.

Rules that these tests are proved to catch when they are broken (see the mutants at the end):

- a cursor that trusts its number after a crash has taken messages;
- a cursor that remembers only the page of its last commit;
- a slot that is written in place;
- a durable commit that syncs the cursor before the log.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast.errors import AlreadyOpen, Backpressure, Closed, Code, InvalidRequest
from holdfast.queue import Gap, Queue, Trimmed
from holdfast.queue.files import meta_files
from holdfast.queue.files.cursors import committed_seqs, read_cursor
from holdfast.queue.files.local import LocalFiles
from holdfast.queue.format.meta import COMMITTED_MAX, SLOT_BYTES, decode_cursor, encode_cursor
from holdfast.queue.queue import core_of
from holdfast.queue.repair import verify_queue

SMALL = 4096
MESSAGE = b"x" * 100  # about thirty to a page of 4 KiB


class OtherBoot(LocalFiles):
    """The files of a machine that is started anew each time."""

    def boot_id(self) -> bytes:
        return os.urandom(16)


class Recorded(LocalFiles):
    """Notes the syncs and writes of files by name."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[str, str]] = []
        self.names_of: dict[int, str] = {}

    def create(self, directory: int, name: str) -> int:
        file = super().create(directory, name)
        self.names_of[file] = name.removesuffix(".tmp")
        return file

    def open(self, directory: int, name: str, *, write: bool) -> int:
        file = super().open(directory, name, write=write)
        self.names_of[file] = name
        return file

    def write(self, file: int, offset: int, parts: object) -> None:
        super().write(file, offset, parts)  # type: ignore[arg-type]
        self.steps.append(("write", self.names_of.get(file, "")))

    def sync_data(self, file: int) -> None:
        super().sync_data(file)
        self.steps.append(("sync", self.names_of.get(file, "")))


def seqs(messages: object) -> list[int]:
    return [message.seq for message in messages]  # type: ignore[attr-defined]


# ---- handing out and committing -------------------------------------------------------------------------------------


def test_what_was_not_committed_is_handed_out_again(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue:
        queue.append_many([b"%d" % number for number in range(10)])
        with queue.consumer("billing") as consumer:
            for message in consumer:
                if message.seq == 4:
                    consumer.commit(message)
        assert consumer.next_seq == 11
        with queue.consumer("billing") as consumer:
            assert seqs(consumer) == [5, 6, 7, 8, 9, 10]
            assert (consumer.committed_seq, consumer.lag()) == (4, 6)
            consumer.rewind()
            assert consumer.poll(max_messages=2)[-1].seq == 6
            consumer.commit()
            assert seqs(consumer) == [7, 8, 9, 10]
    with Queue(tmp_path / "q") as queue, queue.consumer("billing") as consumer:
        assert consumer.next_seq == 7


def test_an_iteration_that_stops_in_the_middle_goes_on_there(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", page_size=SMALL) as queue:
        for _ in range(100):
            queue.append(MESSAGE)
        with queue.consumer("c") as consumer:
            found: list[int] = []
            while len(found) < 100:
                for message in consumer:
                    found.append(message.seq)
                    if message.seq % 7 == 0:
                        break
            assert found == list(range(1, 101))


def test_a_commit_never_goes_back_and_never_ahead(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue, queue.consumer("c") as consumer:
        queue.append_many([MESSAGE] * 5)
        assert len(consumer.poll(max_messages=3)) == 3
        consumer.commit(3)
        consumer.commit(1)
        assert consumer.committed_seq == 3
        with pytest.raises(InvalidRequest):
            consumer.commit(4)
        assert consumer.committed_seq == 3


def test_commits_survive_a_killed_process(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from holdfast.queue import Queue\n"
        "queue = Queue(sys.argv[1], page_size=4096)\n"
        "for number in range(200): queue.append(b'x' * 100)\n"
        "consumer = queue.consumer('c')\n"
        "for message in consumer:\n"
        "    consumer.commit(message)\n"
        "    if message.seq % 200 == 123: print(message.seq, flush=True); os.kill(os.getpid(), 9)\n"
    )
    for round_number in range(3):
        done = subprocess.run([sys.executable, "-c", script, tmp_path / "q"], capture_output=True, check=False)
        with Queue(tmp_path / "q", read_only=True) as queue:
            assert committed_seqs(core_of(queue).pages) == {"c": int(done.stdout)}
            assert int(done.stdout) == 200 * round_number + 123


def test_a_deleted_cursor_loses_the_position_and_nothing_else(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue:
        queue.append_many([MESSAGE] * 5)
        with queue.consumer("c") as consumer:
            consumer.commit(consumer.poll()[-1])
        (tmp_path / "q-c.cursor").unlink()
        with queue.consumer("c") as consumer:
            assert seqs(consumer) == [1, 2, 3, 4, 5]


def test_where_a_new_consumer_begins_is_kept_before_it_has_read(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue:
        queue.append_many([MESSAGE] * 5)
        queue.consumer("late", since="latest").close()
        queue.append_many([MESSAGE] * 2)
        with queue.consumer("late", since="latest") as consumer:
            assert seqs(consumer) == [6, 7]


def test_a_hundred_consumers_are_independent(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", page_size=SMALL) as queue:
        for _ in range(100):
            queue.append(MESSAGE)
        consumers = [queue.consumer(f"c{number}") for number in range(100)]
        for number, consumer in enumerate(consumers, 1):
            assert len(consumer.poll(max_messages=number)) <= number
            consumer.commit()
        expected = {consumer.name: consumer.committed_seq for consumer in consumers}
        assert committed_seqs(core_of(queue).pages) == expected
        assert sum(expected.values()) > 100


def test_following_ends_after_a_silence_and_sees_what_is_appended(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue, queue.consumer("c") as consumer:
        queue.append(b"1")
        found = consumer.follow(timeout=0)
        assert next(found).payload == b"1"
        queue.append(b"2")
        assert next(found).payload == b"2"
        assert next(found, None) is None
        assert consumer.poll(timeout=0.001) == []


def test_a_reader_process_consumes_what_another_writes(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", page_size=SMALL) as writer, Queue(tmp_path / "q", read_only=True) as queue:
        writer.append(MESSAGE)
        with queue.consumer("c") as consumer:
            for _ in range(99):
                writer.append(MESSAGE)
            assert seqs(consumer) == list(range(1, 101))
            consumer.commit(77, durable=True)
            assert consumer.lag() == 23
            assert consumer.poll(timeout=0.001) == []
        assert committed_seqs(core_of(writer).pages) == {"c": 77}


# ---- starting elsewhere ---------------------------------------------------------------------------------------------


def test_reset_goes_to_a_number_a_time_or_an_end_and_is_kept(tmp_path: Path) -> None:
    now = [1_000]
    with Queue(tmp_path / "q", clock=lambda: now[0] * 10**9) as queue:
        for now[0] in range(1_000, 1_010):
            queue.append(b"%d" % now[0])
        consumer = queue.consumer("c")
        for where, first in (
            ({"seq": 4}, 4),
            ({"since": datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=1_006)}, 7),
            ({"since": "earliest"}, 1),
            ({"since": "latest"}, 11),
            ({"seq": 11}, 11),
        ):
            consumer.reset(**where)  # type: ignore[arg-type]
            assert (consumer.next_seq, consumer.committed_seq) == (first, first - 1)
            assert seqs(consumer) == list(range(first, 11))
            consumer.close()
            consumer = queue.consumer("c")
            assert consumer.next_seq == first
        for wrong in ({}, {"seq": 0}, {"seq": 12}, {"seq": 1, "since": "latest"}):
            with pytest.raises(InvalidRequest):
                consumer.reset(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize("where", [3, 8, 30, 100])
def test_a_rewind_inside_a_loop_hands_out_again_what_was_not_committed(
    tmp_path: Path, where: int, *, follows: bool
) -> None:
    with Queue(tmp_path / "q", page_size=SMALL) as queue:
        queue.append_many([MESSAGE] * 8)
        for _ in range(92):
            queue.append(MESSAGE)
        with queue.consumer("c") as consumer:
            got: list[int] = []
            for message in consumer.follow(timeout=0) if follows else consumer:
                got.append(message.seq)
                if message.seq == where and got.count(where) == 1:
                    consumer.rewind()
                    assert consumer.next_seq == 1
                    consumer.commit()
                    assert consumer.committed_seq == 0, "nothing is handed out any more"
            assert got == [*range(1, where + 1), *range(1, 101)]


def test_a_reset_inside_a_loop_moves_the_loop(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", page_size=SMALL) as queue:
        for _ in range(100):
            queue.append(MESSAGE)
        with queue.consumer("c") as consumer:
            got: list[int] = []
            for message in consumer:
                got.append(message.seq)
                if got == [1, 2, 3, 4, 5]:
                    consumer.reset(seq=2)
                elif got[-1] == 4 and len(got) == 8:
                    consumer.reset(seq=90)
            assert got == [1, 2, 3, 4, 5, 2, 3, 4, *range(90, 101)]


def test_a_poll_inside_a_loop_takes_from_the_same_row(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", page_size=SMALL) as queue:
        for _ in range(100):
            queue.append(MESSAGE)
        with queue.consumer("c") as consumer:
            got: list[int] = []
            for message in consumer:
                got += [message.seq, *seqs(consumer.poll(max_messages=7))]
            assert got == list(range(1, 101))


def killed(path: Path, copy: Path) -> Path:
    """The files as they are when the process that writes them is killed now."""
    shutil.copytree(path.parent, copy)
    return copy / path.name


# ---- what is missing ------------------------------------------------------------------------------------------------


def test_a_consumer_left_behind_by_retention_is_told(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", page_size=SMALL) as queue:
        with queue.consumer("c") as consumer:
            for _ in range(100):
                queue.append(MESSAGE)
            queue.flush()
            queue.trim(before_seq=80)
            first = queue.first_seq
            assert first > 1
            for _ in range(2):  # nothing moves by it
                with pytest.raises(Trimmed) as caught:
                    next(iter(consumer))
                assert (caught.value.wanted_seq, caught.value.first_seq) == (1, first)
            assert consumer.lag() == 100 - first + 1
        told: list[object] = []
        with queue.consumer("c", damage=told.append) as consumer:
            assert seqs(consumer) == list(range(first, 101))
            assert len(told) == 1


def test_damage_is_told_until_the_consumer_is_reset(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", page_size=SMALL) as queue:
        for _ in range(20):
            queue.append(MESSAGE)
        with open(tmp_path / "q-1.page", "r+b") as page:
            page.seek(64 + 124 * 9 + 30)
            page.write(b"!")
        with queue.consumer("c") as consumer:
            # One window holds all that verifies before the damage.
            assert seqs(consumer.poll()) == list(range(1, 10))
            for _ in range(2):
                with pytest.raises(Gap) as caught:
                    consumer.poll()
                assert (caught.value.first, caught.value.last) == (10, 10)
            consumer.reset(seq=caught.value.last + 1)
            assert seqs(consumer) == list(range(11, 21))


# ---- one process, one name ------------------------------------------------------------------------------------------


def test_a_name_is_open_once(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue:
        with queue.consumer("c"):
            with pytest.raises(AlreadyOpen):
                queue.consumer("c")
            with Queue(tmp_path / "q", read_only=True) as other, pytest.raises(AlreadyOpen):
                other.consumer("c")
        queue.consumer("c").close()


@pytest.mark.parametrize("name", ["", "a/b", "a\0b", "x" * 101])
def test_a_name_that_cannot_be_a_file_is_refused(tmp_path: Path, name: str) -> None:
    with Queue(tmp_path / "q") as queue, pytest.raises(InvalidRequest):
        queue.consumer(name)


def test_the_files_of_another_queue_are_not_taken_for_a_consumer(tmp_path: Path) -> None:
    with Queue(tmp_path / "orders") as queue, Queue(tmp_path / "orders-eu") as other:
        other.append(MESSAGE)
        with other.consumer("billing") as consumer:
            consumer.poll()
            consumer.commit()
        with pytest.raises(InvalidRequest, match="another queue here name=eu-billing queue=orders-eu"):
            queue.consumer("eu-billing")
        assert committed_seqs(core_of(queue).pages) == {}
        assert committed_seqs(core_of(other).pages) == {"billing": 1}


def test_closing_the_queue_closes_its_consumers(tmp_path: Path) -> None:
    queue = Queue(tmp_path / "q")
    queue.append(MESSAGE)
    consumer = queue.consumer("c")
    message = consumer.poll()[0]
    queue.close()
    for use in (lambda: consumer.commit(message), consumer.poll, consumer.lag, consumer.rewind):
        with pytest.raises(Closed):
            use()
    with pytest.raises(Closed):
        queue.consumer("d")


def test_a_forked_child_cannot_commit(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from holdfast.errors import Closed\n"
        "from holdfast.queue import Queue\n"
        "queue = Queue(sys.argv[1]); queue.append(b'x'); queue.append(b'y')\n"
        "consumer = queue.consumer('c'); first, second = consumer.poll(); consumer.commit(first)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try: consumer.commit(second)\n"
        "    except Closed as error: os._exit(7 if error.code == 'forked' else 1)\n"
        "    os._exit(2)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
        "assert consumer.committed_seq == 1\n"
        "consumer.commit(second); queue.close()\n"
    )
    subprocess.run([sys.executable, "-c", script, tmp_path / "q"], check=True)
    with Queue(tmp_path / "q", read_only=True) as queue:
        assert committed_seqs(core_of(queue).pages) == {"c": 2}


# ---- retention ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", [False, True])
def test_a_forked_child_is_refused_whatever_a_thread_of_its_parent_held(tmp_path: Path, *, closed: bool) -> None:
    with Queue(tmp_path / "q") as queue:
        consumer = queue.consumer("c")
        if closed:
            consumer.close()
        held, done = threading.Event(), threading.Event()

        def hold() -> None:
            with consumer._reading, consumer._file_lock:
                held.set()
                assert done.wait(60)

        thread = threading.Thread(target=hold, daemon=True)
        thread.start()
        assert held.wait(60)
        consumer._poison_after_fork()  # as the child does, to which that thread is lost
        for use in (consumer.poll, consumer.commit, consumer.rewind):
            with pytest.raises(Closed):
                use()
        consumer.close()
        done.set()
        thread.join(60)


def fill(queue: Queue, count: int) -> None:
    for _ in range(count):
        queue.append(MESSAGE)


def test_retention_waits_for_a_consumer_that_holds_open_or_not(tmp_path: Path) -> None:
    bounds = {"page_size": SMALL, "max_bytes": 3 * SMALL, "full": "raise"}
    with Queue(tmp_path / "q", **bounds) as queue, queue.consumer("slow") as consumer:  # type: ignore[arg-type]
        fill(queue, 60)
        consumer.poll(max_messages=10)
        consumer.commit()
    with Queue(tmp_path / "q", **bounds) as queue:  # type: ignore[arg-type]
        with pytest.raises(Backpressure):
            fill(queue, 200)
        assert queue.first_seq <= 11
        with queue.consumer("slow") as consumer:
            expected = 11
            while expected < 500:
                for message in consumer.poll() or pytest.fail("nothing to read, and the queue is full"):
                    assert message.seq == expected
                    expected += 1
                consumer.commit()
                fill(queue, 20)
        assert queue.first_seq > 300


def test_a_consumer_that_does_not_hold_stops_nobody(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", page_size=SMALL, max_bytes=3 * SMALL) as queue:
        queue.consumer("slow").close()
        fill(queue, 500)
        assert queue.first_seq > 300


# ---- crashes that take messages -------------------------------------------------------------------------------------


def a_crash_takes_messages_that_were_committed(folder: Path, lost: int, appended: int) -> None:
    """Append and flush, append ``lost`` more and commit them durably in the cursor alone; lose them; append others."""
    path = folder / "q"
    with Queue(path, page_size=SMALL, files=OtherBoot(), background=False) as queue:
        fill(queue, 50)
        queue.flush()
        shutil.copytree(folder, folder.parent / "disk")
        fill(queue, lost)
        with queue.consumer("c") as consumer:
            assert seqs(consumer) == list(range(1, 51 + lost))
            consumer.commit()
    cursor = (folder / "q-c.cursor").read_bytes()
    shutil.rmtree(folder)
    shutil.copytree(folder.parent / "disk", folder)
    (folder / "q-c.cursor").write_bytes(cursor)
    with Queue(path, read_only=True, files=OtherBoot()) as queue:
        assert queue.last_seq == 50 + lost, "a number was free again that a consumer has seen"
    with Queue(path, page_size=SMALL, files=OtherBoot(), background=False) as queue:
        assert queue.last_seq == 50 + lost, "a number was free again that a consumer has seen"
        fill(queue, appended)
        with queue.consumer("c") as consumer:
            assert seqs(consumer) == list(range(51 + lost, 51 + lost + appended)), "a message was skipped"
    reports: list[Gap | Trimmed] = []
    with Queue(path, read_only=True, files=OtherBoot()) as queue:
        found = [message.seq for message in queue.read(damage=reports.append)]
    assert found == [*range(1, 51), *range(51 + lost, 51 + lost + appended)]
    assert [(gap.first, gap.last, gap.reason) for gap in reports if isinstance(gap, Gap)] == [(51, 50 + lost, "crash")]
    check = verify_queue(str(path))
    assert check.ok
    assert check.never_durable == ((51, 50 + lost),)


@pytest.mark.parametrize("lost", [1, 10, 100, 250])
@pytest.mark.parametrize("appended", [5, 60, 300])
def test_numbers_that_a_consumer_has_seen_are_never_given_to_other_messages(
    tmp_path: Path, lost: int, appended: int
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    a_crash_takes_messages_that_were_committed(folder, lost, appended)


def test_a_cursor_that_this_version_does_not_know_is_not_believed() -> None:
    value = encode_cursor(9, of_work_queue=True, holds=False)
    found = decode_cursor(value)
    assert found is not None
    assert (found.committed_seq, found.of_work_queue, found.holds) == (9, True, False)
    huge = encode_cursor(COMMITTED_MAX, of_work_queue=False, holds=False)
    for wrong in (b"", b"\x02\x00" + value[2:], value + b"x", huge):
        assert decode_cursor(wrong) is None


def test_a_cursor_of_an_old_page_is_found_among_many(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", page_size=SMALL) as queue:
        fill(queue, 10)
        with queue.consumer("c") as consumer:
            consumer.poll()
            consumer.commit()
        fill(queue, 1000)
        with queue.consumer("c") as consumer:
            assert consumer.next_seq == 11
            assert seqs(consumer) == list(range(11, 1011))


def a_torn_write_leaves_the_value_before(folder: Path) -> None:
    """Commit, then tear the slot of the next commit at every sector's worth of bytes."""
    with Queue(folder / "q") as queue:
        queue.append_many([MESSAGE] * 3)
        with queue.consumer("c") as consumer:
            consumer.poll()
            consumer.commit(1)
            before = (folder / "q-c.cursor").read_bytes()
            consumer.commit(2)
        after = (folder / "q-c.cursor").read_bytes()
        for torn in range(0, len(after), 16):
            (folder / "q-c.cursor").write_bytes(after[:torn] + before[torn:])
            found = read_cursor(core_of(queue).pages, "c")
            assert found is not None
            assert found.committed_seq in (1, 2), "a torn write lost both values"


def test_a_torn_commit_leaves_the_one_before(tmp_path: Path) -> None:
    a_torn_write_leaves_the_value_before(tmp_path)


def a_durable_commit_syncs_the_log_first(folder: Path) -> None:
    files = Recorded()
    with Queue(folder / "q", files=files) as queue, queue.consumer("c") as consumer:
        queue.append_many([MESSAGE] * 3)
        consumer.poll()
        files.steps.clear()
        consumer.commit(durable=True)
        order = [step for step in files.steps if step[1] in ("q-1.page", "q-c.cursor")]
        assert order == [("sync", "q-1.page"), ("write", "q-c.cursor"), ("sync", "q-c.cursor")]
        assert queue.durable_seq == 3


def test_a_durable_commit_syncs_the_log_before_the_cursor(tmp_path: Path) -> None:
    a_durable_commit_syncs_the_log_first(tmp_path)


@pytest.mark.parametrize("seq", [50, 100, 101])
def test_a_reset_in_another_process_syncs_every_page_before_its_place_and_then_the_cursor(
    tmp_path: Path, seq: int
) -> None:
    with Queue(tmp_path / "q", page_size=SMALL, background=False) as writer:
        for _ in range(100):
            writer.append(MESSAGE)
        bases = {
            number: header.base_seq for number in range(1, 5) if (header := core_of(writer).pages.header_of(number))
        }
        assert len(bases) == 4
        assert writer.durable_seq < bases[2]
        files = Recorded()
        with Queue(tmp_path / "q", read_only=True, files=files) as queue, queue.consumer("c") as consumer:
            files.steps.clear()
            consumer.reset(seq=seq)
            synced = [name for step, name in files.steps if step == "sync"]
            pages = {f"q-{number}.page" for number, base in bases.items() if base < seq}
            assert pages <= set(synced[:-1])
            assert synced[-1] == "q-c.cursor"
            written = files.steps.index(("write", "q-c.cursor"))
            assert max(files.steps.index(("sync", name)) for name in pages) < written


# ---- mutants: each broken rule is caught by the check above it ------------------------------------------------------


def test_an_opening_that_does_not_ask_the_consumers_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.queue.evidence.committed_seqs", lambda _pages: {})
    folder = tmp_path / "files"
    folder.mkdir()
    with pytest.raises(AssertionError, match="was free again"):
        a_crash_takes_messages_that_were_committed(folder, 10, 60)


def test_a_slot_written_in_place_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meta_files, "slot_offset", lambda _generation: 0)
    monkeypatch.setattr("holdfast.queue.format.meta.slot_offset", lambda _generation: 0)
    assert SLOT_BYTES == 512
    with pytest.raises(AssertionError):
        a_torn_write_leaves_the_value_before(tmp_path)


def test_a_cursor_synced_before_the_log_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.queue.consumers.consumer import Consumer

    monkeypatch.setattr(Consumer, "_sync_log", lambda _self, _seq: None)
    with pytest.raises(AssertionError):
        a_durable_commit_syncs_the_log_first(tmp_path)


def test_a_failed_sync_of_the_log_leaves_the_cursor_where_it_was(tmp_path: Path) -> None:
    class Failing(LocalFiles):
        failing = False

        def sync_data(self, file: int) -> None:
            if self.failing:
                raise OSError(5, "injected")
            super().sync_data(file)

    files = Failing()
    queue = Queue(tmp_path / "q", files=files)
    queue.append(MESSAGE)
    consumer = queue.consumer("c")
    consumer.poll()
    files.failing = True
    with pytest.raises(Closed) as caught:
        consumer.commit(durable=True)
    assert caught.value.code is Code.SYNC_FAILED
    assert consumer.committed_seq == 0
    files.failing = False
    with pytest.raises(Closed):
        queue.close()
    with Queue(tmp_path / "q") as queue, queue.consumer("c") as consumer:
        assert consumer.next_seq == 1
