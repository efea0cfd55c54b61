"""Load: wrk and h2load for single commits, sockets of our own for streams of commits.

Owns: the requests, running the generators, reading their figures, and counting what was answered. Does not own: servers
(``_processes``), comparisons. Every generator shares the cores with the server.

Each transaction is one check and one put of 100 bytes. wrk sends random keys, never the same twice; h2load can send one
body only, so the check is on a key that stays as it is and the put rewrites one key, on both sides alike.
"""

from __future__ import annotations

import base64
import json
import math
import re
import socket
import struct
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import msgpack

__all__ = ["Load", "etcd_grpc", "etcd_json", "holdfast_h2load", "holdfast_json", "holdfast_streams", "percentile"]

VALUE = bytes(range(100))
GRACE_SECONDS = 30.0
_KEYS = """
-- n times an odd constant not divisible by five runs through all twelve-digit numbers: random, and none twice.
-- The digits stand where base64 is expected and decode to nine bytes of key.
local n = 0
local function key()
  n = n + 1
  return PREFIX .. string.format('%012d', (n * 381654729) % 1000000000000)
end
"""
_DONE = """
done = function(summary, latency, requests)
  local failed = summary.errors
  io.write(string.format('RESULT %d %d %d %d %d %d\\n', summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), latency:percentile(99.9),
    failed.connect + failed.read + failed.write + failed.status + failed.timeout))
  io.write(string.format('FAILED connect %d, read %d, write %d, status %d, timeout %d\\n', failed.connect, failed.read,
    failed.write, failed.status, failed.timeout))
end
"""


@dataclass(frozen=True, slots=True)
class Load:
    """What one run of a generator saw. ``in_flight`` requests may have been accepted and not counted."""

    answers: int
    seconds: float
    p50_ms: float
    p99_ms: float
    errors: int
    in_flight: int
    p99_9_ms: float = math.nan
    kinds_of_errors: str = ""

    @property
    def rate(self) -> float:
        return self.answers / self.seconds


def percentile(ordered: list[float], part: float) -> float:
    return ordered[max(0, math.ceil(len(ordered) * part) - 1)] if ordered else math.nan


# Single commits over JSON


def _wrk(url: str, request: str, path: str, prefix: str, connections: int, seconds: float) -> Load:
    script = f"""
local PREFIX = '{prefix}'
local VALUE = '{base64.b64encode(VALUE).decode()}'
{_KEYS}
wrk.method = 'POST'
wrk.headers['Content-Type'] = 'application/json'
request = function()
  local k = key()
  return wrk.format('POST', '{path}', nil, {request})
end
{_DONE}
"""
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write(script)
        file.flush()
        command = ["wrk", "-t1", f"-c{connections}", f"-d{round(seconds)}s", "--latency", "-s", file.name, url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + GRACE_SECONDS, check=True)
    match = re.search(r"RESULT (\d+) (\d+) (\d+) (\d+) (\d+) (\d+)", done.stdout)
    if match is None:
        raise RuntimeError(f"wrk said: {done.stdout[-500:]}")
    answers, duration, p50, p99, p99_9, errors = map(int, match.groups())
    kinds = done.stdout.partition("FAILED")[2].strip()
    return Load(answers, duration / 1e6, p50 / 1000, p99 / 1000, errors, connections, p99_9 / 1000, kinds)


def holdfast_json(url: str, read_version: int, prefix: str, connections: int, seconds: float) -> Load:
    """``POST /v1/commit``: the key must be unchanged since ``read_version``; ``prefix`` makes a run's keys its own."""
    body = (
        f"""'{{"preconditions":[{{"type":"point_read","key":"' .. k .. '","version":{read_version}}}],"""
        """"operations":[{"type":"write","key":"' .. k .. '","value":"' .. VALUE .. '"}]}'"""
    )
    return _wrk(url, body, "/v1/commit", prefix, connections, seconds)


def etcd_json(url: str, prefix: str, connections: int, seconds: float) -> Load:
    """etcd's JSON gateway: the key must never have been written."""
    body = (
        """'{"compare":[{"target":"CREATE","result":"EQUAL","key":"' .. k .. '","create_revision":"0"}],"""
        """"success":[{"requestPut":{"key":"' .. k .. '","value":"' .. VALUE .. '"}}]}'"""
    )
    return _wrk(url, body, "/v3/kv/txn", prefix, connections, seconds)


# h2load: one body


def _h2load(url: str, body: bytes, flags: list[str], connections: int, streams: int, seconds: float) -> Load:
    with tempfile.TemporaryDirectory() as folder:
        data, log = Path(folder) / "body", Path(folder) / "log"
        data.write_bytes(body)
        command = [
            *("h2load", "-t1", f"-c{connections}", f"-m{streams}", "-D", str(round(seconds)), f"--log-file={log}"),
            *("-d", str(data), *flags, url),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + GRACE_SECONDS, check=True)
        rows = [line.split() for line in log.read_text().splitlines()]
    good = sorted(int(row[2]) / 1000 for row in rows if row[1] == "200")
    failed = re.search(r"(\d+) failed, (\d+) errored, (\d+) timeout", done.stdout)
    if failed is None or not good:
        raise RuntimeError(f"h2load said: {done.stdout[-800:]}")
    errors = len(rows) - len(good) + int(failed[1])
    return Load(len(good), round(seconds), percentile(good, 0.5), percentile(good, 0.99), errors, connections * streams)


def holdfast_h2load(url: str, read_version: int, connections: int, seconds: float) -> Load:
    """The generator of the gRPC lane, speaking HTTP/1.1."""
    body = {
        "preconditions": [{"type": "point_read", "key": _base64(b"h2load/check"), "version": read_version}],
        "operations": [{"type": "write", "key": _base64(b"h2load/put"), "value": _base64(VALUE)}],
    }
    flags = ["--h1", "-H", "content-type: application/json"]
    return _h2load(url + "/v1/commit", json.dumps(body).encode(), flags, connections, 1, seconds)


def etcd_grpc(url: str, key: bytes, connections: int, streams: int, seconds: float) -> Load:
    """``etcdserverpb.KV/Txn`` with a check that always holds."""
    # Compare: result GREATER (1), target VERSION (0, the default), key, version -1.
    compare = _field(1, 0, 1) + _bytes_field(3, key) + _field(4, 0, 2**64 - 1)
    put = _bytes_field(1, key) + _bytes_field(2, VALUE)
    message = _bytes_field(1, compare) + _bytes_field(2, _bytes_field(2, put))
    flags = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    body = b"\0" + struct.pack(">I", len(message)) + message
    return _h2load(url + "/etcdserverpb.KV/Txn", body, flags, connections, streams, seconds)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _field(number: int, wire_type: int, value: int) -> bytes:
    return _varint(number << 3 | wire_type) + _varint(value)


def _bytes_field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


# Streams of commits


def holdfast_streams(
    port: int, read_version: int, prefix: str, *, form: str, connections: int, items: int, requests: int
) -> Load:
    """``POST /v1/commits``: on each connection ``requests`` requests of ``items`` commits, one after the other.

    Bodies are made before the clock starts, all but the read version: each request names the last version that the one
    before it was told, as a client that reads before it writes would. Every result must say committed.
    """
    bodies = [
        [_stream_body(form, read_version, f"{prefix}/{connection}/{request}", items) for request in range(requests)]
        for connection in range(connections)
    ]
    committed = [0] * connections
    latencies: list[float] = []
    start = threading.Barrier(connections + 1)

    def one(number: int) -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=GRACE_SECONDS) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            start.wait()
            told = read_version
            for body in bodies[number]:
                began = time.perf_counter()
                request = body.replace(_version_field(form, read_version), _version_field(form, told))
                found, told = _exchange(connection, request, form)
                committed[number] += found
                latencies.append((time.perf_counter() - began) * 1000)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(connections)]
    for thread in threads:
        thread.start()
    start.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    wanted = connections * requests * items
    latencies.sort()
    answers = sum(committed)
    return Load(answers, seconds, percentile(latencies, 0.5), percentile(latencies, 0.99), wanted - answers, 0)


def _stream_body(form: str, read_version: int, prefix: str, items: int) -> bytes:
    if form == "msgpack":
        media = "application/msgpack"
        body = b"".join(
            msgpack.packb(
                {
                    "preconditions": [{"type": "point_read", "key": key, "version": read_version}],
                    "operations": [{"type": "write", "key": key, "value": VALUE}],
                }
            )
            for key in (f"{prefix}/{item:06}".encode() for item in range(items))
        )
    else:
        media = "application/x-ndjson"
        value = _base64(VALUE)
        body = b"".join(
            b'{"preconditions":[{"type":"point_read","key":"%b","version":%d}],'
            b'"operations":[{"type":"write","key":"%b","value":"%b"}]}\n' % (key, read_version, key, value.encode())
            for key in (base64.b64encode(f"{prefix}/{item:06}".encode()) for item in range(items))
        )
    head = (
        f"POST /v1/commits HTTP/1.1\r\nHost: localhost\r\nContent-Type: {media}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _version_field(form: str, version: int) -> bytes:
    """A version as a body or a result holds it. All of one run take equally many bytes."""
    return b'"version":%d' % version if form == "ndjson" else b"\xa7version" + msgpack.packb(version)


def _last_version(form: str, results: bytes) -> int:
    if form == "ndjson":
        return int(results.rpartition(b'"version":')[2].partition(b",")[0].partition(b"}")[0])
    unpacker = msgpack.Unpacker()
    unpacker.feed(results.rpartition(b"\xa7version")[2])
    version: int = unpacker.unpack()
    return version


_COMMITTED = {"ndjson": b'"committed"', "msgpack": b"\xa9committed"}
"""What a committed result holds, and no other."""


def _left_after(data: bytes) -> int:
    """How much of a response is to come after its first bytes, below 0 where it comes in chunks."""
    head, _, body = data.partition(b"\r\n\r\n")
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]
    return int(length) - len(body) if length else -1


RESULT_BYTES_MAX = 256


def _exchange(connection: socket.socket, request: bytes, form: str) -> tuple[int, int]:
    """Send while receiving, as the answer is streamed; how many results say committed, and the last one's version."""
    mark = _COMMITTED[form]
    sending = threading.Thread(target=connection.sendall, args=(request,))
    long = len(request) > 1 << 20
    if long:
        sending.start()
    else:
        connection.sendall(request)
    # The mark of a committed result may be cut by a read: the tail of one read is looked at with the next.
    found, tail, left = 0, b"", None
    while True:
        data = connection.recv(1 << 20)
        if not data:
            raise RuntimeError("the service closed a stream of commits")
        found += (tail[-(len(mark) - 1) :] + data).count(mark)
        tail = (tail + data)[-RESULT_BYTES_MAX:]
        if left is None:
            left = _left_after(data)
        elif left >= 0:
            left -= len(data)
        if left == 0 or (left < 0 and tail.endswith(b"0\r\n\r\n")):
            break
    if long:
        sending.join()
    return found, _last_version(form, tail)
