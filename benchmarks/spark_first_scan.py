"""What the first scan of a new session costs, and how much of it is Holdfast's.

    python benchmarks/spark_first_scan.py [--master local-cluster[2,1,1024]] [--rows 100000] [--runs 3]

Each run is a new process with a new session: it waits for the session, does a first job, and then reads twice from
each of two sources, in the given order: the log, and ``plain``, a Python source that returns two rows, or ``rows``, one
that returns the log's own rows from Arrow files. What the first of the two costs is Spark's start of Python on the
driver and on each executor; what the log costs above ``rows`` is Holdfast's. Seconds, medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])

import pyarrow as pa  # noqa: E402
from benchmarks._spark_logs import write_log  # noqa: E402
from pyspark.sql import SparkSession  # noqa: E402
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition  # noqa: E402
from pyspark.sql.types import StructType  # noqa: E402
from rich.console import Console  # noqa: E402

from holdfast.spark import session  # noqa: E402
from holdfast.spark.data_source import HoldfastDataSource  # noqa: E402

ORDERS = ("plain,log", "log,plain", "rows,log", "log,rows")
TASKS = 2


class PlainReader(DataSourceReader):
    """One row from each of two tasks."""

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(2)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        del partition
        yield (1,)


class PlainSource(DataSource):
    """The smallest source in Python."""

    @classmethod
    def name(cls) -> str:
        return "plain"

    def schema(self) -> str:
        return "version long"

    def reader(self, schema: object) -> PlainReader:
        del schema
        return PlainReader()


class RowsReader(DataSourceReader):
    """The rows of an Arrow file from each task."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[object]:
        import pyarrow as pa

        with pa.memory_map(f"{self._folder}/{partition.value}.arrow") as file:
            reader = pa.ipc.open_file(file)
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)


class RowsSource(DataSource):
    """A Python source that has the log's rows as Spark wants them."""

    @classmethod
    def name(cls) -> str:
        return "rows"

    def schema(self) -> str:
        return str(self.options["columns"])

    def reader(self, schema: object) -> RowsReader:
        del schema
        return RowsReader(str(self.options["folder"]))


def write_rows(folder: Path, url: str) -> None:
    """The rows that each task of a scan of the log returns, as Arrow files, and their columns."""
    source = HoldfastDataSource({"url": url})
    schema = source.schema()
    reader = source.reader(schema)
    partitions = reader.partitions()
    assert len(partitions) == TASKS, "as many tasks as the peer has"
    for number, partition in enumerate(partitions):
        batches = list(reader.read(partition))
        with pa.OSFile(str(folder / f"{number}.arrow"), "wb") as file, pa.ipc.new_file(file, batches[0].schema) as to:
            for batch in batches:
                to.write_batch(batch)
    (folder / "columns").write_text(schema.json())


def laps(master: str, order: str, url: str) -> dict[str, float]:
    """Seconds of each step of one session."""
    found: dict[str, float] = {}
    since = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal since
        found[name] = round(time.perf_counter() - since, 2)
        since = time.perf_counter()

    spark: SparkSession = session("first", master=master)
    lap("session")
    spark.range(10).count()
    lap("first job")
    folder = Path(url.removeprefix("file://")).parent
    columns = StructType.fromJson(json.loads((folder / "columns").read_text()))
    options = {
        "plain": {},
        "rows": {"folder": str(folder), "columns": columns.toDDL()},
        "holdfast": {"url": url},
    }
    spark.dataSource.register(PlainSource)
    spark.dataSource.register(RowsSource)
    for number, name in enumerate([*order.split(","), *order.split(",")]):
        source = "holdfast" if name == "log" else name
        spark.read.format(source).options(**options[source]).load().selectExpr("count(version)").first()
        lap(f"{name} {'again' if number > 1 else 'first' if number == 0 else 'second'}")
    spark.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--master", default="local-cluster[2,1,1024]")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--orders", nargs="*", default=ORDERS, choices=ORDERS)
    parser.add_argument("--laps", nargs=2, metavar=("ORDER", "URL"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.laps:
        sys.stdout.write(json.dumps(laps(given.master, *given.laps)) + "\n")
        return
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        url = write_log(Path(folder) / "log", given.rows, 40, keys=given.rows)
        write_rows(Path(folder), url)
        for order in given.orders:
            command = [sys.executable, __file__, "--master", given.master, "--laps", order, url]
            runs = []
            for number in range(given.runs):
                console.print(f"{order}: run {number + 1} of {given.runs}", style="dim")
                done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
                runs.append(json.loads(done.stdout.splitlines()[-1]))
            console.print({name: round(statistics.median(run[name] for run in runs), 2) for name in runs[0]})


if __name__ == "__main__":
    main()
