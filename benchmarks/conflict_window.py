"""The conflict window under load: memory a key, transactions a second, pauses, and how all of it grows.

    python benchmarks/conflict_window.py [--json FILE] [--quick]

A transaction is judged by 2 point reads (with ``range`` also by a range read of 10 keys) up to 200 versions behind, and
recorded with 2 writes of 16-byte keys. Every one is recorded, conflict or not, so that all sizes do the same work. Keys
cycle through a fixed permutation: a window of n keys holds exactly n different ones. Transactions are made before the
clock starts and come in batches of 64, each followed by one ``expire``, as in the leader.

- Throughput: the sizes take turns in one process, segment by segment; medians of the segments, by the processor time of
  the thread, so that a neighbour on the machine does not count. The peer is what one would write first: one dictionary
  and one sortedcontainers.SortedList.
- Pauses: the time of a batch while the window fills, and while it is full and expires as much as it takes in. The same
  run is repeated and the least processor time of each batch is kept: the work is deterministic, the machine is not. One
  run by wall time as it came is printed too, and a loop that only counts, which shows what the machine adds by itself.
- Memory: resident bytes of a fresh process after and before the window was filled, divided by the keys in the window.
- Readers: microseconds of processor time of one read whose version lies at a share of the window's length behind.
- Defaults: the seconds a window of 256 MiB and 60 s keeps at 33,000 transactions a second of one check and one write.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sortedcontainers import SortedList

from holdfast.commit.format.transaction import Operation, Write
from holdfast.commit.window import RecentWrites

BATCH = 64
BATCHES_MADE_AT_ONCE = 100
LAG = 200
ROOMY = 1 << 36
STRIDE = 2_654_435_761  # a prime: multiplying by it permutes the keys of every size used here
TARGET_COMMITS = 33_000


class Window(Protocol):
    floor: int

    def record(self, version: int, operations: list[Operation]) -> None: ...
    def changed_after(self, key: bytes, version: int) -> int: ...
    def range_changed_after(self, begin: bytes, end: bytes | None, version: int) -> int: ...
    def expire(self, floor: int) -> None: ...


class DictionaryAndSortedList:
    """The peer: point writes only."""

    def __init__(self) -> None:
        self.floor = 0
        self._versions: dict[bytes, int] = {}
        self._keys: SortedList[bytes] = SortedList()
        self._log: deque[tuple[int, bytes]] = deque()

    def record(self, version: int, operations: list[Operation]) -> None:
        for operation in operations:
            assert isinstance(operation, Write)
            key = operation.key
            if key not in self._versions:
                self._keys.add(key)
            self._versions[key] = version
            self._log.append((version, key))

    def changed_after(self, key: bytes, version: int) -> int:
        newest = self._versions.get(key, 0)
        return newest if newest > version else 0

    def range_changed_after(self, begin: bytes, end: bytes | None, version: int) -> int:
        keys = self._keys.irange(begin, end, (True, False))
        newest = max(map(self._versions.__getitem__, keys), default=0)
        return newest if newest > version else 0

    def expire(self, floor: int) -> None:
        self.floor = max(floor, self.floor)
        while self._log and self._log[0][0] <= self.floor:
            version, key = self._log.popleft()
            if self._versions.get(key) == version:
                del self._versions[key]
                self._keys.remove(key)


@dataclass(slots=True)
class Judged:
    """One transaction, decoded."""

    reads: tuple[bytes, bytes]
    begin: bytes
    end: bytes
    lag: int
    operations: list[Operation]


class Load:
    """An endless, reproducible stream of transactions against ``keys`` keys, and the versions it has reached."""

    def __init__(self, window: Window, keys: int, *, writes: int = 2, ranges: bool = False) -> None:
        self.window = window
        self.keys = keys
        self.span = keys // writes
        self.version = 0
        self._writes = writes
        self._ranges = ranges
        self._written = 0
        self._state = 12_345

    def _draw(self, below: int) -> int:
        self._state = (self._state * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) & 0xFFFFFFFFFFFFFFFF
        return (self._state >> 33) % below

    def next_key(self) -> bytes:
        self._written += 1
        return b"%016d" % (self._written * STRIDE % self.keys)

    def transactions(self, count: int) -> list[Judged]:
        made = []
        for _ in range(count):
            first = self._draw(self.keys - 10)
            made.append(
                Judged(
                    (b"%016d" % self._draw(self.keys), b"%016d" % self._draw(self.keys)),
                    b"%016d" % first,
                    b"%016d" % (first + 10),
                    self._draw(LAG),
                    [Write(self.next_key(), b"") for _ in range(self._writes)],
                )
            )
        return made

    def judge(self, batch: list[Judged], clock: Callable[[], float]) -> float:
        """Seconds for one batch."""
        window, version, ranges = self.window, self.version, self._ranges
        floor = window.floor
        begun = clock()
        for txn in batch:
            asked = version - txn.lag
            if asked < floor:
                asked = floor
            window.changed_after(txn.reads[0], asked)
            window.changed_after(txn.reads[1], asked)
            if ranges:
                window.range_changed_after(txn.begin, txn.end, asked)
            version += 1
            window.record(version, txn.operations)
        window.expire(version - self.span)
        took = clock() - begun
        self.version = version
        return took

    def run(self, transactions: int, clock: Callable[[], float] = time.perf_counter) -> list[float]:
        """Seconds of each batch."""
        took: list[float] = []
        while transactions > 0:
            made = self.transactions(BATCH * BATCHES_MADE_AT_ONCE)
            took += [self.judge(made[start : start + BATCH], clock) for start in range(0, len(made), BATCH)]
            transactions -= len(made)
        return took

    def fill(self) -> None:
        """Bring the window to its full size without judging anything."""
        for _ in range(self.span):
            self.version += 1
            self.window.record(self.version, [Write(self.next_key(), b"") for _ in range(self._writes)])
            if self.version % BATCH == 0:
                self.window.expire(self.version - self.span)


def fresh_window() -> RecentWrites:
    return RecentWrites(0, bytes_max=ROOMY)


def at_rank(ordered: list[float], share: float) -> float:
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def pauses_of(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(1000 * second for second in seconds)
    return {
        "p50_ms": round(at_rank(ordered, 0.5), 3),
        "p99_ms": round(at_rank(ordered, 0.99), 3),
        "p99.99_ms": round(at_rank(ordered, 0.9999), 3),
        "max_ms": round(ordered[-1], 3),
        "batches": len(ordered),
    }


def measure_throughput(sizes: list[int], segments: int, segment_transactions: int) -> Any:
    loads: dict[str, Load] = {}
    for ranges, name in ((False, "2 reads + 2 writes"), (True, "and a range read of 10 keys")):
        for size in sizes:
            loads[f"{name}, {size:,} keys"] = Load(fresh_window(), size, ranges=ranges)
        loads[f"{name}, {sizes[1]:,} keys, the peer"] = Load(DictionaryAndSortedList(), sizes[1], ranges=ranges)
    for load in loads.values():
        load.fill()
    gc.collect()
    rates: dict[str, list[float]] = {name: [] for name in loads}
    for _ in range(segments):
        for name, load in loads.items():
            seconds = load.run(segment_transactions, time.thread_time)
            rates[name].append(len(seconds) * BATCH / sum(seconds))
    return {
        name: {"median": round(statistics.median(found)), "least": round(min(found)), "most": round(max(found))}
        for name, found in rates.items()
    }


def measure_pauses(size: int, rounds: int, full_transactions: int) -> Any:
    filling: list[list[float]] = []
    full: list[list[float]] = []
    for clock in (time.perf_counter, *[time.thread_time] * rounds):
        load = Load(fresh_window(), size, ranges=True)
        filling.append(load.run(load.span, clock))
        full.append(load.run(full_transactions, clock))
        del load
        gc.collect()
    counting: list[float] = []
    for _ in range(20_000):
        begun = time.perf_counter()
        for _ in range(3_000):
            pass
        counting.append(time.perf_counter() - begun)
    return {
        "filling": pauses_of(list(map(min, *filling[1:]))),
        "full": pauses_of(list(map(min, *full[1:]))),
        "filling, one run by wall time as it came": pauses_of(filling[0]),
        "full, one run by wall time as it came": pauses_of(full[0]),
        "a loop that only counts, by wall time": pauses_of(counting),
    }


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure_memory(size: int, writes: int) -> Any:
    load = Load(fresh_window(), size, writes=writes)
    gc.collect()
    before = resident_bytes()
    load.fill()
    filled = resident_bytes() - before
    assert isinstance(load.window, RecentWrites)
    counted = load.window.bytes_used()
    load.fill()
    gc.collect()
    return {
        "resident_bytes_per_key": round(filled / size, 1),
        "counted_bytes_per_key": round(counted / size, 1),
        "resident_bytes_per_key_after_one_more_window": round((resident_bytes() - before) / size, 1),
    }


def measure_readers(size: int) -> Any:
    load = Load(fresh_window(), size)
    load.fill()
    begun = time.thread_time()
    gc.collect()
    collection = time.thread_time() - begun
    window = load.window
    found: dict[str, Any] = {"full_garbage_collection_ms": round(1000 * collection, 1)}
    for share in (0.0, 0.001, 0.01, 0.1, 0.5, 1.0):
        asked = max(window.floor, load.version - max(LAG, int(share * load.span)))
        made = load.transactions(500)
        # A key that no one writes is looked for everywhere; so is the range behind it.
        begun = time.thread_time()
        for txn in made:
            window.changed_after(txn.reads[0] + b"-", asked)
        point = time.thread_time() - begun
        begun = time.thread_time()
        for txn in made:
            window.range_changed_after(txn.reads[0] + b"-", txn.reads[0] + b"~", asked)
        spread = time.thread_time() - begun
        found[f"{load.version - asked:,} versions behind"] = {
            "point_us": round(1e6 * point / len(made), 1),
            "range_us": round(1e6 * spread / len(made), 1),
        }
    return found


def measure_defaults() -> Any:
    window = RecentWrites(0, bytes_max=256 << 20)
    seconds = 100
    load = Load(window, seconds * TARGET_COMMITS, writes=1)
    for _ in range(seconds * TARGET_COMMITS):
        load.version += 1
        window.record(load.version, [Write(load.next_key(), b"")])
        if load.version % BATCH == 0:
            window.expire(load.version - 60 * TARGET_COMMITS)
    kept = window.last_version - window.floor
    return {"versions_kept": kept, "seconds_kept": round(kept / TARGET_COMMITS, 1), "bytes_used": window.bytes_used()}


def in_a_fresh_process(measurement: str, *arguments: object) -> Any:
    command = [sys.executable, __file__, "--measure", json.dumps([measurement, *arguments])]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


MEASUREMENTS: dict[str, Callable[..., Any]] = {
    "throughput": measure_throughput,
    "pauses": measure_pauses,
    "memory": measure_memory,
    "readers": measure_readers,
    "defaults": measure_defaults,
}


def lines(found: Any, indent: int = 2) -> Iterator[str]:
    for name, value in found.items():
        if isinstance(value, dict) and any(isinstance(inner, dict) for inner in value.values()):
            yield " " * indent + name
            yield from lines(value, indent + 2)
        elif isinstance(value, dict):
            yield f"{' ' * indent}{name:56s} " + "  ".join(f"{key} {inner}" for key, inner in value.items())
        else:
            yield f"{' ' * indent}{name:56s} {value}"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")
    arguments.add_argument("--quick", action="store_true", help="a hundredth of the size, to see that it runs")
    arguments.add_argument("--only", choices=MEASUREMENTS, help="one measurement")
    arguments.add_argument("--measure", help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.measure:
        name, *given = json.loads(chosen.measure)
        print(json.dumps(MEASUREMENTS[name](*given)))
        return
    sizes = [10_000, 100_000] if chosen.quick else [10_000, 1_000_000, 10_000_000]
    largest = sizes[-1]
    plan: list[tuple[str, str, list[object]]] = [
        ("memory, 2 writes a transaction", "memory", [largest, 2]),
        ("memory, 1 write a transaction", "memory", [largest, 1]),
        ("transactions a second", "throughput", [sizes, 5, 12_800 if chosen.quick else 102_400]),
        (f"pauses of a batch, {largest:,} keys", "pauses", [largest, 2, largest * 3 // 20]),
        (f"readers, {largest:,} keys", "readers", [largest]),
        ("defaults", "defaults", []),
    ]
    report: dict[str, Any] = {
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}
    }
    for title, measurement, given in plan:
        if chosen.only in (None, measurement):
            report[title] = in_a_fresh_process(measurement, *given)
            print("\n".join(lines({title: report[title]}, 0)), flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
