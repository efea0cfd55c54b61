"""A step of the clock is shown in the log, and accepted by an operator or by the store's own clock alone."""
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import builtins
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.commit.builders import LOG_ID, bytes_of, genesis, identity, rows

from holdfast.commit.clock_watch import ClockWatch
from holdfast.commit.format.batch import FIRST_SLOT, AddressScope, decode_header, object_name
from holdfast.commit.leadership import takeover_events as m
from holdfast.commit.leadership.accepted_clocks import PREFIX, accepted_of, read_accepted, write_accepted
from holdfast.commit.leadership.takeover import Driver, TakeoverOptions
from holdfast.commit.leadership.takeover_machine import TakeoverMachine, TakeoverRules
from holdfast.commit.service import CommitService, ServiceOptions
from holdfast.doctor.log import check_log
from holdfast.objects.memory import MemoryObjects, MemoryStore
from holdfast.objects.port import Listed
from holdfast.objects.store_clock import compare_with_store
from holdfast.values import Instant, LeaderId

DAY_MS = 86_400_000
EPOCH_MS = 1_700_000_000_000


class ClockedStore(MemoryStore):
    """A store in a cloud whose clock the test sets."""

    def __init__(self, objects: MemoryObjects) -> None:
        super().__init__(objects, url="s3://bucket/log")
        self.created_ms = EPOCH_MS

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> builtins.list[Listed]:
        rows = await super().list(prefix, after=after, limit=limit)
        return [replace(row, modified_ms=self.created_ms) for row in rows]


class Leader:
    """A leader on clocks of the test."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.boot_ms, self.wall_ms = 5_000_000.0, EPOCH_MS

    def now(self) -> Instant:
        return Instant(self.boot_ms, self.wall_ms)

    def passes(self, ms: int) -> None:
        self.boot_ms += ms
        self.wall_ms += ms

    async def lead(self) -> None:
        options = ServiceOptions(allow_new=True, probe=False, take_over=True)
        self.service = await CommitService.lead(self.store, options, clock=self.now)
        self.watch = ClockWatch(self.service, self.store, self.now)

    async def look(self) -> None:
        await self.watch.look()
        await self.service.noop()


def test_a_step_is_shown_once_and_accepted_by_the_operator() -> None:
    async def scenario() -> None:
        leader = Leader(MemoryStore(MemoryObjects()))
        await leader.lead()
        await leader.look()
        first = leader.service.durable_header()
        leader.wall_ms += 2 * DAY_MS
        await leader.look()
        head = leader.service.durable_header()
        assert (head.doubts_clock, head.ahead_s, head.time_ms) == (True, 2 * 86_400, first.time_ms)
        findings = [each async for each in check_log(leader.store) if each.check == "clock"]
        assert "has stepped by 172800 s" in findings[0].seen
        leader.passes(5_000)
        await leader.look()
        assert leader.service.durable_header() == head, "an idle leader shows it once"
        await write_accepted(leader.store, accepted_of(first))
        await leader.look()
        assert leader.service.moment().doubted, "that was accepted before the step"
        await write_accepted(leader.store, accepted_of(head))
        await leader.look()
        assert leader.service.durable_header().time_ms == leader.wall_ms
        assert not leader.service.durable_header().doubts_clock
        await leader.look()
        assert [record.booted_ms for record in (await read_accepted(leader.store)).values()] == [
            accepted_of(first).booted_ms
        ], "what was followed is removed"

    asyncio.run(scenario())


def test_the_doubt_and_its_acceptance_outlast_a_restart() -> None:
    async def scenario() -> None:
        leader = Leader(MemoryStore(MemoryObjects()))
        await leader.lead()
        leader.wall_ms += 2 * DAY_MS
        await leader.look()
        await leader.service.close()
        leader.passes(1_000)
        await leader.lead()
        assert leader.service.claim.doubts_clock
        await write_accepted(leader.store, accepted_of(leader.service.claim))
        await leader.look()
        assert not leader.service.moment().doubted

    asyncio.run(scenario())


@pytest.mark.parametrize(("created_ms", "accepted"), [(EPOCH_MS + 2 * DAY_MS, True), (EPOCH_MS, False)])
def test_the_stores_clock_accepts_a_step_that_it_agrees_with(created_ms: int, accepted: bool) -> None:
    async def scenario() -> None:
        store = ClockedStore(MemoryObjects())
        leader = Leader(store)
        await leader.lead()
        leader.wall_ms += 2 * DAY_MS
        store.created_ms = created_ms + 30_000
        await leader.look()
        assert leader.service.moment().doubted is not accepted
        assert not store.objects.list("probe/"), "nothing is left"
        assert not store.objects.list(PREFIX)

    asyncio.run(scenario())


def test_the_stores_clock_accepts_no_step_that_comes_after_the_question() -> None:
    async def scenario() -> None:
        store = ClockedStore(MemoryObjects())
        leader = Leader(store)
        await leader.lead()
        leader.wall_ms += 2 * DAY_MS
        store.created_ms = EPOCH_MS + 2 * DAY_MS + 30_000
        listed = store.list

        async def list_late(*words: Any, **named: Any) -> Any:
            rows = await listed(*words, **named)
            leader.wall_ms = EPOCH_MS + 30 * DAY_MS
            return rows

        vars(store)["list"] = list_late
        await leader.look()
        assert leader.service.moment().doubted
        assert leader.service.moment().time_ms < EPOCH_MS + 3 * DAY_MS

    asyncio.run(scenario())


def test_a_store_without_a_clock_says_nothing() -> None:
    assert asyncio.run(compare_with_store(MemoryStore(MemoryObjects()), lambda: Instant(0.0, 0))) is None


@pytest.mark.parametrize("wrong_ms", [-400 * DAY_MS, -70_000, 0, 70_000, DAY_MS])
def test_the_comparison_says_at_least_how_far_the_clock_is_off(wrong_ms: int) -> None:
    store = ClockedStore(MemoryObjects())
    compared = asyncio.run(compare_with_store(store, lambda: Instant(5_000.0, EPOCH_MS + wrong_ms)))
    assert compared is not None
    assert abs(compared.ahead_ms - wrong_ms) <= 1_000
    assert abs(compared.ahead_ms) <= abs(wrong_ms)
    assert compared.booted_ms == EPOCH_MS + wrong_ms - 5_000 - compared.ahead_ms


@pytest.mark.parametrize(("ahead_ms", "stepped_ms", "believed"), [
    (0, 0, True), (59_000, 0, True), (61_000, 0, False), (-DAY_MS, 0, False), (None, 0, True),
    (0, 2 * DAY_MS, False), (2 * DAY_MS, -2 * DAY_MS, True),
])  # fmt: skip
def test_a_claim_believes_no_clock_that_the_store_contradicts(
    ahead_ms: int | None, stepped_ms: int, believed: bool
) -> None:
    """A step after the question counts, too: a standby claims long after it has asked."""
    before = replace(genesis(), time_ms=EPOCH_MS - DAY_MS, scope=AddressScope(b"b" * 16))
    who = replace(identity("b"), scope=AddressScope(b"c" * 16))
    steps = TakeoverMachine(who, LOG_ID, TakeoverRules(take_over=True))
    steps.begin(Instant(0.0, EPOCH_MS))
    (wanted,) = steps.step(m.PageListed(Instant(0.0, EPOCH_MS), rows(before)))
    assert isinstance(wanted, m.ReadHeaders)
    assert steps.step(m.HeadersRead(Instant(0.0, EPOCH_MS), bytes_of(before))) == []
    booted_ms = None if ahead_ms is None else EPOCH_MS - 1 - ahead_ms
    (claim,) = steps.step(m.Probed(Instant(2.0, EPOCH_MS + stepped_ms), None, booted_ms))
    assert isinstance(claim, m.SendClaim)
    now = Instant(2.0, EPOCH_MS + stepped_ms)
    header = decode_header(claim.data, slot=claim.slot)
    assert header.doubts_clock is not believed
    assert header.time_ms == (max(now.wall_ms, before.time_ms) if believed else before.time_ms)


class SlowStore(MemoryStore):
    """A store whose every answer takes a second of a clock."""

    def __init__(self, objects: MemoryObjects) -> None:
        super().__init__(objects, url="s3://bucket/log")
        self.leader = Leader(self)

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        self.leader.passes(1_000)
        return await super().read(key, start=start, length=length)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> builtins.list[Listed]:
        self.leader.passes(1_000)
        return await super().list(prefix, after=after, limit=limit)


@pytest.mark.parametrize("request_", [
    m.ListPage(10), m.ReadHeaders((FIRST_SLOT,)), m.Look(1, LeaderId(b"a" * 16)),
    m.ReadHeader(FIRST_SLOT), None,
], ids=lambda request: "the probe's" if request is None else type(request).__name__)  # fmt: skip
def test_an_answer_on_the_way_to_a_claim_has_the_time_at_which_it_is_taken(request_: m.Request | None) -> None:
    """A claim has the time of the last answer. What passed before would count as lived after it."""

    async def scenario() -> None:
        store = SlowStore(MemoryObjects())
        store.objects.create(object_name(FIRST_SLOT), bytes_of(genesis())[FIRST_SLOT])
        machine = TakeoverMachine(identity("b"), LOG_ID, TakeoverRules())
        driver = Driver(store, machine, TakeoverOptions(), store.leader.now)
        if request_ is None:
            driver._probing = asyncio.ensure_future(driver._probe())
            await asyncio.wait({driver._probing})
            store.leader.passes(3_600_000)
        event = await driver._next_event(request_)
        assert event.now == store.leader.now()

    asyncio.run(scenario())
