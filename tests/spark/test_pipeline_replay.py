"""A replayed log holds the source's transactions in the source's order, each once, however often it was begun."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.log_builder import random_log, read_plainly

from holdfast.commit.batch import slot_of
from holdfast.commit.transaction import Operation, RangeDelete
from holdfast.errors import Closed
from holdfast.spark.pipeline import Replay, Schedule, run_pipeline
from holdfast.spark.pipeline import replay as replay_module


def objects_in(root: Path) -> dict[int, bytes]:
    found = ((slot_of(f"batches/{path.name}"), path) for path in (root / "batches").iterdir())
    return {slot: path.read_bytes() for slot, path in found if slot is not None}


def transactions(objects: dict[int, bytes], *, replayed: bool) -> list[list[Operation]]:
    """The operations of each transaction in order, without the offset that a replay adds, and without empty ranges."""
    return [
        [each for each in (txn.operations[:-1] if replayed else txn.operations) if not is_empty(each)]
        for batch in read_plainly(objects)
        for txn in batch.transactions
    ]


def is_empty(operation: Operation) -> bool:
    return isinstance(operation, RangeDelete) and operation.end is not None and operation.begin >= operation.end


def run(spark: SparkSession, log: str, target: Path, schedule: Schedule) -> tuple[int, int]:
    job = Replay(spark, log, target.as_uri())
    try:
        report = run_pipeline(job, log, target.as_uri(), schedule=schedule, step_bytes=400_000)
    finally:
        job.close()
    return report.started_at, report.rows


def test_a_replay_in_parts_equals_the_source(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_module, "CHUNK_TRANSACTIONS", 7)
    builder = random_log(51, reigns=4, batches=12)
    log = builder.write_to(tmp_path / "log")
    source = transactions(builder.objects, replayed=False)
    versions = [txn.version for batch in read_plainly(builder.objects) for txn in batch.transactions]
    middle = versions[len(versions) // 3]
    target = tmp_path / "target"
    first = run(spark, log, target, Schedule(until=middle))
    assert first == (0, len(versions) // 3 + 1)
    second = run(spark, log, target, Schedule())
    assert second == (middle, len(versions) - len(versions) // 3 - 1)
    assert run(spark, log, target, Schedule())[1] == 0, "nothing new, nothing sent"
    objects = objects_in(target)
    assert transactions(objects, replayed=True) == source


def test_a_replay_that_is_deposed_says_so_and_the_next_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    builder = random_log(52, reigns=3, batches=8)
    log = builder.write_to(tmp_path / "log")
    target = tmp_path / "target"
    versions = [txn.version for batch in read_plainly(builder.objects) for txn in batch.transactions]
    older = Replay(spark, log, target.as_uri())
    log_id = older.log_id()
    older.offset(log_id)
    older.advance(older.look(0, versions[3], 2**40))
    # The older one is silent, so the newer one takes over; it neither knows nor resigns.
    assert run(spark, log, target, Schedule()) == (versions[3], len(versions) - 4)
    with pytest.raises(Closed):
        older.advance(older.look(versions[3], versions[-1], 2**40))
    older.close()
    assert transactions(objects_in(target), replayed=True) == transactions(builder.objects, replayed=False)
