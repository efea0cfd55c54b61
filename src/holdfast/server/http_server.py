"""Listening sockets and everything that hangs on them.

Owns: binding, how many connections there may be, the one tick per second (the ``Date`` header, stalled connections),
and the end of all connections. Does not own: accepting (``listener``), what is served (``front``, ``app``), when to
start and stop (``run``).

Failure model: an address that cannot be bound is a mistake of the configuration and is named. A Unix socket left behind
by a crash is removed when nobody answers on it; one that is answered is somebody else's and is left alone.
Connections never take the descriptors of the object store, nor ``DESCRIPTORS_KEPT`` beside them: without one the log
could not be written, and a crowd of idle clients would end a leader.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import ssl
import stat
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from holdfast.errors import Code, HoldfastError, InvalidRequest
from holdfast.server.app import make_app
from holdfast.server.fast_lane import FastLane
from holdfast.server.framework_lane import Framework
from holdfast.server.freed_memory import FreedMemory
from holdfast.server.front import Front
from holdfast.server.http_date import http_date
from holdfast.server.lanes import Lanes
from holdfast.server.listener import BACKLOG, Listener
from holdfast.server.routes import Route
from holdfast.server.stores.hosting import StoreHost
from holdfast.server.stores.hot_routes import HotStores
from holdfast.server.stores.socket import SubscribeSocket

__all__ = ["HttpServer"]

_log = structlog.get_logger("holdfast.server")

PARTIAL_SECONDS_MAX: Final = 30
IDLE_SECONDS_MAX: Final = 600
STALLED_EVERY_SECONDS: Final = 5
DESCRIPTORS_KEPT: Final = 256
"""For the message stores' pages, files of the view, and what a request needs for a moment."""
REFUSALS_MAX: Final = 64
"""Connections above the maximum at a time that are told so; who comes beside these is closed without a word."""
ANSWER_SECONDS_MAX: Final = 1.0
UNIX: Final = "unix:"


class HttpServer:
    """The HTTP side of one process: several listeners, one front."""

    def __init__(
        self,
        front: Front,
        routes: Sequence[Route],
        *,
        tls: ssl.SSLContext | None = None,
        stores: StoreHost | None = None,
        store_connections: int = 0,
    ) -> None:
        """``stores``: where the message stores of this process are, for their hot routes and their WebSockets.

        ``store_connections``: how many descriptors the object store may want.
        """
        self.front = front

        def socket(ended: Callable[[], None]) -> asyncio.Protocol:
            assert stores is not None, "sockets are made only where stores are hosted"
            return SubscribeSocket(front, stores, ended)

        self.framework = Framework(
            make_app(front, routes),
            error_response=self._error_response,
            socket=None if stores is None else socket,
        )
        self.lanes = Lanes(front, self.framework.protocol, None if stores is None else HotStores(front, stores))
        self.addresses: list[str] = []
        self._tls = tls
        self._store_connections = store_connections
        self._listeners: list[Listener] = []
        self._unix_sockets: list[_UnixSocket] = []
        self._freed = FreedMemory(front.loop)
        self._ticking: asyncio.TimerHandle | None = None

    def _error_response(self, error: HoldfastError) -> bytes:
        status = 431 if error.code is Code.TOO_LARGE else None
        return self.lanes.error_response(error, closes=True, status=status)

    async def listen(self, addresses: Sequence[str]) -> list[str]:
        """Bind every address and start to accept. Returns them with the ports that were really taken.

        Raises: InvalidRequest (bad_configuration) naming the address that cannot be bound; none is bound then.
        """
        self._tick()
        self._keep_descriptors()
        bound: list[tuple[str, socket.socket]] = []
        try:
            for address in addresses:
                try:
                    bound.append(await self._bind(address))
                except OSError as error:
                    raise InvalidRequest(
                        f"cannot listen on {address}: {error.strerror or error}", code=Code.BAD_CONFIGURATION
                    ) from error
        except InvalidRequest:
            for _, opened in bound:
                opened.close()
            self._unlink_sockets()
            raise
        for address, opened in bound:
            tls = None if address.startswith(UNIX) else self._tls
            has_room = partial(self._has_room, 0 if tls is not None else REFUSALS_MAX)
            self._listeners.append(Listener(self.front.loop, opened, self._connection, tls, has_room, self._not_tls))
            self.addresses.append(address)
        return self.addresses

    def _connection(self) -> FastLane:
        """The protocol of one accepted connection."""
        return FastLane(self.lanes)

    def _not_tls(self) -> bytes:
        return self._error_response(InvalidRequest("this port speaks TLS, and the request does not: use https://"))

    def _keep_descriptors(self) -> None:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        room = (
            max(limit - DESCRIPTORS_KEPT - self._store_connections, limit // 2)
            if limit != resource.RLIM_INFINITY
            else sys.maxsize
        )
        if room < self.lanes.connections_max:
            wanted = self.front.limits.connections_max
            self.lanes.connections_max = room
            _log.info("connections_limited", connections_max=room, max_connections=wanted, descriptors=limit)

    def _has_room(self, refusals: int) -> bool:
        """Whether a connection may begin, be it one of ``refusals`` that are told that there are too many."""
        handshakes = sum(listener.handshakes for listener in self._listeners)
        if self.lanes.connections + handshakes < self.lanes.connections_max + refusals:
            return True
        self.front.counters.refused_connections += 1
        return False

    async def _bind(self, address: str) -> tuple[str, socket.socket]:
        if address.startswith(UNIX):
            path = address.removeprefix(UNIX)
            _remove_if_left_behind(path)
            opened = _bound(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), path)
            self._unix_sockets.append(_UnixSocket(path, os.stat(path).st_ino))
            return address, opened
        host, _, port = address.rpartition(":")
        found = await self.front.loop.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, place = found[0]
        opened = socket.socket(family, kind, protocol)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened = _bound(opened, place)
        return f"{host}:{opened.getsockname()[1]}", opened

    def _tick(self) -> None:
        """Once a second. Everything that only needs a rough clock hangs on this, so that no request costs a timer."""
        date = http_date(time.time())
        lanes, framework = self.lanes, self.framework
        lanes.tell_date(date)
        framework.tell_date(date)
        lanes.seconds += 1
        framework.seconds += 1
        if lanes.seconds % STALLED_EVERY_SECONDS == 0:
            bounds = {"partial_seconds_max": PARTIAL_SECONDS_MAX, "idle_seconds_max": IDLE_SECONDS_MAX}
            lanes.close_stalled(**bounds)
            framework.close_stalled(**bounds)
        self._freed.look(ended=lanes.ended, opened=lanes.connections, in_flight=self.front.in_flight_commits)
        self._ticking = self.front.loop.call_later(1.0, self._tick)

    def stop_accepting(self) -> None:
        """Close the listeners. Connections that are open go on."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        self._unlink_sockets()

    def _unlink_sockets(self) -> None:
        for own in self._unix_sockets:
            with contextlib.suppress(FileNotFoundError):
                if os.stat(own.path).st_ino == own.inode:  # not what somebody else has put there since
                    os.unlink(own.path)
        self._unix_sockets.clear()

    async def finish(self, grace_seconds: float) -> None:
        """Let every request under way be answered, then close; after ``grace_seconds`` close everything anyway."""
        self.stop_accepting()
        lanes, framework = self.lanes, self.framework
        for lane in list(lanes.open):
            lane.close_when_answered()
        framework.shut_down()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                await lanes.all_closed()
        for lane in list(lanes.open):
            lane.abort()
        # First the connections, then the requests: a cancelled request would otherwise be answered with a plain 500.
        for framework_lane in list(framework.open):
            framework_lane.transport.abort()
        for request in list(framework.state.tasks):
            request.cancel()
        if framework.state.tasks:
            await asyncio.wait(list(framework.state.tasks), timeout=1.0)
        if self._ticking is not None:
            self._ticking.cancel()


@dataclass(frozen=True, slots=True)
class _UnixSocket:
    path: str
    inode: int


def _bound(opened: socket.socket, place: object) -> socket.socket:
    try:
        opened.bind(place)  # type: ignore[arg-type]  # whatever getaddrinfo gave for this family
        opened.listen(BACKLOG)  # at once: a socket on which nobody listens looks as if it was left behind
        opened.setblocking(False)
    except OSError:
        opened.close()
        raise
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
