"""P7: one log, many subscribers, each of whom gets every event.

    python benchmarks/subscribers.py [--subscribers 1,10,100,1000] [--seconds 5] [--json FILE]

A service as shipped; subscribers on ``GET /v1/subscribe``, all read by one process that counts events without decoding
them; a writer that sends streams of commits (one put of 100 bytes each) and lets no subscriber fall more than a few
thousand events behind. The rate is that of all events delivered, by the time until the last subscriber has the last
one. Writer, readers and service share the cores. Every subscriber must end with exactly the events that were committed.
"""

from __future__ import annotations

import argparse
import json
import resource
import selectors
import socket
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from _generators import holdfast_streams
from _processes import Busy, Served, holdfast, machine

LEAD_EVENTS_MAX = 3_000
GROUP = 500
PATIENCE_SECONDS = 60.0
MARK = b"event: transaction"
TARGET = 500_000


@dataclass(frozen=True, slots=True)
class Delivered:
    """One number of subscribers."""

    subscribers: int
    commits: int
    events_per_second: float
    megabytes_per_second: float
    commits_per_second: float
    server_us_per_event: float
    other_cores: float


class Readers:
    """All subscribers, on one thread. A mark cut by a read is found with the next one."""

    def __init__(self, port: int, count: int, after: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._sockets: list[socket.socket] = []
        self.seen = [0] * count
        self.bytes = 0
        self._tails = [b""] * count
        self._ending = threading.Event()
        self.failure: str | None = None
        for number in range(count):
            connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
            connection.sendall(f"GET /v1/subscribe?after={after} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            if not connection.recv(65536).startswith(b"HTTP/1.1 200"):
                raise RuntimeError("a subscription was refused")
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ, number)
            self._sockets.append(connection)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def wait_for(self, events: int) -> None:
        """Until every subscriber has so many. Raises: RuntimeError."""
        until = time.monotonic() + PATIENCE_SECONDS
        while min(self.seen) < events:
            if self.failure or time.monotonic() > until:
                raise RuntimeError(self.failure or f"a subscriber has {min(self.seen)} of {events} events")
            time.sleep(0.001)

    def close(self) -> None:
        self._ending.set()
        self._thread.join()
        for connection in self._sockets:
            connection.close()
        self._selector.close()

    def _read(self) -> None:
        while not self._ending.is_set():
            for key, _ in self._selector.select(0.1):
                connection = key.fileobj
                assert isinstance(connection, socket.socket), "only sockets are registered"
                try:
                    data = connection.recv(1 << 18)
                except BlockingIOError:
                    continue
                if not data:
                    self.failure = "the service closed a subscription"
                    self._ending.set()
                    return
                number: int = key.data
                window = self._tails[number] + data
                self.seen[number] += window.count(MARK)
                self._tails[number] = window[-(len(MARK) - 1) :]
                self.bytes += len(data)


def measure(server: Served, count: int, seconds: float) -> Delivered:
    after = int(json.loads(server.get("/v1/version"))["version"])
    readers = Readers(server.port, count, after)
    commits = 0
    try:
        with Busy(server.pid) as busy:
            began = time.perf_counter()
            while time.perf_counter() - began < seconds:
                sent = holdfast_streams(
                    server.port, after, f"{count}/{commits}", form="msgpack", connections=1, items=GROUP, requests=1
                )
                if sent.errors:
                    raise RuntimeError(f"{sent.errors} commits failed")
                commits += sent.answers
                readers.wait_for(commits - LEAD_EVENTS_MAX)
            readers.wait_for(commits)
            took = time.perf_counter() - began
        if set(readers.seen) != {commits}:
            raise RuntimeError(f"subscribers have {min(readers.seen)} to {max(readers.seen)} of {commits} events")
        return Delivered(
            subscribers=count,
            commits=commits,
            events_per_second=commits * count / took,
            megabytes_per_second=readers.bytes / took / 1e6,
            commits_per_second=commits / took,
            server_us_per_event=busy.server_seconds / (commits * count) * 1e6,
            other_cores=busy.other_cores,
        )
    finally:
        readers.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subscribers", default="1,10,100,1000")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    about = machine()
    print("  ".join(f"{name} {value}" for name, value in about.items()))
    found: list[Delivered] = []
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as folder, holdfast(Path(folder)) as server:
        for count in map(int, given.subscribers.split(",")):
            found.append(one := measure(server, count, given.seconds))
            print(
                f"{one.subscribers:6,} subscribers {one.events_per_second:12,.0f} events/s"
                f" {one.megabytes_per_second:8.1f} MB/s"
                f" {one.commits_per_second:9,.0f} commits/s {one.server_us_per_event:8.2f} us/event,"
                f" others {one.other_cores:.2f} cores",
                flush=True,
            )
    best = max(each.events_per_second for each in found)
    print(f"P7: {best:,.0f} events/s, target {TARGET:,}: {'PASS' if best >= TARGET else 'miss'}")
    if given.json:
        given.json.write_text(json.dumps({"machine": about, "found": [asdict(each) for each in found]}, indent=2))


if __name__ == "__main__":
    main()
