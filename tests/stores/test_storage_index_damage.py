"""A flipped bit in the index never makes a wrong message, a skipped one, or a page that goes too early."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.definitions import define

from holdfast.errors import CorruptData
from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.durables.map import MapDurable
from holdfast.stores.repair.backup import verify
from holdfast.stores.repair.reader import StoreReader
from holdfast.stores.service import StoreService
from holdfast.stores.storage.index import Index
from holdfast.stores.storage.log import MessageLog
from holdfast.stores.storage.storage import Storage
from holdfast.stores.values.commands import Acknowledge, Attach, Deliver, Delivered, MapChange, Publish
from holdfast.wire.parts import Message

if TYPE_CHECKING:
    pass

PAGE_BYTES = 65_536
FLIPS = int(os.environ.get("HOLDFAST_INDEX_FLIPS", "20" if os.environ.get("HOLDFAST_SMALL") == "1" else "80"))
DEFINITION = {
    "stores": {
        "s": {
            "durables": {
                "all": {"type": "shared"},
                "some": {"type": "shared", "matcher": {"kind": "a"}},
                "map": {"type": "map"},
            }
        }
    }
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three blocks, some dozen extents on some pages of the log, some hundred entries of a map; all in the index."""
    directory = tmp_path_factory.mktemp("stores") / "whole"

    async def main() -> None:
        service = await StoreService.open(str(directory), page_bytes=PAGE_BYTES)
        await service.submit(define(json.dumps(DEFINITION).encode()))
        for number in range(24):
            bodies = [b"%d-%d" % (number, place) + bytes(150) for place in range(100)]
            await service.submit(Publish(0, "s", "", [Message(body, {"kind": "ab"[number % 2]}) for body in bodies]))
        for number in range(10):
            changes: list[tuple[str, bytes | None, int | None]] = [
                (f"key-{number}-{place}", b"value", 0) for place in range(30)
            ]
            await service.submit(MapChange(0, "s", "map", changes))
        await service.close()

    asyncio.run(main())
    return directory


def seen(directory: Path) -> list[object]:
    """Everything that users of these stores can get, after a checkpoint that lets pages go."""
    storage = Storage.open(str(directory), page_bytes=PAGE_BYTES, memory_bytes=1 << 16)
    try:
        storage.write_checkpoint(storage.begin_checkpoint())
        storage.end_checkpoint()
        found: list[object] = [storage.log.first]
        for name, durable in storage.state.stores["s"].durables.items():
            if isinstance(durable, Consumption):
                found += consumed(storage, name)
            elif isinstance(durable, MapDurable):
                found += [(entry, storage.messages.message("s", entry.revision)) for entry in durable.keyed.scan()]
                found += [durable.keyed.get(f"key-{number}-{place}") for number in range(10) for place in range(31)]
        return found
    finally:
        storage.close()


def consumed(storage: Storage, name: str) -> list[object]:
    """All that one subscriber gets of a durable, in memory alone."""
    at_ms, found = storage.last_ms, list[object]()
    storage.state.apply(Attach(at_ms, "s", name, "me"))
    while True:
        got = storage.state.apply(Deliver(at_ms, "s", name, "me", 400)).result
        assert isinstance(got, Delivered)
        if not got.runs:
            return found
        found += storage.messages.deliveries("s", got.runs)
        storage.state.apply(Acknowledge(at_ms, "s", name, "me", ack=[(first, last) for first, last, _ in got.runs]))


def test_whatever_bit_of_the_index_is_flipped_nothing_wrong_is_told_and_nothing_is_missing(
    stores: Path, tmp_path: Path
) -> None:
    shutil.copytree(stores, tmp_path / "whole")
    expected = seen(tmp_path / "whole")
    assert len(expected) > 3_500
    data = (stores / "index.sqlite").read_bytes()
    dice = random.Random(os.environ.get("HOLDFAST_INDEX_FLIPS_SEED", "1"))
    refused = 0
    for number in range(FLIPS):
        directory = tmp_path / str(number)
        shutil.copytree(stores, directory)
        at, bit = dice.randrange(len(data)), dice.randrange(8)
        (directory / "index.sqlite").write_bytes(data[:at] + bytes((data[at] ^ 1 << bit,)) + data[at + 1 :])
        try:
            found = seen(directory)
        except CorruptData:
            refused += 1
        else:
            assert found == expected, f"byte {at}, bit {bit}"
        shutil.rmtree(directory)
    assert refused > FLIPS // 10


def changed(directory: Path, *statements: str) -> None:
    with closing(sqlite3.connect(directory / "index.sqlite", isolation_level=None)) as database:
        for statement in statements:
            database.execute(statement)


@pytest.fixture
def broken(stores: Path, tmp_path: Path) -> Path:
    shutil.copytree(stores, tmp_path / "stores")
    return tmp_path / "stores"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE extents SET first_frame = first_frame + 1 WHERE first_seq > 1000",
        "UPDATE extents SET last_seq = last_seq - 1 WHERE first_seq > 1000",
        "UPDATE entries SET revision = revision - 1 WHERE key = 'key-3-7'",
        "UPDATE entries SET key = 'key-3-x' WHERE key = 'key-3-7'",
        "UPDATE blocks SET data = zeroblob(4) || substr(data, 5) WHERE number = 1",
        "UPDATE meta SET value = value + 1 WHERE name = 'at_ms'",
        "DELETE FROM entries WHERE key = 'key-3-7'",
        "DELETE FROM blocks WHERE number = 1",
        "DELETE FROM meta WHERE name = 'runs'",
        "DELETE FROM meta WHERE name = 'format'",
        "DROP TABLE entries",
    ],
)
def test_a_row_that_changed_or_went_is_damage_for_who_reads_it_and_for_verify(broken: Path, statement: str) -> None:
    changed(broken, statement)
    with pytest.raises(CorruptData) as verified:
        verify(str(broken))
    assert verified.value.hint
    with pytest.raises(CorruptData):
        seen(broken)


def test_an_entry_whose_key_changed_is_not_taken_for_one_that_never_was(broken: Path) -> None:
    path = broken / "index.sqlite"
    data = path.read_bytes()
    assert data.count(b"smapkey-3-7") == 1
    path.write_bytes(data.replace(b"smapkey-3-7", b"smapkey-3-w"))
    index = Index(str(broken))
    try:
        assert index.entry("s", "map", "key-5-x") is None
        with pytest.raises(CorruptData, match="index of the stores is damaged"):
            index.entry("s", "map", "key-3-7")
    finally:
        index.close()


def test_no_page_goes_where_the_order_of_the_extents_lacks_one(broken: Path) -> None:
    """As an order by frame that lost the first extent would have it: a change of the table that the order missed."""
    before = sorted(os.listdir(broken))
    changed(
        broken,
        "PRAGMA writable_schema=ON",
        "UPDATE sqlite_master SET sql = sql || ' WHERE first_frame > 20' WHERE name = 'extents_by_frame'",
        "PRAGMA writable_schema=RESET",
        "REINDEX extents_by_frame",
        "PRAGMA writable_schema=ON",
        "UPDATE sqlite_master SET sql = replace(sql, ' WHERE first_frame > 20', '') WHERE name = 'extents_by_frame'",
    )
    with pytest.raises(CorruptData, match="index of the stores is damaged"):
        seen(broken)
    assert [name for name in before if name.endswith(".page")] == sorted(
        name for name in os.listdir(broken) if name.endswith(".page")
    )


def test_a_checkpoint_into_an_index_that_is_damaged_is_not_tried_for_ever(broken: Path) -> None:
    storage = Storage.open(str(broken), page_bytes=PAGE_BYTES)
    try:
        checkpoint = storage.begin_checkpoint()
        changed(broken, "DROP TABLE entries", "DROP TABLE blocks", "DROP TABLE extents")
        with pytest.raises(CorruptData, match="index of the stores cannot be read"):
            storage.write_checkpoint(checkpoint)
    finally:
        storage.close()


def everything(directory: Path) -> tuple[list[str], list[tuple[int, bytes]]]:
    """All rows of the index, and all frames of the log."""
    with closing(sqlite3.connect(directory / "index.sqlite")) as database:
        rows = list(database.iterdump())
    with closing(MessageLog(str(directory), read_only=True)) as log:
        return rows, list(log.frames(log.first))


@pytest.mark.parametrize("number", ["6", "2", "0", "'2'", "x'02'", "'a later one'"])
def test_a_format_that_changed_alone_is_damage_and_can_be_put_back(broken: Path, number: str) -> None:
    whole = verify(str(broken))
    changed(broken, f"UPDATE meta SET value = {number} WHERE name = 'format'")
    for look in (verify, Storage.open):
        with pytest.raises(CorruptData, match="format") as raised:
            look(str(broken))
        assert "later version" not in raised.value.message
    statement = raised.value.hint.partition(":")[2].partition(";")[0].strip()
    changed(broken, statement)
    assert verify(str(broken)) == whole


@pytest.mark.parametrize(
    "another",
    [
        "UPDATE meta SET value = value + 1 WHERE name = 'crc'",
        "DELETE FROM meta WHERE name != 'format'",
    ],
)
def test_an_index_of_a_later_version_is_told_so(broken: Path, another: str) -> None:
    changed(broken, another, "UPDATE meta SET value = 5 WHERE name = 'format'")
    with pytest.raises(CorruptData, match="later version") as raised:
        verify(str(broken))
    assert raised.value.hint == "nothing is damaged: use that version"


def test_another_process_is_told_of_an_extent_that_changed(broken: Path) -> None:
    changed(broken, "UPDATE extents SET first_frame = first_frame + 1 WHERE first_seq > 1000")
    with StoreReader(str(broken), "s") as reader, pytest.raises(CorruptData, match="index of the stores is damaged"):
        reader.place()
