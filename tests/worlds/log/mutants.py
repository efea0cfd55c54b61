"""Broken rules, one at a time: the proof that the simulation would notice.

Owns: a registry of mutants, each the real code with one rule taken out, and the search for a seed that catches it. Does
not own: the rules.

A mutant is caught when a world under it breaks a promise, within ``SEEDS_MAX`` seeds and without the machines' own
``check()``: what catches it must be visible from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from tests.worlds.log import broken_rules as broken
from tests.worlds.log.etiquette import run_etiquette
from tests.worlds.log.world import WorldReport, run_world

from holdfast.commit.format import batch, chain
from holdfast.commit.leadership import claims, takeover, takeover_machine
from holdfast.commit.leadership.claims import Heartbeat
from holdfast.commit.leadership.takeover_machine import TakeoverMachine
from holdfast.commit.stages import persist, pipeline, release, resolve, sequence
from holdfast.commit.window import RecentWrites

__all__ = ["MUTANTS", "SEEDS_MAX", "WAITING", "Caught", "Mutant", "catch"]

SEEDS_MAX: Final = 200
NEVER: Final = 1 << 60

Patch = tuple[object, str, object]


def _run_unchecked(seed: int) -> WorldReport:
    return run_world(seed, check_every=NEVER)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One rule taken out. ``patches`` replace attributes of the real code; ``play`` runs the world of one seed."""

    name: str
    rule: str
    patches: tuple[Patch, ...]
    play: Callable[[int], WorldReport] = _run_unchecked
    first_seed: int = 0
    """Where the search begins: some rules are broken visibly in one of a thousand worlds."""


@dataclass(frozen=True, slots=True)
class Caught:
    """How a mutant was noticed: in which seed, by which promise; ``seed`` is None when it was not."""

    mutant: str
    seed: int | None
    promise: str
    seeds_tried: int


@contextmanager
def _applied(patches: tuple[Patch, ...]) -> Generator[None]:
    with ExitStack() as stack:
        for owner, name, value in patches:
            before = vars(owner)[name] if name in vars(owner) else getattr(owner, name)
            stack.callback(setattr, owner, name, before)
            setattr(owner, name, value)
        yield


def catch(mutant: Mutant, *, seeds: int = SEEDS_MAX) -> Caught:
    """Run worlds under a mutant until one breaks a promise."""
    for tried in range(seeds):
        seed = mutant.first_seed + tried
        with _applied(mutant.patches):
            try:
                mutant.play(seed)
            except AssertionError as error:
                return Caught(mutant.name, seed, str(error).partition(":")[0], tried + 1)
    return Caught(mutant.name, None, "", seeds)


_EVERY_JUMP: Final = tuple((module, "jump", broken.jump_nowhere) for module in (batch, claims, persist, chain))


def _registry() -> list[Mutant]:
    return [
        Mutant(
            "acknowledge_before_durable",
            "answers stand behind durable batches",
            ((persist.Persist, "take_durable", broken.durable_when_sent),),
        ),
        Mutant(
            "acknowledge_out_of_order",
            "R5: acknowledge in slot order",
            ((persist.Persist, "take_durable", broken.durable_in_any_order),),
        ),
        Mutant(
            "count_instead_of_span",
            "R1: the span of slots is bounded, not their number",
            ((persist.Persist, "_may_send", broken.count_instead_of_span),),
        ),
        Mutant(
            "refusal_is_success",
            "R6: a refusal proves nothing",
            ((persist.Persist, "answered", broken.refusal_is_success),),
        ),
        Mutant(
            "refusal_not_read_back",
            "R6: a refusal is read back",
            ((persist.Persist, "answered", broken.refusal_deposes_unread),),
        ),
        Mutant(
            "anything_found_is_own",
            "R6: nonce and CRC tell one's own",
            ((persist.Persist, "read_back", broken.anything_found_is_own),),
        ),
        Mutant(
            "own_is_taken_for_foreign",
            "R6: an own earlier PUT is a success",
            ((persist.Persist, "read_back", broken.own_is_taken_for_foreign),),
        ),
        Mutant(
            "unknown_is_success",
            "unknown is retried, never a success",
            ((persist.Persist, "answered", broken.unknown_is_success),),
        ),
        Mutant(
            "unknown_means_not_committed",
            "unknown is never not_committed",
            ((release.Release, "abandon", broken.unknown_means_not_committed),),
        ),
        Mutant(
            "retry_with_more",
            "bytes are frozen at first send",
            ((persist.Persist, "_send", broken.retry_with_more),),
        ),
        Mutant(
            "rejection_at_once",
            "a rejection waits for the versions it lists",
            ((pipeline.Pipeline, "_collect", broken.reject_at_once),),
        ),
        Mutant(
            "status_before_its_position",
            "status waits for everything sequenced before it",
            ((pipeline.Pipeline, "_travel", broken.answer_position_at_once),),
        ),
        Mutant(
            "committed_before_durable",
            "status tells of an attempt in flight only when it is durable",
            ((pipeline.Pipeline, "_status_ready", broken.committed_before_durable),),
        ),
        Mutant(
            "status_reads_no_log",
            "below the window only the log can tell",
            ((pipeline.Pipeline, "_status_ready", broken.status_reads_no_log),),
        ),
        Mutant(
            "version_without_proof",
            "a version is answered behind a proof of ownership",
            ((pipeline.Pipeline, "_ask_for_ownership", broken.version_without_proof),),
        ),
        Mutant(
            "question_rides_on_what_was_sent",
            "a question rides on a PUT that begins after it",
            ((pipeline.Pipeline, "_ask_for_ownership", broken.ride_on_what_was_sent),),
        ),
        Mutant(
            "check_blind_to_the_span",
            "a check cannot see a claim in a slot that was sent",
            ((pipeline.Pipeline, "_ownership_seen", broken.check_blind_to_the_span),),
        ),
        Mutant(
            "held_batches_let_go_unproved",
            "nothing is answered behind a proof that is too old",
            ((release.Release, "offer", broken.never_held),),
        ),
        Mutant(
            "proof_dated_by_the_answer",
            "a proof dates from when its request was sent",
            ((release.Release, "offer", broken.proof_dated_by_the_answer),),
        ),
        Mutant(
            "own_refusal_proves",
            "a refusal that is recognised as own proves nothing",
            ((release.Release, "offer", broken.own_refusal_proves),),
        ),
        Mutant(
            "listing_proves_with_slots_in_flight",
            "a listing proves only when all that was in flight is proved own",
            ((pipeline.Pipeline, "_ownership_seen", broken.listing_proves),),
        ),
        Mutant(
            "hold_back_ignored",
            "versions never reach the next leader's base",
            ((sequence.Sequence, "room", broken.endless_room),),
        ),
        Mutant(
            "duplicates_not_detected",
            "an attempt commits at most once",
            (
                (sequence.Sequence, "_admit_attempt", broken.no_duplicates),
                (sequence.Sequence, "complete", broken.settle_nothing),
            ),
        ),
        Mutant(
            "duplicate_answered_early",
            "a duplicate waits for its original",
            ((sequence.Sequence, "_admit_attempt", broken.duplicate_is_committed),),
        ),
        Mutant(
            "old_attempt_denied_unread",
            "an attempt below the window is looked up",
            ((sequence.Sequence, "_admit_attempt", broken.old_is_denied_unread),),
        ),
        Mutant("ban_not_applied", "status bans", ((sequence.Sequence, "ban", broken.no_ban),)),
        Mutant(
            "ban_lost_with_a_later_attempt",
            "a ban outlives a later attempt that is rejected",
            ((sequence.Sequence, "_remember", broken.forget_the_ban),),
            first_seed=800,
        ),
        Mutant(
            "writes_not_recorded",
            "what is accepted joins the window at once",
            ((RecentWrites, "record", broken.record_nothing),),
        ),
        Mutant(
            "floor_ignored",
            "below the floor nothing is judged",
            ((resolve.Resolve, "_judge", broken.ignore_the_floor),),
        ),
        Mutant(
            "window_of_the_predecessor",
            "the window starts empty at the claim's base",
            ((resolve.Resolve, "__init__", broken.window_of_the_predecessor),),
        ),
        Mutant("no_jump", "R3: data start at the jump", _EVERY_JUMP),
        Mutant(
            "newest_gap_instead_of_oldest",
            "recovery claims the oldest hole",
            ((claims, "_frontier", broken.newest_gap),),
        ),
        Mutant(
            "walk_past_the_hole",
            "a walk after a lost claim ends at the oldest hole",
            ((takeover_machine, "walk_on", broken.walk_past_the_hole),),
        ),
        Mutant(
            "base_without_jump",
            "a version is handed out once",
            ((claims, "VERSION_JUMP", 1), (chain, "_check_claim", broken.any_claim)),
        ),
        Mutant(
            "epoch_not_raised", "every claim raises the epoch", ((takeover_machine, "claim_header", broken.same_epoch),)
        ),
        Mutant("page_one_key_short", "recovery lists W keys", ((TakeoverMachine, "_find", broken.short_page),)),
        Mutant(
            "claim_not_alone",
            "R2: the claim is sent alone",
            ((takeover.Driver, "_carry_out", broken.claim_not_awaited),),
        ),
        Mutant(
            "claim_before_the_probe",
            "the probe has passed before the claim is sent",
            ((TakeoverMachine, "_first_found", broken.claim_before_the_probe),),
        ),
        Mutant(
            "unknown_claim_stands",
            "R2: a claim without an answer is sent again",
            ((TakeoverMachine, "_claim_answered", broken.unknown_claim_stands),),
        ),
        Mutant(
            "refused_claim_stands",
            "R2: a refused claim is read",
            ((TakeoverMachine, "_claim_read", broken.refused_claim_stands),),
        ),
        Mutant(
            "no_ownership_check",
            "recovery looks whether another leader is past the claim",
            ((TakeoverMachine, "_check", broken.no_ownership_check),),
            first_seed=300,
        ),
        *_etiquette(),
    ]


def _etiquette() -> list[Mutant]:
    return [
        Mutant(name, rule, patches, run_etiquette)
        for name, rule, patches in (
            (
                "silence_is_not_watched",
                "a leader that does not answer may be alive",
                ((TakeoverMachine, "_watch", broken.silence_is_not_watched),),
            ),
            (
                "asks_once",
                "a start asks its leader until it claims",
                (
                    (TakeoverMachine, "_poll", broken.asks_once),
                    (TakeoverMachine, "_found_silent", broken.claims_without_a_last_question),
                ),
            ),
            (
                "no_last_question",
                "a start asks its leader right before it claims",
                ((TakeoverMachine, "_found_silent", broken.claims_without_a_last_question),),
            ),
            (
                "one_short_silence_more",
                "after a new object a start waits longer",
                ((TakeoverMachine, "_silence_ms", broken.one_short_silence_more),),
            ),
            (
                "soon_without_an_answer",
                "a standby that had no answer waits for 65 s",
                ((TakeoverMachine, "_silence_ms", broken.soon_without_an_answer),),
            ),
            (
                "long_in_any_case",
                "a standby that had an answer takes over within 3 s",
                ((TakeoverMachine, "_silence_ms", broken.long_in_any_case),),
            ),
            (
                "heartbeats_while_asked",
                "nothing is written while questions arrive",
                ((Heartbeat, "next_ms", broken.beat_while_asked),),
            ),
            (
                "no_heartbeat",
                "a missed question is followed by heartbeats",
                ((Heartbeat, "next_ms", broken.no_heartbeat),),
            ),
            ("no_fast_heartbeats", "heartbeats are frequent for a minute", ((claims, "FAST_MS", 0.0),)),
            ("no_slow_heartbeats", "heartbeats go on for a day", ((claims, "SLOW_EVERY_MS", 1e12),)),
            ("fast_heartbeats_go_on", "heartbeats become few", ((claims, "FAST_MS", 1e12),)),
            (
                "all_standbys_are_one",
                "each standby's questions count",
                ((Heartbeat, "asked", broken.all_standbys_are_one),),
            ),
        )
    ]


MUTANTS: Final[Mapping[str, Mutant]] = {mutant.name: mutant for mutant in _registry()}

WAITING: Final[Mapping[str, str]] = {}
"""Rules that no world of today can prove: named here so that nobody takes them for proved."""
