"""The time of stores at a take-over: a standby goes on from the leader's time by its own count, not by its clock."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.commit.following import FollowedLog
from holdfast.objects.memory import MemoryStore
from holdfast.server.stores import in_log
from holdfast.server.stores.in_log import LocalCopy
from holdfast.settings import load_configuration
from holdfast.stores.clock import Anchor, Boot, ClockKeeper, StoreClock

MINUTE_MS = 60_000


@pytest.mark.parametrize("skew_ms", [-5 * MINUTE_MS, 0, 5 * MINUTE_MS])
def test_a_standby_goes_on_by_its_own_count_whatever_its_clock_says(skew_ms: int) -> None:
    heard_ms, passed_ms = 100 * MINUTE_MS, 7 * MINUTE_MS
    clock = StoreClock(
        wall=lambda: heard_ms + passed_ms + skew_ms,
        steady=lambda: 50 + passed_ms,
        boot=lambda: Boot("boot", (50 + passed_ms, 60 + passed_ms)),
    )
    ClockKeeper(clock, None, Anchor(heard_ms, "boot", (50, 60))).start(heard_ms)
    assert clock() == heard_ms + passed_ms


def test_without_having_heard_of_the_leader_the_clock_says_how_much_time_has_passed() -> None:
    clock = StoreClock(wall=lambda: 107 * MINUTE_MS, steady=lambda: 50, boot=lambda: None)
    ClockKeeper(clock, None).start(100 * MINUTE_MS)
    assert clock() == 107 * MINUTE_MS


def test_only_what_a_standby_hears_while_it_happens_says_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([100, 100, 250, 250])
    heard: list[int | None] = []
    monkeypatch.setattr(in_log, "anchor_now", lambda store_ms: Anchor(store_ms, "boot", (1, 2)))

    async def scenario() -> None:
        flags = {"log.url": "memory:", "stores.directory": str(tmp_path)}
        settings = load_configuration(flags=flags, environ={}).settings.stores
        copy = LocalCopy(MemoryStore(), settings, "log", "address")
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        headers = iter([object() for _ in range(10)])

        async def bring_up_to(*_: object) -> Any:
            return SimpleNamespace(last_ms=next(times))

        async def wait(_: int) -> None:
            heard.append(None if copy.heard is None else copy.heard.store_ms)
            if len(heard) == 4:
                ended.set_result(None)

        monkeypatch.setattr(copy, "bring_up_to", bring_up_to)
        followed = SimpleNamespace(
            ended=ended,
            claim=None,
            feed=SimpleNamespace(durable=SimpleNamespace(end=0, wait=wait)),
            durable_header=lambda: next(headers),
        )
        await copy.keep_up(cast(FollowedLog, followed))

    asyncio.run(scenario())
    assert heard == [None, None, 250, 250]
