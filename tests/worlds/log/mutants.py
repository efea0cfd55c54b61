"""Mutants of the log: the real code with one rule taken out, which a world must notice.

The machines' own ``check()`` does not run: what catches a mutant must be visible from outside. Each docstring says in
one line what the author of the broken code forgot. These functions reach into private state on purpose: a mutant is the
real machine with one line changed, not a model of it.
"""
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final
from zlib import crc32

import msgspec
from tests.one_line_mutants import mutated
from tests.worlds.harness import Mutants
from tests.worlds.log.broken_law import run_broken_law
from tests.worlds.log.etiquette import run_etiquette, run_suspensions
from tests.worlds.log.world import run_world

from holdfast.commit.format import batch, chain
from holdfast.commit.format.batch import encode_body, encode_object
from holdfast.commit.format.transaction import Committed, Rejected
from holdfast.commit.leadership import claims, evidence, signs, takeover, takeover_machine
from holdfast.commit.leadership import takeover_events as t
from holdfast.commit.leadership.suspension import Suspension
from holdfast.commit.leadership.suspensions import Suspending, Suspensions
from holdfast.commit.leadership.takeover_machine import Flow, State, TakeoverMachine
from holdfast.commit.service import CommitService
from holdfast.commit.stages import attempts, events, judge, persist, pipeline, release, resolve, sequence
from holdfast.commit.stages.events import Batch, CommitEntry, Place
from holdfast.commit.window import RecentWrites
from holdfast.objects.port import CREATED, CreateAnswer, Refused, Unknown
from holdfast.values import Instant, Slot, Version

__all__ = ["MUTANTS"]

NEVER: Final = 1 << 60
MUTANTS: Final = Mutants(partial(run_world, check_every=NEVER), seeds_max=200)

_answered = persist.Persist.answered
_send = persist.Persist._send
_abandon = release.Release.abandon
_collect = pipeline.Pipeline._collect
_ask_for_ownership = pipeline.Pipeline._ask_for_ownership
_offer = release.Release.offer
_ownership_seen = pipeline.Pipeline._ownership_seen
_admit = sequence.Sequence._admit_attempt
_resolve_init = resolve.Resolve.__init__
_driven = takeover.Driver._carry_out
_claim_header = claims.claim_header
_find = TakeoverMachine._find
_claim = TakeoverMachine._claim
_judged = evidence.judge
_looked = TakeoverMachine._looked
_hear = TakeoverMachine._hear
_at_peace = TakeoverMachine._at_peace
_look_at_suspensions = Suspending.look
_see = TakeoverMachine._see
_walk_on = claims.walk_on

# -- making durable ---------------------------------------------------------------------------------------------------


@MUTANTS.breaks("a commit is answered after its batch is durable", "take_durable", persist.Persist)
def acknowledge_before_durable(self: persist.Persist) -> list[Batch]:
    """A batch is durable as soon as it is sent."""
    durable: list[Batch] = []
    while self.in_flight:
        durable.append(self.in_flight.popleft())
        self.durable_header = durable[-1].header
    return durable


@MUTANTS.breaks("R5: acknowledge in slot order", "take_durable", persist.Persist)
def acknowledge_out_of_order(self: persist.Persist) -> list[Batch]:
    """A batch is durable when it is created, whatever stands before it."""
    durable = [item for item in self.in_flight if item.done and item.formed_ms >= 0]
    for item in durable:
        item.formed_ms = -1.0
        self.durable_header = item.header
    while self.in_flight and self.in_flight[0].done:
        self.in_flight.popleft()
    return durable


@MUTANTS.breaks("R1: the span of slots is bounded, not their number", "_may_send", persist.Persist, first_seed=70)
def count_instead_of_span(self: persist.Persist) -> bool:
    """Open requests are counted; completed ones after an open one are not."""
    return sum(not item.done for item in self.in_flight) < self._rules.window and not self.resigned


@MUTANTS.breaks("R6: a refusal proves nothing", "answered", persist.Persist)
def refusal_is_success(
    self: persist.Persist, slot: int, answer: CreateAnswer, now_ms: float, number: int = 1
) -> tuple[persist.Verdict, list[events.ReadBack]]:
    """A refusal is taken for an own earlier success, unread."""
    item = self._find(slot)
    if isinstance(answer, Refused) and item is not None:
        item.done = True
        return persist.Verdict.GOES_ON, []
    return _answered(self, slot, answer, now_ms, number)


@MUTANTS.breaks("R6: a refusal is read back", "answered", persist.Persist)
def refusal_not_read_back(
    self: persist.Persist, slot: int, answer: CreateAnswer, now_ms: float, number: int = 1
) -> tuple[persist.Verdict, list[events.ReadBack]]:
    """A refusal is taken for another leader, unread."""
    item = self._find(slot)
    if isinstance(answer, Refused) and item is not None and not item.done:
        return persist.Verdict.DEPOSED, []
    return _answered(self, slot, answer, now_ms, number)


@MUTANTS.breaks("unknown is retried, never a success", "answered", persist.Persist)
def unknown_is_success(
    self: persist.Persist, slot: int, answer: CreateAnswer, now_ms: float, number: int = 1
) -> tuple[persist.Verdict, list[events.ReadBack]]:
    """No answer is taken for created."""
    item = self._find(slot)
    if isinstance(answer, Unknown) and item is not None:
        item.done = True
        return persist.Verdict.GOES_ON, []
    return _answered(self, slot, answer, now_ms, number)


@MUTANTS.breaks("R6: nonce and CRC identify an own object", "read_back", persist.Persist)
def anything_found_is_own(
    self: persist.Persist, slot: int, found: object, certain: bool, now_ms: float
) -> persist.Verdict:
    """The object that refused the PUT is taken for an own one."""
    item = self._find(slot)
    if item is not None:
        item.reading = False
        item.done = True
    return persist.Verdict.GOES_ON


@MUTANTS.breaks("R6: an own earlier PUT is a success", "read_back", persist.Persist)
def own_is_taken_for_foreign(
    self: persist.Persist, slot: int, found: object, certain: bool, now_ms: float
) -> persist.Verdict:
    """The object that refused the PUT is taken for another leader's."""
    return persist.Verdict.DEPOSED if self._find(slot) is not None else persist.Verdict.GOES_ON


@MUTANTS.breaks("bytes are frozen at first send", "_send", persist.Persist)
def retry_with_more(self: persist.Persist, item: Batch, now_ms: float) -> events.Put:
    """A retry takes along whatever has queued meanwhile."""
    if item.attempts and item is self.in_flight[-1] and self.collecting:
        entries, logged = self._take()
        item.entries += entries
        if logged:
            item.logged += logged
            body = encode_body(item.logged)
            item.header = replace(
                item.header,
                first_version=Version(item.logged[0].version),
                last_version=Version(item.logged[-1].version),
                transactions=len(item.logged),
                body_length=len(body),
                body_crc=crc32(body),
            )
            item.payload = encode_object(item.header, body)
            self.head = item.header
    return _send(self, item, now_ms)


# -- answering --------------------------------------------------------------------------------------------------------


@MUTANTS.breaks("unknown is never not_committed", "abandon", release.Release)
def unknown_means_not_committed(
    self: release.Release, entries: Iterable[CommitEntry | Place]
) -> tuple[list[CommitEntry], list[Place]]:
    """What cannot be proved is answered as a conflict."""
    answers, positions = _abandon(self, entries)
    for entry in answers:
        entry.outcome = Rejected("conflict")
    return answers, positions


@MUTANTS.breaks("a rejection waits for the versions it lists", "_collect", pipeline.Pipeline)
def rejection_at_once(
    self: pipeline.Pipeline,
    entries: list[CommitEntry | Place],
    added: int,
    writes: bool,
    now_ms: float,
    effects: list[events.Effect],
) -> None:
    """A rejection does not wait for the batches that it names."""
    rejected: list[CommitEntry | Place] = [e for e in entries if isinstance(e, CommitEntry) and not e.accepted]
    if rejected:
        self._answer(rejected, effects)
    rest = [entry for entry in entries if entry not in rejected]
    if rest:
        _collect(self, rest, added, writes, now_ms, effects)


@MUTANTS.breaks("status waits for everything sequenced before it", "_travel", pipeline.Pipeline)
def status_before_its_position(self: pipeline.Pipeline, position: Place, effects: list[events.Effect]) -> None:
    """A position is reached before what stands before it."""
    self._answer([position], effects)


@MUTANTS.breaks("a version is answered after a proof of ownership", "_ask_for_ownership", pipeline.Pipeline)
def version_without_proof(self: pipeline.Pipeline, now: object, effects: list[events.Effect]) -> None:
    """A version is answered from memory."""
    asked, self._asked = self._asked, []
    if asked:
        effects.append(events.VersionIs(asked, self.release.durable_version))


@MUTANTS.breaks("a question rides on a PUT that begins after it", "_ask_for_ownership", pipeline.Pipeline)
def question_rides_on_what_was_sent(self: pipeline.Pipeline, now: Any, effects: list[events.Effect]) -> None:
    """A question rides on the newest batch under way, although that began before it."""
    if self.persist.in_flight or self.release.holding:
        self._ride()
    _ask_for_ownership(self, now, effects)


@MUTANTS.breaks("a check cannot see a claim in a slot that was sent", "_ownership_seen", pipeline.Pipeline)
def check_blind_to_the_span(self: pipeline.Pipeline, now: Any, newest: Any, effects: list[events.Effect]) -> None:
    """The ownership check as it first was: a claim in a slot that was sent looks like one's own object."""
    asked = self._checking or []
    slot: Slot | None = None if isinstance(newest, Unknown) else newest
    passed = slot is not None and not claims.has_successor(slot, oldest_free=self.persist.next_slot)
    if passed and asked:
        self._checking = []
        effects.append(events.VersionIs(asked, self.release.durable_version))
    _ownership_seen(self, now, newest, effects)


@MUTANTS.breaks("a proof dates from when its request was sent", "offer", release.Release, first_seed=13)
def proof_dated_by_the_answer(self: release.Release, batches: list[Batch], now_ms: float) -> list[Batch]:
    """A proof dates from when its answer was read."""
    for item in batches:
        item.proved_ms = now_ms
    return _offer(self, batches, now_ms)


@MUTANTS.breaks("a refusal that is recognised as own proves nothing", "offer", release.Release, first_seed=890)
def own_refusal_proves(self: release.Release, batches: list[Batch], now_ms: float) -> list[Batch]:
    """A batch that was refused and recognised as own proves ownership from when it was sent last."""
    for item in batches:
        item.proved_ms = item.sends_ms[-1] if item.proved_ms is None else item.proved_ms
    return _offer(self, batches, now_ms)


@MUTANTS.breaks("nothing is answered from a proof that is too old", "offer", release.Release, first_seed=13)
def held_batches_released_unproved(self: release.Release, batches: list[Batch], now_ms: float) -> list[Batch]:
    """A durable batch is answered, however old the proof of ownership is."""
    return batches


@MUTANTS.breaks(
    "a listing proves only when all that was in flight is proved own",
    "_ownership_seen",
    pipeline.Pipeline,
    first_seed=25,
)
def listing_proves_with_slots_in_flight(
    self: pipeline.Pipeline, now: Instant, newest: Any, effects: list[events.Effect]
) -> None:
    """A listing proves ownership to what is held although slots were in flight; questions wait as they should."""
    slot: Slot | None = None if isinstance(newest, Unknown) else newest
    if slot is not None and not claims.has_successor(slot, oldest_free=self.persist.next_slot):
        self._release(self.release.owned(self._check_asked_ms, now.boot_ms), effects)
    _ownership_seen(self, now, newest, effects)


@MUTANTS.breaks("status reports an attempt in flight only when it is durable", "_status_ready", pipeline.Pipeline)
def committed_before_durable(self: pipeline.Pipeline, question: events.StatusQuestion) -> events.StatusReady:
    """An attempt that is in flight is reported as committed."""
    known = self.sequence.attempts.find(question.request_id)
    if isinstance(known, attempts.Known) and known.version > question.min_version:
        return events.StatusReady(question, known.version, self.resolve.floor)
    return events.StatusReady(question, None, self.resolve.floor)


@MUTANTS.breaks("below the window only the log knows", "_status_ready", pipeline.Pipeline)
def status_reads_no_log(self: pipeline.Pipeline, question: events.StatusQuestion) -> events.StatusReady:
    """The window is taken to reach back to genesis."""
    known = self.sequence.attempts.find(question.request_id)
    version = known.version if isinstance(known, attempts.Known) and known.entry is None else None
    return events.StatusReady(question, version, 0)


# -- ordering and deciding --------------------------------------------------------------------------------------------


@MUTANTS.breaks("versions never reach the next leader's base", "room", sequence.Sequence, first_seed=122)
def hold_back_ignored(self: sequence.Sequence, durable_version: int) -> int:
    """Versions run ahead of the durable ones as far as they like."""
    return 1 << 60


def no_duplicates(self: sequence.Sequence, *_: object) -> bool:
    """No attempt was ever seen before."""
    return True


def complete_nothing(self: sequence.Sequence, entry: CommitEntry) -> None:
    """Nothing is known of any attempt."""


@MUTANTS.breaks("status bans", "ban", sequence.Sequence, first_seed=4)
def ban_not_applied(self: sequence.Sequence, request_id: str) -> None:
    """The ban is forgotten."""


@MUTANTS.breaks("a duplicate waits for its original", "_admit_attempt", sequence.Sequence)
def duplicate_answered_early(
    self: sequence.Sequence,
    entry: CommitEntry,
    known: attempts.Known | attempts.Ban | None,
    read_version: int,
    floor: int,
    look_up: list[CommitEntry],
) -> bool:
    """A duplicate is answered committed while its original is in flight."""
    if isinstance(known, attempts.Known) and known.fingerprint == attempts.fingerprint(entry.txn, b""):
        entry.outcome = Committed(known.version)
        return True
    return _admit(self, entry, known, read_version, floor, look_up)


@MUTANTS.breaks("an attempt below the window is looked up", "_admit_attempt", sequence.Sequence, first_seed=14)
def old_attempt_denied_unread(
    self: sequence.Sequence,
    entry: CommitEntry,
    known: attempts.Known | attempts.Ban | None,
    read_version: int,
    floor: int,
    look_up: list[CommitEntry],
) -> bool:
    """An attempt below the window is denied without a look at the log."""
    found: list[CommitEntry] = []
    goes_on = _admit(self, entry, known, read_version, floor, found)
    if found:
        entry.outcome = Rejected("too_old")
        return True
    return goes_on


@MUTANTS.breaks("a ban outlives a later attempt that is rejected", "_remember", sequence.Sequence, first_seed=151)
def ban_lost_with_a_later_attempt(
    self: sequence.Sequence, entry: CommitEntry, request_id: str, known: attempts.Known | attempts.Ban | None
) -> None:
    """A later attempt under a banned id takes the ban's place."""
    del known
    self.attempts.put(request_id, attempts.Known(entry.version, attempts.fingerprint(entry.txn, b""), entry))


@MUTANTS.breaks("what is accepted joins the window at once", "record", RecentWrites)
def writes_not_recorded(self: RecentWrites, version: int, operations: object, *, further: bool = False) -> int:
    """What is accepted is not remembered."""
    return 0


@MUTANTS.breaks("the window starts empty at the claim's base", "__init__", resolve.Resolve)
def window_of_the_predecessor(self: resolve.Resolve, base: int, *arguments: Any, **bounds: Any) -> None:
    """The window claims to know the writes of the leader before."""
    _resolve_init(self, max(0, base - 2 * batch.VERSION_JUMP), *arguments, **bounds)


# A read below the floor is judged by what is left of the window.
MUTANTS.add(
    "floor_ignored",
    "below the floor nothing is judged",
    (resolve, "Judge", mutated(judge, "if version < floor:", "if version > (version := max(version, floor)):").Judge),
)


# -- taking over ------------------------------------------------------------------------------------------------------


@MUTANTS.breaks("R3: data start at the jump", "jump", batch, claims, persist, chain, first_seed=11)
def no_jump(claim: int) -> Any:
    """The next leader goes on right below its claim."""
    return claim - 1


@MUTANTS.breaks("recovery claims the oldest hole", "_frontier", claims)
def newest_gap_instead_of_oldest(slots: Any, claim: Any, _: Any) -> tuple[Any, Any]:
    """Recovery appends after the newest object."""
    start = batch.jump(claim)
    return (start, claim) if slots[0] > start else (slots[0] - 1, slots[0])


@MUTANTS.breaks("a walk after a lost claim ends at the oldest hole", "walk_on", takeover_machine)
def walk_past_the_hole(head: Any, found: Any) -> Any:
    """A walk along the log claims one slot past its end."""
    step = _walk_on(head, found)
    return replace(step, slot=Slot(step.slot - 1)) if isinstance(step, claims.Frontier) else step


def any_claim(head: object, claim: object, following: object) -> None:
    """Readers take every claim's base for good."""


@MUTANTS.breaks("recovery lists W keys", "_find", TakeoverMachine, first_seed=70)
def page_one_key_short(self: TakeoverMachine, *effects: t.Effect) -> Any:
    """Recovery lists one key less than W."""
    find, event = _find(self, *effects), None
    while True:
        try:
            sent = find.send(event)
        except StopIteration:
            return
        short = t.ListPage(max(1, batch.SPAN_MAX - 1))
        event = yield [short if isinstance(each, t.ListPage) else each for each in sent]


@MUTANTS.breaks("the probe has passed before the claim is sent", "_pass_probe", TakeoverMachine)
def claim_before_the_probe(self: TakeoverMachine) -> Any:
    """The claim is sent while the probe is under way."""
    yield from ()


@MUTANTS.breaks("R2: a claim without an answer is sent again", "_claim", TakeoverMachine)
def unknown_claim_stands(self: TakeoverMachine, claim: Any) -> Any:
    """A claim without an answer is taken for created."""
    sending, event = _claim(self, claim), None
    while True:
        try:
            sent = sending.send(event)
        except StopIteration as end:
            return end.value
        event = yield sent
        if isinstance(event, t.ClaimAnswered) and isinstance(event.answer, Unknown):
            return True


@MUTANTS.breaks("R2: a refused claim is read", "_standing_in", TakeoverMachine)
def refused_claim_stands(self: TakeoverMachine, claim: Any) -> Any:
    """A claim that was refused is taken for one's own."""
    yield from ()
    return True


@MUTANTS.breaks(
    "recovery looks whether another leader is past the claim",
    "_check",
    TakeoverMachine,
    focus={"abrupt": True},
    first_seed=620,
)
def no_ownership_check(self: TakeoverMachine, claim: Any) -> Any:
    """The new leader does not look whether another is past its claim, and says that it has."""
    self._sent_ms = self._now.boot_ms
    yield from ()
    return True


@MUTANTS.breaks("R2: the claim is sent alone", "_carry_out", takeover.Driver)
async def claim_not_alone(self: takeover.Driver, effect: Any) -> t.Event:
    """Data are sent together with the claim, not after it."""
    if isinstance(effect, t.SendClaim):
        asyncio.ensure_future(_driven(self, effect)).add_done_callback(lambda _: None)
        return t.ClaimAnswered(self._clock(), CREATED)
    return await _driven(self, effect)


# -- etiquette --------------------------------------------------------------------------------------------------------


def like(reply: evidence.Reply, **changes: Any) -> Any:
    """The table with the rows of one reply as those of no answer; ``changes`` to the evidence come on top."""

    def judged(seen: evidence.Evidence) -> evidence.LeaderVerdict:
        if seen.reply is reply:
            seen = msgspec.structs.replace(seen, reply=evidence.Reply.SILENT)
        return _judged(msgspec.structs.replace(seen, **changes))

    return judged


@MUTANTS.breaks("a claimant looks whether the log is suspended", "_stay_out", TakeoverMachine, play=run_suspensions)
def claim_under_a_suspension(self: TakeoverMachine, _: Suspension) -> Flow[State | t.Takeover]:
    """The record is read, and means nothing."""
    self._suspension = None
    return (yield from self._stake())


@MUTANTS.breaks("a leader looks whether the log is suspended", "run", Suspending, play=run_suspensions)
async def suspension_is_not_watched(self: Suspending) -> None:
    """Only claimants look."""


@MUTANTS.breaks("a claimant looks again after its claim", "look", Suspending, play=run_suspensions)
async def claim_looks_once(self: Suspending) -> Suspension | None:
    """What was written after the last look before the claim is found by the next look of a leader."""
    leader = self._leader
    assert isinstance(leader, CommitService), "a leader of a world"
    return None if leader.pipeline.persist.head.kind is batch.Kind.CLAIM else await _look_at_suspensions(self)


@MUTANTS.breaks("the newest change counts", "in_force", Suspensions, play=run_suspensions)
async def suspension_never_ends(self: Suspensions) -> Suspension | None:
    """Who suspended is heard, who resumed is not."""
    newest = await self.newest()
    return newest if newest is None or newest.is_suspended else msgspec.structs.replace(newest, is_suspended=True)


@MUTANTS.breaks("a standby with a delay claims later", "_at_peace", TakeoverMachine, play=run_suspensions)
def delay_is_forgotten(self: TakeoverMachine) -> Flow[State | t.Takeover]:
    """Every standby claims at once."""
    self._is_delayed = True
    return (yield from _at_peace(self))


@MUTANTS.breaks("row 1: a leader that answers lives", "_alive", TakeoverMachine, play=run_etiquette)
def answers_do_not_count(self: TakeoverMachine) -> Any:
    """A leader that answers and shows no sign has gone."""
    self._reply = evidence.Reply.SILENT
    yield from ()
    return self._look


MUTANTS.add(
    "own_address_is_no_proof",
    "row 2: who has the leader's address itself claims at once",
    (takeover_machine, "judge", like(evidence.Reply.OWN)),
    play=run_etiquette,
)
MUTANTS.add(
    "refusal_beside_is_no_proof",
    "row 4: a refusal in the same place is a proof",
    (takeover_machine, "judge", like(evidence.Reply.REFUSES)),
    play=run_etiquette,
)
MUTANTS.add(
    "refusal_elsewhere_is_a_proof",
    "row 5: a refusal elsewhere is no proof",
    (takeover_machine, "judge", like(evidence.Reply.SILENT, is_same_place=True)),
    play=run_etiquette,
)


@MUTANTS.breaks("row 6: without an answer signs count", "judge", takeover_machine, play=run_etiquette)
def silence_is_a_proof(seen: evidence.Evidence) -> evidence.LeaderVerdict:
    """A question without an answer is enough."""
    return evidence.LeaderVerdict(0.0, is_proof=True) if seen.reply is evidence.Reply.SILENT else _judged(seen)


@MUTANTS.breaks("row 8: what is not verified is no proof", "judge", takeover_machine, play=run_etiquette)
def unverified_is_a_proof(seen: evidence.Evidence) -> evidence.LeaderVerdict:
    """A process with a certificate of its own deposes the leader."""
    return evidence.LeaderVerdict(0.0, is_proof=True) if seen.reply is evidence.Reply.UNVERIFIED else _judged(seen)


MUTANTS.add("one_missed_sign", "2.5 intervals pass", (evidence, "SIGNS_MISSED", 1.0), play=run_etiquette)
MUTANTS.add(
    "ten_missed_signs", "a dead leader is followed in time", (evidence, "SIGNS_MISSED", 10.0), play=run_etiquette
)
MUTANTS.add(
    "one_lost_question",
    "no single question decides",
    (evidence, "REPLY_MS_MIN", 0.0),
    play=run_etiquette,
)


@MUTANTS.breaks("an idle leader shows signs", "show", signs.Signs, play=run_etiquette)
async def no_signs(self: signs.Signs) -> bool:
    """No sign is created."""
    return True


@MUTANTS.breaks("the sign before is deleted", "_remove", signs.Signs, play=run_etiquette)
async def signs_pile_up(self: signs.Signs, newest: str) -> None:
    """No sign is deleted."""


@MUTANTS.breaks("signs go on in a drain", "_show_signs", CommitService, play=run_etiquette)
async def no_signs_in_a_drain(self: CommitService) -> None:
    """A leader that drains shows no sign."""
    while not self._draining and not self.ended.done():
        await self._signs.show()
        await asyncio.sleep(self._signs.newest.interval_ms / 1000.0)


@MUTANTS.breaks("a batch counts as a sign", "_looked", TakeoverMachine, play=run_etiquette)
def batches_are_no_signs(self: TakeoverMachine, answer: Any) -> Any:
    """Only signs are looked at."""
    return _looked(self, t.Looked(answer.now, self._shown.slot, answer.sign))


@MUTANTS.breaks("a sign ages from when the leader named it", "_hear", TakeoverMachine, play=run_etiquette)
def shown_is_not_heard(self: TakeoverMachine, answer: Any) -> None:
    """What a leader says that it has shown is not noted."""
    _hear(self, msgspec.structs.replace(answer, shown=None))


@MUTANTS.breaks("a start leaves a leader alone that shows signs", "_see", TakeoverMachine, play=run_etiquette)
def signs_are_not_seen(self: TakeoverMachine, shown: Any) -> bool:
    """A new sign does not make the leader any younger."""
    if self._shown.slot is None or self._shown.sign == 0:
        return _see(self, shown)
    return False


@MUTANTS.breaks("every claim raises the epoch", "claim_header", takeover_machine)
def epoch_not_raised(frontier: Any, identity: Any, **facts: Any) -> Any:
    """A claim keeps its predecessor's epoch."""
    return replace(_claim_header(frontier, identity, **facts), epoch=max(1, frontier.epoch - 1))


MUTANTS.add(
    "duplicates_not_detected",
    "an attempt commits at most once",
    (sequence.Sequence, "_admit_attempt", no_duplicates),
    (sequence.Sequence, "complete", complete_nothing),
)
MUTANTS.add(
    "base_without_jump",
    "a version is handed out once",
    (claims, "VERSION_JUMP", 1),
    (chain, "_check_claim", any_claim),
    first_seed=7,
)


@MUTANTS.breaks("a broken invariant ends the process", "_take", CommitService, play=run_broken_law)
def goes_on_after_a_broken_invariant(self: CommitService, event: events.Event) -> None:
    """The step is left out, and the process goes on."""
    try:
        for effect in self.pipeline.step(event):
            self._carry_out(effect)
    except AssertionError:
        pass
