"""A log that began in one cluster of servers is never led in another one that took its place under the same URL."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from types import ModuleType

import pytest
from tests.one_line_mutants import mutated
from tests.unit.copies.test_copies import FORCED, WHO, Source

from holdfast.commit.format.batch import FIRST_SLOT, object_name
from holdfast.commit.leadership import cluster, takeover
from holdfast.commit.leadership.cluster import key_of
from holdfast.commit.leadership.takeover import TakeoverOptions
from holdfast.copies.mirroring import Mirror, MirrorOptions
from holdfast.copies.promoting import promote
from holdfast.copies.repairing import repair
from holdfast.copies.restoring import Point, restore
from holdfast.doctor import Level, check_log
from holdfast.errors import Closed, Code, CorruptData
from holdfast.objects.memory import MemoryObjects, MemoryStore
from holdfast.objects.port import CreateAnswer
from holdfast.values import LogId

NEW = TakeoverOptions(allow_new=True, probe=False)
BEFORE, RESTORED = "00000000000000aa", "00000000000000bb"


class Cluster(MemoryStore):
    """Servers with an id. ``creates``: the names of all creates."""

    def __init__(self, objects: MemoryObjects, cluster_id: str) -> None:
        super().__init__(objects)
        self.cluster_id = cluster_id
        self.creates: list[str] = []

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        self.creates.append(key)
        return await super().create(key, data)


def restored(objects: MemoryObjects) -> Cluster:
    """Other servers, with all that is in these."""
    copy = MemoryObjects()
    for row in objects.list("", limit=10**6):
        copy.create(row.key, objects.read(row.key))
    return Cluster(copy, RESTORED)


async def begin(store: Cluster, code: ModuleType = takeover) -> None:
    await code.take_the_lead(store, WHO, LogId(b"n" * 16), NEW)


async def require_refused(attempt: Callable[[], Awaitable[object]], store: Cluster) -> None:
    before = store.objects.list("", limit=10**6)
    with pytest.raises(Closed, match=f"began_in={BEFORE} answers={RESTORED}") as caught:
        await attempt()
    assert caught.value.code is Code.CLUSTER_RESTORED
    assert "holdfast log restore" in caught.value.hint
    assert store.objects.list("", limit=10**6) == before, "nothing is written"


def order_of_a_beginning(code: ModuleType) -> list[str]:
    store = Cluster(MemoryObjects(), BEFORE)
    asyncio.run(begin(store, code))
    return store.creates


def test_the_record_comes_before_the_first_claim() -> None:
    wanted = [key_of(1), object_name(FIRST_SLOT)]
    assert order_of_a_beginning(takeover) == wanted
    first, then = (
        "                        await require_cluster(self._store, may_begin=slot == FIRST_SLOT)\n",
        "                        created = await self._store.create(object_name(slot), data)\n",
    )
    assert order_of_a_beginning(mutated(takeover, first + then, then + first)) != wanted


def test_a_log_goes_on_in_its_cluster_and_not_in_a_restored_one() -> None:
    async def scenario() -> None:
        store = Cluster(MemoryObjects(), BEFORE)
        await begin(store)
        await takeover.take_the_lead(store, WHO, LogId(bytes(16)), FORCED)
        other = restored(store.objects)
        await require_refused(lambda: takeover.take_the_lead(other, WHO, LogId(bytes(16)), FORCED), other)
        led = await restore(other, Cluster(MemoryObjects(), RESTORED), Point())
        assert led.log_id != led.source_log_id, "what the message names makes another log"

    asyncio.run(scenario())


def test_a_beginning_that_ended_after_its_record_is_refused_in_a_restored_cluster() -> None:
    async def scenario() -> None:
        store = Cluster(MemoryObjects(), BEFORE)
        await cluster.require_cluster(store, may_begin=True)
        other = restored(store.objects)
        await require_refused(lambda: begin(other), other)
        await require_refused(lambda: takeover.init_log(other, WHO, LogId(b"n" * 16)), other)
        await begin(store)

    asyncio.run(scenario())


def test_a_log_without_a_record_is_not_led_where_servers_have_an_id() -> None:
    async def scenario() -> None:
        source = Source()
        moved = Cluster(source.objects, BEFORE)
        with pytest.raises(Closed, match="an unknown one"):
            await takeover.take_the_lead(moved, WHO, LogId(bytes(16)), FORCED)
        await takeover.take_the_lead(source.store, WHO, LogId(bytes(16)), FORCED)

    asyncio.run(scenario())


def test_copies_begin_with_the_record_and_do_not_go_on_in_a_restored_cluster() -> None:
    async def scenario() -> None:
        source = Source()
        mirror = Cluster(MemoryObjects(), BEFORE)
        await Mirror(source.store, mirror, MirrorOptions()).run()
        assert mirror.creates[:2] == ["meta/role", key_of(1)]
        other = restored(mirror.objects)
        await require_refused(Mirror(source.store, other, MirrorOptions()).run, other)
        led = restored(mirror.objects)
        with pytest.raises(Closed, match="another cluster"):
            await promote(led)
        assert (await promote(mirror)).source_log_id == source.log.log_id
        await takeover.take_the_lead(mirror, WHO, LogId(bytes(16)), FORCED)

    asyncio.run(scenario())


def test_a_repaired_log_can_be_led_where_it_was_repaired() -> None:
    async def scenario() -> None:
        copy = Cluster(MemoryObjects(), BEFORE)
        await repair(Source().store, copy)
        assert copy.creates[:2] == ["meta/role", key_of(1)]
        await takeover.take_the_lead(copy, WHO, LogId(bytes(16)), FORCED)

    asyncio.run(scenario())


def test_the_doctor_names_a_cluster_that_was_restored() -> None:
    async def scenario() -> None:
        store = Cluster(MemoryObjects(), BEFORE)
        await begin(store)
        sound = [each async for each in check_log(store)]
        assert max(each.level for each in sound) < Level.ERROR
        found = [each async for each in check_log(restored(store.objects))]
        assert found[-1].level is Level.ERROR
        assert f"answers={RESTORED}" in found[-1].seen
        assert "holdfast log restore" in found[-1].fix

    asyncio.run(scenario())


def test_an_interrupted_copy_makes_up_for_the_record() -> None:
    async def scenario() -> None:
        source, copy = Source(), Cluster(MemoryObjects(), BEFORE)
        done = await restore(source.store, copy, Point())
        half = Cluster(MemoryObjects(), BEFORE)
        half.objects.create("meta/role", copy.objects.read("meta/role"))
        assert (await restore(source.store, half, Point())).log_id == done.log_id
        await takeover.take_the_lead(half, WHO, LogId(bytes(16)), FORCED)

    asyncio.run(scenario())


def test_a_flipped_byte_of_the_record_is_noticed() -> None:
    async def scenario() -> None:
        store = Cluster(MemoryObjects(), BEFORE)
        await cluster.require_cluster(store, may_begin=True)
        data = bytearray(store.objects.read(key_of(1)))
        for _ in range(20):
            flipped = bytearray(data)
            flipped[Random(7).randrange(len(data))] ^= 1
            store.objects.delete(key_of(1))
            store.objects.create(key_of(1), bytes(flipped))
            with pytest.raises(CorruptData, match="cluster"):
                await cluster.require_cluster(store)

    asyncio.run(scenario())
