"""The I/O shell of the commit log: one pipeline, one object store, one clock, one event loop.

Each step of the pipeline takes everything that arrived since the last one, so load decides the batches, not a timer
(``docs/decisions/0004-commit-path.md``). When the store stalls, ``admission`` refuses commits; metrics and streams
continue. When the leadership ends, every waiting commit gets ``Unanswered`` and ``ended`` is set. A step that raises is
reported to the loop, which ends the process (``docs/decisions/0121-a-broken-invariant-ends-the-process.md``).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import structlog
from msgspec import Struct

from holdfast.commit.format.batch import HEADER_BYTES, Header, StoresMode, decode_header, object_name
from holdfast.commit.format.log_clock import Moment
from holdfast.commit.format.transaction import Committed, Unanswered
from holdfast.commit.leadership.claims import Identity
from holdfast.commit.leadership.evidence import Shown
from holdfast.commit.leadership.signs import Signs
from holdfast.commit.leadership.suspensions import Suspending
from holdfast.commit.leadership.takeover import (
    Clock,
    TakeoverOptions,
    local_place,
    local_scope,
    newest_slot,
    now,
    take_the_lead,
)
from holdfast.commit.leadership.takeover_events import Takeover
from holdfast.commit.metrics import ServiceMetrics
from holdfast.commit.reading.feed import Feed, FeedTransaction
from holdfast.commit.reading.lineage import Lineage, lineage_of, require_genesis
from holdfast.commit.reading.status import AttemptHistory, FirstCommit
from holdfast.commit.reading.verify import DamageLog
from holdfast.commit.stages import events
from holdfast.commit.stages.attempts import judge_from_log
from holdfast.commit.stages.events import CommitEntry, Put, ReadBack, Records, WhenDurable
from holdfast.commit.stages.pipeline import Pipeline, PipelineRules
from holdfast.commit.stages.resolve import Stores
from holdfast.errors import (
    Backpressure,
    Code,
    CorruptData,
    Fenced,
    HoldfastError,
    InvalidRequest,
    NotFound,
    Unavailable,
    statement_of,
)
from holdfast.objects.budget import TimeLimited
from holdfast.objects.port import CreateAnswer, ObjectStore, Unknown
from holdfast.soundness import report_broken
from holdfast.values import Instant, LeaderId, LogId, Slot, Version
from holdfast.wire.log import StatusAnswer

log = structlog.get_logger("holdfast.commit.service")

RETRY_AFTER_MS: Final = 1_000
SIGN_AGAIN: Final = 0.125
"""A sign that could not be shown is tried again after this part of an interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions(TakeoverOptions):
    """How to lead. Units are in the names. The retry budget of the takeover is that of a batch."""

    address: str = ""
    address_is_bound: bool = True
    """Whether this process itself listens there. An address that leads to it in another way proves nothing."""
    bound: tuple[str, ...] = ()
    """Where this process listens, with ``https://`` where it speaks TLS."""
    rules: PipelineRules = field(default_factory=PipelineRules)
    request_timeout_ms: float = 10_000.0
    idle_check_ms: float = 5_000.0
    queue_entries_max: int = 100_000
    stalled_ms_max: float = 3_000.0
    feed_bytes_max: int = 32 << 20


class StoresOfLog(Stores, Protocol):
    """The message stores that this leader serves."""

    def flush(self) -> None:
        """Hand over what they have done so far: it comes before the event that is taken next."""
        ...

    def results_of(self, record: bytes) -> bytes:
        """The results in a record of the log, as ``CommitEntry.results``."""
        ...


class ServiceEnd(Struct, frozen=True):
    """Why a leadership ended: ``resigned``, ``deposed``, ``gave_up`` or ``abandoned``."""

    kind: str
    detail: str


class CommitService:
    """The leader of a claim that stands and was checked: see ``lead``. It ends when ``ended`` is set, for good."""

    def __init__(
        self,
        store: ObjectStore,
        takeover: Takeover,
        identity: Identity,
        options: ServiceOptions,
        leader_store: ObjectStore | None = None,
        clock: Clock = now,
    ) -> None:
        claim = takeover.claim
        self._clock = clock
        self.store = store
        if leader_store is None:
            leader_store = store = TimeLimited(store, options.request_timeout_ms)
        self._leader_store = leader_store
        self.takeover = takeover
        self.claim = claim
        self.leader_id = claim.leader_id.hex()
        self.log_id = claim.log_id.hex()
        self.address = claim.address
        self.options = options
        self.pipeline = Pipeline(
            claim,
            identity.nonce_seed,
            options.rules,
            self._clock(),
            proved_ms=takeover.proved_ms,
            timer=time.perf_counter,
        )
        self.feed = Feed(claim, bytes_max=options.feed_bytes_max)
        self.metrics = ServiceMetrics()
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[ServiceEnd] = self._loop.create_future()
        self._inbox: list[CommitEntry] = []
        self._pumping = False
        self._events: deque[events.Event] = deque()
        self._stepping = self._flushing = False
        self._stores: StoresOfLog | None = None
        self._queued = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0.0
        self._signs = Signs(leader_store, claim, identity.here, options.interval_ms(store.url))
        self._shown_ms = -math.inf
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._history = AttemptHistory(store, claim)
        self.damage = DamageLog()
        self._owed: dict[CommitEntry, None] = {}
        self._last_accepted = claim.prev_version
        self._draining = False
        self.suspending = Suspending(leader_store, self, self._signs.newest.interval_ms)
        self.lineage: Lineage | None = None
        """The log's ancestors; None until they are known, which takes a moment in a log that was forked."""
        self._spawn(self._watch_for_successors())
        self._spawn(self._show_signs())

    @classmethod
    async def lead(
        cls, store: ObjectStore, options: ServiceOptions, leader_store: ObjectStore | None = None, clock: Clock = now
    ) -> CommitService:
        """Recover the log and become its leader. Raises, and after a crash: see ``takeover.take_the_lead``.

        ``store`` serves all readers of history. ``leader_store`` reaches the same objects for the leader itself, so
        that it does not wait for readers; each of its requests must end in bounded time. Without it, ``store`` within
        ``request_timeout_ms``. In a service it is ``BudgetedStore.own`` over ``TimeLimited`` over the store of the URL:
        see ``server.run``.
        """
        place = local_scope(options.address, is_bound=options.address_is_bound), local_place(options.bound)
        how = replace(options, retry_budget_ms=options.rules.persist.give_up_after_ms)
        genesis = await require_genesis(store)
        while True:
            identity = Identity(LeaderId(os.urandom(16)), os.urandom(32), options.address, *place)
            takeover = await take_the_lead(store, identity, LogId(os.urandom(16)), how, clock)
            service = cls(store, takeover, identity, options, leader_store, clock)
            try:
                # It may have been written after this process looked, and before its claim.
                suspension = await service.suspending.look()
            except BaseException:
                await service.close()
                raise
            if suspension is None:
                break
            await service.close()
            if not options.standby:
                raise suspension.error()
        service._spawn(service.suspending.run())
        if genesis is None or genesis.log_id == takeover.claim.log_id:
            service.lineage = Lineage(service.log_id)
        else:
            service._spawn(service._find_lineage())
        return service

    async def _find_lineage(self) -> None:
        while self.lineage is None:
            try:
                self.lineage = await lineage_of(self.store, self.claim)
            except CorruptData as error:
                self.damage.note("stream", error)
                return
            except HoldfastError as error:
                log.warning("lineage_waits", error=str(error))
                await asyncio.sleep(RETRY_AFTER_MS / 1000.0)

    # -- commits ------------------------------------------------------------------------------------------------------

    def admission(self) -> HoldfastError | None:
        """None when a commit is admitted now, or the error for its response. Cost: O(1)."""
        if self.ended.done() or self._draining:
            return Unavailable(
                "this process does not lead", code=Code.NOT_LEADER, retry_after_ms=250, leader_id=self.leader_id
            )
        if self._queued >= self.options.queue_entries_max:
            return Backpressure("too many commits wait for the store", retry_after_ms=500, waiting=self._queued)
        return self._stalled()

    def _stalled(self) -> Backpressure | None:
        pipeline = self.pipeline
        in_flight, since_ms = pipeline.persist.in_flight, pipeline.unproved_since_ms
        if not in_flight and since_ms is None:
            if self.metrics.stalled.lasts:
                self.metrics.stalled.note(False, self._clock().boot_ms)
            return None
        oldest_ms = min(in_flight[0].formed_ms if in_flight else math.inf, math.inf if since_ms is None else since_ms)
        now_ms = self._clock().boot_ms
        waited_ms = now_ms - oldest_ms
        self.metrics.stalled.note(waited_ms > self.options.stalled_ms_max, now_ms)
        if waited_ms <= self.options.stalled_ms_max:
            return None
        return Backpressure("the store does not answer", retry_after_ms=RETRY_AFTER_MS, waited_ms=round(waited_ms))

    def submit(self, entries: list[CommitEntry]) -> None:
        """Accept commit requests; each gets exactly one reply later. Never blocks.

        They are taken after the next turn of the loop: callers that send together are read in two turns, and a batch
        that leaves after the first of them has a quarter fewer commits at 64 connections.
        """
        self._inbox += entries
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._loop.call_soon, self._pump)

    def record(self, records: list[tuple[str, bytes]], when_durable: WhenDurable) -> None:
        """Write what the stores did into the log; see ``stores.log_commit.Journal``."""
        assert self.claim.stores_mode is StoresMode.LOG, "only a log with stores has records"
        event = events.RecordsReady(self._clock(), Records(records, when_durable))
        if self._flushing:
            self._take(event)
        else:
            self._step(event)

    def serve_stores(self, stores: StoresOfLog | None) -> None:
        """From now on the parts of commits are for ``stores``; None: there are none, and parts are refused."""
        self._stores = self.pipeline.resolve.stores = stores

    def _results_of(self, record: bytes) -> bytes | None:
        return None if self._stores is None else self._stores.results_of(record)

    def _pump(self) -> None:
        self._pumping = False
        entries, self._inbox = self._inbox, []
        if not entries:
            return
        self._queued += len(entries)
        self._step(events.Arrived(self._clock(), entries))

    def moment(self) -> Moment:
        """The log's time now: what a header that this leader writes now would say."""
        return self.pipeline.persist.clock.at(self._clock())

    def accept_clock(self, clocks: Instant) -> None:
        """The wall clock was right then: the log's time follows it again, unless it has been set since."""
        self._step(events.ClockShown(self._clock(), accepted=clocks))

    def show_clock(self) -> None:
        """Write what the clocks show, in an empty batch unless one is in flight."""
        self._step(events.ClockShown(self._clock()))

    def durable_header(self) -> Header:
        """The header of the newest durable object that may be shown, the claim when there is none yet.

        A batch that is held until ownership is proved does not count: the end of this leadership may roll it back.
        """
        return self.pipeline.released_header

    # -- questions ----------------------------------------------------------------------------------------------------

    def local_version(self) -> int:
        """The newest version that this process knows to be durable. May be stale while another leader exists."""
        return self.pipeline.release.durable_version

    @property
    def assigned(self) -> int:
        """The newest version that this leader has handed out."""
        return self.pipeline.sequence.assigned

    @property
    def truncated_through(self) -> int:
        """Versions at or below it may have been removed."""
        return self.pipeline.persist.head.truncated_through

    async def version(self) -> int:
        """A version at least as new as everything committed when this was called, by any leader.

        Raises: Fenced when another leader exists, Unavailable when the store proved nothing in ``request_timeout_ms``.
        Cost: rides on the next PUT, or one LIST shared by all who wait.
        """
        try:
            async with asyncio.timeout(self.options.request_timeout_ms / 1000.0):
                return await self._proof()
        except TimeoutError as error:
            raise Unavailable(
                "the store did not prove in time who owns the log",
                retry_after_ms=RETRY_AFTER_MS,
                last=self.pipeline.proof_trouble or "no answer",
            ) from error

    async def _proof(self) -> int:
        """As ``version``, without a time limit."""
        waiter: asyncio.Future[int] = self._loop.create_future()
        self._step(events.VersionAsked(self._clock(), waiter))
        try:
            return await waiter
        except asyncio.CancelledError:
            self.pipeline.withdraw(waiter)
            raise

    async def noop(self) -> None:
        """Return when a no-op went through all four stages. Raises: Fenced."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._step(events.NoopAsked(self._clock(), waiter))
        await waiter

    async def truncate(self, through: Version) -> None:
        """Return when the log says, durably and by a leader that owns it, that ``through`` was truncated.

        Only then may an object be deleted whose last version is at or below ``through``. Raises: Fenced.
        """
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._step(events.TruncationDue(self._clock(), through, waiter))
        await waiter

    async def status(self, request_id: str, min_version: int) -> StatusAnswer:
        """The final outcome of every attempt under ``request_id`` that began by now, at or above ``min_version``.

        ``min_version`` is the attempt's read version. It bounds how much of the log is read, and nothing else: an id
        that is known here to be committed is ``committed``, also at or below ``min_version``.
        Raises: Fenced (``leader_changed``, never a verdict), InvalidRequest ``future_version``, Backpressure while bans
        cannot expire, Unavailable, CorruptData.
        """
        if min_version > self.pipeline.sequence.assigned:
            # No ban reaches so far. A later leader may have handed the version out: then this one is Fenced here.
            await self.version()
            version = self.pipeline.committed_version(request_id) or self._history.committed_version(request_id)
            if version is not None:
                return StatusAnswer("committed", version)
            if min_version > self.pipeline.sequence.assigned:
                raise InvalidRequest("version was never handed out", code=Code.FUTURE_VERSION, version=min_version)
        if self.pipeline.sequence.attempts.is_full:
            raise Backpressure("too many attempts are closed and wait for the store", retry_after_ms=1_000)
        waiter: asyncio.Future[events.StatusReady] = self._loop.create_future()
        question = events.StatusQuestion(request_id, min_version, waiter)
        self._step(events.StatusAsked(self._clock(), question))
        ready = await waiter
        if ready.version is not None:
            return StatusAnswer("committed", ready.version, ready.results)
        truncated = False
        if min_version < ready.complete_above:
            result = await self._find(request_id, min_version, self.durable_header())
            if result.txn is not None:
                record = result.txn.record
                results = None if record is None else self._results_of(record)
                return StatusAnswer("committed", result.txn.version, results)
            truncated = result.truncated
        version = self._history.committed_version(request_id)
        if version is not None:
            return StatusAnswer("committed", version)
        if truncated:
            return StatusAnswer("log_truncated")
        await self.version()
        return StatusAnswer("not_committed")

    async def _find(self, request_id: str, min_version: int, newest: Header) -> FirstCommit:
        try:
            return await self._history.find(request_id, min_version, newest)
        except CorruptData as error:
            self.damage.note("status", error)
            raise

    async def _look_up_old(self, entry: CommitEntry) -> None:
        request_id, read_version = entry.txn.request_id, entry.txn.read_version
        assert request_id is not None, "only attempts are looked up"
        assert read_version is not None, "a request id comes with a read version"
        try:
            result = await self._find(request_id, read_version, self.durable_header())
        except HoldfastError as error:
            log.warning("look_up_failed", error=str(error))
            entry.outcome = Unanswered()
        else:
            outcome = judge_from_log(entry, result.txn, truncated=result.truncated)
            if isinstance(outcome, Committed) and result.txn is not None and result.txn.record is not None:
                outcome = Committed(outcome.version, self._results_of(result.txn.record))
            entry.outcome = outcome
        self._reply_late(entry)

    def _reply_late(self, entry: CommitEntry) -> None:
        """Reply to a commit that waited for the store after it left the pipeline."""
        del self._owed[entry]
        entry.durable_version = self.local_version()
        self._queued -= 1
        entry.reply(entry)

    # -- the end ------------------------------------------------------------------------------------------------------

    async def step_down(self) -> None:
        """Accept nothing more, finish work in progress, resign; return when that is done."""
        self._draining = True
        self._pump()
        self._step(events.Drain(self._clock()))
        await asyncio.shield(self.ended)

    @property
    def shown(self) -> Shown:
        """What this leader has shown of itself in the log and next to it."""
        return Shown(self.pipeline.persist.durable_slot, self._signs.newest.number)

    async def _show_signs(self) -> None:
        """Show that this leader lives, also while it drains: a sign at once, and one whenever no batch came for long.

        The log does not grow. A sign that could not be shown is tried again soon.
        """
        interval_ms = self._signs.newest.interval_ms
        wait_ms = 0.0
        while not self.ended.done():
            await asyncio.wait({self.ended}, timeout=wait_ms / 1000.0)
            wait_ms = self._shown_ms + interval_ms - self._clock().boot_ms
            if wait_ms > 0.0 or self.ended.done():
                continue
            began_ms = self._clock().boot_ms
            if await self._signs.show():
                self._shown_ms = max(self._shown_ms, began_ms)
                wait_ms = began_ms + interval_ms - self._clock().boot_ms
            else:
                wait_ms = interval_ms * SIGN_AGAIN
            wait_ms = max(0.0, wait_ms)

    async def _watch_for_successors(self) -> None:
        """Check ownership regularly while idle: an idle leader writes nothing that could be refused."""
        batches = 0
        while not self.ended.done():
            await asyncio.sleep(self.options.idle_check_ms / 1000.0)
            if self.pipeline.persist.counters.batches == batches:
                with contextlib.suppress(Fenced):
                    # Without a bound: while this question stands it is known for how long the store has been silent.
                    await self._proof()
            batches = self.pipeline.persist.counters.batches

    def _end(self, effect: events.Ended) -> None:
        for ticket in effect.tickets:
            if isinstance(ticket, Records):
                self._loop.call_soon(ticket.when_durable, Fenced(effect.detail, code=Code.LEADER_CHANGED))
                continue
            waiter = ticket.ticket if isinstance(ticket, events.StatusQuestion) else ticket
            assert isinstance(waiter, asyncio.Future), "tickets are futures"
            if not waiter.done():
                waiter.set_exception(Fenced(effect.detail, code=Code.LEADER_CHANGED))
        if self.ended.done():
            return
        log.info("reign_ended", kind=effect.kind, detail=effect.detail, leader_id=self.leader_id)
        self.ended.set_result(ServiceEnd(effect.kind, effect.detail))
        self.feed.close()
        if self._timer is not None:
            self._timer.cancel()

    async def close(self) -> None:
        """Abandon work in progress and notify its callers. Safe at any time; nothing acknowledged is lost."""
        self._step(events.Abandon(self._clock()))
        self._pump()
        if self._timer is not None:
            self._timer.cancel()
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # Cancelled look-ups proved nothing, and their commits still wait for their one reply.
        for entry in [*self._owed]:
            entry.outcome = Unanswered()
            self._reply_late(entry)

    # -- effects ------------------------------------------------------------------------------------------------------

    def _step(self, event: events.Event) -> None:
        """Take one event and carry out its effects, then those of events that they led to, in order."""
        self._events.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._events:
                if self._stores is not None:
                    self._flushing = True
                    self._stores.flush()
                    self._flushing = False
                self._take(self._events.popleft())
        finally:
            self._stepping = self._flushing = False
        backpressure = self.metrics.backpressure
        if self.pipeline.is_pressed != backpressure.lasts:
            backpressure.note(not backpressure.lasts, self._clock().boot_ms)
        self._arm()

    def _take(self, event: events.Event) -> None:
        try:
            for effect in self.pipeline.step(event):
                self._carry_out(effect)
        except Exception as error:
            # Whatever it is, the stages are in a state that no rule covers. What they hold is answered by nobody.
            report_broken(self._loop, error)
            raise

    def _carry_out(self, effect: events.Effect) -> None:
        match effect:
            case events.Answer(entries=entries):
                self._answer(entries)
            case Put():
                self._spawn(self._put(effect))
            case events.Durable(batches=batches):
                self._shown_ms = now_ms = self._clock().boot_ms
                for batch in batches:
                    self.metrics.waited["persist"].note(now_ms - batch.formed_ms)
                    self.feed.publish_durable(batch.header, batch.logged, len(batch.payload))
            case events.Resolved(entries=entries):
                self._resolved(entries)
            case ReadBack():
                self._spawn(self._read_back(effect))
            case events.CheckOwnership():
                self._spawn(self._check_ownership())
            case events.VersionIs(tickets=tickets, version=version):
                for ticket in tickets:
                    _complete(ticket, version)
            case events.Recorded(records=recorded):
                for each in recorded:
                    if each.when_durable is not None:
                        each.when_durable(each.version)
            case events.Reached(tickets=tickets):
                for ticket in tickets:
                    _complete(ticket, None)
            case events.StatusReady(question=question):
                _complete(question.ticket, effect)
            case events.LookUp(entries=entries):
                for entry in entries:
                    self._owed[entry] = None
                    self._spawn(self._look_up_old(entry))
            case events.Ended():
                self._end(effect)

    def _answer(self, entries: list[CommitEntry]) -> None:
        self._queued -= len(entries)
        self.metrics.note_answers(entries, self._clock().boot_ms)
        ahead: list[CommitEntry] = []
        for entry in entries:
            if entry.when_durable is not None and type(entry.outcome) is Unanswered:
                entry.when_durable(Fenced("another leader may have it or not", code=Code.LEADER_CHANGED))
            if type(entry.outcome) is InvalidRequest:
                self._queued += 1
                self._owed[entry] = None
                ahead.append(entry)
                continue
            entry.reply(entry)
        if ahead:
            self._spawn(self._answer_future_versions(ahead))

    async def _answer_future_versions(self, entries: list[CommitEntry]) -> None:
        """A version never assigned here may be a later leader's: only a proof makes it the client's error."""
        instead: HoldfastError | None = None
        try:
            await self.version()
        except Fenced as error:
            instead = error
        except Unavailable as error:
            # Nothing was assigned to these commits, so sending one again cannot commit it twice. Of the
            # codes for a silent store only this one says so.
            instead = Unavailable(
                error.message,
                code=Code.OVERLOADED,
                hint=error.hint,
                retry_after_ms=error.retry_after_ms,
                facts=error.fields,
            )
        for entry in entries:
            entry.outcome = instead or entry.outcome
            self._reply_late(entry)

    def _resolved(self, entries: list[CommitEntry]) -> None:
        if entries:
            self.metrics.waited["resolve"].note(self._clock().boot_ms - entries[0].arrived_ms)
        if not self.feed.resolved_subscribers:
            for entry in reversed(entries):
                if entry.accepted:
                    self._last_accepted = entry.version  # type: ignore[assignment]
                    self.feed.skip_resolved(entry.version)
                    break
            return
        transactions: list[FeedTransaction] = []
        size, time_ms, leader_id = 0, self._clock().wall_ms, self.leader_id
        for entry in entries:
            if entry.accepted:
                txn, prev = entry.txn, self._last_accepted
                transactions.append(
                    FeedTransaction(entry.version, prev, txn.request_id, leader_id, time_ms, txn.operations, False)
                )
                self._last_accepted = entry.version  # type: ignore[assignment]
                size += entry.size
        if transactions:
            self.feed.publish_resolved(transactions, size)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and isinstance(error := task.exception(), AssertionError):
            report_broken(self._loop, error)

    async def _put(self, put: Put) -> None:
        answer: CreateAnswer
        try:
            answer = await self._leader_store.create(object_name(put.slot), put.data)
        except (HoldfastError, OSError) as error:
            # The port forbids it, but the batch must be sent again or given up in any case.
            answer = Unknown(statement_of(error))
        self._step(events.PutAnswered(self._clock(), put.slot, answer, put.number))

    async def _read_back(self, effect: ReadBack) -> None:
        header: Header | Unknown | None
        try:
            data = await self._leader_store.read(object_name(effect.slot), length=HEADER_BYTES)
            header = decode_header(data, slot=effect.slot)
        except NotFound:
            header = None
        except CorruptData:
            # The object there is not this leader's.
            self._step(events.HeaderFound(self._clock(), effect.slot, None, True))
            return
        except (HoldfastError, OSError) as error:
            header = Unknown(f"read back: {statement_of(error)}")
        self._step(events.HeaderFound(self._clock(), effect.slot, header, effect.certain))

    async def _check_ownership(self) -> None:
        newest: Slot | Unknown | None
        try:
            newest = await newest_slot(self._leader_store)
        except (HoldfastError, OSError) as error:
            final = isinstance(error, HoldfastError) and error.code is Code.DIRECTORY_REPLACED
            newest = Unknown(statement_of(error), final=final)
        self.metrics.ownership_checks["failed" if isinstance(newest, Unknown) else "answered"] += 1
        self._step(events.OwnershipSeen(self._clock(), newest))

    def _arm(self) -> None:
        """Schedule the next step of the pipeline, no later than its deadline."""
        deadline_ms = self.pipeline.next_deadline_ms()
        if deadline_ms is None or self.ended.done():
            return
        if self._timer is not None:
            if self._timer_ms <= deadline_ms:
                return
            self._timer.cancel()
        self._timer_ms = deadline_ms
        delay_s = max(0.0, (deadline_ms - self._clock().boot_ms) / 1000.0)
        self._timer = self._loop.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._step(events.Tick(self._clock()))


def _complete(ticket: events.Asker, value: object) -> None:
    assert isinstance(ticket, asyncio.Future), "tickets are futures"
    if not ticket.done():
        ticket.set_result(value)
