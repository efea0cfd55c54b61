"""One machine of a world of the log: its processes stand by, take over, lead and are deposed, with the real shells.

A node crashes at any moment (its requests stay on their way), pauses while its clocks go on, has its wall clock set, is
cut off from the store or from other nodes, reaches the store over a path that ignores conditions, and does not know
that it was deposed until its own requests report it. Every response is held against ``promises``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from tests.worlds.log.journal import NodeStores
from tests.worlds.log.loop import SimulatedLoop
from tests.worlds.log.node_store import Archive, NodeStore
from tests.worlds.log.promises import Attempt

from holdfast.commit.format.batch import AddressScope, Header, Logged, LoggedTransaction, StoresMode
from holdfast.commit.format.transaction import Committed, Rejected, Transaction, Write
from holdfast.commit.leadership.claims import Identity
from holdfast.commit.leadership.evidence import LeaderAnswer, ProcessPlace, Reply
from holdfast.commit.leadership.takeover import TakeoverOptions, take_the_lead
from holdfast.commit.reading.feed import Feed, FeedTransaction
from holdfast.commit.service import CommitService, ServiceEnd, ServiceOptions
from holdfast.commit.stages import events as p
from holdfast.commit.stages.events import CommitEntry
from holdfast.commit.stages.pipeline import Pipeline
from holdfast.errors import CorruptData, HoldfastError, InvalidRequest, Unavailable
from holdfast.retention.truncator import Truncator, TruncatorOptions
from holdfast.values import Instant, LeaderId, LogId

if TYPE_CHECKING:
    from tests.worlds.log.world import World

__all__ = ["Node"]

EPOCH_MS = 1_700_000_000_000
PATIENCE_S = 5.0


class Node:
    """One machine: it starts processes one after another."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.address = f"node-{number}:8080"
        self.scope = AddressScope(bytes([number + 1]) * 16, number + 1)
        """Where this node's addresses are valid: a place of its own, unless a world moves it next to another."""
        self.held_until = 0.0
        """Until then its batches do not reach the store."""
        self.incarnation = 0
        self.paused_until = 0.0
        self.wall_skew_ms = 0.0
        self.up = False
        self.recovering = False
        self.frozen_when_it_leads_ms = 0.0
        self.delay_ms = 0.0
        """How much later than other nodes it claims."""
        self._rude = False
        self._plain = False
        self.service: CommitService | None = None
        self.truncator: Truncator | None = None
        self.stores = None if world.journal is None else NodeStores(self, world.journal)
        self._loop = self._new_loop()
        self._shown: Header | None = None
        self._resolved: list[int] = []
        self._resolved_shown = 0

    # -- life ---------------------------------------------------------------------------------------------------------

    def now(self) -> Instant:
        """This node's clocks: one that never falls, one that anybody may set."""
        return Instant(self.world.agenda.now, int(EPOCH_MS + self.world.agenda.now + self.wall_skew_ms))

    @property
    def leading(self) -> bool:
        """Whether this node believes that it leads."""
        return self.service is not None and not self.service.ended.done()

    @property
    def pipeline(self) -> Pipeline | None:
        """The pipeline of the leadership."""
        return self.service.pipeline if self.service is not None else None

    @property
    def claim(self) -> Header | None:
        """The claim of the leadership."""
        return self.service.claim if self.service is not None else None

    def readable_version(self) -> int:
        """The newest version that this node shows to readers."""
        return self.service.local_version() if self.service is not None else 0

    def crash(self) -> None:
        """Everything in memory is gone; requests on their way are not."""
        self.count_persist()
        self.incarnation += 1
        self.paused_until = 0.0
        self._gone()

    def _gone(self) -> None:
        self._loop.kill()
        if self.stores is not None:
            self.stores.crashed()
        self.service = self.truncator = None
        self.recovering = False
        self.up = False
        self.world.ended(self)

    def start_to_take_over(self) -> None:
        """A fresh process, started with ``--take-over``."""
        self._rude = True
        self.start()

    def start_plainly(self) -> None:
        """A fresh process, started without ``--standby``; the ones after it are standbys again."""
        self._plain = True
        self.start()

    def start(self) -> None:
        """A fresh process. Started twice after a crash, the later one counts."""
        self._loop.kill()
        self._loop = self._new_loop()
        self.up = True
        self.run(self._live())

    def _new_loop(self) -> SimulatedLoop:
        # The methods of a loop that no shell of the log calls are left abstract, which only the type checker sees.
        return SimulatedLoop(self.world.agenda, self, self.world.promises.trouble)  # type: ignore[abstract]

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task of this process, and hand what it raises to the world."""
        self._loop.turn(lambda: self._loop.create_task(work).add_done_callback(self._look_at))

    def _look_at(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.world.promises.trouble(error)

    async def _live(self) -> None:
        """One process: it comes to lead, leads, and exits. Another one is started after it."""
        try:
            self.service = await self._take_the_lead()
        except CorruptData as error:
            self.world.promises.break_("recovery accepts an undamaged log", f"{error} {error.fields}")
        except HoldfastError as error:
            self.world.seen[f"start_{error.code}"] += 1
        else:
            await self._reign(self.service)
        self.world.agenda.after(50.0 + 500.0 * self.world.random.random(), self, self._again)

    def stop(self) -> None:
        """The world is over."""
        self._loop.kill()

    def _again(self) -> None:
        self._gone()
        self.start()

    async def _take_the_lead(self) -> CommitService:
        world = self.world
        random, shape = world.random, world.shape
        self.recovering = True
        here = ProcessPlace((self.address,), (self.scope,))
        identity = Identity(LeaderId(random.randbytes(16)), random.randbytes(32), self.address, self.scope, here)
        rude, self._rude = self._rude, False
        plain, self._plain = self._plain, False
        unfit = world.strikes("store_unfit", 0.1)
        live = NodeStore(self, self._loop, unfit=unfit)
        options = TakeoverOptions(
            allow_new=True,
            stores_mode=StoresMode.DISK if self.stores is None else StoresMode.LOG,
            take_over=rude,
            standby=not rude and not plain,
            sign_interval_ms=shape.sign_interval_ms,
            question_ms=shape.question_ms,
            retry_budget_ms=PATIENCE_S * 1000.0,
            ask_leader=self._ask_leader,
            probe=unfit or shape.probes,
            delay_ms=self.delay_ms,
        )
        world.seen["recoveries"] += 1
        takeover = await take_the_lead(live, identity, LogId(random.randbytes(16)), options, self.now)
        if unfit:
            world.promises.break_("a store that fails its probe gets nothing", self.address)
        world.seen["claim_lost"] += takeover.restarts
        self._shown = takeover.claim
        self._resolved = []
        self._resolved_shown = 0
        service = CommitService(
            Archive(self, live),
            takeover,
            identity,
            ServiceOptions(
                address=self.address,
                rules=shape.rules,
                request_timeout_ms=2_000.0,
                sign_interval_ms=shape.sign_interval_ms,
                idle_check_ms=shape.idle_check_ms,
                stalled_ms_max=shape.stalled_ms_max,
            ),
            live,
            self.now,
        )
        self.recovering = False
        service.feed = _WatchedFeed(self, takeover.claim)
        vars(service.pipeline)["step"] = self._watched(service.pipeline)
        world.seen["reigns"] += 1
        if world.truncates:
            options = TruncatorOptions(
                snapshots_keep=2,
                min_age_seconds=world.min_age_seconds,
                check_seconds=shape.look_ms / 1000.0,
                slots_min=1,
            )
            self.truncator = Truncator(service, live, options, self.now)
            self._loop.create_task(self.truncator.run()).add_done_callback(self._look_at)
        if world.suspends:
            self._loop.create_task(service.suspending.run()).add_done_callback(self._look_at)
        if (suspension := await service.suspending.look()) is not None:
            await service.close()
            raise suspension.error()
        world.began_to_lead(self)
        if self.stores is not None:
            self._loop.create_task(self.stores.lead(service)).add_done_callback(self._look_at)
        return service

    def _watched(self, pipeline: Pipeline) -> Callable[[p.Event], list[p.Effect]]:
        """The pipeline's step, with all invariants checked after it."""
        world, step = self.world, pipeline.step

        def watched(event: p.Event) -> list[p.Effect]:
            effects = step(event)
            if pipeline.ended is None:
                world.stepped(pipeline)
            if pipeline.release.holding:
                world.seen["held_for_a_proof"] += any(isinstance(effect, p.CheckOwnership) for effect in effects)
            return effects

        return watched

    async def _reign(self, service: CommitService) -> None:
        end: ServiceEnd = await service.ended
        self.world.seen[end.kind] += 1
        if end.kind == "damaged":
            self.world.promises.break_("no law of our own is broken", end.detail)
        if end.kind == "deposed":
            self.world.promises.deposed(service.claim, end.detail)
        self.count_persist()
        await service.close()

    def count_persist(self) -> None:
        """Add what the third stage counted to the world's ``seen``."""
        if self.service is not None:
            counters = self.service.pipeline.persist.counters
            self.world.seen["retries"] += counters.retries
            self.world.seen["hedges"] += counters.hedges
            self.world.seen["own_successes"] += counters.own_successes

    # -- nodes ask one another who they are ---------------------------------------------------------------------------

    async def _ask_leader(self, address: str, ms_max: float, _host: str) -> LeaderAnswer:
        asked: asyncio.Future[LeaderAnswer] = self._loop.create_future()
        loop = self._loop

        def told(answer: LeaderAnswer) -> None:
            if not asked.done():
                loop.turn(asked.set_result, answer)

        self.world.ask(self, address, ms_max, told)
        return await asked

    def asked_who(self, answer: Callable[[LeaderAnswer], None]) -> None:
        """Another process asks this one whether it leads."""
        if self.service is not None and self.leading:
            answer(LeaderAnswer(Reply.LEADS, self.service.leader_id, self.service.shown))
        else:
            answer(LeaderAnswer(Reply.LEADS_NOT))

    # -- clients ------------------------------------------------------------------------------------------------------

    def receive(self, attempt: Attempt, txn: Transaction) -> None:
        """A commit request arrives."""
        service = self.service
        refusal = None if service is None else service.admission()
        if service is None or refusal is not None:
            self.world.seen["refused_while_stalled"] += "waited_ms" in (refusal.fields if refusal else ())
            self.world.respond(self.world.owner_of(attempt).unknown, attempt)
            return
        if service.options.stalled_ms_max < inf:
            self.world.seen["admitted_while_in_flight"] += bool(service.pipeline.persist.in_flight)
        incarnation = self.incarnation

        def reply(entry: CommitEntry) -> None:
            if self.incarnation == incarnation and self.up:
                self._reply(entry)

        self._loop.turn(service.submit, [CommitEntry(txn, reply, attempt)])

    def asked_status(self, attempt: Attempt) -> None:
        """A status question arrives."""
        if self.service is None or attempt.request_id is None:
            self.world.respond(self.world.owner_of(attempt).unknown, attempt)
            return
        self.run(self._status(self.service, attempt, attempt.request_id))

    async def _status(self, service: CommitService, attempt: Attempt, request_id: str) -> None:
        try:
            answer = await service.status(request_id, attempt.txn_read_version)
        except CorruptData as error:
            self.world.promises.break_("history is readable", f"{error} {error.fields}")
        except HoldfastError as error:
            self.world.seen[f"status_{error.code}"] += 1
            self.world.respond(self.world.owner_of(attempt).unknown, attempt)
        else:
            self._status_is(attempt, answer.version)

    def asked_version(self) -> None:
        """A version question arrives."""
        if self.service is not None and self.leading:
            self.run(self._version(self.service, self.world.promises.frontier))

    async def _version(self, service: CommitService, frontier: int) -> None:
        try:
            version = await service.version()
        except HoldfastError as error:
            self.world.seen[f"version_{error.code}"] += 1
        else:
            self.world.promises.version_answered(version, frontier)
            self.world.seen["version_answered"] += 1

    def asked_noop(self) -> None:
        """A no-op arrives."""
        if self.service is not None and self.leading:
            self.run(self._noop(self.service))

    async def _noop(self, service: CommitService) -> None:
        try:
            await service.noop()
        except HoldfastError as error:
            self.world.seen[f"noop_{error.code}"] += 1
        else:
            self.world.seen["noops"] += 1

    def write(self) -> None:
        """This leader writes a batch that belongs to no client."""
        if self.service is not None and self.leading:
            key = b"x/alone-%d" % self.world.agenda.happened
            self._loop.turn(self.service.submit, [CommitEntry(Transaction([Write(key, b"")]), _no_reply)])

    def publish(self) -> None:
        """The stores of this leader write something."""
        if self.stores is not None and self.leading:
            self._loop.turn(self.stores.publish)

    def asked_to_step_down(self) -> None:
        """The operator wants this leader to drain and resign."""
        if self.service is not None and self.leading:
            self.run(self.service.step_down())

    # -- answers ------------------------------------------------------------------------------------------------------

    def _reply(self, entry: CommitEntry) -> None:
        attempt = entry.ticket
        assert isinstance(attempt, Attempt), "commits carry their attempts"
        world, outcome = self.world, entry.outcome
        client = world.owner_of(attempt)
        match outcome:
            case Committed(version=version):
                world.promises.answered_committed(attempt, version)
                world.seen["answered_committed"] += 1
                world.respond(client.committed, attempt, version)
            case Rejected():
                world.promises.answered_rejected(entry, outcome, world.promises.end_version())
                world.promises.answered_not_committed(attempt)
                world.seen[f"answered_{outcome.reason}"] += 1
                world.respond(client.denied, attempt)
            case InvalidRequest() | Unavailable():
                # The version was read at a leader that this one does not know of: the attempt may go elsewhere.
                world.seen["answered_future_version"] += 1
                world.respond(client.unknown, attempt)
            case None:
                world.promises.break_("every answer has an outcome", f"{attempt.identity}")
            case _:
                world.seen["answered_" + type(outcome).__name__.lower()] += 1
                world.respond(client.unknown, attempt)

    def _status_is(self, attempt: Attempt, version: int | None) -> None:
        world = self.world
        client = world.owner_of(attempt)
        if version is None:
            world.promises.answered_not_committed(attempt)
            world.seen["status_not_committed"] += 1
            world.respond(client.denied, attempt)
            return
        world.promises.answered_committed(attempt, version, by_id=True)
        world.seen["status_committed"] += 1
        if world.promises.at.get(attempt.identity) == version:
            world.respond(client.committed, attempt, version)
        else:
            # Another attempt under the same id committed: this one did not.
            world.respond(client.denied, attempt)

    # -- what subscribers are shown -----------------------------------------------------------------------------------

    def shown_durable(self, header: Header, transactions: Sequence[LoggedTransaction]) -> None:
        """A batch is shown as durable."""
        assert self._shown is not None, "a leader has claimed"
        self._shown = self.world.promises.shown_durable(self._shown, header)
        durable = [txn.version for txn in transactions]
        upto = self._resolved_shown + len(durable)
        if self._resolved[self._resolved_shown : upto] != durable:
            self.world.promises.break_("what is shown early becomes durable in order", f"{durable[:3]}")
        self._resolved_shown = upto
        self.world.shown(self, header, transactions)

    def shown_resolved(self, events: Sequence[FeedTransaction]) -> None:
        """Transactions are shown before they are durable."""
        versions = [event.version for event in events]
        self._resolved += versions
        assert self._shown is not None, "a leader has claimed"
        self.world.promises.handed_out(versions, self._shown.claim)

    def early_versions(self) -> list[int]:
        """What is shown as resolved and not yet as durable, in order."""
        return self._resolved[self._resolved_shown :]


def _no_reply(_: CommitEntry) -> None:
    """No client waits for it."""


class _WatchedFeed(Feed):
    """The real feed, and what goes into it."""

    def __init__(self, node: Node, claim: Header) -> None:
        super().__init__(claim, bytes_max=10_000)
        self._node = node
        self.resolved_subscribers = 1

    def publish_durable(self, header: Header, logged: Sequence[Logged], size: int) -> None:
        """As the feed does."""
        super().publish_durable(header, logged, size)
        self._node.shown_durable(header, [each for each in logged if isinstance(each, LoggedTransaction)])

    def publish_resolved(self, events: Sequence[FeedTransaction], size: int) -> None:
        """As the feed does."""
        super().publish_resolved(events, size)
        self._node.shown_resolved(events)

    def close(self) -> None:
        """As the feed does."""
        super().close()
        self._node.world.ended(self._node)
