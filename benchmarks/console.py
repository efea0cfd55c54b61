"""What an open console costs: the commit path's rate with the overview open against without, and the console's memory.

    python benchmarks/console.py [--rounds 60] [--seconds 4] [--minutes 0] [--json FILE]

A service as shipped, and a console whose overview is asked for every two seconds, as its script does. A round has three
bursts of commits: one with the overview open, and two with the console stopped (SIGSTOP). The three take every order
equally often, in random turns, so that what else the machine does, and what slows down as the log grows, hits all.
The ratio is the median of the rounds' ratios, with the interval that 95 % of its bootstrap samples are in. The same
ratio of the two bursts without the console is the null comparison: it shows what this machine and method cannot tell
apart. The processor time of what an overview asks is measured, too: it says the same on a machine that is busy. With
``--minutes`` the service has traffic for that time and the console's memory is read; the growth of the second half is
extrapolated to an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import permutations
from pathlib import Path

from _estimates import estimate
from _generators import holdfast_streams
from _processes import Served, free_port, holdfast, machine, processor_seconds

TARGET = 0.97
MEMORY_MAX = 200 << 20
CONNECTIONS = 8
ITEMS = 50
POLL_SECONDS = 2.0
SETTLE_SECONDS = 0.3
SEED = 25
ASKED = ("/livez", "/metrics", "/readyz", "/v1/stores?max=500")
"""What an open overview asks every ``POLL_SECONDS``."""
ROUNDS = 300
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Console:
    """A console process, and what polls its overview."""

    def __init__(self, service: Served) -> None:
        self.port = free_port()
        listen = ["--listen", f"127.0.0.1:{self.port}"]
        command = [sys.executable, "-m", "holdfast.cli.main", "console", "--service", service.url, *listen]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self._open = threading.Event()
        self._ended = threading.Event()
        self.pages = 0
        self._thread = threading.Thread(target=self._poll, daemon=True)
        for _ in range(300):
            try:
                self._page()
                break
            except OSError:
                time.sleep(0.1)
        self._thread.start()

    def _page(self) -> None:
        urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=30).read()

    def _poll(self) -> None:
        while not self._ended.is_set():
            if self._open.is_set():
                self._page()
                self.pages += 1
            self._ended.wait(POLL_SECONDS)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """The overview is open."""
        self._open.set()
        try:
            yield
        finally:
            self._open.clear()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """The console does nothing."""
        time.sleep(0.2)  # a page that is under way ends
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    @property
    def resident_bytes(self) -> int:
        """Its memory."""
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * PAGE_BYTES

    def close(self) -> None:
        """End it."""
        self._ended.set()
        self._thread.join(30)
        self._process.terminate()
        self._process.wait(30)


def burst(server: Served, name: str, seconds: float) -> float:
    """Commits a second, of streams for about this time."""
    committed, began = 0, time.perf_counter()
    number = 0
    while (took := time.perf_counter() - began) < seconds:
        version = int(json.loads(server.get("/v1/version"))["version"])
        load = holdfast_streams(
            server.port, version, f"{name}/{number}", form="msgpack", connections=CONNECTIONS, items=ITEMS, requests=4
        )
        if load.errors:
            raise RuntimeError(f"{load.errors} commits failed")
        committed += load.answers
        number += 1
    return committed / took


BURSTS = ("open", "without", "null")
"""The three bursts of a round: with the overview open, and twice without the console."""


@dataclass
class Rounds:
    """The commits a second of each burst, by round."""

    rates: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in BURSTS})

    def ratios(self, name: str) -> list[float]:
        """Of each round, a burst's rate divided by that without the console."""
        return [rate / base for rate, base in zip(self.rates[name], self.rates["without"], strict=True)]


def orders(rounds: int, seed: int = SEED) -> list[tuple[str, ...]]:
    """An order of the bursts for each round: all six equally often, in random turns."""
    draw = random.Random(seed)
    found: list[tuple[str, ...]] = []
    while len(found) < rounds:
        block = list(permutations(BURSTS))
        draw.shuffle(block)
        found += block
    return found[:rounds]


def compare(server: Served, console: Console, rounds: int, seconds: float) -> Rounds:
    """The rates of every round. Prints each, and the ratios so far."""
    done = Rounds()
    for number, order in enumerate(orders(rounds), 1):
        for name in order:
            with console.opened() if name == "open" else console.stopped():
                time.sleep(SETTLE_SECONDS)
                done.rates[name].append(burst(server, f"{number}/{name}", seconds))
        said = ", ".join(f"{done.rates[name][-1]:,.0f} {name}" for name in order)
        so_far = {name: statistics.median(done.ratios(name)) for name in ("open", "null")}
        print(f"round {number} of {rounds}: {said}; so far {so_far['open']:.3f}, null {so_far['null']:.3f}", flush=True)
    return done


def cost_of_service(server: Served) -> float:
    """The part of a core that an open overview takes of a service: what it asks, asked many times."""
    before = processor_seconds(server.pid)
    for _ in range(ROUNDS):
        for path in ASKED:
            server.get(path)
    return (processor_seconds(server.pid) - before) / ROUNDS / POLL_SECONDS


def remember(server: Served, console: Console, minutes: float) -> list[tuple[float, int]]:
    """The console's memory every ten seconds, while commits go on."""
    seen: list[tuple[float, int]] = []
    began = time.monotonic()
    with console.opened():
        while (passed := time.monotonic() - began) < minutes * 60:
            burst(server, f"memory/{passed:.0f}", 2.0)
            time.sleep(8.0)
            seen.append((passed, console.resident_bytes))
    return seen


def after_an_hour(seen: list[tuple[float, int]]) -> float:
    """The memory after an hour, by the slope of the second half."""
    half = seen[len(seen) // 2 :]
    slope = statistics.linear_regression([at for at, _ in half], [size for _, size in half]).slope
    return half[-1][1] + max(0.0, slope) * (3600 - half[-1][0])


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, holdfast(Path(folder)) as server:
        console = Console(server)
        try:
            burst(server, "warm", given.seconds)
            rounds = compare(server, console, given.rounds, given.seconds)
            ratio, null = estimate(rounds.ratios("open")), estimate(rounds.ratios("null"))
            cost = cost_of_service(server)
            result: dict[str, object] = {
                "machine": machine(),
                "rates": rounds.rates,
                "ratio": asdict(ratio),
                "null": asdict(null),
                "cost_of_service": cost,
                "resident_bytes": console.resident_bytes,
            }
            shown = "shown" if ratio.low >= TARGET else "not shown"
            print(f"\nwith the overview open / without: {ratio}")
            print(f"without / without, the noise:      {null}")
            print(f"at least {TARGET}: {shown} by {given.rounds} rounds of {given.seconds:g} s")
            print(f"an open overview takes {cost:.2%} of a core of the service")
            print(f"memory of the console: {console.resident_bytes / 2**20:.0f} MiB after {console.pages} pages")
            if given.minutes:
                seen = remember(server, console, given.minutes)
                result["memory"] = seen
                result["memory_after_an_hour"] = after_an_hour(seen)
                print(f"memory after {given.minutes:g} min: {seen[-1][1] / 2**20:.0f} MiB")
                print(
                    f"extrapolated to an hour: {after_an_hour(seen) / 2**20:.0f} MiB (target {MEMORY_MAX / 2**20:.0f})"
                )
        finally:
            console.close()
    if given.json is not None:
        given.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
