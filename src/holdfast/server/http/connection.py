"""The protocol of every accepted connection: it parses each request and serves the hot routes. All other requests go
through the framework (``http_server.Application``), one at a time (``exchange``).

This module finds the end of a head itself. Then httptools parses head and body. If httptools finds another end of the
request, the connection is closed (it may be request smuggling). A head that equals the previous one byte for byte, or
but for its request line, is not parsed again. A request that is not a plain one of a hot route begins when all before
it are answered, and nothing after it is parsed until it is.

Bounds: ``HEAD_BYTES_MAX``, the route's body size, ``UNANSWERED_MAX`` requests without a response, ``HELD_BYTES_MAX``
(and one read) after a request that is served alone, what a turn of the loop has for one connection (``turns``), and the
high-water mark of the transport. Up to ``DISCARD_BYTES_MAX`` of a refused request are read and discarded, so that its
sender sees the response. A peer that has closed its sending direction still gets the responses of hot routes. Its
version requests wait at most ``HALF_CLOSED_SECONDS_MAX``; its long polls are answered without waiting.

One module because reading, responding and the bounds are one state machine over one set of fields.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, cast

import httptools

from holdfast.browsers import problem_with_name
from holdfast.errors import Code, HoldfastError, InvalidRequest, LimitExceeded, Unavailable
from holdfast.server.http.auth import ClientKey
from holdfast.server.http.buffers import MARK_BYTES, Buffers
from holdfast.server.http.exchange import HEAD_BYTES_MAX, REASONS, Exchange, ExchangeContext, MakeSocket
from holdfast.server.http.requests import problem_with_host
from holdfast.server.http.responses import STATUS_OF, error_response, without_traceback
from holdfast.server.http.state import JSON, FastRequest, HotRoutes, HttpState, LongPoll, PendingResponse
from holdfast.server.http.turns import BYTES_PER_UNIT
from holdfast.wire.formats import MSGPACK, NDJSON

KNOWN_HEAD_BYTES_MAX: Final = 4_096
UNANSWERED_MAX: Final = 256
HELD_BYTES_MAX: Final = 65_536
DISCARD_BYTES_MAX: Final = 16 * 1_048_576
DISCARD_SECONDS_MAX: Final = 2.0
HALF_CLOSED_SECONDS_MAX: Final = 1.0
"""How long versions may be due to a peer that sends no more: most of these peers are gone."""

LINE_BYTES_MAX: Final = 1_024
"""A longer request line is not one of a hot route."""
_END_OF_HEAD: Final = b"\r\n\r\n"


class _Head:
    """What the parser reports of one request's head. It has no reference to its connection: they would form a cycle."""

    __slots__ = ("accept", "authorization", "closes", "complete", "content_type", "hosts", "length", "unusual")

    def __init__(self) -> None:
        self.hosts: list[bytes] = []
        self.reset()

    def reset(self) -> None:
        """Forget the request before."""
        self.hosts.clear()
        self.length = 0
        self.unusual = False
        self.closes = False
        self.complete = False
        self.authorization: bytes | None = None
        self.content_type: bytes | None = None
        self.accept: bytes | None = None

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; only those that bear on framing, rights and the connection's end matter here."""
        match name.lower():
            case b"content-length":
                self.length = int(value)
            case b"host":
                self.hosts.append(value)
            # What two of them mean is for one reader to say, and the framework is that one.
            case b"authorization":
                self.unusual |= self.authorization is not None
                self.authorization = value
            case b"content-type":
                self.unusual |= self.content_type is not None
                self.content_type = value
            case b"accept":
                self.unusual |= self.accept is not None
                self.accept = value
            case b"connection":
                self.closes |= b"close" in value.lower()
            # What a browser sends with every request is for the framework's routes to judge.
            case b"transfer-encoding" | b"content-encoding" | b"expect" | b"upgrade" | b"origin" | b"sec-fetch-site":
                self.unusual = True
            case b"user-agent":
                self.unusual |= value.startswith(b"Mozilla/")
            case _:
                pass

    def on_message_complete(self) -> None:
        """The parser has seen the end of the request."""
        self.complete = True


class HttpConnection(asyncio.Protocol):
    """One connection, as the docstring of the module describes it."""

    __slots__ = (
        "alone", "_authorization", "_closes", "_counted", "_discard_left", "_drained", "dirty", "eof", "_finished",
        "_head", "_state", "is_known", "_known_head", "_known_host", "_known_rest", "context", "_last_second",
        "_needed", "_partial_since", "_parser", "queue", "reading_paused", "_request", "_taken_second",
        "_takes_no_more", "transport", "_unread", "_unsent", "_waits_for_answers", "_waits_for_turn", "_writing_paused",
        "_written",
    )  # fmt: skip

    def __init__(self, context: ConnectionContext) -> None:
        self.context = context
        self._state = context.state
        self.transport: asyncio.Transport | None = None
        self._head = _Head()
        self._parser = httptools.HttpRequestParser(self._head)
        self.queue: deque[FastResponse] = deque()
        self.alone: Exchange | FastResponse | None = None
        """The request that is served alone: the next one waits until it is answered."""
        self._unread = bytearray()
        self._needed = 0
        """Unread bytes needed before parsing again."""
        self.reading_paused = False
        self._writing_paused = False
        self._waits_for_turn = False
        self._waits_for_answers = False
        """Whether the next request waits until all before it are answered."""
        self._counted: tuple[Buffers, ClientKey] | None = None
        """Where its bytes are counted."""
        self._drained: asyncio.Future[None] | None = None
        self._finished: Exchange | None = None
        """One that has responded, while its route still waits for the end of the connection."""
        self.is_known = context.state.knows(None)
        """See ``Visited``."""
        self._discard_left = -1
        """At or above zero: input is discarded until the connection is closed."""
        self.dirty = False
        self.eof = False
        self._last_second = context.seconds
        self._partial_since: int | None = None
        """The second of the first byte of an incomplete request."""
        self._unsent = 0
        self._written = 0
        """By exchanges, since there was last nothing unsent."""
        self._taken_second = context.seconds
        """When the peer took something, or had nothing to take."""
        self._takes_no_more = False
        self._known_head = b""
        """The bytes of ``_head`` while it holds for the next request too."""
        self._known_rest = b""
        """The same without the request line, for any hot route."""
        self._authorization: bytes | None = None
        """That of the head that was parsed last."""
        self._known_host = b""
        """The ``Host`` that was accepted last, empty for none."""
        self._closes = False
        self._request: FastRequest

    @property
    def peer(self) -> object:
        """The address of the other end, as sockets give it."""
        return None if self.transport is None else self.transport.get_extra_info("peername")

    # The transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A connection was accepted."""
        self.transport = cast(asyncio.Transport, transport)
        context = self.context
        context.connections += 1
        context.open.add(self)
        if not self.is_known:
            context.unknown.opened(self)
        if context.connections > context.connections_max:
            self._state.counters.refused_connections += 1
            error = LimitExceeded("too many connections", code=Code.OVERLOADED, retry_after_ms=1000)
            self._refuse(context.error_response(error, closes=True))

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone; answers that are still due are dropped, their commits stand."""
        del exc
        self.transport = None
        context = self.context
        context.connection_ended()
        context.open.discard(self)
        context.unknown.ended(self)
        self._unread.clear()
        self._discard_report()
        exchanges, self.alone, self._finished = (self.alone, self._finished), None, None
        for exchange in exchanges:
            if isinstance(exchange, Exchange):
                exchange.lost()
        self._writing_paused = False  # nobody waits for what nobody takes
        self._wake_writers()
        abandoned = [due for due in self.queue if due.poll is not None]
        self.queue.clear()
        for due in abandoned:
            poll, due.poll = due.poll, None  # the poll refers to its request too, until it has its answer
            if poll is not None:
                poll.abandon()

    def eof_received(self) -> bool:
        """The peer sends no more. True keeps our direction open."""
        # A peer that has sent its last request may still be waiting for answers.
        self.eof = True
        if isinstance(self.alone, Exchange):
            return False  # whose route may stream without an end
        transport = self.transport
        for poll in [due.poll for due in self.queue if due.poll is not None]:
            poll.hurry()
        if any(due.asks_store for due in self.queue):
            self._state.loop.call_later(HALF_CLOSED_SECONDS_MAX, self._close_if_only_asking)
        return bool(self.queue) and transport is not None and transport.get_extra_info("sslcontext") is None

    def _close_if_only_asking(self) -> None:
        # While the store is silent these would be waited for long, and each would take a connection from the living.
        if self.queue and all(due.asks_store for due in self.queue) and not self._unread:
            self.close()

    def pause_writing(self) -> None:
        """Too much is unsent: take no more requests."""
        self._writing_paused = True
        if not isinstance(self.alone, Exchange):
            self._pause_reading()
        if not self.is_known:
            self._report()

    def resume_writing(self) -> None:
        """The peer has read enough: go on."""
        self._writing_paused = False
        self._written = 0
        self._taken_second = self.context.seconds
        self._wake_writers()
        self._resume_reading()

    def _wake_writers(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Bytes of requests, or of what is only read away."""
        if self._takes_no_more:
            self._pause_reading()  # it was read from only to see its end
            return
        if self._discard_left >= 0:
            self._discard(len(data))
            return
        if not self.is_known:
            self.context.unknown.heard(self)
        unread = self._unread
        if not unread or self._needed:  # not for a piece of a head: one that trickles in has no end
            self._last_second = self.context.seconds
        if self.alone is not None and not self.alone.takes_input:
            self._hold(data)
            return
        if unread:
            unread += data
            if len(unread) < self._needed:
                return
            data = bytes(unread)
            unread.clear()
        self._read(data)

    def _hold(self, data: bytes | memoryview) -> None:
        """Keep what comes after a request that is served alone."""
        self._unread += data
        if len(self._unread) > HELD_BYTES_MAX:
            self._pause_reading()
        self._report()

    # Reading requests

    def _read(self, data: bytes) -> None:
        self._needed = 0
        size = len(data)
        position = 0
        turns, is_known = self.context.turns, self.is_known
        left = budget = turns.left(self)
        while position < size and not (self.reading_paused or self._takes_no_more) and self._discard_left < 0:
            if left <= 0:
                self.go_on_soon()
                break
            taken = self._take(data, position)
            if taken == 0:
                break
            position += taken
            left -= 1 + taken // BYTES_PER_UNIT
        if position:
            turns.took(budget - left, is_known=is_known)
            self._last_second = self.context.seconds
        if self.transport is None or self._discard_left >= 0:
            return
        if position == size:
            self._partial_since = None
        elif self.alone is not None and not self._waits_for_turn:
            self._hold(memoryview(data)[position:])
        else:
            if position or self._partial_since is None:
                self._partial_since = self.context.seconds
            self._unread += memoryview(data)[position:] if position else data
            if not self.is_known:
                self._report()
        if self.eof and not (self.queue or self.alone or self._waits_for_turn):
            self.transport.close()

    # What it holds: see ``Buffer``. Of a connection with a valid token it counts while a request is served alone.

    def _report(self) -> None:
        if self.is_known and self.alone is None:
            return
        held = self.held_bytes()
        if held > MARK_BYTES or self._counted is not None:
            if self._counted is None:
                state = self._state
                client = state.authenticator.client_of(self._authorization, self.peer) if self.is_known else ""
                self._counted = (state.buffers if self.is_known else state.unknown_bytes), client
            buffers, client = self._counted
            buffers.count(client, self, held)

    def _discard_report(self) -> None:
        counted, self._counted = self._counted, None
        if counted is not None:
            buffers, client = counted
            buffers.discard(client, self)

    def held_bytes(self) -> int:
        """What was read and not served yet, and what the peer has not taken, unless a route counts that."""
        held = len(self._unread) + (len(self.alone.body) if isinstance(self.alone, Exchange) else 0)
        unsent = 0 if self.is_known else self.unsent_bytes()
        return held + (max(unsent, self._written) if unsent else 0)  # what is sent in part is kept whole

    def end_lagging(self, problem: HoldfastError) -> None:
        """See ``Buffer``. In the middle of requests there is no place for a reason."""
        del problem
        self._unread.clear()  # now: a turn of the loop may read from a thousand connections before their ends are seen
        self.abort()

    def go_on_soon(self) -> None:
        """Read no more until the turns give this connection its next visit."""
        if not self._waits_for_turn:
            self._waits_for_turn = True
            self._pause_reading()
            self.context.turns.wait(self)

    def go_on(self) -> None:
        """See ``Visited``."""
        self._waits_for_turn = False
        self._resume_reading(UNANSWERED_MAX - 1)

    def _take(self, data: bytes, start: int) -> int:
        """Take one request at ``start``, or a part of it. Returns how much it took, 0 where more is needed or waits."""
        if self.alone is not None:
            return self._feed(data, start)
        known = self._known_head
        if known and data.startswith(known, start):
            head_end = start + len(known)
            end = head_end + self._head.length
            if end <= len(data):
                self._dispatch(data[head_end:end])
                return end - start
        line_end = data.find(b"\r\n", start, start + LINE_BYTES_MAX)
        if line_end < 0:
            if len(data) - start < LINE_BYTES_MAX and self.context.hot.may_begin(data[start:]):
                return 0
            return self._begin(data, start)
        request = self.context.hot.find(data[start:line_end])
        if request is None:
            return self._begin(data, start)
        if request.is_alone and self.queue:
            return self._wait_for_answers()
        rest = self._known_rest
        if rest and data.startswith(rest, line_end):
            head_end = line_end + len(rest)
            end = head_end + self._head.length
            if end <= len(data) and self._head.length <= request.request_bytes_max:
                self._request = request
                self._known_head = data[start:head_end]
                self._dispatch(data[head_end:end])
                return end - start
        return self._parse(data, start, line_end, request)

    def _parse(self, data: bytes, start: int, line_end: int, request: FastRequest) -> int:
        head_end = data.find(_END_OF_HEAD, start, start + HEAD_BYTES_MAX)
        if head_end < 0:
            if len(data) - start >= HEAD_BYTES_MAX:
                self._refuse_with(LimitExceeded("the head of the request is too large", bytes_max=HEAD_BYTES_MAX))
            return 0
        head_end += 4
        self._known_head = self._known_rest = b""
        self._request = request
        head = self._head
        head.reset()
        try:
            self._parser.feed_data(data[start:head_end])
            self._closes = head.closes
            self.recognise(head.authorization)
            if head.unusual:
                self._parser = httptools.HttpRequestParser(head)
                return self._begin(data, start)
            hosts = head.hosts
            if len(hosts) != 1 or hosts[0] != self._known_host or not self._known_host:
                problem = self._problem_with_host(hosts, request)
                if problem is not None:
                    self._refuse_with(problem)
                    return 0
            end = head_end + head.length
            if head.length:
                if head.length > request.request_bytes_max or end > len(data):
                    if request.only_whole:
                        self._parser = httptools.HttpRequestParser(head)
                        return self._begin(data, start)
                    self._refuse_or_await_body(request, end - start)
                    return 0
                self._parser.feed_data(data[head_end:end])
            if not head.complete:
                raise httptools.HttpParserError("the request does not end where its length says")
        except httptools.HttpParserUpgrade:
            self._parser = httptools.HttpRequestParser(head)
            return self._begin(data, start)
        except httptools.HttpParserError as error:
            self._refuse_with(InvalidRequest(f"not an HTTP request: {error}"))
            return 0
        if head_end - start <= KNOWN_HEAD_BYTES_MAX and not self._closes:
            self._known_head = data[start:head_end]
            if hosts[0] == self._known_host:  # which is taken for every route
                self._known_rest = data[line_end:head_end]
        self._dispatch(data[head_end:end])
        return end - start

    # The framework's requests

    def _wait_for_answers(self) -> int:
        self._waits_for_answers = True
        self._pause_reading()
        return 0

    def _begin(self, data: bytes, start: int) -> int:
        """Give the request at ``start`` to the framework, when all before it are answered."""
        if self.queue:
            return self._wait_for_answers()
        self._known_head = self._known_rest = b""
        self._state.counters.framework_requests += 1
        self.alone = Exchange(self, self.context)
        return self._feed(data, start)

    def _feed(self, data: bytes, start: int) -> int:
        exchange = self.alone
        if not isinstance(exchange, Exchange):
            return 0
        try:
            taken = exchange.take(data, start)
        except HoldfastError as problem:
            self._end_exchange(exchange, without_traceback(problem))  # its frames refer to it
            return 0
        if exchange.offer is not None:
            self._hand_over(exchange)
        elif exchange.is_whole and exchange.has_responded:
            self._leave(exchange)
        if not self.is_known:
            self._report()
        return taken

    def read_on(self) -> None:
        """The framework takes more of the body."""
        self._last_second = self.context.seconds
        if self._unread:
            self.go_on_soon()
        else:
            self._resume_reading()

    def responded(self) -> None:
        """The framework has responded. What is left of the body is read away."""
        exchange = self.alone
        if not isinstance(exchange, Exchange) or self.is_over:
            return
        if not exchange.keep_alive:
            self.close()
        elif exchange.is_whole:
            self._leave(exchange)

    def answered_alone(self) -> None:
        """The hot request that was served alone is answered: the next one may begin."""
        self.alone = None
        if self._counted is not None and self.is_known:
            self._discard_report()
        if self._unread:
            self.go_on_soon()

    def _leave(self, exchange: Exchange) -> None:
        exchange.end()
        self.alone = None
        self._finished = exchange if exchange.on_end is not None else None
        self._last_second = self.context.seconds
        self._discard_report() if self.is_known else self._report()
        if self._writing_paused:
            self._pause_reading()
        if self._unread or self.reading_paused:
            self.go_on_soon()
        elif self.eof:
            self.close()

    def _end_exchange(self, exchange: Exchange, problem: HoldfastError) -> None:
        """End a request that is wrong, or comes too slowly. After a response that has begun nothing can be said."""
        self.alone = None
        exchange.lost()
        if exchange.has_begun:
            self.close()
        else:
            self._refuse_with(problem)

    def _hand_over(self, exchange: Exchange) -> None:
        """Give the connection, and the head that was read, to the protocol of a WebSocket."""
        context, transport, make = self.context, self.transport, self.context.socket
        assert make is not None and transport is not None, "an offer is taken where sockets are served"
        head, exchange.offer = exchange.offer, None
        self.alone = None
        self._takes_no_more = True
        exchange.end()
        context.open.discard(self)
        context.unknown.ended(self)
        self._discard_report()
        self._unread.clear()
        self.transport = None
        socket = make(context.connection_ended)
        transport.set_protocol(socket)
        socket.connection_made(transport)
        if self.reading_paused:
            transport.resume_reading()
        socket.data_received(head or b"")

    # What exchanges and routes ask of it

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or is about to."""
        return self.transport is None or self.transport.is_closing()

    def write(self, data: bytes) -> None:
        """Send a part of the response of an exchange."""
        if self.transport is not None:
            self._written = len(data) + (self._written if self.transport.get_write_buffer_size() else 0)
            self.transport.write(data)

    def unsent_bytes(self) -> int:
        """Bytes written that the peer has not taken yet, beyond what the kernel holds for it."""
        transport = self.transport
        return 0 if transport is None or transport.is_closing() else transport.get_write_buffer_size()

    @property
    def takes_more(self) -> bool:
        """Whether the peer has taken so much that a writer need not wait."""
        return not self._writing_paused

    async def until_it_takes_more(self) -> None:
        """Wait for that. Also returns when the connection ends."""
        while self._writing_paused:
            if self._drained is None:
                self._drained = self._state.loop.create_future()
            await asyncio.shield(self._drained)

    def bound_unsent_bytes(self, high: int) -> None:
        """Let a stream hold up to ``high`` unsent bytes before its writer is made to wait."""
        if self.transport is not None:
            self.transport.set_write_buffer_limits(high=high)

    def close(self) -> None:
        """End it after what is written has been sent."""
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self.transport is not None:
            self.transport.abort()

    def abort_within(self, seconds: float) -> None:
        """End it after ``seconds``, whatever is written until then."""
        self._state.loop.call_later(seconds, self.abort)

    def close_within(self, seconds: float) -> None:
        """End it after what is written has been sent, and in any case after ``seconds``."""
        self.close()
        self.abort_within(seconds)

    def _problem_with_host(self, hosts: list[bytes], request: FastRequest) -> HoldfastError | None:
        """Why a request with these ``Host`` fields, which differ from the last accepted one, is refused, or None."""
        problem: HoldfastError | None = problem_with_host(hosts)
        if problem is not None:
            return problem
        guard = self._state.guard
        if guard is not None and isinstance(self.peer, tuple):  # not from a Unix socket
            if request.any_host:
                return None
            problem = problem_with_name(guard, hosts[0].decode("latin-1"))
            if problem is not None:
                self._state.counters.answers[request.route, STATUS_OF[problem.code]] += 1
                return problem
        self._known_host = hosts[0]
        return None

    def recognise(self, authorization: bytes | None) -> None:
        """A head has come with this header."""
        if self.is_known and authorization == self._authorization:
            return  # to hash it again for each request would cost a twentieth of a commit
        self._discard_report()
        self._authorization = authorization
        is_known = self._state.knows(authorization)
        if is_known is not self.is_known:
            self.is_known = is_known
            unknown = self.context.unknown
            unknown.ended(self) if is_known else unknown.opened(self)

    def _refuse_or_await_body(self, request: FastRequest, needed: int) -> None:
        length, bytes_max = self._head.length, request.request_bytes_max
        problem: HoldfastError | None
        if length > bytes_max:
            problem = LimitExceeded("the request is too large", bytes=length, bytes_max=bytes_max)
        else:
            problem = request.problem_with(self._head.authorization)
        if problem is not None:
            self._state.counters.answers[request.route, STATUS_OF[problem.code]] += 1
            self._refuse_with(problem)
            return
        # The head will be parsed again with its body, so the parser that saw it half-way is of no use any more.
        self._needed = needed
        self._parser = httptools.HttpRequestParser(self._head)

    # Answering

    def _dispatch(self, body: bytes) -> None:
        request = self._request
        due = FastResponse(self, request, self._closes)
        self.queue.append(due)
        if request.is_alone:
            self.alone = due
        poll = request.serve(body, self._head, due)
        if poll is not None:
            due.poll = poll
        if self._closes:
            # Nothing that follows is a request (RFC 9112, section 9.6).
            self._takes_no_more = True
            if not self.queue or self.queue[-1].poll is None:
                self._pause_reading()
            # Else it is a long poll, and who waits for it may go.
        elif len(self.queue) >= UNANSWERED_MAX:
            self._pause_reading()

    def flush(self) -> None:
        """Write the answers that are ready and in order, in one piece."""
        self.dirty = False
        queue = self.queue
        ready: list[bytes] = []
        closes = False
        while queue and not closes and (answer := queue[0].answer) is not None:
            ready.append(answer)
            closes = queue.popleft().closes
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if ready:
            transport.write(ready[0] if len(ready) == 1 else b"".join(ready))
        if closes or (self.eof and not (queue or self.reading_paused)):
            transport.close()
        elif self._discard_left >= 0:
            if not queue and transport.can_write_eof():
                transport.write_eof()
        else:
            self._resume_reading()

    # Bounds

    def _pause_reading(self) -> None:
        if not self.reading_paused and self.transport is not None:
            self.reading_paused = True
            self.transport.pause_reading()

    def _resume_reading(self, unanswered_max: int = UNANSWERED_MAX // 2) -> None:
        if not self.reading_paused or self._waits_for_turn:
            return
        alone = self.alone
        if isinstance(alone, Exchange):
            if alone.is_full or (alone.is_whole and len(self._unread) > HELD_BYTES_MAX):
                return
        elif self._writing_paused or alone is not None or len(self.queue) > unanswered_max:
            return
        elif self._waits_for_answers:
            if self.queue:
                return
            self._waits_for_answers = False
        transport = self.transport
        if transport is None or transport.is_closing() or self._takes_no_more:
            return
        self.reading_paused = False
        self._last_second = self.context.seconds
        transport.resume_reading()
        if self._unread:
            data = bytes(self._unread)
            self._unread.clear()
            self._read(data)

    def _refuse(self, response: bytes) -> None:
        """Respond in turn, end our direction, and discard input within bounds.

        Closing with unread input makes the kernel reset the connection, which can take the response from the peer.
        """
        self._unread.clear()
        self._discard_left = DISCARD_BYTES_MAX
        due = FastResponse(self, None, closes=False)
        due.answer = response
        self.queue.append(due)
        if self.queue[0] is due:
            self.flush()
        self._state.loop.call_later(DISCARD_SECONDS_MAX, self.close)

    def _refuse_with(self, problem: HoldfastError) -> None:
        is_head = problem.code is Code.TOO_LARGE and "bytes" not in problem.fields
        self._refuse(self.context.error_response(problem, closes=True, status=431 if is_head else None))

    def _discard(self, size: int) -> None:
        self._discard_left = max(0, self._discard_left - size)
        if self._discard_left == 0:
            self.close()

    def close_if_stalled(self, now: int, partial_seconds_max: int, idle_seconds_max: int) -> None:
        """Close this connection when it has waited too long: for a request, or for the peer to read."""
        transport, exchange = self.transport, self.alone
        if transport is None:
            return
        unsent = transport.get_write_buffer_size()
        if unsent != self._unsent or not (self._writing_paused or transport.is_closing()):
            self._unsent, self._taken_second = unsent, now
        is_stream = isinstance(exchange, Exchange)
        if now - self._taken_second > (idle_seconds_max if is_stream else partial_seconds_max):
            transport.abort()
        elif isinstance(exchange, Exchange):
            self._close_if_slow(exchange, now, partial_seconds_max, idle_seconds_max)
        elif not (self._writing_paused or self.queue or self._waits_for_turn or self._discard_left >= 0):
            self._close_if_idle(now, partial_seconds_max, idle_seconds_max)

    def _close_if_slow(self, exchange: Exchange, now: int, partial_seconds_max: int, idle_seconds_max: int) -> None:
        rate = self._state.limits.body_bytes_per_second_min
        if exchange.body_since is not None and (exchange.is_full or self._waits_for_turn):
            exchange.body_since = now  # while this side takes no more, nothing is due
        since = exchange.body_since
        if since is not None and now - since > partial_seconds_max + exchange.body_bytes // rate:
            self._end_exchange(exchange, too_slow(rate))
        elif (exchange.head_since is not None and now - exchange.head_since > partial_seconds_max) or (
            not exchange.is_whole and now - self._last_second > idle_seconds_max
        ):
            self.close()

    def _close_if_idle(self, now: int, partial_seconds_max: int, idle_seconds_max: int) -> None:
        since, rate = self._partial_since, self._state.limits.body_bytes_per_second_min
        if now - self._last_second > (partial_seconds_max if self._unread else idle_seconds_max) or (
            since is not None and now - since > partial_seconds_max + len(self._unread) // rate
        ):
            if self._needed:
                problem = too_slow(rate)
                self._state.counters.answers[self._request.route, STATUS_OF[problem.code]] += 1
                self._refuse_with(problem)
            else:
                self.close()

    def close_when_answered(self) -> None:
        """Take no more requests; close once every request taken is answered."""
        exchange = self.alone
        if isinstance(exchange, Exchange) and exchange.head_since is None:
            exchange.keep_alive = False
            if exchange.has_responded:
                self.close()
            return
        self._closes = self._takes_no_more = True
        self._pause_reading()
        if self.queue:
            self.eof = True
            self._unread.clear()
        else:
            self.close()


def too_slow(bytes_per_second_min: int) -> Unavailable:
    """What a request gets whose body is slower than this."""
    return Unavailable(
        "the body of the request came too slowly",
        code=Code.TOO_SLOW,
        hint="nothing of it was done; send it again, or set server.min_body_bytes_per_second",
        bytes_per_second_min=bytes_per_second_min,
    )


class FastResponse(PendingResponse):
    """The response to one request, in the order of its connection."""

    __slots__ = ("_connection", "_has_begun", "_request", "answer", "closes", "poll")

    takes_input = False
    """See ``Exchange``."""

    def __init__(self, connection: HttpConnection, request: FastRequest | None, closes: bool) -> None:
        self._connection = connection
        self._request = request
        self.closes = closes
        self.answer: bytes | None = None
        """The whole response, while an earlier one is not given."""
        self.poll: LongPoll | None = None
        self._has_begun = False

    @property
    def connection(self) -> HttpConnection:
        """See ``PendingResponse``."""
        return self._connection

    @property
    def asks_store(self) -> bool:
        """Whether it waits for the object store."""
        return self._request is not None and self._request.asks_store

    @property
    def peer(self) -> object:
        """See ``PendingResponse``."""
        return self._connection.peer

    def respond(self, status: int, headers: Mapping[str, str] | None, body: bytes, media_type: str = JSON) -> None:
        """See ``PendingResponse``. It is written when all requests before it have theirs."""
        connection, request = self._connection, self._request
        assert request is not None, "only the handler of a request responds"
        context = connection.context
        context.counters.answers[request.counted_200 if status == 200 else (request.route, status)] += 1
        self.poll = None
        queue = connection.queue
        if not queue:
            return  # the connection is gone
        is_alone = connection.alone is self
        if is_alone:
            connection.answered_alone()
        closes = self.closes
        head = context.heads.get(media_type) if status == 200 and not closes and not headers else None
        if head is not None:
            response = b"%b%d\r\n\r\n%b" % (head, len(body), body)
        else:
            response = context.response(status, headers, body, closes=closes, media_type=media_type)
        if len(queue) == 1 and not (closes or connection.reading_paused):
            queue.popleft()
            transport = connection.transport
            if transport is not None and not transport.is_closing():
                transport.write(response)
                if connection.eof:
                    transport.close()
            return
        self.answer = response
        if is_alone:
            connection.flush()  # at once: its room is given back when the peer has taken it
        elif queue[0] is self and not connection.dirty:
            connection.dirty = True
            context.flush_later(connection)

    def respond_part(self, body: bytes, media_type: str, *, is_last: bool) -> None:
        """Give a part of the response of a request that is served alone. Its status is 200."""
        connection, request = self._connection, self._request
        assert request is not None and request.is_alone, "nothing else is written before the last part"
        if is_last and not self._has_begun:
            self.respond(200, None, body, media_type)
            return
        transport, context = connection.transport, connection.context
        if transport is None:
            return
        begins = b"" if self._has_begun else context.chunked_head(media_type, closes=self.closes)
        self._has_begun = True
        part = b"%b%x\r\n%b\r\n" % (begins, len(body), body) if body else begins
        if not is_last:
            transport.write(part)
            return
        context.counters.answers[request.counted_200] += 1
        self.answer = part + b"0\r\n\r\n"
        connection.answered_alone()
        connection.flush()


class ConnectionContext(ExchangeContext):
    """What the connections of one server share: routes, prepared bytes, and the connections themselves."""

    def __init__(
        self,
        state: HttpState,
        hot: HotRoutes,
        serve: Callable[[Exchange], Awaitable[None]],
        socket: MakeSocket | None,
    ) -> None:
        super().__init__(state, serve, socket)
        self.state = state
        self.counters = state.counters
        self.hot = hot
        self.turns = state.turns
        self.connections = 0
        self.ended = 0
        self.connections_max = state.limits.connections_max or sys.maxsize
        self.unknown = state.unknown
        self.open: set[HttpConnection] = set()
        self.heads: dict[str, bytes] = {}
        """Of responses with status 200, up to their length, by media type."""
        self.tell_date(b"")
        self._dirty: list[HttpConnection] = []
        self._all_closed: asyncio.Future[None] | None = None

    def tell_date(self, date: bytes) -> None:
        """Use this value of the ``Date`` header in the answers from now on."""
        self.date = b"Date: %b\r\n" % date if date else b""
        head = b"HTTP/1.1 200 OK\r\n%bContent-Type: %b\r\nContent-Length: "
        self.heads = {kind: head % (self.date, kind.encode()) for kind in (JSON, MSGPACK, NDJSON)}

    def response(
        self,
        status: int,
        headers: Mapping[str, str] | None,
        body: bytes,
        *,
        closes: bool = False,
        media_type: str = JSON,
    ) -> bytes:
        """A whole response."""
        extra = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items()).encode()
        return b"HTTP/1.1 %d %b\r\n%b%b%bContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (
            status,
            REASONS.get(status, b"Error"),
            self.date,
            extra,
            b"Connection: close\r\n" if closes else b"",
            media_type.encode(),
            len(body),
            body,
        )

    def chunked_head(self, media_type: str, *, closes: bool) -> bytes:
        """The head of a response whose length is not known when it begins."""
        return b"HTTP/1.1 200 OK\r\n%b%bContent-Type: %b\r\nTransfer-Encoding: chunked\r\n\r\n" % (
            self.date,
            b"Connection: close\r\n" if closes else b"",
            media_type.encode(),
        )

    def error_response(self, error: HoldfastError, *, closes: bool = False, status: int | None = None) -> bytes:
        """A whole response that tells an error."""
        usual_status, headers, body = error_response(error, self.state.leader)
        return self.response(status or usual_status, headers, body, closes=closes)

    def connection_ended(self) -> None:
        """One connection fewer, whichever kind it ended on."""
        self.connections -= 1
        self.ended += 1
        if self.connections == 0 and self._all_closed is not None and not self._all_closed.done():
            self._all_closed.set_result(None)

    async def all_closed(self) -> None:
        """Return when no connection is open."""
        if self.connections:
            self._all_closed = self.state.loop.create_future()
            await self._all_closed

    def flush_later(self, connection: HttpConnection) -> None:
        """Write what is ready on ``connection`` once at the end of this turn of the loop."""
        if not self._dirty:
            self.state.loop.call_soon(self._flush)
        self._dirty.append(connection)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            connection.flush()

    def close_stalled(self, *, partial_seconds_max: int, idle_seconds_max: int) -> None:
        """Close connections that stopped in the middle of a request, or that nobody has used for long."""
        for connection in list(self.open):
            connection.close_if_stalled(self.seconds, partial_seconds_max, idle_seconds_max)
