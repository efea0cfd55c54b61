"""``keep="consumed"`` while consumers are made at any moment, here and in other processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.queue import Queue, core
from holdfast.queue.consumers.consumer import Consumer
from holdfast.queue.files.cursors import CursorFile, sync_holds
from holdfast.queue.files.pages import PageDirectory
from holdfast.queue.log import space
from holdfast.queue.log.space import Space
from holdfast.queue.queue import core_of

PAGE_BYTES = 4096
COUNT = 300


def open_queue(path: Path, *, keep: str = "consumed", background: bool = False) -> Queue:
    return Queue(path, page_size=PAGE_BYTES, keep=keep, background=background)


def consume(consumer: Consumer) -> None:
    while consumer.poll():
        consumer.commit()


def append(writer: Queue) -> None:
    for _ in range(COUNT):  # one batch would be one page
        writer.append(b"x" * 100)


def fill(path: Path) -> None:
    """A queue of which one consumer has consumed all."""
    with open_queue(path, keep="all") as writer, writer.consumer("old") as old:
        append(writer)
        consume(old)


def seqs(consumer: Consumer) -> list[int]:
    return [message.seq for message in consumer]


@pytest.mark.parametrize("here", [False, True])
def test_a_consumer_that_is_made_during_a_trim_finds_all_that_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, here: bool
) -> None:
    path = tmp_path / "q"
    fill(path)
    with open_queue(path) as writer, Queue(path, read_only=True) as elsewhere:
        found: list[Consumer] = []

        def sync_then_make(pages: PageDirectory, failed: Callable[[OSError], None], *, every: bool) -> None:
            sync_holds(pages, failed, every=every)
            found.append((writer if here else elsewhere).consumer("new"))

        monkeypatch.setattr(space, "sync_holds", sync_then_make)
        core_of(writer).run_background_work()
        assert seqs(found[0]) == list(range(writer.first_seq, COUNT + 1))
        found[0].close()
        with elsewhere.consumer("new") as again:
            assert seqs(again) == list(range(writer.first_seq, COUNT + 1))


def test_a_page_that_goes_while_a_consumer_is_made_moves_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "q"
    fill(path)
    with open_queue(path) as writer, Queue(path, read_only=True) as elsewhere:
        write = CursorFile.write

        def go_then_write(cursor: CursorFile, value: bytes) -> None:
            monkeypatch.setattr(CursorFile, "write", write)
            assert writer.trim(before_seq=100) > 0
            write(cursor, value)

        monkeypatch.setattr(CursorFile, "write", go_then_write)
        with elsewhere.consumer("new") as new:
            assert seqs(new) == list(range(writer.first_seq, COUNT + 1))
        assert writer.first_seq > 1
        with elsewhere.consumer("new") as again:
            assert again.committed_seq == writer.first_seq - 1


def test_the_writer_removes_nothing_while_it_makes_a_cursor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "q"
    fill(path)
    with open_queue(path) as writer:
        was_free: list[bool] = []

        def look() -> None:
            lock = core_of(writer).space._lock
            free = lock.acquire(blocking=False)
            if free:
                lock.release()
            was_free.append(free)

        make = CursorFile.__init__

        def look_then_make(cursor: CursorFile, pages: PageDirectory, name: str) -> None:
            thread = threading.Thread(target=look)
            thread.start()
            thread.join(60)
            make(cursor, pages, name)

        monkeypatch.setattr(CursorFile, "__init__", look_then_make)
        writer.consumer("new").close()
        assert was_free == [False]


def wait_until_removed(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    removed = threading.Event()
    remove = Space.remove

    def remove_then_say(space: Space, numbers: list[int]) -> None:
        remove(space, numbers)
        if numbers:
            removed.set()

    monkeypatch.setattr(Space, "remove", remove_then_say)
    return removed


def test_what_was_consumed_before_the_opening_goes_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "LIFETIME_LOOK_S", 3600.0)
    fill(tmp_path / "q")
    removed = wait_until_removed(monkeypatch)
    with open_queue(tmp_path / "q", background=True):
        assert removed.wait(60)


def test_what_a_consumer_of_another_process_consumes_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "LIFETIME_LOOK_S", 0.02)
    path = tmp_path / "q"
    with open_queue(path, keep="all") as writer:
        writer.consumer("other", hold=False).close()
        append(writer)
    removed = wait_until_removed(monkeypatch)
    with (
        open_queue(path, background=True),
        Queue(path, read_only=True) as elsewhere,
        elsewhere.consumer("other") as other,
    ):
        assert not removed.is_set()
        consume(other)
        assert removed.wait(60)
