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
where they come from, ``seqs`` are the numbers of the group's messages as ranges [first, last], ``time_ms`` is when the
newest of them was published, and ``after`` is through which number the source was decided before the micro-batch (null:
written by an earlier version). A record is its own transaction, the last one of its batch object, so it is durable
exactly when its group is.

Retention may remove records. The newest one is then in the newest snapshot, as the value of its key. The outcomes of
the other groups of its micro-batch are not known any more (``lost_groups``).

Any other bytes under these keys raise CorruptData.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from hashlib import blake2b
from itertools import islice
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, SparkSession
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
from holdfast.commit.format.transaction import Write, prefix_end
from holdfast.commit.reading.lineage import lineage_of
from holdfast.commit.reading.reader import LoggedBatch, read_header
from holdfast.errors import Code, CorruptData, NotFound
from holdfast.objects.port import ObjectStore
from holdfast.snapshots.reading import newest_snapshot, read_tables
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
    after: int | None = None

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
    try:
        return decode(data, key, GroupRecord, "ingest")
    except CorruptData as error:
        raise CorruptData(
            "a key below spark/ingest/ holds something that no ingest of this version wrote",
            code=Code.CORRUPT_LOG,
            hint="if a later version wrote it, use that version. Only ingests write there: if a client did, and no "
            "ingest of this name took requests from this source, delete the key while a service leads the log; the "
            "names of other ingests can then be used. The ingest of this name needs its last record under the key",
            key=key.decode("utf-8", "replace"),
            cause=str(error.fields.get("cause", "")),
        ) from error


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
    columns = "version,kind,key,value,request_id"
    rows = spark.read.format("holdfast").option("url", url).option("columns", columns).load()
    written = rows.where((F.col("key") == F.lit(key)) & _is_record())
    with task_errors():
        newest = written.agg(F.max_by("value", "version")).first()
    if newest is None or newest[0] is None:
        return []
    number = str(_decode_group(bytes(newest[0]), key).batch)
    same = written.where(F.get_json_object(F.col("value").cast("string"), "$.batch") == number)
    with task_errors():
        values: Iterable[bytes] = same.select("value").toArrow()["value"].to_pylist()
    return [_decode_group(bytes(value), key) for value in values]


def _is_record() -> Column:
    """A request of a client that has an id is not a record, whatever its key."""
    return (F.col("kind") == "write") & F.col("request_id").isNull()


async def value_in_snapshot(store: ObjectStore, claim: Header, key: bytes) -> bytes | None:
    """The newest value of ``key`` in a truncated log whose rest has none; None for a log that was not truncated.

    Raises and cost: as ``values_in_snapshot``.
    """
    return (await values_in_snapshot(store, claim, key, key + b"\0")).get(key)


async def values_in_snapshot(store: ObjectStore, claim: Header, begin: bytes, end: bytes | None) -> dict[bytes, bytes]:
    """The values of the keys from ``begin`` to before ``end`` in the newest snapshot of a truncated log.

    A log is truncated only where a snapshot has its state, so these and the rest of the log are all there is. Empty for
    a log that was not truncated. Raises: NotFound (``log_truncated``: no snapshot is left), CorruptData, Unavailable.
    Cost: a LIST, a manifest, and the parts that may have such keys, one after the other in memory.
    """
    if claim.truncated_through == 0:
        return {}
    manifest = await newest_snapshot(store, await lineage_of(store, claim), claim.last_version)
    if manifest is None or manifest.version < claim.truncated_through:
        raise NotFound(
            "the log was truncated, and no snapshot has what ingests recorded in the part that was removed",
            code=Code.LOG_TRUNCATED,
            hint="restore the log's newest snapshot from a backup: without it, requests could be committed twice",
            truncated_through=claim.truncated_through,
            newest_snapshot=None if manifest is None else manifest.version,
        )
    parts = [part for part in manifest.parts if part.last_key >= begin and (end is None or part.first_key < end)]
    found: dict[bytes, bytes] = {}
    async with aclosing(read_tables(store, manifest, parts)) as tables:
        async for table in tables:
            wanted = pc.call_function("greater_equal", [table["key"], pa.scalar(begin, pa.binary())])
            if end is not None:
                before = pc.call_function("less", [table["key"], pa.scalar(end, pa.binary())])
                wanted = pc.call_function("and", [wanted, before])
            rows = table.filter(wanted)
            found |= zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)
    return found


async def record_in_snapshot(store: ObjectStore, claim: Header, key: bytes) -> GroupRecord | None:
    """The newest record of a stream in a truncated log whose rest has none of its records.

    Raises and cost: as ``values_in_snapshot``.
    """
    value = await value_in_snapshot(store, claim, key)
    return None if value is None else _decode_group(value, key)


def lost_groups(oldest: GroupRecord, kept: Iterable[int]) -> GroupRecord:
    """In the place of the groups of a micro-batch before ``oldest`` whose records retention has removed.

    Their outcomes are not known any more: ``log_truncated``. ``kept``: the numbers above ``oldest.after`` and before
    the first of ``oldest`` that the source still has. A message that is gone has any other number between the two.
    """
    numbers: list[int] = []
    if oldest.seqs:
        begin, past = missing_before(oldest)
        numbers = sorted(kept)[-oldest.first :]
        taken = set(numbers)
        numbers += islice((each for each in range(begin, past) if each not in taken), oldest.first - len(numbers))
    return msgspec.structs.replace(
        oldest,
        first=0,
        outcomes=(RequestOutcome(str(Code.LOG_TRUNCATED)),) * oldest.first,
        digest=None,
        seqs=ranges_of(sorted(numbers)),
    )


def missing_before(oldest: GroupRecord) -> tuple[int, int]:
    """From where to before where the messages of the micro-batch before this group have their numbers."""
    past = oldest.seqs[0][0]
    # A record of an earlier version does not say where its micro-batch began.
    return (past - oldest.first if oldest.after is None else oldest.after + 1), past


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


def decode_records(values: Mapping[bytes, bytes], deleted: Container[bytes]) -> dict[str, GroupRecord]:
    """Records by the names of their streams. A key in ``deleted`` may hold anything else.

    Raises: CorruptData, which names the key.
    """
    records: dict[str, GroupRecord] = {}
    for key in sorted(values):
        try:
            record = _decode_group(values[key], key)
        except CorruptData:
            if key in deleted:
                continue
            raise
        records[key.removeprefix(RECORDS_PREFIX).decode(errors="replace")] = record
    return records


async def removed_records(store: ObjectStore, claim: Header) -> dict[bytes, bytes]:
    """The records of all streams in the newest snapshot of a truncated log, by key. As ``values_in_snapshot``."""
    return await values_in_snapshot(store, claim, RECORDS_PREFIX, prefix_end(RECORDS_PREFIX))
