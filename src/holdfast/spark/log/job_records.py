"""The newest records of a job in a log: near its end, anywhere in it, or in its newest snapshot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark program uses

from holdfast.commit.format.batch import FIRST_SLOT, Header, ItemKind, Kind, object_name, read_body_table
from holdfast.commit.reading.lineage import lineage_of
from holdfast.commit.reading.reader import find_header
from holdfast.objects.port import ObjectStore
from holdfast.snapshots.reading import newest_snapshot, read_rows
from holdfast.spark.runtime.refusals import log_truncated
from holdfast.spark.runtime.session import task_errors
from holdfast.spark.runtime.store_thread import LoopThread

LOOK_BACK_OBJECTS: Final = 64
EMPTY_LOOK_BACK_OBJECTS: Final = 1024
"""Claims, heartbeats and resign records do not count as objects; each costs a small read."""


@dataclass(frozen=True, slots=True)
class Nearby:
    """Records near the end of a log, newest first. ``is_complete``: no more are needed, or there are none.

    ``others``: another process may have written since the newest of them.
    """

    values: Sequence[bytes]
    is_complete: bool
    others: bool


async def records_nearby(
    store: ObjectStore, claim: Header, job: str, objects_max: int, are_enough: Callable[[Sequence[bytes]], bool]
) -> Nearby:
    """The records of ``job`` in the objects before ``claim``, until these ``are_enough``."""
    header, values, others = claim, list[bytes](), False
    looked = empty = 0
    while looked < objects_max and empty < EMPTY_LOOK_BACK_OBJECTS:
        before = None if header.slot == FIRST_SLOT else await find_header(store, header.prev)
        if before is None:
            return Nearby(values, True, others)
        header = before
        if header.kind is not Kind.DATA or not header.transactions:
            empty += 1
            continue
        looked += 1
        table = read_body_table(await store.read(object_name(header.slot)), header)
        rows = zip(*(table[name].to_pylist() for name in ("kind", "key", "value")), strict=True)
        records = [value for kind, key, value in rows if kind == ItemKind.JOB and key == job.encode()]
        others = others or not (records or values)
        values += [value for value in records[-1:] if value is not None]
        if values and are_enough(values):
            return Nearby(values, True, others)
    return Nearby(values, False, True)


def newest_record(
    spark: SparkSession, thread: LoopThread[ObjectStore], url: str, claim: Header, job: str
) -> tuple[bytes | None, bool]:
    """The newest record of ``job`` before ``claim``, and whether others may have written since.

    Raises: as ``records_in_snapshot``. Cost: a few objects where the job was among the last writers; else a scan.
    """
    nearby = thread.run(lambda store: records_nearby(store, claim, job, LOOK_BACK_OBJECTS, bool))
    if nearby.values:
        return nearby.values[0], nearby.others
    record = None if nearby.is_complete else newest_of_log(spark, url, job)
    if record is None:
        record = thread.run(lambda store: records_in_snapshot(store, claim, job)).get(job)
    return record, nearby.others


def rows_of_jobs(spark: SparkSession, url: str, prefix: str) -> DataFrame:
    """The records that jobs with this prefix wrote into the log: ``version``, ``key``, which is the name, ``value``."""
    rows = spark.read.format("holdfast").option("url", url).option("kinds", "job").option("keyPrefix", prefix)
    return rows.option("columns", "version,key,value").load()


def newest_of_log(spark: SparkSession, url: str, job: str) -> bytes | None:
    """The newest record of ``job`` anywhere in the log. Cost: a scan of the log, by tasks."""
    rows = rows_of_jobs(spark, url, job).where(F.col("key") == F.lit(job.encode()))
    with task_errors():
        row = rows.agg(F.max_by("value", "version")).first()
    return None if row is None or row[0] is None else bytes(row[0])


async def records_in_snapshot(store: ObjectStore, claim: Header, prefix: str) -> dict[str, bytes]:
    """The records of jobs whose names begin with ``prefix`` in the newest snapshot of a truncated log, by name.

    A log is truncated only where a snapshot has its state, so these and the rest of the log are all there is. Empty for
    a log that was not truncated. Raises: NotFound (``log_truncated``: no snapshot is left), CorruptData, Unavailable.
    Cost: a LIST, a manifest, and the parts with records of jobs, one after the other in memory.
    """
    if claim.truncated_through == 0:
        return {}
    manifest = await newest_snapshot(store, await lineage_of(store, claim), claim.last_version)
    if manifest is None or manifest.version < claim.truncated_through:
        raise log_truncated(
            "the log was truncated, and no snapshot has what was recorded in the part that was removed",
            hint="restore the log's newest snapshot from a backup: without it, requests could be committed twice",
            truncated_through=claim.truncated_through,
            newest_snapshot=None if manifest is None else manifest.version,
        )
    records: dict[str, bytes] = {}
    async with aclosing(read_rows(store, manifest, manifest.jobs)) as parts:
        async for rows in parts:
            names = ((key.decode(), value) for key, value, _ in rows)
            records.update((name, value) for name, value in names if name.startswith(prefix))
    return records
