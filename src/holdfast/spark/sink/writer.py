"""``write.format("holdfast")`` and ``writeStream``: the writers that Spark calls.

Spark creates the writer on the driver and pickles it into tasks, whose ``write`` stages the rows of a partition. After
all tasks it calls ``commit`` on the driver, which fixes the rows and sends them; a stream's in another process, on a
new writer. ``abort`` undoes nothing: a write that runs again finds its manifest, or done, and sends what is missing.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from holdfast.errors import InvalidRequest
from holdfast.spark.options import WriteOptions
from holdfast.spark.runtime.processes import states_errors
from holdfast.spark.runtime.refusals import bad_configuration
from holdfast.spark.runtime.tasks import running_task
from holdfast.spark.sink.identity import MicroBatch, SentPartition, running_micro_batch, token_of
from holdfast.spark.sink.record import Intent, WriteId, begin, finish, has_no_rows, read_record, wanted_micro_batch
from holdfast.spark.sink.sending import digest_rows, open_client, send_now, send_staged, stage_partition
from holdfast.spark.sink.stage import StagedPartition, find_manifest, open_stage
from holdfast.spark.sink.store_task import check_store


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
        options, partition, token = self._options, running_task().partitionId(), self._wanted.token
        if self._intent.version is None:
            return Written(token, digest_rows(options, partition, iterator))
        if options.direct:
            return Written(token, send_now(options, self._intent, partition, iterator))
        if self._is_fixed:
            return Written(token, SentPartition(partition, is_read=False))
        return _staged(options, token, partition, iterator)

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
        rows = chain([first], iterator)
        record = self._planned.record
        if record is not None and record.has_done(wanted.token):
            return Written(wanted.token, digest_rows(options, partition, rows), None, micro_batch)
        if options.direct:
            with open_client(options) as client:
                intent = begin(client, options, wanted, self._planned)
            return Written(wanted.token, send_now(options, intent, partition, rows), None, micro_batch)
        if record is not None and record.has_begun(wanted.token) and _is_fixed(options, wanted.token):
            return Written(wanted.token, SentPartition(partition, is_read=False), None, micro_batch)
        return _staged(options, wanted.token, partition, rows, micro_batch)

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


def _staged(
    options: WriteOptions,
    token: str,
    partition: int,
    rows: Iterator[pa.RecordBatch],
    micro_batch: MicroBatch | None = None,
) -> Written:
    with open_client(options) as client, open_stage(options, client) as stage:
        staged, sent = stage_partition(stage, options, token, partition, rows)
    return Written(token, sent, staged, micro_batch)


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
