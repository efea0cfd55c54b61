"""What a load could not leave out: its sort and the way of its rows to Python, beside native Parquet and the load.

    python benchmarks/spark_load_floor.py [--rows 500000] [--cores 2]

Prints wall and processor seconds, of Java and of Python, for each step after a warm-up. Processor seconds say more than
a clock where others use the cores, too. Linux only: it reads ``/proc``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src")]
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])

import pyarrow as pa  # noqa: E402
from pyspark.sql import DataFrame  # noqa: E402

from holdfast.spark import session  # noqa: E402
from holdfast.spark.bulk.load import LoadOptions, load_requests  # noqa: E402

TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds() -> tuple[float, float]:
    """What Java and Python have used so far: this process, and all that descend from it."""
    parents: dict[int, int] = {}
    used: dict[int, tuple[str, float, float]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "stat").read_text()
        except OSError:
            continue
        fields = text[text.rindex(")") + 2 :].split()
        own, reaped = (int(fields[at]) + int(fields[at + 1]) for at in (11, 13))
        parents[int(folder.name)] = int(fields[1])
        used[int(folder.name)] = (text[text.index("(") + 1 : text.rindex(")")], own / TICKS, reaped / TICKS)
    java = python = 0.0
    for process, (name, own, reaped) in used.items():
        above = process
        while above != os.getpid() and above in parents:
            above = parents[above]
        if above != os.getpid():
            continue
        if name == "java":
            java += own
        else:
            # This process has reaped nobody whose work is of interest; the daemon of the tasks has.
            python += own + (0.0 if process == os.getpid() else reaped)
    return java, python


def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """How many rows came to Python."""
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pa.array([batch.num_rows])], ["rows"])


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--cores", type=int, default=2)
    arguments = parser.parse_args()
    spark = session("holdfast-load-floor", master=f"local[{arguments.cores}]")
    spark.sparkContext.setLogLevel("ERROR")
    folder = Path(tempfile.mkdtemp(prefix="holdfast-benchmark-"))
    source = str(folder / "rows")
    spark.range(0, arguments.rows, numPartitions=8).selectExpr(
        "id AS order",
        "format_string('account/%012d', id) AS key",
        "repeat(substr(sha2(string(id), 256), 1, 25), 4) AS value",
    ).write.parquet(source)

    def ordered() -> DataFrame:
        return spark.read.parquet(source).repartitionByRange(8, "order").sortWithinPartitions("order")

    def load() -> None:
        log = tempfile.mkdtemp(dir=folder)
        load_requests(spark, spark.read.parquet(source), Path(log).as_uri(), None, LoadOptions(wave=1000, direct=True))

    steps: dict[str, Callable[[], object]] = {
        "native: read, write Parquet": lambda: (
            spark.read.parquet(source).write.mode("overwrite").parquet(str(folder / "copied"))
        ),
        "read, sort, hand over to Python": lambda: (
            ordered().mapInArrow(counted, "rows long").write.format("noop").mode("overwrite").save()
        ),
        "native: read, sort, write Parquet": lambda: ordered().write.mode("overwrite").parquet(str(folder / "ordered")),
        "load": load,
    }
    try:
        for name, step in steps.items():
            step()
            java, python = processor_seconds()
            begin = time.perf_counter()
            step()
            wall = time.perf_counter() - begin
            java, python = (after - before for after, before in zip(processor_seconds(), (java, python), strict=True))
            print(f"{name:36} wall {wall:6.2f} s, java {java:6.2f} s, python {python:6.2f} s", flush=True)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
