"""Start a Spark cluster of two workers on this machine and run every pipeline on it.

    python -m examples.cluster --log s3://bucket/log --tables s3://bucket/tables

Begins with an empty log and an empty place for tables, both in any store: S3, or a directory (``file:///tmp/log``).
Credentials of S3 come from the environment, as for every command. Prints one line for each pipeline, and at the end
whether ``latest`` and ``snapshot`` have what was written; the exit code is 0 only if they do.

The workers run on this machine, so they find the packages of this Python. On a cluster of several machines each worker
needs the package (``pip install 'holdfastdb[spark]'``), and the session has that cluster's ``master`` and no ``CONF``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import structlog
from examples.cluster.standalone import CONF, standalone_cluster
from pyspark.sql import DataFrame, SparkSession

from holdfast.spark import (
    Changes,
    Fate,
    History,
    Ingest,
    Latest,
    LeadershipOptions,
    LoadOptions,
    Replay,
    RequestFormat,
    Segments,
    Snapshot,
    Verify,
    load_requests,
    read_table,
    resolve_requests,
    run_pipeline,
    session,
    stage,
)

ORDERS = 3_000
CUSTOMERS = 400
PARTITIONS = 4
Line = Callable[[str, str], None]


def below(url: str, name: str) -> str:
    """The place ``name`` below a place, whose query stays.

    >>> below("s3://lake/tables?region=eu", "latest")
    's3://lake/tables/latest?region=eu'
    """
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))


def orders(spark: SparkSession, first: int) -> DataFrame:
    """Orders of customers: each one is a request that writes its customer's newest order."""
    rows = spark.range(first, first + ORDERS, numPartitions=PARTITIONS)
    key = f"format_string('customer/%03d', id * 7 % {CUSTOMERS})"
    return rows.selectExpr("id AS order", f"{key} AS key", "format_string('order %d', id) AS value")


def newest(first: int) -> dict[bytes, bytes]:
    """What the log must have of the orders from ``first``: the newest of each customer."""
    numbers = range(first, first + ORDERS)
    return {b"customer/%03d" % (number * 7 % CUSTOMERS): b"order %d" % number for number in numbers}


def run_all(spark: SparkSession, log: str, tables: str, line: Line) -> bool:
    """Every pipeline, one after the other. Whether the tables have what was written."""
    staged = stage(orders(spark, 0), RequestFormat(), partitions=PARTITIONS)
    resolution = resolve_requests(staged, 0)
    line("resolve", f"{staged.requests} requests, {resolution.count(Fate.COMMITTED)} committed")
    staged.release()

    options = LoadOptions(partitions=PARTITIONS)
    loaded = load_requests(spark, orders(spark, 0), log, below(tables, "load"), options)
    line("load", f"{loaded.committed} of {loaded.requests} requests committed")

    ingest = Ingest(log, below(tables, "ingest"), "orders", leading=LeadershipOptions())
    ingest.micro_batch(orders(spark, ORDERS), 0)
    ingest.close()
    line("ingest", f"{ingest.counts.committed} requests committed")

    for job in (Changes, Latest, History, Snapshot):
        url = below(tables, job.name)
        report = run_pipeline(job(spark, log, url), log, url)
        line(job.name, f"{report.rows} rows, {report.files_added} files")
    url = below(tables, "segments")
    report = run_pipeline(Segments(spark, log, url, log_bytes_min=1), log, url)
    line("segments", f"{report.rows} rows, {report.files_added} files")
    url = below(tables, "verify")
    verify = Verify(spark, log, url)
    report = run_pipeline(verify, log, url)
    is_sound = verify.is_good(report.version)
    line("verify", "the log has no damage" if is_sound else f"{len(verify.audit.findings)} findings")
    url = below(tables, "replayed")
    replay = Replay(spark, log, url)
    report = run_pipeline(replay, log, url)
    replay.close()
    line("replay", f"{report.rows} rows")

    wanted = {**newest(0), **newest(ORDERS)}
    found = {name: rows_of(spark, below(tables, name)) for name in ("latest", "snapshot")}
    for name, rows in found.items():
        line("compare", f"{name} has {len(rows)} keys, {'as written' if rows == wanted else 'NOT AS WRITTEN'}")
    return is_sound and all(rows == wanted for rows in found.values())


def rows_of(spark: SparkSession, url: str) -> dict[bytes, bytes]:
    """Keys and values of a table, without the records that Holdfast keeps."""
    rows = read_table(spark, url, columns="key,value").collect()
    return {bytes(row.key): bytes(row.value) for row in rows}


def main() -> int:
    """Run the example."""
    parser = argparse.ArgumentParser(prog="examples.cluster", description=__doc__.splitlines()[0])
    parser.add_argument("--log", required=True, help="the URL of a new log")
    parser.add_argument("--tables", required=True, help="the URL of an empty place for tables")
    given = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(file=sys.stderr))
    began = time.monotonic()

    def line(name: str, found: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {name:9} {found}", flush=True)

    with tempfile.TemporaryDirectory() as folder, standalone_cluster(Path(folder)) as master:
        line("cluster", f"two workers at {master}")
        spark = session("cluster", master=master, conf={**CONF, "spark.sql.session.timeZone": "UTC"})
        try:
            is_good = run_all(spark, given.log, given.tables, line)
        finally:
            spark.stop()
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
