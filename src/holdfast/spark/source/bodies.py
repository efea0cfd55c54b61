"""From the bytes of many objects to one table: the costly step of reading, done for a group of objects at a time.

Owns: decoding groups of bodies together, and the promises of a header that only its rows can break.
Does not own: the format of a body (``commit.batch``), which objects belong together (``scan``), columns (``shapes``).

How: small bodies of the layout that this version writes are joined column by column (``joined_bodies``). Others: a body
is an Arrow stream, and the streams of objects that were written with the same schema message differ in their batches
only. So their batches, one behind the other, are one stream again, decoded by one call. A body written otherwise is
decoded alone.

Failure model: damage raises CorruptData naming the slot. Nothing is skipped.
"""

# pyarrow ships no types, so the checker cannot know its classes where they are parameters; mypy checks the rest.
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.commit.format.batch import BODY_SCHEMA, HEADER_BYTES, Header, body_bytes, read_body_table
from holdfast.errors import Code, CorruptData
from holdfast.spark.source.joined_bodies import join_bodies
from holdfast.values import slot_text

__all__ = ["Bodies", "decode_bodies"]

JOINED_BYTES_MAX: Final = 512 * 1024
"""A body above this is decoded where it lies: copying it would cost more than a decoder."""
_END: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_SCHEMA: Final[bytes] = BODY_SCHEMA.serialize().to_pybytes()


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
    found = _joined(objects, verify=verify) or _one_by_one(objects, verify=verify)
    if verify:
        _check_versions(found)
    return found


def _joined(objects: Sequence[tuple[Header, bytes]], *, verify: bool) -> Bodies | None:
    """All bodies by one decoder; None where they cannot be joined, or are not one batch each."""
    if len(objects) < 2:
        return None
    bodies = [_body(data, header, verify=verify) for header, data in objects]
    if any(len(body) > JOINED_BYTES_MAX for body in bodies):
        return None
    of_own_layout = join_bodies(bodies)
    if of_own_layout is not None:
        return Bodies([header for header, _ in objects], *of_own_layout)
    parts: list[memoryview | bytes] = [_SCHEMA]
    for body in bodies:
        if bytes(body[: len(_SCHEMA)]) != _SCHEMA or bytes(body[-len(_END) :]) != _END:
            return None
        parts.append(body[len(_SCHEMA) : -len(_END)])
    parts.append(_END)
    try:
        table = pa.ipc.open_stream(pa.py_buffer(b"".join(parts))).read_all()
    except (pa.ArrowException, OSError):
        return None  # one by one, to find which
    counts = [len(chunk) for chunk in table["version"].chunks]
    if len(counts) != len(objects) or table.schema != BODY_SCHEMA or 0 in counts:
        return None
    return Bodies([header for header, _ in objects], counts, table.combine_chunks())


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
    return table


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
    fits = (
        (firsts == np.array([header.first_version for header in bodies.headers], dtype=np.uint64))
        & (lasts == np.array([header.last_version for header in bodies.headers], dtype=np.uint64))
        & (rises[ends - 1] - rises[ends - counts] + 1 == [header.transactions for header in bodies.headers])
        & (falls[ends - 1] == falls[ends - counts])
    )
    if not fits.all():
        raise _broken(bodies.headers[int(np.argmin(fits))])


def _broken(header: Header) -> CorruptData:
    return CorruptData(
        "rows do not keep the versions of the header", code=Code.CORRUPT_BATCH, slot=slot_text(header.slot)
    )
