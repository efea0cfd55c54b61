"""A read of a table fetches from the store the columns, files and row groups that it asks for, and little more."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import WriterProperties, write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark program uses
from pyspark.sql.datasource import EqualNullSafe, EqualTo, Filter, GreaterThan, In, IsNotNull, Not

from holdfast.errors import CorruptData, InvalidRequest, Unavailable
from holdfast.objects.directory.store import DurableDirectory
from holdfast.spark import read_table
from holdfast.spark.option_values import TableFilter
from holdfast.spark.options import TableOptions
from holdfast.spark.runtime.table_files import GAP_BYTES, ByteRange, RangedParquet, TableReads
from holdfast.spark.source.table import arrow_columns, plan, rows, spark_columns, table_reader
from holdfast.spark.source.table_filters import Test as RowTest

FILES = 4
ROWS = 8_000
"""Of each file, of 250 bytes and in eight row groups."""


def key(number: int) -> bytes:
    return b"\xff%08d" % number


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Files of 2 MB: the key sorts as the version does, ``turn`` not at all."""
    path = tmp_path_factory.mktemp("reads") / "table"
    for first in range(0, FILES * ROWS, ROWS):
        numbers = range(first, first + ROWS)
        piece = pa.table(
            {
                "key": pa.array([key(number) for number in numbers], pa.binary()),
                "value": pa.array([os.urandom(230) for _ in numbers], pa.binary()),
                "version": pa.array(numbers, pa.int64()),
                "turn": pa.array([number % 1000 for number in numbers], pa.int32()),
            }
        )
        write_deltalake(path, piece, mode="append", writer_properties=WriterProperties(max_row_group_size=1000))
    return path.as_uri()


@dataclass
class Store:
    """What was read: the bytes, and the requests for them."""

    size: int = 0
    read: int = 0
    requests: int = 0
    paths: set[str] = field(default_factory=set[str])

    @property
    def share(self) -> float:
        return self.read / self.size


@pytest.fixture
def store(table: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    counts = Store(sum(path.stat().st_size for path in Path(table.removeprefix("file://")).glob("*.parquet")))
    original = DurableDirectory.read

    async def read(self: DurableDirectory, name: str, *, start: int = 0, length: int | None = None) -> bytes:
        data = await original(self, name, start=start, length=length)
        counts.read += len(data)
        counts.requests += 1
        counts.paths.add(name)
        return data

    monkeypatch.setattr(DurableDirectory, "read", read)
    return counts


def found(options: TableOptions, pushed: Iterable[Filter] = ()) -> pa.Table:
    schema = arrow_columns(spark_columns(options))
    batches = [each for piece in plan(options, schema.names, pushed) for each in rows(options.table, schema, piece)]
    return pa.Table.from_batches(batches, schema)


def test_columns_that_are_not_asked_for_are_not_read(table: str, store: Store) -> None:
    assert found(TableOptions(table, ("version",)))["version"].to_pylist() == list(range(FILES * ROWS))
    assert store.share < 0.15, "8 of 250 bytes, and a footer of each file"
    assert store.requests <= FILES * 10


@pytest.mark.parametrize(
    ("filters", "numbers", "share"),
    [
        ([("key", "=", {"base64": "/zAwMDEyMzQ1"})], [12345], 0.2),
        ([("key", "=", "00012345")], [], 0.2),
        ([("version", "=", 12345)], [12345], 0.2),
        ([("version", ">", 12345), ("version", "<", 12348)], [12346, 12347], 0.2),
        ([("version", "in", [5, 31_000])], [5, 31_000], 0.4),
        ([("turn", "=", 2000)], [], 0.2),
        ([("turn", "<", 0)], [], 0.2),
        ([("version", "in", [])], [], 0.0),
    ],
)
def test_a_look_up_reads_the_row_groups_that_may_have_the_row(
    table: str, store: Store, filters: list[TableFilter], numbers: list[int], share: float
) -> None:
    read = found(TableOptions(table, filters=tuple(filters)))
    assert read["version"].to_pylist() == numbers
    assert read["key"].to_pylist() == [key(number) for number in numbers]
    assert store.share <= share


def test_other_columns_are_read_where_a_row_passes(tmp_path: Path) -> None:
    """The bounds of ``turn`` leave out no row group: it is read everywhere, and the value where it fits."""
    numbers = range(10_000)
    turns = pa.array([1 if number == 5500 else number % 2 * 2 for number in numbers], pa.int64())
    changed = pa.table({"turn": turns, "value": pa.array([os.urandom(300) for _ in numbers], pa.binary())})
    pq.write_table(changed, tmp_path / "file", row_group_size=1000)
    data = (tmp_path / "file").read_bytes()
    fetched: list[ByteRange] = []

    def fetch(ranges: Sequence[ByteRange]) -> list[bytes]:
        fetched.extend(ranges)
        return [data[each.start : each.past] for each in ranges]

    file = RangedParquet(fetch, len(data))
    assert [file.bounds(group, "turn") for group in file.groups] == [(0, 2)] * 10
    file.fetch(file.groups, ["turn"])
    assert sum(file.read(group, ["turn"]).num_rows for group in file.groups) == 10_000
    file.fetch([5], ["value"])
    assert file.read(5, ["value"])["value"][500].as_py() == changed["value"][5500].as_py()
    assert sum(each.past - each.start for each in fetched) < len(data) / 4
    assert file.read(6, ["value"]).num_rows == 1000, "what was not fetched before is read when it is asked for"


def test_a_narrower_type_of_an_older_file_meets_the_type_of_the_table() -> None:
    older = pa.chunked_array([pa.array([1, 2, None], pa.int32())])
    assert RowTest("x", pa.int64(), lowest=2**40).passes(older).to_pylist() == [False, False, None]
    assert RowTest("x", pa.int64(), values=(2**40, 2)).passes(older).to_pylist() == [False, True, False]


def test_statistics_of_another_type_leave_nothing_out() -> None:
    assert RowTest("x", pa.binary(), b"a", b"a").may_hold("b", "c")
    assert RowTest("x", pa.binary(), values=(b"a",)).may_hold("b", "c")


def test_a_footer_that_is_longer_than_expected_is_read(tmp_path: Path) -> None:
    wide = pa.table({f"a column with a long name, number {number}": [number] for number in range(800)})
    write_deltalake(tmp_path / "wide", wide)
    options = TableOptions((tmp_path / "wide").as_uri(), ("a column with a long name, number 7",))
    assert found(options).to_pylist() == [{"a column with a long name, number 7": 7}]


def test_columns_with_parts_are_read_whole(tmp_path: Path) -> None:
    given = pa.table({"a": [{"b": 1, "c": [1, 2]}], "a.b": [3], "d": [[{"e": "x"}]]})
    path = tmp_path / "nested"
    write_deltalake(path, given)
    for name in ("a", "d"):
        assert found(TableOptions(path.as_uri(), (name,))).to_pylist() == given.select([name]).to_pylist()


@pytest.mark.parametrize(
    ("pushed", "files"),
    [
        ([EqualTo(("version",), 9_000)], 1),
        ([EqualNullSafe(("version",), 9_000), IsNotNull(("version",))], 1),
        ([In(("version",), (5, None, 31_000))], 2),
        ([GreaterThan(("version",), 3 * ROWS - 1)], 1),
        ([GreaterThan(("version",), 2.5)], FILES),
        ([EqualNullSafe(("version",), None)], FILES),
        ([EqualTo(("nothing",), 1), EqualTo(("key", "part"), 1)], FILES),
        ([Not(EqualTo(("version",), 9_000))], FILES),
        ([EqualTo(("key",), bytearray(key(9_000)))], FILES),
    ],
)
def test_a_filter_of_a_query_leaves_out_what_it_excludes_and_nothing_else(
    table: str, pushed: list[Filter], files: int
) -> None:
    options = TableOptions(table, ("version", "key"), pushdown=True, target_partition_bytes=1)
    reader = table_reader(options, arrow_columns(spark_columns(options)))
    assert list(reader.pushFilters(pushed)) == pushed, "Spark evaluates all of them again"
    assert len(reader.partitions()) == files


def test_every_query_of_a_frame_with_push_down_has_its_rows(spark: SparkSession, table: str) -> None:
    frame = read_table(spark, table, pushdown=True, columns="key,version")
    assert [row.version for row in frame.where(F.col("key") == F.lit(key(77))).collect()] == [77]
    assert frame.count() == FILES * ROWS
    assert frame.where("version >= 31999").count() == 1
    numbers = read_table(spark, table, pushdown=True, columns="version")
    assert numbers.where("version < 3").count() == 3
    assert numbers.count() == FILES * ROWS


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ([("key", "=", 3)], r'filter=\["key", "=", 3\]; the column is binary'),
        ([("missing", "=", 3)], r'filter=\["missing", "=", 3\]; the table has key, value, version, turn'),
        ([("key", "like", b"x")], r"whose operator 'like' is unknown; valid"),
        ([("key", "=", 1j)], r"a value of the type complex filter=\('key', '=', 1j\)"),
        ([("key", "=")], r'has \["key", "="\], which is not \[column, operator, value\]'),
    ],
)
def test_a_filter_that_is_refused_is_named_without_a_trace(
    spark: SparkSession, table: str, filters: list[TableFilter], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        read_table(spark, table, filters)
    assert "Traceback" not in str(refused.value)
    assert "Traceback" not in str(refused.value.__cause__)


def test_a_file_that_is_shorter_than_the_table_says_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "table"
    write_deltalake(path, pa.table({"x": pa.array(range(100_000), pa.int64())}))
    file = next(path.glob("*.parquet"))
    data = file.read_bytes()
    for kept in (data[:-1], data[: len(data) // 2], b""):
        file.write_bytes(kept)
        with pytest.raises(CorruptData, match="damaged"):
            found(TableOptions(path.as_uri()))


def test_a_range_is_asked_for_again_while_the_store_does_not_answer(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = DurableDirectory.read
    failures = [0]

    async def read(self: DurableDirectory, name: str, *, start: int = 0, length: int | None = None) -> bytes:
        failures[0] += 1
        if failures[0] < 3:
            raise Unavailable("try again")
        return await original(self, name, start=start, length=length)

    monkeypatch.setattr(DurableDirectory, "read", read)
    file = next(Path(table.removeprefix("file://")).glob("*.parquet"))
    with TableReads(table) as reads:
        assert reads.ranges(file.name, [ByteRange(0, 4)]) == [b"PAR1"]
        assert failures == [3]


def test_ranges_that_are_nearly_adjacent_are_read_together() -> None:
    from holdfast.spark.runtime.table_files import merged

    apart = [ByteRange(0, 10), ByteRange(11 + GAP_BYTES, 30 + GAP_BYTES)]
    assert merged(apart) == apart
    assert merged([ByteRange(10 + GAP_BYTES, 30 + GAP_BYTES), ByteRange(0, 10)]) == [ByteRange(0, 30 + GAP_BYTES)]
    assert merged([ByteRange(0, 10), ByteRange(2, 5)]) == [ByteRange(0, 10)]
