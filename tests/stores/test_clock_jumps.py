"""The clock of the machine is set while stores are open: no deadline ends early, and none waits for it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from holdfast.errors import Unavailable
from holdfast.stores import commands
from holdfast.stores.alarm import WAIT_MS_MAX
from holdfast.stores.clock import StoreClock
from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.messages import Message
from holdfast.stores.service import StoreService

START_MS = 2_000_000_000_000
DAY_MS = 86_400_000
DEFINITION = {
    "cluster": {},
    "stores": {"o": {"durables": {"w": {"type": "shared", "ack_wait": "200ms"}, "m": {"type": "map"}}}},
}


class Machine:
    """A machine with two clocks: one of day, which is set at will, and one that only goes on."""

    def __init__(self) -> None:
        self.steady_ms = 77
        self.set_ms = 0

    def wall(self) -> int:
        return START_MS + self.steady_ms + self.set_ms

    def steady(self) -> int:
        return self.steady_ms

    async def open(self, path: Path) -> StoreService:
        clock = StoreClock(wall=self.wall, steady=self.steady)
        return await StoreService.open(str(path), page_bytes=1 << 20, clock=clock)

    async def first(self, path: Path) -> StoreService:
        service = await self.open(path)
        document = json.dumps(DEFINITION).encode()
        await service.submit(commands.Define(0, document, service.state.revision + 1))
        await service.submit(commands.Attach(0, "o", "w", "a"))
        return service


async def hold(service: StoreService) -> None:
    """One message is delivered and one key is locked, both for 200 ms."""
    await service.submit(commands.Publish(0, "o", "", [Message(b"x")]))
    await service.submit(commands.Deliver(0, "o", "w", "a", 1))
    await service.submit(commands.MapLock(0, "o", "m", "k", "me", 200))
    assert held(service) == 1


def held(service: StoreService) -> int:
    durable = service.state.stores["o"].durables["w"]
    assert isinstance(durable, Consumption)
    return durable.holdings.held


async def is_locked(service: StoreService) -> bool:
    try:
        await service.submit(commands.MapLock(0, "o", "m", "k", "you", 200))
    except Unavailable:
        return True
    return False


@pytest.mark.parametrize("moved_ms", [30 * DAY_MS, 150, -150, -30 * DAY_MS])
@pytest.mark.parametrize("how", ["for a moment", "for good"])
def test_a_clock_that_is_set_neither_rushes_nor_holds_a_deadline(tmp_path: Path, moved_ms: int, how: str) -> None:
    async def main() -> None:
        machine = Machine()
        service = await machine.first(tmp_path)
        await hold(service)
        machine.set_ms = moved_ms
        await service.submit(commands.Publish(0, "o", "", [Message(b"meanwhile")]))
        if how == "for a moment":
            machine.set_ms = 0
        machine.steady_ms += 199
        service._expire()
        assert held(service) == 1
        assert await is_locked(service)
        machine.steady_ms += 1
        service._expire()
        assert held(service) == 0
        assert not await is_locked(service)
        await service.close()

    asyncio.run(main())


def test_deadlines_pass_at_their_pace_in_a_log_that_is_ahead_of_the_clock(tmp_path: Path) -> None:
    async def main() -> None:
        machine = Machine()
        machine.set_ms = 30 * DAY_MS
        service = await machine.first(tmp_path)
        await service.close()
        machine.set_ms = 0
        again = await machine.open(tmp_path)
        before_ms = again.state.at_ms
        await hold(again)
        assert again.state.at_ms == before_ms, "time goes on from the last of the log"
        machine.steady_ms += 200
        again._expire()
        assert held(again) == 0
        assert not await is_locked(again)
        await again.close()

    asyncio.run(main())


@pytest.mark.parametrize("stopped_ms", [199, 200])
def test_deadlines_go_on_while_nothing_runs(tmp_path: Path, stopped_ms: int) -> None:
    async def main() -> None:
        machine = Machine()
        service = await machine.first(tmp_path)
        await hold(service)
        await service.close()
        machine.steady_ms += stopped_ms
        again = await machine.open(tmp_path)
        assert again._time_ms() == START_MS + 77 + stopped_ms
        again._expire()
        assert held(again) == (1 if stopped_ms < 200 else 0)
        await again.close()

    asyncio.run(main())


def test_the_clocks_of_this_machine_go_on_together() -> None:
    clock = StoreClock()
    first = clock()
    clock.not_before(first - 1)
    assert clock() - first < 60_000
    clock.not_before(first + DAY_MS)
    assert clock() >= first + DAY_MS


def test_a_suspended_machine_is_looked_at_again_soon() -> None:
    assert WAIT_MS_MAX <= 60_000, "timers do not count while it is suspended, and the clock does"
