"""Connections of the blocking client: sockets, their pool, one exchange on one of them.

Owns: sockets and their bounds. Does not own: what is sent or what a failure means (``core``).

Failure model: a request whose last byte was not handed to the kernel was not accepted, unless the service accepts it in
parts; any later failure is unknown.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading

from holdfast.client.effects import Failed, Reply, Request, Send
from holdfast.client.endpoint import Endpoint
from holdfast.client.http1 import AnswerReader, BadAnswer, encode_request
from holdfast.client.options import ClientOptions
from holdfast.client.shell import now_ms
from holdfast.errors import Closed

__all__ = ["Connection", "Pool", "left_s"]

RECEIVE_BYTES = 1 << 18


class Connection:
    """One socket and the answer it is in the middle of."""

    def __init__(self, endpoint: Endpoint, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        if endpoint.unix_path is not None:
            plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                plain.settimeout(timeout_s)
                plain.connect(endpoint.unix_path)
            except BaseException:
                plain.close()
                raise
        else:
            plain = socket.create_connection((endpoint.host, endpoint.port), timeout_s)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if endpoint.secure:
            context = tls if tls is not None else ssl.create_default_context()
            try:
                plain = context.wrap_socket(plain, server_hostname=endpoint.host)
            except BaseException:
                plain.close()
                raise
        self.socket = plain
        self.idle_since_ms = 0.0

    def send(self, data: bytes, timeout_s: float) -> None:
        """Hand over all of it. Raises: OSError."""
        self.socket.settimeout(timeout_s)
        self.socket.sendall(data)

    def receive(self, reader: AnswerReader, timeout_s: float) -> None:
        """Wait for some bytes. Raises: OSError, BadAnswer."""
        self.socket.settimeout(max(timeout_s, 0.001))
        data = self.socket.recv(RECEIVE_BYTES)
        if data:
            reader.feed(data)
        else:
            reader.end_of_input()

    def is_alive(self) -> bool:
        """An idle connection that is readable was closed by the peer, or speaks out of turn."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        """Close the socket."""
        with contextlib.suppress(OSError):
            self.socket.close()


class Pool:
    """At most ``connections_max`` connections; the one used last is used first."""

    def __init__(self, options: ClientOptions, token: str | None, tls: ssl.SSLContext | None) -> None:
        self._options = options
        self._token = token
        self._tls = tls
        self._slots = threading.BoundedSemaphore(int(options.connections_max))
        self._lock = threading.Lock()
        self._idle: dict[Endpoint, list[Connection]] = {}
        self._streams: set[Connection] = set()
        self.closed = False

    def exchange(self, effect: Send) -> Reply | Failed:
        """Send one request and collect its answer."""
        end_ms = now_ms() + effect.timeout_ms
        if not self._slots.acquire(timeout=effect.timeout_ms / 1000):
            return Failed(now_ms(), False, "every connection of this client is busy")
        connection: Connection | None = None
        reader = AnswerReader(self._options.response_bytes_max)
        sent = False
        try:
            connection = self._take(effect.endpoint) or Connection(effect.endpoint, self._tls, left_s(end_ms))
            data, time_left_s = encode_request(effect.request, effect.endpoint.authority, self._token), left_s(end_ms)
            sent = effect.request.accepted_in_parts
            connection.send(data, time_left_s)
            sent = True
            while not reader.complete:
                connection.receive(reader, left_s(end_ms))
            if reader.reusable:
                self.give_back(effect.endpoint, connection)
                connection = None
            return Reply(now_ms(), reader.status, reader.headers, reader.take())
        except (OSError, UnicodeError, BadAnswer) as error:
            partial = reader.take() if reader.status == 200 else b""
            return Failed(now_ms(), sent, f"{type(error).__name__}: {error}", partial, reader.headers)
        finally:
            if connection is not None:
                connection.close()
            self._slots.release()

    def open(self, endpoint: Endpoint, request: Request, timeout_ms: float) -> tuple[Connection, AnswerReader]:
        """A connection of its own for a stream, its head read. Raises: OSError, BadAnswer, Closed."""
        self._require_open()
        end_ms = now_ms() + timeout_ms
        connection = Connection(endpoint, self._tls, left_s(end_ms))
        try:
            connection.send(encode_request(request, endpoint.authority, self._token), left_s(end_ms))
            reader = AnswerReader(self._options.event_bytes_max)
            while not reader.status or (reader.status != 200 and not reader.complete):
                connection.receive(reader, left_s(end_ms))
            with self._lock:
                self._require_open()  # ``close`` does not see what is not in the set yet
                self._streams.add(connection)
        except BaseException:
            connection.close()
            raise
        return connection, reader

    def hang_up(self, connection: Connection) -> None:
        """The stream on this connection is over."""
        with self._lock:
            self._streams.discard(connection)
        connection.close()

    def _require_open(self) -> None:
        if self.closed:
            raise Closed("this client is closed")

    def _take(self, endpoint: Endpoint) -> Connection | None:
        while True:
            with self._lock:
                self._require_open()
                idle = self._idle.get(endpoint)
                connection = idle.pop() if idle else None
            if connection is None:
                return None
            if not self._is_stale(connection) and connection.is_alive():
                return connection
            connection.close()

    def give_back(self, endpoint: Endpoint, connection: Connection) -> None:
        """The answer was taken: the connection may carry another request. Those idle for too long are closed."""
        connection.idle_since_ms = now_ms()
        unwanted: list[Connection] = []
        with self._lock:
            if self.closed:
                unwanted.append(connection)
            else:
                self._idle.setdefault(endpoint, []).append(connection)
            # The last used goes first, so those that only a burst needed would never be looked at again.
            for idle in self._idle.values():
                while idle and self._is_stale(idle[0]):
                    unwanted.append(idle.pop(0))
        for each in unwanted:
            each.close()

    def _is_stale(self, connection: Connection) -> bool:
        return now_ms() - connection.idle_since_ms >= self._options.idle_connection_ms

    def close(self) -> None:
        """Close what is idle, and wake who waits for a stream."""
        with self._lock:
            self.closed = True
            for stream in self._streams:
                with contextlib.suppress(OSError):
                    stream.socket.shutdown(socket.SHUT_RDWR)
            idle = [connection for connections in self._idle.values() for connection in connections]
            self._idle.clear()
        for connection in idle:
            connection.close()


def left_s(end_ms: float) -> float:
    """Seconds until then. Raises: TimeoutError when it is past."""
    left_ms = end_ms - now_ms()
    if left_ms <= 0:
        raise TimeoutError("the request took too long")
    return left_ms / 1000
