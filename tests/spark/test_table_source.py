"""``option("table", url)`` reads what a Delta table holds: every version, every filter, as a batch and as a stream."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, Row, SparkSession
from tests.spark.log_builder import random_log

from holdfast.errors import CorruptData, InvalidRequest, NotFound
from holdfast.spark import Latest, read_table, run_pipeline
from holdfast.spark.options import TableOptions, parse_table_options
from holdfast.spark.source.table import HoldfastTableStreamReader, arrow_columns, plan, rows, spark_columns

DAY = date(2026, 1, 1)
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def piece(first: int, count: int, region: str) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table(
        {
            "region": [region] * count,
            "version": pa.array(numbers, pa.int64()),
            "day": pa.array([DAY + timedelta(days=number) for number in numbers], pa.date32()),
            "moment": pa.array([MOMENT + timedelta(microseconds=number) for number in numbers]),
            "share": pa.array([None if number % 3 else number / 2 for number in numbers], pa.float64()),
            "name": [f"name {number}" for number in numbers],
        }
    )


@pytest.fixture
def table(tmp_path: Path) -> str:
    """Three versions: 10 rows in the north, 10 in the south, 5 where the region is unknown."""
    path = str(tmp_path / "table")
    write_deltalake(path, piece(0, 10, "north"), partition_by=["region"])
    write_deltalake(path, piece(10, 10, "south & east"), mode="append")
    write_deltalake(path, piece(20, 5, "").set_column(0, "region", pa.nulls(5, pa.string())), mode="append")
    return f"file://{path}"


def expected(table: str, version: int | None = None) -> list[dict[str, object]]:
    found = pa.table(DeltaTable(table.removeprefix("file://"), version=version).to_pyarrow_table()).to_pylist()
    return sorted(found, key=lambda row: (row["version"], str(row)))


def values(frame: DataFrame) -> list[dict[str, object]]:
    found = pa.table(frame.toArrow()).to_pylist()
    return sorted(found, key=lambda row: (row["version"], str(row)))


def read(options: TableOptions) -> list[dict[str, object]]:
    schema = arrow_columns(spark_columns(options))
    pieces = plan(options, schema.names)
    return [row for each in pieces for batch in rows(options.table, schema, each) for row in batch.to_pylist()]


def test_a_batch_has_every_value_of_the_table(spark: SparkSession, table: str) -> None:
    found = values(spark.read.format("holdfast").option("table", table).load())
    assert found == expected(table)
    assert len(found) == 25


def test_a_table_that_a_pipeline_keeps_is_read_by_the_source(spark: SparkSession, tmp_path: Path) -> None:
    log = random_log(51, reigns=2).write_to(tmp_path / "log")
    output = (tmp_path / "latest").as_uri()
    run_pipeline(Latest(spark, log, output), log, output, progress=None)
    whole = expected(output)
    assert values(read_table(spark, output)) == whole
    version = whole[-1]["version"]
    newest = [row for row in whole if row["version"] == version]
    assert values(read_table(spark, output, [("version", "=", version)])) == newest


def test_an_earlier_version_is_read_by_number_and_by_time(table: str) -> None:
    options = parse_table_options({"table": table, "versionAsOf": "1"})
    assert sorted(read(options), key=str) == sorted(expected(table, 1), key=str)
    history = DeltaTable(table.removeprefix("file://")).history()
    newest = max(each["timestamp"] for each in history) / 1000
    at = datetime.fromtimestamp(newest, UTC) + timedelta(seconds=1)
    assert len(read(parse_table_options({"table": table, "timestampAsOf": at.isoformat()}))) == 25


MOMENT_9 = (MOMENT + timedelta(microseconds=9)).isoformat()


@pytest.mark.parametrize(
    ("filters", "files", "versions"),
    [
        ([("region", "=", "north")], 1, range(10)),
        ([("region", "=", "nowhere")], 0, ()),
        ([("region", "in", ["north", "south & east"])], 2, range(20)),
        ([("version", ">=", 12)], 2, range(12, 25)),
        ([("version", ">=", 3), ("version", "<=", 5)], 1, range(3, 6)),
        ([("version", "in", [7, 21])], 2, (7, 21)),
        ([("day", "=", "2026-01-12")], 1, (11,)),
        ([("moment", "=", MOMENT_9)], 3, (9,)),
        ([("name", "=", "name 22")], 2, (22,)),
        ([("region", ">=", "a"), ("version", ">=", 9)], 2, range(9, 20)),
    ],
)
def test_a_filter_leaves_the_rows_that_pass_it_and_the_files_that_may_have_one(
    table: str, filters: list[tuple[str, str, object]], files: int, versions: range | tuple[int, ...]
) -> None:
    options = TableOptions(table, filters=tuple(filters), target_partition_bytes=1)
    assert sum(len(each.files) for each in plan(options, ["version"])) == files
    assert sorted(row["version"] for row in read(options)) == list(versions)  # type: ignore[type-var]
    only_share = TableOptions(table, ("share",), tuple(filters))
    assert len(read(only_share)) == len(versions), "also where no filtered column is read"


@pytest.mark.parametrize(
    "one",
    [
        ("nothing", "=", 1),
        ("share", ">=", 1.0),
        ("version", "=", "7"),
        ("version", "=", 2**80),
        ("version", "in", 7),
        ("day", "=", "tomorrow"),
        ("moment", "=", "2026-01-01T00:00:00"),
    ],
)
def test_a_filter_that_does_not_fit_the_table_is_named(table: str, one: tuple[str, str, object]) -> None:
    with pytest.raises(InvalidRequest, match="this filter cannot be used") as refused:
        plan(TableOptions(table, filters=(one,)), [])
    assert one[0] in str(refused.value.fields["filter"])


def test_a_column_that_came_later_is_null_in_older_files(tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    write_deltalake(path, pa.table({"version": [1, 2]}))
    write_deltalake(path, pa.table({"version": [3], "more": ["x"]}), mode="append", schema_mode="merge")
    found = read(TableOptions(f"file://{path}"))
    assert sorted((row["version"], row["more"]) for row in found) == [(1, None), (2, None), (3, "x")]  # type: ignore[type-var]
    assert len(read(TableOptions(f"file://{path}", columns=("more",)))) == 3
    assert len(read(TableOptions(f"file://{path}", filters=(("more", ">=", ""),)))) == 1


def test_a_stream_returns_the_table_then_what_is_added_and_nothing_twice(
    spark: SparkSession, table: str, tmp_path: Path
) -> None:
    def run() -> list[Row]:
        frame = spark.readStream.format("holdfast").option("table", table).load()
        query = (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("path", str(tmp_path / "out"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        return spark.read.parquet(str(tmp_path / "out")).select("version").orderBy("version").collect()

    assert [row.version for row in run()] == list(range(25))
    write_deltalake(table.removeprefix("file://"), piece(25, 5, "north"), mode="append")
    assert [row.version for row in run()] == list(range(30))


def test_a_stream_refuses_a_version_that_removes_rows_unless_it_is_left_out(table: str) -> None:
    schema = arrow_columns(spark_columns(TableOptions(table)))
    reader = HoldfastTableStreamReader(TableOptions(table, starting_version=None), schema)
    start = reader.initialOffset()
    path = table.removeprefix("file://")
    write_deltalake(path, piece(40, 1, "north"), mode="append")
    DeltaTable(path).delete("version = 3")
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    with pytest.raises(InvalidRequest, match="skipChangeCommits"):
        reader.partitions(start, end)
    skipping = TableOptions(table, starting_version=None, skip_change_commits=True)
    pieces = HoldfastTableStreamReader(skipping, schema).partitions(start, end)
    found = [
        row["version"] for each in pieces for batch in rows(skipping.table, schema, each) for row in batch.to_pylist()
    ]
    assert found == [40]


def test_a_checkpoint_of_another_table_is_refused(table: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_deltalake(str(other), piece(0, 1, "north"))
    schema = arrow_columns(spark_columns(TableOptions(table)))
    start = HoldfastTableStreamReader(TableOptions(other.as_uri()), schema).initialOffset()
    reader = HoldfastTableStreamReader(TableOptions(table), schema)
    with pytest.raises(InvalidRequest, match="another table"):
        reader.latestOffset(start, reader.getDefaultReadLimit())
    with pytest.raises(InvalidRequest, match="not this source's"):
        reader.latestOffset({"seq": 1, "version": 2}, reader.getDefaultReadLimit())


def test_a_missing_table_version_or_column_and_a_damaged_file_are_named(table: str, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no table"):
        plan(TableOptions((tmp_path / "none").as_uri()), [])
    with pytest.raises(NotFound, match="does not have this version"):
        plan(TableOptions(table, version_as_of=99), [])
    with pytest.raises(InvalidRequest, match="unknown columns nothing; the table has region, version"):
        spark_columns(TableOptions(table, columns=("version", "nothing")))
    with pytest.raises(InvalidRequest, match=r'has \["version", "!=", 7\], whose operator .!=. is unknown; valid'):
        parse_table_options({"table": table, "filters": '[["day", "=", "2026-01-02"], ["version", "!=", 7]]'})
    with pytest.raises(InvalidRequest, match=r'has \["version", 7\], which is not'):
        parse_table_options({"table": table, "filters": '[["version", 7]]'})
    with pytest.raises(InvalidRequest, match="give one"):
        parse_table_options({"table": table, "versionAsOf": "1", "timestampAsOf": "2026-01-01T00:00:00Z"})
    file = next(Path(table.removeprefix("file://")).rglob("*north*/*.parquet"))
    data = file.read_bytes()
    file.write_bytes(data[:40] + bytes([data[40] ^ 1]) + data[41 : len(data) // 2])
    with pytest.raises(CorruptData, match="damaged"):
        read(TableOptions(table))
