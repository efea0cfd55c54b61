"""The serializer of a queue: recorded, used everywhere, and never code that the files bring along."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path

import pytest

from holdfast.aio import Queue as AsyncQueue
from holdfast.errors import InvalidRequest
from holdfast.queue import Message, Queue, Serializer
from holdfast.queue.format.meta import IDENTITY_BYTES, decode_identity
from holdfast.queue.work.work_queue import Job

VALUES = [{"order": number, "text": "ä"} for number in range(20)]


def record(path: Path) -> str:
    found = decode_identity(path.read_bytes())
    assert found is not None
    return found.serializer


@pytest.mark.parametrize("batched", [False, True])
def test_values_are_the_same_by_every_way_and_without_naming_the_serializer_again(
    tmp_path: Path, *, batched: bool
) -> None:
    with Queue(tmp_path / "q", serializer="json") as queue:
        if batched:
            queue.append_many(VALUES)
        else:
            for value in VALUES:
                queue.append(value)
    with Queue(tmp_path / "q") as queue:
        queue.append({"order": "last"})
        expected = [*VALUES, {"order": "last"}]
        assert list(queue.values()) == [message.value for message in queue.read()] == expected
        with queue.consumer("c") as consumer, queue.work_queue("w") as work:
            assert list(consumer.values()) == expected
            jobs = [job for job in (work.get(0), *work.get_many(50)) if job is not None]
            assert [job.value for job in jobs] == expected
            work.nack(jobs[0])
            again = work.get(0)
            assert again is not None and again.deliveries == 2 and again.value == expected[0]
            work.dead_letter(again)
            letters = list(work.dead_letters())
            assert [letter.value for letter in [*letters, *pickle.loads(pickle.dumps(letters))]] == expected[:1] * 2
    with Queue(tmp_path / "q", read_only=True) as queue:
        assert list(queue.values()) == expected
        message = next(iter(queue.read()))
        assert isinstance(message, Message) and message.payload == b'{"order":0,"text":"\xc3\xa4"}'
        assert pickle.loads(pickle.dumps(message)).value == VALUES[0]
        assert pickle.loads(pickle.dumps(jobs[0])) == jobs[0] and isinstance(jobs[0], Job)


def test_values_of_the_twin_without_naming_the_serializer_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncQueue(tmp_path / "q", serializer="json") as queue:
            await queue.append_many(VALUES)
        async with AsyncQueue(tmp_path / "q", sync="always") as queue:
            await queue.append("text")
            expected = [*VALUES, "text"]
            assert [value async for value in queue.values()] == expected
            async with queue.consumer("c") as consumer, queue.work_queue("w") as work:
                assert [value async for value in consumer.values()] == expected
                job = await work.get()
                assert job is not None and job.value == VALUES[0]
                await work.dead_letter(job)
                assert [letter.value async for letter in work.dead_letters()] == VALUES[:1]

    asyncio.run(main())


def test_another_serializer_is_refused_and_the_error_names_both(tmp_path: Path) -> None:
    Queue(tmp_path / "q", serializer="json").close()
    for other in ("str", "bytes", "pickle", Serializer(bytes, bytes, "mine")):
        with pytest.raises(InvalidRequest) as refused:
            Queue(tmp_path / "q", serializer=other)
        assert refused.value.fields["recorded"] == "json"
    Queue(tmp_path / "q", serializer="json").close()
    with Queue(tmp_path / "q", serializer="bytes", read_only=True) as queue:
        assert list(queue.read()) == []


def test_a_queue_without_a_record_adopts_the_first_serializer_that_is_named(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue:
        queue.append(b'"bytes"')
    file = tmp_path / "q-allMeta"
    before = decode_identity(file.read_bytes())
    assert (record(file), len(file.read_bytes())) == ("", IDENTITY_BYTES)
    with Queue(tmp_path / "q", serializer="json") as queue:
        assert list(queue.values()) == ["bytes"]
    after = decode_identity(file.read_bytes())
    assert before is not None and after is not None
    assert (record(file), after.queue_id, after.page_bytes) == ("json", before.queue_id, before.page_bytes)


class Bomb:
    """Runs code when it is unpickled."""

    exploded: list[int]

    def __reduce__(self) -> tuple[object, ...]:
        return explode, ()


EXPLODED: list[int] = []


def explode() -> None:
    EXPLODED.append(1)


def test_opening_a_queue_of_pickles_runs_no_code(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", serializer="pickle") as queue:
        queue.append(Bomb())
        queue.append({"set": {1, 2}})
    EXPLODED.clear()
    with Queue(tmp_path / "q") as queue, queue.consumer("c") as consumer, queue.work_queue("w") as work:
        messages = [*queue.read(), *consumer.poll(), work.get(0)]
        job = messages[-1]
        assert isinstance(job, Job)
        work.dead_letter(job)
        for message in [*messages, *work.dead_letters()]:
            assert message is not None and isinstance(message.payload, bytes)
            with pytest.raises(InvalidRequest, match="serializer to be named") as refused:
                _ = message.value
            assert "trust" in refused.value.hint
        with pytest.raises(InvalidRequest, match="serializer to be named"):
            queue.append({})
        with pytest.raises(InvalidRequest, match="serializer to be named"):
            queue.append_many([b"x"])
        assert queue.last_seq == 2
    assert not EXPLODED
    with Queue(tmp_path / "q", serializer="pickle") as queue:
        assert next(iter(queue.read(seq=2))).value == {"set": {1, 2}}


def test_a_serializer_of_the_program_is_recorded_by_its_name(tmp_path: Path) -> None:
    number = Serializer(lambda value: b"%d" % value, int, "number")
    with Queue(tmp_path / "q", serializer=number) as queue:
        queue.append(7)
    with Queue(tmp_path / "q") as queue:
        with pytest.raises(InvalidRequest) as refused:
            list(queue.values())
        assert '"number"' in refused.value.hint
        assert [message.payload for message in queue.read()] == [b"7"]
    with Queue(tmp_path / "q", serializer=number) as queue:
        assert list(queue.values()) == [7]


@pytest.mark.parametrize("name", ["", "json", "x" * 25, "ä", "a\0b", 5])
def test_a_name_that_cannot_be_recorded_is_refused_before_a_file_is_made(tmp_path: Path, name: object) -> None:
    with pytest.raises(InvalidRequest):
        Queue(tmp_path / "q", serializer=Serializer(bytes, bytes, name))  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
