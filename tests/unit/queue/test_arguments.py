"""What a program may hand in, and that what it may not is refused where it is handed in, with nothing changed."""

from __future__ import annotations

import asyncio
import os
from array import array
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path

import pytest

from holdfast import aio
from holdfast.errors import InvalidRequest, LimitExceeded
from holdfast.queue import Message, Queue, SyncLevel, every
from holdfast.queue.consumers.hand_outs import Owner
from holdfast.queue.files.local import LocalFiles
from holdfast.queue.queue import core_of
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
        with pytest.raises(InvalidRequest):
            queue.append_many([wide, *[other] * (count - 1)], atomic=atomic)
        assert queue.append(wide) == 1
        assert payloads(queue) == [wide.tobytes()]


class Meddling(LocalFiles):
    """Another thread that changes a caller's list while a frame of it is being written."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[bytes] = []

    def write(self, file: int, offset: int, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        super().write(file, offset, parts)
        self.messages.reverse()
        self.messages.append(b"late")


def test_a_batch_of_many_frames_is_what_it_was_when_it_was_handed_in(tmp_path: Path) -> None:
    messages = [b"%d" % number * 1000 for number in range(1000)]
    expected = messages.copy()
    files = Meddling()
    with Queue(tmp_path / "q", files=files) as queue:
        files.messages = messages
        assert queue.append_many(messages) == (1, 1000)
        assert payloads(queue) == expected


@pytest.mark.parametrize("wrong", ["text" * 1000, memoryview(array("I", [1, 2]))], ids=["text", "wide"])
def test_a_batch_of_many_frames_with_something_else_at_its_end_is_not_appended_in_part(
    tmp_path: Path, wrong: object
) -> None:
    with Queue(tmp_path / "q") as queue:
        with pytest.raises(InvalidRequest):
            queue.append_many([*[b"x" * 1000] * 1000, wrong])
        assert queue.last_seq == 0
        with pytest.raises(LimitExceeded):
            queue.append_many([*[b"x" * 1000] * 1000, bytes((64 << 20) + 1)])
        assert queue.last_seq == 0


@pytest.mark.parametrize("level", ["os"])
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
            assert [type(error) for error in found[1:3]] == [InvalidRequest, InvalidRequest]

    asyncio.run(run())


CANNOT_BE: list[dict[str, object]] = [
    {"page_size": 4095}, {"page_size": 4096.0}, {"page_size": "64"}, {"page_size": None}, {"page_size": 1 << 40},
    {"max_message": 0}, {"max_message": 1.5}, {"compression": -1}, {"compression": 10}, {"compression": "1"},
    {"lifetime": 7}, {"lifetime": "7d"}, {"lifetime": timedelta(0)}, {"lifetime": timedelta(-1)},
    {"max_bytes": 4096}, {"max_bytes": "1G"}, {"max_bytes": 1e9}, {"full": "drop"}, {"full": None},
    {"sync": "every"}, {"sync": None}, {"serializer": "yaml"}, {"checksum": 3},
    {"damage": "ignore"}, {"damage": None},
]  # fmt: skip


@pytest.mark.parametrize("cannot_be", CANNOT_BE, ids=str)
def test_a_setting_that_cannot_be_is_refused_before_a_file_is_made(
    tmp_path: Path, cannot_be: dict[str, object]
) -> None:
    with pytest.raises(InvalidRequest):
        Queue(tmp_path / "q", **cannot_be)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bound", [-1, 0.5, float("nan"), "1", None, 1 << 62], ids=str)
@pytest.mark.parametrize("name", ["messages", "bytes", "ms"])
def test_a_bound_that_would_stop_the_helper_thread_is_refused(name: str, bound: object) -> None:
    with pytest.raises(InvalidRequest):
        every(**{"messages": 1, name: bound})  # type: ignore[arg-type]


def test_the_longest_bound_of_time_is_one_that_a_thread_can_wait_for(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", sync=every(ms=86_400_000), lifetime=timedelta.max) as queue:
        queue.append(b"one")
    with Queue(tmp_path / "q", read_only=True) as queue:
        assert queue.durable_seq == 1


@pytest.mark.parametrize("since", [5, 5.0, "oldest", "2026-01-31", datetime(2026, 1, 1), date(2026, 1, 1)], ids=str)  # noqa: DTZ001
def test_a_starting_point_that_cannot_be_is_refused_before_anything_is_read(tmp_path: Path, since: object) -> None:
    with Queue(tmp_path / "q") as queue:
        for reading in (queue.read, queue.read_payloads, queue.batches, queue.values):
            with pytest.raises(InvalidRequest):
                reading(since=since)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "cannot_be",
    [{name: wrong} for name in ("ack_wait", "retry_delay", "max_retry_delay")
     for wrong in (-1, "30", None, float("nan"), float("inf"), timedelta(seconds=30))]
    + [{name: wrong} for name in ("max_deliveries", "max_started") for wrong in (0, 1.5, "5", None)],
    ids=str,
)  # fmt: skip
def test_a_work_queue_that_cannot_be_is_refused_and_its_name_stays_free(
    tmp_path: Path, cannot_be: dict[str, object]
) -> None:
    with Queue(tmp_path / "q") as queue:
        before = {path.name for path in tmp_path.iterdir()}
        with pytest.raises(InvalidRequest):
            queue.work_queue("w", **cannot_be)  # type: ignore[arg-type]
        assert {path.name for path in tmp_path.iterdir()} == before
        queue.consumer("w").close()


def test_a_path_may_be_text_bytes_or_a_path(tmp_path: Path) -> None:
    for path in (tmp_path / "q", str(tmp_path / "q"), os.fsencode(tmp_path / "q")):
        with Queue(path) as queue:  # type: ignore[arg-type]
            queue.append(b"one")
    with Queue(tmp_path / "q", read_only=True) as queue:
        assert queue.last_seq == 3


@pytest.mark.parametrize("level", ["os", "always"])
def test_who_appends_text_is_told_what_to_do(tmp_path: Path, level: str) -> None:
    with (
        Queue(tmp_path / "q", sync=level) as queue,
        pytest.raises(InvalidRequest, match="not str: give the queue a seria"),
    ):
        queue.append("text")


@pytest.mark.parametrize("level", ["os", "always"])
def test_a_batch_that_is_no_batch_of_bytes_is_refused_in_words(tmp_path: Path, level: str) -> None:
    with Queue(tmp_path / "q", sync=level) as queue:
        for atomic in (False, True):
            for batch in ("abc", ["abc"], [b"one", "two"], [b"one", 2], (None, b"two")):
                with pytest.raises(InvalidRequest, match=r"a message is bytes, not .*: give the queue a serializer"):
                    queue.append_many(batch, atomic=atomic)
            for no_batch in (5, None):
                with pytest.raises(InvalidRequest, match="a batch is messages one after the other, not"):
                    queue.append_many(no_batch, atomic=atomic)  # type: ignore[arg-type]
        assert queue.append(b"one") == 1
        queue.flush()
        assert payloads(queue) == [b"one"]


def test_an_unknown_level_is_refused_and_the_error_names_the_levels(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Queue(tmp_path / "q", sync="buffered")
    assert "os, every(...) or always" in refused.value.hint
    assert not list(tmp_path.iterdir())


# ---- what a consumer commits ----------------------------------------------------------------------------------------

NOT_MESSAGES: list[object] = [
    "x",
    b"x",
    1.5,
    True,
    -1,
    (1, 0, b"a plain tuple"),
    (Message((1, 0, b"one")), Message((2, 0, b"two"))),
    [None],
    [Message((1, 0, b"one")), None],
    [Message((1, 0, b"one")), (2, 0, b"a plain tuple")],
    [1, True],
    [1, -1],
    ["x", "y"],
    [1.5],
    {1, 2},
]


@pytest.mark.parametrize("takers", [1, 2])
@pytest.mark.parametrize("wrong", NOT_MESSAGES, ids=repr)
def test_a_commit_of_anything_but_messages_is_refused_and_changes_nothing(
    tmp_path: Path, wrong: object, takers: int
) -> None:
    with Queue(tmp_path / "q") as queue, queue.consumer("c") as consumer:
        queue.append_many([b"one", b"two", b"three"])
        owners = [Owner() for _ in range(takers)]
        for owner in owners:
            consumer._take(owner, 1) or (consumer._fill() and consumer._take(owner, 1))
        for durable in (False, True):
            with pytest.raises(InvalidRequest, match=r"^this is not a message given=") as caught:
                consumer._commit_by(owners[0], wrong, durable)  # type: ignore[arg-type]
            assert caught.value.hint == "commit a message, its number, or a list of either"
        assert consumer.committed_seq == 0
        consumer._commit_by(owners[0])
        assert consumer.committed_seq == 1


def test_a_commit_by_a_task_of_anything_but_messages_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with aio.Queue(tmp_path / "q") as queue, queue.consumer("c") as consumer:
            await queue.append(b"one")
            (message,) = await consumer.poll()
            for wrong in NOT_MESSAGES:
                with pytest.raises(InvalidRequest):
                    await consumer.commit(wrong)  # type: ignore[arg-type]
            await consumer.commit(message)
            assert consumer.committed_seq == 1

    asyncio.run(scenario())


def test_a_message_of_another_queue_that_was_not_handed_out_here_is_refused(tmp_path: Path) -> None:
    with Queue(tmp_path / "one") as one, Queue(tmp_path / "other") as other, one.consumer("c") as consumer:
        one.append(b"x")
        other.append_many([b"x", b"y"])
        assert len(consumer.poll()) == 1
        elsewhere = [*other.read()]
        with pytest.raises(InvalidRequest, match="this message was not handed out seq=2 next_seq=2"):
            consumer.commit(elsewhere)
        assert consumer.committed_seq == 0


@pytest.mark.parametrize("takers", [1, 2])
@pytest.mark.parametrize("serializer", [None, "json"])
def test_messages_are_committed_by_themselves_or_by_their_numbers(
    tmp_path: Path, serializer: str | None, takers: int
) -> None:
    with Queue(tmp_path / "q", serializer=serializer) as queue, queue.consumer("c") as consumer:
        queue.append_many([b"x"] * 6 if serializer is None else [{}] * 6)
        owners = [Owner() for _ in range(takers)]
        assert consumer._fill()
        for owner in owners:
            consumer._take(owner, 1)
        messages = consumer._take(owners[0], 9)
        consumer._commit_by(owners[0], 1)
        consumer._commit_by(owners[0], 0)
        assert consumer.committed_seq == 1
        consumer._commit_by(owners[0], [2, 3])
        assert consumer.committed_seq == 3
        consumer._commit_by(owners[0], [messages[-2], messages[-3]])
        assert consumer.committed_seq == 5
        consumer._commit_by(owners[0], messages[-1])
        assert consumer.committed_seq == 6


# ---- what a clock returns -------------------------------------------------------------------------------------------

WRONG_TIMES: list[object] = [1 << 63, 1 << 70, -(1 << 63) - 1, 1.5, -1.5, 1e30, None, "now"]


@pytest.mark.parametrize("level", ["os", "always", every(messages=3), every(ms=5)], ids=str)
@pytest.mark.parametrize("wrong", WRONG_TIMES, ids=repr)
@pytest.mark.parametrize("first", [True, False])
def test_a_time_that_no_message_can_have_is_refused_and_loses_nothing(
    tmp_path: Path, level: SyncLevel | str, wrong: object, first: bool
) -> None:
    times: list[object] = []

    def clock() -> int:
        return times[0] if times else 1_000  # type: ignore[return-value]

    with Queue(tmp_path / "q", sync=level, clock=clock, background=False) as queue:
        seqs = [] if first else [queue.append(b"x"), queue.append(b"x")]
        times.append(wrong)
        for append in (queue.append, lambda payload: queue.append_many([payload, payload])):
            for _ in range(2):
                with pytest.raises(InvalidRequest) as caught:
                    append(b"x")
                assert str(caught.value).startswith(f"the clock returns whole nanoseconds since 1970 clock={wrong!r} ")
        assert queue.last_seq == len(seqs)
        times.clear()
        seqs += [queue.append(b"x") for _ in range(3)]
        assert seqs == list(range(1, len(seqs) + 1))
    with Queue(tmp_path / "q") as queue:
        assert [message.seq for message in queue.read()] == seqs


@pytest.mark.parametrize("level", ["os", "always"])
def test_a_clock_may_return_the_first_and_the_last_time_that_a_frame_holds(tmp_path: Path, level: str) -> None:
    times = iter([-(1 << 63), -(1 << 63), (1 << 63) - 1, (1 << 63) - 1, 5])
    with Queue(tmp_path / "q", sync=level, clock=lambda: next(times), background=False) as queue:
        for _ in range(5):
            queue.append(b"x")
        assert [message.time_ns for message in queue.read()] == [0, 0, *[(1 << 63) - 1] * 3]


def test_an_error_of_the_clock_itself_is_the_program_s_and_the_queue_goes_on(tmp_path: Path) -> None:
    class Broken(Exception):
        pass

    broken: list[Exception] = []

    def clock() -> int:
        if broken:
            raise broken[0]
        return 1_000

    with Queue(tmp_path / "q", clock=clock, background=False) as queue:
        queue.append(b"x")
        for error in (Broken(), TypeError("mine"), InvalidRequest("mine")):
            broken.append(error)
            with pytest.raises(type(error)) as caught:
                queue.append(b"x")
            assert caught.value is error
            broken.clear()
            queue.append(b"x")
        assert queue.last_seq == 4


@pytest.mark.parametrize("wrong", WRONG_TIMES, ids=repr)
def test_a_work_queue_and_retention_refuse_a_wrong_time_and_go_on(tmp_path: Path, wrong: object) -> None:
    times: list[object] = []

    def clock() -> int:
        return times[0] if times else 1_000  # type: ignore[return-value]

    settings = {"lifetime": timedelta(days=1), "clock": clock, "background": False}
    with Queue(tmp_path / "q", **settings) as queue, queue.work_queue("w") as work:  # type: ignore[arg-type]
        queue.append_many([b"one", b"two"])
        job = work.get(0)
        assert job is not None
        times.append(wrong)
        for call in (
            lambda: work.get(0),
            lambda: work.nack(job),
            lambda: work.extend(job),
            core_of(queue).run_background_work,
        ):
            with pytest.raises(InvalidRequest, match="the clock returns whole nanoseconds since 1970"):
                call()
        times.clear()
        core_of(queue).run_background_work()
        work.ack(job)
        job = work.get(0)
        assert job is not None
        assert job.payload == b"two"
