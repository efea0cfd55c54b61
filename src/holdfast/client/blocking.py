"""The blocking client: procedures driven with sockets and sleep.

Owns: connections, the clock, randomness. Does not own: any decision about repeating, asking or proving (``core``,
``transaction``, ``stream``). Threads may share a client; each request uses one connection, taken from a bounded pool.

Failure model: a request whose last byte was not handed to the kernel was not accepted; any later failure is unknown.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from holdfast.client import core
from holdfast.client.effects import (
    Answer,
    AwaitVersion,
    Chunk,
    Decide,
    Deliver,
    Effect,
    Failed,
    Open,
    Opened,
    Procedure,
    Receive,
    Reply,
    Request,
    Send,
    Wait,
    Woken,
)
from holdfast.client.endpoint import Endpoint, Route, parse_endpoint
from holdfast.client.events import Event
from holdfast.client.http1 import AnswerReader, BadAnswer, encode_request
from holdfast.client.messages import CommitReceipt, Found, FoundRange, NotCommitted, StatusAnswer, VersionAnswer
from holdfast.client.options import ClientOptions
from holdfast.client.stream import Continuity, Delivery, Filter, follow
from holdfast.client.transaction import ServiceSource, Source, TransactionBuilder, ViewSource, transact
from holdfast.commit.transaction import Operation, Precondition, Transaction
from holdfast.errors import Closed, HoldfastError

if TYPE_CHECKING:
    from holdfast.view import View

__all__ = ["BlockingTransaction", "Client", "Subscription", "Transacted"]

Result = TypeVar("Result")
RECEIVE_BYTES = 1 << 18


def now_ms() -> float:
    """Milliseconds of a clock that never steps back."""
    return time.monotonic() * 1000


def draw_wait_ms(wait: Wait) -> float:
    """A time between the two bounds; spreading a crowd needs no secrecy."""
    return random.uniform(wait.at_least_ms, wait.at_most_ms)


def routes_of(url: str | Sequence[str]) -> Route:
    """The places a client was configured with."""
    texts = [url] if isinstance(url, str) else list(url)
    return Route(tuple(parse_endpoint(text) for text in texts))


@dataclass(frozen=True, slots=True)
class Transacted(Generic[Result]):
    """What the function returned, and where its transaction committed (None when it wrote nothing)."""

    value: Result
    version: int | None


class _Connection:
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
        with contextlib.suppress(OSError):
            self.socket.close()


class _Pool:
    """At most ``connections_max`` connections; the one used last is used first."""

    def __init__(self, options: ClientOptions, token: str | None, tls: ssl.SSLContext | None) -> None:
        self._options = options
        self._token = token
        self._tls = tls
        self._slots = threading.BoundedSemaphore(int(options.connections_max))
        self._lock = threading.Lock()
        self._idle: dict[Endpoint, list[_Connection]] = {}
        self.closed = False

    def exchange(self, effect: Send) -> Reply | Failed:
        """Send one request and collect its answer."""
        end_ms = now_ms() + effect.timeout_ms
        if not self._slots.acquire(timeout=effect.timeout_ms / 1000):
            return Failed(now_ms(), False, "every connection of this client is busy")
        connection: _Connection | None = None
        reader = AnswerReader(self._options.response_bytes_max)
        sent = False
        try:
            connection = self._take(effect.endpoint) or _Connection(effect.endpoint, self._tls, _left_s(end_ms))
            connection.send(encode_request(effect.request, effect.endpoint.authority, self._token), _left_s(end_ms))
            sent = True
            while not reader.complete:
                connection.receive(reader, _left_s(end_ms))
            if reader.reusable:
                self._give_back(effect.endpoint, connection)
                connection = None
            return Reply(now_ms(), reader.status, reader.headers, reader.take())
        except (OSError, BadAnswer) as error:
            partial = reader.take() if reader.status == 200 else b""
            return Failed(now_ms(), sent, f"{type(error).__name__}: {error}", partial, reader.headers)
        finally:
            if connection is not None:
                connection.close()
            self._slots.release()

    def open(self, endpoint: Endpoint, request: Request, timeout_ms: float) -> tuple[_Connection, AnswerReader]:
        """A connection of its own for a stream, its head read. Raises: OSError, BadAnswer."""
        end_ms = now_ms() + timeout_ms
        connection = _Connection(endpoint, self._tls, _left_s(end_ms))
        try:
            connection.send(encode_request(request, endpoint.authority, self._token), _left_s(end_ms))
            reader = AnswerReader(self._options.event_bytes_max)
            while not reader.status or (reader.status != 200 and not reader.complete):
                connection.receive(reader, _left_s(end_ms))
        except BaseException:
            connection.close()
            raise
        return connection, reader

    def _take(self, endpoint: Endpoint) -> _Connection | None:
        while True:
            with self._lock:
                if self.closed:
                    raise Closed("this client is closed")
                idle = self._idle.get(endpoint)
                connection = idle.pop() if idle else None
            if connection is None:
                return None
            if now_ms() - connection.idle_since_ms < self._options.idle_connection_ms and connection.is_alive():
                return connection
            connection.close()

    def _give_back(self, endpoint: Endpoint, connection: _Connection) -> None:
        connection.idle_since_ms = now_ms()
        with self._lock:
            if not self.closed:
                self._idle.setdefault(endpoint, []).append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            self.closed = True
            idle = [connection for connections in self._idle.values() for connection in connections]
            self._idle.clear()
        for connection in idle:
            connection.close()


def _left_s(end_ms: float) -> float:
    left_ms = end_ms - now_ms()
    if left_ms <= 0:
        raise TimeoutError("the request took too long")
    return left_ms / 1000


class BlockingTransaction:
    """What the function given to ``Client.transact`` reads and writes through; see ``client.transaction``."""

    def __init__(self, client: Client, builder: TransactionBuilder) -> None:
        self._client = client
        self._builder = builder
        self.write = builder.write
        self.delete = builder.delete
        self.delete_range = builder.delete_range
        self.require_unchanged = builder.require_unchanged

    @property
    def read_version(self) -> int:
        """What this attempt reads is never older than this."""
        return self._builder.read_version

    def get(self, key: bytes) -> bytes | None:
        """The key's value, or None."""
        return self._client.run(self._builder.reading(key, now_ms()))

    def range(self, begin: bytes, end: bytes | None = None, limit: int = 1000) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` keys of ``[begin, end)`` with their values, in byte order."""
        return self._client.run(self._builder.reading_range(begin, end, limit, now_ms()))


class Client:
    """A blocking client of the commit log.

    ``url``: ``http://host:port``, ``https://host:port``, ``unix:/path``, or several of them for one service and its
    standbys. ``token``: bearer token. ``tls``: how servers are verified (default: the system's authorities).
    """

    def __init__(
        self,
        url: str | Sequence[str] = "http://127.0.0.1:8080",
        *,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        options: ClientOptions | None = None,
    ) -> None:
        self._session = core.Session(routes_of(url), options if options is not None else ClientOptions())
        self._pool = _Pool(self._session.options, token, tls)
        self._closing = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection. Waits that are under way end with ``Closed``."""
        self._closing.set()
        self._pool.close()

    def commit(
        self,
        operations: Sequence[Operation],
        preconditions: Sequence[Precondition] = (),
        *,
        read_version: int | None = None,
        request_id: str | None = None,
        leader_id: str | None = None,
    ) -> CommitReceipt:
        """Commit; returns when the transaction is durable.

        Raises: Conflict (``fields["version"]`` is worth retrying from), OutcomeUnknown (its fields say how to ask),
        Unavailable and Backpressure (not accepted in time), Fenced (another leader than ``leader_id``), InvalidRequest,
        LimitExceeded, PermissionDenied.
        Cost: one request; with an unknown outcome, at least one more.
        """
        verdict = self.run(
            core.commit(
                self._session,
                operations,
                preconditions,
                read_version=read_version,
                request_id=request_id,
                leader_id=leader_id,
                entropy=secrets.token_hex(16),
                now_ms=now_ms(),
            )
        )
        if isinstance(verdict, NotCommitted):
            raise verdict.error()
        return verdict

    def commits_many(self, txns: Iterable[Transaction]) -> Iterator[CommitReceipt | NotCommitted | HoldfastError]:
        """Commit a stream of transactions in few requests; yields one result per item, in order.

        Each item is decided alone, and item k sees those before it. An item without a read version gets the service's
        at the start. ``NotCommitted("banned")`` is an item closed after a broken connection: it may be submitted
        anew.
        """
        start = self.run(core.version(self._session, now_ms(), local=True)).version
        grouping = core.Grouping(self._session, start, secrets.token_hex(16))
        for txn in txns:
            yield from self._commit_group(grouping.add(txn))
        yield from self._commit_group(grouping.rest())

    def _commit_group(self, group: list[Transaction]) -> list[core.ItemResult]:
        return self.run(core.commit_group(self._session, group, now_ms())) if group else []

    def transact(
        self, function: Callable[[BlockingTransaction], Result], *, view: View | None = None
    ) -> Transacted[Result]:
        """Run ``function`` with a transaction until what it decided on holds at the commit.

        Reads go to ``view``, or to the service's. The function may run several times.
        Raises: Conflict after the last attempt; what ``commit`` raises; what the function raises.
        """
        values: list[Result] = []

        def decide(builder: TransactionBuilder) -> None:
            values[:] = [function(BlockingTransaction(self, builder))]

        source: Source = ViewSource(self._session, view) if view is not None else ServiceSource(self._session)
        procedure = transact(self._session, source, secrets.token_hex(16), now_ms())
        receipt = self.run(procedure, decide, view)
        return Transacted(values[0], None if receipt is None else receipt.version)

    def version(self, *, local: bool = False) -> VersionAnswer:
        """A version at least as new as every commit known when this was called; ``local``: without asking for proof."""
        return self.run(core.version(self._session, now_ms(), local=local))

    def status(self, request_id: str, min_version: int) -> StatusAnswer:
        """The final outcome of an attempt. Asking closes it: if it has not committed, it never will."""
        return self.run(core.ask_status(self._session, request_id, min_version, now_ms()))

    def get(self, key: bytes, at: int | None = None) -> Found | None:
        """A key's value in the service's view, never older than ``at``."""
        return self.run(core.get(self._session, key, at, now_ms()))

    def range(
        self, begin: bytes = b"", end: bytes | None = None, *, limit: int = 1000, at: int | None = None
    ) -> FoundRange:
        """Keys of ``[begin, end)`` in byte order in the service's view, never older than ``at``."""
        return self.run(core.read_range(self._session, begin, end, limit, at, now_ms()))

    def subscribe(
        self,
        after: int = 0,
        *,
        durable: bool = True,
        begin: bytes | None = None,
        end: bytes | None = None,
        prefix: bytes | None = None,
        checkpoints: bool = False,
    ) -> Subscription:
        """Every transaction after version ``after``, for ever; see ``Subscription``."""
        return Subscription(self, after, Filter(begin, end, prefix), durable=durable, checkpoints=checkpoints)

    def run(
        self,
        procedure: Procedure[Result],
        decide: Callable[[TransactionBuilder], None] | None = None,
        view: View | None = None,
    ) -> Result:
        """Drive a procedure to its end."""
        answer: Answer | None = None
        try:
            while True:
                try:
                    effect = next(procedure) if answer is None else procedure.send(answer)
                except StopIteration as stop:
                    result: Result = stop.value
                    return result
                answer = self._carry_out(effect, decide, view)
        finally:
            procedure.close()

    def _carry_out(
        self, effect: Effect, decide: Callable[[TransactionBuilder], None] | None, view: View | None
    ) -> Answer:
        match effect:
            case Send():
                return self._pool.exchange(effect)
            case Wait():
                return self.sleep(effect)
            case Decide(builder=builder):
                assert decide is not None, "only a transaction decides"
                try:
                    decide(builder)
                except Exception:
                    if builder.moved_to is None:  # otherwise it was led astray by what it read, and runs again
                        raise
                return Woken(now_ms())
            case AwaitVersion(version=version, timeout_ms=timeout_ms):
                assert view is not None, "only a transaction on a view waits for it"
                reached = view.wait_for(version, timeout_ms / 1000)
                return Woken(now_ms()) if reached else Failed(now_ms(), False, "the view is behind")
            case Open() | Receive() | Deliver():
                raise AssertionError("streams are driven by Subscription")

    def sleep(self, wait: Wait) -> Woken:
        """Wait, unless the client is closed meanwhile. Raises: Closed."""
        if self._closing.wait(draw_wait_ms(wait) / 1000):
            raise Closed("this client is closed")
        return Woken(now_ms())

    @property
    def session(self) -> core.Session:
        """What this client's operations share."""
        return self._session

    @property
    def pool(self) -> _Pool:
        """Its connections."""
        return self._pool


class Subscription:
    """An iterator over the change stream that reconnects by itself and proves that it missed nothing.

    ``position``: where a later ``subscribe(after=...)`` goes on. ``committed_version``: everything up to here is
    durable. ``proves_completeness``: False on filtered streams, which leave versions out by design. Raises while
    iterating: CorruptData (a gap, naming the versions), NotFound (log_truncated), InvalidRequest (rolled_back),
    Unavailable (nothing heard for ``stream_give_up_after_ms``), PermissionDenied.
    """

    def __init__(self, client: Client, after: int, keys: Filter, *, durable: bool, checkpoints: bool) -> None:
        self._client = client
        self._checkpoints = checkpoints
        self._continuity = Continuity(after, durable=durable, filtered=not keys.everything)
        self._procedure = follow(client.session, self._continuity, keys, durable=durable, now_ms=now_ms())
        self._stream: tuple[_Connection, AnswerReader] | None = None
        self._effect: Effect | None = None
        self._delivery = Delivery(self._continuity)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def position(self) -> int:
        """Everything at or below was handed out."""
        return self._delivery.position

    @property
    def committed_version(self) -> int:
        """The newest version known to be durable."""
        return self._continuity.committed_version

    @property
    def proves_completeness(self) -> bool:
        """Whether a missing transaction would be noticed."""
        return self._continuity.proves_completeness

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        while True:
            event = self._delivery.take_one(checkpoints=self._checkpoints)
            if event is not None:
                return event
            if not self._advance():
                raise StopIteration

    def batches(self) -> Iterator[tuple[Event, ...]]:
        """The events as they arrive together, checkpoints included: what ``View.apply`` takes."""
        while True:
            events = self._delivery.take_all()
            if events:
                yield events
            elif not self._advance():
                return

    def _advance(self) -> bool:
        """Carry out one effect. An effect that was interrupted is carried out again."""
        try:
            if self._effect is None:
                self._effect = next(self._procedure)
            else:
                answer = self._carry_out(self._effect)
                self._effect = self._procedure.send(answer)
            if isinstance(self._effect, Deliver):  # the procedure goes on when the caller has had these
                self._delivery.offer(self._effect.events)
        except StopIteration:
            return False
        except BaseException:
            self._hang_up()
            raise
        return True

    def close(self) -> None:
        """Close the connection; iterating ends."""
        self._procedure.close()
        self._hang_up()

    def _carry_out(self, effect: Effect) -> Answer:
        match effect:
            case Open(endpoint=endpoint, request=request, timeout_ms=timeout_ms):
                self._hang_up()
                try:
                    self._stream = connection, reader = self._client.pool.open(endpoint, request, timeout_ms)
                except (OSError, BadAnswer) as error:
                    return Failed(now_ms(), False, f"{type(error).__name__}: {error}")
                if reader.status == 200:
                    return Opened(now_ms())
                connection.close()
                return Reply(now_ms(), reader.status, reader.headers, reader.take())
            case Receive(timeout_ms=timeout_ms):
                return self._receive(timeout_ms)
            case Wait():
                return self._client.sleep(effect)
            case Deliver():
                return Woken(now_ms())
            case Send() | Decide() | AwaitVersion():
                raise AssertionError("a stream only opens, receives, delivers and waits")

    def _receive(self, timeout_ms: float) -> Chunk | Failed:
        assert self._stream is not None, "a stream is opened before it is read"
        connection, reader = self._stream
        end_ms = now_ms() + timeout_ms
        try:
            while not reader.buffered:
                if reader.complete:
                    return Failed(now_ms(), False, "the service ended the stream")
                connection.receive(reader, _left_s(end_ms))
        except (OSError, BadAnswer) as error:
            return Failed(now_ms(), False, f"{type(error).__name__}: {error}")
        return Chunk(now_ms(), reader.take())

    def _hang_up(self) -> None:
        if self._stream is not None:
            self._stream[0].close()
            self._stream = None
