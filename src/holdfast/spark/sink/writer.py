"""``write.format("holdfast")`` and ``writeStream``: the writers that Spark calls.

Spark creates the writer on the driver and pickles it into tasks, whose ``write`` stages the rows of a partition. After
all tasks it calls ``commit`` on the driver, which fixes the rows and sends them; a stream's in another process, on a
new writer. ``abort`` undoes nothing: a write that runs again finds its manifest, or done, and sends what is missing.

A task checks its rows as they will be sent, so that a bad row fails the job before one of them is committed. The driver
sends, and not the service: a transaction takes the way of every other one, with its rights and limits. Only rows of the
manifest are sent, in its order, over several connections, so each partition is cut into the same chunks in every run. A
sender looks at the record before each chunk (``progress``), so nothing is sent after done.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from threading import Lock
from typing import Final

import pyarrow as pa
import structlog
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from holdfast.client import Client, ClientOptions
from holdfast.errors import Code, HoldfastError, InvalidRequest, NotFound
from holdfast.spark.options import WriteOptions
from holdfast.spark.runtime.processes import states_errors
from holdfast.spark.runtime.refusals import bad_configuration
from holdfast.spark.runtime.service_client import ServiceClient
from holdfast.spark.runtime.tasks import running_task
from holdfast.spark.sink.identity import MicroBatch, SentPartition, running_micro_batch, token_of
from holdfast.spark.sink.record import (
    Intent,
    WriteId,
    begin,
    finish,
    has_no_rows,
    has_notes,
    read_record,
    wanted_micro_batch,
)
from holdfast.spark.sink.stage import (
    MANIFEST,
    Stage,
    StagedPartition,
    TryParts,
    WriteManifest,
    find_manifest,
    fix_manifest,
    open_stage,
    rows_of,
    stage_lost,
)
from holdfast.spark.sink.store_task import check_store, digest_messages, publish_partition
from holdfast.spark.sink.task import (
    CHUNK_BYTES,
    CHUNK_TRANSACTIONS,
    digest_partition,
    send_partition,
)

CONNECTIONS: Final = 4
REPORT_SECONDS: Final = 10.0

log = structlog.get_logger("holdfast.spark.sink")


def open_client(options: WriteOptions) -> ServiceClient:
    """A client of the service; its bearer token is this machine's environment's. Raises: InvalidRequest."""
    bounds = ClientOptions(commits_per_request_max=CHUNK_TRANSACTIONS, commits_bytes_max=CHUNK_BYTES)
    return ServiceClient(options.url, bounds)


def send_now(options: WriteOptions, intent: Intent, partition: int, batches: Iterable[pa.RecordBatch]) -> SentPartition:
    """In a task with ``direct``: send the missing rows of its partition. Raises: as ``send_partition``."""
    if intent.version is None:
        return digest_rows(options, partition, batches)
    send = send_partition if options.store is None else publish_partition
    with open_client(options) as client:
        return send(client, options, intent, partition, batches)


def digest_rows(options: WriteOptions, partition: int, batches: Iterable[pa.RecordBatch]) -> SentPartition:
    """Read the rows of a partition, check that each can be sent, and send none. Raises: InvalidRequest."""
    if options.store is not None:
        return digest_messages(partition, batches)
    return digest_partition(options, partition, batches)


def send_staged(
    client: ServiceClient,
    options: WriteOptions,
    wanted: WriteId,
    intent: Intent,
    staged: Sequence[StagedPartition] | None,
) -> None:
    """On the driver: fix the rows, send what is missing of them, and commit that the write is done.

    ``staged``: what the tasks of this run staged; None where they found a manifest. After a crash the next run with
    this token goes on from the manifest. Raises: Fenced; NotFound (``stage_lost``); what the client raises.
    """
    token = wanted.token
    with open_stage(options, client) as stage:
        try:
            manifest = _fixed(client, stage, options, token, staged)
            sent = _send_fixed(options, intent, token, manifest)
        except NotFound as error:
            if error.code is Code.STAGE_LOST:
                record = read_record(client, options.application).record
                if record is not None and record.has_done(token):
                    return  # another driver has sent everything, and removed it
            raise
        finish(client, options, wanted, sent)
        try:
            stage.remove_abandoned(token)
        except HoldfastError as error:  # the rows are committed; what stays is removed after the next write
            log.warning("stage_not_removed", application=options.application, error=error.statement())


def _fixed(
    client: Client, stage: Stage, options: WriteOptions, token: str, staged: Sequence[StagedPartition] | None
) -> WriteManifest:
    """The rows of the write: of this run where no row of another one may have been sent. Raises: NotFound."""
    if staged is not None and not has_notes(client, options.application, token):
        return fix_manifest(stage, token, staged)
    manifest = find_manifest(stage, token)
    if manifest is None:
        raise stage_lost(token, MANIFEST)
    return manifest


def _send_fixed(options: WriteOptions, intent: Intent, token: str, manifest: WriteManifest) -> list[SentPartition]:
    """Send every partition; what each is. Raises: the first error; the others have ended then."""
    todo = deque(manifest.partitions)
    sent: dict[int, SentPartition] = {}
    of_rows, lock, reported = sum(map(_rows_in, manifest.partitions)), Lock(), time.monotonic()

    def work() -> None:
        nonlocal reported
        with open_client(options) as client, open_stage(options, client) as stage:
            while todo:
                try:
                    partition = todo.popleft()
                except IndexError:
                    return
                try:
                    part = _send(client, options, intent, partition, rows_of(stage, token, partition))
                except BaseException:
                    todo.clear()
                    raise
                with lock:
                    sent[partition.partition] = part
                    if time.monotonic() - reported >= REPORT_SECONDS:
                        reported = time.monotonic()
                        rows = sum(_rows_in(each) for each in manifest.partitions if each.partition in sent)
                        log.info("rows_sent", application=options.application, rows=rows, of_rows=of_rows)

    if todo:
        count = min(CONNECTIONS, len(todo))
        with ThreadPoolExecutor(count, "holdfast-sink") as threads:
            for each in [threads.submit(work) for _ in range(count)]:
                each.result()
    return [sent[each.partition] for each in manifest.partitions]


def _rows_in(partition: StagedPartition) -> int:
    return sum(part.rows for part in partition.parts)


def _send(
    client: Client, options: WriteOptions, intent: Intent, staged: StagedPartition, rows: Iterable[pa.RecordBatch]
) -> SentPartition:
    if options.store is not None:
        return publish_partition(client, options, intent, staged.partition, rows)
    sent = send_partition(client, options, intent, staged.partition, rows, staged.digest)
    return replace(sent, transactions=staged.transactions, total=staged.total)


def stage_partition(
    stage: Stage, options: WriteOptions, write: str, partition: int, batches: Iterable[pa.RecordBatch]
) -> tuple[StagedPartition, SentPartition]:
    """Keep the rows of one partition, durably, and say what they are.

    Each try has names of its own: only one that the driver hears of counts. Raises: InvalidRequest for a row that
    cannot be sent. Cost: a request for each 4 MiB, while the next rows are read. Memory: three parts.
    """
    with TryParts(stage, write, f"{partition:06d}-{secrets.token_hex(8)}") as parts:
        sent = digest_rows(options, partition, parts.kept(batches))
        return StagedPartition(partition, parts.whole(), sent.transactions, sent.total), sent


@dataclass
class Written(WriterCommitMessage):
    """What a task reports: the write it worked for, what it sent or read, and what it staged."""

    token: str
    sent: SentPartition
    staged: StagedPartition | None = None
    micro_batch: MicroBatch | None = None


@states_errors
class HoldfastBatchWriter(DataSourceArrowWriter):
    """A batch write. Made on the driver, where it commits the intent. Pickled into the tasks: it holds plain values."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        # The user's token, or one of its own that no other write has.
        token = secrets.token_hex(16) if options.token is None else token_of("batch", options.token)
        self._wanted = WriteId(token, options.token or "")
        with open_client(options) as client:
            check_store(client, options)
            self._intent: Intent = begin(client, options, self._wanted)
        self._is_fixed = not self._intent.is_new and _is_fixed(options, self._wanted.token)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """In a task: stage the rows of its partition. Raises: as ``stage_partition``, with ``direct`` ``send_now``."""
        intent = self._intent if self._options.direct else None
        partition, is_done = running_task().partitionId(), self._intent.version is None
        return _write(self._options, self._wanted, partition, iterator, intent, is_done, self._is_fixed)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when every task is done: send what is missing.

        Raises: Fenced; InvalidRequest; NotFound (``stage_lost``); what the client raises.
        """
        written = _reports(messages, self._options)
        _end(self._options, self._wanted, self._intent, written)


@states_errors
class HoldfastStreamWriter(DataSourceStreamArrowWriter):
    """The write of one micro-batch. Made on the driver, where it reads the record: rows make the intent."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        with open_client(options) as client:
            check_store(client, options)
            self._planned = read_record(client, options.application)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """In a task: stage the rows of its partition. With ``direct``: commit the intent, if there are any, and send.

        Raises: as ``stage_partition``, ``begin`` and ``send_now``.
        """
        options, context = self._options, running_task()
        micro_batch, partition = running_micro_batch(context), context.partitionId()
        wanted = wanted_micro_batch(micro_batch)
        first = next((batch for batch in iterator if batch.num_rows), None)
        if first is None:
            return Written(wanted.token, SentPartition(partition), None, micro_batch)
        record = self._planned.record
        is_done = record is not None and record.has_done(wanted.token)
        is_fixed = record is not None and record.has_begun(wanted.token) and _is_fixed(options, wanted.token)
        intent = None
        if options.direct and not is_done:
            with open_client(options) as client:
                intent = begin(client, options, wanted, self._planned)
        return _write(options, wanted, partition, chain([first], iterator), intent, is_done, is_fixed)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """On the driver, when every task is done: send what is missing.

        Raises: Fenced; InvalidRequest; NotFound (``stage_lost``); what the client raises.
        """
        options = self._options
        written = _reports(messages, options)
        micro_batch = written[0].micro_batch if written else None
        if micro_batch is None:
            return
        wanted = wanted_micro_batch(micro_batch)
        if micro_batch.number != batchId or any(each.token != wanted.token for each in written):
            raise _other_write(options)
        sent = [each.sent for each in written]
        with open_client(options) as client:
            if has_no_rows(sent):
                finish(client, options, wanted, sent)
                return
            intent = begin(client, options, wanted, self._planned)
        _end(options, wanted, intent, written)


def _is_fixed(options: WriteOptions, token: str) -> bool:
    """Whether an earlier run has fixed the rows of this write."""
    if options.direct:
        return False
    with open_client(options) as client, open_stage(options, client) as stage:
        return find_manifest(stage, token) is not None


def _write(
    options: WriteOptions,
    wanted: WriteId,
    partition: int,
    rows: Iterator[pa.RecordBatch],
    intent: Intent | None,
    is_done: bool,
    is_fixed: bool,
) -> Written:
    """In a task: what the state of the write asks for. ``intent``: of a write whose tasks send their own rows."""
    staged = None
    if is_done:
        sent = digest_rows(options, partition, rows)
    elif intent is not None:
        sent = send_now(options, intent, partition, rows)
    elif is_fixed:
        sent = SentPartition(partition, is_read=False)
    else:
        with open_client(options) as client, open_stage(options, client) as stage:
            staged, sent = stage_partition(stage, options, wanted.token, partition, rows)
    return Written(wanted.token, sent, staged, wanted.micro_batch)


def _end(options: WriteOptions, wanted: WriteId, intent: Intent, written: Sequence[Written]) -> None:
    """Send what is missing, unless tasks have, and commit that the write is done."""
    sent = [each.sent for each in written]
    with open_client(options) as client:
        if intent.version is None or options.direct:
            finish(client, options, wanted, sent)
            return
        is_fixed = any(not part.is_read for part in sent)
        staged = [each.staged for each in written if each.staged is not None]
        send_staged(client, options, wanted, intent, None if is_fixed else staged)


def _reports(messages: Sequence[WriterCommitMessage | None], options: WriteOptions) -> list[Written]:
    """What the tasks report, which all work for one write. Raises: InvalidRequest."""
    written = [each for each in messages if isinstance(each, Written)]
    if len(written) != len(messages) or len({each.token for each in written}) > 1:
        raise _other_write(options)
    return written


def _other_write(options: WriteOptions) -> InvalidRequest:
    return bad_configuration(
        "tasks report another write than the one that ends here: the application's record moved under the query",
        hint="one writer at a time: stop the other, or give this one an application of its own",
        application=options.application,
    )
