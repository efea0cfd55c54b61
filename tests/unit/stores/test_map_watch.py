"""A watch of a map tells what is safe, every key's last word, in one order with what it begins with."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest

from holdfast.errors import Code, HoldfastError
from holdfast.server.stores import map_watch
from holdfast.server.stores.map_watch import MapWatch
from holdfast.wire.stores import ChangesFrame, CurrentFrame


@dataclass
class World:
    """A map that is ahead of what is safe, a watcher, and a loop whose turns the test takes."""

    state: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    safe: dict[str, bytes] = field(default_factory=dict)
    bodies: dict[int, bytes] = field(default_factory=dict)
    line: list[Callable[[], None]] = field(default_factory=list)
    """What waits for safety, in order."""
    soon: list[Callable[[], None]] = field(default_factory=list)
    told: dict[str, bytes] = field(default_factory=dict)
    frames: int = 0
    current: int = 0
    is_paused: bool = False
    error: HoldfastError | None = None
    revision: int = 0
    watch: MapWatch | None = None

    def begin(self) -> MapWatch:
        self.watch = MapWatch(self, self, self.soon.append)
        self.watch.begin()
        return self.watch

    # the map

    def change(self, key: str, value: bytes | None) -> None:
        self.revision += 1
        revision = self.revision
        if value is None:
            if key not in self.state:
                return
            del self.state[key]
        else:
            before = self.state.get(key)
            if before is not None:
                self.bodies.pop(before[0], None)
            self.state[key] = revision, value
            self.bodies[revision] = value
        self.line.append(lambda: self._is_safe(key, revision, value))

    def _is_safe(self, key: str, revision: int, value: bytes | None) -> None:
        if value is None:
            self.safe.pop(key, None)
        else:
            self.safe[key] = value
        if self.watch is not None:
            self.watch.changed([(key, revision, "removed" if value is None else "set")])

    def wants(self, key: str) -> bool:
        return bool(key)

    def page(self, after: str, count: int) -> list[tuple[str, int]]:
        return sorted((key, revision) for key, (revision, _) in self.state.items() if key > after)[:count]

    def size(self, revision: int) -> int:
        return len(self.bodies.get(revision, b""))

    def values(self, revisions: Iterable[int]) -> dict[int, bytes]:
        return {revision: self.bodies[revision] for revision in revisions if revision in self.bodies}

    def when_safe(self, done: Callable[[], None]) -> None:
        self.line.append(done)

    # the watcher

    def tell(self, frame: ChangesFrame | CurrentFrame) -> None:
        self.frames += 1
        if isinstance(frame, CurrentFrame):
            self.current += 1
            return
        for change in frame.changes:
            if change.value is None:
                self.told.pop(change.key, None)
            else:
                self.told[change.key] = change.value

    def fail(self, error: HoldfastError) -> None:
        self.error = error

    # time

    def be_safe(self, count: int) -> None:
        for done in self.line[:count]:
            done()
        del self.line[:count]

    def turn(self) -> None:
        soon, self.soon[:] = list(self.soon), []
        for step in soon:
            step()

    def settle(self) -> None:
        while self.line or self.soon:
            self.be_safe(len(self.line))
            self.turn()


@pytest.mark.parametrize("seed", range(60))
def test_a_watch_ends_with_what_is_in_the_map_and_never_tells_what_is_not_safe(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(map_watch, "PAGE_KEYS", 3)
    monkeypatch.setattr(map_watch, "PORTION_KEYS", 2)
    rng = random.Random(seed)
    world = World()
    keys = [f"k{number}" for number in range(12)]
    for key in rng.sample(keys, 8):
        world.change(key, b"before")
    world.be_safe(len(world.line))
    world.begin()
    for step in range(200):
        was_safe = {*world.safe.values(), *world.told.values()}
        match rng.choice(["set", "set", "remove", "safe", "safe", "turn", "turn", "pause"]):
            case "set":
                world.change(rng.choice(keys), str(step).encode())
            case "remove":
                world.change(rng.choice(keys), None)
            case "safe":
                world.be_safe(rng.randint(0, len(world.line)))
            case "turn":
                world.turn()
                assert set(world.told.values()) <= was_safe, "what is told was safe before"
            case _:
                world.is_paused = not world.is_paused
                if not world.is_paused and world.watch is not None:
                    world.watch.resumed()
    world.is_paused = False
    assert world.watch is not None
    world.watch.resumed()
    world.settle()
    assert world.told == world.safe == {key: value for key, (_, value) in world.state.items()}
    assert world.current == 1
    assert world.error is None


def test_a_slow_watcher_is_told_the_newest_value_of_each_key() -> None:
    world = World()
    world.begin()
    world.settle()
    world.is_paused = True
    for number in range(1_000):
        world.change("k", str(number).encode())
    world.settle()
    frames = world.frames
    world.is_paused = False
    assert world.watch is not None
    world.watch.resumed()
    world.settle()
    assert (world.told, world.frames - frames) == ({"k": b"999"}, 1)


def test_a_watcher_that_is_too_slow_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(map_watch, "PENDING_BYTES_MAX", 1_000)
    world = World()
    world.begin()
    world.settle()
    world.is_paused = True
    for number in range(10):
        world.change(f"k{number}", b"x")
    world.settle()
    assert world.error is not None and world.error.code is Code.LAGGING
    assert not world.soon, "a watch that ended does nothing more"


@pytest.mark.parametrize("error", [OSError("disk I/O error"), sqlite3.OperationalError("disk I/O error")])
def test_a_map_that_the_disk_does_not_give_ends_the_watch_with_the_reason(error: Exception) -> None:
    def broken(_after: str, _count: int) -> list[tuple[str, int]]:
        raise error

    world = World()
    world.page = broken  # type: ignore[method-assign]
    world.begin()
    world.settle()
    assert world.error is not None
    assert world.error.code is Code.STORE_UNAVAILABLE
    assert "disk I/O error" in str(world.error)


def test_a_large_value_has_a_frame_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(map_watch, "PORTION_BYTES", 10)
    world = World()
    for key in "abcd":
        world.change(key, bytes(8))
    world.be_safe(4)
    world.begin()
    world.settle()
    assert len(world.told) == 4
    assert world.frames == 5
