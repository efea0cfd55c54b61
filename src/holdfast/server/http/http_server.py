"""The HTTP server of a process: listening sockets, one tick per second, and the end of all connections.

An address that cannot be bound is a configuration error and is named. A Unix socket left by a crash is removed when no
process answers on it. Connections never take the file descriptors that the object store needs, nor
``DESCRIPTORS_KEPT`` more, so a crowd of idle clients cannot end a leader.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import resource
import socket
import ssl
import stat
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import structlog

from holdfast.errors import Code, InvalidRequest, NotFound
from holdfast.server.http.connection import ConnectionContext, HttpConnection
from holdfast.server.http.exchange import Exchange, MakeSocket
from holdfast.server.http.freed_memory import FreedMemory
from holdfast.server.http.responses import error_response, http_date
from holdfast.server.http.routes import Call, HotHandler, Response, Route, RouteEndpoint, respond
from holdfast.server.http.state import UNKNOWN_PART, FastMatcher, HotRoutes, HttpState
from holdfast.values import UNIX

_log = structlog.get_logger("holdfast.server")

PARTIAL_SECONDS_MAX: Final = 30
IDLE_SECONDS_MAX: Final = 600
STALLED_EVERY_SECONDS: Final = 5
DESCRIPTORS_KEPT: Final = 256
"""For pages of the message stores, files of the view, and short needs of requests."""
REFUSALS_MAX: Final = 64
"""Connections above the maximum that get an error response; further ones are closed without it."""
ANSWER_SECONDS_MAX: Final = 1.0
SOCKET_MODE: Final = 0o660
"""Of Unix sockets: the owner and the group may connect."""


class HttpServer:
    """The HTTP side of one process: several listeners, one table of routes."""

    def __init__(
        self,
        state: HttpState,
        routes: Sequence[Route],
        *,
        tls: ssl.SSLContext | None = None,
        matcher: FastMatcher | None = None,
        socket: MakeSocket | None = None,
        store_connections: int = 0,
        socket_mode: int = SOCKET_MODE,
    ) -> None:
        """``matcher`` finds fast requests with parameters; ``store_connections`` are reserved descriptors.
        ``socket_mode``: the mode of Unix sockets."""
        self.state = state
        by_path: dict[str, dict[str, RouteEndpoint]] = {}
        for row in routes:
            by_path.setdefault(row.path, {})[row.method] = RouteEndpoint(state, row)
        self.routes = [RoutedPath(path, endpoints) for path, endpoints in by_path.items()]
        lines = {line: request for route in routes for line, request in route.fast_lines.items()}
        matchers: list[FastMatcher] = [HotHandler(state, route) for route in routes if route.is_hot]
        hot = HotRoutes(lines, matchers if matcher is None else [matcher, *matchers])
        self.context = ConnectionContext(state, hot, self._serve, socket)
        self.addresses: list[str] = []
        self._tls = tls
        self._store_connections = store_connections
        self._socket_mode = socket_mode
        self._listeners: list[Listener] = []
        self._unix_sockets: list[tuple[str, int]] = []
        self._freed = FreedMemory(state.loop)
        self._ticking: asyncio.TimerHandle | None = None

    async def listen(self, addresses: Sequence[str]) -> list[str]:
        """Bind every address and accept. Returns them with their real ports.

        Raises: InvalidRequest (bad_configuration) naming the address that cannot be bound; none is bound then.
        """
        self._tick()
        self._keep_descriptors()
        bound: list[tuple[str, socket.socket]] = []
        address = ""
        try:
            for address in addresses:
                bound.append(await self._bind(address))
        except OSError as error:
            for _, opened in bound:
                opened.close()
            self._unlink_sockets()
            raise InvalidRequest(
                f"cannot listen on {address}: {error.strerror or error}", code=Code.BAD_CONFIGURATION
            ) from error
        for address, opened in bound:
            tls = None if address.startswith(UNIX) else self._tls
            has_room = partial(self._has_room, 0 if tls is not None else self._refusals_max())
            self._listeners.append(
                Listener(self.state.loop, opened, partial(HttpConnection, self.context), tls, has_room, self._not_tls)
            )
            self.addresses.append(address)
        return self.addresses

    def replace_tls(self, tls: ssl.SSLContext) -> None:
        """New connections get this certificate; those that are open keep theirs."""
        assert self._tls is not None, "a service with TLS keeps it"
        self._tls = tls
        for listener in self._listeners:
            listener.replace_tls(tls)

    async def _serve(self, exchange: Exchange) -> None:
        """Serve one request by the first row with its path and method."""
        allowed: list[str] = []
        for row in self.routes:
            if exchange.path.startswith(row.beginning) and (match := row.pattern.fullmatch(exchange.path)) is not None:
                endpoint = row.endpoints.get(exchange.method)
                if endpoint is not None:
                    await endpoint.serve(Call(endpoint, exchange, match.groupdict()))
                    return
                allowed = allowed or sorted(row.endpoints)
        problem = (
            InvalidRequest("the route has other methods", code=Code.METHOD_NOT_ALLOWED, allow=", ".join(allowed))
            if allowed
            else NotFound("there is no such route", hint="GET /openapi.json lists them")
        )
        status, headers, body = error_response(problem, self.state.leader)
        self.state.counters.answers["unknown", status] += 1
        await respond(exchange, Response(body, status, headers))

    def _not_tls(self) -> bytes:
        problem = InvalidRequest("this port speaks TLS, and the request does not: use https://")
        return self.context.error_response(problem, closes=True)

    def _keep_descriptors(self) -> None:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        room = (
            max(limit - DESCRIPTORS_KEPT - self._store_connections, limit // 2)
            if limit != resource.RLIM_INFINITY
            else sys.maxsize
        )
        if room < self.context.connections_max:
            wanted = self.state.limits.connections_max
            self.context.connections_max = room
            self.state.unknown.most = room // UNKNOWN_PART
            _log.info("connections_limited", connections_max=room, max_connections=wanted, descriptors=limit)

    def _refusals_max(self) -> int:
        """``REFUSALS_MAX``, fewer where descriptors are few: these connections take some as well."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return REFUSALS_MAX if limit == resource.RLIM_INFINITY else min(REFUSALS_MAX, limit // 16)

    def _has_room(self, refusals: int) -> bool:
        """Whether a connection may begin, including ``refusals`` that get an error response."""
        handshakes = sum(listener.handshakes for listener in self._listeners)
        if self.context.connections + handshakes < self.context.connections_max + refusals:
            return True
        self.state.counters.refused_connections += 1
        return False

    async def _bind(self, address: str) -> tuple[str, socket.socket]:
        if address.startswith(UNIX):
            path = address.removeprefix(UNIX)
            _remove_if_left_behind(path)
            opened = _bound_with_mode(path, self._socket_mode)
            self._unix_sockets.append((path, os.stat(path).st_ino))
            return address, opened
        host, _, port = address.rpartition(":")
        infos = await self.state.loop.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, sockaddr = infos[0]
        opened = socket.socket(family, kind, protocol)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened = _bound(opened, sockaddr)
        return f"{host}:{opened.getsockname()[1]}", opened

    def _tick(self) -> None:
        """Once a second. Everything that only needs a rough clock hangs on this, so that no request costs a timer."""
        date = http_date(time.time())
        context = self.context
        context.tell_date(date)
        context.seconds += 1
        if context.seconds % STALLED_EVERY_SECONDS == 0:
            context.close_stalled(partial_seconds_max=PARTIAL_SECONDS_MAX, idle_seconds_max=IDLE_SECONDS_MAX)
        self._freed.look(ended=context.ended, opened=context.connections, in_flight=self.state.in_flight_commits)
        self._ticking = self.state.loop.call_later(1.0, self._tick)

    def stop_accepting(self) -> None:
        """Close the listeners. Connections that are open go on."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        self._unlink_sockets()

    def _unlink_sockets(self) -> None:
        for path, inode in self._unix_sockets:
            with contextlib.suppress(FileNotFoundError):
                if os.stat(path).st_ino == inode:  # not what another process has put there since
                    os.unlink(path)
        self._unix_sockets.clear()

    async def finish(self, grace_seconds: float) -> None:
        """Let every request under way be answered, then close; after ``grace_seconds`` close everything anyway."""
        self.stop_accepting()
        context, requests = self.context, self.context.tasks
        for connection in list(context.open):
            connection.close_when_answered()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                await context.all_closed()
        for connection in list(context.open):
            connection.abort()
        for request in requests:
            request.cancel()
        if requests:
            await asyncio.wait(set(requests), timeout=1.0)
        if self._ticking is not None:
            self._ticking.cancel()


def _bound(opened: socket.socket, sockaddr: object) -> socket.socket:
    try:
        opened.bind(sockaddr)  # type: ignore[arg-type]  # whatever getaddrinfo gave for this family
        opened.listen(BACKLOG)  # at once: a socket on which nobody listens looks as if it was left behind
        opened.setblocking(False)
    except OSError:
        opened.close()
        raise
    return opened


def _bound_with_mode(path: str, mode: int) -> socket.socket:
    """A Unix socket with this mode, whatever the umask is. It is made with no more rights than that."""
    before = os.umask(0o777 & ~mode)
    try:
        opened = _bound(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), path)
    finally:
        os.umask(before)
    os.chmod(path, mode)
    return opened


def _remove_if_left_behind(path: str) -> None:
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return  # not ours to remove; binding will name it
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(ANSWER_SECONDS_MAX)
        try:
            asking.connect(path)
        except ConnectionRefusedError:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        except OSError:  # somebody is there, and busy; binding will name it
            return


BACKLOG: Final = 4096
ACCEPTS_PER_TURN: Final = 64
PAUSE_SECONDS: Final = 1.0
HANDSHAKE_SECONDS_MAX: Final = 10.0
GOODBYE_SECONDS_MAX: Final = 1.0
DISCARD_BYTES_MAX: Final = 16 * 1_048_576
OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


@dataclass(slots=True, eq=False)
class Listener:
    """Accepts on one bound, non-blocking socket until it is closed. It closes the socket.

    A connection without room is closed without a response. ``not_tls`` is the response to a peer that does not begin
    TLS.
    """

    _loop: asyncio.AbstractEventLoop
    _socket: socket.socket
    _connection: Callable[[], asyncio.Protocol]
    _tls: ssl.SSLContext | None
    _has_room: Callable[[], bool]
    _not_tls: Callable[[], bytes] | None = None
    _connecting: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]], init=False)
    _resuming: asyncio.TimerHandle | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._socket.listen(BACKLOG)
        self._resume()

    def replace_tls(self, tls: ssl.SSLContext) -> None:
        """New connections get this certificate, where connections have one."""
        if self._tls is not None:
            self._tls = tls

    @property
    def handshakes(self) -> int:
        """Connections that were accepted and have no protocol yet."""
        return len(self._connecting)

    def close(self) -> None:
        """Accept no more. Connections that were accepted go on, handshakes do not."""
        for task in self._connecting:
            task.cancel()
        if self._resuming is not None:
            self._resuming.cancel()
        else:
            self._loop.remove_reader(self._socket)
        self._socket.close()

    def _resume(self) -> None:
        self._resuming = None
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in OUT_OF_RESOURCES:
                    continue  # that client is gone already
                _log.warning("accepting_paused", reason=error.strerror, seconds=PAUSE_SECONDS)
                self._loop.remove_reader(self._socket)
                self._resuming = self._loop.call_later(PAUSE_SECONDS, self._resume)
                return
            if not self._has_room():
                accepted.close()
                continue
            task = self._loop.create_task(self._connect(accepted))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connect(self, accepted: socket.socket) -> None:
        with contextlib.suppress(OSError):  # a handshake that failed among them
            accepted.setblocking(False)
            if accepted.family != socket.AF_UNIX:
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            since = self._loop.time()
            if self._tls is None or not await self._refused(accepted):
                left = max(0.001, HANDSHAKE_SECONDS_MAX - (self._loop.time() - since))
                await self._loop.connect_accepted_socket(
                    self._connection,
                    accepted,
                    ssl=self._tls,
                    ssl_handshake_timeout=None if self._tls is None else left,
                    ssl_shutdown_timeout=None if self._tls is None else GOODBYE_SECONDS_MAX,
                )
                return
        accepted.close()

    async def _refused(self, accepted: socket.socket) -> bool:
        """Whether the peer does not begin TLS and got its error response. Raises: OSError."""
        if self._not_tls is None:
            return False
        try:
            if not await self._speaks_plainly(accepted):
                return False
            await self._respond(accepted, self._not_tls())
        except asyncio.CancelledError:  # until it has a transport, nobody else closes it
            accepted.close()
            raise
        return True

    async def _speaks_plainly(self, accepted: socket.socket) -> bool:
        """Whether the first byte, which stays unread, is the letter of a method. Raises: OSError."""
        arrived = asyncio.Event()
        self._loop.add_reader(accepted, arrived.set)
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS_MAX):
                await arrived.wait()
        finally:
            self._loop.remove_reader(accepted)
        return accepted.recv(1, socket.MSG_PEEK).isalpha()

    async def _respond(self, accepted: socket.socket, answer: bytes) -> None:
        """Respond and discard input: closing with unread input could take the response from the peer."""
        async with asyncio.timeout(GOODBYE_SECONDS_MAX):
            await self._loop.sock_sendall(accepted, answer)
            accepted.shutdown(socket.SHUT_WR)
            left = DISCARD_BYTES_MAX
            while left > 0 and (data := await self._loop.sock_recv(accepted, 65_536)):
                left -= len(data)


_PART: Final = re.compile(r"\{(\w+)(:any)?\}")


def pattern_of(path: str) -> re.Pattern[str]:
    """What the paths of a route match. A part of a path ends before a slash; one with ``:any`` is the whole rest.

    >>> pattern_of("/v1/keys/{key:any}").fullmatch("/v1/keys/a/b")["key"], pattern_of("/a/{b}").fullmatch("/a/b/c")
    ('a/b', None)
    """
    literals = _PART.split(path)[::3]
    parts = [f"(?P<{part[1]}>{'(?s:.*)' if part[2] else '[^/]+'})" for part in _PART.finditer(path)]
    return re.compile("".join(re.escape(text) + part for text, part in zip(literals, [*parts, ""], strict=True)))


class RoutedPath:
    """The routes of one path."""

    def __init__(self, path: str, endpoints: Mapping[str, RouteEndpoint]) -> None:
        self.path = path
        self.pattern = pattern_of(path)
        self.beginning = path.partition("{")[0]
        self.endpoints = dict(endpoints)
        if "GET" in endpoints:
            self.endpoints["HEAD"] = endpoints["GET"]  # whose body the exchange leaves out
