"""A WebSocket from the client's side, without I/O: bytes in, calls of the machine out; framing by websockets.

Nothing is raised: the machine hears of whatever is not a WebSocket that it is lost.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, PayloadTooBig
from websockets.frames import Close, Frame, Opcode
from websockets.http11 import Response
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI

from holdfast.client.protocol.endpoint import Endpoint
from holdfast.client.protocol.stores.messages import SUBPROTOCOL
from holdfast.client.protocol.stores.subscriber import SubscriberMachine


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
        self.is_over = False

    def feed(self, data: bytes, machine: SubscriberMachine, now_ms: float) -> None:
        """Tell the machine what these bytes mean; no bytes are the end of the connection."""
        if self.is_over:
            return
        if data:
            machine.bytes_arrived(now_ms)
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        for event in self._protocol.events_received():
            self._pass_on(event, machine, now_ms)
        if not self._is_open and self._protocol.handshake_exc is not None and not self.is_over:
            self.is_over = True
            machine.lost(now_ms, str(self._protocol.handshake_exc))
        if not self.is_over and (not data or self._protocol.parser_exc is not None):
            self.is_over = True
            reason = self._protocol.parser_exc
            if isinstance(reason, PayloadTooBig):
                machine.too_large()
            else:
                machine.lost(now_ms, "the connection ended" if reason is None or not data else str(reason))

    def _pass_on(self, event: Response | object, machine: SubscriberMachine, now_ms: float) -> None:
        if isinstance(event, Response):
            self._on_response(event, machine, now_ms)
            return
        assert isinstance(event, Frame), "a connection brings a response or frames"
        match event.opcode:
            case Opcode.BINARY | Opcode.TEXT | Opcode.CONT:
                self._parts.append(bytes(event.data))
                if event.fin:
                    data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
                    self._parts.clear()
                    machine.received(data, now_ms)
            case Opcode.CLOSE:
                close = Close.parse(event.data)
                self.is_over = True
                reason = f"the service closed it: {close.code} {close.reason}".rstrip()
                machine.lost(now_ms, reason, close.code, close.reason)
            case _:
                machine.heard(now_ms)

    def _on_response(self, response: Response, machine: SubscriberMachine, now_ms: float) -> None:
        if self._protocol.handshake_exc is None:
            self._is_open = True
            if self._protocol.subprotocol == SUBPROTOCOL:
                machine.opened(now_ms)
            else:
                self.is_over = True
                machine.lost(now_ms, f"the service does not speak {SUBPROTOCOL}")
        elif isinstance(self._protocol.handshake_exc, InvalidStatus):
            self.is_over = True
            headers = {name.lower(): value for name, value in response.headers.raw_items()}
            machine.refused(now_ms, response.status_code, headers, bytes(response.body or b""))

    def send(self, payload: bytes) -> None:
        """One message."""
        self._protocol.send_binary(payload)

    def ping(self) -> None:
        """Ask for a sign of life."""
        self._protocol.send_ping(b"")

    def close(self) -> None:
        """Send a close frame. The other side ends the connection."""
        if self._is_open and not self.is_over:
            self.is_over = True
            self._protocol.send_close(1000)

    def take_bytes(self) -> bytes:
        """The bytes to write now."""
        return b"".join(self._protocol.data_to_send())
