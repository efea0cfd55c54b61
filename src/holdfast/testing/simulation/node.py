"""One process of a simulated world: standby, taking over, leading, deposed.

Owns: a driver of the real recovery decisions (it mirrors ``commit/takeover``) and a driver of the real ``Pipeline`` (it
mirrors ``commit/service``). Does not own: any decision about the log, the network, what clients make of answers.

Failure model: a node crashes at any moment (its requests stay on their way), pauses while its clocks run on, has its
wall clock set, is cut off from the store, and does not know that it was deposed until its own requests tell it.

Long, because it is one life from start to end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.commit import batch as batch_format
from holdfast.commit import events as p
from holdfast.commit import leadership
from holdfast.commit.batch import Header
from holdfast.commit.chain import next_slot
from holdfast.commit.entry import CommitEntry
from holdfast.commit.events import Put, ReadBack
from holdfast.commit.pipeline import Pipeline
from holdfast.commit.transaction import Committed, Rejected, Transaction, Unanswered
from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.objects.port import CreateAnswer, Created, Unknown
from holdfast.testing.simulation.network import Rows
from holdfast.testing.simulation.promises import Attempt, PromiseBroken
from holdfast.values import Instant, LeaderId, LogId, Slot

if TYPE_CHECKING:
    from holdfast.testing.simulation.world import World

__all__ = ["Node", "StatusTicket", "VersionTicket"]

EPOCH_MS = 1_700_000_000_000
RETRY_MS = 40.0
TICKS_AT_ONCE_MAX = 20


@dataclass(frozen=True, slots=True)
class VersionTicket:
    """A version question, with the newest version known to anybody when it was asked."""

    frontier: int
    attempt: Attempt | None = None


@dataclass(frozen=True, slots=True)
class StatusTicket:
    """A status question of one client about one attempt."""

    attempt: Attempt


class Node:
    """One machine: it starts processes one after another."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.incarnation = 0
        self.paused_until = 0.0
        self.wall_skew_ms = 0.0
        self.pipeline: Pipeline | None = None
        self.identity: leadership.Identity | None = None
        self.claim: Header | None = None
        self.recovering = False
        self._claims = 0
        self._frontier: leadership.Frontier | None = None
        self._objects: dict[Slot, bytes] = {}
        self._page = leadership.Page((), frozenset())
        self._missing = 0
        self._timer_ms: float | None = None
        self._inbox: list[CommitEntry] = []
        self._shown: Header | None = None
        self._resolved: list[int] = []
        self._events: deque[p.Event] = deque()
        self._resolved_shown = 0
        self._ticks = 0
        self._ticked_ms = 0.0

    # -- life ---------------------------------------------------------------------------------------------------------

    def now(self) -> Instant:
        """This node's clocks: one that never falls, one that anybody may set."""
        return Instant(self.world.agenda.now, int(EPOCH_MS + self.world.agenda.now + self.wall_skew_ms))

    @property
    def leading(self) -> bool:
        """Whether this node believes that it leads."""
        return self.pipeline is not None and self.pipeline.ended is None

    def readable_version(self) -> int:
        """The newest version that this node shows to readers."""
        return self.pipeline.release.durable_version if self.pipeline is not None else 0

    def crash(self) -> None:
        """Everything in memory is gone; requests on their way are not."""
        self.count_persist()
        self.incarnation += 1
        self.pipeline = None
        self.recovering = False
        self.paused_until = 0.0
        self._timer_ms = None
        self._inbox = []
        self.world.ended(self)

    def start(self) -> None:
        """A fresh process: it follows until it is time to take over."""
        random = self.world.random
        self.identity = leadership.Identity(
            LeaderId(random.randbytes(16)), random.randbytes(32), f"node-{self.number}:8080"
        )
        self._claims = 0
        self.watch()

    def watch(self) -> None:
        """A standby looks after the leader it knows; it takes over when that one is silent, or from bad manners."""
        if self.leading or self.recovering:
            return
        world = self.world
        rude = world.strikes("rude_takeover", 0.02)
        if rude or not world.somebody_answers():
            self.recover()
            return
        world.agenda.after(100.0 + 400.0 * world.random.random(), self, self.watch)

    # -- taking over: the steps of commit/takeover, the decisions of commit/leadership --------------------------------

    def recover(self) -> None:
        """Step 1: list the newest page."""
        self.recovering = True
        self.pipeline = None
        self._objects = {}
        self.world.coverage["recoveries"] += 1
        self.world.network.list(self, batch_format.SPAN_MAX, self.page_listed)

    def page_listed(self, rows: Rows | Unknown) -> None:
        """Step 2: read the headers that the decision will need."""
        if isinstance(rows, Unknown):
            self.world.agenda.after(RETRY_MS * self.world.random.random(), self, self.recover)
            return
        self._page = leadership.read_page(rows)
        wanted = leadership.first_headers(self._page)
        if wanted:
            self._read_headers(wanted)
        else:
            self.decide()

    def _read_headers(self, slots: tuple[Slot, ...]) -> None:
        self._missing = len(slots)
        for slot in slots:
            self._read_header(slot)

    def _read_header(self, slot: Slot) -> None:
        def header_read(data: bytes | Unknown | None) -> None:
            if isinstance(data, Unknown):
                self._read_header(slot)
                return
            if data is not None:
                self._objects[slot] = data
            self._missing -= 1
            if not self._missing:
                self.decide()

        self.world.network.read(self, slot, header_read)

    def decide(self) -> None:
        """Step 3: the decision table; then the claim, alone."""
        try:
            plan = leadership.plan_recovery(self._page, self._objects, allow_new=True)
        except HoldfastError as error:
            raise PromiseBroken("recovery accepts an undamaged log", str(error)) from error
        if isinstance(plan, leadership.NeedHeaders):
            if any(slot not in self.world.store.objects for slot in plan.slots):
                # Retention removed it meanwhile: the listing was old.
                self.world.agenda.after(RETRY_MS, self, self.recover)
                return
            self._read_headers(plan.slots)
            return
        self.stake(plan)

    def stake(self, frontier: leadership.Frontier) -> None:
        """The claim for this frontier, sent at once or after a while."""
        assert self.identity is not None, "a process has an identity"
        self._frontier = frontier
        self._claims += 1
        nonce = self._claims.to_bytes(8, "little") + self.identity.nonce_seed[:8]
        log_id = LogId(self.identity.nonce_seed[:16])
        self.claim = leadership.claim_header(
            frontier, self.identity, nonce=nonce, log_id=log_id, wall_ms=self.now().wall_ms
        )
        wait = 0.0
        if self.world.strikes("claim_dawdles", 0.2):
            wait = self.world.random.choice((30.0, 500.0, 3_000.0)) * self.world.random.random()
        self.world.agenda.after(wait, self, self.send_claim)

    def send_claim(self) -> None:
        """Step 4: the claim, the identical bytes until something is certain (R2)."""
        assert self.claim is not None, "the decision was taken"
        self.world.network.create(self, self.claim.slot, leadership.encode_claim(self.claim), self.claim_answered)

    def claim_answered(self, answer: CreateAnswer) -> None:
        """Created: check. Refused: look whose it is. Unknown: again."""
        assert self.claim is not None, "the claim was sent"
        match answer:
            case Created():
                self.check_claim()
            case Unknown():
                self.world.agenda.after(RETRY_MS * self.world.random.random(), self, self.send_claim)
            case _:
                self.world.network.read(self, self.claim.slot, self.claim_found)

    def claim_found(self, data: bytes | Unknown | None) -> None:
        """Whose object refused the claim?"""
        assert self.claim is not None, "the claim was sent"
        if data is None or isinstance(data, Unknown):
            self.world.agenda.after(RETRY_MS * self.world.random.random(), self, self.send_claim)
        elif batch_format.decode_header(data, slot=self.claim.slot).nonce == self.claim.nonce:
            self.world.coverage["claim_was_own"] += 1
            self.check_claim()
        else:
            self.world.coverage["claim_lost"] += 1
            if self._frontier is not None and self._frontier.predecessor and self.world.random.random() < 0.5:
                self.walk(self._frontier.predecessor, batch_format.SPAN_MAX)
            else:
                self.recover()

    def walk(self, head: Header, steps: int) -> None:
        """Step 4b: after a lost claim, on along the chain of the leader that lives (``takeover._chase``)."""
        slot = next_slot(head)

        def walked(data: bytes | Unknown | None) -> None:
            if isinstance(data, Unknown):
                self.walk(head, steps)
                return
            step = leadership.walk_on(head, None if data is None else batch_format.decode_header(data, slot=slot))
            if isinstance(step, leadership.Frontier):
                self.world.coverage["walked_on"] += 1
                self.stake(step)
            elif step is None or steps == 1:
                self.recover()
            else:
                self.walk(step, steps - 1)

        self.world.network.read(self, slot, walked)

    def check_claim(self) -> None:
        """Step 5: the ownership check."""
        self.world.network.list(self, 1, self.claim_checked)

    def claim_checked(self, rows: Rows | Unknown) -> None:
        """Nobody is past the claim: lead."""
        assert self.claim is not None, "the claim was sent"
        if isinstance(rows, Unknown):
            self.check_claim()
        elif leadership.somebody_is_past(_newest(rows), oldest_free=batch_format.jump(self.claim.slot)):
            self.world.coverage["claim_was_passed"] += 1
            self.recover()
        else:
            self.lead()

    # -- leading: the duties of a driver of the pipeline --------------------------------------------------------------

    def lead(self) -> None:
        """The reign begins."""
        assert self.claim is not None and self.identity is not None, "a leader has claimed"
        self.recovering = False
        self.pipeline = Pipeline(self.claim, self.identity.nonce_seed, self.world.shape.rules, self.now())
        self._shown = self.claim
        self._resolved = []
        self._resolved_shown = 0
        self._timer_ms = None
        self.world.coverage["reigns"] += 1
        self.world.began_to_lead(self)

    def receive(self, attempt: Attempt, txn: Transaction) -> None:
        """A commit request arrives."""
        if self.pipeline is None:
            self.world.tell(self.world.owner_of(attempt).unknown, attempt)
            return
        self._inbox.append(CommitEntry(txn, _nobody, attempt))
        if len(self._inbox) == 1:
            self.world.agenda.after(self.world.random.choice((0.0, 0.2, 1.0)), self, self.pump)

    def pump(self) -> None:
        """Everything that arrived since the last turn goes in at once."""
        entries, self._inbox = self._inbox, []
        if self.pipeline is not None:
            self.step(p.Arrived(self.now(), entries))

    def asked_status(self, attempt: Attempt) -> None:
        """A status question arrives."""
        if self.pipeline is None or attempt.request_id is None:
            self.world.tell(self.world.owner_of(attempt).unknown, attempt)
            return
        question = p.StatusQuestion(attempt.request_id, attempt.txn_read_version, StatusTicket(attempt))
        self.step(p.StatusAsked(self.now(), question))

    def asked_version(self) -> None:
        """A version question arrives."""
        if self.leading:
            self.step(p.VersionAsked(self.now(), VersionTicket(self.world.promises.frontier)))

    def asked_noop(self) -> None:
        """A no-op arrives."""
        if self.leading:
            self.step(p.NoopAsked(self.now(), "noop"))

    def asked_to_step_down(self) -> None:
        """The operator wants this leader to drain and resign."""
        if self.leading:
            self.step(p.Drain(self.now()))

    def tick(self, due_ms: float) -> None:
        """The time that the pipeline asked for has come; a timer that was overtaken by an earlier one is void."""
        if due_ms != self._timer_ms:
            return
        self._timer_ms = None
        now_ms = self.world.agenda.now
        self._ticks = self._ticks + 1 if now_ms == self._ticked_ms else 0
        self._ticked_ms = now_ms
        if self._ticks > TICKS_AT_ONCE_MAX:
            raise PromiseBroken("an idle leader does not spin", f"{self._ticks} ticks at {now_ms:.3f} ms")
        if self.leading:
            self.step(p.Tick(self.now(), heartbeat=self.world.random.random() < 0.1))

    def step(self, event: p.Event) -> None:
        """Step the pipeline and carry out every effect, then step it with the events that these led to."""
        self._events.append(event)
        if len(self._events) > 1:
            return
        while self._events:
            self._take(self._events[0])
            self._events.popleft()

    def _take(self, event: p.Event) -> None:
        pipeline = self.pipeline
        if pipeline is None:
            return
        for effect in pipeline.step(event):
            self._carry_out(effect)
            if self.pipeline is not pipeline:
                return
        self.world.stepped(pipeline)
        deadline = pipeline.next_deadline_ms()
        if deadline is not None and (self._timer_ms is None or deadline < self._timer_ms):
            self._timer_ms = deadline
            self.world.agenda.after(max(0.0, deadline - self.world.agenda.now), self, self.tick, deadline)

    def _carry_out(self, effect: p.Effect) -> None:
        promises, network = self.world.promises, self.world.network
        match effect:
            case Put(slot=slot, data=data):
                network.create(self, slot, data, self._put_answered(slot))
            case ReadBack(slot=slot, certain=certain):
                network.read(self, slot, self._header_found(slot, certain))
            case p.CheckOwnership():
                assert self.pipeline is not None, "a leader checks"
                self.world.coverage["held_for_a_proof"] += self.pipeline.release.holding
                network.list(self, 1, self.ownership_seen)
            case p.Resolved(entries=entries):
                accepted = [entry.version for entry in entries if entry.accepted]
                self._resolved += accepted
                assert self.claim is not None, "a leader has claimed"
                promises.handed_out(accepted, self.claim.slot)
            case p.Durable(batches=batches):
                assert self._shown is not None, "a leader has claimed"
                self._shown = promises.shown_durable(self._shown, batches)
                self._show_resolved([txn.version for batch in batches for txn in batch.transactions])
                self.world.shown(self, batches)
            case p.Answer(entries=entries):
                for entry in entries:
                    self._reply(entry)
            case p.VersionIs(tickets=tickets, version=version):
                for ticket in tickets:
                    self._version_is(ticket, version)
            case p.StatusReady():
                self._status_ready(effect)
            case p.LookUp(entries=entries):
                self._look_up(entries)
            case p.Reached():
                self.world.coverage["noops"] += 1
            case p.Ended():
                self._reign_ended(effect)

    def _put_answered(self, slot: Slot) -> Callable[[CreateAnswer], None]:
        def put_answered(answer: CreateAnswer) -> None:
            self.step(p.PutAnswered(self.now(), slot, answer))

        return put_answered

    def _header_found(self, slot: Slot, certain: bool) -> Callable[[bytes | Unknown | None], None]:
        def header_found(data: bytes | Unknown | None) -> None:
            found = batch_format.decode_header(data, slot=slot) if isinstance(data, bytes) else data
            self.step(p.HeaderFound(self.now(), slot, found, certain))

        return header_found

    def ownership_seen(self, rows: Rows | Unknown) -> None:
        """The ownership check's listing arrives."""
        newest = rows if isinstance(rows, Unknown) else _newest(rows)
        self.step(p.OwnershipSeen(self.now(), newest))

    def _show_resolved(self, durable: list[int]) -> None:
        """What was shown as resolved must become durable in the same order, from the first on."""
        upto = self._resolved_shown + len(durable)
        if self._resolved[self._resolved_shown : upto] != durable:
            raise PromiseBroken("what is shown early becomes durable in order", f"{durable[:3]}")
        self._resolved_shown = upto

    # -- answers ------------------------------------------------------------------------------------------------------

    def _reply(self, entry: CommitEntry) -> None:
        attempt = entry.ticket
        assert isinstance(attempt, Attempt), "commits carry their attempts"
        world, outcome = self.world, entry.outcome
        client = world.owner_of(attempt)
        match outcome:
            case Committed(version=version):
                world.promises.answered_committed(attempt, version)
                world.coverage["answered_committed"] += 1
                world.tell(client.committed, attempt, version)
            case Rejected():
                world.promises.answered_rejected(entry, outcome, world.promises.end_version())
                world.promises.answered_not_committed(attempt)
                world.coverage[f"answered_{outcome.reason}"] += 1
                world.tell(client.denied, attempt)
            case InvalidRequest():
                # The version was read at a leader that this one does not know of: the attempt may go elsewhere.
                world.coverage["answered_future_version"] += 1
                world.tell(client.unknown, attempt)
            case None:
                raise PromiseBroken("every answer has an outcome", f"{attempt.identity}")
            case _:
                world.coverage["answered_" + type(outcome).__name__.lower()] += 1
                world.tell(client.unknown, attempt)

    def _version_is(self, ticket: object, version: int) -> None:
        assert isinstance(ticket, VersionTicket), "version questions carry their frontier"
        self.world.promises.version_answered(version, ticket.frontier)
        self.world.coverage["version_answered"] += 1
        if ticket.attempt is not None:
            self._status_is(ticket.attempt, None)

    def _status_ready(self, ready: p.StatusReady) -> None:
        ticket = ready.question.ticket
        assert isinstance(ticket, StatusTicket) and self.pipeline is not None, "status questions carry their attempts"
        if ready.version is not None:
            self._status_is(ticket.attempt, ready.version)
        elif ready.question.min_version < ready.complete_above:
            until = self.pipeline.persist.durable_version
            delay = self.world.network.delay_ms() * 4
            self.world.agenda.after(delay, self, self.status_looked_up, ticket.attempt, until)
        else:
            self._prove_absence(ticket.attempt)

    def status_looked_up(self, attempt: Attempt, until: int) -> None:
        """The log below the window was read for a status question."""
        self.world.coverage["status_read_the_log"] += 1
        assert attempt.request_id is not None, "only attempts with an id are asked about"
        found = self.world.promises.find(attempt.request_id, attempt.txn_read_version, until)
        if found is not None:
            self._status_is(attempt, found)
        else:
            self._prove_absence(attempt)

    def _prove_absence(self, attempt: Attempt) -> None:
        self.step(p.VersionAsked(self.now(), VersionTicket(self.world.promises.frontier, attempt)))

    def _status_is(self, attempt: Attempt, version: int | None) -> None:
        client = self.world.owner_of(attempt)
        if version is None:
            self.world.promises.answered_not_committed(attempt)
            self.world.coverage["status_not_committed"] += 1
            self.world.tell(client.denied, attempt)
            return
        self.world.promises.answered_committed(attempt, version, by_id=True)
        self.world.coverage["status_committed"] += 1
        if self.world.promises.at.get(attempt.identity) == version:
            self.world.tell(client.committed, attempt, version)
        else:
            # Another attempt under the same id committed: this one did not.
            self.world.tell(client.denied, attempt)

    def _look_up(self, entries: list[CommitEntry]) -> None:
        assert self.pipeline is not None, "a leader looks up"
        until = self.pipeline.persist.durable_version
        for entry in entries:
            self.world.agenda.after(self.world.network.delay_ms() * 4, self, self.looked_up, entry, until)

    def looked_up(self, entry: CommitEntry, until: int) -> None:
        """The log was read for an attempt whose read version lies below the window."""
        request_id, read_version = entry.txn.request_id, entry.txn.read_version
        attempt = entry.ticket
        assert request_id is not None and read_version is not None, "only attempts are looked up"
        assert isinstance(attempt, Attempt), "commits carry their attempts"
        found = self.world.promises.find(request_id, read_version, until)
        self.world.coverage["attempt_looked_up"] += 1
        if found is not None and self.world.promises.at.get(attempt.identity) != found:
            return
        entry.outcome = Committed(found) if found is not None else Rejected("too_old")
        entry.durable_version = self.readable_version()
        self._reply(entry)

    def count_persist(self) -> None:
        """Add what this reign's third stage counted to the world's coverage."""
        if self.pipeline is not None:
            counters = self.pipeline.persist.counters
            self.world.coverage["retries"] += counters.retries
            self.world.coverage["hedges"] += counters.hedges
            self.world.coverage["own_successes"] += counters.own_successes

    # -- the end ------------------------------------------------------------------------------------------------------

    def _reign_ended(self, end: p.Ended) -> None:
        pipeline = self.pipeline
        assert pipeline is not None and pipeline.ended is not None, "only a leader's reign ends"
        for ticket in end.tickets:
            question = ticket.ticket if isinstance(ticket, p.StatusQuestion) else ticket
            attempt = question.attempt if isinstance(question, StatusTicket | VersionTicket) else None
            if attempt is not None:
                self.world.tell(self.world.owner_of(attempt).unknown, attempt)
        if end is not pipeline.ended:
            return
        self.world.coverage[end.kind] += 1
        assert self.claim is not None, "a leader has claimed"
        if end.kind == "deposed":
            self.world.promises.deposed(self.claim, end.detail)
        self.count_persist()
        self.world.ended(self)
        self.world.agenda.after(50.0 + 500.0 * self.world.random.random(), self, self.start)


def _newest(rows: Rows) -> Slot | None:
    page = leadership.read_page(rows)
    return page.slots[0] if page.slots else None


def _nobody(entry: CommitEntry) -> None:
    """Answers are an effect here, not a callback."""
    assert isinstance(entry.outcome, Unanswered), "the pipeline itself calls nobody"
