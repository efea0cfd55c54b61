"""Making a connection: one bound in time for all of it, and every address of a name has its turn."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.client.conftest import QUICK
from tests.unit.client.scripted_server import Reply, ScriptedServer

from holdfast.client.protocol.effects import Failed, Request, Send
from holdfast.client.protocol.endpoint import parse_endpoint
from holdfast.client.transport import sync as sockets
from holdfast.errors import Unavailable

IMPATIENT = dataclasses.replace(QUICK, give_up_after_ms=20)
VERSION = Reply(200, {"version": 50, "leader_id": "ab" * 16})


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    """An address that neither takes nor refuses a connection: its queue is full, and nobody accepts."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield listening.getsockname()


def having(monkeypatch: pytest.MonkeyPatch, *addresses: object) -> None:
    """Every name has these addresses."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)


def test_an_address_that_does_not_answer_leaves_time_for_the_next_one(connect, monkeypatch, silent) -> None:
    with ScriptedServer(VERSION, VERSION) as server:
        host, _, port = server.address.rpartition(":")
        having(monkeypatch, silent, (host, int(port)))
        assert connect("http://log.example:80").call("version").version == 50


class Clock:
    """Time that only connecting takes."""

    now_ms = 1_000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(sockets, "now_ms", lambda: clock.now_ms)
    return clock


def test_many_addresses_that_do_not_answer_take_the_time_of_one_request(monkeypatch, clock) -> None:
    bounds: list[float] = []

    class Unanswering(socket.socket):
        def connect(self, address: Any) -> None:
            bounds.append(self.gettimeout())
            clock.now_ms += 1_000 * bounds[-1]
            raise TimeoutError

    monkeypatch.setattr(socket, "socket", Unanswering)
    having(monkeypatch, *[("192.0.2.1", port) for port in range(1, 5)])
    pool = sockets.Pool(QUICK, None, None)
    reply = pool.exchange(Send(parse_endpoint("http://log.example:80"), Request("GET", "/"), 1_000))
    assert isinstance(reply, Failed)
    assert not reply.perhaps_accepted
    assert len(bounds) == 4
    assert sum(bounds) == pytest.approx(1)


def test_the_handshake_has_what_the_connect_left(monkeypatch, clock) -> None:
    bounds: list[float | None] = []

    class Slow(socket.socket):
        def connect(self, address: Any) -> None:
            clock.now_ms += 700

    class Context(ssl.SSLContext):
        def wrap_socket(self, sock: socket.socket, *_: Any, **__: Any) -> Any:
            bounds.append(sock.gettimeout())
            raise TimeoutError

    monkeypatch.setattr(socket, "socket", Slow)
    having(monkeypatch, ("192.0.2.1", 1))
    pool = sockets.Pool(QUICK, None, Context(ssl.PROTOCOL_TLS_CLIENT))
    pool.exchange(Send(parse_endpoint("https://log.example"), Request("GET", "/"), 1_000))
    assert bounds == [pytest.approx(0.3)]


def test_a_name_without_an_address_is_a_failure_like_others(monkeypatch) -> None:
    having(monkeypatch)
    pool = sockets.Pool(QUICK, None, None)
    reply = pool.exchange(Send(parse_endpoint("http://log.example:80"), Request("GET", "/"), 1_000))
    assert isinstance(reply, Failed)


def test_the_authorities_of_the_system_are_read_once_for_a_client(connect, monkeypatch) -> None:
    made: list[ssl.SSLContext] = []
    default = ssl.create_default_context

    def counting() -> ssl.SSLContext:
        made.append(default())
        return made[-1]

    monkeypatch.setattr(ssl, "create_default_context", counting)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and nobody listens
        client = connect(f"https://127.0.0.1:{bound.getsockname()[1]}", options=IMPATIENT)
        for _ in range(3):
            with pytest.raises(Unavailable):
                client.call("version")
    assert len(made) == 1
