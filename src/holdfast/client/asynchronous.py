"""The asyncio client: the same procedures as the blocking one, driven with transports and timers.

Owns: connections on one event loop, the clock, randomness. Does not own: any decision about repeating, asking or
proving (``core``, ``transaction``, ``stream``). A client belongs to the loop it is first used on; any number of tasks
may share it.

Failure model: once a request was given to the transport it may have been accepted; only a connection that could not be
made was certainly not. A cancelled operation drops its connection; what it had sent may have been accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from holdfast.client import core
from holdfast.client.blocking import Transacted, draw_wait_ms, now_ms, routes_of
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
    Send,
    Wait,
    Woken,
)
from holdfast.client.endpoint import Endpoint
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

__all__ = ["AsyncTransaction", "Client", "Subscription"]

Result = TypeVar("Result")
PAUSE_READING_BYTES = 1 << 20


class _Connection(asyncio.Protocol):
    """One transport and the answer it is in the middle of."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reader: AnswerReader | None = None
        self._changed: asyncio.Future[None] | None = None
        self._failure: BaseException | None = None
        self._paused = False
        self.lost = False
        self.idle_since_ms = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "a stream protocol gets a stream transport"
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader is None:  # an idle connection that speaks out of turn is of no further use
            self.close()
            return
        try:
            reader.feed(data)
        except BadAnswer as error:
            self._failure = error
            self.close()
        if reader.buffered > PAUSE_READING_BYTES and reader.status == 200 and not self._paused and self._transport:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if self._reader is not None and self._failure is None:
            try:
                if exc is not None:
                    raise BadAnswer(f"the connection broke: {exc}") from exc
                self._reader.end_of_input()
            except BadAnswer as error:
                self._failure = error
        self._wake()

    def start(self, data: bytes, reader: AnswerReader) -> None:
        """Send a request; its answer goes to ``reader``."""
        assert self._transport is not None, "a connection is made before it is used"
        self._reader = reader
        self._transport.write(data)

    async def changed(self) -> None:
        """Until more has arrived. Raises: BadAnswer when nothing more will."""
        if self._failure is not None:
            raise self._failure
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        self._changed = asyncio.get_running_loop().create_future()
        try:
            await self._changed
        finally:
            self._changed = None

    def finish(self) -> None:
        """The answer is complete; the connection is idle."""
        self._reader = None
        self.idle_since_ms = now_ms()
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def close(self) -> None:
        self.lost = True
        if self._transport is not None:
            self._transport.abort()

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)


class _Pool:
    """At most ``connections_max`` connections; the one used last is used first."""

    def __init__(self, options: ClientOptions, token: str | None, tls: ssl.SSLContext | None) -> None:
        self._options = options
        self._token = token
        self._tls = tls
        self._slots = asyncio.Semaphore(int(options.connections_max))
        self._idle: dict[Endpoint, list[_Connection]] = {}
        self._everything: set[_Connection] = set()
        self.closed = False

    async def exchange(self, effect: Send) -> Reply | Failed:
        """Send one request and collect its answer."""
        connection: _Connection | None = None
        reader = AnswerReader(self._options.response_bytes_max)
        sent = False
        try:
            async with asyncio.timeout(effect.timeout_ms / 1000), self._slots:
                connection = self._take(effect.endpoint) or await self._connect(effect.endpoint)
                data = encode_request(effect.request, effect.endpoint.authority, self._token)
                sent = True
                connection.start(data, reader)
                while not reader.complete:
                    await connection.changed()
            connection.finish()
            if reader.reusable and not connection.lost and not self.closed:
                self._idle.setdefault(effect.endpoint, []).append(connection)
                connection = None
            return Reply(now_ms(), reader.status, reader.headers, reader.take())
        except (OSError, BadAnswer) as error:  # a timeout is an OSError too
            partial = reader.take() if reader.status == 200 else b""
            return Failed(now_ms(), sent, f"{type(error).__name__}: {error}", partial, reader.headers)
        finally:
            if connection is not None:
                self.drop(connection)

    async def open(self, effect: Open) -> tuple[_Connection, AnswerReader]:
        """A connection of its own for a stream, its head read. Raises: OSError, BadAnswer."""
        async with asyncio.timeout(effect.timeout_ms / 1000):
            connection = await self._connect(effect.endpoint)
            try:
                reader = AnswerReader(self._options.event_bytes_max)
                connection.start(encode_request(effect.request, effect.endpoint.authority, self._token), reader)
                while not reader.status or (reader.status != 200 and not reader.complete):
                    await connection.changed()
            except BaseException:
                self.drop(connection)
                raise
            return connection, reader

    async def _connect(self, endpoint: Endpoint) -> _Connection:
        if self.closed:
            raise Closed("this client is closed")
        loop = asyncio.get_running_loop()
        context = (self._tls if self._tls is not None else ssl.create_default_context()) if endpoint.secure else None
        if endpoint.unix_path is not None:
            _, connection = await loop.create_unix_connection(_Connection, endpoint.unix_path)
        else:
            _, connection = await loop.create_connection(_Connection, endpoint.host, endpoint.port, ssl=context)
        self._everything.add(connection)
        return connection

    def _take(self, endpoint: Endpoint) -> _Connection | None:
        idle = self._idle.get(endpoint)
        while idle:
            connection = idle.pop()
            if not connection.lost and now_ms() - connection.idle_since_ms < self._options.idle_connection_ms:
                return connection
            self.drop(connection)
        return None

    def drop(self, connection: _Connection) -> None:
        """Close a connection for good."""
        connection.close()
        self._everything.discard(connection)

    def close(self) -> None:
        self.closed = True
        self._idle.clear()
        for connection in list(self._everything):
            self.drop(connection)


class AsyncTransaction:
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

    async def get(self, key: bytes) -> bytes | None:
        """The key's value, or None."""
        return await self._client.run(self._builder.reading(key, now_ms()))

    async def range(self, begin: bytes, end: bytes | None = None, limit: int = 1000) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` keys of ``[begin, end)`` with their values, in byte order."""
        return await self._client.run(self._builder.reading_range(begin, end, limit, now_ms()))


class Client:
    """An asyncio client of the commit log; arguments as for ``holdfast.Client``."""

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
        self._closing = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection. Waits that are under way end with ``Closed``."""
        self._closing.set()
        self._pool.close()
        await asyncio.sleep(0)  # lets the transports call connection_lost

    async def commit(
        self,
        operations: Sequence[Operation],
        preconditions: Sequence[Precondition] = (),
        *,
        read_version: int | None = None,
        request_id: str | None = None,
        leader_id: str | None = None,
    ) -> CommitReceipt:
        """Commit; returns when the transaction is durable. Raises and costs: as ``holdfast.Client.commit``."""
        verdict = await self.run(
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

    async def commits_many(
        self, txns: Iterable[Transaction] | AsyncIterable[Transaction]
    ) -> AsyncIterator[CommitReceipt | NotCommitted | HoldfastError]:
        """Commit a stream of transactions in few requests; as ``holdfast.Client.commits_many``."""
        start = (await self.run(core.version(self._session, now_ms(), local=True))).version
        grouping = core.Grouping(self._session, start, secrets.token_hex(16))
        if isinstance(txns, AsyncIterable):
            async for txn in txns:
                for result in await self._commit_group(grouping.add(txn)):
                    yield result
        else:
            for txn in txns:
                for result in await self._commit_group(grouping.add(txn)):
                    yield result
        for result in await self._commit_group(grouping.rest()):
            yield result

    async def _commit_group(self, group: list[Transaction]) -> list[core.ItemResult]:
        return await self.run(core.commit_group(self._session, group, now_ms())) if group else []

    async def transact(
        self, function: Callable[[AsyncTransaction], Awaitable[Result]], *, view: View | None = None
    ) -> Transacted[Result]:
        """Run ``function`` with a transaction until what it decided on holds; as ``holdfast.Client.transact``."""
        values: list[Result] = []

        async def decide(builder: TransactionBuilder) -> None:
            values[:] = [await function(AsyncTransaction(self, builder))]

        source: Source = ViewSource(self._session, view) if view is not None else ServiceSource(self._session)
        procedure = transact(self._session, source, secrets.token_hex(16), now_ms())
        receipt = await self.run(procedure, decide, view)
        return Transacted(values[0], None if receipt is None else receipt.version)

    async def version(self, *, local: bool = False) -> VersionAnswer:
        """A version at least as new as every commit known when this was called; ``local``: without asking for proof."""
        return await self.run(core.version(self._session, now_ms(), local=local))

    async def status(self, request_id: str, min_version: int) -> StatusAnswer:
        """The final outcome of an attempt. Asking closes it: if it has not committed, it never will."""
        return await self.run(core.ask_status(self._session, request_id, min_version, now_ms()))

    async def get(self, key: bytes, at: int | None = None) -> Found | None:
        """A key's value in the service's view, never older than ``at``."""
        return await self.run(core.get(self._session, key, at, now_ms()))

    async def range(
        self, begin: bytes = b"", end: bytes | None = None, *, limit: int = 1000, at: int | None = None
    ) -> FoundRange:
        """Keys of ``[begin, end)`` in byte order in the service's view, never older than ``at``."""
        return await self.run(core.read_range(self._session, begin, end, limit, at, now_ms()))

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

    async def run(
        self,
        procedure: Procedure[Result],
        decide: Callable[[TransactionBuilder], Awaitable[None]] | None = None,
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
                answer = await self._carry_out(effect, decide, view)
        finally:
            procedure.close()

    async def _carry_out(
        self,
        effect: Effect,
        decide: Callable[[TransactionBuilder], Awaitable[None]] | None,
        view: View | None,
    ) -> Answer:
        match effect:
            case Send():
                return await self._pool.exchange(effect)
            case Wait():
                return await self.sleep(effect)
            case Decide(builder=builder):
                assert decide is not None, "only a transaction decides"
                try:
                    await decide(builder)
                except Exception:
                    if builder.moved_to is None:  # otherwise it was led astray by what it read, and runs again
                        raise
                return Woken(now_ms())
            case AwaitVersion(version=version, timeout_ms=timeout_ms):
                assert view is not None, "only a transaction on a view waits for it"
                try:
                    async with asyncio.timeout(timeout_ms / 1000):
                        await view.reached(version)
                except TimeoutError:
                    return Failed(now_ms(), False, "the view is behind")
                return Woken(now_ms())
            case Open() | Receive() | Deliver():
                raise AssertionError("streams are driven by Subscription")

    async def sleep(self, wait: Wait) -> Woken:
        """Wait, unless the client is closed meanwhile. Raises: Closed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(draw_wait_ms(wait) / 1000):
                await self._closing.wait()
        if self._closing.is_set():
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
    """An asynchronous iterator over the change stream; promises and errors as the blocking ``Subscription``."""

    def __init__(self, client: Client, after: int, keys: Filter, *, durable: bool, checkpoints: bool) -> None:
        self._client = client
        self._checkpoints = checkpoints
        self._continuity = Continuity(after, durable=durable, filtered=not keys.everything)
        self._procedure = follow(client.session, self._continuity, keys, durable=durable, now_ms=now_ms())
        self._stream: tuple[_Connection, AnswerReader] | None = None
        self._effect: Effect | None = None
        self._delivery = Delivery(self._continuity)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

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

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        while True:
            event = self._delivery.take_one(checkpoints=self._checkpoints)
            if event is not None:
                return event
            if not await self._advance():
                raise StopAsyncIteration

    async def batches(self) -> AsyncIterator[tuple[Event, ...]]:
        """The events as they arrive together, checkpoints included: what ``View.apply`` takes."""
        while True:
            events = self._delivery.take_all()
            if events:
                yield events
            elif not await self._advance():
                return

    async def aclose(self) -> None:
        """Close the connection; iterating ends."""
        self._procedure.close()
        self._hang_up()
        await asyncio.sleep(0)  # lets the transport call connection_lost

    async def _advance(self) -> bool:
        """Carry out one effect. An effect that was interrupted is carried out again."""
        try:
            if self._effect is None:
                self._effect = next(self._procedure)
            else:
                answer = await self._carry_out(self._effect)
                self._effect = self._procedure.send(answer)
            if isinstance(self._effect, Deliver):  # the procedure goes on when the caller has had these
                self._delivery.offer(self._effect.events)
        except StopIteration:
            return False
        except asyncio.CancelledError:  # a caller's timeout around the next event: the stream stays open
            raise
        except BaseException:
            self._hang_up()
            raise
        return True

    async def _carry_out(self, effect: Effect) -> Answer:
        match effect:
            case Open():
                self._hang_up()
                try:
                    self._stream = connection, reader = await self._client.pool.open(effect)
                except (OSError, BadAnswer) as error:
                    return Failed(now_ms(), False, f"{type(error).__name__}: {error}")
                if reader.status == 200:
                    return Opened(now_ms())
                self._client.pool.drop(connection)
                return Reply(now_ms(), reader.status, reader.headers, reader.take())
            case Receive(timeout_ms=timeout_ms):
                return await self._receive(timeout_ms)
            case Wait():
                return await self._client.sleep(effect)
            case Deliver():
                return Woken(now_ms())
            case Send() | Decide() | AwaitVersion():
                raise AssertionError("a stream only opens, receives, delivers and waits")

    async def _receive(self, timeout_ms: float) -> Chunk | Failed:
        assert self._stream is not None, "a stream is opened before it is read"
        connection, reader = self._stream
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while not reader.buffered:
                    if reader.complete:
                        return Failed(now_ms(), False, "the service ended the stream")
                    await connection.changed()
        except (OSError, BadAnswer) as error:
            return Failed(now_ms(), False, f"{type(error).__name__}: {error}")
        return Chunk(now_ms(), reader.take())

    def _hang_up(self) -> None:
        if self._stream is not None:
            self._client.pool.drop(self._stream[0])
            self._stream = None
