"""What names a write and its rows: its token, for a stream its micro-batch, and the digest of its rows.

A micro-batch is named by Spark's id of the query and its number. Tasks learn both from their context, so the sink needs
no checkpoint, wherever that is. A query keeps its id in its checkpoint: a deleted checkpoint makes another id, and a
number never stands for two ranges unless a checkpoint was put back, which the record shows by its number or by the
digest of the rows.

The digest of the rows of a write: the same whatever their order and their partitions, another for other rows.

A task digests the transactions of its partition while it reads them, and the driver adds the tasks' sums. The record
keeps the result, so that the same token with other rows is refused. Format: the number of transactions, a colon, and
16 hexadecimal digits: the sum modulo 2^64 of the BLAKE2b-64 of each transaction, little-endian. What is hashed of a
transaction are its operations, one after the other: a byte for the kind (0 write, 1 delete, 2 range delete, 3 range
delete to the last key), then the key and, for a write, the value, for 2 the end, each with its length before it in 8
bytes, little-endian. In a write into a message store a row is the MessagePack of an array of body, fields as sorted
pairs, key, time-to-live and delivery time. A sum, not an exclusive or: a transaction that is there twice counts twice.
Chance finds two equal digests once in 2^64.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from holdfast.commit.format.transaction import Operation, RangeDelete, Write
from holdfast.spark.runtime.refusals import bad_configuration

QUERY_PROPERTY: Final = "sql.streaming.queryId"
NUMBER_PROPERTY: Final = "streaming.sql.batchId"


def token_of(*parts: str) -> str:
    """32 hexadecimal digits that name what is written.

    >>> token_of("2026-01-31") == token_of("2026-01-31"), len(token_of("a", "b"))
    (True, 32)
    """
    digest = blake2b(digest_size=16)
    for part in parts:
        text = part.encode()
        digest.update(len(text).to_bytes(8, "little") + text)
    return digest.hexdigest()


class MicroBatch(msgspec.Struct, frozen=True):
    """A micro-batch. Shape: ``query`` is a UUID; ``number`` counts from 0 in a checkpoint."""

    query: str
    number: int

    @property
    def token(self) -> str:
        """The token of its write."""
        return token_of("micro-batch", self.query, str(self.number))

    def __str__(self) -> str:
        return f"micro-batch {self.number} of query {self.query}"


def running_micro_batch(context: TaskContext) -> MicroBatch:
    """The micro-batch that a task works for. Raises: InvalidRequest."""
    query, number = context.getLocalProperty(QUERY_PROPERTY), context.getLocalProperty(NUMBER_PROPERTY)
    if not query or not number:
        raise bad_configuration(
            "a task of this stream does not know its query and micro-batch",
            hint="the sink takes streams with micro-batches: use a trigger by time or availableNow",
        )
    return MicroBatch(query, int(number))


_MASK: Final = 2**64 - 1

_encode: Final = msgspec.msgpack.Encoder().encode


class PartitionPublisher(msgspec.Struct, frozen=True, array_like=True):
    """The publisher of one partition into a message store. ``next_seq`` is the number of its next message.

    Shape: ``generation`` counts how often the store had forgotten this partition's publisher, each time another id.
    """

    generation: int = 0
    next_seq: int = 2
    """Not 1: a store accepts 1 from a publisher that it has forgotten, and would keep a message twice."""


@dataclass(frozen=True, slots=True)
class SentPartition:
    """What a task has done for its partition: how many transactions and chunks that has, and the sum of their hashes.

    ``chunks`` is known where rows were sent. ``is_read`` is False where the rows were not read, because their write is
    done and no digest is known. ``publisher``: the publisher into a message store, with the number that comes after the
    last row; None without rows.
    """

    partition: int
    transactions: int = 0
    chunks: int = 0
    total: int = 0
    is_read: bool = True
    publisher: PartitionPublisher | None = None


def hash_of(rows: Iterable[bytes]) -> int:
    """The sum modulo 2^64 of the hashes of these bytes. Cost: about a microsecond for each."""
    digests = b"".join([blake2b(row, digest_size=8).digest() for row in rows])
    return int(np.frombuffer(digests, "<u8").sum(dtype=np.uint64))


def hash_of_transactions(transactions: Iterable[Sequence[Operation]]) -> int:
    """The same of transactions."""
    return hash_of(b"".join(map(_hashed, operations)) for operations in transactions)


def hash_of_writes(keys: pa.BinaryArray, values: pa.BinaryArray) -> int:
    """The same of transactions of one write each, none of which is null."""
    kind, end = pa.scalar(b"\0"), pa.scalar(b"")
    hashed = pc.binary_join_element_wise(kind, _lengths(keys), keys, _lengths(values), values, end)
    return hash_of(hashed.to_pylist())


def hash_of_plain(rows: Iterable[object]) -> int:
    """The same of rows in a form that MessagePack has."""
    return hash_of(map(_encode, rows))


def _hashed(operation: Operation) -> bytes:
    match operation:
        case Write(key, value):
            return b"\0" + _with_length(key) + _with_length(value)
        case RangeDelete(begin, end):
            return b"\3" + _with_length(begin) if end is None else b"\2" + _with_length(begin) + _with_length(end)
        case _:
            return b"\1" + _with_length(operation.key)


def _with_length(data: bytes) -> bytes:
    return len(data).to_bytes(8, "little") + data


def _lengths(texts: pa.BinaryArray) -> pa.BinaryArray:
    """The length of each in 8 bytes."""
    numbers = pc.binary_length(texts).cast(pa.int64())
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(8), len(numbers), [None, numbers.buffers()[1]]).cast(
        pa.binary()
    )


def digest_text(sent: Iterable[SentPartition]) -> str:
    """The digest of a whole write.

    >>> digest_text([SentPartition(0, 2, 1, 0xFF), SentPartition(1, 1, 1, 1)])
    '3:0000000000000100'
    """
    parts = list(sent)
    total = sum(part.total for part in parts) & _MASK
    return f"{sum(part.transactions for part in parts)}:{total:016x}"
