"""Stage 4: nothing is answered before it is durable and proved, and nothing that cannot be proved is answered."""

from __future__ import annotations

from tests.unit.commit.builders import BASE, entry, genesis

from holdfast.commit.format.transaction import Committed, Rejected, Unanswered
from holdfast.commit.stages.events import Batch, CommitEntry, Place
from holdfast.commit.stages.release import PROOF_MS_MAX, Release


def accepted(version: int) -> CommitEntry:
    item = entry()
    item.version, item.accepted = version, True
    return item


def rejected() -> CommitEntry:
    item = entry()
    item.outcome = Rejected("conflict")
    return item


def batch(*entries: CommitEntry | Place, proved_ms: float | None = None) -> Batch:
    return Batch(genesis(), b"x", [*entries], [], 0.0, done=True, proved_ms=proved_ms)


def test_answers_come_in_order_and_name_a_durable_version() -> None:
    release = Release(BASE, 0)
    release.durable_version = BASE + 2
    entries = [accepted(BASE + 1), rejected(), accepted(BASE + 2)]
    answers, _ = release.answers(entries)
    assert answers == entries
    assert [item.outcome for item in answers] == [Committed(BASE + 1), Rejected("conflict"), Committed(BASE + 2)]
    assert {item.durable_version for item in answers} == {BASE + 2}


def test_followers_share_the_outcome_of_their_original() -> None:
    release = Release(BASE, 0)
    release.durable_version = BASE + 1
    original, follower = accepted(BASE + 1), entry()
    original.followers = [follower]
    answers, _ = release.answers([original])
    assert answers == [original, follower]
    assert follower.outcome == Committed(BASE + 1)


def test_positions_are_reached_in_their_place() -> None:
    release = Release(BASE, 0)
    position = Place("here")
    assert release.answers([rejected(), position])[1] == [position]


def test_a_created_batch_is_a_proof_from_when_it_was_sent() -> None:
    release = Release(BASE, 0)
    for now in (PROOF_MS_MAX, 2 * PROOF_MS_MAX, 3 * PROOF_MS_MAX):
        one = batch(proved_ms=now)
        assert release.offer([one], now) == [one]
    assert not release.holding


def test_a_process_that_was_frozen_before_it_read_an_answer_does_not_take_it_for_a_new_proof() -> None:
    release = Release(BASE, 0)
    one = batch(proved_ms=1)
    assert release.offer([one], PROOF_MS_MAX) == [one]
    assert release.offer([batch(proved_ms=PROOF_MS_MAX)], PROOF_MS_MAX + 2) == []
    assert release.holding


def test_a_batch_that_was_recognised_as_own_proves_nothing() -> None:
    release = Release(BASE, 0)
    own = batch()
    assert release.offer([own], PROOF_MS_MAX) == [own]
    assert release.offer([batch(proved_ms=PROOF_MS_MAX)], PROOF_MS_MAX + 1) == []
    assert release.holding


def test_after_a_long_silence_durable_batches_wait_for_a_check() -> None:
    release = Release(BASE, 0)
    first, second = batch(), batch()
    assert release.offer([first], PROOF_MS_MAX + 1) == []
    assert release.offer([second], PROOF_MS_MAX + 2) == []
    assert release.holding
    assert release.owned(PROOF_MS_MAX + 3, PROOF_MS_MAX + 4) == [first, second]
    assert not release.holding


def test_a_check_whose_answer_slept_as_long_proves_nothing() -> None:
    release = Release(BASE, 0)
    held = batch()
    release.offer([held], PROOF_MS_MAX + 1)
    assert release.owned(PROOF_MS_MAX + 2, 2 * PROOF_MS_MAX + 3) == []
    assert release.holding
    assert release.owned(2 * PROOF_MS_MAX + 4, 2 * PROOF_MS_MAX + 5) == [held]


def test_what_cannot_be_proved_any_more_is_unknown_rejections_included() -> None:
    release = Release(BASE, 0)
    held, original, follower = accepted(BASE + 1), accepted(BASE + 2), entry()
    original.followers = [follower]
    release.offer([batch(held)], PROOF_MS_MAX + 1)
    position = Place("here")
    answers, positions = release.abandon([original, rejected(), position])
    assert [item.outcome for item in answers] == [Unanswered()] * 4
    assert answers[0] is held
    assert positions == [position]
