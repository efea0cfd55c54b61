"""Laws of the WebSocket's client side: what bytes mean, and that nothing the other side sends raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from holdfast.client.protocol.endpoint import parse_endpoint
from holdfast.client.protocol.stores.messages import SUBPROTOCOL
from holdfast.client.protocol.stores.web_socket import WebSocket

ENDPOINT = parse_endpoint("http://store:8080")


def pair(subprotocols: list[str] | None = None, bytes_max: int = 1_000) -> tuple[WebSocket, ServerProtocol, Request]:
    """A client, a server that has its handshake, and that handshake."""
    client = WebSocket(ENDPOINT, "/v1/x?subscriber=me", "secret", bytes_max)
    names = [Subprotocol(name) for name in ([SUBPROTOCOL] if subprotocols is None else subprotocols)]
    server = ServerProtocol(subprotocols=names or None)
    server.receive_data(client.take_bytes())
    request = server.events_received()[0]
    assert isinstance(request, Request)
    return client, server, request


Call = tuple[str, *tuple[Any, ...]]


class Machine:
    """Notes what it is called with, apart from the time and from ``bytes_arrived``."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        def call(*arguments: object) -> None:
            if name != "bytes_arrived":
                self.calls.append((name, *[each for each in arguments if each is not NOW]))

        return call


NOW: Any = 7.5


def feed(client: WebSocket, data: bytes) -> list[Call]:
    machine: Any = Machine()
    client.feed(data, machine, NOW)
    return machine.calls


def said(server: ServerProtocol) -> bytes:
    return b"".join(server.data_to_send())


def opened(bytes_max: int = 1_000) -> tuple[WebSocket, ServerProtocol]:
    client, server, request = pair(bytes_max=bytes_max)
    server.send_response(server.accept(request))
    assert feed(client, said(server)) == [("opened",)]
    return client, server


def test_the_handshake_carries_target_host_and_token() -> None:
    _, _, request = pair()
    assert request.path == "/v1/x?subscriber=me"
    assert request.headers["Host"] == "store:8080"
    assert request.headers["Authorization"] == "Bearer secret"


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_payloads_arrive_whole_however_the_bytes_are_cut(step: int) -> None:
    client, server = opened()
    server.send_binary(b"first")
    server.send_ping(b"")
    server.send_binary(b"sec", fin=False)
    server.send_continuation(b"ond", fin=True)
    data = said(server)
    calls: list[Call] = []
    for start in range(0, len(data), step):
        calls += feed(client, data[start : start + step])
    assert calls == [("received", b"first"), ("heard",), ("received", b"second")]
    server.receive_data(client.take_bytes())
    assert [frame.opcode for frame in server.events_received() if isinstance(frame, Frame)] == [Opcode.PONG]


def test_what_is_sent_arrives_and_a_ping_is_heard_back() -> None:
    client, server = opened()
    client.send(b"hello")
    client.ping()
    server.receive_data(client.take_bytes())
    assert [bytes(frame.data) for frame in server.events_received() if isinstance(frame, Frame)] == [b"hello", b""]
    assert feed(client, said(server)) == [("heard",)]


def test_a_refusal_is_told_with_its_status_and_body() -> None:
    client, server, _ = pair()
    response = server.reject(404, '{"error":{"code":"not_found"}}')
    server.send_response(response)
    ((name, status, _, body),) = feed(client, said(server))
    assert (name, status, body) == ("refused", 404, b'{"error":{"code":"not_found"}}')
    assert feed(client, b"") == []


def test_a_close_tells_its_code_and_name_once() -> None:
    client, server = opened()
    server.send_close(4409, "durable_collision")
    ((name, _, *code),) = feed(client, said(server))
    assert (name, code) == ("lost", [4409, "durable_collision"])
    assert feed(client, b"") == []


def test_an_end_without_a_close_is_a_broken_connection() -> None:
    client, _ = opened()
    assert feed(client, b"") == [("lost", "the connection ended")]


def test_a_service_of_another_subprotocol_is_not_spoken_to() -> None:
    client, server, request = pair(subprotocols=[])
    server.send_response(server.accept(request))
    ((name, reason),) = feed(client, said(server))
    assert name == "lost" and SUBPROTOCOL in reason


def test_a_payload_above_the_bound_ends_the_connection() -> None:
    client, server = opened(bytes_max=10)
    server.send_binary(b"x" * 11)
    assert feed(client, said(server)) == [("too_large",)]


@pytest.mark.parametrize(
    "data", [b"\x00" * 100, b"HTTP/1.1 200 OK\r\n\r\n", b"SSH-2.0-x\r\n", b"HTTP/1.1 101 x\r\n\r\n"]
)
def test_what_is_no_websocket_ends_the_connection(data: bytes) -> None:
    client, _, _ = pair()
    calls = feed(client, data) + feed(client, b"")
    assert len([name for name, *_ in calls if name in ("lost", "refused")]) == 1


def test_closing_says_good_bye_and_hears_no_more() -> None:
    client, server = opened()
    client.close()
    client.close()
    server.receive_data(client.take_bytes())
    assert server.close_rcvd is not None and server.close_rcvd.code == 1000
    assert feed(client, said(server)) == []
