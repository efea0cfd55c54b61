"""The truncator knows whether readers that are sent a snapshot hold back what it could remove."""

from __future__ import annotations

import asyncio

import pytest
from tests.one_line_mutants import mutated
from tests.unit.retention import test_clock_steps
from tests.unit.retention.test_clock_steps import MIN_AGE_S, Log, narrow

from holdfast.retention import truncator as truncator_module
from holdfast.retention.policies import LOAD_PREFIX, Hold, Policy, release_hold, set_hold, set_policy

__all__ = ["narrow"]

LOAD, OTHER = f"{LOAD_PREFIX}1", "reader"
CASES = [((LOAD,), True), ((OTHER,), False), ((LOAD, OTHER), False), ((LOAD, f"{LOAD}2"), True)]


@pytest.mark.parametrize(("holds", "waits"), CASES)
def test_it_waits_for_loads_where_more_would_go_without_them_and_only_there(
    holds: tuple[str, ...], waits: bool
) -> None:
    async def scenario() -> None:
        log = Log()
        await log.lead()
        truncator = log.truncator
        await truncator.change(set_policy("age", Policy(max_age_seconds=1.0), head=1), "test")
        await log.commit(5)
        await log.snapshot()
        version = log.service.durable_header().last_version
        for name in holds:
            await truncator.change(set_hold(name, Hold(from_version=version, snapshot=version)), "test")
        await log.commit(5)
        await truncator.look()
        assert not truncator.state.waits_for_loads, "what they hold is too young to go"
        log.passes(MIN_AGE_S + 10)
        await log.commit(5)
        await log.snapshot()
        for _ in range(2):
            assert log.truncated() < version
            assert truncator.state.waits_for_loads is waits
            await truncator.look()
        for name in holds:
            await truncator.change(release_hold(name), "test")
        await truncator.look()
        assert log.truncated() >= version
        assert not truncator.state.waits_for_loads

    asyncio.run(scenario())


def test_it_waits_for_no_load_where_no_policy_lets_anything_go() -> None:
    async def scenario() -> None:
        log = Log()
        await log.lead()
        version = await log.commit(5)
        await log.truncator.change(set_hold(LOAD, Hold(from_version=version)), "test")
        log.passes(MIN_AGE_S + 10)
        await log.commit(5)
        await log.snapshot()
        assert not log.truncator.state.waits_for_loads

    asyncio.run(scenario())


MUTANTS = {
    "no load is left out": ("if not name.startswith(LOAD_PREFIX)}", "}"),
    "every hold is left out": ("if not name.startswith(LOAD_PREFIX)}", "if not name}"),
    "as much is more": ("more.last_version > cut.last_version", "more.last_version >= cut.last_version"),
    "it is not noted": ("self.state.waits_for_loads = await", "await"),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_truncator_that_is_wrong_is_noticed(monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    monkeypatch.setattr(test_clock_steps, "Truncator", mutated(truncator_module, *MUTANTS[mutant]).Truncator)

    def every_case() -> None:
        for holds, waits in CASES:
            test_it_waits_for_loads_where_more_would_go_without_them_and_only_there(holds, waits)

    with pytest.raises(AssertionError):
        every_case()
