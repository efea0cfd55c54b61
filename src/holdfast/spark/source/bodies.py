"""Decode the bodies of many objects into one table: the costly step of a read.

Small bodies in the layout that ``commit.format.body_stream`` writes are joined as bytes: every rule is one comparison
of columns, and each buffer is one slice per body (8 us per body of fifty rows; an Arrow decoder needs 35). Others are
decoded one by one. No length, offset or count is used before it has been checked. Damage raises CorruptData with the
slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.commit.format.batch import (
    BODY_SCHEMA,
    END_OF_STREAM,
    HEADER_BYTES,
    Header,
    LoggedTransaction,
    body_bytes,
    encode_record_batch,
    read_body_table,
    without_entries,
)
from holdfast.commit.format.transaction import Write
from holdfast.errors import Code, CorruptData
from holdfast.values import slot_text

Numbers: TypeAlias = npt.NDArray[np.int64]
Bits: TypeAlias = npt.NDArray[np.bool_]

_SCHEMA_BYTES: Final[bytes] = BODY_SCHEMA.serialize().to_pybytes()
_HEAD_BYTES: Final = 544
"""The mark, the length and the metadata of a record batch message: ``body_stream`` shows them field by field."""
_BODY_LENGTH, _ROWS, _NODES, _BUFFERS = 4, 9, slice(11, 27), slice(28, 68)
"""Where in a head, in words of 8 bytes, the numbers are that differ from body to body; all others are always alike."""
_TOTAL_BYTES_MAX: Final = 2**31 - 1


@cache
def _model() -> Numbers:
    message = encode_record_batch([LoggedTransaction(1, None, None, [Write(b"", b"")], [])])
    return np.frombuffer(message, dtype="<i8", count=_HEAD_BYTES // 8)


def join_bodies(bodies: Sequence[memoryview]) -> tuple[list[int], pa.Table] | None:
    """The rows of each body and the table of them all, one chunk a column; None where a body has another layout."""
    start, past = len(_SCHEMA_BYTES), len(_SCHEMA_BYTES) + _HEAD_BYTES
    sizes = np.fromiter((len(body) for body in bodies), dtype=np.int64, count=len(bodies))
    if not len(bodies) or sizes.min() < past + len(END_OF_STREAM) or sizes.sum() > _TOTAL_BYTES_MAX:
        return None
    # Joined and compared once: comparing each slice takes longer than all else in this function.
    if b"".join([body[:start] for body in bodies]) != _SCHEMA_BYTES * len(bodies):
        return None
    if b"".join([body[-len(END_OF_STREAM) :] for body in bodies]) != END_OF_STREAM * len(bodies):
        return None
    heads = np.frombuffer(b"".join([body[start:past] for body in bodies]), dtype="<i8").reshape(len(bodies), -1)
    fixed = np.ones(heads.shape[1], dtype=np.bool_)
    fixed[[_BODY_LENGTH, _ROWS]] = fixed[_NODES] = fixed[_BUFFERS] = False
    nodes, buffers = heads[:, _NODES], heads[:, _BUFFERS]
    rows, offsets, lengths = heads[:, _ROWS], buffers[:, ::2], buffers[:, 1::2]
    ends = np.cumsum(-(-lengths // 8) * 8, axis=1)
    room = sizes - past - len(END_OF_STREAM)
    if not (
        (heads[:, fixed] == _model()[fixed]).all()
        and ((rows > 0) & (rows <= room)).all()
        and (nodes[:, ::2] == rows[:, None]).all()
        and (lengths >= 0).all()
        and (lengths <= room[:, None]).all()
        and (offsets[:, 0] == 0).all()
        and (offsets[:, 1:] == ends[:, :-1]).all()
        and (ends[:, -1] == room).all()
        and (heads[:, _BODY_LENGTH] == room).all()
    ):
        return None
    columns = _Columns([body[past:] for body in bodies], rows, nodes[:, 1::2], offsets, lengths)
    arrays = [columns.next(field.type) for field in BODY_SCHEMA]
    if any(array is None for array in arrays):
        return None
    counts: list[int] = rows.tolist()
    return counts, pa.Table.from_arrays(arrays, schema=BODY_SCHEMA)


@dataclass
class _Columns:
    """The columns of all bodies, taken one after the other."""

    bodies: Sequence[memoryview]
    rows: Numbers
    nulls: Numbers
    offsets: Numbers
    lengths: Numbers

    def __post_init__(self) -> None:
        self._total = int(self.rows.sum())
        self._column = self._buffer = 0

    def next(self, kind: pa.DataType) -> pa.Array | None:
        """The next column as one array; None where it breaks a rule."""
        nulls = self.nulls[:, self._column]
        self._column += 1
        validity = self._buffer
        offset_bytes = {pa.binary(): 4, pa.string(): 4, pa.large_binary(): 8}.get(kind, 0)
        self._buffer += 3 if offset_bytes else 2
        expected = np.where(nulls == 0, 0, -(-self.rows // 8))
        if not ((nulls >= 0) & (nulls <= self.rows) & (self.lengths[:, validity] == expected)).all():
            return None
        width = offset_bytes or kind.bit_width // 8
        values = self.rows + 1 if offset_bytes else self.rows
        if not (self.lengths[:, validity + 1] == width * values).all():
            return None
        if (nulls == self.rows).all():
            return pa.nulls(self._total, kind)
        bits = self._validity(validity, nulls)
        if bits is not None and self._total - int(bits.sum()) != int(nulls.sum()):
            return None
        packed = None if bits is None else pa.py_buffer(np.packbits(bits, bitorder="little"))
        if not offset_bytes:
            return pa.Array.from_buffers(kind, self._total, [packed, pa.py_buffer(self._joined(validity + 1))])
        moved = self._moved_on(validity + 1, np.dtype(f"<i{offset_bytes}"))
        if moved is None:
            return None
        data = self._joined(validity + 2)
        return pa.Array.from_buffers(kind, self._total, [packed, pa.py_buffer(moved), pa.py_buffer(data)])

    def _joined(self, buffer: int) -> bytes:
        begins, lengths = self.offsets[:, buffer], self.lengths[:, buffer]
        slices = zip(self.bodies, begins.tolist(), (begins + lengths).tolist(), strict=True)
        return b"".join([body[begin:end] for body, begin, end in slices])

    def _validity(self, buffer: int, nulls: Numbers) -> Bits | None:
        """Which rows have a value, None for all. Only a body that has both kinds of rows is looked into."""
        if not nulls.any():
            return None
        bits: Bits = np.repeat(nulls == 0, self.rows)
        firsts = np.cumsum(self.rows) - self.rows
        for index in np.flatnonzero((nulls > 0) & (nulls < self.rows)).tolist():
            begin, first, count = int(self.offsets[index, buffer]), int(firsts[index]), int(self.rows[index])
            packed = np.frombuffer(self.bodies[index][begin : begin + -(-count // 8)], dtype=np.uint8)
            bits[first : first + count] = np.unpackbits(packed, count=count, bitorder="little")
        return bits

    def _moved_on(self, buffer: int, kind: np.dtype[np.signedinteger]) -> npt.NDArray[np.signedinteger] | None:
        """The offsets of all rows into the joined data; None unless each body's rise from 0 to the length of its."""
        own = np.frombuffer(self._joined(buffer), dtype=kind)
        firsts = np.cumsum(self.rows + 1) - self.rows - 1
        lengths = self.lengths[:, buffer + 1]
        if own[firsts].any() or (own[firsts + self.rows] != lengths).any():
            return None
        is_end = np.ones(len(own), dtype=np.bool_)
        is_end[firsts] = False
        moved = np.zeros(self._total + 1, dtype=kind)
        moved[1:] = own[is_end] + np.repeat(np.cumsum(lengths) - lengths, self.rows).astype(kind)
        return None if (moved[1:] < moved[:-1]).any() else moved


JOINED_BYTES_MAX: Final = 512 * 1024
"""A body above this is decoded in place: copying it would cost more than a decoder."""


@dataclass(frozen=True, slots=True)
class Bodies:
    """The rows of several live objects with transactions, in log order.

    Shape: ``rows`` has the columns of ``BODY_SCHEMA``, each in one chunk; ``counts[i]`` of them are of ``headers[i]``.
    """

    headers: Sequence[Header]
    counts: Sequence[int]
    rows: pa.Table


def decode_bodies(objects: Sequence[tuple[Header, bytes]], *, verify: bool = True) -> Bodies:
    """Decode whole objects that follow one another in the log; without ``verify`` neither CRC nor versions are checked.

    Raises: CorruptData.
    """
    bodies = _joined(objects, verify=verify) or _one_by_one(objects, verify=verify)
    if verify:
        _check_versions(bodies)
    return bodies


def _joined(objects: Sequence[tuple[Header, bytes]], *, verify: bool) -> Bodies | None:
    """All bodies at once; None where they cannot be joined."""
    if len(objects) < 2 or any(header.entries for header, _ in objects):
        return None
    bodies = [_body(data, header, verify=verify) for header, data in objects]
    if any(len(body) > JOINED_BYTES_MAX for body in bodies):
        return None
    joined = join_bodies(bodies)
    return None if joined is None else Bodies([header for header, _ in objects], *joined)


def _one_by_one(objects: Sequence[tuple[Header, bytes]], *, verify: bool) -> Bodies:
    tables = [read_body_table(data, header) if verify else _unverified(data, header) for header, data in objects]
    rows = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
    return Bodies([header for header, _ in objects], [table.num_rows for table in tables], rows.combine_chunks())


def _body(data: bytes, header: Header, *, verify: bool) -> memoryview:
    if verify:
        return body_bytes(data, header)
    return memoryview(data)[HEADER_BYTES : HEADER_BYTES + header.body_length]


def _unverified(data: bytes, header: Header) -> pa.Table:
    try:
        table = pa.ipc.open_stream(pa.py_buffer(_body(data, header, verify=False))).read_all()
    except (pa.ArrowException, OSError) as error:
        raise CorruptData(
            "body is not an Arrow stream", code=Code.CORRUPT_BATCH, slot=slot_text(header.slot)
        ) from error
    if table.schema != BODY_SCHEMA:
        raise CorruptData("body has other columns", code=Code.CORRUPT_BATCH, slot=slot_text(header.slot))
    return without_entries(table, header)


def _check_versions(bodies: Bodies) -> None:
    """Raise CorruptData unless the rows keep what the headers promise: count, bounds and rising order of versions."""
    counts = np.asarray(bodies.counts, dtype=np.int64)
    ends = np.cumsum(counts)
    empty = np.flatnonzero(counts == 0)
    if len(empty):
        raise _broken(bodies.headers[int(empty[0])])
    versions: npt.NDArray[np.uint64] = bodies.rows["version"].chunk(0).to_numpy(zero_copy_only=False)
    firsts, lasts = versions[ends - counts], versions[ends - 1]
    rises = np.concatenate(([0], np.cumsum(versions[1:] > versions[:-1])))
    falls = np.concatenate(([0], np.cumsum(versions[1:] < versions[:-1])))
    first_versions = np.array([header.first_version for header in bodies.headers], dtype=np.uint64)
    has_entries = np.array([header.entries > 0 for header in bodies.headers])
    fits = (
        ((firsts == first_versions) | (has_entries & (firsts > first_versions)))
        & (lasts == np.array([header.last_transaction_version for header in bodies.headers], dtype=np.uint64))
        & (rises[ends - 1] - rises[ends - counts] + 1 == [header.transactions for header in bodies.headers])
        & (falls[ends - 1] == falls[ends - counts])
    )
    if not fits.all():
        raise _broken(bodies.headers[int(np.argmin(fits))])


def _broken(header: Header) -> CorruptData:
    return CorruptData(
        "rows do not keep the versions of the header", code=Code.CORRUPT_BATCH, slot=slot_text(header.slot)
    )
