"""A store that hangs answers all the same, and what it came to is counted where the connections are."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.errors import NotFound, Unavailable
from holdfast.objects.budget import BudgetedStore, TimeLimited
from holdfast.objects.memory import MemoryStore
from holdfast.objects.port import CREATED, CreateAnswer, Listed, Refused, Unknown


class BlackHole(MemoryStore):
    """Takes every request and never answers, until it is healed."""

    def __init__(self) -> None:
        super().__init__()
        self.healed = asyncio.Event()
        self.asked = 0

    async def _answering(self) -> None:
        self.asked += 1
        await self.healed.wait()

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        await self._answering()
        return await super().create(key, data)

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        await self._answering()
        return await super().read(key, start=start, length=length)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[Listed]:
        await self._answering()
        return await super().list(prefix, after=after, limit=limit)

    async def delete(self, *keys: str) -> None:
        await self._answering()
        await super().delete(*keys)


def test_every_request_to_a_black_hole_ends_as_the_port_says() -> None:
    async def scenario() -> None:
        store = TimeLimited(BlackHole(), 1)
        assert isinstance(await store.create("a", b""), Unknown)
        for request in (store.read("a"), store.list(""), store.list("", limit=2000), store.delete("a")):
            with pytest.raises(Unavailable, match="in time"):
                await request

    asyncio.run(scenario())


def test_what_is_answered_in_time_is_passed_on() -> None:
    async def scenario() -> None:
        store = TimeLimited(MemoryStore(), 60_000)
        assert await store.create("a", b"bytes") == CREATED
        assert isinstance(await store.create("a", b"bytes"), Refused)
        assert await store.read("a", start=1, length=2) == b"yt"
        assert await store.list("") == [Listed("a", 5)]
        await store.delete("a")
        with pytest.raises(NotFound):
            await store.read("a")

    asyncio.run(scenario())


def test_the_time_of_a_request_begins_when_it_holds_its_connection() -> None:
    """Who waits for a connection has not been failed by the store."""

    async def scenario() -> None:
        hole = BlackHole()
        store = BudgetedStore(TimeLimited(hole, 60_000), connections_max=2, creates_max=1)
        creates = [asyncio.ensure_future(store.create(key, b"")) for key in "abc"]
        while store.metrics.create.waiting < 2:  # noqa: ASYNC110 - the condition is the code under test
            await asyncio.sleep(0)
        assert hole.asked == 1
        hole.healed.set()
        assert await asyncio.gather(*creates) == [CREATED] * 3

    asyncio.run(scenario())


def test_a_black_hole_is_counted_told_and_unhealthy() -> None:
    told: list[tuple[str, str]] = []

    async def scenario() -> None:
        store = BudgetedStore(
            TimeLimited(BlackHole(), 1),
            connections_max=4,
            creates_max=2,
            own_max=1,
            not_created=lambda key, detail: told.append((key, detail)),
        )
        assert isinstance(await store.create("a", b""), Unknown)
        with pytest.raises(Unavailable):
            await store.own.list("")
        with pytest.raises(Unavailable):
            await store.own.read("a")
        metrics = store.metrics
        assert metrics.create.outcomes == {"unknown": 1}
        assert metrics.list.outcomes == metrics.read.outcomes == {"unavailable": 1}
        assert metrics.consecutive_failures == 3
        assert not metrics.is_healthy
        assert told == [("a", "no answer in time")]

    asyncio.run(scenario())
