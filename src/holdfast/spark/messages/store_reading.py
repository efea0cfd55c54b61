"""A message store's messages as rows: the stores' log on disk, read side by side.

Owns: cutting a store into pieces, a piece as record batches, and what counts as lost. Does not own: where messages are
(``stores.reading``), the options (``store_options``).

The stores are opened for reading alone, so their service may run meanwhile. Every task must see their directory under
the same path. Only what is durable is read: what no crash takes back.

What is lost: a number behind a starting point that was named, whose message is not there any more. Without one, what is
there is read, and holes are what everybody has consumed.

Failure model: lost messages raise NotFound, or are passed over with ``failOnDataLoss`` off; damage raises CorruptData.
Nothing is written.

Cost: a query of the index and the log behind its checkpoint to plan; then each page of the pieces is read once. Memory
of a task: a few megabytes.
"""

# pyarrow ships no types, so the checker cannot know its classes where they are parameters; mypy checks the rest.
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import pyarrow as pa

from holdfast.errors import Code, NotFound
from holdfast.spark.messages.store_options import StoreOptions
from holdfast.spark.source.partition import StorePartition
from holdfast.stores.repair.reader import Placed, StoredMessage, StoreReader
from holdfast.stores.storage.locations import Extent

__all__ = ["STORE_TYPES", "pieces_of", "plan_store", "seq_before", "store_rows"]

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
STORE_TYPES: Final[Mapping[str, pa.DataType]] = {
    "seq": pa.int64(),
    "time": _TIMESTAMP,
    "key": pa.string(),
    "fields": pa.string(),
    "body": pa.binary(),
    "publisher_seq": pa.int64(),
    "ttl_ms": pa.int64(),
    "deliver_at": _TIMESTAMP,
}
_VALUES: Final[Mapping[str, Callable[[StoredMessage], object]]] = {
    "seq": lambda one: one.seq,
    "time": lambda one: one.published_ms * 1000,
    "key": lambda one: one.message.key,
    "fields": lambda one: msgspec.json.encode(one.message.fields).decode(),
    "body": lambda one: None if one.removal else one.message.body,
    "publisher_seq": lambda one: one.message.publisher_seq or None,
    "ttl_ms": lambda one: one.message.ttl_ms or None,
    "deliver_at": lambda one: one.message.deliver_at_ms * 1000 if one.message.deliver_at_ms else None,
}
BATCH_MESSAGES: Final = 32 * 1024
BATCH_BYTES: Final = 8 * 2**20
"""A yielded record batch closes at either bound."""
EVERYTHING: Final = 2**63 - 1


def plan_store(options: StoreOptions) -> list[StorePartition]:
    """The pieces of a store as it is now, in order. Raises: NotFound (no such store; data loss), CorruptData."""
    with StoreReader(options.directory, options.store) as reader:
        placed = reader.place(options.after_seq)
        after = options.after_seq
        if options.from_latest:
            after = placed.newest_seq
        elif options.since is not None:
            after = seq_before(reader, placed, int(options.since.timestamp() * 1000))
    # What was consumed before a reader came is nothing that it has lost.
    backlog = options.after_seq or placed.newest_seq
    return pieces_of(options, placed.extents, (after, placed.newest_seq), placed.until_ms, backlog)


def pieces_of(
    options: StoreOptions, extents: Sequence[Extent], between: tuple[int, int], until_ms: int, backlog: int
) -> list[StorePartition]:
    """The messages behind ``between[0]`` up to ``between[1]`` in pieces of about the wanted bytes.

    ``backlog``: numbers up to it may have gone. Raises: NotFound where others have.
    """
    after, through = between
    exact_after = max(after, backlog) if options.fail_on_data_loss else EVERYTHING
    pieces: list[StorePartition] = []
    waiting: list[tuple[Extent, bool]] = []
    size = expected = 0
    for extent in _cut(extents, after, exact_after, through):
        is_exact = extent.first_seq > exact_after
        if is_exact and extent.first_seq > (begin := max(expected, exact_after + 1)):
            raise _lost(options, begin, extent.first_seq - 1)
        expected = extent.last_seq + 1
        waiting.append((extent, is_exact))
        size += extent.bytes
        if size >= options.target_partition_bytes:
            pieces.append(StorePartition(tuple(waiting), until_ms))
            waiting, size = [], 0
    if waiting:
        pieces.append(StorePartition(tuple(waiting), until_ms))
    if (begin := max(expected, exact_after + 1)) <= through:
        raise _lost(options, begin, through)
    return pieces


def _cut(extents: Sequence[Extent], after: int, border: int, through: int) -> Iterator[Extent]:
    """The extents between two numbers, those across ``border`` in two."""
    for extent in extents:
        for low, high in ((after + 1, min(border, through)), (max(after, border) + 1, through)):
            first, last = max(low, extent.first_seq), min(high, extent.last_seq)
            if first <= last:
                yield extent._replace(first_seq=first, last_seq=last)


def _lost(options: StoreOptions, first_seq: int, last_seq: int) -> NotFound:
    return NotFound(
        "data loss: messages behind the starting offset were consumed by all and let go before they were read here",
        code=Code.LOG_TRUNCATED,
        hint="define a durable that keeps them for this reader, or set failOnDataLoss=false to read what is left",
        store=options.store,
        first_seq=first_seq,
        last_seq=last_seq,
    )


def seq_before(reader: StoreReader, placed: Placed, since_ms: int) -> int:
    """The last message published before ``since_ms``, or the number before the first one that there is.

    Cost: about log2(extents) of them are read.
    """
    extents = placed.extents
    low, high = 0, len(extents)
    while low < high:
        middle = (low + high) // 2
        newest = _newest_ms(reader, extents[middle], placed.until_ms)
        # Nothing of it is there: it may go either way, as those before it must be looked at.
        if newest is None or newest >= since_ms:
            high = middle
        else:
            low = middle + 1
    for extent in extents[low:]:
        found, _ = reader.messages(extent, placed.until_ms)
        for one in found:
            if one.published_ms >= since_ms:
                return one.seq - 1
    return placed.newest_seq


def _newest_ms(reader: StoreReader, extent: Extent, until_ms: int) -> int | None:
    found, _ = reader.messages(extent, until_ms)
    return found[-1].published_ms if found else None


def store_rows(options: StoreOptions, piece: StorePartition) -> Iterator[pa.RecordBatch]:
    """The messages of one piece in order, with the options' columns. Raises: NotFound, CorruptData, Unavailable."""
    waiting: list[StoredMessage] = []
    size = 0
    with StoreReader(options.directory, options.store) as reader:
        for extent, is_exact in piece.extents:
            found, is_all = reader.messages(extent, piece.until_ms)
            if is_exact and not is_all:
                raise _lost(options, extent.first_seq, extent.last_seq)
            waiting += found
            size += extent.bytes
            if len(waiting) >= BATCH_MESSAGES or size >= BATCH_BYTES:
                yield _rows(waiting, options.columns)
                waiting, size = [], 0
    if waiting:
        yield _rows(waiting, options.columns)


def _rows(messages: Sequence[StoredMessage], columns: Sequence[str]) -> pa.RecordBatch:
    arrays = [pa.array([_VALUES[name](one) for one in messages], STORE_TYPES[name]) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))
