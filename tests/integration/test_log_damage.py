"""Damage in an old batch is never silent: whatever meets it says so at the leader, and a scrub looks for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

import pytest
from tests.integration.http_harness import GatedStore, Serving, run, serving, write

from holdfast.commit.format.batch import FIRST_SLOT, HEADER_BYTES, jump, object_name
from holdfast.commit.reading.verify import OBJECT_BYTES_MIN, Scrub, ScrubPlan, requests_per_month
from holdfast.commit.service import CommitService, ServiceOptions
from holdfast.commit.subscription import subscribe
from holdfast.errors import CorruptData, HoldfastError, Unavailable
from holdfast.values import Slot

ID = "an-attempt-with-a-long-id"


class Stopped(Exception):
    """The scrub has come as far as the test wants."""


async def replace(store: GatedStore, slot: int, change: Callable[[bytes], bytes]) -> None:
    data = await store.read(object_name(slot))
    await store.delete(object_name(slot))
    await store.create(object_name(slot), change(data))


def flipped(at: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


async def write_batches(here: Serving, count: int) -> None:
    client = await here.connect()
    for _ in range(count):
        assert (await client.ask("POST", "/v1/commit", write())).status == 200


@asynccontextmanager
async def second_reign(count: int) -> AsyncIterator[Serving]:
    """A leader behind one whose reign had batches; its own history begins after them."""
    store = GatedStore()
    first = ServiceOptions(address="first", allow_new=True, probe=False)
    async with serving(store=store, options=first, view=False) as here:
        await write_batches(here, count)
        await here.service.step_down()
    async with serving(store=store, view=False) as here:
        yield here


async def pass_over(here: Serving, *, start: float = 0.0) -> tuple[Scrub, list[float]]:
    """One whole pass, and how long it would have paused."""
    pauses: list[float] = []
    size = 0

    async def pause(seconds: float) -> None:
        nonlocal size
        pauses.append(seconds)
        size = size or len(await scrub._plan())
        if len(pauses) == size:
            raise Stopped

    service = here.service
    scrub = Scrub(
        service.store, service.claim, service.durable_header, service.damage,
        days=1.0, bytes_per_second=1 << 20, start=lambda: start, pause=pause,
    )  # fmt: skip
    with pytest.raises(Stopped):
        await scrub.run()
    return scrub, pauses


@pytest.mark.parametrize("start", [0.0, 0.4, 0.99])
def test_a_scrub_finds_every_damaged_object_and_says_so_everywhere(start: float) -> None:
    async def scenario() -> None:
        async with second_reign(8) as here:
            data = jump(FIRST_SLOT)
            await replace(here.store, data, flipped(HEADER_BYTES + 3))  # a body
            await replace(here.store, data - 2, flipped(40))  # a header
            await here.store.delete(object_name(Slot(data - 4)))  # an object that has gone
            scrub, _ = await pass_over(here, start=start)
            assert here.service.damage.places == 3
            assert here.service.damage.times["scrub"] == 3
            ready = (await (await here.connect()).ask("GET", "/readyz")).json
            assert ready["ready"] is True and "slot=" in ready["damage"]
            text = here.metrics.text().decode()
            assert 'holdfast_log_damage_total{met_by="scrub"} 3.0' in text
            assert "holdfast_log_damaged_places 3.0" in text
            assert scrub.objects == len(await scrub._plan()) - 1

    run(scenario)


def test_a_whole_log_has_no_damage_and_is_read_once_and_slowly() -> None:
    async def scenario() -> None:
        async with second_reign(8) as here:
            scrub, pauses = await pass_over(here)
            listed = await here.store.list("batches/")
            assert scrub.objects == len(listed), "every object is live here"
            assert here.service.damage.places == 0
            assert (await (await here.connect()).ask("GET", "/readyz")).json["damage"] is None
            assert pauses == [86_400.0 / len(pauses)] * len(pauses), "a pass is spread over its days"

    run(scenario)


async def read_all(service: CommitService) -> None:
    async with aclosing(subscribe(service, after=FIRST_BASE)) as events:
        async for _ in events:
            pass


def test_a_stream_and_a_status_question_that_meet_damage_report_it_at_the_leader() -> None:
    async def scenario() -> None:
        async with second_reign(3) as here:
            await replace(here.store, jump(FIRST_SLOT) - 1, flipped(HEADER_BYTES + 3))
            with pytest.raises(CorruptData):
                await read_all(here.service)
            assert here.service.damage.times["stream"] == 1
            with pytest.raises(HoldfastError):
                await here.service.status(ID, FIRST_BASE)
            assert here.service.damage.times["status"] == 1
            assert here.service.damage.places == 1, "one place, met twice"

    run(scenario)


FIRST_BASE = 100_000_000


def test_a_plan_covers_every_slot_once_wherever_it_begins() -> None:
    plan = ScrubPlan.of([(Slot(500), Slot(500)), (Slot(2000), Slot(900)), (FIRST_SLOT, Slot(FIRST_SLOT - 3))])
    everything = list(plan.slots(0.0))
    assert everything[:4] == [FIRST_SLOT, FIRST_SLOT - 1, FIRST_SLOT - 2, FIRST_SLOT - 3]
    assert everything[4:6] == [2000, 1000]
    assert everything[-2:] == [900, 500]
    assert len(plan) == len(everything)
    for start in (0.01, 0.5, 0.999):
        found = list(plan.slots(start))
        assert sorted(found) == sorted(everything)
        assert found[0] == everything[int(len(plan) * start)]


def test_the_requests_of_a_scrub_are_bounded_by_its_days_and_by_its_bytes() -> None:
    assert requests_per_month(7.5, OBJECT_BYTES_MIN) == (4.0, 30 * 86_400)


def test_a_store_that_does_not_answer_is_asked_again() -> None:
    async def scenario() -> None:
        async with second_reign(2) as here:
            silent = 3
            read = here.store.read

            async def unavailable(key: str, *, start: int = 0, length: int | None = None) -> bytes:
                nonlocal silent
                if silent:
                    silent -= 1
                    raise Unavailable("no answer")
                return await read(key, start=start, length=length)

            here.store.read = unavailable  # type: ignore[method-assign]
            pauses = 0

            async def pause(_: float) -> None:
                nonlocal pauses
                pauses += 1
                if scrub.objects == 2:
                    raise Stopped
                await asyncio.sleep(0)

            service: CommitService = here.service
            scrub = Scrub(
                service.store, service.claim, service.durable_header, service.damage,
                days=1.0, bytes_per_second=1 << 20, start=lambda: 0.0, pause=pause,
            )  # fmt: skip
            with pytest.raises(Stopped):
                await scrub.run()
            assert silent == 0 and pauses == 5
            assert service.damage.places == 0

    run(scenario)
