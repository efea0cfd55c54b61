"""The commit pipeline: sequence -> resolve -> persist -> release. Only this module passes work between the stages.

    event             what happens                                                     waits for
    Arrived           order, decide, collect; send if a batch is due                   nothing
    RecordsReady      order and collect what the stores did by themselves              nothing
    PutAnswered       complete the slot; advance the watermark; answer; send the next    the store
    HeaderFound       found this leader's own earlier PUT, or proof of a later leader  the store
    OwnershipSeen     release the batches that were held; answer version questions     the store
    VersionAsked      join the next batch, or an ownership check                       a PUT or check begun later
    StatusAsked       ban the attempt, then follow all that was sequenced before       its position
    NoopAsked         travels through all four stages                                  its position
    TruncationDue     join the next batch, or an empty one                             that batch
    Tick              retries, hedges, batches due, giving up                          nothing
    ClockShown        the next header, of an empty batch if idle, says what they show  nothing
    Drain             when all work is done: the resign record; when durable: the end  everything in flight
    Abandon           the end, at once                                                 nothing

``step`` is pure: it takes an event that carries its instant, and returns effects.

Driver's duties (``service`` fulfils them; a simulation may be another driver):
1. Feed events one at a time. Their ``boot_ms`` never falls. Carry out all effects of one event before the next event:
   an effect may cause another event at once, and that event waits.
2. Carry out every effect once. Answer every Put, ReadBack and CheckOwnership with exactly one event, at any time and in
   any order. If the answer was lost, the event says ``Unknown``.
3. Step a Tick no later than ``next_deadline_ms``. A Tick that is a second late means that the process was paused.
4. After Ended, carry out nothing more for this leadership.
5. After a step that raised, take no further step: what the stages hold is answered by nobody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from typing import Final, assert_never

from holdfast.commit.format.batch import Header, Kind
from holdfast.commit.leadership.claims import has_successor
from holdfast.commit.stages import events
from holdfast.commit.stages.attempts import Attempts, Known
from holdfast.commit.stages.events import Asker, Batch, CommitEntry, Effect, EndKind, Event, Place, Put, Records
from holdfast.commit.stages.persist import Deadline, Persist, PersistRules, Verdict
from holdfast.commit.stages.release import Release
from holdfast.commit.stages.resolve import UNBOUNDED, Resolve
from holdfast.commit.stages.sequence import Sequence
from holdfast.objects.port import Unknown
from holdfast.values import Instant, Slot

FLOOR_EVERY_MS: Final = 20.0
OWNERSHIP_RETRY_MS: Final = 100.0


def _no_timer() -> float:
    return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRules:
    """The bounds of the four stages."""

    persist: PersistRules = field(default_factory=PersistRules)
    window_ms: float = 60_000.0
    window_bytes: int = 256 << 20
    resolve_work_max: int = 5_000
    """Microseconds, by estimate, that one step may spend on decisions."""


class Pipeline:
    """One leadership: from a claim that was created and checked, to Ended.

    After a crash: nothing that was answered is lost, because an answer is an effect only after Durable is.
    """

    def __init__(
        self,
        claim: Header,
        nonce_seed: bytes,
        rules: PipelineRules,
        now: Instant,
        *,
        proved_ms: float | None = None,
        timer: Callable[[], float] = _no_timer,
    ) -> None:
        """``proved_ms``: when the ownership check after the claim was sent; now, if it is not given. ``timer`` measures
        what the stages cost, in seconds; no decision depends on it."""
        assert claim.kind is Kind.CLAIM, "a leadership starts with a claim"
        attempts = Attempts(bytes_max=rules.window_bytes // 4)
        window_bytes = rules.window_bytes - rules.window_bytes // 4
        self.sequence = Sequence(claim.last_version, attempts)
        self.resolve = Resolve(claim.last_version, attempts, window_ms=rules.window_ms, bytes_max=window_bytes)
        self.persist = Persist(claim, nonce_seed, rules.persist)
        self.release = Release(claim.last_version, now.boot_ms if proved_ms is None else proved_ms)
        self.released_header: Header = claim
        """The header of the newest released batch; newer durable batches may still be held."""
        self._give_up_after_ms = rules.persist.give_up_after_ms
        self._give_up_held = Deadline()
        self.ended: events.Ended | None = None
        self.draining = False
        self._waiting: deque[CommitEntry | Records] = deque()
        self._records_waiting = 0
        """How many of the first in ``_waiting`` are records."""
        self._undecided: deque[CommitEntry | Place] = deque()
        self._resolve_work_max = rules.resolve_work_max
        self._parts_undecided = False
        self._banned_through = -1
        self._floor_ms = now.boot_ms
        self._truncations: list[tuple[int, Asker]] = []
        self._asked: list[Asker] = []
        self._riding: deque[tuple[Slot, list[Asker]]] = deque()
        self._checking: list[Asker] | None = None
        self._check_asked_ms = 0.0
        self._check_again_ms: float | None = None
        self._check_below: Slot | None = None
        """The oldest slot not sent when the check was; None when slots were in flight, so that it proves nothing."""
        self.unproved_since_ms: float | None = None
        """When the oldest unanswered ownership check was sent; None: there is none."""
        self.proof_trouble = ""
        """Why the last ownership check proved nothing; empty after one that passed."""
        self._timer = timer
        self.seconds = {"sequence": 0.0, "resolve": 0.0, "persist": 0.0, "release": 0.0}
        """The time that each stage has computed."""

    @property
    def is_pressed(self) -> bool:
        """Whether commits wait because a bound is reached: of versions not durable yet, or of slots in flight."""
        return bool(self._waiting) or self.persist.is_full

    def bytes_held(self) -> dict[str, int]:
        """The memory of the requests and batches in each stage. Cost: O(commits that are not decided)."""
        waiting = sum(entry.size for entry in self._waiting)
        undecided = sum(item.size for item in self._undecided if isinstance(item, CommitEntry | Records))
        return {
            "sequence": waiting + self.sequence.attempts.bytes_used(),
            "resolve": undecided + self.resolve.recent.bytes_used() + self.resolve.jobs.bytes_used(),
            "persist": self.persist.bytes_held,
            "release": self.release.bytes_held,
        }

    @property
    def waiting(self) -> int:
        """How many commits wait before stage 1 because versions are held back."""
        return len(self._waiting)

    @property
    def undecided(self) -> int:
        """How many commits have a version and wait for their decision."""
        return len(self._undecided)

    def step(self, event: Event) -> list[Effect]:
        """Take one event and return what is to be done about it."""
        if self.ended is not None:
            return self._refuse_after_the_end(event)
        effects: list[Effect] = []
        now = event.now
        match event:
            case events.Arrived(entries=entries):
                for entry in entries:
                    entry.arrived_ms = now.boot_ms
                    if not entry.size:
                        entry.size = events.request_bytes(entry.txn)
                self._order(now, entries, effects)
            case events.RecordsReady(records=records):
                self._wait_first(records)
                self._order(now, [], effects)
            case events.PutAnswered(slot=slot, answer=answer, number=number):
                verdict, read_backs = self.persist.answered(slot, answer, now.boot_ms, number)
                effects += read_backs
                self._judge(verdict, effects)
            case events.HeaderFound(slot=slot, found=found, certain=certain):
                self._judge(self.persist.read_back(slot, found, certain, now.boot_ms), effects)
            case events.OwnershipSeen(newest=newest):
                self._ownership_seen(now, newest, effects)
            case events.VersionAsked(ticket=ticket):
                self._asked.append(ticket)
            case events.StatusAsked(question=question):
                self._keep_floor(now)
                if self.sequence.ban(question.request_id) is None:
                    self._banned_through = self.sequence.assigned
                self._travel(Place(question), effects)
            case events.NoopAsked(ticket=ticket):
                self._travel(Place(ticket), effects)
            case events.Tick():
                self._tick(now, effects)
            case events.TruncationDue(through=through, ticket=ticket):
                self.persist.truncate_through = max(self.persist.truncate_through, through)
                self._truncations.append((through, ticket))
            case events.ClockShown(accepted=accepted):
                if accepted is not None:
                    self.persist.clock.accept(accepted)
                if not self.persist.in_flight and not self.draining:
                    self._send_empty(now, effects)
            case events.Drain():
                self.draining = True
            case events.Abandon():
                self._end("abandoned", "closed before it had drained", effects)
            case _:
                assert_never(event)
        if self.ended is None:
            self._advance(now, effects)
        return effects

    # -- the four stages in order -------------------------------------------------------------------------------------

    def _order(self, now: Instant, entries: Ordered[CommitEntry | Records], effects: list[Effect]) -> None:
        if self._waiting or len(entries) > self.sequence.room(self.release.durable_version):
            self._waiting.extend(entries)
            entries = self._take_waiting()
        self._keep_floor(now)
        began = self._timer()
        onward, look_up = self.sequence.order(entries, self.resolve.floor)
        self.seconds["sequence"] += self._timer() - began
        if look_up:
            effects.append(events.LookUp(look_up))
        self._undecided += onward
        if self.resolve.stores is not None:
            self._parts_undecided = any(isinstance(item, CommitEntry) and item.parts is not None for item in onward)
        self._decide(now, effects)

    def _decide(self, now: Instant, effects: list[Effect]) -> None:
        if not self._undecided:
            return
        began = self._timer()
        # The stores are asked in the order of the versions, and do nothing between an order and its decision.
        work_max = UNBOUNDED if self._parts_undecided else self._resolve_work_max
        self._parts_undecided = False
        decided = self.resolve.decide_some(self._undecided, work_max)
        self.seconds["resolve"] += self._timer() - began
        if not decided:
            return
        entries = [item for item in decided if type(item) is CommitEntry]
        effects.append(events.Resolved(entries))
        kept = [
            item for item in decided if isinstance(item, Records) or (isinstance(item, CommitEntry) and item.accepted)
        ]
        self._collect(decided, sum([item.size for item in kept]), bool(kept), now.boot_ms, effects)

    def _decided_through(self) -> int:
        """The newest version that no undecided commit is older than: a batch without commits may name it."""
        for item in self._undecided:
            if isinstance(item, CommitEntry | Records) and item.version:
                return item.version - 1
        return self.sequence.assigned

    def _wait_first(self, records: Records) -> None:
        """Take these records next. The stores know them, so a commit whose parts the stores do not know comes later."""
        self._waiting.insert(self._records_waiting, records)
        self._records_waiting += 1

    def _take_waiting(self) -> list[CommitEntry | Records]:
        room = self.sequence.room(self.release.durable_version)
        taken = [self._waiting.popleft() for _ in range(min(max(room, 0), len(self._waiting)))]
        self._records_waiting = max(0, self._records_waiting - len(taken))
        return taken

    def _collect(
        self, entries: list[CommitEntry | Place], added: int, writes: bool, now_ms: float, effects: list[Effect]
    ) -> None:
        """Entries with writes wait for a batch; other entries wait for the batches in flight, if any."""
        if writes or self.persist.collecting:
            self.persist.collect(entries, added, now_ms, self.resolve.floor)
        elif not self.persist.attach_to_newest(entries):
            if self.release.holding:
                # Batches that are durable but not yet proved to be owned stand before these entries.
                self.persist.collect(entries, 0, now_ms, self.resolve.floor)
            else:
                self._answer(entries, effects)

    def _travel(self, position: Place, effects: list[Effect]) -> None:
        if self._undecided:
            self._undecided.append(position)
            return
        self._collect([position], 0, False, 0.0, effects)

    def _keep_floor(self, now: Instant) -> None:
        if now.boot_ms - self._floor_ms >= FLOOR_EVERY_MS:
            self._move_floor(now)

    def _move_floor(self, now: Instant) -> None:
        if self.resolve.deciding:
            return
        self._floor_ms = now.boot_ms
        self.resolve.advance_floor(now.boot_ms, self.sequence.assigned, self.release.durable_version)

    def _advance(self, now: Instant, effects: list[Effect]) -> None:
        """After every event: release durable batches, send due batches, check ownership when needed."""
        durable = self.persist.take_durable()
        if durable:
            self._release(self.release.offer(durable, now.boot_ms), effects)
        # Nothing is sent while batches are held: a listing proves ownership only when nothing was in flight.
        self.persist.paused = self.release.holding
        if self._waiting:
            self._order(now, [], effects)
        began = self._timer()
        puts = self.persist.form(now, self._decided_through(), self.resolve.floor)
        self.seconds["persist"] += self._timer() - began
        self._send(puts, effects)
        self._make_room(now, effects)
        self._ask_for_ownership(now, effects)
        if self.draining:
            self._finish(now, effects)

    def _make_room(self, now: Instant, effects: list[Effect]) -> None:
        """Send an empty batch when something other than a commit waits for one.

        After each ban it moves the versions on, so that the ban leaves when the batch is durable; otherwise a client
        without a newer version to read would stay banned. It also carries a truncation while no commit arrives.
        """
        wanted = self.sequence.attempts.floor_for_bound()
        if self._banned_through == self.sequence.assigned:
            wanted = max(wanted, self.sequence.assigned + 1)
        busy = self.persist.in_flight or self.persist.collecting or self.release.holding or self.draining
        truncates = self.persist.truncate_through > self.persist.head.truncated_through
        if busy or self._undecided or not (truncates or wanted > self.release.durable_version):
            return
        self.sequence.assigned = max(self.sequence.assigned, wanted)
        self._send_empty(now, effects)

    def _send_empty(self, now: Instant, effects: list[Effect], kind: Kind = Kind.DATA) -> None:
        self._send(self.persist.form_empty(now, self._decided_through(), self.resolve.floor, kind), effects)

    def _send(self, puts: list[Put], effects: list[Effect]) -> None:
        """Send batches that were just formed. Questions ride on the newest of them, never on what was sent before."""
        if not puts:
            # Nothing was due. The newest batch began before the questions were asked, and proves nothing about them.
            return
        effects += puts
        self._ride()

    def _release(self, batches: list[Batch], effects: list[Effect]) -> None:
        if not batches:
            return
        last = batches[-1].header
        self.released_header = last
        self.release.durable_version = last.last_version
        effects.append(events.Durable(batches))
        for batch in batches:
            self._answer(batch.entries, effects)
        tickets: list[Asker] = []
        while self._riding and self._riding[0][0] >= last.slot:
            tickets += self._riding.popleft()[1]
        if tickets:
            effects.append(events.VersionIs(tickets, self.release.durable_version))
        truncated = [ticket for through, ticket in self._truncations if through <= last.truncated_through]
        if truncated:
            self._truncations = [waiting for waiting in self._truncations if waiting[0] > last.truncated_through]
            effects.append(events.Reached(truncated))

    def _answer(self, entries: list[CommitEntry | Place], effects: list[Effect]) -> None:
        began = self._timer()
        answers, positions = self.release.answers(entries)
        self.seconds["release"] += self._timer() - began
        for entry in answers:
            if entry.txn.request_id is not None:
                self.sequence.complete(entry)
        if self.persist.head.stores_mode:
            recorded = [
                item
                for item in entries
                if isinstance(item, Records) or (isinstance(item, CommitEntry) and item.record is not None)
            ]
            if recorded:
                effects.append(events.Recorded(recorded))
        if answers:
            effects.append(events.Answer(answers))
        noops: list[Asker] = []
        for position in positions:
            if isinstance(position, Records):
                continue
            if isinstance(position.ticket, events.StatusQuestion):
                effects.append(self._status_ready(position.ticket))
            else:
                noops.append(position.ticket)
        if noops:
            effects.append(events.Reached(noops))

    def _status_ready(self, question: events.StatusQuestion) -> events.StatusReady:
        known = self._committed(question.request_id)
        floor = self.resolve.floor
        if known is None:
            return events.StatusReady(question, None, floor)
        return events.StatusReady(question, known.version, floor, known.results)

    def committed_version(self, request_id: str) -> int | None:
        """The version at which ``request_id`` is known to be committed and released, None when that is not known."""
        known = self._committed(request_id)
        return None if known is None else known.version

    def _committed(self, request_id: str) -> Known | None:
        known = self.sequence.attempts.find(request_id)
        return known if isinstance(known, Known) and known.entry is None else None

    # -- proof of ownership -------------------------------------------------------------------------------------------

    def withdraw(self, ticket: Asker) -> None:
        """The caller with this ticket waits for its version no more: forget the ticket."""
        # The oldest lists first: who gives up has mostly waited longest, and stands at the beginning of the first one.
        for tickets in (*(riding for _, riding in self._riding), self._checking or [], self._asked):
            if ticket in tickets:
                tickets.remove(ticket)
                return

    def _ride(self) -> None:
        """Questions asked before the newest PUT began are answered when it is acknowledged."""
        if self._asked:
            self._riding.append((self.persist.head.slot, self._asked))
            self._asked = []

    def _ask_for_ownership(self, now: Instant, effects: list[Effect]) -> None:
        held = self.release.holding and not self.persist.in_flight
        needed = held or (self._asked and not self.persist.collecting)
        if not needed:
            # Who asked rides on a batch by now. A deadline left standing would be asked for again and again.
            self._check_again_ms = None
            if self._checking is None:
                self.unproved_since_ms = None
            return
        if self._checking is not None:
            return
        if self._check_again_ms is not None and now.boot_ms < self._check_again_ms:
            return
        self._checking, self._asked = self._asked, []
        self._check_asked_ms = now.boot_ms
        self._check_below = None if self.persist.in_flight else self.persist.next_slot
        self._check_again_ms = None
        if self.unproved_since_ms is None:
            self.unproved_since_ms = now.boot_ms
        effects.append(events.CheckOwnership())

    def _ownership_seen(self, now: Instant, newest: Slot | Unknown | None, effects: list[Effect]) -> None:
        asked = self._checking or []
        if isinstance(newest, Unknown) and newest.final:
            self._checking = None
            self._end("gave_up", f"the store takes nothing any more: {newest.detail}", effects, asked)
            return
        if newest is None or isinstance(newest, Unknown):
            # Nor does an empty listing prove anything: this leader's own claim is never removed.
            self._checking, self._asked = None, asked + self._asked
            self._check_again_ms = now.boot_ms + OWNERSHIP_RETRY_MS
            self.proof_trouble = "it lists no object of this log" if newest is None else newest.detail
            return
        self.unproved_since_ms = None
        self.proof_trouble = ""
        if has_successor(newest, oldest_free=self.persist.next_slot):
            self._checking = None
            self._end("deposed", f"a later leader has written slot {newest:020d}", effects, asked)
            return
        sent_since = self._check_below is not None and newest <= self._check_below
        if self._check_below is not None and not sent_since:
            self._release(self.release.owned(self._check_asked_ms, now.boot_ms), effects)
        self._checking = None
        if asked and self.persist.in_flight:
            # The newest key may be a later leader's claim in a slot that this one has sent and not heard of. Once all
            # of those are proved its own, no claim stood there when the list was made.
            self._riding.append((self.persist.head.slot, asked))
        elif asked and sent_since:
            # The answer is so late that the slot was sent and created since: which object was listed is not known.
            self._asked = asked + self._asked
        elif asked:
            effects.append(events.VersionIs(asked, self.release.durable_version))

    # -- the end ------------------------------------------------------------------------------------------------------

    def _tick(self, now: Instant, effects: list[Effect]) -> None:
        if self.persist.too_long(now.boot_ms):
            self._judge(Verdict.GAVE_UP, effects)
            return
        if self.release.holding and self._give_up_held.has_passed(self._held_until_ms(), now.boot_ms):
            trouble = self.proof_trouble or "it did not answer"
            self._end("gave_up", f"the store did not prove in time who owns the log: {trouble}", effects)
            return
        effects += self.persist.resend(now.boot_ms)
        self._decide(now, effects)
        self._move_floor(now)

    def _held_until_ms(self) -> float:
        return self.release.held_since_ms + self._give_up_after_ms

    def _judge(self, verdict: Verdict, effects: list[Effect]) -> None:
        if verdict is Verdict.DEPOSED:
            self._end("deposed", "another leader's object stands in a slot of this one", effects)
        elif verdict is Verdict.GAVE_UP:
            trouble = self.persist.last_trouble or "it did not answer"
            self._end("gave_up", f"the store did not take a batch in time: {trouble}", effects)
        elif verdict is Verdict.SHUT:
            self._end("gave_up", f"the store takes nothing any more: {self.persist.last_trouble}", effects)

    def _finish(self, now: Instant, effects: list[Effect]) -> None:
        if self.persist.in_flight or self.release.holding:
            return
        if self.persist.resigned:
            # What came in after the resign record was sent is never sent: it ends here as unknown.
            self._end("resigned", "drained and resigned", effects)
            return
        if self.persist.collecting or self._undecided or self._waiting:
            return
        self._send_empty(now, effects, Kind.RESIGN)

    def _end(self, kind: EndKind, detail: str, effects: list[Effect], asked: list[Asker] | None = None) -> None:
        answers, positions = self.release.abandon([*self.persist.abandon(), *self._undecided, *self._waiting])
        self._undecided.clear()
        self._waiting.clear()
        tickets = [*(asked or []), *(self._checking or []), *self._asked]
        tickets += [ticket for _, riding in self._riding for ticket in riding]
        tickets += [position.ticket for position in positions]
        tickets += [ticket for _, ticket in self._truncations]
        self.ended = events.Ended(kind, detail, tickets)
        if answers:
            effects.append(events.Answer(answers))
        effects.append(self.ended)

    def _refuse_after_the_end(self, event: Event) -> list[Effect]:
        assert self.ended is not None, "the leadership is over"
        match event:
            case events.Arrived(entries=entries):
                return [events.Answer(self.release.abandon(entries)[0])]
            case events.RecordsReady(records=records):
                return [events.Ended(self.ended.kind, self.ended.detail, [records])]
            case (
                events.VersionAsked(ticket=ticket)
                | events.NoopAsked(ticket=ticket)
                | events.TruncationDue(ticket=ticket)
            ):
                return [events.Ended(self.ended.kind, self.ended.detail, [ticket])]
            case events.StatusAsked(question=question):
                return [events.Ended(self.ended.kind, self.ended.detail, [question])]
            case _:
                return []

    def next_deadline_ms(self) -> float | None:
        """When the driver must step a Tick at the latest, None when only an event can change anything."""
        if self.ended is not None:
            return None
        if self._undecided:
            return 0.0
        held_until_ms = self._give_up_held.at_ms(self._held_until_ms()) if self.release.holding else None
        deadlines = (self.persist.next_deadline_ms(), self._check_again_ms, held_until_ms)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def check(self) -> None:
        """Assert the invariants of the whole and of every stage."""
        self.sequence.check()
        self.resolve.check()
        self.persist.check()
        self.release.check()
        durable_version = self.release.durable_version
        assert durable_version <= self.persist.durable_version, "nothing is released before it is durable"
        assert self.released_header.last_version == durable_version, "both belong to the newest released batch"
        assert self.persist.durable_version <= self.sequence.assigned, "nothing is durable before it is ordered"
