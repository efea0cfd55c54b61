"""``write.format("holdfast")`` and ``writeStream``: the writers that Spark calls.

Spark creates the writer on the driver and pickles it into tasks, whose ``write`` sends. After all tasks it calls
``commit`` on the driver; a stream's in another process, on a new writer. ``abort`` undoes nothing: a write that runs
again finds its own intent, or done, and sends only what is missing.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from holdfast.errors import Code, InvalidRequest
from holdfast.spark.options import WriteOptions
from holdfast.spark.runtime.worker_errors import states_errors
from holdfast.spark.sink.digest import Sent
from holdfast.spark.sink.micro_batch import MicroBatch, running_micro_batch, token_of
from holdfast.spark.sink.record import Intent, Wanted, begin, finish, finish_empty, plan_micro_batch
from holdfast.spark.sink.service import open_client
from holdfast.spark.sink.store_task import check_store, digest_messages, publish_partition
from holdfast.spark.sink.task import digest_partition, send_partition


@dataclass
class Written(WriterCommitMessage):
    """What a task reports: the write it worked for, and what it did."""

    token: str
    sent: Sent
    micro_batch: MicroBatch | None = None


def wanted_batch(options: WriteOptions) -> Wanted:
    """What a batch writes: the user's token, or one of its own that no other write has."""
    if options.token is None:
        return Wanted(secrets.token_hex(16), "")
    return Wanted(token_of("batch", options.token), options.token)


def running_task() -> TaskContext:
    """The context of this task."""
    context = TaskContext.get()
    assert context is not None, "only tasks send"
    return context


@states_errors
class HoldfastBatchWriter(DataSourceArrowWriter):
    """A batch write. Made on the driver, where it commits the intent. Pickled into the tasks: it holds plain values."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._wanted = wanted_batch(options)
        with open_client(options) as client:
            if options.store is not None:
                check_store(client, options)
            self._intent: Intent = begin(client, options, self._wanted)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """In a task: send the missing transactions of its partition. Raises: as ``send_partition``."""
        partition = running_task().partitionId()
        return Written(self._wanted.token, _write(self._options, self._intent, partition, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when every task is done. Raises: Fenced; InvalidRequest; what the client raises."""
        written = _reports(messages, self._options)
        with open_client(self._options) as client:
            finish(client, self._options, self._wanted, [each.sent for each in written])


@states_errors
class HoldfastStreamWriter(DataSourceStreamArrowWriter):
    """The write of one micro-batch. Made on the driver, where it reads the record: the first row makes the intent."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        with open_client(options) as client:
            if options.store is not None:
                check_store(client, options)
            self._planned = plan_micro_batch(client, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """In a task: commit the intent, unless there are no rows, and send what is missing.

        Raises: as ``begin`` and ``send_partition``.
        """
        context = running_task()
        micro_batch, partition = running_micro_batch(context), context.partitionId()
        wanted = self._planned.wanted(micro_batch)
        first = next((batch for batch in iterator if batch.num_rows), None)
        sent = Sent(partition, is_read=not self._planned.is_written)
        if first is not None and not self._planned.is_written:
            with open_client(self._options) as client:
                intent = begin(client, self._options, wanted, self._planned)
            sent = _write(self._options, intent, partition, chain([first], iterator))
        return Written(wanted.token, sent, micro_batch)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """On the driver, when every task is done. Raises: Fenced; InvalidRequest; what the client raises."""
        written = _reports(messages, self._options)
        micro_batch = written[0].micro_batch if written else None
        if micro_batch is None or self._planned.is_written:
            return
        wanted = self._planned.wanted(micro_batch)
        if micro_batch.number != batchId or any(each.token != wanted.token for each in written):
            raise _other_write(self._options)
        sent = [each.sent for each in written]
        end = finish if any(part.transactions or not part.is_read for part in sent) else finish_empty
        with open_client(self._options) as client:
            end(client, self._options, wanted, sent)


def _write(options: WriteOptions, intent: Intent, partition: int, batches: Iterator[pa.RecordBatch]) -> Sent:
    if intent.version is not None:
        send = send_partition if options.store is None else publish_partition
        with open_client(options) as client:
            return send(client, options, intent, partition, batches)
    if intent.compares:
        if options.store is not None:
            return digest_messages(partition, batches)
        return digest_partition(options, partition, batches)
    return Sent(partition, is_read=False)


def _reports(messages: Sequence[WriterCommitMessage | None], options: WriteOptions) -> list[Written]:
    """What the tasks report, which all work for one write. Raises: InvalidRequest."""
    written = [each for each in messages if isinstance(each, Written)]
    if len(written) != len(messages) or len({each.token for each in written}) > 1:
        raise _other_write(options)
    return written


def _other_write(options: WriteOptions) -> InvalidRequest:
    return InvalidRequest(
        "tasks report another write than the one that ends here: the application's record moved under the query",
        code=Code.BAD_CONFIGURATION,
        hint="one writer at a time: stop the other, or give this one an application of its own",
        application=options.application,
    )
