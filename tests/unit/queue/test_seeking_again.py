"""A reader that has read may seek again: it is then as one that begins there."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count, product
from pathlib import Path

import pytest

from holdfast.queue import Gap, Queue
from holdfast.queue.log.reader import LogReader
from holdfast.queue.queue import core_of

START_NS = 1_700_000_000_000_000_000
MESSAGES = 100
"""A second apart, some thirty to a page."""

Seek = Callable[[LogReader], None]
SEEKS: dict[str, Seek] = {
    "earliest": lambda reader: reader.seek_earliest(),
    "latest": lambda reader: reader.seek_latest(),
    "first": lambda reader: reader.seek_seq(1),
    "middle": lambda reader: reader.seek_seq(45),
    "last": lambda reader: reader.seek_seq(MESSAGES),
    "to come": lambda reader: reader.seek_seq(MESSAGES + 5),
    "time of the 5th": lambda reader: reader.seek_time(START_NS + 5 * 10**9),
    "time of the 70th": lambda reader: reader.seek_time(START_NS + 70 * 10**9),
}


def filled(path: Path, *, read_only: bool = False) -> Queue:
    times = count(START_NS + 10**9, 10**9)
    queue = Queue(path, page_size=4096, clock=lambda: next(times), background=False)
    for number in range(1, MESSAGES + 1):
        queue.append(b"%03d" % number + bytes(100))
    if not read_only:
        return queue
    queue.close()
    return Queue(path, read_only=True)


def read_on(reader: LogReader) -> list[int]:
    seqs: list[int] = []
    while (messages := reader.read_messages()) is not None:
        seqs += [message.seq for message in messages]
    return seqs


@pytest.mark.parametrize("read_only", [False, True])
def test_a_seek_after_reading_finds_what_a_new_reader_finds(tmp_path: Path, *, read_only: bool) -> None:
    with filled(tmp_path / "q", read_only=read_only) as queue:
        expected: dict[str, list[int]] = {}
        for name, seek in SEEKS.items():
            reader = core_of(queue).reader()
            seek(reader)
            expected[name] = read_on(reader)
            reader.close()
        assert expected["first"] == list(range(1, MESSAGES + 1))
        assert expected["time of the 70th"] == list(range(70, MESSAGES + 1))
        for before, then in product(SEEKS, SEEKS):
            for reads in (False, True):
                reader = core_of(queue).reader()
                SEEKS[before](reader)
                if reads:
                    read_on(reader)
                SEEKS[then](reader)
                assert read_on(reader) == expected[then], (before, reads, then)
                assert reader.gaps == 0
                reader.close()


def test_a_seek_after_reading_tells_what_is_missing_there(tmp_path: Path) -> None:
    with filled(tmp_path / "q"):
        pass
    with open(tmp_path / "q-1.page", "r+b") as page:
        page.write(bytes(64))  # its header
    with Queue(tmp_path / "q", read_only=True) as queue:
        moment = datetime.fromtimestamp(START_NS // 10**9, UTC) + timedelta(seconds=1)
        with pytest.raises(Gap) as told:
            core_of(queue).reader(since=moment)
        reader = core_of(queue).reader(since="latest")
        for seek in (SEEKS["first"], SEEKS["earliest"], SEEKS["time of the 5th"]):
            with pytest.raises(Gap) as again:
                seek(reader)
            assert (again.value.first, again.value.last) == (told.value.first, told.value.last)
            SEEKS["latest"](reader)
        reader.close()
