"""``FileQueue`` against a sorted list: the order of its items over restarts, crashes, failed loads and interrupts.

The item with the lowest number among those that are due is next. The disk is the simulated one of the worlds. A
crash is a kill, or at the level "always" also a loss of power. Another program may return an item through the work
queue, with a delay.
"""

from __future__ import annotations

import os
import queue as standard
from collections import deque
from collections.abc import Callable, Collection, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from tests.unit.queue.line_interrupts import interrupted
from tests.worlds.queue import CrashFiles

from holdfast.queue import FileQueue, Queue, Serializer
from holdfast.queue.queue import core_of
from holdfast.queue.work.machine import WorkMachine
from holdfast.queue.work.work_queue import DELIVERIES_MAX, WorkQueue

NS = 10**9
PAGE_BYTES = 4096
THREADS = 2
SMALL_LOG = {
    "holdfast.queue.work.work_queue.LOG_PAGE_BYTES": PAGE_BYTES,
    "holdfast.queue.work.log.COMMAND_BYTES_MAX": 512,
    "holdfast.queue.work.work_queue.COMMAND_NUMBERS_MAX": 2,
}


class Model:
    """The items by number: when each is due, and which thread has it."""

    def __init__(self) -> None:
        self.last = 0
        self.waiting: dict[int, int] = {}
        self.got: list[deque[int]] = [deque() for _ in range(THREADS)]

    def next(self, now: int) -> int | None:
        """The item that a get has to return."""
        return min((number for number, due in self.waiting.items() if due <= now), default=None)

    def first_got(self, thread: int) -> deque[int] | None:
        """Whose first item ``task_done`` finishes."""
        if self.got[thread]:
            return self.got[thread]
        return min((items for items in self.got if items), key=lambda items: items[0], default=None)

    def end(self) -> None:
        """The process has ended: what it had waits again."""
        for items in self.got:
            self.waiting.update(dict.fromkeys(items, 0))
            items.clear()


class FileQueueOrder(RuleBasedStateMachine):
    """Calls on a real ``FileQueue`` over a simulated disk, each also on the model."""

    @initialize(seed=st.integers(0, 2**32), sync=st.sampled_from(["os", "always"]))
    def begin(self, seed: int, sync: str) -> None:
        self.random = Random(seed)
        self.sync = sync
        self.now = 1_000 * NS
        self.model = Model()
        self.refused: set[int] = set()
        self.other = ThreadPoolExecutor(1)
        self.open(CrashFiles(Random(seed)))

    def clock(self) -> int:
        self.now += 1
        return self.now

    def load(self, payload: bytes) -> int:
        number = int(payload)
        if number in self.refused:
            raise LookupError
        return number

    def new_queue(self, path: str, *, serializer: Serializer, sync: str = "os", keep: str = "all") -> Queue:
        return Queue(
            path, serializer=serializer, sync=sync, keep=keep, page_size=PAGE_BYTES, files=self.files,
            clock=self.clock, entropy=self.random.randbytes, background=False,
        )  # fmt: skip

    def serializer(self) -> Serializer:
        return Serializer(lambda number: str(number).encode(), self.load, "number")

    def open(self, files: CrashFiles) -> None:
        self.files = files
        with patch("holdfast.queue.file_queue.Queue", self.new_queue):
            self.tasks = FileQueue("d/q", serializer=self.serializer(), sync=self.sync)
        self.check()

    def check(self) -> None:
        assert self.tasks.qsize() == len(self.model.waiting)
        self.tasks._work._machine.check()

    def answer(self, thread: int, call: Callable[[], object]) -> object:
        """What a call by this thread returns or raises."""

        def run() -> object:
            try:
                return call()
            except (standard.Empty, LookupError, ValueError) as error:
                return type(error)

        return self.other.submit(run).result() if thread else run()

    # ---- calls, on both ---------------------------------------------------------------------------------------------

    @rule(count=st.sampled_from([1, 1, 3, 8]))
    def put(self, count: int) -> None:
        for _ in range(count):
            self.model.last += 1
            self.tasks.put(self.model.last)
            self.model.waiting[self.model.last] = 0

    @rule(thread=st.integers(0, THREADS - 1), count=st.sampled_from([1, 1, 2, 5]))
    def get(self, thread: int, count: int) -> None:
        for _ in range(count):
            found = self.answer(thread, self.tasks.get_nowait)
            self.judge_get(thread, found)

    def judge_get(self, thread: int, found: object) -> None:
        expected = self.model.next(self.now)
        if expected is None:
            assert found is standard.Empty
        elif expected in self.refused:
            assert found is LookupError, f"{expected} stays the oldest, but {found} came"
        else:
            assert found == expected
            del self.model.waiting[expected]
            self.model.got[thread].append(expected)

    @rule(thread=st.integers(0, THREADS - 1))
    def task_done(self, thread: int) -> None:
        items = self.model.first_got(thread)
        found = self.answer(thread, self.tasks.task_done)
        assert found == (None if items else ValueError)
        if items:
            items.popleft()

    @rule(what=st.sampled_from(["put", "get", "get", "task_done"]), line=st.integers(0, 90))
    def interrupt(self, what: str, line: int) -> None:
        model, tasks = self.model, self.tasks
        answers: list[object] = []
        last_seq, unfinished = tasks._queue.last_seq, tasks._work.unfinished()
        calls: dict[str, Callable[[], object]] = {
            "put": lambda: tasks.put(model.last + 1),
            "get": tasks.get_nowait,
            "task_done": tasks.task_done,
        }
        cut_off = interrupted(lambda: answers.append(self.answer(0, calls[what])), line)
        items = model.first_got(0)
        self.tasks.qsize()
        # What an interrupted call has written is there from now on, also after a loss of power.
        tasks._queue.flush()
        tasks._work.flush()
        if what == "put" and tasks._queue.last_seq > last_seq:
            model.last += 1
            model.waiting[model.last] = 0
        elif what == "get" and not cut_off:
            self.judge_get(0, answers[0])
        elif what == "task_done" and items and tasks._work.unfinished() < unfinished:
            items.popleft()
        assert cut_off or what != "put" or answers == [None]
        self.check()

    @rule(oldest=st.booleans(), place=st.integers(0, 9))
    @precondition(lambda self: self.model.waiting)
    def refuse_to_load(self, oldest: bool, place: int) -> None:
        waiting = sorted(self.model.waiting)
        self.refused.add(waiting[0 if oldest else place % len(waiting)])

    @rule()
    @precondition(lambda self: self.refused)
    def load_again(self) -> None:
        self.refused.clear()

    @rule(seconds=st.sampled_from([1, 7, 20]))
    def pass_time(self, seconds: int) -> None:
        self.now += seconds * NS

    @rule()
    def run_background_work(self) -> None:
        core_of(self.tasks._queue).run_background_work()

    # ---- ends of the process ----------------------------------------------------------------------------------------

    @rule()
    def close_and_open(self) -> None:
        self.tasks.close()
        self.model.end()
        self.open(self.files)

    @rule(power=st.booleans())
    def crash(self, power: bool) -> None:
        random = Random(self.random.random())
        lost = power and self.sync == "always"
        self.model.end()
        self.open(self.files.after_power_loss(random) if lost else self.files.after_kill(random))

    @rule(delay=st.sampled_from([0, 5, 15]), first=st.integers(0, 4))
    def return_an_item_elsewhere(self, delay: int, first: int) -> None:
        """Through the work queue, as another program would."""
        self.tasks.close()
        self.model.end()
        queue = self.new_queue("d/q", serializer=self.serializer())
        with queue, queue.work_queue("tasks", max_deliveries=DELIVERIES_MAX) as work:
            jobs = work.get_many(first + 1)
            if jobs:
                work.nack(jobs[-1], delay=delay)
                self.model.waiting[int(jobs[-1].payload)] = self.now + delay * NS
        self.open(self.files)

    def teardown(self) -> None:
        if hasattr(self, "tasks"):
            with self.tasks:
                self.refused.clear()
                self.now += 100 * NS
                left = sorted(self.model.waiting)
                found: list[object] = []
                with suppress(standard.Empty):
                    while True:
                        found.append(self.tasks.get_nowait())
                assert found == left
            self.other.shutdown()


@pytest.fixture(autouse=True)
def _small_log() -> Generator[None]:
    with ExitStack() as small:
        for place, size in SMALL_LOG.items():
            small.enter_context(patch(place, size))
        yield


SETTINGS = settings(
    max_examples=2_000
    if os.environ.get("HOLDFAST_PROVE") == "1"
    else 15
    if os.environ.get("HOLDFAST_SMALL") == "1"
    else 50,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestFileQueueOrder = FileQueueOrder.TestCase
TestFileQueueOrder.settings = SETTINGS


# ---- mutants: each broken rule is caught by the machine above -------------------------------------------------------


def the_longest_due(machine: WorkMachine, now_ns: int) -> int | None:
    """The order of a work queue."""
    return machine.due(now_ns)


def nothing(work: WorkQueue, keep: Collection[int] = ()) -> None:
    """Items that nobody has any more, and that do not come again."""


@pytest.mark.parametrize(
    ("place", "broken"),
    [
        ("holdfast.queue.work.machine.WorkMachine.oldest_due", the_longest_due),
        ("holdfast.queue.file_queue._Tasks.return_leased", nothing),
    ],
)
def test_a_broken_rule_is_caught(place: str, broken: object) -> None:
    with patch(place, broken), pytest.raises((AssertionError, ExceptionGroup)):
        run_state_machine_as_test(
            FileQueueOrder, settings=settings(SETTINGS, max_examples=400, phases=[Phase.generate], derandomize=True)
        )
