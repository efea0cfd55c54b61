"""A WebSocket from the client's side, without I/O: bytes in, events out; framing by the library websockets.

Nothing is raised: whatever is not a WebSocket ends in ``Disconnected`` with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, PayloadTooBig
from websockets.frames import Close, Frame, Opcode
from websockets.http11 import Response
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI

from holdfast.client.protocol.endpoint import Endpoint
from holdfast.client.protocol.stores.messages import SUBPROTOCOL


class SocketOpened(msgspec.Struct, frozen=True):
    """The handshake is done."""


class SocketRefused(msgspec.Struct, frozen=True):
    """An HTTP response instead of a WebSocket."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Payload(msgspec.Struct, frozen=True):
    """One message of the other side."""

    data: bytes


class Pong(msgspec.Struct, frozen=True):
    """The other side is alive."""


class Disconnected(msgspec.Struct, frozen=True):
    """The connection is over. ``code`` and ``name`` are those of a close frame, 1006 and empty without one."""

    reason: str
    code: int
    name: str


class TooLarge(msgspec.Struct, frozen=True):
    """The connection is over: a payload is above ``payload_bytes_max``."""


SocketEvent = SocketOpened | SocketRefused | Payload | Pong | Disconnected | TooLarge


class WebSocket:
    """One connection. Write ``take_bytes`` after every call."""

    def __init__(self, endpoint: Endpoint, target: str, token: str | None, payload_bytes_max: int) -> None:
        parts = urlsplit(target)
        uri = WebSocketURI(endpoint.secure, endpoint.host, endpoint.port or 80, parts.path, parts.query)
        self._protocol = ClientProtocol(uri, subprotocols=[Subprotocol(SUBPROTOCOL)], max_size=payload_bytes_max)
        request = self._protocol.connect()
        if token is not None:
            request.headers["Authorization"] = f"Bearer {token}"
        self._protocol.send_request(request)
        self._parts: list[bytes] = []
        self._is_open = False
        self._is_over = False

    def feed(self, data: bytes) -> list[SocketEvent]:
        """The events in these bytes; no bytes are the end of the connection."""
        if self._is_over:
            return []
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        events: list[SocketEvent] = []
        for event in self._protocol.events_received():
            events.extend(self._meaning(event))
        if not self._is_open and self._protocol.handshake_exc is not None and not self._is_over:
            self._is_over = True
            events.append(Disconnected(str(self._protocol.handshake_exc), 1006, ""))
        if not self._is_over and (not data or self._protocol.parser_exc is not None):
            self._is_over = True
            reason = self._protocol.parser_exc
            if isinstance(reason, PayloadTooBig):
                return [*events, TooLarge()]
            events.append(Disconnected("the connection ended" if reason is None or not data else str(reason), 1006, ""))
        return events

    def _meaning(self, event: Response | object) -> list[SocketEvent]:
        if isinstance(event, Response):
            return self._on_response(event)
        assert isinstance(event, Frame), "a connection brings a response or frames"
        match event.opcode:
            case Opcode.BINARY | Opcode.TEXT | Opcode.CONT:
                self._parts.append(bytes(event.data))
                if not event.fin:
                    return []
                data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
                self._parts.clear()
                return [Payload(data)]
            case Opcode.CLOSE:
                close = Close.parse(event.data)
                self._is_over = True
                reason = f"the service closed it: {close.code} {close.reason}".rstrip()
                return [Disconnected(reason, close.code, close.reason)]
            case _:
                return [Pong()]

    def _on_response(self, response: Response) -> list[SocketEvent]:
        if self._protocol.handshake_exc is None:
            self._is_open = True
            if self._protocol.subprotocol != SUBPROTOCOL:
                self._is_over = True
                return [Disconnected(f"the service does not speak {SUBPROTOCOL}", 1006, "")]
            return [SocketOpened()]
        if not isinstance(self._protocol.handshake_exc, InvalidStatus):
            return []
        self._is_over = True
        headers = {name.lower(): value for name, value in response.headers.raw_items()}
        return [SocketRefused(response.status_code, headers, bytes(response.body or b""))]

    def send(self, payload: bytes) -> None:
        """One message."""
        self._protocol.send_binary(payload)

    def ping(self) -> None:
        """Ask for a sign of life."""
        self._protocol.send_ping(b"")

    def close(self) -> None:
        """Send a close frame. The other side ends the connection."""
        if self._is_open and not self._is_over:
            self._is_over = True
            self._protocol.send_close(1000)

    def take_bytes(self) -> bytes:
        """The bytes to write now."""
        return b"".join(self._protocol.data_to_send())
