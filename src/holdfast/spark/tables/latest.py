"""``latest``: the newest value of every key as a Delta table, exact with deletes and range deletes.

Columns: ``key`` and ``value`` raw bytes, ``version`` that wrote the value, ``bucket`` (the partition). One row per
key; files are sorted by key. Each step continues where the last one ended, so no tombstones are needed.

Delta's own merge is not used: it joins on the driver and reads the table's whole key column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.spark.tables.buckets import BucketJob, BucketPart
from holdfast.spark.tables.state import Coverage, Place, RangeDeleted

__all__ = ["Latest", "merge_latest", "newest_points", "ranges_of"]

ROWS: Final = pa.schema([pa.field("key", pa.binary()), pa.field("value", pa.binary()), pa.field("version", pa.int64())])
SCHEMA: Final = ROWS.append(pa.field("bucket", pa.int32()))


def newest_points(operations: pa.Table) -> pa.Table:
    """Of operations in log order each key's newest point operation, and every range delete, still in order.

    A range delete stays whatever comes after it: it also covers keys that these operations do not name.
    """
    is_range = pc.call_function("equal", [operations["kind"], "range_delete"]).to_numpy()
    keys = operations["key"].combine_chunks().dictionary_encode()
    codes = keys.indices.to_numpy()
    places = np.arange(len(codes))
    points = ~is_range
    newest = np.full(len(keys.dictionary), -1)
    newest[codes[points]] = places[points]  # of several places for one key the last is kept, which is the newest
    wanted = is_range | (newest[codes] == places)
    return operations if wanted.all() else operations.filter(pa.array(wanted))


def merge_latest(current: pa.Table | None, changes: pa.Table) -> Sequence[BucketPart]:
    """A bucket's rows after ``changes``, sorted by key.

    Shape: ``changes`` has version, position, kind, key, end, value, in log order; all of them are newer than every row
    of ``current``. Cost: O(n log n) in native code, and a Python step per row when there are range deletes. Values are
    copied once: what is kept, and where, is found by keys alone.
    """
    is_range = pc.call_function("equal", [changes["kind"], "range_delete"])
    ranges = ranges_of(changes.filter(is_range))
    points = changes.filter(pc.call_function("invert", [is_range])) if ranges else changes
    held = points.select(ROWS.names)
    position, lives = _numbers(points["position"]), points["kind"].to_numpy() == "write"
    if current is not None:
        before = current.num_rows
        held = pa.concat_tables([current.select(ROWS.names), held])
        position = np.concatenate((np.full(before, -1), position))
        lives = np.concatenate((np.ones(before, dtype=np.bool_), lives))
    held = held.combine_chunks()
    keys = held["key"].combine_chunks()
    # The sort is stable and rows are in order of time, so of each key the last row is the newest.
    order = pc.call_function("array_sort_indices", [keys], pc.ArraySortOptions("ascending"))
    keys = keys.take(order)
    newest = np.ones(len(keys), dtype=np.bool_)
    newest[:-1] = pc.call_function("not_equal", [keys[1:], keys[:-1]]).to_numpy(zero_copy_only=False)
    places = order.to_numpy()
    kept = np.flatnonzero(newest & lives[places])
    if ranges:
        coverage = Coverage.of(ranges)
        operations = map(Place, _numbers(held["version"])[places[kept]].tolist(), position[places[kept]].tolist())
        names = keys.take(pa.array(kept)).to_pylist()
        kept = kept[[not coverage.deletes(key, at) for key, at in zip(names, operations, strict=True)]]
    return [BucketPart(held.take(pa.array(places[kept])).cast(ROWS), {})]


def _numbers(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    numbers: npt.NDArray[np.int64] = column.to_numpy().astype(np.int64)
    return numbers


def ranges_of(deletes: pa.Table) -> list[RangeDeleted]:
    """The range deletes among operations."""
    columns = (deletes[name].to_pylist() for name in ("key", "end", "version", "position"))
    return [RangeDeleted(key, end, Place(version, at)) for key, end, version, at in zip(*columns, strict=True)]


class Latest(BucketJob):
    """The newest value of every key of the log at ``log_url`` in the Delta table at ``output_url``.

    ``buckets`` counts when the table is made; None sizes it by the first step's share of the log.
    """

    name = "latest"
    schema = SCHEMA
    columns = "version,position,kind,key,end,value"
    statistics = ("version",)
    reduce = staticmethod(newest_points)
    merge = staticmethod(merge_latest)
