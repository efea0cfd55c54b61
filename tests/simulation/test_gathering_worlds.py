"""Worlds of one client that gathers its commits keep every promise, and every mutant is caught."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from tests.matrix import matrix
from tests.worlds.gathering.mutants import MUTANTS
from tests.worlds.harness import run_seeds

SMALL = os.environ.get("HOLDFAST_SMALL") == "1"
FIXED_WORLDS = 20
FRESH_WORLDS = 20
WORLDS_PROVED = 5_000
RecordProperty = Callable[[str, object], None]


def test_fixed_worlds_keep_every_promise(record_property: RecordProperty) -> None:
    summary = run_seeds("gathering", range(FIXED_WORLDS))
    record_property("gathering_events", summary.count)
    assert not summary.failures, summary.failed()
    assert summary.seen["shared"] > 50 * FIXED_WORLDS


@pytest.mark.timeout(7_200)
def test_fresh_worlds_keep_every_promise(
    prove: bool, record_property: RecordProperty, capsys: pytest.CaptureFixture[str]
) -> None:
    """New seeds; a failure names its seed. The proof must meet every kind of event."""
    first = int.from_bytes(os.urandom(5), "little")
    worlds = WORLDS_PROVED if prove else FRESH_WORLDS
    summary = run_seeds("gathering", range(first, first + worlds), jobs=2 if prove else 1)
    if prove:
        with capsys.disabled():
            print("\n" + summary.table())
            print(f"{summary.count} events in {summary.worlds} worlds from seed {first}")
        assert summary.missing() == [] or summary.failures
    record_property("gathering_worlds", summary.worlds)
    assert not summary.failures, summary.failed()


def first_of_its_rule(name: str) -> bool:
    """Several mutants break the same promise, each at another place."""
    return name == next(each for each in MUTANTS if MUTANTS[each].rule == MUTANTS[name].rule)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", matrix(MUTANTS, first_of_its_rule))
def test_every_mutant_is_caught(name: str) -> None:
    found = MUTANTS.catch(name)
    assert found.seed is not None, f"{MUTANTS[name].rule}: not caught in {MUTANTS.seeds_max} seeds"
    if not SMALL:  # the same world without the mutant keeps every promise
        MUTANTS[name].play(found.seed)
