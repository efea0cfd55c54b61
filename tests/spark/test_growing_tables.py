"""Tables of buckets that grow: buckets are split, new keys get files of their own, and no row is lost or doubled."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.matrix import matrix
from tests.spark.local_frames import local
from tests.spark.log_builder import LogBuilder
from tests.spark.test_pipeline_tables import Kind, content, expected, run

from holdfast.commit.format.transaction import Delete, RangeDelete, Write
from holdfast.errors import InvalidRequest
from holdfast.spark import History, Latest, RowOptions, run_pipeline
from holdfast.spark.log.delta_output import DeltaOutput
from holdfast.spark.tables import buckets as bucket_module
from holdfast.spark.tables import buckets as placement_module
from holdfast.spark.tables.buckets import Placement

__all__ = ["local"]

GROWING = matrix([Latest, History])
FIRST = 3
"""The buckets that ``job`` makes a table with."""


def buckets_of(path: Path) -> int:
    return DeltaTable(str(path)).transaction_version(f"holdfast/{path.name}/buckets") or FIRST


def live(path: Path) -> set[str]:
    return set(DeltaTable(str(path)).file_uris())


def check_placement(path: Path) -> None:
    """Every current row is in the bucket that the number of buckets gives its key."""
    placement = Placement(FIRST, buckets_of(path))
    for uri in live(path):
        if "is_current=false" not in uri:
            bucket = int(uri.split("bucket=")[1].split("/")[0])
            assert set(placement.of_keys(pq.ParquetFile(uri).read()["key"].to_pylist()).tolist()) == {bucket}


@pytest.mark.matrix  # the next tests split the buckets of one, too
@pytest.mark.parametrize("kind", GROWING)
def test_a_table_that_grows_splits_its_buckets_and_keeps_every_row(
    local: SparkSession, tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement_module, "BUCKET_FILE_BYTES", 2_000)
    leader = (builder := LogBuilder(25)).lead()
    draw = builder.random
    counts: list[int] = []
    log, path = (tmp_path / "log").as_uri(), tmp_path / kind.name
    for number in range(7):
        written = [Write(b"%d" % draw.randrange(30 * number + 30), draw.randbytes(100)) for _ in range(40)]
        more = [Delete(b"%d" % draw.randrange(200)), RangeDelete(b"%d" % number, b"%d0" % number)][: number % 3]
        leader.commit(*([each] for each in [*written, *more]))
        builder.write_to(tmp_path / "log")
        run(local, kind, log, path)
        counts.append(buckets_of(path))
    assert counts == sorted(counts) and len(set(counts)) > 3, "several steps split buckets"
    assert all(after <= 2 * before for before, after in pairwise(counts))
    assert content(kind, path) == expected(kind, builder)
    check_placement(path)


def test_a_split_rewrites_the_bucket_that_is_split_and_no_other(
    local: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = (builder := LogBuilder(73)).lead()
    leader.commit(*([Write(b"%d" % number, b"v" * 100)] for number in range(200)))
    log, path = builder.write_to(tmp_path / "log"), tmp_path / "latest"
    run(local, Latest, log, path)
    before = live(path)
    size = sum(Path(uri).stat().st_size for uri in before)
    monkeypatch.setattr(placement_module, "BUCKET_FILE_BYTES", size // 4 + 1)
    kept = Placement(FIRST, FIRST + 1)
    touched = next(b"%d" % n for n in range(200) if kept.of_keys([b"%d" % n])[0] == 1)
    leader.commit([Write(touched, b"new")])
    builder.write_to(tmp_path / "log")
    report = run(local, Latest, log, path)
    assert buckets_of(path) == FIRST + 1
    assert (report.files_removed, report.files_added) == (2, 3), "bucket 0 becomes 0 and 3, bucket 1 has the new value"
    assert len(before & live(path)) == 1
    assert content(Latest, path) == expected(Latest, builder)
    check_placement(path)


@pytest.mark.parametrize("kind", GROWING)
def test_new_keys_get_a_file_of_their_own_until_a_bucket_has_too_many(
    local: SparkSession, tmp_path: Path, kind: Kind
) -> None:
    leader = (builder := LogBuilder(74)).lead()
    leader.commit(*([Write(b"%d" % number, b"v")] for number in range(300)))
    log, path = builder.write_to(tmp_path / "log"), tmp_path / kind.name
    run(local, kind, log, path)
    made = live(path)
    for number in range(1, bucket_module.FILES_OF_A_BUCKET_MAX):
        leader.commit(*([Write(b"new %d %d" % (number, each), b"v")] for each in range(36)), [Delete(b"absent")])
        builder.write_to(tmp_path / "log")
        report = run(local, kind, log, path)
        assert report.files_removed == 0 and report.files_added <= FIRST
        assert made <= live(path)
        assert content(kind, path) == expected(kind, builder)
    leader.commit(*([Write(b"last %d" % each, b"v")] for each in range(36)))
    builder.write_to(tmp_path / "log")
    report = run(local, kind, log, path)
    assert report.files_removed > FIRST and len(live(path)) == FIRST, "each bucket is one file again"
    assert content(kind, path) == expected(kind, builder)


@pytest.mark.parametrize(
    "operation",
    matrix([Write(b"7", b"changed"), Delete(b"7"), RangeDelete(b"70", b"71")]),
    ids=lambda each: type(each).__name__,
)
def test_a_step_that_changes_a_row_rewrites_its_bucket(
    local: SparkSession, tmp_path: Path, operation: Write | Delete | RangeDelete
) -> None:
    leader = (builder := LogBuilder(75)).lead()
    leader.commit(*([Write(b"%d" % number, b"v")] for number in range(100)))
    log, path = builder.write_to(tmp_path / "log"), tmp_path / "latest"
    run(local, Latest, log, path)
    leader.commit([Write(b"new", b"v"), operation])
    builder.write_to(tmp_path / "log")
    assert run(local, Latest, log, path).files_removed > 0
    assert content(Latest, path) == expected(Latest, builder)


def test_a_table_of_another_format_is_refused_and_not_changed(
    local: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = (builder := LogBuilder(76)).lead()
    leader.commit(*([Write(b"%d" % number, b"v" * 100)] for number in range(100)))
    log, path = builder.write_to(tmp_path / "log"), tmp_path / "latest"
    with monkeypatch.context() as other:
        other.setattr("holdfast.spark.log.delta_output.FORMAT", 2)
        run(local, Latest, log, path)
    leader.commit([Write(b"1", b"new")])
    builder.write_to(tmp_path / "log")
    version = DeltaTable(str(path)).version()
    with pytest.raises(InvalidRequest, match=r"another version of Holdfast made this table.*begin a new table"):
        run(local, Latest, log, path)
    assert DeltaTable(str(path)).version() == version


def test_a_crash_before_the_commit_of_a_split_changes_no_row(
    local: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = (builder := LogBuilder(77)).lead()
    leader.commit(*([Write(b"%d" % number, b"v" * 100)] for number in range(100)))
    log, path = builder.write_to(tmp_path / "log"), tmp_path / "latest"
    run(local, Latest, log, path)
    monkeypatch.setattr(placement_module, "BUCKET_FILE_BYTES", 100)
    leader.commit([Write(b"1", b"new")])
    builder.write_to(tmp_path / "log")
    with monkeypatch.context() as crash:
        crash.setattr(DeltaOutput, "commit", lambda *args, **named: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(local, Latest, log, path)
    assert buckets_of(path) == FIRST
    run(local, Latest, log, path)
    assert buckets_of(path) == 2 * FIRST
    assert content(Latest, path) == expected(Latest, builder)
    check_placement(path)


@pytest.mark.matrix
def test_spark_splits_buckets_too(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = (builder := LogBuilder(78)).lead()
    leader.commit(*([Write(b"%d" % number, b"v" * 100)] for number in range(100)))
    log, path = builder.write_to(tmp_path / "log"), tmp_path / "latest"
    run(spark, Latest, log, path)
    monkeypatch.setattr(placement_module, "BUCKET_FILE_BYTES", 100)
    leader.commit([Write(b"1", b"new")])
    builder.write_to(tmp_path / "log")
    run(spark, Latest, log, path)
    assert buckets_of(path) == 2 * FIRST
    assert content(Latest, path) == expected(Latest, builder)
    check_placement(path)


def test_a_table_with_a_long_description_is_split_as_any_other(
    local: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = (builder := LogBuilder(79)).lead()
    leader.commit(*([Write(b"%d" % number, b"v" * 100)] for number in range(100)))
    log, path = builder.write_to(tmp_path / "log"), tmp_path / "latest"
    rows = RowOptions(key_prefixes=(*(b"%d" % digit for digit in range(10)), *(b"prefix %05d" % n for n in range(200))))
    pipeline = Latest(local, log, path.as_uri(), buckets=FIRST, rows=rows)
    run_pipeline(pipeline, log, path.as_uri())
    monkeypatch.setattr(placement_module, "BUCKET_FILE_BYTES", 100)
    leader.commit([Write(b"1", b"new")])
    builder.write_to(tmp_path / "log")
    run_pipeline(pipeline, log, path.as_uri())
    assert buckets_of(path) == 2 * FIRST
    assert content(Latest, path) == expected(Latest, builder)
