"""The asyncio client of the commit log: it carries out what the procedures of ``client.protocol`` ask for.

A client belongs to the event loop that it is first used on; any number of tasks may share it. A cancelled operation
drops its connection; the service may have accepted what it had sent.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar
from urllib.parse import quote

from holdfast.client.protocol import log_operations
from holdfast.client.protocol.effects import (
    AwaitVersion,
    Decide,
    DeliverEvents,
    DeliverRows,
    Effect,
    Event,
    Failed,
    Item,
    KeyRead,
    Learn,
    Open,
    Opened,
    Procedure,
    Receive,
    Reply,
    Request,
    Send,
    Share,
    Wait,
    Woken,
)
from holdfast.client.protocol.endpoint import TrustedHosts, anywhere, routes_of
from holdfast.client.protocol.gathered_commits import Commits
from holdfast.client.protocol.gathered_reads import Reads
from holdfast.client.protocol.http1 import token_of
from holdfast.client.protocol.messages import Place, Shape, json_request, position_of
from holdfast.client.protocol.options import ClientOptions
from holdfast.client.protocol.retry_budget import Session
from holdfast.client.protocol.stream import (
    SNAPSHOT_ATTEMPTS,
    Continuity,
    Filter,
    PendingEvents,
    SnapshotProgress,
    follow,
    load_snapshot,
)
from holdfast.client.protocol.transaction import (
    ServiceSource,
    Transacted,
    TransactionAttempts,
    TransactionBuilder,
    ViewSource,
)
from holdfast.client.transport import aio as transport
from holdfast.client.transport import aio_gathering as gathering
from holdfast.client.transport.clock import draw_entropy, draw_wait_ms, now_ms
from holdfast.commit.format.transaction import JobChange, Operation, Precondition, Transaction
from holdfast.errors import Closed, HoldfastError, NotFound, Unavailable
from holdfast.values import LogPosition
from holdfast.wire.log import (
    CommitReceipt,
    Found,
    FoundRange,
    JobRecord,
    JobRecords,
    NotCommitted,
    RetentionAnswer,
    RetentionPlan,
    RetentionPlanRequest,
    RetentionPolicy,
    StatusAnswer,
    VersionAnswer,
)
from holdfast.wire.stores import AcknowledgePart, MapPart, PublishPart

if TYPE_CHECKING:
    from holdfast.view import View
    from holdfast.view.storage import Filling

Result = TypeVar("Result")


class Closing:
    """Leaving its block closes it."""

    async def aclose(self) -> None:
        """Close it."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class AsyncTransaction:
    """The transaction that ``Client.transact`` gives to its function, to read and write through."""

    def __init__(self, client: Client, builder: TransactionBuilder) -> None:
        self._client = client
        self._builder = builder
        self.write = builder.write
        self.delete = builder.delete
        self.delete_range = builder.delete_range
        self.require_unchanged = builder.require_unchanged
        self.publish = builder.publish
        self.acknowledge = builder.acknowledge
        self.change_map = builder.change_map
        self._gets = transport.GetsTogether(self._get_alone, self.get_many)

    @property
    def read_version(self) -> int:
        """Reads of this attempt are never older than this version."""
        return self._builder.read_version

    async def get(self, key: bytes) -> bytes | None:
        """The key's value, or None."""
        return await self._gets.get(key)

    async def get_many(self, keys: Iterable[bytes]) -> dict[bytes, bytes | None]:
        """The values of several keys, None for each that is absent: one request for up to 1,000 keys."""
        return await self._client.run(self._builder.reading_many(keys, now_ms()))

    async def _get_alone(self, key: bytes) -> bytes | None:
        return await self._client.run(self._builder.reading(key, now_ms()))

    async def range(self, begin: bytes, end: bytes | None = None, limit: int = 1000) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` keys of ``[begin, end)`` with their values, in byte order."""
        return await self._client.run(self._builder.reading_range(begin, end, limit, now_ms()))


class Client(Closing):
    """An asyncio client of the commit log.

    ``url``: ``http://host:port``, ``https://host:port``, ``unix:/path``, or several of them for one service and its
    standbys. ``token``: bearer token; only these addresses get it, and those that ``options.trusted_hosts`` allows.
    ``tls``: how servers are verified (default: the system's authorities).
    """

    def __init__(
        self,
        url: str | Sequence[str] = "http://127.0.0.1:8080",
        *,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        options: ClientOptions | None = None,
    ) -> None:
        options = options if options is not None else ClientOptions()
        trusts = anywhere if token_of(token) is None else TrustedHosts(options.trusted_hosts).allows
        self.session = Session(routes_of(url, trusts), options)
        """The state that the operations of this client share."""
        self.watch = transport.LookoutTask(self.session.route, self.session.options, tls)
        self.pool = transport.Pool(self.session.options, token_of(token), tls, self.watch)
        carriage = self.pool, self.session.route, self.session.options, self.session.soundness
        self._commits = gathering.Gatherer(*carriage, Commits(self.session.options))
        self._reads = gathering.Gatherer(*carriage, Reads(self.session.options))
        self._learning = transport.Turnstile()
        self._closing = transport.Event()

    async def aclose(self) -> None:
        """Close every connection.

        Operations in progress end with ``Closed``; the service may have accepted what they sent.
        """
        self._closing.set()
        await self._commits.aclose()
        await self._reads.aclose()
        await self.watch.aclose()
        await self.pool.aclose()

    async def commit(
        self,
        operations: Sequence[Operation],
        preconditions: Sequence[Precondition] = (),
        *,
        read_version: int | None = None,
        request_id: str | None = None,
        leader_id: str | None = None,
        log_id: str | None = None,
        acknowledge: Sequence[AcknowledgePart] = (),
        maps: Sequence[MapPart] = (),
        publish: Sequence[PublishPart] = (),
        jobs: Sequence[JobChange] = (),
    ) -> CommitReceipt:
        """Commit; returns when the transaction is durable.

        ``acknowledge``, ``maps`` and ``publish`` are done by the message stores in the same step, all or nothing, where
        the stores live in the log; ``stores`` of the receipt has their results. ``jobs`` changes the records of jobs;
        that needs the role ``job``.
        ``log_id`` is the log that the versions belong to, by default the one that this client last received a response
        from; another log refuses them (InvalidRequest, log_mismatch).
        Raises: Conflict (``fields["version"]`` is worth retrying from), OutcomeUnknown (its fields say how to ask),
        Unavailable and Backpressure (not accepted in time), Fenced (another leader than ``leader_id``), InvalidRequest,
        LimitExceeded, PermissionDenied.
        Cost: one request; one more for the first of a client that knows no version yet; with an unknown outcome, at
        least one more.
        """
        entropy, session, begun = draw_entropy(), self.session, None
        is_plain = not (acknowledge or maps or publish or jobs)
        if read_version is None and request_id is None and leader_id is None and is_plain:
            # Most commits need no procedure: their first attempt is all.
            begun = log_operations.first_attempt(session, operations, preconditions, log_id, entropy)
            if begun is not None:
                await self._commits.share(begun)
                receipt = begun.settled
                if isinstance(receipt, CommitReceipt):
                    assert begun.txn is not None, "it is a commit"
                    session.saw(receipt.version, begun.txn.log_id)
                    session.route.succeeded()
                    return receipt
        txn = log_operations.transaction_of(
            operations,
            preconditions,
            request_id=request_id,
            leader_id=leader_id,
            read_version=read_version,
            log_id=log_id,
            acknowledge=acknowledge,
            maps=maps,
            publish=publish,
            jobs=jobs,
        )
        began_ms = now_ms() if begun is None else begun.offered_ms
        verdict = await self.run(log_operations.commit(session, txn, entropy, began_ms, begun=begun))
        if isinstance(verdict, NotCommitted):
            raise verdict.error()
        return verdict

    async def commits_many(
        self, txns: Iterable[Transaction] | AsyncIterable[Transaction]
    ) -> AsyncIterator[CommitReceipt | NotCommitted | HoldfastError]:
        """Commit a stream of transactions in few requests; yields one result per item, in order.

        Each item is decided on its own, and item k sees those before it. An item without a read version gets the
        service's version at the start. ``NotCommitted("banned")`` is an item closed after a broken connection: it may
        be submitted again. Raises: as ``commit``; InvalidRequest also for an invalid item, and then the items before
        it that have no result yet are not sent.
        """
        newest = await self.run(log_operations.version(self.session, now_ms(), local=True))
        grouping = log_operations.Grouping(self.session, newest.position, draw_entropy())
        async for txn in transport.each(txns):
            for result in await self._commit_group(grouping.add(txn)):
                yield result
        for result in await self._commit_group(grouping.rest()):
            yield result

    async def _commit_group(self, group: list[Item]) -> list[log_operations.ItemResult]:
        return await self.run(log_operations.commit_group(self.session, group, now_ms())) if group else []

    async def transact(
        self, function: Callable[[AsyncTransaction], Awaitable[Result]], *, view: View | None = None
    ) -> Transacted[Result]:
        """Run ``function`` with a transaction until a commit of what it decided holds.

        Reads go to ``view``, or to the service's. The function may run several times.
        Raises: Conflict after the last attempt; what ``commit`` raises; what the function raises.
        """
        source = ViewSource(self.session, view) if view is not None else ServiceSource(self.session)
        attempts = TransactionAttempts(self.session, source, draw_entropy())
        values: list[Result] = []

        async def carry_out(effect: Effect) -> Reply:
            if isinstance(effect, Decide):
                builder = attempts.builder
                try:
                    values[:] = [await function(AsyncTransaction(self, builder))]
                except Exception:
                    if builder.moved_to is None:  # otherwise its reads belong to different versions, and it runs again
                        raise
                return Woken(now_ms())
            if isinstance(effect, AwaitVersion):
                assert view is not None, "only a transaction on a view waits for it"
                reached = await transport.view_reaches(view, effect.version, effect.timeout_ms / 1000)
                return Woken(now_ms()) if reached else Failed(now_ms(), False, "the view has not caught up")
            return await self._carry_out(effect)

        receipt = await self.run(attempts.run(now_ms()), carry_out)
        if receipt is None:
            return Transacted(values[0], None)
        return Transacted(values[0], receipt.version, receipt.stores)

    async def version(self, *, local: bool = False) -> VersionAnswer:
        """A version at least as new as every commit known when this was called; ``local``: without asking for proof."""
        return await self.run(log_operations.version(self.session, now_ms(), local=local))

    async def retention(self) -> RetentionAnswer:
        """The retention policies, what each keeps, and how far the log is truncated."""
        return await self._ask(Request("GET", "/v1/retention"), RetentionAnswer)

    async def set_retention(self, name: str, policy: RetentionPolicy) -> RetentionAnswer:
        """Set a retention policy; needs the role ``admin``. It is durable when this returns.

        Raises: InvalidRequest; NotFound (``log_truncated``) when the log does not hold what the policy names.
        """
        return await self._ask(json_request("PUT", f"/v1/retention/{quote(name, safe='')}", policy), RetentionAnswer)

    async def remove_retention(self, name: str) -> RetentionAnswer:
        """Remove a retention policy; needs the role ``admin``. Raises: NotFound without such a policy."""
        return await self._ask(Request("DELETE", f"/v1/retention/{quote(name, safe='')}"), RetentionAnswer)

    async def plan_retention(self, name: str, policy: RetentionPolicy | None) -> RetentionPlan:
        """What ``set_retention``, or without a policy ``remove_retention``, would remove now; it changes nothing.

        Needs the role ``admin``. Raises: as they do; Unavailable while a new snapshot is not verified.
        """
        change = RetentionPlanRequest(name, policy)
        return await self._ask(json_request("POST", "/v1/admin/retention-plan", change), RetentionPlan)

    async def _ask(self, request: Request, shape: type[Shape]) -> Shape:
        return await self.run(log_operations.ask(self.session, request, shape, now_ms()))

    async def status(self, request_id: str, min_version: Place) -> StatusAnswer:
        """The final outcome of an attempt. Asking closes it: if it has not committed, it never will."""
        return await self.run(log_operations.ask_status(self.session, request_id, min_version, now_ms()))

    async def get(self, key: bytes, at: Place | None = None, *, linearizable: bool = False) -> Found | None:
        """A key's value, never older than ``at`` or than anything that this client was answered before.

        ``linearizable``: never older than any commit that was known anywhere when this was called.
        """
        session = self.session
        own = None if at is None else session.resolve_position(at)
        begun = log_operations.first_read(session, key, own, linearizable=linearizable)
        if begun is not None:  # as with ``commit``
            await self._reads.share(begun)
            read = begun.settled
            if isinstance(read, KeyRead):
                log_operations.saw_in(session, own, read.at)
                session.route.succeeded()
                return log_operations.found_in(read, key)
        began_ms = now_ms() if begun is None else begun.offered_ms
        procedure = log_operations.read_key(session, key, own, began_ms, linearizable=linearizable, begun=begun)
        return (await self.run(procedure))[0]

    async def range(
        self,
        begin: bytes | None = None,
        end: bytes | None = None,
        *,
        prefix: bytes | None = None,
        limit: int = 1000,
        at: Place | None = None,
        linearizable: bool = False,
    ) -> FoundRange:
        """Keys of ``[begin, end)``, or all that start with ``prefix``, in byte order; as new as with ``get``.

        *Raises*: as ``get``; ``InvalidRequest`` (malformed) for a prefix together with a bound.
        """
        bounds = log_operations.bounds_of(begin, end, prefix)
        return await self.run(
            log_operations.read_range(self.session, *bounds, limit, at, now_ms(), linearizable=linearizable)
        )

    async def job(self, name: str, at: Place | None = None) -> JobRecord | None:
        """The record of a job in the service's view, never older than ``at``. Needs the role ``job``."""
        return await self.run(log_operations.job(self.session, name, at, now_ms()))

    async def jobs(
        self, prefix: str = "", *, after: str | None = None, limit: int = 1000, at: Place | None = None
    ) -> JobRecords:
        """Records of the jobs whose names begin with ``prefix``, by name, never older than ``at``.

        ``after``: only names above this one, as the last one of the page before. Needs the role ``job``.
        """
        return await self.run(log_operations.jobs(self.session, prefix, after, limit, at, now_ms()))

    async def load_snapshot(self, view: View) -> LogPosition:
        """Fill an empty view with the newest snapshot of the service, and return the position that it then holds.

        ``subscribe(view.position)`` continues from there. Without a snapshot the view stays empty, at version 0. The
        view gets all of the snapshot or nothing, also after a crash. Cost: one request, and each row once.
        Raises: InvalidRequest (the view is not empty), CorruptData, Unavailable, PermissionDenied.
        """
        for _ in range(SNAPSHOT_ATTEMPTS):
            progress = SnapshotProgress()
            try:
                with view.filling() as filling:
                    await self._fill(filling, progress)
            except NotFound:
                if progress.position is None:
                    break
            else:
                return view.position
        else:
            raise Unavailable("the snapshots of the log were removed while they were loaded")
        return view.position

    async def _fill(self, filling: Filling, progress: SnapshotProgress) -> None:
        carrier = _StreamCarrier(self)

        async def carry_out(effect: Effect) -> Reply:
            if isinstance(effect, DeliverRows):
                filling.add((row.key, row.value, row.version) for row in effect.rows)
                return Woken(now_ms())
            return await carrier.carry_out(effect)

        try:
            await self.run(load_snapshot(self.session, progress, now_ms()), carry_out)
        finally:
            carrier.hang_up()
        assert progress.position is not None, "a snapshot that is complete has a position"
        filling.finish(progress.position, progress.last_transaction)

    def subscribe(
        self,
        after: Place = 0,
        *,
        durable: bool = True,
        begin: bytes | None = None,
        end: bytes | None = None,
        prefix: bytes | None = None,
        stores: Sequence[str] = (),
        checkpoints: bool = False,
    ) -> Subscription:
        """Every transaction after ``after``, without an end; see ``Subscription``. Raises: InvalidRequest.

        With ``stores``, which must live in the log, also what is published in these: ``published`` of a transaction,
        and a ``PublishedEvent`` for messages without one.
        """
        return Subscription(
            self,
            position_of(after),
            Filter(begin, end, prefix, tuple(stores)),
            durable=durable,
            checkpoints=checkpoints,
        )

    async def run(
        self, procedure: Procedure[Result], carry_out: Callable[[Effect], Awaitable[Reply]] | None = None
    ) -> Result:
        """Drive a procedure to its end. ``carry_out``: for effects that need more than the client."""
        reply: Reply | None = None
        effect: Effect | None = None
        carry_out = carry_out or self._carry_out
        try:
            while True:
                self.session.soundness.require()
                try:
                    effect = next(procedure) if reply is None else procedure.send(reply)
                except StopIteration as stop:
                    result: Result = stop.value
                    self.session.route.succeeded()
                    return result
                reply = await carry_out(effect)
        except AssertionError as error:
            if isinstance(effect, Decide):  # it is the application's
                raise
            self.session.soundness.break_off(error)
        except HoldfastError as error:
            self.session.route.explain(error)
            raise
        finally:
            procedure.close()

    async def _carry_out(self, effect: Effect) -> Reply:
        match effect:
            case Send():
                return await self.pool.exchange(effect)
            case Share():
                item = effect.item
                await (self._reads if effect.reads else self._commits).share(item)
                return item
            case Learn():
                return await self._learn(effect)
            case Wait():
                return await self.sleep(effect)
            case _:
                raise AssertionError("a request decides nothing and opens no stream")

    async def _learn(self, effect: Learn) -> Woken:
        """Ask for the version, unless the answer to another operation brings it meanwhile. Raises: as ``version``."""
        async with self._learning:
            if self.session.newest is None:
                await self.run(log_operations.version(self.session, effect.since_ms, local=True))
        return Woken(now_ms())

    async def sleep(self, wait: Wait) -> Woken:
        """Wait, unless the client is closed meanwhile. Raises: Closed."""
        if await self._closing.wait(draw_wait_ms(wait) / 1000):
            raise Closed("this client is closed")
        return Woken(now_ms())


class _StreamCarrier:
    """Carries out what the procedures of streams ask for, with one open stream at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.stream: transport.Stream | None = None

    async def carry_out(self, effect: Effect) -> Reply:
        """The reply to the effect. Raises: Closed."""
        match effect:
            case Open():
                self.hang_up()
                opened = await self._client.pool.open(effect)
                if not isinstance(opened, transport.Stream):
                    return opened
                self.stream = opened
                return Opened(now_ms(), opened.headers)
            case Receive(timeout_ms=timeout_ms):
                if self.stream is None:  # an interrupt closed it; the procedure opens it again after the last event
                    return Failed(now_ms(), False, "the stream was interrupted")
                return await self.stream.receive(timeout_ms)
            case Wait():
                return await self._client.sleep(effect)
            case DeliverEvents():
                return Woken(now_ms())
            case _:
                raise AssertionError("a stream only opens, receives, delivers and waits")

    def hang_up(self) -> None:
        """Close the stream, if one is open."""
        if self.stream is not None:
            self.stream.close()
            self.stream = None


class Subscription(Closing):
    """An asynchronous iterator over the change stream that reconnects by itself and proves that it missed nothing.

    ``position``: where a later ``subscribe(after=...)`` continues, with its log. ``committed_version``: everything up
    to here is durable. ``proves_completeness``: False on filtered streams, which leave versions out by design. Raises
    while iterating: CorruptData (a gap, naming the versions), NotFound (log_truncated), InvalidRequest (rolled_back;
    log_mismatch: the log was replaced), Unavailable (nothing received for ``stream_give_up_after_ms``),
    PermissionDenied.
    """

    def __init__(self, client: Client, after: LogPosition, keys: Filter, *, durable: bool, checkpoints: bool) -> None:
        self._client = client
        self._checkpoints = checkpoints
        self._continuity = Continuity(after.version, durable=durable, filtered=not keys.everything, log_id=after.log_id)
        self._procedure = follow(client.session, self._continuity, keys, durable=durable, now_ms=now_ms())
        self._carrier = _StreamCarrier(client)
        self._effect: Effect | None = None
        self._delivery = PendingEvents(self._continuity)
        self._lock = transport.Lock()
        self._advancing = False
        self._closed = transport.Event()

    @property
    def position(self) -> LogPosition:
        """Everything at or below was delivered to the caller."""
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
        """The events as they arrive together, checkpoints included: the argument of ``View.apply``."""
        while True:
            events = self._delivery.take_all()
            if events:
                yield events
            elif not await self._advance():
                return

    async def _advance(self) -> bool:
        """Carry out one effect; False when nothing more will come. An interrupted effect is carried out again."""
        with self._lock:
            if self._closed.is_set():
                return False
            self._advancing = True
        soundness = self._client.session.soundness
        try:
            soundness.require()
            if self._effect is None:
                self._effect = next(self._procedure)
            else:
                reply = await self._carrier.carry_out(self._effect)
                if self._closed.is_set():  # its result is of no interest, least of all an error
                    return True
                self._effect = self._procedure.send(reply)
            if isinstance(self._effect, DeliverEvents):  # the procedure continues when the caller has taken these
                self._client.session.route.succeeded()
                self._delivery.offer(self._effect.events)
        except StopIteration:
            return False
        except transport.Cancelled:  # for example a caller's timeout around the next event: the stream stays open
            raise
        except AssertionError as error:
            self._carrier.hang_up()
            soundness.break_off(error)
        except BaseException as error:
            self._carrier.hang_up()
            if isinstance(error, HoldfastError):
                self._client.session.route.explain(error)
            raise
        finally:
            with self._lock:
                self._advancing = False
                if self._closed.is_set():
                    self._end()
        return True

    async def aclose(self) -> None:
        """Close the connection; iterating ends, also in another task."""
        with self._lock:
            self._closed.set()
            stream = self._carrier.stream
            if not self._advancing:
                self._end()
            elif stream is not None:  # the other task closes it
                stream.cut_off()
        await self._client.pool.wait_closed()

    def _end(self) -> None:
        self._procedure.close()
        self._effect = None
        self._carrier.hang_up()
