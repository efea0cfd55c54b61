"""P4: commits on an S3 store: a real server on this machine, then with the latency of a distant one.

    python benchmarks/commit_on_s3.py [--seconds 5] [--json FILE]

The server is one Ceph RADOS Gateway (``tests.rgw``), objects in memory. Its latency is then made log-normal
with a median of 40 ms and a p99 of 126 ms by a proxy in its own process (``holdfast.testing.fault_proxy``), which also
shares the cores. Load: wrk, one thread, one check and one put of 100 bytes, keys never the same twice.

Targets: at 512 connections at least half of the embedded store's figure; with latency at 512 and 4,096 connections at
least 90 % of the smaller of the embedded figure and connections / median acknowledgement; p99.9 at most 250 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _generators import holdfast_json
from _processes import Busy, Served, holdfast, machine, processor_seconds
from tests.rgw import Gateway

from holdfast.testing.fault_proxy import Latency
from holdfast.testing.fault_proxy_process import FaultProxyProcess

LATENCY = Latency(median_ms=40.0, p99_ms=126.0)
WARM_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Measured:
    """One lane."""

    name: str
    connections: int
    rate: float
    p50_ms: float
    p99_ms: float
    p99_9_ms: float
    server_us: float
    store_us: float
    other_cores: float


def measure(name: str, server: Served, connections: int, seconds: float, store: list[int]) -> Measured:
    """``store`` are the processes of the object store, whose cost is not the service's."""

    def at() -> int:
        return int(json.loads(server.get("/v1/version"))["version"])

    prefix = f"{connections:04}"
    holdfast_json(server.url, at(), f"W{prefix[-3:]}", connections, WARM_SECONDS)
    before = sum(map(processor_seconds, store))
    with Busy(server.pid) as busy:
        load = holdfast_json(server.url, at(), f"M{prefix[-3:]}", connections, seconds)
    if load.errors:
        raise RuntimeError(f"{name}: {load.errors} errors in {load.answers} answers")
    store_seconds = sum(map(processor_seconds, store)) - before
    found = Measured(
        name=name,
        connections=connections,
        rate=load.rate,
        p50_ms=load.p50_ms,
        p99_ms=load.p99_ms,
        p99_9_ms=load.p99_9_ms,
        server_us=busy.server_seconds / load.answers * 1e6,
        store_us=store_seconds / load.answers * 1e6,
        other_cores=max(0.0, busy.other_cores - store_seconds / seconds),
    )
    print(
        f"{name:34}{connections:6} connections {load.rate:9,.0f}/s  p50 {load.p50_ms:7.1f}  p99 {load.p99_ms:7.1f}"
        f"  p99.9 {load.p99_9_ms:7.1f} ms  service {found.server_us:6.1f} us  store {found.store_us:6.1f} us",
        flush=True,
    )
    return found


def verdicts(found: list[Measured]) -> list[str]:
    embedded = {each.connections: each for each in found if each.name == "embedded"}
    lines: list[str] = []
    for each in found:
        base = embedded[each.connections]
        if each.name == "S3 server on this machine":
            part = each.rate / base.rate
            lines.append(f"{each.name}: {part:.2f} of the embedded figure, target 0.50: {_word(part >= 0.5)}")
        elif each.name != "embedded":
            possible = min(base.rate, each.connections / each.p50_ms * 1000)
            part = each.rate / possible
            where = f"{each.name}, {each.connections} connections"
            lines.append(f"{where}: {part:.2f} of {possible:,.0f}/s, target 0.90: {_word(part >= 0.9)}")
            lines.append(f"{where}: p99.9 {each.p99_9_ms:.0f} ms, target 250 ms: {_word(each.p99_9_ms <= 250)}")
    return lines


def _word(met: bool) -> str:
    return "PASS" if met else "miss"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    about = machine()
    print("  ".join(f"{name} {value}" for name, value in about.items()))
    found: list[Measured] = []
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as folder:
        place = Path(folder)
        with holdfast(place / "embedded") as server:
            found += [measure("embedded", server, each, given.seconds, []) for each in (512, 4096)]
        with Gateway(place / "gateway") as gateway:
            os.environ.update(gateway.environment())
            gateway.create_bucket("near")
            gateway.create_bucket("far")
            store = list(gateway.pids.values())
            with holdfast(place / "near", log_url=gateway.url("near")) as server:
                found.append(measure("S3 server on this machine", server, 512, given.seconds, store))
            with FaultProxyProcess("127.0.0.1", gateway.port) as proxy:
                proxy.set_latency(LATENCY)
                with holdfast(place / "far", log_url=gateway.url("far", endpoint=proxy.endpoint)) as server:
                    name = "S3, 40 ms median, 126 ms p99"
                    found += [measure(name, server, each, given.seconds, store) for each in (512, 4096)]
    lines = verdicts(found)
    print("\n".join(lines))
    if given.json:
        report = {"machine": about, "found": [asdict(each) for each in found], "verdicts": lines}
        given.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
