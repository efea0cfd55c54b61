"""Where a queue's files are, whatever the process does with its own place."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast.aio import Queue as AsyncQueue
from holdfast.errors import AlreadyOpen, InvalidRequest, PermissionDenied
from holdfast.queue import Gap, Queue, Trimmed
from holdfast.queue.core import QueueCore
from holdfast.queue.files.local import LocalFiles
from holdfast.queue.format.frame import HEAD_BYTES
from holdfast.queue.queue import core_of


@pytest.mark.parametrize("path", ["data/mail", "mail"])
def test_what_belongs_to_a_queue_stays_beside_it_when_the_process_changes_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(home)
    with Queue(path) as queue, queue.work_queue("early") as early:
        queue.append(b"one")
        monkeypatch.chdir(elsewhere)
        job = early.get(timeout=0)
        assert job is not None
        early.dead_letter(job, "given up")
        with queue.work_queue("late") as late:
            job = late.get(timeout=0)
            assert job is not None
            late.ack(job)
        assert [letter.payload for letter in early.dead_letters()] == [b"one"]
    assert list(elsewhere.iterdir()) == []
    with Queue(home / path) as queue, queue.work_queue("early") as early, queue.work_queue("late") as late:
        assert [letter.payload for letter in early.dead_letters()] == [b"one"]
        assert (early.lag(), late.lag()) == (0, 0)


@pytest.mark.parametrize("path", ["", "/", "data/", "data/a\0b"])
def test_a_path_without_a_name_is_refused_and_makes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidRequest):
        Queue(path)
    assert list(tmp_path.iterdir()) == []


def test_a_second_opening_is_told_whether_it_is_this_process_or_another_that_has_it(tmp_path: Path) -> None:
    with Queue(tmp_path / "q"):
        with pytest.raises(AlreadyOpen, match="this process") as here:
            Queue(tmp_path / "q")
        assert here.value.fields["pid"] == str(os.getpid())
        second = f"from holdfast import Queue; Queue({str(tmp_path / 'q')!r})"
        there = subprocess.run([sys.executable, "-c", second], capture_output=True, text=True, check=False)
        assert f"AlreadyOpen: another process has it open file=q.lock pid={os.getpid()}" in there.stderr


@pytest.mark.parametrize("report", ["gap", "trimmed"])
def test_a_function_for_damage_is_told_with_the_error_that_would_have_been_raised(tmp_path: Path, report: str) -> None:
    told: list[object] = []
    with Queue(tmp_path / "q", page_size=4096) as queue:
        for number in range(30):
            queue.append(b"%d" % number * 500)
        if report == "trimmed":
            queue.flush()
            queue.trim(before_seq=20)
        else:
            page = bytearray((tmp_path / "q-1.page").read_bytes())
            page[100] ^= 1
            (tmp_path / "q-1.page").write_bytes(page)
        with pytest.raises(Trimmed if report == "trimmed" else Gap) as raised:
            list(queue.read(seq=1))
        assert list(queue.read(seq=1, damage=told.append))
        assert list(map(repr, told[:1])) == [repr(raised.value)]


LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


class Listings(LocalFiles):
    """Counts how often a directory is listed."""

    count = 0

    def names(self, directory: int) -> list[str]:
        self.count += 1
        return super().names(directory)


def test_a_writer_lists_its_pages_again_only_after_one_came_or_went(tmp_path: Path) -> None:
    files = Listings()
    with Queue(tmp_path / "q", page_size=4096, background=False, files=files) as queue:

        def listings() -> int:
            before = files.count
            seeks: list[dict[str, Any]] = [{}, {"seq": queue.last_seq}, {"since": LONG_AGO}]
            for seek in seeks:
                core_of(queue).reader(**seek).close()
            return files.count - before

        for _ in range(20):
            queue.append(bytes(1000))
        assert listings() == 1
        assert listings() == 0
        for _ in range(20):
            queue.append(bytes(1000))
        assert listings() == 1
        assert len(list(queue.read())) == 40
        queue.flush()
        queue.trim(before_seq=30)
        first_seq = queue.first_seq
        assert 20 < first_seq <= 30
        assert [message.seq for message in queue.read()] == list(range(first_seq, 41))
        assert listings() == 0


def test_a_reader_that_waits_in_the_process_of_the_writer_lists_nothing(tmp_path: Path) -> None:
    files = Listings()
    with Queue(tmp_path / "q", page_size=4096, background=False, files=files) as queue:
        queue.append(b"first")
        reader = core_of(queue).reader()
        assert reader.read_payloads() == [[b"first"]]
        before = files.count
        for number in range(20):
            assert reader.read_payloads() is None
            queue.append(b"%d" % number)
            assert reader.read_payloads() == [[b"%d" % number]]
        assert files.count == before
        reader.close()


def test_a_reader_that_waits_before_a_prepared_page_lists_once(tmp_path: Path) -> None:
    files = Listings()
    with (
        Queue(tmp_path / "q", page_size=4096, background=False) as queue,
        Queue(tmp_path / "q", read_only=True, files=files) as other,
    ):
        queue.append(bytes(2500))
        core_of(queue).run_background_work()
        assert sorted(path.name for path in tmp_path.glob("q-*.page")) == ["q-1.page", "q-2.page"]
        reader = core_of(other).reader()
        assert reader.read_payloads() == [[bytes(2500)]]
        assert reader.read_payloads() is None
        before = files.count
        for number in range(20):
            assert reader.read_payloads() is None
            queue.append(b"%d" % number)
            assert reader.read_payloads() == [[b"%d" % number]]
        assert files.count == before
        for number in range(50):
            queue.append(bytes(1000 + number))
        found: list[bytes] = []
        while (blocks := reader.read_payloads()) is not None:
            found += [payload for block in blocks for payload in block]
        assert found == [bytes(1000 + number) for number in range(50)]
        reader.close()


def test_a_page_that_was_removed_by_hand_under_a_writer_is_reported_as_lost(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", page_size=4096, background=False) as queue:
        for _ in range(20):
            queue.append(bytes(1000))
        numbers = [message.seq for message in queue.read()]
        assert numbers == list(range(1, 21))
        queue.flush()
        (tmp_path / "q-1.page").unlink()
        reports: list[Gap | Trimmed] = []
        left = [message.seq for message in queue.read(damage=reports.append)]
        assert left[0] > 1
        assert left == list(range(left[0], 21))
        assert [(gap.first, gap.last) for gap in reports if isinstance(gap, Gap)] == [(1, left[0] - 1)]


def test_behind_the_last_message_nothing_is_read_but_one_head(tmp_path: Path) -> None:
    # What was allocated and never written is in no cache: a read of it has the system fill megabytes with zeros.
    class Recorded(LocalFiles):
        def read(self, file: int, offset: int, length: int) -> bytes:
            data = super().read(file, offset, length)
            if length > HEAD_BYTES and not any(data[-HEAD_BYTES:]):
                empty.append((offset, length))
            return data

    empty: list[tuple[int, int]] = []
    with Queue(tmp_path / "q", page_size=1 << 20) as queue:
        queue.append_many([b"x" * 100] * 1000)
    with Queue(tmp_path / "q", files=Recorded()) as queue:
        reader = core_of(queue).reader(since="latest")
        assert reader.read_messages() is None
        queue.append(b"next")
        assert [message.payload for message in reader.read_messages() or ()] == [b"next"]
        assert len(empty) == 1, "the window that holds the last message, and no other"
        assert reader.read_messages() is None
    assert len(empty) == 1


@pytest.mark.parametrize("first", [True, False], ids=["the first page", "a later page"])
def test_a_reader_does_not_wait_in_a_page_whose_name_a_larger_one_may_take(tmp_path: Path, first: bool) -> None:
    # A page made ahead is replaced where a message needs a larger one.
    path = tmp_path / "q"
    sent = [] if first else [b"one"]
    with Queue(path, page_size=4096, background=False) as queue:
        for payload in sent:
            queue.append(payload)
        writer: Any = core_of(queue)._writer
        if first:
            writer._supply.prepare(lambda: True)
        else:
            tail = writer.tail
            writer._supply.prepare(lambda: True)
            tail.page.limit, tail.limit = 0, -1
            writer._seal(tail.page)  # as a roll leaves it that met a full disk behind it
        with Queue(path, read_only=True) as elsewhere:
            readers = [core_of(queue).reader(), core_of(elsewhere).reader()]
            for reader in readers:
                assert [message.payload for message in reader.read_messages() or ()] == sent
                assert reader.read_messages() is None
            sent.append(b"x" * 9000)
            assert queue.append(sent[-1]) == len(sent)
            for reader in readers:
                assert [message.payload for message in reader.read_messages() or ()] == sent[-1:]
                reader.close()


def test_who_may_not_write_is_refused_although_another_process_writes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        with Queue(tmp_path / "q") as writer:
            real = QueueCore.append_many

            def append_many(self: QueueCore, *arguments: Any, **named: Any) -> tuple[int, int]:
                monkeypatch.undo()
                writer.append(b"another's")
                return real(self, *arguments, **named)

            async with AsyncQueue(tmp_path / "q", read_only=True) as reading:
                monkeypatch.setattr(QueueCore, "append_many", append_many)
                with pytest.raises(PermissionDenied):
                    await reading.append(b"refused")
            assert [message.payload for message in writer.read()] == [b"another's"]

    asyncio.run(main())
