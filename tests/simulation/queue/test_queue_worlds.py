"""Whole worlds of the queue keep every promise over crashes at any moment, and a broken promise is noticed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from tests.matrix import matrix
from tests.worlds.queue.followers import FOLLOWER_KINDS, run_followers
from tests.worlds.queue.mutants import EQUIVALENT, MUTANTS, SEEDS_MAX, catch
from tests.worlds.queue.persisting import PERSIST_KINDS, run_persist
from tests.worlds.queue.runner import Summary, coverage_table, run_seeds

SMALL = os.environ.get("HOLDFAST_SMALL") == "1"
FIXED_WORLDS = 8
FRESH_WORLDS = 2 if SMALL else 8
STATES_PROVED = 100_000
FOLLOWER_WORLDS = 3 if SMALL else FIXED_WORLDS
FOLLOWER_WORLDS_PROVED = 200
PERSIST_WORLDS = 5
PERSIST_FOUND = (1042,)
"""Worlds that have found a defect: freeing space removed the last item, after a page was begun and got none."""
PERSIST_STATES_PROVED = 10_000
SLOW = {
    "clean_mark_stays", "consumed_asks_those_that_hold", "cursor_trusts_its_number", "durable_commit_without_the_log",
    "last_record_at_or_before", "latest_page_at_or_before", "no_check", "no_poison_mark", "no_seal",
    "no_sequence_number_in_the_check", "nothing_written_again", "page_closed_meanwhile_is_synced",
    "page_in_use_removed", "pages_removed_at_once", "persist_frees_before_the_cursors", "sync_tried_again",
    "torn_page_written_on",
}  # fmt: skip
"""Mutants that take more than a second until a world notices them."""
RecordProperty = Callable[[str, object], None]


def assert_clean(summary: Summary) -> None:
    assert not summary.failures, "\n".join(f"seed {seed}: {detail}" for seed, detail in summary.failures[:5])


def test_fixed_worlds_keep_every_promise(record_property: RecordProperty) -> None:
    summary = run_seeds(range(FIXED_WORLDS))
    record_property("queue_crash_states", summary.states)
    assert_clean(summary)
    assert summary.states > 1_000


@pytest.mark.timeout(3_600)
def test_fresh_worlds_keep_every_promise(
    prove: bool, record_property: RecordProperty, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seeds that nobody has seen before; a failure names its seed, which reproduces it.

    The proof goes on until 100,000 crash states were judged, and must meet every kind of event.
    """
    first = int.from_bytes(os.urandom(5), "little")
    if prove:
        summary = run_seeds(range(first, first + 10_000), jobs=2, states_min=STATES_PROVED)
        with capsys.disabled():
            print("\n" + coverage_table(summary))
            print(f"{summary.states} crash states in {summary.worlds} worlds from seed {first}")
        assert summary.states >= STATES_PROVED or summary.failures
        assert summary.missing() == [] or summary.failures
    else:
        summary = run_seeds(range(first, first + FRESH_WORLDS))
    record_property("queue_crash_states", summary.states)
    record_property("queue_worlds", summary.worlds)
    assert_clean(summary)


@pytest.mark.timeout(3_600)
def test_consumers_and_work_queues_keep_every_promise(prove: bool, record_property: RecordProperty) -> None:
    """Fixed seeds and fresh ones; a failure names its seed."""
    first = int.from_bytes(os.urandom(5), "little")
    seeds = [*range(FOLLOWER_WORLDS), *range(first, first + (FOLLOWER_WORLDS_PROVED if prove else FRESH_WORLDS))]
    summary = run_seeds(seeds, jobs=2 if prove else 1, world=run_followers)
    record_property("queue_follower_states", summary.states)
    assert_clean(summary)
    assert not prove or summary.missing(FOLLOWER_KINDS) == []


@pytest.mark.timeout(3_600)
def test_persist_keeps_every_promise(prove: bool, record_property: RecordProperty) -> None:
    """Fixed seeds and fresh ones; a failure names its seed. The proof goes on until 10,000 crash states were judged."""
    first = int.from_bytes(os.urandom(5), "little")
    fresh = range(first, first + (1_000 if prove else PERSIST_WORLDS))
    summary = run_seeds(
        [*range(PERSIST_WORLDS), *PERSIST_FOUND, *fresh],
        jobs=2 if prove else 1,
        states_min=PERSIST_STATES_PROVED if prove else 0,
        world=run_persist,
    )
    record_property("persist_crash_states", summary.states)
    assert_clean(summary)
    assert summary.states > (PERSIST_STATES_PROVED if prove else 200)
    assert not prove or summary.missing(PERSIST_KINDS) == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", matrix(MUTANTS, lambda name: name not in SLOW))
def test_every_broken_rule_of_the_queue_is_noticed(name: str, record_property: RecordProperty) -> None:
    found = catch(MUTANTS[name])
    assert found.seed is not None, f"{MUTANTS[name].rule}: not caught in {SEEDS_MAX} seeds"
    # The same world without the broken rule keeps every promise.
    MUTANTS[name].world(found.seed)
    record_property("queue_mutants", 1)


def test_rules_that_no_world_can_prove_are_named() -> None:
    assert not set(EQUIVALENT) & set(MUTANTS)
    assert all(EQUIVALENT.values())


def test_one_seed_is_one_world_whatever_the_hash_seed() -> None:
    program = "from tests.worlds.queue import run_world\nprint([(run_world(s).digest) for s in (1, 2, 3)])"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "4711")
    }
    assert len(digests) == 1
