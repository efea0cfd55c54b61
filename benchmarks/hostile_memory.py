"""What hostile connections cost in memory: resident bytes of service and view above idle, at their peak.

    python benchmarks/hostile_memory.py [--connections 1000] [--seconds 15] [--ways a,b] [--json FILE]

A service with tokens, over plain HTTP. For each way it starts again; connections send what the way says and read
nothing. Bounds: ``READER_BYTES`` for a token that may only read, ``STRANGER_BYTES`` and ``CONNECTION_BYTES`` for each
connection without a token. Ways of a token that may write are shown without a bound.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.client
import json
import os
import resource
import selectors
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from _processes import Served, holdfast, machine

from holdfast import Client, HoldfastError, Write

MEBIBYTE = 1 << 20
READER_BYTES = 256 * MEBIBYTE
STRANGER_BYTES = 64 * MEBIBYTE
CONNECTION_BYTES = 65_536
TOKENS = {"read": "read-0123456789abcdef", "write": "write-0123456789abcdef", "admin": "admin-0123456789abcdef"}
VALUE_BYTES = 700_000
KEYS = 60
STORED = 30
"""Messages of a store."""
RECEIVE_BYTES = 4_096
SAMPLE_SECONDS = 0.1
QUIET_SECONDS = 3.0
"""The attack is over when nothing more was sent for this long."""

PAUSE = b""
"""In what is sent: wait for ``PAUSE_SECONDS``, until a handshake was answered."""
PAUSE_SECONDS = 4.0

Send = Callable[[int], Iterator[bytes]]


@dataclass(frozen=True, slots=True)
class Way:
    """One way to attack: who it is (no token, or a role), and what connection number N sends."""

    name: str
    who: str
    send: Send
    commits: int = 0
    """Commits of ``VALUE_BYTES`` each that another client makes meanwhile."""
    lasts: bool = False
    """Whether more may come to wait although nothing more is sent."""

    def bound(self, connections: int) -> int | None:
        """The most that it may cost, None where nothing is promised."""
        if self.who == "":
            return STRANGER_BYTES + CONNECTION_BYTES * connections
        return READER_BYTES if self.who == "read" else None


@dataclass(frozen=True, slots=True)
class Cost:
    """What one way cost."""

    way: str
    who: str
    connections: int
    peak_mebibytes: float
    bound_mebibytes: float | None
    ended: int
    """Connections that the service closed."""
    sent_mebibytes: float
    commit_ms_max: float
    """The slowest of another client's requests meanwhile."""

    @property
    def is_too_much(self) -> bool:
        """Whether it is above its bound."""
        return self.bound_mebibytes is not None and self.peak_mebibytes > self.bound_mebibytes


def head(line: str, who: str = "", **fields: object) -> bytes:
    """A whole head."""
    lines = [f"{line} HTTP/1.1", "Host: localhost"]
    lines += [f"Authorization: Bearer {TOKENS[who]}"] if who else []
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def once(data: bytes) -> Send:
    return lambda _: iter([data])


def again(data: bytes, times: int = 4_000_000) -> Send:
    """The same request, pipelined until the socket takes no more."""
    piece = data * max(1, 65_536 // len(data))

    def send(_: int) -> Iterator[bytes]:
        for _ in range(max(1, times * len(data) // len(piece))):
            yield piece

    return send


def frame(opcode: int, data: bytes, *, is_last: bool = True) -> bytes:
    """A frame of a client, with a mask of zeros."""
    size = len(data)
    length = bytes([0x80 | size]) if size < 126 else bytes([0x80 | 127]) + size.to_bytes(8, "big")
    return bytes([opcode | (0x80 if is_last else 0)]) + length + bytes(4) + data


def socket_head(number: int, who: str) -> bytes:
    path = f"/v1/stores/s/durables/d{number}/subscribe?subscriber=s&template=each"
    return head(
        f"GET {path}", who, Upgrade="websocket", Connection="Upgrade", Sec_WebSocket_Version=13,
        Sec_WebSocket_Key=base64.b64encode(bytes(16)).decode(), Sec_WebSocket_Protocol="holdfast.stores.v1+json",
    )  # fmt: skip


def sockets(*frames: bytes) -> Send:
    return lambda number: iter([socket_head(number, "write"), PAUSE, *frames])


CREDIT = frame(1, b'{"type":"credit","messages":1000}')
BODY = b"x" * 900_000
HEADS = b"X-Filler: " + b"x" * 8_000 + b"\r\n"

WAYS = (
    Way("silent", "", lambda _: iter(())),
    Way("half heads of a fast route", "", once(head("POST /v1/commit")[:-2] + HEADS * 7)),
    Way("half heads of the framework", "", once(head("GET /v1/nothing")[:-2] + HEADS * 7)),
    Way("half bodies of a fast route", "", once(head("POST /v1/commit", Content_Length=1_000_000) + BODY)),
    Way("half bodies of the framework", "", once(head("PUT /v1/retention/a", Content_Length=1_000_000) + BODY)),
    Way("pipelined /livez", "", again(head("GET /livez"))),
    Way("pipelined unknown paths", "", again(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")),
    Way("pipelined /openapi.json", "", again(head("GET /openapi.json"))),
    Way("half handshakes", "", once(socket_head(0, "")[:-2])),
    Way("ranges unread", "read", once(head("GET /v1/range?limit=10000", "read"))),
    Way("ranges unread and pipelined", "read", again(head("GET /v1/range?limit=10000", "read"))),
    Way("keys unread and pipelined", "read", again(head("GET /v1/keys/a2V5MA", "read"))),
    Way("history unread", "read", once(head("GET /v1/subscribe?after=0", "read")), lasts=True),
    Way("live stream unread", "read", once(head(f"GET /v1/subscribe?after={KEYS}", "read")), 60, lasts=True),
    Way("filtered live stream unread", "read",
        once(head(f"GET /v1/subscribe?after={KEYS}&prefix_text=k", "read")), 60, lasts=True),
    Way("snapshots unread", "read", once(head("GET /v1/snapshot", "read"))),
    Way("arrow snapshots unread", "read", once(head("GET /v1/snapshot?format=arrow", "read"))),
    Way("pipelined /metrics", "read", again(head("GET /metrics", "read"))),
    Way("pipelined /v1/version", "read", again(head("GET /v1/version", "read"))),
    Way("browsed messages unread", "read", once(head("GET /v1/stores/s/durables/shown/browse?max=500", "read"))),
    Way("half bodies no reader may send", "read", once(head("POST /v1/commit", "read", Content_Length=10**6) + BODY)),
    Way("bodies of a GET", "read", once(head("GET /v1/log/objects", "read", Content_Length=10**6) + BODY)),
    Way("WebSockets with messages unread", "write", sockets(CREDIT), lasts=True),
    Way("WebSockets with half a message", "write", sockets(frame(1, b'{"type":"' + BODY, is_last=False))),
    Way("half bodies", "write", once(head("POST /v1/commit", "write", Content_Length=1_000_000) + BODY)),
    Way("half items of commit streams", "write", once(
        head("POST /v1/commits", "write", Content_Length=10**9) + b'{"request_id":"' + BODY)),
)  # fmt: skip


def resident_bytes(served: Served) -> int:
    """Of the service and of every process that it started."""
    total, left = 0, [served.pid]
    while left:
        pid = left.pop()
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
            left += [int(child) for task in Path(f"/proc/{pid}/task").iterdir()
                     for child in (task / "children").read_text().split()]  # fmt: skip
    return total


class Attack:
    """Connections that send and read nothing. An answer's first bytes stay in their small buffers."""

    def __init__(self, port: int, connections: int, way: Way) -> None:
        self._selector = selectors.DefaultSelector()
        self.sent = 0
        self.ended = 0
        self._lasts = way.lasts
        self._open: list[socket.socket] = []
        for number in range(connections):
            peer = socket.socket()
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
            peer.settimeout(10.0)
            try:
                peer.connect(("127.0.0.1", port))
            except OSError:
                self.ended += 1
                peer.close()
                continue
            peer.setblocking(False)
            self._open.append(peer)
            self._selector.register(peer, selectors.EVENT_WRITE, [way.send(number), b"", 0.0])

    def run(self, seconds: float) -> None:
        """Send until nothing more is taken, at most for ``seconds``."""
        until, quiet_from = time.monotonic() + seconds, time.monotonic()
        while time.monotonic() < until and (self._lasts or time.monotonic() - quiet_from < QUIET_SECONDS):
            for key, _ in self._selector.select(SAMPLE_SECONDS) if self._selector.get_map() else []:
                quiet_from = time.monotonic()
                peer, state = key.fileobj, key.data
                assert isinstance(peer, socket.socket)
                if not state[1]:
                    if time.monotonic() < state[2]:
                        continue
                    piece = next(state[0], None)
                    if piece is None:
                        self._selector.unregister(peer)
                        continue
                    if piece == PAUSE:
                        state[2] = time.monotonic() + PAUSE_SECONDS
                        continue
                    state[1] = piece
                try:
                    count = peer.send(state[1])
                    self.sent += count
                    state[1] = state[1][count:]
                except BlockingIOError:
                    pass
                except OSError:
                    self._selector.unregister(peer)
            if not self._selector.get_map():
                time.sleep(SAMPLE_SECONDS)

    def close(self) -> None:
        """End all connections, and count those that the service had ended."""
        for peer in self._open:
            try:
                while peer.recv(65_536):
                    pass
                self.ended += 1
            except BlockingIOError:
                pass
            except OSError:
                self.ended += 1
            peer.close()
        self._selector.close()


class Watch(threading.Thread):
    """The peak of resident memory, and how long requests of another client take meanwhile."""

    def __init__(self, served: Served, commits: int) -> None:
        super().__init__()
        self._served = served
        self._commits = commits
        self.idle = resident_bytes(served)
        self.peak = 0
        self.slowest = 0.0
        self.is_over = threading.Event()

    def run(self) -> None:
        sampling = threading.Thread(target=self._sample)  # requests may take long
        sampling.start()
        try:
            self._ask()
        finally:
            sampling.join()

    def _sample(self) -> None:
        while not self.is_over.wait(SAMPLE_SECONDS):
            self.peak = max(self.peak, resident_bytes(self._served) - self.idle)

    def _ask(self) -> None:
        number = 0
        with Client(self._served.url, token=TOKENS["admin"]) as client:
            while not self.is_over.wait(SAMPLE_SECONDS):
                number += 1
                size = VALUE_BYTES if number <= self._commits else 10
                began = time.monotonic()
                with contextlib.suppress(HoldfastError):  # how long it took is what matters here
                    client.commit([Write(b"key%d" % (number % 7), bytes(size))])
                self.slowest = max(self.slowest, time.monotonic() - began)


def fill(served: Served) -> None:
    """Keys, a snapshot, and messages of a store."""
    with Client(served.url, token=TOKENS["admin"]) as client:
        for number in range(KEYS):
            client.commit([Write(b"key%d" % number, os.urandom(VALUE_BYTES))])
        client.range(b"key0", b"key1")
        ask(served, "POST", "/v1/admin/snapshot", {})
        ask(
            served,
            "PUT",
            "/v1/stores/s",
            {"durables": {"shown": {"type": "shared"}}, "templates": {"each": {"type": "standard"}}},
        )
        body = base64.b64encode(bytes(VALUE_BYTES)).decode()
        for _ in range(STORED):
            ask(served, "POST", "/v1/stores/s/messages", {"messages": [{"body": body}]})
        while json.loads(ask(served, "GET", "/v1/admin/snapshot"))["state"] == "running":
            time.sleep(0.1)


def ask(served: Served, method: str, path: str, body: object = None) -> bytes:
    """An administrator's request, repeated while the service cannot serve it yet."""
    fields = {"Authorization": f"Bearer {TOKENS['admin']}", "Content-Type": "application/json"}
    while True:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)) as connection:
            connection.request(method, path, None if body is None else json.dumps(body), fields)
            answer = connection.getresponse()
            data = answer.read()
        if answer.status < 400:
            return data
        if answer.status != 503:
            raise RuntimeError(f"{method} {path}: {data.decode()}")
        time.sleep(0.1)


def measure(folder: Path, way: Way, connections: int, seconds: float) -> Cost:
    """Start a service on the log in ``folder``, which is filled the first time; attack it, and end it."""
    is_new = not folder.joinpath("log").exists()
    with holdfast(folder) as served:
        if is_new:
            fill(served)
        ask(served, "GET", "/v1/range?limit=1")
        time.sleep(2.0)
        watch = Watch(served, way.commits)
        watch.start()
        attack = Attack(served.port, connections, way)
        try:
            attack.run(seconds)
        finally:
            watch.is_over.set()
            watch.join()
            attack.close()
    bound = way.bound(connections)
    return Cost(
        way.name, way.who or "no token", connections, round(watch.peak / MEBIBYTE, 1),
        None if bound is None else bound / MEBIBYTE, attack.ended, round(attack.sent / MEBIBYTE, 1),
        round(watch.slowest * 1000, 1),
    )  # fmt: skip


def main() -> int:
    """Run the ways that were asked for, and print a line for each."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--connections", type=int, default=1_000)
    arguments.add_argument("--seconds", type=float, default=15.0)
    arguments.add_argument("--ways", default="", help="parts of names, with commas; all without it")
    arguments.add_argument("--json", type=Path)
    asked = arguments.parse_args()
    os.environ["HOLDFAST_STORES__STATISTICS_SECONDS"] = "0"
    os.environ["HOLDFAST_SERVER__TOKENS"] = ",".join(f"{role}:{token}" for role, token in TOKENS.items())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * asked.connections)), hard))
    wanted = [part for part in asked.ways.split(",") if part]
    costs: list[Cost] = []
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        for way in WAYS:
            if wanted and not any(part in way.name for part in wanted):
                continue
            cost = measure(Path(folder), way, asked.connections, asked.seconds)
            costs.append(cost)
            print(
                f"{cost.way:38} {cost.who:9} {cost.peak_mebibytes:8.1f} of {cost.bound_mebibytes or 0:.0f} MiB"
                f"{'  TOO MUCH' if cost.is_too_much else ''}  ended {cost.ended}  sent {cost.sent_mebibytes} MiB"
                f"  others waited {cost.commit_ms_max} ms",
                flush=True,
            )
    if asked.json is not None:
        asked.json.write_text(json.dumps([asdict(cost) for cost in costs], indent=2))
    return any(cost.is_too_much for cost in costs)


if __name__ == "__main__":
    raise SystemExit(main())
