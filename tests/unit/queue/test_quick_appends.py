"""An append has a quick and a slow_append way, one pair for each sync level; which one is taken shows in nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import InvalidRequest, LimitExceeded
from holdfast.queue import Queue, every

LEVELS = ("os", "always", every(messages=3), every(ms=1000))
SIZES = (0, 1, 100, 4096, 4097, 9000)


@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_a_message_above_the_bound_is_refused_by_the_first_append_and_by_every_later_one(
    tmp_path: Path, level: str
) -> None:
    with Queue(tmp_path / "q", sync=level, max_message=10) as queue:
        for seq in (1, 2, 3):
            with pytest.raises(LimitExceeded):
                queue.append(b"x" * 11)
            assert queue.append(b"x" * 10) == seq
        assert [message.payload for message in queue.read()] == [b"x" * 10] * 3


@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_every_size_and_every_kind_of_bytes_is_read_as_it_was_appended(tmp_path: Path, level: str) -> None:
    expected: list[bytes] = []
    with Queue(tmp_path / "q", sync=level, page_size=32_768) as queue:
        for size in SIZES * 3:
            payload = bytes(place % 251 for place in range(size))
            for form in (payload, bytearray(payload), memoryview(payload)):
                expected.append(payload)
                assert queue.append(form) == len(expected)
        assert [message.payload for message in queue.read()] == expected
    with Queue(tmp_path / "q", read_only=True) as queue:
        assert [message.payload for message in queue.read()] == expected


@pytest.mark.parametrize("level", LEVELS, ids=str)
@pytest.mark.parametrize("wrong", ["text", 5, None])
def test_what_is_not_bytes_is_an_invalid_request_and_leaves_nothing(tmp_path: Path, level: str, wrong: object) -> None:
    with Queue(tmp_path / "q", sync=level) as queue:
        queue.append(b"before")
        with pytest.raises(InvalidRequest):
            queue.append(wrong)
        assert queue.append(b"after") == 2
        assert [message.payload for message in queue.read()] == [b"before", b"after"]
