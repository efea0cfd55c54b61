"""The record that an ingest keeps in the log: what became of each request, and how far its source is decided.

The record of the job ``ingest/{name}``, after each group of requests. JSON: ``format`` 1; ``batch``, the micro-batch's
number; ``first``, the index in it of the group's first request; ``told``, for each request its code (null: committed),
its version, and its failed preconditions; ``digest``, which names the requests of the group; ``before``, how many
requests the stream had before this micro-batch; ``publisher``, the micro-batch that began the life of the publisher of
its verdicts, and ``published``, the requests before that one. Where the requests are numbered messages: ``source``
names where they come from, ``seqs`` are the numbers of the group's messages as ranges [first, last], ``time_ms`` is
when the newest of them was published, and ``after`` is through which number the source was decided before the
micro-batch. A record is its own transaction, the last one of its batch object, so it is durable exactly when its group
is.

A run finds the newest records near the log's end, anywhere in it, or in its newest snapshot. Retention may remove
records. The newest one is then in the newest snapshot. The outcomes of the other groups of its
micro-batch are not known any more (``lost_groups``).

Any other bytes raise CorruptData.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Final, Literal

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark program uses

from holdfast.commit.format.batch import Header
from holdfast.errors import Code, InvalidRequest
from holdfast.spark.bulk.requests import ParsedRequest
from holdfast.spark.ingest.numbered_source import NumberedSource, Relation, other_messages
from holdfast.spark.log.job_records import newest_of_log, records_in_snapshot, records_nearby, rows_of_jobs
from holdfast.spark.runtime.refusals import bad_configuration
from holdfast.spark.runtime.session import task_errors
from holdfast.spark.runtime.store_thread import StoreThread
from holdfast.spark.sink.record import decode
from holdfast.values import ranges_of


class RequestOutcome(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of one request: a code or a version, and the failed preconditions with what broke them."""

    code: str | None
    version: int | None = None
    conflicts: tuple[tuple[int, int], ...] = ()


class GroupRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcomes of the requests of one group. ``digest`` None: in the place of records that are gone."""

    batch: int
    first: int
    outcomes: tuple[RequestOutcome, ...] = msgspec.field(name="told")
    digest: str | None = None
    format: Literal[1] = 1
    before: int = 0
    publisher: int = 0
    published: int = 0
    source: str | None = None
    seqs: tuple[tuple[int, int], ...] = ()
    time_ms: int = 0
    after: int = 0

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
        content = None if txn is None else (txn.read_version, txn.preconditions, txn.operations)
        digest.update(_encode((each.order, each.request_id, each.refusal, content)))
    return digest.hexdigest()


JOBS_PREFIX: Final = "ingest/"


def job_of_ingest(name: str) -> str:
    """The job of an ingest."""
    return JOBS_PREFIX + name


def lost_groups(oldest: GroupRecord, kept: Iterable[int]) -> GroupRecord:
    """In the place of the groups of a micro-batch before ``oldest`` whose records retention has removed.

    Their outcomes are not known any more: ``log_truncated``. ``kept``: the numbers above ``oldest.after`` and before
    the first of ``oldest`` that the source still has. A message that is gone has any other number between the two.
    """
    numbers: list[int] = []
    if oldest.seqs:
        numbers = sorted(kept)[-oldest.first :]
        taken = set(numbers)
        free = (each for each in range(oldest.after + 1, oldest.seqs[0][0]) if each not in taken)
        numbers += islice(free, oldest.first - len(numbers))
    return msgspec.structs.replace(
        oldest,
        first=0,
        outcomes=(RequestOutcome(str(Code.LOG_TRUNCATED)),) * oldest.first,
        digest=None,
        seqs=tuple(ranges_of(numbers)),
    )


INGEST_LOOK_BACK_OBJECTS: Final = 256


def find_records(
    spark: SparkSession, thread: StoreThread, claim: Header, url: str, name: str, source: NumberedSource | None
) -> list[GroupRecord]:
    """The records of the newest micro-batch in their order; the first one stands for those that retention removed.

    Raises: InvalidRequest (name and source do not belong together), NotFound, CorruptData, Unavailable. Cost: a
    scan of the log for a name without records among the newest objects, and one more for a new name.
    """
    job = job_of_ingest(name)
    nearby = thread.run(
        lambda store: records_nearby(store, claim, job, INGEST_LOOK_BACK_OBJECTS, _are_of_one_micro_batch)
    )
    records = [decode(value, job, GroupRecord) for value in nearby.values]
    records = [each for each in records if each.batch == records[0].batch]
    if not nearby.is_complete:
        records = records_of_log(spark, url, job)
    if not records:
        removed = thread.run(lambda store: records_in_snapshot(store, claim, job)).get(job)
        records = [] if removed is None else [decode(removed, job, GroupRecord)]
    records.sort(key=lambda record: record.first)
    if source is not None:
        others = {} if records else thread.run(lambda store: records_in_snapshot(store, claim, JOBS_PREFIX))
        _require_own_source(spark, url, name, source, records, others)
    if records and records[0].first > 0:
        messages = {} if source is None else source.kept(records[0].after + 1, records[0].seqs[0][0] - 1)
        records.insert(0, lost_groups(records[0], messages))
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
            raise bad_configuration(
                f"the ingest {other!r} has taken requests from this source, so another name would commit them twice",
                hint=f"continue with --name {other}, which needs no checkpoint of its own; or give this ingest a "
                "source of its own",
                name=other,
                source=source.identity,
            )
        if relation is Relation.PUT_BACK:
            raise other_messages(source, other, record.seqs[-1][1], record.time_ms, relation)


def _are_of_one_micro_batch(values: Sequence[bytes]) -> bool:
    """Whether these records, newest first, are all of the newest micro-batch, and perhaps one of the one before."""
    newest, oldest = (decode(values[index], "", GroupRecord) for index in (0, -1))
    return oldest.first == 0 or oldest.batch != newest.batch


def records_of_log(spark: SparkSession, url: str, job: str) -> list[GroupRecord]:
    """The records of the newest micro-batch anywhere in the log. Cost: two scans of the log, by tasks."""
    newest = newest_of_log(spark, url, job)
    if newest is None:
        return []
    number = str(decode(newest, job, GroupRecord).batch)
    written = rows_of_jobs(spark, url, job).where(F.col("key") == F.lit(job.encode()))
    same = written.where(F.get_json_object(F.col("value").cast("string"), "$.batch") == number)
    with task_errors():
        values: Iterable[bytes] = same.select("value").toArrow()["value"].to_pylist()
    return [decode(bytes(value), job, GroupRecord) for value in values]


def newest_records(spark: SparkSession, url: str, removed: Mapping[str, bytes]) -> dict[str, GroupRecord]:
    """The newest record of every stream in the log, by its name. Cost: a scan of the log, by tasks.

    ``removed``: the records in the newest snapshot of a truncated log.
    """
    newest = rows_of_jobs(spark, url, JOBS_PREFIX).groupBy("key").agg(F.max_by("value", "version").alias("value"))
    with task_errors():
        rows = newest.toArrow().to_pylist()
    values = {**removed, **{row["key"].decode(): bytes(row["value"]) for row in rows}}
    return {job.removeprefix(JOBS_PREFIX): decode(values[job], job, GroupRecord) for job in sorted(values)}


def another_source(name: str, first: str, given: str) -> InvalidRequest:
    """For a name whose records name another source."""
    return bad_configuration(
        "the name of this ingest belongs to another source of requests",
        hint="if this source is that one under another identity, because a queue lost the file with its id: give "
        "--source-moved (is_moved=True) once, and no other name, which would commit its requests twice. Give a source "
        "with other requests a name of its own",
        name=name,
        source_of_name=first,
        source=given,
    )
