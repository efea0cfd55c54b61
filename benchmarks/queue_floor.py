"""How far the embedded queue's targets can be reached at all: what no queue of its format could leave out, beside the
queue and beside the peer that the target names.

    python benchmarks/queue_floor.py [--seconds N] [--folder DIRECTORY]

The unavoidable is a bare loop without a queue around it: no page roll, no index, no mark, no limits, no error handled.

append one by one: the clock, packing what the checksum covers, crc32, storing the frame into a mapped page.
append_many of 1,000: the lengths, joining the messages, crc32, one system call.
append, synced each: one write of 124 bytes into a preallocated file, one data sync.
get and ack: two appends of Holdfast's own, because both must be in the log before they return. Finding the message, its
    lease and whose it is come on top.

Everything takes turns in one process, in slices of a few milliseconds, and of the slices the tenth percentile counts:
what others do to a shared machine meets all alike, and the quick ones least. "At most" is the peer's time over the
unavoidable.
"""

from __future__ import annotations

import argparse
import mmap
import os
import pickle
import statistics
import struct
import sys
import tempfile
import time
import zlib
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from queue_peers.systems import Lmdb, Sqlite3
from queue_peers.worker import made
from rich.console import Console
from rich.table import Table

from holdfast.queue import Queue
from holdfast.queue.format.checksum import CRC32C

BATCH = made(100)
MESSAGE = BATCH[0]
COMMAND = bytes(17)
"""As long as what ``get`` and ``ack`` write down."""
FRAME_BYTES = 24 + len(MESSAGE)
PAGE_BYTES = 64 << 20
JOBS = 2_000_000
PAUSE_S = 0.002
SLICES_MIN = 20


@dataclass(frozen=True, slots=True)
class Step:
    """Something that is timed: ``run(n)`` does it so often; ``slice`` is a few milliseconds of it."""

    name: str
    run: Callable[[int], None]
    slice: int


def each(action: Callable[[], object]) -> Callable[[int], None]:
    def run(times: int) -> None:
        for _ in range(times):
            action()

    return run


class Log(Protocol):
    """Something with ``append``. A step holds it, and not the bound method: a queue that is dropped is closed."""

    def append(self, message: bytes, /) -> object: ...


def appends(log: Log, message: bytes = MESSAGE, count: int = 1) -> Callable[[int], None]:
    def run(times: int) -> None:
        append = log.append
        for _ in range(times * count):
            append(message)

    return run


class Page:
    """A preallocated file, used from its start again when it is full: what a page costs before it is used is left
    out."""

    def __init__(self, path: Path) -> None:
        self.file = os.open(path, os.O_CREAT | os.O_RDWR)
        os.posix_fallocate(self.file, 0, PAGE_BYTES)
        self.map = mmap.mmap(self.file, PAGE_BYTES)
        self.position = 0

    def room(self, size: int) -> int:
        at = self.position if self.position + size <= PAGE_BYTES else 0
        self.position = at + size
        return at

    def store(self, times: int) -> None:
        """The C calls of one append after the other, on local names."""
        pack, store = struct.Struct("<100sIqQ").pack, struct.Struct("<IIqQ100s").pack_into
        clock, checksum, page, message, size = time.time_ns, zlib.crc32, self.map, MESSAGE, len(MESSAGE)
        position = self.room(times * FRAME_BYTES)
        for _ in range(times):
            time_ns = clock()
            store(page, position, size, checksum(pack(message, size, time_ns, 1), 1), time_ns, 1, message)
            position += FRAME_BYTES

    def write_batch(self) -> None:
        lengths = list(map(len, BATCH))
        same = lengths.count(lengths[0]) == len(lengths)
        table = lengths[0].to_bytes(4, "little") * len(lengths) if same else array("I", lengths).tobytes()
        joined = b"".join(BATCH)
        check = zlib.crc32(joined, zlib.crc32(table))
        head = struct.pack("<IIqQ", len(table) + len(joined), check, time.time_ns(), len(BATCH))
        os.pwritev(self.file, (head, table, joined), self.room(len(head) + len(table) + len(joined)))

    def write_synced(self) -> None:
        head = struct.pack("<IIqQ", len(MESSAGE), zlib.crc32(MESSAGE), time.time_ns(), 1)
        os.pwritev(self.file, (head, MESSAGE), self.room(FRAME_BYTES))
        os.fdatasync(self.file)


def peer_jobs(folder: Path) -> Callable[[], object]:
    """persist-queue's, without sync, which it does not offer."""
    from persistqueue import SQLiteAckQueue

    filled: Any = SQLiteAckQueue(str(folder))
    rows = ((pickle.dumps(MESSAGE, protocol=4), time.time()) for _ in range(JOBS // 20))
    filled._putter.executemany("INSERT INTO ack_queue_default (data, timestamp, status) VALUES (?, ?, 0)", rows)
    filled._putter.commit()
    jobs: Any = SQLiteAckQueue(str(folder))
    jobs._putter.execute("PRAGMA synchronous=NORMAL")

    def step() -> None:
        jobs.ack(id=jobs.get(raw=True)["pqid"])

    return step


def own_jobs(queue: Queue) -> Callable[[], object]:
    for _ in range(JOBS // len(BATCH)):
        queue.append_many(BATCH)
    jobs = queue.work_queue("floor")

    def step() -> None:
        job = jobs.get()
        assert job is not None, "there are more jobs than are taken"
        jobs.ack(job)

    return step


def groups(folder: Path) -> dict[str, tuple[list[Step], dict[str, float]]]:
    """For each target: what is timed, the unavoidable first, Holdfast second; and what is wanted over which peer."""

    def new(name: str) -> Path:
        path = folder / name
        path.mkdir()
        return path

    page = Page(folder / "page")
    queue, synced = Queue(folder / "queue"), Queue(folder / "synced", sync="always")
    commands = Queue(folder / "commands", page_size=512 << 10)
    batches, quick = Queue(folder / "batches"), Queue(folder / "crc32c", checksum=CRC32C)
    lmdb, lmdb_many = Lmdb(new("lmdb")), Lmdb(new("lmdb many"))
    sqlite, sqlite_synced = Sqlite3(new("sqlite3")), Sqlite3(new("sqlite3 synced"), synced=True)
    return {
        "append one by one": (
            [
                Step("the unavoidable", page.store, 1000),
                Step("holdfast", appends(queue), 1000),
                Step("lmdb", appends(lmdb), 200),
            ],
            {"lmdb": 6},
        ),
        "append_many of 1,000": (
            [
                Step("the unavoidable", each(page.write_batch), 10),
                Step("holdfast", each(lambda: batches.append_many(BATCH)), 10),
                Step("holdfast crc32c", each(lambda: quick.append_many(BATCH)), 10),
                Step("lmdb", each(lambda: lmdb_many.append_many(BATCH)), 5),
                Step("sqlite3", each(lambda: sqlite.append_many(BATCH)), 1),
            ],
            {"lmdb": 2, "sqlite3": 20},
        ),
        "append, synced each": (
            [
                Step("the unavoidable", each(page.write_synced), 5),
                Step("holdfast", appends(synced), 5),
                Step("sqlite3", appends(sqlite_synced), 5),
            ],
            {"sqlite3": 1.5},
        ),
        "get and ack": (
            [
                Step("the unavoidable", appends(commands, COMMAND, 2), 500),
                Step("holdfast", each(own_jobs(Queue(folder / "jobs"))), 200),
                Step("persist-queue ack, unsynced", each(peer_jobs(new("peer"))), 20),
            ],
            {"persist-queue ack, unsynced": 50},
        ),
    }


def quickest_tenth_us(steps: list[Step], seconds: float) -> dict[str, float]:
    found: dict[str, list[float]] = {step.name: [] for step in steps}
    for step in steps:
        step.run(step.slice)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found[steps[0].name]) < SLICES_MIN:
        for step in steps:
            time.sleep(PAUSE_S)  # a slice begins with a whole share of the processor
            began = time.perf_counter()
            step.run(step.slice)
            found[step.name].append((time.perf_counter() - began) * 1e6 / step.slice)
    return {name: statistics.quantiles(values, n=10)[0] for name, values in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each target: 10")
    parser.add_argument("--folder", type=Path, help="where the logs are kept while it runs")
    given = parser.parse_args()
    console = Console(width=150, highlight=False)
    table = Table("target, 100 bytes", "what", "us", "over the peer", "at most", "wanted")
    with tempfile.TemporaryDirectory(dir=given.folder or Path.cwd(), prefix=".bench-") as folder:
        for target, (steps, wanted) in groups(Path(folder)).items():
            found = quickest_tenth_us(steps, given.seconds)
            floor = found["the unavoidable"]
            for step in steps:
                us = found[step.name]
                if step.name in wanted:
                    ratios = ["", f"{us / floor:.1f} x", f"{wanted[step.name]:g} x"]
                elif step.name.startswith("holdfast"):
                    ratios = [", ".join(f"{peer} {found[peer] / us:.1f} x" for peer in wanted), "", ""]
                else:
                    ratios = ["", "", ""]
                table.add_row(target, step.name, f"{us:,.2f}", *ratios)
    console.print(table)
    sys.stdout.flush()
    os._exit(0)  # nothing is closed: it would be synced first, in a folder that is gone


if __name__ == "__main__":
    sys.exit(main())
