"""The leader of a log removes what creates without an answer have left, and that holds nothing else back."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest
from tests.etcd_space import EtcdSpace, SpaceMembers
from tests.unit.retention.test_clock_steps import Log
from tests.worlds.log.shape import protocol_width

from holdfast.errors import Unavailable
from holdfast.objects.budget import BudgetedStore, TimeLimited
from holdfast.objects.etcd import procedures
from holdfast.objects.etcd.layout import PART_BYTES, EtcdPrefix
from holdfast.objects.etcd.store import EtcdStore
from holdfast.objects.memory import MemoryStore
from holdfast.objects.port import ObjectStore
from holdfast.objects.retrying import ANSWERING, RetryingStore

MINUTE_MS = 60_000.0


@pytest.fixture(autouse=True)
def narrow() -> Generator[None]:
    with protocol_width(2):
        yield


async def one_look(log: Log) -> None:
    """One turn of the loop that a leader runs."""
    turns = asyncio.create_task(log.truncator.run())
    await log.truncator._looked.wait()
    log.truncator._looked.clear()
    while not log.truncator._now._waiters:  # noqa: ASYNC110  # until it waits for the next look
        await asyncio.sleep(0)
    turns.cancel()
    await asyncio.gather(turns, return_exceptions=True)


def as_served(store: ObjectStore) -> ObjectStore:
    """The layers of a service around a store."""
    return RetryingStore(BudgetedStore(TimeLimited(store, 10_000), connections_max=8, creates_max=2), ANSWERING)


def test_parts_without_a_head_go_after_fifteen_minutes_of_the_leaders_boot_clock() -> None:
    async def scenario() -> None:
        space, place = EtcdSpace(), EtcdPrefix("log")
        log = Log()
        log.store = as_served(EtcdStore(SpaceMembers(space), place, "etcd://a:1/log"))
        await log.lead()
        space.carry_out(next(procedures.create(place, "snapshots/1", bytes(2 * PART_BYTES), "a" * 32)).txn)
        left = {key for key in space.now if b"a" * 32 in key}
        assert len(left) == 2
        await one_look(log)
        log.boot_ms += 14 * MINUTE_MS
        log.wall_ms += 400 * 86_400_000
        await one_look(log)
        assert left < set(space.now), "the wall clock does not count"
        log.boot_ms += MINUTE_MS
        await one_look(log)
        assert not left & set(space.now)
        await log.commit()

    asyncio.run(scenario())


class Refusing(MemoryStore):
    """A store that cannot remove leftovers."""

    calls = 0

    async def remove_leftovers(self, now_ms: float) -> None:
        self.calls += 1
        raise Unavailable("not now")


def test_a_store_that_keeps_its_leftovers_holds_back_no_look() -> None:
    async def scenario() -> None:
        log = Log()
        log.store = store = Refusing(log.objects)
        await log.lead()
        for turn in range(1, 4):
            await one_look(log)
            assert store.calls == turn

    asyncio.run(scenario())


def test_the_layers_around_a_store_say_which_cluster_it_is() -> None:
    store = MemoryStore()
    store.cluster_id = "00000000000000aa"
    assert as_served(store).cluster_id == store.cluster_id
    assert as_served(MemoryStore()).cluster_id is None
