"""A route, a request in its handler's hands, and what all routes do alike: rights, errors, counting.

A ``HoldfastError`` becomes its error response. Any other exception is a bug: it is logged with its trace and answered
``internal``. Once a stream has begun its status cannot change, so an error there ends the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, cast
from urllib.parse import parse_qsl

import msgspec
import structlog

from holdfast.browsers import Browsers, problem_with_browser
from holdfast.errors import Code, HoldfastError, InternalError, InvalidRequest, LimitExceeded, PermissionDenied
from holdfast.server.http.answers import Room
from holdfast.server.http.auth import ClientKey, HeldRight
from holdfast.server.http.connection import HttpConnection
from holdfast.server.http.exchange import ClientDisconnect, Exchange
from holdfast.server.http.key_scope import KeyScope
from holdfast.server.http.requests import (
    key_from_text,
    position_of,
    range_of,
    text_key,
    whole_number,
)
from holdfast.server.http.responses import error_response, without_traceback
from holdfast.server.http.rights_table import Need, ScopeRule, need_of
from holdfast.server.http.state import JSON, FastRequest, HttpState, PendingResponse, RequestFields
from holdfast.soundness import report_broken
from holdfast.values import VERSION_MAX, LogPosition
from holdfast.wire.formats import encode

_log = structlog.get_logger("holdfast.server")

ANY_ROUTE_CODES: Final = (
    *(Code.MALFORMED, Code.UNAUTHENTICATED, Code.PERMISSION_DENIED, Code.MISDIRECTED, Code.OVERLOADED, Code.INTERNAL),
)
"""What every route may answer: ``overloaded`` when the connection is one too many."""

GET_OR_POST: Final[tuple[Literal["GET"], Literal["POST"]]] = ("GET", "POST")
"""The methods of a route that changes something and was a GET first. A page of another site cannot hide a POST."""

SINGLE_HEADERS: Final = frozenset(
    {b"authorization", b"content-type", b"if-match", b"if-none-match", b"last-event-id", b"origin", b"sec-fetch-site"}
)
"""Headers that the routes read as one value: with two, a proxy and this service could each follow another one."""

POSITION_SCHEMA: Final[Mapping[str, object]] = {
    "type": "string",
    "pattern": "^[0-9]{1,16}(~[0-9a-f]{32})?(@[0-9a-f]{32})?$",
}


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer."""

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    media_type: str = JSON


def json_response(body: msgspec.Struct) -> Response:
    """An answer that is one JSON document."""
    return Response(encode(body))


class Call(PendingResponse):
    """One request in a handler's hands. It is also its own response where the handler is that of a fast route."""

    __slots__ = (
        "_fields", "_query", "_responded", "_room", "_route", "accept", "authorization", "content_type", "exchange",
        "need", "path", "started", "state",
    )  # fmt: skip

    authorization: bytes | None
    """The header, None when there was none, as with the next two."""
    content_type: str | None
    accept: str | None

    def __init__(self, endpoint: RouteEndpoint, exchange: Exchange, path: dict[str, str]) -> None:
        self.state, self._route, self.need = endpoint.state, endpoint.route, endpoint.need
        self._responded: asyncio.Future[Response] | None = None
        self.exchange = exchange
        """What is under it."""
        self.path = path
        """Its parts that the route names."""
        self._fields = dict(reversed(exchange.headers))
        self._query: list[tuple[str, str]] | None = None
        self.started = False
        self._room: Room | None = None
        self.authorization = exchange.authorization
        self.content_type, self.accept = self.header("content-type"), self.header("accept")

    @property
    def connection(self) -> HttpConnection:
        """The connection that this request came on."""
        return cast(HttpConnection, self.exchange.connection)

    @property
    def method(self) -> str:
        """``HEAD`` is served by the handler of ``GET``."""
        return self.exchange.method

    def header(self, name: str) -> str | None:
        """A header by its name in small letters, the first of several; None when there was none."""
        value = self._fields.get(name.encode())
        return None if value is None else value.decode("latin-1")

    @property
    def query(self) -> list[tuple[str, str]]:
        """The parameters of the query, in order."""
        if self._query is None:
            self._query = parse_qsl(self.exchange.query.decode("latin-1"), keep_blank_values=True)
        return self._query

    @property
    def peer(self) -> object:
        """See ``PendingResponse``."""
        return self.connection.peer

    @property
    def who(self) -> str:
        """Who asks, for the audit lines of the process log: the name of the token, and where the request comes from."""
        peer = self.peer
        place = str(peer[0]) if isinstance(peer, tuple) and peer else "unix"
        name = self.state.authenticator.name_of(self.authorization)
        return f"{name}@{place}" if name else place

    @property
    def scope(self) -> KeyScope:
        """The keys that the caller's token is for now."""
        return self.state.authenticator.scope_of(self.authorization)

    @property
    def client(self) -> ClientKey:
        """Whose request this is, as limits count it."""
        return self.state.authenticator.client_of(self.authorization, self.peer)

    @property
    def room(self) -> Room:
        """The room of a large answer: wait for it before you read what the answer is made of."""
        if self._room is None:
            self._room = Room(self.state.large_answers, self.client)
        return self._room

    async def leave_room(self) -> None:
        """Give it back as soon as the peer has taken the answer."""
        room, self._room = self._room, None
        if room is not None:
            try:
                await room.until_taken(self.connection)
            finally:
                room.close()

    def respond(self, status: int, headers: Mapping[str, str] | None, body: bytes, media_type: str = JSON) -> None:
        """See ``PendingResponse``."""
        assert self._responded is not None, "only a fast request responds this way"
        if not self._responded.done():
            self._responded.set_result(Response(body, status, headers or {}, media_type))

    async def serve(self, request: FastRequest, body: bytes = b"") -> Response:
        """The response of the handler that connections of both kinds share. A cancelled poll is abandoned."""
        responded: asyncio.Future[Response] = self.state.loop.create_future()
        self._responded = responded
        poll = request.serve(body, self, self)
        if poll is None:
            return await responded
        self.exchange.on_end = poll.abandon
        try:
            return await responded
        finally:
            self.exchange.on_end = None
            if not responded.done() or responded.cancelled():
                poll.abandon()

    def path_text(self, name: str) -> str:
        """A part of the path, percent-decoded."""
        return self.path[name]

    def require_known_parameters(self, known: frozenset[str]) -> None:
        """Refuse a query parameter that the route does not have. Raises: InvalidRequest naming it."""
        for name, _ in self.query:
            if name not in known:
                has = f"it has {', '.join(sorted(known))}" if known else "it has none"
                raise InvalidRequest(f"the route has no query parameter {name[:64]!r}: {has}")

    def require_sound_head(self) -> None:
        """Refuse a header of one value that is given twice; a body that is coded, because it would be read as it came;
        and where the service has no tokens what a page of another site may have sent. Raises: HoldfastError."""
        headers = self.exchange.headers
        names = [name for name, _ in headers if name in SINGLE_HEADERS]
        for name in names:
            if names.count(name) > 1:
                raise InvalidRequest(f"the header {name.decode()} is given more than once")
        for name, plain in ((b"transfer-encoding", b"chunked"), (b"content-encoding", b"identity")):
            if any(value.strip().lower() != plain for given, value in headers if given == name):
                hint = f"send the body without compression; only {plain.decode()} is taken"
                raise InvalidRequest(f"the service does not take this {name.decode()}", hint=hint)
        guard, route = self.state.guard, self._route
        if guard is not None and isinstance(self.peer, tuple):  # no browser asks on a Unix socket
            by_get = route.changes and self.method in ("GET", "HEAD")
            problem = problem_with_browser(guard, self.header, browsers=route.browsers, changes_by_get=by_get)
            if problem is not None:
                raise problem

    def text(self, name: str) -> str | None:
        """A query parameter, or None. Raises: InvalidRequest when it is given more than once."""
        values = [value for key, value in self.query if key == name]
        if len(values) > 1:
            raise InvalidRequest(f"{name} is given more than once")
        return values[0] if values else None

    def number(self, name: str, *, low: int = 0, high: int = VERSION_MAX) -> int | None:
        """A query parameter that is a whole number from ``low`` to ``high``, or None. Raises: InvalidRequest."""
        text = self.text(name)
        return None if text is None else whole_number(name, text, low=low, high=high)

    def position(self, name: str) -> LogPosition | None:
        """A query parameter that is a version, with or without its log's id, or None. Raises: InvalidRequest."""
        text = self.text(name)
        return None if text is None else position_of(name, text)

    def required_position(self, name: str) -> LogPosition:
        """The same, required."""
        position = self.position(name)
        if position is None:
            raise InvalidRequest(f"{name} is required")
        return position

    def switch(self, name: str, *, default: bool) -> bool:
        """A query parameter that is ``true`` or ``false``. Raises: InvalidRequest."""
        match self.text(name):
            case None:
                return default
            case "true":
                return True
            case "false":
                return False
            case _:
                raise InvalidRequest(f"{name} is true or false")

    def key(self, name: str) -> bytes | None:
        """A query parameter that is a key in base64url, or ``NAME_text`` as text, or None. Raises: InvalidRequest."""
        given, text = self.text(name), self.text(f"{name}_text")
        if text is None:
            hint = f"give plain text in {name}_text"
            return None if given is None else key_from_text(name, given, hint=hint)
        if given is not None:
            raise InvalidRequest(f"{name} and {name}_text exclude each other")
        return text_key(f"{name}_text", text)

    def key_range(self) -> tuple[bytes, bytes | None] | None:
        """The keys that ``begin`` and ``end``, or ``prefix``, select; None without them. Raises: InvalidRequest."""
        begin, end, prefix = self.key("begin"), self.key("end"), self.key("prefix")
        return None if begin is end is prefix is None else range_of(begin, end, prefix)

    def whole_range(self) -> tuple[bytes, bytes | None]:
        """The same; without them all keys."""
        return self.key_range() or (b"", None)

    async def parts(self) -> AsyncIterator[bytes]:
        """The remaining parts of the body as they arrive. Raises: ClientDisconnect."""
        while part := await self.exchange.part():
            yield part

    async def body(self, bytes_max: int | None = None) -> bytes:
        """The whole body. Raises: LimitExceeded above ``bytes_max``, by default the bound of every request;
        PermissionDenied where the right has ended since the head came.
        """
        bytes_max = self.state.limits.request_bytes_max if bytes_max is None else bytes_max
        length = self.header("content-length") or ""
        if length.isascii() and length.isdigit() and int(length) > bytes_max:
            raise LimitExceeded("the request is too large", bytes=int(length), bytes_max=bytes_max)
        whole = bytearray()
        async for part in self.parts():
            whole += part
            if len(whole) > bytes_max:
                raise LimitExceeded("the request is too large", bytes_max=bytes_max)
        self.require_right()
        return bytes(whole)

    def problem_with_right(self) -> HoldfastError | None:
        """None while the caller may do this, else the error. Raises: InvalidRequest, where the keys are not valid."""
        route, authenticator, need = self._route, self.state.authenticator, self.need
        problem = authenticator.problem_with(self.authorization, need.role, checks_scope=need.checks_scope)
        if problem is None and need.scope is ScopeRule.KEYS and not (scope := self.scope).is_everything:
            assert route.keys is not None, "a route by keys says which ones a request names"
            problem = scope.problem_with_range(*route.keys(self))
        if problem is None and route.problem is not None:
            problem = route.problem(self)
        return problem

    def require_right(self) -> None:
        """Return if the caller may do this now. Raises: PermissionDenied."""
        problem = self.problem_with_right()
        if problem is not None:
            raise problem

    def require_right_to_see(self) -> None:
        """Return if the caller may still see what was read for it. Raises: PermissionDenied."""
        problem = self.problem_with_right()
        if isinstance(problem, PermissionDenied):  # else the service ends, and what it has read is true
            raise problem

    def held_right(self) -> HeldRight:
        """The right to this request, to be asked for again at each act of a stream."""
        return HeldRight(self.state.authenticator, self.authorization, self.problem_with_right)

    async def start(self, status: int, headers: Mapping[str, str], media_type: str) -> None:
        """Send the head of a streamed answer."""
        self.started = True
        lower = {name.lower(): value for name, value in headers.items()}
        self.exchange.start(status, {"content-type": media_type, **lower})

    async def write(self, data: bytes) -> None:
        """Send a part of a streamed answer. Waits while the connection holds more unsent bytes than it may."""
        await self.exchange.write(data, is_last=False)

    async def finish(self) -> None:
        """End a streamed answer."""
        await self.exchange.write(b"", is_last=True)

    def refused(self) -> None:
        """The rest of its body is not wanted."""
        self.exchange.end_unless_whole(UNWANTED_SECONDS_MAX)

    def count(self, status: int) -> None:
        """Its status is known."""
        self.state.counters.answers[self._route.name, status] += 1

    async def answer(self, answer: Response) -> None:
        """Send a whole answer."""
        self.started = True
        await respond(self.exchange, answer)


async def respond(exchange: Exchange, answer: Response) -> None:
    """Send a whole answer."""
    headers = {"content-type": answer.media_type}
    headers |= {name.lower(): value for name, value in answer.headers.items()}
    headers["content-length"] = str(len(answer.body))
    exchange.start(answer.status, headers)
    await exchange.write(answer.body, is_last=True)


@contextlib.contextmanager
def ended_by_disconnect(call: Call) -> Generator[None]:
    """The block is cancelled when the client goes, and then ends without an error."""
    task = asyncio.current_task()
    assert task is not None, "a request runs in a task"
    gone = False

    def on_end() -> None:
        nonlocal gone
        gone = True
        task.cancel()

    call.exchange.on_end = on_end
    try:
        yield
    except asyncio.CancelledError:
        if not gone:
            raise
    finally:
        call.exchange.on_end = None


Handler = Callable[[Call], Awaitable[Response]]
StreamHandler = Callable[[Call], Awaitable[None]]
"""Answers by itself, with ``start``, ``write`` and ``finish``; may still raise a HoldfastError before ``start``."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter, as it is described."""

    name: str
    place: Literal["path", "query", "header"]
    schema: Mapping[str, object]
    description: str
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One row of the route table."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    summary: str
    handler: Handler | None = None
    """Not needed for a ``fast`` route without parameters."""
    stream: StreamHandler | None = None
    fast: FastRequest | None = None
    """The handler of requests whose line is the bare method and path, which connections serve themselves. With a
    ``stream``: of those that come whole."""
    fast_queries: Mapping[str, FastRequest] = field(default_factory=dict)
    """The same for lines with exactly this query."""
    is_hot: bool = False
    """Whether connections serve plain requests by ``handler`` themselves: see ``HotHandler``."""
    at_once: Callable[[Call], Response | None] | None = None
    """What is tried before the handler of a hot route: an answer that waits for nothing, or None."""
    parameters: Sequence[Parameter] = ()
    body: Mapping[str, object] | None = None
    """Media type -> the type that decodes it."""
    answers: Mapping[str, object]
    """Media type -> the type of the 200 answer; a tuple where an item is one of several; None for free text."""
    codes: Sequence[Code] = ()
    """Its error codes in addition to ``ANY_ROUTE_CODES``."""
    tag: str = "log"
    keys: Callable[[Call], tuple[bytes, bytes | None]] | None = None
    """The range of keys that a request names, all of which a token for some keys must be for."""
    problem: Callable[[Call], HoldfastError | None] | None = None
    """None while the caller has a right that does not come from its token alone, else the error."""
    filters: bool = False
    """Whether query parameters filter by attributes, which the handler checks itself."""
    is_page: bool = False
    """Whether its answer may be large: it waits for room before its handler begins."""
    browsers: Browsers = "own"
    """Which pages in a browser may ask, where the service has no tokens."""
    changes: bool = False
    """Whether its GET changes something; it has a row with POST then."""

    @property
    def name(self) -> str:
        """How metrics and the description call it: the path without ``:any``."""
        return self.path.replace(":any}", "}")

    @property
    def need(self) -> Need:
        """What its callers need: its row in the table of rights."""
        return need_of(self.method, self.name)

    @property
    def fast_lines(self) -> dict[bytes, FastRequest]:
        """The whole lines of the requests that connections serve without the framework: of ``HotRoutes.find``."""
        targets = {} if self.fast is None else {self.path: self.fast}
        targets |= {f"{self.path}?{query}": request for query, request in self.fast_queries.items()}
        return {f"{self.method} {target} HTTP/1.1".encode(): request for target, request in targets.items()}

    @property
    def query_names(self) -> frozenset[str]:
        """The query parameters that it has."""
        return frozenset(parameter.name for parameter in self.parameters if parameter.place == "query")


class RouteEndpoint:
    """Serves the requests of a route."""

    def __init__(self, state: HttpState, route: Route) -> None:
        assert route.handler or route.stream or route.fast, "a route is served"
        assert not (route.handler and route.stream), "a route answers or streams"
        self.state = state
        self.route = route
        self.need = route.need
        self.query_names = route.query_names

    def answered_at_once(self, call: HotCall) -> bool:
        """Whether the answer needed nothing to wait for, and was given."""
        at_once = self.route.at_once
        if at_once is None:
            return False
        try:
            call.require_right()
            answer = at_once(call)
            if answer is None:
                return False
        except HoldfastError as error:
            answer = self._error(without_traceback(error))
        call.give(answer)
        return True

    async def serve(self, call: Call) -> None:
        """Serve one request."""
        route = self.route
        status = 200
        try:
            call.require_sound_head()
            call.require_right()
            if not route.filters:
                call.require_known_parameters(self.query_names)
            if route.stream is not None:
                await route.stream(call)
            else:
                answer = await self._answer(call)
                if route.method == "GET":
                    call.require_right_to_see()
                status = answer.status
                await call.answer(answer)
                del answer
        except HoldfastError as error:
            status = await self._refuse(call, without_traceback(error))
        except ClientDisconnect:
            status = STATUS_CUT_SHORT
        except Exception as error:  # noqa: BLE001  # the last resort: a bug must not take other requests with it
            if isinstance(error, AssertionError):
                report_broken(asyncio.get_running_loop(), error)
            _log.exception("request failed", route=route.name, method=route.method)
            status = await self._refuse(call, InternalError("a bug of ours; it is logged", cause=type(error).__name__))
        finally:
            call.count(status)
            await call.leave_room()

    async def _answer(self, call: Call) -> Response:
        route = self.route
        if route.is_page:
            await call.room.page()
        if route.handler is not None:
            return await route.handler(call)
        assert route.fast is not None, "a route that does not stream has a handler"
        body = b"" if route.body is None else await call.body(route.fast.request_bytes_max)
        return await call.serve(route.fast, body)

    async def _refuse(self, call: Call, error: HoldfastError) -> int:
        if call.started:
            # The head has promised a stream; only ending the connection says that it is not whole.
            call.connection.close()
            return STATUS_CUT_SHORT
        answer = self._error(error)
        await call.answer(answer)
        call.refused()
        return answer.status

    def _error(self, error: HoldfastError) -> Response:
        status, headers, body = error_response(error, self.state.leader)
        if error.code is Code.TOO_LARGE:
            headers["Connection"] = "close"  # the rest of the body is not wanted
        return Response(body, status, headers)


class HotCall(Call):
    """A plain request of a hot route, which no framework has read."""

    __slots__ = ("_body", "_plain", "_response")

    def __init__(
        self,
        endpoint: RouteEndpoint,
        plain: PlainRequest,
        body: bytes,
        fields: RequestFields,
        response: PendingResponse,
    ) -> None:
        self.state, self._route, self.need = endpoint.state, endpoint.route, endpoint.need
        self.path = plain.path
        self.started = False
        self._room = None
        self._plain = plain
        self._body = body
        self.authorization = fields.authorization
        self.content_type, self.accept = _text_of(fields.content_type), _text_of(fields.accept)
        self._response = response

    @property
    def connection(self) -> HttpConnection:
        """See ``Call``."""
        return cast(HttpConnection, self._response.connection)

    def require_sound_head(self) -> None:
        """The connection has looked: what a browser sends goes to the framework."""

    def require_known_parameters(self, known: frozenset[str]) -> None:
        """``HotHandler`` has looked."""

    def text(self, name: str) -> str | None:
        """See ``Call``."""
        return self._plain.query.get(name)

    async def body(self, bytes_max: int | None = None) -> bytes:
        """See ``Call``. It has come, within the bound of every request."""
        del bytes_max
        return self._body

    def refused(self) -> None:
        """All of it has come."""

    def count(self, status: int) -> None:
        """The connection counts."""

    def give(self, answer: Response) -> None:
        """Give the response."""
        self._response.respond(answer.status, answer.headers, answer.body, answer.media_type)

    async def answer(self, answer: Response) -> None:
        """See ``Call``."""
        self.give(answer)


def _text_of(field: bytes | str | None) -> str | None:
    return field.decode("latin-1") if isinstance(field, bytes) else field


class PlainRequest(FastRequest):
    """A plain request of a route whose handler serves it."""

    __slots__ = ("_endpoint", "path", "query")

    def __init__(self, endpoint: RouteEndpoint, path: dict[str, str], query: dict[str, str]) -> None:
        # Alone, because its answer may be large.
        super().__init__(endpoint.route.name, endpoint.state.limits.request_bytes_max, is_alone=True)
        self._endpoint = endpoint
        self.path = path
        self.query = query

    def problem_with(self, authorization: bytes | None) -> HoldfastError | None:
        """See ``FastRequest``."""
        need, authenticator = self._endpoint.need, self._endpoint.state.authenticator
        return authenticator.problem_with(authorization, need.role, checks_scope=need.checks_scope)

    def serve(self, body: bytes, fields: RequestFields, response: PendingResponse) -> None:
        """See ``FastRequest``."""
        endpoint = self._endpoint
        call = HotCall(endpoint, self, body, fields, response)
        if not endpoint.answered_at_once(call):
            task = endpoint.state.loop.create_task(endpoint.serve(call))
            endpoint.state.tasks.add(task)
            task.add_done_callback(endpoint.state.tasks.discard)


class HotHandler:
    """Finds the plain requests of a route: all parameters are known, given once, and need no decoding.

    The others go to the framework, which refuses in the same words what is wrong about them.
    """

    __slots__ = ("_endpoint", "_line", "prefixes")

    def __init__(self, state: HttpState, route: Route) -> None:
        self._endpoint = RouteEndpoint(state, route)
        beginning, _, parameter = route.name.partition("{")
        name = parameter.rstrip("}")
        assert "{" not in name, "a hot route has one parameter in its path, at the end"
        self.prefixes = (f"{route.method} {beginning}".encode(),)
        part = f"(?P<{name}>[A-Za-z0-9._~=:@-]+)" if name else ""
        self._line = re.compile(
            re.escape(f"{route.method} {beginning}") + part + r"(?:\?(?P<_query>[A-Za-z0-9._~=:@,&-]*))? HTTP/1\.1"
        )

    def match(self, line: bytes) -> PlainRequest | None:
        """See ``FastMatcher``."""
        match = self._line.fullmatch(line.decode("latin-1"))
        if match is None:
            return None
        path = match.groupdict()
        query: dict[str, str] = {}
        for pair in (path.pop("_query") or "").split("&"):
            if pair:
                name, _, value = pair.partition("=")
                if name in query or name not in self._endpoint.query_names:
                    return None
                query[name] = value
        return PlainRequest(self._endpoint, path, query)


UNWANTED_SECONDS_MAX: Final = 2.0
"""How long the unread body of a refused request may still arrive."""
STATUS_CUT_SHORT: Final = 499
"""Counted for a stream that was cut short; never sent."""


def key_parameters(name: str, description: str) -> tuple[Parameter, Parameter]:
    """The two query parameters that a key has: base64url and text."""
    return (
        Parameter(name, "query", {"type": "string", "format": "base64url"}, description),
        Parameter(f"{name}_text", "query", {"type": "string"}, f"The same as text; not together with {name}"),
    )
