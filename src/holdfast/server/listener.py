"""One listening socket: connections are accepted in bunches.

Owns: accepting, and waiting when the process has no descriptor left. Does not own: binding (``http_server``), what is
spoken on a connection (the protocol that ``connection`` makes).

The loop's own servers take one connection in each turn (libuv since 1.46). A turn of a busy leader is milliseconds
long, so a thousand clients that came at once waited for seconds, and some beyond their time-outs. Here a turn takes up
to ``ACCEPTS_PER_TURN``.

Failure model: what fails while it is accepted, or in its TLS handshake, is that connection alone. Without a free
descriptor new connections wait in the kernel's queue and are tried again after ``PAUSE_SECONDS``.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Final

import structlog

__all__ = ["Listener"]

BACKLOG: Final = 4096
ACCEPTS_PER_TURN: Final = 64
PAUSE_SECONDS: Final = 1.0
OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_log = structlog.get_logger(__name__)


class Listener:
    """Accepts on one bound, non-blocking socket until it is closed. It closes the socket."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        bound: socket.socket,
        connection: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._loop = loop
        self._socket = bound
        self._connection = connection
        self._tls = tls
        self._connecting: set[asyncio.Task[None]] = set()
        self._resuming: asyncio.TimerHandle | None = None
        bound.listen(BACKLOG)
        self._resume()

    def close(self) -> None:
        """Accept no more. Connections that were accepted go on."""
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
            task = self._loop.create_task(self._connect(accepted))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connect(self, accepted: socket.socket) -> None:
        with contextlib.suppress(OSError):  # a handshake that failed among them
            accepted.setblocking(False)
            if accepted.family != socket.AF_UNIX:
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(self._connection, accepted, ssl=self._tls)
            return
        accepted.close()
