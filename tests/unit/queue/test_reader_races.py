"""What a reader in another process says while the writer moves, at the worst moment: between two of its looks.

Each test lets the writer act when the reader has read one file and before it reads the next.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.queue import Gap, Queue, Trimmed
from holdfast.queue.evidence import FileEvidence
from holdfast.queue.log.reader import LogReader
from holdfast.queue.queue import core_of
from holdfast.queue.repair import verify_queue

PAYLOAD = b"x" * 100


def opened(path: Path) -> Queue:
    return Queue(path, page_size=65_536, background=False)


def numbers_of(reader: LogReader) -> list[int]:
    found: list[int] = []
    while (messages := reader.read_messages()) is not None:
        found += [message.seq for message in messages]
    return found


def begun(writer: Queue) -> int:
    """The newest page that holds messages."""
    headers = [core_of(writer).pages.header_of(number) for number in core_of(writer).pages.numbers()]
    return max((header.number for header in headers if header is not None and not header.prepared), default=0)


def roll(writer: Queue) -> None:
    """Append until the next page is begun."""
    before = begun(writer)
    while begun(writer) == before:
        writer.append(PAYLOAD)


def act_once(monkeypatch: pytest.MonkeyPatch, question: str, act: Callable[[], object], *, before: bool) -> None:
    """``act`` runs once, before or after evidence is asked this question the first time."""
    ask = getattr(FileEvidence, question)
    acts = [act]

    def asked(self: FileEvidence) -> Any:
        if before and acts:
            acts.pop()()
        answer = ask(self)
        if acts:
            acts.pop()()
        return answer

    monkeypatch.setattr(FileEvidence, question, asked)


def appended_and_committed(writer: Queue, path: Path) -> Callable[[], None]:
    """The writer begins a page, and a consumer elsewhere commits all of it."""

    def act() -> None:
        roll(writer)
        with Queue(path, read_only=True) as elsewhere, elsewhere.consumer("c") as consumer:
            while consumer.poll(0):
                consumer.commit()
            assert consumer.committed_seq == writer.last_seq

    return act


def test_a_commit_of_messages_newer_than_the_last_look_is_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "q"
    with opened(path) as writer, Queue(path, read_only=True) as elsewhere:
        for _ in range(100):
            writer.append(PAYLOAD)
        reports: list[Gap | Trimmed] = []
        reader = core_of(elsewhere).reader(damage=reports.append)
        act_once(monkeypatch, "used_seq", appended_and_committed(writer, path), before=True)
        seen = numbers_of(reader) + numbers_of(reader)
        assert seen == [*range(1, writer.last_seq + 1)]
        assert reports == []


def test_a_commit_of_messages_newer_than_the_last_look_is_no_damage_to_verify(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "q"
    with opened(path) as writer:
        for _ in range(100):
            writer.append(PAYLOAD)
        act_once(monkeypatch, "used_seq", appended_and_committed(writer, path), before=True)
        assert verify_queue(path).ok


@pytest.mark.parametrize("looked", [False, True])
def test_messages_that_come_between_the_looks_of_a_reader_on_an_empty_queue_are_all_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked: bool
) -> None:
    path = tmp_path / "q"
    with Queue(path, sync="always", background=False) as writer, Queue(path, read_only=True) as elsewhere:
        reports: list[Gap | Trimmed] = []
        reader = core_of(elsewhere).reader(damage=reports.append)
        if looked:
            assert numbers_of(reader) == []
        act_once(monkeypatch, "proof", lambda: [writer.append(PAYLOAD) for _ in range(3)], before=True)
        assert numbers_of(reader) + numbers_of(reader) == [1, 2, 3]
        assert reports == []


@pytest.mark.parametrize("entered", [False, True])
def test_what_retention_removes_between_two_looks_is_never_called_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entered: bool
) -> None:
    path = tmp_path / "q"
    with opened(path) as writer, Queue(path, read_only=True) as elsewhere:
        for _ in range(3000):
            writer.append(PAYLOAD)
        reports: list[Gap | Trimmed] = []
        reader = core_of(elsewhere).reader(damage=reports.append) if entered else None
        act_once(monkeypatch, "proof", lambda: writer.trim(before_seq=1800), before=False)
        reader = reader or core_of(elsewhere).reader(damage=reports.append)
        seen = numbers_of(reader)
        assert seen[-1] == 3000
        assert seen == sorted({*seen})
        assert not [report for report in reports if isinstance(report, Gap)]


def test_a_page_that_is_lost_after_a_reader_saw_it_prepared_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "q"
    with opened(path) as writer, Queue(path, read_only=True) as elsewhere:
        writer.append(PAYLOAD)
        while core_of(writer).pages.numbers() != [1, 2]:
            writer.append(PAYLOAD)
            core_of(writer).run_background_work()
        assert begun(writer) == 1, "the second page is prepared"
        reports: list[Gap | Trimmed] = []
        reader = core_of(elsewhere).reader(damage=reports.append)
        seen = numbers_of(reader) + numbers_of(reader)
        roll(writer)
        roll(writer)
        writer.flush()
        (tmp_path / "q-2.page").unlink()
        seen += numbers_of(reader)
        missing = [number for number in range(1, writer.last_seq + 1) if number not in seen]
        assert seen[-1] == writer.last_seq
        assert [(type(report), report.first, report.last) for report in reports] == [(Gap, missing[0], missing[-1])]
