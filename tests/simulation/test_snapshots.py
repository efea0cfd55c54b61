"""Snapshots in small worlds: makers that are killed, two at a time, on a store that loses answers, of a log that grows.

The law, after every step: each manifest of the log can be read, and its rows are the log's state at its version.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random

import msgspec
import pytest
from tests.faulty_store import FaultRates, FaultyStore
from tests.unit.snapshots.logs import RandomLog

from holdfast.commit.reading.lineage import Lineage
from holdfast.errors import HoldfastError
from holdfast.objects import creating
from holdfast.objects.memory import MemoryObjects, MemoryStore
from holdfast.objects.port import CreateAnswer, Created, Listed, ObjectStore, Refused
from holdfast.snapshots import Manifest, list_snapshots, make_snapshot, making, read_rows
from holdfast.snapshots.manifest import encode_manifest, manifest_key, part_key, part_name
from holdfast.snapshots.part import cut, encode_part
from holdfast.view.sqlite import walk_rows
from holdfast.view.storage import StatePosition

WORLDS = 15
MORE_WORLDS = 1_000
MUTANT_WORLDS = 400
SMALL = 60
RATES = FaultRates.all_at(0.03)


class Killed(Exception):
    """The maker's process ends at this request."""


class LimitedStore(FaultyStore):
    """Ends its process at a request, and lets the other makers go on between two requests."""

    def __init__(self, objects: MemoryObjects, random: Random, requests: int) -> None:
        super().__init__(objects, random, RATES)
        self._left = requests

    async def _next(self) -> None:
        await asyncio.sleep(0)
        self._left -= 1
        if self._left < 0:
            raise Killed

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        await self._next()
        return await super().create(key, data)

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        await self._next()
        return await super().read(key, start=start, length=length)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[Listed]:
        await self._next()
        return await super().list(prefix, after=after, limit=limit)


def foreign_snapshot(draw: Random, store: MemoryStore, version: int) -> None:
    """The snapshot of another log, which lies at the same prefix because that log was there before."""
    parts = []
    for number, rows in enumerate(cut([(b"key/00", b"of another log", 1)])):
        part, data = encode_part(rows, part_name(draw.randbytes(4).hex(), number))
        store.objects.create(part_key(version, part.name), data)
        parts.append(part)
    manifest = Manifest(
        format=1, log_id="ee" * 16, version=version, last_transaction=0, slot="0" * 20, rows=1, parts=parts, jobs=[]
    )
    store.objects.create(manifest_key(version), encode_manifest(manifest))


async def world(seed: int) -> None:
    draw, objects = Random(seed), MemoryObjects()
    reader = MemoryStore(objects)
    log = RandomLog(draw, objects)
    for _ in range(4):
        log.grow(draw.randint(0, 6))
        if draw.random() < 0.2:
            foreign_snapshot(draw, reader, log.head.last_version + draw.choice((0, -1)))
        makers = [
            LimitedStore(objects, Random(draw.random()), draw.choice((5, 20, 10**6))) for _ in range(draw.randint(1, 2))
        ]
        ended = await asyncio.gather(
            *(make_snapshot(maker, part_bytes=SMALL) for maker in makers), return_exceptions=True
        )
        for maker, made in zip(makers, ended, strict=True):
            assert isinstance(made, Manifest | Killed | HoldfastError), made
            maker.land_all()
        manifests = {each.version: each for each in await list_snapshots(reader)}
        for made in ended:
            if isinstance(made, Manifest):
                assert manifests[made.version] == made, "a maker returns the manifest that counts"
        for manifest in manifests.values():
            if manifest.log_id == log.log_id:
                rows = [row async for part in read_rows(reader, manifest) for row in part]
                assert rows == log.state(manifest.version), manifest.version


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pauses between tries, and no thread: a world is one sequence of steps."""

    async def here(work: Callable[..., object], *arguments: object) -> object:
        return work(*arguments)

    monkeypatch.setattr(creating, "PAUSES", (0.0,) * 6)
    monkeypatch.setattr(asyncio, "to_thread", here)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)


def test_every_manifest_is_the_state_at_its_version() -> None:
    for seed in range(WORLDS):
        asyncio.run(world(seed))


@pytest.mark.matrix
def test_every_manifest_is_the_state_at_its_version_in_many_worlds() -> None:
    for seed in range(WORLDS, MORE_WORLDS):
        asyncio.run(world(seed))


def manifest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async def write(self: making._Making, position: StatePosition, slot: str) -> Manifest:
        parts = [
            encode_part(rows, part_name(self._maker, n)) for n, rows in enumerate(cut(walk_rows(self._connection), 60))
        ]
        version, last, log_id = position
        assert last is not None
        assert log_id is not None
        manifest = Manifest(
            format=1, log_id=log_id, version=version, last_transaction=last, slot=slot,
            rows=sum(part.rows for part, _ in parts), parts=[part for part, _ in parts], jobs=[],
        )  # fmt: skip
        await making.create_exactly(self._store, manifest_key(version), encode_manifest(manifest))
        for part, data in parts:
            await making.create_exactly(self._store, part_key(version, part.name), data)
        return manifest

    monkeypatch.setattr(making._Making, "write", write)


def refused_is_never_own(monkeypatch: pytest.MonkeyPatch) -> None:
    real = making.create_exactly

    async def create(store: ObjectStore, key: str, data: bytes) -> bool:
        if not key.endswith("manifest.json"):
            return await real(store, key, data)
        for _ in range(7):
            answer = await store.create(key, data)
            if isinstance(answer, Created):
                return True
            if isinstance(answer, Refused) and answer.certain:
                return False
        return False

    monkeypatch.setattr(making, "create_exactly", create)


def other_logs_count(monkeypatch: pytest.MonkeyPatch) -> None:
    real = making.newest_snapshot

    async def newest(store: ObjectStore, lineage: Lineage, through: int) -> Manifest | None:
        found = [each for each in await list_snapshots(store) if each.version <= through]
        if not found:
            return await real(store, lineage, through)
        return msgspec.structs.replace(found[-1], log_id=lineage.log_id)

    monkeypatch.setattr(making, "newest_snapshot", newest)


@pytest.mark.parametrize("mutate", [manifest_first, refused_is_never_own, other_logs_count])
def test_a_broken_rule_is_found(mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    for seed in range(MUTANT_WORLDS):
        try:
            asyncio.run(world(seed))
        except (AssertionError, HoldfastError):
            return
    pytest.fail("no world broke")
