"""Accepting: a crowd is let in within a few turns of the loop, and a lack of descriptors is waited out."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.http_harness import run, serving, until

from holdfast.server.gateway import GatewayLimits
from holdfast.server.http import http_server
from holdfast.server.http import http_server as listener_module
from holdfast.server.http.http_server import ACCEPTS_PER_TURN, Listener


class Greeter(asyncio.Protocol):
    """Counts who was let in."""

    made = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        Greeter.made += 1
        transport.write(b"hello")  # type: ignore[attr-defined]
        transport.close()


@pytest.fixture(autouse=True)
def _nobody_yet() -> None:
    Greeter.made = 0


def bound() -> socket.socket:
    opened = socket.socket()
    opened.bind(("127.0.0.1", 0))
    opened.setblocking(False)
    return opened


@contextlib.contextmanager
def crowd(address: object, many: int) -> Iterator[list[socket.socket]]:
    """Clients that the kernel has taken and nobody has accepted."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(address)) for _ in range(many)]  # type: ignore[arg-type]


async def turns_until(many: int) -> int:
    turns = 0
    while Greeter.made < many:
        turns += 1
        await asyncio.sleep(0)
    return turns


def test_a_crowd_is_let_in_within_few_turns_of_the_loop() -> None:
    async def scenario() -> None:
        opened = bound()
        listener = Listener(asyncio.get_running_loop(), opened, Greeter, None, lambda: True)
        with crowd(opened.getsockname(), 500):
            assert await turns_until(500) <= 4 * (500 // ACCEPTS_PER_TURN + 1)
        listener.close()

    run(scenario)


def test_without_a_free_descriptor_clients_wait_and_are_let_in_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "PAUSE_SECONDS", 0.01)

    class Scarce(socket.socket):
        refusals = 3

        def accept(self) -> tuple[socket.socket, object]:
            if Scarce.refusals:
                Scarce.refusals -= 1
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return super().accept()

    async def scenario() -> None:
        opened = Scarce()
        opened.bind(("127.0.0.1", 0))
        opened.setblocking(False)
        listener = Listener(asyncio.get_running_loop(), opened, Greeter, None, lambda: True)
        with crowd(opened.getsockname(), 5):
            await until(lambda: Greeter.made == 5)
        assert Scarce.refusals == 0
        listener.close()

    run(scenario)


def test_a_listener_that_waits_for_descriptors_can_be_closed() -> None:
    class Without(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def scenario() -> None:
        opened = Without()
        opened.bind(("127.0.0.1", 0))
        opened.setblocking(False)
        listener = Listener(asyncio.get_running_loop(), opened, Greeter, None, lambda: True)
        with crowd(opened.getsockname(), 1):
            await asyncio.sleep(0.05)
            listener.close()
        assert opened.fileno() == -1

    run(scenario)


def test_a_failed_handshake_leaves_the_others_alone(tmp_path: Path) -> None:
    certificate, key = tmp_path / "crt", tmp_path / "key"
    names = ["-subj", "/CN=localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(
        ["openssl", "req", "-x509", "-nodes", "-newkey", "rsa:2048", *names], check=True, capture_output=True
    )
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    trusting = ssl.create_default_context(cafile=str(certificate))
    trusting.check_hostname = False

    async def scenario() -> None:
        opened = bound()
        listener = Listener(asyncio.get_running_loop(), opened, Greeter, tls, lambda: True)
        host, port = opened.getsockname()
        plain_reader, plain = await asyncio.open_connection(host, port)
        plain.write(b"GET / HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while await plain_reader.read(100):
                pass
        reader, writer = await asyncio.open_connection(host, port, ssl=trusting)
        assert await reader.read() == b"hello"
        for each in (plain, writer):
            each.close()
            with contextlib.suppress(OSError):
                await each.wait_closed()
        listener.close()

    run(scenario)


def test_who_finds_no_room_is_closed_before_a_handshake() -> None:
    async def scenario() -> None:
        opened = bound()
        listener = Listener(asyncio.get_running_loop(), opened, Greeter, None, lambda: Greeter.made < 2)
        with crowd(opened.getsockname(), 2):
            await until(lambda: Greeter.made == 2)
            reader, writer = await asyncio.open_connection(*opened.getsockname())
            assert await reader.read() == b""
            writer.close()
        assert (Greeter.made, listener.handshakes) == (2, 0)
        listener.close()

    run(scenario)


def test_connections_leave_descriptors_to_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server.resource, "getrlimit", lambda _: (1_024, 1_024))

    async def scenario() -> None:
        async with serving(limits=GatewayLimits(connections_max=0)) as unlimited:
            assert unlimited.server.context.connections_max == 1_024 - http_server.DESCRIPTORS_KEPT
        async with serving(limits=GatewayLimits(connections_max=5)) as few:
            assert few.server.context.connections_max == 5

    run(scenario)


def test_a_crowd_leaves_descriptors_where_there_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connections that only get an error response count as well."""
    monkeypatch.setattr(http_server.resource, "getrlimit", lambda _: (80, 80))

    async def scenario() -> None:
        async with serving(limits=GatewayLimits(connections_max=0)) as here:
            with crowd((here.host, here.port), 100):
                await until(lambda: here.front.counters.refused_connections >= 55)
                assert here.server.context.connections <= 45

    run(scenario)


def test_beside_those_who_are_told_a_crowd_is_closed_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "REFUSALS_MAX", 3)

    async def scenario() -> None:
        async with serving(limits=GatewayLimits(connections_max=2)) as here:
            with crowd((here.host, here.port), 40):
                await until(lambda: here.front.counters.refused_connections == 38)
                assert here.server.context.connections <= 5

    run(scenario)
