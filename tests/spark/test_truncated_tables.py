"""New tables of a log that has lost its beginning: they begin with a snapshot of the log, and then follow it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.matrix import matrix
from tests.spark.log_builder import LogBuilder, latest_plainly

from holdfast.commit.format.batch import jump, object_name
from holdfast.commit.format.transaction import Delete, RangeDelete, Write
from holdfast.errors import Code, NotFound
from holdfast.objects.open import open_store
from holdfast.snapshots import make_snapshot
from holdfast.spark import History, Latest, Snapshot, run_pipeline
from holdfast.values import Version


def operations(draw: Random) -> list[Write | Delete | RangeDelete]:
    key = b"key/%02d" % draw.randrange(60)
    return [draw.choice([Write(key, draw.randbytes(9)), Write(key, b""), Delete(key), RangeDelete(key, key + b"~")])]


def cut_log(root: Path, *, with_snapshot: bool) -> LogBuilder:
    """The objects of the whole log; below ``root`` those up to a snapshot are gone."""
    builder, draw = LogBuilder(seed=6), Random(6)
    leader = builder.lead()
    for _ in range(60):
        leader.commit(*(operations(draw) for _ in range(4)))
    url = builder.write_to(root)
    slots = range(jump(leader.claim.slot), 0, -1)
    cut, at = (leader.transactions[slots[index]][-1].version for index in (39, 50))

    async def make() -> None:
        store = open_store(url)
        try:
            await make_snapshot(store, at=at, part_bytes=200)
        finally:
            await store.close()

    if with_snapshot:
        asyncio.run(make())
    leader = builder.lead()  # what is cut lies outside of the span of the newest leader
    leader.head = replace(leader.head, truncated_through=Version(cut))
    for _ in range(20):
        leader.commit(*(operations(draw) for _ in range(4)))
    builder.write_to(root)
    for slot in slots[:40]:
        (root / object_name(slot)).unlink()
    return builder


@pytest.mark.parametrize("job", matrix([Latest, Snapshot]))
def test_a_table_of_newest_values_begins_with_the_snapshot_and_follows_the_log(
    spark: SparkSession, tmp_path: Path, job: type[Latest | Snapshot]
) -> None:
    builder = cut_log(tmp_path / "log", with_snapshot=True)
    url, output = (tmp_path / "log").as_uri(), tmp_path / "table"
    run_pipeline(job(spark, url, output.as_uri()), url, output.as_uri())
    rows = DeltaTable(str(output)).to_pyarrow_table(columns=["key", "value", "version"]).to_pylist()
    assert len(rows) > 10
    assert {row["key"]: (row["value"], row["version"]) for row in rows} == latest_plainly(builder.objects)


def test_without_a_snapshot_and_for_a_table_of_all_values_the_loss_is_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    for job, with_snapshot in ((Latest, False), (History, True)):
        root, output = tmp_path / f"log-{job.name}", tmp_path / job.name
        cut_log(root, with_snapshot=with_snapshot)
        with pytest.raises(NotFound, match="data loss") as refused:
            run_pipeline(job(spark, root.as_uri(), output.as_uri()), root.as_uri(), output.as_uri())
        assert refused.value.code is Code.LOG_TRUNCATED
