"""Many small bodies become one table without a decoder for each: their columns are joined as bytes.

Owns: reading the layout that ``commit.body_stream`` writes, of many bodies at once, and proving that it is that layout.
Does not own: bodies of any other layout (``bodies`` gives those to an Arrow library), their CRCs and versions.

How: the metadata of every body has one shape, so those of all bodies are the rows of one array of numbers, and each
rule is one comparison of columns. Then each buffer of each column is the same slice of every body, joined; only offsets
must be moved on. An Arrow decoder and a later joining of its chunks cost 35 us a body of fifty rows, this some 8.

Failure model: none of its own. Whatever is not exactly as expected gives None, and the slower ways find out why; no
length, offset or count is believed before it has been compared, so nothing outside a body is ever read.
"""

# pyarrow ships no types, so the checker cannot know its classes where they are parameters; mypy checks the rest.
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.commit.format.batch import BODY_SCHEMA, END_OF_STREAM, LoggedTransaction, encode_record_batch
from holdfast.commit.format.transaction import Write

__all__ = ["join_bodies"]

Numbers: TypeAlias = npt.NDArray[np.int64]
Bits: TypeAlias = npt.NDArray[np.bool_]

_SCHEMA: Final[bytes] = BODY_SCHEMA.serialize().to_pybytes()
_HEAD_BYTES: Final = 544
"""The mark, the length and the metadata of a record batch message: ``body_stream`` shows them field by field."""
_BODY_LENGTH, _ROWS, _NODES, _BUFFERS = 4, 9, slice(11, 27), slice(28, 68)
"""Where in a head, in words of 8 bytes, the numbers are that differ from body to body; all others are always alike."""
_JOINED_BYTES_MAX: Final = 2**31 - 1


@cache
def _model() -> Numbers:
    """The head of a body of one row."""
    message = encode_record_batch([LoggedTransaction(1, None, None, [Write(b"", b"")], [])])
    return np.frombuffer(message, dtype="<i8", count=_HEAD_BYTES // 8)


def join_bodies(bodies: Sequence[memoryview]) -> tuple[list[int], pa.Table] | None:
    """The rows of each body and the table of them all, one chunk a column; None where one is not of the known layout.

    Cost: a dozen slices a body, and numpy over all rows.
    """
    start, past = len(_SCHEMA), len(_SCHEMA) + _HEAD_BYTES
    sizes = np.fromiter((len(body) for body in bodies), dtype=np.int64, count=len(bodies))
    if not len(bodies) or sizes.min() < past + len(END_OF_STREAM) or sizes.sum() > _JOINED_BYTES_MAX:
        return None
    # Joined and compared once: comparing each slice takes longer than all else in this function.
    if b"".join([body[:start] for body in bodies]) != _SCHEMA * len(bodies):
        return None
    if b"".join([body[-len(END_OF_STREAM) :] for body in bodies]) != END_OF_STREAM * len(bodies):
        return None
    heads = np.frombuffer(b"".join([body[start:past] for body in bodies]), dtype="<i8").reshape(len(bodies), -1)
    fixed = np.ones(heads.shape[1], dtype=np.bool_)
    fixed[[_BODY_LENGTH, _ROWS]] = fixed[_NODES] = fixed[_BUFFERS] = False
    nodes, places = heads[:, _NODES], heads[:, _BUFFERS]
    rows, offsets, lengths = heads[:, _ROWS], places[:, ::2], places[:, 1::2]
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


class _Columns:
    """The columns of all bodies, taken one after the other."""

    def __init__(
        self, bodies: Sequence[memoryview], rows: Numbers, nulls: Numbers, offsets: Numbers, lengths: Numbers
    ) -> None:
        self._bodies = bodies
        self._rows = rows
        self._total = int(rows.sum())
        self._nulls = nulls
        self._offsets = offsets
        self._lengths = lengths
        self._column = 0
        self._buffer = 0

    def next(self, kind: pa.DataType) -> pa.Array | None:
        """The next column as one array; None where it breaks a rule."""
        nulls = self._nulls[:, self._column]
        self._column += 1
        validity = self._buffer
        offset_bytes = {pa.binary(): 4, pa.string(): 4, pa.large_binary(): 8}.get(kind, 0)
        self._buffer += 3 if offset_bytes else 2
        expected = np.where(nulls == 0, 0, -(-self._rows // 8))
        if not ((nulls >= 0) & (nulls <= self._rows) & (self._lengths[:, validity] == expected)).all():
            return None
        width = offset_bytes or kind.bit_width // 8
        values = self._rows + 1 if offset_bytes else self._rows
        if not (self._lengths[:, validity + 1] == width * values).all():
            return None
        if (nulls == self._rows).all():
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
        begins, lengths = self._offsets[:, buffer], self._lengths[:, buffer]
        places = zip(self._bodies, begins.tolist(), (begins + lengths).tolist(), strict=True)
        return b"".join([body[begin:end] for body, begin, end in places])

    def _validity(self, buffer: int, nulls: Numbers) -> Bits | None:
        """Which rows have a value, None for all. Only a body that has both kinds of rows is looked into."""
        if not nulls.any():
            return None
        bits: Bits = np.repeat(nulls == 0, self._rows)
        firsts = np.cumsum(self._rows) - self._rows
        for index in np.flatnonzero((nulls > 0) & (nulls < self._rows)).tolist():
            begin, first, count = int(self._offsets[index, buffer]), int(firsts[index]), int(self._rows[index])
            packed = np.frombuffer(self._bodies[index][begin : begin + -(-count // 8)], dtype=np.uint8)
            bits[first : first + count] = np.unpackbits(packed, count=count, bitorder="little")
        return bits

    def _moved_on(self, buffer: int, kind: np.dtype[np.signedinteger]) -> npt.NDArray[np.signedinteger] | None:
        """The offsets of all rows into the joined data; None unless each body's rise from 0 to the length of its."""
        own = np.frombuffer(self._joined(buffer), dtype=kind)
        firsts = np.cumsum(self._rows + 1) - self._rows - 1
        lengths = self._lengths[:, buffer + 1]
        if own[firsts].any() or (own[firsts + self._rows] != lengths).any():
            return None
        is_end = np.ones(len(own), dtype=np.bool_)
        is_end[firsts] = False
        moved = np.zeros(self._total + 1, dtype=kind)
        moved[1:] = own[is_end] + np.repeat(np.cumsum(lengths) - lengths, self._rows).astype(kind)
        return None if (moved[1:] < moved[:-1]).any() else moved
