"""One script for every runtime: reads logs and prints a digest of each one's rows, and where tasks found the package.

python runtime_script.py (--master URL | --remote URL) [--zip FILE] LOG_URL... [--table URL] [--sink URL FOLDER]

``--table`` makes the table ``latest`` of the first log there. ``--sink`` writes ``SINK_ROWS`` rows to a service by
tasks that fail in the middle at their first try, and leave a mark in the folder.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from holdfast.spark import session
from holdfast.spark.pipeline import Latest, run_pipeline

COLUMNS = "version,seq,kind,key,value,timestamp,position"
SINK_ROWS = 200
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
HERE = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": JAVA,
    "spark.executor.extraJavaOptions": JAVA,
    "spark.executor.memory": "512m",
    # On a cluster: nothing runs before both workers are there.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    "spark.sql.shuffle.partitions": "2",
}


def digest(frame: DataFrame) -> dict[str, object]:
    rows = sorted(repr(row) for row in frame.collect())
    return {"rows": len(rows), "digest": hashlib.sha256("\n".join(rows).encode()).hexdigest()}


def places(spark: SparkSession) -> list[str]:
    def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import holdfast

        for _ in batches:
            yield pa.record_batch({"place": [os.path.abspath(str(holdfast.__file__))]})

    return sorted({row.place for row in spark.range(0, 4, numPartitions=4).mapInArrow(where, "place string").collect()})


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

    frame = spark.range(0, SINK_ROWS, numPartitions=2).selectExpr("format_string('f/%04d', id) AS key", "'v' AS value")
    failing = frame.mapInArrow(fail_once, frame.schema)
    failing.write.format("holdfast").mode("append").option("url", url).option("application", "failing").save()


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
    given = parser.parse_args()
    conf = {"spark.sql.session.timeZone": "UTC"}
    if given.master is not None:
        conf |= HERE
    if given.zip is not None:
        conf["spark.submit.pyFiles"] = given.zip
    spark = session("holdfast-runtime", master=given.master, remote=given.remote, conf=conf)
    found = {"logs": [digest(read_log(spark, url)) for url in given.urls], "places": places(spark)}
    if given.table is not None:
        run_pipeline(Latest(spark, given.urls[0], given.table, buckets=2), given.urls[0], given.table)
    if given.sink is not None:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
        write_with_failures(spark, *given.sink)
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
