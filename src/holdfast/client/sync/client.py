"""The blocking client: procedures driven with sockets and sleep.

Owns: carrying effects out. Does not own: connections (``sockets``), any decision about repeating, asking or proving
(``core``, ``transaction``, ``stream``). Threads may share a client; each request uses one connection, taken from a
bounded pool.

Failure model: as ``sockets`` tells it, whose word on what was handed over counts.
"""

from __future__ import annotations

import secrets
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

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
from holdfast.client.sync.sockets import Connection, Pool, left_s
from holdfast.commit.format.transaction import Operation, Precondition, Transaction
from holdfast.errors import Closed, HoldfastError
from holdfast.values import LogPosition
from holdfast.wire.log import CommitReceipt, Found, FoundRange, NotCommitted, StatusAnswer, VersionAnswer

if TYPE_CHECKING:
    from holdfast.view import View

__all__ = ["BlockingTransaction", "Client", "Subscription", "Transacted"]

Result = TypeVar("Result")


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
        self._pool = Pool(self._session.options, token_of(token), tls)
        self._closing = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every idle connection, and send nothing more.

        Waits and streams under way in other threads end with ``Closed``; a request already sent is still answered.
        """
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
        log_id: str | None = None,
    ) -> CommitReceipt:
        """Commit; returns when the transaction is durable.

        Raises: Conflict (``fields["version"]`` is worth retrying from), OutcomeUnknown (its fields say how to ask),
        Unavailable and Backpressure (not accepted in time), Fenced (another leader than ``leader_id``), InvalidRequest,
        LimitExceeded, PermissionDenied. ``log_id`` is the log that the versions belong to, by default the one that this
        client last heard of; another log refuses them (InvalidRequest, log_mismatch).
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
                log_id=log_id,
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
        anew. Raises: as ``commit``; InvalidRequest also for an item that is wrong as it stands, and then those before
        it that have no result yet are not sent.
        """
        start = self.run(core.version(self._session, now_ms(), local=True)).position
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

    def status(self, request_id: str, min_version: Place) -> StatusAnswer:
        """The final outcome of an attempt. Asking closes it: if it has not committed, it never will."""
        return self.run(core.ask_status(self._session, request_id, min_version, now_ms()))

    def get(self, key: bytes, at: Place | None = None) -> Found | None:
        """A key's value in the service's view, never older than ``at``."""
        return self.run(core.get(self._session, key, at, now_ms()))

    def range(
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
        return self.run(core.read_range(self._session, *core.bounds_of(begin, end, prefix), limit, at, now_ms()))

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
    def pool(self) -> Pool:
        """Its connections."""
        return self._pool


class Subscription:
    """An iterator over the change stream that reconnects by itself and proves that it missed nothing.

    ``position``: where a later ``subscribe(after=...)`` goes on, with its log. ``committed_version``: everything up to
    here is durable. ``proves_completeness``: False on filtered streams, which leave versions out by design. Raises
    while iterating: CorruptData (a gap, naming the versions), NotFound (log_truncated), InvalidRequest (rolled_back;
    log_mismatch: the log was replaced), Unavailable (nothing heard for ``stream_give_up_after_ms``), PermissionDenied.
    """

    def __init__(self, client: Client, after: LogPosition, keys: Filter, *, durable: bool, checkpoints: bool) -> None:
        self._client = client
        self._checkpoints = checkpoints
        self._continuity = Continuity(after.version, durable=durable, filtered=not keys.everything, log_id=after.log_id)
        self._procedure = follow(client.session, self._continuity, keys, durable=durable, now_ms=now_ms())
        self._stream: tuple[Connection, AnswerReader] | None = None
        self._effect: Effect | None = None
        self._delivery = Delivery(self._continuity)
        self._guard = threading.RLock()  # a signal's handler may close what its own thread is in the middle of
        self._advancing = False
        self._closed = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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
        """Carry out one effect, unless it is closed. An effect that was interrupted is carried out again."""
        with self._guard:
            if self._closed.is_set():
                return False
            self._advancing = True
        try:
            self._step()
        except StopIteration:
            return False
        except BaseException:
            self._hang_up()
            raise
        finally:
            with self._guard:
                self._advancing = False
                if self._closed.is_set():
                    self._end()
        return True

    def _step(self) -> None:
        if self._effect is None:
            self._effect = next(self._procedure)
        else:
            answer = self._carry_out(self._effect)
            if self._closed.is_set():  # what came of it is of no interest, that it broke least of all
                return
            self._effect = self._procedure.send(answer)
        if isinstance(self._effect, Deliver):  # the procedure goes on when the caller has had these
            self._delivery.offer(self._effect.events)

    def close(self) -> None:
        """Close the connection; iterating ends, in another thread too."""
        with self._guard:
            self._closed.set()
            stream = self._stream
            if not self._advancing:
                self._end()
            elif stream is not None:  # that thread closes it
                stream[0].cut_off()

    def _end(self) -> None:
        self._procedure.close()
        self._effect = None
        self._hang_up()

    def _carry_out(self, effect: Effect) -> Answer:
        match effect:
            case Open(endpoint=endpoint, request=request, timeout_ms=timeout_ms):
                self._hang_up()
                try:
                    self._stream = _, reader = self._client.pool.open(endpoint, request, timeout_ms)
                except (OSError, UnicodeError, BadAnswer) as error:
                    return Failed(now_ms(), False, reason_of(error), problem=problem_with(endpoint, error))
                if reader.status == 200:
                    return Opened(now_ms())
                self._hang_up()
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
        if self._stream is None:  # an interrupt ended it; the procedure opens the next one behind what was delivered
            return Failed(now_ms(), False, "the stream was interrupted")
        connection, reader = self._stream
        end_ms = now_ms() + timeout_ms
        try:
            while not reader.buffered:
                if reader.complete:
                    return Failed(now_ms(), False, "the service ended the stream")
                connection.receive(reader, left_s(end_ms))
        except (OSError, BadAnswer) as error:
            return Failed(now_ms(), False, reason_of(error))
        return Chunk(now_ms(), reader.take())

    def _hang_up(self) -> None:
        if self._stream is not None:
            self._client.pool.hang_up(self._stream[0])
            self._stream = None
