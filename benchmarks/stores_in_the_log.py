"""Message stores that live in the log, against stores on the leader's disk: rates, latencies, cost, take-over.

    python benchmarks/stores_in_the_log.py [--seconds 5] [--rounds 3] [--backlog 1000000] [--json FILE]

Places: a log in a directory with its stores on the disk, and in the log; a log on the S3 server on this machine, and on
the same one with 40 ms injected (median; p99 126 ms). In each place, with bodies of 100 B, by one asyncio client:
publishes that wait one by one, in windows of 256 and 4,096, in batches of 100, and messages consumed with a prefetch of
4,096. The two places in the directory take turns, round by round; figures are medians of the rounds. Bytes and PUTs a
message are those of the window of 4,096, from the service's metrics.

Take-over: a standby with the backlog; the leader is killed; until the stores are open, asked every 10 ms, and the first
message of the backlog has arrived. Without files: the same by a process that did not stand by and has an empty
directory, from a checkpoint.

Targets are printed, and a missed one does not fail: on ``file:`` at least half of ``disk`` for windows and batches; at
40 ms at least 50,000 messages a second; take-over within 3 s; fewer than one PUT for 1,000 messages.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

from _processes import Served, free_port, holdfast, machine
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.rgw import Gateway

from holdfast.aio import StoreClient
from holdfast.client.stores import Message, PublisherOptions
from holdfast.testing.fault_proxy import Latency
from holdfast.testing.fault_proxy_process import FaultProxyProcess

LATENCY = Latency(median_ms=40.0, p99_ms=126.0)
BODY = b"x" * 100
BATCH = 100
PREFETCH = 4_096
DISK, LOG = "file, disk", "file, log"
FAR = "S3, 40 ms"
IN_LOG = ("--set", "stores.durability=log")
COUNTERS = {"bytes": "holdfast_batch_bytes_total", "puts": "holdfast_puts_total"}


@dataclass(slots=True)
class Figure:
    """One lane in one place: messages a second of each round, and how long one waited."""

    rates: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


def percentile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else 0.0


# -- lanes ------------------------------------------------------------------------------------------------------------


async def one_by_one(client: StoreClient, store: str, seconds: float) -> tuple[int, list[float]]:
    waits: list[float] = []
    end = time.perf_counter() + seconds
    async with client.publisher(store) as publisher:
        while (began := time.perf_counter()) < end:
            await publisher.publish(BODY)
            waits.append(time.perf_counter() - began)
    return len(waits), waits


def window(size: int) -> Callable[[StoreClient, str, float], Awaitable[tuple[int, list[float]]]]:
    async def lane(client: StoreClient, store: str, seconds: float) -> tuple[int, list[float]]:
        waits: list[float] = []
        clock = time.perf_counter
        end = clock() + seconds
        async with client.publisher(store, options=PublisherOptions(window_messages=size)) as publisher:
            while (began := clock()) < end:
                sent = await publisher.send(BODY)
                sent.on_done = lambda _, since=began: waits.append(clock() - since)
            await publisher.flush()
        return len(waits), waits

    return lane


async def batches(client: StoreClient, store: str, seconds: float) -> tuple[int, list[float]]:
    waits: list[float] = []
    end = time.perf_counter() + seconds
    async with client.publisher(store) as publisher:
        while (began := time.perf_counter()) < end:
            await publisher.publish_batch([Message(BODY)] * BATCH)
            waits.append(time.perf_counter() - began)
    return len(waits) * BATCH, waits


async def consume(client: StoreClient, store: str, seconds: float) -> tuple[int, list[float]]:
    """What the lanes before it have published."""
    seen = 0
    end = time.perf_counter() + seconds
    async with client.subscriber(store, "kept") as subscriber:
        while time.perf_counter() < end:
            message = await subscriber.receive(timeout=0.5)
            if message is None:
                break
            seen += 1
    return seen, []


LANES: dict[str, Callable[[StoreClient, str, float], Awaitable[tuple[int, list[float]]]]] = {
    "one": one_by_one,
    "window 256": window(256),
    "window 4096": window(4096),
    "batches of 100": batches,
    "consume": consume,
}


async def run_lane(server: Served, lane: str, store: str, seconds: float) -> tuple[float, list[float]]:
    async with StoreClient(server.url) as client:
        await client.define_store(store)
        await client.define_durable(store, "kept", {"type": "shared", "prefetch": PREFETCH})
        began = time.perf_counter()
        count, waits = await LANES[lane](client, store, seconds)
        return count / (time.perf_counter() - began), waits


def counters(server: Served) -> dict[str, float]:
    text = server.get("/metrics")
    found = {
        name: re.findall(rf"^{metric}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE) for name, metric in COUNTERS.items()
    }
    return {name: sum(map(float, values)) for name, values in found.items()}


@dataclass(slots=True)
class Results:
    lanes: dict[tuple[str, str], Figure] = field(default_factory=dict)
    cost: dict[str, dict[str, float]] = field(default_factory=dict)
    """By place: bytes and PUTs a message in the window of 4,096."""
    takeover_s: dict[str, float] = field(default_factory=dict)

    def take(self, place: str, server: Served, lane: str, store: str, seconds: float) -> None:
        before = counters(server)
        rate, waits = asyncio.run(run_lane(server, lane, store, seconds))
        after = counters(server)
        figure = self.lanes.setdefault((place, lane), Figure())
        figure.rates.append(rate)
        figure.p50_ms.append(percentile(waits, 0.5) * 1000)
        figure.p99_ms.append(percentile(waits, 0.99) * 1000)
        if lane == "window 4096":
            self.cost[place] = {name: (after[name] - before[name]) / max(1, len(waits)) for name in COUNTERS}


# -- take-over --------------------------------------------------------------------------------------------------------


def serve(folder: Path, url: str, port: int, *flags: str) -> subprocess.Popen[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "server.log").open("ab") as output:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "holdfast.cli.main", "serve", "--log", url, "--listen", f"127.0.0.1:{port}"),
                *("--set", f"stores.directory={folder / 'stores'}", *flags),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )


def answers(port: int) -> bool:
    """Whether the stores are open. While they are not, a client waits a second before it asks again."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/v1/stores")
        return connection.getresponse().status == HTTPStatus.OK
    except OSError:
        return False
    finally:
        connection.close()


def wait_until_open(port: int) -> None:
    while not answers(port):
        time.sleep(0.01)


async def first_delivery(port: int, store: str) -> None:
    await asyncio.to_thread(wait_until_open, port)
    async with StoreClient(f"http://127.0.0.1:{port}") as client, client.subscriber(store, "kept") as subscriber:
        assert await subscriber.receive(timeout=120) is not None, "the backlog is there"


async def fill(port: int, store: str, count: int) -> None:
    async with StoreClient(f"http://127.0.0.1:{port}") as client:
        await client.define_store(store)
        await client.define_durable(store, "kept", {"type": "shared"})
        async with client.publisher(store, options=PublisherOptions(window_messages=8_192)) as publisher:
            for _ in range(count):
                await publisher.send(BODY)
            await publisher.flush()


def wait_for(folder: Path, word: str, seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while word not in (folder / "server.log").read_text(errors="replace"):
        assert time.monotonic() < end, (folder / "server.log").read_text()[-2_000:]
        time.sleep(0.01)


def take_over(place: Path, backlog: int, results: Results, console: Console) -> None:
    """In a directory: what counts is what happens after the claim, which does not depend on the store."""
    url = (place / "log").as_uri()
    quick = ("--set", "stores.checkpoint_seconds=5")
    ports = [free_port() for _ in range(3)]
    leader = serve(place / "a", url, ports[0], "--init", *IN_LOG, *quick)
    others: list[subprocess.Popen[bytes]] = []
    try:
        wait_for(place / "a", "ready")
        asyncio.run(fill(ports[0], "orders", backlog))
        console.print(f"backlog of {backlog:,} messages", highlight=False)
        others.append(serve(place / "b", url, ports[1], "--standby", *quick))
        wait_for(place / "b", "standby")
        time.sleep(30)  # a checkpoint is made, and the standby has followed
        began = time.monotonic()
        leader.send_signal(signal.SIGKILL)
        asyncio.run(first_delivery(ports[1], "orders"))
        results.takeover_s["standby"] = time.monotonic() - began
        others[0].send_signal(signal.SIGKILL)
        others[0].wait()
        began = time.monotonic()
        others.append(serve(place / "c", url, ports[2], "--take-over", *quick))
        asyncio.run(first_delivery(ports[2], "orders"))
        results.takeover_s["without files"] = time.monotonic() - began
    finally:
        for process in (leader, *others):
            process.kill()
            process.wait()


# -- the whole --------------------------------------------------------------------------------------------------------


def report(results: Results, console: Console) -> list[str]:
    table = Table()
    for column in ("place", "lane", "msg/s", "min-max", "p50 ms", "p99 ms"):
        table.add_column(column, justify="left" if column in ("place", "lane") else "right")
    for (place, lane), figure in results.lanes.items():
        p50, p99 = (f"{statistics.median(each):.2f}" for each in (figure.p50_ms, figure.p99_ms))
        spread = f"{min(figure.rates):,.0f}-{max(figure.rates):,.0f}"
        table.add_row(place, lane, f"{figure.rate:,.0f}", spread, p50, p99)
    console.print(table)
    lines = [
        f"{place}: {cost['bytes']:.0f} bytes and {cost['puts']:.5f} PUTs a message in the window of 4,096"
        for place, cost in results.cost.items()
        if place != DISK
    ]
    lines += [f"take-over, {how}: {seconds:.2f} s to the first message" for how, seconds in results.takeover_s.items()]
    for lane in ("window 256", "window 4096", "batches of 100"):
        part = results.lanes[LOG, lane].rate / results.lanes[DISK, lane].rate
        lines.append(f"{lane}: {part:.2f} of the rate on disk, target 0.50: {_word(part >= 0.5)}")
    if (FAR, "window 4096") in results.lanes:
        best = max(figure.rate for (place, _), figure in results.lanes.items() if place == FAR)
        lines.append(f"{FAR}: {best:,.0f} messages a second at most, target 50,000: {_word(best >= 50_000)}")
        puts = results.cost[FAR]["puts"]
        lines.append(f"{FAR}: {puts * 1000:.2f} PUTs for 1,000 messages, target 1: {_word(puts < 0.001)}")
    if "standby" in results.takeover_s:
        seconds = results.takeover_s["standby"]
        lines.append(f"take-over: {seconds:.2f} s, target 3 s: {_word(seconds < 3)}")
    return lines


def _word(met: bool) -> str:
    return "PASS" if met else "miss"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backlog", type=int, default=1_000_000, help="0 leaves the take-over out")
    parser.add_argument("--no-s3", action="store_true", help="only the directory")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    console = Console()
    about = machine()
    console.print("  ".join(f"{name} {value}" for name, value in about.items()), highlight=False)
    results = Results()
    folder = Path(tempfile.mkdtemp(dir=Path.cwd(), prefix=".bench-"))
    try:
        with ExitStack() as stack:
            disk = stack.enter_context(holdfast(folder / "disk"))
            log = stack.enter_context(holdfast(folder / "log", *IN_LOG))
            for number in range(given.rounds):
                for lane in LANES:
                    for place, server in ((DISK, disk), (LOG, log))[:: 1 if number % 2 == 0 else -1]:
                        results.take(place, server, lane, f"s{number}", given.seconds)
        if not given.no_s3:
            with Gateway(folder / "gateway") as gateway:
                os.environ.update(gateway.environment())
                for bucket in ("near", "far"):
                    gateway.create_bucket(bucket)
                with FaultProxyProcess("127.0.0.1", gateway.port) as proxy:
                    proxy.set_latency(LATENCY)
                    for place, url in (
                        ("S3", gateway.url("near")),
                        (FAR, gateway.url("far", endpoint=proxy.endpoint)),
                    ):
                        stores = ("--set", f"stores.directory={folder / place.replace(' ', '-')}")
                        with holdfast(folder / f"at-{place[:2]}", *IN_LOG, *stores, log_url=url) as server:
                            for number in range(given.rounds):
                                for lane in LANES:
                                    results.take(place, server, lane, f"s{number}", given.seconds)
        if given.backlog:
            take_over(folder / "take-over", given.backlog, results, console)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    lines = report(results, console)
    console.print("\n".join(lines), highlight=False)
    if given.json:
        figures = [
            {"place": place, "lane": lane, "rates": each.rates, "p50_ms": each.p50_ms, "p99_ms": each.p99_ms}
            for (place, lane), each in results.lanes.items()
        ]
        found = {"machine": about, "lanes": figures, "cost": results.cost, "takeover_s": results.takeover_s}
        given.json.write_text(json.dumps({**found, "verdicts": lines}, indent=2))


if __name__ == "__main__":
    main()
