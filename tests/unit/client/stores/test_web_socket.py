"""Laws of the WebSocket's client side: what bytes mean, and that nothing the other side sends raises."""

from __future__ import annotations

import pytest
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from holdfast.client.protocol.endpoint import parse_endpoint
from holdfast.client.protocol.stores.messages import SUBPROTOCOL
from holdfast.client.protocol.stores.web_socket import (
    Disconnected,
    Payload,
    Pong,
    SocketEvent,
    SocketOpened,
    SocketRefused,
    TooLarge,
    WebSocket,
)

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


def said(server: ServerProtocol) -> bytes:
    return b"".join(server.data_to_send())


def opened(bytes_max: int = 1_000) -> tuple[WebSocket, ServerProtocol]:
    client, server, request = pair(bytes_max=bytes_max)
    server.send_response(server.accept(request))
    assert client.feed(said(server)) == [SocketOpened()]
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
    found: list[SocketEvent] = []
    for start in range(0, len(data), step):
        found += client.feed(data[start : start + step])
    assert found == [Payload(b"first"), Pong(), Payload(b"second")]
    server.receive_data(client.take_bytes())
    assert [frame.opcode for frame in server.events_received() if isinstance(frame, Frame)] == [Opcode.PONG]


def test_what_is_sent_arrives_and_a_ping_is_heard_back() -> None:
    client, server = opened()
    client.send(b"hello")
    client.ping()
    server.receive_data(client.take_bytes())
    assert [bytes(frame.data) for frame in server.events_received() if isinstance(frame, Frame)] == [b"hello", b""]
    assert client.feed(said(server)) == [Pong()]


def test_a_refusal_is_told_with_its_status_and_body() -> None:
    client, server, _ = pair()
    response = server.reject(404, '{"error":{"code":"not_found"}}')
    server.send_response(response)
    found = client.feed(said(server))
    assert len(found) == 1 and isinstance(found[0], SocketRefused)
    assert (found[0].status, found[0].body) == (404, b'{"error":{"code":"not_found"}}')
    assert client.feed(b"") == []


def test_a_close_tells_its_code_and_name_once() -> None:
    client, server = opened()
    server.send_close(4409, "durable_collision")
    found = client.feed(said(server))
    assert [
        (disconnected.code, disconnected.name) for disconnected in found if isinstance(disconnected, Disconnected)
    ] == [(4409, "durable_collision")]
    assert client.feed(b"") == []


def test_an_end_without_a_close_is_a_broken_connection() -> None:
    client, _ = opened()
    found = client.feed(b"")
    assert [
        (disconnected.code, disconnected.name) for disconnected in found if isinstance(disconnected, Disconnected)
    ] == [(1006, "")]


def test_a_service_of_another_subprotocol_is_not_spoken_to() -> None:
    client, server, request = pair(subprotocols=[])
    server.send_response(server.accept(request))
    found = client.feed(said(server))
    assert len(found) == 1 and isinstance(found[0], Disconnected) and SUBPROTOCOL in found[0].reason


def test_a_payload_above_the_bound_ends_the_connection() -> None:
    client, server = opened(bytes_max=10)
    server.send_binary(b"x" * 11)
    assert client.feed(said(server)) == [TooLarge()]


@pytest.mark.parametrize(
    "data", [b"\x00" * 100, b"HTTP/1.1 200 OK\r\n\r\n", b"SSH-2.0-x\r\n", b"HTTP/1.1 101 x\r\n\r\n"]
)
def test_what_is_no_websocket_ends_the_connection(data: bytes) -> None:
    client, _, _ = pair()
    found = client.feed(data) + client.feed(b"")
    assert len([event for event in found if isinstance(event, Disconnected | SocketRefused)]) == 1


def test_closing_says_good_bye_and_hears_no_more() -> None:
    client, server = opened()
    client.close()
    client.close()
    server.receive_data(client.take_bytes())
    assert server.close_rcvd is not None and server.close_rcvd.code == 1000
    assert client.feed(said(server)) == []
