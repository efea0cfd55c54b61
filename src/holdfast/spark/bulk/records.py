"""The records that bulk jobs keep in the log: a load's progress, and an ingest's reports.

Load: key ``spark/load/{name}``, written by every batch. Value, JSON: ``format`` 1; ``input`` and ``window``, which
name the input; ``requests`` in all; ``through``, how many of them this batch and those before it have finished;
``base`` of the first leadership; ``reigns``: for each leadership that wrote a part, the ordinal before its first and
its base; ``cuts``: after how many requests the conflict window was restarted, because others had written to the log.

Ingest: key ``spark/ingest/{name}``, after each group of requests. Value, JSON: ``format`` 1; ``batch``, the
micro-batch's number; ``first``, the index in it of the group's first request; ``told``, for each request its code
(null: committed), its version, and its failed preconditions; ``digest``, which names the requests of the group (null:
written by an earlier version); ``before``, how many requests the stream had before this micro-batch; ``publisher``, the
micro-batch that began the life of the publisher of its verdicts, and ``published``, the requests before that one. The
last three are 0 where an earlier version wrote the record. Where the requests are numbered messages: ``source`` names
where they come from, ``seqs`` are the numbers of the group's messages as ranges [first, last], and ``time_ms`` is when
the newest of them was published. A record is its own transaction, the last one of its batch object, so it is durable
exactly when its group is.

Any other bytes under these keys raise CorruptData.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Final

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark program uses

from holdfast.commit.format.batch import (
    FIRST_SLOT,
    Header,
    ItemKind,
    Kind,
    LoggedTransaction,
    object_name,
    read_body_table,
)
from holdfast.commit.format.transaction import Write
from holdfast.commit.reading.reader import LoggedBatch, read_header
from holdfast.objects.port import ObjectStore
from holdfast.spark.bulk.requests import ParsedRequest
from holdfast.spark.runtime.session import task_errors
from holdfast.spark.sink.record import decode

LOAD_LOOK_BACK_OBJECTS: Final = 64
EMPTY_LOOK_BACK_OBJECTS: Final = 1024
"""Claims, heartbeats and resign records do not count as objects; each costs a small read."""


class LoadProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a load has come."""

    input: str
    window: int | None
    requests: int
    through: int
    base: int
    leaderships: tuple[tuple[int, int], ...] = msgspec.field(name="reigns")
    cuts: tuple[int, ...] = ()
    format: int = 1

    def encode(self) -> bytes:
        """The bytes of the record."""
        return msgspec.json.encode(self)


def progress_key(name: str) -> bytes:
    """The key of a load's record."""
    return f"spark/load/{name}".encode()


def decode_progress(data: bytes, key: bytes) -> LoadProgress:
    """Raises: CorruptData."""
    return decode(data, key, LoadProgress, "load")


async def newest_nearby(store: ObjectStore, claim: Header, key: bytes) -> tuple[bytes | None, bool, bool]:
    """The newest value of ``key`` before ``claim``, whether the search was complete, and whether others wrote since.

    An interrupted load is among the last writers, so a few objects are usually enough.
    """
    header = claim
    others = False
    looked = empty = 0
    while looked < LOAD_LOOK_BACK_OBJECTS and empty < EMPTY_LOOK_BACK_OBJECTS:
        if header.slot == FIRST_SLOT:
            return None, True, others
        before = await read_header(store, header.prev)
        if before is None:
            return None, True, others
        header = before
        if header.kind is not Kind.DATA or not header.transactions:
            empty += 1
        else:
            looked += 1
            table = read_body_table(await store.read(object_name(header.slot)), header)
            kinds, keys, values = (table[name].to_pylist() for name in ("kind", "key", "value"))
            for kind, name, value in zip(reversed(kinds), reversed(keys), reversed(values), strict=True):
                if kind == ItemKind.WRITE and name == key:
                    return value, True, others
            others = True
    return None, False, True


def newest_of_log(spark: SparkSession, url: str, key: bytes) -> bytes | None:
    """The newest value written to ``key`` anywhere in the log. Cost: a scan of the log, by tasks."""
    rows = spark.read.format("holdfast").option("url", url).option("columns", "version,kind,key,value").load()
    written = rows.where((F.col("key") == F.lit(key)) & (F.col("kind") == "write"))
    with task_errors():
        row = written.agg(F.max_by("value", "version")).first()
    return None if row is None or row[0] is None else bytes(row[0])


INGEST_LOOK_BACK_OBJECTS: Final = 256


class RequestOutcome(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of one request: a code or a version, and the failed preconditions with what broke them."""

    code: str | None
    version: int | None = None
    conflicts: tuple[tuple[int, int], ...] = ()


class GroupRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcomes of the requests of one group."""

    batch: int
    first: int
    outcomes: tuple[RequestOutcome, ...] = msgspec.field(name="told")
    digest: str | None = None
    format: int = 1
    before: int = 0
    publisher: int = 0
    published: int = 0
    source: str | None = None
    seqs: tuple[tuple[int, int], ...] = ()
    time_ms: int = 0

    def encode(self) -> bytes:
        """The bytes of the record."""
        return msgspec.json.encode(self)

    def numbers(self) -> Iterator[int]:
        """The numbers of the group's messages, ascending."""
        for first, last in self.seqs:
            yield from range(first, last + 1)

    def covers(self, requests: Sequence[ParsedRequest]) -> bool:
        """Whether the requests of a micro-batch hold this very group at its place."""
        group = requests[self.first : self.first + len(self.outcomes)]
        return len(group) == len(self.outcomes) and self.digest in (None, requests_digest(group))


_encode: Final = msgspec.msgpack.Encoder().encode


def requests_digest(requests: Sequence[ParsedRequest]) -> str:
    """A name for these requests in this order: their orders, ids, read versions, reads and changes, or refusals."""
    digest = blake2b(digest_size=16)
    for each in requests:
        txn = each.transaction
        asked = None if txn is None else (txn.read_version, txn.preconditions, txn.operations)
        digest.update(_encode((each.order, each.request_id, each.refusal, asked)))
    return digest.hexdigest()


RECORDS_PREFIX: Final = b"spark/ingest/"


def record_key(name: str) -> bytes:
    """The key of a stream's records."""
    return RECORDS_PREFIX + name.encode()


def ranges_of(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Ascending numbers as ranges [first, last].

    >>> ranges_of([1, 2, 3, 7])
    ((1, 3), (7, 7))
    """
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = ranges[-1][0], number
        else:
            ranges.append((number, number))
    return tuple(ranges)


def _decode_group(data: bytes, key: bytes) -> GroupRecord:
    return decode(data, key, GroupRecord, "ingest")


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
            record = _decode_group(value, key)
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
    newest = newest_of_log(spark, url, key)
    if newest is None:
        return []
    number = str(_decode_group(newest, key).batch)
    rows = spark.read.format("holdfast").option("url", url).option("columns", "kind,key,value").load()
    written = rows.where((F.col("key") == F.lit(key)) & (F.col("kind") == "write"))
    same = written.where(F.get_json_object(F.col("value").cast("string"), "$.batch") == number)
    with task_errors():
        values: Iterable[bytes] = same.select("value").toArrow()["value"].to_pylist()
    return [_decode_group(bytes(value), key) for value in values]


def newest_records(spark: SparkSession, url: str) -> dict[str, GroupRecord]:
    """The newest record of every stream in the log, by its name. Cost: a scan of the log, by tasks."""
    rows = spark.read.format("holdfast").option("url", url).option("keyPrefix", RECORDS_PREFIX.decode())
    written = rows.option("columns", "version,kind,key,value").load().where(F.col("kind") == "write")
    with task_errors():
        found = written.groupBy("key").agg(F.max_by("value", "version").alias("value")).toArrow().to_pylist()
    return {
        bytes(row["key"]).removeprefix(RECORDS_PREFIX).decode(errors="replace"): _decode_group(row["value"], row["key"])
        for row in sorted(found, key=lambda row: bytes(row["key"]))
    }
