"""The time of stores at a take-over: a standby goes on from the leader's time by its own count, not by its clock."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.commit.following import FollowedLog
from holdfast.commit.format.batch import StoresMode
from holdfast.commit.service import CommitService, ServiceOptions
from holdfast.objects.memory import MemoryStore
from holdfast.server.stores import in_log
from holdfast.server.stores.in_log import LocalCopy, open_in_log
from holdfast.settings import load_configuration
from holdfast.stores.clock import Anchor, Boot, ClockKeeper, StoreClock
from holdfast.stores.values.commands import Define

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


@pytest.mark.parametrize("stood_by", [True, False])
def test_a_new_leader_counts_by_the_log_from_the_object_of_the_last_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stood_by: bool
) -> None:
    started: list[tuple[int, Anchor | None, int | None]] = []
    start = StoreClock.start

    def noted(self: StoreClock, last_ms: int, anchor: Anchor | None = None, *, by_log_ms: int | None = None) -> None:
        started.append((last_ms, anchor, by_log_ms))
        start(self, last_ms, anchor, by_log_ms=by_log_ms)

    monkeypatch.setattr(StoreClock, "start", noted)

    async def lead(store: MemoryStore) -> CommitService:
        options = ServiceOptions(allow_new=True, take_over=True, probe=False, stores_mode=StoresMode.LOG)
        return await CommitService.lead(store, options)

    async def scenario() -> None:
        flags = {"log.url": "memory:", "stores.directory": str(tmp_path)}
        settings = load_configuration(flags=flags, environ={}).settings.stores
        store = MemoryStore()
        leader = await lead(store)
        service = await open_in_log(LocalCopy(store, settings, leader.log_id, "one"), leader, settings)
        await service.submit(Define(0, b"{}", service.state.revision + 1))
        last_ms, newest = service.state.at_ms, leader.durable_header()
        await service.close()
        await leader.step_down()
        await leader.close()
        standby = LocalCopy(store, settings, leader.log_id, "two")
        if stood_by:
            await standby.bring_up_to(leader.claim, newest)
            standby.heard = Anchor(last_ms, "", (0, 0))
        leader = await lead(store)
        moment = leader.moment()
        vars(leader)["moment"] = lambda: moment._replace(time_ms=newest.time_ms + 1_234)
        service = await open_in_log(standby, leader, settings)
        assert started == [
            (0, None, None),
            (last_ms, Anchor(last_ms, "", (0, 0)) if stood_by else None, last_ms + 1_234),
        ]
        assert standby.heard is None, "what it heard of another leader ends with its own leadership"
        await service.close()
        await leader.close()

    asyncio.run(scenario())
