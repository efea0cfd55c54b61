"""What a truncation would free equals what the sweep then deletes."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from tests.unit.snapshots.logs import RandomLog

from holdfast.commit.format.batch import CLAIM_BYTES, PREFIX, SPAN_MAX, slot_of
from holdfast.objects.memory import MemoryObjects, MemoryStore
from holdfast.objects.port import Pages
from holdfast.retention.sweep import Freed, Swept, freed, sweep
from holdfast.values import Slot


@pytest.mark.parametrize("seed", range(5))
def test_what_is_counted_is_what_a_sweep_deletes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pages, "size", 3)
    draw = Random(seed)
    objects = MemoryObjects()
    log = RandomLog(draw, objects)
    log.grow(40)
    store = MemoryStore(objects)

    async def scenario() -> None:
        rows = [row for row in await store.list(PREFIX, limit=1_000) if row.size != CLAIM_BYTES]
        slots = [slot for row in rows if (slot := slot_of(row.key)) is not None]
        cut = draw.choice(slots[:-5])
        watermark = Slot(slots[0] - SPAN_MAX - 1)
        counted = await freed(store, cut, None, watermark, objects_max=1_000)
        assert counted.objects > 4
        part = await freed(store, cut, slots[-2], watermark, objects_max=1_000)
        assert part == Freed(counted.objects - 2, counted.bytes - rows[-1].size - rows[-2].size, True)
        bounded = await freed(store, cut, None, watermark, objects_max=2)
        assert 2 <= bounded.objects < counted.objects
        assert not bounded.is_whole
        assert (await freed(store, cut, None, slots[-1], objects_max=1_000)).objects == 0, "near the watermark"
        swept = Swept()
        await sweep(store, cut, lambda: watermark, per_second=1e6, swept=swept)
        assert (swept.objects, swept.bytes) == (counted.objects, counted.bytes)

    asyncio.run(scenario())
