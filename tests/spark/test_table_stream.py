"""A stream of a table takes files within its bounds, returns each once, and can stop and go on at every place."""

from __future__ import annotations

from itertools import chain, pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from holdfast.errors import InvalidRequest
from holdfast.spark.options import TableOptions, parse_table_options
from holdfast.spark.positions import Offset, TablePosition, position_in
from holdfast.spark.source.table import (
    HoldfastTableStreamReader,
    arrow_columns,
    spark_columns,
)

FILES = 5


def add(path: Path, first: int, files: int) -> None:
    """One version with this number of files of ten rows each."""
    numbers = range(first * 10, (first + files) * 10)
    rows = pa.table({"part": [str(each // 10) for each in numbers], "version": pa.array(numbers, pa.int64())})
    write_deltalake(path, rows, mode="append", partition_by=["part"])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table"
    add(path, 0, FILES)
    return path


def reader_of(table: Path, **given: int) -> HoldfastTableStreamReader:
    options = parse_table_options(
        {"table": table.as_uri(), "pollInterval": "1ms", **{name: str(value) for name, value in given.items()}}
    )
    return HoldfastTableStreamReader(options, arrow_columns(spark_columns(TableOptions(options.table))))


def offsets(reader: HoldfastTableStreamReader, start: Offset | None = None) -> list[Offset]:
    found = [reader.initialOffset() if start is None else start]
    reader.prepareForTriggerAvailableNow()
    while (end := reader.latestOffset(found[-1], reader.getDefaultReadLimit())) != found[-1]:
        found.append(end)
    return found


def place_of(offset: Offset) -> tuple[int, int, int | None]:
    position = position_in(offset, TablePosition)
    return position.version, position.files, position.base


def versions(reader: HoldfastTableStreamReader, start: Offset, end: Offset) -> list[int]:
    pieces = reader.partitions(start, end)
    return sorted(row["version"] for piece in pieces for batch in reader.read(piece) for row in batch.to_pylist())


@pytest.mark.parametrize(("bound", "steps"), [({}, 2), ({"maxFilesPerTrigger": 2}, 7), ({"maxBytesPerTrigger": 1}, 12)])
def test_available_now_returns_every_row_once_in_bounded_steps(table: Path, bound: dict[str, int], steps: int) -> None:
    reader = reader_of(table, **bound)
    first = offsets(reader)
    add(table, FILES, 6)
    add(table, FILES + 6, 1)
    again = reader_of(table, **bound)
    path = [*first, *offsets(again, first[-1])[1:]]
    found = [versions(again, start, end) for start, end in pairwise(path)]
    assert sorted(chain.from_iterable(found)) == list(range((FILES + 7) * 10))
    assert len(found) <= steps
    if bound:
        assert max(len(each) for each in found) <= 10 * bound.get("maxFilesPerTrigger", 1)
    assert place_of(path[-1]) == (2, 0, None)


def test_a_stream_goes_on_at_every_place_as_it_would_have(table: Path) -> None:
    add(table, FILES, 3)
    path = offsets(reader_of(table, maxFilesPerTrigger=1))
    assert len(path) == FILES + 3 + 1
    for start, end in pairwise(path):
        fresh = reader_of(table)
        assert versions(fresh, start, end) == versions(fresh, start, end)
        assert len(versions(fresh, start, end)) == 10
        rest = fresh.latestOffset(end, ReadAllAvailable())
        assert len(versions(fresh, start, end)) + len(versions(fresh, end, rest)) == 10 * (
            len(path) - path.index(start) - 1
        )


def test_the_table_of_the_start_stays_the_one_that_is_returned(table: Path) -> None:
    """Files that are removed while a stream returns the table of its start are of that table still."""
    reader = reader_of(table, maxFilesPerTrigger=2)
    start = reader.initialOffset()
    first = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert place_of(first) == (-1, 2, 0)
    DeltaTable(table).delete("version >= 0")
    second = reader.latestOffset(first, reader.getDefaultReadLimit())
    third = reader.latestOffset(second, reader.getDefaultReadLimit())
    found = [versions(reader, a, b) for a, b in pairwise([start, first, second, third])]
    assert sorted(chain.from_iterable(found)) == list(range(FILES * 10))
    assert place_of(third) == (0, 0, None)
    with pytest.raises(InvalidRequest, match="skipChangeCommits"):
        reader.latestOffset(third, reader.getDefaultReadLimit())


def test_the_options_are_of_streams_alone(table: Path) -> None:
    with pytest.raises(InvalidRequest, match="maxFilesPerTrigger is '0'"):
        parse_table_options({"table": table.as_uri(), "maxFilesPerTrigger": "0"})
    with pytest.raises(InvalidRequest, match="not this source's"):
        place_of({"version": 3, "table_id": "x", "files": "many"})


def test_a_query_of_spark_takes_bounded_micro_batches(spark: SparkSession, table: Path, tmp_path: Path) -> None:
    frame = spark.readStream.format("holdfast").option("table", table.as_uri()).option("maxFilesPerTrigger", 2).load()
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .option("path", str(tmp_path / "out"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]] == [20, 20, 10]
    found = [row.version for row in spark.read.parquet(str(tmp_path / "out")).select("version").collect()]
    assert sorted(found) == list(range(FILES * 10))
