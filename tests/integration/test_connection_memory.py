"""Laws of memory: what a connection held is released when it ends, whatever it was doing.

Two views: live objects with the collector switched off, so that a reference cycle cannot hide; and the resident memory
of a real process after many half-sent requests. ``HOLDFAST_PROVE=1`` asks for the full number of connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.http_harness import Serving, commit, request, run, serving, until, write
from tests.integration.test_client_tls import self_signed
from tests.integration.test_http_process import Process
from tests.matrix import matrix

PROVE = os.environ.get("HOLDFAST_PROVE") == "1"
CONNECTIONS = 6_400 if PROVE else 400
SENT_BYTES = 100_000
KEPT_BYTES_MAX = 20 * 1_000_000
KEPT_SECONDS_MAX = 10.0
"""After the last close."""
ONE_REQUEST_SECONDS = 1.0
LOOK_SECONDS = 0.1
SECONDS_MAX = 60.0
TIMES = 20


def half(target: str, head: str = "") -> bytes:
    """A request whose body does not end."""
    lines = f"POST {target} HTTP/1.1\r\nHost: localhost\r\n{head}Content-Length: {2 * SENT_BYTES}\r\n\r\n"
    return lines.encode() + b"x" * SENT_BYTES


KINDS = {
    "fast_half_sent": half("/v1/commit"),
    "fast_half_a_head": b"POST /v1/commit HTTP/1.1\r\nHost: te",
    "fast_malformed": request("POST", "/v1/commit", b"x" * SENT_BYTES),
    "fast_committed": commit(),
    "fast_version": request("GET", "/v1/version"),
    "not_http": b"\x00\x01\x02 garbage\r\n\r\n",
    "framework_half_sent": half("/v1/commit", "Expect: 100-continue\r\n"),
    "framework_half_a_head": b"GET /nowhere HTTP/1.1\r\nHost: te",
    "framework_bad_host": b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\nHost: b\r\n\r\n",
    "framework_pipelined": request("GET", "/v1/subscribe?after=0") + request("GET", "/readyz") * 3,
    "framework_get": request("GET", "/readyz"),
    "framework_error": request("GET", f"/v1/status/{'a' * 20}?min_version=999999999999"),
    "stream_half_sent": half("/v1/commits"),
    "stream_whole": request("POST", "/v1/commits", write() + b"\n"),
    "stream_malformed_item": half("/v1/commits") + b"\n" + b"x" * SENT_BYTES,
    "stream_open": request("POST", "/v1/commits", None, Content_Length="200000") + write() + b"\n",
    "subscription": request("GET", "/v1/subscribe?after=0"),
}
USUAL = {"fast_half_sent", "fast_committed", "framework_half_sent", "stream_half_sent", "stream_whole", "subscription"}


def live() -> Counter[str]:
    """How many objects there are of the classes that a connection is made of."""
    names = ("HttpConnection", "Exchange", "HttpRequestParser", "Call", "JsonLines", "frame")
    found = Counter(type(thing).__name__ for thing in gc.get_objects())
    return Counter({name: found[name] for name in names})


@pytest.mark.parametrize("reset", matrix([False, True]), ids=["closed", "reset"])
@pytest.mark.parametrize("kind", matrix(KINDS, lambda kind: kind in USUAL))
def test_a_connection_that_ends_leaves_no_reference_cycle(kind: str, reset: bool) -> None:
    async def one(server: Serving) -> None:
        ended = server.server.context.ended
        peer = socket.create_connection((server.host, server.port))
        peer.setblocking(False)
        await server.front.loop.sock_sendall(peer, KINDS[kind])
        await until(lambda: server.server.context.connections or server.server.context.ended > ended)
        if reset:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer.close()
        await until(lambda: server.server.context.ended > ended)

    async def scenario() -> None:
        async with serving() as server:
            await one(server)  # what is made once for all connections
            gc.collect()
            gc.disable()
            before = live()
            for _ in range(TIMES):
                await one(server)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SECONDS_MAX):
                    # Timers that give a refused peer time to read its answer hold its connection for seconds.
                    await until(lambda: not any((live() - before).values()))
            assert not any((live() - before).values()), live() - before

    try:
        run(scenario)
    finally:
        gc.enable()


@contextlib.contextmanager
def process(folder: Path, environment: pytest.MonkeyPatch, *, tls: bool) -> Iterator[Process]:
    if tls:
        certificate = self_signed(folder, "localhost")
        environment.setenv("HOLDFAST_SERVER__TLS_CERTIFICATE", str(certificate))
        environment.setenv("HOLDFAST_SERVER__TLS_KEY", str(certificate.with_suffix(".key")))
    serving = Process(folder / "log", "--init").ready()
    try:
        yield serving
    finally:
        serving.signal(signal.SIGTERM)
        serving.end()
        serving.close()


def resident_bytes(process: Process) -> int:
    return int(Path(f"/proc/{process.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("tls", matrix([False, True]), ids=["plain", "tls"])
@pytest.mark.parametrize("target", matrix(["/v1/commit", "/v1/commits"]), ids=["fast", "framework"])
def test_half_sent_requests_leave_no_memory_in_use(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    tls: bool,
    record_property: Callable[[str, object], None],
) -> None:
    context = None
    if tls:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with process(tmp_path, monkeypatch, tls=tls) as serving:
        host, _, port = serving.address.rpartition(":")

        def half_sent() -> socket.socket:
            peer = socket.create_connection((host, int(port)), timeout=SECONDS_MAX)
            peer = peer if context is None else context.wrap_socket(peer)
            peer.sendall(half(target))
            return peer

        # What the first request of a kind loads and makes once stays in memory, and is no remainder of the others.
        half_sent().close()
        time.sleep(ONE_REQUEST_SECONDS)
        before = resident_bytes(serving)
        peers = [half_sent() for _ in range(CONNECTIONS)]
        patient_until = time.monotonic() + SECONDS_MAX
        while (held := resident_bytes(serving) - before) < CONNECTIONS * SENT_BYTES // 2:
            assert time.monotonic() < patient_until, f"the service does not hold what was sent: {held}"
            time.sleep(LOOK_SECONDS)
        for peer in peers:
            peer.close()
        patient_until = time.monotonic() + KEPT_SECONDS_MAX
        while (kept := resident_bytes(serving) - before) > KEPT_BYTES_MAX and time.monotonic() < patient_until:
            time.sleep(LOOK_SECONDS)
        record_property("connections", CONNECTIONS)
        record_property("kept_bytes", kept)
        assert kept <= KEPT_BYTES_MAX
