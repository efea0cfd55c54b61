"""What reading tasks pack for buckets, and what rewriting tasks make of it, against a dict and a plain list."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise, starmap
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.spark.runtime.table_files import TableFile, file_rows
from holdfast.spark.tables import buckets as bucket_module
from holdfast.spark.tables.buckets import (
    LATEST_ROWS,
    BucketPart,
    Placement,
    bucket_changes,
    in_buckets,
    merge_latest,
    newest_points,
)

Operation = dict[str, Any]
State = dict[bytes, tuple[bytes, int]]

SCHEMA = pa.schema(
    [
        pa.field("version", pa.int64()),
        pa.field("position", pa.int32()),
        pa.field("kind", pa.string()),
        pa.field("key", pa.binary()),
        pa.field("end", pa.binary()),
        pa.field("value", pa.binary()),
    ]
)
FIRST_VERSION = 10
KEYS = st.text("abc", max_size=2).map(str.encode)
POINTS = st.one_of(
    st.fixed_dictionaries({"kind": st.just("write"), "key": KEYS, "value": st.binary(max_size=2)}),
    st.fixed_dictionaries({"kind": st.just("delete"), "key": KEYS}),
)
RANGES = st.fixed_dictionaries({"kind": st.just("range_delete"), "key": KEYS, "end": st.none() | KEYS})
TRANSACTIONS = st.lists(st.lists(POINTS | RANGES, min_size=1, max_size=3), min_size=1, max_size=20)
HELD = st.dictionaries(KEYS, st.tuples(st.binary(max_size=2), st.integers(0, FIRST_VERSION - 1)), max_size=6)


def numbered(transactions: list[list[Operation]]) -> list[Operation]:
    return [
        {"version": FIRST_VERSION + version, "position": position, "end": None, "value": None} | operation
        for version, operations in enumerate(transactions)
        for position, operation in enumerate(operations)
    ]


def applied(held: State, operations: list[Operation]) -> State:
    state = dict(held)
    for each in operations:
        key, end = each["key"], each["end"]
        if each["kind"] == "write":
            state[key] = (each["value"], each["version"])
        elif each["kind"] == "delete":
            state.pop(key, None)
        else:
            state = {name: row for name, row in state.items() if not (key <= name and (end is None or name < end))}
    return state


def as_is(operations: pa.Table) -> pa.Table:
    return operations


def carried(
    operations: list[Operation], buckets: int, tasks: int, reduce: Callable[[pa.Table], pa.Table]
) -> list[pa.RecordBatch]:
    """What so many tasks pack, each of its part of the log, in the order in which Spark sorts it."""
    table = pa.Table.from_pylist(operations, schema=SCHEMA)
    edges = [table.num_rows * number // tasks for number in range(tasks + 1)]
    parts = [table.slice(first, past - first).to_batches(max_chunksize=4) for first, past in pairwise(edges)]
    rows = [row for part in parts for row in in_buckets(Placement.fixed(buckets), reduce, iter(part))]
    return sorted(rows, key=lambda row: [row[name][0].as_py() for name in ("bucket", "version", "position")])


@pytest.fixture(params=[1, 100, 2**26], ids=["a row at a time", "a few", "all at once"])
def bounds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_module, "WAITING_BYTES", request.param)
    monkeypatch.setattr(bucket_module, "PIECE_BYTES", request.param)


@settings(max_examples=25, deadline=None)
@given(TRANSACTIONS, st.integers(1, 4), st.integers(1, 3))
@pytest.mark.usefixtures("bounds")
def test_each_bucket_gets_its_points_and_every_range_delete_in_log_order(
    transactions: list[list[Operation]], buckets: int, tasks: int
) -> None:
    operations = numbered(transactions)
    found: dict[int, list[Operation]] = {}

    def rewrite(bucket: int, changes: pa.Table) -> pa.RecordBatch:
        assert bucket not in found, "a bucket is rewritten once"
        found[bucket] = changes.to_pylist()
        return file_rows([TableFile("", 0, 0, {}, "")])

    list(starmap(rewrite, bucket_changes(iter(carried(operations, buckets, tasks, as_is)))))
    for bucket in range(buckets):
        own = [each for each in operations if each["kind"] == "range_delete" or crc32(each["key"]) % buckets == bucket]
        assert found.get(bucket, []) == own


def test_many_range_deletes_for_many_buckets_are_not_copied_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_module, "WAITING_BYTES", 200_000)
    real = bucket_module._packed_part
    copies: list[int] = []

    def counted(
        placement: Placement, operations: pa.Table, is_range: npt.NDArray[np.bool_]
    ) -> Iterator[pa.RecordBatch]:
        copies.append(placement.count * int(is_range.sum()) * (operations.nbytes // operations.num_rows))
        return real(placement, operations, is_range)

    monkeypatch.setattr(bucket_module, "_packed_part", counted)
    kinds = [{"kind": "range_delete", "key": b"k%05d" % n, "end": None} for n in range(2_000)]
    kinds.insert(700, {"kind": "write", "key": b"a", "value": b"v"})
    operations = numbered([kinds])
    packed = list(
        in_buckets(Placement.fixed(40), as_is, iter(pa.Table.from_pylist(operations, schema=SCHEMA).to_batches()))
    )
    assert max(copies) <= 200_000 and len(copies) > 10
    found: dict[int, list[Operation]] = {}

    def rewrite(bucket: int, changes: pa.Table) -> pa.RecordBatch:
        found[bucket] = changes.to_pylist()
        return file_rows([TableFile("", 0, 0, {}, "")])

    place = ("bucket", "version", "position")
    list(
        starmap(rewrite, bucket_changes(iter(sorted(packed, key=lambda row: [row[name][0].as_py() for name in place]))))
    )
    ranges = [each for each in operations if each["kind"] == "range_delete"]
    assert len(found) == 40
    assert all(found[bucket] == ranges for bucket in range(40) if bucket != crc32(b"a") % 40)
    assert found[crc32(b"a") % 40] == operations


@settings(max_examples=75, deadline=None)
@given(HELD, TRANSACTIONS, st.integers(1, 4), st.integers(1, 3))
@pytest.mark.usefixtures("bounds")
def test_what_a_task_leaves_out_changes_no_value(
    held: State, transactions: list[list[Operation]], buckets: int, tasks: int
) -> None:
    operations = numbered(transactions)
    found = dict(held)

    def rewrite(bucket: int, changes: pa.Table) -> pa.RecordBatch:
        own = sorted((key, *row) for key, row in held.items() if crc32(key) % buckets == bucket)
        columns = [pa.array([row[place] for row in own], field.type) for place, field in enumerate(LATEST_ROWS)]
        (part,) = merge_latest(pa.Table.from_arrays(columns, schema=LATEST_ROWS) if own else None, changes)
        check_sorted(part)
        for key, _, _ in own:
            del found[key]
        found.update({row["key"]: (row["value"], row["version"]) for row in part.rows.to_pylist()})
        return file_rows([TableFile("", 0, 0, {}, "")])

    list(starmap(rewrite, bucket_changes(iter(carried(operations, buckets, tasks, newest_points)))))
    assert found == applied(held, operations)


def check_sorted(part: BucketPart) -> None:
    keys = part.rows["key"].to_pylist()
    assert keys == sorted(set(keys)), "one row a key, in the order of the keys"


def test_of_a_key_only_the_newest_point_operation_is_carried() -> None:
    write = {"kind": "write", "key": b"k", "value": b"v"}
    gone = {"kind": "range_delete", "key": b"a", "end": b"b"}
    operations = numbered([[write, write], [gone], [write, {"kind": "delete", "key": b"k"}], [gone]])
    left = newest_points(pa.Table.from_pylist(operations, schema=SCHEMA)).to_pylist()
    assert [(each["version"] - FIRST_VERSION, each["position"]) for each in left] == [(1, 0), (2, 1), (3, 0)]
