"""Reading of the embedded queue, on a busy machine: two source trees against each other, or against LMDB and sqlite3.

    python benchmarks/queue_reading.py --before OTHER/src [--rounds 9] [--seconds 0.5]
    python benchmarks/queue_reading.py --peers [--rounds 25]

Two trees, seeks to a time and the lazy view: each round measures before, after, and after with the package zlib-ng
hidden, one process each, and the order turns.

Peers: one process reads a log of each system from its start to its end, one way after the other, and the order turns.
It does so once without the package zlib-ng and once with it. The time is that of the processor.

A figure is the median of the rounds, and each ratio the median of the ratios of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
AFTER = HERE.parents[1] / "src"
START_NS = 1_767_225_600_000_000_000
MESSAGES = 1_000_000
SEEKS = 3_000
"""Of one process: with more of them most of the frames were found before, and a reader remembers those."""
PAYLOAD = b"x" * 100
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def fill(folder: Path) -> None:
    from holdfast.queue import Queue

    now = START_NS
    with Queue(folder / "seek" / "log", clock=lambda: now) as queue:
        for group in range(MESSAGES // 100):
            now = START_NS + group * 1_000_000
            queue.append_many([PAYLOAD] * 100)
    with Queue(folder / "lazy" / "log") as queue:
        for _ in range(MESSAGES // 1000):
            queue.append_many([PAYLOAD] * 1000)


def measure(folder: Path, seconds: float) -> dict[str, float]:
    from holdfast.queue import Queue
    from holdfast.queue.queue import core_of

    source = random.Random(1)
    seeks, rates = [], []
    with Queue(folder / "seek" / "log") as queue:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end and len(seeks) < SEEKS:
            moment = EPOCH + timedelta(microseconds=START_NS // 1000 + source.randrange(MESSAGES // 100 - 1) * 1000)
            began = time.perf_counter()
            core_of(queue).reader(since=moment).close()
            seeks.append((time.perf_counter() - began) * 1e6)
    with Queue(folder / "lazy" / "log") as queue:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            began = time.perf_counter()
            found = sum(map(len, queue.batches()))
            rates.append(found / (time.perf_counter() - began) / 1e6)
            assert found == MESSAGES, "every pass reads all"
    return {"seek_us": statistics.median(seeks[100:]), "lazy_m": statistics.median(rates)}


def child(tree: Path, folder: Path, *arguments: str, hidden: bool) -> Any:
    words = [sys.executable, str(HERE), "--child", str(folder), *arguments, *["--hidden"] * hidden]
    answer = subprocess.run(words, env={**os.environ, "PYTHONPATH": str(tree)}, stdout=subprocess.PIPE, check=True)
    return json.loads(answer.stdout)


# ---- peers ----------------------------------------------------------------------------------------------------------

READ_MESSAGES = 100_000
LMDB, SQLITE = "lmdb, cursor over the values", "sqlite3, SELECT payload"
LOGS = ("by append_many of 1,000", "one by one", "one by one, 50 to 150 bytes")


def fill_all(folder: Path) -> None:
    """A log of each kind of Holdfast and of each peer, of messages of 100 bytes where nothing else is said."""
    from queue_peers.systems import Lmdb, Sqlite3
    from queue_peers.worker import endless, made

    from holdfast.queue import Queue

    for name in LOGS:
        messages = endless(made(100, mixed="50" in name), READ_MESSAGES)
        with Queue(folder / name / "log") as queue:
            if "many" in name:
                for _ in range(READ_MESSAGES // 1000):
                    queue.append_many([next(messages) for _ in range(1000)])
            else:
                for message in messages:
                    queue.append(message)
    for system in (Lmdb, Sqlite3):
        (folder / system.name).mkdir()
        log = system(folder / system.name)
        log.fill(endless(made(100), READ_MESSAGES))
        log.close()


def compare(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Microseconds for each message, by the way of reading."""
    from queue_peers.systems import Lmdb, Sqlite3

    from holdfast.queue import Queue

    lmdb, sqlite = Lmdb(folder / Lmdb.name), Sqlite3(folder / Sqlite3.name)
    ways: dict[str, Callable[[], Iterator[object]]] = {
        LMDB: lmdb.payloads,
        "lmdb, cursor over keys and values": lmdb.messages,
        SQLITE: sqlite.payloads,
        "sqlite3, SELECT seq, payload": sqlite.messages,
    }
    for name in LOGS:
        queue = Queue(folder / name / "log", read_only=True)
        ways |= {f"{name}: {way}": getattr(queue, way) for way in ("read", "read_payloads", "batches")}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(-1, rounds):
        names = list(ways)
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            began = time.thread_time()
            deque(ways[name](), maxlen=0)
            if number >= 0:  # the first makes everything warm
                found[name].append((time.thread_time() - began) * 1e6 / READ_MESSAGES)
    return found


def show_peers(title: str, found: dict[str, list[float]]) -> None:
    print(title)
    for name, values in found.items():
        over = {
            peer: statistics.median(mine / theirs for mine, theirs in zip(values, found[peer], strict=True))
            for peer in (LMDB, SQLITE)
        }
        us = statistics.median(values)
        print(f"  {name:46} {us:6.3f} us, x {over[LMDB]:5.2f} of lmdb, x {over[SQLITE]:5.2f} of sqlite3")


def run_peers(folder: Path, rounds: int) -> None:
    from queue_vs_peers import about

    print("  ".join(f"{name} {value}" for name, value in about().items()))
    fill_all(folder)
    for title, hidden in (("with zlib.crc32", True), ("with zlib-ng", False)):
        show_peers(title, child(AFTER, folder, "--peers", "--rounds", str(rounds), hidden=hidden))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="the src folder of the other tree")
    parser.add_argument("--peers", action="store_true", help="read next to LMDB and sqlite3")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--hidden", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        if given.hidden:
            sys.modules["zlib_ng"] = None  # type: ignore[assignment]
        print(json.dumps(compare(given.child, given.rounds) if given.peers else measure(given.child, given.seconds)))
        return 0
    if given.peers:
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as folder:
            run_peers(Path(folder), given.rounds)
        return 0
    variants = {"before": (given.before or AFTER, False), "after": (AFTER, False), "after, zlib": (AFTER, True)}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in variants}
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as folder:
        fill(Path(folder))
        for number in range(given.rounds):
            names = list(variants)
            for name in names[number % 3 :] + names[: number % 3]:
                tree, hidden = variants[name]
                found[name].append(child(tree, Path(folder), "--seconds", str(given.seconds), hidden=hidden))
    for figure, unit in (("seek_us", "us"), ("lazy_m", "M messages/s")):
        for name, rounds in found.items():
            values = [each[figure] for each in rounds]
            pairs = zip(rounds, found["before"], strict=True)
            ratio = statistics.median(each[figure] / base[figure] for each, base in pairs)
            print(
                f"{figure:8} {name:12} {statistics.median(values):8.1f} {unit}, "
                f"{min(values):.1f} to {max(values):.1f}, x {ratio:.2f} of before"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
