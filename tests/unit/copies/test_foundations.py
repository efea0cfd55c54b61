"""A copy that can be led has its whole state: whatever is damaged, removed or replaced while it is made, or before."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Awaitable, Callable

import pytest
from tests.unit.commit.builders import record, stored
from tests.unit.copies.test_copies import FORCED, WHO, Source

from holdfast.commit.format.batch import Kind, decode_header, object_name, slot_of
from holdfast.commit.leadership.role import PROMOTED_KEY, ROLE_KEY
from holdfast.commit.leadership.takeover import take_the_lead
from holdfast.commit.reading.survey import verify_log
from holdfast.copies.mirroring import Mirror, MirrorOptions
from holdfast.copies.promoting import promote
from holdfast.copies.repairing import repair
from holdfast.copies.restoring import Point, restore
from holdfast.errors import Code, CorruptData, HoldfastError, NotFound
from holdfast.objects.memory import MemoryObjects, MemoryStore
from holdfast.objects.port import CreateAnswer, Unknown
from holdfast.retention.generations import Generations
from holdfast.retention.policies import Content, Policy, set_policy
from holdfast.snapshots import list_snapshots, make_snapshot, read_rows
from holdfast.snapshots.manifest import manifest_key
from holdfast.values import LogId, Version
from holdfast.view.storage import Row


class ReadOnly(MemoryStore):
    """A store as a copier without any right to write reaches it. ``meanwhile`` runs before the n-th read."""

    def __init__(self, objects: MemoryObjects) -> None:
        super().__init__(objects, url="memory:read-only")
        self.reads = 0
        self.meanwhile: tuple[int, Callable[[], Awaitable[None]]] | None = None

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        return Unknown("access denied", final=True)

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        self.reads += 1
        if self.meanwhile is not None and self.reads >= self.meanwhile[0]:
            action, self.meanwhile = self.meanwhile[1], None
            await action()
        return await super().read(key, start=start, length=length)


class Killed(Exception):
    """The copier ends here."""


async def killed() -> None:
    raise Killed


def empty() -> MemoryStore:
    return MemoryStore(MemoryObjects(), url="memory:copy")


async def truncated(seed: int = 3) -> tuple[Source, int]:
    """A log with one snapshot, commits after it, and nothing before it. Also the version of the snapshot."""
    source = Source(seed)
    snapshot = await make_snapshot(source.store)
    source.log.grow(10)
    head = record(source.log.head, source.log.claim, truncated_through=Version(snapshot.version - 1))
    source.objects.create(object_name(head.slot), stored(head))
    source.log.head = head
    for row in source.objects.list("batches/", limit=10**6):
        header = decode_header(source.objects.read(row.key), slot=slot_of(row.key))  # type: ignore[arg-type]
        if header.kind is Kind.DATA and header.last_version < snapshot.version:
            source.objects.delete(row.key)
    source.log.grow(5)
    return source, snapshot.version


def parts_of(store: MemoryStore, version: int) -> builtins.list[str]:
    folder = manifest_key(version).rpartition("/")[0]
    return [row.key for row in store.objects.list(folder) if row.key.endswith(".parquet")]


def flip(store: MemoryStore, key: str, at: int = 100) -> None:
    data = bytearray(store.objects.read(key))
    data[at] ^= 1
    store.objects.delete(key)
    store.objects.create(key, bytes(data))


async def state_of(store: MemoryStore, version: int) -> builtins.list[Row]:
    """The state that a reader finds at a version. Raises what a reader meets."""
    manifest = await make_snapshot(store, at=version)
    return [row async for rows in read_rows(store, manifest) for row in rows]


async def jobs_of(store: MemoryStore, version: int) -> builtins.list[Row]:
    """The records of jobs that a reader finds at a version."""
    manifest = await make_snapshot(store, at=version)
    return [row async for rows in read_rows(store, manifest, manifest.jobs) for row in rows]


async def replace_snapshot(source: Source, version: int) -> None:
    """As a leader does: a newer snapshot, and then the old one goes."""
    await make_snapshot(source.store)
    parts = parts_of(source.store, version)
    source.objects.delete(manifest_key(version))
    for part in parts:
        source.objects.delete(part)


def damage(store: MemoryStore, snapshot: int, how: str) -> None:
    objects, part = store.objects, parts_of(store, snapshot)[0]
    match how:
        case "flipped":
            flip(store, part)
        case "missing part":
            objects.delete(part)
        case "missing manifest":
            objects.delete(manifest_key(snapshot))
        case _:
            data = objects.read(part)
            objects.delete(part)
            objects.create(part, data[:-1])


DAMAGE = ["flipped", "missing part", "missing manifest", "short"]


@pytest.mark.parametrize("how", DAMAGE)
def test_no_copy_of_a_truncated_log_ends_without_its_state(how: str) -> None:
    async def main() -> None:
        source, snapshot = await truncated()
        damage(source.store, snapshot, how)
        for copying in (
            lambda copy: restore(source.store, copy, Point()),
            lambda copy: Mirror(source.store, copy, MirrorOptions()).run(),
            lambda copy: repair(source.store, copy),
        ):
            copy = empty()
            with pytest.raises((CorruptData, NotFound)) as caught:
                await copying(copy)
            assert caught.value.code in (Code.CORRUPT_LOG, Code.LOG_TRUNCATED)
            assert str(snapshot) in str(caught.value) or how == "missing manifest", "it names the snapshot"
            assert not copy.objects.list(PROMOTED_KEY), "nobody may lead it"

    asyncio.run(main())


@pytest.mark.parametrize("how", DAMAGE)
def test_a_mirror_that_lost_its_foundation_is_not_promoted(how: str) -> None:
    async def main() -> None:
        source, snapshot = await truncated()
        copy = empty()
        await Mirror(source.store, copy, MirrorOptions()).run()
        damage(copy, snapshot, how)
        with pytest.raises((CorruptData, NotFound)):
            await promote(copy)
        assert not copy.objects.list(PROMOTED_KEY), "nobody may lead it"
        try:
            mirrored = await Mirror(source.store, copy, MirrorOptions()).run()
        except CorruptData:
            return
        assert await state_of(copy, mirrored.version) == source.log.state(mirrored.version)
        assert await jobs_of(copy, mirrored.version) == source.log.jobs(mirrored.version)

    asyncio.run(main())


def refused(error: HoldfastError, copy: MemoryStore) -> None:
    assert error.code in (Code.LOG_TRUNCATED, Code.CORRUPT_LOG)
    assert not copy.objects.list(PROMOTED_KEY), "nobody may lead it"


@pytest.mark.parametrize("read", [1, 5, 9, 15, 25, 40, 60])
def test_a_source_that_replaces_its_snapshot_meanwhile_gives_a_whole_copy_or_none(read: int) -> None:
    async def main() -> None:
        for kind in ("restore", "mirror", "repair"):
            source, snapshot = await truncated()
            store, copy = ReadOnly(source.objects), empty()

            async def replaces(source: Source = source, snapshot: int = snapshot) -> None:
                source.log.grow(3)
                await replace_snapshot(source, snapshot)

            store.meanwhile = (read, replaces)
            try:
                match kind:
                    case "restore":
                        version = (await restore(store, copy, Point())).version
                    case "mirror":
                        await Mirror(store, copy, MirrorOptions()).run()
                        version = (await promote(copy)).version
                    case _:
                        version = (await repair(store, copy)).version
            except NotFound as error:
                refused(error, copy)
                continue
            assert await state_of(copy, version) == source.log.state(version)
            assert await jobs_of(copy, version) == source.log.jobs(version)

    asyncio.run(main())


def test_a_run_again_keeps_the_cut_and_is_refused_where_its_foundation_has_gone() -> None:
    async def main() -> None:
        source, snapshot = await truncated()
        store, copy = ReadOnly(source.objects), empty()
        cut = source.log.head.last_version

        store.meanwhile = (60, killed)
        with pytest.raises(Killed):
            await restore(store, copy, Point(version=cut))
        source.log.grow(4)
        with pytest.raises(HoldfastError, match="without --at"):
            await restore(store, copy, Point(version=cut + 1))
        await replace_snapshot(source, snapshot)
        with pytest.raises(NotFound) as caught:
            await restore(store, copy, Point())
        assert caught.value.code is Code.LOG_TRUNCATED
        assert not copy.objects.list(PROMOTED_KEY), "nobody may lead it"

    asyncio.run(main())


@pytest.mark.parametrize("read", [45, 52, 58])
def test_a_run_again_without_a_point_ends_at_the_cut_of_the_first_run(read: int) -> None:
    async def main() -> None:
        source, _ = await truncated()
        store, copy = ReadOnly(source.objects), empty()
        cut = source.log.head.last_version

        store.meanwhile = (read, killed)
        with pytest.raises(Killed):
            await restore(store, copy, Point())
        assert copy.objects.list(ROLE_KEY), "it was killed after its first step"
        source.log.grow(4)
        restored = await restore(store, copy, Point())
        assert restored.version == cut
        assert await state_of(copy, cut) == source.log.state(cut)
        assert await jobs_of(copy, cut) == source.log.jobs(cut)

    asyncio.run(main())


@pytest.mark.parametrize("read", [8, 16, 32, 48])
def test_a_source_that_is_truncated_meanwhile_gives_a_whole_copy_or_none(read: int) -> None:
    async def main() -> None:
        for kind in ("restore", "mirror"):
            source, store, copy = (made := Source(batches=60)), ReadOnly(made.objects), empty()
            whole = source.log.head.last_version

            async def truncates(source: Source = source) -> None:
                await source.truncate(source.versions[-2])

            store.meanwhile = (read, truncates)
            try:
                if kind == "restore":
                    version = (await restore(store, copy, Point())).version
                else:
                    await Mirror(store, copy, MirrorOptions()).run()
                    version = (await promote(copy)).version
            except (NotFound, CorruptData) as error:  # real retention does not come so near to the end
                refused(error, copy)
                continue
            assert version >= whole, "nothing that the source had is missing"
            assert await state_of(copy, version) == source.log.state(version)
            assert await jobs_of(copy, version) == source.log.jobs(version)

    asyncio.run(main())


def test_a_copy_holds_its_source_while_it_runs_and_no_longer() -> None:
    async def main() -> None:
        source, snapshot = await truncated()
        generations = Generations(source.store, lambda: 1_000)
        await generations.change(set_policy("p", Policy(max_age_seconds=60.0), head=10**12), "test")
        seen: set[str] = set()

        class Watched(MemoryStore):
            async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
                for name, hold in Content.of(await generations.newest()).holds.items():
                    if hold.snapshot == snapshot:
                        seen.add(name.partition("-")[0])
                return await super().read(key, start=start, length=length)

        watched = Watched(source.objects)
        await restore(watched, empty(), Point())
        await Mirror(watched, empty(), MirrorOptions()).run()
        await repair(watched, empty())
        assert seen == {"restore", "mirror", "repair"}
        assert not Content.of(await generations.newest()).holds

    asyncio.run(main())


def test_a_damaged_body_is_not_copied() -> None:
    async def main() -> None:
        source = Source()
        rows = [row.key for row in source.objects.list("batches/", limit=10**6) if row.size > 512]
        flip(source.store, rows[4], at=700 if source.objects.list(rows[4])[0].size > 700 else 600)
        for copying in (
            lambda copy: restore(source.store, copy, Point()),
            lambda copy: Mirror(source.store, copy, MirrorOptions()).run(),
        ):
            copy = empty()
            with pytest.raises(CorruptData):
                await copying(copy)
            assert rows[4] not in copy.objects, "a copy made before the damage is found has none of it"

    asyncio.run(main())


def test_a_mirror_has_a_whole_snapshot_before_an_object_that_truncates() -> None:
    async def main() -> None:
        source = Source(batches=40)
        told: list[str] = []

        class Judged(MemoryStore):
            async def create(self, key: str, data: bytes) -> CreateAnswer:
                slot = slot_of(key)
                if slot is not None and (through := decode_header(data, slot=slot).truncated_through):
                    assert any(each.version >= through for each in await list_snapshots(self)), "it comes first"
                    told.append(key)
                return await super().create(key, data)

        copy = Judged(url="memory:copy")
        mirror = Mirror(source.store, copy, MirrorOptions())
        await mirror.run()
        source.log.grow(5)
        await source.truncate(source.versions[-20])
        source.log.grow(5)
        # The source has no snapshot any more by the time: the mirror makes one of its own.
        for each in await list_snapshots(source.store):
            source.objects.delete(manifest_key(each.version))
        mirrored = await mirror.run()
        assert told
        assert await state_of(copy, mirrored.version) == source.log.state(mirrored.version)
        assert await jobs_of(copy, mirrored.version) == source.log.jobs(mirrored.version)
        assert (await promote(copy)).version == mirrored.version

    asyncio.run(main())


def test_a_repair_takes_a_rotten_snapshot_from_the_backup() -> None:
    async def main() -> None:
        source, snapshot = await truncated()
        backup, copy = MemoryStore(MemoryObjects(), url="memory:backup"), empty()
        await Mirror(source.store, backup, MirrorOptions()).run()
        flip(source.store, parts_of(source.store, snapshot)[0])
        with pytest.raises(CorruptData):
            await repair(source.store, empty())
        repaired = await repair(source.store, copy, backup)
        assert await state_of(copy, repaired.version) == source.log.state(repaired.version)
        assert await jobs_of(copy, repaired.version) == source.log.jobs(repaired.version)
        await verify_log(copy)
        await take_the_lead(copy, WHO, LogId(bytes(16)), FORCED)

    asyncio.run(main())
