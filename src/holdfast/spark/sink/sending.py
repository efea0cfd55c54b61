"""Stage the rows of a write in tasks, and send those that its manifest names; or send a task's own at once.

A task checks its rows as they will be sent, so that a bad row fails the job before one of them is committed. The driver
sends, and not the service: a transaction takes the way of every other one, with its rights and limits. Only rows of the
manifest are sent, in its order, over several connections, so each partition is cut into the same chunks in every run. A
sender looks at the record before each chunk (``progress``), so nothing is sent after done.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Lock
from typing import Final

import pyarrow as pa
import structlog

from holdfast.client import Client, ClientOptions
from holdfast.errors import Code, HoldfastError, NotFound
from holdfast.spark.options import WriteOptions
from holdfast.spark.runtime.service_client import ServiceClient
from holdfast.spark.sink.identity import SentPartition
from holdfast.spark.sink.record import Intent, WriteId, finish, has_notes, read_record
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
from holdfast.spark.sink.store_task import digest_messages, publish_partition
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
