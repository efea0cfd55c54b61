"""What the console reads of the tables of Spark pipelines, from their Delta logs."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import CommitProperties, Transaction

from holdfast.console.pages import pipelines

LOG_ID = "0" * 32


def make(folder: Path, pipeline: str, offset: int, rows: list[dict[str, object]]) -> str:
    """A table as a pipeline makes it."""
    schema = pa.schema([("rule", pa.string()), ("version", pa.int64())])
    about = {"holdfast": {"pipeline": pipeline, "log_id": LOG_ID, "format": 1}}
    table = DeltaTable.create(
        str(folder),
        schema,
        description=json.dumps(about),
        commit_properties=CommitProperties(app_transactions=[Transaction(f"holdfast/{pipeline}", offset)]),
    )
    if rows:
        write_deltalake(table, pa.Table.from_pylist(rows, schema), mode="append")
    return folder.as_uri()


def test_a_table_says_how_far_it_is(tmp_path: Path) -> None:
    found = pipelines.read_table(make(tmp_path / "latest", "latest", 77, []))
    assert (found.pipeline, found.log_id, found.offset, found.findings) == ("latest", LOG_ID, 77, None)
    assert found.written_ms > 0
    assert not found.problem


def test_the_last_audit_is_read_from_its_table(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"rule": pipelines.VERIFIED, "version": 5},
        {"rule": "crc", "version": 7},
        {"rule": pipelines.VERIFIED, "version": 6},
    ]
    found = pipelines.read_table(make(tmp_path / "audit", pipelines.AUDIT, 9, rows))
    assert (found.findings, found.verified, found.offset) == (1, 6, 9)


def test_what_is_not_a_table_of_ours_is_named_as_a_problem(tmp_path: Path) -> None:
    assert "cannot be read" in pipelines.read_table((tmp_path / "none").as_uri()).problem
    DeltaTable.create(str(tmp_path / "foreign"), pa.schema([("a", pa.int64())]))
    assert "no pipeline" in pipelines.read_table((tmp_path / "foreign").as_uri()).problem
    assert "password" in pipelines.read_table("s3://key:secret@host/table").problem
    assert "secret" not in repr(pipelines.read_table("s3://key:secret@host/table"))


def test_the_names_are_those_that_the_audit_writes() -> None:
    source = (Path(__file__).resolve().parents[3] / "src/holdfast/spark/log/audit.py").read_text()
    assert f'VERIFIED: Final = "{pipelines.VERIFIED}"' in source
    assert f'name = "{pipelines.AUDIT}"' in source
