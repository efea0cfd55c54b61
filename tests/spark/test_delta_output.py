"""A table's commit without Spark: what must be true of the files that it names, in a directory and on S3."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.s3_lane import gateway, s3_bucket, s3_url

from holdfast.errors import InvalidRequest
from holdfast.segments.table_location import table_location
from holdfast.spark.log.delta_output import DeltaOutput
from holdfast.spark.runtime.table_files import write_table

__all__ = ["gateway", "s3_bucket", "s3_url"]

ROWS = pa.table({"key": pa.array([b"a", b"b"], pa.binary())})


def test_files_that_workers_have_written_elsewhere_are_not_committed(tmp_path: Path) -> None:
    """On a cluster a path is another directory on every machine, unless it is mounted there."""
    output = DeltaOutput(table_location((tmp_path / "table").as_uri()), "made", ROWS.schema)
    state = output.open("log", {})
    here = write_table((tmp_path / "table").as_uri(), ROWS, {})
    elsewhere = write_table((tmp_path / "a-worker" / "table").as_uri(), ROWS, {})
    with pytest.raises(InvalidRequest, match="not in the table's directory"):
        output.commit(state, 7, [here, elsewhere], ())
    assert output.offset("log") == 0
    output.commit(state, 7, [here], ())
    assert output.offset("log") == 7
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
