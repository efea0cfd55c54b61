"""The time of stores at a take-over: a standby goes on from the leader's time by its own count, not by its clock."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.definitions import define

from holdfast.commit.following import FollowedLog
from holdfast.commit.format.batch import Header, StoresMode
from holdfast.commit.service import CommitService, ServiceOptions
from holdfast.errors import Unavailable
from holdfast.objects.memory import MemoryStore
from holdfast.server.stores import in_log
from holdfast.server.stores.in_log import Heard, LocalCopy, known_time, open_in_log
from holdfast.settings import load_configuration
from holdfast.stores.clock import HEARD_MS, TRUSTED_MS, Anchor, Boot, ByLog, ClockKeeper, StoreClock, read_anchor

MINUTE_MS = 60_000


@pytest.mark.parametrize("skew_ms", [-5 * MINUTE_MS, 0, 5 * MINUTE_MS])
def test_a_standby_goes_on_by_its_own_count_whatever_its_clock_says(skew_ms: int) -> None:
    heard_ms, passed_ms = 100 * MINUTE_MS, 7 * MINUTE_MS
    clock = StoreClock(
        wall=lambda: heard_ms + passed_ms + skew_ms,
        steady=lambda: 50 + passed_ms,
        boot=lambda: Boot("boot", (50 + passed_ms, 60 + passed_ms)),
    )
    clock.start(heard_ms, Anchor(heard_ms, "boot", (50, 60)), by_log=ByLog(heard_ms + passed_ms + skew_ms, HEARD_MS))
    assert clock() == heard_ms + passed_ms


def test_without_having_heard_of_the_leader_the_log_says_how_much_time_has_passed() -> None:
    clock = StoreClock(wall=lambda: 107 * MINUTE_MS, steady=lambda: 50, boot=lambda: None)
    clock.start(100 * MINUTE_MS, by_log=ByLog(107 * MINUTE_MS, TRUSTED_MS))
    assert clock() == 107 * MINUTE_MS


def test_only_what_a_standby_hears_while_it_happens_is_heard_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unavailable = Unavailable("the store does not answer")
    times = iter([100, 100, 250, 250, 300, unavailable, 400, 400, 500])
    heard: list[tuple[int, bool]] = []
    monkeypatch.setattr(in_log, "FOLLOW_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(in_log, "anchor_now", lambda store_ms: Anchor(store_ms, "boot", (1, 2)))

    async def scenario() -> None:
        flags = {"log.url": "memory:", "stores.directory": str(tmp_path)}
        settings = load_configuration(flags=flags, environ={}).settings.stores
        copy = LocalCopy(MemoryStore(), settings, "log", "address")
        headers = iter([object() for _ in range(10)])

        async def bring_up_to(*_: object) -> Any:
            if isinstance(last_ms := next(times), Unavailable):
                raise last_ms
            return SimpleNamespace(last_ms=last_ms)

        async def follow(count: int) -> None:
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            upto = len(heard) + count

            async def wait(_: int) -> None:
                assert copy.heard is not None
                heard.append((copy.heard.anchor.store_ms, copy.heard.at_once))
                if len(heard) == upto:
                    ended.set_result(None)

            followed = SimpleNamespace(
                ended=ended,
                claim=None,
                feed=SimpleNamespace(durable=SimpleNamespace(end=0, wait=wait)),
                durable_header=lambda: next(headers),
            )
            await copy.keep_up(cast(FollowedLog, followed))

        monkeypatch.setattr(copy, "bring_up_to", bring_up_to)
        await follow(4)
        await follow(1)  # of the next leader, without a pause
        await follow(3)  # after a failure, which may have lasted

    asyncio.run(scenario())
    heard_in_time = [(100, False), (100, False), (250, True), (250, True), (300, True)]
    assert heard == [*heard_in_time, (400, False), (400, False), (500, True)]


def test_a_machine_counts_from_the_last_record_that_it_heard_or_made() -> None:
    newest = cast(Header, SimpleNamespace(leader_id=b"1", time_ms=5_000))
    mine, others = Anchor(150, "boot", (1, 1), leader=b"1".hex()), Anchor(150, "boot", (1, 1), leader=b"0".hex())
    last, earlier = Anchor(100, "boot", (1, 1)), Anchor(99, "boot", (1, 1))
    for heard, own, used, most_ms in [
        (Heard(last, at_once=True), others, [last], HEARD_MS),
        (Heard(last, at_once=False), mine, [last, mine], TRUSTED_MS),
        (Heard(earlier, at_once=True), None, [], HEARD_MS),
        (None, mine, [mine], TRUSTED_MS),
        (None, Anchor(150, "boot", (1, 1)), [], TRUSTED_MS),
    ]:
        assert known_time(100, 5_700, newest, heard, own) == (used, ByLog(800, most_ms))
    assert known_time(100, 5_700, None, Heard(last, at_once=True), mine) == ([], None)


def test_the_anchor_in_the_log_names_its_leader_and_comes_with_a_look_and_with_the_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = StoreClock(wall=lambda: 9_000, steady=lambda: 50, boot=lambda: Boot("boot", (50, 60)))
        keeper = ClockKeeper(clock, str(tmp_path), "1f")
        keeper.start_in_log(7_000, [], ByLog(8_000, HEARD_MS))
        assert read_anchor(str(tmp_path)) is None, "a take-over does not wait for a disk"
        await asyncio.to_thread(keeper.close)
        assert read_anchor(str(tmp_path)) == Anchor(8_000, "boot", (50, 60), 1_000, "1f")

    asyncio.run(scenario())


async def lead(store: MemoryStore) -> CommitService:
    options = ServiceOptions(allow_new=True, take_over=True, probe=False, stores_mode=StoresMode.LOG)
    return await CommitService.lead(store, options)


@pytest.mark.parametrize("stood_by", [True, False])
def test_a_new_leader_counts_by_the_log_from_the_object_of_the_last_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stood_by: bool
) -> None:
    started: list[tuple[int, tuple[Anchor, ...], ByLog | None]] = []
    start = StoreClock.start

    def noted(self: StoreClock, last_ms: int, *anchors: Anchor, by_log: ByLog | None = None) -> None:
        started.append((last_ms, anchors, by_log))
        start(self, last_ms, *anchors, by_log=by_log)

    monkeypatch.setattr(StoreClock, "start", noted)

    async def scenario() -> None:
        flags = {"log.url": "memory:", "stores.directory": str(tmp_path)}
        settings = load_configuration(flags=flags, environ={}).settings.stores
        store = MemoryStore()
        leader = await lead(store)
        service = await open_in_log(LocalCopy(store, settings, leader.log_id, "one"), leader, settings)
        await service.submit(define(b"{}", service.state))
        last_ms, newest = service.state.at_ms, leader.durable_header()
        await service.close()
        await leader.step_down()
        await leader.close()
        standby = LocalCopy(store, settings, leader.log_id, "two")
        heard = Heard(Anchor(last_ms, "", (0, 0)), at_once=True)
        if stood_by:
            await standby.bring_up_to(leader.claim, newest)
            standby.heard = heard
        leader = await lead(store)
        moment = leader.moment()
        vars(leader)["moment"] = lambda: moment._replace(time_ms=newest.time_ms + 1_234)
        service = await open_in_log(standby, leader, settings)
        by_log = ByLog(last_ms + 1_234, HEARD_MS if stood_by else TRUSTED_MS)
        assert started == [(0, (), None), (last_ms, (heard.anchor,) if stood_by else (), by_log)]
        assert standby.heard is None, "what it heard of another leader ends with its own leadership"
        await service.close()
        await leader.close()

    asyncio.run(scenario())
