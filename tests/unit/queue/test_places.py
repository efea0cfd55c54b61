"""Where a queue's files are, whatever the process does with its own place."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import InvalidRequest
from holdfast.queue import Queue


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
