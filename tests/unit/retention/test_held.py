"""Laws of the bytes that policies keep: whatever came and went, they equal a whole count."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from tests.unit.snapshots.logs import RandomLog

from holdfast.commit.format.batch import FIRST_SLOT, PREFIX, slot_of
from holdfast.objects.memory import MemoryObjects, MemoryStore
from holdfast.retention import held as module
from holdfast.retention.held import HeldBytes
from holdfast.values import Slot


@pytest.mark.parametrize("seed", range(20))
def test_kept_bytes_equal_a_whole_count_as_the_log_grows_and_cuts_move(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE", 3)
    draw = Random(seed)
    objects = MemoryObjects()
    log = RandomLog(draw, objects)
    store = MemoryStore(objects)
    held = HeldBytes(store)

    async def sizes() -> dict[int, int]:
        rows = await store.list(PREFIX, limit=1000)
        return {slot: row.size for row in rows if (slot := slot_of(row.key)) is not None}

    async def scenario() -> None:
        cuts: dict[str, Slot | None] = {}
        for _ in range(12):
            log.grow(draw.randrange(8))
            now = await sizes()
            slots = sorted(now)
            for name in ("one", "two"):
                if draw.random() < 0.7:
                    cuts[name] = draw.choice([None, *map(Slot, slots)])
            found = await held.look(log.head.slot, cuts)
            assert found == {
                name: sum(size for slot, size in now.items() if slot < (FIRST_SLOT + 1 if cut is None else cut))
                for name, cut in cuts.items()
            }

    asyncio.run(scenario())
