"""A load of an input that has other rows each time: they are fixed once, whatever Spark computes again afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.matrix import matrix
from tests.spark.test_bulk_load import SLICES, Killed, told, transactions

from holdfast.commit.format.transaction import Write
from holdfast.errors import InvalidRequest, NotFound
from holdfast.spark.bulk.fixed_rows import FixedRows
from holdfast.spark.bulk.leadership import LeadershipOptions
from holdfast.spark.bulk.load import LoadOptions, LoadReport, load_requests
from holdfast.spark.bulk.requests import RequestFormat, stage

ROOT = Path(__file__).resolve().parents[2]
REQUESTS = 200
COLUMNS = "order long, key binary, value binary, read_version string"
OPTIONS = LoadOptions(name="orders", wave=2, partitions=2, leading=LeadershipOptions(sign_interval_ms=50.0))


def changing(spark: SparkSession, marks: str | None = None) -> DataFrame:
    """Requests with another order and other values each time. ``marks``: a folder; the first try of each task fails."""

    def compute(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            keys = [b"k/%d" % number for number in batch["id"].to_pylist()]
            drawn = [uuid.uuid4() for _ in keys]
            columns = [
                pa.array([each.int >> 66 for each in drawn]),
                pa.array(keys, pa.binary()),
                pa.array([each.bytes for each in drawn], pa.binary()),
                pa.array(["#0"] * len(keys)),
            ]
            yield pa.RecordBatch.from_arrays(columns, ["order", "key", "value", "read_version"])
            if marks is not None:
                fail_once(marks)

    return spark.range(0, REQUESTS, numPartitions=3).mapInArrow(compute, COLUMNS)


def fail_once(marks: str) -> None:
    context = TaskContext.get()
    assert context is not None
    mark = Path(marks, f"{context.stageId()}-{context.partitionId()}")
    if not mark.exists():
        mark.touch()
        raise OSError("this try fails in the middle")


def lose_what_executors_kept(spark: SparkSession) -> None:
    """The blocks and the files of shuffles are gone, as when an executor dies: Spark computes them again.

    The session is of no use for large results afterwards.
    """
    for kept in spark.sparkContext._jsc.getPersistentRDDs().values():
        kept.unpersist()
    for file in Path(spark.sparkContext.getConf().get("spark.local.dir", "")).rglob("shuffle_*"):
        file.unlink()


def check(root: Path) -> None:
    """Each request is in the log once, and has the verdict that says so."""
    written = [each for txn in transactions(root / "log") for each in txn.operations]
    keys = [each.key for each in written if isinstance(each, Write)]
    assert Counter(keys) == Counter(b"k/%d" % number for number in range(REQUESTS))
    rows = told(root / "verdicts")
    assert [row["outcome"] for row in rows] == ["committed"] * REQUESTS
    orders = [int(str(row["order"])) for row in rows]
    assert orders == sorted(set(orders))
    assert not [path for path in (root / "log/staged").rglob("*") if path.is_file()], "nothing of the rows stays"


def load(
    spark: SparkSession,
    root: Path,
    options: LoadOptions,
    step: Callable[[str, Mapping[str, object]], None] | None = None,
) -> LoadReport:
    log, verdicts = (root / "log").as_uri(), (root / "verdicts").as_uri()
    return load_requests(spark, changing(spark), log, verdicts, options, step=step)


@pytest.fixture(autouse=True)
def small_chunks(spark: SparkSession) -> None:
    spark.conf.set(SLICES, "50")


@pytest.mark.parametrize("at", matrix(["wave", "fix", "release"]))
def test_a_run_that_was_killed_is_finished_with_the_rows_that_were_fixed(
    spark: SparkSession, tmp_path: Path, at: str
) -> None:
    def die(name: str, _facts: Mapping[str, object]) -> None:
        if name == at:
            raise Killed(name)

    with pytest.raises(Killed):
        load(spark, tmp_path, OPTIONS, die)
    seen: dict[str, Mapping[str, object]] = {}
    report = load(spark, tmp_path, OPTIONS, lambda name, facts: seen.update({name: facts}))
    assert report.committed == REQUESTS and seen["fix"] == {"found": True}
    check(tmp_path)
    with pytest.raises(InvalidRequest, match="has begun with other requests"):
        load(spark, tmp_path, OPTIONS)
    check(tmp_path)


def test_rows_that_cannot_be_loaded_leave_their_name_free(spark: SparkSession, tmp_path: Path) -> None:
    log = (tmp_path / "log").as_uri()
    columns = "order int, key string, value string"
    bad = spark.createDataFrame([(1, "a", "1"), (1, "b", "2")], columns)
    with pytest.raises((InvalidRequest, PySparkException), match="same position in the order"):
        load_requests(spark, bad, log, None, OPTIONS)
    good = spark.createDataFrame([(1, "a", "1"), (2, "b", "2")], columns)
    assert load_requests(spark, good, log, None, OPTIONS).committed == 2


def test_other_columns_under_the_name_of_an_unfinished_load_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    log = (tmp_path / "log").as_uri()
    first = spark.createDataFrame([(1, "a", "1")], "order int, key string, value string")
    rows = FixedRows.of(log, OPTIONS.name)
    (tmp_path / "log").mkdir()
    assert rows.fix(first)[1] and not rows.fix(first)[1], "the first manifest stays"
    other = spark.createDataFrame([(1, "write", "a", "1")], "order int, kind string, key string, value string")
    with pytest.raises(InvalidRequest, match="has begun with other columns"):
        load_requests(spark, other, log, None, OPTIONS)
    assert load_requests(spark, first, log, None, OPTIONS).committed == 1


def test_rows_that_are_gone_are_an_error(spark: SparkSession, tmp_path: Path) -> None:
    rows = FixedRows.of(tmp_path.as_uri(), "orders")
    frame = spark.createDataFrame([(1, "a", "1")], "order int, key string, value string")
    manifest, _ = rows.fix(frame)
    rows.remove()
    assert rows.found() is None
    with pytest.raises(NotFound, match="are gone"):
        stage(rows.read(manifest, frame), RequestFormat(), partitions=1)


ORDERS = ["timestamp_micros(id)", "id", "date_add(date'2026-01-01', int(id))", "decimal(id) / 7", "binary(string(id))"]


@pytest.mark.parametrize("order", matrix(ORDERS))
def test_fixed_rows_are_the_same_requests(spark: SparkSession, tmp_path: Path, order: str) -> None:
    frame = spark.range(0, 40, numPartitions=3).selectExpr(
        f"{order} AS order",
        "array(named_struct('kind', 'write', 'key', binary(string(id)), 'value', binary('v'), 'end', binary(null)),"
        " named_struct('kind', 'range_delete', 'key', binary('a'), 'value', null, 'end', binary('b'))) AS operations",
        "array(named_struct('key', string(id), 'end', IF(id % 2 = 0, 'z', null), 'version', id)) AS preconditions",
        "IF(id % 3 = 0, '#0', null) AS read_version",
    )
    rows = FixedRows.of(tmp_path.as_uri(), None)
    fixed = rows.read(rows.fix(frame)[0], frame)
    assert stage(fixed, RequestFormat(), partitions=2).digest == stage(frame, RequestFormat(), partitions=2).digest


SCRIPT = """
import json, sys
from pathlib import Path
from holdfast.spark import LeadershipOptions, LoadOptions, load_requests, session
from tests.spark.test_load_fixed_rows import changing, lose_what_executors_kept
root = Path(sys.argv[1])
spark = session(master="local[2,3]", conf=json.loads(sys.argv[2]))
def lose(name, facts):
    if name in ("stage", "wave"):
        lose_what_executors_kept(spark)
report = load_requests(
    spark, changing(spark, str(root)), (root / "log").as_uri(), (root / "verdicts").as_uri(),
    LoadOptions(wave=2, partitions=2, leading=LeadershipOptions(sign_interval_ms=50.0)), step=lose,
)
print(report.committed)
spark.stop()
"""


def test_tasks_that_fail_once_and_executors_that_are_lost_change_no_request(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    conf = {SLICES: "50", "spark.local.dir": str(tmp_path / "local")}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), json.dumps(conf)]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert (done.returncode, done.stdout.split()) == (0, [str(REQUESTS)]), done.stderr[-3000:]
    assert len([mark for mark in tmp_path.iterdir() if mark.is_file()]) >= 3, "tasks have failed"
    check(tmp_path)
