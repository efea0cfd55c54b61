"""The connection budget: who may hold how many connections, what is repeated, what is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from holdfast.errors import NotFound, Unavailable
from holdfast.objects.budget import LATENCY_BOUNDS_MS, BudgetedStore, RetryPolicy
from holdfast.objects.faults import FaultRates, FaultyObjects, FaultyStore
from holdfast.objects.memory import MemoryObjects, MemoryStore
from holdfast.objects.port import CREATED, CreateAnswer, Created, Refused, Unknown


class Gate(MemoryStore):
    """A store whose requests wait until the test opens it, and which counts who is inside."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = asyncio.Event()
        self.creating = self.reading = self.most_creating = self.most_reading = 0

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        self.creating += 1
        self.most_creating = max(self.most_creating, self.creating)
        try:
            await self.opened.wait()
        finally:
            self.creating -= 1
        return await super().create(key, data)

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        self.reading += 1
        self.most_reading = max(self.most_reading, self.reading)
        try:
            await self.opened.wait()
        finally:
            self.reading -= 1
        return await super().read(key, start=start, length=length)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the condition is the code under test
            await asyncio.sleep(0)


def test_creates_and_reads_each_keep_to_their_part_of_the_budget() -> None:
    async def scenario() -> None:
        gate = Gate()
        store = BudgetedStore(gate, connections_max=5, creates_max=3)
        creates = [asyncio.ensure_future(store.create(str(number), b"x")) for number in range(10)]
        await until(lambda: store.metrics.create.waiting == 7)
        # A full pipeline leaves the reads their connections.
        reads = [asyncio.ensure_future(store.read("0")) for _ in range(6)]
        await until(lambda: store.metrics.read.waiting == 4)
        assert (gate.creating, gate.reading) == (3, 2)
        assert (store.metrics.create.in_flight, store.metrics.read.in_flight) == (3, 2)
        gate.opened.set()
        assert await asyncio.gather(*creates) == [CREATED] * 10
        await asyncio.gather(*reads)
        assert (gate.most_creating, gate.most_reading) == (3, 2)
        assert (store.metrics.create.in_flight, store.metrics.create.waiting) == (0, 0)

    asyncio.run(scenario())


def test_a_budget_that_creates_fill_still_leaves_one_connection_for_the_rest() -> None:
    async def scenario() -> None:
        store = BudgetedStore(MemoryStore(), connections_max=4, creates_max=4)
        assert await store.list("") == []

    asyncio.run(scenario())


def test_what_a_leader_asks_about_its_own_log_never_waits_behind_readers() -> None:
    async def scenario() -> None:
        gate = Gate()
        store = BudgetedStore(gate, connections_max=6, creates_max=3, own_max=1)
        readers = [asyncio.ensure_future(store.read(str(number))) for number in range(50)]
        await until(lambda: store.metrics.read.waiting == 48)
        assert await store.own.list("") == []
        # Nor do its own questions take anybody else's connection.
        own = [asyncio.ensure_future(store.own.read("0", length=1)) for _ in range(5)]
        await until(lambda: store.metrics.read.waiting == 52)
        assert gate.reading == 3
        gate.opened.set()
        answers = await asyncio.gather(*readers, *own, return_exceptions=True)
        assert all(isinstance(answer, NotFound) for answer in answers)

    asyncio.run(scenario())


def test_a_leaders_own_question_is_asked_once() -> None:
    """An ownership check is worth as much as the time at which it was asked."""

    async def scenario() -> None:
        failing = Failing(99)
        store = BudgetedStore(failing, connections_max=3, creates_max=1, own_max=1)
        with pytest.raises(Unavailable):
            await store.own.read("a")
        assert failing.asked == 1
        assert store.metrics.read.outcomes == {"unavailable": 1}

    asyncio.run(scenario())


def test_a_cancelled_request_gives_its_connection_back() -> None:
    async def scenario() -> None:
        gate = Gate()
        store = BudgetedStore(gate, connections_max=2, creates_max=1)
        holding = asyncio.ensure_future(store.create("a", b""))
        waiting = asyncio.ensure_future(store.create("b", b""))
        await until(lambda: store.metrics.create.waiting == 1)
        for task in (holding, waiting):
            task.cancel()
        await asyncio.gather(holding, waiting, return_exceptions=True)
        gate.opened.set()
        assert await store.create("c", b"") == CREATED
        assert (store.metrics.create.in_flight, store.metrics.create.waiting) == (0, 0)

    asyncio.run(scenario())


class Failing(MemoryStore):
    def __init__(self, failures: int, retry_after_ms: int | None = None) -> None:
        super().__init__()
        self.failures = failures
        self.retry_after_ms = retry_after_ms
        self.asked = 0

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        self.asked += 1
        if self.asked <= self.failures:
            raise Unavailable("busy", retry_after_ms=self.retry_after_ms)
        return await super().read(key, start=start, length=length)


def reading(failing: Failing, draw: float = 0.5) -> tuple[list[float], BudgetedStore, bytes | Exception]:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def scenario() -> tuple[BudgetedStore, bytes | Exception]:
        store = BudgetedStore(
            failing, connections_max=2, creates_max=1, retry=RetryPolicy(5, 50, 300), draw=lambda: draw, sleep=sleep
        )
        await store.create("a", b"there")
        try:
            return store, await store.read("a")
        except Unavailable as error:
            return store, error

    store, answer = asyncio.run(scenario())
    return slept, store, answer


def test_a_failed_read_is_repeated_with_backoff_that_doubles_up_to_its_cap() -> None:
    slept, store, answer = reading(Failing(4), draw=1.0)
    assert answer == b"there"
    assert slept == [0.05, 0.1, 0.2, 0.3]
    assert store.metrics.read.retries == 4
    assert store.metrics.read.outcomes == {"unavailable": 4, "ok": 1}


def test_full_jitter_waits_anything_down_to_nothing_but_never_less_than_asked() -> None:
    assert reading(Failing(2), draw=0.0)[0] == [0.0, 0.0]
    assert reading(Failing(2, retry_after_ms=700), draw=0.5)[0] == [0.7, 0.7]


def test_repeating_ends_and_the_last_failure_is_raised() -> None:
    failing = Failing(99)
    slept, _, answer = reading(failing)
    assert isinstance(answer, Unavailable)
    assert failing.asked == 5
    assert len(slept) == 4


def test_not_found_is_an_answer_and_is_not_repeated() -> None:
    async def scenario() -> None:
        store = BudgetedStore(MemoryStore(), connections_max=2, creates_max=1)
        with pytest.raises(NotFound):
            await store.read("absent")
        assert store.metrics.read.outcomes == {"not_found": 1}
        assert store.metrics.is_healthy

    asyncio.run(scenario())


def test_a_create_is_sent_once_whatever_comes_of_it() -> None:
    async def scenario() -> None:
        objects = FaultyObjects(MemoryObjects(), Random(3), FaultRates(lost_request=0.5, busy_409=0.3))
        store = BudgetedStore(FaultyStore(objects), connections_max=2, creates_max=1)
        answers = [await store.create(f"{number}", b"four") for number in range(50)]
        counts = store.metrics.create
        assert objects._requests == 50
        assert counts.outcomes["created"] == answers.count(Created())
        assert counts.outcomes["refused"] == answers.count(Refused(certain=False))
        assert counts.outcomes["unknown"] == sum(isinstance(answer, Unknown) for answer in answers)
        assert sum(counts.latency_buckets) == counts.outcomes.total() == 50
        assert counts.bytes_moved == 200

    asyncio.run(scenario())


def test_a_store_that_takes_nothing_is_told_once_in_a_while() -> None:
    seconds = [0.0]
    # Every create comes to Unknown, as on a full disk.
    faults = FaultyObjects(MemoryObjects(), Random(1), FaultRates(lost_request=1.0))
    told: list[float] = []
    store = BudgetedStore(
        FaultyStore(faults),
        connections_max=4,
        creates_max=2,
        clock=lambda: seconds[0],
        not_created=lambda key, detail: told.append(seconds[0]),
    )

    async def scenario() -> None:
        for at in (0.0, 0.1, 9.9, 10.0, 10.1):
            seconds[0] = at
            await store.create("batches/1", b"x")

    asyncio.run(scenario())
    assert told == [0.0, 10.0]


def test_health_follows_the_last_requests() -> None:
    _, store, _ = reading(Failing(3))
    assert store.metrics.consecutive_failures == 0
    assert store.metrics.is_healthy
    _, store, _ = reading(Failing(99))
    assert store.metrics.consecutive_failures == 5
    assert not store.metrics.is_healthy
    assert "busy" in store.metrics.last_failure


def test_latencies_are_counted_under_their_bound() -> None:
    readings = iter([0.0, 0.001, 10.0, 10.0011, 20.0, 60.0])

    async def scenario() -> None:
        store = BudgetedStore(MemoryStore(), connections_max=2, creates_max=1, clock=lambda: next(readings))
        for key in ("a", "b", "c"):
            await store.create(key, b"")
        counts = store.metrics.create
        one = LATENCY_BOUNDS_MS.index(1)
        assert counts.latency_buckets[one] == 1
        assert counts.latency_buckets[one + 1] == 1
        assert counts.latency_buckets[-1] == 1
        assert store.metrics.last_success_seconds == 60.0

    asyncio.run(scenario())
