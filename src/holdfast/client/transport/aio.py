"""Connections of the asyncio client: transports, their pool, one exchange on one of them.

Once a request was given to the transport it may have been accepted. A cancelled exchange drops its connection. No
transport outlives its client. One module because connections, their pool and their end belong together.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, cast

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

PAUSE_READING_BYTES = 1 << 20
RECEIVE_BYTES = 1 << 16
GOODBYE_S_MAX = 1.0
BUSY = "every connection of this client is busy"

Made = TypeVar("Made", bound=asyncio.BaseProtocol)
Item = TypeVar("Item")


Cancelled = asyncio.CancelledError
"""Interrupts a wait and leaves the connection intact."""

Lock = contextlib.nullcontext
"""The tasks of one loop need no lock; the threads of the blocking client do."""

Turnstile = asyncio.Lock
"""Lets one task or thread pass at a time, also where it waits inside."""


class GetsTogether:
    """Gets of several tasks that begin in one turn of the event loop travel in one request; a lone one, and one of the
    task that made this, travels as it is."""

    def __init__(
        self,
        alone: Callable[[bytes], Awaitable[bytes | None]],
        many: Callable[[list[bytes]], Coroutine[Any, Any, dict[bytes, bytes | None]]],
    ) -> None:
        self._alone = alone
        self._many = many
        self._task = asyncio.current_task()
        self._turn: _Turn | None = None

    async def get(self, key: bytes) -> bytes | None:
        """The value of ``key``. A cancelled caller leaves the request to the others."""
        if self._turn is None and asyncio.current_task() is self._task:
            return await self._alone(key)  # a task has one get at a time
        turn = self._turn = self._turn or _Turn()
        turn.keys.append(key)
        await asyncio.sleep(0)
        if self._turn is turn:
            self._turn = None
        if len(turn.keys) == 1:
            return await self._alone(key)
        if turn.reading is None:
            turn.reading = asyncio.get_running_loop().create_task(self._many(turn.keys))
            # Its callers may all have been cancelled: then its error is of no interest.
            turn.reading.add_done_callback(lambda reading: reading.cancelled() or reading.exception())
        return (await asyncio.shield(turn.reading))[key]


class _Turn:
    """The gets of one turn."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.reading: asyncio.Task[dict[bytes, bytes | None]] | None = None


class Event:
    """An event that is waited for with a limit of time."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.set = self._event.set
        self.is_set = self._event.is_set

    async def wait(self, timeout_s: float) -> bool:
        """Whether it was set in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        return self._event.is_set()


def each(items: Iterable[Item] | AsyncIterable[Item]) -> AsyncIterable[Item]:
    """The items of an ordinary or an asynchronous iterable."""
    return items if isinstance(items, AsyncIterable) else _ordinary(items)


async def _ordinary(items: Iterable[Item]) -> AsyncIterator[Item]:
    for item in items:
        yield item


async def view_reaches(view: View, version: int, timeout_s: float) -> bool:
    """Whether the view holds everything up to ``version`` in time."""
    try:
        async with asyncio.timeout(timeout_s):
            await view.reached(version)
    except TimeoutError:
        return False
    return True


class ClosingConnections:
    """Transports that are closing and connects that are stopping.

    With TLS a close waits for the other side. A loop that ends earlier leaves the socket open, and uvloop's loop then
    refuses to end, so every close of a client waits here.
    """

    def __init__(self) -> None:
        self._leaving: dict[object, Callable[[], object]] = {}
        self._over: asyncio.Future[None] | None = None

    def add(self, leaving: object, cut_off: Callable[[], object]) -> None:
        """``leaving`` is closing; call ``remove`` at its end. ``cut_off`` ends it immediately."""
        self._leaving[leaving] = cut_off

    def stop(self, connecting: asyncio.Task[None]) -> None:
        """Cancel a task that makes a connection."""
        if not connecting.done():
            self.add(connecting, connecting.cancel)
            connecting.add_done_callback(self.remove)
            connecting.cancel()

    def remove(self, leaving: object) -> None:
        """It has ended."""
        self._leaving.pop(leaving, None)
        if not self._leaving and self._over is not None and not self._over.done():
            self._over.set_result(None)

    async def over(self) -> None:
        """Wait until all have closed. Those that take longer than ``GOODBYE_S_MAX`` are cut off."""
        await self._wait()
        if self._leaving:
            for cut_off in list(self._leaving.values()):
                cut_off()
            await self._wait()
        await asyncio.sleep(0)  # a transport closes its socket after ``connection_lost``

    async def _wait(self) -> None:
        if not self._leaving:
            return
        if self._over is None or self._over.done():
            self._over = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._over], timeout=GOODBYE_S_MAX)


class Incoming(asyncio.BufferedProtocol, ABC):
    """A protocol that receives into its own buffer. Without one asyncio allocates 256 KiB each time, which costs more
    CPU than all work on a short response."""

    def __init__(self) -> None:
        self._incoming = memoryview(bytearray(RECEIVE_BYTES))

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer for the transport."""
        del sizehint
        return self._incoming

    def buffer_updated(self, nbytes: int) -> None:
        """This many bytes arrived."""
        self.data_received(bytes(self._incoming[:nbytes]))

    @abstractmethod
    def data_received(self, data: bytes) -> None:
        """Bytes came."""


class Connection(Incoming):
    """One transport and its response in progress. Exchanges share one timer: when it is due, it checks whether the
    current exchange is late, and is set again if not."""

    def __init__(self, departures: ClosingConnections) -> None:
        super().__init__()
        self._closing_connections = departures
        self.endpoint: Endpoint | None = None
        self._is_heard = False
        """Whether bytes arrived since ``awaited_since_ms`` looked last."""
        self._awaited: ResponseReader | None = None
        self._awaited_ms = 0.0
        self.transport: asyncio.Transport | None = None
        self._reader: ResponseReader | None = None
        self._changed: asyncio.Future[None] | None = None
        self.listener: Callable[[], None] | None = None
        """Called instead of ``changed``, in the middle of the transport's callbacks."""
        self.failure: BaseException | None = None
        self._paused = False
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.known_head = KnownHead()
        self.perhaps_tls = False
        """See ``ResponseReader``."""
        self.lost = False
        self.idle_since_ms = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The transport is ready."""
        # Not asserted: uvloop's transports do not derive from asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """More of the response."""
        self._is_heard = True
        reader = self._reader
        if reader is None:  # unexpected bytes on an idle connection
            self.close()
            return
        try:
            reader.feed(data)
        except BadResponse as error:
            self.failure = error
            self.close()
        if reader.buffered > PAUSE_READING_BYTES and reader.status == 200 and not self._paused and self.transport:
            self._paused = True
            self.transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more will come."""
        self.lost = True
        self._forget_time()
        if self.transport is not None:
            self._closing_connections.remove(self.transport)
            self.transport = None
        if self._reader is not None and self.failure is None:
            try:
                if exc is not None:
                    raise BadResponse(f"the connection broke: {exc}") from exc
                self._reader.end_of_input()
            except BadResponse as error:
                self.failure = error
        self._wake()

    def start(self, data: bytes, reader: ResponseReader, deadline: float | None = None) -> None:
        """Send a request; its response goes to ``reader``. ``changed`` raises TimeoutError at ``deadline``."""
        self._reader = reader
        if deadline is not None:
            self._deadline = deadline
            if self._timer is None or self._timer.when() > deadline:
                self._set_timer(deadline)
        if self.transport is None:  # lost since it was taken
            self.failure = BadResponse("the connection broke")
            return
        self.transport.write(data)

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(deadline, self._look_at_time)

    def _look_at_time(self) -> None:
        self._timer = None
        deadline, reader = self._deadline, self._reader
        if deadline is None or reader is None or reader.complete or self.failure is not None:
            return
        if asyncio.get_running_loop().time() < deadline:
            self._set_timer(deadline)
            return
        self.failure = TimeoutError()
        self._wake()

    def _forget_time(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def changed(self) -> None:
        """Wait until more has arrived. Raises: BadResponse when nothing more will; TimeoutError."""
        if self.failure is not None:
            raise self.failure
        self.resume()
        self._changed = asyncio.get_running_loop().create_future()
        try:
            await self._changed
        finally:
            self._changed = None

    def resume(self) -> None:
        """What arrived has been taken."""
        if self._paused and self.transport is not None:
            self._paused = False
            self.transport.resume_reading()

    def finish(self, at_ms: float) -> None:
        """The response is complete; the connection is idle from now on."""
        self._reader = None
        self._deadline = None
        self.idle_since_ms = at_ms
        self.perhaps_tls = False
        self.listener = None
        self.resume()

    def awaited_since_ms(self, at_ms: float) -> float | None:
        """Since when, at the latest, the next bytes of a response have been awaited; None while none are. Nothing is
        noted for each request: a wait begins when this sees it first."""
        reader = self._reader
        if reader is None or reader.complete or self._paused or self.failure is not None:
            self._awaited = None
            return None
        if self._is_heard or reader is not self._awaited:
            self._is_heard, self._awaited, self._awaited_ms = False, reader, at_ms
        return self._awaited_ms

    def give_up(self, reason: str) -> None:
        """End the exchange, as if the connection had broken."""
        if self.failure is None:
            self.failure = BadResponse(reason)
        self.close()
        self._wake()

    def close(self) -> None:
        """Drop the connection, also during an exchange."""
        self.lost = True
        self._forget_time()
        if self.transport is not None:
            self._closing_connections.add(self.transport, self.transport.abort)
            self.transport.abort()

    def _wake(self) -> None:
        if self.listener is not None:
            self.listener()
        elif self._changed is not None and not self._changed.done():
            self._changed.set_result(None)


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
        self._slots = asyncio.Semaphore(int(options.connections_max))
        self._turns = asyncio.Semaphore(IN_TURN_MAX)
        self._idle: dict[Endpoint, list[Connection]] = {}
        self._everything: set[Connection] = set()
        self._making: dict[asyncio.Timeout, tuple[Endpoint, float]] = {}
        self._closing_connections = ClosingConnections()
        self.closed = False

    async def exchange(self, effect: Send) -> Response | Failed:
        """Send one request and collect its answer."""
        if effect.in_turn:
            return await self._exchange_in_turn(effect)
        deadline = asyncio.get_running_loop().time() + effect.timeout_ms / 1000
        connection = self.lease_idle(effect.endpoint) or await self.lease(effect.endpoint, effect.timeout_ms)
        if isinstance(connection, Failed):
            return connection
        reader: ResponseReader | None = None
        is_usable = False
        try:
            data = self.encode(effect.request, effect.endpoint)
            reader = self.reader_for(connection)
            connection.start(data, reader, deadline)
            while not reader.complete:
                await connection.changed()
            is_usable = reader.reusable
            return Response(now_ms(), reader.status, reader.headers, reader.take())
        except (OSError, UnicodeError, BadResponse) as error:  # a timeout is an OSError too
            reason, problem = reason_of(error), problem_with(effect.endpoint, error)
            if reader is None or problem is not None:  # nothing was sent, or the other side could not read it
                return Failed(now_ms(), False, reason, problem=problem)
            partial = reader.take() if reader.status == 200 else b""
            too_large = isinstance(error, ResponseTooLarge)
            return Failed(now_ms(), True, reason, partial, reader.headers, too_large=too_large)
        finally:
            self.end_lease(effect.endpoint, connection, is_usable=is_usable)

    async def _exchange_in_turn(self, effect: Send) -> Response | Failed:
        began_ms = now_ms()
        try:
            async with asyncio.timeout(effect.timeout_ms / 1000):
                await self._turns.acquire()
        except TimeoutError:
            return Failed(now_ms(), False, BUSY, asked=False)
        try:
            left_ms = max(1.0, effect.timeout_ms - (now_ms() - began_ms))
            return await self.exchange(Send(effect.endpoint, effect.request, left_ms))
        finally:
            self._turns.release()

    def lease_idle(self, endpoint: Endpoint) -> Connection | None:
        """An idle connection, until ``end_lease``; None where none is free now."""
        if self._watch is not None and self._watch.rests:
            self._watch.begin()
        connection = None if self._slots.locked() else self._take(endpoint)
        if connection is not None:
            with contextlib.suppress(StopIteration):
                self._slots.acquire().send(None)  # it does not wait
        return connection

    async def lease(self, endpoint: Endpoint, timeout_ms: float) -> Connection | Failed:
        """A connection, until ``end_lease``. Raises: Closed."""
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        try:
            async with asyncio.timeout_at(deadline):
                await self._slots.acquire()
        except TimeoutError:
            return Failed(now_ms(), False, BUSY, asked=False)
        leased = False
        try:
            connection = self._take(endpoint) or await self.connect(endpoint, deadline)
            leased = True
        except (OSError, UnicodeError, BadResponse) as error:
            return Failed(now_ms(), False, reason_of(error), problem=problem_with(endpoint, error))
        finally:
            if not leased:
                self._slots.release()
        return connection

    def end_lease(self, endpoint: Endpoint, connection: Connection, *, is_usable: bool) -> None:
        """The connection may carry another request, or not."""
        self._slots.release()
        if is_usable and not connection.lost and not self.closed:
            self.give_back(endpoint, connection, now_ms())
        else:
            self.drop(connection)

    def reader_for(self, connection: Connection) -> ResponseReader:
        """For the response to the next request on it."""
        head, perhaps_tls = connection.known_head, connection.perhaps_tls
        return ResponseReader(self._options.response_bytes_max, head, perhaps_tls=perhaps_tls)

    async def open(self, effect: Open) -> Stream | Response | Failed:
        """Open a stream on a connection of its own; a ``Response`` refuses it. Raises: Closed."""
        if self._watch is not None and self._watch.rests:
            self._watch.begin()
        connection: Connection | None = None
        stream: Stream | None = None
        deadline = asyncio.get_running_loop().time() + effect.timeout_ms / 1000
        try:
            async with asyncio.timeout_at(deadline):
                connection = await self.connect(effect.endpoint, deadline)
                reader = ResponseReader(self._options.event_bytes_max, perhaps_tls=connection.perhaps_tls)
                connection.start(self.encode(effect.request, effect.endpoint), reader)
                while not reader.status or (reader.status != 200 and not reader.complete):
                    await connection.changed()
            if reader.status != 200:
                return Response(now_ms(), reader.status, reader.headers, reader.take())
            stream = Stream(self, connection, reader)
            return stream
        except (OSError, UnicodeError, BadResponse) as error:
            return Failed(now_ms(), False, reason_of(error), problem=problem_with(effect.endpoint, error))
        finally:
            if stream is None and connection is not None:
                self.drop(connection)

    async def connect(self, endpoint: Endpoint, deadline: float) -> Connection:
        """A new connection, or a failure before the loop's ``deadline``. Raises: OSError, Closed."""
        self._require_open()
        bound = asyncio.timeout(None)  # ``close`` sets it
        try:
            async with bound:
                self._making[bound] = endpoint, now_ms()
                if endpoint.secure and self._tls is None:
                    self._tls = ssl.create_default_context()  # once: it reads every authority of the system
                make = functools.partial(Connection, self._closing_connections)
                connection = await connected(make, endpoint, self._tls, deadline)
        except TimeoutError:
            self._require_open()
            raise
        finally:
            self._making.pop(bound, None)
            self._closing_connections.remove(bound)
        self._everything.add(connection)
        connection.endpoint = endpoint
        connection.perhaps_tls = not endpoint.secure
        try:
            self._require_open()  # ``close`` may have been called since: nothing is sent any more
        except Closed:
            self.drop(connection)
            raise
        return connection

    def awaited(self, at_ms: float) -> list[tuple[Endpoint, float]]:
        """See ``Waiting``."""
        waits = list(self._making.values())
        for connection in self._everything:
            since_ms = connection.awaited_since_ms(at_ms)
            if since_ms is not None and connection.endpoint is not None:
                waits.append((connection.endpoint, since_ms))
        return waits

    def leave(self, endpoints: Collection[Endpoint], at_ms: float) -> None:
        """See ``Waiting``."""
        for connection in list(self._everything):
            if connection.endpoint in endpoints and connection.awaited_since_ms(at_ms) is not None:
                connection.give_up(ANOTHER_LEADS)
        for bound, (endpoint, _) in self._making.items():
            if endpoint in endpoints:
                bound.reschedule(asyncio.get_running_loop().time())

    def _require_open(self) -> None:
        if self.closed:
            raise Closed("this client is closed")

    def give_back(self, endpoint: Endpoint, connection: Connection, at_ms: float) -> None:
        """The response was taken: the connection may carry another request. Those idle for too long are dropped."""
        connection.finish(at_ms)
        self._idle.setdefault(endpoint, []).append(connection)
        # The last used is taken first, so connections that only a burst needed would never be checked again.
        for idle in self._idle.values():
            while idle and self._is_stale(idle[0], at_ms):
                self.drop(idle.pop(0))

    def _is_stale(self, connection: Connection, at_ms: float) -> bool:
        return connection.lost or at_ms - connection.idle_since_ms >= self._options.idle_connection_ms

    def _take(self, endpoint: Endpoint) -> Connection | None:
        idle = self._idle.get(endpoint)
        if not idle:
            return None
        at_ms = now_ms()
        while idle:
            connection = idle.pop()
            if not self._is_stale(connection, at_ms):
                return connection
            self.drop(connection)
        return None

    def drop(self, connection: Connection) -> None:
        """Close a connection for good."""
        connection.close()
        self._everything.discard(connection)

    def close(self) -> None:
        """Drop every connection, also those being made."""
        self.closed = True
        if self._watch is not None:
            self._watch.remove(self)
        self._idle.clear()
        making, self._making = self._making, {}
        for bound in making:
            self._closing_connections.add(bound, lambda: None)  # it ends with its task's next step
            bound.reschedule(asyncio.get_running_loop().time())
        for connection in list(self._everything):
            self.drop(connection)

    async def wait_closed(self) -> None:
        """Wait until every dropped connection has closed its socket, also those that were being made."""
        await self._closing_connections.over()

    async def aclose(self) -> None:
        """Drop every connection and wait until their sockets are closed."""
        self.close()
        await self.wait_closed()


class LookoutTask:
    """Carries out what the ``Lookout`` of one client wants. It rests while the client waits for nothing; ``begin``
    wakes it."""

    def __init__(self, route: ClientRoute, options: ClientOptions, tls: ssl.SSLContext | None) -> None:
        self._lookout = Lookout(route)
        self.add, self.remove = self._lookout.add, self._lookout.remove
        self._pool = Pool(options, None, tls)  # of its own: the client's may be full of requests that wait
        self._asking: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = len(route.configured) < 2  # nobody else could lead
        self.rests = not self._is_closed
        """Whether ``begin`` is to be called when a wait begins."""

    def begin(self) -> None:
        """A wait begins."""
        if self.rests:
            self.rests = False
            self._look_after(LOOK_AFTER_MS)

    def _look_after(self, ms: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(ms / 1000, self._look)

    def _look(self) -> None:
        self._timer = None
        lookout, at_ms = self._lookout, now_ms()
        is_waiting, overdue = lookout.overdue(lookout.parts, at_ms)
        for endpoint in lookout.look(overdue, at_ms):
            task = asyncio.get_running_loop().create_task(self._ask(endpoint))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
        if lookout.is_busy:
            self._look_after(AGAIN_MS)
        elif is_waiting:
            self._look_after(LOOK_AFTER_MS)
        else:
            self.rests = True

    async def _ask(self, endpoint: Endpoint) -> None:
        reply = await self._pool.exchange(Send(endpoint, SIGN_OF_LIFE, ANSWER_MS))
        at_ms = now_ms()
        left = self._lookout.answered(endpoint, leads(reply), at_ms)
        if left and not self._is_closed:
            for part in list(self._lookout.parts):
                part.leave(left, at_ms)

    async def aclose(self) -> None:
        """Ask nothing more."""
        self._is_closed, self.rests = True, False
        if self._timer is not None:
            self._timer.cancel()
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
        await self._pool.aclose()


class Stream:
    """An open response whose body arrives in pieces."""

    def __init__(self, pool: Pool, connection: Connection, reader: ResponseReader) -> None:
        self._pool = pool
        self._connection = connection
        self._reader = reader
        self.headers = reader.headers

    async def receive(self, timeout_ms: float) -> Chunk | Failed:
        """The next piece of the body."""
        reader = self._reader
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while not reader.buffered:
                    if reader.complete:
                        return Failed(now_ms(), False, "the service ended the stream")
                    await self._connection.changed()
        except (OSError, BadResponse) as error:
            return Failed(now_ms(), False, reason_of(error))
        return Chunk(now_ms(), reader.take())

    def close(self) -> None:
        """Drop the connection. A ``receive`` that waits in another task ends."""
        self._pool.drop(self._connection)

    cut_off = close


async def connected(made: Callable[[], Made], endpoint: Endpoint, tls: ssl.SSLContext | None, deadline: float) -> Made:
    """The protocol that ``made`` made, connected to the first address of ``endpoint`` that accepts. Each address has
    its share of the time to the loop's ``deadline``. Raises: OSError, UnicodeError."""
    loop = asyncio.get_running_loop()
    if endpoint.unix_path is not None:
        async with asyncio.timeout_at(deadline):
            return (await loop.create_unix_connection(made, endpoint.unix_path))[1]
    context = tls if endpoint.secure else None
    name = endpoint.host if endpoint.secure else None
    async with asyncio.timeout_at(deadline):
        addresses = await _addresses_of(endpoint)
    failure: OSError | None = None
    for tried, (host, port) in enumerate(addresses):
        now = loop.time()
        try:
            async with asyncio.timeout_at(now + (deadline - now) / (len(addresses) - tried)):
                return (await loop.create_connection(made, host, port, ssl=context, server_hostname=name))[1]
        except ssl.SSLError:
            raise
        except OSError as error:  # a time-out is one
            failure = error
    try:
        raise failure if failure is not None else OSError("the name has no address")
    finally:
        failure = None  # or it and its traceback would keep each other


async def _addresses_of(endpoint: Endpoint) -> list[tuple[str, int]]:
    """The addresses of its name, without a look-up where the name is an address."""
    try:
        ipaddress.ip_address(endpoint.host)
    except ValueError:
        loop = asyncio.get_running_loop()
        resolved = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
        return [(str(address[0]), int(address[1])) for *_, address in resolved]
    return [(endpoint.host, endpoint.port)]
