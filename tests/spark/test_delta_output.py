"""A table's commit without Spark: what must be true of the files that it names, in a directory and on S3."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Event

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.s3_lane import gateway, s3_bucket, s3_url
from tests.spark.local_frames import local
from tests.spark.log_builder import random_log

from holdfast.errors import CorruptData, InvalidRequest, Unavailable
from holdfast.objects.directory.store import DirectoryStore
from holdfast.segments.table_location import table_location
from holdfast.spark import Changes, run_pipeline
from holdfast.spark.log.delta_output import DeltaOutput
from holdfast.spark.runtime.table_files import TableFile, write_table
from holdfast.spark.source.table import open_table

__all__ = ["gateway", "local", "s3_bucket", "s3_url"]

ROWS = pa.table({"key": pa.array([b"a", b"b"], pa.binary())})


def test_files_that_workers_have_written_elsewhere_are_not_committed(tmp_path: Path) -> None:
    """On a cluster a path is another directory on every machine, unless it is mounted there."""
    output = DeltaOutput(table_location((tmp_path / "table").as_uri()), "made", ROWS.schema)
    state = output.open("log", {})
    here = write_table((tmp_path / "table").as_uri(), ROWS, {})
    elsewhere = write_table((tmp_path / "a-worker" / "table").as_uri(), ROWS, {})
    with pytest.raises(InvalidRequest, match="not in the table's directory"):
        output.commit(state, 7, [here, elsewhere], ())
    assert output.open("log", {}).offset == 0
    output.commit(state, 7, [here], ())
    assert output.open("log", {}).offset == 7
    assert DeltaTable(str(tmp_path / "table")).to_pyarrow_table().num_rows == 2


def check_partition_values(url: str) -> None:
    """Every engine gets back the values that a table was given, whatever characters they have."""
    values = ["plain", "a b", "a/b", "a%2Fb", "a=b", "ä", "é~'+&?#", "", "2026-01-02", "..", "__x"]
    schema = pa.schema([("key", pa.binary()), ("name", pa.string())])
    output = DeltaOutput(table_location(url), "made", schema, ("name",))
    written = [write_table(url, pa.table({"key": pa.array([b"%d" % n])}), {"name": v}) for n, v in enumerate(values)]
    output.commit(output.open("log", {}), 1, written, ())
    wanted = [(b"%d" % n, value or None) for n, value in enumerate(values)]
    location = table_location(url)
    options = dict(location.options)
    table = DeltaTable(location.uri, storage_options=options)
    by_deltalake = table.to_pyarrow_table()
    assert sorted(zip(by_deltalake["key"].to_pylist(), by_deltalake["name"].to_pylist(), strict=True)) == sorted(wanted)
    by_polars = pl.read_delta(table.table_uri, storage_options=options).select("key", "name")
    assert sorted(by_polars.rows()) == sorted(wanted)
    removed = [file for file in output.open("log", {}).files() if file.path == written[2].path]
    output.commit(output.open("log", {}), 2, (), removed)
    left = DeltaTable(location.uri, storage_options=options).to_pyarrow_table()
    assert left.num_rows == len(values) - 1, "a file is removed by the path under which it was added"


def test_partition_values_of_any_characters_are_found_in_the_paths(tmp_path: Path) -> None:
    check_partition_values((tmp_path / "table").as_uri())


@pytest.mark.matrix
def test_partition_values_of_any_characters_are_found_in_the_paths_on_s3(s3_url: str) -> None:
    check_partition_values(s3_url)


def rows_in(root: Path) -> int:
    return DeltaTable(str(root)).to_pyarrow_table().num_rows


def files_in(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*.parquet") if "_delta_log" not in path.parts}


def replaced_table(url: str) -> tuple[DeltaOutput, list[TableFile]]:
    """A table whose second commit replaced two of the files of the first: the output and all files in order."""
    schema = pa.schema([*ROWS.schema, ("name", pa.string())])
    output = DeltaOutput(table_location(url), "made", schema, ("name",))
    first = [write_table(url, ROWS, {"name": name}) for name in ("a b", "b", "c")]
    output.commit(output.open("log", {}), 1, first, ())
    gone = [file for file in output.open("log", {}).files() if file.partition["name"] != "c"]
    second = write_table(url, ROWS, {"name": "b"})
    output.commit(output.open("log", {}), 2, [second], gone)
    return output, [*first, second]


def test_a_vacuum_removes_replaced_files_that_are_old_enough_and_no_others(tmp_path: Path) -> None:
    root = tmp_path / "table"
    output, (*gone, kept, newest) = replaced_table(root.as_uri())
    in_flight = write_table(root.as_uri(), ROWS, {"name": "b"})
    os.utime(root / str(in_flight.path), (0, 0))
    before = files_in(root)
    assert output.vacuum("log", 1).files == 0 and files_in(root) == before, "replaced a moment ago"
    removed = output.vacuum("log", 0)
    assert (removed.files, removed.size) == (2, sum(file.size for file in gone))
    assert files_in(root) == {kept.path, newest.path, in_flight.path}, "a runner may be about to commit a file"
    assert (output.vacuum("log", 0).files, rows_in(root), output.open("log", {}).offset) == (0, 4, 2)
    output.commit(output.open("log", {}), 3, [in_flight], ())
    assert rows_in(root) == 6


@pytest.mark.matrix
def test_a_vacuum_removes_replaced_files_on_s3(s3_url: str) -> None:
    output, _ = replaced_table(s3_url)
    assert (output.vacuum("log", 0).files, output.vacuum("log", 0).files) == (2, 0)
    assert len(output.open("log", {}).files()) == 2
    location = table_location(s3_url)
    assert DeltaTable(location.uri, storage_options=dict(location.options)).to_pyarrow_table().num_rows == 4


def test_a_vacuum_that_dies_in_the_middle_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "table"
    output, _ = replaced_table(root.as_uri())
    real = DirectoryStore.delete
    deleted: list[str] = []

    async def delete(store: DirectoryStore, key: str) -> None:
        if deleted:
            raise Unavailable("the object store did not delete")
        deleted.append(key)
        await real(store, key)

    monkeypatch.setattr(DirectoryStore, "delete", delete)
    with pytest.raises(Unavailable):
        output.vacuum("log", 0)
    monkeypatch.undo()
    assert output.vacuum("log", 0).files == 1 and rows_in(root) == 4


@pytest.mark.parametrize("hours", [-1, 169])
def test_hours_for_which_the_table_keeps_no_names_are_refused(tmp_path: Path, hours: int) -> None:
    output, _ = replaced_table((tmp_path / "table").as_uri())
    with pytest.raises(InvalidRequest, match="0 to 168 hours"):
        output.vacuum("log", hours)


def test_a_table_of_another_log_or_pipeline_is_not_vacuumed(tmp_path: Path) -> None:
    root = tmp_path / "table"
    output, _ = replaced_table(root.as_uri())
    before = files_in(root)
    with pytest.raises(InvalidRequest, match="made of another log"):
        output.vacuum("other", 0)
    with pytest.raises(InvalidRequest, match="another table here"):
        DeltaOutput(table_location(root.as_uri()), "latest", ROWS.schema).vacuum("log", 0)
    assert files_in(root) == before


def test_a_missing_file_of_the_table_ends_a_run_at_once(local: SparkSession, tmp_path: Path) -> None:
    """What no retry changes is not tried again; ``run_pipeline`` waits between tries, and this one must not."""
    log, output = random_log(21, reigns=2).write_to(tmp_path / "log"), (tmp_path / "table").as_uri()
    for _ in range(2):
        run_pipeline(Changes(local, log, output), log, output, step_bytes=1, progress=None)
    (tmp_path / "table" / "_delta_log" / f"{1:020d}.json").unlink()
    stop = Event()
    stop.wait = lambda timeout=None: pytest.fail("it waits to try again")  # type: ignore[method-assign]
    with pytest.raises(CorruptData, match="a file of the table is missing"):
        run_pipeline(Changes(local, log, output), log, output, stop=stop, progress=None)
    with pytest.raises(CorruptData, match="a file of the table is missing"):
        open_table(output)
