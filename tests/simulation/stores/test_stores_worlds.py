"""Whole worlds of the message stores keep every promise over crashes, and a broken promise is noticed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from tests.matrix import matrix
from tests.worlds.stores.mutants import MUTANTS, SEEDS_MAX, SMALL_BLOCK, catch
from tests.worlds.stores.runner import Summary, coverage_table, run_seeds
from tests.worlds.stores.world import run_world

from holdfast.stores.values.ports import BLOCK_MESSAGES

FIXED_WORLDS = 10
FRESH_WORLDS = 6
WORLDS_PROVED = 3_000
LARGE_BLOCKS = [name for name, mutant in MUTANTS.items() if mutant.block_messages == BLOCK_MESSAGES]
SLOW = {"parked_never_expires"}
"""A mutant that takes more than ten seconds until a world notices it."""
RecordProperty = Callable[[str, object], None]


def assert_clean(summary: Summary) -> None:
    assert not summary.failures, "\n".join(f"seed {seed}: {detail}" for seed, detail in summary.failures[:5])


def test_fixed_worlds_keep_every_promise(record_property: RecordProperty) -> None:
    summary = run_seeds(range(FIXED_WORLDS))
    record_property("stores_crash_states", summary.states)
    assert_clean(summary)
    assert summary.states > 100


@pytest.mark.timeout(7_200)
def test_fresh_worlds_keep_every_promise(
    prove: bool, record_property: RecordProperty, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seeds that nobody has seen before; a failure names its seed. The proof must meet every kind of event."""
    first = int.from_bytes(os.urandom(5), "little")
    summary = run_seeds(range(first, first + (WORLDS_PROVED if prove else FRESH_WORLDS)), jobs=2 if prove else 1)
    if prove:
        with capsys.disabled():
            print("\n" + coverage_table(summary))
            print(f"{summary.states} crash states in {summary.worlds} worlds from seed {first}")
        assert summary.missing() == [] or summary.failures
    record_property("stores_crash_states", summary.states)
    record_property("stores_worlds", summary.worlds)
    assert_clean(summary)


def run_small_blocks(first: int, worlds: int, jobs: int, *more: str) -> str:
    """Worlds with blocks of 4 messages, in a process of their own."""
    command = [sys.executable, "-m", "tests.worlds.stores", "--block-messages", "4"]
    command += ["--first", str(first), "--worlds", str(worlds), "--jobs", str(jobs), *more]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"--first {first} --worlds {worlds}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.timeout(14_400)
def test_worlds_with_small_blocks_keep_every_promise(prove: bool, record_property: RecordProperty) -> None:
    """Every border of a block is crossed. A message that nobody keeps takes its block with it at once."""
    worlds = WORLDS_PROVED if prove else FRESH_WORLDS
    if not prove:
        run_small_blocks(0, FIXED_WORLDS, 1)
    told = run_small_blocks(int.from_bytes(os.urandom(5), "little"), worlds, 2 if prove else 1)
    assert f"{worlds} worlds, 0 broken" in told
    record_property("stores_worlds_small_blocks", worlds)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", matrix(LARGE_BLOCKS, lambda name: name not in SLOW))
def test_every_broken_rule_of_the_stores_is_noticed(name: str, record_property: RecordProperty) -> None:
    mutant = MUTANTS[name]
    found = catch(mutant)
    assert found.seed is not None, f"{mutant.rule}: not caught in {SEEDS_MAX} seeds"
    # The same world without the broken rule keeps every promise.
    run_world(found.seed, mutant.focus)
    record_property("stores_mutants", 1)


def test_every_broken_rule_of_small_blocks_is_noticed(record_property: RecordProperty) -> None:
    told = run_small_blocks(0, 0, 1, "--mutants")
    expected = sorted(name for name, mutant in MUTANTS.items() if mutant.block_messages == SMALL_BLOCK)
    assert sorted(line.split()[1] for line in told.splitlines() if line.startswith("mutant ")) == expected
    record_property("stores_mutants", len(expected))


def test_one_seed_is_one_world_whatever_the_hash_seed() -> None:
    program = (
        "from tests.worlds.stores.world import run_world\n"
        "print([run_world(seed, {'crowd': 0}).digest for seed in (1, 2, 3)])"
    )
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
