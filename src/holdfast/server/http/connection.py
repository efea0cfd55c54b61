"""The protocol of every accepted connection: a short way for the few hot routes, and the door to the framework.

Owns: the bytes of a connection while it carries only ``POST /v1/commit``, ``GET /v1/version``, ``GET /livez`` and the
hot routes of the message stores (``stores.hot_routes``) with plain bodies: framing, bounds, pipelining, the order of
answers, and back-pressure on one connection. Does not own: every other request. The first one that is anything else
(another route, a query, a chunked body, an upgrade, ``Expect``, HTTP/1.0) moves the whole connection, with its unread
bytes, to ``framework_lane`` for good. The framework serves the hot routes too, by the same functions, so the move is a
matter of cost and never of meaning.

How a request is read: its head is found by us (so that a request can be handed over untouched) and then parsed by
httptools, whose word on ``Content-Length`` and ``Transfer-Encoding`` is the one that counts; the body is given to the
same parser, which must agree that the request ends where we think. If it ever disagreed the connection would be closed:
two readers that frame differently are how one request is smuggled inside another. A head that is byte for byte that of
the request before on its connection is not parsed again: the parser has had its word on it.

Failure model: a peer may send any bytes in any pieces, stop in the middle, close one or both directions, or never read.
Nothing of that raises out of a reply: an answer to a connection that is gone is dropped, and the commit it is about
stands. Bounds: a head of ``HEAD_BYTES_MAX``, a body of ``request_bytes_max``, ``UNANSWERED_MAX`` unanswered requests
(then reading stops), the transport's high-water mark for unsent answers (then reading stops too), and
``DISCARD_BYTES_MAX`` of an oversized request read away so that its sender sees the answer before the close. A peer that
has ended its direction gets the answers still due, but waits no longer than ``HALF_CLOSED_SECONDS_MAX`` for versions,
and a long poll no more at all: most of these peers have gone, and what came for them would count as delivered.

Long, because the framing of requests, their bounds and the order of answers share the state of one connection.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from typing import Final, cast

import httptools

from holdfast.commit.format.json_request import decode_json
from holdfast.commit.format.transaction import Committed
from holdfast.commit.stages.events import CommitEntry
from holdfast.errors import Code, HoldfastError, InvalidRequest, LimitExceeded
from holdfast.server.gateway import Gateway
from holdfast.server.http.auth import Role
from holdfast.server.http.requests import problem_with, problem_with_host
from holdfast.server.http.responses import STATUS_OF, error_answer, without_traceback
from holdfast.server.stores.hot_routes import HOT_PREFIXES, LINE_BYTES_MAX, HotRequest, HotStores
from holdfast.server.stores.operations import PendingPoll
from holdfast.wire.formats import encode
from holdfast.wire.log import Liveness, VersionAnswer

__all__ = [
    "DISCARD_BYTES_MAX",
    "Connection",
    "HEAD_BYTES_MAX",
    "ConnectionContext",
    "UNANSWERED_MAX",
    "PendingResponse",
]

HEAD_BYTES_MAX: Final = 65_536
KNOWN_HEAD_BYTES_MAX: Final = 4_096
UNANSWERED_MAX: Final = 256
DISCARD_BYTES_MAX: Final = 16 * 1_048_576
DISCARD_SECONDS_MAX: Final = 2.0
HALF_CLOSED_SECONDS_MAX: Final = 1.0
"""How long nothing but versions may be due to a peer that sends no more: most of these peers have gone."""
BYTES_PER_SECOND_MIN: Final = 500

_COMMIT: Final = b"POST /v1/commit HTTP/1.1\r\n"
_VERSION: Final = b"GET /v1/version HTTP/1.1\r\n"
_LIVEZ: Final = b"GET /livez HTTP/1.1\r\n"
_HOT: Final = (_COMMIT, _VERSION, _LIVEZ)
_HOT_BYTES_MAX: Final = max(map(len, _HOT))
_END_OF_HEAD: Final = b"\r\n\r\n"


class _Head:
    """What the parser reports of one request's head.

    It does not refer to its connection: a parser refers to what it calls, so the two would keep each other in memory.
    """

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
            case b"authorization":
                # Which of two counts is for one reader to say, and the framework is that one.
                self.unusual |= self.authorization is not None
                self.authorization = value
            case b"content-type":
                self.content_type = value
            case b"accept":
                self.accept = value
            case b"connection":
                self.closes |= b"close" in value.lower()
            case b"transfer-encoding" | b"expect" | b"upgrade":
                self.unusual = True
            case _:
                pass

    def on_message_complete(self) -> None:
        """The parser has seen the end of the request."""
        self.complete = True


class Connection(asyncio.Protocol):
    """One connection. See the module's text."""

    __slots__ = (
        "_asking",
        "_closes",
        "_discard_left",
        "_dirty",
        "_eof",
        "_front",
        "_head",
        "_hot",
        "_known_head",
        "_lanes",
        "_last_second",
        "_needed",
        "_partial_since",
        "_parser",
        "_queue",
        "_reading_paused",
        "_takes_no_more",
        "_transport",
        "_unread",
        "_unsent",
        "_waiting_to_hand_over",
        "_writing_paused",
    )

    def __init__(self, lanes: ConnectionContext) -> None:
        self._lanes = lanes
        self._front = lanes.front
        self._transport: asyncio.Transport | None = None
        self._head = _Head()
        """Of the request that is being read, or was read last."""
        self._parser = httptools.HttpRequestParser(self._head)
        self._queue: deque[PendingResponse] = deque()
        self._asking = 0
        """How many of these are versions, which have to wait for a proof."""
        self._unread = bytearray()
        self._needed = 0
        """How many unread bytes it takes before looking at them again makes sense."""
        self._reading_paused = False
        self._writing_paused = False
        self._waiting_to_hand_over = False
        self._discard_left = -1
        """At or above zero: the connection is to be closed, and input is only read away."""
        self._dirty = False
        self._eof = False
        self._last_second = lanes.seconds
        self._partial_since: int | None = None
        """When the first byte of the request came that is not whole yet."""
        self._unsent = 0
        self._takes_no_more = False
        self._known_head = b""
        """The bytes of ``_head`` while what the parser said of them holds for the next request too."""
        self._closes = False
        self._hot: HotRequest | None = None

    # The transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A connection was accepted."""
        self._transport = cast(asyncio.Transport, transport)
        lanes = self._lanes
        lanes.connections += 1
        lanes.open.add(self)
        if lanes.connections > lanes.connections_max:
            self._front.counters.refused_connections += 1
            error = LimitExceeded("too many connections", code=Code.OVERLOADED, retry_after_ms=1000)
            self._refuse(lanes.error_response(error, closes=True))

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone; answers that are still due are dropped, their commits stand."""
        del exc
        self._transport = None
        self._forget()

    def _forget(self) -> None:
        self._lanes.connection_ended()
        self._lanes.open.discard(self)
        self._unread.clear()
        abandoned = [due for due in self._queue if due.poll is not None]
        self._queue.clear()
        for due in abandoned:
            poll, due.poll = due.poll, None  # the poll refers to its request too, until it has its answer
            if poll is not None:
                poll.abandon()

    def eof_received(self) -> bool:
        """The peer sends no more. True keeps our direction open."""
        # A peer that has sent its last request may still be waiting for answers.
        self._eof = True
        transport = self._transport
        for poll in [due.poll for due in self._queue if due.poll is not None]:
            poll.hurry()
        if self._asking:
            self._front.loop.call_later(HALF_CLOSED_SECONDS_MAX, self._close_if_only_asking)
        return bool(self._queue) and transport is not None and transport.get_extra_info("sslcontext") is None

    def _close_if_only_asking(self) -> None:
        # While the store is silent these would be waited for long, and each would take a connection from the living.
        if self._queue and len(self._queue) == self._asking and not self._unread:
            self._close()

    def pause_writing(self) -> None:
        """Too much is unsent: take no more requests."""
        self._writing_paused = True
        self._pause_reading()

    def resume_writing(self) -> None:
        """The peer has read enough: go on."""
        self._writing_paused = False
        self._resume_reading()

    def data_received(self, data: bytes) -> None:
        """Bytes of requests, or of what is only read away."""
        if self._takes_no_more:
            self._pause_reading()  # it was read from only to see its end
            return
        if self._discard_left >= 0:
            self._discard(len(data))
            return
        unread = self._unread
        if not unread or self._needed:  # not for a piece of a head: one that trickles in has no end
            self._last_second = self._lanes.seconds
        if unread:
            unread += data
            if len(unread) < self._needed:
                return
            data = bytes(unread)
            unread.clear()
        self._read(data)

    # Reading requests

    def _read(self, data: bytes) -> None:
        """Take whole requests from the front of ``data`` and keep the rest."""
        self._needed = 0
        size = len(data)
        position = 0
        while position < size and not (self._reading_paused or self._takes_no_more) and self._discard_left < 0:
            taken = self._take(data, position)
            if taken == 0:
                break
            position += taken
        if position:
            self._last_second = self._lanes.seconds
        if self._transport is None or self._discard_left >= 0:
            return
        if position == size:
            self._partial_since = None
        else:
            if position or self._partial_since is None:
                self._partial_since = self._lanes.seconds
            self._unread += memoryview(data)[position:] if position else data
            if self._waiting_to_hand_over:
                self._hand_over_when_answered()

    def _take(self, data: bytes, start: int) -> int:
        """Take one request at ``start``. Returns its size, or 0 when it is not whole yet or not for this lane."""
        known = self._known_head
        if known and data.startswith(known, start):
            head_end = start + len(known)
            end = head_end + self._head.length
            if end <= len(data):
                self._dispatch(data, start, head_end, end)
                return end - start
        self._known_head = b""
        hot: HotRequest | None = None
        if not data.startswith(_HOT, start):
            hot = self._hot_for_stores(data, start)
            if hot is None:
                return 0
        self._hot = hot
        head_end = data.find(_END_OF_HEAD, start, start + HEAD_BYTES_MAX)
        if head_end < 0:
            if len(data) - start >= HEAD_BYTES_MAX:
                error = LimitExceeded("the head of the request is too large", bytes_max=HEAD_BYTES_MAX)
                self._refuse(self._lanes.error_response(error, closes=True, status=431))
            return 0
        head_end += 4
        head = self._head
        head.reset()
        bytes_max = self._front.limits.request_bytes_max if hot is None else hot.request_bytes_max
        try:
            self._parser.feed_data(data[start:head_end])
            self._closes = head.closes
            if head.unusual:
                self._waiting_to_hand_over = True
                return 0
            problem = problem_with_host(head.hosts)
            if problem is not None:
                self._refuse(self._lanes.error_response(problem, closes=True))
                return 0
            end = head_end + head.length
            if head.length:
                if head.length > bytes_max:
                    self._refuse_body(bytes_max)
                    return 0
                if end > len(data):
                    if not self._refused_unread(data, start):
                        self._await_body(end - start)
                    return 0
                self._parser.feed_data(data[head_end:end])
            if not head.complete:
                raise httptools.HttpParserError("the request does not end where its length says")
        except httptools.HttpParserUpgrade:
            self._waiting_to_hand_over = True
            return 0
        except httptools.HttpParserError as error:
            problem = InvalidRequest(f"not an HTTP request: {error}")
            self._refuse(self._lanes.error_response(problem, closes=True))
            return 0
        if head_end - start <= KNOWN_HEAD_BYTES_MAX and not self._closes:
            self._known_head = data[start:head_end]
        self._dispatch(data, start, head_end, end)
        return end - start

    def _hot_for_stores(self, data: bytes, start: int) -> HotRequest | None:
        """The request at ``start`` if it is a hot one of the stores; otherwise it waits for its line, or goes on."""
        self._needed = 0
        stores = self._lanes.stores
        if stores is not None and data.startswith(HOT_PREFIXES, start):
            line_end = data.find(b"\r\n", start, start + LINE_BYTES_MAX)
            if line_end < 0 and len(data) - start < LINE_BYTES_MAX:
                return None
            hot = stores.match(data[start:line_end]) if line_end >= 0 else None
            self._waiting_to_hand_over = hot is None
            return hot
        line = data[start : start + _HOT_BYTES_MAX]
        prefixes = _HOT if stores is None else (*_HOT, *HOT_PREFIXES)
        if not any(hot.startswith(line) for hot in prefixes):
            self._waiting_to_hand_over = True
        return None

    def _await_body(self, needed: int) -> None:
        # The head will be parsed again with its body, so the parser that saw it half-way is of no use any more.
        self._needed = needed
        self._parser = httptools.HttpRequestParser(self._head)

    # Answering

    def _dispatch(self, data: bytes, start: int, head_end: int, end: int) -> None:
        front = self._front
        if self._hot is not None:
            self._store_request(self._hot, data[head_end:end])
        elif data.startswith(_COMMIT, start):
            self._commit(data[head_end:end], end - head_end)
        elif data.startswith(_LIVEZ, start):
            own = front.own
            body = encode(Liveness(own.leader_id, front.service is not None, own.address))
            front.counters.answers["/livez", 200] += 1
            self._answer_now(200, {}, body)
        else:
            self._version()
        if self._closes:
            # Nothing that follows is a request (RFC 9112, section 9.6).
            self._takes_no_more = True
            if not self._queue or self._queue[-1].poll is None:
                self._pause_reading()
            # Else it is a long poll, and who waits for it may go.
        elif len(self._queue) >= UNANSWERED_MAX:
            self._pause_reading()

    def _commit(self, body: bytes, size: int) -> None:
        front = self._front
        problem: HoldfastError | None = None
        if front.authenticator.required:
            problem = front.authenticator.problem_with(self._head.authorization, Role.WRITE)
        if problem is None:
            problem = front.admission()
        if problem is None and front.client_rates is not None:
            problem = front.over_rate(self._client())
        if problem is None:
            try:
                txn = decode_json(body)
            except InvalidRequest as error:
                problem = without_traceback(error)
            else:
                limits = front.limits
                problem = problem_with(
                    txn,
                    leader_id=front.own.leader_id,
                    log_id=front.log_id,
                    request_id_length_min=limits.request_id_length_min,
                    operations_max=limits.operations_max,
                    preconditions_max=limits.preconditions_max,
                )
                if problem is None:
                    due = PendingResponse(self, size, self._closes)
                    self._queue.append(due)
                    entry = CommitEntry(txn, self._lanes.reply, due, size)
                    due.size = entry.size
                    front.submit(entry, entry.size)
                    return
        status, headers, answer = error_answer(problem, front.leader)
        front.counters.answers["/v1/commit", status] += 1
        self._answer_now(status, headers, answer)

    def _store_request(self, hot: HotRequest, body: bytes) -> None:
        due = PendingResponse(self, 0, self._closes)
        self._queue.append(due)
        lanes = self._lanes
        route, counters = hot.route, self._front.counters.answers

        def answer(status: int, headers: dict[str, str], body: bytes, media_type: str) -> None:
            due.poll = None
            counters[route, status] += 1
            if status == 200 and not due.closes:
                head = lanes.head_200 if media_type == "application/json" else lanes.head_200_msgpack
                response = b"%b%d\r\n\r\n%b" % (head, len(body), body)
            else:
                response = lanes.response(status, headers, body, closes=due.closes, media_type=media_type)
            self.settle(due, response)

        asked = self._head
        transport = self._transport
        peer: object = transport.get_extra_info("peername") if transport is not None and hot.poll is not None else None
        poll = hot.serve(body, asked.content_type, asked.accept, asked.authorization, answer, peer)
        if poll is not None:
            due.poll = poll

    def _client(self) -> bytes | str:
        transport = self._transport
        assert transport is not None, "requests are read from live connections"
        return self._front.authenticator.client_of(self._head.authorization, transport.get_extra_info("peername"))

    def _version(self) -> None:
        front = self._front
        problem = front.authenticator.problem_with(self._head.authorization, Role.READ)
        if problem is not None:
            status, headers, body = error_answer(problem, front.leader)
            front.counters.answers["/v1/version", status] += 1
            self._answer_now(status, headers, body)
            return
        due = PendingResponse(self, 0, self._closes)
        self._queue.append(due)
        self._asking += 1

        def told(version: int | HoldfastError) -> None:
            self._asking -= 1
            if isinstance(version, HoldfastError):
                status, headers, body = error_answer(version, front.leader)
            else:
                status, headers, body = 200, {}, encode(VersionAnswer(version, front.own.leader_id, front.log_id))
            front.counters.answers["/v1/version", status] += 1
            self.settle(due, self._lanes.response(status, headers, body, closes=due.closes))

        front.ask_version(told)

    def _answer_now(self, status: int, headers: dict[str, str], body: bytes) -> None:
        due = PendingResponse(self, 0, self._closes)
        self._queue.append(due)
        self.settle(due, self._lanes.response(status, headers, body, closes=self._closes))

    def settle(self, due: PendingResponse, response: bytes) -> None:
        """The answer to one request is known. It is written when all requests before it have theirs. Never raises."""
        queue = self._queue
        if not queue:
            return  # the connection is gone, or belongs to the framework
        if len(queue) == 1 and not due.closes and not self._waiting_to_hand_over and not self._reading_paused:
            queue.popleft()
            transport = self._transport
            if transport is not None and not transport.is_closing():
                transport.write(response)
                if self._eof:
                    transport.close()
            return
        due.answer = response
        if queue[0] is due and not self._dirty:
            self._dirty = True
            self._lanes.flush_later(self)

    def flush(self) -> None:
        """Write the answers that are ready and in order, in one piece."""
        self._dirty = False
        queue = self._queue
        ready: list[bytes] = []
        closes = False
        while queue and not closes and (answer := queue[0].answer) is not None:
            ready.append(answer)
            closes = queue.popleft().closes
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if ready:
            transport.write(ready[0] if len(ready) == 1 else b"".join(ready))
        if closes or (self._eof and not queue):
            transport.close()
        elif self._discard_left >= 0:
            if not queue and transport.can_write_eof():
                transport.write_eof()
        elif self._waiting_to_hand_over:
            self._hand_over_when_answered()
        else:
            self._resume_reading()

    # Bounds

    def _pause_reading(self) -> None:
        if not self._reading_paused and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if not self._reading_paused or self._writing_paused or len(self._queue) > UNANSWERED_MAX // 2:
            return
        transport = self._transport
        if transport is None or transport.is_closing() or self._takes_no_more:
            return
        self._reading_paused = False
        self._last_second = self._lanes.seconds
        transport.resume_reading()
        if self._unread:
            data = bytes(self._unread)
            self._unread.clear()
            self._read(data)

    def _refuse_body(self, bytes_max: int) -> None:
        error = LimitExceeded("the request is too large", bytes=self._head.length, bytes_max=bytes_max)
        self._front.counters.answers["/v1/commit" if self._hot is None else self._hot.route, 413] += 1
        self._refuse(self._lanes.error_response(error, closes=True))

    def _refused_unread(self, data: bytes, start: int) -> bool:
        """Whether the sender has not the right to be read; it is told so before its body is waited for."""
        hot_commit = data.startswith(_COMMIT, start)
        if self._hot is not None:
            route = self._hot.route
            problem = self._hot.problem_with(self._head.authorization)
        elif hot_commit or data.startswith(_VERSION, start):
            role, route = (Role.WRITE, "/v1/commit") if hot_commit else (Role.READ, "/v1/version")
            problem = self._front.authenticator.problem_with(self._head.authorization, role)
        else:
            return False
        if problem is None:
            return False
        self._front.counters.answers[route, STATUS_OF[problem.code]] += 1
        self._refuse(self._lanes.error_response(problem, closes=True))
        return True

    def _refuse(self, response: bytes) -> None:
        """Answer in turn, end our direction, and read away what the peer still sends until it ends, within bounds.

        Closing with unread input makes the kernel reset the connection, which can take the answer from the peer.
        """
        self._unread.clear()
        self._discard_left = DISCARD_BYTES_MAX
        due = PendingResponse(self, 0, closes=False)
        due.answer = response
        self._queue.append(due)
        if self._queue[0] is due:
            self.flush()
        self._front.loop.call_later(DISCARD_SECONDS_MAX, self._close)

    def _discard(self, size: int) -> None:
        self._discard_left = max(0, self._discard_left - size)
        if self._discard_left == 0:
            self._close()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def close_if_stalled(self, now: int, partial_seconds_max: int, idle_seconds_max: int) -> None:
        """Close this connection when it has waited too long: for the rest of a request, for any request, or for the
        peer to take what it asked for."""
        transport = self._transport
        if self._writing_paused and transport is not None:
            unsent = transport.get_write_buffer_size()
            if unsent != self._unsent:
                self._unsent, self._last_second = unsent, now
            elif now - self._last_second > partial_seconds_max:
                transport.abort()
            return
        if self._queue:
            return
        since = self._partial_since
        if now - self._last_second > (partial_seconds_max if self._unread else idle_seconds_max) or (
            since is not None and now - since > partial_seconds_max + len(self._unread) // BYTES_PER_SECOND_MIN
        ):
            self._close()

    def close_when_answered(self) -> None:
        """Take no more requests; close once every request taken is answered."""
        self._closes = self._takes_no_more = True
        self._pause_reading()
        if self._queue:
            self._eof = True
        else:
            self._close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    # Handing over

    def _hand_over_when_answered(self) -> None:
        """Give the connection to the framework once every request before this one is answered."""
        if self._queue:
            self._pause_reading()
            return
        transport = self._transport
        assert transport is not None, "only a live connection is handed over"
        unread = bytes(self._unread)
        lanes = self._lanes
        lanes.open.discard(self)
        lanes.front.counters.handed_over_connections += 1
        self._unread.clear()
        self._transport = None
        framework = lanes.framework(transport, lanes.connection_ended)
        transport.set_protocol(framework)
        framework.connection_made(transport)
        if self._reading_paused:
            transport.resume_reading()
        if self._writing_paused:
            framework.pause_writing()
        framework.data_received(unread)
        if self._eof:
            framework.eof_received()


_REASON: Final = {
    200: b"OK",
    400: b"Bad Request",
    401: b"Unauthorized",
    403: b"Forbidden",
    404: b"Not Found",
    409: b"Conflict",
    412: b"Precondition Failed",
    413: b"Content Too Large",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
    507: b"Insufficient Storage",
}


class PendingResponse:
    """One request whose answer is due, in the order of its connection."""

    __slots__ = ("answer", "closes", "lane", "poll", "size")

    def __init__(self, lane: Connection, size: int, closes: bool) -> None:
        self.lane = lane
        self.size = size
        self.closes = closes
        self.answer: bytes | None = None
        self.poll: PendingPoll | None = None
        """The long poll that it is, which is told when its connection is lost before the answer, or half closed."""


class ConnectionContext:
    """What the fast lanes of one server share beside the front: prepared bytes, and the connections themselves."""

    def __init__(
        self,
        front: Gateway,
        framework: Callable[[asyncio.Transport, Callable[[], None]], asyncio.Protocol],
        stores: HotStores | None = None,
    ) -> None:
        """``framework`` makes the protocol a connection is handed to, which calls its second argument at its end.

        ``stores`` serves the hot routes of the message stores, where this process hosts some.
        """
        self.front = front
        self.framework = framework
        self.stores = stores
        self.connections = 0
        self.ended = 0
        """How many connections have ended since the start."""
        self.connections_max = front.limits.connections_max or sys.maxsize
        self.open: set[Connection] = set()
        self.seconds = 0
        """Counts ticks; the age of a connection's last progress is told in them, so no request reads a clock."""
        self.date = b""
        self.head_200 = b""
        self.head_200_msgpack = b""
        self.tell_date(b"")
        self.reply = self._reply
        self._dirty: list[Connection] = []
        self._all_closed: asyncio.Future[None] | None = None

    def tell_date(self, date: bytes) -> None:
        """Use this value of the ``Date`` header in the answers from now on."""
        self.date = b"Date: %b\r\n" % date if date else b""
        head = b"HTTP/1.1 200 OK\r\n%bContent-Type: %b\r\nContent-Length: "
        self.head_200 = head % (self.date, b"application/json")
        self.head_200_msgpack = head % (self.date, b"application/msgpack")

    def response(
        self,
        status: int,
        headers: dict[str, str],
        body: bytes,
        *,
        closes: bool = False,
        media_type: str = "application/json",
    ) -> bytes:
        """A whole response."""
        extra = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()
        return b"HTTP/1.1 %d %b\r\n%b%b%bContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (
            status,
            _REASON.get(status, b"Error"),
            self.date,
            extra,
            b"Connection: close\r\n" if closes else b"",
            media_type.encode(),
            len(body),
            body,
        )

    def error_response(self, error: HoldfastError, *, closes: bool = False, status: int | None = None) -> bytes:
        """A whole response that tells an error."""
        usual_status, headers, body = error_answer(error, self.front.leader)
        return self.response(status or usual_status, headers, body, closes=closes)

    def _reply(self, entry: CommitEntry) -> None:
        due = cast(PendingResponse, entry.ticket)
        front = self.front
        front.settled(1, due.size)
        outcome = entry.outcome
        if type(outcome) is Committed and not due.closes:
            body = front.answers.committed_json(outcome.version, entry.txn.request_id)
            front.counters.answers["/v1/commit", 200] += 1
            due.lane.settle(due, b"%b%d\r\n\r\n%b" % (self.head_200, len(body), body))
            return
        assert outcome is not None, "an entry is replied with its outcome"
        status, headers, body = front.answers.response(
            outcome, durable_version=entry.durable_version, request_id=entry.txn.request_id
        )
        front.counters.answers["/v1/commit", status] += 1
        due.lane.settle(due, self.response(status, headers, body, closes=due.closes))

    def connection_ended(self) -> None:
        """One connection fewer, whichever lane it ended on."""
        self.connections -= 1
        self.ended += 1
        if self.connections == 0 and self._all_closed is not None and not self._all_closed.done():
            self._all_closed.set_result(None)

    async def all_closed(self) -> None:
        """Return when no connection is open."""
        if self.connections:
            self._all_closed = self.front.loop.create_future()
            await self._all_closed

    def flush_later(self, lane: Connection) -> None:
        """Write what is ready on ``lane`` once at the end of this turn of the loop."""
        if not self._dirty:
            self.front.loop.call_soon(self._flush)
        self._dirty.append(lane)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for lane in dirty:
            lane.flush()

    def close_stalled(self, *, partial_seconds_max: int, idle_seconds_max: int) -> None:
        """Close connections that stopped in the middle of a request, or that nobody has used for long."""
        for lane in list(self.open):
            lane.close_if_stalled(self.seconds, partial_seconds_max, idle_seconds_max)
