"""A replayed log holds the source's transactions in the source's order, each once, however often it was begun."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self, cast

import pytest
from pyspark.sql import Row, SparkSession
from tests.spark.log_builder import LogBuilder, random_log, read_plainly
from tests.spark.plain import operation_row

from holdfast.commit.format.batch import slot_of
from holdfast.commit.format.transaction import Operation, RangeDelete, Write
from holdfast.commit.service import CommitService, ServiceOptions
from holdfast.errors import Closed, Unavailable
from holdfast.objects.open import open_store
from holdfast.spark import Replay, Schedule, run_pipeline
from holdfast.spark.log import replay as replay_module


def objects_in(root: Path) -> dict[int, bytes]:
    found = ((slot_of(f"batches/{path.name}"), path) for path in (root / "batches").iterdir())
    return {slot: path.read_bytes() for slot, path in found if slot is not None}


def transactions(objects: dict[int, bytes]) -> list[list[Operation]]:
    """The operations of each transaction in order, without empty ranges."""
    return [
        [each for each in txn.operations if not is_empty(each)]
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
    source = transactions(builder.objects)
    versions = [txn.version for batch in read_plainly(builder.objects) for txn in batch.transactions]
    middle = versions[len(versions) // 3]
    target = tmp_path / "target"
    first = run(spark, log, target, Schedule(until=middle))
    assert first == (0, len(versions) // 3 + 1)
    second = run(spark, log, target, Schedule())
    assert second == (middle, len(versions) - len(versions) // 3 - 1)
    assert run(spark, log, target, Schedule())[1] == 0, "nothing new, nothing sent"
    objects = objects_in(target)
    assert transactions(objects) == source


async def depose(target: Path) -> None:
    """Take the lead over from whoever has it, and resign."""
    store = open_store(target.as_uri())
    service = await CommitService.lead(store, ServiceOptions(take_over=True))
    await service.step_down()
    await store.close()


@pytest.mark.matrix  # a step that fails is tried again in the next test
def test_a_replay_that_is_deposed_says_so_and_the_next_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    builder = random_log(52, reigns=3, batches=8)
    log = builder.write_to(tmp_path / "log")
    target = tmp_path / "target"
    versions = [txn.version for batch in read_plainly(builder.objects) for txn in batch.transactions]
    older = Replay(spark, log, target.as_uri())
    log_id = older.log_id()
    older.offset(log_id)
    older.advance(older.look(0, versions[3], 2**40))
    with pytest.raises(Closed, match="signs of life"):
        run(spark, log, target, Schedule())
    asyncio.run(depose(target))  # the older one neither knows nor resigns
    assert run(spark, log, target, Schedule()) == (versions[3], len(versions) - 4)
    with pytest.raises(Closed):
        older.advance(older.look(versions[3], versions[-1], 2**40))
    older.close()
    assert transactions(objects_in(target)) == transactions(builder.objects)


class FailingSource:
    """What a replay asks Spark for, without Spark: a source whose first read fails after some of its rows."""

    def __init__(self, rows: list[Row], fails_after: int) -> None:
        self.read = self
        self._rows = rows
        self._left: int | None = fails_after
        self._after = 0

    def format(self, _name: str) -> Self:
        return self

    def option(self, name: str, value: str) -> Self:
        if name == "startingVersion":
            self._after = int(value) - 1
        return self

    def load(self) -> Self:
        return self

    def toLocalIterator(self, prefetchPartitions: bool) -> Iterator[Row]:  # noqa: N802, N803  Spark's names
        left, self._left = self._left, None
        for number, row in enumerate(row for row in self._rows if row["version"] > self._after):
            if number == left:
                raise Unavailable("the source's store does not answer")
            yield row


def test_a_step_whose_reading_fails_is_tried_again_behind_what_it_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_module, "CHUNK_TRANSACTIONS", 3)
    builder = random_log(53, reigns=2, batches=6)
    log = builder.write_to(tmp_path / "log")
    rows = [
        Row(version=txn.version, operations=[operation_row(each) for each in txn.operations])
        for batch in read_plainly(builder.objects)
        for txn in batch.transactions
    ]
    target = tmp_path / "target"
    job = Replay(cast("SparkSession", FailingSource(rows, fails_after=8)), log, target.as_uri())
    try:
        report = run_pipeline(job, log, target.as_uri())
    finally:
        job.close()
    assert report.retries == 1
    assert transactions(objects_in(target)) == transactions(builder.objects)


def test_transactions_in_flight_are_bounded_by_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_module, "CHUNK_BYTES", 1_000)
    monkeypatch.setattr(replay_module, "IN_FLIGHT_BYTES", 3_000)
    builder = LogBuilder(54)
    leader = builder.lead()
    sizes = [10, 700, 700, 5_000, 10, 10, 900, *[400] * 20]
    for size in sizes:
        leader.commit([Write(b"k", bytes(size))])
    log = builder.write_to(tmp_path / "log")
    rows = [
        Row(version=txn.version, operations=[operation_row(each) for each in txn.operations])
        for batch in read_plainly(builder.objects)
        for txn in batch.transactions
    ]
    most = 0

    class Watched(Replay):
        def _finish_oldest(self, in_flight_now: deque[Any]) -> int:
            nonlocal most
            assert sum(each.size for each in list(in_flight_now)[:-1]) < 3_000
            most = max(most, len(in_flight_now))
            return super()._finish_oldest(in_flight_now)

    target = tmp_path / "target"
    job = Watched(cast("SparkSession", FailingSource(rows, fails_after=10**9)), log, target.as_uri())
    try:
        run_pipeline(job, log, target.as_uri())
    finally:
        job.close()
    assert most >= 2
    assert transactions(objects_in(target)) == transactions(builder.objects)
