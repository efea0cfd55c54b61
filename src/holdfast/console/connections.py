"""The connections of a console: how many there are, who goes at the bound, and how long a request may take to arrive.

At ``CONNECTIONS_MAX`` the newest connection takes the place of another one: of those without a login first one that has
sent no whole request, of these the one that has been silent longest. Where every other one has a login, the newest is
closed. A connection that has not sent the whole head of a request ``HEAD_SECONDS_MAX`` after it was made, or after the
first byte of the head, is closed.

The parsers of requests are uvicorn's; ``Connections.protocol`` adds this to either of its two. A request finds its
connection in its scope. Two facts are not public API of uvicorn, so tests check them with the pinned minor version: the
constructor of the protocols, and that each scope has a copy of ``app_state``.
"""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, Final, cast

CONNECTIONS_MAX: Final = 200
HEAD_SECONDS_MAX: Final = 10.0
LOOK_SECONDS: Final = 1.0
_KEY: Final = "console_connection"


@dataclass(slots=True, eq=False)
class ServiceConnection:
    """What is known about one connection. Times are those of the event loop.

    ``since``: when the wait for a whole head began; None while a request is served. ``is_idle``: it has sent nothing
    since its last request.
    """

    transport: asyncio.Transport | None
    heard_at: float
    since: float | None
    is_idle: bool = False
    spoke: bool = False
    has_login: bool = False

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """The lowest goes first."""
        return self.has_login, self.spoke, self.heard_at

    def heard(self, now: float) -> None:
        """Bytes came; the first ones after a request begin a head."""
        self.heard_at = now
        if self.is_idle:
            self.since, self.is_idle = now, False

    def request_began(self) -> None:
        """A whole head came."""
        self.spoke, self.since, self.is_idle = True, None, False

    def request_ended(self, now: float) -> None:
        """Its request is served; the head of another one may come."""
        self.since, self.is_idle = now, True

    def is_late(self, now: float) -> bool:
        """Whether a head has been awaited for too long."""
        return self.since is not None and now - self.since > HEAD_SECONDS_MAX

    def close(self) -> None:
        """End it at once."""
        if self.transport is not None:
            self.transport.abort()


def connection_of(scope: MutableMapping[str, Any]) -> ServiceConnection:
    """The connection of a request. One that was made elsewhere, as in tests of the application, has no bounds."""
    connection = scope.get("state", {}).get(_KEY)
    return connection if isinstance(connection, ServiceConnection) else ServiceConnection(None, 0.0, 0.0)


class Connections:
    """The connections of one console."""

    def __init__(self, connections_max: int = CONNECTIONS_MAX) -> None:
        self._connections_max = connections_max
        self._open: dict[ServiceConnection, None] = {}
        self._ticking: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: ServiceConnection) -> None:
        """A connection was made; it is closed, or another one is, where there are too many."""
        if len(self._open) >= self._connections_max:
            going = min(self._open, key=lambda each: each.rank)
            if going.has_login:
                connection.close()
                return
            self.discard(going)
            going.close()
        self._open[connection] = None
        if self._ticking is None:
            self._tick()

    def discard(self, connection: ServiceConnection) -> None:
        """A connection has ended."""
        self._open.pop(connection, None)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        for connection in [each for each in self._open if each.is_late(loop.time())]:
            self.discard(connection)
            connection.close()
        self._ticking = loop.call_later(LOOK_SECONDS, self._tick) if self._open else None

    def protocol(self, base: type[asyncio.Protocol]) -> type[asyncio.Protocol]:
        """One of uvicorn's protocols, with these bounds."""
        table = self

        class Bounded(base):  # type: ignore[valid-type, misc]  # the base is chosen by what is installed
            def __init__(self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None) -> None:
                self._shared = dict(app_state)
                super().__init__(config, server_state, self._shared, _loop)  # pyright: ignore[reportCallIssue]
                self._now = asyncio.get_running_loop().time

            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                now = self._now()
                self._connection = ServiceConnection(cast(asyncio.Transport, transport), now, now)
                self._shared[_KEY] = self._connection
                super().connection_made(transport)
                table.add(self._connection)

            def data_received(self, data: bytes) -> None:
                self._connection.heard(self._now())
                super().data_received(data)

            def connection_lost(self, exc: Exception | None) -> None:
                table.discard(self._connection)
                super().connection_lost(exc)

        return Bounded
