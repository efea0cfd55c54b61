"""Where the log has an ingest's newest records: near its end, anywhere in it, or in its newest snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark program uses

from holdfast.commit.format.batch import Header
from holdfast.spark.ingest.numbered_source import NumberedSource, Relation
from holdfast.spark.ingest.record import (
    JOBS_PREFIX,
    GroupRecord,
    decode_group,
    decode_records,
    job_of_ingest,
    lost_groups,
)
from holdfast.spark.ingest.refusals import another_name, another_source, other_messages
from holdfast.spark.log.job_records import records_in_snapshot, records_nearby, rows_of_jobs
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
    nearby = thread.start(
        lambda store: records_nearby(store, claim, job, INGEST_LOOK_BACK_OBJECTS, _are_of_one_micro_batch)
    ).result()
    records = [decode_group(value, job) for value in nearby.values]
    records = [each for each in records if each.batch == records[0].batch]
    if not nearby.is_complete:
        records = records_of_log(spark, url, job)
    if not records:
        removed = thread.start(lambda store: records_in_snapshot(store, claim, job)).result().get(job)
        records = [] if removed is None else [decode_group(removed, job)]
    records.sort(key=lambda record: record.first)
    if source is not None:
        others = {} if records else thread.start(lambda store: records_in_snapshot(store, claim, JOBS_PREFIX)).result()
        _require_own_source(spark, url, name, source, records, others)
    if records and records[0].first > 0:
        kept = {} if source is None else source.kept(records[0].after + 1, records[0].seqs[0][0] - 1)
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
    if records:
        newest = records[-1]
        if newest.source is None:
            raise another_source(name, "none: a checkpoint says what is decided", source.identity)
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


def _are_of_one_micro_batch(values: Sequence[bytes]) -> bool:
    """Whether these records, newest first, are all of the newest micro-batch, and perhaps one of the one before."""
    newest, oldest = (decode_group(values[index], "") for index in (0, -1))
    return oldest.first == 0 or oldest.batch != newest.batch


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
