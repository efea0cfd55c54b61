"""How many commits a Python program can get at all from a Python process that syncs them: a bare service that keeps
items and nothing else, with Holdfast and etcd in turns.

    python benchmarks/programs_floor.py [--rounds N] [--seconds S] [--folder DIRECTORY]

The bare program gathers what its tasks (or threads) offer at the same time into one request, as our client does, and
the bare service answers each item by a line. Neither has HTTP, a transaction's rules, versions, conflicts, attempts, a
log format, time limits, retries or metrics; no error is handled. What is left is what a commit cannot do without in
Python: the item as JSON, a future (or a lock) for its caller, its decoding, one object for all items of a request by
the same writer process and the same steps on the disk as a directory's log has them, and one line of JSON back.

"to etcd" is the rate over that of aetcd in the same round, the median of the rounds: what a program could reach if
the commit log itself cost nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count as counting
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from _processes import Served, etcd, free_port, holdfast
from programs import missing
from programs_peers.clients import CLIENTS
from programs_peers.ways import Tasks

from holdfast.commit.format.transaction import Write
from holdfast.objects.directory.store import DirectoryStore
from holdfast.objects.port import CREATED

ROWS = (("tasks", 1), ("tasks", 16), ("tasks", 64), ("tasks", 256), ("threads", 16))
WARM_SECONDS = 0.2
HEAD_BYTES = 4


class Kept(msgspec.Struct):
    """The line that answers an item."""

    id: int


class Item(msgspec.Struct):
    """What a caller writes."""

    id: int
    operations: list[Write]


_ITEMS = msgspec.json.Decoder(Item)
_KEPT = msgspec.json.Decoder(Kept)
_encode = msgspec.json.Encoder().encode


class BareService(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, store: DirectoryStore, numbers: Iterator[int]) -> None:
        self._store = store
        self._numbers = numbers
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        data = self._received + data
        if len(data) < HEAD_BYTES or len(data) < HEAD_BYTES + int.from_bytes(data[:HEAD_BYTES], "little"):
            self._received = data
            return
        self._received = b""
        items = _ITEMS.decode_lines(data[HEAD_BYTES:])
        body = b"".join([part for item in items for write in item.operations for part in (write.key, write.value)])
        self._task = asyncio.get_running_loop().create_task(self._keep(items, body))

    async def _keep(self, items: list[Item], body: bytes) -> None:
        answer = await self._store.create(f"countdown/{next(self._numbers):020d}", body)
        assert answer is CREATED, "the folder is new"
        self._transport.write(b"".join([b'{"id":%d}\n' % item.id for item in items]))


async def serve(folder: str, port: int) -> None:
    store = DirectoryStore.open(Path(folder), create_missing=True)
    numbers = counting(10**19, -1)
    server = await asyncio.get_running_loop().create_server(lambda: BareService(store, numbers), "127.0.0.1", port)
    print("ready", flush=True)
    await server.serve_forever()


def request_of(items: list[bytes]) -> bytes:
    body = b"\n".join(items)
    return len(body).to_bytes(HEAD_BYTES, "little") + body


class BareTasks(asyncio.Protocol):
    """What the tasks offer while a request is under way leaves together when it is answered."""

    def __init__(self) -> None:
        self._offered: list[tuple[bytes, asyncio.Future[None]]] = []
        self._sent: list[asyncio.Future[None]] = []
        self._answered = 0
        self._turn_ends = False
        self._rest = b""
        self._count = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._loop = asyncio.get_running_loop()

    async def commit(self, key: bytes, value: bytes) -> None:
        self._count += 1
        future = self._loop.create_future()
        self._offered.append((_encode(Item(self._count, [Write(key, value)])), future))
        if not self._sent and not self._turn_ends:
            self._turn_ends = True
            self._loop.call_soon(self._send)
        await future

    def _send(self) -> None:
        self._turn_ends = False
        offered, self._offered = self._offered, []
        self._sent = [future for _, future in offered]
        self._transport.write(request_of([item for item, _ in offered]))

    def data_received(self, data: bytes) -> None:
        whole, _, self._rest = (self._rest + data).rpartition(b"\n")
        for _ in _KEPT.decode_lines(whole):
            self._sent[self._answered].set_result(None)
            self._answered += 1
        if self._answered == len(self._sent):
            self._sent, self._answered = [], 0
            if self._offered and not self._turn_ends:
                self._turn_ends = True
                self._loop.call_soon(self._send)


class BareThreads:
    """The thread that finds nothing under way sends what waits, once the others are back, and wakes them."""

    def __init__(self, port: int, threads: int) -> None:
        import socket

        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lock = threading.Lock()
        self._threads = threads
        self._offered: list[tuple[bytes, threading.Lock]] = []
        self._count = 0

    def commit(self, key: bytes, value: bytes) -> None:
        waiter = threading.Lock()
        waiter.acquire()
        with self._lock:
            self._count += 1
            self._offered.append((_encode(Item(self._count, [Write(key, value)])), waiter))
            leads = len(self._offered) == self._threads
            offered = self._offered
            if leads:
                self._offered = []
        if not leads:
            waiter.acquire()
            return
        self._socket.sendall(request_of([item for item, _ in offered]))
        data = b""
        while data.count(b"\n") < len(offered):
            data += self._socket.recv(1 << 16)
        _KEPT.decode_lines(data)
        for _, each in offered:
            each.release()


@contextmanager
def bare(folder: Path) -> Iterator[Served]:
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = [sys.executable, __file__, "--serve", str(folder / "log"), str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline(), "the bare service has begun"
        yield Served("bare", process, port, folder)
    finally:
        process.kill()
        process.wait()


Commit = Callable[[bytes, bytes], Awaitable[None]]


async def burst_of_tasks(commit: Commit, tasks: int, seconds: float) -> float:
    """Commits a second."""

    async def task(number: int, until: float) -> int:
        made = 0
        while time.monotonic() < until:
            await commit(b"%d-%d-%d" % (time.monotonic_ns(), number, made), bytes(100))
            made += 1
        return made

    rate = 0.0
    for duration in (WARM_SECONDS, seconds):
        began = time.monotonic()
        counts = await asyncio.gather(*(task(number, began + duration) for number in range(tasks)))
        rate = sum(counts) / (time.monotonic() - began)
    return rate


def burst_of_threads(commit: Callable[[bytes, bytes], object], threads: int, seconds: float) -> float:
    """Commits a second. Each thread makes as many as the others: those of a bare request wait for each other."""
    rounds, rate = 50, 0.0
    for _ in range(2):  # the first one warms up, and tells how many commits the second one makes

        def work(number: int, rounds: int = rounds) -> None:
            for made in range(rounds):
                commit(b"%d-%d-%d" % (time.monotonic_ns(), number, made), bytes(100))

        began = time.monotonic()
        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        rate = rounds * threads / (time.monotonic() - began)
        rounds = max(1, int(rate * seconds / threads))
    return rate


async def tasks_of(system: str, port: int, tasks: int, seconds: float) -> float:
    if system == "bare":
        transport, protocol = await asyncio.get_running_loop().create_connection(BareTasks, "127.0.0.1", port)
        try:
            return await burst_of_tasks(protocol.commit, tasks, seconds)
        finally:
            transport.close()
    client = CLIENTS[system](Tasks())
    await client.open(port, tasks)
    try:
        return await burst_of_tasks(client.commit, tasks, seconds)
    finally:
        await client.close()


def threads_of(system: str, port: int, threads: int, seconds: float) -> float:
    if system == "bare":
        return burst_of_threads(BareThreads(port, threads).commit, threads, seconds)
    import holdfast as package

    with package.Client(f"http://127.0.0.1:{port}") as client:
        return burst_of_threads(lambda key, value: client.commit([Write(key, value)]), threads, seconds)


def one_program(system: str, port: int, way: str, count: int, seconds: float) -> float:
    """The rate, from a process of its own."""
    command = [sys.executable, __file__, "--program", system, str(port), way, str(count), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2_000:])
    rate: float = json.loads(done.stdout)
    return rate


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, help="where the services keep their data")
    given = parser.parse_args()
    absent = missing("etcd")
    if absent:
        print(f"not measured: etcd: {absent}")
    systems = {"bare": bare, "holdfast": holdfast} | ({} if absent else {"etcd": etcd})
    rates: dict[tuple[str, int, str], list[float]] = {}
    with tempfile.TemporaryDirectory(dir=given.folder or Path.cwd(), prefix=".bench-") as folder, ExitStack() as stack:
        served = {name: stack.enter_context(start(Path(folder).resolve() / name)) for name, start in systems.items()}
        for number in range(given.rounds):
            for way, callers in ROWS:
                for name in [*systems][number % len(systems) :] + [*systems][: number % len(systems)]:
                    if (way, name) != ("threads", "etcd"):
                        rate = one_program(name, served[name].port, way, callers, given.seconds)
                        rates.setdefault((way, callers, name), []).append(rate)
                print(f"round {number + 1} of {given.rounds}: {callers} {way}", file=sys.stderr, flush=True)
    print("| commits a second | bare | Holdfast | etcd | bare to etcd | Holdfast to etcd | Holdfast to bare |")
    print("|---|---|---|---|---|---|---|")
    for way, callers in ROWS:
        row = {name: rates.get((way, callers, name)) for name in ("bare", "holdfast", "etcd")}

        def ratio(one: list[float] | None, other: list[float] | None) -> str:
            if one is None or other is None:
                return "-"
            return f"{statistics.median(a / b for a, b in zip(one, other, strict=True)):.2f}"

        cells = [f"{statistics.median(found):,.0f}" if found else "-" for found in row.values()]
        ratios = [
            ratio(row[one], row[other]) for one, other in (("bare", "etcd"), ("holdfast", "etcd"), ("holdfast", "bare"))
        ]
        print(f"| {callers} {way} | {' | '.join([*cells, *ratios])} |")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        uvloop.run(serve(sys.argv[2], int(sys.argv[3])))
    elif sys.argv[1:2] == ["--program"]:
        system, port, way, count, seconds = sys.argv[2:]
        if way == "tasks":
            print(json.dumps(asyncio.run(tasks_of(system, int(port), int(count), float(seconds)))))
        else:
            print(json.dumps(threads_of(system, int(port), int(count), float(seconds))))
    else:
        sys.exit(main())
