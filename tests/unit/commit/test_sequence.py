"""Stage 1 and its memory of request ids: every row of the outcome rules."""

from __future__ import annotations

import pytest
from tests.unit.commit.builders import BASE, entry, txn

from holdfast.commit.format.transaction import Committed, PointRead, Rejected, Reused, Transaction
from holdfast.commit.stages.attempts import Attempts, Ban, Known, fingerprint
from holdfast.commit.stages.events import CommitEntry
from holdfast.commit.stages.sequence import HOLD_BACK, Sequence
from holdfast.errors import Code, InvalidRequest


class Stage:
    """A Sequence whose floor is BASE, with a shorthand for requests."""

    def __init__(self) -> None:
        self.attempts = Attempts(bytes_max=1 << 20)
        self.sequence = Sequence(BASE, self.attempts)
        self.floor = BASE
        self.looked_up: list[CommitEntry] = []

    def order(self, *requests: Transaction) -> list[CommitEntry]:
        """Returns all the entries, whether they go on or not."""
        entries = [entry(request) for request in requests]
        _, look_up = self.sequence.order(entries, self.floor)
        self.looked_up += look_up
        self.sequence.check()
        return entries

    def finish(self, item: CommitEntry, *, accepted: bool) -> None:
        item.accepted = accepted
        item.outcome = Committed(item.version) if accepted else Rejected("conflict")
        self.sequence.complete(item)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_versions_rise_by_one_in_the_order_of_arrival(stage: Stage) -> None:
    assert [item.version for item in stage.order(txn(), txn(), txn())] == [BASE + 1, BASE + 2, BASE + 3]


def test_a_version_that_was_never_handed_out_is_an_invalid_request_and_uses_up_none(stage: Stage) -> None:
    (early,) = stage.order(txn(at=BASE + 1))
    (reads,) = stage.order(txn(at=BASE, reads=[PointRead(b"k", BASE + 9)]))
    for item in (early, reads):
        assert isinstance(item.outcome, InvalidRequest)
        assert item.outcome.code is Code.FUTURE_VERSION
        assert item.version == 0
    assert stage.sequence.assigned == BASE


def test_a_repeat_of_an_attempt_in_flight_follows_the_original(stage: Stage) -> None:
    first, again, third = stage.order(*[txn(request_id="x", at=BASE)] * 3)
    assert first.followers == [again, third]
    assert (again.version, again.outcome) == (0, None)


def test_a_repeat_of_a_committed_attempt_returns_the_original_version(stage: Stage) -> None:
    (first,) = stage.order(txn(request_id="x", at=BASE))
    stage.finish(first, accepted=True)
    (again,) = stage.order(txn(request_id="x", at=BASE))
    assert again.outcome == Committed(first.version)
    assert stage.sequence.assigned == first.version


def test_a_repeat_of_a_rejected_attempt_is_judged_again(stage: Stage) -> None:
    (first,) = stage.order(txn(request_id="x", at=BASE))
    stage.finish(first, accepted=False)
    (again,) = stage.order(txn(request_id="x", at=BASE))
    assert again.outcome is None
    assert again.version == first.version + 1


@pytest.mark.parametrize(
    "other",
    [
        txn(request_id="x", at=BASE, value=b"w"),
        txn(b"other", request_id="x", at=BASE),
        txn(request_id="x", at=BASE, reads=[PointRead(b"k")]),
    ],
)
@pytest.mark.parametrize("settled", [True, False])
def test_the_same_id_with_other_content_is_reused(stage: Stage, other: Transaction, settled: bool) -> None:
    (first,) = stage.order(txn(request_id="x", at=BASE))
    if settled:
        stage.finish(first, accepted=True)
    (item,) = stage.order(other)
    assert item.outcome == Reused()


def test_the_same_id_at_another_read_version_is_another_attempt(stage: Stage) -> None:
    stage.order(txn())
    assert fingerprint(txn(request_id="x", at=BASE), b"") != fingerprint(txn(request_id="x", at=BASE + 1), b"")


def test_an_attempt_below_the_window_is_looked_up_and_gets_no_version(stage: Stage) -> None:
    (item,) = stage.order(txn(request_id="x", at=BASE - 1))
    assert stage.looked_up == [item]
    assert (item.version, item.outcome) == (0, None)


def test_a_ban_refuses_every_attempt_that_could_have_begun_by_then(stage: Stage) -> None:
    stage.order(txn(), txn())
    assert stage.sequence.ban("x") is None
    old, newest = stage.order(txn(request_id="x", at=BASE), txn(request_id="x", at=BASE + 2))
    assert old.outcome == newest.outcome == Rejected("banned")
    stage.order(txn())
    (later,) = stage.order(txn(request_id="x", at=BASE + 3))
    assert later.outcome is None


def test_a_refusal_by_the_stores_is_final_for_its_attempt_and_no_other(stage: Stage) -> None:
    (refused,) = stage.order(txn(request_id="x", at=BASE))
    refused.outcome = Rejected("store_refused")
    stage.sequence.complete(refused)
    again, later = stage.order(txn(request_id="x", at=BASE), txn(request_id="x", at=BASE + 1))
    assert again.outcome == Rejected("banned")
    assert later.outcome is None


def test_a_repeat_has_the_results_of_the_stores(stage: Stage) -> None:
    (first,) = stage.order(txn(request_id="x", at=BASE))
    first.results = b"done"
    stage.finish(first, accepted=True)
    (again,) = stage.order(txn(request_id="x", at=BASE))
    assert again.outcome == Committed(first.version, b"done")


def test_other_parts_under_one_id_are_another_attempt(stage: Stage) -> None:
    (first,) = stage.order(txn(request_id="x", at=BASE))
    stage.finish(first, accepted=True)
    other = entry(txn(request_id="x", at=BASE))
    other.parts_digest = b"other"
    stage.sequence.order([other], stage.floor)
    assert other.outcome == Reused()


def test_a_ban_of_one_id_touches_no_other(stage: Stage) -> None:
    stage.sequence.ban("x")
    (item,) = stage.order(txn(request_id="y", at=BASE))
    assert item.outcome is None


def test_a_banned_attempt_from_before_the_window_is_looked_up_not_denied(stage: Stage) -> None:
    stage.sequence.ban("x")
    (item,) = stage.order(txn(request_id="x", at=BASE - 1))
    assert stage.looked_up == [item]


def test_a_ban_of_an_attempt_in_flight_takes_effect_when_that_is_rejected(stage: Stage) -> None:
    (first,) = stage.order(txn(request_id="x", at=BASE))
    known = stage.sequence.ban("x")
    assert known is not None
    assert known.version == first.version
    stage.finish(first, accepted=False)
    (again,) = stage.order(txn(request_id="x", at=BASE))
    assert again.outcome == Rejected("banned")


def test_a_ban_of_an_attempt_in_flight_that_commits_changes_nothing(stage: Stage) -> None:
    (first,) = stage.order(txn(request_id="x", at=BASE))
    stage.sequence.ban("x")
    stage.finish(first, accepted=True)
    (again,) = stage.order(txn(request_id="x", at=BASE))
    assert again.outcome == Committed(first.version)


def test_a_ban_outlives_a_later_attempt_under_its_id_that_is_rejected(stage: Stage) -> None:
    """Status said not_committed of the first attempt; its request may still be on its way."""
    stage.sequence.ban("x")
    stage.order(txn())
    (later,) = stage.order(txn(request_id="x", at=BASE + 1))
    stage.finish(later, accepted=False)
    (first,) = stage.order(txn(request_id="x", at=BASE))
    assert first.outcome == Rejected("banned")


def test_the_stage_holds_back_before_versions_could_reach_the_next_leader_s_base(stage: Stage) -> None:
    assert stage.sequence.room(BASE) == HOLD_BACK
    stage.order(*[txn()] * 3)
    assert stage.sequence.room(BASE) == HOLD_BACK - 3
    assert stage.sequence.room(BASE + 3) == HOLD_BACK


def generations(*bans: int) -> Attempts:
    """An Attempts with one entry per generation."""
    attempts = Attempts(bytes_max=1)
    for version in bans:
        attempts.put(f"id-{version}", Ban(version))
    return attempts


def test_a_ban_lasts_until_every_attempt_that_it_forbids_is_looked_up() -> None:
    """It forbids read versions up to its own; only those below the floor are looked up."""
    attempts = generations(5, 6, 7)
    attempts.expire(5)
    assert attempts.find("id-5") == Ban(5)
    attempts.expire(6)
    assert attempts.find("id-5") is None
    assert attempts.find("id-6") == Ban(6)


def test_a_committed_attempt_leaves_once_its_version_is_at_the_floor() -> None:
    attempts = Attempts(bytes_max=1)
    for version in (5, 6, 7):
        attempts.put(f"id-{version}", Known(version, b"", None))
    attempts.expire(5)
    assert attempts.find("id-5") is None
    assert isinstance(attempts.find("id-6"), Known)


def test_the_newest_generation_never_leaves() -> None:
    attempts = generations(5, 6)
    attempts.expire(100)
    assert attempts.find("id-6") == Ban(6)
    assert len(attempts) == 1


def test_the_memory_of_ids_asks_for_a_higher_floor_when_it_outgrows_its_bound() -> None:
    attempts = generations(*range(10, 19))
    assert attempts.floor_for_bound() > 0
    attempts.expire(attempts.floor_for_bound())
    assert attempts.floor_for_bound() == 0
    attempts.check()
