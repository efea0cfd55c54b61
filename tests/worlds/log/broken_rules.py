"""Broken rules: the real code with one rule taken out.

Owns: the functions and drivers that ``mutants`` puts in place of the real ones. Does not own: which one replaces what
(``mutants``), the rules themselves (``commit``). Every docstring says in one line what its maker forgot.

These reach into private state by design: a mutant is the real machine with one line changed, not a model of it.
"""
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from zlib import crc32

from holdfast.commit.format import batch
from holdfast.commit.format.batch import encode_body, encode_object
from holdfast.commit.format.transaction import Committed, FailedPrecondition, PointRead, Rejected, Transaction
from holdfast.commit.leadership import claims, takeover
from holdfast.commit.leadership import takeover_machine as t
from holdfast.commit.leadership.takeover_machine import TakeoverMachine
from holdfast.commit.stages import attempts, events, persist, pipeline, release, resolve, sequence
from holdfast.commit.stages.events import Batch, CommitEntry, Position
from holdfast.commit.window import RecentWrites
from holdfast.objects.port import CREATED, CreateAnswer, Refused, Unknown
from holdfast.values import Instant, Slot, Version

__all__ = [
    "all_standbys_are_one",
    "answer_position_at_once",
    "any_claim",
    "anything_found_is_own",
    "asks_once",
    "beat_while_asked",
    "claim_before_the_probe",
    "claim_not_awaited",
    "claims_without_a_last_question",
    "committed_before_durable",
    "count_instead_of_span",
    "duplicate_is_committed",
    "durable_in_any_order",
    "durable_when_sent",
    "endless_room",
    "forget_the_ban",
    "ignore_the_floor",
    "jump_nowhere",
    "listing_proves",
    "long_in_any_case",
    "never_held",
    "newest_gap",
    "no_ban",
    "no_duplicates",
    "no_heartbeat",
    "no_ownership_check",
    "check_blind_to_the_span",
    "old_is_denied_unread",
    "one_short_silence_more",
    "own_is_taken_for_foreign",
    "own_refusal_proves",
    "proof_dated_by_the_answer",
    "record_nothing",
    "refusal_deposes_unread",
    "refusal_is_success",
    "refused_claim_stands",
    "reject_at_once",
    "retry_with_more",
    "ride_on_what_was_sent",
    "same_epoch",
    "settle_nothing",
    "short_page",
    "silence_is_not_watched",
    "soon_without_an_answer",
    "status_reads_no_log",
    "unknown_claim_stands",
    "unknown_is_success",
    "unknown_means_not_committed",
    "version_without_proof",
    "walk_past_the_hole",
    "window_of_the_predecessor",
]

# -- making durable ---------------------------------------------------------------------------------------------------


def durable_when_sent(self: persist.Persist) -> list[Batch]:
    """A batch is durable as soon as it is sent."""
    durable: list[Batch] = []
    while self.in_flight:
        durable.append(self.in_flight.popleft())
        self.durable_header = durable[-1].header
    return durable


def durable_in_any_order(self: persist.Persist) -> list[Batch]:
    """A batch is durable when it is created, whatever stands before it."""
    durable = [item for item in self.in_flight if item.done and item.formed_ms >= 0]
    for item in durable:
        item.formed_ms = -1.0
        self.durable_header = item.header
    while self.in_flight and self.in_flight[0].done:
        self.in_flight.popleft()
    return durable


def count_instead_of_span(self: persist.Persist) -> bool:
    """Open requests are counted, settled ones behind an open one are not."""
    return sum(not item.done for item in self.in_flight) < self._rules.window and not self.resigned


_answered = persist.Persist.answered


def refusal_is_success(
    self: persist.Persist, slot: int, answer: CreateAnswer, now_ms: float
) -> tuple[persist.Verdict, list[events.ReadBack]]:
    """A refusal is taken for an own earlier success, unread."""
    item = self._find(slot)
    if isinstance(answer, Refused) and item is not None:
        item.done = True
        return persist.Verdict.GOES_ON, []
    return _answered(self, slot, answer, now_ms)


def refusal_deposes_unread(
    self: persist.Persist, slot: int, answer: CreateAnswer, now_ms: float
) -> tuple[persist.Verdict, list[events.ReadBack]]:
    """A refusal is taken for another leader, unread."""
    item = self._find(slot)
    if isinstance(answer, Refused) and item is not None and not item.done:
        return persist.Verdict.DEPOSED, []
    return _answered(self, slot, answer, now_ms)


def unknown_is_success(
    self: persist.Persist, slot: int, answer: CreateAnswer, now_ms: float
) -> tuple[persist.Verdict, list[events.ReadBack]]:
    """No answer is taken for created."""
    item = self._find(slot)
    if isinstance(answer, Unknown) and item is not None:
        item.done = True
        return persist.Verdict.GOES_ON, []
    return _answered(self, slot, answer, now_ms)


def anything_found_is_own(
    self: persist.Persist, slot: int, found: object, certain: bool, now_ms: float
) -> persist.Verdict:
    """Whatever refused the PUT is taken for one's own."""
    item = self._find(slot)
    if item is not None:
        item.reading = False
        item.done = True
    return persist.Verdict.GOES_ON


def own_is_taken_for_foreign(
    self: persist.Persist, slot: int, found: object, certain: bool, now_ms: float
) -> persist.Verdict:
    """Whatever refused the PUT is taken for another leader's."""
    return persist.Verdict.DEPOSED if self._find(slot) is not None else persist.Verdict.GOES_ON


send = persist.Persist._send


def retry_with_more(self: persist.Persist, item: Batch, now_ms: float) -> events.Put:
    """A retry takes along whatever has queued meanwhile."""
    if item.attempts and item is self.in_flight[-1] and self.collecting:
        entries, transactions = self._take()
        if transactions:
            item.entries += entries
            item.transactions += transactions
            body = encode_body(item.transactions)
            first, last = item.transactions[0].version, item.transactions[-1].version
            item.header = replace(
                item.header,
                first_version=Version(first),
                last_version=Version(last),
                transactions=len(item.transactions),
                body_length=len(body),
                body_crc=crc32(body),
            )
            item.payload = encode_object(item.header, body)
            self.head = item.header
        else:
            item.entries += entries
    return send(self, item, now_ms)


# -- answering --------------------------------------------------------------------------------------------------------


def unknown_means_not_committed(
    self: release.Release, entries: Iterable[CommitEntry | Position]
) -> tuple[list[CommitEntry], list[Position]]:
    """What cannot be proved is answered as a conflict."""
    answers, positions = _abandon(self, entries)
    for entry in answers:
        entry.outcome = Rejected("conflict")
    return answers, positions


_abandon = release.Release.abandon
collect = pipeline.Pipeline._collect


def reject_at_once(
    self: pipeline.Pipeline,
    entries: list[CommitEntry | Position],
    added: int,
    writes: bool,
    now_ms: float,
    effects: list[events.Effect],
) -> None:
    """A rejection does not wait for the batches that it speaks of."""
    rejected: list[CommitEntry | Position] = [e for e in entries if isinstance(e, CommitEntry) and not e.accepted]
    if rejected:
        self._answer(rejected, effects)
    rest = [entry for entry in entries if entry not in rejected]
    if rest:
        collect(self, rest, added, writes, now_ms, effects)


def answer_position_at_once(self: pipeline.Pipeline, position: Position, effects: list[events.Effect]) -> None:
    """A position is reached before what stands before it."""
    self._answer([position], effects)


def version_without_proof(self: pipeline.Pipeline, now: object, effects: list[events.Effect]) -> None:
    """A version is answered from memory."""
    asked, self._asked = self._asked, []
    if asked:
        effects.append(events.VersionIs(asked, self.release.durable_version))


_ask_for_ownership = pipeline.Pipeline._ask_for_ownership


def ride_on_what_was_sent(self: pipeline.Pipeline, now: Any, effects: list[events.Effect]) -> None:
    """A question rides on the newest batch under way, although that began before it."""
    if self.persist.in_flight or self.release.holding:
        self._ride()
    _ask_for_ownership(self, now, effects)


def check_blind_to_the_span(self: pipeline.Pipeline, now: Any, newest: Any, effects: list[events.Effect]) -> None:
    """The ownership check as it first was: a claim in a slot that was sent looks like one's own object."""
    asked = self._checking or []
    slot: Slot | None = None if isinstance(newest, Unknown) else newest
    passed = slot is not None and not claims.has_successor(slot, oldest_free=self.persist.next_slot)
    if passed and asked:
        self._checking = []
        effects.append(events.VersionIs(asked, self.release.durable_version))
    _ownership_seen(self, now, newest, effects)


def proof_dated_by_the_answer(self: release.Release, batches: list[Batch], now_ms: float) -> list[Batch]:
    """A proof dates from when its answer was read."""
    for item in batches:
        item.proved_ms = now_ms
    return _offer(self, batches, now_ms)


def own_refusal_proves(self: release.Release, batches: list[Batch], now_ms: float) -> list[Batch]:
    """A batch that was refused and recognised as own proves ownership from when it was sent last."""
    for item in batches:
        item.proved_ms = item.sends_ms[-1] if item.proved_ms is None else item.proved_ms
    return _offer(self, batches, now_ms)


def never_held(self: release.Release, batches: list[Batch], now_ms: float) -> list[Batch]:
    """A durable batch is answered, however old the proof of ownership is."""
    return batches


_offer = release.Release.offer


def listing_proves(self: pipeline.Pipeline, now: Instant, newest: Any, effects: list[events.Effect]) -> None:
    """A listing proves ownership to what is held although slots were in flight; questions wait as they should."""
    slot: Slot | None = None if isinstance(newest, Unknown) else newest
    if slot is not None and not claims.has_successor(slot, oldest_free=self.persist.next_slot):
        self._release(self.release.owned(self._check_asked_ms, now.boot_ms), effects)
    _ownership_seen(self, now, newest, effects)


_ownership_seen = pipeline.Pipeline._ownership_seen


def committed_before_durable(self: pipeline.Pipeline, question: events.StatusQuestion) -> events.StatusReady:
    """An attempt that is in flight is told as committed."""
    known = self.sequence.attempts.find(question.request_id)
    if isinstance(known, attempts.Known) and known.version > question.min_version:
        return events.StatusReady(question, known.version, self.resolve.floor)
    return events.StatusReady(question, None, self.resolve.floor)


def status_reads_no_log(self: pipeline.Pipeline, question: events.StatusQuestion) -> events.StatusReady:
    """The window is taken to reach back to genesis."""
    known = self.sequence.attempts.find(question.request_id)
    settled = known.version if isinstance(known, attempts.Known) and known.entry is None else None
    return events.StatusReady(question, settled, 0)


# -- ordering and deciding --------------------------------------------------------------------------------------------


def endless_room(self: sequence.Sequence, durable_version: int) -> int:
    """Versions run ahead of the durable ones as far as they like."""
    return 1 << 60


def no_duplicates(self: sequence.Sequence, *_: object) -> bool:
    """No attempt was ever seen before."""
    return True


def settle_nothing(self: sequence.Sequence, entry: CommitEntry) -> None:
    """Nothing is known of any attempt."""


def no_ban(self: sequence.Sequence, request_id: str) -> None:
    """The ban is forgotten."""


_admit = sequence.Sequence._admit_attempt


def duplicate_is_committed(
    self: sequence.Sequence,
    entry: CommitEntry,
    txn: Transaction,
    request_id: str,
    floor: int,
    look_up: list[CommitEntry],
) -> bool:
    """A duplicate is answered committed while its original is in flight."""
    known = self.attempts.find(request_id)
    if isinstance(known, attempts.Known) and known.fingerprint == attempts.fingerprint(txn):
        entry.outcome = Committed(known.version)
        return True
    return _admit(self, entry, txn, request_id, floor, look_up)


def old_is_denied_unread(
    self: sequence.Sequence,
    entry: CommitEntry,
    txn: Transaction,
    request_id: str,
    floor: int,
    look_up: list[CommitEntry],
) -> bool:
    """What lies below the window is denied without a look at the log."""
    found: list[CommitEntry] = []
    goes_on = _admit(self, entry, txn, request_id, floor, found)
    if found:
        entry.outcome = Rejected("too_old")
        return True
    return goes_on


def forget_the_ban(self: sequence.Sequence, entry: CommitEntry, txn: Transaction, request_id: str) -> None:
    """A later attempt under a banned id takes the ban's place."""
    known = attempts.Known(entry.version, attempts.fingerprint(txn), entry)
    self.attempts.put(request_id, known)


def record_nothing(self: RecentWrites, version: int, operations: object) -> None:
    """What is accepted is not remembered."""


_resolve_init = resolve.Resolve.__init__


def window_of_the_predecessor(self: resolve.Resolve, base: int, *arguments: Any, **bounds: Any) -> None:
    """The window claims to know the writes of the leader before."""
    _resolve_init(self, max(0, base - 2 * batch.VERSION_JUMP), *arguments, **bounds)


def ignore_the_floor(self: resolve.Resolve, txn: Transaction) -> Rejected | None:
    """A read below the floor is judged by what is left of the window."""
    recent, failed = self.recent, list[FailedPrecondition]()
    for index, read in enumerate(txn.preconditions):
        version = max(recent.floor, (txn.read_version if read.version is None else read.version) or 0)
        if isinstance(read, PointRead):
            changed = recent.changed_after(read.key, version)
        else:
            changed = recent.range_changed_after(read.begin, read.end, version)
        if changed:
            failed.append(FailedPrecondition(index, changed))
    return Rejected("conflict", tuple(failed)) if failed else None


# -- taking over ------------------------------------------------------------------------------------------------------


def jump_nowhere(claim: int) -> Any:
    """The next leader goes on right below its claim."""
    return claim - 1


def newest_gap(slots: Any, claim: Any) -> tuple[Any, Any]:
    """Recovery appends after the newest object."""
    start = batch.jump(claim)
    return (start, claim) if slots[0] > start else (slots[0] - 1, slots[0])


def walk_past_the_hole(head: Any, found: Any) -> Any:
    """A walk along the log claims one slot past its end."""
    step = _walk_on(head, found)
    return replace(step, slot=Slot(step.slot - 1)) if isinstance(step, claims.Frontier) else step


def any_claim(head: object, claim: object, following: object) -> None:
    """Readers take every claim's base for good."""


def short_page(self: TakeoverMachine, now: Instant, found: Any) -> list[t.Effect]:
    """Recovery lists one key less than W."""
    self._found = found
    return self._send(now, t.ListPage(max(1, batch.SPAN_MAX - 1)), self._page_listed)


def claim_before_the_probe(self: TakeoverMachine, now: Instant) -> list[t.Effect]:
    """The claim is sent while the probe is under way."""
    probing, self._probing = self._probing, False
    effects = _first_found(self, now)
    self._probing = probing
    return effects


def unknown_claim_stands(self: TakeoverMachine, now: Instant, answer: Any) -> list[t.Effect]:
    """A claim without an answer is taken for created."""
    return self._check(now) if isinstance(answer.answer, Unknown) else _claim_answered(self, now, answer)


def refused_claim_stands(self: TakeoverMachine, now: Instant, answer: Any) -> list[t.Effect]:
    """A claim that was refused is taken for one's own."""
    return self._check(now)


def no_ownership_check(self: TakeoverMachine, now: Instant) -> list[t.Effect]:
    """Nobody looks whether a leader is past the claim."""
    return self._lead(now)


_driven = takeover.Driver._carry_out


async def claim_not_awaited(self: takeover.Driver, effect: Any) -> t.Event:
    """Data are sent beside the claim, not after it."""
    if isinstance(effect, t.SendClaim):
        asyncio.ensure_future(_driven(self, effect)).add_done_callback(lambda _: None)
        return t.ClaimAnswered(self._clock(), CREATED)
    return await _driven(self, effect)


# -- etiquette --------------------------------------------------------------------------------------------------------


def silence_is_not_watched(self: TakeoverMachine, now: Instant) -> list[t.Effect]:
    """A question without an answer is enough."""
    return self._at_peace(now)


def soon_without_an_answer(self: TakeoverMachine, now: Instant) -> float:
    """A standby that had no answer waits no longer than one that had."""
    return self._rules.silence_ms + self._rules.heartbeat_ms


def long_in_any_case(self: TakeoverMachine, now: Instant) -> float:
    """A standby that had an answer waits as long as one that had none."""
    return self._rules.unheard_ms


def asks_once(self: TakeoverMachine, now: Instant) -> list[t.Effect]:
    """A start asks its leader once."""
    return self._ask(now) if self._rules.standby else self._look(now)


def claims_without_a_last_question(self: TakeoverMachine, now: Instant, newest: Any) -> list[t.Effect]:
    """A question before the silence is enough."""
    return self._stake(now)


def one_short_silence_more(self: TakeoverMachine, now: Instant) -> float:
    """After a new object a start waits no longer than before it."""
    return self._rules.silence_ms if not self._rules.standby else _silence_ms(self, now)


def beat_while_asked(self: claims.Heartbeat, now_ms: float) -> float | None:
    """Heartbeats are written whether questions come or not."""
    return self._beaten_ms + self._heartbeat_ms


def no_heartbeat(self: claims.Heartbeat, now_ms: float) -> float | None:
    """A missed question leads to nothing."""
    return None


def all_standbys_are_one(self: claims.Heartbeat, standby: str, now_ms: float) -> None:
    """While one standby asks, no one is missed."""
    self._asked_ms[""] = now_ms


def same_epoch(frontier: Any, identity: Any, **facts: Any) -> Any:
    """A claim keeps its predecessor's epoch."""
    return replace(_claim_header(frontier, identity, **facts), epoch=max(1, frontier.epoch - 1))


_claim_header = claims.claim_header
_first_found = TakeoverMachine._first_found
_claim_answered = TakeoverMachine._claim_answered
_silence_ms = TakeoverMachine._silence_ms
_walk_on = claims.walk_on
