"""The copy of a standby: what a thread still does when its caller is cancelled is waited for, and never left open."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from tests.definitions import define
from tests.stores.test_takeover_time import lead

from holdfast.objects.memory import MemoryStore
from holdfast.server.stores.in_log import LocalCopy, open_in_log
from holdfast.settings import load_configuration
from holdfast.stores.followed import FollowedStores


@pytest.mark.parametrize("held", ["open", "follow"])
@pytest.mark.parametrize("cancelled", [1, 2])
@pytest.mark.parametrize("closes", [False, True])
def test_a_standby_that_leads_while_its_copy_is_at_work_waits_for_it_and_has_no_file_open_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: str, cancelled: int, closes: bool
) -> None:
    began, goes_on = threading.Event(), threading.Event()
    real = getattr(FollowedStores, held)

    def slow(*given: object, **more: object) -> object:
        began.set()
        assert goes_on.wait(30)
        return real(*given, **more)

    async def scenario() -> None:
        flags = {"log.url": "memory:", "stores.directory": str(tmp_path)}
        settings = load_configuration(flags=flags, environ={}).settings.stores
        store = MemoryStore()
        leader = await lead(store)
        service = await open_in_log(LocalCopy(store, settings, leader.log_id, "one"), leader, settings)
        await service.submit(define(b"{}", service.state))
        await service.close()
        standby = LocalCopy(store, settings, leader.log_id, "two")
        monkeypatch.setattr(FollowedStores, held, slow)
        for _ in range(cancelled):
            following = asyncio.create_task(standby.bring_up_to(leader.claim, leader.durable_header()))
            await asyncio.to_thread(began.wait)
            for _ in range(5):
                await asyncio.sleep(0)  # the second one waits for what the first one left
            following.cancel()
            await asyncio.wait({following})
            assert following.cancelled()
        goes_on.set()
        if closes:
            await standby.close()
        stores = await standby.bring_up_to(leader.claim, leader.durable_header())
        assert stores.version == leader.durable_header().last_version
        await standby.close()
        await leader.close()

    asyncio.run(scenario())
