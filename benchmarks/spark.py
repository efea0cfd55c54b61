"""The targets of the Spark pipeline, measured in one run: the same data, the same cores, one session.

    python benchmarks/spark.py [--rows 1500000 | --quick] [--cores 2] [--json FILE] [--plot FILE]
                               [--only scan,columns,small,stream,sink,micro,resolve,load,latest,tables]

What is compared is run in pairs, one after the other, several times, and a ratio is the median of the pairs' ratios:
on shared cores a single run says little. Each figure is printed with the target that it is held to; a target that is
missed is printed as missed and fails nothing.

    scan     the log through the source, beside Spark's native Parquet scan of the same rows
    columns  the sum of one 8-byte column of a table with wide values, next to Spark's native scan of its files
    small    5,000 objects of about 10 KB, beside the same rows in 8 objects
    stream   from an object's name appearing to its micro-batch done, default trigger, local checkpoint, noop sink
    sink     rows to transactions through a service on a directory and on the S3 test server: what it costs to fix
             them before the first is sent (``--sink-share 1`` writes all rows)
    micro    small micro-batches into the sink, on both
    resolve  commit requests to verdicts, a quarter of them and all, and the kernel alone
    load     a quarter of the rows and all to batch objects by the four stages, next to native Parquet in the same
             order; and what it costs to fix the rows first, as for an input that may be another one each time
    latest   the newest value of every key as a Delta table, in 4 increments, beside deltalake's merge on the driver
    tables   the same table created, 1 % and 50 % of its keys changed, next to deltalake's merge and an overwrite by
             Delta's own writer, with a quarter of the keys and with all; then read by each engine

``--quick`` is a hundredth of the rows: whether it runs, not how fast.

A further measurement is a function in ``MEASUREMENTS`` that returns its findings.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])

import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from benchmarks._spark_latest import INCREMENTS, LatestRace  # noqa: E402
from benchmarks._spark_logs import Growing, write_log  # noqa: E402
from benchmarks._spark_tables import PHASES, WAYS, TableLife  # noqa: E402
from deltalake import write_deltalake  # noqa: E402
from pyspark.sql import DataFrame, SparkSession  # noqa: E402
from tests.rgw import Gateway  # noqa: E402

from holdfast.spark import read_table, session  # noqa: E402
from holdfast.spark.bulk.load import LoadOptions, LoadReport, load_requests  # noqa: E402
from holdfast.spark.bulk.requests import RequestFormat, stage  # noqa: E402
from holdfast.spark.bulk.resolve import memory_needed, resolve_requests  # noqa: E402

PAIRS = 5
SCAN_PAIRS = 15
LATEST_PAIRS = 3
LOAD_PAIRS = 3
SINK_PAIRS = 3
TABLE_RUNS = 3
QUICK_ROWS = 15_000
COLUMN_FILES = 4
COLUMN_VALUE_BYTES = 250
STREAM_OBJECTS = 40
STREAM_WARM = 8
SINK_SHARE = 15
"""The sink writes one in so many of the rows: it is measured as a rate."""
MICRO_WARM, MICRO_BATCHES, MICRO_ROWS = 5, 30, 20


@dataclass(frozen=True)
class Finding:
    """One line of the table. ``target`` is a bound on ``value`` and its direction, None where there is none."""

    what: str
    value: float
    unit: str
    target: float | None = None
    at_least: bool = False
    detail: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is kept."""
        if self.target is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target


@dataclass(frozen=True)
class Bench:
    """What every measurement works with."""

    spark: SparkSession
    root: Path
    rows: int
    sink_share: int = SINK_SHARE


def timed(work: Callable[[], object]) -> float:
    """Seconds of one run."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def in_pairs(one: Callable[[], object], other: Callable[[], object], count: int = PAIRS) -> tuple[float, float, float]:
    """Both run in turn after a warm-up of each: their medians, and the median of the pairs' ratios (one to other)."""
    one()
    other()
    pairs = [(timed(one), timed(other)) for _ in range(count)]
    ones, others = zip(*pairs, strict=True)
    return statistics.median(ones), statistics.median(others), statistics.median(a / b for a, b in pairs)


def scan(frame: DataFrame) -> None:
    """Every column of every row, and nothing else."""
    frame.write.format("noop").mode("overwrite").save()


def log(spark: SparkSession, url: str) -> DataFrame:
    """The log as it is read by default."""
    return spark.read.format("holdfast").option("url", url).load()


def measure_scan(bench: Bench) -> list[Finding]:
    """The log beside native Parquet."""
    spark, rows = bench.spark, bench.rows
    url = write_log(bench.root / "large", rows, max(1, rows // 7500), keys=rows)
    parquet = str(bench.root / "parquet")
    log(spark, url).write.parquet(parquet)
    native, own, ratio = in_pairs(lambda: scan(spark.read.parquet(parquet)), lambda: scan(log(spark, url)), SCAN_PAIRS)
    unverified = spark.read.format("holdfast").option("url", url).option("verify", "false")
    unchecked = statistics.median(timed(lambda: scan(unverified.load())) for _ in range(3))
    one_column = spark.read.format("holdfast").option("url", url).option("columns", "version")
    pruned = statistics.median(timed(lambda: scan(one_column.load())) for _ in range(3))
    return [
        Finding(
            "scan of the log, rate to Spark's native Parquet",
            ratio,
            "x",
            target=0.9,
            at_least=True,
            detail=f"{own:.2f} s ({rows / own / 1e6:.2f} M rows/s) and {native:.2f} s",
        ),
        Finding("the same without verifying bodies", unchecked, "s"),
        Finding("the same, one column", pruned, "s"),
    ]


def measure_columns(bench: Bench) -> list[Finding]:
    """One narrow column of a wide table: what is not asked for is neither fetched nor decoded."""
    spark, table = bench.spark, bench.root / "wide"
    per_file = max(1, bench.rows // COLUMN_FILES)
    for number in range(COLUMN_FILES):
        first = number * per_file
        rows = pa.table(
            {
                "key": pa.array([b"key/%012d" % (first + each) for each in range(per_file)], pa.binary()),
                "value": pa.array([os.urandom(COLUMN_VALUE_BYTES) for _ in range(per_file)], pa.binary()),
                "version": pa.array(range(first, first + per_file), pa.int64()),
            }
        )
        write_deltalake(str(table), rows, mode="append")
    total = per_file * COLUMN_FILES

    def native() -> None:
        assert spark.read.parquet(str(table)).selectExpr("sum(version)").first() == (total * (total - 1) // 2,)

    def own() -> None:
        frame = read_table(spark, table.as_uri(), columns="version")
        assert frame.selectExpr("sum(version)").first() == (total * (total - 1) // 2,)

    seconds, plain, ratio = in_pairs(own, native)
    detail = f"{seconds:.2f} s and {plain:.2f} s, {total} rows in {COLUMN_FILES} files"
    return [Finding("one column of a table, time to native Parquet", ratio, "x", target=2.0, detail=detail)]


def measure_small(bench: Bench) -> list[Finding]:
    """Many small objects beside few large ones."""
    spark, rows = bench.spark, bench.rows // 6
    few = write_log(bench.root / "few", rows, 8, keys=rows)
    tiny = write_log(bench.root / "tiny", rows, 5000, keys=rows)
    small, large, ratio = in_pairs(lambda: scan(log(spark, tiny)), lambda: scan(log(spark, few)))
    detail = f"{small:.2f} s and {large:.2f} s for {rows} rows"
    return [Finding("5,000 small objects, time to 8 large ones", ratio, "x", target=1.5, detail=detail)]


def measure_stream(bench: Bench) -> list[Finding]:
    """From visible to done, one object at a time."""
    spark = bench.spark
    growing = Growing(bench.root / "growing")
    growing.add(20)
    query = (
        spark.readStream.format("holdfast")
        .load((bench.root / "growing").as_uri())
        .writeStream.format("noop")
        .option("checkpointLocation", str(bench.root / "checkpoint"))
        .start()
    )
    query.processAllAvailable()
    times: list[float] = []
    for number in range(STREAM_WARM + STREAM_OBJECTS):
        done = len(query.recentProgress)
        begin = time.perf_counter()
        growing.add(20)
        wanted = number + 2
        commits = bench.root / "checkpoint" / "commits" / str(wanted - 1)
        while not commits.exists():
            time.sleep(0.001)
            assert query.isActive and done >= 0, "the query has ended"
        if number >= STREAM_WARM:
            times.append((time.perf_counter() - begin) * 1000)
    query.stop()
    quantiles = statistics.quantiles(times, n=20)
    detail = f"p95 {quantiles[18]:.0f} ms, {len(times)} objects of 20 transactions, trigger as fast as possible"
    return [
        Finding("stream, object visible to micro-batch done, p50", statistics.median(times), "ms", 200, detail=detail)
    ]


@contextmanager
def served(bench: Bench, log: str, environment: Mapping[str, str] = MappingProxyType({})) -> Iterator[str]:
    """The address of a service on ``log``."""
    command = ["-m", "holdfast.cli.main", "serve", "--log", log, "--listen", "127.0.0.1:0", "--init"]
    service = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=bench.root,
        env={**os.environ, **environment},
    )
    try:
        assert service.stdout is not None
        found = re.match(r"ready listen=(\S+) ", service.stdout.readline())
        assert found is not None, "the service starts"
        threading.Thread(target=service.stdout.read, daemon=True).start()
        yield f"http://{found[1]}"
    finally:
        service.terminate()
        service.wait(30)


@contextmanager
def logs(bench: Bench) -> Iterator[dict[str, tuple[str, Mapping[str, str]]]]:
    """A directory and the S3 test server, each with what its service needs in its environment."""
    with Gateway(bench.root / "gateway") as gateway:
        gateway.create_bucket("sink")
        yield {
            "a directory": ((bench.root / "served").as_uri(), {}),
            "S3": (gateway.url("sink"), {**gateway.environment(), "HOLDFAST_VIEW__ENABLED": "true"}),
        }


def measure_sink(bench: Bench) -> list[Finding]:
    """Rows to transactions through a service on the same cores."""
    spark, rows = bench.spark, max(1, bench.rows // bench.sink_share)
    frame = spark.range(0, rows, numPartitions=2).selectExpr(
        "format_string('account/%012d', id) AS key", "repeat('v', 100) AS value"
    )
    data = str(bench.root / "rows")
    frame.write.parquet(data)
    source = spark.read.parquet(data)
    found: list[Finding] = []

    def write(url: str, direct: str = "false") -> None:
        writer = source.write.format("holdfast").mode("append").option("url", url)
        writer.option("application", f"benchmark-{direct}").option("direct", direct).save()

    def native() -> None:
        source.write.mode("overwrite").parquet(str(bench.root / "copied"))

    native()
    plain = statistics.median(timed(native) for _ in range(3))
    with logs(bench) as places:
        for name, (log, environment) in places.items():
            with served(bench, log, environment) as url:
                own, direct, price = in_pairs(partial(write, url), partial(write, url, "true"), SINK_PAIRS)
            rate = f"{rows} rows, {own:.2f} s and {direct:.2f} s with direct=true; {plain:.2f} s to native Parquet"
            found += [
                Finding(f"sink, a transaction a row, log in {name}", rows / own / 1000, "k rows/s", detail=rate),
                Finding(
                    "the same, time to direct=true", price, "x", 1.15, detail="rows are fixed before the first is sent"
                ),
            ]
    return found


def measure_micro(bench: Bench) -> list[Finding]:
    """Small micro-batches into the sink, one after the other."""
    folder = bench.root / "small"
    folder.mkdir()
    for number in range(MICRO_WARM + MICRO_BATCHES):
        keys = [b"key/%06d" % (number * MICRO_ROWS + each) for each in range(MICRO_ROWS)]
        pq.write_table(pa.table({"key": keys, "value": [bytes(100)] * MICRO_ROWS}), folder / f"{number:04}.parquet")
    found: list[Finding] = []
    with logs(bench) as places:
        for name, (log, environment) in places.items():
            with served(bench, log, environment) as url:
                times = {direct: _micro_batches(bench, folder, url, direct) for direct in ("false", "true")}
            fixed, plain = (statistics.median(times[direct]) for direct in ("false", "true"))
            detail = f"{plain:.0f} ms with direct=true, {MICRO_BATCHES} micro-batches of {MICRO_ROWS} rows"
            found.append(Finding(f"micro-batch into the sink, p50, log in {name}", fixed, "ms", detail=detail))
    return found


def _micro_batches(bench: Bench, folder: Path, url: str, direct: str) -> list[float]:
    """Milliseconds of each micro-batch after the first ones."""
    checkpoint = bench.root / f"checkpoint-{abs(hash(url))}-{direct}"
    query = (
        bench.spark.readStream.schema("key binary, value binary")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folder))
        .writeStream.format("holdfast")
        .options(url=url, application=f"micro-{direct}", direct=direct, checkpointLocation=str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    times = [float(one.durationMs["addBatch"]) for one in query.recentProgress if one.numInputRows]
    assert len(times) == MICRO_WARM + MICRO_BATCHES, "a micro-batch for each file"
    return times[MICRO_WARM:]


def measure_latest(bench: Bench) -> list[Finding]:
    """The pipeline beside a merge by the table library."""
    url = write_log(bench.root / "changes", bench.rows, max(4, bench.rows // 7500), keys=max(1, bench.rows // 3))
    race = LatestRace(bench.spark, url, bench.root, bench.rows)
    own, merged, ratio = in_pairs(race.by_pipeline, race.by_merge, LATEST_PAIRS)
    assert race.same_table(), "both ways make one table"
    detail = f"{own:.2f} s and {merged:.2f} s, {bench.rows} changes in {INCREMENTS} increments"
    return [Finding("latest, time to deltalake merge on the driver", ratio, "x", target=1.0, detail=detail)]


def measure_tables(bench: Bench) -> list[Finding]:
    """A table through its life, small and four times as large, and the time that each engine takes to read it."""
    found: list[Finding] = []
    for keys in (bench.rows // 8, bench.rows // 2):
        life = TableLife(bench.spark, bench.root, keys)
        seconds: dict[tuple[str, int], list[float]] = {(way, n): [] for way in WAYS for n in range(len(PHASES))}
        for _ in range(1 + TABLE_RUNS):
            life.begin()
            for phase in range(len(PHASES)):
                for way in WAYS:
                    seconds[way, phase].append(timed(partial(life.advance, way, phase)))
        assert life.is_one_table(), "every way makes one table"
        for phase, name in enumerate(PHASES):
            own, *others = (seconds[way, phase][1:] for way in WAYS)
            for way, peer in zip(("deltalake merge", "overwrite by Delta's writer"), others, strict=True):
                ratio = statistics.median(a / b for a, b in zip(own, peer, strict=True))
                detail = f"{statistics.median(own):.2f} s and {statistics.median(peer):.2f} s, {keys} keys"
                found.append(Finding(f"table, {name}, time to {way}", ratio, "x", detail=detail))
        both = {way: life.readers(way) for way in ("pipeline", "writer")}
        for engine in both["pipeline"]:
            own_read, peer_read = both["pipeline"][engine], both["writer"][engine]
            assert own_read() == peer_read(), "every engine reads the same values"
            own_time, peer_time, ratio = in_pairs(own_read, peer_read)
            detail = f"{own_time:.3f} s and {peer_time:.3f} s, {keys} keys"
            found.append(Finding(f"table read by {engine}, time to writer's table", ratio, "x", detail=detail))
    return found


def bulk_requests(bench: Bench, requests: int) -> str:
    """Requests of three reads, a tenth of them ranges, and two writes over a million keys, as Parquet."""
    path = str(bench.root / f"requests-{requests}")
    keys = "format_string('account/%012d', cast(pmod(xxhash64(id, {0}), 1000000) AS bigint))"
    ends = "format_string('account/%012d', cast(pmod(xxhash64(id, {0}), 1000000) + 50 AS bigint))"
    end = f"IF(id % 10 < 3, {ends.format(0)}, CAST(NULL AS string))"
    reads = ", ".join(
        f"named_struct('key', {keys.format(n)}, 'end', {end if n == 0 else 'CAST(NULL AS string)'})" for n in range(3)
    )
    writes = ", ".join(f"named_struct('key', {keys.format(n)}, 'value', 'value')" for n in (0, 7))
    rows = bench.spark.range(0, requests, numPartitions=8).selectExpr(
        "id AS order",
        f"array({writes}) AS operations",
        f"array({reads}) AS preconditions",
        "concat('#', greatest(0, id - pmod(xxhash64(id), 2000))) AS read_version",
    )
    rows.write.parquet(path)
    return path


def measure_resolve(bench: Bench) -> list[Finding]:
    """Requests to verdicts: a quarter of them and all."""
    found: list[Finding] = []
    whole = bench.rows * 4 // 3
    for requests in (whole // 4, whole):
        path = str(bench.root / f"requests-{requests}")
        if not Path(path).exists():
            bulk_requests(bench, requests)
        begin = time.perf_counter()
        staged = stage(bench.spark.read.parquet(path), RequestFormat(), partitions=8)
        packed = time.perf_counter() - begin
        resolution = resolve_requests(staged, 100_000_000)
        seconds = time.perf_counter() - begin
        staged.release()
        detail = f"{staged.requests} requests, {staged.items} items, packing {packed:.1f} s, "
        detail += f"at most {memory_needed(staged) / 2**20:.0f} MiB to judge"
        if requests < whole:
            found.append(Finding("resolve, a quarter, the first job of a session", seconds, "s", detail=detail))
            continue
        found.append(Finding("resolve", seconds, "s", 20, detail=detail))
        rate = staged.requests / resolution.kernel_seconds / 1e6
        found.append(Finding("resolve, its kernel on one core", rate, "M/s", 4, at_least=True))
    return found


def measure_load(bench: Bench) -> list[Finding]:
    """Rows to batch objects, next to native Parquet in the same order: a quarter of the rows, and all."""
    return [finding for rows in (bench.rows // 4, bench.rows) for finding in _load_pairs(bench, rows)]


def _load_pairs(bench: Bench, rows: int) -> list[Finding]:
    spark = bench.spark
    frame = spark.range(0, rows, numPartitions=8).selectExpr(
        "id AS order",
        "format_string('account/%012d', id) AS key",
        "repeat(substr(sha2(string(id), 256), 1, 25), 4) AS value",
    )
    source = str(bench.root / f"rows-{rows}")
    frame.write.parquet(source)
    reports: list[LoadReport] = []

    def load(*, direct: bool = True) -> None:
        log = (bench.root / f"log-{rows}-{len(reports)}").as_uri()
        options = LoadOptions(request_format=RequestFormat(), wave=1000, direct=direct)
        reports.append(load_requests(spark, spark.read.parquet(source), log, None, options))

    def in_order() -> None:
        ordered = spark.read.parquet(source).repartitionByRange(8, "order").sortWithinPartitions("order")
        ordered.write.mode("overwrite").parquet(str(bench.root / "ordered"))

    def plain() -> None:
        spark.read.parquet(source).write.mode("overwrite").parquet(str(bench.root / "copied"))

    own, ordered, ratio = in_pairs(load, in_order, LOAD_PAIRS)
    last = sorted(reports[1:], key=lambda report: report.seconds)[LOAD_PAIRS // 2]
    plain()
    unordered = statistics.median(timed(plain) for _ in range(LOAD_PAIRS))
    detail = f"{own:.2f} s ({rows / own / 1000:.0f} k rows/s: sort and pack {last.stage_seconds:.1f} s, verdicts "
    detail += f"{last.resolve_seconds:.1f} s, write {last.write_seconds:.1f} s, {last.batches} batches)"
    detail += f" and {ordered:.2f} s; {unordered:.2f} s without an order"
    fixed, direct, price = in_pairs(lambda: load(direct=False), load, LOAD_PAIRS)
    return [
        Finding(f"load of {rows} rows, time to native write in order", ratio, "x", 2.5, detail=detail),
        Finding(
            f"load of {rows} rows, rows fixed first", price, "x", detail=f"{fixed:.2f} s and {direct:.2f} s direct"
        ),
    ]


MEASUREMENTS: dict[str, Callable[[Bench], list[Finding]]] = {
    "scan": measure_scan,
    "columns": measure_columns,
    "small": measure_small,
    "stream": measure_stream,
    "sink": measure_sink,
    "micro": measure_micro,
    "resolve": measure_resolve,
    "load": measure_load,
    "latest": measure_latest,
    "tables": measure_tables,
}


def line(one: Finding) -> str:
    """A finding as a line of the table."""
    target = ""
    if one.target is not None:
        sign = ">=" if one.at_least else "<="
        target = f"{sign} {one.target:g} {one.unit}: {'met' if one.met else 'missed'}"
    return f"{one.what:52} {one.value:8.2f} {one.unit:9} {target:22} {one.detail}".rstrip()


def plot(findings: list[Finding], path: Path) -> None:
    """Each target as a bar: how far the measured value is from it, 1 being the target."""
    import matplotlib.pyplot as plt

    held = [one for one in findings if one.target is not None]
    figure, axes = plt.subplots(figsize=(9, 0.6 * len(held) + 1.2), layout="constrained")
    shares = [one.value / one.target if one.at_least else one.target / one.value for one in held if one.target]
    axes.barh([one.what for one in held], shares, color=["tab:green" if one.met else "tab:red" for one in held])
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xlabel("measured to target, more is better")
    axes.invert_yaxis()
    figure.savefig(path)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_500_000)
    parser.add_argument("--quick", action="store_const", dest="rows", const=QUICK_ROWS, help="few rows")
    parser.add_argument(
        "--sink-share", type=int, default=SINK_SHARE, metavar="N", help="the sink writes 1/N of the rows"
    )
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--only", default=",".join(MEASUREMENTS), help="names of measurements, with commas")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    spark = session("holdfast-benchmark", master=f"local[{arguments.cores}]")
    spark.sparkContext.setLogLevel("ERROR")
    findings: list[Finding] = []
    machine = f"python {platform.python_version()}, spark {spark.version}, {platform.machine()}, {os.cpu_count()} cores"
    print(f"{machine}, {arguments.rows} rows", flush=True)
    for name in arguments.only.split(","):
        folder = Path(tempfile.mkdtemp(prefix="holdfast-benchmark-"))
        try:
            for finding in MEASUREMENTS[name](Bench(spark, folder, arguments.rows, arguments.sink_share)):
                findings.append(finding)
                print(line(finding), flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    spark.stop()
    if arguments.json:
        rows = [asdict(one) | {"met": one.met} for one in findings]
        arguments.json.write_text(json.dumps({"machine": machine, "rows": arguments.rows, "findings": rows}, indent=2))
    if arguments.plot:
        plot(findings, arguments.plot)


if __name__ == "__main__":
    main()
