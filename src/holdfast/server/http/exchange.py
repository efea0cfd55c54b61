"""One request that the framework serves, on a connection that serves the hot routes itself.

An exchange gets the bytes of its request and no byte more: httptools never sees two requests, because a piece that it
gets ends at the first empty line, or where the length of the body says. So a connection reads on as before when the
exchange is over. An upgrade that nobody takes is read as if it had not been offered (RFC 9110, section 7.8).

Bounds: ``HEAD_BYTES_MAX``, and ``BODY_BYTES_KEPT`` of the body while the framework does not ask for it. What comes
after the request waits in the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Final, Protocol
from urllib.parse import unquote

import httptools
import structlog

from holdfast.errors import Code, InvalidRequest, LimitExceeded
from holdfast.server.http.answers import Sending
from holdfast.server.http.requests import problem_with_host
from holdfast.server.http.state import HttpState

_log = structlog.get_logger("holdfast.server")

HEAD_BYTES_MAX: Final = 65_536
BODY_BYTES_KEPT: Final = 65_536
PIECE_BYTES: Final = 65_536
REASONS: Final = {int(status): status.phrase.encode() for status in HTTPStatus}
_END: Final = b"\r\n\r\n"

MakeSocket = Callable[[Callable[[], None]], asyncio.Protocol]
"""Makes the protocol of a WebSocket. It gets the bytes of the request first; its argument is called at the end."""


class ClientDisconnect(Exception):
    """Nobody waits for the response any more."""


class Carrier(Sending, Protocol):
    """The connection of an exchange."""

    @property
    def transport(self) -> asyncio.Transport | None:
        """None when the connection is gone."""
        ...

    def recognise(self, authorization: bytes | None) -> None:
        """A head has come with this header."""

    def read_on(self) -> None:
        """The exchange takes more of its body."""

    def write(self, data: bytes) -> None:
        """Send a part of the response."""

    def responded(self) -> None:
        """The response is complete."""

    def close(self) -> None:
        """End it after what is written has been sent."""


class ExchangeContext:
    """What the exchanges of one server share. ``serve`` answers the request of one."""

    def __init__(
        self, state: HttpState, serve: Callable[[Exchange], Awaitable[None]], socket: MakeSocket | None
    ) -> None:
        self.loop = state.loop
        self.tasks = state.tasks
        self.serve = serve
        self.socket = socket
        self.seconds = 0
        """Ticks since the start; ages are counted in them, so no request reads a clock."""
        self.date = b""
        """The header field of all responses, with its end."""


class Exchange:
    """See the docstring of the module. Its parser calls it, and the framework reads and writes by it."""

    __slots__ = (
        "_chunked", "_expects_continue", "_context", "_head_bytes", "_hosts", "_left", "_length_left", "_parser",
        "_tail", "_unsent_head", "_waiter", "authorization", "body", "body_bytes", "body_since", "connection",
        "has_begun", "has_responded", "head_since", "headers", "is_full", "is_gone", "is_whole", "keep_alive", "method",
        "offer", "on_end", "path", "query", "url",
    )  # fmt: skip

    def __init__(self, connection: Carrier, context: ExchangeContext) -> None:
        self.connection = connection
        self._context = context
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._tail = b""
        """The last bytes that the parser got, where an empty line may have begun."""
        self._head_bytes = 0
        self.head_since: int | None = context.seconds
        """When its head began to come; None once it is complete."""
        self.offer: bytes | None = None
        """The head of a request for a WebSocket."""
        self.method = self.path = ""
        self.url = self.query = b""
        self.authorization: bytes | None = None
        """The first one."""
        self.headers: list[tuple[bytes, bytes]] = []
        self._hosts: list[bytes] = []
        self._expects_continue = False
        self._chunked = False
        self._length_left = 0
        """Bytes of the body that are due, where it has a length."""
        self.body = bytearray()
        """What came of the body, and the framework has not read."""
        self.is_whole = False
        """Whether the last byte of the request has come."""
        self.is_full = False
        """Whether nothing is read until the framework asks for more."""
        self.body_since: int | None = None
        """Since when the rest of a body, or of an item of it, is awaited; None where none is due."""
        self.body_bytes = 0
        self.is_gone = False
        """Whether nobody waits for the response any more."""
        self.keep_alive = True
        self.has_begun = False
        """Whether the response has begun."""
        self.has_responded = False
        self._unsent_head = b""
        self._left = 0
        """Bytes of the response that are due; below 0 where it comes in chunks."""
        self._waiter: asyncio.Future[None] | None = None
        self.on_end: Callable[[], object] | None = None
        """Called once when the connection ends while a route waits."""

    # Reading

    @property
    def takes_input(self) -> bool:
        """Whether the next bytes are for this request."""
        return not (self.is_whole or self.is_full)

    def take(self, data: bytes, start: int) -> int:
        """Read on at ``start``. Returns how many bytes it took. Raises: InvalidRequest, LimitExceeded."""
        if not self.takes_input:
            return 0
        end = self._end_of_piece(data, start)
        piece = data[start:end]
        in_head = self.head_since is not None
        if in_head:
            self._head_bytes += end - start
            if self._head_bytes > HEAD_BYTES_MAX:
                raise LimitExceeded("the head of the request is too large", bytes_max=HEAD_BYTES_MAX)
        elif not self._chunked:
            self._length_left -= end - start
        parser = self._parser
        assert parser is not None, "an exchange that is over takes nothing"
        try:
            with suppress(httptools.HttpParserUpgrade):  # the piece ends with the head
                parser.feed_data(piece)
            if in_head and self.head_since is None:
                self._begin(parser)
        except (httptools.HttpParserError, httptools.HttpParserInvalidURLError) as error:
            raise _not_http() from error
        if self.head_since is None and not (self._chunked or self._length_left or self.is_whole):
            raise _not_http()  # by its length the request is whole
        if self.is_whole:
            self.body_since = None
        self._wake()
        return end - start

    def _end_of_piece(self, data: bytes, start: int) -> int:
        """Where the next piece ends: at the latest where the request may end."""
        most = min(len(data), start + PIECE_BYTES)
        if self.head_since is None and not self._chunked:
            return min(most, start + self._length_left)
        tail = self._tail
        seam = (tail + data[start : start + 3]).find(_END)
        head_end = data.find(_END, start, most) if seam < 0 else start + seam - len(tail)
        end = most if seam < 0 and head_end < 0 else min(head_end + 4, most)
        self._tail = (tail + data[max(start, end - 3) : end])[-3:]
        return end

    def _begin(self, parser: httptools.HttpRequestParser) -> None:
        """The head is complete. Raises: InvalidRequest; httptools.HttpParserError."""
        version = parser.get_http_version()
        if self._hosts or version == "1.1":
            problem = problem_with_host(self._hosts)
            if problem is not None:
                raise problem
        self.method = parser.get_method().decode("ascii")
        self.authorization = next((value for name, value in self.headers if name == b"authorization"), None)
        self.connection.recognise(self.authorization)
        self.keep_alive = version != "1.0" and parser.should_keep_alive() and self.method != "CONNECT"
        if parser.should_upgrade() and self.method != "CONNECT":
            if self._context.socket is not None and self._offers_websocket():
                self.offer = self._head()
                return
            head, self.headers, self.url = self._head(without=b"upgrade"), [], b""
            self.is_whole, self._length_left, self._chunked = False, 0, False
            self._parser = parser = httptools.HttpRequestParser(self)
            parser.feed_data(head)
        url = httptools.parse_url(self.url)
        raw_path = url.path or b""
        if not raw_path.isascii():
            raise _not_http()
        self.path, self.query = unquote(raw_path.decode()), url.query or b""
        if not self.is_whole:
            self.body_since = self._context.seconds
        task = self._context.loop.create_task(self._run())
        self._context.tasks.add(task)
        task.add_done_callback(self._context.tasks.discard)

    def _offers_websocket(self) -> bool:
        fields = dict(self.headers)
        options = [option.strip() for option in fields.get(b"connection", b"").lower().split(b",")]
        return b"upgrade" in options and fields.get(b"upgrade", b"").lower() == b"websocket"

    def _head(self, without: bytes = b"") -> bytes:
        lines = [b"%b %b HTTP/1.1" % (self.method.encode(), self.url)]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != without]
        return b"\r\n".join(lines) + _END

    # The parser's callbacks

    def on_url(self, url: bytes) -> None:
        """A part of the target."""
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        name = name.lower()
        self.headers.append((name, value))
        match name:
            case b"content-length":
                self._length_left = int(value)
            case b"transfer-encoding":
                self._chunked = True
            case b"host" if self.head_since is not None:
                self._hosts.append(value)
            case b"expect":
                self._expects_continue = value.lower() == b"100-continue"
            case _:
                pass

    def on_headers_complete(self) -> None:
        """The head has arrived."""
        self.head_since = None

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self.body_bytes += len(body)
        if not self.has_responded:
            self.body += body
            self.is_full = len(self.body) > BODY_BYTES_KEPT

    def on_message_complete(self) -> None:
        """The body has arrived too."""
        if self.is_whole:
            raise _not_http()  # httptools found a request in this one
        self.is_whole = True

    # What the framework does

    async def _run(self) -> None:
        try:
            await self._context.serve(self)
        except Exception:  # noqa: BLE001  # the last resort: a bug must not take the connection's task with it
            _log.exception("request failed", path=self.path, method=self.method)
        finally:
            if not (self.has_responded or self.is_gone):
                self.connection.close()

    async def part(self) -> bytes:
        """The next part of the body, empty after the last one. Raises: ClientDisconnect."""
        transport = self.connection.transport
        if self._expects_continue and transport is not None and not self.is_whole:
            self._expects_continue = False
            transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not (self.is_gone or self.has_responded):
            if self.body or self.is_whole:
                body, self.body = bytes(self.body), bytearray()
                return body
            self._take_more()
            self._waiter = self._context.loop.create_future()
            await self._waiter
        raise ClientDisconnect

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _take_more(self) -> None:
        if self.is_full:
            self.is_full = False
            self.connection.read_on()

    def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head of the response."""
        if not self.is_gone and self.connection.transport is not None:
            head = self._head_of(status, headers)
            if self._left < 0:
                self.connection.write(head)
            else:
                self._unsent_head = head  # the body follows at once

    async def write(self, body: bytes, *, is_last: bool) -> None:
        """Send a part of the response's body. Waits while the connection holds more unsent bytes than it may."""
        connection = self.connection
        if not (self.is_gone or connection.takes_more):
            await connection.until_it_takes_more()
        if self.is_gone or connection.transport is None:
            return
        parts, self._unsent_head = [self._unsent_head], b""
        if self.method == "HEAD":
            self._left = 0
        elif self._left < 0:
            parts += (b"%x\r\n" % len(body), body, b"\r\n") if body else ()
            parts += (b"0\r\n\r\n",) if is_last else ()
        else:
            self._left -= len(body)
            assert self._left >= 0, "a body is as long as was said"
            parts.append(body)
        connection.write(b"".join(parts))
        if is_last:
            assert self._left <= 0, "a body is as long as was said"
            self.has_responded = True
            self.body.clear()
            self._wake()
            self._take_more()
            connection.responded()

    def _head_of(self, status: int, headers: Mapping[str, str]) -> bytes:
        assert not self.has_begun, "a request has one response"
        self.has_begun = True
        self._expects_continue = False
        length = headers.get("content-length")
        self._left = -1 if length is None else int(length)
        lines = [b"HTTP/1.1 %d %b\r\n" % (status, REASONS.get(status, b"Error")), self._context.date]
        lines += [f"{name}: {value}\r\n".encode("latin-1") for name, value in headers.items()]
        if "close" in headers.get("connection", ""):
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(b"connection: close\r\n")
        if length is None and self.method != "HEAD":
            lines.append(b"transfer-encoding: chunked\r\n")
        head = b"".join(lines)
        assert head.count(b"\n") == head.count(b"\r") == len(lines) - (not self._context.date), "a line is a line"
        return head + b"\r\n"

    # What routes know of it

    def awaits_item(self, size: int) -> None:
        """An endless body: of its next item ``size`` bytes have come. Without any, nothing is due."""
        self.body_since = self._context.seconds if size else None
        self.body_bytes = size

    def end_unless_whole(self, seconds: float) -> None:
        """End the connection if the rest of a refused request has not arrived within ``seconds``.

        Closing at once, with unread input, could take the response from the peer.
        """
        if not self.is_whole:
            self._context.loop.call_later(seconds, self._end_unless_whole)

    def _end_unless_whole(self) -> None:
        if not (self.is_whole or self.is_gone):
            self.connection.close()

    # The end

    def end(self) -> None:
        """Forget the parser, which refers to this."""
        self._parser = None

    def lost(self) -> None:
        """Nobody waits for the response any more."""
        self.is_gone = True
        self._parser = None
        self.body.clear()
        self._wake()
        if self.on_end is not None:
            self.on_end()


def _not_http() -> InvalidRequest:
    return InvalidRequest("not an HTTP request", code=Code.MALFORMED)
