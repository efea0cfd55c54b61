"""How a read of the log gets faster with cores and partitions, for three logs of the same bytes.

    python benchmarks/spark_scaling.py [--megabytes 512 | --quick] [--cores 1 2] [--partitions 1 2 4 8] [--json FILE]

    even     objects of 1 MiB
    skewed   one object with half of the bytes, and objects of 1 MiB
    small    100,000 objects, or one for each 5 KiB

Each number of cores is a session in a process of its own. Every column of every row is read and thrown away, three
times after a warm-up; a figure is the median. Also printed: the time to plan the read of the small log.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])

from benchmarks._spark_logs import BLOB, write_batches  # noqa: E402

from holdfast.commit.format.transaction import Write  # noqa: E402

RUNS = 3
VALUE_BYTES = 1000
ROW_BYTES = 1080
"""A value of ``VALUE_BYTES`` with its key and what the log keeps of a transaction."""
SMALL_OBJECTS = 100_000
READER = Path(__file__)


def objects(name: str, megabytes: int) -> Iterator[list[Write]]:
    """The batches of one log."""
    draw = random.Random(5)
    rows = megabytes * 2**20 // ROW_BYTES
    match name:
        case "even":
            sizes = [2**20 // ROW_BYTES] * megabytes
        case "skewed":
            sizes = [rows // 2, *([2**20 // ROW_BYTES] * (megabytes // 2))]
        case _:
            count = min(SMALL_OBJECTS, rows // 5)
            sizes = [rows * (number + 1) // count - rows * number // count for number in range(count)]
    for size in sizes:
        starts = [draw.randrange(len(BLOB) - VALUE_BYTES) for _ in range(size)]
        yield [Write(b"key/%08d" % draw.randrange(10**7), BLOB[start : start + VALUE_BYTES]) for start in starts]


def read(url: str, cores: int, partitions: list[int]) -> dict[str, list[float]]:
    """Seconds of each run by the number of partitions, in a session of this process."""
    from holdfast.spark import session

    spark = session("scaling", master=f"local[{cores}]")
    spark.sparkContext.setLogLevel("ERROR")
    found: dict[str, list[float]] = {}
    for count in partitions:
        options = {"url": url, "minPartitions": str(count), "targetPartitionBytes": str(2 * 2**30)}
        for run in range(RUNS + 1):
            began = time.perf_counter()
            spark.read.format("holdfast").options(**options).load().write.format("noop").mode("overwrite").save()
            if run:
                found.setdefault(str(count), []).append(time.perf_counter() - began)
    spark.stop()
    return found


def plan_seconds(url: str) -> float:
    """The median time to plan a read of the log, in this process."""
    from holdfast.spark.option_values import Mode
    from holdfast.spark.options import parse_read_options
    from holdfast.spark.runtime.store_thread import with_store
    from holdfast.spark.source.plan import plan_read

    options = parse_read_options({"url": url}, Mode.BATCH)
    times: list[float] = []
    for _ in range(RUNS):
        began = time.perf_counter()
        with_store(url, lambda store: plan_read(store, options))
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    """Write the logs, run each session and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--quick", action="store_const", dest="megabytes", const=8, help="small logs")
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--read", metavar="URL", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read:
        print(json.dumps(read(given.read, given.cores[0], given.partitions)))
        return
    figures: dict[str, object] = {}
    folder = Path(tempfile.mkdtemp(prefix="holdfast-benchmark-"))
    try:
        for name in ("even", "skewed", "small"):
            url, versions = write_batches(folder / name, objects(name, given.megabytes))
            print(f"{name}: {given.megabytes} MiB in {len(versions)} objects", flush=True)
            if name == "small":
                figures["plan"] = plan_seconds(url)
                print(f"  plan {figures['plan']:.2f} s", flush=True)
            for cores in given.cores:
                done = subprocess.run(
                    [
                        *(sys.executable, str(READER), "--read", url),
                        *("--cores", str(cores), "--partitions", *map(str, given.partitions)),
                    ],
                    check=True,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                runs = json.loads(done.stdout.splitlines()[-1])
                figures[f"{name}, {cores} cores"] = runs
                shown = ", ".join(f"{count}: {statistics.median(times):.2f} s" for count, times in runs.items())
                print(f"  {cores} cores, by partitions: {shown}", flush=True)
            shutil.rmtree(folder / name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if given.json:
        given.json.write_text(json.dumps({"megabytes": given.megabytes, "seconds": figures}, indent=2))


if __name__ == "__main__":
    main()
