"""What a program gets: our clients against aetcd on etcd and redis-py on Redis, all synced before they answer.

    python benchmarks/programs.py [--quick] [--lanes NAME ...] [--rounds N] [--seconds S] [--json FILE]

One program for each system with the system's own Python library and its defaults (``programs_peers/clients.py``): with
asyncio 1, 16, 64 and 256 tasks, with threads 1, 4, 16 and 64, of which each sends its next request when it has the
answer to the last one. Values have 100 bytes. etcd runs as shipped, Redis with ``appendfsync always``; servers and
programs share the cores. There is no kept blocking client of etcd.

Lanes: commit one new key; the same on connections that have had a get; get one of 1,000 keys (of etcd
``serializable=True``, of Holdfast the service's view); linearizable get (of Holdfast a version and a get that is not
older); range of 100 keys with their values (of etcd linearizable, its client has no other); transact: read a key, check
it, write it, without conflicts; ten new keys in one transaction; a commit until its event came in the change stream of
the same program.

All servers run. In each round each row has one burst of each system, in turns. Rates are medians of the rounds; a ratio
is the median of the rounds' ratios, with the interval that 95 % of its bootstrap samples are in. Processor time is that
of a request. The lanes prove what they count (``programs_peers/worker.py``): a wrong value, a missing commit or an
error ends the run. A program or library that is missing is named, and its system is not in the table.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from _estimates import Estimate, estimate
from _processes import Served, etcd, holdfast, machine
from programs_peers.worker import LANES
from stores_peers.servers import missing as missing_server
from stores_peers.servers import serving

WORKER = Path(__file__).parent / "programs_peers" / "worker.py"
SERVERS: dict[str, Callable[[Path], AbstractContextManager[Served]]] = {
    "holdfast": holdfast,
    "etcd": etcd,
    "redis": lambda folder: serving("redis", folder),
}
PEERS = tuple(name for name in SERVERS if name != "holdfast")
SYSTEMS = {"tasks": tuple(SERVERS), "threads": ("holdfast", "redis")}
COUNTS = {"tasks": (1, 16, 64, 256), "threads": (1, 4, 16, 64)}
QUICK_COUNTS = {"tasks": (1, 64), "threads": (1, 16)}
ROUNDS, SECONDS = 5, 1.0
QUICK_ROUNDS, QUICK_SECONDS = 3, 0.25
BURST_SECONDS_MAX = 120.0


class Row(NamedTuple):
    """A line of the table."""

    lane: str
    way: str
    count: int

    def __str__(self) -> str:
        return f"{self.lane}, {self.count} {self.way if self.count > 1 else self.way[:-1]}"


@dataclass(slots=True)
class Figure:
    """One row of one system: the bursts of all rounds."""

    bursts: list[dict[str, float]] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.median("rate")

    def median(self, name: str) -> float:
        return statistics.median(burst[name] for burst in self.bursts)

    def us(self, name: str) -> float:
        """Processor time of a request. Of all bursts together: that of one is counted in ticks of 10 ms."""
        return sum(burst[name] for burst in self.bursts) / sum(burst["requests"] for burst in self.bursts) * 1e6


Figures = dict[Row, dict[str, Figure]]


def missing(system: str) -> str:
    """Why a system cannot be measured here, empty where it can."""
    match system:
        case "etcd" if shutil.which("etcd") is None:
            return "no etcd: apt-get install etcd-server"
        case "etcd" if importlib.util.find_spec("aetcd") is None:
            return "no aetcd: pip install aetcd"
        case "redis" if importlib.util.find_spec("redis") is None:
            return "no redis-py: pip install 'redis[hiredis]'"
        case _:
            return missing_server(system)


class Program:
    """A running worker."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], errors: Path) -> None:
        self._name = name
        self._process = process
        self._errors = errors

    def burst(self, row: Row, seconds: float) -> dict[str, float]:
        """Raises: RuntimeError, with what the program said."""
        assert self._process.stdin is not None and self._process.stdout is not None, "both are pipes"
        self._process.stdin.write(json.dumps([row.lane, row.count, seconds]).encode() + b"\n")
        ready, _, _ = select.select([self._process.stdout], [], [], BURST_SECONDS_MAX + seconds)
        line = self._process.stdout.readline() if ready else b""
        if not line.strip():
            said = self._errors.read_text(errors="replace")[-3_000:] if ready else "no answer in time"
            raise RuntimeError(f"{self._name}: {row}: {said}")
        found: dict[str, float] = json.loads(line)
        return found


@contextmanager
def program(system: str, way: str, served: Served) -> Iterator[Program]:
    errors = served.folder / f"{way}.log"
    command = [sys.executable, str(WORKER), system, way, str(served.port), str(served.pid)]
    with errors.open("wb") as output:
        process = subprocess.Popen(
            command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, cwd=served.folder
        )
    try:
        yield Program(f"{system} with {way}", process, errors)
    finally:
        process.kill()
        process.wait()


def run(rows: list[Row], systems: list[str], rounds: int, seconds: float, folder: Path) -> Figures:
    """Every row in every round; the system that begins changes from round to round."""
    figures: Figures = {}
    with ExitStack() as stack:
        servers = {system: stack.enter_context(SERVERS[system](folder / system)) for system in systems}
        if "holdfast" in servers:
            servers["holdfast"].wait_until("/v1/range?limit=1", "version")  # its view answers
        programs = {
            (way, system): stack.enter_context(program(system, way, servers[system]))
            for way, known in SYSTEMS.items()
            for system in known
            if system in servers and any(row.way == way for row in rows)
        }
        for number in range(rounds):
            turn = number % len(systems)
            for row in rows:
                for system in systems[turn:] + systems[:turn]:
                    if (row.way, system) in programs:
                        found = programs[row.way, system].burst(row, seconds)
                        figures.setdefault(row, {}).setdefault(system, Figure()).bursts.append(found)
                rates = ", ".join(f"{name} {figure.bursts[-1]['rate']:,.0f}" for name, figure in figures[row].items())
                print(f"round {number + 1} of {rounds}: {row}: {rates}", file=sys.stderr, flush=True)
    return figures


def ratio(found: dict[str, Figure], peer: str) -> Estimate | None:
    """Of the rates of Holdfast and a peer in the same round."""
    if "holdfast" not in found or peer not in found:
        return None
    pairs = zip(found["holdfast"].bursts, found[peer].bursts, strict=True)
    return estimate([ours["rate"] / theirs["rate"] for ours, theirs in pairs])


def table(figures: Figures) -> Iterator[str]:
    """Markdown, as in the documentation."""

    def each(found: dict[str, Figure], figure: Callable[[Figure], str]) -> str:
        return " / ".join(figure(found[name]) if name in found else "-" for name in SERVERS)

    yield "| requests a second | Holdfast / etcd / Redis | to etcd | to Redis | p50 ms | client us | server us |"
    yield "|---|---|---|---|---|---|---|"
    for row, found in figures.items():
        ratios = [ratio(found, peer) for peer in PEERS]
        cells = [
            str(row),
            each(found, lambda figure: f"{figure.rate:,.0f}"),
            *("-" if it is None else f"{it.median:.2f} ({it.low:.2f} to {it.high:.2f})" for it in ratios),
            each(found, lambda figure: f"{figure.median('p50_ms'):.2f}"),
            each(found, lambda figure: f"{figure.us('client_seconds'):,.0f}"),
            each(found, lambda figure: f"{figure.us('server_seconds'):,.0f}"),
        ]
        yield f"| {' | '.join(cells)} |"


def report(figures: Figures) -> list[dict[str, Any]]:
    return [
        {
            **row._asdict(),
            "systems": {system: figure.bursts for system, figure in found.items()},
            "ratios": {peer: asdict(it) for peer in PEERS if (it := ratio(found, peer)) is not None},
        }
        for row, found in figures.items()
    ]


def about(systems: list[str]) -> dict[str, str]:
    """What the figures were taken on."""
    found = machine()
    if "redis" in systems:
        done = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True)
        found["redis"] = done.stdout.split(" sha=")[0]
    libraries = {"aetcd": "aetcd", "redis-py": "redis"}
    return found | {name: version(module) for name, module in libraries.items() if importlib.util.find_spec(module)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three rounds of short bursts, fewer tasks and threads")
    parser.add_argument("--lanes", nargs="*", choices=LANES, default=[*LANES])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, help="of a burst")
    parser.add_argument("--folder", type=Path, help="where the servers keep their data")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")
    given = parser.parse_args()
    rounds = given.rounds or (QUICK_ROUNDS if given.quick else ROUNDS)
    seconds = given.seconds or (QUICK_SECONDS if given.quick else SECONDS)
    counts = QUICK_COUNTS if given.quick else COUNTS
    absent = {system: reason for system in SERVERS if (reason := missing(system))}
    systems = [system for system in SERVERS if system not in absent]
    rows = [Row(lane, way, count) for way in SYSTEMS for lane in given.lanes for count in counts[way]]
    where = about(systems)
    print(*(f"{name} {value}" for name, value in where.items()), sep="\n")
    for system, reason in absent.items():
        print(f"not measured: {system}: {reason}")
    with tempfile.TemporaryDirectory(dir=given.folder or Path.cwd(), prefix=".bench-") as folder:
        figures = run(rows, systems, rounds, seconds, Path(folder).resolve())
    print("", *table(figures), "", sep="\n")
    others = [burst["other_cores"] for found in figures.values() for each in found.values() for burst in each.bursts]
    print(f"others used {statistics.median(others):.2f} cores in the middle burst, {max(others):.2f} in the worst")
    if given.json:
        found = {"machine": where, "rounds": rounds, "seconds": seconds, "missing": absent, "rows": report(figures)}
        given.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
