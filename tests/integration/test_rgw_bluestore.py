"""The store of the large kill rounds survives what they do to it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.rgw import Gateway
from tests.s3_lane import require_gateway

from holdfast.objects.open import open_store
from holdfast.objects.port import Created


@pytest.mark.matrix
def test_bluestore_keeps_what_it_acknowledged_over_a_kill_of_all_daemons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_gateway()

    async def fill(url: str) -> list[str]:
        store = open_store(url)
        names = [f"a/{number:04d}" for number in range(200)]
        answers = await asyncio.gather(*(store.create(name, name.encode()) for name in names))
        await store.close()
        return [name for name, answer in zip(names, answers, strict=True) if isinstance(answer, Created)]

    async def check(url: str, names: list[str]) -> None:
        store = open_store(url)
        assert [await store.read(name) for name in names] == [name.encode() for name in names]
        await store.close()

    with Gateway(tmp_path / "gateway", backing="bluestore") as gateway:
        for name, value in gateway.environment().items():
            monkeypatch.setenv(name, value)
        gateway.create_bucket("kept")
        acknowledged = asyncio.run(fill(gateway.url("kept")))
        gateway.kill()
        gateway.restart()
        assert len(acknowledged) == 200
        asyncio.run(check(gateway.url("kept"), acknowledged))
