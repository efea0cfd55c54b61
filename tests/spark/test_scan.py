"""Reading without Spark: plan and scan in this process, on many generated logs, against the plain reading."""

from __future__ import annotations

import itertools
import threading
from datetime import datetime
from typing import cast

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from tests.matrix import matrix
from tests.spark.log_builder import LogBuilder, random_log, read_plainly
from tests.spark.plain import PlainRow, batch_rows, operation_rows, transaction_rows
from tests.spark.test_plan import truncated_log

import pyspark_holdfast
from holdfast.commit.format.batch import FIRST_SLOT, object_name
from holdfast.commit.format.transaction import Write
from holdfast.errors import CorruptData
from holdfast.objects import memory
from holdfast.objects.open import open_store
from holdfast.spark.columns import COLUMNS, RowShape, arrow_schema, spark_schema
from holdfast.spark.data_source import HoldfastDataSource
from holdfast.spark.options import parse_read_options
from holdfast.spark.runtime.store_thread import StoreThread
from holdfast.spark.source import scan as scan_module
from holdfast.spark.source.plan import plan_read
from holdfast.spark.source.reader import log_reader
from holdfast.spark.source.scan import BATCH_BYTES, ROW_BYTES, checked_objects, scan
from holdfast.spark.source.shapes import RowFilter

_names = itertools.count()


def stored(builder: LogBuilder) -> str:
    """The URL of this log in the memory of this process."""
    url = f"memory:scan-{next(_names)}"
    store = open_store(url)
    assert isinstance(store, memory.MemoryStore)
    for slot, data in builder.objects.items():
        store.objects.create(object_name(slot), data)
    return url


def batches(url: str, **given: object) -> list[pa.RecordBatch]:
    """What all tasks of a read would yield, one piece after the other."""
    options = parse_read_options({"url": url, **{name: str(value) for name, value in given.items()}})
    reader = log_reader(options)
    found = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    assert all(batch.schema.equals(arrow_schema(options.shape, options.columns)) for batch in found)
    return found


def rows(url: str, **given: object) -> list[PlainRow]:
    found = [cast("PlainRow", row) for batch in batches(url, **given) for row in batch.to_pylist()]
    for row in found:
        if isinstance(row.get("timestamp"), datetime):
            row["timestamp"] = cast("datetime", row["timestamp"]).replace(tzinfo=None)
    return found


def every_column(shape: RowShape) -> str:
    return ",".join(COLUMNS[shape])


@pytest.mark.parametrize("seed", matrix(range(15), 4))
def test_every_shape_equals_the_plain_reading_in_log_order(seed: int) -> None:
    builder = random_log(seed, reigns=7)
    live = list(read_plainly(builder.objects))
    url = stored(builder)
    bounds = {"targetPartitionBytes": 2**20}
    assert rows(url, columns=every_column(RowShape.OPERATIONS), **bounds) == operation_rows(live)
    assert rows(url, shape="transactions", includePreconditions=True, **bounds) == transaction_rows(live)
    assert rows(url, shape="batches", **bounds) == batch_rows(live, builder.objects)


def touches(row: PlainRow, begin: bytes, end: bytes | None) -> bool:
    key, row_end = cast("bytes", row["key"]), cast("bytes | None", row["end"])
    if end is not None and key >= end:
        return False
    if row["kind"] == "range_delete":
        return not begin or row_end is None or row_end > begin
    return key >= begin


@pytest.mark.parametrize("seed", matrix(range(15), 4))
@pytest.mark.parametrize(
    ("given", "begin", "end"),
    [
        ({}, b"", None),
        ({"keyPrefix": "a"}, b"a", b"b"),
        ({"keyBegin": "7f", "keyEnd": "ff", "keyEncoding": "hex"}, b"\x7f", b"\xff"),
        ({"keyPrefix": "/w==", "keyEncoding": "base64"}, b"\xff", None),
        ({"keyEnd": "b"}, b"", b"b"),
        ({"keyBegin": "schl\u00fc"}, "schl\u00fc".encode(), None),
    ],
)
def test_versions_kinds_and_keys_together_keep_exactly_the_rows_they_name(
    seed: int, given: dict[str, str], begin: bytes, end: bytes | None
) -> None:
    builder = random_log(seed, reigns=4)
    whole = operation_rows(read_plainly(builder.objects))
    draw = builder.random
    low, high = sorted(cast("int", draw.choice(whole)["version"]) + draw.randrange(-1, 2) for _ in range(2))
    high = min(high, cast("int", whole[-1]["version"]))
    low = min(low, high)
    kinds = draw.sample(["write", "delete", "range_delete"], draw.randrange(1, 4))
    found = rows(
        stored(builder),
        columns=every_column(RowShape.OPERATIONS),
        startingVersion=low,
        endingVersion=high,
        kinds=",".join(kinds),
        **given,
    )
    assert found == [
        row
        for row in whole
        if low <= cast("int", row["version"]) <= high and row["kind"] in kinds and touches(row, begin, end)
    ]


@pytest.mark.parametrize("seed", range(5))
def test_transactions_between_versions_keep_their_link_to_the_one_before(seed: int) -> None:
    builder = random_log(seed)
    whole = transaction_rows(read_plainly(builder.objects))
    low, high = (cast("int", whole[len(whole) * part // 3]["version"]) for part in (1, 2))
    bounds = {"startingVersion": low, "endingVersion": high}
    found = rows(stored(builder), shape="transactions", includePreconditions=True, **bounds)
    assert found == [row for row in whole if low <= cast("int", row["version"]) <= high]


@pytest.mark.parametrize("shape", list(RowShape))
def test_declared_columns_are_the_arrow_columns_that_spark_expects(shape: RowShape) -> None:
    options = parse_read_options({"url": "memory:", "shape": shape, "columns": every_column(shape)})
    assert to_arrow_schema(spark_schema(COLUMNS[shape], options.columns), timezone="UTC").equals(
        arrow_schema(shape, options.columns)
    )


def test_a_truncated_log_reads_from_its_oldest_object_on() -> None:
    builder = truncated_log()
    url = stored(builder)
    found = rows(url, shape="batches")
    assert len(found) == 15
    assert found[0]["kind"] == "data"
    assert [row["version"] for row in rows(url)] == [row["last_version"] for row in found]


def test_the_first_object_of_a_truncated_log_must_belong_to_the_claim_it_names() -> None:
    builder, foreign = truncated_log(), LogBuilder(seed=98)
    leader = foreign.lead()
    for _ in range(10):
        leader.commit([Write(b"k", b"v")])
    claim = foreign.lead().claim
    assert claim.slot in builder.objects, "both logs have their second claim in the same slot"
    builder.objects[claim.slot] = foreign.objects[claim.slot]
    with pytest.raises(CorruptData, match="object is not of the leader that claimed"):
        rows(stored(builder))


def test_tiny_objects_are_coalesced_into_few_record_batches() -> None:
    builder = LogBuilder()
    leader = builder.lead()
    for number in range(900):
        leader.commit([Write(b"%d" % number, b"v")], [Write(b"%d" % number, b"w")])
    found = batches(stored(builder), minPartitions=1)
    assert [batch.num_rows for batch in found] == [1800]
    assert BATCH_BYTES // ROW_BYTES >= 1800


def test_record_batches_close_at_their_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "ROW_BYTES", 166_000)  # three of them
    monkeypatch.setattr(scan_module, "BATCH_BYTES", 500_000)
    monkeypatch.setattr(scan_module, "JOINED_BYTES_MAX", 50_000)
    builder = LogBuilder()
    leader = builder.lead()
    for _ in range(7):
        leader.commit([Write(b"k", b"v")] * 4)
    leader.commit([Write(b"k", builder.random.randbytes(60_000))])
    leader.commit([Write(b"k", b"v")])
    assert [batch.num_rows for batch in batches(stored(builder))] == [12, 12, 4, 1, 1]


def test_the_rows_of_one_large_object_come_in_parts() -> None:
    leader = (builder := LogBuilder(5)).lead()
    values = [bytes([number % 256]) * 10_000 for number in range(2_500)]
    leader.commit(*([Write(b"k", value)] for value in values))
    assert len(builder.objects) == 2, "a claim and one object"
    found = batches(stored(builder), columns="version,value")
    assert [value for batch in found for value in batch["value"].to_pylist()] == values
    assert len(found) == 3 and max(batch.nbytes for batch in found) < 1.1 * scan_module.BATCH_BYTES


def test_an_object_that_goes_away_between_planning_and_reading_is_loss() -> None:
    builder = LogBuilder()
    leader = builder.lead()
    for _ in range(3):
        leader.commit([Write(b"k", b"v")])
    url = stored(builder)
    options = parse_read_options({"url": url})
    with StoreThread(url) as thread:
        pieces = thread.start(lambda store: plan_read(store, options)).result().pieces
    store = open_store(url)
    assert isinstance(store, memory.MemoryStore)
    store.objects.delete(object_name(FIRST_SLOT - 2))
    with pytest.raises(CorruptData, match=f"data loss.*slot={FIRST_SLOT - 2}"):
        list(scan(options, RowFilter(), pieces[0]))


def test_leaving_a_scan_early_stops_its_thread() -> None:
    before = set(threading.enumerate())
    url = stored(random_log(3))
    options = parse_read_options({"url": url})
    with StoreThread(url) as thread:
        pieces = thread.start(lambda store: plan_read(store, options)).result().pieces
    objects = checked_objects(options, pieces[0])
    next(objects)
    objects.close()
    left = set(threading.enumerate()) - before  # others of this process may have died with a store open
    assert [each.name for each in left if each.name == "holdfast-store"] == []


@pytest.mark.parametrize("seed", range(30))
def test_any_flipped_bit_in_a_live_object_fails_the_read(seed: int) -> None:
    builder = random_log(seed % 3, reigns=2, batches=8)
    live = [batch.header for batch in read_plainly(builder.objects)]
    draw = LogBuilder(seed).random
    header = draw.choice(live)
    data = bytearray(builder.objects[header.slot])
    # Padding after a short body is outside both CRCs and means nothing.
    bit = draw.randrange(8 * (512 + header.body_length))
    data[bit // 8] ^= 1 << bit % 8
    builder.objects[header.slot] = bytes(data)
    with pytest.raises(CorruptData, match=str(header.slot)):
        rows(stored(builder))


def test_the_source_is_found_by_its_module_name() -> None:
    assert pyspark_holdfast.DefaultSource is HoldfastDataSource
    assert HoldfastDataSource.name() == "holdfast"
