"""The tables of pipelines against the plain reading of the same log: content, increments, exactly once."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.matrix import matrix
from tests.spark.log_builder import LogBuilder, latest_plainly, random_log, read_plainly
from tests.spark.plain import operation_rows

from holdfast.commit.format.transaction import Delete, RangeDelete, Write
from holdfast.errors import CorruptData
from holdfast.spark import Changes, History, Latest, Schedule, Snapshot, run_pipeline
from holdfast.spark.log.runner import PipelineJob, RunReport

Kind = type[Changes] | type[Latest] | type[History]
KINDS: list[Kind] = [Changes, Latest, History]
SMALL_STEP = 200_000


def history_plainly(builder: LogBuilder) -> list[tuple[bytes, bytes, int, int | None]]:
    """Every value of every key with the versions between which it was the newest, from states one after another."""
    ended: list[tuple[bytes, bytes, int, int | None]] = []
    state: dict[bytes, tuple[bytes, int]] = {}
    for batch in read_plainly(builder.objects):
        for txn in batch.transactions:
            before = dict(state)
            for operation in txn.operations:
                match operation:
                    case Write(key, value):
                        state[key] = (value, txn.version)
                    case Delete(key):
                        state.pop(key, None)
                    case RangeDelete(begin, end):
                        for key in [key for key in state if begin <= key and (end is None or key < end)]:
                            del state[key]
            ended += [(k, *before[k], txn.version) for k in before if state.get(k) != before[k]]
    return sorted([*ended, *((k, *held, None) for k, held in state.items())], key=repr)


def opened(path: Path) -> pa.Table:
    return pa.table(DeltaTable(str(path)).to_pyarrow_table())


def content(kind: Kind, path: Path) -> object:
    return content_of(kind, opened(path))


def content_of(kind: Kind, table: pa.Table) -> object:
    if kind is Latest:
        rows = list(
            zip(table["key"].to_pylist(), table["value"].to_pylist(), table["version"].to_pylist(), strict=True)
        )
        found = {key: (value, version) for key, value, version in rows}
        assert len(found) == len(rows), "one row a key"
        return found
    if kind is History:
        names = ("key", "value", "valid_from", "valid_to")
        assert table["is_current"].to_pylist() == [each is None for each in table["valid_to"].to_pylist()]
        return sorted(zip(*(table[name].to_pylist() for name in names), strict=True), key=repr)
    names = ("version", "position", "kind", "key", "end", "value", "request_id")
    return sorted(zip(*(table[name].to_pylist() for name in names), strict=True), key=lambda row: row[:2])


def expected(kind: Kind, builder: LogBuilder) -> object:
    if kind is Latest:
        return latest_plainly(builder.objects)
    if kind is History:
        return history_plainly(builder)
    names = ("version", "position", "kind", "key", "end", "value", "request_id")
    rows = [tuple(row[name] for name in names) for row in operation_rows(read_plainly(builder.objects))]
    return sorted(rows, key=lambda row: row[:2])


def job(spark: SparkSession, kind: Kind, log: str, output: Path) -> PipelineJob:
    if kind is Changes:
        return Changes(spark, log, output.as_uri())
    return kind(spark, log, output.as_uri(), buckets=3)  # type: ignore[call-arg]


def run(spark: SparkSession, kind: Kind, log: str, output: Path, *, step_bytes: int = 2**30) -> RunReport:
    return run_pipeline(job(spark, kind, log, output), log, output.as_uri(), step_bytes=step_bytes)


@pytest.mark.parametrize("kind", matrix(KINDS))
def test_a_table_grown_step_by_step_equals_the_plain_reading(spark: SparkSession, tmp_path: Path, kind: Kind) -> None:
    builder = random_log(21, reigns=6, batches=14)
    log = builder.write_to(tmp_path / "log")
    report = run(spark, kind, log, tmp_path / "table", step_bytes=SMALL_STEP)
    assert report.step_count > 3, "the log takes several steps"
    assert report.version == report.head_version and report.behind_bytes == 0
    assert content(kind, tmp_path / "table") == expected(kind, builder)
    again = run(spark, kind, log, tmp_path / "table")
    assert again.step_count == 0 and again.started_at == report.version, "nothing new, nothing done"


def test_a_snapshot_is_the_state_at_its_version_sorted_by_key(spark: SparkSession, tmp_path: Path) -> None:
    builder = random_log(22, reigns=5, batches=14)
    log = builder.write_to(tmp_path / "log")
    versions = [txn.version for batch in read_plainly(builder.objects) for txn in batch.transactions]
    middle = versions[len(versions) // 2]
    output = tmp_path / "table"
    job = Snapshot(spark, log, output.as_uri())
    first = run_pipeline(job, log, output.as_uri(), schedule=Schedule(until=middle))
    assert first.version == middle and first.step_count == 1
    assert content(Latest, output) == latest_plainly(builder.objects, as_of=middle)
    second = run_pipeline(job, log, output.as_uri())
    assert second.started_at == middle and second.files_removed > 0, "the second is made from the first"
    assert content(Latest, output) == latest_plainly(builder.objects)
    keys = [key for uri in DeltaTable(str(output)).file_uris() for key in pq.read_table(uri)["key"].to_pylist()]
    assert keys == sorted(keys)
    assert content(Latest, output) != latest_plainly(builder.objects, as_of=middle)


@pytest.mark.parametrize("kind", matrix([Latest, History]))
def test_a_run_removes_what_its_steps_replaced_only_when_asked(spark: SparkSession, tmp_path: Path, kind: Kind) -> None:
    builder = random_log(24, reigns=4, batches=10)
    log, output = builder.write_to(tmp_path / "log"), tmp_path / "table"
    report = run(spark, kind, log, output, step_bytes=SMALL_STEP)
    table = DeltaTable(str(output))
    live = {Path(uri).relative_to(output) for uri in table.file_uris()}
    there = {path.relative_to(output) for path in output.rglob("*.parquet")}
    assert report.files_vacuumed == 0 and len(there - live) == report.files_removed > 0
    again = run_pipeline(job(spark, kind, log, output), log, output.as_uri(), vacuum_hours=0)
    assert (again.step_count, again.files_vacuumed) == (0, report.files_removed)
    assert {path.relative_to(output) for path in output.rglob("*.parquet")} == live
    assert content(kind, output) == expected(kind, builder)


def test_a_damaged_file_stops_the_step_that_would_write_its_rows_again(spark: SparkSession, tmp_path: Path) -> None:
    leader = (builder := LogBuilder(26)).lead()
    leader.commit(*([Write(b"%d" % number, builder.random.randbytes(1_000))] for number in range(30)))
    log, output = builder.write_to(tmp_path / "log"), tmp_path / "table"
    run(spark, Latest, log, output)
    for uri in DeltaTable(str(output)).file_uris():
        data = bytearray(Path(uri).read_bytes())
        data[len(data) // 4] ^= 1
        Path(uri).write_bytes(data)
    leader.commit([Write(b"1", b"new")])
    builder.write_to(tmp_path / "log")
    before = DeltaTable(str(output)).version()
    with pytest.raises(CorruptData, match="a file of the table is damaged"):
        run(spark, Latest, log, output)
    assert DeltaTable(str(output)).version() == before
