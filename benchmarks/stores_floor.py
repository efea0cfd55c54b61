"""How near to Redis one confirmed message at a time can come in Python at all: a service that keeps bytes and nothing
else, beside Holdfast and Redis.

    python benchmarks/stores_floor.py [--seconds N] [--bytes N] [--folder DIRECTORY]

The bare service has neither HTTP nor msgpack, stores, publishers, checksums or marks, and handles no error: it writes
what a read brings into a preallocated file, syncs it, and answers with one byte.

bare, a thread syncs: uvloop for the sockets, one thread for the disk, as in Holdfast: the loop serves others meanwhile.
bare, the loop syncs: everybody else waits while the disk does, which a service cannot have. The least there is.

One asyncio client for all of them, in turns of a hundred messages; of a system's turns the median counts. "at most" is
the time of Redis over the bare one's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop
from _processes import Served, free_port
from rich.console import Console
from rich.table import Table
from stores_peers.clients import CLIENTS
from stores_peers.servers import missing, serving

TURN = 100
FILE_BYTES = 64 << 20
BARE = ("bare, a thread syncs", "bare, the loop syncs")
PEERS = ("holdfast", "redis")


class BareService(asyncio.Protocol):
    """One connection, one request at a time, of which each comes whole: the client here sends no other."""

    def __init__(self, file: int, *, threaded: bool) -> None:
        self._file = file
        self._position = 0
        self._loop = asyncio.get_running_loop()
        self._threaded = threaded
        self._data = b""
        self._given = threading.Lock()
        self._given.acquire()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        if self._threaded:
            threading.Thread(target=self._keep_each, daemon=True).start()

    def data_received(self, data: bytes) -> None:
        if self._threaded:
            self._data = data
            self._given.release()
        else:
            self._keep(data)
            self._answer()

    def _keep_each(self) -> None:
        while True:
            self._given.acquire()
            self._keep(self._data)
            self._loop.call_soon_threadsafe(self._answer)

    def _keep(self, data: bytes) -> None:
        os.pwrite(self._file, data, self._position)
        os.fdatasync(self._file)
        self._position = (self._position + len(data)) % (FILE_BYTES - (1 << 18))

    def _answer(self) -> None:
        self._transport.write(b".")  # type: ignore[attr-defined]  # uvloop's do not derive from asyncio's


async def serve_bare(port: int, path: str, threaded: bool) -> None:
    file = os.open(path, os.O_CREAT | os.O_RDWR)
    os.pwrite(file, bytes(FILE_BYTES), 0)
    os.fsync(file)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: BareService(file, threaded=threaded), "127.0.0.1", port)
    print("ready", flush=True)
    await server.serve_forever()


class BareClient(asyncio.BufferedProtocol):
    """Sends bytes, and waits for the one that answers them."""

    def __init__(self) -> None:
        self._buffer = bytearray(64)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._answered.set_result(None)

    async def publish(self, body: bytes) -> None:
        self._answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport.write(body)  # type: ignore[attr-defined]
        await self._answered


@contextlib.contextmanager
def bare(folder: Path, name: str):  # type: ignore[no-untyped-def]
    port = free_port()
    command = [sys.executable, __file__, "--bare", name, "--port", str(port), "--folder", str(folder / name)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield port
        finally:
            process.terminate()


async def measured(
    ports: dict[str, int], peers: dict[str, Served], body: bytes, seconds: float
) -> dict[str, list[float]]:
    publish: dict[str, Callable[[bytes], Awaitable[None]]] = {}
    loop = asyncio.get_running_loop()
    for name, port in ports.items():
        _, client = await loop.create_connection(BareClient, "127.0.0.1", port)
        publish[name] = client.publish
    clients = {name: CLIENTS[name]() for name in peers}
    for name, peer in peers.items():
        await clients[name].open(peer.port, "floor")
        publish[name] = clients[name].publish
    found: dict[str, list[float]] = {name: [] for name in publish}
    end = time.perf_counter() + seconds * len(publish)
    while time.perf_counter() < end:
        for name, send in publish.items():
            began = time.perf_counter()
            for _ in range(TURN):
                await send(body)
            found[name].append((time.perf_counter() - began) * 1e6 / TURN)
    for name in peers:
        await clients[name].close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each system: 10")
    parser.add_argument("--bytes", type=int, default=100, help="of a message: 100")
    parser.add_argument("--folder", type=Path, help="where the logs are kept while it runs")
    parser.add_argument("--bare", choices=BARE, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.bare:
        uvloop.run(serve_bare(given.port, str(given.folder), given.bare == BARE[0]))
        return 0
    lacking = next(filter(None, map(missing, PEERS)), None)
    if lacking:
        print(lacking, file=sys.stderr)
        return 2
    with contextlib.ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(dir=given.folder or Path.cwd(), prefix=".bench-"))
        )
        peers = {name: stack.enter_context(serving(name, folder / name)) for name in PEERS}
        ports = {name: stack.enter_context(bare(folder, name)) for name in BARE}
        found = asyncio.run(measured(ports, peers, bytes(given.bytes), given.seconds))
    median = {name: statistics.median(times) for name, times in found.items()}
    table = Table(f"one at a time, {given.bytes} bytes", "us a message", "quickest tenth", "over redis", "at most")
    for name, us in median.items():
        ratio = f"{median['redis'] / us:.2f} x"
        quick = statistics.quantiles(found[name], n=10)[0]
        table.add_row(name, f"{us:,.0f}", f"{quick:,.0f}", *(["", ratio] if name in BARE else [ratio, ""]))
    Console(width=110, highlight=False).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
