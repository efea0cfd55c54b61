"""Worlds of the message stores keep every promise over crashes, and every mutant is caught."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from tests.matrix import matrix
from tests.worlds.harness import run_seeds
from tests.worlds.stores.mutants import MUTANTS, SMALL_BLOCK_MUTANTS

SMALL = os.environ.get("HOLDFAST_SMALL") == "1"
FIXED_WORLDS = 4 if SMALL else 10
FRESH_WORLDS = 2 if SMALL else 6
WORLDS_PROVED = 3_000
RecordProperty = Callable[[str, object], None]


def test_fixed_worlds_keep_every_promise(record_property: RecordProperty) -> None:
    summary = run_seeds("stores", range(FIXED_WORLDS))
    record_property("stores_crash_states", summary.count)
    assert not summary.failures, summary.failed()
    assert summary.count > 10 * FIXED_WORLDS


@pytest.mark.timeout(7_200)
def test_fresh_worlds_keep_every_promise(
    prove: bool, record_property: RecordProperty, capsys: pytest.CaptureFixture[str]
) -> None:
    """New seeds; a failure names its seed. The proof must meet every kind of event."""
    first = int.from_bytes(os.urandom(5), "little")
    summary = run_seeds(
        "stores", range(first, first + (WORLDS_PROVED if prove else FRESH_WORLDS)), jobs=2 if prove else 1
    )
    if prove:
        with capsys.disabled():
            print("\n" + summary.table())
            print(f"{summary.count} crash states in {summary.worlds} worlds from seed {first}")
        assert summary.missing() == [] or summary.failures
    record_property("stores_crash_states", summary.count)
    record_property("stores_worlds", summary.worlds)
    assert not summary.failures, summary.failed()


def run_small_blocks(first: int, worlds: int, jobs: int, *more: str) -> str:
    """Worlds with blocks of 4 messages, in a process of their own."""
    command = [sys.executable, "-m", "tests.worlds", "stores-small-blocks"]
    command += ["--first", str(first), "--worlds", str(worlds), "--jobs", str(jobs), *more]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"--first {first} --worlds {worlds}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.timeout(14_400)
def test_worlds_with_small_blocks_keep_every_promise(prove: bool, record_property: RecordProperty) -> None:
    """Every border of a block is crossed. A message that no durable keeps takes its block with it at once."""
    worlds = WORLDS_PROVED if prove else FRESH_WORLDS
    if not prove:
        run_small_blocks(0, 3 if SMALL else FIXED_WORLDS, 1)
    printed = run_small_blocks(int.from_bytes(os.urandom(5), "little"), worlds, 2 if prove else 1)
    assert f"{worlds} worlds, 0 broken" in printed
    record_property("stores_worlds_small_blocks", worlds)


def first_of_its_rule(name: str) -> bool:
    """Several mutants break the same promise, each at another place."""
    return name == next(each for each in MUTANTS if MUTANTS[each].rule == MUTANTS[name].rule)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", matrix(MUTANTS, first_of_its_rule))
def test_every_mutant_of_the_stores_is_caught(name: str, record_property: RecordProperty) -> None:
    found = MUTANTS.catch(name)
    assert found.seed is not None, f"{MUTANTS[name].rule}: not caught in {MUTANTS.seeds_max} seeds"
    if not SMALL:  # the same world without the mutant keeps every promise
        MUTANTS[name].play(found.seed)
    record_property("stores_mutants", 1)


@pytest.mark.matrix
def test_every_mutant_with_small_blocks_is_caught(record_property: RecordProperty) -> None:
    printed = run_small_blocks(0, 0, 1, "--mutants")
    assert sorted(line.split()[1] for line in printed.splitlines() if line.startswith("mutant ")) == sorted(
        SMALL_BLOCK_MUTANTS
    )
    record_property("stores_mutants", len(SMALL_BLOCK_MUTANTS))
