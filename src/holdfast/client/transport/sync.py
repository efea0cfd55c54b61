"""Connections of the blocking client: sockets, their pool, one exchange on one of them.

A request whose last byte was not handed to the kernel was not accepted, unless the service accepts it in parts; after
any later failure the outcome is unknown. An ``ssl`` error is always of the handshake.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final, Protocol

from holdfast.client.protocol.effects import IN_TURN_MAX, Chunk, Failed, Open, Response, Send
from holdfast.client.protocol.endpoint import ClientRoute, Endpoint
from holdfast.client.protocol.http1 import (
    BadResponse,
    KnownHead,
    RequestEncoder,
    ResponseReader,
    ResponseTooLarge,
    problem_with,
    reason_of,
)
from holdfast.client.protocol.lookout import (
    AGAIN_MS,
    ANOTHER_LEADS,
    ANSWER_MS,
    LOOK_AFTER_MS,
    SIGN_OF_LIFE,
    Lookout,
    leads,
)
from holdfast.client.protocol.options import ClientOptions
from holdfast.client.transport.clock import now_ms
from holdfast.errors import Closed

if TYPE_CHECKING:
    from holdfast.view import View

RECEIVE_BYTES = 1 << 16
"""Room for one read. For twice as much the allocator goes to the system each time."""
BUSY = "every connection of this client is busy"


Event = threading.Event
Lock = threading.RLock  # a signal handler may close what its own thread is in the middle of
Turnstile = threading.RLock  # as above
each = iter


class Cancelled(BaseException):
    """Never raised: an interrupt of a thread may come in the middle of anything, so the connection is dropped."""


class GetsTogether:
    """As in ``aio``; gets of one thread follow one another, so each travels alone."""

    def __init__(
        self, alone: Callable[[bytes], bytes | None], many: Callable[[list[bytes]], dict[bytes, bytes | None]]
    ) -> None:
        del many
        self.get = alone


class Awaited:
    """One wait for an endpoint in progress: of a request, of a stream, or for a connection. Another thread may end it
    with ``leave``."""

    __slots__ = ("endpoint", "is_heard", "is_left", "since_ms", "socket")

    def __init__(self, endpoint: Endpoint, since_ms: float) -> None:
        self.endpoint = endpoint
        self.since_ms = since_ms
        self.socket: socket.socket | None = None
        self.is_heard = False
        """Whether bytes arrived since ``awaited_since_ms`` looked last."""
        self.is_left = False
        """Whether it was ended, and the end of the input is not that of the response."""

    def awaited_since_ms(self, at_ms: float) -> float:
        """Since when, at the latest, the next bytes have been awaited."""
        if self.is_heard:
            self.is_heard, self.since_ms = False, at_ms
        return self.since_ms

    def leave(self) -> None:
        """End the wait, as if the connection had broken."""
        self.is_left = True
        if self.socket is not None:
            cut_off(self.socket)

    def require(self) -> None:
        """Raises: TimeoutError after ``leave``."""
        if self.is_left:
            raise TimeoutError(ANOTHER_LEADS)

    def uses(self, of_connection: socket.socket) -> None:
        """The socket that it waits on now. Raises: TimeoutError after ``leave``."""
        self.socket = of_connection
        self.require()


def cut_off(of_connection: socket.socket) -> None:
    """End the wait of another thread on this socket."""
    with contextlib.suppress(OSError):
        # The method of a TLS socket would forget the TLS of unread bytes.
        socket.socket.shutdown(of_connection, socket.SHUT_RDWR)


class Connection:
    """One socket and its response in progress. Making it ends within ``timeout_s``, except for the name look-up."""

    def __init__(self, wait: Awaited, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        endpoint, self.wait = wait.endpoint, wait
        end_ms = now_ms() + timeout_s * 1000
        plain = _connected(endpoint, end_ms, wait)
        if endpoint.secure:
            assert tls is not None, "a secure endpoint has its context"
            try:
                plain.settimeout(left_s(end_ms))
                secure = tls.wrap_socket(plain, server_hostname=endpoint.host, do_handshake_on_connect=False)
                plain = secure
                wait.uses(secure)
                secure.do_handshake()
            except BaseException:
                plain.close()
                raise
        self.socket = plain
        self.known_head = KnownHead()
        self.perhaps_tls = not endpoint.secure
        """See ``ResponseReader``."""
        self.idle_since_ms = 0.0

    def is_readable(self, timeout_s: float) -> bool:
        """Wait until bytes are there, or the connection has ended. Takes none, so it may be interrupted."""
        if isinstance(self.socket, ssl.SSLSocket) and self.socket.pending():
            return True
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(max(0.0, timeout_s) * 1000))

    def send(self, data: bytes, timeout_s: float) -> None:
        """Hand over all of it. Raises: OSError."""
        self.socket.settimeout(timeout_s)
        try:
            self.socket.sendall(data)
        except ssl.SSLError as error:
            raise _broken(error) from error

    def send_until_response(self, data: bytes, timeout_s: float, reader: ResponseReader) -> bool:
        """Hand over all of it (True), or stop where a service that has responded reads no more. Raises: OSError,
        BadResponse."""
        try:
            self.send(data, timeout_s)
        except OSError:
            self.socket.settimeout(0)
            with contextlib.suppress(OSError):  # also raised when no more bytes are there
                while not reader.complete and (arrived := self.socket.recv(RECEIVE_BYTES)):
                    reader.feed(arrived)
            if not reader.complete:
                raise
            return False
        return True

    def receive(self, reader: ResponseReader, timeout_s: float) -> None:
        """Wait for some bytes. Raises: OSError, BadResponse."""
        self.socket.settimeout(max(timeout_s, 0.001))
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except ssl.SSLError as error:
            raise _broken(error) from error
        self.wait.is_heard = True
        if data:
            reader.feed(data)
        elif self.wait.is_left:
            raise BadResponse(ANOTHER_LEADS)
        else:
            reader.end_of_input()

    def is_alive(self) -> bool:
        """Whether an idle connection is usable: a readable one was closed by the peer, or has unexpected bytes."""
        return not self.is_readable(0)

    def cut_off(self) -> None:
        """End the wait of another thread, which then closes the connection."""
        cut_off(self.socket)

    def close(self) -> None:
        """Close the socket."""
        with contextlib.suppress(OSError):
            self.socket.close()


def _broken(error: ssl.SSLError) -> ConnectionError:
    """The error for TLS that breaks after its handshake; an ``ssl`` error would mean the handshake itself failed."""
    return ConnectionError(f"the connection broke: {error}")


def _connected(endpoint: Endpoint, end_ms: float, wait: Awaited) -> socket.socket:
    """A socket to the first of its addresses that answers. Raises: OSError."""
    if endpoint.unix_path is not None:
        return _connected_to(endpoint.unix_path, socket.AF_UNIX, left_s(end_ms), wait)
    addresses = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    failure: OSError | None = None
    for tried, (family, _, _, _, address) in enumerate(addresses):
        try:
            # Each address has its share of the time left, so an address without a response leaves time for the rest.
            plain = _connected_to(address, family, left_s(end_ms) / (len(addresses) - tried), wait)
        except OSError as error:
            wait.require()
            failure = error
        else:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return plain
    try:
        raise failure if failure is not None else OSError("the name has no address")
    finally:
        failure = None  # or it and its traceback would keep each other


def _connected_to(address: object, family: int, timeout_s: float, wait: Awaited) -> socket.socket:
    plain = socket.socket(family, socket.SOCK_STREAM)
    try:
        plain.settimeout(timeout_s)
        wait.uses(plain)
        plain.connect(address)  # type: ignore[arg-type]  # whatever getaddrinfo gave for this family
    except BaseException:
        plain.close()
        raise
    return plain


class Pool:
    """At most ``connections_max`` connections; the one used last is used first. ``watch`` ends the waits at an endpoint
    that is silent while another one leads."""

    def __init__(
        self, options: ClientOptions, token: str | None, tls: ssl.SSLContext | None, watch: LookoutTask | None = None
    ) -> None:
        self._watch = watch
        if watch is not None:
            watch.add(self)
        self._options = options
        self.encode = RequestEncoder(token).encode
        self._tls = tls
        self._renew()
        self.closed = False
        _pools.add(self)

    def _renew(self) -> None:
        """Begin without connections: after a fork the child's are the parent's."""
        self._slots = threading.BoundedSemaphore(int(self._options.connections_max))
        self._turns = threading.BoundedSemaphore(IN_TURN_MAX)
        self._lock = threading.Lock()
        self._idle: dict[Endpoint, list[Connection]] = {}
        self._streams: set[Connection] = set()
        self._waits: set[Awaited] = set()

    def exchange(self, effect: Send) -> Response | Failed:
        """Send one request and collect its answer."""
        if effect.in_turn:
            return self._exchange_in_turn(effect)
        end_ms = now_ms() + effect.timeout_ms
        connection = self.lease(effect.endpoint, effect.timeout_ms)
        if isinstance(connection, Failed):
            return connection
        reader = self.reader_for(connection)
        is_sent = is_usable = False
        try:
            data, time_left_s = self.encode(effect.request, effect.endpoint), left_s(end_ms)
            is_sent = effect.request.accepted_in_parts
            whole = connection.send_until_response(data, time_left_s, reader)
            is_sent = True
            while not reader.complete:
                connection.receive(reader, left_s(end_ms))
            is_usable = whole and reader.reusable
            return Response(now_ms(), reader.status, reader.headers, reader.take())
        except (OSError, UnicodeError, BadResponse) as error:
            problem = problem_with(effect.endpoint, error)
            partial = reader.take() if reader.status == 200 else b""
            accepted = is_sent and problem is None
            too_large = isinstance(error, ResponseTooLarge)
            return Failed(now_ms(), accepted, reason_of(error), partial, reader.headers, problem, too_large)
        finally:
            if is_usable:
                self.give_back(effect.endpoint, connection)
            else:
                self.drop(connection)
            self.end_lease()

    def _exchange_in_turn(self, effect: Send) -> Response | Failed:
        began_ms = now_ms()
        if not self._turns.acquire(timeout=effect.timeout_ms / 1000):
            return Failed(now_ms(), False, BUSY, asked=False)
        try:
            left_ms = max(1.0, effect.timeout_ms - (now_ms() - began_ms))
            return self.exchange(Send(effect.endpoint, effect.request, left_ms))
        finally:
            self._turns.release()

    def lease(self, endpoint: Endpoint, timeout_ms: float) -> Connection | Failed:
        """A connection, until ``give_back`` and ``end_lease``, or ``drop`` and ``end_lease``. Raises: Closed."""
        at_ms = now_ms()
        if not self._slots.acquire(timeout=timeout_ms / 1000):
            return Failed(now_ms(), False, BUSY, asked=False)
        wait = self._begin(endpoint, at_ms)
        connection: Connection | None = None
        try:
            connection = self._take(endpoint, wait) or self._connect(endpoint, at_ms + timeout_ms, wait)
            return connection
        except (OSError, UnicodeError, BadResponse) as error:
            problem = problem_with(endpoint, error)
            return Failed(now_ms(), False, reason_of(error), problem=problem)
        finally:
            if connection is None:
                self._waits.discard(wait)
                self._slots.release()

    def end_lease(self) -> None:
        """The connection is not used any more."""
        self._slots.release()

    def rest(self, connection: Connection) -> None:
        """The lease ends, though the response has not: nobody waits for the rest of it until ``resume``."""
        self._waits.discard(connection.wait)
        self._slots.release()

    def resume(self, endpoint: Endpoint, connection: Connection) -> bool:
        """Lease it again, unless every connection is busy."""
        if not self._slots.acquire(blocking=False):
            return False
        connection.wait = self._begin(endpoint, now_ms())
        connection.wait.socket = connection.socket
        return True

    def reader_for(self, connection: Connection) -> ResponseReader:
        """For the response to the next request on it."""
        return ResponseReader(
            self._options.response_bytes_max, connection.known_head, perhaps_tls=connection.perhaps_tls
        )

    def _begin(self, endpoint: Endpoint, at_ms: float) -> Awaited:
        wait = Awaited(endpoint, at_ms)
        self._waits.add(wait)
        if self._watch is not None and self._watch.rests:
            self._watch.begin()
        return wait

    def awaited(self, at_ms: float) -> list[tuple[Endpoint, float]]:
        """See ``Waiting``."""
        return [(wait.endpoint, wait.awaited_since_ms(at_ms)) for wait in list(self._waits)]

    def leave(self, endpoints: Collection[Endpoint], at_ms: float) -> None:
        """See ``Waiting``."""
        del at_ms
        with self._lock:  # a connection that is given back meanwhile must not be cut
            for wait in list(self._waits):
                if wait.endpoint in endpoints:
                    wait.leave()

    def open(self, effect: Open) -> Stream | Response | Failed:
        """Open a stream on a connection of its own; a ``Response`` refuses it. Raises: Closed."""
        self._require_open()
        connection: Connection | None = None
        stream: Stream | None = None
        at_ms = now_ms()
        end_ms = at_ms + effect.timeout_ms
        wait = self._begin(effect.endpoint, at_ms)
        try:
            connection = self._connect(effect.endpoint, end_ms, wait)
            connection.send(self.encode(effect.request, effect.endpoint), left_s(end_ms))
            reader = ResponseReader(self._options.event_bytes_max, perhaps_tls=connection.perhaps_tls)
            while not reader.status or (reader.status != 200 and not reader.complete):
                connection.receive(reader, left_s(end_ms))
            if reader.status != 200:
                return Response(now_ms(), reader.status, reader.headers, reader.take())
            with self._lock:
                self._require_open()  # ``close`` does not see what is not in the set yet
                self._streams.add(connection)
            stream = Stream(self, connection, reader)
            return stream
        except (OSError, UnicodeError, BadResponse) as error:
            return Failed(now_ms(), False, reason_of(error), problem=problem_with(effect.endpoint, error))
        finally:
            if stream is None:
                self._waits.discard(wait)
                if connection is not None:
                    self.drop(connection)

    def drop(self, connection: Connection) -> None:
        """Close the connection of a stream."""
        with self._lock:
            self._streams.discard(connection)
            self._waits.discard(connection.wait)
        connection.close()

    def _connect(self, endpoint: Endpoint, end_ms: float, wait: Awaited) -> Connection:
        if endpoint.secure and self._tls is None:
            self._tls = ssl.create_default_context()  # once: it reads every authority of the system
        connection = Connection(wait, self._tls, left_s(end_ms))
        if self.closed:  # meanwhile: nothing is sent any more
            connection.close()
            self._require_open()
        return connection

    def _require_open(self) -> None:
        if self.closed:
            raise Closed("this client is closed")

    def _take(self, endpoint: Endpoint, wait: Awaited) -> Connection | None:
        while True:
            with self._lock:
                self._require_open()
                idle = self._idle.get(endpoint)
                connection = idle.pop() if idle else None
            if connection is None:
                return None
            if not self._is_stale(connection) and connection.is_alive():
                connection.wait = wait
                wait.socket = connection.socket
                return connection
            connection.close()

    def give_back(self, endpoint: Endpoint, connection: Connection) -> None:
        """The response was taken: the connection may carry another request. Those idle for too long are closed."""
        connection.idle_since_ms = now_ms()
        connection.perhaps_tls = False
        unwanted: list[Connection] = []
        with self._lock:
            self._waits.discard(connection.wait)
            if self.closed:
                unwanted.append(connection)
            else:
                self._idle.setdefault(endpoint, []).append(connection)
            # The last used is taken first, so connections that only a burst needed would never be checked again.
            for idle in self._idle.values():
                while idle and self._is_stale(idle[0]):
                    unwanted.append(idle.pop(0))
        for each in unwanted:
            each.close()

    def _is_stale(self, connection: Connection) -> bool:
        return now_ms() - connection.idle_since_ms >= self._options.idle_connection_ms

    def close(self) -> None:
        """Close idle connections, and end every wait for a stream."""
        if self._watch is not None:
            self._watch.remove(self)
        with self._lock:
            self.closed = True
            for stream in self._streams:
                stream.cut_off()
            idle = [connection for connections in self._idle.values() for connection in connections]
            self._idle.clear()
        for connection in idle:
            connection.close()

    def wait_closed(self) -> None:
        """Sockets close at once."""


_pools: Final[weakref.WeakSet[Pool]] = weakref.WeakSet()


def _after_fork() -> None:
    for pool in list(_pools):
        pool._renew()  # pyright: ignore[reportPrivateUsage]


os.register_at_fork(after_in_child=_after_fork)


class LookoutTask:
    """Carries out what the ``Lookout`` of one client wants. It rests while the client waits for nothing; ``begin``
    wakes it. The thread of ``Ticks`` looks, and each sign of life is asked for in a thread of its own."""

    def __init__(self, route: ClientRoute, options: ClientOptions, tls: ssl.SSLContext | None) -> None:
        self._lookout = Lookout(route)
        self.add, self.remove = self._lookout.add, self._lookout.remove
        self._lock = threading.Lock()
        self._pool = Pool(options, None, tls)  # of its own: the client's may be full of requests that wait
        self._is_closed = False
        self.rests = len(route.configured) > 1
        """Whether ``begin`` is to be called when a wait begins. Of a single endpoint nobody else could lead."""

    def begin(self) -> None:
        """A wait begins."""
        with self._lock:
            if self.rests and not self._is_closed:
                self.rests = False
                ticks.add(self)

    def look(self) -> bool:
        """See ``TickTarget``."""
        # Before the waits are read, and without the lock, which a part may want: a wait that begins now is either seen
        # here or calls ``begin``.
        self.rests = True
        at_ms = now_ms()
        is_waiting, overdue = self._lookout.overdue(list(self._lookout.parts), at_ms)
        with self._lock:
            endpoints = [] if self._is_closed else self._lookout.look(overdue, at_ms)
            is_busy = self._lookout.is_busy
            if is_waiting or is_busy:
                self.rests = False
            elif self.rests:
                ticks.remove(self)
        for endpoint in endpoints:
            threading.Thread(target=self._ask, args=(endpoint,), name="holdfast-sign-of-life", daemon=True).start()
        return is_busy

    def _ask(self, endpoint: Endpoint) -> None:
        try:
            reply = self._pool.exchange(Send(endpoint, SIGN_OF_LIFE, ANSWER_MS))
        except Closed:
            return
        at_ms = now_ms()
        with self._lock:
            left = self._lookout.answered(endpoint, leads(reply), at_ms)
            parts = list(self._lookout.parts) if left else []
        for part in parts:
            part.leave(left, at_ms)

    def close(self) -> None:
        """Ask nothing more."""
        self._is_closed = True
        ticks.remove(self)
        self._pool.close()


class TickTarget(Protocol):
    """What is looked at again and again, as the threads that wait cannot."""

    def look(self) -> bool:
        """Look. Returns whether the next look is due after ``AGAIN_MS`` already, not after ``LOOK_AFTER_MS``."""
        ...


class Ticks:
    """One thread of the process that looks at what waits. It ends when nothing is left to look at."""

    def __init__(self) -> None:
        self._those: weakref.WeakSet[TickTarget] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, one: TickTarget) -> None:
        """Look at this, too, while it exists."""
        with self._lock:
            self._those.add(one)
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="holdfast-ticks", daemon=True)
                self._thread.start()

    def remove(self, one: TickTarget) -> None:
        """Do not look at this any more."""
        with self._lock:
            self._those.discard(one)

    def _look(self) -> None:
        ms = LOOK_AFTER_MS
        while True:
            time.sleep(ms / 1000)
            with self._lock:
                those = list(self._those)
                if not those:
                    self._thread = None
                    return
            busy = sum(one.look() for one in those)
            ms = AGAIN_MS if busy else LOOK_AFTER_MS
            del those


ticks: Final = Ticks()


class Stream:
    """An open response whose body arrives in pieces."""

    def __init__(self, pool: Pool, connection: Connection, reader: ResponseReader) -> None:
        self._pool = pool
        self._connection = connection
        self._reader = reader
        self.headers = reader.headers

    def receive(self, timeout_ms: float) -> Chunk | Failed:
        """The next piece of the body."""
        reader = self._reader
        end_ms = now_ms() + timeout_ms
        try:
            while not reader.buffered:
                if reader.complete:
                    return Failed(now_ms(), False, "the service ended the stream")
                self._connection.receive(reader, left_s(end_ms))
        except (OSError, BadResponse) as error:
            return Failed(now_ms(), False, reason_of(error))
        return Chunk(now_ms(), reader.take())

    def cut_off(self) -> None:
        """End a ``receive`` that waits in another thread. That thread closes the stream."""
        self._connection.cut_off()

    def close(self) -> None:
        """Close the connection."""
        self._pool.drop(self._connection)


def view_reaches(view: View, version: int, timeout_s: float) -> bool:
    """Whether the view holds everything up to ``version`` in time."""
    return view.wait_for(version, timeout_s)


def left_s(end_ms: float) -> float:
    """Seconds until then. Raises: TimeoutError when it is past."""
    left_ms = end_ms - now_ms()
    if left_ms <= 0:
        raise TimeoutError("the request took too long")
    return left_ms / 1000
