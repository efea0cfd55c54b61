"""``write.format("holdfast")`` and ``writeStream``: the writers that Spark calls.

Spark creates the writer on the driver; that commits the intent. It pickles the writer into tasks, whose ``write``
sends, and calls ``commit`` on the driver after all tasks. ``abort`` undoes nothing: a write that runs again finds its
own intent, or done, and sends only what is missing.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from holdfast.client import Client, ClientOptions
from holdfast.errors import Code, InvalidRequest
from holdfast.spark.options import WriteOptions
from holdfast.spark.runtime.worker_errors import states_errors
from holdfast.spark.sink.record import Intent, Wanted, begin, finish, stream_range, token_of
from holdfast.spark.sink.task import CHUNK_BYTES, CHUNK_TRANSACTIONS, send_partition

TOKEN_VARIABLE: Final = "HOLDFAST_TOKEN"


@dataclass
class Written(WriterCommitMessage):
    """What a task reports: the write it worked for, its partition, and how many transactions that has."""

    token: str
    partition: int
    transactions: int


def open_client(options: WriteOptions) -> Client:
    """A client of the service; its bearer token is this machine's environment's. Raises: InvalidRequest."""
    bounds = ClientOptions(commits_per_request_max=CHUNK_TRANSACTIONS, commits_bytes_max=CHUNK_BYTES)
    return Client(options.url, token=os.environ.get(TOKEN_VARIABLE) or None, options=bounds)


def wanted_batch(options: WriteOptions) -> Wanted:
    """What a batch writes: the user's token, or one of its own that no other write has."""
    if options.token is None:
        return Wanted(secrets.token_hex(16), "")
    return Wanted(token_of("batch", options.token), options.token)


def wanted_stream(options: WriteOptions) -> Wanted:
    """What the micro-batch under way writes: the source's offset range. Raises: InvalidRequest."""
    assert options.checkpoint is not None, "checked with the options"
    offsets = stream_range(options.checkpoint)
    return Wanted(offsets.token, offsets.name, offsets.start, offsets.end)


@states_errors
class _Writer:
    """What both writers share; it is pickled into the tasks, so it holds plain values."""

    def __init__(self, options: WriteOptions, wanted: Wanted) -> None:
        self._options = options
        self._wanted = wanted
        with open_client(options) as client:
            self._intent: Intent = begin(client, options, wanted)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """In a task: send the missing transactions of its partition. Raises: as ``send_partition``."""
        context = TaskContext.get()
        assert context is not None, "only tasks send"
        partition = context.partitionId()
        if self._intent.version is None:
            return Written(self._intent.token, partition, 0)
        with open_client(self._options) as client:
            sent = send_partition(client, self._options, self._intent, partition, iterator)
        return Written(self._intent.token, partition, sent)

    def _finish(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        for message in messages:
            if not isinstance(message, Written) or message.token != self._wanted.token:
                raise InvalidRequest(
                    "tasks report another write than the one that ends here: the checkpoint moved under the query",
                    code=Code.BAD_CONFIGURATION,
                    application=self._options.application,
                )
        with open_client(self._options) as client:
            finish(client, self._options, self._wanted, len(messages))


@states_errors
class HoldfastBatchWriter(_Writer, DataSourceArrowWriter):
    """A batch write. Made on the driver, where it commits the intent."""

    def __init__(self, options: WriteOptions) -> None:
        super().__init__(options, wanted_batch(options))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when every task is done. Raises: Fenced; what the client raises."""
        self._finish(messages)


@states_errors
class HoldfastStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """The write of one micro-batch. Made on the driver, where it commits the intent or finds it."""

    def __init__(self, options: WriteOptions) -> None:
        super().__init__(options, wanted_stream(options))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """On the driver, when every task is done. Raises: Fenced; what the client raises."""
        self._finish(messages)
