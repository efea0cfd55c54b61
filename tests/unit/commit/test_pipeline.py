"""The four stages together: when who is answered, and how a reign ends."""

from __future__ import annotations

import pytest
from tests.unit.commit.builders import BASE, FIRST_DATA, at, entry, genesis, of, pipeline, puts, takeover, txn

from holdfast.commit.format.batch import Kind, decode_header, jump
from holdfast.commit.format.transaction import (
    Committed,
    PointRead,
    Precondition,
    RangeRead,
    Rejected,
    Reused,
    Transaction,
    Unanswered,
    Write,
)
from holdfast.commit.stages.events import (
    Abandon,
    Answer,
    Arrived,
    CheckOwnership,
    CommitEntry,
    Drain,
    Durable,
    Effect,
    Ended,
    HeaderFound,
    LookUp,
    NoopAsked,
    OwnershipSeen,
    Put,
    PutAnswered,
    Reached,
    StatusAsked,
    StatusQuestion,
    StatusReady,
    Tick,
    TruncationDue,
    VersionAsked,
    VersionIs,
)
from holdfast.commit.stages.persist import PersistRules
from holdfast.commit.stages.pipeline import Pipeline
from holdfast.commit.stages.release import PROOF_MS_MAX
from holdfast.objects.port import CREATED, Refused, Unknown
from holdfast.values import Slot, Version

FAST = PersistRules(batch_timeout_ms=0.0, window=8)


@pytest.fixture
def reign() -> Pipeline:
    return pipeline(persist=FAST)


def arrive(reign: Pipeline, ms: float, *entries: CommitEntry) -> list[Effect]:
    effects = reign.step(Arrived(at(ms), [*entries]))
    reign.check()
    return effects


def created(reign: Pipeline, ms: float, slot: int) -> list[Effect]:
    effects = reign.step(PutAnswered(at(ms), Slot(slot), CREATED))
    reign.check()
    return effects


def answered(effects: list[Effect]) -> list[CommitEntry]:
    return [item for effect in effects if isinstance(effect, Answer) for item in effect.entries]


def only(kind: type, effects: list[Effect]) -> Effect:
    (found,) = [effect for effect in effects if isinstance(effect, kind)]
    return found


# -- answers -----------------------------------------------------------------------------------------------------------


def test_a_commit_is_answered_behind_its_durable_batch_and_after_it_was_shown(reign: Pipeline) -> None:
    item = entry()
    effects = arrive(reign, 0, item)
    assert answered(effects) == []
    effects = created(reign, 1, FIRST_DATA)
    kinds = [type(effect) for effect in effects]
    assert kinds.index(Durable) < kinds.index(Answer)
    assert (item.outcome, item.durable_version) == (Committed(BASE + 1), BASE + 1)


def test_batches_answered_out_of_order_are_released_in_order(reign: Pipeline) -> None:
    first, second = entry(), entry()
    arrive(reign, 0, first)
    arrive(reign, 1, second)
    assert answered(created(reign, 2, FIRST_DATA - 1)) == []
    assert answered(created(reign, 3, FIRST_DATA)) == [first, second]


def test_a_rejection_waits_until_the_version_it_lists_is_durable(reign: Pipeline) -> None:
    winner = entry(txn(b"k"))
    loser = entry(txn(b"other", at=BASE, reads=[PointRead(b"k")]))
    arrive(reign, 0, winner)
    assert answered(arrive(reign, 1, loser)) == []
    assert answered(created(reign, 2, FIRST_DATA)) == [winner, loser]
    assert isinstance(loser.outcome, Rejected)
    assert loser.durable_version >= loser.outcome.conflicts[0].version


def test_a_rejection_with_nothing_in_flight_is_answered_at_once(reign: Pipeline) -> None:
    item = entry(txn(at=BASE - 1, reads=[PointRead(b"k")]))
    assert answered(arrive(reign, 0, item)) == [item]
    assert (item.outcome, item.durable_version) == (Rejected("too_old"), BASE)


def test_a_repeat_in_flight_is_answered_with_its_original_and_a_stranger_is_reused(reign: Pipeline) -> None:
    first, again, other = (entry(txn(value=value, request_id="x", at=BASE)) for value in (b"1", b"1", b"2"))
    arrive(reign, 0, first)
    arrive(reign, 1, again, other)
    assert answered(created(reign, 2, FIRST_DATA)) == [first, again, other]
    assert [item.outcome for item in (first, again, other)] == [Committed(BASE + 1), Committed(BASE + 1), Reused()]


def test_an_attempt_below_the_window_is_looked_up(reign: Pipeline) -> None:
    item = entry(txn(request_id="x", at=BASE - 1))
    effects = arrive(reign, 0, item)
    assert effects == [LookUp([item])]


# -- versions ----------------------------------------------------------------------------------------------------------


def test_an_idle_leader_answers_a_version_behind_an_ownership_check(reign: Pipeline) -> None:
    assert reign.step(VersionAsked(at(0), "q")) == [CheckOwnership()]
    assert reign.step(OwnershipSeen(at(1), genesis().slot)) == [VersionIs(["q"], BASE)]


def test_a_version_asked_before_a_put_began_rides_on_it() -> None:
    reign = pipeline(persist=PersistRules(batch_timeout_ms=5.0))
    arrive(reign, 0, entry())
    arrive(reign, 1, entry())
    assert reign.step(VersionAsked(at(2), "q")) == []
    assert isinstance(only(Put, reign.step(Tick(at(6)))), Put)
    assert not any(isinstance(effect, VersionIs) for effect in created(reign, 7, FIRST_DATA))
    assert only(VersionIs, created(reign, 8, FIRST_DATA - 1)) == VersionIs(["q"], BASE + 2)


def test_a_check_cannot_see_a_claim_in_a_slot_that_was_sent_so_its_version_waits_for_that_slot(reign: Pipeline) -> None:
    """A later leader's claim may be the newest key, in the very slot that this leader has sent."""
    assert reign.step(VersionAsked(at(0), "q")) == [CheckOwnership()]
    arrive(reign, 1, entry())
    seen = reign.step(OwnershipSeen(at(2), FIRST_DATA))
    assert seen == []
    stranger = takeover(genesis(), "b")
    reign.step(PutAnswered(at(3), FIRST_DATA, Refused()))
    effects = reign.step(HeaderFound(at(4), FIRST_DATA, stranger, True))
    ended = only(Ended, effects)
    assert isinstance(ended, Ended)
    assert (ended.kind, ended.tickets) == ("deposed", ["q"])


def test_a_check_made_while_a_put_was_on_its_way_answers_once_that_put_is_durable(reign: Pipeline) -> None:
    reign.step(VersionAsked(at(0), "q"))
    arrive(reign, 1, entry())
    reign.step(OwnershipSeen(at(2), FIRST_DATA))
    assert only(VersionIs, created(reign, 3, FIRST_DATA)) == VersionIs(["q"], BASE + 1)


def test_questions_that_wait_share_one_check_and_later_ones_get_their_own(reign: Pipeline) -> None:
    assert reign.step(VersionAsked(at(0), "first")) == [CheckOwnership()]
    assert reign.step(VersionAsked(at(1), "later")) == []
    effects = reign.step(OwnershipSeen(at(2), genesis().slot))
    assert effects == [VersionIs(["first"], BASE), CheckOwnership()]


def test_a_check_without_an_answer_is_asked_again_and_a_deadline_left_behind_does_not_spin(reign: Pipeline) -> None:
    reign.step(VersionAsked(at(0), "q"))
    assert reign.step(OwnershipSeen(at(1), Unknown("timeout"))) == []
    again = reign.next_deadline_ms()
    assert again is not None
    arrive(reign, 2, entry())
    created(reign, 3, FIRST_DATA)
    reign.step(Tick(at(again)))
    reign.step(OwnershipSeen(at(again + 1), FIRST_DATA))
    assert reign.next_deadline_ms() is None


def test_a_newest_key_below_everything_sent_deposes(reign: Pipeline) -> None:
    reign.step(VersionAsked(at(0), "q"))
    ended = only(Ended, reign.step(OwnershipSeen(at(1), FIRST_DATA)))
    assert isinstance(ended, Ended)
    assert (ended.kind, ended.tickets) == ("deposed", ["q"])


def test_a_question_waits_for_what_begins_after_it_and_not_for_a_batch_that_was_sent_before() -> None:
    """An empty batch is due while one is held and another collects: nothing is sent, so nothing is proved by it."""
    reign = pipeline(persist=PersistRules(batch_timeout_ms=0.0, puts_per_second_max=1.0))
    begun = PROOF_MS_MAX + 1_000
    arrive(reign, begun, entry())
    assert created(reign, begun + 10, FIRST_DATA) == [CheckOwnership()]
    arrive(reign, begun + 300, entry())
    # Between that check and this question a later leader may have claimed and committed.
    assert reign.step(VersionAsked(at(begun + 400), "q")) == []
    assert reign.step(TruncationDue(at(begun + 500), Version(1), "t")) == []
    seen = reign.step(OwnershipSeen(at(begun + 600), FIRST_DATA))
    assert [type(effect) for effect in seen] == [Durable, Answer]
    put = only(Put, reign.step(Tick(at(begun + 1_000))))
    assert isinstance(put, Put)
    assert only(VersionIs, created(reign, begun + 1_010, put.slot)) == VersionIs(["q"], BASE + 2)


# -- status and no-ops -------------------------------------------------------------------------------------------------


def ask(reign: Pipeline, ms: float, request_id: str = "x") -> list[Effect]:
    return reign.step(StatusAsked(at(ms), StatusQuestion(request_id, BASE, "s")))


def test_status_waits_for_what_was_sequenced_before_it_and_tells_its_version(reign: Pipeline) -> None:
    arrive(reign, 0, entry(txn(request_id="x", at=BASE)))
    assert ask(reign, 1) == []
    ready = only(StatusReady, created(reign, 2, FIRST_DATA))
    assert isinstance(ready, StatusReady)
    assert ready.version == BASE + 1


def test_status_bans_before_anything_that_comes_later(reign: Pipeline) -> None:
    ready = only(StatusReady, ask(reign, 0))
    assert isinstance(ready, StatusReady)
    assert (ready.version, ready.complete_above) == (None, BASE)
    late = entry(txn(request_id="x", at=BASE))
    arrive(reign, 1, late)
    assert late.outcome == Rejected("banned")


def test_a_noop_goes_behind_everything_before_it(reign: Pipeline) -> None:
    assert reign.step(NoopAsked(at(0), "n")) == [Reached(["n"])]
    arrive(reign, 1, entry())
    assert reign.step(NoopAsked(at(2), "m")) == []
    assert only(Reached, created(reign, 3, FIRST_DATA)) == Reached(["m"])


# -- proof of ownership ------------------------------------------------------------------------------------------------


def test_a_leader_that_slept_checks_that_it_owns_the_log_before_it_answers(reign: Pipeline) -> None:
    item = entry()
    arrive(reign, 0, item)
    late = PROOF_MS_MAX + 1
    effects = created(reign, late, FIRST_DATA)
    assert effects == [CheckOwnership()]
    assert answered(reign.step(OwnershipSeen(at(late + 1), FIRST_DATA))) == [item]


def test_a_leader_that_slept_through_its_deposition_answers_nothing(reign: Pipeline) -> None:
    item = entry()
    arrive(reign, 0, item)
    created(reign, PROOF_MS_MAX + 1, FIRST_DATA)
    reign.step(OwnershipSeen(at(PROOF_MS_MAX + 2), Slot(FIRST_DATA - 1000)))
    assert item.outcome == Unanswered()


def test_a_rejection_behind_held_batches_waits_with_them(reign: Pipeline) -> None:
    arrive(reign, 0, entry(txn(b"k")))
    created(reign, PROOF_MS_MAX + 1, FIRST_DATA)
    loser = entry(txn(b"other", at=BASE, reads=[PointRead(b"k")]))
    assert answered(arrive(reign, PROOF_MS_MAX + 2, loser)) == []


# -- the end of a reign ------------------------------------------------------------------------------------------------


def depose(reign: Pipeline, ms: float) -> list[Effect]:
    reign.step(PutAnswered(at(ms), FIRST_DATA, Refused()))
    return reign.step(HeaderFound(at(ms), FIRST_DATA, takeover(genesis(), "b"), True))


def test_a_deposed_leader_answers_everything_that_waits_as_unknown_and_then_ends(reign: Pipeline) -> None:
    waiting = [entry(), entry(txn(at=BASE - 1, reads=[PointRead(b"k")]))]
    arrive(reign, 0, *waiting)
    effects = depose(reign, 1)
    assert answered(effects) == waiting
    assert [item.outcome for item in waiting] == [Unanswered(), Unanswered()]
    assert isinstance(effects[-1], Ended)
    assert effects[-1].kind == "deposed"


def test_after_its_end_a_reign_answers_unknown_and_sends_nothing(reign: Pipeline) -> None:
    arrive(reign, 0, entry())
    depose(reign, 1)
    late = entry()
    assert answered(reign.step(Arrived(at(2), [late]))) == [late]
    assert late.outcome == Unanswered()
    for event in (VersionAsked(at(3), "q"), NoopAsked(at(3), "q")):
        (ended,) = reign.step(event)
        assert isinstance(ended, Ended)
        assert ended.tickets == ["q"]
    for event in (Tick(at(99_999)), PutAnswered(at(4), FIRST_DATA, CREATED), OwnershipSeen(at(4), None), Drain(at(5))):
        assert reign.step(event) == []
    assert reign.next_deadline_ms() is None


def test_a_store_that_takes_nothing_in_time_ends_the_reign() -> None:
    reign = pipeline(persist=PersistRules(give_up_after_ms=500))
    item = entry()
    arrive(reign, 0, item)
    reign.step(PutAnswered(at(10), FIRST_DATA, Unknown("503")))
    ended = only(Ended, reign.step(Tick(at(500))))
    assert isinstance(ended, Ended)
    assert ended.kind == "gave_up"
    assert "503" in ended.detail
    assert item.outcome == Unanswered()


def test_a_store_that_takes_nothing_any_more_ends_the_reign_at_once(reign: Pipeline) -> None:
    item = entry()
    arrive(reign, 0, item)
    ended = only(Ended, reign.step(PutAnswered(at(10), FIRST_DATA, Unknown("a sync failed", final=True))))
    assert isinstance(ended, Ended)
    assert (ended.kind, ended.detail) == ("gave_up", "the store takes nothing any more: a sync failed")
    assert item.outcome == Unanswered()


def test_draining_finishes_what_is_under_way_then_resigns_then_ends(reign: Pipeline) -> None:
    item = entry()
    arrive(reign, 0, item)
    assert reign.step(Drain(at(1))) == []
    effects = created(reign, 2, FIRST_DATA)
    assert answered(effects) == [item]
    resign = only(Put, effects)
    assert isinstance(resign, Put)
    assert decode_header(resign.data, slot=resign.slot).kind is Kind.RESIGN
    ended = only(Ended, created(reign, 3, resign.slot))
    assert isinstance(ended, Ended)
    assert ended.kind == "resigned"


def test_what_comes_in_after_the_resign_record_was_sent_ends_unknown_and_delays_nothing(reign: Pipeline) -> None:
    (resign,) = reign.step(Drain(at(0)))
    assert isinstance(resign, Put)
    late = entry()
    arrive(reign, 1, late)
    assert isinstance(only(Ended, created(reign, 2, resign.slot)), Ended)
    assert late.outcome == Unanswered()


def test_versions_beyond_the_hold_back_wait_their_turn(reign: Pipeline) -> None:
    reign.sequence.assigned = BASE + 90_000_000 - 1
    first, second = entry(), entry()
    effects = arrive(reign, 0, first, second)
    assert (first.version, second.version) == (BASE + 90_000_000, 0)
    put = only(Put, effects)
    assert isinstance(put, Put)
    created(reign, 1, put.slot)
    assert second.version == BASE + 90_000_001
    assert jump(genesis().slot) == put.slot


# -- decisions that take long ------------------------------------------------------------------------------------------


def test_one_large_commit_leaves_its_turn_to_others_and_keeps_its_place() -> None:
    reign = pipeline(persist=PersistRules(batch_timeout_ms=0.0), resolve_work_max=100)
    reads: list[Precondition] = [RangeRead(b"%05d" % number, b"%05d!" % number, BASE) for number in range(1_000)]
    large = entry(Transaction([Write(b"large", b"")], reads))
    behind = entry(Transaction([Write(b"behind", b"")], [PointRead(b"large", BASE)]))
    assert not puts(reign.step(Arrived(at(0), [large])))
    assert not puts(reign.step(Arrived(at(0), [behind])))
    assert reign.step(VersionAsked(at(0), "asked")) == [CheckOwnership()], "questions do not wait for the decision"
    assert not of(StatusReady, reign.step(StatusAsked(at(0), StatusQuestion("a-request-id", BASE, "status"))))
    steps, effects = 0, list[object]()
    while reign.undecided:
        assert reign.next_deadline_ms() == 0.0, "the next step is due at once"
        effects = [*reign.step(Tick(at(0)))]
        reign.check()
        steps += 1
    assert steps > 50
    (put,) = puts(effects)
    effects = [*reign.step(PutAnswered(at(1), put.slot, CREATED))]
    assert large.outcome == Committed(BASE + 1)
    assert isinstance(behind.outcome, Rejected), "it was decided after the commit before it"
    assert len(of(StatusReady, effects)) == 1
    assert reign.next_deadline_ms() != 0.0


def test_a_leader_that_ends_in_the_middle_of_a_decision_answers_everybody() -> None:
    reign = pipeline(resolve_work_max=10)
    reads: list[Precondition] = [PointRead(b"%d" % number, BASE) for number in range(100)]
    large, behind = entry(Transaction([Write(b"a", b"")], reads)), entry()
    reign.step(Arrived(at(0), [large, behind]))
    effects = [*reign.step(Abandon(at(1)))]
    (answer,) = of(Answer, effects)
    assert isinstance(answer, Answer)
    assert answer.entries == [large, behind]
    assert large.outcome == behind.outcome == Unanswered()
    reign.check()


def test_an_empty_batch_in_the_middle_of_a_decision_does_not_pass_the_commit() -> None:
    reign = pipeline(resolve_work_max=10)
    reads: list[Precondition] = [PointRead(b"%d" % number, BASE) for number in range(100)]
    large = entry(Transaction([Write(b"a", b"")], reads))
    reign.step(Arrived(at(0), [large]))
    (empty,) = reign.persist.form_empty(at(1), reign._decided_through(), reign.resolve.floor)
    assert decode_header(empty.data, slot=empty.slot).last_version == BASE
    assert large.version == BASE + 1
