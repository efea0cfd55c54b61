"""Where the log has an ingest's newest records: near its end, anywhere in it, or in its newest snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark program uses

from holdfast.commit.format.batch import FIRST_SLOT, Header, Kind, LoggedTransaction, object_name
from holdfast.commit.format.transaction import Write, prefix_end
from holdfast.commit.reading.reader import LoggedBatch, read_header
from holdfast.objects.port import ObjectStore
from holdfast.spark.bulk.load_record import EMPTY_LOOK_BACK_OBJECTS
from holdfast.spark.bulk.snapshot_values import value_in_snapshot, values_in_snapshot
from holdfast.spark.ingest.numbered_source import NumberedSource, Relation
from holdfast.spark.ingest.record import (
    RECORDS_PREFIX,
    GroupRecord,
    decode_group,
    decode_records,
    lost_groups,
    missing_before,
    record_key,
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
    key = record_key(name)
    records, complete = thread.start(lambda store: records_nearby(store, claim, key)).result()
    if not complete:
        records = records_of_log(spark, url, key)
    if not records:
        removed = thread.start(lambda store: record_in_snapshot(store, claim, key)).result()
        records = [] if removed is None else [removed]
    records.sort(key=lambda record: record.first)
    if source is not None:
        known = records and records[-1].source is not None
        others = {} if known else thread.start(lambda store: removed_records(store, claim)).result()
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
    removed: Mapping[bytes, bytes],
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


async def records_nearby(store: ObjectStore, claim: Header, key: bytes) -> tuple[list[GroupRecord], bool]:
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
        value = _record_in(batch.transactions()[-1], key)
        if value is not None:
            record = decode_group(value, key)
            if records and record.batch != records[0].batch:
                return records, True
            records.append(record)
            if record.first == 0:
                return records, True
    return records, False


def _record_in(txn: LoggedTransaction, key: bytes) -> bytes | None:
    """The record in the last transaction of an object. A request has an id, reads, or other operations."""
    if txn.request_id is not None or txn.preconditions or len(txn.operations) != 1:
        return None
    (operation,) = txn.operations
    return operation.value if isinstance(operation, Write) and operation.key == key else None


def records_of_log(spark: SparkSession, url: str, key: bytes) -> list[GroupRecord]:
    """The records of the newest micro-batch anywhere in the log. Cost: two scans of the log, by tasks."""
    columns = "version,kind,key,value,request_id"
    rows = spark.read.format("holdfast").option("url", url).option("columns", columns).load()
    written = rows.where((F.col("key") == F.lit(key)) & _is_record())
    with task_errors():
        newest = written.agg(F.max_by("value", "version")).first()
    if newest is None or newest[0] is None:
        return []
    number = str(decode_group(bytes(newest[0]), key).batch)
    same = written.where(F.get_json_object(F.col("value").cast("string"), "$.batch") == number)
    with task_errors():
        values: Iterable[bytes] = same.select("value").toArrow()["value"].to_pylist()
    return [decode_group(bytes(value), key) for value in values]


def _is_record() -> Column:
    """A request of a client that has an id is not a record, whatever its key."""
    return (F.col("kind") == "write") & F.col("request_id").isNull()


async def record_in_snapshot(store: ObjectStore, claim: Header, key: bytes) -> GroupRecord | None:
    """The newest record of a stream in a truncated log whose rest has none of its records.

    Raises and cost: as ``values_in_snapshot``.
    """
    value = await value_in_snapshot(store, claim, key)
    return None if value is None else decode_group(value, key)


def newest_records(spark: SparkSession, url: str, removed: Mapping[bytes, bytes]) -> dict[str, GroupRecord]:
    """The newest record of every stream in the log, by its name. Cost: a scan of the log, by tasks.

    ``removed``: the records in the newest snapshot of a truncated log.
    """
    rows = spark.read.format("holdfast").option("url", url).option("keyPrefix", RECORDS_PREFIX.decode())
    changes = rows.option("columns", "version,kind,key,value,request_id").load()
    written_at = F.when(_is_record(), F.col("version"))
    newest = (
        changes.where(F.col("kind").isin("write", "delete"))
        .groupBy("key")
        .agg(
            F.max_by("value", written_at).alias("value"),
            F.max(written_at).alias("written"),
            F.max(F.when(F.col("kind") == "delete", F.col("version"))).alias("deleted"),
        )
    )
    with task_errors():
        found = newest.toArrow().to_pylist()
    values = {**removed, **{bytes(row["key"]): bytes(row["value"]) for row in found if row["written"] is not None}}
    deleted = {bytes(row["key"]) for row in found if (row["deleted"] or 0) > (row["written"] or 0)}
    return decode_records(values, deleted)


async def removed_records(store: ObjectStore, claim: Header) -> dict[bytes, bytes]:
    """The records of all streams in the newest snapshot of a truncated log, by key. As ``values_in_snapshot``."""
    return await values_in_snapshot(store, claim, RECORDS_PREFIX, prefix_end(RECORDS_PREFIX))
