"""The connection budget: who may hold how many connections, and what is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import pytest
from tests.faulty_store import FaultRates, FaultyStore

from holdfast.errors import NotFound, Unavailable
from holdfast.objects.budget import LATENCY_BOUNDS_MS, BudgetedStore
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


def test_each_call_is_one_request() -> None:
    """An ownership check is worth as much as the time at which it was asked; a leader repeats by its own rules."""

    async def scenario() -> None:
        for mine in (False, True):
            failing = Failing(99)
            store = BudgetedStore(failing, connections_max=3, creates_max=1, own_max=1)
            with pytest.raises(Unavailable):
                await (store.own if mine else store).read("a")
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
    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures
        self.asked = 0

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        self.asked += 1
        if self.asked <= self.failures:
            raise Unavailable("busy")
        return await super().read(key, start=start, length=length)


def test_not_found_is_an_answer() -> None:
    async def scenario() -> None:
        store = BudgetedStore(MemoryStore(), connections_max=2, creates_max=1)
        with pytest.raises(NotFound):
            await store.read("absent")
        assert store.metrics.read.outcomes == {"not_found": 1}
        assert store.metrics.is_healthy

    asyncio.run(scenario())


def test_a_create_is_sent_once_whatever_comes_of_it() -> None:
    async def scenario() -> None:
        objects = FaultyStore(MemoryObjects(), Random(3), FaultRates(lost_request=0.5, busy_409=0.3))
        store = BudgetedStore(objects, connections_max=2, creates_max=1)
        answers = [await store.create(f"{number}", b"four") for number in range(50)]
        counts = store.metrics.create
        assert objects.requests == 50
        assert counts.outcomes["created"] == answers.count(Created())
        assert counts.outcomes["refused"] == answers.count(Refused(certain=False))
        assert counts.outcomes["unknown"] == sum(isinstance(answer, Unknown) for answer in answers)
        assert sum(counts.latency_buckets) == counts.outcomes.total() == 50
        assert counts.bytes_moved == 200

    asyncio.run(scenario())


def test_a_store_that_takes_nothing_is_told_once_in_a_while() -> None:
    seconds = [0.0]
    # Every create comes to Unknown, as on a full disk.
    faults = FaultyStore(MemoryObjects(), Random(1), FaultRates(lost_request=1.0))
    told: list[float] = []
    store = BudgetedStore(
        faults,
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
    async def scenario() -> None:
        store = BudgetedStore(Failing(3), connections_max=2, creates_max=1)
        await store.create("a", b"there")
        for failures in (1, 2, 3):
            with pytest.raises(Unavailable):
                await store.read("a")
            assert store.metrics.consecutive_failures == failures
            assert store.metrics.is_healthy is (failures < 3)
        assert "busy" in store.metrics.last_failure
        assert await store.read("a") == b"there"
        assert store.metrics.is_healthy

    asyncio.run(scenario())


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
