"""The newest changes over a view that lags, against a dictionary for each version. Bounds are tiny: the floor rises."""

from __future__ import annotations

import os
from random import Random
from typing import Any

import pytest

from holdfast.commit.format.transaction import Delete, Operation, RangeDelete, Write
from holdfast.view.newest_changes import NOT_HERE, NewestChanges
from holdfast.view.storage import (
    Asked,
    KeyRange,
    Larger,
    Layer,
    ViewAnswer,
    ViewPage,
    answer_within,
    merged,
    page_of,
    page_within,
    within,
)

SEEDS = 3_000 if os.environ.get("HOLDFAST_PROVE") == "1" else 150
STEPS = 60
BYTES = 16 * 700
State = dict[bytes, tuple[bytes, int]]


def some_key(random: Random) -> bytes:
    return b"%d" % random.randrange(8)


def some_range(random: Random) -> tuple[bytes, bytes | None]:
    begin = random.choice([b"", some_key(random)])
    end = random.choice([None, some_key(random), some_key(random)])
    return (begin, None) if end is None or begin >= end else (begin, end)


def some_operation(random: Random) -> Operation:
    match random.randrange(8):
        case 0:
            return RangeDelete(*some_range(random))
        case 1 | 2:
            return Delete(some_key(random))
        case _:
            return Write(some_key(random), bytes(random.randrange(60)))


def some_asked(random: Random) -> list[Asked]:
    return [
        KeyRange(*some_range(random), random.randint(1, 5)) if random.random() < 0.5 else some_key(random)
        for _ in range(random.randint(1, 4))
    ]


def changed(state: State, version: int, operations: list[Operation]) -> State:
    after = dict(state)
    for operation in operations:
        match operation:
            case Write(key, value):
                after[key] = (value, version)
            case Delete(key):
                after.pop(key, None)
            case RangeDelete(begin, end):
                for key in keys_of(after, begin, end):
                    del after[key]
    return after


def keys_of(state: State, begin: bytes, end: bytes | None) -> list[bytes]:
    return [key for key in sorted(state) if key >= begin and (end is None or key < end)]


class World:
    """``states`` has the truth of every version. The view is at one of them, and may start again far back."""

    def __init__(self, random: Random, kind: type[NewestChanges] = NewestChanges) -> None:
        self.random = random
        self.states: dict[int, State] = {10: {b"5": (b"old", 3), b"6": (b"", 4)}}
        self.memory = kind(10, random.choice([0, 600, BYTES, BYTES]))
        self.view = 10
        self.answers = 0

    def commit(self) -> None:
        random, version = self.random, self.memory.version
        state, txns = self.states[version], list[tuple[int, list[Operation]]]()
        for _ in range(random.randrange(3)):
            version += random.randint(1, 3)
            operations = [some_operation(random) for _ in range(random.randrange(4))]
            self.states[version] = state = changed(state, version, operations)
            txns.append((version, operations))
        version += random.randrange(2)
        self.states[version] = state
        self.memory.take(txns, version)

    def move_the_view(self) -> None:
        known = sorted(version for version in self.states if version <= self.memory.version)
        self.view = self.random.choice(known[-4:] if self.random.random() < 0.8 else known)

    def read(self) -> None:
        """The log and memory move on between the reply of the view and the answer."""
        random, memory = self.random, self.memory
        asked, bytes_max = some_asked(random), random.choice([1_000, random.randrange(100)])
        needed = [i for i, item in enumerate(asked) if isinstance(item, KeyRange) or memory.find(item) is NOT_HERE]
        seen = self.view_of([asked[index] for index in needed], bytes_max)
        for _ in range(random.choice([0, 0, 1, 4])):
            self.commit()
        if random.random() < 0.02:
            memory.restart(memory.version)  # a part of the stream was lost
        answer = memory.answer(asked, dict(zip(needed, seen.results, strict=False)), seen.version, bytes_max)
        if answer is None:
            return
        self.answers += 1
        truth = self.states[memory.version]
        assert answer.version == memory.version, "the answer names the newest version"
        assert answer.results or answer.larger is not None, "something is answered"
        for item, found in zip(asked, answer.results, strict=False):
            if isinstance(item, KeyRange):
                assert isinstance(found, ViewPage)
                keys = keys_of(truth, item.begin, item.end)
                assert found.rows == [(key, *truth[key]) for key in keys[: len(found.rows)]], "the first rows, exactly"
                assert len(found.rows) <= item.limit
                assert found.more or len(found.rows) == len(keys), "what is left out is named"
                assert found.rows or not found.more, "reading on makes progress"
            else:
                assert found == truth.get(item), item

    def view_of(self, asked: list[Asked], bytes_max: int) -> ViewAnswer:
        state, version = self.states[self.view], self.view

        def page(item: KeyRange, left: int) -> ViewPage | Larger:
            rows = ((key, *state[key]) for key in keys_of(state, item.begin, item.end))
            return page_within(page_of(rows, version, item.limit, left), left)

        return answer_within(asked, version, lambda key, left: within(state.get(key), left), page, bytes_max)

    def step(self) -> None:
        self.random.choice([self.commit, self.move_the_view, self.read, self.read])()
        self.memory.check()
        assert self.memory.size <= 2 * BYTES, "memory is bounded"


def run_worlds(kind: type[NewestChanges]) -> tuple[int, int]:
    """How many reads were answered, and in how many worlds the floor has risen."""
    answers = floors = 0
    for seed in range(SEEDS):
        world = World(Random(seed), kind)
        for _ in range(STEPS):
            world.step()
        answers += world.answers
        floors += world.memory.floor > 10
    return answers, floors


def test_every_answer_is_exactly_the_state_at_the_version_that_it_names() -> None:
    answers, floors = run_worlds(NewestChanges)
    assert answers > 10 * SEEDS, "most views that lag do"
    assert floors > SEEDS // 2, "the floor rises"


def test_layers_over_rows_are_the_state_after_their_changes() -> None:
    for seed in range(200):
        random = Random(seed)
        state = changed({}, 1, [some_operation(random) for _ in range(6)])
        rows = iter([(key, *state[key]) for key in sorted(state)])
        laid: list[Layer] = []
        for version in range(2, 2 + random.randrange(6)):
            operations = [some_operation(random) for _ in range(random.randrange(5))]
            layer = Layer(is_ground=False)
            layer.apply(version, operations)
            laid.insert(0, layer)
            state = changed(state, version, operations)
        assert list(merged(laid, b"", None, rows)) == [(key, *state[key]) for key in sorted(state)]


class ViewBelowTheFloor(NewestChanges):
    def answer(self, asked: Any, seen: Any, seen_at: int, bytes_max: int) -> ViewAnswer | None:
        return super().answer(asked, seen, max(seen_at, self.floor) if seen else seen_at, bytes_max)


class RangeDeleteIgnored(NewestChanges):
    def take(self, txns: Any, last_version: int) -> None:
        super().take(
            [(version, [each for each in ops if not isinstance(each, RangeDelete)]) for version, ops in txns],
            last_version,
        )


class VersionTooHigh(NewestChanges):
    def answer(self, asked: Any, seen: Any, seen_at: int, bytes_max: int) -> ViewAnswer | None:
        answer = super().answer(asked, seen, seen_at, bytes_max)
        return None if answer is None else answer._replace(version=answer.version + 1)


class OldRowsOverNew(NewestChanges):
    """Layers that the view may have are passed over, although it has only some of them."""

    def merge(self, asked: KeyRange, seen: ViewPage, seen_at: int, bytes_max: float) -> ViewPage | None:
        return super().merge(asked, seen, seen_at + 2, bytes_max)


@pytest.mark.parametrize(
    "mutant", [ViewBelowTheFloor, RangeDeleteIgnored, VersionTooHigh, OldRowsOverNew], ids=lambda each: each.__name__
)
def test_a_rule_that_is_broken_is_noticed(mutant: type[NewestChanges]) -> None:
    with pytest.raises(AssertionError):
        run_worlds(mutant)
