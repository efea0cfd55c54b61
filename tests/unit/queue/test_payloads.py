"""``read_payloads`` gives the payloads of ``read``: for every kind of frame, from every place, over damage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast.errors import Closed, Code, CorruptData, HoldfastError
from holdfast.queue import Gap, Queue, Trimmed
from holdfast.queue.log import messages

START_NS = 1_700_000_000_000_000_000
PAGE_BYTES = 16 << 10


class Ticking:
    """A clock that moves a millisecond with each look."""

    def __init__(self) -> None:
        self.now = START_NS

    def __call__(self) -> int:
        self.now += 1_000_000
        return self.now


def filled(path: Path, **settings: Any) -> Queue:
    """Single messages of one size and of several, batches of both, a large message, over several pages."""
    chance = Random(5)
    queue = Queue(path, page_size=PAGE_BYTES, background=False, clock=Ticking(), **settings)
    for size in (0, 90, 700):
        for _ in range(60):
            queue.append(chance.randbytes(size))
        queue.append_many([chance.randbytes(size) for _ in range(20)])
        for _ in range(30):
            queue.append(chance.randbytes(chance.randrange(200)))
        queue.append_many([chance.randbytes(chance.randrange(200)) for _ in range(20)])
    queue.append(chance.randbytes(3 * PAGE_BYTES // 4))
    return queue


def of_read(queue: Queue, **starting: Any) -> list[bytes]:
    return [message.payload for message in queue.read(**starting)]


@pytest.mark.parametrize("compression", [0, 6])
def test_payloads_are_those_of_read_from_every_number_and_every_time(tmp_path: Path, compression: int) -> None:
    with filled(tmp_path / "q", compression=compression) as queue:
        everything = of_read(queue)
        assert len(everything) == queue.last_seq == 391
        assert list(queue.read_payloads()) == everything
        for seq in range(1, queue.last_seq + 2):
            assert list(queue.read_payloads(seq=seq)) == everything[seq - 1 :]
        for passed in range(0, 300, 7):
            since = datetime.fromtimestamp(START_NS // 10**9, UTC) + timedelta(milliseconds=passed)
            found = list(queue.read_payloads(since=since))
            assert found == of_read(queue, since=since)
            assert found == everything[len(everything) - len(found) :]
        assert list(queue.read_payloads(since="latest")) == []
        for block in queue.batches(seq=65):
            assert [bytes(block[place]) for place in range(len(block))] == list(block.payloads())


def outcome(reading: Iterator[bytes]) -> tuple[list[bytes], str]:
    """What a reading gives, and the error at its end."""
    found: list[bytes] = []
    try:
        for payload in reading:
            found.append(payload)  # noqa: PERF402 - what comes before an error counts
    except HoldfastError as error:
        return found, described(error)
    return found, ""


def described(error: HoldfastError) -> str:
    return f"{error!r} {error.fields}"


def outcomes(queue: Queue, reading: Callable[..., Iterator[bytes]]) -> list[object]:
    reports: list[Gap | Trimmed] = []
    first = [outcome(reading(damage=damage)) for damage in ("raise", "skip", reports.append)]
    return [*first, list(map(described, reports))]


def test_damage_has_the_same_effect_as_on_read(tmp_path: Path) -> None:
    filled(tmp_path / "q").close()
    page = tmp_path / "q-1.page"
    whole = page.read_bytes()
    ends = set()
    for place in range(0, PAGE_BYTES, 331):
        page.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with Queue(tmp_path / "q", read_only=True) as queue:
            found = outcomes(queue, queue.read_payloads)
            wanted = outcomes(queue, lambda **given: (message.payload for message in queue.read(**given)))
            assert found == wanted
            ends.add(repr(found[0]))
    assert len(ends) > 20, "most places were in messages"


def test_payloads_that_are_followed_come_with_each_append_and_end_with_the_queue(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue:
        queue.append_many([b"one", b"two"])
        following = queue.read_payloads(seq=2, follow=True)
        assert next(following) == b"two"
        for number in range(20):
            queue.append(b"%d" % number)
            assert next(following) == b"%d" % number
    with pytest.raises(Closed):
        next(following)


def test_payloads_are_what_the_serializer_made(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", serializer="json") as queue:
        queue.append_many([{"a": 1}, [2]])
        assert list(queue.read_payloads()) == of_read(queue) == [b'{"a":1}', b"[2]"]


def test_no_message_comes_after_a_batch_that_cannot_be_taken_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a program that catches the error and reads on would miss messages without a report."""

    def wrong(*_: object) -> list[bytes]:
        raise CorruptData("the lengths of a batch do not add up", code=Code.CORRUPT_QUEUE)

    with Queue(tmp_path / "q") as queue:
        for _ in range(3):
            queue.append_many([b"x"] * 10)
        monkeypatch.setattr(messages, "payloads", wrong)
        reading = queue.read_payloads()
        with pytest.raises(CorruptData):
            next(reading)
        assert list(reading) == []
