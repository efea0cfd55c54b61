"""Bounds met in trouble: proofs that do not come, budgets of retries, bans without commits, floors that move on."""

from __future__ import annotations

import pytest
from tests.unit.commit.builders import BASE, FIRST_DATA, at, entry, genesis, identity, of, pipeline, puts, txn

from holdfast.commit.format.batch import FIRST_SLOT, decode_header
from holdfast.commit.format.transaction import Committed, PointRead, Reused, Unanswered
from holdfast.commit.stages.attempts import Attempts
from holdfast.commit.stages.events import (
    Arrived,
    CheckOwnership,
    CommitEntry,
    Effect,
    Ended,
    OwnershipSeen,
    Put,
    PutAnswered,
    StatusAsked,
    StatusQuestion,
    StatusReady,
    Tick,
    VersionAsked,
    VersionIs,
)
from holdfast.commit.stages.persist import Persist, PersistRules, Verdict
from holdfast.commit.stages.pipeline import Pipeline
from holdfast.commit.stages.release import PROOF_MS_MAX
from holdfast.commit.stages.sequence import Sequence
from holdfast.objects.port import CREATED, Refused, Unknown
from holdfast.values import Slot

TIMEOUT = Unknown("no answer in time")
FAST = PersistRules(batch_timeout_ms=0.0, window=8, give_up_after_ms=60_000.0)


@pytest.fixture
def reign() -> Pipeline:
    return pipeline(persist=FAST)


# -- proofs of ownership that do not come --------------------------------------------------------------------------


def held(reign: Pipeline, ms: float) -> CommitEntry:
    """A commit whose batch is durable since ``ms``, and waits for a proof of ownership."""
    item = entry()
    reign.step(Arrived(at(0), [item]))
    assert reign.step(PutAnswered(at(ms), FIRST_DATA, CREATED)) == [CheckOwnership()]
    return item


def test_commits_that_wait_for_a_proof_of_ownership_in_vain_are_answered_when_the_leader_gives_up(
    reign: Pipeline,
) -> None:
    """The store takes batches and lists nothing: without an end the commits would wait for ever."""
    since = PROOF_MS_MAX + 1
    item = held(reign, since)
    ms = since
    while ms < since + 59_000:
        reign.step(OwnershipSeen(at(ms + 1), TIMEOUT))
        deadline = reign.next_deadline_ms()
        assert deadline is not None
        ms = deadline
        reign.step(Tick(at(ms)))
        reign.check()
    assert item.outcome is None
    deadline = reign.next_deadline_ms()
    assert deadline is not None and deadline <= since + 60_000
    (ended,) = of(Ended, reign.step(Tick(at(since + 60_000))))
    assert isinstance(ended, Ended)
    assert ended.kind == "gave_up"
    assert item.outcome == Unanswered()


def gave_up(effects: list[Effect]) -> bool:
    return any(isinstance(effect, Ended) and effect.kind == "gave_up" for effect in effects)


def test_a_batch_that_the_store_took_while_this_process_was_paused_is_not_given_up(reign: Pipeline) -> None:
    """At waking the timer is due before the answer is read."""
    item = entry()
    reign.step(Arrived(at(0), [item]))
    assert reign.step(Tick(at(90_000))) == []
    assert reign.next_deadline_ms() == 92_000
    assert reign.step(PutAnswered(at(90_001), FIRST_DATA, CREATED)) == [CheckOwnership()]
    reign.step(OwnershipSeen(at(90_002), FIRST_DATA))
    assert item.outcome == Committed(BASE + 1)


def test_a_pause_moves_the_end_of_a_batch_once(reign: Pipeline) -> None:
    reign.step(Arrived(at(0), [entry()]))
    assert not gave_up(reign.step(Tick(at(90_000))))
    assert not gave_up(reign.step(Tick(at(91_999))))
    assert gave_up(reign.step(Tick(at(99_000))))


def test_a_proof_that_came_while_this_process_was_paused_is_not_given_up(reign: Pipeline) -> None:
    since = PROOF_MS_MAX + 1
    item = held(reign, since)
    assert reign.step(Tick(at(since + 90_000))) == []
    assert reign.next_deadline_ms() == since + 92_000
    # It is too old by now, and the next one is not.
    assert reign.step(OwnershipSeen(at(since + 90_001), FIRST_DATA)) == [CheckOwnership()]
    reign.step(OwnershipSeen(at(since + 90_002), FIRST_DATA))
    assert item.outcome == Committed(BASE + 1)


def test_a_pause_moves_the_end_of_the_wait_for_a_proof_once(reign: Pipeline) -> None:
    since = PROOF_MS_MAX + 1
    held(reign, since)
    assert not gave_up(reign.step(Tick(at(since + 90_000))))
    assert gave_up(reign.step(Tick(at(since + 92_000))))


@pytest.mark.parametrize(
    ("newest", "told"),
    [(Unknown("a key under batches/ is not a slot"), "not a slot"), (None, "no object of this log")],
)
def test_who_waited_in_vain_for_a_proof_says_what_came_instead(
    reign: Pipeline, newest: Unknown | None, told: str
) -> None:
    since = PROOF_MS_MAX + 1
    held(reign, since)
    reign.step(OwnershipSeen(at(since + 1), newest))
    (ended,) = of(Ended, reign.step(Tick(at(since + 60_000))))
    assert isinstance(ended, Ended)
    assert (ended.kind, told in ended.detail) == ("gave_up", True)


def test_a_proof_that_came_makes_what_was_before_it_no_reason(reign: Pipeline) -> None:
    since = PROOF_MS_MAX + 1
    held(reign, since)
    reign.step(OwnershipSeen(at(since + 1), TIMEOUT))
    reign.step(Tick(at(since + 200)))
    reign.step(OwnershipSeen(at(since + 201), FIRST_DATA))
    assert reign.proof_trouble == ""


def test_a_proof_that_hangs_is_a_deadline_too(reign: Pipeline) -> None:
    since = PROOF_MS_MAX + 1
    held(reign, since)
    assert reign.next_deadline_ms() == since + 60_000


def test_a_leader_that_slept_long_is_not_given_up_before_it_has_asked(reign: Pipeline) -> None:
    since = 3_600_000
    item = held(reign, since)
    assert of(Ended, reign.step(Tick(at(since + 1)))) == []
    reign.step(OwnershipSeen(at(since + 2), FIRST_DATA))
    assert item.outcome == Committed(BASE + 1)


def test_an_empty_listing_proves_nothing_for_the_claim_itself_is_never_removed(reign: Pipeline) -> None:
    reign.step(VersionAsked(at(0), "asked"))
    assert of(VersionIs, reign.step(OwnershipSeen(at(1), None))) == []
    reign.step(Tick(at(1_000)))
    assert of(VersionIs, reign.step(OwnershipSeen(at(1_001), FIRST_SLOT))) == [VersionIs(["asked"], BASE)]


# -- budgets of retries ----------------------------------------------------------------------------------------------


def hedged(**rules: object) -> tuple[Persist, Slot, float]:
    """A stage whose one batch in flight was sent twice: a PUT and its hedge."""
    persist = Persist(genesis(), identity().nonce_seed, PersistRules(hedge_percentile=90.0, **rules))  # type: ignore[arg-type]
    version = BASE
    ms = 0.0
    for _ in range(33):
        ms += 100.0
        version += 1
        item = entry()
        item.version, item.accepted, item.size = version, True, 32
        persist.collect([item], 32, ms)
        (put,) = persist.form(at(ms), version, BASE)
        if version < BASE + 33:
            persist.answered(put.slot, CREATED, ms + 5.0)
            persist.take_durable()
    (hedge,) = persist.resend(ms + 50.0)
    return persist, hedge.slot, ms + 60.0


def test_a_hedge_is_no_retry() -> None:
    persist, slot, ms = hedged(retries_max=1)
    assert persist.answered(slot, TIMEOUT, ms)[0] is Verdict.GOES_ON
    assert persist.answered(slot, TIMEOUT, ms)[0] is Verdict.GOES_ON
    assert len(persist.resend(ms + 10_000)) == 1
    assert persist.answered(slot, TIMEOUT, ms + 10_000)[0] is Verdict.GAVE_UP


def test_without_retries_the_other_request_of_a_hedged_pair_decides() -> None:
    persist, slot, ms = hedged(retries_max=0)
    assert persist.answered(slot, TIMEOUT, ms)[0] is Verdict.GOES_ON
    assert persist.resend(ms + 10_000) == [], "retries are disabled"
    assert persist.answered(slot, CREATED, ms + 10_001)[0] is Verdict.GOES_ON
    assert len(persist.take_durable()) == 1


def test_a_leader_does_not_give_up_while_a_read_back_may_prove_its_own_success() -> None:
    persist, slot, ms = hedged(retries_max=0)
    persist.answered(slot, Refused(), ms)
    assert persist.answered(slot, TIMEOUT, ms)[0] is Verdict.GOES_ON
    own = persist.in_flight[0].header
    assert persist.read_back(slot, own, True, ms + 1) is Verdict.GOES_ON
    assert len(persist.take_durable()) == 1


# -- bans ------------------------------------------------------------------------------------------------------------


def test_bans_are_bounded_on_a_log_without_commits() -> None:
    """A ban leaves once the versions have passed it; where nobody commits, an empty batch must move them on."""
    reign = pipeline(persist=FAST, window_bytes=4 * 320 * 8 * 10)
    ms = 0.0
    for number in range(2_000):
        ms += 25.0
        effects = reign.step(StatusAsked(at(ms), StatusQuestion(f"a-request-id-{number:010}", BASE, number)))
        for put in puts([*effects]):
            reign.step(PutAnswered(at(ms + 1), put.slot, CREATED))
        reign.check()
    assert len(reign.sequence.attempts) < 200
    reads = txn(b"a", at=reign.release.durable_version, reads=[PointRead(b"b")], request_id="b-request-id-0123456789")
    item = entry(reads)
    reign.step(Arrived(at(ms + 30), [item]))
    assert item.accepted, "who has read the newest durable version can still commit"


def test_a_ban_under_a_committed_attempt_outlives_that_attempt() -> None:
    """Another attempt under its id, begun before the ban, must not commit once the committed one is forgotten."""
    attempts = Attempts(bytes_max=1)
    sequence = Sequence(BASE, attempts)
    first = entry(txn(request_id="the-one-request-id-of-two", at=BASE))
    sequence.order([first], BASE)
    first.accepted, first.outcome = True, Committed(first.version)
    sequence.complete(first)
    others = [entry(txn(request_id=f"another-request-id-{number}", at=BASE)) for number in range(3)]
    sequence.order(others, BASE)
    banned_through = sequence.assigned
    assert sequence.ban("the-one-request-id-of-two") is not None
    for other in others:
        other.accepted = True
        sequence.complete(other)
    attempts.expire(banned_through)
    attempts.check()
    late = entry(txn(request_id="the-one-request-id-of-two", at=banned_through))
    sequence.order([late], banned_through)
    assert late.outcome == Reused()


def test_an_id_that_is_known_to_be_committed_is_committed_whatever_the_question_names(reign: Pipeline) -> None:
    request_id = "the-one-request-id-of-two"
    reign.step(Arrived(at(0), [entry(txn(request_id=request_id, at=BASE))]))
    reign.step(PutAnswered(at(1), FIRST_DATA, CREATED))
    for min_version, version in ((BASE, BASE + 1), (BASE + 1, BASE + 1)):
        question = StatusQuestion(request_id, min_version, "asked")
        assert reign.step(StatusAsked(at(2), question)) == [StatusReady(question, version, BASE)]


# -- the floor that a batch names --------------------------------------------------------------------------------------


def test_a_batch_names_the_floor_that_its_transactions_were_judged_by() -> None:
    """Not the one at its freezing: by then the window may have moved past a read version that was accepted."""
    reign = pipeline(persist=PersistRules(batch_timeout_ms=500.0, batch_timeout_max_ms=500.0), window_ms=1_000.0)
    reign.step(Arrived(at(0), [entry()]))
    reign.step(PutAnswered(at(1), FIRST_DATA, CREATED))
    reign.step(Tick(at(100)))
    reign.step(Arrived(at(900), [entry(), entry()]))
    waits = entry(txn(b"w", at=BASE, reads=[PointRead(b"r")]))
    reign.step(Arrived(at(990), [waits]))
    assert waits.accepted
    effects = reign.step(Tick(at(1_490)))
    (put,) = puts([*effects])
    assert reign.resolve.floor > BASE
    assert decode_header(put.data, slot=put.slot).window_floor <= BASE


def test_a_million_refusals_hold_no_more_memory_than_was_meant() -> None:
    """Each status question bans its id. On an idle log the bans expire with the window, and within their bound."""
    reign = pipeline(persist=FAST, window_bytes=4 << 20, window_ms=100.0)
    bound = (4 << 20) // 4
    ms, most = 0.0, 0
    for number in range(20_000):
        ms += 0.05
        for effect in reign.step(StatusAsked(at(ms), StatusQuestion(f"request-{number:016d}", BASE, number))):
            if isinstance(effect, Put):
                reign.step(PutAnswered(at(ms), effect.slot, CREATED))
        most = max(most, reign.sequence.attempts.bytes_used())
    assert most <= bound * 9 // 8
    for _ in range(20):
        ms += 100.0
        reign.step(Tick(at(ms)))
    assert reign.sequence.attempts.bytes_used() <= bound // 8, "an idle log forgets them, but for the newest generation"


def test_bans_that_cannot_expire_are_bounded_too() -> None:
    reign = pipeline(persist=FAST, window_bytes=1 << 20)
    number = 0
    while not reign.sequence.attempts.is_full:
        reign.step(StatusAsked(at(0), StatusQuestion(f"request-{number:016d}", BASE, number)))
        number += 1
    assert reign.sequence.attempts.bytes_used() <= (1 << 20) // 4 * 17 // 8
