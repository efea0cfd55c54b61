"""A repaired log has every transaction that can be read, in order, and names every other one."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from random import Random

import pytest
from tests.unit.copies.test_copies import Source, batches_of, transactions

from holdfast.commit.format.batch import Header, Kind, object_name
from holdfast.commit.format.chain import ChainWalker
from holdfast.commit.reading.lineage import lineage_of
from holdfast.commit.reading.reader import find_frontier, follow
from holdfast.commit.reading.survey import verify_log
from holdfast.copies.mirroring import Mirror, MirrorOptions
from holdfast.copies.repairing import look, repair
from holdfast.errors import InvalidRequest, NotFound
from holdfast.objects.memory import MemoryObjects, MemoryStore
from holdfast.values import Slot


async def headers_of(source: Source) -> list[Header]:
    async with aclosing(follow(source.store, ChainWalker())) as batches:
        return [batch.header async for batch in batches]


def damage(source: Source, slot: Slot, how: str) -> None:
    name = object_name(slot)
    data = bytearray(source.objects.read(name))
    source.objects.delete(name)
    match how:
        case "missing":
            return
        case "header":
            data[100] ^= 1
        case "body":
            data[600] ^= 1
        case _:
            data = data[: len(data) // 2]
    source.objects.create(name, bytes(data))


@pytest.mark.parametrize("how", ["missing", "header", "body", "short"])
@pytest.mark.parametrize("seed", range(6))
def test_exactly_the_unreadable_transactions_are_cut_out_and_named(seed: int, how: str) -> None:
    async def main() -> None:
        draw = Random(seed * 7 + len(how))
        source = Source(seed, 25)
        whole = await transactions(source.store)
        headers = [header for header in await headers_of(source) if header.kind is Kind.DATA]
        chosen = draw.sample(headers[1:-1], draw.choice((1, 1, 2, 4)))
        if draw.random() < 0.5:
            chosen = headers[5:8]
        for header in chosen:
            damage(source, header.slot, how)
        before = batches_of(source.store)
        copy = MemoryStore(MemoryObjects())
        repaired = await repair(source.store, copy)
        assert batches_of(source.store) == before, "the source is only read"
        named = {damage.slot for damage in repaired.damage}
        assert named == {f"{header.slot:020d}" for header in chosen}
        lost = [(header.first_version, header.last_version) for header in chosen]
        readable = [txn for txn in whole if not any(low <= txn.version <= high for low, high in lost)]
        cut = min(header.prev_version for header in chosen)
        found = await transactions(copy)
        assert [txn.operations for txn in found] == [txn.operations for txn in readable]
        assert [txn for txn in found if txn.version <= repaired.version] == [t for t in readable if t.version <= cut]
        assert repaired.appended == len([txn for txn in readable if txn.version > cut])
        assert min(txn.version for txn in found[-repaired.appended :]) > repaired.version + 10**9
        await verify_log(copy)
        frontier = await find_frontier(copy)
        assert frontier is not None
        lineage = await lineage_of(copy, frontier[1])
        assert lineage.holds(source.log.log_id, cut)
        with pytest.raises(InvalidRequest):
            lineage.require(source.log.log_id, max(high for _, high in lost))

    asyncio.run(main())


def test_a_backup_gives_what_is_damaged_and_nothing_is_lost() -> None:
    async def main() -> None:
        source, backup, copy = Source(), MemoryStore(MemoryObjects()), MemoryStore(MemoryObjects())
        await Mirror(source.store, backup, MirrorOptions()).run()
        whole = await transactions(source.store)
        for header in [each for each in await headers_of(source) if each.kind is Kind.DATA][3:9:2]:
            damage(source, header.slot, "body")
        found = await look(source.store, backup)
        assert all(each.from_backup for each in found.damage)
        assert len(found.damage) == 3
        repaired = await repair(source.store, copy, backup)
        assert repaired.appended == 0
        assert await transactions(copy) == whole
        await verify_log(copy)

    asyncio.run(main())


@pytest.mark.parametrize("how", ["missing", "header"])
def test_a_damaged_claim_loses_no_transaction(how: str) -> None:
    async def main() -> None:
        source = Source(seed=5, batches=40)
        whole = await transactions(source.store)
        claims = [header for header in await headers_of(source) if header.kind is Kind.CLAIM]
        damage(source, claims[2].slot, how)
        copy = MemoryStore(MemoryObjects())
        repaired = await repair(source.store, copy)
        assert [each.lost_through for each in repaired.damage] == [None]
        assert [txn.operations for txn in await transactions(copy)] == [txn.operations for txn in whole]
        await verify_log(copy)

    asyncio.run(main())


def test_an_intact_log_has_no_damage_and_orphans_stay_dead() -> None:
    async def main() -> None:
        source = Source()
        # As a crash leaves it: a slot that never landed, and batches after it that nobody acknowledged.
        headers = await headers_of(source)
        source.log.grow(3)
        newest = await headers_of(source)
        orphans = newest[len(headers) :]
        source.objects.delete(object_name(orphans[0].slot))
        for number, header in enumerate(orphans[1:], start=1):
            assert header.kind is Kind.DATA, "this seed has batches and no claim at its end"
            data = source.objects.read(object_name(header.slot))
            source.objects.delete(object_name(header.slot))
            from dataclasses import replace

            from holdfast.commit.format.batch import body_bytes, encode_object

            body = bytes(body_bytes(data, header))
            source.objects.create(
                object_name(header.slot), encode_object(replace(header, durable=headers[-1].slot), body)
            )
            assert number
        found = await look(source.store)
        assert not found.damage
        assert found.objects == len(headers)

    asyncio.run(main())


def test_a_truncated_log_is_repaired_from_its_snapshot_on() -> None:
    async def main() -> None:
        source = Source(batches=40)
        await source.truncate(source.versions[len(source.versions) // 2])
        source.log.grow(10)
        data = [row.key for row in source.objects.list("batches/", limit=10**6) if row.size > 512]
        assert not (await look(source.store)).damage
        damage(source, Slot(int(data[3][-20:])), "body")
        copy = MemoryStore(MemoryObjects())
        repaired = await repair(source.store, copy)
        assert len(repaired.damage) == 1
        await verify_log(copy)
        damage(source, Slot(int(data[-1][-20:])), "body")
        with pytest.raises(NotFound, match="no whole snapshot is left"):
            await repair(source.store, MemoryStore(MemoryObjects()))
        with pytest.raises(InvalidRequest, match="empty prefix"):
            await repair(source.store, copy)

    asyncio.run(main())
