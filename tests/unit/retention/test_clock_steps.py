"""One step of a wall clock: retention removes nothing young, holds last their time, and both go on afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest
from tests.worlds.log.shape import protocol_width

from holdfast.commit.format.batch import PREFIX, object_name
from holdfast.commit.format.transaction import Transaction, Write
from holdfast.commit.service import CommitService, ServiceOptions
from holdfast.commit.stages.events import CommitEntry
from holdfast.commit.stages.persist import PersistRules
from holdfast.commit.stages.pipeline import PipelineRules
from holdfast.objects.memory import MemoryObjects, MemoryStore
from holdfast.retention.policies import Hold, Policy, set_hold, set_policy
from holdfast.retention.truncator import Truncator, TruncatorOptions
from holdfast.snapshots.manifest import FORMAT, Manifest, encode_manifest, manifest_key
from holdfast.values import Instant

DAY_MS = 86_400_000
EPOCH_MS = 1_700_000_000_000
MIN_AGE_S, MAX_AGE_S = 60.0, 600.0


@pytest.fixture(autouse=True)
def narrow() -> Generator[None]:
    """Two slots stay, instead of a thousand."""
    with protocol_width(2):
        yield


class Log:
    """A log under one leader, on clocks of the test."""

    def __init__(self) -> None:
        self.objects = MemoryObjects()
        self.store = MemoryStore(self.objects)
        self.boot_ms = 5_000_000.0
        self.wall_ms = EPOCH_MS
        self.service: CommitService
        self.truncator: Truncator
        self.set_ms = 0

    def now(self) -> Instant:
        return Instant(self.boot_ms, self.wall_ms)

    def passes(self, seconds: float) -> None:
        self.boot_ms += seconds * 1000.0
        self.wall_ms += int(seconds * 1000)

    async def lead(self) -> None:
        options = ServiceOptions(
            allow_new=True, probe=False, take_over=True, rules=PipelineRules(persist=PersistRules(window=2))
        )
        self.service = await CommitService.lead(self.store, options, clock=self.now)
        rules = TruncatorOptions(min_age_seconds=MIN_AGE_S, slots_min=1, snapshots_keep=2)
        self.truncator = Truncator(self.service, self.store, rules, self.now)

    async def commit(self, count: int = 1) -> int:
        version = 0
        for _ in range(count):
            answered: asyncio.Future[CommitEntry] = asyncio.get_running_loop().create_future()
            self.service.submit([CommitEntry(Transaction([Write(b"key", b"value")]), answered.set_result)])
            version = (await answered).version
        return version

    async def snapshot(self) -> None:
        """Two verified snapshots of nearly everything, so that no snapshot keeps the log."""
        for _ in range(2):
            await self.commit()
            header = self.service.durable_header()
            manifest = Manifest(
                format=FORMAT, log_id=header.log_id.hex(), version=header.last_version, last_transaction=0, slot="",
                rows=0, parts=[], jobs=[],
            )  # fmt: skip
            self.objects.create(manifest_key(header.last_version), encode_manifest(manifest))
        await self.truncator.look()

    def truncated(self) -> int:
        return self.service.durable_header().truncated_through


@pytest.mark.parametrize("step_ms", [2 * DAY_MS, 400 * DAY_MS])
def test_a_forward_step_removes_nothing_young(step_ms: int) -> None:
    async def scenario() -> None:
        log = Log()
        await log.lead()
        await log.truncator.change(set_policy("age", Policy(max_age_seconds=MAX_AGE_S), head=1), "test")
        await log.commit(5)
        log.wall_ms += step_ms
        await log.commit()
        log.wall_ms -= step_ms
        await log.commit(5)
        await log.snapshot()
        log.wall_ms += step_ms
        await log.truncator.look()
        assert log.truncated() == 0, "every object is seconds old"
        log.service.accept_clock(log.now())
        await log.commit(5)
        await log.truncator.look()
        assert log.truncated() == 0, "the step was accepted, and the objects are seconds old"
        log.passes(MAX_AGE_S + 1)
        await log.commit(5)
        await log.snapshot()
        assert log.truncated() > 0, "retention goes on"

    asyncio.run(scenario())


@pytest.mark.parametrize("accepted", [False, True])
@pytest.mark.parametrize("step_ms", [-400 * DAY_MS, -DAY_MS, 400 * DAY_MS])
def test_retention_goes_on_after_any_step_without_an_operator(step_ms: int, accepted: bool) -> None:
    async def scenario() -> None:
        log = Log()
        await log.lead()
        await log.truncator.change(set_policy("age", Policy(max_age_seconds=MAX_AGE_S), head=1), "test")
        log.wall_ms += step_ms
        if accepted:
            log.service.accept_clock(log.now())
        last = await log.commit(5)
        for _ in range(4):
            log.passes(MAX_AGE_S)
            await log.commit(5)
            await log.snapshot()
        assert log.truncated() >= last

    asyncio.run(scenario())


def test_a_step_ends_no_hold_early() -> None:
    async def scenario() -> None:
        log = Log()
        await log.lead()
        await log.truncator.change(set_policy("age", Policy(max_age_seconds=1.0), head=1), "test")
        first = await log.commit()
        await log.truncator.change(set_hold("reader", Hold(from_version=first, lasts_ms=3_600_000)), "test")
        await log.commit(5)
        await log.snapshot()
        log.wall_ms += 2 * DAY_MS
        log.service.accept_clock(log.now())
        log.passes(MIN_AGE_S + 10)
        await log.commit(5)
        await log.snapshot()
        assert log.truncated() <= first, "the hold has 59 minutes left"
        log.passes(3_600)
        await log.commit(5)
        await log.snapshot()
        assert log.truncated() > first
        assert log.truncator.state.generation is not None
        assert not log.truncator.state.generation.holds

    asyncio.run(scenario())


def test_a_young_batch_without_transactions_stays_where_the_version_that_it_shares_goes() -> None:
    async def scenario() -> None:
        log = Log()
        await log.lead()
        await log.truncator.change(set_policy("age", Policy(max_age_seconds=1.0), head=1), "test")
        last = await log.commit(5)
        log.passes(MIN_AGE_S + 10)
        young: list[str] = []
        for _ in range(3):
            before = log.service.durable_header()
            log.service.show_clock()
            while log.service.durable_header() == before:  # noqa: ASYNC110 - a batch has no event
                await asyncio.sleep(0)
            assert log.service.durable_header().last_version == last
            young.append(object_name(log.service.durable_header().slot))
        await log.commit(5)
        await log.snapshot()
        assert log.truncated() == last
        left = {row.key for row in log.objects.list(PREFIX)}
        assert left.issuperset(young), "they are ten seconds too young"
        assert log.truncator.state.swept.objects, "the old ones went"
        log.passes(MIN_AGE_S + 10)
        await log.commit(5)
        await log.snapshot()
        assert not {row.key for row in log.objects.list(PREFIX)}.intersection(young)

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["another", "reader"])
def test_a_hold_that_is_set_after_the_leaders_look_begins_at_the_next_one(name: str) -> None:
    """The leader proves that it leads between its look at the clock and its change, and that may take a while."""

    async def scenario() -> None:
        log = Log()
        await log.lead()
        first = await log.commit()
        hold = Hold(from_version=first, lasts_ms=60_000)
        change, version = log.truncator.change, log.service.version
        await change(set_hold("reader", hold), "test")

        async def proves_slowly() -> int:
            log.service.version = version  # type: ignore[method-assign]
            log.passes(50)
            await change(set_hold(name, Hold(from_version=first, lasts_ms=1)), "test")
            await change(set_hold(name, hold), "test")
            log.set_ms = log.service.moment().lived_ms
            return await version()

        log.service.version = proves_slowly  # type: ignore[method-assign]
        for _ in range(2):
            await log.truncator.look()
        assert log.truncator.state.generation is not None
        begun = log.truncator.state.generation.holds[name]
        assert begun.expires_lived_ms is not None
        assert begun.expires_lived_ms >= log.set_ms + hold.lasts_ms

    asyncio.run(scenario())
