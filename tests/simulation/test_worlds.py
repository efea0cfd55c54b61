"""Whole worlds from one seed keep every promise, and a broken promise is noticed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from tests.matrix import matrix
from tests.worlds.log.etiquette import SCENES, run_etiquette
from tests.worlds.log.mutants import MUTANTS, SEEDS_MAX, WAITING, catch
from tests.worlds.log.runner import Summary, coverage_table, run_seeds
from tests.worlds.log.world import EVENTS_MIN

FIXED_SEEDS = range(24)
SLOW = {
    "ban_lost_with_a_later_attempt", "count_instead_of_span", "hold_back_ignored",
    "listing_proves_with_slots_in_flight", "no_ownership_check",
}  # fmt: skip
"""Mutants that take more than three seconds until a world notices them."""
RecordProperty = Callable[[str, object], None]


def _assert_clean(summary: Summary) -> None:
    assert not summary.failures, "\n".join(f"seed {failure.seed}: {failure.detail}" for failure in summary.failures)


def test_fixed_worlds_keep_every_promise_and_meet_every_kind_of_fault(
    capsys: pytest.CaptureFixture[str], record_property: RecordProperty
) -> None:
    summary = run_seeds(FIXED_SEEDS)
    with capsys.disabled():
        print("\n" + coverage_table(summary))
    record_property("seeds", summary.seeds)
    record_property("events", summary.events)
    _assert_clean(summary)
    assert summary.missing() == []
    assert summary.fewest_events >= EVENTS_MIN


@pytest.mark.timeout(3_600)
def test_fresh_worlds_keep_every_promise(prove: bool, record_property: RecordProperty) -> None:
    """Seeds that nobody has seen before; a failure names its seed, which reproduces it."""
    first = int.from_bytes(os.urandom(5), "little")
    summary = run_seeds(range(first, first + (5_000 if prove else 20)), jobs=2 if prove else 1)
    record_property("seeds", summary.seeds)
    record_property("events", summary.events)
    _assert_clean(summary)


@pytest.mark.parametrize("name", matrix(MUTANTS, lambda name: name not in SLOW))
def test_every_broken_rule_is_noticed(name: str, record_property: RecordProperty) -> None:
    found = catch(MUTANTS[name])
    assert found.seed is not None, f"{MUTANTS[name].rule}: not caught in {SEEDS_MAX} seeds"
    # The same world without the broken rule keeps every promise.
    MUTANTS[name].play(found.seed)
    record_property("mutants", 1)


@pytest.mark.timeout(3_600)
def test_an_idle_leader_and_its_standbys_keep_their_etiquette(prove: bool, record_property: RecordProperty) -> None:
    scenes = {scene.__name__: 0 for scene in SCENES}
    for seed in range(len(SCENES) * (50 if prove else 1)):
        coverage = run_etiquette(seed).coverage
        for scene in scenes:
            scenes[scene] += coverage.get(scene, 0)
    record_property("scenes", sum(scenes.values()))
    assert all(scenes.values())


def test_what_no_world_can_prove_yet_is_named() -> None:
    assert not set(WAITING) & set(MUTANTS)
    assert all(WAITING.values())


def test_one_seed_is_one_world_whatever_the_hash_seed() -> None:
    program = "from tests.worlds.log import run_world\nprint([run_world(s).digest for s in (1, 2, 3)])"
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
