"""Reads of leaders whose view lags, starts again far back, or is overtaken: worlds on virtual time, one for each seed.

The truth is known for every version. A leader releases batches, accepts some that it never releases, loses a part of
the live stream (its ring is tiny), and is followed by another leader. Readers ask for keys and ranges meanwhile.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.integration.virtual_time import run_virtually
from tests.property.test_memory_over_a_view import State, changed, keys_of, some_asked, some_operation

from holdfast.commit.format.batch import LoggedTransaction
from holdfast.commit.format.transaction import RangeDelete
from holdfast.commit.reading.feed import EventBatch, Feed
from holdfast.errors import Closed
from holdfast.server.view.current_reads import CurrentReads
from holdfast.view.newest_changes import NOT_HERE, NewestChanges
from holdfast.view.storage import (
    Asked,
    KeyRange,
    Larger,
    ViewAnswer,
    ViewPage,
    answer_within,
    page_of,
    page_within,
    within,
)

SEEDS = 500 if os.environ.get("HOLDFAST_PROVE") == "1" else 12 if os.environ.get("HOLDFAST_SMALL") == "1" else 60
LEADERSHIPS = 3
BATCHES = 25
READERS = 4
RING_BYTES = 400


class LaggingView:
    """Applies what is released a while later. It is at version 0 after a start, and says its version too low."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._moved = asyncio.Event()
        self.version = 0

    async def at(self, version: int) -> LaggingView:
        while self.version < version:
            self._moved.clear()
            await self._moved.wait()
        return self

    async def read(self, asked: Sequence[Asked], _table: str, bytes_max: int) -> ViewAnswer:
        await asyncio.sleep(self._world.random.choice([0.0, 0.001, 0.02]))
        return view_of(self._world.states[self.version], self.version, asked, bytes_max)

    async def follow(self, released: Callable[[], int]) -> None:
        random = self._world.random
        while True:
            await asyncio.sleep(random.choice([0.001, 0.01, 0.05]))
            if random.random() < 0.05:
                self.version = 0
            else:
                known = [version for version in self._world.states if self.version <= version <= released()]
                self.version = random.choice(known)
            self._moved.set()


def view_of(state: State, version: int, asked: Sequence[Asked], bytes_max: int) -> ViewAnswer:
    def page(item: KeyRange, left: int) -> ViewPage | Larger:
        rows = ((key, *state[key]) for key in keys_of(state, item.begin, item.end))
        return page_within(page_of(rows, version, item.limit, left), left)

    return answer_within(asked, version, lambda key, left: within(state.get(key), left), page, bytes_max)


class World:
    """One log and its leaders, one after the other."""

    def __init__(self, seed: int, kind: type[CurrentReads]) -> None:
        self.random = Random(seed)
        self.states: dict[int, State] = {0: {}}
        self.released = 0
        self.answered = self.refused = 0
        self._kind = kind
        self._view = LaggingView(self)

    async def run(self) -> None:
        for _ in range(LEADERSHIPS):
            base = self.released + self.random.randint(1, 5)
            self.states[base] = self.states[self.released]
            self.released = base
            await self._lead(base)

    async def _lead(self, base: int) -> None:
        claim = SimpleNamespace(last_version=base, leader_id=b"l" * 16, log_id=b"i" * 16)
        feed = Feed(cast(Any, claim), bytes_max=RING_BYTES)
        service = cast(Any, SimpleNamespace(claim=claim, feed=feed))
        reads = self._kind(service, cast(Any, self._view), self.random.choice([0, 3_000, 16 * 700]))
        if self.random.random() < 0.5:
            self._view.version = 0
        tasks = [asyncio.ensure_future(self._view.follow(lambda: self.released))]
        tasks += [asyncio.ensure_future(self._read(reads)) for _ in range(READERS)]
        await asyncio.sleep(0)
        try:
            await self._write(feed)
        finally:
            feed.close()
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        for each in ended:
            if isinstance(each, Exception):
                raise each

    async def _write(self, feed: Feed) -> None:
        random = self.random
        for _ in range(BATCHES):
            version, state = self.released, self.states[self.released]
            logged: list[LoggedTransaction] = []
            later: dict[int, State] = {}
            for _ in range(random.randint(0, 3)):
                version += random.randint(1, 2)
                operations = [some_operation(random) for _ in range(random.randint(1, 3))]
                later[version] = state = changed(state, version, operations)
                logged.append(LoggedTransaction(version, None, None, operations, []))
            version += 1
            later[version] = state
            header = cast(Any, SimpleNamespace(last_version=version, log_id=b"i" * 16))
            feed.resolved.publish(_batch(header, logged))  # accepted; whether it becomes durable is open
            await asyncio.sleep(random.choice([0.0, 0.001, 0.01]))
            if random.random() < 0.1:
                return  # the leader ends, and what it accepted is not in the log
            self.states |= later
            self.released = version
            feed.durable.publish(_batch(header, logged))
            await asyncio.sleep(random.choice([0.0, 0.001, 0.1]))

    async def _read(self, reads: CurrentReads) -> None:
        random = self.random
        while True:
            await asyncio.sleep(random.choice([0.0, 0.001, 0.01]))
            asked, at = some_asked(random), self.released
            first = asked[0]
            if not isinstance(first, KeyRange):
                found = reads.find_now(first, at)
                if found is not NOT_HERE:
                    assert found == self.states[self.released].get(first), "the newest released state"
                    self.answered += 1
            try:
                answer = await reads.read(asked, at, random.choice([60, 1_000]))
            except (Closed, TimeoutError):  # the view began again, or the leadership ended
                self.refused += 1
                continue
            assert at <= answer.version <= self.released, "not older than asked, and released"
            self._judge(asked, answer)

    def _judge(self, asked: Sequence[Asked], answer: ViewAnswer) -> None:
        truth = self.states[answer.version]
        self.answered += len(answer.results)
        for item, found in zip(asked, answer.results, strict=False):
            if isinstance(item, KeyRange):
                assert isinstance(found, ViewPage)
                keys = keys_of(truth, item.begin, item.end)
                assert found.rows == [(key, *truth[key]) for key in keys[: len(found.rows)]], "the first rows, exactly"
                assert found.more or len(found.rows) == len(keys), "what is left out is named"
            else:
                assert found == truth.get(item), "the value at the version that the answer names"


def _batch(header: Any, logged: list[LoggedTransaction]) -> Any:
    return EventBatch.of(header, logged, 64 * (len(logged) + 1))


def run_worlds(kind: type[CurrentReads]) -> int:
    answered = refused = 0
    for seed in range(SEEDS):
        world = World(seed, kind)
        run_virtually(world.run)
        answered += world.answered
        refused += world.refused
    assert refused * 10 < answered, "few reads are refused"
    return answered


def test_reads_over_a_view_that_lags_restarts_and_is_overtaken_show_the_log_exactly() -> None:
    assert run_worlds(CurrentReads) > 100 * SEEDS, "reads are answered"


class AcceptedShownAsDurable(CurrentReads):
    def __init__(self, service: Any, kept: Any, bytes_max: int) -> None:
        super().__init__(service, kept, bytes_max)
        self._channel = service.feed.resolved


class _BelowTheFloor(NewestChanges):
    def answer(self, asked: Any, seen: Any, seen_at: int, bytes_max: int) -> ViewAnswer | None:
        return super().answer(asked, seen, max(seen_at, self.floor) if seen else seen_at, bytes_max)


class _WithoutRangeDeletes(NewestChanges):
    def take(self, txns: Any, last_version: int) -> None:
        kept = [(version, [each for each in ops if not isinstance(each, RangeDelete)]) for version, ops in txns]
        super().take(kept, last_version)


class _VersionTooHigh(NewestChanges):
    def answer(self, asked: Any, seen: Any, seen_at: int, bytes_max: int) -> ViewAnswer | None:
        answer = super().answer(asked, seen, seen_at, bytes_max)
        return None if answer is None else answer._replace(version=answer.version + 1)


class _WithoutRestart(NewestChanges):
    def restart(self, floor: int) -> None:
        self.version = floor


def _over(memory: type[NewestChanges]) -> type[CurrentReads]:
    class Reads(CurrentReads):
        def __init__(self, service: Any, kept: Any, bytes_max: int) -> None:
            super().__init__(service, kept, bytes_max)
            self.recent = memory(service.claim.last_version, bytes_max)

    return Reads


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(AcceptedShownAsDurable, id="accepted shown as durable"),
        pytest.param(_over(_BelowTheFloor), id="view below the floor"),
        pytest.param(_over(_WithoutRangeDeletes), id="range delete ignored"),
        pytest.param(_over(_VersionTooHigh), id="version too high"),
        pytest.param(_over(_WithoutRestart), id="lost part of the stream ignored"),
    ],
)
def test_a_rule_of_reads_that_is_broken_is_noticed(mutant: type[CurrentReads]) -> None:
    with pytest.raises((AssertionError, KeyError)):
        run_worlds(mutant)
