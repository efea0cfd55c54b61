"""Connections that the framework serves: uvicorn's HTTP/1.1 protocol with our bounds and our words.

Owns: the bounds on a request's head, answers to what is not HTTP at all, the age of an unfinished head, and the view of
a connection that a streaming route needs (its unsent bytes, its end). Does not own: routes (``app``).

``uvicorn.protocols.http.httptools_impl.HttpToolsProtocol`` is not public API. What is used of it, checked by tests and
pinned to a minor version in ``pyproject.toml``: the constructor, ``connection_made``, ``connection_lost``, the parser's
callbacks ``on_message_begin``, ``on_url``, ``on_header``, ``on_headers_complete`` and ``on_message_complete``,
``send_400_response``, that ``app_state`` is copied into every scope as ``state``, and that a request to upgrade to
WebSocket is handed to ``handle_websocket_upgrade`` where ``ws_protocol_class`` is set, with ``scope`` and ``url`` read.

Failure model: as the fast lane's: a peer may send anything, or never read. A head above its bound or in pieces for too
long ends the connection, as does a peer that takes nothing for as long as one may be idle; an exception inside the
application ends its request (``app`` turns it into a coded answer).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from holdfast.errors import Code, HoldfastError, InvalidRequest, LimitExceeded
from holdfast.server.host_field import problem_with_host

__all__ = ["Connection", "FrameworkLane", "Framework"]

HEAD_BYTES_MAX: Final = 65_536
KEEP_ALIVE_SECONDS: Final = 75

ErrorResponse = Callable[[HoldfastError], bytes]
MakeSocket = Callable[[Callable[[], None]], asyncio.Protocol]
"""Makes the protocol of a WebSocket, which gets the bytes of the request first; its argument is called at the end."""


class Connection:
    """What a streaming route may know about the connection under it."""

    __slots__ = ("_transport", "body_open", "heads", "on_end")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.on_end: Callable[[], object] | None = None
        """Called once when the connection ends, if it does while a route waits for something else."""
        self.heads = 0
        """How many requests have begun."""
        self.body_open = False
        """Whether the newest of them has not arrived whole."""

    @property
    def peer(self) -> object:
        """The address of the other end, as sockets tell it."""
        return self._transport.get_extra_info("peername")

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or is about to."""
        return self._transport.is_closing()

    def unsent_bytes(self) -> int:
        """Bytes written that the peer has not taken yet, beyond what the kernel holds for it."""
        return 0 if self._transport.is_closing() else self._transport.get_write_buffer_size()

    def bound_unsent_bytes(self, high: int) -> None:
        """Let a stream hold up to ``high`` unsent bytes before its writer is made to wait."""
        self._transport.set_write_buffer_limits(high=high)

    def close(self) -> None:
        """End the connection after what is written has been sent."""
        self._transport.close()

    def end_unless_whole(self, seconds: float) -> None:
        """End the connection if the rest of a refused request has not arrived within ``seconds``.

        Until then it is read away, a piece at a time, because closing at once could take the answer from the peer.
        """
        refused = self.heads

        def look() -> None:
            if self.body_open and self.heads == refused:
                self._transport.close()

        if self.body_open:
            asyncio.get_running_loop().call_later(seconds, look)

    def close_within(self, seconds: float) -> None:
        """End the connection after what is written has been sent, and in any case after ``seconds``."""
        transport = self._transport
        transport.close()
        asyncio.get_running_loop().call_later(seconds, transport.abort)


class Framework:
    """Makes the protocols of one server and keeps track of their connections."""

    def __init__(
        self, app: Callable[..., object], *, error_response: ErrorResponse, socket: MakeSocket | None = None
    ) -> None:
        """``socket`` makes the protocol of a connection that upgrades to WebSocket; None: none does."""
        self.error_response = error_response
        self.socket = socket
        self.state = ServerState()
        self.open: set[FrameworkLane] = set()
        self.seconds = 0
        self.config = Config(
            app=app,
            http=HttpToolsProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
        )
        self.config.load()
        # Not through the configuration: uvicorn makes such a protocol with its own arguments, and ours has others.
        self.config.ws_protocol_class = asyncio.Protocol if socket is not None else None

    def protocol(self, transport: asyncio.Transport, ended: Callable[[], None]) -> FrameworkLane:
        """The protocol for a connection that was accepted elsewhere. ``ended`` is called when it is over."""
        return FrameworkLane(self, Connection(transport), ended)

    def tell_date(self, date: bytes) -> None:
        """Use this value of the ``Date`` header in the answers from now on."""
        self.state.default_headers = [(b"date", date)]

    def close_stalled(self, *, partial_seconds_max: int, idle_seconds_max: int) -> None:
        """Close connections whose request's head has been arriving for too long, or of whose body nothing came.

        Those whose peer takes nothing of what was written for it are cut: a close waits until all of it is sent.
        """
        for lane in list(self.open):
            if lane.seconds_without_taking() > idle_seconds_max:
                lane.transport.abort()
                continue
            since = lane.head_since
            if (since is not None and self.seconds - since > partial_seconds_max) or (
                lane.body_open and self.seconds - lane.heard_at > idle_seconds_max
            ):
                lane.transport.close()

    def shut_down(self) -> None:
        """Let running requests end, and their connections with them; close the idle ones."""
        for lane in list(self.open):
            lane.shutdown()

    def running(self) -> int:
        """How many requests are being served, streams included."""
        return len(self.state.tasks)


class _RequestParser:
    """httptools' parser, which ends a request that offers an upgrade before its body.

    A server that does not take the offer reads the request as if there were none (RFC 9110, section 7.8).
    """

    __slots__ = ("_lane", "_parser")

    def __init__(self, lane: FrameworkLane) -> None:
        self._lane = lane
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpRequestParser(self._lane)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own

    def get_method(self) -> bytes:
        """The method of the request that is being read."""
        return self._parser.get_method()

    def get_http_version(self) -> str:
        """Its version."""
        return self._parser.get_http_version()

    def should_keep_alive(self) -> bool:
        """Whether the connection goes on after it."""
        return self._parser.should_keep_alive()

    def should_upgrade(self) -> bool:
        """Whether it offers an upgrade."""
        return self._parser.should_upgrade()

    def feed_data(self, data: bytes) -> None:
        """Take bytes. Raises: HttpParserError; HttpParserUpgrade for an offer that is taken."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            head = self._lane.head_without_upgrade()
            if head is None:
                raise
            self._begin()
            self.feed_data(head + data[upgrade.args[0] :])


class FrameworkLane(HttpToolsProtocol):
    """One connection in the framework's hands."""

    def __init__(self, framework: Framework, connection: Connection, ended: Callable[[], None]) -> None:
        super().__init__(framework.config, framework.state, {"connection": connection})
        self._framework = framework
        self._connection = connection
        self._ended = ended
        self._head_bytes = 0
        self._ignored_upgrade = False
        self._hosts: list[bytes] = []
        self._problem: InvalidRequest | None = None
        self.parser = _RequestParser(self)  # type: ignore[assignment]  # all of it that uvicorn uses
        self._unsent = 0
        self._taken_at = framework.seconds
        self.head_since: int | None = None
        self.heard_at = framework.seconds

    @property
    def body_open(self) -> bool:
        """Whether the rest of a request is awaited."""
        return self._connection.body_open

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The connection is this lane's from now on."""
        super().connection_made(transport)
        self._framework.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone; whoever streams on it is told."""
        super().connection_lost(exc)
        self._release()
        self._framework.open.discard(self)
        self._ended()
        if self._connection.on_end is not None:
            self._connection.on_end()

    def data_received(self, data: bytes) -> None:
        """Bytes for the parser."""
        if self.transport.is_closing():
            return  # the rest of what a refused peer sent
        self.heard_at = self._framework.seconds
        super().data_received(data)

    def resume_writing(self) -> None:
        """The peer has read enough: go on."""
        super().resume_writing()
        self._taken_at = self._framework.seconds

    def _release(self) -> None:
        """Drop what refers to this lane, which would otherwise keep it and the request's bytes in memory."""
        self._unset_keepalive_if_required()  # a connection that was reset still has its timer
        self._problem = None
        self.pipeline.clear()
        self.parser = cast(httptools.HttpRequestParser, None)  # uvicorn itself does this at the end
        self.cycle = None  # type: ignore[assignment]  # None before the first request, whatever is declared

    def seconds_without_taking(self) -> int:
        """How long the peer has taken nothing, while somebody waits to write more or the connection waits to end.

        Ask now and then: the bytes left are compared with those of the last time. Who reads slowly takes nothing for a
        while at a time, for its kernel makes room in large pieces.
        """
        now, unsent = self._framework.seconds, self.transport.get_write_buffer_size()
        if unsent != self._unsent or not (self.flow.write_paused or self.transport.is_closing()):
            self._unsent, self._taken_at = unsent, now
        return now - self._taken_at

    # The parser's callbacks

    def on_message_begin(self) -> None:
        """A head begins to arrive."""
        super().on_message_begin()
        self._head_bytes = 0
        self._hosts.clear()
        self.head_since = self._framework.seconds

    def on_url(self, url: bytes) -> None:
        """A part of the target."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._count(len(name) + len(value) + 4)
        if name.lower() == b"host":
            self._hosts.append(value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head has arrived."""
        if self.parser.should_upgrade() and not self._should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._ignored_upgrade = True  # the same head comes again, without the offer
            return
        if self._hosts or self.parser.get_http_version() == "1.1":
            self._problem = problem_with_host(self._hosts)
            if self._problem is not None:
                raise self._problem
        self.head_since = None
        self._connection.heads += 1
        self._connection.body_open = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The body has arrived too."""
        if self._ignored_upgrade:
            return
        self._connection.body_open = False
        super().on_message_complete()

    def head_without_upgrade(self) -> bytes | None:
        """The head that was read last, as if it had offered no upgrade; None where its offer is not ignored."""
        if not self._ignored_upgrade:
            return None
        self._ignored_upgrade = False
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def handle_websocket_upgrade(self) -> None:
        """Give the connection, and the head that was read, to the protocol of a WebSocket."""
        make = self._framework.socket
        assert make is not None, "an upgrade is seen only where sockets are served"
        head = [self.scope["method"].encode(), b" ", self.url, b" HTTP/1.1\r\n"]
        for name, value in self.scope["headers"]:
            head += [name, b": ", value, b"\r\n"]
        head.append(b"\r\n")
        self._release()
        self.connections.discard(self)
        self._framework.open.discard(self)
        socket = make(self._ended)
        self.transport.set_protocol(socket)
        socket.connection_made(self.transport)
        socket.data_received(b"".join(head))

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES_MAX:
            raise LimitExceeded("the head of the request is too large", bytes_max=HEAD_BYTES_MAX)

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser refused, in the words of every other error."""
        del msg
        problem: HoldfastError = self._problem or InvalidRequest("not an HTTP request", code=Code.MALFORMED)
        if self._head_bytes > HEAD_BYTES_MAX:
            problem = LimitExceeded("the head of the request is too large", bytes_max=HEAD_BYTES_MAX)
        # Behind a request that is not answered yet ours would be taken for its answer, or tear it.
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None before the first request, whatever is declared
        inside_its_body = cycle is not None and cycle.more_body and not cycle.response_started
        if not self.pipeline and (cycle is None or cycle.response_complete or inside_its_body):
            self.transport.write(self._framework.error_response(problem))
        self.transport.close()
