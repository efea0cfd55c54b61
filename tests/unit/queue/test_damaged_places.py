"""A damaged cursor skips nothing and lets nothing go; a damaged page goes in its turn."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from holdfast.errors import Backpressure
from holdfast.queue import Queue
from holdfast.queue.format.meta import encode_cursor, encode_slot

PAGE_BYTES = 4096
DAMAGED = {
    "other bytes": b"\xff" * 1024,
    "one bit": b"\1" + bytes(1023),
    "cut": b"HFQS",
    "a later version": encode_slot(2, b"\2" + encode_cursor(3, of_work_queue=False, holds=False)[1:]) + bytes(512),
}
UNWRITTEN = {"empty": b"", "zeros": bytes(1024)}


def a_log(path: Path, messages: int) -> Queue:
    queue = Queue(path, page_size=PAGE_BYTES, background=False)
    for number in range(messages):
        queue.append(b"%04d" % number * 200)
    return queue


def page_numbers(path: Path) -> list[int]:
    return sorted(int(file.stem.rpartition("-")[2]) for file in path.parent.glob("*.page"))


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_a_consumer_whose_cursor_is_damaged_skips_nothing_also_since_latest(tmp_path: Path, data: bytes) -> None:
    with a_log(tmp_path / "q", 10) as queue:
        with queue.consumer("c") as consumer:
            consumer.poll(max_messages=3)
            consumer.commit(durable=True)
        (tmp_path / "q-c.cursor").write_bytes(data)
        with queue.consumer("c", since="latest") as consumer:
            assert [message.seq for message in consumer] == list(range(1, 11))
            consumer.commit()
        with queue.consumer("c", since="earliest") as consumer:
            assert consumer.next_seq == 11


@pytest.mark.parametrize("data", UNWRITTEN.values(), ids=UNWRITTEN)
def test_a_cursor_that_was_never_written_begins_where_a_new_one_does(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "q-c.cursor").write_bytes(data)
    with a_log(tmp_path / "q", 10) as queue, queue.consumer("c", since="latest") as consumer:
        assert consumer.next_seq == 11


@pytest.mark.parametrize("full", ["raise", "drop_oldest"])
@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_while_a_cursor_is_damaged_nothing_is_let_go(tmp_path: Path, data: bytes, full: str) -> None:
    path = tmp_path / "q"
    with Queue(path, page_size=PAGE_BYTES, max_bytes=3 * PAGE_BYTES, full=full, background=False) as queue:
        queue.consumer("c", hold=True).close()
        queue.append(b"m")
        (tmp_path / "q-c.cursor").write_bytes(data)
        with pytest.raises(Backpressure):
            [queue.append(b"m" * 900) for _ in range(30)]
        assert queue.first_seq == 1
        with queue.consumer("c", since="latest", hold=True) as consumer:
            assert consumer.poll()[0].seq == 1
            consumer.commit()
            queue.append(b"m" * 900)
        assert queue.first_seq > 1


@pytest.mark.parametrize("full", ["raise", "drop_oldest"])
@pytest.mark.parametrize("damaged", [[1], [2], [2, 3], [1, 4]])
def test_pages_go_oldest_first_also_where_a_header_is_damaged(tmp_path: Path, damaged: list[int], full: str) -> None:
    path = tmp_path / "q"
    a_log(path, 40).close()
    for number in damaged:
        with (tmp_path / f"q-{number}.page").open("r+b") as file:
            file.write(b"\xff" * 64)
    seen = [page_numbers(path)]
    queue = Queue(path, page_size=PAGE_BYTES, max_bytes=5 * PAGE_BYTES, full=full, damage="skip", background=False)
    with queue, queue.consumer("c") as consumer:
        for _ in range(40):
            while consumer.poll():
                consumer.commit()
            queue.append(b"m" * 800)
            seen.append(page_numbers(path))
    for before, after in pairwise(seen):
        gone = [number for number in before if number not in after]
        assert gone == before[: len(gone)]
    assert min(seen[-1]) > max(damaged)
    assert len(seen[-1]) <= 6


def test_a_page_before_a_damaged_one_stays_while_its_messages_may_be_wanted(tmp_path: Path) -> None:
    """How far it goes only the next readable page tells."""
    path = tmp_path / "q"
    a_log(path, 40).close()
    with (tmp_path / "q-2.page").open("r+b") as file:
        file.write(b"\xff" * 64)
    with Queue(path, page_size=PAGE_BYTES, background=False) as queue:
        base = next(message.seq for message in queue.read(damage="skip") if message.seq > 5)
        assert queue.trim(before_seq=base - 1) == 0
        assert queue.trim(before_seq=base) == 2
        assert page_numbers(path)[0] == 3
