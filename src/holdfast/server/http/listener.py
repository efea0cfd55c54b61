"""One listening socket: connections are accepted in bunches.

Owns: accepting, TLS handshakes and their bounds, waiting when the process has no descriptor left. Does not own: binding
(``http_server``), what is spoken on a connection (the protocol that ``connection`` makes).

The loop's own servers take one connection in each turn (libuv since 1.46). A turn of a busy leader is milliseconds
long, so a thousand clients that came at once waited for seconds, and some beyond their time-outs. Here a turn takes up
to ``ACCEPTS_PER_TURN``.

Failure model: what fails while it is accepted, or in its TLS handshake, is that connection alone. A handshake counts as
a connection and is cut off after ``HANDSHAKE_SECONDS_MAX``. Without a free descriptor new connections wait in the
kernel's queue and are tried again after ``PAUSE_SECONDS``. A peer that does not answer the goodbye of TLS is left after
``GOODBYE_SECONDS_MAX``. One that speaks plain HTTP where TLS is spoken is told so in plain: to its client a connection
that only ends is an outage, or a commit of which nobody knows.
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

__all__ = ["BACKLOG", "Listener"]

BACKLOG: Final = 4096
ACCEPTS_PER_TURN: Final = 64
PAUSE_SECONDS: Final = 1.0
HANDSHAKE_SECONDS_MAX: Final = 10.0
GOODBYE_SECONDS_MAX: Final = 1.0
DISCARD_BYTES_MAX: Final = 16 * 1_048_576
OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_log = structlog.get_logger(__name__)


class Listener:
    """Accepts on one bound, non-blocking socket until it is closed. It closes the socket.

    ``has_room`` is asked for each connection; where it has none, the connection is closed without a word. ``not_tls``
    is what a peer is told that does not begin TLS where it should.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        bound: socket.socket,
        connection: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None,
        has_room: Callable[[], bool],
        not_tls: Callable[[], bytes] | None = None,
    ) -> None:
        self._loop = loop
        self._socket = bound
        self._connection = connection
        self._tls = tls
        self._has_room = has_room
        self._not_tls = not_tls
        self._connecting: set[asyncio.Task[None]] = set()
        self._resuming: asyncio.TimerHandle | None = None
        bound.listen(BACKLOG)
        self._resume()

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
            if self._tls is None or not await self._told(accepted):
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

    async def _told(self, accepted: socket.socket) -> bool:
        """Whether the peer does not begin TLS, and was told so. Raises: OSError."""
        if self._not_tls is None:
            return False
        try:
            if not await self._speaks_plainly(accepted):
                return False
            await self._tell(accepted, self._not_tls())
        except asyncio.CancelledError:  # until it has a transport, nobody else closes it
            accepted.close()
            raise
        return True

    async def _speaks_plainly(self, accepted: socket.socket) -> bool:
        """Whether the first byte is the letter of a method. It stays where it is. Raises: OSError."""
        arrived = asyncio.Event()
        self._loop.add_reader(accepted, arrived.set)
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS_MAX):
                await arrived.wait()
        finally:
            self._loop.remove_reader(accepted)
        return accepted.recv(1, socket.MSG_PEEK).isalpha()

    async def _tell(self, accepted: socket.socket, answer: bytes) -> None:
        """Answer, and read away what comes, because closing with unread input could take the answer from the peer."""
        async with asyncio.timeout(GOODBYE_SECONDS_MAX):
            await self._loop.sock_sendall(accepted, answer)
            accepted.shutdown(socket.SHUT_WR)
            left = DISCARD_BYTES_MAX
            while left > 0 and (data := await self._loop.sock_recv(accepted, 65_536)):
                left -= len(data)
