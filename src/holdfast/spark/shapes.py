"""What a row of a read is: the columns of each shape, and their making from decoded objects.

Owns: the column names and types, in Arrow and in Spark, and the vectorised step from batch bodies to those columns.
Does not own: the batch format (``commit.batch``), which objects are read (``plan``, ``scan``).

Failure model: rows that break the promises of their header raise CorruptData naming the slot; nothing is skipped.

Slots do not fit Spark's signed 64-bit integers, so rows carry ``seq = 2^64-1 - slot``: the place in the order of
writing, 0 for genesis. Versions stay below 2^53 and are longs.
"""

# pyarrow ships no types, so the checker cannot know its classes where they are parameters; mypy checks the rest.
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.commit.batch import FIRST_SLOT, Header, ItemKind, Kind
from holdfast.errors import Code, CorruptData
from holdfast.values import slot_text

__all__ = [
    "OPERATION_KINDS",
    "Body",
    "RowFilter",
    "Shape",
    "arrow_schema",
    "batch_rows",
    "check_versions",
    "column_names",
    "default_columns",
    "operation_rows",
    "seq_of",
    "transaction_rows",
]


class Shape(StrEnum):
    """What one row stands for."""

    OPERATIONS = "operations"
    TRANSACTIONS = "transactions"
    BATCHES = "batches"


OPERATION_KINDS: Final = (ItemKind.WRITE, ItemKind.DELETE, ItemKind.RANGE_DELETE)
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_OPERATION: Final = pa.struct(
    [
        pa.field("kind", pa.string()),
        pa.field("key", pa.binary()),
        pa.field("end", pa.binary()),
        pa.field("value", pa.binary()),
    ]
)

_COLUMNS: Final[Mapping[Shape, Mapping[str, pa.DataType]]] = {
    Shape.OPERATIONS: {
        "version": pa.int64(),
        "seq": pa.int64(),
        "request_id": pa.string(),
        "kind": pa.string(),
        "key": pa.binary(),
        "end": pa.binary(),
        "value": pa.binary(),
        "timestamp": _TIMESTAMP,
        "position": pa.int32(),
        "leader_id": pa.string(),
    },
    Shape.TRANSACTIONS: {
        "version": pa.int64(),
        "prev_version": pa.int64(),
        "seq": pa.int64(),
        "request_id": pa.string(),
        "read_version": pa.int64(),
        "operations": pa.list_(pa.field("element", _OPERATION)),
        "timestamp": _TIMESTAMP,
        "leader_id": pa.string(),
    },
    Shape.BATCHES: {
        "seq": pa.int64(),
        "slot": pa.string(),
        "kind": pa.string(),
        "epoch": pa.int64(),
        "leader_id": pa.string(),
        "address": pa.string(),
        "claim_seq": pa.int64(),
        "prev_seq": pa.int64(),
        "durable_seq": pa.int64(),
        "first_version": pa.int64(),
        "last_version": pa.int64(),
        "prev_version": pa.int64(),
        "window_floor": pa.int64(),
        "truncated_through": pa.int64(),
        "transactions": pa.int64(),
        "object_bytes": pa.int64(),
        "timestamp": _TIMESTAMP,
    },
}

_ON_REQUEST: Final = frozenset({"position", "leader_id"})
"""Columns of ``operations`` that only ``columns`` brings: ``position`` is the operation's place in its transaction."""


@cache
def _kind_names() -> pa.Array:
    """The text of each item kind, by its number. Not made on import: the first array loads pandas, a whole second."""
    return pa.array([kind.name.lower() for kind in ItemKind], pa.string())


@dataclass(frozen=True, slots=True)
class Body:
    """One live object's header and, for data, its decoded rows."""

    header: Header
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Which rows of the read objects are wanted.

    Shape: versions inclusive, None for no bound; keys ``[key_begin, key_end)``, and a range delete is wanted when its
    range meets that one.
    """

    version_min: int | None = None
    version_max: int | None = None
    kinds: tuple[ItemKind, ...] = OPERATION_KINDS
    key_begin: bytes = b""
    key_end: bytes | None = None


def column_names(shape: Shape) -> tuple[str, ...]:
    """Every column that ``shape`` has, in order."""
    return tuple(_COLUMNS[shape])


def default_columns(shape: Shape) -> tuple[str, ...]:
    """The columns that a read of ``shape`` has when it names none."""
    dropped = _ON_REQUEST if shape is Shape.OPERATIONS else frozenset[str]()
    return tuple(name for name in _COLUMNS[shape] if name not in dropped)


def arrow_schema(shape: Shape, columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of these columns, in this order; every column is nullable."""
    types = _COLUMNS[shape]
    return pa.schema([pa.field(name, types[name]) for name in columns])


def seq_of(slot: int) -> int:
    """The place of a slot in the order of writing: 0 for genesis.

    >>> seq_of(2**64 - 1), seq_of(2**64 - 4)
    (0, 3)
    """
    return FIRST_SLOT - slot


def check_versions(body: Body) -> None:
    """Raise CorruptData unless the rows keep what the header promises: count, bounds and rising order of versions."""
    header = body.header
    if not header.transactions:
        return
    versions = _numbers(body.rows["version"])
    steps = versions[1:] > versions[:-1]
    fits = (
        len(versions) > 0
        and versions[0] == header.first_version
        and versions[-1] == header.last_version
        and bool(np.all(versions[1:] >= versions[:-1]))
        and int(np.count_nonzero(steps)) + 1 == header.transactions
    )
    if not fits:
        raise CorruptData(
            "rows do not keep the versions of the header", code=Code.CORRUPT_BATCH, slot=slot_text(header.slot)
        )


def operation_rows(bodies: Sequence[Body], columns: Sequence[str], wanted: RowFilter) -> pa.RecordBatch:
    """One row per wanted operation of these objects, in log order. Cost: O(rows), in native code."""
    table = _joined(bodies)
    selected = _selection(table, wanted)
    counts = [body.rows.num_rows for body in bodies]

    def of_row(name: str) -> pa.Array:
        return _filtered(_one(table[name]), selected)

    def of_object(values: Callable[[Header], object], kind: pa.DataType) -> pa.Array:
        return _filtered(_repeated([values(body.header) for body in bodies], counts, kind), selected)

    def kind_of_row() -> pa.Array:
        return _kind_names().take(of_row("kind"))

    def position_of_row() -> pa.Array:
        return _filtered(_positions(table), selected)

    makers: Mapping[str, Callable[[], pa.Array]] = {
        "version": lambda: of_row("version").cast(pa.int64()),
        "seq": lambda: of_object(lambda header: seq_of(header.slot), pa.int64()),
        "request_id": lambda: of_row("request_id"),
        "kind": kind_of_row,
        "key": lambda: of_row("key"),
        "end": lambda: of_row("end"),
        "value": lambda: of_row("value").cast(pa.binary()),
        "timestamp": lambda: of_object(lambda header: header.time_ms * 1000, _TIMESTAMP),
        "position": position_of_row,
        "leader_id": lambda: of_object(lambda header: header.leader_id.hex(), pa.string()),
    }
    arrays = [makers[name]() for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(Shape.OPERATIONS, columns))


def transaction_rows(bodies: Sequence[Body], columns: Sequence[str], wanted: RowFilter) -> pa.RecordBatch:
    """One row per transaction of these objects, its operations as an array. Only version bounds are looked at."""
    parts = [_transactions_of(body, columns, wanted) for body in bodies if body.header.transactions]
    return pa.concat_batches(parts) if parts else _empty(columns)


def _empty(columns: Sequence[str]) -> pa.RecordBatch:
    schema = arrow_schema(Shape.TRANSACTIONS, columns)
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def _transactions_of(body: Body, columns: Sequence[str], wanted: RowFilter) -> pa.RecordBatch:
    header = body.header
    table = body.rows.combine_chunks()
    versions = _numbers(table["version"])
    firsts = np.flatnonzero(np.concatenate(([True], versions[1:] != versions[:-1])))
    own = versions[firsts].astype(np.int64)
    previous = np.concatenate(([header.prev_version], own[:-1]))
    kept = np.ones(len(own), dtype=np.bool_)
    if wanted.version_min is not None:
        kept &= own >= wanted.version_min
    if wanted.version_max is not None:
        kept &= own <= wanted.version_max
    starts = pa.array(firsts)
    mask = pa.array(kept)

    def constant(value: object, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(value, kind), len(own))

    makers: Mapping[str, Callable[[], pa.Array]] = {
        "version": lambda: pa.array(own),
        "prev_version": lambda: pa.array(previous, pa.int64()),
        "seq": lambda: constant(seq_of(header.slot), pa.int64()),
        "request_id": lambda: _one(table["request_id"]).take(starts),
        "read_version": lambda: _one(table["read_version"]).take(starts).cast(pa.int64()),
        "operations": lambda: _operation_lists(table, firsts),
        "timestamp": lambda: constant(header.time_ms * 1000, _TIMESTAMP),
        "leader_id": lambda: constant(header.leader_id.hex(), pa.string()),
    }
    arrays = [makers[name]().filter(mask) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(Shape.TRANSACTIONS, columns))


def _operation_lists(table: pa.Table, firsts: npt.NDArray[np.int64]) -> pa.Array:
    kinds = _numbers(table["kind"])
    is_operation = kinds <= ItemKind.RANGE_DELETE
    before = np.concatenate(([0], np.cumsum(is_operation)))
    offsets = np.concatenate((before[firsts], before[-1:])).astype(np.int32)
    operations = table.filter(pa.array(is_operation))
    values = pa.StructArray.from_arrays(
        [
            _kind_names().take(_one(operations["kind"])),
            _one(operations["key"]),
            _one(operations["end"]),
            _one(operations["value"]).cast(pa.binary()),
        ],
        fields=list(_OPERATION),
    )
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=_COLUMNS[Shape.TRANSACTIONS]["operations"])


def batch_rows(headers: Sequence[Header], columns: Sequence[str]) -> pa.RecordBatch:
    """One row per live object, claims and resign records included, from the headers alone."""
    makers: Mapping[str, Callable[[Header], object]] = {
        "seq": lambda header: seq_of(header.slot),
        "slot": lambda header: slot_text(header.slot),
        "kind": lambda header: Kind(header.kind).name.lower(),
        "epoch": lambda header: header.epoch,
        "leader_id": lambda header: header.leader_id.hex(),
        "address": lambda header: header.address,
        "claim_seq": lambda header: seq_of(header.claim),
        "prev_seq": lambda header: seq_of(header.prev),
        "durable_seq": lambda header: seq_of(header.durable),
        "first_version": lambda header: header.first_version,
        "last_version": lambda header: header.last_version,
        "prev_version": lambda header: header.prev_version,
        "window_floor": lambda header: header.window_floor,
        "truncated_through": lambda header: header.truncated_through,
        "transactions": lambda header: header.transactions,
        "object_bytes": lambda header: header.object_bytes(),
        "timestamp": lambda header: header.time_ms * 1000,
    }
    schema = arrow_schema(Shape.BATCHES, columns)
    arrays = [pa.array([makers[field.name](header) for header in headers], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _joined(bodies: Sequence[Body]) -> pa.Table:
    return pa.concat_tables([body.rows for body in bodies]).combine_chunks()


def _one(column: pa.ChunkedArray) -> pa.Array:
    """A column as a single array; after ``combine_chunks`` that copies nothing."""
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _numbers(column: pa.ChunkedArray) -> npt.NDArray[np.uint64]:
    numbers: npt.NDArray[np.uint64] = _one(column).to_numpy(zero_copy_only=False)
    return numbers


def _filtered(array: pa.Array, selected: pa.Array | None) -> pa.Array:
    return array if selected is None else array.filter(selected)


def _repeated(values: Sequence[object], counts: Sequence[int], kind: pa.DataType) -> pa.Array:
    rows = np.repeat(np.arange(len(counts)), np.asarray(counts, dtype=np.int64))
    return pa.array(values, kind).take(pa.array(rows))


def _positions(table: pa.Table) -> pa.Array:
    """Each row's place among the operations of its transaction; a transaction's preconditions come before them."""
    versions = _numbers(table["version"])
    kinds = _numbers(table["kind"])
    is_operation = kinds <= ItemKind.RANGE_DELETE
    before: npt.NDArray[np.int64] = np.cumsum(is_operation) - is_operation
    starts = np.searchsorted(versions, versions, side="left")
    return pa.array((before - before[starts]).astype(np.int32)) if len(versions) else pa.array([], pa.int32())


def _selection(table: pa.Table, wanted: RowFilter) -> pa.Array | None:
    """The mask of wanted rows, or None when that is all of them."""
    kinds = _numbers(table["kind"])
    if len(kinds) == 0:
        return None
    if int(kinds.max()) > ItemKind.RANGE_READ:
        raise CorruptData("row has an unknown kind", code=Code.CORRUPT_BATCH, kind=int(kinds.max()))
    mask = np.isin(kinds, [int(kind) for kind in wanted.kinds])
    if wanted.version_min is not None or wanted.version_max is not None:
        versions = _numbers(table["version"])
        mask &= versions >= (wanted.version_min or 0)
        if wanted.version_max is not None:
            mask &= versions <= wanted.version_max
    if wanted.key_begin or wanted.key_end is not None:
        mask &= _in_key_range(table, kinds, wanted)
    return None if mask.all() else pa.array(mask)


def _in_key_range(table: pa.Table, kinds: npt.NDArray[np.uint64], wanted: RowFilter) -> npt.NDArray[np.bool_]:
    key = _one(table["key"])
    end = _one(table["end"])
    mask: npt.NDArray[np.bool_] = np.ones(len(kinds), dtype=np.bool_)
    if wanted.key_begin:
        begin = pa.scalar(wanted.key_begin, pa.binary())
        point = pc.call_function("greater_equal", [key, begin]).to_numpy(zero_copy_only=False)
        reaches = pc.call_function("greater", [end, begin]).fill_null(True).to_numpy(zero_copy_only=False)
        mask &= np.where(kinds == ItemKind.RANGE_DELETE, reaches, point)
    if wanted.key_end is not None:
        mask &= pc.call_function("less", [key, pa.scalar(wanted.key_end, pa.binary())]).to_numpy(zero_copy_only=False)
    return mask
