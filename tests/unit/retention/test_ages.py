"""Bytes by age: they equal a whole count, whatever the log, and say where they are not whole."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from tests.unit.snapshots.logs import RandomLog

from holdfast.commit.format.batch import HEADER_BYTES, PREFIX, Header, Kind, encode_object, object_name, slot_of
from holdfast.commit.format.log_clock import Moment
from holdfast.commit.reading.reader import find_header
from holdfast.objects.memory import MemoryObjects, MemoryStore
from holdfast.objects.port import Pages
from holdfast.retention.ages import AgeBand, bytes_by_age


class CountingStore(MemoryStore):
    """Counts the reads of one object."""

    reads = 0

    async def read(self, *arguments: Any, **options: Any) -> Any:
        self.reads += 1
        return await super().read(*arguments, **options)


async def header_of(store: MemoryStore, key: str) -> Header:
    slot = slot_of(key)
    assert slot is not None
    header = await find_header(store, slot)
    assert header is not None
    return header


def rewrite(objects: MemoryObjects, header: Header) -> None:
    """Give the newest object another time."""
    name = object_name(header.slot)
    data = objects.read(name)
    objects.delete(name)
    objects.create(name, encode_object(header, data[HEADER_BYTES:]))


def is_older(header: Header, now: Moment, age_ms: float) -> bool:
    """By both times."""
    return header.time_ms < now.time_ms - age_ms and header.lived_ms < now.lived_ms - age_ms


@pytest.mark.parametrize("seed", range(5))
def test_bytes_by_age_equal_a_whole_count(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pages, "size", 3)
    draw = Random(seed)
    objects = MemoryObjects()
    log = RandomLog(draw, objects)
    store = MemoryStore(objects)

    async def scenario() -> None:
        for number in range(draw.randrange(1, 30)):
            log.grow(1)
            log.head = replace(
                log.head,
                time_ms=log.head.time_ms + number * draw.choice((0, 700)),
                lived_ms=log.head.lived_ms + number * draw.choice((0, 700)),
            )
            rewrite(objects, log.head)
        rows = await store.list(PREFIX, limit=1000)
        headers = [await header_of(store, row.key) for row in rows]
        now_ms, lived_ms = headers[0].time_ms + draw.randrange(2_000), headers[0].lived_ms + draw.randrange(2_000)
        now = Moment(now_ms, lived_ms, 0, 0, 0, doubted=False)
        seconds = sorted({draw.randrange(1, 30_000) / 1000 for _ in range(3)})
        counting = CountingStore(objects)
        found = await bytes_by_age(counting, log.claim, log.head, now=now, seconds=seconds, objects_max=1_000)
        assert found.is_whole
        claims = sum(header.kind is Kind.CLAIM for header in headers)
        assert counting.reads <= 2 * claims + len(seconds) * math.ceil(math.log2(len(headers) + 1))
        older = [
            min((h.slot for h in headers if h.kind is Kind.DATA and is_older(h, now, age * 1000)), default=1 << 64)
            for age in seconds
        ]
        for low, high, limit, band in zip([0, *older], [*older, 1 << 65], [*seconds, None], found.bands, strict=True):
            within = [row.size for row, header in zip(rows, headers, strict=True) if low <= header.slot < high]
            assert band == AgeBand(limit, len(within), sum(within))
        part = await bytes_by_age(store, log.claim, log.head, now=now, seconds=seconds, objects_max=3)
        assert part.is_whole == (len(rows) < 3)
        assert sum(band.objects for band in part.bands) == min(3, len(rows))

    asyncio.run(scenario())
