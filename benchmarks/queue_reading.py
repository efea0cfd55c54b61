"""The embedded queue of two source trees against each other: seeks to a time, and the lazy view.

    python benchmarks/queue_reading.py --before OTHER/src [--rounds 9] [--seconds 0.5]

For a busy machine: each round measures before, after, and after with the package zlib-ng hidden, one process each, and
the order turns. A figure is the median of the rounds, and each ratio the median of the ratios of the rounds.
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
from datetime import UTC, datetime, timedelta
from pathlib import Path

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

    source = random.Random(1)
    seeks, rates = [], []
    with Queue(folder / "seek" / "log") as queue:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end and len(seeks) < SEEKS:
            moment = EPOCH + timedelta(microseconds=START_NS // 1000 + source.randrange(MESSAGES // 100 - 1) * 1000)
            began = time.perf_counter()
            queue.reader(since=moment).close()
            seeks.append((time.perf_counter() - began) * 1e6)
    with Queue(folder / "lazy" / "log") as queue:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            began = time.perf_counter()
            found = sum(map(len, queue.batches()))
            rates.append(found / (time.perf_counter() - began) / 1e6)
            assert found == MESSAGES, "every pass reads all"
    return {"seek_us": statistics.median(seeks[100:]), "lazy_m": statistics.median(rates)}


def child(tree: Path, folder: Path, seconds: float, *, hidden: bool) -> dict[str, float]:
    words = [sys.executable, str(HERE), "--child", str(folder), "--seconds", str(seconds), *["--hidden"] * hidden]
    answer = subprocess.run(words, env={**os.environ, "PYTHONPATH": str(tree)}, capture_output=True, check=True)
    found: dict[str, float] = json.loads(answer.stdout)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="the src folder of the other tree")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--hidden", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        if given.hidden:
            sys.modules["zlib_ng"] = None  # type: ignore[assignment]
        print(json.dumps(measure(given.child, given.seconds)))
        return 0
    variants = {"before": (given.before or AFTER, False), "after": (AFTER, False), "after, zlib": (AFTER, True)}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in variants}
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as folder:
        fill(Path(folder))
        for number in range(given.rounds):
            names = list(variants)
            for name in names[number % 3 :] + names[: number % 3]:
                tree, hidden = variants[name]
                found[name].append(child(tree, Path(folder), given.seconds, hidden=hidden))
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
