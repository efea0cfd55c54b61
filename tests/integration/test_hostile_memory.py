"""The memory of a real service while a token that may only read asks on many connections and reads nothing.

``benchmarks/hostile_memory.py`` has all ways to attack, with 1,000 connections each.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.test_connection_memory import resident_bytes
from tests.integration.test_http_process import Process

from holdfast import Client, Write

CONNECTIONS = 1_000 if os.environ.get("HOLDFAST_PROVE") == "1" else 60
BYTES_MAX = 256 << 20
READ, WRITE = "read-0123456789abcdef", "write-0123456789abcdef"
VALUE = 700_000
KEYS = 24
RANGES = 4


def test_ranges_that_nobody_reads_take_a_bounded_part_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    monkeypatch.setenv("HOLDFAST_SERVER__TOKENS", f"read:{READ},write:{WRITE}")
    serving = Process(tmp_path / "log", "--init", view=True)
    with contextlib.ExitStack() as ends:
        ends.callback(serving.close)
        serving.ready()
        host, _, port = serving.address.rpartition(":")
        client = ends.enter_context(Client(f"http://{serving.address}", token=WRITE))
        for number in range(KEYS):
            client.commit([Write(b"key%03d" % number, os.urandom(VALUE))])
        assert client.range(limit=1).items
        before = resident_bytes(serving)
        head = f"GET /v1/range?limit=10000 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {READ}\r\n\r\n"
        for _ in range(CONNECTIONS):
            peer = ends.enter_context(socket.socket())
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            peer.connect((host, int(port)))
            peer.sendall(head.encode())
        most = 0
        for _ in range(RANGES):  # they are read in the order in which they were asked for
            assert len(client.range(limit=10_000).items) < KEYS, "a page of bytes"
            most = max(most, resident_bytes(serving) - before)
        record_property("connections", CONNECTIONS)
        record_property("bytes", most)
        assert most < BYTES_MAX, most
        serving.signal(signal.SIGTERM)
