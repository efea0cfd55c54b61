"""A work queue against a plain model: any order of calls, kills, losses of power and restarts, crashes inside a call.

The disk is the simulated one, which keeps of what was not synced any part it likes. At the level "always" a call that
has returned is there after every crash; one that has not was done or not, and nothing in between.
"""

from __future__ import annotations

import os
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from tests.worlds.queue import CrashFiles

from holdfast.errors import CorruptData, Fenced
from holdfast.queue import Queue
from holdfast.queue.format.commands import CommandKind
from holdfast.queue.work.log import WorkLog
from holdfast.queue.work.work_queue import Job, WorkQueue

NS = 10**9
VISIBILITY_S = 10
DELIVERIES_MAX = 3
PAGE_BYTES = 4096
SMALL_LOG = (
    patch("holdfast.queue.work.work_queue.LOG_PAGE_BYTES", PAGE_BYTES),
    patch("holdfast.queue.work.work_queue.DEAD_PAGE_BYTES", PAGE_BYTES),
    patch("holdfast.queue.work.log.DEAD_PAGE_BYTES", PAGE_BYTES),
    patch("holdfast.queue.work.log.COMMAND_BYTES_MAX", 512),
)


class Model:
    """What a work queue is, in the plainest way: a list of payloads, and what is known of those that were started."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.next_seq = 1
        self.started: dict[int, tuple[int, int, bool]] = {}
        self.dead: list[tuple[int, int]] = []

    def copy(self) -> Model:
        """The same, to change."""
        other = Model()
        other.payloads, other.dead = list(self.payloads), list(self.dead)
        other.next_seq, other.started = self.next_seq, dict(self.started)
        return other

    def get(self, now: int) -> tuple[int, int] | None:
        """The next job: what has been due for longest, else what comes next."""
        for due, seq in sorted((due, seq) for seq, (due, _, _) in self.started.items()):
            if due > now:
                break
            count = self.started[seq][1]
            if count < DELIVERIES_MAX:
                self.started[seq] = (now + VISIBILITY_S * NS, count + 1, True)
                return seq, count + 1
            self.bury(seq)
        if self.next_seq <= len(self.payloads):
            seq = self.next_seq
            self.next_seq += 1
            self.started[seq] = (now + VISIBILITY_S * NS, 1, True)
            return seq, 1
        return None

    def bury(self, seq: int) -> None:
        """A dead letter."""
        self.dead.append((seq, self.started.pop(seq)[1]))

    def give_back(self, seq: int, due: int) -> None:
        """Nack."""
        count = self.started[seq][1]
        if count >= DELIVERIES_MAX:
            self.bury(seq)
        else:
            self.started[seq] = (due, count, False)

    def owns(self, job: Job) -> bool:
        """Whether this delivery is the last one, and not given back."""
        found = self.started.get(job.seq)
        return found is not None and found[1:] == (job.deliveries, True)

    def facts(self) -> tuple[object, ...]:
        """Everything."""
        return self.payloads, self.next_seq, self.started, self.dead


class WorkQueueMachine(RuleBasedStateMachine):
    """Calls on a real work queue over a simulated disk, each also on the model."""

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 1_000 * NS
        self.model = Model()
        self.jobs: list[Job] = []
        self.open(CrashFiles(Random(seed)))

    def open(self, files: CrashFiles) -> None:
        self.files = files
        self.queue = Queue(
            "d/q", page_size=PAGE_BYTES, sync="always", files=files, clock=lambda: self.now,
            entropy=self.random.randbytes, background=False,
        )  # fmt: skip
        self.work: WorkQueue = self.queue.work_queue("w", ack_wait=VISIBILITY_S, max_deliveries=DELIVERIES_MAX)

    def found(self) -> tuple[object, ...]:
        machine = self.work._machine
        machine.check()
        payloads = [message.payload for message in self.queue.read()]
        dead = [(letter.seq, letter.deliveries) for letter in self.work.dead_letters()]
        for letter in self.work.dead_letters():
            assert letter.payload == payloads[letter.seq - 1]
        return payloads, machine.next_seq, machine.started, dead

    def compare(self) -> None:
        assert self.found() == self.model.facts()

    # ---- calls, on both ---------------------------------------------------------------------------------------------

    def do_append(self, model: Model, size: int) -> None:
        payload = b"%d:" % len(model.payloads) + b"x" * size
        self.queue.append(payload)
        model.payloads.append(payload)

    def do_get(self, model: Model) -> None:
        expected = model.get(self.now)
        job = self.work.get(timeout=0)
        assert (None if job is None else (job.seq, job.deliveries)) == expected
        if job is not None:
            assert job.payload == model.payloads[job.seq - 1]
            self.jobs.append(job)

    def do_get_many(self, model: Model, count: int) -> None:
        expected: list[tuple[int, int]] = []
        while len(expected) < count and (found := model.get(self.now)) is not None:
            expected.append(found)
        jobs = self.work.get_many(count)
        assert [(job.seq, job.deliveries) for job in jobs] == expected
        assert [job.payload for job in jobs] == [model.payloads[job.seq - 1] for job in jobs]
        self.jobs += jobs

    def do_with_job(self, model: Model, what: str, number: int, delay: int) -> None:
        job = self.jobs[number % len(self.jobs)]
        call = {
            "ack": lambda: self.work.ack(job),
            "nack": lambda: self.work.nack(job, delay=delay),
            "extend": lambda: self.work.extend(job, ack_wait=delay),
            "dead_letter": lambda: self.work.dead_letter(job, "why"),
        }[what]
        if not model.owns(job):
            with pytest.raises(Fenced):
                call()
            return
        call()
        count = model.started[job.seq][1]
        if what == "ack":
            del model.started[job.seq]
        elif what == "nack":
            model.give_back(job.seq, self.now + delay * NS)
        elif what == "extend":
            model.started[job.seq] = (self.now + delay * NS, count, True)
        else:
            model.bury(job.seq)

    # ---- rules ------------------------------------------------------------------------------------------------------

    @rule(size=st.sampled_from([0, 10, 1000, 6000]))
    def append(self, size: int) -> None:
        self.do_append(self.model, size)

    @rule(count=st.sampled_from([2, 5, 30]))
    def append_many(self, count: int) -> None:
        payloads = [b"%d of %d" % (len(self.model.payloads), count)] * count
        self.queue.append_many(payloads)
        self.model.payloads += payloads

    @rule()
    def get(self) -> None:
        self.do_get(self.model)

    @rule(count=st.sampled_from([1, 2, 7, 100]))
    def get_many(self, count: int) -> None:
        self.do_get_many(self.model, count)

    @precondition(lambda self: self.jobs)
    @rule(
        what=st.sampled_from(["ack", "ack", "nack", "nack", "extend", "dead_letter"]),
        number=st.integers(0, 30),
        delay=st.sampled_from([0, 1, 15]),
    )
    def with_job(self, what: str, number: int, delay: int) -> None:
        self.do_with_job(self.model, what, number, delay)

    @rule(seconds=st.sampled_from([1, 5, 11]))
    def pass_time(self, seconds: int) -> None:
        self.now += seconds * NS

    @rule(power=st.booleans())
    def crash(self, power: bool) -> None:
        random = Random(self.random.random())
        self.open(self.files.after_power_loss(random) if power else self.files.after_kill(random))
        self.compare()

    @rule()
    def close_and_open(self) -> None:
        self.queue.close()
        for seq, (_, count, leased) in self.model.started.items():
            if leased:
                self.model.started[seq] = (self.now, count, False)
        self.open(self.files)
        self.compare()

    @rule(
        at=st.integers(0, 12),
        power=st.booleans(),
        what=st.sampled_from(["append", "get", "get_many", "ack", "nack", "dead_letter"]),
        number=st.integers(0, 30),
    )
    def crash_inside(self, at: int, power: bool, what: str, number: int) -> None:
        """Crash before the operation ``at`` of a call: it was done, or it was not."""
        images: list[CrashFiles] = []
        left = [at]

        def before(_operation: str) -> None:
            if left[0] == 0:
                random = Random(self.random.random())
                images.append(self.files.after_power_loss(random) if power else self.files.after_kill(random))
            left[0] -= 1

        after = self.model.copy()
        self.files.before = before
        try:
            if what == "append":
                self.do_append(after, 100)
            elif what == "get_many":
                self.do_get_many(after, 1 + number)
            elif what == "get" or not self.jobs:
                self.do_get(after)
            else:
                self.do_with_job(after, what, number, 3)
        finally:
            self.files.before = None
        if not images:
            self.model = after
            return
        self.open(images[0])
        found = self.found()
        # A get that gave messages up first may have stopped between two of them, one of many between two jobs.
        states = [self.model, after]
        if what == "get":
            states += partly_buried(self.model, self.now)
        elif what == "get_many":
            states += partly_taken(self.model, self.now, 1 + number)
        matching = [state for state in states if state.facts() == found]
        assert matching, f"{found} is neither {self.model.facts()} nor {after.facts()}"
        self.model = matching[0]
        # What a killed call had written, and not said, a loss of power may still take: say it now.
        self.queue.flush()
        self.work._log._log.flush()

    def teardown(self) -> None:
        if hasattr(self, "work"):
            self.compare()
            self.queue.close()


def partly_buried(model: Model, now: int) -> list[Model]:
    """The states in which some of those that are due for the last time were given up already."""
    states = []
    current = model.copy()
    for due, seq in sorted((due, seq) for seq, (due, _, _) in model.started.items()):
        if due > now or current.started[seq][1] < DELIVERIES_MAX:
            break
        current = current.copy()
        current.bury(seq)
        states.append(current)
    return states


def partly_taken(model: Model, now: int, count: int) -> list[Model]:
    """The states in which a get of so many has taken some of them."""
    states = partly_buried(model, now)
    current = model.copy()
    while count and current.get(now) is not None:
        states += [current.copy(), *partly_buried(current, now)]
        count -= 1
    return states


@pytest.fixture(autouse=True)
def _small_log() -> object:
    with SMALL_LOG[0], SMALL_LOG[1], SMALL_LOG[2], SMALL_LOG[3]:
        yield


SETTINGS = settings(
    max_examples=3000
    if os.environ.get("HOLDFAST_PROVE") == "1"
    else 20
    if os.environ.get("HOLDFAST_SMALL") == "1"
    else 60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestWorkQueue = WorkQueueMachine.TestCase
TestWorkQueue.settings = SETTINGS


# ---- mutants: each broken rule is caught by the machine above -------------------------------------------------------


def waits_for_nothing(_log: WorkLog, _written: int) -> None:
    """An answer before it is durable."""


def writes_no_acknowledgement(log: WorkLog, command: bytes) -> None:
    """A command that is applied, but for takes and returns not written."""
    if command[0] != CommandKind.DONE:
        RECORD(log, command)


def hands_out_one_more_than_it_writes(work: WorkQueue, count: int) -> list[Job]:
    """A batch whose last job was not taken."""
    jobs = TAKE_READ_AHEAD(work, count - 1) if count > 1 else []
    more = work._source.read_ahead(work._machine.next_seq, 1)
    return jobs + [Job((seq, time_ns, payload, 1)) for seq, time_ns, payload in more]


RECORD = WorkLog.record
TAKE_READ_AHEAD = WorkQueue._take_read_ahead


@pytest.mark.parametrize(
    ("place", "broken"),
    [
        ("holdfast.queue.work.log.WorkLog.record", writes_no_acknowledgement),
        ("holdfast.queue.work.work_queue.WorkQueue._take_read_ahead", hands_out_one_more_than_it_writes),
        pytest.param("holdfast.queue.work.log.WorkLog.wait", waits_for_nothing, marks=pytest.mark.matrix),  # seconds
    ],
)
def test_a_broken_rule_is_caught(place: str, broken: object) -> None:
    with patch(place, broken), pytest.raises((AssertionError, CorruptData, ExceptionGroup)):
        run_state_machine_as_test(
            WorkQueueMachine, settings=settings(SETTINGS, max_examples=400, phases=[Phase.generate], derandomize=True)
        )
