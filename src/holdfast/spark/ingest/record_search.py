"""Where the log has an ingest's newest records: near its end, anywhere in it, or in its newest snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark program uses

from holdfast.commit.format.batch import FIRST_SLOT, Header, Kind, object_name
from holdfast.commit.reading.reader import LoggedBatch, read_header
from holdfast.objects.port import ObjectStore
from holdfast.spark.bulk.load_record import EMPTY_LOOK_BACK_OBJECTS, rows_of_jobs
from holdfast.spark.bulk.snapshot_values import records_in_snapshot
from holdfast.spark.ingest.numbered_source import NumberedSource, Relation
from holdfast.spark.ingest.record import (
    JOBS_PREFIX,
    GroupRecord,
    decode_group,
    decode_records,
    job_of_ingest,
    lost_groups,
    missing_before,
)
from holdfast.spark.ingest.refusals import another_name, another_source, other_messages
from holdfast.spark.runtime.session import task_errors
from holdfast.spark.runtime.store_thread import StoreThread

INGEST_LOOK_BACK_OBJECTS: Final = 256


def find_records(
    spark: SparkSession, thread: StoreThread, claim: Header, url: str, name: str, source: NumberedSource | None
) -> list[GroupRecord]:
    """The records of the newest micro-batch in their order; the first one stands for those that retention removed.

    Raises: InvalidRequest (name and source do not belong together), NotFound, CorruptData, Unavailable. Cost: a
    scan of the log for a name without records among the newest objects, and one more for a new name.
    """
    job = job_of_ingest(name)
    records, complete = thread.start(lambda store: records_nearby(store, claim, job)).result()
    if not complete:
        records = records_of_log(spark, url, job)
    if not records:
        removed = thread.start(lambda store: records_in_snapshot(store, claim, job)).result().get(job)
        records = [] if removed is None else [decode_group(removed, job)]
    records.sort(key=lambda record: record.first)
    if source is not None:
        known = records and records[-1].source is not None
        others = {} if known else thread.start(lambda store: records_in_snapshot(store, claim, JOBS_PREFIX)).result()
        _require_own_source(spark, url, name, source, records, others)
    if records and records[0].first > 0:
        begin, past = missing_before(records[0]) if records[0].seqs else (0, 0)
        kept = source.kept(begin, past - 1) if source is not None and begin < past else {}
        records.insert(0, lost_groups(records[0], kept))
    return records


def _require_own_source(
    spark: SparkSession,
    url: str,
    name: str,
    source: NumberedSource,
    records: Sequence[GroupRecord],
    removed: Mapping[str, bytes],
) -> None:
    """Raise InvalidRequest unless name and source belong together in the log. Cost: a scan for a new name.

    ``removed``: the records of all names in the newest snapshot of a truncated log.
    """
    newest = records[-1] if records else None
    if newest is not None and newest.source is not None:
        through = newest.seqs[-1][1]
        relation = source.relation(newest.source, through, newest.time_ms)
        if relation is Relation.OTHER and source.is_moved:
            relation = source.relation(None, through, newest.time_ms)
        if relation is Relation.OTHER:
            raise another_source(name, newest.source, source.identity)
        if relation is not Relation.SAME:
            raise other_messages(source, name, through, newest.time_ms, relation)
        return
    for other, record in newest_records(spark, url, removed).items():
        if other == name or record.source is None:
            continue
        relation = source.relation(record.source, record.seqs[-1][1], record.time_ms)
        if relation is Relation.SAME:
            raise another_name(other, source.identity)
        if relation is Relation.PUT_BACK:
            raise other_messages(source, other, record.seqs[-1][1], record.time_ms, relation)


async def records_nearby(store: ObjectStore, claim: Header, job: str) -> tuple[list[GroupRecord], bool]:
    """The records of the newest micro-batch in the objects before ``claim``, and whether these are all of them."""
    records: list[GroupRecord] = []
    header = claim
    looked = empty = 0
    while looked < INGEST_LOOK_BACK_OBJECTS and empty < EMPTY_LOOK_BACK_OBJECTS:
        if header.slot == FIRST_SLOT:
            return records, True
        before = await read_header(store, header.prev)
        if before is None:
            return records, True
        header = before
        if header.kind is not Kind.DATA or not header.transactions:
            empty += 1
            continue
        looked += 1
        batch = LoggedBatch(header, await store.read(object_name(header.slot)))
        value = next((each.value for each in batch.transactions()[-1].jobs if each.name == job), None)
        if isinstance(value, bytes):
            record = decode_group(value, job)
            if records and record.batch != records[0].batch:
                return records, True
            records.append(record)
            if record.first == 0:
                return records, True
    return records, False


def records_of_log(spark: SparkSession, url: str, job: str) -> list[GroupRecord]:
    """The records of the newest micro-batch anywhere in the log. Cost: two scans of the log, by tasks."""
    written = rows_of_jobs(spark, url, job).where(F.col("key") == F.lit(job.encode()))
    with task_errors():
        newest = written.agg(F.max_by("value", "version")).first()
    if newest is None or newest[0] is None:
        return []
    number = str(decode_group(bytes(newest[0]), job).batch)
    same = written.where(F.get_json_object(F.col("value").cast("string"), "$.batch") == number)
    with task_errors():
        values: Iterable[bytes] = same.select("value").toArrow()["value"].to_pylist()
    return [decode_group(bytes(value), job) for value in values]


def newest_records(spark: SparkSession, url: str, removed: Mapping[str, bytes]) -> dict[str, GroupRecord]:
    """The newest record of every stream in the log, by its name. Cost: a scan of the log, by tasks.

    ``removed``: the records in the newest snapshot of a truncated log.
    """
    newest = rows_of_jobs(spark, url, JOBS_PREFIX).groupBy("key").agg(F.max_by("value", "version").alias("value"))
    with task_errors():
        found = newest.toArrow().to_pylist()
    return decode_records({**removed, **{row["key"].decode(): bytes(row["value"]) for row in found}})
