"""A flipped bit may make a frame valid for another number, or lead behind its end: neither is believed.

Every check gives a number instead of judging one, so one bit of the last message's check turns message 150 into a valid
message 151. Nothing follows it that could contradict.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from holdfast.queue import Gap, Queue, Trimmed
from holdfast.queue.format.frame import HEAD, HEAD_BYTES
from holdfast.queue.format.page import HEADER_BYTES
from holdfast.queue.queue import core_of

CHECK_OFFSET = 4
LENGTH_OFFSET = 0


def place_of_last(page: Path) -> int:
    """Where the last frame of a page that is being written begins."""
    data, position, last = page.read_bytes(), HEADER_BYTES, 0
    while True:
        length, _, _, tail = HEAD.unpack_from(data, position)
        if tail == 0:
            return last
        last, position = position, position + HEAD_BYTES + length


def flip(page: Path, offset: int, bits: int) -> None:
    with page.open("r+b") as file:
        file.seek(offset)
        octet = file.read(1)[0]
        file.seek(offset)
        file.write(bytes((octet ^ bits,)))


def a_log(path: Path) -> None:
    clock = count(1_700_000_000_000_000_000, 1_000_000)
    with Queue(path, page_size=4096, clock=lambda: next(clock)) as queue:
        for number in range(1, 6):
            queue.append_many([b"%d" % number] * 2)


@pytest.mark.parametrize("since", ["earliest", "latest"])
def test_a_last_message_with_the_number_of_the_next_is_told_and_not_delivered(tmp_path: Path, since: str) -> None:
    a_log(tmp_path / "q")
    page = tmp_path / "q-1.page"
    flip(page, place_of_last(page) + CHECK_OFFSET, 9 ^ 11)
    told: list[Gap | Trimmed] = []
    with Queue(tmp_path / "q", read_only=True) as reader:
        found = [message.seq for message in reader.read(since=since, damage=told.append)]
    assert found == ([*range(1, 9)] if since == "earliest" else [])
    assert [(gap.first, gap.last) for gap in told if isinstance(gap, Gap)] == ([(9, 10)] if found else [])


def test_what_is_appended_behind_a_told_loss_is_read_once_and_under_its_own_number(tmp_path: Path) -> None:
    told: list[Gap | Trimmed] = []
    with Queue(tmp_path / "q", page_size=4096) as queue:
        queue.append(b"one")
        queue.append(b"two")
        page = tmp_path / "q-1.page"
        flip(page, place_of_last(page) + CHECK_OFFSET, 2 ^ 3)
        reader = core_of(queue).reader(damage=told.append)
        found = [message.seq for message in reader.read_messages() or ()]
        assert reader.read_messages() is None
        assert (found, reader.next_seq) == ([1], 3)
        queue.append(b"three")
        assert [(message.seq, message.payload) for message in reader.read_messages() or ()] == [(3, b"three")]
        for number in range(40):  # into the next page
            queue.append(b"%d" % number * 100)
        rest: list[int] = []
        while (messages := reader.read_messages()) is not None:
            rest += [message.seq for message in messages]
        assert rest == [*range(4, 44)]
        reader.close()
    assert [(gap.first, gap.last) for gap in told if isinstance(gap, Gap)] == [(2, 2)]


@pytest.mark.parametrize("offset", [CHECK_OFFSET, CHECK_OFFSET + 1, LENGTH_OFFSET, LENGTH_OFFSET + 1])
@pytest.mark.parametrize("bits", [1 << bit for bit in range(8)])
def test_no_bit_of_a_head_leads_a_seek_astray(tmp_path: Path, offset: int, bits: int) -> None:
    """The index names the frame, its arrival is right, and nothing follows: its number is still not believed."""
    path = tmp_path / "q"
    a_log(path)
    page = tmp_path / "q-1.page"
    with Queue(path, read_only=True) as queue:
        whole = {message.seq: message for message in queue.read()}
    flip(page, place_of_last(page) + offset, bits)
    for start in (7, 9, 10):
        for by_time in (False, True):
            told: list[Gap | Trimmed] = []
            with Queue(path, read_only=True) as queue:
                messages = (
                    queue.read(since=whole[start].time, damage=told.append)
                    if by_time
                    else queue.read(seq=start, damage=told.append)
                )
                found = [(message.seq, message.payload) for message in messages]
            assert found == [(seq, b"4") for seq in (7, 8) if seq >= start]
            assert [(gap.first, gap.last) for gap in told if isinstance(gap, Gap)] == [(9, 10)]
