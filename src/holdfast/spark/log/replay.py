"""``replay``: commit the transactions of one log to another log, in their order.

Each source transaction becomes one with the same operations. With it the record of the job ``replay/{source log id}``
becomes the source's version, which is the offset. Request ids, preconditions and records of jobs are not copied.
Exactly once: batches are acknowledged in slot order, so the newest offset in the target is exact after any crash, and a
run claims the target before it reads that offset.

The driver commits, since one leader gives the versions, in the order of the source; tasks only read. Memory on the
driver: ``IN_FLIGHT_BYTES`` and a chunk of transactions, and of Spark two partitions of ``PARTITION_BYTES``; a single
transaction, or an object of the source, that is larger counts as a whole.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pyspark.sql import Row, SparkSession

from holdfast.commit.format.transaction import (
    Committed,
    Delete,
    JobChange,
    Operation,
    RangeDelete,
    Transaction,
    Write,
)
from holdfast.commit.service import CommitService, ServiceOptions
from holdfast.commit.stages.events import NO_STORE_PARTS, CommitEntry, request_bytes
from holdfast.errors import Closed, Code, HoldfastError
from holdfast.objects.budget import BudgetedStore
from holdfast.objects.open import open_store
from holdfast.objects.port import ObjectStore
from holdfast.objects.retrying import RetryingStore
from holdfast.spark.log.increments import Increment, next_increment
from holdfast.spark.log.job_records import newest_record
from holdfast.spark.log.runner import PipelineJob, StepResult
from holdfast.spark.runtime.store_thread import LoopThread
from holdfast.spark.runtime.tasks import grouped
from holdfast.spark.source.chain import log_head

CHUNK_TRANSACTIONS: Final = 1_000
CHUNK_BYTES: Final = 4 * 2**20
"""A chunk has at most this, or one transaction."""
CHUNKS_IN_FLIGHT: Final = 8
IN_FLIGHT_BYTES: Final = 32 * 2**20
PARTITION_BYTES: Final = 16 * 2**20
"""Of the log's objects. Spark holds a partition that the driver reads, and the next one."""
CONNECTIONS_MAX: Final = 64
CREATES_MAX: Final = 48


@dataclass(frozen=True, slots=True)
class _Sent:
    """A chunk in flight: how many it commits once it is done, the source's version that it ends at, and its bytes."""

    done: Future[int]
    through: int
    size: int


class Replay(PipelineJob):
    """The transactions of the log at ``log_url`` in the log at ``output_url``. Leads the target until ``close``."""

    name = "replay"

    def __init__(self, spark: SparkSession, log_url: str, output_url: str, *, after: int = 0) -> None:
        self._spark = spark
        self._log_url = log_url
        self._output_url = output_url
        self._offset = after
        self._thread = LoopThread(lambda: _opened(output_url))
        self._service: CommitService | None = None
        self._job = ""

    def log_id(self) -> str:
        """As ``PipelineJob``."""
        return log_head(self._log_url).log_id

    def offset(self, log_id: str) -> int:
        """As ``PipelineJob``. The first call takes the lead of the target, and begins a log there if there is none."""
        if self._service is None:
            self._job = f"replay/{log_id}"
            self._service = self._thread.run(lambda store: CommitService.lead(store, ServiceOptions(allow_new=True)))
            record, _ = newest_record(self._spark, self._thread, self._output_url, self._service.claim, self._job)
            self._offset = max(self._offset, int(record or 0))
        return self._offset

    def look(self, after: int, until: int | None, step_bytes: int) -> Increment:
        """As ``PipelineJob``."""
        return next_increment(self._log_url, after, until=until, step_bytes=step_bytes)

    def advance(self, increment: Increment) -> StepResult:
        """As ``PipelineJob``. Not one commit but many: the offset moves with each of them."""
        reader = self._spark.read.format("holdfast").option("url", self._log_url).option("shape", "transactions")
        reader = reader.option("columns", "version,operations").option("startingVersion", str(increment.after + 1))
        reader = reader.option("targetPartitionBytes", str(PARTITION_BYTES))
        rows = reader.option("endingVersion", str(increment.through)).load()
        in_flight: deque[_Sent] = deque()
        committed = 0
        try:
            transactions = self._transactions(rows.toLocalIterator(prefetchPartitions=True))
            for chunk in grouped(transactions, request_bytes, CHUNK_BYTES, CHUNK_TRANSACTIONS):
                done = self._thread.start(partial(self._commit, chunk))
                in_flight.append(_Sent(done, _source_version(chunk[-1]), sum(map(request_bytes, chunk))))
                while len(in_flight) >= CHUNKS_IN_FLIGHT or sum(each.size for each in in_flight) >= IN_FLIGHT_BYTES:
                    committed += self._finish_oldest(in_flight)
        finally:
            # Also when reading has failed: what was sent is in the target, and the next try continues after it.
            while in_flight:
                committed += self._finish_oldest(in_flight)
        self._offset = increment.through
        return StepResult(rows=committed)

    def _finish_oldest(self, in_flight: deque[_Sent]) -> int:
        """Wait for the oldest chunk in flight, and move the offset after it."""
        oldest = in_flight.popleft()
        try:
            committed = oldest.done.result()
        except BaseException:
            in_flight.clear()  # none of the later ones may move the offset over it
            raise
        self._offset = oldest.through
        return committed

    def close(self) -> None:
        """Resign, so that the next leader need not wait. Harmless when nothing was led."""
        service, self._service = self._service, None
        try:
            if service is not None:
                self._thread.run(lambda _: _resign(service))
        finally:
            self._thread.close()

    def _transactions(self, rows: Iterable[Row]) -> Iterator[Transaction]:
        for row in rows:
            operations = [operation for each in row["operations"] if (operation := operation_of(each)) is not None]
            yield Transaction(operations, jobs=(JobChange(self._job, b"%d" % row["version"]),))

    async def _commit(self, chunk: list[Transaction], _: ObjectStore) -> int:
        assert self._service is not None, "a replay leads its target"
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        failure: HoldfastError | None = None
        left = len(chunk)

        def replied(entry: CommitEntry) -> None:
            nonlocal left, failure
            left -= 1
            if not isinstance(entry.outcome, Committed):
                failure = entry.outcome if isinstance(entry.outcome, HoldfastError) else _deposed()
            if left == 0 and not done.done():
                done.set_result(None)

        self._service.submit([CommitEntry(txn, replied, parts=NO_STORE_PARTS) for txn in chunk])
        await done
        if failure is not None:
            raise failure
        return len(chunk)


def _opened(url: str) -> ObjectStore:
    opened = open_store(url, create_missing=True, connections_max=CONNECTIONS_MAX, retry=None)
    return RetryingStore(BudgetedStore(opened, connections_max=CONNECTIONS_MAX, creates_max=CREATES_MAX))


async def _resign(service: CommitService) -> None:
    if not service.ended.done():
        await service.step_down()
    await service.close()


def _deposed() -> Closed:
    return Closed("the replay lost the lead of its target", code=Code.DEPOSED, hint="run it again: it continues")


def _source_version(txn: Transaction) -> int:
    (offset,) = txn.jobs
    assert isinstance(offset.value, bytes), "a replayed transaction has its offset"
    return int(offset.value)


def operation_of(row: Mapping[str, Any]) -> Operation | None:
    """The operation of a row, None for an empty range: it deletes nothing, and a leader takes in no such thing."""
    match row["kind"]:
        case "write":
            return Write(bytes(row["key"]), bytes(row["value"]))
        case "delete":
            return Delete(bytes(row["key"]))
        case _:
            begin, end = bytes(row["key"]), None if row["end"] is None else bytes(row["end"])
            return RangeDelete(begin, end) if end is None or begin < end else None
