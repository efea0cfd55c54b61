"""Files of the stores and the log are their owner's alone, whatever the process's umask lets others do."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from pathlib import Path

import pytest

from holdfast.objects.open import open_store
from holdfast.stores.commands import Define, Publish
from holdfast.stores.messages import Message
from holdfast.stores.service import StoreService


@pytest.fixture(autouse=True)
def open_umask() -> object:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(directory: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.rglob("*") if path.is_file()}


def test_files_of_the_stores_are_their_owners_alone(tmp_path: Path) -> None:
    async def scenario() -> dict[str, int]:
        service = await StoreService.open(str(tmp_path / "stores"))
        document = {"stores": {"s": {"durables": {"a": {"type": "shared"}}}}}
        await service.submit(Define(0, json.dumps(document).encode(), 1))
        await service.submit(Publish(0, "s", "", [Message(b"x")]))
        await service.checkpoint()
        await service.backup(str(tmp_path / "backup"))
        found = modes(tmp_path)
        await service.close()
        return found

    found = asyncio.run(scenario())
    assert {"index.sqlite", "backup.json"} <= set(found)
    assert set(found.values()) == {0o600}, found


def test_objects_of_the_log_are_their_owners_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = open_store((tmp_path / "log").as_uri(), create_missing=True)
        await store.create("a/b", b"x")
        await store.close()

    asyncio.run(scenario())
    found = modes(tmp_path)
    assert found and set(found.values()) == {0o600}, found
