"""Laws of snapshots on a store without faults."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from glob import glob
from pathlib import Path
from random import Random

import msgspec
import pytest
from tests.matrix import matrix
from tests.unit.snapshots.logs import RandomLog

from holdfast.commit.reading.lineage import Lineage
from holdfast.errors import Code, CorruptData, InvalidRequest, NotFound, Unavailable
from holdfast.objects.memory import MemoryObjects, MemoryStore
from holdfast.objects.open import open_store
from holdfast.snapshots import (
    Manifest,
    list_snapshots,
    make_snapshot,
    making,
    newest_snapshot,
    read_rows,
)
from holdfast.snapshots.manifest import decode_manifest, encode_manifest, manifest_key, part_key
from holdfast.snapshots.part import decode_part, encode_part
from holdfast.view.storage import Row

SMALL = 60


async def rows_of(store: MemoryStore, manifest: Manifest) -> list[Row]:
    return [row async for rows in read_rows(store, manifest) for row in rows]


async def job_rows_of(store: MemoryStore, manifest: Manifest) -> list[Row]:
    return [row async for rows in read_rows(store, manifest, manifest.jobs) for row in rows]


def borders(manifest: Manifest) -> list[tuple[bytes, bytes, int]]:
    return [(part.first_key, part.last_key, part.rows) for part in manifest.parts]


@pytest.mark.parametrize("seed", matrix(range(20), 5))
def test_a_snapshot_is_the_state_at_its_version_whatever_it_was_made_from(seed: int) -> None:
    async def main() -> None:
        draw, store = Random(seed), MemoryStore()
        log = RandomLog(draw, store.objects)
        for _ in range(3):
            log.grow(draw.randint(0, 12))
            at = draw.choice(
                (None, log.head.last_version, draw.randint(log.claim.first_version, log.head.last_version))
            )
            made = await make_snapshot(store, at=at, part_bytes=SMALL)
            version = log.head.last_version if at is None else at
            assert (made.version, made.log_id) == (version, log.log_id)
            assert await rows_of(store, made) == log.state(version)
            assert await job_rows_of(store, made) == log.jobs(version)
            assert made.last_transaction == max((each for each, _ in log.transactions if each <= version), default=0)
            alone = MemoryStore()
            for key in [row.key for row in await store.list("batches/", limit=1000)]:
                alone.objects.create(key, await store.read(key))
            fresh = await make_snapshot(alone, at=version, part_bytes=SMALL)
            assert borders(fresh) == borders(made)
            assert [part.sha256 for part in fresh.files] == [part.sha256 for part in made.files]

    asyncio.run(main())


def test_a_snapshot_without_a_temporary_directory_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It used to fail as `internal`, with a traceback of the command."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))

    async def main() -> None:
        store = MemoryStore()
        RandomLog(Random(1), store.objects)
        with pytest.raises(InvalidRequest, match="set TMPDIR") as refused:
            await make_snapshot(store)
        assert refused.value.code is Code.BAD_CONFIGURATION
        assert not await store.list("snapshots/")

    asyncio.run(main())


def test_a_snapshot_whose_temporary_file_finds_the_disk_full_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        with sqlite3.connect(":memory:") as small:
            small.execute("CREATE TABLE latest (value)")
            small.execute("PRAGMA max_page_count = 2")  # it may not grow, as on a full disk
            small.execute("INSERT INTO latest VALUES (zeroblob(100000))")

    monkeypatch.setattr(making, "write_layer", full)

    async def main() -> None:
        store = MemoryStore()
        log = RandomLog(Random(1), store.objects)
        log.grow(10)
        with pytest.raises(Unavailable, match="set TMPDIR") as refused:
            await make_snapshot(store)
        assert refused.value.code is Code.DISK_FULL
        assert not await store.list("snapshots/")

    asyncio.run(main())


def test_a_version_that_the_log_has_not_reached_is_refused_and_an_empty_log_too() -> None:
    async def main() -> None:
        store = MemoryStore()
        with pytest.raises(NotFound, match="log is empty"):
            await make_snapshot(store)
        log = RandomLog(Random(1), store.objects)
        with pytest.raises(InvalidRequest, match="not reached") as refused:
            await make_snapshot(store, at=log.head.last_version + 1)
        assert refused.value.code is Code.FUTURE_VERSION
        assert not await store.list("snapshots/")

    asyncio.run(main())


def test_a_second_snapshot_of_a_version_is_the_first() -> None:
    async def main() -> None:
        store = MemoryStore()
        RandomLog(Random(2), store.objects).grow(9)
        first = await make_snapshot(store, part_bytes=SMALL)
        before = await store.list("snapshots/")
        assert await make_snapshot(store, part_bytes=SMALL) == first
        assert await store.list("snapshots/") == before
        assert await list_snapshots(store) == [first]

    asyncio.run(main())


def test_a_snapshot_of_another_log_or_with_a_damaged_manifest_is_passed_over() -> None:
    async def main() -> None:
        store = MemoryStore()
        log = RandomLog(Random(3), store.objects)
        log.grow(9)
        made = await make_snapshot(store, part_bytes=SMALL)
        foreign = msgspec.structs.replace(made, log_id="00" * 16, version=made.version - 1, last_transaction=0)
        store.objects.create(manifest_key(foreign.version), encode_manifest(foreign))
        store.objects.create(manifest_key(made.version - 2), b"{}")
        assert await newest_snapshot(store, Lineage(log.log_id), made.version) == made
        assert await newest_snapshot(store, Lineage(log.log_id), made.version - 1) is None

    asyncio.run(main())


def test_a_changed_part_is_never_read() -> None:
    async def main() -> None:
        store = MemoryStore()
        log = RandomLog(Random(4), store.objects)
        log.grow(12)
        made = await make_snapshot(store, part_bytes=SMALL)
        key = part_key(made.version, made.parts[0].name)
        data = bytearray(await store.read(key))
        data[len(data) // 2] ^= 1
        store.objects.delete(key)
        store.objects.create(key, bytes(data))
        with pytest.raises(CorruptData, match="other bytes"):
            await rows_of(store, made)

    asyncio.run(main())


def test_polars_duckdb_and_pandas_open_a_snapshot(tmp_path: Path) -> None:
    import duckdb
    import pandas as pd
    import polars as pl

    async def main() -> tuple[list[Row], str]:
        store = open_store(tmp_path.as_uri())
        log = RandomLog(Random(5), MemoryObjects())
        log.grow(12)
        for row in log.objects.list("batches/", limit=1000):
            await store.create(row.key, log.objects.read(row.key))
        made = await make_snapshot(store, part_bytes=SMALL)
        await store.close()
        return log.state(made.version), f"{tmp_path}/snapshots/{made.version:020d}/*.parquet"

    rows, files = asyncio.run(main())
    assert len(rows) > 2
    assert pl.read_parquet(files).rows() == rows
    assert duckdb.sql(f"SELECT key, value, version FROM '{files}' ORDER BY key").fetchall() == rows
    assert list(pd.read_parquet(sorted(glob(files))).itertuples(index=False, name=None)) == rows


ROWS: list[Row] = [(b"a", b"1", 5), (b"b", b"", 7)]


def test_a_part_must_hold_what_its_entry_says() -> None:
    part, data = encode_part(ROWS, "part-00000000-00000.parquet")
    assert decode_part(data, part).to_pylist()[0] == {"key": b"a", "value": b"1", "version": 5}
    for changed in ({"rows": 3}, {"first_key": b"0"}, {"last_key": b"c"}):
        with pytest.raises(CorruptData):
            decode_part(data, msgspec.structs.replace(part, **changed))
    unordered, data = encode_part(ROWS[::-1], part.name)
    with pytest.raises(CorruptData, match="not in order"):
        decode_part(data, unordered)


MANIFEST = Manifest(
    format=1,
    log_id="ab" * 16,
    version=9,
    last_transaction=7,
    slot="0" * 20,
    rows=2,
    parts=[encode_part(ROWS, "part-00000000-00000.parquet")[0]],
    jobs=[],
)


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 2},
        {"version": 8},
        {"last_transaction": 10},
        {"rows": 3},
        {"parts": [*MANIFEST.parts, *MANIFEST.parts], "rows": 4},
        {"parts": [msgspec.structs.replace(MANIFEST.parts[0], name="../part")]},
    ],
)
def test_a_manifest_that_breaks_a_rule_is_refused(changes: dict[str, object]) -> None:
    assert decode_manifest(encode_manifest(MANIFEST), 9) == MANIFEST
    with pytest.raises(CorruptData):
        decode_manifest(encode_manifest(msgspec.structs.replace(MANIFEST, **changes)), 9)


def test_a_manifest_is_json_with_base64_keys() -> None:
    read = msgspec.json.decode(encode_manifest(MANIFEST))
    assert read["parts"][0]["first_key"] == "YQ=="
