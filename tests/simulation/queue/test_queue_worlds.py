"""Worlds of the queue keep every promise over crashes at any moment, and every mutant is caught."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from tests.matrix import matrix
from tests.worlds.harness import run_seeds
from tests.worlds.queue.mutants import MUTANTS, UNPROVED

SMALL = os.environ.get("HOLDFAST_SMALL") == "1"
FIXED_WORLDS = 3 if SMALL else 8
FIXED_STATES_MIN = 300 if SMALL else 1_000
FRESH_WORLDS = 1 if SMALL else 8
FOLLOWER_WORLDS = 1 if SMALL else FIXED_WORLDS
STATES_PROVED = 100_000
FOLLOWER_WORLDS_PROVED = 200
PERSIST_WORLDS = 1 if SMALL else 5
PERSIST_FOUND = (1042,)
"""Worlds that have found a defect: freeing space removed the last item, after a page was begun and got none."""
PERSIST_STATES_PROVED = 10_000
PERSIST_STATES_MIN = 50 if SMALL else 200
SLOW_MUTANTS = {
    "absent_is_ignored",
    "buried_before_its_letter",
    "clean_mark_stays",
    "closed_pages_forgotten",
    "consumed_asks_those_that_hold",
    "consumed_forgets_closed_consumers",
    "consumed_goes_before_the_cursors",
    "consumed_takes_the_page_in_use",
    "damaged_is_unused",
    "durable_commit_without_the_log",
    "emptied_is_unused",
    "gap_is_not_written",
    "growth_without_a_bound",
    "last_record_at_or_before",
    "no_check",
    "no_poison_mark",
    "no_salt",
    "nothing_written_again",
    "page_closed_meanwhile_is_synced",
    "page_in_use_removed",
    "page_named_before_its_sync",
    "pages_removed_at_once",
    "persist_acknowledges_when_given",
    "persist_drops_what_is_left",
    "persist_frees_before_the_cursors",
    "persist_never_waits",
    "pointer_before_data",
    "resumed_page_has_the_configured_size",
    "torn_page_written_on",
    "used_is_damaged",
    "workers_are_not_asked",
}
"""Those whose worlds take the longest. For each promise that they break, a quicker mutant breaks it too."""
RecordProperty = Callable[[str, object], None]


def test_fixed_worlds_keep_every_promise(record_property: RecordProperty) -> None:
    summary = run_seeds("queue", range(FIXED_WORLDS))
    record_property("queue_crash_states", summary.count)
    assert not summary.failures, summary.failed()
    assert summary.count > FIXED_STATES_MIN


@pytest.mark.timeout(3_600)
def test_fresh_worlds_keep_every_promise(
    prove: bool, record_property: RecordProperty, capsys: pytest.CaptureFixture[str]
) -> None:
    """New seeds; a failure names its seed, which reproduces it.

    The proof goes on until 100,000 crash states were judged, and must meet every kind of event.
    """
    first = int.from_bytes(os.urandom(5), "little")
    if prove:
        summary = run_seeds("queue", range(first, first + 10_000), jobs=2, count_min=STATES_PROVED)
        with capsys.disabled():
            print("\n" + summary.table())
            print(f"{summary.count} crash states in {summary.worlds} worlds from seed {first}")
        assert summary.count >= STATES_PROVED or summary.failures
        assert summary.missing() == [] or summary.failures
    else:
        summary = run_seeds("queue", range(first, first + FRESH_WORLDS))
    record_property("queue_crash_states", summary.count)
    record_property("queue_worlds", summary.worlds)
    assert not summary.failures, summary.failed()


@pytest.mark.timeout(3_600)
def test_consumers_and_work_queues_keep_every_promise(prove: bool, record_property: RecordProperty) -> None:
    """Fixed seeds and fresh ones; a failure names its seed."""
    first = int.from_bytes(os.urandom(5), "little")
    seeds = [*range(FOLLOWER_WORLDS), *range(first, first + (FOLLOWER_WORLDS_PROVED if prove else FRESH_WORLDS))]
    summary = run_seeds("followers", seeds, jobs=2 if prove else 1)
    record_property("queue_follower_states", summary.count)
    assert not summary.failures, summary.failed()
    assert not prove or summary.missing() == []


@pytest.mark.timeout(3_600)
def test_persist_keeps_every_promise(prove: bool, record_property: RecordProperty) -> None:
    """Fixed seeds and fresh ones; a failure names its seed. The proof goes on until 10,000 crash states were judged."""
    first = int.from_bytes(os.urandom(5), "little")
    fresh = range(first, first + (1_000 if prove else PERSIST_WORLDS))
    summary = run_seeds(
        "persist",
        [*range(PERSIST_WORLDS), *PERSIST_FOUND, *fresh],
        jobs=2 if prove else 1,
        count_min=PERSIST_STATES_PROVED if prove else 0,
    )
    record_property("persist_crash_states", summary.count)
    assert not summary.failures, summary.failed()
    assert summary.count > (PERSIST_STATES_PROVED if prove else PERSIST_STATES_MIN)
    assert not prove or summary.missing() == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", matrix(MUTANTS, lambda name: name not in SLOW_MUTANTS))
def test_every_mutant_of_the_queue_is_caught(name: str, record_property: RecordProperty) -> None:
    found = MUTANTS.catch(name)
    assert found.seed is not None, f"{MUTANTS[name].rule}: not caught in {MUTANTS.seeds_max} seeds"
    if not SMALL:  # the same world without the mutant keeps every promise
        MUTANTS[name].play(found.seed)
    record_property("queue_mutants", 1)


def test_rules_that_no_world_can_prove_are_named() -> None:
    assert not set(UNPROVED) & set(MUTANTS)
    assert all(UNPROVED.values())
