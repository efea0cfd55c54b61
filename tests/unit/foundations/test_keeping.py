"""Which snapshots stay: enough verified newer ones, and those that a hold names."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.commit import builders

from holdfast.errors import Unavailable
from holdfast.foundations.keeping import KeptSnapshots, StrayParts
from holdfast.objects.memory import MemoryStore
from holdfast.snapshots.manifest import FORMAT, Manifest, encode_manifest, manifest_key, part_key, part_name
from holdfast.snapshots.part import encode_part
from holdfast.snapshots.reading import list_versions

LOG_ID = builders.LOG_ID.hex()
DAY_MS = 86_400_000.0


async def add(store: MemoryStore, version: int, *, damaged: bool = False, log_id: str = LOG_ID) -> None:
    part, data = encode_part([(b"key", b"value", 1)], part_name("00c0ffee", 0))
    await store.create(part_key(version, part.name), data[:-1] if damaged else data)
    manifest = Manifest(
        format=FORMAT, log_id=log_id, version=version, last_transaction=1, slot="0" * 20, rows=1, parts=[part], jobs=[]
    )
    await store.create(manifest_key(version), encode_manifest(manifest))


@pytest.mark.parametrize(
    ("damaged", "held", "stay", "oldest"),
    [
        ((), (), [30, 40], 30),
        ((), (10,), [10, 30, 40], 10),
        ((40,), (), [20, 30, 40], 20),
        ((10,), (), [10, 30, 40], 30),
        ((20, 30), (), [10, 20, 30, 40], 10),
        ((10, 20, 30, 40), (), [10, 20, 30, 40], None),
    ],
)
def test_a_snapshot_goes_when_enough_newer_ones_were_verified(
    damaged: tuple[int, ...], held: tuple[int, ...], stay: list[int], oldest: int | None
) -> None:
    async def main() -> None:
        store = MemoryStore()
        for version in (10, 20, 30, 40):
            await add(store, version, damaged=version in damaged)
        await add(store, 50, log_id="cd" * 16)
        kept = KeptSnapshots(store, builders.genesis(), keep=2)
        with pytest.raises(Unavailable, match="not verified yet"):
            await kept.expected(held)
        assert await kept.oldest(held) == oldest
        assert await kept.expected(held) == oldest
        assert await list_versions(store) == [*stay, 50], "another log's snapshot is not ours to remove"
        assert len([row for row in await store.list("snapshots/") if row.key.endswith("parquet")]) == len(stay) + 1

    asyncio.run(main())


def test_what_would_stay_is_known_before_anything_is_removed() -> None:
    async def main() -> None:
        store = MemoryStore()
        for version in (10, 20, 30):
            await add(store, version)
        kept = KeptSnapshots(store, builders.genesis(), keep=2)
        assert await kept.oldest((10,)) == 10
        assert await kept.expected(()) == 20, "as if its hold had ended"
        assert await list_versions(store) == [10, 20, 30]
        await add(store, 40)
        with pytest.raises(Unavailable):
            await kept.expected(())

    asyncio.run(main())


def test_parts_without_a_manifest_go_after_a_day() -> None:
    async def main() -> None:
        store = MemoryStore()
        await add(store, 10)
        await store.create(part_key(20, part_name("00c0ffee", 0)), b"a maker was killed")
        stray = StrayParts(store, min_age_ms=DAY_MS)
        assert await stray.sweep(0.0) == 0
        await store.create(part_key(20, part_name("00c0ffee", 1)), b"and wrote this later")
        assert await stray.sweep(DAY_MS - 1) == 0
        assert await stray.sweep(DAY_MS) == 1
        assert await stray.sweep(3 * DAY_MS) == 1
        assert len(await store.list("snapshots/")) == 2, "what a manifest names stays"

    asyncio.run(main())
