"""A route, a request in its handler's hands, and what all routes do alike: rights, errors, counting.

A ``HoldfastError`` becomes its error response. Any other exception is a bug: it is logged with its trace and answered
``internal``. Once a stream has begun its status cannot change, so an error there ends the connection.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, cast

import msgspec
import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from holdfast.commit.format.transaction import prefix_end
from holdfast.errors import Code, HoldfastError, InternalError, InvalidRequest, LimitExceeded, PermissionDenied
from holdfast.server.http.answers import Room
from holdfast.server.http.asgi_connection import ConnectionView
from holdfast.server.http.auth import ClientKey, HeldRight
from holdfast.server.http.browsing import Browsers, problem_with_browser
from holdfast.server.http.key_scope import KeyScope
from holdfast.server.http.responses import error_response, without_traceback
from holdfast.server.http.rights_table import Need, ScopeRule, need_of
from holdfast.server.http.state import JSON, FastRequest, HttpState, PendingResponse
from holdfast.values import VERSION_MAX, LogPosition, parse_position
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


def json_response(body: msgspec.Struct, status: int = 200) -> Response:
    """An answer that is one JSON document."""
    return Response(encode(body), status)


class Call(PendingResponse):
    """One request in a handler's hands. It is also its own response where the handler is that of a fast route."""

    __slots__ = (
        "_body_ended",
        "_responded",
        "_room",
        "_route",
        "need",
        "state",
        "receive",
        "request",
        "send",
        "started",
    )

    def __init__(self, state: HttpState, route: Route, need: Need, scope: Scope, receive: Receive, send: Send) -> None:
        self.state = state
        self._route = route
        self.need = need
        self._responded: asyncio.Future[Response] | None = None
        self.request = Request(scope, receive)
        self.receive = receive
        self.send = send
        self.started = False
        self._body_ended = False
        self._room: Room | None = None

    @property
    def connection(self) -> ConnectionView:
        """The connection that this request came on."""
        return cast(ConnectionView, self.request.scope["state"]["connection"])

    @property
    def authorization(self) -> bytes | None:
        """The header, None when there was none."""
        given = self.request.headers.get("authorization")
        return None if given is None else given.encode("latin-1")

    @property
    def content_type(self) -> str | None:
        """The header, None when there was none."""
        return self.request.headers.get("content-type")

    @property
    def accept(self) -> str | None:
        """The header, None when there was none."""
        return self.request.headers.get("accept")

    @property
    def peer(self) -> object:
        """See ``PendingResponse``."""
        return self.connection.peer

    def problem_with_browser(self) -> HoldfastError | None:
        """Why a service without tokens refuses this request, which a page of another site may have sent; or None."""
        guard, route = self.state.guard, self._route
        if guard is None or not isinstance(self.peer, tuple):  # no browser asks on a Unix socket
            return None
        by_get = route.changes and self.request.method in ("GET", "HEAD")
        headers = self.request.headers
        return problem_with_browser(guard, headers.get, browsers=route.browsers, changes_by_get=by_get)

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
            self._room = self.state.large_answers.room(self.client)
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
        self.connection.on_end = poll.abandon
        try:
            return await responded
        finally:
            self.connection.on_end = None
            if not responded.done() or responded.cancelled():
                poll.abandon()

    def path_text(self, name: str) -> str:
        """A part of the path, percent-decoded."""
        return str(self.request.path_params[name])

    def require_known_parameters(self, known: frozenset[str]) -> None:
        """Refuse a query parameter that the route does not have. Raises: InvalidRequest naming it."""
        for name in self.request.query_params:
            if name not in known:
                has = f"it has {', '.join(sorted(known))}" if known else "it has none"
                raise InvalidRequest(f"the route has no query parameter {name[:64]!r}: {has}")

    def require_headers_once(self) -> None:
        """Refuse a header of one value that is given twice. Raises: InvalidRequest naming it."""
        names = [name for name, _ in self.request.headers.raw if name in SINGLE_HEADERS]
        for name in names:
            if names.count(name) > 1:
                raise InvalidRequest(f"the header {name.decode()} is given more than once")

    def text(self, name: str) -> str | None:
        """A query parameter, or None. Raises: InvalidRequest when it is given more than once."""
        given = self.request.query_params.getlist(name)
        if len(given) > 1:
            raise InvalidRequest(f"{name} is given more than once")
        return given[0] if given else None

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
        if prefix is not None:
            if begin is not None or end is not None:
                raise InvalidRequest("prefix excludes begin and end: it is a range by itself")
            return prefix, prefix_end(prefix)
        if end is not None and (begin or b"") >= end:
            raise InvalidRequest("begin must be below end", code=Code.BAD_RANGE)
        return None if begin is None and end is None else (begin or b"", end)

    def whole_range(self) -> tuple[bytes, bytes | None]:
        """The same; without them all keys."""
        return self.key_range() or (b"", None)

    def require_plain_body(self) -> None:
        """Refuse a body that is coded: it would be read as it came. Raises: InvalidRequest naming the header."""
        for name, plain in ((b"transfer-encoding", b"chunked"), (b"content-encoding", b"identity")):
            if any(value.strip().lower() != plain for given, value in self.request.headers.raw if given == name):
                hint = f"send the body without compression; only {plain.decode()} is taken"
                raise InvalidRequest(f"the service does not take this {name.decode()}", hint=hint)

    async def parts(self) -> AsyncIterator[bytes]:
        """The remaining parts of the body as they arrive. Raises: ClientDisconnect."""
        while not self._body_ended:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            self._body_ended = not message.get("more_body", False)
            part = cast(bytes, message.get("body", b""))
            if part:
                yield part

    async def body(self, bytes_max: int | None = None) -> bytes:
        """The whole body. Raises: LimitExceeded above ``bytes_max``, by default the bound of every request;
        PermissionDenied where the right has ended since the head came.
        """
        bytes_max = self.state.limits.request_bytes_max if bytes_max is None else bytes_max
        length = self.request.headers.get("content-length", "")
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
        raw = [(b"content-type", media_type.encode("latin-1"))]
        raw += [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, data: bytes) -> None:
        """Send a part of a streamed answer. Waits while the connection holds more unsent bytes than it may."""
        await self.send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self) -> None:
        """End a streamed answer."""
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def answer(self, answer: Response) -> None:
        """Send a whole answer."""
        headers = dict(answer.headers)
        headers["Content-Length"] = str(len(answer.body))
        await self.start(answer.status, headers, answer.media_type)
        await self.send({"type": "http.response.body", "body": answer.body, "more_body": False})


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

    call.connection.on_end = on_end
    try:
        yield
    except asyncio.CancelledError:
        if not gone:
            raise
    finally:
        call.connection.on_end = None


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
    """The handler of requests whose line is the bare method and path, on both kinds of connection."""
    fast_queries: Mapping[str, FastRequest] = field(default_factory=dict)
    """The same for lines with exactly this query."""
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
        """How metrics and the description call it: the path without the framework's converters."""
        return self.path.replace(":any}", "}").replace(":name}", "}")

    @property
    def need(self) -> Need:
        """What its callers need: its row in the table of rights."""
        return need_of(self.method, self.name)

    @property
    def fast_lines(self) -> dict[bytes, FastRequest]:
        """The whole lines of the requests that connections serve without the framework."""
        found = {} if self.fast is None else {self.path: self.fast}
        found |= {f"{self.path}?{query}": request for query, request in self.fast_queries.items()}
        return {f"{self.method} {target} HTTP/1.1\r\n".encode(): request for target, request in found.items()}

    @property
    def query_names(self) -> frozenset[str]:
        """The query parameters that it has."""
        return frozenset(parameter.name for parameter in self.parameters if parameter.place == "query")


class Endpoint:
    """A route as an ASGI application."""

    def __init__(self, state: HttpState, route: Route) -> None:
        assert (route.handler is None and route.fast is None) != (route.stream is None), "a route answers or streams"
        self._state = state
        self._route = route
        self._need = route.need
        self._query_names = route.query_names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        state, route = self._state, self._route
        call = Call(state, route, self._need, scope, receive, send)
        status = 200
        try:
            call.require_headers_once()
            call.require_plain_body()
            problem = call.problem_with_browser()
            if problem is not None:
                raise problem
            call.require_right()
            if not route.filters:
                call.require_known_parameters(self._query_names)
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
            _log.exception("request failed", route=route.name, method=scope["method"])
            status = await self._refuse(call, InternalError("a bug of ours; it is logged", cause=type(error).__name__))
        finally:
            state.counters.answers[route.name, status] += 1
            await call.leave_room()

    async def _answer(self, call: Call) -> Response:
        route = self._route
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
        status, headers, body = error_response(error, self._state.leader)
        if error.code is Code.TOO_LARGE:
            headers["Connection"] = "close"  # the rest of the body is not wanted
        await call.answer(Response(body, status, headers))
        call.connection.end_unless_whole(UNWANTED_SECONDS_MAX)
        return status


UNWANTED_SECONDS_MAX: Final = 2.0
"""How long the unread body of a refused request may still arrive."""
STATUS_CUT_SHORT: Final = 499
"""Counted for a stream that was cut short; never sent."""


def whole_number(name: str, text: str, *, low: int, high: int) -> int:
    """A whole number in plain decimal digits. Raises: InvalidRequest."""
    if text.isascii() and text.isdigit() and len(text) <= 20 and low <= int(text) <= high:
        return int(text)
    raise InvalidRequest(f"{name} is a whole number from {low} to {high}")


def position_of(name: str, text: str) -> LogPosition:
    """A version with or without its log's id, as in event ids. Raises: InvalidRequest."""
    position = parse_position(text)
    if position is None:
        raise InvalidRequest(
            f"{name} is VERSION, VERSION@LOGID or VERSION~LEADER@LOGID: a whole number up to {VERSION_MAX}, and ids of "
            "32 hexadecimal digits"
        )
    return position


def key_from_text(name: str, text: str, *, hint: str = "") -> bytes:
    """The bytes of a key in canonical base64url, padding optional. Raises: InvalidRequest (bad_base64)."""
    plain = text.rstrip("=")
    padded = plain + "=" * (-len(plain) % 4)
    try:
        key = base64.urlsafe_b64decode(padded) if text in (plain, padded) else None
    except (binascii.Error, ValueError):
        key = None
    # What is not of the alphabet was left out, so it does not come back.
    if key is None or base64.urlsafe_b64encode(key).decode() != padded:
        raise InvalidRequest(f"{name} is not base64url", code=Code.BAD_BASE64, hint=hint)
    return key


def text_key(name: str, text: str) -> bytes:
    """The UTF-8 of a text in a URL. Raises: InvalidRequest where it was not UTF-8 there."""
    if "\ufffd" in text:
        # It stands for bytes that could not be decoded.
        raise InvalidRequest(f"{name} is not UTF-8", hint="a key that is not text is given in base64url")
    return text.encode()


def key_parameters(name: str, description: str) -> tuple[Parameter, Parameter]:
    """The two query parameters that a key has: base64url and text."""
    return (
        Parameter(name, "query", {"type": "string", "format": "base64url"}, description),
        Parameter(f"{name}_text", "query", {"type": "string"}, f"The same as text; not together with {name}"),
    )
