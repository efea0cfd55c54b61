"""Snapshots that Spark makes in a log's own store equal those of ``holdfast log snapshot``, byte by byte."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest
from pyspark.sql import SparkSession
from tests.matrix import matrix
from tests.spark.log_builder import LogBuilder, latest_plainly, random_log
from tests.unit.snapshots import logs

from holdfast.commit.format.transaction import Write
from holdfast.errors import InvalidRequest
from holdfast.objects.memory import MemoryObjects
from holdfast.objects.open import open_store
from holdfast.snapshots import Manifest, list_snapshots, make_snapshot, read_rows
from holdfast.spark.tables import newest
from holdfast.spark.tables.newest import part_begins, snapshot_into_log

PART_BYTES = 60
PART_MIN = 17


HOLDFAST = (sys.executable, "-m", "holdfast.cli.main", "spark")


def output_of(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*HOLDFAST, *words], capture_output=True, text=True, check=False)


def made_here(root: Path, at: int | None, part_bytes: int = PART_BYTES) -> Manifest:
    async def make() -> Manifest:
        store = open_store(root.as_uri())
        try:
            return await make_snapshot(store, at=at, part_bytes=part_bytes)
        finally:
            await store.close()

    return asyncio.run(make())


def rows_of(root: Path, manifest: Manifest) -> dict[bytes, tuple[bytes, int]]:
    async def read() -> dict[bytes, tuple[bytes, int]]:
        store = open_store(root.as_uri())
        try:
            return {key: (value, version) async for rows in read_rows(store, manifest) for key, value, version in rows}
        finally:
            await store.close()

    return asyncio.run(read())


def without_names(manifest: Manifest) -> list[tuple[object, ...]]:
    return [(part.rows, part.first_key, part.last_key, part.size, part.sha256) for part in manifest.files]


@pytest.mark.parametrize("seed", matrix([31, 32, 33]))
def test_spark_and_the_command_make_equal_parts(
    spark: SparkSession, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest, "RANGE_BYTES", 20_000)  # several ranges, so that parts cross their borders
    monkeypatch.setattr(logs, "KEYS", 90)
    objects = MemoryObjects()
    log = logs.RandomLog(Random(seed), objects)
    log.grow(120)
    ours, theirs = tmp_path / "spark", tmp_path / "command"
    (ours / "batches").mkdir(parents=True)
    for row in objects.list("batches/", limit=10_000):
        (ours / row.key).write_bytes(objects.read(row.key))
    shutil.copytree(ours, theirs)
    middle = log.transactions[len(log.transactions) // 3][0] + 1
    for at in (middle, None):  # the second begins with the first
        by_spark = snapshot_into_log(spark, ours.as_uri(), at, part_bytes=PART_BYTES)
        by_command = made_here(theirs, at)
        assert len(by_command.parts) > 1 and by_command.jobs
        assert without_names(by_spark) == without_names(by_command)
        facts = ("log_id", "version", "last_transaction", "slot", "rows")
        assert [getattr(by_spark, name) for name in facts] == [getattr(by_command, name) for name in facts]
        state = log.state(by_spark.version)
        assert rows_of(ours, by_spark) == {key: (value, version) for key, value, version in state}
        assert snapshot_into_log(spark, ours.as_uri(), by_spark.version) == by_spark, "it is not made again"


def test_an_empty_state_is_a_snapshot_without_parts_and_a_later_version_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    url = random_log(34, reigns=1, batches=3).write_to(tmp_path)
    made = snapshot_into_log(spark, url, 0)
    assert (made.rows, made.parts, made.last_transaction) == (0, [], 0)
    with pytest.raises(InvalidRequest, match="not reached"):
        snapshot_into_log(spark, url, 2**52)


@pytest.mark.matrix
def test_the_command_makes_it_and_names_options_that_do_not_belong_together(tmp_path: Path) -> None:
    builder = random_log(35, reigns=1, batches=5)
    log = builder.write_to(tmp_path)
    refused = output_of("snapshot", "--log", log, "--into-log", "--to", log)
    assert (refused.returncode, "--into-log makes one snapshot" in refused.stderr) == (2, True), refused.stderr
    refused = output_of("snapshot", "--log", log)
    assert (refused.returncode, "--to or --into-log" in refused.stderr) == (2, True), refused.stderr
    done = output_of("snapshot", "--log", log, "--into-log", "--master", "local[2]", "--json")
    assert done.returncode == 0, done.stderr

    async def found() -> list[Manifest]:
        store = open_store(log)
        try:
            return await list_snapshots(store)
        finally:
            await store.close()

    (manifest,) = asyncio.run(found())
    assert rows_of(tmp_path, manifest) == latest_plainly(builder.objects)


def test_the_driver_gets_nothing_for_each_key(spark: SparkSession, tmp_path: Path) -> None:
    """A job whose tasks return more than Spark's ``maxResultSize`` fails."""
    builder = LogBuilder(36)
    draw = Random(36)  # sizes of which Spark's compression leaves one byte for each key
    keys = [b"%06d" % number for number in range(100_000)]
    builder.lead().commit([Write(key, bytes(draw.randrange(256))) for key in keys])
    log = builder.write_to(tmp_path)
    conf = spark.sparkContext._jsc.sc().conf()
    conf.set("spark.driver.maxResultSize", "80k")
    try:
        made = snapshot_into_log(spark, log, part_bytes=5_000_000)
    finally:
        conf.remove("spark.driver.maxResultSize")
    assert made.rows == len(keys) and len(made.parts) == 3
    assert list(rows_of(tmp_path, made)) == keys


def test_a_part_ends_with_the_first_row_at_which_it_has_its_size_however_rows_are_cut() -> None:
    draw = Random(37)
    for _ in range(200):
        sizes = np.array([draw.randrange(9) for _ in range(draw.randrange(40))], np.uint32)
        expected, passed = [], PART_MIN
        for row, size in enumerate(sizes.tolist()):
            if passed >= PART_MIN:
                expected.append(row)
                passed = 0
            passed += size
        found: list[int] = []
        first = left = 0
        while first < len(sizes):
            past = first + draw.randrange(1, 9)
            begins, left = part_begins(sizes[first:past], PART_MIN, left)
            found += [first + begin for begin in begins]
            first = past
        assert found == expected
