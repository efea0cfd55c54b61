"""``replay``: commit the transactions of one log to another log, in their order.

Each source transaction becomes one with the same operations. With it the record of the job ``replay/{source log id}``
becomes the source's version, which is the offset. Request ids, preconditions and records of jobs are not copied.
Exactly once:
batches are acknowledged in slot order, so the newest offset in the target is exact after any crash, and a run claims
the target before it reads that offset.

The driver commits, since one leader gives the versions, in the order of the source; tasks only read. Memory on the
driver: ``IN_FLIGHT_BYTES`` and a chunk of transactions, and of Spark two partitions of ``PARTITION_BYTES``; a single
transaction, or an object of the source, that is larger counts as a whole.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, TypeVar

from pyspark.sql import Row, SparkSession

from holdfast.commit.format.batch import Header, Kind, object_name
from holdfast.commit.format.transaction import (
    Committed,
    Delete,
    JobChange,
    Operation,
    RangeDelete,
    Transaction,
    Write,
)
from holdfast.commit.reading.reader import LoggedBatch, read_header
from holdfast.commit.service import CommitService, ServiceOptions
from holdfast.commit.stages.events import NO_STORE_PARTS, CommitEntry
from holdfast.errors import Closed, Code, HoldfastError, NotFound
from holdfast.objects.budget import BudgetedStore
from holdfast.objects.open import open_store
from holdfast.objects.port import ObjectReader
from holdfast.objects.retrying import RetryingStore
from holdfast.spark.log.increments import Increment, next_increment
from holdfast.spark.log.runner import StepResult
from holdfast.spark.source.chain import log_head

T = TypeVar("T")

CHUNK_TRANSACTIONS: Final = 1_000
CHUNK_BYTES: Final = 4 * 2**20
"""A chunk ends with the transaction that reaches this."""
CHUNKS_IN_FLIGHT: Final = 8
IN_FLIGHT_BYTES: Final = 32 * 2**20
PARTITION_BYTES: Final = 16 * 2**20
"""Of the log's objects. Spark holds a partition that the driver reads, and the next one."""
OPERATION_BYTES: Final = 200
"""What an operation takes without its key and value."""
CONNECTIONS_MAX: Final = 64
CREATES_MAX: Final = 48


@dataclass(frozen=True, slots=True)
class _Sent:
    """A chunk in flight: how many it commits once it is done, the source's version that it ends at, and its bytes."""

    done: Future[int]
    through: int
    size: int


class Replay:
    """The transactions of the log at ``log_url`` in the log at ``output_url``. Leads the target until ``close``."""

    name = "replay"

    def __init__(self, spark: SparkSession, log_url: str, output_url: str, *, after: int = 0) -> None:
        self._spark = spark
        self._log_url = log_url
        self._output_url = output_url
        self._offset = after
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-replay", daemon=True)
        self._service: CommitService | None = None
        self._job = ""

    settles = False

    def log_id(self) -> str:
        """As ``Job``."""
        return log_head(self._log_url).log_id

    def offset(self, log_id: str) -> int:
        """As ``Job``. The first call takes the lead of the target, and begins a log there when there is none."""
        if self._service is None:
            self._job = f"replay/{log_id}"
            self._thread.start()
            self._service = self._wait(self._lead())
            self._offset = max(self._offset, self._wait(self._reached(self._service)))
        return self._offset

    def look(self, after: int, until: int | None, step_bytes: int) -> Increment:
        """As ``Job``."""
        return next_increment(self._log_url, after, until=until, step_bytes=step_bytes)

    def advance(self, increment: Increment) -> StepResult:
        """As ``Job``. Not one commit but many: the offset moves with each of them."""
        reader = self._spark.read.format("holdfast").option("url", self._log_url).option("shape", "transactions")
        reader = reader.option("columns", "version,operations").option("startingVersion", str(increment.after + 1))
        reader = reader.option("targetPartitionBytes", str(PARTITION_BYTES))
        rows = reader.option("endingVersion", str(increment.through)).load()
        in_flight: deque[_Sent] = deque()
        committed = 0
        try:
            for chunk, size in chunks_of(self._transactions(rows.toLocalIterator(prefetchPartitions=True))):
                in_flight.append(_Sent(self._start(self._commit(chunk)), _source_version(chunk[-1]), size))
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
        if not self._thread.is_alive():
            self._loop.close()
            return
        try:
            if self._service is not None:
                self._wait(self._resign(self._service))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _start(self, work: Coroutine[object, object, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _wait(self, work: Coroutine[object, object, T]) -> T:
        return self._start(work).result()

    async def _lead(self) -> CommitService:
        opened = open_store(self._output_url, create_missing=True, connections_max=CONNECTIONS_MAX, retry=None)
        store = RetryingStore(BudgetedStore(opened, connections_max=CONNECTIONS_MAX, creates_max=CREATES_MAX))
        try:
            return await CommitService.lead(store, ServiceOptions(allow_new=True))
        except BaseException:
            await store.close()
            raise

    async def _reached(self, service: CommitService) -> int:
        """The offset in the newest transaction that has one. Cost: the objects of others since then."""
        header = service.claim
        while header.slot != header.prev:
            before = await read_header(service.store, header.prev)
            if before is None:
                raise NotFound("retention removed the replay's last offset", code=Code.LOG_TRUNCATED)
            header = before
            if header.kind is Kind.DATA and header.transactions:
                value = await _newest_record(service.store, header, self._job)
                if value is not None:
                    return int(value)
        return 0

    async def _resign(self, service: CommitService) -> None:
        if not service.ended.done():
            await service.step_down()
        await service.close()
        await service.store.close()

    def _transactions(self, rows: Iterable[Row]) -> Iterator[Transaction]:
        for row in rows:
            operations = [operation for each in row["operations"] if (operation := _operation(each)) is not None]
            yield Transaction(operations, jobs=(JobChange(self._job, b"%d" % row["version"]),))

    async def _commit(self, chunk: list[Transaction]) -> int:
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


def chunks_of(transactions: Iterable[Transaction]) -> Iterator[tuple[list[Transaction], int]]:
    """The transactions in lists of at most ``CHUNK_TRANSACTIONS``, and about how many bytes each takes."""
    chunk: list[Transaction] = []
    size = 0
    for txn in transactions:
        chunk.append(txn)
        size += sum(_size(operation) for operation in txn.operations)
        if len(chunk) >= CHUNK_TRANSACTIONS or size >= CHUNK_BYTES:
            yield chunk, size
            chunk, size = [], 0
    if chunk:
        yield chunk, size


def _size(operation: Operation) -> int:
    match operation:
        case Write(key, value):
            return len(key) + len(value) + OPERATION_BYTES
        case Delete(key):
            return len(key) + OPERATION_BYTES
        case RangeDelete(begin, end):
            return len(begin) + len(end or b"") + OPERATION_BYTES


def _deposed() -> Closed:
    return Closed("the replay lost the lead of its target", code=Code.DEPOSED, hint="run it again: it continues")


async def _newest_record(store: ObjectReader, header: Header, job: str) -> bytes | None:
    batch = LoggedBatch(header, await store.read(object_name(header.slot)))
    for txn in reversed(batch.transactions()):
        for change in txn.jobs:
            if change.name == job and isinstance(change.value, bytes):
                return change.value
    return None


def _source_version(txn: Transaction) -> int:
    (offset,) = txn.jobs
    assert isinstance(offset.value, bytes), "a replayed transaction has its offset"
    return int(offset.value)


def _operation(row: Row) -> Operation | None:
    """The operation of a row, None for an empty range: it deletes nothing, and a leader takes in no such thing."""
    match row["kind"]:
        case "write":
            return Write(bytes(row["key"]), bytes(row["value"]))
        case "delete":
            return Delete(bytes(row["key"]))
        case _:
            begin, end = bytes(row["key"]), None if row["end"] is None else bytes(row["end"])
            return RangeDelete(begin, end) if end is None or begin < end else None
