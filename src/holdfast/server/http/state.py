"""What the HTTP layer needs from the rest of the server, and what a handler of a hot route gets.

The layers above pass these in: ``Gateway`` is the ``HttpState`` of a server, and a ``FastRequest`` is the one handler
of a hot route.
"""

from __future__ import annotations

import asyncio
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from holdfast.browsers import BrowserGuard
from holdfast.errors import HoldfastError
from holdfast.server.http.answers import Answers, Sending
from holdfast.server.http.auth import Authenticator, RightsWatch
from holdfast.server.http.buffers import CLIENT_PART, Buffers
from holdfast.server.http.responses import LeaderHint
from holdfast.server.http.turns import LoopTurns, UnknownConnections

JSON: Final = "application/json"
UNKNOWN_BYTES_MAX: Final = 40 * 1_048_576
UNKNOWN_PART: Final = 4
"""A quarter of the connections may be without a valid token, where the service has tokens."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The bounds of every request. ``request_bytes_max`` counts a body as it came."""

    request_bytes_max: int = 1_048_576
    connections_max: int = 50_000
    body_bytes_per_second_min: int = 16_384
    """How fast the body of a request comes, after its first ``PARTIAL_SECONDS_MAX``."""
    unsent_bytes_max: int = 256 * 1_048_576
    """Bytes of streams that wait for their peers; see ``buffers``."""


@dataclass(slots=True)
class RequestCounters:
    """Plain numbers, read when metrics are scraped."""

    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    """By route and status."""
    refused_connections: int = 0
    framework_requests: int = 0
    """Requests that no hot route served."""
    stream_items: int = 0
    refused_commits: Counter[str] = field(default_factory=Counter)
    """Commits that were not taken in, by code."""
    rate_limited_commits: int = 0
    rate_slowed_items: int = 0


class HttpState:
    """What all connections and routes of one server share."""

    def __init__(
        self,
        limits: HttpLimits,
        authenticator: Authenticator,
        loop: asyncio.AbstractEventLoop,
        guard: BrowserGuard,
    ) -> None:
        self.limits = limits
        self.authenticator = authenticator
        self.guard = None if authenticator.required else guard
        """What keeps pages of other sites out. With tokens it is not needed: a page has none."""
        self.rights = RightsWatch(authenticator, loop)
        self.loop = loop
        self.counters = RequestCounters()
        self.leader = LeaderHint()
        self.turns = LoopTurns(loop.call_soon)
        self.buffers = Buffers(limits.unsent_bytes_max)
        self.large_answers = Answers()
        self.unknown_bytes = Buffers(CLIENT_PART * UNKNOWN_BYTES_MAX)
        """What all connections without a valid token hold: they are one client."""
        self.unknown = UnknownConnections((limits.connections_max or sys.maxsize) // UNKNOWN_PART)
        self.in_flight_commits = 0
        self.tasks: set[asyncio.Task[None]] = set()
        """Those of requests that are served."""
        self.knows_user: Callable[[bytes | None], bool] = lambda _: False
        """Whether a header has the token of a user of the stores."""

    def knows(self, authorization: bytes | None) -> bool:
        """Whether the header has a valid token, or the service needs none."""
        return self.authenticator.knows(authorization) or self.knows_user(authorization)


class RequestFields(Protocol):
    """The header fields that handlers of fast routes read. None where the request has none."""

    @property
    def authorization(self) -> bytes | None:
        """``Authorization``."""
        ...

    @property
    def content_type(self) -> bytes | str | None:
        """``Content-Type``."""
        ...

    @property
    def accept(self) -> bytes | str | None:
        """``Accept``."""
        ...


class PendingResponse(ABC):
    """The response of one request, which its handler gives once: before ``serve`` returns, or later."""

    __slots__ = ()

    @property
    @abstractmethod
    def connection(self) -> Sending:
        """The connection that the request came on."""

    @property
    @abstractmethod
    def peer(self) -> object:
        """The address of the connection's other end, as sockets give it."""

    @abstractmethod
    def respond(self, status: int, headers: Mapping[str, str] | None, body: bytes, media_type: str = JSON) -> None:
        """Give the response. It is dropped where the connection is gone. Never raises."""


class LongPoll(Protocol):
    """A request that waits for its response, for the connection under it."""

    def abandon(self) -> None:
        """Nobody waits for the response any more."""

    def hurry(self) -> None:
        """The peer sends no more, so the response must not wait."""


class FastRequest(ABC):
    """A request of a hot route. The framework serves it, too, by the same handler where the route has one."""

    __slots__ = ("counted_200", "is_alone", "request_bytes_max", "route")

    asks_store = False
    """Whether the response waits until the object store has proved something."""
    only_whole = False
    """Whether a request is the framework's where its body does not come with its head, or is larger."""
    any_host = False
    """Whether it is served whatever its ``Host`` names."""

    def __init__(self, route: str, request_bytes_max: int, *, is_alone: bool = False) -> None:
        """``is_alone``: it begins when all before it are answered, and ends before the next one begins."""
        self.is_alone = is_alone
        self.route = route
        self.counted_200 = (route, 200)
        self.request_bytes_max = request_bytes_max

    @abstractmethod
    def problem_with(self, authorization: bytes | None) -> HoldfastError | None:
        """Why this caller's body is not even read, or None."""

    @abstractmethod
    def serve(self, body: bytes, fields: RequestFields, response: PendingResponse) -> LongPoll | None:
        """Check rights and carry the request out. Returns the poll to abandon when the connection is lost.

        ``fields`` are valid only until this returns.
        """


class FastMatcher(Protocol):
    """Finds the hot requests whose lines are not always the same."""

    @property
    def prefixes(self) -> tuple[bytes, ...]:
        """How their lines begin."""
        ...

    def match(self, line: bytes) -> FastRequest | None:
        """The request of a line without its end; None: the framework serves it."""
        ...


class HotRoutes:
    """The hot requests of a server, by their request lines."""

    def __init__(self, lines: Mapping[bytes, FastRequest], matchers: Iterable[FastMatcher]) -> None:
        self._lines = dict(lines)
        self._by_prefix = [(prefix, matcher.match) for matcher in matchers for prefix in matcher.prefixes]

    def find(self, line: bytes) -> FastRequest | None:
        """The request of a line without its end; None: the framework serves it."""
        request = self._lines.get(line)
        if request is None:
            for prefix, match in self._by_prefix:
                if line.startswith(prefix):
                    return match(line)
        return request

    def may_begin(self, begun: bytes) -> bool:
        """Whether these bytes may be the beginning of such a line."""
        return any((line + b"\r\n").startswith(begun) for line in self._lines) or any(
            begun.startswith(prefix) or prefix.startswith(begun) for prefix, _ in self._by_prefix
        )
