"""A restore equals its source cut at a point, a mirror equals its source, and a promoted mirror is another log."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from random import Random

import pytest
from tests.unit.commit.builders import record, stored
from tests.unit.snapshots.logs import RandomLog

from holdfast.commit.format.batch import FIRST_SLOT, PREFIX, Kind, LoggedTransaction, object_name
from holdfast.commit.format.chain import ChainWalker
from holdfast.commit.leadership.claims import Identity
from holdfast.commit.leadership.role import PROMOTED_KEY, ROLE_KEY, Promoted, encode_record
from holdfast.commit.leadership.takeover import TakeoverOptions, take_the_lead
from holdfast.commit.reading.lineage import lineage_of
from holdfast.commit.reading.reader import find_frontier, find_header, follow
from holdfast.commit.reading.survey import verify_log, walker_after
from holdfast.copies.mirroring import Mirror, MirrorOptions
from holdfast.copies.promoting import promote, retire
from holdfast.copies.restoring import Point, restore
from holdfast.errors import Closed, Code, CorruptData, HoldfastError, InvalidRequest, NotFound
from holdfast.objects.memory import MemoryObjects, MemoryStore
from holdfast.retention.generations import Generations
from holdfast.retention.policies import Content, Hold, Policy, set_hold, set_policy
from holdfast.snapshots import list_snapshots, make_snapshot
from holdfast.values import LeaderId, LogId, Slot, Version

WHO = Identity(LeaderId(b"l" * 16), b"s" * 32, "")
FORCED = TakeoverOptions(take_over=True, probe=False)


class Source:
    """A small log with several leaders, its transactions, and how to truncate it."""

    def __init__(self, seed: int = 3, batches: int = 30) -> None:
        self.objects = MemoryObjects()
        self.store = MemoryStore(self.objects)
        self.log = RandomLog(Random(seed), self.objects)
        self.log.grow(batches)

    @property
    def versions(self) -> list[int]:
        return [version for version, _ in self.log.transactions]

    async def truncate(self, through: int) -> None:
        """As a leader does: a snapshot, a batch that says so, and the older data objects go."""
        await make_snapshot(self.store)
        head = record(self.log.head, self.log.claim, truncated_through=Version(through))
        self.objects.create(object_name(head.slot), stored(head))
        self.log.head = head
        async with aclosing(follow(self.store, ChainWalker())) as batches:
            old = [each.header async for each in batches]
        for header in old:
            if header.kind is not Kind.CLAIM and header.last_version <= through:
                self.objects.delete(object_name(header.slot))


async def transactions(store: MemoryStore, after: int = 0) -> list[LoggedTransaction]:
    walker = (await walker_after(store, after))[0] if after else ChainWalker()
    async with aclosing(follow(store, walker)) as batches:
        return [txn async for batch in batches for txn in batch.transactions() if txn.version > after]


def batches_of(store: MemoryStore) -> dict[str, bytes]:
    return {row.key: store.objects.read(row.key) for row in store.objects.list(PREFIX, limit=10**6)}


@pytest.mark.parametrize("seed", range(4))
def test_a_restore_equals_the_stream_cut_at_each_version(seed: int) -> None:
    async def main() -> None:
        source = Source(seed, 12)
        whole = await transactions(source.store)
        ends = [source.versions[0] - 1, *source.versions, source.log.head.last_version]
        for version in ends:
            copy = MemoryStore(MemoryObjects())
            restored = await restore(source.store, copy, Point(version=version))
            assert await transactions(copy) == [txn for txn in whole if txn.version <= version]
            assert restored.log_id != restored.source_log_id == source.log.log_id
            assert restored.base - restored.version >= 10**9, "versions of two histories are far apart"
            assert await restore(source.store, copy, Point()) == restored, "a rerun changes nothing"
            led = await take_the_lead(copy, WHO, LogId(bytes(16)), FORCED)
            assert led.claim.log_id.hex() == restored.log_id, "what was restored is a log like any other"

    asyncio.run(main())


def test_a_restore_at_a_time_ends_with_the_last_object_of_that_time() -> None:
    async def main() -> None:
        source = Source()
        async with aclosing(follow(source.store, ChainWalker())) as batches:
            headers = [batch.header async for batch in batches]
        for header in headers[1::5]:
            copy = MemoryStore(MemoryObjects())
            restored = await restore(source.store, copy, Point(time_ms=header.time_ms))
            last = [each for each in headers if each.time_ms <= header.time_ms][-1]
            assert restored.version == last.last_version
        with pytest.raises(NotFound, match="so old"):
            await restore(source.store, MemoryStore(MemoryObjects()), Point(time_ms=headers[0].time_ms - 1))

    asyncio.run(main())


def test_a_restore_of_a_truncated_log_needs_a_snapshot_before_its_point() -> None:
    async def main() -> None:
        source = Source()
        through = source.versions[len(source.versions) // 2]
        await source.truncate(through)
        snapshot = (await list_snapshots(source.store))[-1]
        with pytest.raises(NotFound, match=f"oldest={snapshot.version}") as caught:
            await restore(source.store, MemoryStore(MemoryObjects()), Point(version=through + 1))
        assert caught.value.code is Code.LOG_TRUNCATED
        copy = MemoryStore(MemoryObjects())
        # The point is before the batch that says what was truncated: the fork claim has to say it.
        restored = await restore(source.store, copy, Point(version=snapshot.version))
        frontier = await find_frontier(copy)
        assert frontier is not None
        assert frontier[0].truncated_through >= through - 1
        assert restored.snapshots == 1
        kept = [txn for txn in await transactions(source.store, through) if txn.version <= snapshot.version]
        assert await transactions(copy, frontier[0].truncated_through) == kept
        rows = [row.size for row in copy.objects.list(PREFIX, limit=10**6)]
        claims = [row for row in source.objects.list(PREFIX, limit=10**6) if row.size == 512]
        assert rows.count(512) == len(claims) + 1, "every claim is there, and the fork's"

    asyncio.run(main())


def test_a_restore_takes_policies_and_no_holds() -> None:
    async def main() -> None:
        source = Source()
        generations = Generations(source.store, lambda: 1_000)
        await generations.change(set_policy("audit", Policy(max_age_seconds=60.0), head=10**12), "test")
        hold = Hold(from_version=source.versions[0], lasts_ms=10**15)
        await generations.change(set_hold("reader", hold), "test")
        copy = MemoryStore(MemoryObjects())
        await restore(source.store, copy, Point())
        content = Content.of(await Generations(copy, lambda: 1_000).newest())
        assert content.policies == {"audit": Policy(max_age_seconds=60.0)}
        assert not content.holds

    asyncio.run(main())


def test_bad_points_and_places_are_refused_and_nothing_is_written() -> None:
    async def main() -> None:
        source = Source()
        copy = MemoryStore(MemoryObjects())
        with pytest.raises(InvalidRequest, match="has not reached") as caught:
            await restore(source.store, copy, Point(version=source.log.head.last_version + 1))
        assert caught.value.code is Code.FUTURE_VERSION
        with pytest.raises(NotFound, match="source is empty"):
            await restore(copy, source.store, Point())
        assert not copy.objects.list("", limit=1)
        other = Source(seed=9)
        before = batches_of(other.store)
        for work in (
            restore(source.store, other.store, Point()),
            Mirror(source.store, other.store, MirrorOptions()).run(),
        ):
            with pytest.raises(InvalidRequest, match="empty prefix"):
                await work
        assert batches_of(other.store) == before
        await restore(source.store, copy, Point(version=source.versions[3]))
        with pytest.raises(InvalidRequest, match="another point"):
            await restore(source.store, copy, Point(version=source.versions[2]))
        with pytest.raises(InvalidRequest, match="a restored log"):
            await Mirror(source.store, copy, MirrorOptions()).run()
        with pytest.raises(InvalidRequest, match="only a mirror"):
            await promote(copy)

    asyncio.run(main())


def test_a_mirror_equals_its_source_and_grows_with_it() -> None:
    async def main() -> None:
        source, copy = Source(), MemoryStore(MemoryObjects())
        mirror = Mirror(source.store, copy, MirrorOptions())
        for _ in range(5):
            mirrored = await mirror.run()
            assert mirrored.version == source.log.head.last_version
            assert mirrored.lag_versions == mirrored.lag_bytes == 0
            assert batches_of(copy) == batches_of(source.store)
            source.log.grow(4)

    asyncio.run(main())


def test_nobody_leads_a_mirror_and_its_promotion_makes_another_log() -> None:
    async def main() -> None:
        source, copy = Source(), MemoryStore(MemoryObjects())
        await Mirror(source.store, copy, MirrorOptions()).run()
        with pytest.raises(Closed, match="a mirror") as caught:
            await take_the_lead(copy, WHO, LogId(bytes(16)), FORCED)
        assert caught.value.code is Code.NOT_PROMOTED
        promoted = await promote(copy)
        assert promoted == await promote(copy), "a rerun changes nothing"
        assert promoted.version == source.log.head.last_version
        source.log.grow(3)
        with pytest.raises(Closed, match="was promoted") as late:
            await Mirror(source.store, copy, MirrorOptions()).run()
        assert late.value.code is Code.LOG_MISMATCH
        frontier = await find_frontier(copy)
        assert frontier is not None
        lineage = await lineage_of(copy, frontier[1])
        assert lineage.log_id == promoted.log_id
        assert lineage.forked_at == {source.log.log_id: promoted.version}
        lineage.require(source.log.log_id, promoted.version)
        with pytest.raises(InvalidRequest) as forked:
            lineage.require(source.log.log_id, promoted.version + 1)
        assert forked.value.code is Code.ROLLED_BACK
        assert forked.value.fields["roll_back_to"] == promoted.version
        with pytest.raises(InvalidRequest) as foreign:
            lineage.require("00" * 16, 1)
        assert foreign.value.code is Code.LOG_MISMATCH
        own = await find_frontier(source.store)
        assert own is not None
        parents = await lineage_of(source.store, own[1])
        with pytest.raises(InvalidRequest, match="another log"):
            parents.require(promoted.log_id, 1)

    asyncio.run(main())


def test_a_promotion_that_was_killed_before_its_claim_is_finished_by_the_first_leader() -> None:
    async def main() -> None:
        source, copy = Source(), MemoryStore(MemoryObjects())
        await Mirror(source.store, copy, MirrorOptions()).run()
        wanted = "5e" * 16
        copy.objects.create(PROMOTED_KEY, encode_record(Promoted(log_id=wanted)))
        led = await take_the_lead(copy, WHO, LogId(bytes(16)), TakeoverOptions(probe=False))
        assert led.claim.log_id.hex() == wanted
        assert led.claim.forked_at == source.log.head.last_version
        assert (await promote(copy)).log_id == wanted
        await verify_log(copy)

    asyncio.run(main())


def test_a_retired_log_is_led_by_nobody_and_its_mirror_has_all_of_it() -> None:
    async def main() -> None:
        source, copy = Source(), MemoryStore(MemoryObjects())
        await Mirror(source.store, copy, MirrorOptions()).run()
        source.log.grow(5)
        last = await retire(source.store)
        assert await retire(source.store) == last
        with pytest.raises(Closed) as caught:
            await take_the_lead(source.store, WHO, LogId(bytes(16)), FORCED)
        assert caught.value.code is Code.LOG_RETIRED
        mirrored = await Mirror(source.store, copy, MirrorOptions(follow=True)).run()
        assert mirrored.retired
        promoted = await promote(copy)
        assert promoted.version == source.log.head.last_version
        assert await transactions(copy) == await transactions(source.store)
        await verify_log(source.store)

    asyncio.run(main())


def test_a_mirror_truncates_behind_a_snapshot_of_its_own_and_says_when_it_came_too_late() -> None:
    async def main() -> None:
        source, copy, late = Source(), MemoryStore(MemoryObjects()), MemoryStore(MemoryObjects())
        await Mirror(source.store, copy, MirrorOptions()).run()
        await Mirror(source.store, late, MirrorOptions()).run()
        source.log.grow(1_100)
        await Mirror(source.store, copy, MirrorOptions()).run()
        await source.truncate(source.versions[-40])
        source.log.grow(2)
        await Mirror(source.store, copy, MirrorOptions()).run()
        assert batches_of(copy).keys() <= batches_of(source.store).keys() | batches_of(copy).keys()
        assert len(batches_of(copy)) < 1_300, "what the source removed is removed here, W objects apart"
        assert await list_snapshots(copy)
        await verify_log(copy)
        with pytest.raises(NotFound, match="not copied yet") as caught:
            await Mirror(source.store, late, MirrorOptions()).run()
        assert caught.value.code is Code.LOG_TRUNCATED
        young = MemoryStore(MemoryObjects())
        mirrored = await Mirror(source.store, young, MirrorOptions()).run()
        assert mirrored.version == source.log.head.last_version
        await verify_log(young)
        assert (await promote(young)).version == mirrored.version

    asyncio.run(main())


def test_a_mirror_that_came_too_late_is_told_so_where_a_late_object_took_the_place() -> None:
    """A create of a deposed leader lands in the slot of the mirror's newest object, which retention had emptied."""

    async def main() -> None:
        source, copy = Source(), MemoryStore(MemoryObjects())
        await Mirror(source.store, copy, MirrorOptions()).run()
        frontier = await find_frontier(copy)
        assert frontier is not None
        head = frontier[0] if frontier[0].kind is Kind.CLAIM else await find_header(copy, frontier[0].prev)
        assert head is not None
        source.log.grow(1_100)
        await source.truncate(source.versions[-40])
        source.objects.delete(object_name(head.slot))
        late = replace(head, kind=Kind.DATA, leader_id=LeaderId(b"z" * 16), nonce=b"z" * 16, transactions=0)
        source.objects.create(object_name(head.slot), stored(late))
        with pytest.raises(NotFound) as caught:
            await Mirror(source.store, copy, MirrorOptions()).run()
        assert caught.value.code is Code.LOG_TRUNCATED

    asyncio.run(main())


def test_a_mirror_that_follows_holds_what_it_lacks_where_something_truncates() -> None:
    async def main() -> None:
        source, copies = Source(), [MemoryStore(MemoryObjects(), url=f"memory:copy-{number}") for number in range(2)]
        generations = Generations(source.store, lambda: 1_000)
        following = MirrorOptions(follow=True)
        await Mirror(source.store, copies[0], following).round()
        assert await generations.newest() is None, "without a policy nothing is truncated, and nothing has to be held"
        await generations.change(set_policy("p", Policy(max_age_seconds=60.0), head=10**12), "test")
        for copy in copies:
            await Mirror(source.store, copy, MirrorOptions()).round()
        assert not Content.of(await generations.newest()).holds, "a mirror that does not follow holds nothing"
        for copy in copies:
            await Mirror(source.store, copy, following).round()
        holds = Content.of(await generations.newest()).holds
        assert [hold.from_version for hold in holds.values()] == [source.log.head.last_version] * 2

    asyncio.run(main())


def test_a_hole_in_the_source_ends_a_mirror_with_its_name() -> None:
    async def main() -> None:
        source, copy = Source(), MemoryStore(MemoryObjects())
        async with aclosing(follow(source.store, ChainWalker())) as batches:
            slots = [batch.header.slot async for batch in batches if batch.header.kind is Kind.DATA]
        source.objects.delete(object_name(slots[len(slots) // 2]))
        with pytest.raises(HoldfastError):
            await Mirror(source.store, copy, MirrorOptions()).run()

    asyncio.run(main())


def test_damaged_records_are_named() -> None:
    async def main() -> None:
        source, copy = Source(), MemoryStore(MemoryObjects())
        await Mirror(source.store, copy, MirrorOptions()).run()
        copy.objects.delete(ROLE_KEY)
        copy.objects.create(ROLE_KEY, b"{")
        with pytest.raises(CorruptData, match=ROLE_KEY):
            await take_the_lead(copy, WHO, LogId(bytes(16)), FORCED)

    asyncio.run(main())


def test_a_late_object_of_another_leader_below_a_truncation_is_passed_over() -> None:
    """It lands in the slot that the claim after it names as its predecessor, which retention had emptied."""

    async def main() -> None:
        source = Source(seed=5, batches=60)
        async with aclosing(follow(source.store, ChainWalker())) as batches:
            headers = [batch.header async for batch in batches]
        claims = [header for header in headers if header.kind is Kind.CLAIM and header.epoch > 2]
        claim = claims[-1]
        before = next(header for header in headers if header.slot == claim.prev)
        await source.truncate(claim.last_version)
        if before.kind is Kind.DATA:
            foreign = replace(before, epoch=before.epoch - 1, leader_id=LeaderId(b"z" * 16), nonce=b"z" * 16)
            source.objects.create(object_name(Slot(claim.prev)), stored(replace(foreign, transactions=0)))
        await verify_log(source.store)
        assert claim.slot != FIRST_SLOT

    asyncio.run(main())


def test_the_command_line_says_which_points_it_takes() -> None:
    from holdfast.cli.log_copies import point_of

    assert point_of("2026-11-27T09:30:00+01:00") == Point(time_ms=1_795_768_200_000)
    for wrong in ("yesterday", "2026-11-27T09:30:00", "-7"):
        with pytest.raises(InvalidRequest, match="with its zone"):
            point_of(wrong)


def test_a_verification_says_what_it_did_not_read() -> None:
    async def main() -> None:
        source = Source()
        versions = source.versions
        assert (await verify_log(source.store)).truncated_through == 0
        through, last = versions[len(versions) // 2], source.log.head.last_version
        await source.truncate(through)
        assert (await verify_log(source.store)).truncated_through == through
        assert (await verify_log(source.store, through=last)).truncated_through == through
        assert (await verify_log(source.store, after=through, through=last)).truncated_through == 0
        for after, end in ((versions[0], None), (versions[0], last), (0, versions[1]), (versions[0], versions[1])):
            with pytest.raises(NotFound) as caught:
                await verify_log(source.store, after=after, through=end)
            assert caught.value.code is Code.LOG_TRUNCATED
            assert caught.value.fields["truncated_through"] == through

    asyncio.run(main())


def test_a_verification_of_a_range_finds_a_missing_object_in_it() -> None:
    async def main() -> None:
        source = Source()
        async with aclosing(follow(source.store, ChainWalker())) as batches:
            headers = [batch.header async for batch in batches]
        missing = next(each for each in headers[6:] if each.kind is not Kind.CLAIM)
        source.objects.delete(object_name(missing.slot))
        with pytest.raises(CorruptData, match="missing"):
            await verify_log(source.store, after=headers[3].last_version, through=missing.last_version)

    asyncio.run(main())
