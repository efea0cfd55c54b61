"""Explicit-state search: the rules hold in every state up to a bound, and none of them can be left out."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from tests.matrix import matrix
from tests.simulation.protocol_model import TOP, Searched, State, Thing, Variant, live_chain, recover, search, wander
from tests.unit.commit.builders import bytes_of, genesis, record, rows, takeover
from tests.worlds.log.shape import protocol_width

from holdfast.commit.format.batch import FIRST_SLOT, Header
from holdfast.commit.format.chain import ChainWalker
from holdfast.commit.leadership import claims

REAL = {
    "two slots wide": Variant(width=2, limit=5, leaders=3),
    "three slots wide": Variant(width=3, limit=7, leaders=3),
    "four leaders": Variant(width=2, limit=6, leaders=4),
}
BROKEN = {
    "naive: append after the newest object": Variant(jump=False, newest_gap=True),
    "no jump": Variant(jump=False),
    "a filter by leader instead of a jump": Variant(jump=False, filter_by_leader=True),
    "count open requests instead of the span": Variant(span=False),
    "a page one key short": Variant(page_short=1),
    "a page one key short of three": Variant(page_short=1, width=3, limit=7),
    "the newest gap instead of the oldest": Variant(newest_gap=True),
}


@pytest.mark.parametrize("name", matrix(REAL, 2))
def test_the_rules_hold_in_every_state_up_to_the_bound(
    name: str, prove: bool, record_property: Callable[[str, object], None]
) -> None:
    bound = 400_000 if prove else 50_000
    found = search(REAL[name], states_max=bound)
    record_property("states", found.states)
    assert found == Searched(found.states, found.complete, None)
    assert found.complete or found.states >= bound


@pytest.mark.parametrize("name", BROKEN)
def test_no_rule_can_be_left_out(name: str) -> None:
    found = search(BROKEN[name], states_max=200_000)
    assert found.violation is not None


# -- the model against the real decisions ----------------------------------------------------------------------------


def real_slot(slot: int) -> int:
    return FIRST_SLOT - (TOP - slot)


class RealLog:
    """The objects of a state of the model, as real headers."""

    def __init__(self, state: State) -> None:
        self._at = {thing.slot: thing for thing in state.objects}
        self._sent = {(thing.leader, thing.slot): thing for thing in state.flying}
        self._headers: dict[Thing, Header] = {}
        self.headers = [self.header(thing) for thing in sorted(state.objects)]

    def header(self, thing: Thing) -> Header:
        if thing not in self._headers:
            self._headers[thing] = self._make(thing)
        return self._headers[thing]

    def _make(self, thing: Thing) -> Header:
        name = "abcd"[thing.leader]
        if thing.claim:
            if thing.slot == TOP:
                return genesis(name)
            return takeover(self.header(self._at[thing.prev]), name, slot=real_slot(thing.slot))
        claim = self.header(self._sent[thing.leader, thing.of])
        return record(self.header(self._sent[thing.leader, thing.prev]), claim, durable=claim.slot)


@pytest.mark.parametrize("name", REAL)
def test_the_model_recovers_and_reads_as_the_real_decisions_do(name: str) -> None:
    variant, random = REAL[name], Random(name)
    compared = 0
    with protocol_width(variant.width):
        for _ in range(400):
            state = wander(variant, random, random.randrange(3, 40))
            log = RealLog(state)
            walker = ChainWalker()
            there = {header.slot: header for header in log.headers}
            seen: list[int] = []
            while walker.next_slot in there:
                seen.append(walker.next_slot)
                walker.accept(there[walker.next_slot])
            assert seen == [real_slot(thing.slot) for thing in live_chain(variant, state.objects)]
            if log.headers:
                page = claims.read_page(rows(*log.headers)[: variant.width])
                plan = claims.plan_recovery(page, bytes_of(*log.headers), allow_new=False)
                assert isinstance(plan, claims.Frontier)
                assert plan.predecessor is not None
                modelled = recover(variant, state.objects)
                assert modelled is not None
                assert (plan.slot, plan.predecessor.slot, plan.epoch) == (
                    real_slot(modelled[0]),
                    real_slot(modelled[1]),
                    modelled[2],
                )
                assert plan.slot == walker.next_slot
                compared += 1
    assert compared > 100
