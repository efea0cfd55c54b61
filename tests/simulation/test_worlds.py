"""Worlds of the log keep every promise, a mutant is noticed, and a seed of any kind of world repeats it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from tests.matrix import matrix
from tests.worlds.harness import KINDS, run_seeds
from tests.worlds.log.clock_mutants import COPY_MUTANTS as CLOCK_COPY_MUTANTS
from tests.worlds.log.clock_mutants import MUTANTS as CLOCK_MUTANTS
from tests.worlds.log.copying_mutants import MUTANTS as COPY_MUTANTS
from tests.worlds.log.etiquette import SCENES, SUSPENSIONS
from tests.worlds.log.foundations_mutants import MUTANTS as FOUNDATION_MUTANTS
from tests.worlds.log.journal_mutants import MUTANTS as JOURNAL_MUTANTS
from tests.worlds.log.mutants import MUTANTS
from tests.worlds.log.retention_mutants import MUTANTS as RETENTION_MUTANTS
from tests.worlds.log.times import MUTANTS as TIMES_MUTANTS
from tests.worlds.log.world import EVENTS_MIN, run_world

FIXED_SEEDS = range(24)
SMALL = os.environ.get("HOLDFAST_SMALL") == "1"
SEEDS = (1,) if SMALL else (1, 2, 3)
FRESH_SEEDS = 5 if SMALL else 20
SLOW_MUTANTS = {
    "batches_are_no_signs",
    "newest_gap_instead_of_oldest",
    "no_signs_in_a_drain",
    "old_claims_are_left_out",
    "one_lost_question",
    "own_refusal_proves",
    "page_one_key_short",
    "part_is_appended_again",
    "policies_not_compared",
    "promoted_log_keeps_the_id",
    "proof_dated_by_the_answer",
    "question_rides_on_what_was_sent",
    "refusal_elsewhere_is_a_proof",
    "shown_is_not_heard",
    "signs_are_not_seen",
    "silence_is_a_proof",
    "stands_at_the_newest_key",
    "status_before_its_position",
    "walk_past_the_hole",
    "manifest_comes_early",
}
"""Those whose worlds take the longest. The promise that each breaks is broken by a quicker mutant or, as for
`page_one_key_short`, shown by the search over all states of the protocol."""
SLOW_CLOCK_MUTANTS = (
    *("boot_clocks_are_one", "time_stands_still_until_the_clock_has_caught_up"),
    *("holds_begin_before_they_are_seen", "steps_are_followed_at_once"),
)
"""Unit tests of the log's clock and of retention find them, too."""
FIRST_KINDS = ["log", "stores"]
SMALL_BLOCKS = "stores-small-blocks"
"""The kind of world that changes a constant of the code, so it has a process of its own."""
RecordProperty = Callable[[str, object], None]


def is_quick(mutant: str) -> bool:
    """Whether `make test` looks for the mutant."""
    return mutant not in SLOW_MUTANTS


def test_fixed_worlds_keep_every_promise_and_meet_every_kind_of_fault(
    capsys: pytest.CaptureFixture[str], record_property: RecordProperty
) -> None:
    summary = run_seeds("log", FIXED_SEEDS)
    with capsys.disabled():
        print("\n" + summary.table())
    record_property("seeds", summary.worlds)
    record_property("events", summary.count)
    assert not summary.failures, summary.failed()
    assert summary.missing() == []
    assert summary.fewest >= EVENTS_MIN


@pytest.mark.timeout(3_600)
def test_fresh_worlds_keep_every_promise(prove: bool, record_property: RecordProperty) -> None:
    """New seeds; a failure names its seed, which reproduces it."""
    first = int.from_bytes(os.urandom(5), "little")
    summary = run_seeds("log", range(first, first + (5_000 if prove else FRESH_SEEDS)), jobs=2 if prove else 1)
    record_property("seeds", summary.worlds)
    record_property("events", summary.count)
    assert not summary.failures, summary.failed()


@pytest.mark.parametrize("name", matrix(MUTANTS, is_quick))
def test_every_mutant_of_the_log_is_caught(name: str, record_property: RecordProperty) -> None:
    found = MUTANTS.catch(name)
    assert found.seed is not None, f"{MUTANTS[name].rule}: not caught in {MUTANTS.seeds_max} seeds"
    if not SMALL:  # the same world without the mutant keeps every promise
        MUTANTS[name].play(found.seed)
    record_property("mutants", 1)


@pytest.mark.timeout(3_600)
def test_a_leader_whose_assertion_fails_gives_no_wrong_answer_and_leaves_nobody_waiting(
    prove: bool, record_property: RecordProperty
) -> None:
    first = int.from_bytes(os.urandom(5), "little")
    summary = run_seeds("broken-law", range(6))
    fresh = run_seeds("broken-law", range(first, first + (2_000 if prove else 2)), jobs=2 if prove else 1)
    record_property("seeds", summary.worlds + fresh.worlds)
    assert not summary.failures, summary.failed()
    assert summary.missing() == []
    assert not fresh.failures, fresh.failed()


@pytest.mark.timeout(3_600)
def test_retention_removes_nothing_that_is_needed(prove: bool, record_property: RecordProperty) -> None:
    first = int.from_bytes(os.urandom(5), "little")
    summary = run_seeds("retention", range(3))
    fresh = run_seeds("retention", range(first, first + (5_000 if prove else 2)), jobs=2 if prove else 1)
    record_property("seeds", summary.worlds + fresh.worlds)
    assert not summary.failures, summary.failed()
    assert summary.seen["retention_removed"] > 100
    assert not fresh.failures, fresh.failed()
    assert not prove or fresh.missing() == []


@pytest.mark.parametrize("name", matrix(RETENTION_MUTANTS, is_quick))
def test_every_mutant_of_retention_is_caught(name: str, record_property: RecordProperty) -> None:
    found = RETENTION_MUTANTS.catch(name)
    assert found.seed is not None, f"{RETENTION_MUTANTS[name].rule}: not caught in {RETENTION_MUTANTS.seeds_max} seeds"
    if not SMALL:  # the same world without the mutant keeps every promise
        RETENTION_MUTANTS[name].play(found.seed)
    record_property("mutants", 1)


@pytest.mark.timeout(3_600)
def test_what_stores_in_the_log_confirm_every_later_leader_knows(prove: bool, record_property: RecordProperty) -> None:
    first = int.from_bytes(os.urandom(5), "little")
    summary = run_seeds("journal", range(6))
    fresh = run_seeds("journal", range(first, first + (5_000 if prove else 4)), jobs=2 if prove else 1)
    record_property("seeds", summary.worlds + fresh.worlds)
    assert not summary.failures, summary.failed()
    assert summary.missing() == []
    assert not fresh.failures, fresh.failed()


@pytest.mark.parametrize("name", matrix(JOURNAL_MUTANTS, is_quick))
def test_every_mutant_of_stores_in_the_log_is_caught(name: str, record_property: RecordProperty) -> None:
    found = JOURNAL_MUTANTS.catch(name)
    assert found.seed is not None, f"{JOURNAL_MUTANTS[name].rule}: not caught in {JOURNAL_MUTANTS.seeds_max} seeds"
    if not SMALL:  # the same world without the mutant keeps every promise
        JOURNAL_MUTANTS[name].play(found.seed)
    record_property("mutants", 1)


@pytest.mark.timeout(3_600)
def test_a_mirror_and_its_promotion_keep_every_promise(prove: bool, record_property: RecordProperty) -> None:
    first = int.from_bytes(os.urandom(5), "little")
    summary = run_seeds("copies", range(7, 13))
    fresh = run_seeds("copies", range(first, first + (5_000 if prove else 3)), jobs=2 if prove else 1)
    record_property("seeds", summary.worlds + fresh.worlds)
    assert not summary.failures, summary.failed()
    assert summary.seen["promoted_read_afresh"] >= 1
    assert not fresh.failures, fresh.failed()
    assert not prove or fresh.missing() == []


@pytest.mark.timeout(3_600)
def test_a_copy_command_that_is_stopped_at_any_step_is_resumed_or_refused(
    prove: bool, record_property: RecordProperty
) -> None:
    summary = run_seeds("foundations", range(1_000 if prove else 24), jobs=2 if prove else 1)
    first = int.from_bytes(os.urandom(5), "little")
    fresh = run_seeds("foundations", range(first, first + (1_000 if prove else 4)), jobs=2 if prove else 1)
    record_property("seeds", summary.worlds + fresh.worlds)
    assert not summary.failures, summary.failed()
    assert not fresh.failures, fresh.failed()
    assert summary.seen["judged_whole"] >= 10
    assert not prove or summary.missing() == []


@pytest.mark.parametrize("name", FOUNDATION_MUTANTS)
def test_every_mutant_of_foundations_is_caught(name: str, record_property: RecordProperty) -> None:
    found = FOUNDATION_MUTANTS.catch(name)
    record_property("seed", found.seed)
    assert found.seed is not None, f"{FOUNDATION_MUTANTS[name].rule}: not caught"
    FOUNDATION_MUTANTS[name].play(found.seed)  # the same world without the mutant keeps every promise


@pytest.mark.parametrize("name", matrix(COPY_MUTANTS, is_quick))
def test_every_mutant_of_mirrors_is_caught(name: str, record_property: RecordProperty) -> None:
    found = COPY_MUTANTS.catch(name)
    assert found.seed is not None, f"{COPY_MUTANTS[name].rule}: not caught in {COPY_MUTANTS.seeds_max} seeds"
    if not SMALL:  # the same world without the mutant keeps every promise
        COPY_MUTANTS[name].play(found.seed)
    record_property("mutants", 1)


@pytest.mark.timeout(7_200)
@pytest.mark.parametrize(
    ("kind", "fixed", "fresh", "proved"),
    [("clocks", 3, 1, 4_000), ("clock-copies", 2, 1, 1_000), ("clock-times", 6, 2, 1_000)],
)
def test_no_clock_removes_what_is_young_and_retention_goes_on_after_each_step(
    kind: str, fixed: int, fresh: int, proved: int, prove: bool, record_property: RecordProperty
) -> None:
    first = int.from_bytes(os.urandom(5), "little")
    summary = run_seeds(kind, range(1 if SMALL else fixed))
    drawn = run_seeds(kind, range(first, first + (proved if prove else fresh)), jobs=2 if prove else 1)
    record_property("seeds", summary.worlds + drawn.worlds)
    assert not summary.failures, summary.failed()
    assert not drawn.failures, drawn.failed()
    assert not prove or drawn.missing() == []


@pytest.mark.parametrize(
    "name", matrix([*CLOCK_MUTANTS, *CLOCK_COPY_MUTANTS, *TIMES_MUTANTS], lambda name: name not in SLOW_CLOCK_MUTANTS)
)
def test_every_mutant_of_clocks_is_caught(name: str, record_property: RecordProperty) -> None:
    mutants = next(each for each in (CLOCK_MUTANTS, CLOCK_COPY_MUTANTS, TIMES_MUTANTS) if name in each)
    found = mutants.catch(name)
    record_property("seed", found.seed)
    assert found.seed is not None, f"{mutants[name].rule}: not caught"
    if not SMALL:  # the same world without the mutant keeps every promise
        mutants[name].play(found.seed)


@pytest.mark.timeout(3_600)
def test_an_idle_leader_and_its_standbys_keep_every_promise(prove: bool, record_property: RecordProperty) -> None:
    summary = run_seeds("etiquette", range(len(SCENES) * (50 if prove else 1)))
    record_property("scenes", summary.worlds)
    assert not summary.failures, summary.failed()
    assert summary.missing() == []


@pytest.mark.timeout(3_600)
def test_nobody_leads_a_suspended_log_and_standbys_claim_by_their_delay(
    prove: bool, record_property: RecordProperty
) -> None:
    summary = run_seeds("suspensions", range(len(SUSPENSIONS) * (300 if prove else 10)))
    record_property("scenes", summary.worlds)
    assert not summary.failures, summary.failed()
    assert summary.missing() == []


@pytest.mark.parametrize(
    "kinds", matrix([FIRST_KINDS, [each for each in KINDS if each not in (*FIRST_KINDS, SMALL_BLOCKS)], [SMALL_BLOCKS]])
)
def test_a_seed_gives_the_same_world_with_any_hash_seed(kinds: list[str]) -> None:
    program = (
        "from tests.worlds.harness import kind_of\n"
        f"for kind in {kinds!r}: print(kind, [kind_of(kind).run(seed).digest for seed in {SEEDS!r}])"
    )
    first, second = (
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for hash_seed in ("0", "4711")
    )
    assert [line.split()[0] for line in first] == kinds
    assert first == second


def test_a_crash_cancels_tasks_in_the_order_in_which_they_began() -> None:
    """Seed 36 draws random numbers while tasks are cancelled: their order once depended on memory addresses."""
    assert len({run_world(36).digest for _ in range(2 if SMALL else 5)}) == 1
