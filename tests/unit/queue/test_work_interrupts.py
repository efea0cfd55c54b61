"""A step of a work queue that is cut off, by Ctrl-C or a full disk: it was done or not, and once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.errors import Closed, Code, CorruptData, Unavailable
from holdfast.queue import Queue
from holdfast.queue.format.commands import CommandKind, WorkState
from holdfast.queue.log.messages import Message
from holdfast.queue.work.log import WorkLog
from holdfast.queue.work.machine import WorkMachine
from holdfast.queue.work.work_queue import Job, WorkQueue, WorkSource

NS = 10**9
MESSAGES = [b"one", b"two", b"three", b"four"]
Step = Callable[[WorkQueue, Job], object]

STEPS: dict[str, tuple[Step, set[bytes]]] = {
    # The step for the job of the first message, and what is finished once it is done.
    "get": (lambda work, _: work.get(timeout=0), set()),
    "get_many": (lambda work, _: work.get_many(3), set()),
    "ack": (lambda work, job: work.ack(job), {b"one"}),
    "ack_many": (lambda work, job: work.ack_many([job]), {b"one"}),
    "nack": (lambda work, job: work.nack(job), set()),
    "retry": (lambda work, job: work.retry(job), set()),
    "extend": (lambda work, job: work.extend(job, 60), set()),
    "dead_letter": (lambda work, job: work.dead_letter(job), {b"one"}),
}


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1_000 * NS

    def __call__(self) -> int:
        return self.now


def open_work(queue: Queue) -> WorkQueue:
    return queue.work_queue("w", ack_wait=30)


def interrupt_at(monkeypatch: pytest.MonkeyPatch, moment: str, interrupt: type[BaseException]) -> None:
    """The next step is interrupted: before its command is written, behind that, or behind its application."""
    if moment == "applied":
        for name in ("apply", "take", "finish"):
            interrupt_behind(monkeypatch, WorkMachine, name, interrupt)
        return
    record = WorkLog.record

    def interrupted(log: WorkLog, command: bytes) -> None:
        monkeypatch.setattr(WorkLog, "record", record)
        if moment == "begun":
            log._append = lambda _: (_ for _ in ()).throw(interrupt)  # type: ignore[assignment]
        record(log, command)
        raise interrupt

    monkeypatch.setattr(WorkLog, "record", interrupted)


def interrupt_behind(
    monkeypatch: pytest.MonkeyPatch, owner: type[object], name: str, interrupt: type[BaseException]
) -> None:
    real: Callable[..., object] = getattr(owner, name)

    def interrupted(*arguments: object) -> object:
        real(*arguments)
        monkeypatch.undo()
        raise interrupt

    monkeypatch.setattr(owner, name, interrupted)


def all_that_comes(path: Path, clock: Clock) -> list[bytes]:
    """Everything that a work queue hands out which is opened anew, each once, and acknowledges it."""
    clock.now += 1_000 * NS
    with Queue(path, clock=clock, background=False) as queue, open_work(queue) as work:
        found: list[bytes] = []
        while job := work.get(timeout=0):
            found.append(job.payload)
            work.ack(job)
        work._machine.check()
    return found


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, TimeoutError])
@pytest.mark.parametrize("moment", ["begun", "written", "applied"])
@pytest.mark.parametrize("step", STEPS)
def test_an_interrupted_step_was_done_or_not_and_the_work_queue_opens_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, moment: str, interrupt: type[BaseException]
) -> None:
    clock, path = Clock(), tmp_path / "q"
    do, finished = STEPS[step]
    with Queue(path, clock=clock, background=False) as queue:
        queue.append_many(MESSAGES)
        with open_work(queue) as work:
            first, second = work.get(timeout=0), work.get(timeout=0)
            assert first is not None
            assert second is not None
            interrupt_at(monkeypatch, moment, interrupt)
            with pytest.raises(interrupt):
                do(work, first)
            monkeypatch.undo()
            before = work._log._log.last_seq
            for refused in (lambda: work.ack(second), lambda: work.get(timeout=0), work.lag):
                with pytest.raises(Closed, match="interrupted") as error:
                    refused()
                assert "open it again" in error.value.hint
            log, work_log = work._log, work._log._log
            assert work_log.last_seq == before
            monkeypatch.setattr(log, "_append", lambda _: pytest.fail("nothing is written by the end"))
        monkeypatch.undo()
    left = [message for message in MESSAGES if moment == "begun" or message not in finished]
    # A dead letter that is there counts, whether the command behind it was written or not.
    if step == "dead_letter":
        left = MESSAGES[1:]
        with Queue(path, clock=clock, background=False) as queue, open_work(queue) as work:
            assert [letter.payload for letter in work.dead_letters()] == [b"one"]
    assert sorted(all_that_comes(path, clock)) == sorted(left)


def test_an_interrupt_while_the_end_gives_jobs_back_lets_go_of_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, path = Clock(), tmp_path / "q"
    with Queue(path, clock=clock, background=False) as queue:
        queue.append_many(MESSAGES)
        work = open_work(queue)
        work.get(timeout=0)
        interrupt_at(monkeypatch, "written", KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            work.close()
        work.close()
    assert sorted(all_that_comes(path, clock)) == sorted(MESSAGES)


class Losing:
    """An iterator that is interrupted once, with a message in hand."""

    def __init__(self, inner: Iterator[Message]) -> None:
        self._inner = inner

    def __iter__(self) -> Losing:
        return self

    def __next__(self) -> Message:
        next(self._inner)
        raise KeyboardInterrupt


def test_an_interrupt_with_a_message_in_hand_passes_over_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, path = Clock(), tmp_path / "q"
    with Queue(path, clock=clock, background=False) as queue, open_work(queue) as work:
        queue.append_many(MESSAGES)
        found = [work.get(timeout=0)]
        work._source._ready = Losing(work._source._ready)
        with pytest.raises(KeyboardInterrupt):
            work.get(timeout=0)
        found.append(work.get(timeout=0))
        interrupt_behind(monkeypatch, WorkSource, "read_ahead", KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            work.get_many(2)
        found += work.get_many(9)
        assert work.get(timeout=0) is None
        # The third was taken by the call that was interrupted: it comes back when its lease ends.
        clock.now += 31 * NS
        found += work.get_many(9)
        assert {job.payload for job in found if job is not None} == set(MESSAGES)


def test_an_interrupt_while_nothing_is_done_leaves_the_work_queue_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    with Queue(tmp_path / "q", clock=clock, background=False) as queue, open_work(queue) as work:
        interrupt_behind(monkeypatch, WorkQueue, "_take", KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            work.get(timeout=1)
        queue.append(b"later")
        job = work.get(timeout=0)
        assert job is not None
        work.ack(job)
        assert work.lag() == 0


def test_a_command_for_what_nobody_has_breaks_the_law() -> None:
    machine = WorkMachine(WorkState(5, 0, {}))
    for kind, seq in (
        (CommandKind.RETURN, 5),
        (CommandKind.RETURN, 4),
        (CommandKind.EXTEND, 4),
        (CommandKind.DONE, 4),
        (CommandKind.BURY, 4),
        (CommandKind.TAKE, 4),
    ):
        with pytest.raises(CorruptData):
            machine.apply(kind, 0, [seq, 1] if kind is CommandKind.BURY else [seq])


def refuse_once(monkeypatch: pytest.MonkeyPatch, kind: CommandKind) -> None:
    """The next command of this kind meets a full disk."""
    record = WorkLog.record

    def refused(log: WorkLog, command: bytes) -> None:
        if command[0] == kind:
            monkeypatch.setattr(WorkLog, "record", record)
            raise Unavailable("the disk is full", code=Code.DISK_FULL)
        record(log, command)

    monkeypatch.setattr(WorkLog, "record", refused)


@pytest.mark.parametrize("again", ["nack", "lease", "opening"])
@pytest.mark.parametrize("between", [False, True])
def test_a_dead_letter_whose_end_was_refused_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: str, between: bool
) -> None:
    clock, path = Clock(), tmp_path / "q"
    with Queue(path, clock=clock, background=False) as queue:
        queue.append_many([b"one", b"two"])
        with queue.work_queue("w", max_deliveries=1) as work:
            first, second = work.get(timeout=0), work.get(timeout=0)
            assert first is not None
            assert second is not None
            refuse_once(monkeypatch, CommandKind.BURY)
            with pytest.raises(Unavailable):
                work.nack(first)
            if between:
                work.nack(second)
            if again == "nack":
                work.nack(first)
            elif again == "lease":
                clock.now += 31 * NS
                assert work.get(timeout=0) is None
        with queue.work_queue("w", max_deliveries=1) as work:
            clock.now += 31 * NS
            assert work.get(timeout=0) is None
            letters = [letter.payload for letter in work.dead_letters()]
            assert sorted(letters) == [b"one", b"two"]
            assert work.lag() == 0
