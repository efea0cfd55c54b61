"""Who is sent a snapshot: a slow reader keeps nobody waiting, and is left alone while nobody waits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.errors import Backpressure, Code, Unavailable
from holdfast.server.commit.snapshot_readers import (
    BYTES_PER_SECOND_MIN,
    LOOK_SECONDS,
    PACE_SECONDS,
    READERS_MAX,
    READERS_OF_CLIENT,
    SnapshotReaders,
)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], object]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], object]) -> object:
        self.timers.append((self.now + delay, callback))
        return None

    def pass_to(self, now: float) -> None:
        while self.timers and min(self.timers)[0] <= now:
            self.timers.sort(key=lambda timer: timer[0])
            self.now, callback = self.timers.pop(0)
            callback()
        self.now = now


class Reader:
    def __init__(self, clock: Clock, client: str, pace: int) -> None:
        self.clock, self.client, self.pace = clock, client, pace
        self.began = clock.now
        self.problem: Unavailable | None = None

    def taken_bytes(self) -> int:
        return int((self.clock.now - self.began) * self.pace)

    def end_for(self, problem: Unavailable) -> None:
        assert self.problem is None
        self.problem = problem


class World:
    def __init__(self) -> None:
        self.clock = Clock()
        self.truncation_waits = False
        self.readers = SnapshotReaders(self.clock, lambda: self.truncation_waits)

    def admit(self, client: str, pace: int) -> Reader:
        reader = Reader(self.clock, client, pace)
        self.readers.admit(reader)
        return reader


FAST, SLOW = BYTES_PER_SECOND_MIN, BYTES_PER_SECOND_MIN - 2


def test_a_slow_reader_is_left_alone_while_nobody_waits() -> None:
    world = World()
    slow = world.admit("a", 0)
    world.clock.pass_to(100 * PACE_SECONDS)
    assert slow.problem is None
    world.readers.discard(slow)
    world.clock.pass_to(200 * PACE_SECONDS)
    assert not world.clock.timers, "without readers there is no timer"


def test_slow_readers_do_not_lock_others_out() -> None:
    world = World()
    slow = [world.admit(client, pace) for client, pace in zip("aabb", (SLOW, 10, SLOW, SLOW), strict=True)]
    world.clock.pass_to(PACE_SECONDS - 1)
    with pytest.raises(Backpressure):
        world.admit("c", FAST)
    world.clock.pass_to(PACE_SECONDS)
    world.admit("c", FAST)
    assert [each.problem is None for each in slow] == [True, False, True, True], "the slowest ends"
    assert slow[1].problem is not None and slow[1].problem.code is Code.LAGGING
    assert len(world.readers) == READERS_MAX


def test_quick_readers_keep_their_places_and_the_newcomer_waits() -> None:
    world = World()
    for client in "aabb":
        world.admit(client, FAST)
    world.clock.pass_to(10 * PACE_SECONDS)
    with pytest.raises(Backpressure):
        world.admit("c", FAST)


def test_a_client_has_a_part_of_the_places_and_ends_its_own_readers() -> None:
    world = World()
    own = [world.admit("a", 0) for _ in range(READERS_OF_CLIENT)]
    with pytest.raises(Backpressure):
        world.admit("a", FAST)
    foreign = world.admit("b", 0)
    world.clock.pass_to(PACE_SECONDS)
    world.admit("a", FAST)
    assert [each.problem is None for each in own].count(False) == 1
    assert foreign.problem is None


def test_the_pace_is_that_of_the_last_minute() -> None:
    world = World()
    reader = world.admit("a", 10 * FAST)
    world.admit("a", FAST)
    world.clock.pass_to(10 * PACE_SECONDS)
    taken = reader.taken_bytes()
    reader.pace, reader.began = 0, world.clock.now
    reader.taken_bytes = lambda: taken  # type: ignore[method-assign]
    world.clock.pass_to(10 * PACE_SECONDS + PACE_SECONDS / 2)
    with pytest.raises(Backpressure):
        world.admit("a", FAST)
    world.clock.pass_to(11 * PACE_SECONDS + 2 * LOOK_SECONDS)
    world.admit("a", FAST)
    assert reader.problem is not None


def test_slow_readers_end_when_a_truncation_waits_for_their_holds() -> None:
    world = World()
    slow, fast = world.admit("a", SLOW), world.admit("a", FAST)
    world.clock.pass_to(3 * PACE_SECONDS)
    assert slow.problem is None
    world.truncation_waits = True
    world.clock.pass_to(3 * PACE_SECONDS + LOOK_SECONDS)
    assert (slow.problem is None, fast.problem is None) == (False, True)
