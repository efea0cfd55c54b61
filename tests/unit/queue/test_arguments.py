"""What a program may hand in, and that what it may not is refused where it is handed in, with nothing changed."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterable
from pathlib import Path

import pytest

from holdfast import aio
from holdfast.errors import InvalidRequest
from holdfast.queue import Queue
from holdfast.queue.serializers import Serializer


def payloads(queue: Queue) -> list[bytes]:
    return [message.payload for message in queue.read()]


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("count", [2, 5000])
@pytest.mark.parametrize("other", [b"", b"x", b"x" * 8])
def test_a_buffer_of_wide_items_never_makes_a_frame_that_nobody_can_read(
    tmp_path: Path, atomic: bool, count: int, other: bytes
) -> None:
    wide = memoryview(array("I", [1, 2]))
    with Queue(tmp_path / "q") as queue:
        with pytest.raises(TypeError):
            queue.append_many([wide, *[other] * (count - 1)], atomic=atomic)
        assert queue.append(wide) == 1
        assert payloads(queue) == [wide.tobytes()]


@pytest.mark.parametrize("level", ["buffered", "os"])
@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("made", [list, tuple, iter, dict.fromkeys], ids=["list", "tuple", "iterator", "keys"])
def test_a_batch_may_be_any_iterable_and_an_empty_one_is_no_batch(
    tmp_path: Path, level: str, atomic: bool, made: type[Iterable[bytes]]
) -> None:
    with Queue(tmp_path / "q", sync=level) as queue:
        assert queue.append_many(made([b"one", b"two"]), atomic=atomic) == (1, 2)  # type: ignore[call-arg]
        with pytest.raises(InvalidRequest):
            queue.append_many(made([]), atomic=atomic)  # type: ignore[call-arg]
        queue.flush()
        assert payloads(queue) == [b"one", b"two"]


def test_a_task_whose_serializer_makes_no_bytes_spoils_no_other_tasks_append(tmp_path: Path) -> None:
    async def run() -> None:
        same: Serializer = Serializer(lambda value: value, lambda data: data)  # type: ignore[arg-type, return-value]
        async with aio.Queue(tmp_path / "q", sync="always", serializer=same) as queue:
            found = await asyncio.gather(
                queue.append(b"one"), queue.append("text"), queue.append([1, 2]), queue.append(b"two"),
                return_exceptions=True,
            )  # fmt: skip
            assert (found[0], found[3]) == (1, 2)
            assert [type(error) for error in found[1:3]] == [TypeError, TypeError]

    asyncio.run(run())
