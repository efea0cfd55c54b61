"""The body of a batch object as bytes: one Arrow IPC stream, written without an Arrow library.

Owns: the layout of the stream that this version writes. Does not own: the columns' meaning and reading them back
(``batch``, through an Arrow library, which is also what proves this module right).

Why by hand: making arrays of an Arrow library and serializing them took 18 % of the leader's time under load (py-spy,
64 clients), most of it in fixed costs for each of the eight columns of a batch of forty commits.

Layout, little-endian. A stream is the schema's message, one record batch message and the end mark. The record batch
message is 0xFFFFFFFF, int32 metadata bytes (536), the metadata, the buffers. Its metadata is a flatbuffer (Arrow's
``Message.fbs``, metadata version V5) whose shape never changes, because the columns never do; offsets within it:

    offset  bytes  field
    0       4      position of the message table, 16
    4       12     vtable: 12, 20, then where in the table: version 16, header type 18, header 4, body length 8
    16      20     message: 12 back to its vtable; header is 36 further on; body length; version 4 (V5); type 3
    46      10     vtable: 10, 20, then where in the table: length 8, nodes 4, buffers 16
    56      20     record batch: 10 back to its vtable; nodes are 16 further on; rows; buffers are 140 further on
    76      132    nodes: how many (8), then int64 rows and int64 nulls of each column
    212     324    buffers: how many (20), then int64 offset and int64 bytes of each buffer, without its padding

Every buffer starts at a multiple of 8 from the first. A column without nulls has an empty validity buffer.

A transaction's request id is written with each of its rows. The offsets of the texts are int32, but for ``value``: a
column of 2 GiB cannot be written. Nothing is checked here; what keeps each column below it is the bound on the ids of
one transaction, that on a request, and the size at which a batch is closed.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Final

from holdfast.commit.format.transaction import Delete, PointRead, RangeDelete, RangeRead, Transaction, Write

if TYPE_CHECKING:
    from holdfast.commit.format.batch import LoggedTransaction

__all__ = ["END_OF_STREAM", "REPEATED_BYTES_MAX", "encode_record_batch", "repeated_bytes"]

assert sys.byteorder == "little", "columns are written as this processor keeps them, and the format is little-endian"

END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
REPEATED_BYTES_MAX: Final = 16 << 20
"""What a transaction's request id may take in the log, where it stands with every operation and precondition.

Without a bound a request of 1 MB made an object of 55 MB, and one of 41 MB a column that cannot be written, which ended
the leader. No id in ASCII reaches it in a request of the default size.
"""
COLUMNS: Final = 8
BUFFERS: Final = 20
METADATA_BYTES: Final = 536
_METADATA: Final = struct.Struct(
    f"<Ii I HHHHHH iIqhBx 10x HHHHH iIqI I{2 * COLUMNS}q 4x I{2 * BUFFERS}q".replace(" ", "")
)
assert _METADATA.size == 8 + METADATA_BYTES, "the record batch's metadata has one size"
_MESSAGE_TABLE: Final = (12, 20, 16, 18, 4, 8)
_RECORD_BATCH_TABLE: Final = (10, 20, 8, 4, 16)
_BITS: Final = bytes.maketrans(b"\0\1", b"01")

_POINT_READ, _RANGE_READ = 3, 4
_WRITE, _DELETE, _RANGE_DELETE = 0, 1, 2


class _Buffers:
    """Buffers one after the other, each padded to 8 bytes, and where each one is."""

    __slots__ = ("at", "nodes", "parts", "places")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.places: list[int] = []
        self.nodes: list[int] = []
        self.at = 0

    def add(self, data: bytes) -> None:
        length = len(data)
        self.places += (self.at, length)
        if length:
            self.parts.append(data)
            padding = -length & 7
            if padding:
                self.parts.append(bytes(padding))
            self.at += length + padding

    def node(self, rows: int, present: Sequence[object] | None) -> int:
        """Begin a column: its counts and its validity. Returns how many values are null."""
        nulls = present.count(None) if present is not None else 0
        self.nodes += (rows, nulls)
        if not nulls or present is None:
            self.add(b"")
        elif nulls == rows:
            self.add(bytes((rows + 7) // 8))
        else:
            # The first row is the lowest bit, so the digits of the number are the rows backwards.
            digits = bytes([value is not None for value in reversed(present)]).translate(_BITS)
            self.add(int(digits, 2).to_bytes((rows + 7) // 8, "little"))
        return nulls

    def numbers(self, values: Sequence[int]) -> None:
        self.node(len(values), None)
        self.add(array("Q", values).tobytes())

    def optional_numbers(self, values: Sequence[int | None]) -> None:
        nulls = self.node(len(values), values)
        if nulls == len(values):
            self.add(bytes(8 * nulls))
        else:
            self.add(array("Q", [value or 0 for value in values]).tobytes())

    def texts(self, values: Sequence[bytes], offset_type: str = "i") -> None:
        self.node(len(values), None)
        self.add(array(offset_type, accumulate(map(len, values), initial=0)).tobytes())
        self.add(b"".join(values))

    def optional_texts(self, values: Sequence[bytes | None], offset_type: str = "i") -> None:
        nulls = self.node(len(values), values)
        if nulls == len(values):
            self.add(bytes(array(offset_type).itemsize * (nulls + 1)))
            self.add(b"")
            return
        whole = [value or b"" for value in values]
        self.add(array(offset_type, accumulate(map(len, whole), initial=0)).tobytes())
        self.add(b"".join(whole))


def encode_record_batch(transactions: Iterable[LoggedTransaction]) -> bytes:
    """The record batch message of these transactions, empty bytes when they hold no item. Cost: O(rows)."""
    version: list[int] = []
    request_id: list[bytes | None] = []
    read_version: list[int | None] = []
    kind = bytearray()
    key: list[bytes] = []
    end: list[bytes | None] = []
    value: list[bytes | None] = []
    at: list[int | None] = []
    for txn in transactions:
        rows_before = len(key)
        for read in txn.preconditions:
            if type(read) is PointRead:
                kind.append(_POINT_READ)
                key.append(read.key)
                end.append(None)
            else:
                assert type(read) is RangeRead, "a precondition is a point read or a range read"
                kind.append(_RANGE_READ)
                key.append(read.begin)
                end.append(read.end)
            value.append(None)
            at.append(read.version)
        for operation in txn.operations:
            at.append(None)
            if type(operation) is Write:
                kind.append(_WRITE)
                key.append(operation.key)
                end.append(None)
                value.append(operation.value)
            elif type(operation) is Delete:
                kind.append(_DELETE)
                key.append(operation.key)
                end.append(None)
                value.append(None)
            else:
                assert type(operation) is RangeDelete, "an operation is a write, a delete or a range delete"
                kind.append(_RANGE_DELETE)
                key.append(operation.begin)
                end.append(operation.end)
                value.append(None)
        rows = len(key) - rows_before
        version += [txn.version] * rows
        request_id += [None if txn.request_id is None else txn.request_id.encode()] * rows
        read_version += [txn.read_version] * rows
    rows = len(version)
    if not rows:
        return b""
    buffers = _Buffers()
    buffers.numbers(version)
    buffers.optional_texts(request_id)
    buffers.optional_numbers(read_version)
    buffers.node(rows, None)
    buffers.add(bytes(kind))
    buffers.texts(key)
    buffers.optional_texts(end)
    buffers.optional_texts(value, "q")
    buffers.optional_numbers(at)
    return b"".join((_metadata(rows, buffers), *buffers.parts))


def repeated_bytes(txn: Transaction) -> int:
    """The bytes of the request id in all rows of a transaction: a request says it once, a batch with every row."""
    if txn.request_id is None:
        return 0
    return len(txn.request_id.encode()) * (len(txn.operations) + len(txn.preconditions))


def _metadata(rows: int, buffers: _Buffers) -> bytes:
    return _METADATA.pack(
        0xFFFFFFFF, METADATA_BYTES,
        16, *_MESSAGE_TABLE,
        12, 36, buffers.at, 4, 3,
        *_RECORD_BATCH_TABLE,
        10, 16, rows, 140,
        *chain((COLUMNS,), buffers.nodes),
        *chain((BUFFERS,), buffers.places),
    )  # fmt: skip
