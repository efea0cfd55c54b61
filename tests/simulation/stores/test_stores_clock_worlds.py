"""Worlds of the stores' clock keep every promise whatever wall clocks say, and every mutant is caught."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from tests.worlds.harness import kind_of, run_seeds

KIND = "stores-clocks"
SMALL = os.environ.get("HOLDFAST_SMALL") == "1"
FIXED_WORLDS = 20 if SMALL else 60
WORLDS_PROVED = 5_000
RecordProperty = Callable[[str, object], None]


def test_fixed_worlds_end_no_message_early(record_property: RecordProperty) -> None:
    summary = run_seeds(KIND, range(FIXED_WORLDS))
    record_property("stores_clock_ends", summary.count)
    assert not summary.failures, summary.failed()
    assert SMALL or summary.missing() == []


@pytest.mark.timeout(7_200)
def test_fresh_worlds_end_no_message_early(prove: bool, record_property: RecordProperty) -> None:
    first = int.from_bytes(os.urandom(5), "little")
    worlds = WORLDS_PROVED if prove else FIXED_WORLDS // 4
    summary = run_seeds(KIND, range(first, first + worlds), jobs=2 if prove else 1)
    record_property("stores_clock_worlds", summary.worlds)
    assert not summary.failures, summary.failed()


@pytest.mark.parametrize("name", kind_of(KIND).mutants)
def test_every_mutant_of_the_clock_is_caught(name: str, record_property: RecordProperty) -> None:
    mutants = kind_of(KIND).mutants
    found = mutants.catch(name)
    assert found.seed is not None, f"{mutants[name].rule}: not caught in {mutants.seeds_max} seeds"
    assert found.promise.startswith(mutants[name].rule)
    mutants[name].play(found.seed)  # the same world without the mutant keeps every promise
    record_property("stores_mutants", 1)
