"""Checkpoints of stores in the log's object store: what is made is what is begun with, and what is damaged is not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.definitions import define

from holdfast.commit.reading.lineage import Lineage
from holdfast.commit.stages.events import WhenDurable
from holdfast.errors import CorruptData, Unavailable
from holdfast.objects.memory import MemoryObjects, MemoryStore
from holdfast.stores import checkpoint_objects
from holdfast.stores.checkpoint_objects import (
    FILES_PREFIX,
    KeptCheckpoints,
    decode_manifest,
    fetch_newest,
    list_versions,
    make_checkpoint,
    manifest_key,
)
from holdfast.stores.clock import StoreClock
from holdfast.stores.followed import FollowedStores
from holdfast.stores.service import StoreService
from holdfast.stores.values.commands import Publish
from holdfast.wire.parts import Message

LOG_ID = "ab" * 16
PAGE_BYTES, MEMORY_BYTES = 65_536, 8 << 20


class Log:
    """A journal whose entries are durable in the next turn of the loop."""

    def __init__(self, version: int = 1_000) -> None:
        self.version = version

    def record(self, records: list[tuple[str, bytes]], when_durable: WhenDurable) -> None:
        del records
        self.version += 1
        asyncio.get_running_loop().call_soon(when_durable, self.version)


class Site:
    """One machine's stores, and the object store of the log."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.objects = MemoryObjects()
        self.store = MemoryStore(self.objects)

    @asynccontextmanager
    async def serving(self, name: str) -> AsyncGenerator[StoreService]:
        stores = FollowedStores.open(str(self.directory / name), page_bytes=PAGE_BYTES, memory_bytes=MEMORY_BYTES)
        service = stores.lead(Log(max(1_000, stores.version)), StoreClock())
        try:
            yield service
        finally:
            await service.close()

    def files(self) -> set[str]:
        return {each.key for each in self.objects.list(FILES_PREFIX)}

    async def fetch(self, name: str, through: int = 1 << 40) -> int | None:
        made = await fetch_newest(self.store, Lineage(LOG_ID), through, str(self.directory / name))
        return None if made is None else made.version


async def publish(service: StoreService, *bodies: str) -> None:
    if not service.state.revision:
        document = {"stores": {"s": {"durables": {"all": {"type": "shared"}}}}}
        await service.submit(define(json.dumps(document).encode()))
    await service.submit(Publish(0, "s", "", [Message(body.encode()) for body in bodies]))


def bodies(service: StoreService) -> list[bytes]:
    last = service.state.stores["s"].counts.next_seq - 1
    return [one.body for one in service.messages("s", [(1, last, 1)])]


def run(directory: Path, work: Callable[[Site], Awaitable[None]]) -> None:
    async def main() -> None:
        await work(Site(directory))

    asyncio.run(main())


def test_a_machine_without_files_begins_with_the_newest(tmp_path: Path) -> None:
    async def work(site: Site) -> None:
        async with site.serving("leader") as service:
            await publish(service, "a", "b")
            first = await make_checkpoint(service, site.store, LOG_ID)
            await publish(service, "c")
            second = await make_checkpoint(service, site.store, LOG_ID)
        assert first.version < second.version
        assert await site.fetch("other") == second.version
        async with site.serving("other") as service:
            assert bodies(service) == [b"a", b"b", b"c"]
        assert await site.fetch("older", first.version) == first.version
        async with site.serving("older") as service:
            assert bodies(service)[:2] == [b"a", b"b"]

    run(tmp_path, work)


def test_what_did_not_change_is_not_sent_again(tmp_path: Path) -> None:
    async def work(site: Site) -> None:
        async with site.serving("leader") as service:
            for number in range(40):
                await publish(service, *("x" * 4_000 + str(number) for _ in range(4)))
            first = await make_checkpoint(service, site.store, LOG_ID)
            await publish(service, "last")
            second = await make_checkpoint(service, site.store, LOG_ID)
        shared = {file.sha256 for file in first.files} & {file.sha256 for file in second.files}
        assert len(shared) >= 5

    run(tmp_path, work)


def test_an_interrupted_fetch_keeps_the_whole_files_that_it_has(tmp_path: Path) -> None:
    async def work(site: Site) -> None:
        async with site.serving("leader") as service:
            for number in range(20):
                await publish(service, *("x" * 4_000 + str(number) for _ in range(4)))
            made = await make_checkpoint(service, site.store, LOG_ID)
        read: list[str] = []
        plain = site.store.read

        async def interrupted(key: str, *, start: int = 0, length: int | None = None) -> bytes:
            read.append(key)
            if key == made.files[-1].key and read.count(key) == 1:
                raise Unavailable("the store is away")
            return await plain(key, start=start, length=length)

        site.store.read = interrupted  # type: ignore[method-assign]
        with pytest.raises(Unavailable):
            await site.fetch("other")
        # A file that was torn by a crash, and one of another checkpoint.
        unfinished = tmp_path / f"other{checkpoint_objects.UNFINISHED}"
        (unfinished / made.files[0].name).write_bytes(b"torn")
        (unfinished / "of-another").write_bytes(b"")
        assert await site.fetch("other") == made.version
        files = [key for key in read if key.startswith(FILES_PREFIX)]
        assert len(files) == len(made.files) + 2
        assert sorted(path.name for path in (tmp_path / "other").iterdir()) == sorted(file.name for file in made.files)
        async with site.serving("other") as service:
            assert len(bodies(service)) == 80

    run(tmp_path, work)


@pytest.mark.parametrize("how", ["content", "missing", "manifest"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, how: str) -> None:
    async def work(site: Site) -> None:
        async with site.serving("leader") as service:
            await publish(service, "a")
            first = await make_checkpoint(service, site.store, LOG_ID)
            await publish(service, "b")
            second = await make_checkpoint(service, site.store, LOG_ID)
        mine = {file.key for file in second.files} - {file.key for file in first.files}
        key = manifest_key(second.version) if how == "manifest" else min(mine)
        data = site.objects.read(key)
        site.objects.delete(key)
        if how != "missing":
            site.objects.create(key, data[:-1] + b"!")
        assert await site.fetch("other") == first.version

    run(tmp_path, work)


def test_checkpoints_of_another_log_do_not_count(tmp_path: Path) -> None:
    async def work(site: Site) -> None:
        async with site.serving("leader") as service:
            await publish(service, "a")
            await make_checkpoint(service, site.store, "cd" * 16)
        assert await site.fetch("other") is None
        kept = KeptCheckpoints(site.store, Lineage(LOG_ID), keep=2, stray_ms=0)
        assert await kept.oldest(0.0) is None

    run(tmp_path, work)


def test_the_newest_two_stay_with_their_files_and_others_go(tmp_path: Path) -> None:
    async def work(site: Site) -> None:
        made = []
        async with site.serving("leader") as service:
            for number in range(4):
                await publish(service, str(number))
                made.append(await make_checkpoint(service, site.store, LOG_ID))
        kept = KeptCheckpoints(site.store, Lineage(LOG_ID), keep=2, stray_ms=1_000.0)
        assert await kept.oldest(0.0) == made[2].version
        assert await list_versions(site.store) == [made[2].version, made[3].version]
        named = {file.key for manifest in made[2:] for file in manifest.files}
        assert site.files() > named
        # What no manifest names goes after its time, and nothing else.
        await kept.oldest(999.0)
        assert site.files() > named
        await kept.oldest(1_000.0)
        assert site.files() == named
        assert await site.fetch("other") == made[3].version

    run(tmp_path, work)


def test_a_damaged_checkpoint_keeps_the_log_that_an_older_one_needs(tmp_path: Path) -> None:
    async def work(site: Site) -> None:
        made = []
        async with site.serving("leader") as service:
            for number in range(3):
                await publish(service, str(number))
                made.append(await make_checkpoint(service, site.store, LOG_ID))
        mine = {file.key for file in made[2].files} - {file.key for file in made[1].files}
        site.objects.delete(min(mine))
        kept = KeptCheckpoints(site.store, Lineage(LOG_ID), keep=2, stray_ms=0.0)
        assert await kept.oldest(0.0) == made[0].version

    run(tmp_path, work)


def test_a_fetch_that_was_killed_is_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(site: Site) -> None:
        async with site.serving("leader") as service:
            await publish(service, "a")
            await make_checkpoint(service, site.store, LOG_ID)

        class KilledError(Exception):
            pass

        def killed(*_: object) -> None:
            raise KilledError

        with monkeypatch.context() as patch:
            patch.setattr(checkpoint_objects.os, "rename", killed)
            with pytest.raises(KilledError):
                await site.fetch("other")
        assert not (tmp_path / "other").exists()
        assert await site.fetch("other") is not None
        async with site.serving("other") as service:
            assert bodies(service) == [b"a"]

    run(tmp_path, work)


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b'{"format": 9, "log_id": "", "version": 7, "files": []}',
        b'{"format": 1, "log_id": "", "version": 8, "files": []}',
        b'{"format": 1, "log_id": "", "version": 7, "files": []}',
        (
            b'{"format": 1, "log_id": "", "version": 7, "files": [{"name": "../x", "size": 1, "sha256": ""},'
            b' {"name": "index.sqlite", "size": 1, "sha256": ""}]}'
        ),
    ],
)
def test_a_manifest_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptData, match="manifest of a checkpoint"):
        decode_manifest(data, 7)
