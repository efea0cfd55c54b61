"""The real files of stores that live in a log, on a disk without another page: what they hold, and what rests on it."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.definitions import define

from holdfast.commit.stages.events import WhenDurable
from holdfast.errors import Code, HoldfastError, Unavailable
from holdfast.objects.memory import MemoryObjects, MemoryStore
from holdfast.queue.log.writer import PageSupply
from holdfast.server.stores import in_log
from holdfast.server.stores.in_log import CheckpointSchedule
from holdfast.settings import load_configuration
from holdfast.stores import checkpoints, log_commit
from holdfast.stores.checkpoint_objects import list_versions, make_checkpoint
from holdfast.stores.clock import StoreClock
from holdfast.stores.followed import FollowedStores
from holdfast.stores.service import StoreService
from holdfast.stores.storage.frames import RECORD, version_of
from holdfast.stores.storage.storage import Storage
from holdfast.stores.values.commands import (
    Acknowledge,
    Attach,
    CommitParts,
    Deliver,
    Delivered,
    MapChange,
    Publish,
)
from holdfast.wire.parts import Message

PAGE_BYTES, MEMORY_BYTES = 65_536, 8 << 20
BODY = bytes(20_000)
DEFINITION = {
    "cluster": {"max_disk_fraction": 0},
    "stores": {"s": {"durables": {"work": {"type": "shared"}, "m": {"type": "map"}}}},
}


class Disk:
    """Whether it takes another page."""

    def __init__(self) -> None:
        self.pages_left = 1_000
        self.asked = 0


@pytest.fixture(name="disk")
def _disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk, create = Disk(), PageSupply._create

    def refusing(self: PageSupply, page_bytes: int) -> object:
        disk.asked += 1
        if not disk.pages_left:
            raise OSError(errno.ENOSPC, "no space left on device")
        disk.pages_left -= 1
        return create(self, page_bytes)

    monkeypatch.setattr(PageSupply, "_create", refusing)
    monkeypatch.setattr(PageSupply, "prepare", lambda *_: None)  # a page is made when it is needed
    monkeypatch.setattr(log_commit, "AGAIN_SECONDS", 0.005)
    monkeypatch.setattr(checkpoints, "RETRY_S", 0.01)
    return disk


class Log:
    """A journal whose entries are durable in the next turn of the loop, or when the test says so."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, list[bytes]]] = []
        self.held: list[Callable[[], object]] | None = None

    def record(self, records: list[tuple[str, bytes]], when_durable: WhenDurable) -> None:
        version = 1_000 + len(self.entries)
        self.entries.append((version, [record for _, record in records]))
        if self.held is None:
            asyncio.get_running_loop().call_soon(when_durable, version)
        else:
            self.held.append(lambda: when_durable(version))

    def confirm(self) -> None:
        held, self.held = self.held or [], None
        for confirm in held:
            confirm()


class Site:
    """A log and a service of its stores."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = Log()

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[StoreService]:
        stores = self.opened("cache")
        service = stores.lead(self.log, StoreClock())
        try:
            if not service.state.revision:
                await service.submit(define(json.dumps(DEFINITION).encode()))
                await service.submit(Attach(0, "s", "work", "me"))
            yield service
        finally:
            await asyncio.wait_for(service.close(), 10)

    def opened(self, name: str) -> FollowedStores:
        return FollowedStores.open(str(self.directory / name), page_bytes=PAGE_BYTES, memory_bytes=MEMORY_BYTES)

    def state(self, name: str) -> bytes:
        """The state of the copy ``name`` after it has followed the log."""
        stores = self.opened(name)
        try:
            stores.follow(self.log.entries)
            stores.state.check()
            assert stores.version == self.log.entries[-1][0]
            return stores.state.snapshot()
        finally:
            stores.close()

    def require_equal(self) -> None:
        """What the files had, and the rest of the log, is what the log alone makes."""
        assert self.state("cache") == self.state("made-of-the-log")


def run(directory: Path, work: Callable[[Site], Awaitable[None]]) -> None:
    async def main() -> None:
        site = Site(directory)
        await work(site)
        site.require_equal()

    asyncio.run(main())


async def publish(service: StoreService, count: int = 1) -> None:
    for _ in range(count):
        await service.submit(Publish(0, "s", "", [Message(BODY)]))


async def fill(service: StoreService, disk: Disk) -> int:
    """Publish until it is refused; returns how many were confirmed."""
    disk.pages_left = 0
    for count in range(20):
        try:
            await publish(service)
        except Unavailable as refused:
            assert refused.code is Code.DISK_LIMIT  # noqa: PT017
            return count
    raise AssertionError("the disk is never full")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # no event tells of it
            await asyncio.sleep(0.001)


def frames(storage: Storage) -> list[tuple[int | None, int]]:
    return [(version_of(data), len(data)) for _, data in storage.log.frames(1)]


@pytest.mark.parametrize("pages", [1, 2, 3])
def test_what_a_full_disk_took_of_an_entry_is_not_appended_again(tmp_path: Path, disk: Disk, pages: int) -> None:
    """The queue goes on after a refusal, as its reference says; each frame is there once, in order."""
    storage = FollowedStores.open(str(tmp_path / "cache"), page_bytes=PAGE_BYTES)
    disk.pages_left = pages
    entry = [RECORD + bytes([65 + number]) * (100_000 + number) for number in range(12)]
    count = storage.append(entry, 7)
    assert 0 < count < len(entry)
    assert (storage.log.last, storage.version) == (count, 7)
    assert storage.append(entry[count:], 7) == 0
    disk.pages_left = 1
    more = storage.append(entry[count:], 7)
    assert 0 < more < len(entry) - count
    disk.pages_left = 1_000
    assert storage.append(entry[count + more :], 7) == len(entry) - count - more
    assert storage.append([RECORD + b"next"], 8) == 1
    found = [data for _, data in storage.log.frames(1)]
    assert [version_of(data) for data in found] == [7] * 12 + [8]
    assert [data[-1:] for data in found] == [frame[-1:] for frame in entry] + [b"t"]
    assert [len(data) for data in found[:-1]] == [len(frame) + 8 for frame in entry]
    assert (storage.version, storage._of_version) == (8, 1)
    storage.log.close()
    storage.index.close()


def test_a_disk_that_fails_otherwise_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_self: PageSupply, _page_bytes: int) -> object:
        raise OSError(errno.EIO, "input/output error")

    storage = FollowedStores.open(str(tmp_path / "cache"), page_bytes=PAGE_BYTES)
    monkeypatch.setattr(PageSupply, "_create", broken)
    with pytest.raises(Unavailable) as refused:
        storage.append([RECORD + bytes(70_000)], 7)
    assert refused.value.code is Code.STORE_UNAVAILABLE
    storage.close()


def test_what_grows_is_refused_and_all_the_rest_goes_on(tmp_path: Path, disk: Disk) -> None:
    async def work(site: Site) -> None:
        async with site.serving() as service:
            await publish(service)
            delivered = await service.submit(Deliver(0, "s", "work", "me", 1))
            count = 1 + await fill(service, disk)
            change = MapChange(0, "s", "m", [("k", b"v", None)], None)
            for growing in (Publish(0, "s", "", [Message(b"small")]), change):
                with pytest.raises(Unavailable) as refused:
                    await service.submit(growing)
                assert (refused.value.code, refused.value.retry_after_ms) == (Code.DISK_LIMIT, 1_000)
            service.flush()
            refusal = service.carry_out_parts(CommitParts(0, [Publish(0, "s", "", [Message(b"small")])]))
            assert refusal[0] == 0
            assert isinstance(refusal[1], Unavailable) and refusal[1].code is Code.DISK_LIMIT
            assert isinstance(delivered, Delivered) and delivered.runs == [(1, 1, 1)]
            await service.submit(Acknowledge(0, "s", "work", "me", [(1, 1)]))
            more = await service.submit(Deliver(0, "s", "work", "me", 100))
            assert isinstance(more, Delivered)
            found = [one.seq for one in service.messages("s", more.runs)]
            assert found == list(range(2, count + 1)), "kept back messages are delivered"
            await service.wait_until_safe()
            before = disk.asked
            await until(lambda: disk.asked > before + 2)  # it tries again and again
            assert service.disk_is_full and service.kept_back_bytes > len(BODY)
            disk.pages_left = 1_000
            await until(lambda: not service.disk_is_full)
            await publish(service)
            assert (service.failure, service.kept_back_bytes) == (None, 0)

    run(tmp_path, work)


def test_no_checkpoint_begins_while_the_files_lack_frames(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(site: Site) -> None:
        store = MemoryStore(MemoryObjects())
        async with site.serving() as service:
            await fill(service, disk)
            monkeypatch.setattr(checkpoints, "INTERVAL_S", 0.001)
            monkeypatch.setattr(checkpoints, "LOG_BYTES", 1)
            begun: list[object] = []
            begin = service._checkpoints._begin
            monkeypatch.setattr(service._checkpoints, "_begin", lambda: begun.append(begin()))
            await service.submit(Deliver(0, "s", "work", "me", 100))
            service._checkpoints._begin_if_idle()
            for refused in (
                service.checkpoint(),
                service.compaction.now(),
                service.copy_files(str(tmp_path / "copy")),
                make_checkpoint(service, store, "ab" * 16),
            ):
                with pytest.raises(Unavailable) as error:
                    await asyncio.wait_for(refused, 5)
                assert error.value.code is Code.DISK_FULL
            assert (begun, await list_versions(store)) == ([], [])
            disk.pages_left = 1_000
            await until(lambda: bool(begun))  # without another command
            made = await make_checkpoint(service, store, "ab" * 16)
            assert made.version == site.log.entries[-1][0]
            assert await list_versions(store) == [made.version]

    run(tmp_path, work)


async def begin_and_fill(site: Site, service: StoreService, disk: Disk) -> tuple[asyncio.Future[None], int, int]:
    """Begin a checkpoint of an entry that a full disk then takes in part, and another entry after it.

    Returns the checkpoint, and the frame and the version that it has to have.
    """
    await publish(service)
    site.log.held = []
    disk.pages_left = 1
    waiting = [service.submit(Publish(0, "s", "", [Message(BODY)])) for _ in range(40)]
    checkpoint = asyncio.ensure_future(service.checkpoint())
    await asyncio.sleep(0)
    assert service._checkpoints._running is not None
    frame, version = service._storage.messages.next_frame - 1, site.log.entries[-1][0]
    waiting.append(service.submit(Deliver(0, "s", "work", "me", 100)))
    await asyncio.sleep(0)
    site.log.confirm()
    await asyncio.gather(*waiting)
    assert service.disk_is_full
    assert service._storage.version == version, "a part of the entry is in the files"
    assert service._storage.log.last < frame
    return checkpoint, frame, version


def test_a_checkpoint_that_has_begun_waits_for_its_frames_and_has_its_own_version(tmp_path: Path, disk: Disk) -> None:
    async def work(site: Site) -> None:
        async with site.serving() as service:
            checkpoint, frame, version = await begin_and_fill(site, service, disk)
            with pytest.raises(Unavailable) as refused:  # who asked for it hears why; it goes on
                await asyncio.wait_for(checkpoint, 5)
            assert refused.value.code is Code.DISK_FULL
            before, count = disk.asked, service._checkpoints.count
            await until(lambda: disk.asked > before + 4)
            assert service._checkpoints.count == count, "it is not written before its frames are there"
            disk.pages_left = 1_000
            await until(lambda: service._checkpoints.count == count + 1)
            loaded = service._storage.index.load()
            assert loaded is not None
            assert (loaded.frame, loaded.version) == (frame, version)
            service._checkpoints._closed = True  # no last one: the next start rests on this one

    run(tmp_path, work)


def test_a_checkpoint_that_has_begun_does_not_hold_up_a_stop(tmp_path: Path, disk: Disk) -> None:
    async def work(site: Site) -> None:
        async with site.serving() as service:
            checkpoint, _, _ = await begin_and_fill(site, service, disk)
            compacting = asyncio.ensure_future(service.compaction.now())
            await asyncio.sleep(0)
        for waiting in (checkpoint, compacting):
            with pytest.raises(HoldfastError):
                await waiting
        disk.pages_left = 1_000

    run(tmp_path, work)


def test_a_stop_on_a_full_disk_leaves_files_that_the_next_start_continues(tmp_path: Path, disk: Disk) -> None:
    async def work(site: Site) -> None:
        async with site.serving() as service:
            await fill(service, disk)
            await service.submit(Deliver(0, "s", "work", "me", 100))
        disk.pages_left = 1_000
        stores = site.opened("cache")
        assert stores.version < site.log.entries[-1][0], "the files lack what was kept back"
        stores.close()

    run(tmp_path, work)


def test_compaction_ends_when_the_disk_is_full(tmp_path: Path, disk: Disk) -> None:
    """It moves messages to the end of the log, and would fill memory instead."""

    async def work(site: Site) -> None:
        async with site.serving() as service:
            service.compaction.automatic = False
            await asyncio.gather(*(publish(service) for _ in range(200)))
            disk.pages_left = 1
            most = 0

            async def watch() -> None:
                nonlocal most
                while True:
                    most = max(most, service.kept_back_bytes)
                    await asyncio.sleep(0)

            watching = asyncio.ensure_future(watch())
            with pytest.raises(Unavailable) as refused:
                await asyncio.wait_for(service.compaction.now(), 5)
            watching.cancel()
            assert refused.value.code is Code.DISK_FULL
            assert 0 < most < 2_500_000, "of 4 MB"
            disk.pages_left = 1_000
            await until(lambda: not service.disk_is_full)
            await service.compaction.now()

    run(tmp_path, work)


def test_a_checkpoint_that_found_no_room_is_made_later_also_if_nothing_changes(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_log, "LOOK_SECONDS", 0.005)
    monkeypatch.setattr(in_log, "AGAIN_SECONDS", 0.005)

    class Leader:
        def __init__(self) -> None:
            self.store = MemoryStore(MemoryObjects())
            self.log_id = "ab" * 16
            self.ended = asyncio.get_running_loop().create_future()

    async def work(site: Site) -> None:
        async with site.serving() as service:
            flags = {"log.url": "memory:", "stores.checkpoint_bytes": "1 MiB", "stores.checkpoint_seconds": "0.001"}
            settings = load_configuration(flags=flags).settings.stores
            leader = Leader()
            schedule = CheckpointSchedule(service, leader, settings, wanted=bool)  # type: ignore[arg-type]
            await publish(service)
            running = asyncio.ensure_future(schedule.run())
            await until(lambda: schedule.count == 1)
            await fill(service, disk)
            tried = 0
            make = service.copy_files

            async def copy_files(target: str) -> object:
                nonlocal tried
                tried += 1
                return await make(target)

            monkeypatch.setattr(service, "copy_files", copy_files)
            await until(lambda: tried > 2)
            assert schedule.count == 1
            disk.pages_left = 1_000
            await until(lambda: schedule.count == 2)
            running.cancel()
            assert (await list_versions(leader.store))[-1] == site.log.entries[-1][0]

    run(tmp_path, work)
