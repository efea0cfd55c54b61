"""A table's commit without Spark: what must be true of the files that it names."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from holdfast.errors import InvalidRequest
from holdfast.segments.table_location import table_location
from holdfast.spark.log.delta_output import DeltaOutput
from holdfast.spark.runtime.table_files import write_table

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
