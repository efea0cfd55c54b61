"""Segments hold every operation of the log once, in its order, and serve reads in its place."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.log_builder import random_log, read_plainly
from tests.spark.plain import operation_rows, spark_rows
from tests.spark.test_pipeline_audit import damageable, on_disk, world

from holdfast.commit.format.batch import CLAIM_BYTES, ItemKind
from holdfast.errors import InvalidRequest, NotFound
from holdfast.segments.index import read_segment_index
from holdfast.spark import Segments, read_log, run_pipeline
from holdfast.spark.log.runner import RunReport
from holdfast.spark.runtime.table_files import read_objects
from holdfast.spark.source.chain import log_head
from holdfast.spark.source.segments import index_of_log, segment_rows
from holdfast.spark.source.shapes import RowFilter

COLUMNS = "version,position,kind,key,end,value,request_id,seq,timestamp,leader_id"


def run(spark: SparkSession, log: str, table: Path, *, least: int, step: int = 2**40) -> RunReport:
    job = Segments(spark, log, table.as_uri(), log_bytes_min=least)
    return run_pipeline(job, log, table.as_uri(), step_bytes=step)


def test_segments_and_the_log_behind_them_equal_the_plain_reading(spark: SparkSession, tmp_path: Path) -> None:
    builder = random_log(61, reigns=6, batches=14)
    log = builder.write_to(tmp_path / "log")
    live = list(read_plainly(builder.objects))
    total = sum(len(builder.objects[batch.header.slot]) for batch in live)
    report = run(spark, log, tmp_path / "segments", least=total // 4, step=total // 3)
    assert 1 <= report.step_count <= 3 and 0 < report.behind_bytes < total // 4, "the rest is not enough for a segment"
    index = read_segment_index(str(tmp_path / "segments"), {})
    assert 0 < index.through < live[-1].header.last_version
    for older, newer in pairwise(index.segments):
        assert older.version_max < newer.version_min, "no version is in two segments"
    wanted = operation_rows(live)
    names = COLUMNS.split(",")
    segments = (tmp_path / "segments").as_uri()
    rows = spark_rows(read_log(spark, log, segments=segments, columns=COLUMNS), "version", "position")
    assert rows == [{name: row[name] for name in names} for row in wanted]
    for segment in index.segments:
        (data,) = read_objects((tmp_path / "segments").as_uri(), [segment.path])
        found = [row for batch in segment_rows(data, names, RowFilter()) for row in batch.to_pylist()]
        order = [(row["version"], row["position"]) for row in found]
        records = RowFilter(kinds=(ItemKind.JOB,))
        jobs = [row for batch in segment_rows(data, ["version", "key", "value"], records) for row in batch.to_pylist()]
        held = range(segment.version_min, segment.version_max + 1)
        assert [tuple(row.values()) for row in jobs] == [
            (txn.version, change.name.encode(), change.value)
            for batch in live
            for txn in batch.transactions
            if txn.version in held
            for change in txn.jobs
        ]
        assert order == sorted(order) and len(order) + len(jobs) == segment.rows
        middle = order[len(order) // 2][0]
        some = RowFilter(middle, middle, (ItemKind.WRITE,), b"a", b"c")
        picked = [row["key"] for batch in segment_rows(data, ["version", "key"], some) for row in batch.to_pylist()]
        of_version = [row for row in wanted if row["version"] == middle and row["kind"] == "write"]
        assert picked == [row["key"] for row in of_version if b"a" <= row["key"] < b"c"]  # type: ignore[operator]


def test_what_is_in_segments_may_leave_the_log(spark: SparkSession, tmp_path: Path) -> None:
    objects = dict(world(next(damageable())))
    live = list(read_plainly(objects))
    log = on_disk(objects, tmp_path / "log")
    table = tmp_path / "segments"
    assert run(spark, log, table, least=1).behind_bytes == 0
    with pytest.raises(InvalidRequest, match="of another log"):
        index_of_log(table.as_uri(), log_head(random_log(62, reigns=1).write_to(tmp_path / "other")))
    with pytest.raises(NotFound, match="no segments"):
        index_of_log((tmp_path / "nothing").as_uri(), log_head(log))
    for path in sorted((tmp_path / "log" / "batches").iterdir())[len(live) // 2 :]:
        if path.stat().st_size != CLAIM_BYTES:
            path.unlink()
    index = read_segment_index(str(table), {})
    held = [segment for segment in index.segments if segment.rows]
    found = [
        row
        for segment in held
        for data in read_objects(table.as_uri(), [segment.path])
        for batch in segment_rows(data, COLUMNS.split(","), RowFilter())
        for row in batch.to_pylist()
    ]
    assert [(row["version"], row["position"], row["key"]) for row in found] == [
        (row["version"], row["position"], row["key"]) for row in operation_rows(live)
    ]
