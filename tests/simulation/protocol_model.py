"""The claim-jump-span protocol as a small state space that can be searched whole, up to a bound.

The state holds what no leader can know: every object that exists, every PUT that may still land, and what every
leader believes. The rules are those of the log protocol, reduced: a batch is its slot, jump and page are ``width``.
``test_protocol_search`` holds the model's recovery and chain against the real ``leadership`` and ``chain``.

What is searched: send, land, lost answer, late PUT (a PUT stays on its way for ever), crash (a leader stops acting),
several leaders that all believe to lead, recovery between any two steps, a claim that lands late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple

TOP = 40
"""The genesis slot of the model."""


class Variant(NamedTuple):
    """A set of rules. The real ones are the defaults."""

    width: int = 2
    limit: int = 5
    leaders: int = 3
    jump: bool = True
    span: bool = True
    page_short: int = 0
    filter_by_leader: bool = False
    newest_gap: bool = False


class Thing(NamedTuple):
    """An object: a claim or data of a leader. ``prev`` is its predecessor's slot, ``claim`` its leader's claim."""

    claim: bool
    leader: int
    slot: int
    prev: int
    of: int
    epoch: int


class Leader(NamedTuple):
    """What one leader believes. ``state``: 0 not begun, 1 claim on its way, 2 leads, 3 stopped."""

    state: int = 0
    claim: int = 0
    epoch: int = 0
    sent: int = 0
    created: frozenset[int] = frozenset()


@dataclass(frozen=True)
class State:
    """One state of the world. ``flying`` are PUTs that were sent; landed ones stay, a copy may land again."""

    objects: frozenset[Thing]
    flying: frozenset[Thing]
    leaders: tuple[Leader, ...]
    acknowledged: frozenset[Thing]


class Violation(Exception):
    """An acknowledged batch is not in the log, or the log holds what cannot be there."""


def jump(variant: Variant, claim: int) -> int:
    if not variant.jump or claim == TOP:
        return claim - 1
    return claim - variant.width


def begin(variant: Variant) -> State:
    return State(frozenset(), frozenset(), tuple(Leader() for _ in range(variant.leaders)), frozenset())


# -- what readers and recovery see -----------------------------------------------------------------------------------


def live_chain(variant: Variant, objects: frozenset[Thing]) -> list[Thing]:
    """The log (R4). Raises Violation on damage."""
    at = {thing.slot: thing for thing in objects}
    if TOP not in at:
        return []
    chain = [at[TOP]]
    claim = at[TOP]
    slot = jump(variant, TOP)
    while slot in at:
        thing = at[slot]
        if thing.claim and thing.prev == chain[-1].slot:
            chain.append(thing)
            claim, slot = thing, jump(variant, slot)
            continue
        own = (thing.of, thing.epoch, thing.leader) == (claim.slot, claim.epoch, claim.leader)
        if not thing.claim and own and thing.prev == chain[-1].slot:
            chain.append(thing)
        elif not variant.filter_by_leader:
            raise Violation(f"damage at {slot}: {thing} after {chain[-1]}")
        slot -= 1
    return chain


def recover(variant: Variant, objects: frozenset[Thing]) -> tuple[int, int, int] | None:
    """(frontier, predecessor, epoch) from one page (section 3); None when the page cannot be understood."""
    page = sorted(objects, key=lambda thing: thing.slot)[: page_size(variant)]
    if not page:
        return TOP, TOP, 1
    newest = page[0]
    claims = [thing for thing in page if thing.claim]
    claim = newest.slot if newest.claim else newest.of
    if claims:
        claim = min(claim, claims[0].slot)
    listed = {thing.slot: thing for thing in page}
    start = jump(variant, claim)
    if newest.slot > start:
        frontier = start
    elif variant.newest_gap:
        frontier = newest.slot - 1
    else:
        oldest = min(start, newest.slot + variant.width - 1)
        holes = [slot for slot in range(oldest, newest.slot, -1) if slot not in listed]
        frontier = holes[0] if holes else newest.slot - 1
    predecessor = claim if frontier == start else frontier + 1
    found = {thing.slot: thing for thing in objects}.get(predecessor)
    return None if found is None else (frontier, predecessor, found.epoch + 1)


def page_size(variant: Variant) -> int:
    return max(1, variant.width - variant.page_short) if variant.jump else 1_000


# -- what can happen next --------------------------------------------------------------------------------------------


def successors(variant: Variant, state: State) -> Iterator[State]:
    """Every state that one event can lead to."""
    yield from _landings(state)
    for index, leader in enumerate(state.leaders):
        if leader.state == 0:
            yield from _starts(variant, state, index)
        elif leader.state == 1:
            yield from _claim_answers(variant, state, index)
        elif leader.state == 2:
            yield from _sends(variant, state, index)
            yield from _answers(state, index)


def _landings(state: State) -> Iterator[State]:
    taken = {thing.slot for thing in state.objects}
    for thing in sorted(state.flying):
        if thing.slot not in taken:
            yield replace(state, objects=state.objects | {thing})


def _with(state: State, index: int, leader: Leader, **changes: frozenset[Thing]) -> State:
    leaders = (*state.leaders[:index], leader, *state.leaders[index + 1 :])
    return replace(state, leaders=leaders, **changes)


def _starts(variant: Variant, state: State, index: int) -> Iterator[State]:
    """Leaders begin in the order of their number: they are alike."""
    if index and state.leaders[index - 1].state == 0:
        return
    plan = recover(variant, state.objects)
    if plan is None:
        return
    frontier, predecessor, epoch = plan
    if any(thing.slot == frontier for thing in state.objects):
        raise Violation(f"stuck: recovery would claim {frontier}, which is taken")
    if TOP - frontier > variant.limit + variant.width:
        return
    claim = Thing(True, index, frontier, predecessor, frontier, epoch)
    yield _with(state, index, Leader(1, frontier, epoch, frontier), flying=state.flying | {claim})


def _claim_answers(variant: Variant, state: State, index: int) -> Iterator[State]:
    leader = state.leaders[index]
    there = next((thing for thing in state.objects if thing.slot == leader.claim), None)
    if there is None:
        return
    if there.leader != index or not there.claim:
        yield _with(state, index, Leader())
        return
    newest = min(thing.slot for thing in state.objects)
    if variant.jump and newest <= jump(variant, leader.claim):
        yield _with(state, index, Leader(3))
        return
    yield _with(state, index, leader._replace(state=2, sent=jump(variant, leader.claim) + 1))


def _sends(variant: Variant, state: State, index: int) -> Iterator[State]:
    leader = state.leaders[index]
    first = jump(variant, leader.claim)
    slot = leader.sent - 1
    oldest = next((s for s in range(first, slot - 1, -1) if s not in leader.created), slot)
    open_requests = (first - slot) - len(leader.created)
    reach = oldest - slot if variant.span else open_requests
    if reach >= variant.width or TOP - slot > variant.limit:
        return
    prev = leader.claim if slot == first else slot + 1
    thing = Thing(False, index, slot, prev, leader.claim, leader.epoch)
    yield _with(state, index, leader._replace(sent=slot), flying=state.flying | {thing})


def _answers(state: State, index: int) -> Iterator[State]:
    """The answer to one PUT arrives: created, or own on read-back (R6); anybody else's object stops the leader."""
    leader = state.leaders[index]
    mine = {thing.slot: thing for thing in state.flying if thing.leader == index and not thing.claim}
    at = {thing.slot: thing for thing in state.objects}
    for slot in sorted(mine, reverse=True):
        if slot in leader.created or mine[slot].of != leader.claim or slot not in at:
            continue
        if at[slot] != mine[slot]:
            yield _with(state, index, Leader(3))
            continue
        created = leader.created | {slot}
        grown = leader._replace(created=created)
        acknowledged = set(state.acknowledged)
        for older in range(max(mine), slot - 1 - len(mine), -1):
            if older not in mine or mine[older].of != leader.claim:
                continue
            if older not in created:
                break
            acknowledged.add(mine[older])
        yield _with(state, index, grown, acknowledged=frozenset(acknowledged))


# -- the search ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Searched:
    """How many states were seen, whether that was all of them, and the first violation."""

    states: int
    complete: bool
    violation: str | None


def judge(variant: Variant, state: State) -> None:
    """Raise Violation unless everything acknowledged is in the log."""
    chain = set(live_chain(variant, state.objects))
    for thing in state.acknowledged:
        if thing not in chain:
            raise Violation(f"lost: {thing}")


def search(variant: Variant, *, states_max: int) -> Searched:
    """Breadth first from the beginning, so the violation found is a shortest one."""
    first = begin(variant)
    seen = {first}
    queue = deque([first])
    while queue:
        state = queue.popleft()
        try:
            for following in successors(variant, state):
                if following in seen:
                    continue
                judge(variant, following)
                if len(seen) >= states_max:
                    return Searched(len(seen), False, None)
                seen.add(following)
                queue.append(following)
        except Violation as violation:
            return Searched(len(seen), False, str(violation))
    return Searched(len(seen), True, None)


def wander(variant: Variant, random: Random, steps: int) -> State:
    """A state reached by a random walk."""
    state = begin(variant)
    for _ in range(steps):
        following = list(successors(variant, state))
        if not following:
            break
        state = random.choice(following)
    return state
