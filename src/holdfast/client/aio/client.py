"""The asyncio client: the same procedures as the blocking one, driven with transports and timers.

Owns: carrying effects out on one event loop. Does not own: connections (``transports``), any decision about
repeating, asking or proving (``core``, ``transaction``, ``stream``). A client belongs to the loop it is first used
on; any number of tasks may share it.

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

from holdfast.client.aio.transports import Connection, Pool
from holdfast.client.protocol import core
from holdfast.client.protocol.effects import (
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
from holdfast.client.protocol.events import Event
from holdfast.client.protocol.http1 import AnswerReader, BadAnswer
from holdfast.client.protocol.messages import Place, position_of
from holdfast.client.protocol.options import ClientOptions
from holdfast.client.protocol.shell import Transacted, draw_wait_ms, now_ms, routes_of, token_of
from holdfast.client.protocol.stream import Continuity, Delivery, Filter, follow
from holdfast.client.protocol.transaction import ServiceSource, Source, TransactionBuilder, ViewSource, transact
from holdfast.client.protocol.unusable import problem_with, reason_of
from holdfast.commit.format.transaction import Operation, Precondition, Transaction
from holdfast.errors import Closed, HoldfastError
from holdfast.values import LogPosition
from holdfast.wire.log import CommitReceipt, Found, FoundRange, NotCommitted, StatusAnswer, VersionAnswer

if TYPE_CHECKING:
    from holdfast.view import View

__all__ = ["AsyncTransaction", "Client", "Subscription"]

Result = TypeVar("Result")


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
        self._pool = Pool(self._session.options, token_of(token), tls)
        self._closing = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection. Operations under way end with ``Closed``; what they sent may have been accepted."""
        self._closing.set()
        self._pool.close()
        await self._pool.departed()

    async def commit(
        self,
        operations: Sequence[Operation],
        preconditions: Sequence[Precondition] = (),
        *,
        read_version: int | None = None,
        request_id: str | None = None,
        leader_id: str | None = None,
        log_id: str | None = None,
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
                log_id=log_id,
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
        start = (await self.run(core.version(self._session, now_ms(), local=True))).position
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

    async def status(self, request_id: str, min_version: Place) -> StatusAnswer:
        """The final outcome of an attempt. Asking closes it: if it has not committed, it never will."""
        return await self.run(core.ask_status(self._session, request_id, min_version, now_ms()))

    async def get(self, key: bytes, at: Place | None = None) -> Found | None:
        """A key's value in the service's view, never older than ``at``."""
        return await self.run(core.get(self._session, key, at, now_ms()))

    async def range(
        self,
        begin: bytes | None = None,
        end: bytes | None = None,
        *,
        prefix: bytes | None = None,
        limit: int = 1000,
        at: Place | None = None,
    ) -> FoundRange:
        """Keys of ``[begin, end)``, or all that start with ``prefix``, in byte order, never older than ``at``.

        *Raises*: as ``get``; ``InvalidRequest`` (malformed) for a prefix together with a bound.
        """
        return await self.run(core.read_range(self._session, *core.bounds_of(begin, end, prefix), limit, at, now_ms()))

    def subscribe(
        self,
        after: Place = 0,
        *,
        durable: bool = True,
        begin: bytes | None = None,
        end: bytes | None = None,
        prefix: bytes | None = None,
        checkpoints: bool = False,
    ) -> Subscription:
        """Every transaction after ``after``, for ever; see ``Subscription``. Raises: InvalidRequest."""
        return Subscription(
            self, position_of(after), Filter(begin, end, prefix), durable=durable, checkpoints=checkpoints
        )

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
    def pool(self) -> Pool:
        """Its connections."""
        return self._pool


class Subscription:
    """An asynchronous iterator over the change stream; promises and errors as the blocking ``Subscription``."""

    def __init__(self, client: Client, after: LogPosition, keys: Filter, *, durable: bool, checkpoints: bool) -> None:
        self._client = client
        self._checkpoints = checkpoints
        self._continuity = Continuity(after.version, durable=durable, filtered=not keys.everything, log_id=after.log_id)
        self._procedure = follow(client.session, self._continuity, keys, durable=durable, now_ms=now_ms())
        self._stream: tuple[Connection, AnswerReader] | None = None
        self._effect: Effect | None = None
        self._delivery = Delivery(self._continuity)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def position(self) -> LogPosition:
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
        self._effect = None
        self._hang_up()
        await self._client.pool.departed()

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
        except StopIteration:  # another task closed it, perhaps while the stream was being opened
            self._hang_up()
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
                except (OSError, UnicodeError, BadAnswer) as error:
                    return Failed(now_ms(), False, reason_of(error), problem=problem_with(effect.endpoint, error))
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
        if self._stream is None:  # an interrupt ended it; the procedure opens the next one behind what was delivered
            return Failed(now_ms(), False, "the stream was interrupted")
        connection, reader = self._stream
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while not reader.buffered:
                    if reader.complete:
                        return Failed(now_ms(), False, "the service ended the stream")
                    await connection.changed()
        except (OSError, BadAnswer) as error:
            return Failed(now_ms(), False, reason_of(error))
        return Chunk(now_ms(), reader.take())

    def _hang_up(self) -> None:
        if self._stream is not None:
            self._client.pool.drop(self._stream[0])
            self._stream = None
