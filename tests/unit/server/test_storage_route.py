"""A look at the store that takes longer than a request waits is not lost."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.commit.format.batch import StoresMode
from holdfast.errors import CorruptData, Unavailable
from holdfast.retention.ages import AgeBand, Ages
from holdfast.server.commit import storage_route
from holdfast.server.commit.storage_route import StoredLog

CALL = cast(Any, None)


class Slow:
    """A count that ends when it is let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts = 0
        self.may_end = asyncio.Event()
        self.error: Exception | None = None
        self.service = SimpleNamespace(
            leader_id="a",
            store=None,
            claim=SimpleNamespace(stores_mode=StoresMode.DISK),
            durable_header=lambda: None,
            moment=lambda: None,
        )
        gateway = SimpleNamespace(leading=lambda: self.service)
        self.route = StoredLog(cast(Any, gateway))
        monkeypatch.setattr(storage_route, "bytes_by_age", self.count)
        monkeypatch.setattr("holdfast.snapshots.reading.list_versions", self.versions)
        monkeypatch.setattr(storage_route, "WAIT_SECONDS", 0.02)

    async def versions(self, store: object) -> list[int]:
        del store
        return []

    async def count(self, *arguments: Any, **options: Any) -> Ages:
        del arguments, options
        self.counts += 1
        await self.may_end.wait()
        if self.error is not None:
            raise self.error
        return Ages((AgeBand(None, 7, 70),), True)

    async def is_too_slow(self) -> None:
        with pytest.raises(Unavailable, match="still being counted"):
            await self.route.answer(CALL)

    async def ends(self) -> None:
        looking = self.route._looking
        assert looking is not None
        self.may_end.set()
        await asyncio.wait({looking})

    async def answer(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(cast(Any, await self.route.answer(CALL)).body)
        return answer


def test_a_count_goes_on_after_the_request_and_the_next_one_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        slow = Slow(monkeypatch)
        await asyncio.gather(slow.is_too_slow(), slow.is_too_slow())
        await slow.is_too_slow()
        await slow.ends()
        assert (await slow.answer())["ages"][0]["objects"] == 7
        assert (await slow.answer())["ages"][0]["bytes"] == 70
        assert slow.counts == 1

    asyncio.run(main())


def test_an_error_that_no_request_waited_for_is_raised_to_the_next_one_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        slow = Slow(monkeypatch)
        await slow.is_too_slow()
        slow.error = CorruptData("an object is damaged")
        await slow.ends()
        with pytest.raises(CorruptData, match="damaged"):
            await slow.route.answer(CALL)
        slow.error = None
        assert (await slow.answer())["ages"][0]["objects"] == 7
        assert slow.counts == 2

    asyncio.run(main())


def test_another_leadership_counts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        slow = Slow(monkeypatch)
        await slow.is_too_slow()
        before = slow.route._looking
        slow.service.leader_id = "b"
        await slow.is_too_slow()
        await slow.ends()
        assert before is not None
        assert before.cancelled()
        assert (await slow.answer())["ages"][0]["objects"] == 7
        assert slow.counts == 2

    asyncio.run(main())
