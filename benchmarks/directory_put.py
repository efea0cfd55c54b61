"""What a PUT to the directory store costs a busy leader: worker processes against threads of the leader itself.

A closed loop of 64 clients. A second process stands for the network and the load generator: it hands back each answered
client after 6 us of its own time. The leader spends 15 us of Python and one system call on each commit; with nothing
in flight it writes at once, otherwise when clients / (in flight + 1) commits have queued. A commit adds 450 bytes.

    python benchmarks/directory_put.py [--seconds 2] [--rounds 3] [--path DIR] [--json FILE]

Measured on 2 virtual cores (AMD EPYC), ext4 without a journal, Python 3.11, uvloop. Bare file operations in the same
order, machine otherwise idle, medians of 4 rounds (threads) and 2 (processes):

    writers        commits/s   PUTs/s   PUT p50 / p99 ms   commit p50 / p99 ms
    threads 1         22,500      700     1.20 /  2.5         2.0 /  4.6
    threads 2         26,500    1,000     1.46 /  3.2         1.8 /  3.9
    threads 4         24,900    1,220     1.75 /  3.8         1.9 /  3.9
    processes 1       35,500    1,110     0.81 /  2.4         1.3 /  4.2
    processes 2       38,100    1,260     0.85 /  2.2         1.1 /  2.6
    processes 4       36,800    1,340     0.96 /  2.1         1.2 /  2.2

One process of four threads that share their directory syncs came to 31,000-38,000 and was more code; pre-creating the
next file gained about 60 us a PUT and is kept. The finished store on the same machine while other programs used both
cores (load 2 to 10): equal rates, for then the sum of all CPU decides, but 130-170 us of the leader's own time a PUT
against 370-610 us with threads, and 310-690 us in the workers. So the leader's loop, which is what saturates first,
gets its time back, and pays for it with the second core's.

Removing many files makes the next creates on ext4 slower for minutes (it avoids recently freed inodes, and a disk
mounted with discard stays busy), so the directories of a run stay until all runs are done.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import local
from typing import Protocol

import uvloop

from holdfast.objects.directory.files import PosixFiles
from holdfast.objects.directory.objects import DirectoryObjects
from holdfast.objects.directory.store import DirectoryStore
from holdfast.objects.port import Created

CLIENTS = 64
COMMIT_SECONDS = 15e-6
COMMIT_BYTES = 450
GENERATOR_SECONDS = 6e-6
GENERATOR = """
import socket, sys, time
stream = socket.socket(fileno=int(sys.argv[1]))
cost = float(sys.argv[2])
while answered := stream.recv(4096):
    for _ in answered:
        began = time.perf_counter()
        while time.perf_counter() - began < cost:
            pass
        try:
            stream.send(b"x")
        except BrokenPipeError:
            sys.exit()
"""


class Writer(Protocol):
    async def create(self, key: str, data: bytes) -> bool: ...

    async def close(self) -> None: ...


class InProcesses:
    def __init__(self, root: Path, size: int) -> None:
        self._store = DirectoryStore.open(root)
        self._store._writers._size = size

    async def create(self, key: str, data: bytes) -> bool:
        return await self._store.create(key, data) == Created()

    async def close(self) -> None:
        await self._store.close()


class InThreads:
    """The same file operations in threads of the leader, each with its own objects."""

    def __init__(self, root: Path, size: int) -> None:
        self._root = root
        self._pool = ThreadPoolExecutor(size)
        self._own = local()

    def _create(self, key: str, data: bytes) -> bool:
        if not hasattr(self._own, "objects"):
            self._own.objects = DirectoryObjects(PosixFiles(), str(self._root), os.urandom(8).hex())
        created = self._own.objects.create(key, data)
        self._own.objects.tidy()
        return created

    async def create(self, key: str, data: bytes) -> bool:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._create, key, data)

    async def close(self) -> None:
        self._pool.shutdown()


class Leader:
    """The busy loop: commits arrive, queue, go out in batches, and are answered."""

    def __init__(self, writer: Writer, in_flight_max: int) -> None:
        self._writer = writer
        self._in_flight_max = in_flight_max
        self._enough = CLIENTS // (in_flight_max + 1)
        self._queue: list[float] = []
        self._in_flight = 0
        self._slot = 2**64 - 1
        self._running = True
        self._tasks: set[asyncio.Task[None]] = set()
        self.put_seconds: list[float] = []
        self.commit_seconds: list[float] = []

    async def run(self, seconds: float) -> float:
        loop = asyncio.get_running_loop()
        self._ours, theirs = socket.socketpair()
        generator = subprocess.Popen(  # noqa: ASYNC220 - before anything runs on the loop
            [sys.executable, "-S", "-c", GENERATOR, str(theirs.fileno()), str(GENERATOR_SECONDS)],
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self._ours.setblocking(False)
        self._null = os.open(os.devnull, os.O_WRONLY)
        loop.add_reader(self._ours.fileno(), self._arrived)
        began = time.perf_counter()
        self._ours.send(b"x" * CLIENTS)
        await asyncio.sleep(seconds)
        elapsed = time.perf_counter() - began
        self._running = False
        while self._tasks:
            await asyncio.gather(*self._tasks)
        loop.remove_reader(self._ours.fileno())
        self._ours.close()
        os.close(self._null)
        generator.wait()
        return elapsed

    def _arrived(self) -> None:
        for _ in self._ours.recv(4096):
            began = time.perf_counter()
            while time.perf_counter() - began < COMMIT_SECONDS:
                pass
            os.write(self._null, b"x")
            self._queue.append(began)
        asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        full = self._in_flight >= self._in_flight_max
        if full or not self._queue or not self._running or (self._in_flight and len(self._queue) < self._enough):
            return
        batch, self._queue = self._queue, []
        self._slot -= 1
        self._in_flight += 1
        task = asyncio.get_running_loop().create_task(self._put(self._slot, batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _put(self, slot: int, batch: list[float]) -> None:
        began = time.perf_counter()
        created = await self._writer.create(f"batches/{slot:020d}", bytes(512 + COMMIT_BYTES * len(batch)))
        assert created, "nobody else writes here"
        ended = time.perf_counter()
        self._in_flight -= 1
        self.put_seconds.append(ended - began)
        self.commit_seconds.extend(ended - arrived for arrived in batch)
        if self._running:
            self._ours.send(b"x" * len(batch))
            self._flush()


def measure(kind: str, in_flight: int, seconds: float, path: Path) -> dict[str, float]:
    """One run of one variant, in milliseconds and microseconds as the names say."""

    async def run() -> dict[str, float]:
        writer: Writer = InProcesses(path, in_flight) if kind == "processes" else InThreads(path, in_flight)
        await writer.create("batches/18446744073709551615", bytes(512))
        leader = Leader(writer, in_flight)
        own_before, elapsed = time.process_time(), 0.0
        elapsed = await leader.run(seconds)
        own = time.process_time() - own_before
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        await writer.close()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        workers = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        puts, commits = sorted(leader.put_seconds), sorted(leader.commit_seconds)
        return {
            "commits_per_second": len(commits) / elapsed,
            "puts_per_second": len(puts) / elapsed,
            "put_p50_ms": puts[len(puts) // 2] * 1e3,
            "put_p99_ms": puts[len(puts) * 99 // 100] * 1e3,
            "commit_p50_ms": commits[len(commits) // 2] * 1e3,
            "commit_p99_ms": commits[len(commits) * 99 // 100] * 1e3,
            "leader_cpu_us_per_put": (own - len(commits) * COMMIT_SECONDS) / len(puts) * 1e6,
            "worker_cpu_us_per_put": workers / len(puts) * 1e6,
        }

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def main() -> None:
    """Run every variant in turn, several rounds, and print medians."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seconds", type=float, default=2.0)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--path", type=Path, default=None, help="a directory on the disk to measure")
    arguments.add_argument("--json", type=Path, metavar="FILE")
    chosen = arguments.parse_args()
    base = Path(tempfile.mkdtemp(prefix="directory-put-", dir=chosen.path))
    variants = [(kind, in_flight) for in_flight in (1, 2, 4) for kind in ("threads", "processes")]
    runs: dict[tuple[str, int], list[dict[str, float]]] = {variant: [] for variant in variants}
    try:
        for turn in range(chosen.rounds):
            for kind, in_flight in variants:
                path = base / f"{kind}-{in_flight}-{turn}"
                path.mkdir()
                runs[kind, in_flight].append(measure(kind, in_flight, chosen.seconds, path))
    finally:
        shutil.rmtree(base)
    medians = {
        f"{kind} {in_flight}": {name: statistics.median(run[name] for run in done) for name in done[0]}
        for (kind, in_flight), done in runs.items()
    }
    if chosen.json:
        found = {"python": platform.python_version(), "system": platform.platform(), "medians": medians}
        chosen.json.write_text(json.dumps(found, indent=2))
    print(f"Python {platform.python_version()}, {platform.platform()}, {os.cpu_count()} cores, {chosen.rounds} rounds")
    print(
        f"{'writers':14}{'commits/s':>10}{'PUTs/s':>8}{'PUT p50/p99 ms':>17}{'commit p50/p99 ms':>19}"
        f"{'leader us/PUT':>15}{'worker us/PUT':>15}"
    )
    for name, row in medians.items():
        print(
            f"{name:14}{row['commits_per_second']:10,.0f}{row['puts_per_second']:8,.0f}"
            f"{row['put_p50_ms']:9.2f} /{row['put_p99_ms']:6.2f}{row['commit_p50_ms']:11.2f}"
            f" /{row['commit_p99_ms']:6.2f}{row['leader_cpu_us_per_put']:15.0f}{row['worker_cpu_us_per_put']:15.0f}"
        )


if __name__ == "__main__":
    main()
