"""What the fast lanes of one server share: prepared bytes of answers, and the connections themselves.

Owns: turning outcomes into whole HTTP responses, writing them once per turn of the loop, counting and closing
connections. Does not own: the bytes of one connection (``fast_lane``).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from holdfast.commit.format.transaction import Committed
from holdfast.commit.stages.events import CommitEntry
from holdfast.errors import HoldfastError
from holdfast.server.gateway import Front
from holdfast.server.http.responses import error_answer

if TYPE_CHECKING:
    from holdfast.server.http.connection import FastLane
    from holdfast.server.stores.hot_routes import HotStores
    from holdfast.server.stores.operations import PollUnderWay

__all__ = ["Lanes", "Unanswered"]

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


class Unanswered:
    """One request whose answer is due, in the order of its connection."""

    __slots__ = ("answer", "closes", "lane", "poll", "size")

    def __init__(self, lane: FastLane, size: int, closes: bool) -> None:
        self.lane = lane
        self.size = size
        self.closes = closes
        self.answer: bytes | None = None
        self.poll: PollUnderWay | None = None
        """The long poll that it is, which is told when its connection is lost before the answer, or half closed."""


class Lanes:
    """What the fast lanes of one server share beside the front: prepared bytes, and the connections themselves."""

    def __init__(
        self,
        front: Front,
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
        self.open: set[FastLane] = set()
        self.seconds = 0
        """Counts ticks; the age of a connection's last progress is told in them, so no request reads a clock."""
        self.date = b""
        self.head_200 = b""
        self.head_200_msgpack = b""
        self.tell_date(b"")
        self.reply = self._reply
        self._dirty: list[FastLane] = []
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
        due = cast(Unanswered, entry.ticket)
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

    def flush_later(self, lane: FastLane) -> None:
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
