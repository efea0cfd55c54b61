"""How fast Spark reads the log, beside what Spark itself reads from Parquet: the same rows, one run, one session.

    python benchmarks/spark_scan.py [--rows 1500000] [--cores 2] [--json FILE]

Prints, each the best of three after one warm-up: the scan of a log in large objects and its ratio to Spark's native
Parquet scan of the same rows (target: at least 0.9), the scan of the same rows in 5,000 small objects against 8 large
ones (target: at most 1.5 times), and the newest value per key. The logs are written straight to a directory, without a
service.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from holdfast.commit.batch import (
    FIRST_SLOT,
    Kind,
    LoggedTransaction,
    encode_body,
    encode_object,
    jump,
    object_name,
)
from holdfast.commit.leadership import Frontier, Identity, claim_header, encode_claim
from holdfast.commit.transaction import Write
from holdfast.spark import materialise_latest, session
from holdfast.values import LeaderId, LogId, Slot, Version

REPEATS = 3
BLOB = random.Random(1).randbytes(1 << 16)


def write_log(root: Path, rows: int, objects: int, keys: int) -> str:
    """One reign of ``objects`` equal batches with ``rows`` writes in all; returns the log's URL."""
    (root / "batches").mkdir(parents=True)
    draw = random.Random(2)
    identity = Identity(LeaderId(draw.randbytes(16)), draw.randbytes(16), "http://127.0.0.1:1")
    claim = claim_header(
        Frontier(FIRST_SLOT, None, 1), identity, nonce=bytes(16), log_id=LogId(bytes(16)), wall_ms=1_700_000_000_000
    )
    (root / object_name(FIRST_SLOT)).write_bytes(encode_claim(claim))
    head, slot = claim, jump(FIRST_SLOT)
    for number in range(objects):
        count = rows * (number + 1) // objects - rows * number // objects
        logged = [
            LoggedTransaction(
                Version(head.last_version + 1 + i), f"r{draw.getrandbits(64):016x}", None, (_write(draw, keys),), ()
            )
            for i in range(count)
        ]
        body = encode_body(logged)
        head = replace(
            head,
            kind=Kind.DATA,
            slot=slot,
            prev=head.slot,
            first_version=logged[0].version,
            last_version=logged[-1].version,
            prev_version=head.last_transaction_version,
            durable=head.slot,
            transactions=count,
            body_length=len(body),
            body_crc=zlib.crc32(body),
        )
        (root / object_name(slot)).write_bytes(encode_object(head, body))
        slot = Slot(slot - 1)
    return root.as_uri()


def _write(draw: random.Random, keys: int) -> Write:
    start = draw.randrange(len(BLOB) - 140)
    return Write(b"account/%012d/x" % draw.randrange(keys), BLOB[start : start + draw.randrange(60, 140)])


def best(work: Callable[[], object]) -> float:
    """The shortest of a few runs in seconds, after one that warms up."""
    work()
    times: list[float] = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def scan(frame: DataFrame) -> None:
    """Every column of every row, and nothing else."""
    frame.write.format("noop").mode("overwrite").save()


def log(spark: SparkSession, url: str) -> DataFrame:
    """The log as it is read by default."""
    return spark.read.format("holdfast").option("url", url).load()


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_500_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    rows: int = arguments.rows
    spark = session("holdfast-benchmark", master=f"local[{arguments.cores}]")
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        large = write_log(root / "large", rows, max(1, rows // 7500), keys=rows)
        few = write_log(root / "few", rows // 6, 8, keys=rows)
        tiny = write_log(root / "tiny", rows // 6, 5000, keys=rows)
        megabytes = sum(path.stat().st_size for path in (root / "large").rglob("*") if path.is_file()) / 1e6
        log(spark, large).write.parquet(str(root / "parquet"))
        native = best(lambda: scan(spark.read.parquet(str(root / "parquet"))))
        source = best(lambda: scan(log(spark, large)))
        pruned = best(
            lambda: scan(spark.read.format("holdfast").option("url", large).option("columns", "version").load())
        )
        in_few, in_tiny = best(lambda: scan(log(spark, few))), best(lambda: scan(log(spark, tiny)))
        latest = best(lambda: scan(materialise_latest(spark, large)))
    spark.stop()
    print(f"python {platform.python_version()}, spark {spark.version}, {platform.machine()}, {arguments.cores} cores")
    print(f"{rows} rows, {megabytes:.0f} MB in the log")
    measured = {
        "native Parquet scan": native,
        "log scan": source,
        "log scan, one column": pruned,
        "newest value per key": latest,
    }
    for name, seconds in measured.items():
        print(f"{name:22}{seconds:6.2f} s  {rows / seconds / 1e6:5.2f} M rows/s")
    print(f"the log scan has {native / source:.2f} x the rate of the native Parquet scan")
    print(f"{rows // 6} rows in 8 objects {in_few:.2f} s, in 5000 {in_tiny:.2f} s: {in_tiny / in_few:.2f} x the time")
    if arguments.json:
        few_and_many = {"a sixth of the rows in 8 objects": in_few, "a sixth of the rows in 5000 objects": in_tiny}
        found = {"rows": rows, "megabytes": megabytes, "cores": arguments.cores, "seconds": measured | few_and_many}
        arguments.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
