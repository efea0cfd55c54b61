"""One script for every runtime: reads logs and prints a digest of each one's rows, and where tasks found the package.

python runtime_script.py (--master URL | --remote URL) [--zip FILE] LOG_URL... [--table URL] [--sink URL FOLDER]
                         [--faults] [--bulk FOLDER]

``--table`` makes the table ``latest`` of the first log there. ``--sink`` writes ``SINK_ROWS`` rows to a service; with
``--faults`` by tasks that fail in the middle at their first try and leave a mark in the folder, and then as many by
tasks of which one waits until Spark has started a copy of it. ``--bulk`` resolves requests, and loads
them into a log in the folder.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from examples.cluster.standalone import CONF
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

from holdfast.spark import Latest, run_pipeline, session
from holdfast.spark.bulk.load import LoadOptions, load_requests
from holdfast.spark.bulk.requests import RequestFormat, stage
from holdfast.spark.bulk.resolve import resolve_requests

COLUMNS = "version,seq,kind,key,value,timestamp,position"
SINK_ROWS = 200
BULK_REQUESTS = 3000
COPY_SECONDS_MAX = 240
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
HERE = CONF | {
    "spark.driver.extraJavaOptions": JAVA,
    "spark.executor.extraJavaOptions": JAVA,
    "spark.sql.shuffle.partitions": "2",
    # A copy of every task that takes much longer than the others.
    "spark.speculation": "true",
    "spark.speculation.minTaskRuntime": "8s",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
}


def digest(frame: DataFrame) -> dict[str, object]:
    rows = sorted(repr(row) for row in frame.collect())
    return {"rows": len(rows), "digest": hashlib.sha256("\n".join(rows).encode()).hexdigest()}


def places(spark: SparkSession) -> list[str]:
    def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import holdfast

        for _ in batches:
            yield pa.record_batch({"place": [os.path.abspath(str(holdfast.__file__))]})

    # As a barrier: both tasks run at the same time, so on both workers.
    tasks = spark.range(0, 2, numPartitions=2).mapInArrow(where, "place string", barrier=True)
    return sorted({row.place for row in tasks.collect()})


def write_with_failures(spark: SparkSession, url: str, marks: str) -> None:
    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(batches):
            if number == 5 and context.attemptNumber() == 0:
                Path(marks, f"failed-{context.partitionId()}").touch()
                raise RuntimeError("this try fails")
            yield batch

    frame = sink_rows(spark, "f")
    send(frame.mapInArrow(fail_once, frame.schema), url, "failing")


def write_beside_copies(spark: SparkSession, url: str, marks: str) -> None:
    """One task waits in the middle until its copy is there, and then both send the same rows."""

    def wait_for_copy(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        mark = Path(marks, "copied")
        for number, batch in enumerate(batches):
            if context.partitionId() == 1 and context.attemptNumber() > 0:
                mark.touch()
            deadline = time.monotonic() + COPY_SECONDS_MAX
            while context.partitionId() == 1 and number == 5 and not mark.exists():
                assert time.monotonic() < deadline, "Spark has started no copy of this task"
                time.sleep(0.01)
            yield batch

    frame = sink_rows(spark, "s")
    send(frame.mapInArrow(wait_for_copy, frame.schema), url, "copied")


def sink_rows(spark: SparkSession, name: str) -> DataFrame:
    rows = spark.range(0, SINK_ROWS, numPartitions=2)
    return rows.selectExpr(f"format_string('{name}/%04d', id) AS key", "'v' AS value")


def send(frame: DataFrame, url: str, application: str) -> None:
    frame.write.format("holdfast").mode("append").option("url", url).option("application", application).save()


def bulk(spark: SparkSession, folder: str) -> dict[str, object]:
    """What resolving and loading tell, and what is in the log and the verdicts then."""
    requests = spark.range(0, BULK_REQUESTS, numPartitions=3).selectExpr(
        "id AS order",
        "format_string('b/%03d', id * 7 % 400) AS key",
        "string(id) AS value",
        "array(named_struct('key', format_string('b/%03d', id * 3 % 400), 'end',"
        " IF(id % 9 = 0, format_string('b/%03d', id * 3 % 400 + 20), CAST(NULL AS string)))) AS preconditions",
        "concat('#', greatest(0, id - 40)) AS read_version",
    )
    staged = stage(requests, RequestFormat(), partitions=3)
    fates = resolve_requests(staged, 0).fates.tobytes().hex()
    staged.release()
    log, verdicts = Path(folder, "bulk-log").as_uri(), Path(folder, "bulk-verdicts")
    report = load_requests(spark, requests, log, verdicts.as_uri(), LoadOptions(wave=2, partitions=3))
    # Where a batch ends, and so the load's own record, is a matter of how Spark samples partitions.
    written = (
        spark.read.format("holdfast")
        .option("url", log)
        .option("columns", "version,kind,key,value,position")
        .option("keyPrefix", "b/")
        .load()
    )
    # A new log begins at a random version, so that versions are compared by their distance to the first.
    first = written.selectExpr("min(version)").first()[0]
    relative = {
        "version": expr(f"version - {first}"),
        "conflicts": expr(
            f"transform(conflicts, each -> struct(each.precondition, each.version - {first} AS version))"
        ),
    }
    table = spark.read.parquet(*DeltaTable(verdicts).file_uris())
    return {
        "verdicts": hashlib.sha256(fates.encode()).hexdigest(),
        "told": [report.name, report.requests, report.committed, report.not_committed],
        "log": digest(written.withColumn("version", relative["version"])),
        "table": digest(table.withColumns(relative)),
    }


def read_log(spark: SparkSession, url: str) -> DataFrame:
    return spark.read.format("holdfast").option("url", url).option("columns", COLUMNS).load()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("urls", nargs="+")
    parser.add_argument("--master")
    parser.add_argument("--remote")
    parser.add_argument("--zip")
    parser.add_argument("--table")
    parser.add_argument("--sink", nargs=2, metavar=("URL", "FOLDER"))
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--bulk", metavar="FOLDER")
    given = parser.parse_args()
    conf = {"spark.sql.session.timeZone": "UTC"}
    if given.master is not None:
        conf |= HERE
    if given.zip is not None:
        conf["spark.submit.pyFiles"] = given.zip
    spark = session("holdfast-runtime", master=given.master, remote=given.remote, conf=conf)
    found: dict[str, object] = {"logs": [digest(read_log(spark, url)) for url in given.urls], "places": places(spark)}
    if given.table is not None:
        run_pipeline(Latest(spark, given.urls[0], given.table, buckets=2), given.urls[0], given.table)
    if given.bulk is not None:
        found["bulk"] = bulk(spark, given.bulk)
    if given.sink is not None and given.faults:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
        write_with_failures(spark, *given.sink)
        write_beside_copies(spark, *given.sink)
    elif given.sink is not None:
        send(sink_rows(spark, "f"), given.sink[0], "plain")
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
