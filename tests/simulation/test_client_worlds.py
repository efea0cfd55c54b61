"""Worlds with a real machine of the client in them, for each kind: every promise is kept, every mutant is caught.

``gathering``: one client that gathers its commits. ``workers``: workers of the message stores.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from tests.matrix import matrix
from tests.worlds.harness import kind_of, run_seeds

SMALL = os.environ.get("HOLDFAST_SMALL") == "1"
WORLDS = {"gathering": 20, "workers": 10}
"""Fixed ones, and as many fresh ones."""
WORLDS_PROVED = 5_000
MUTANTS = [(kind, name) for kind in WORLDS for name in kind_of(kind).mutants]
RecordProperty = Callable[[str, object], None]


@pytest.mark.parametrize("kind", WORLDS)
def test_fixed_worlds_keep_every_promise(kind: str, record_property: RecordProperty) -> None:
    summary = run_seeds(kind, range(WORLDS[kind]))
    record_property(f"{kind}_{summary.kind.counted}", summary.count)
    assert not summary.failures, summary.failed()
    done = summary.seen["shared"] // 50 if kind == "gathering" else summary.count // 10
    assert done > WORLDS[kind], "they do what they are about"


@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("kind", WORLDS)
def test_fresh_worlds_keep_every_promise(
    kind: str, prove: bool, record_property: RecordProperty, capsys: pytest.CaptureFixture[str]
) -> None:
    """New seeds; a failure names its seed. The proof must meet every kind of event."""
    first = int.from_bytes(os.urandom(5), "little")
    worlds = WORLDS_PROVED if prove else WORLDS[kind]
    summary = run_seeds(kind, range(first, first + worlds), jobs=2 if prove else 1)
    if prove:
        with capsys.disabled():
            print("\n" + summary.table())
            print(f"{summary.count} {summary.kind.counted} in {summary.worlds} worlds from seed {first}")
        assert summary.missing() == [] or summary.failures
    record_property(f"{kind}_worlds", summary.worlds)
    assert not summary.failures, summary.failed()


def first_of_its_rule(case: tuple[str, str]) -> bool:
    """Several mutants break the same promise, each at another place."""
    mutants = kind_of(case[0]).mutants
    return case[1] == next(each for each in mutants if mutants[each].rule == mutants[case[1]].rule)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", matrix(MUTANTS, first_of_its_rule), ids=["-".join(case) for case in MUTANTS])
def test_every_mutant_is_caught(case: tuple[str, str]) -> None:
    kind, name = case
    mutants = kind_of(kind).mutants
    found = mutants.catch(name)
    assert found.seed is not None, f"{mutants[name].rule}: not caught in {mutants.seeds_max} seeds"
    if not SMALL:  # the same world without the mutant keeps every promise
        mutants[name].play(found.seed)
