"""``shape=messages`` with ``queue``: an embedded queue as a batch source, its pages read in parallel.

The queue is opened read-only, so its program may keep running. The plan fixes the last message. Every task must see
the queue's directory under the same path. Cost: one header per page to plan, then each page is read once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from holdfast.errors import Code, NotFound
from holdfast.queue import Message, Queue
from holdfast.spark.columns import QUEUE_COLUMNS
from holdfast.spark.options import MessageOptions
from holdfast.spark.runtime.worker_errors import states_errors


@dataclass
class MessagePartition(InputPartition):
    """The messages ``first_seq`` to ``last_seq`` of a queue, both included."""

    first_seq: int
    last_seq: int


BATCH_MESSAGES: Final = 32 * 1024
BATCH_BYTES: Final = 8 * 2**20
"""A yielded record batch closes at either bound."""


def plan_messages(options: MessageOptions) -> list[MessagePartition]:
    """The pieces of a queue as it is now, in order, each of pages of about ``target_partition_bytes`` together.

    Raises: NotFound (no queue), Trimmed where messages after the starting offset were removed.
    """
    with Queue(options.queue, read_only=True) as queue:
        last = queue.last_seq
        first = _first_wanted(queue, options)
        headers = [queue.pages.header_of(number) for number in queue.pages.numbers()]
    # A page that cannot be read is part of the piece of the one before it, whose task reports it.
    starts = [(each.base_seq, each.page_bytes) for each in headers if each is not None and not each.prepared]
    pieces: list[MessagePartition] = []
    begin, size = first, 0
    for (base, page_bytes), (following, _) in zip(starts, [*starts[1:], (last + 1, 0)], strict=True):
        if following <= first or base > last:
            continue
        size += page_bytes
        if size >= options.target_partition_bytes:
            pieces.append(MessagePartition(begin, following - 1))
            begin, size = following, 0
    if begin <= last:
        pieces.append(MessagePartition(begin, last))
    return pieces


def _first_wanted(queue: Queue, options: MessageOptions) -> int:
    oldest = queue.first_seq
    if options.since is not None:
        reader = queue.reader(since=options.since)
        try:
            messages = reader.read_near()
            return messages[0].seq if messages else queue.last_seq + 1
        finally:
            reader.close()
    if options.after_seq + 1 < oldest and options.after_seq and options.fail_on_data_loss:
        raise NotFound(
            "data loss: messages after the starting offset were removed",
            code=Code.LOG_TRUNCATED,
            hint="begin at a newer seq, or set failOnDataLoss=false to begin with what is left",
            after_seq=options.after_seq,
            first_seq=oldest,
        )
    return max(oldest, options.after_seq + 1)


def message_rows(options: MessageOptions, piece: MessagePartition) -> Iterator[pa.RecordBatch]:
    """The messages of one piece in order, with the options' columns. Raises: Gap, Trimmed, NotFound."""
    with Queue(options.queue, read_only=True, damage="raise" if options.fail_on_data_loss else "skip") as queue:
        seen = piece.first_seq - 1
        for batch in _batches(queue, piece):
            seen = batch[-1].seq
            yield _rows(batch, options.columns)
    if seen < piece.last_seq and options.fail_on_data_loss:
        raise NotFound(
            "data loss: messages have gone since this read was planned",
            code=Code.LOG_TRUNCATED,
            queue=options.queue,
            first_seq=seen + 1,
            last_seq=piece.last_seq,
        )


def _batches(queue: Queue, piece: MessagePartition) -> Iterator[list[Message]]:
    waiting: list[Message] = []
    size = 0
    for message in queue.read(seq=piece.first_seq):
        if message.seq > piece.last_seq:
            break
        waiting.append(message)
        size += len(message.payload)
        if len(waiting) >= BATCH_MESSAGES or size >= BATCH_BYTES:
            yield waiting
            waiting, size = [], 0
    if waiting:
        yield waiting


def _rows(messages: Sequence[Message], columns: Sequence[str]) -> pa.RecordBatch:
    seqs, times, payloads = zip(*messages, strict=True)
    values = {"seq": seqs, "time": [time_ns // 1000 for time_ns in times], "payload": payloads}
    arrays = [pa.array(values[name], QUEUE_COLUMNS[name]) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


@states_errors
class HoldfastMessageReader(DataSourceReader):
    """One batch read of a queue."""

    def __init__(self, options: MessageOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[MessagePartition]:
        """The pieces to read. Raises: NotFound."""
        return plan_messages(self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one piece. For a read without pieces Spark passes an empty partition of its own."""
        if isinstance(partition, MessagePartition):
            yield from message_rows(self._options, partition)
