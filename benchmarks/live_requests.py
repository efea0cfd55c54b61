"""Commits through Spark and through the service: rate and latency, on a standalone cluster and a real S3 server.

    python benchmarks/live_requests.py [--requests 100000] [--seconds 20] [--quick] [--json FILE]

A request reads two keys and writes two; one in twenty conflicts. The log is on a Ceph RADOS Gateway on this machine;
the stores of requests and verdicts are those of a service with a log in a directory. Everything shares the cores.

    spark, N workers    requests that wait in the store, taken by ``holdfast spark ingest``: from the first verdict to
                        the last; the latency of a micro-batch as the command reports it; and the time from sending
                        one request to its verdict, by one client that sends the next one then
    /v1/commits         the same requests over HTTP as a stream, to a service on the same S3 server
    /v1/commit          the same, each a request of its own, from 64 clients
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(ROOT / "benchmarks")]
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])

from _processes import holdfast, machine  # noqa: E402
from examples.cluster.standalone import CONF, standalone_cluster  # noqa: E402
from tests.rgw import Gateway  # noqa: E402
from tests.spark.live_requests import IngestCommand, LiveClient, depends, key_of  # noqa: E402

from holdfast import PointRead, StoreClient, Transaction, Write, aio  # noqa: E402
from holdfast.client import CommitReceipt  # noqa: E402
from holdfast.client.stores import SparkCommitter, define_spark_stores  # noqa: E402

BUCKET = "live-requests"
MICRO_BATCHES = 5
"""The first one is not counted: it also starts what Spark needs."""
WORKERS = (1, 2)
CLIENTS = 64
WARM_REQUESTS = 2_000


def transaction(number: int, read_version: int) -> Transaction:
    """The request of ``tests.spark.live_requests``, for the client of the log."""
    reads = [key_of(number - 1 if depends(number) else number, 0), key_of(number, 1)]
    writes = [Write(key_of(number, which), b"value of %d" % number) for which in (0, 1)]
    return Transaction(writes, [PointRead(key) for key in reads], None, None, read_version)


def percentile(values: list[float], part: float) -> float:
    """The nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def spark(folder: Path, master: str, log: str, workers: int, requests: int, seconds: float) -> dict[str, float]:
    """One session of the command with this number of workers, of one core each."""
    folder.mkdir()
    with holdfast(folder / "stores", "--set", "view.enabled=false") as served, StoreClient(served.url) as stores:
        define_spark_stores(stores)
        conf = {**CONF, "spark.cores.max": str(workers)}
        if workers == 1:
            conf["spark.scheduler.minRegisteredResourcesRatio"] = "0.5"
        words = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
        command = IngestCommand(
            folder, f"store:{served.url}/requests/spark", log, "--verdicts-to", "verdicts", "--every", "0", "--json",
            "--max-requests", str(requests // MICRO_BATCHES), "--master", master, *words,
        )  # fmt: skip
        client = LiveClient(served.url)
        command.start()
        try:
            client.begin()
            client.send(WARM_REQUESTS)
            assert client.receive(120), command.tail()
            assert command.stop() == 0, command.tail()
            client.send(requests)
            command.start()
            assert client.receive(600), command.tail()
            batches = steps_of(command)
            waits = one_by_one(stores, client.newest, seconds)
            lone = steps_of(command)[len(batches) :]
            assert command.stop() == 0, command.tail()
        finally:
            command.kill()
            client.close()
    whole = [step for step in batches if step["requests_in"] == requests // MICRO_BATCHES]
    taken = sum(step["requests_in"] for step in whole[1:])
    periods = [after["end"] - before["end"] for before, after in pairwise(whole)]
    return {
        "requests a second": taken / sum(periods),
        "requests in a micro-batch": whole[-1]["requests_in"],
        "micro-batch p50 s": percentile(periods, 0.5),
        "of it in the stages p50 s": percentile([step["seconds"] for step in whole[1:]], 0.5),
        "of one request p50 ms": percentile([step["seconds"] * 1000 for step in lone], 0.5),
        "send to verdict p50 ms": percentile(waits, 0.5) * 1000,
        "send to verdict p99 ms": percentile(waits, 0.99) * 1000,
    }


def steps_of(command: IngestCommand) -> list[dict[str, Any]]:
    """What the command has reported of each micro-batch."""
    found: list[dict[str, Any]] = []
    for line in command.output.read_text().splitlines():
        if line.startswith('{"step":'):
            step = json.loads(line)["step"]
            if step["step"] == "micro_batch":
                found.append({**step, "end": datetime.fromisoformat(step["at"]).timestamp()})
    return found


def one_by_one(stores: StoreClient, version: int, seconds: float) -> list[float]:
    """Seconds from sending a request to its verdict; the next one is sent then."""
    waits: list[float] = []
    with SparkCommitter(stores) as committer:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            began = time.monotonic()
            number = len(waits)
            receipt = committer.commit([Write(b"one/%d" % number, b"v")], read_version=version)
            version = receipt.version
            waits.append(time.monotonic() - began)
    return waits


async def over_http(url: str, requests: int, seconds: float) -> dict[str, dict[str, float]]:
    """The same requests to a service: as a stream, then one by one from many clients."""
    async with aio.Client(url) as client:
        version = (await client.version()).version
        began = time.monotonic()
        done = 0
        async for result in client.commits_many(transaction(number, version) for number in range(requests)):
            done += isinstance(result, CommitReceipt)
        spent = time.monotonic() - began
        stream = {"requests a second": requests / spent, "committed": done / requests}
        waits: list[float] = []
        numbers = iter(range(10_000_000, 20_000_000))
        until = time.monotonic() + seconds

        async def commit() -> None:
            while time.monotonic() < until:
                number = next(numbers)
                began = time.monotonic()
                try:
                    await client.commit([Write(b"single/%d" % number, b"v")])
                finally:
                    waits.append(time.monotonic() - began)

        began = time.monotonic()
        await asyncio.gather(*(commit() for _ in range(CLIENTS)))
        spent = time.monotonic() - began
    single = {
        "requests a second": len(waits) / spent,
        "p50 ms": percentile(waits, 0.5) * 1000,
        "p99 ms": percentile(waits, 0.99) * 1000,
    }
    return {"/v1/commits, one stream": stream, f"/v1/commit, {CLIENTS} clients": single}


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """A master and two workers of one core each."""
    folder.mkdir()
    with standalone_cluster(folder) as master:
        yield master


def main() -> None:
    """Run all lanes and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each lane that measures latency")
    parser.add_argument("--quick", action="store_true", help="small numbers")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    requests, seconds = (10_000, 5.0) if given.quick else (given.requests, given.seconds)
    figures: dict[str, dict[str, float]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-benchmark-")))
        gateway = stack.enter_context(Gateway(folder / "rgw"))
        os.environ.update(gateway.environment())
        gateway.create_bucket(BUCKET)
        master = stack.enter_context(cluster(folder / "cluster"))
        for workers in WORKERS:
            name = f"spark, {workers} worker{'s' if workers > 1 else ''}"
            log = gateway.url(BUCKET, prefix=f"spark-{workers}")
            show(name, figures, spark(folder / f"spark-{workers}", master, log, workers, requests, seconds))
        with holdfast(
            folder / "served", "--set", "view.enabled=false", log_url=gateway.url(BUCKET, prefix="served")
        ) as served:
            for name, found in asyncio.run(over_http(served.url, requests, seconds)).items():
                show(name, figures, found)
    if given.json:
        given.json.write_text(json.dumps({"machine": machine(), "requests": requests, "figures": figures}, indent=2))


def show(name: str, figures: dict[str, dict[str, float]], found: dict[str, float]) -> None:
    """Print and keep the figures of one lane."""
    figures[name] = found
    print(f"{name}: " + ", ".join(f"{label} {value:,.2f}" for label, value in found.items()), flush=True)


if __name__ == "__main__":
    main()
