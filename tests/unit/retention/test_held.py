"""Laws of the bytes that policies keep: whatever came and went, they equal a whole count."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from tests.unit.snapshots.logs import RandomLog

from holdfast.commit.format.batch import FIRST_SLOT, PREFIX, slot_of
from holdfast.objects.memory import MemoryObjects, MemoryStore
from holdfast.objects.port import Pages
from holdfast.retention.ages import HeldBytes
from holdfast.retention.cut import Needs
from holdfast.retention.policies import Content
from holdfast.retention.truncator import _warning
from holdfast.values import Slot


@pytest.mark.parametrize("seed", range(20))
def test_kept_bytes_equal_a_whole_count_as_the_log_grows_and_cuts_move(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pages, "size", 3)
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


def test_what_stays_is_not_listed_again_after_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pages, "size", 3)
    objects = MemoryObjects()
    log = RandomLog(Random(1), objects)
    store = MemoryStore(objects)
    held = HeldBytes(store)
    lists = 0
    whole_list = store.list

    async def counted(prefix: str, **more: object) -> object:
        nonlocal lists
        lists += 1
        return await whole_list(prefix, **more)  # type: ignore[arg-type]

    store.list = counted  # type: ignore[method-assign, assignment]

    async def scenario() -> None:
        nonlocal lists
        log.grow(200)
        rows = await whole_list(PREFIX, limit=1_000)
        kept, swept = rows[:-20], rows[-20:]
        cut = slot_of(swept[0].key)
        assert await held.look(log.head.slot, {"one": cut}) == {"one": sum(row.size for row in kept)}
        for row in swept:
            objects.delete(row.key)
        lists = 0
        # Nothing that may go exists any more: no cut is left.
        assert await held.look(log.head.slot, {"one": None}) == {"one": sum(row.size for row in kept)}
        assert lists <= 2

    asyncio.run(scenario())


def test_a_log_without_policies_has_no_warning() -> None:
    assert _warning(Content({}, {}, 0), Needs(snapshot=None, min_age_ms=0.0)) is None
