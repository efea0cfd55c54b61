"""What a start and ``verify`` say of stores that are damaged, or not whole, and that neither passes anything over."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from tests.definitions import define
from tests.matrix import matrix

from holdfast.errors import AlreadyOpen, Code, CorruptData, HoldfastError, NotFound, Unavailable
from holdfast.stores.repair.backup import restore, verify
from holdfast.stores.service import StoreService
from holdfast.stores.storage.log import MessageLog
from holdfast.stores.storage.storage import Storage
from holdfast.stores.values.commands import Attach, Deliver, Delivered, Publish
from holdfast.wire.parts import Message

PAGE_BYTES = 65_536
DEFINITION = json.dumps({"stores": {"s": {"durables": {"d": {"type": "shared"}}}}}).encode()
QUEUE_WORDS = ("damage='skip'", "queue again", "append again", "no such queue")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as a power cut leaves it: an early checkpoint, and the log of three pages behind it."""
    live = tmp_path_factory.mktemp("stores") / "live"

    async def main() -> None:
        service = await StoreService.open(str(live), page_bytes=PAGE_BYTES)
        await service.submit(define(DEFINITION))
        await service.checkpoint()
        for _ in range(15):
            await service.submit(Publish(0, "s", "", [Message(bytes(1_000)) for _ in range(10)]))
        shutil.copytree(live, live.parent / "cut")
        await service.close()

    asyncio.run(main())
    return live.parent / "cut"


@pytest.fixture
def broken(stores: Path, tmp_path: Path) -> Path:
    shutil.copytree(stores, tmp_path / "stores")
    return tmp_path / "stores"


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x55
    path.write_bytes(data)


def pages(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.page"))


def says_what_to_do(error: HoldfastError, directory: Path) -> None:
    said = f"{error} {error.hint}"
    assert str(directory) in said
    assert "holdfast stores restore" in said
    assert not any(words in said for words in QUEUE_WORDS), said


@pytest.mark.parametrize("page", matrix([0, 1, -1]))
@pytest.mark.parametrize(("at", "count"), [(0, 8192), (20_000, 1)])
def test_damage_anywhere_in_the_log_keeps_a_service_from_starting_and_says_what_to_do(
    broken: Path, page: int, at: int, count: int
) -> None:
    """Also where the header of the last page is damaged, after which nothing can be read that would tell of it."""
    assert len(pages(broken)) >= 3
    for offset in range(at, at + count):
        flip(pages(broken)[page], offset)
    with pytest.raises(CorruptData) as verified:
        verify(str(broken))
    says_what_to_do(verified.value, broken)
    with pytest.raises(CorruptData) as opened:
        Storage.open(str(broken), page_bytes=PAGE_BYTES)
    says_what_to_do(opened.value, broken)


@pytest.mark.parametrize("page", [0, 1, -1])
def test_one_damaged_byte_of_a_page_header_loses_nothing_and_is_written_again(broken: Path, page: int) -> None:
    before, whole = verify(str(broken)), pages(broken)[page].read_bytes()
    flip(pages(broken)[page], 8)
    assert verify(str(broken)).messages == before.messages
    Storage.open(str(broken), page_bytes=PAGE_BYTES).close()
    assert pages(broken)[page].read_bytes()[:64] == whole[:64]


def test_stores_without_their_index_are_verified_by_the_log_alone(broken: Path) -> None:
    before = verify(str(broken))
    assert before.index
    for name in broken.glob("index.sqlite*"):
        name.unlink()
    files = sorted(os.listdir(broken))
    found = verify(str(broken))
    assert not found.index
    assert (found.stores, found.frames, found.messages, found.bytes) == (
        before.stores,
        before.frames,
        before.messages,
        before.bytes,
    )
    assert sorted(os.listdir(broken)) == files, "verify changes nothing"
    flip(pages(broken)[1], 20_000)
    with pytest.raises(CorruptData):
        verify(str(broken))


def test_a_log_that_no_longer_begins_with_its_first_frame_needs_an_index_and_that_is_said(broken: Path) -> None:
    log = MessageLog(str(broken), page_bytes=PAGE_BYTES)
    assert log.trim(log.last) > 0
    log.close()
    for name in broken.glob("index.sqlite*"):
        name.unlink()
    with pytest.raises(CorruptData, match="index of the stores is missing") as verified:
        verify(str(broken))
    says_what_to_do(verified.value, broken)


def test_a_directory_without_stores_and_an_index_without_a_log_are_told_apart(broken: Path, tmp_path: Path) -> None:
    for name in broken.glob("messages*"):
        name.unlink()
    with pytest.raises(CorruptData, match="log of the stores is missing") as lost:
        verify(str(broken))
    says_what_to_do(lost.value, broken)
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match="no stores here") as none:
        verify(str(tmp_path / "empty"))
    assert "messages-*.page" in str(none.value)


def test_stores_are_no_backup_and_that_is_said(broken: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="the backup of stores is incomplete") as refused:
        restore(str(broken), str(tmp_path / "new"))
    assert "this looks like stores, not like a backup" in refused.value.hint


def test_an_index_of_which_nothing_was_written_is_told_as_such(broken: Path) -> None:
    for name in broken.glob("index.sqlite*"):
        name.unlink()
    (broken / "index.sqlite").write_bytes(b"")
    with pytest.raises(CorruptData, match="index of the stores") as refused:
        verify(str(broken))
    assert "later version" not in str(refused.value)


def test_stores_that_are_open_elsewhere_are_named_with_who_has_them(broken: Path) -> None:
    log = MessageLog(str(broken), page_bytes=PAGE_BYTES)
    try:
        with pytest.raises(AlreadyOpen) as refused:
            MessageLog(str(broken), page_bytes=PAGE_BYTES)
    finally:
        log.close()
    assert (refused.value.fields["directory"], refused.value.fields["pid"]) == (str(broken), str(os.getpid()))


@pytest.mark.parametrize("frames", [1, 2])
def test_a_log_that_cannot_be_written_says_what_a_service_can_do(
    broken: Path, monkeypatch: pytest.MonkeyPatch, frames: int
) -> None:
    log = MessageLog(str(broken), page_bytes=PAGE_BYTES)

    def full(_: object) -> None:
        raise Unavailable("the disk is full", code=Code.DISK_FULL, hint="free some space and append again")

    with monkeypatch.context() as patched:
        patched.setattr(log.queue, "append", full)
        patched.setattr(log.queue, "append_many", full)
        with pytest.raises(Unavailable) as refused:
            log.append([b"x"] * frames)
    log.close()
    assert refused.value.code is Code.DISK_FULL
    assert "start the service again" in refused.value.hint


def test_an_index_of_another_log_is_refused(tmp_path: Path) -> None:
    async def fill(directory: Path, text: bytes) -> None:
        service = await StoreService.open(str(directory), page_bytes=PAGE_BYTES)
        await service.submit(define(DEFINITION))
        await service.submit(Publish(0, "s", "", [Message(text)]))
        await service.close()

    for name in ("one", "other"):
        asyncio.run(fill(tmp_path / name, name.encode()))
    assert verify(str(tmp_path / "one")).messages == 1
    shutil.copy(tmp_path / "other" / "index.sqlite", tmp_path / "one" / "index.sqlite")
    with pytest.raises(CorruptData, match="do not belong together") as refused:
        Storage.open(str(tmp_path / "one"), page_bytes=PAGE_BYTES)
    says_what_to_do(refused.value, tmp_path / "one")
    with pytest.raises(CorruptData, match="do not belong together"):
        verify(str(tmp_path / "one"))


async def deliver_all(service: StoreService) -> None:
    found = await service.submit(Deliver(0, "s", "d", "one", 100))
    assert isinstance(found, Delivered)
    service.messages("s", found.runs)


@pytest.mark.parametrize("matcher", [{}, {"kind": "a"}])
def test_a_kept_message_of_which_the_index_knows_no_place_is_damage_and_not_passed_over(
    tmp_path: Path, matcher: dict[str, object]
) -> None:
    definition = {"stores": {"s": {"durables": {"d": {"type": "shared", "matcher": matcher}}}}}

    async def fill() -> None:
        service = await StoreService.open(str(tmp_path), page_bytes=PAGE_BYTES)
        await service.submit(define(json.dumps(definition).encode()))
        for _ in range(10):
            await service.submit(Publish(0, "s", "", [Message(bytes(10_000), {"kind": "a"}) for _ in range(3)]))
        await service.close()

    async def look() -> None:
        service = await StoreService.open(str(tmp_path), page_bytes=PAGE_BYTES)
        try:
            await service.submit(Attach(0, "s", "d", "one"))
            with pytest.raises(CorruptData, match="a kept message is not in the log"):
                await deliver_all(service)
        finally:
            await service.close()

    asyncio.run(fill())
    database = sqlite3.connect(tmp_path / "index.sqlite")
    extents = database.execute("SELECT first_seq FROM extents ORDER BY first_seq").fetchall()
    assert len(extents) > 2
    database.execute("DELETE FROM extents WHERE first_seq = ?", extents[1])
    database.commit()
    database.close()
    asyncio.run(look())
