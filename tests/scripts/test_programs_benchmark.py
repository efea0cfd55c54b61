"""The lanes of ``benchmarks/programs.py`` count nothing that is not true: each of them notices a client that lies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
FAULTS = {
    "commit": "loses a commit",
    "commit after a get": "loses a commit",
    "get": "reads something else",
    "get, linearizable": "reads something else",
    "range of 100": "leaves out a row",
    "transact": "loses a commit",
    "10 keys in one commit": "commits a part",
    "commit to its event": "reports something else",
}


class InMemory:
    """A system without a network. ``fault`` is what it does from its tenth request on, once."""

    def __init__(self, fault: str = "") -> None:
        self._fault = fault
        self._asked = 0
        self._kept: dict[bytes, bytes] = {}

    def _faulty(self, fault: str) -> bool:
        self._asked += 1
        if self._fault != fault or self._asked < 10:
            return False
        self._fault = ""
        return True

    async def commit(self, key: bytes, value: bytes) -> None:
        if not self._faulty("loses a commit"):
            self._kept[key] = value

    async def commit_many(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        self._kept.update(pairs[1:] if self._faulty("commits a part") else pairs)

    async def fill(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        self._kept.update(pairs)

    async def get(self, key: bytes) -> bytes | None:
        return b"something else" if self._faulty("reads something else") else self._kept.get(key)

    get_linearizable = get

    async def range(self, begin: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        rows = [(key, value) for key, value in sorted(self._kept.items()) if begin <= key < end]
        return rows[1:] if self._faulty("leaves out a row") else rows

    async def add_one(self, key: bytes) -> None:
        from programs_peers.clients import plus_one

        await self.commit(key, plus_one(self._kept.get(key)))

    async def follow(
        self, prefix: bytes, arrived: Callable[[bytes, bytes], None], failed: Callable[[BaseException], None]
    ) -> Callable[[], Awaitable[None]]:
        self._arrived = arrived

        async def stop() -> None:
            pass

        return stop

    async def commit_followed(self, key: bytes, value: bytes) -> None:
        await self.commit(key, value)
        self._arrived(key, b"something else" if self._faulty("reports something else") else value)

    async def read_back(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._kept.get(key) for key in keys]


def _burst(lane_name: str, way_name: str, client: Any) -> list[int]:
    from programs_peers.ways import WAYS
    from programs_peers.worker import LANES, Load

    way = WAYS[way_name]()
    lane = LANES[lane_name](client, way, b"1/")
    load = Load(lane, way, 2)

    async def whole() -> None:
        await lane.prepare()
        await load.run(0.01)
        await load.run(0.01)
        await lane.check(load.done)

    try:
        way.run(whole())
    finally:
        way.end()
    return load.done


@pytest.fixture(autouse=True)
def _benchmarks_are_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.mark.parametrize("way", ["tasks", "threads"])
@pytest.mark.parametrize("lane", FAULTS)
def test_a_lane_accepts_a_client_that_does_what_it_says(lane: str, way: str) -> None:
    assert min(_burst(lane, way, InMemory())) >= 2


@pytest.mark.parametrize("way", ["tasks", "threads"])
@pytest.mark.parametrize(("lane", "fault"), FAULTS.items())
def test_a_lane_notices_a_client_that_lies(lane: str, fault: str, way: str) -> None:
    from programs_peers.worker import CheckFailed

    with pytest.raises(CheckFailed):
        _burst(lane, way, InMemory(fault))


def test_every_lane_has_a_fault_that_it_must_notice() -> None:
    from programs_peers.worker import LANES

    assert list(LANES) == list(FAULTS)
