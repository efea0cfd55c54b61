"""``history``: every value that every key ever had, with the versions between which it was the newest.

Columns: ``key``, ``value``; the value is the newest for every version v with ``valid_from <= v < valid_to``, and
``valid_to`` is null while it is current; ``valid_from_time`` and ``valid_to_time`` are the times of those batches;
``is_current`` and ``bucket`` are the partition. A value that its own transaction replaced has no row. A step rewrites
the current rows of the buckets that it touches and appends ended rows, so its cost does not grow with the log's age.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.spark.tables.buckets import BucketJob, BucketPart

__all__ = ["History", "merge_history"]

_TIME: Final = pa.timestamp("us", tz="UTC")
ROWS: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("valid_from", pa.int64()),
        pa.field("valid_to", pa.int64()),
        pa.field("valid_from_time", _TIME),
        pa.field("valid_to_time", _TIME),
    ]
)
SCHEMA: Final = ROWS.append(pa.field("bucket", pa.int32())).append(pa.field("is_current", pa.bool_()))
WRITE: Final = "write"
RANGE_DELETE: Final = "range_delete"
CURRENT: Final = {"is_current": "true"}
ENDED: Final = {"is_current": "false"}

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def merge_history(current: pa.Table | None, changes: pa.Table) -> Sequence[BucketPart]:
    """A bucket's current rows after ``changes``, and the rows that have ended in them.

    Shape: ``changes`` has version, position, kind, key, end, value, timestamp, in no order; all of them are newer than
    every row of ``current``. Each part is sorted by key and version.
    """
    rows = _written(current, changes.filter(pc.call_function("not_equal", [changes["kind"], RANGE_DELETE])))
    keys = rows["key"].unique().sort()
    key = pc.call_function("index_in", [rows["key"]], pc.SetLookupOptions(value_set=keys)).to_numpy().astype(np.int64)
    source = np.arange(rows.num_rows, dtype=np.int64)
    events: list[tuple[Numbers, Numbers, Numbers, Numbers]] = [
        (key, _numbers(rows["version"]), _numbers(rows["position"]), source)
    ]
    ranges = changes.filter(pc.call_function("equal", [changes["kind"], RANGE_DELETE]))
    names = keys.to_pylist() if ranges.num_rows else []
    first_range = rows.num_rows
    for index, (begin, end) in enumerate(zip(ranges["key"].to_pylist(), ranges["end"].to_pylist(), strict=True)):
        past = len(names) if end is None else bisect_left(names, end)
        covered = np.arange(bisect_left(names, begin), past, dtype=np.int64)
        version, position = ranges["version"][index].as_py(), ranges["position"][index].as_py()
        events.append(
            (
                covered,
                _repeated(version, covered),
                _repeated(position, covered),
                _repeated(first_range + index, covered),
            )
        )
    key, version, position, source = (np.concatenate(parts) for parts in zip(*events, strict=True))
    order = np.lexsort((position, version, key))
    key, version, source = key[order], version[order], source[order]
    # Of one key's events at one version the last is what the transaction left behind.
    settled: Flags = np.append((key[1:] != key[:-1]) | (version[1:] != version[:-1]), np.True_)[: len(key)]
    key, version, source = key[settled], version[settled], source[settled]
    lives = np.concatenate((_flags(rows["lives"]), np.zeros(ranges.num_rows, dtype=np.bool_)))
    times = pa.concat_arrays([_one(rows["timestamp"]), _one(ranges["timestamp"]).cast(_TIME)])
    followed: Flags = np.append(key[1:] == key[:-1], np.False_)[: len(key)]
    following = np.where(followed, np.arange(1, len(key) + 1), 0)
    kept = np.flatnonzero(lives[source])
    ends = following[kept]
    from_rows = pa.array(source[kept])
    to_rows = pa.array(source[ends], mask=~followed[kept]) if len(key) else pa.array([], pa.int64())
    valid_to = pa.array(version[ends], mask=~followed[kept]) if len(key) else pa.array([], pa.int64())
    table = pa.Table.from_arrays(
        [
            rows["key"].take(from_rows),
            rows["value"].take(from_rows),
            pa.array(version[kept]),
            valid_to,
            times.take(from_rows),
            times.take(to_rows),
        ],
        schema=ROWS,
    )
    open_rows = table["valid_to"].is_null()
    return [BucketPart(table.filter(open_rows), CURRENT), BucketPart(table.filter(table["valid_to"].is_valid()), ENDED)]


def _written(current: pa.Table | None, points: pa.Table) -> pa.Table:
    """Current rows and point operations as one table of events. Current rows come before every operation."""
    both = pa.table(
        {
            "key": points["key"],
            "value": points["value"],
            "version": points["version"],
            "position": points["position"],
            "timestamp": points["timestamp"].cast(_TIME),
            "lives": pc.call_function("equal", [points["kind"], WRITE]),
        }
    )
    if current is None:
        return both.combine_chunks()
    before = pa.table(
        {
            "key": current["key"],
            "value": current["value"],
            "version": current["valid_from"],
            "position": pa.repeat(pa.scalar(-1, pa.int32()), current.num_rows),
            "timestamp": current["valid_from_time"].cast(_TIME),
            "lives": pa.repeat(True, current.num_rows),
        }
    )
    return pa.concat_tables([before, both]).combine_chunks()


def _repeated(value: int, rows: Numbers) -> Numbers:
    return np.full(len(rows), value, dtype=np.int64)


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _numbers(column: pa.ChunkedArray) -> Numbers:
    numbers: Numbers = column.to_numpy().astype(np.int64)
    return numbers


def _flags(column: pa.ChunkedArray) -> Flags:
    flags: Flags = column.to_numpy().astype(np.bool_)
    return flags


class History(BucketJob):
    """The history of the log at ``log_url`` in the Delta table at ``output_url``; ``buckets`` as in ``Latest``."""

    name = "history"
    schema = SCHEMA
    columns = "version,position,kind,key,end,value,timestamp"
    statistics = ("valid_from", "valid_to")
    further_partition = CURRENT
    merge = staticmethod(merge_history)
