"""Connections that the framework serves: uvicorn's HTTP/1.1 protocol with this server's bounds and error bodies.

``HttpToolsProtocol`` is not public API of uvicorn: ``pyproject.toml`` pins the minor version, and tests check the parts
used here: the constructor, ``connection_made``, ``connection_lost``, the parser's callbacks, ``send_400_response``,
``app_state`` in every scope, what ``FlowControl`` asks of its transport, and the upgrade to WebSocket through
``handle_websocket_upgrade``.

Input is given to the parser in pieces, as far as the turn goes (``turns``). While the framework takes no more, or the
turn is over, the rest waits here and nothing is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from holdfast.errors import Code, HoldfastError, InvalidRequest, LimitExceeded
from holdfast.server.http.auth import ClientKey
from holdfast.server.http.buffers import MARK_BYTES, Buffers
from holdfast.server.http.connection import too_slow
from holdfast.server.http.requests import problem_with_host
from holdfast.server.http.state import HttpState
from holdfast.server.http.turns import BYTES_PER_UNIT

HEAD_BYTES_MAX: Final = 65_536
KEEP_ALIVE_SECONDS: Final = 75
PIECE_BYTES: Final = 2_048
UNKNOWN_PIECE_BYTES: Final = 512
BODY_PIECE_BYTES: Final = 65_536
"""What the parser gets at once: many small heads may be in a piece, of a body there is only one."""
CYCLE_BYTES: Final = 5_120
"""About what a request takes in memory that waits for the one before it."""

ErrorResponse = Callable[[HoldfastError], bytes]
MakeSocket = Callable[[Callable[[], None]], asyncio.Protocol]
"""Makes the protocol of a WebSocket. It gets the bytes of the request first; its argument is called at the end."""


class ConnectionView:
    """What a streaming route may know about the connection under it."""

    flow: FlowControl
    """That of the protocol, which sets it."""

    __slots__ = ("_framework", "_transport", "body_bytes", "body_open", "body_since", "flow", "heads", "on_end")

    def __init__(self, framework: Framework, transport: asyncio.Transport) -> None:
        self._framework = framework
        self._transport = transport
        self.on_end: Callable[[], object] | None = None
        """Called once when the connection ends while a route waits."""
        self.heads = 0
        self.body_open = False
        self.body_since: int | None = None
        """Since when the rest of a body, or of an item of it, is awaited; None where none is due."""
        self.body_bytes = 0

    def awaits_item(self, size: int) -> None:
        """An endless body: of its next item ``size`` bytes have come. Without any, nothing is due."""
        self.body_since = self._framework.seconds if size else None
        self.body_bytes = size

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

    @property
    def takes_more(self) -> bool:
        """Whether the peer has taken so much that a writer need not wait."""
        return not self.flow.write_paused

    async def until_it_takes_more(self) -> None:
        """Wait for that. Also returns when the connection ends."""
        await self.flow.drain()

    def bound_unsent_bytes(self, high: int) -> None:
        """Let a stream hold up to ``high`` unsent bytes before its writer is made to wait."""
        self._transport.set_write_buffer_limits(high=high)

    def close(self) -> None:
        """End the connection after what is written has been sent."""
        self._transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        self._transport.abort()

    def end_unless_whole(self, seconds: float) -> None:
        """End the connection if the rest of a refused request has not arrived within ``seconds``.

        Closing at once, with unread input, could take the response from the peer.
        """
        refused = self.heads

        def look() -> None:
            if self.body_open and self.heads == refused:
                self._transport.close()

        if self.body_open:
            asyncio.get_running_loop().call_later(seconds, look)

    def abort_within(self, seconds: float) -> None:
        """End the connection after ``seconds``, whatever is written until then."""
        asyncio.get_running_loop().call_later(seconds, self._transport.abort)

    def close_within(self, seconds: float) -> None:
        """End the connection after what is written has been sent, and in any case after ``seconds``."""
        self._transport.close()
        self.abort_within(seconds)


class Framework:
    """Makes the protocols of one server and keeps track of their connections."""

    def __init__(
        self,
        http: HttpState,
        app: Callable[..., object],
        *,
        error_response: ErrorResponse,
        socket: MakeSocket | None = None,
    ) -> None:
        self.http = http
        self.error_response = error_response
        self.socket = socket
        self.state = ServerState()
        self.open: set[AsgiConnection] = set()
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

    def protocol(self, transport: asyncio.Transport, ended: Callable[[], None]) -> AsgiConnection:
        """The protocol for a connection that was accepted elsewhere. ``ended`` is called when it is over."""
        return AsgiConnection(self, ConnectionView(self, transport), ended)

    def tell_date(self, date: bytes) -> None:
        """Use this value of the ``Date`` header in the answers from now on."""
        self.state.default_headers = [(b"date", date)]

    def close_stalled(self, *, partial_seconds_max: int, idle_seconds_max: int) -> None:
        """Close connections whose head or body has stalled. Those whose peer reads nothing are aborted."""
        for connection in list(self.open):
            if connection.seconds_without_taking() > idle_seconds_max:
                connection.transport.abort()
                continue
            connection.refuse_slow(partial_seconds_max)
            since = connection.head_since
            if (since is not None and self.seconds - since > partial_seconds_max) or (
                connection.body_open and self.seconds - connection.heard_at > idle_seconds_max
            ):
                connection.transport.close()

    def shut_down(self) -> None:
        """Let running requests end, and their connections with them; close the idle ones."""
        for connection in list(self.open):
            connection.shutdown()

    def running(self) -> int:
        """How many requests are being served, streams included."""
        return len(self.state.tasks)


class _RequestParser:
    """httptools' parser, which ends a request that offers an upgrade before its body.

    A server that does not take the offer reads the request as if there were none (RFC 9110, section 7.8).
    """

    __slots__ = ("_connection", "_parser")

    def __init__(self, connection: AsgiConnection) -> None:
        self._connection = connection
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpRequestParser(self._connection)
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
            head = self._connection.head_without_upgrade()
            if head is None:
                raise
            self._begin()
            self.feed_data(head + data[upgrade.args[0] :])


class _Reading:
    """The transport, as far as uvicorn's flow control asks it to read."""

    __slots__ = ("connection",)

    def __init__(self, connection: AsgiConnection) -> None:
        self.connection: AsgiConnection | None = connection
        """None when it is over: the two would form a cycle."""

    def pause_reading(self) -> None:
        """The framework takes no more."""
        if self.connection is not None:
            self.connection.take_no_more()

    def resume_reading(self) -> None:
        """It takes more."""
        if self.connection is not None:
            self.connection.take_more()


class AsgiConnection(HttpToolsProtocol):
    """One connection in the framework's hands."""

    def __init__(self, framework: Framework, connection: ConnectionView, ended: Callable[[], None]) -> None:
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
        self.is_known = framework.http.knows(None)
        """See ``Visited``."""
        self._reading = _Reading(self)
        self._unread = bytearray()
        self._is_full = False
        self._waits_for_turn = False
        self._authorization: bytes | None = None
        self._counted: tuple[Buffers, ClientKey] | None = None
        """Where its bytes are counted."""
        self._is_released = False
        """Whether the connection is gone, or a WebSocket's."""

    @property
    def body_open(self) -> bool:
        """Whether the rest of a request is awaited."""
        return self._connection.body_open

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The connection is this protocol's from now on."""
        super().connection_made(transport)
        self.flow = self._connection.flow = FlowControl(cast(asyncio.Transport, self._reading))
        self._framework.open.add(self)
        if not self.is_known:
            self._framework.http.unknown.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone; its stream is notified."""
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
        if not self.is_known:
            self._framework.http.unknown.heard(self)
        if self._unread:
            self._unread += data
        else:
            self._feed(data)

    def _feed(self, data: bytes) -> None:
        turns, is_known = self._framework.http.turns, self.is_known
        left = budget = turns.left(self)
        position, connection = 0, self._connection
        while position < len(data) and left > 0 and not self._is_full:
            heads = connection.heads
            most = PIECE_BYTES if self.is_known else UNKNOWN_PIECE_BYTES
            piece = data[position : position + (BODY_PIECE_BYTES if connection.body_open else most)]
            super().data_received(piece)
            position += len(piece)
            left -= max(1, connection.heads - heads + len(piece) // BYTES_PER_UNIT)
            if self.transport.is_closing() or self._is_released:
                position = len(data)  # refused, or a WebSocket now
        if position:
            turns.took(budget - left, is_known=is_known)
        if position < len(data):
            self._unread += data[position:]
            self.transport.pause_reading()
            self._wait_for_turn()
        self._report()

    # What it holds: see ``Buffer``

    def _report(self) -> None:
        if self._is_released:
            return
        held = self.held_bytes()
        if held > MARK_BYTES or self._counted is not None:
            http = self._framework.http
            if self._counted is None:
                peer = self._connection.peer
                client = http.authenticator.client_of(self._authorization, peer) if self.is_known else ""
                self._counted = (http.buffers if self.is_known else http.unknown_bytes), client
            buffers, client = self._counted
            buffers.count(client, self, held)

    def _discard(self) -> None:
        counted, self._counted = self._counted, None
        if counted is not None:
            buffers, client = counted
            buffers.discard(client, self)

    def held_bytes(self) -> int:
        """What was read and not served yet, and what the peer has not taken, unless a route counts that."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        begun = len(self._unread) + (0 if cycle is None else len(cycle.body)) + CYCLE_BYTES * len(self.pipeline)
        return begun + (0 if self.is_known else self.transport.get_write_buffer_size())

    def end_lagging(self, problem: HoldfastError) -> None:
        """See ``Buffer``. In the middle of requests there is no place for a reason."""
        del problem
        self.transport.abort()

    def _wait_for_turn(self) -> None:
        if not self._waits_for_turn and not self._is_full:
            self._waits_for_turn = True
            self._framework.http.turns.wait(self)

    def go_on(self) -> None:
        """See ``Visited``."""
        self._waits_for_turn = False
        if self._is_full or self.transport.is_closing():
            return
        data = bytes(self._unread)
        self._unread.clear()
        self._feed(data)
        if self._reads():
            self.transport.resume_reading()

    def _reads(self) -> bool:
        return not (self._unread or self._is_full or self._is_released or self.transport.is_closing())

    def take_no_more(self) -> None:
        """The framework has enough of this connection."""
        self._is_full = True
        self.transport.pause_reading()

    def take_more(self) -> None:
        """The framework takes more, beginning with what was read already. Requests that wait for others come first."""
        if self.pipeline:
            self.flow.read_paused = True  # uvicorn reads on after each response, and keeps every head that it parsed
            return
        self._is_full = False
        if self._unread:
            self._wait_for_turn()
        else:
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        """Too much is unsent."""
        super().pause_writing()
        if not self.is_known:
            self._report()

    def resume_writing(self) -> None:
        """The peer has read enough: go on."""
        super().resume_writing()
        self._taken_at = self._framework.seconds

    def _release(self) -> None:
        """Drop references to this protocol, which would keep it and the request's bytes in memory."""
        self._unset_keepalive_if_required()  # a connection that was reset still has its timer
        self._discard()
        self._problem = None
        self._is_released = True
        self._reading.connection = None
        self._framework.http.unknown.ended(self)
        self._unread.clear()
        self.pipeline.clear()
        self.parser = cast(httptools.HttpRequestParser, None)  # uvicorn itself does this at the end
        self.cycle = None  # type: ignore[assignment]  # None before the first request, whatever is declared

    def seconds_without_taking(self) -> int:
        """How long the peer has read nothing while something waits to be written. Call it regularly: it compares."""
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
        authorization = next((value for name, value in self.headers if name == b"authorization"), None)
        self._recognise(authorization)
        self._connection.heads += 1
        self._connection.body_open = True
        self._connection.body_since, self._connection.body_bytes = self._framework.seconds, 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The body has arrived too."""
        if self._ignored_upgrade:
            return
        self._connection.body_open = False
        self._connection.body_since = None
        super().on_message_complete()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._connection.body_bytes += len(body)
        super().on_body(body)

    def _recognise(self, authorization: bytes | None) -> None:
        http = self._framework.http
        is_known = http.knows(authorization)
        if is_known is not self.is_known or authorization != self._authorization:
            self._discard()
            self._authorization = authorization
        if is_known is not self.is_known:
            self.is_known = is_known
            http.unknown.ended(self) if is_known else http.unknown.opened(self)

    def refuse_slow(self, seconds_max: int) -> None:
        """End a request whose body comes too slowly. While this side takes no more, nothing is due."""
        view, now = self._connection, self._framework.seconds
        if view.body_since is None or self._is_full or self._waits_for_turn:
            view.body_since = None if view.body_since is None else now
            return
        rate = self._framework.http.limits.body_bytes_per_second_min
        if now - view.body_since > seconds_max + view.body_bytes // rate:
            self._end_with(too_slow(rate))

    def abort(self) -> None:
        """Close at once."""
        self.transport.abort()

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
        self._end_with(problem)

    def _end_with(self, problem: HoldfastError) -> None:
        # Behind a request that is not answered yet ours would be taken for its answer, or tear it.
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None before the first request, whatever is declared
        inside_its_body = cycle is not None and cycle.more_body and not cycle.response_started
        if not self.pipeline and (cycle is None or cycle.response_complete or inside_its_body):
            self.transport.write(self._framework.error_response(problem))
        self.transport.close()
