"""``shape=messages`` with ``queue``: an embedded queue as a batch source and as a stream, its pages read in parallel.

The queue is opened read-only and without its lock, so its program may keep running. The plan fixes the last message.
Every task must see the queue's directory under the same path. An offset is ``{"seq": 17, "queue": ID, "time_ns": T}``:
every message up to 17 has been returned, in the queue with this id, whose message 17 arrived at T. So a queue that was
deleted and made again is noticed, and one that lost power and gave a number a second time. Cost: a header for each
wanted page to plan, then each page is read once; a poll opens the queue and looks for its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from holdfast.errors import Code, CorruptData, InvalidRequest
from holdfast.queue import Message, Trimmed
from holdfast.queue.core import QueueCore
from holdfast.queue.files.meta_files import read_identity
from holdfast.spark.columns import QUEUE_COLUMNS
from holdfast.spark.messages.numbered import BATCH_BYTES, BATCH_MESSAGES, NumberedStream, as_rows
from holdfast.spark.options import MessageOptions
from holdfast.spark.positions import LATEST, Given, Offset, QueuePosition, offset_of, position_in
from holdfast.spark.runtime.processes import states_errors
from holdfast.spark.runtime.refusals import log_truncated
from holdfast.spark.runtime.tasks import grouped


@dataclass
class MessagePartition(InputPartition):
    """The messages ``first_seq`` to ``last_seq``, both included, of the queue with this id; None: of any."""

    first_seq: int
    last_seq: int
    queue_id: str | None = None


_VALUES: Final[Mapping[str, Callable[[Message], object]]] = {
    "seq": lambda one: one.seq,
    "time": lambda one: one.time_ns // 1000,
    "payload": lambda one: one.payload,
}


def plan_messages(options: MessageOptions) -> list[MessagePartition]:
    """The pieces of a queue as it is now, in order, each of pages of about ``target_partition_bytes`` together.

    Raises: NotFound (no queue; messages after the starting offset were removed), InvalidRequest (another queue).
    """
    with QueueCore(options.queue, read_only=True) as queue:
        last = queue.last_seq
        first = last + 1 if options.after == LATEST else _first_wanted(queue, options)
        return _pieces(queue, options, first, last)


def _pieces(queue: QueueCore, options: MessageOptions, first: int, last: int) -> list[MessagePartition]:
    """The messages ``first`` to ``last`` in pieces of whole pages. Cost: a header for each page from ``first`` on."""
    queue_id = id_of_queue(queue)
    starts: list[tuple[int, int]] = []
    for number in reversed(queue.pages.numbers()):
        header = queue.pages.header_of(number)
        # A page that cannot be read is part of the piece of the one before it, whose task reports it.
        if header is not None and not header.prepared:
            starts.append((header.base_seq, header.page_bytes))
            if header.base_seq <= first:
                break
    starts.reverse()
    pieces: list[MessagePartition] = []
    begin, size = first, 0
    for (base, page_bytes), (following, _) in zip(starts, [*starts[1:], (last + 1, 0)], strict=True):
        if following <= first or base > last:
            continue
        size += page_bytes
        if size >= options.target_partition_bytes and following <= last:
            pieces.append(MessagePartition(begin, following - 1, queue_id))
            begin, size = following, 0
    if begin <= last:
        pieces.append(MessagePartition(begin, last, queue_id))
    return pieces


def _first_wanted(queue: QueueCore, options: MessageOptions) -> int:
    """The first message of a read by where it starts. Raises: as ``plan_messages``."""
    oldest = queue.first_seq
    if options.since is not None:
        with closing(queue.reader(since=options.since)) as reader:
            messages = reader.read_near()
            return messages[0].seq if messages else queue.last_seq + 1
    if isinstance(options.after, str):
        return oldest
    _require_position(queue, options, options.after)
    return _first_after(queue, options, options.after.seq)


def _first_after(queue: QueueCore, options: MessageOptions, after_seq: int) -> int:
    """The first message above ``after_seq`` that there is. Raises: NotFound where others were between the two."""
    oldest = queue.first_seq
    if after_seq + 1 < oldest and after_seq and options.fail_on_data_loss:
        raise log_truncated(
            "data loss: messages after the starting offset were removed",
            hint="begin at a newer seq, or set failOnDataLoss=false to begin with what is left",
            after_seq=after_seq,
            first_seq=oldest,
        )
    return max(oldest, after_seq + 1)


def _mean_bytes(queue: QueueCore, seq: int) -> int:
    """The mean payload of the messages from ``seq`` on, by a look at the first of them; 1 where none can be read."""
    with closing(queue.reader(seq=max(seq, queue.first_seq), damage="skip")) as reader:
        messages = reader.read_near() or []
        return sum(len(message.payload) for message in messages) // max(1, len(messages)) or 1


def id_of_queue(queue: QueueCore) -> str | None:
    """The queue's id; None where its small file is missing, which no message depends on."""
    with queue.asking():
        identity = read_identity(queue.pages)
    return None if identity is None else identity.queue_id.hex()


def _require_id(queue: QueueCore, options: MessageOptions, expected: str | None) -> None:
    queue_id = id_of_queue(queue)
    if None not in (expected, queue_id) and expected != queue_id:
        raise InvalidRequest(
            "another queue is at this path than the one that was read: it was deleted and made again",
            code=Code.LOG_MISMATCH,
            hint="begin a new stream, with a new checkpoint; every worker must see the same queue at this path",
            queue=options.queue,
            found=queue_id,
            expected=expected,
        )


def _require_position(queue: QueueCore, options: MessageOptions, position: QueuePosition) -> None:
    """Raise unless the queue is the one that was read, and still has what was read, as far as that can be seen.

    Raises: InvalidRequest (another queue; the number has another message now), NotFound (the queue ends before it).
    """
    _require_id(queue, options, position.queue)
    if position.time_ns is None:
        return
    hint = "begin a new stream with a new checkpoint, and startingTimestamp after the power failure"
    last = queue.last_seq
    if last < position.seq:
        raise log_truncated(
            "data loss: the queue ends before messages that were read: it lost power before they were on disk",
            hint=hint,
            queue=options.queue,
            last_seq=last,
            read_through=position.seq,
        )
    time_ns = time_of_message(queue, position.seq)
    if time_ns is not None and time_ns != position.time_ns:
        raise InvalidRequest(
            "the queue gave the number of a message that was read to another one: it lost power before the first was "
            "on disk",
            code=Code.LOG_MISMATCH,
            hint=hint,
            queue=options.queue,
            seq=position.seq,
        )


def time_of_message(queue: QueueCore, seq: int) -> int | None:
    """When a message arrived; None where it cannot be read any more."""
    if seq < 1:
        return None
    try:
        with closing(queue.begin_reading(None, seq, "raise")) as reader, queue.asking():
            messages = reader.read_near()
    except (Trimmed, CorruptData):
        return None
    return messages[0].time_ns if messages and messages[0].seq == seq else None


def message_rows(options: MessageOptions, piece: MessagePartition) -> Iterator[pa.RecordBatch]:
    """The messages of one piece in order, with the options' columns. Raises: Gap, Trimmed, NotFound."""
    with QueueCore(options.queue, read_only=True, damage="raise" if options.fail_on_data_loss else "skip") as queue:
        _require_id(queue, options, piece.queue_id)
        seen = piece.first_seq - 1
        wanted = takewhile(lambda one: one.seq <= piece.last_seq, queue.read(seq=piece.first_seq))
        for batch in grouped(wanted, lambda one: len(one.payload), BATCH_BYTES, BATCH_MESSAGES):
            seen = batch[-1].seq
            yield as_rows(batch, options.columns, QUEUE_COLUMNS, _VALUES)
    if seen < piece.last_seq and options.fail_on_data_loss:
        raise log_truncated(
            "data loss: messages have gone since this read was planned",
            queue=options.queue,
            first_seq=seen + 1,
            last_seq=piece.last_seq,
        )


def _offset(queue: QueueCore, seq: int) -> Offset:
    """The offset after message ``seq``, with what shows later that this is still the same message."""
    return offset_of(QueuePosition(seq, id_of_queue(queue), time_of_message(queue, seq)))


@states_errors
class HoldfastQueueStreamReader(NumberedStream[MessageOptions]):
    """One streaming query's view of a queue."""

    def __init__(self, options: MessageOptions) -> None:
        super().__init__(options, message_rows)

    def initialOffset(self) -> Offset:  # noqa: N802  Spark's name
        """Where a query without a checkpoint begins. Raises: as ``plan_messages``."""
        options = self._options
        with self._opened() as queue:
            return _offset(queue, queue.last_seq if options.after == LATEST else _first_wanted(queue, options) - 1)

    def _newest(self) -> int:
        with self._opened() as queue:
            return queue.last_seq

    def _next_offset(self, start: Given, *, is_bounded: bool) -> Offset | None:
        """Raises: NotFound (no queue; messages have gone), InvalidRequest (another queue; a number given twice)."""
        begin = position_in(start, QueuePosition)
        with self._opened() as queue:
            _require_position(queue, self._options, begin)
            end = self._until(queue.last_seq)
            if end <= begin.seq:
                return None
            most = self._most_rows(lambda: _mean_bytes(queue, begin.seq + 1), is_bounded=is_bounded)
            end = min(end, begin.seq + most)
            # What was removed takes no part in a bound of rows.
            return _offset(queue, max(end, _first_after(queue, self._options, begin.seq) - 1))

    def partitions(self, start: Given, end: Given) -> Sequence[MessagePartition]:
        """The pieces between two offsets. Raises: as ``latestOffset``."""
        begin, until = position_in(start, QueuePosition), position_in(end, QueuePosition)
        with self._opened() as queue:
            for each in (begin, until):
                _require_position(queue, self._options, each)
            return _pieces(queue, self._options, _first_after(queue, self._options, begin.seq), until.seq)

    def _opened(self) -> QueueCore:
        """The queue as it is now. It is not kept open, so that a queue that was deleted and made again is noticed."""
        return QueueCore(self._options.queue, read_only=True)
