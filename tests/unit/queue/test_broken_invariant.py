"""After a broken invariant a queue, its consumers and work queues are unusable, and its files stay as they are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import InternalError
from holdfast.queue import Queue
from holdfast.queue.consumers import consumer as consumers
from holdfast.queue.log.durability import Durability
from holdfast.queue.log.tail import LogTail
from holdfast.queue.log.writer import Writer
from holdfast.queue.queue import core_of
from holdfast.queue.repair.survey import verify_queue
from holdfast.queue.work.machine import WorkMachine

Break = Callable[[Any], object]


def _append(program: Program) -> object:
    return program.queue.append_many([b"x", b"y"])


def _sync(program: Program) -> None:
    program.queue.append(b"x")
    program.queue.flush()


PLACES: dict[str, tuple[object, str, Break]] = {
    "a frame is written": (LogTail, "put", _append),
    "a sync begins": (Durability, "_sync", _sync),
    "a consumer hands out": (consumers, "give_messages", lambda program: program.consumer.poll(max_messages=1)),
    "a commit": (consumers.Consumer, "_finish", lambda program: program.consumer.commit()),
    "a job is taken": (WorkMachine, "take", lambda program: program.work.get(0)),
    "a job is done": (WorkMachine, "finish", lambda program: program.work.ack(program.job)),
    "a job is returned": (WorkMachine, "apply", lambda program: program.work.retry(program.job)),
}


class Program:
    """A queue with a consumer that two threads use, and a work queue with a job that is leased."""

    def __init__(self, path: Path) -> None:
        self.queue = Queue(path, background=False)
        self.queue.append_many([b"%d" % number for number in range(10)])
        self.queue.flush()
        self.consumer, self.idle = self.queue.consumer("c"), self.queue.consumer("idle", since="latest")
        self.consumer.poll(max_messages=1)
        other = threading.Thread(target=lambda: self.consumer.poll(max_messages=1))
        other.start()
        other.join()
        self.consumer.poll(max_messages=1)
        self.work = self.queue.work_queue("w")
        job = self.work.get(0)
        assert job is not None
        self.job = job

    def later_calls(self) -> list[Callable[[], object]]:
        queue, consumer, work = self.queue, self.consumer, self.work
        return [
            lambda: queue.append(b"later"), lambda: queue.append_many([b"later"]), queue.flush,
            lambda: core_of(queue).wait_durable(1), lambda: queue.trim(before_seq=2), lambda: list(queue.read()),
            lambda: queue.consumer("new"), lambda: queue.work_queue("new"),
            consumer.poll, consumer.commit, consumer.rewind, consumer.lag, lambda: list(consumer),
            lambda: consumer.reset(since="latest"),
            lambda: work.get(0), lambda: work.get_many(3), lambda: work.ack(self.job), lambda: work.retry(self.job),
            work.lag, lambda: work.extend(self.job),
        ]  # fmt: skip


def contents(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in sorted(folder.iterdir()) if not each.name.endswith("lock")}


@contextmanager
def planted(owner: object, name: str) -> Iterator[None]:
    def fails(*_: object, **__: object) -> object:
        raise AssertionError("planted")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, fails)
        yield


def play(folder: Path, place: str) -> None:
    """Raises: AssertionError where a promise is broken."""
    owner, name, breaks = PLACES[place]
    program = Program(folder / "q")
    raised: list[BaseException] = []

    def waits() -> None:
        try:
            program.idle.poll(timeout=None)
        except BaseException as error:  # noqa: BLE001 - compared below
            raised.append(error)

    waiting = threading.Thread(target=waits, daemon=True)
    waiting.start()
    while not program.idle._waiters:
        waiting.join(0.001)
    with planted(owner, name), pytest.raises(InternalError, match="invariant") as caught:
        breaks(program)
    before = contents(folder)
    for call in program.later_calls():
        with pytest.raises(InternalError) as later:
            call()
        assert later.value is caught.value, "each call raises the one error"
    waiting.join(30)
    assert raised == [caught.value], "a call that waited raises it too"
    with pytest.raises(InternalError):
        program.queue.close()
    assert contents(folder) == before, "nothing more is written"
    assert verify_queue(str(folder / "q")).ok
    with Queue(folder / "q", background=False) as again:
        assert [message.payload for message in again.read()][:10] == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("place", PLACES)
def test_a_broken_invariant_makes_the_queue_unusable_and_leaves_its_files(place: str, tmp_path: Path) -> None:
    play(tmp_path, place)


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Writer, "break_off"), (consumers.Consumer, "_break_off")],
    ids=["the queue writes on", "a consumer goes on"],
)
def test_a_queue_that_goes_on_after_a_broken_invariant_is_noticed(owner: object, name: str, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, lambda *_: None)
        with pytest.raises((AssertionError, pytest.fail.Exception)), suppress(InternalError):
            play(tmp_path, "a consumer hands out")
