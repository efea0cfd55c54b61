"""Make the rows of each shape from decoded objects, in vectorised steps.

Slots do not fit Spark's signed 64-bit integers, so rows carry ``seq = 2^64-1 - slot``: the position in the order of
writing, 0 for genesis. Versions stay below 2^53 and are longs. Rows that contradict their header raise CorruptData
with the slot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.commit.format.batch import FIRST_SLOT, Header, ItemKind, Kind
from holdfast.errors import Code, CorruptData
from holdfast.spark.columns import COLUMNS, OPERATION, OPERATION_KINDS, PRECONDITION, RowShape, arrow_schema
from holdfast.spark.options import ReadOptions
from holdfast.spark.source.bodies import Bodies
from holdfast.spark.typed.rows import in_range
from holdfast.values import slot_text


@cache
def _kind_names() -> pa.Array:
    """The text of each item kind, by its number. Not made on import: the first array loads pandas, a whole second."""
    return pa.array([kind.name.lower() for kind in ItemKind], pa.string())


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Which rows of the read objects are wanted.

    Shape: versions and seqs inclusive, None for no bound; keys ``[key_begin, key_end)``, and a range delete is wanted
    when its range meets that one; ``request_ids`` are the ids wanted, None for all and for no id. ``kinds`` of all
    operations also stands for a filter that does not ask.
    """

    version_min: int | None = None
    version_max: int | None = None
    kinds: tuple[ItemKind, ...] = OPERATION_KINDS
    key_begin: bytes = b""
    key_end: bytes | None = None
    seq_min: int | None = None
    seq_max: int | None = None
    request_ids: tuple[str, ...] | None = None

    def and_also(self, other: RowFilter) -> RowFilter:
        """What both want."""
        ids = self.request_ids
        if other.request_ids is not None:
            ids = other.request_ids if ids is None else tuple(each for each in ids if each in other.request_ids)
        if self.kinds == OPERATION_KINDS or other.kinds == OPERATION_KINDS:
            kinds = other.kinds if self.kinds == OPERATION_KINDS else self.kinds
        else:
            kinds = tuple(kind for kind in self.kinds if kind in other.kinds)
        ends = [end for end in (self.key_end, other.key_end) if end is not None]
        return RowFilter(
            version_min=_narrower(max, self.version_min, other.version_min),
            version_max=_narrower(min, self.version_max, other.version_max),
            kinds=kinds,
            key_begin=max(self.key_begin, other.key_begin),
            key_end=min(ends) if ends else None,
            seq_min=_narrower(max, self.seq_min, other.seq_min),
            seq_max=_narrower(min, self.seq_max, other.seq_max),
            request_ids=ids,
        )


_EVERY_OPERATION: Final = RowFilter()


def row_filter(options: ReadOptions) -> RowFilter:
    """The kinds, keys and request ids that the options of a read ask for; versions and seqs are the plan's matter."""
    return RowFilter(
        kinds=options.kinds, key_begin=options.key_begin, key_end=options.key_end, request_ids=options.request_ids
    )


def _narrower(choose: Callable[[int, int], int], one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else choose(one, other)


def seq_of(slot: int) -> int:
    """The position of a slot in the order of writing: 0 for genesis.

    >>> seq_of(2**64 - 1), seq_of(2**64 - 4)
    (0, 3)
    """
    return FIRST_SLOT - slot


_HEADER_VALUES: Final[Mapping[str, Callable[[Header], object]]] = {
    "seq": lambda header: seq_of(header.slot),
    "slot": lambda header: slot_text(header.slot),
    "kind": lambda header: Kind(header.kind).name.lower(),
    "leader_id": lambda header: header.leader_id.hex(),
    "claim_seq": lambda header: seq_of(header.claim),
    "prev_seq": lambda header: seq_of(header.prev),
    "durable_seq": lambda header: seq_of(header.durable),
    "object_bytes": lambda header: header.object_bytes(),
    "timestamp": lambda header: header.time_ms * 1000,
}
"""Columns that are computed from the header of an object."""


def operation_rows(bodies: Bodies, columns: Sequence[str], wanted: RowFilter) -> pa.RecordBatch:
    """One row per wanted operation of these objects, in log order. Cost: O(rows), in native code."""
    table = bodies.rows
    selected = _selection(bodies, wanted)

    def of_row(name: str) -> pa.Array:
        return _filtered(_one(table[name]), selected)

    def kind_of_row() -> pa.Array:
        kinds = of_row("kind")
        numbers = kinds.to_numpy(zero_copy_only=False)
        if len(numbers) and numbers.min() == numbers.max():
            return pa.repeat(_kind_names()[int(numbers[0])], len(numbers))  # most objects hold writes alone
        return _kind_names().take(kinds)

    makers: Mapping[str, Callable[[], pa.Array]] = {
        "version": lambda: of_row("version").cast(pa.int64()),
        "request_id": lambda: of_row("request_id"),
        "kind": kind_of_row,
        "key": lambda: of_row("key"),
        "end": lambda: of_row("end"),
        "value": lambda: of_row("value").cast(pa.binary()),
        "position": lambda: _filtered(_positions(table), selected),
    }
    arrays = [
        makers[name]() if name in makers else _filtered(_of_header(name, bodies.headers, bodies.counts), selected)
        for name in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(RowShape.OPERATIONS, columns))


def transaction_rows(bodies: Bodies, columns: Sequence[str], wanted: RowFilter) -> pa.RecordBatch:
    """One row per wanted transaction of these objects, its operations as an array."""
    table = bodies.rows
    versions = _numbers(table["version"])
    firsts = np.flatnonzero(np.concatenate(([True], versions[1:] != versions[:-1])))
    own = versions[firsts].astype(np.int64)
    # The first transaction of each object; the one before it is in another object, and the header names it.
    starts = np.searchsorted(firsts, np.cumsum(bodies.counts) - bodies.counts)
    previous = np.concatenate(([0], own[:-1]))
    previous[starts] = [header.prev_version for header in bodies.headers]
    counts = np.diff(np.concatenate((starts, [len(own)])))
    rows = pa.array(firsts)
    wanted_rows: npt.NDArray[np.bool_] = np.ones(len(own), dtype=np.bool_)
    _narrow(wanted_rows, wanted, own, bodies.headers, counts, lambda: _one(table["request_id"]).take(rows))
    mask = pa.array(wanted_rows)

    makers: Mapping[str, Callable[[], pa.Array]] = {
        "version": lambda: pa.array(own),
        "prev_version": lambda: pa.array(previous, pa.int64()),
        "request_id": lambda: _one(table["request_id"]).take(rows),
        "read_version": lambda: _one(table["read_version"]).take(rows).cast(pa.int64()),
        "operations": lambda: _operation_lists(table, firsts),
        "preconditions": lambda: _precondition_lists(table, firsts),
    }
    arrays = [
        (makers[name]() if name in makers else _of_header(name, bodies.headers, counts)).filter(mask)
        for name in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(RowShape.TRANSACTIONS, columns))


def _narrow(
    mask: npt.NDArray[np.bool_],
    wanted: RowFilter,
    versions: npt.NDArray[np.int64] | npt.NDArray[np.uint64],
    headers: Sequence[Header],
    counts: Sequence[int] | npt.NDArray[np.int64],
    ids: Callable[[], pa.Array],
) -> None:
    """Clear the rows of ``mask`` outside the wanted versions, objects and ids. ``counts``: rows of each object."""
    if wanted.version_min is not None:
        mask &= versions >= wanted.version_min
    if wanted.version_max is not None:
        mask &= versions <= wanted.version_max
    if wanted.seq_min is not None or wanted.seq_max is not None:
        mask &= np.repeat(_wanted_objects(headers, wanted), counts)
    if wanted.request_ids is not None:
        options = pc.SetLookupOptions(value_set=pa.array(wanted.request_ids, pa.string()))
        mask &= pc.call_function("is_in", [ids()], options).to_numpy(zero_copy_only=False)


def _operation_lists(table: pa.Table, firsts: npt.NDArray[np.int64]) -> pa.Array:
    kinds = _numbers(table["kind"])
    offsets, operations = _items(table, firsts, kinds <= ItemKind.RANGE_DELETE)
    values = pa.StructArray.from_arrays(
        [
            _kind_names().take(_one(operations["kind"])),
            _one(operations["key"]),
            _one(operations["end"]),
            _one(operations["value"]).cast(pa.binary()),
        ],
        fields=list(OPERATION),
    )
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=COLUMNS[RowShape.TRANSACTIONS]["operations"])


def _precondition_lists(table: pa.Table, firsts: npt.NDArray[np.int64]) -> pa.Array:
    """What each transaction read; ``version`` is the newest one that it allows, its read version by default."""
    kinds = _numbers(table["kind"])
    is_read = (kinds > ItemKind.RANGE_DELETE) & (kinds <= ItemKind.RANGE_READ)
    offsets, reads = _items(table, firsts, is_read)
    versions = pc.call_function("coalesce", [_one(reads["at"]), _one(reads["read_version"])])
    values = pa.StructArray.from_arrays(
        [_kind_names().take(_one(reads["kind"])), _one(reads["key"]), _one(reads["end"]), versions.cast(pa.int64())],
        fields=list(PRECONDITION),
    )
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=COLUMNS[RowShape.TRANSACTIONS]["preconditions"])


def _items(
    table: pa.Table, firsts: npt.NDArray[np.int64], chosen: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.int32], pa.Table]:
    """The ``chosen`` rows, and where those of each transaction begin in them."""
    before = np.concatenate(([0], np.cumsum(chosen)))
    return np.concatenate((before[firsts], before[-1:])).astype(np.int32), table.filter(pa.array(chosen))


def batch_rows(headers: Sequence[Header], columns: Sequence[str], wanted: RowFilter) -> pa.RecordBatch:
    """One row per wanted live object, claims and resign records included, from the headers alone.

    Versions are not looked at: which objects a version bound picks is the plan's decision.
    """
    headers = [header for header, kept in zip(headers, _wanted_objects(headers, wanted), strict=True) if kept]
    schema = arrow_schema(RowShape.BATCHES, columns)
    # Every other column is a field of the header.
    values = [(_HEADER_VALUES.get(field.name, attrgetter(field.name)), field.type) for field in schema]
    arrays = [pa.array([value(header) for header in headers], kind) for value, kind in values]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _one(column: pa.ChunkedArray) -> pa.Array:
    """A column as a single array; after ``combine_chunks`` that copies nothing."""
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _numbers(column: pa.ChunkedArray) -> npt.NDArray[np.uint64]:
    numbers: npt.NDArray[np.uint64] = _one(column).to_numpy(zero_copy_only=False)
    return numbers


def _filtered(array: pa.Array, selected: pa.Array | None) -> pa.Array:
    return array if selected is None else array.filter(selected)


def _of_header(name: str, headers: Sequence[Header], counts: Sequence[int] | npt.NDArray[np.int64]) -> pa.Array:
    """A column that all rows of an object share."""
    kind = COLUMNS[RowShape.BATCHES][name]
    values = [_HEADER_VALUES[name](header) for header in headers]
    if len(counts) == 1:
        return pa.repeat(pa.scalar(values[0], kind), int(counts[0]))
    rows = np.repeat(np.arange(len(counts)), np.asarray(counts, dtype=np.int64))
    return pa.array(values, kind).take(pa.array(rows))


def _positions(table: pa.Table) -> pa.Array:
    """Each row's position among the operations of its transaction, which changes of jobs follow; its preconditions come
    before them."""
    versions = _numbers(table["version"])
    kinds = _numbers(table["kind"])
    is_operation = (kinds <= ItemKind.RANGE_DELETE) | (kinds == ItemKind.JOB)
    before: npt.NDArray[np.int64] = np.cumsum(is_operation) - is_operation
    starts = np.searchsorted(versions, versions, side="left")
    return pa.array((before - before[starts]).astype(np.int32)) if len(versions) else pa.array([], pa.int32())


def _wanted_objects(headers: Sequence[Header], wanted: RowFilter) -> npt.NDArray[np.bool_]:
    low = 0 if wanted.seq_min is None else wanted.seq_min
    high = FIRST_SLOT if wanted.seq_max is None else wanted.seq_max
    return np.fromiter((low <= seq_of(header.slot) <= high for header in headers), dtype=np.bool_, count=len(headers))


def _selection(bodies: Bodies, wanted: RowFilter) -> pa.Array | None:
    """The mask of wanted rows, or None when that is all of them."""
    table = bodies.rows
    kinds = _numbers(table["kind"])
    if len(kinds) == 0:
        return None
    highest = int(kinds.max())
    if highest > ItemKind.JOB_READ:
        raise CorruptData("row has an unknown kind", code=Code.CORRUPT_BATCH, kind=highest)
    if highest <= ItemKind.RANGE_DELETE and wanted == _EVERY_OPERATION:
        return None
    mask = np.isin(kinds, [int(kind) for kind in wanted.kinds])
    versions = _numbers(table["version"])
    _narrow(mask, wanted, versions, bodies.headers, bodies.counts, lambda: _one(table["request_id"]))
    if wanted.key_begin or wanted.key_end is not None:
        is_range = pa.array(kinds == ItemKind.RANGE_DELETE)
        in_keys = in_range(_one(table["key"]), _one(table["end"]), is_range, wanted.key_begin, wanted.key_end)
        mask &= in_keys.to_numpy(zero_copy_only=False)
    return None if mask.all() else pa.array(mask)
