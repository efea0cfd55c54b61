"""Going on without messages that are damaged: they are named, nothing else is lost, and every count is right again."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from tests.definitions import define
from tests.integration.http_harness import run
from tests.integration.stores_harness import StoresServing, stores_serving
from tests.matrix import matrix

from holdfast.cli.main import main
from holdfast.cli.output import Exit
from holdfast.errors import AlreadyOpen, CorruptData, HoldfastError
from holdfast.server.stores.store_metrics import store_metrics
from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.durables.map import MapDurable
from holdfast.stores.machine.repairs import CAUSE
from holdfast.stores.repair.backup import verify
from holdfast.stores.repair.damage import repair, survey
from holdfast.stores.service import StoreService
from holdfast.stores.storage.storage import Storage
from holdfast.stores.values.commands import (
    Acknowledge,
    Attach,
    Deliver,
    Delivered,
    MapChange,
    Publish,
    Purge,
)
from holdfast.wire.parts import Message

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE_BYTES = 65_536
KINDS = "abc"
DURABLES: dict[str, dict[str, Any]] = {
    "all": {"type": "shared", "ack_wait": "1h"},
    "some": {"type": "shared", "matcher": {"kind": "a"}, "ack_wait": "1h"},
    "others": {"type": "standard", "matcher": {"kind": ["b", "c"]}, "ack_wait": "1h"},
    "keys": {"type": "shared", "key_ordered": True, "ack_wait": "1h"},
    "back": {"type": "shared", "retention_time": "1h", "matcher": {"kind": ["a", "b"]}},
    "few": {"type": "shared", "message_limit": 50, "discard": "old"},
    "dying": {"type": "shared", "max_delivery": 1, "dead_letter_store": "letters"},
    "last": {"type": "last_value"},
    "purged": {"type": "shared", "matcher": {"kind": "a"}},
}
DEFINITION = {
    "stores": {
        "s": {"durables": DURABLES},
        "maps": {"durables": {"map": {"type": "map"}}},
        "letters": {"message_limit": 1, "durables": {"letters": {"type": "shared"}}},
    }
}
CONSUMED = [name for name, durable in DURABLES.items() if durable["type"] in ("shared", "standard")]


async def fill(directory: Path, dice: random.Random) -> None:
    """Messages in every place that a durable has for them."""
    service = await StoreService.open(str(directory), page_bytes=PAGE_BYTES)
    await service.submit(define(json.dumps(DEFINITION).encode()))
    for name in CONSUMED:
        await service.submit(Attach(0, "s", name, "me"))
    for _ in range(40):
        await service.submit(Publish(0, "s", "", [some_message(dice, service.state.at_ms) for _ in range(20)]))
        changes: list[tuple[str, bytes | None, int | None]] = [(str(dice.randrange(60)), bytes(400), None)]
        await service.submit(MapChange(0, "maps", "map", changes))
        name = dice.choice(CONSUMED)
        delivered = await service.submit(Deliver(0, "s", name, "me", dice.randrange(1, 60)))
        assert isinstance(delivered, Delivered)
        numbers = [seq for first, last, _ in delivered.runs for seq in range(first, last + 1)]
        await service.submit(
            Acknowledge(
                0,
                "s",
                name,
                "me",
                ack=[(seq, seq) for seq in numbers if seq % 4 == 0],
                nack=[(seq, seq % 8 * 1_000_000) for seq in numbers if seq % 4 == 1],
                reject=[seq for seq in numbers if seq % 16 == 2],
            )
        )
    await service.submit(Purge(0, "s", "purged"))
    await service.checkpoint()
    for number in range(6):
        changed: list[tuple[str, bytes | None, int | None]] = [(str(number), b"behind the index", None)]
        await service.submit(MapChange(0, "maps", "map", changed))
    shutil.copytree(directory, directory.parent / "cut")
    await service.close()


def some_message(dice: random.Random, now_ms: int) -> Message:
    return Message(
        bytes(dice.randrange(200, 900)),
        {"kind": dice.choice(KINDS)},
        key=str(dice.randrange(30)) if dice.random() < 0.6 else None,
        ttl_ms=10_000_000 if dice.random() < 0.02 else 0,
        deliver_at_ms=now_ms + 5_000_000 if dice.random() < 0.03 else 0,
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("stores") / "whole"
    asyncio.run(fill(directory, random.Random(5)))
    assert len(list(directory.glob("*.page"))) > 5
    return directory


@pytest.fixture
def stores(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "stores")
    return tmp_path / "stores"


def flip(directory: Path, page: int, at: int) -> None:
    path = sorted(directory.glob("*.page"), key=lambda path: int(path.stem.rpartition("-")[2]))[page]
    data = bytearray(path.read_bytes())
    data[at] ^= 0x55
    path.write_bytes(data)


def kept(directory: Path) -> dict[str, Counter[int]]:
    """Which messages each store's durables keep; reads nothing of the log where it need not."""
    storage = Storage.open(str(directory), read_only=True)
    try:
        found: dict[str, Counter[int]] = {}
        for name, store in storage.state.stores.items():
            numbers: Counter[int] = found.setdefault(name, Counter())
            for durable in store.durables.values():
                if isinstance(durable, Consumption):
                    numbers.update(seq for first, last in durable.kept().runs() for seq in range(first, last + 1))
                else:
                    numbers.update(entry.revision for entry in durable.keyed.scan())
            for residue in store.residues:
                numbers.update(residue.kept())
        return found
    finally:
        storage.close()


@pytest.mark.parametrize("seed", matrix(range(int(os.environ.get("HOLDFAST_REPAIRS", "5"))), 2))
@pytest.mark.parametrize(("name", "pages"), [("whole", 5), ("cut", 3)])
def test_a_repair_loses_what_cannot_be_read_and_nothing_else(
    whole: Path, tmp_path: Path, seed: int, name: str, pages: int
) -> None:
    """Also where a crash left commands that the index does not have, behind the damage."""
    dice = random.Random(seed)
    stores = tmp_path / "stores"
    shutil.copytree(whole.parent / name, stores)
    before = kept(stores)
    for _ in range(dice.randrange(1, 6)):
        flip(stores, dice.randrange(pages), dice.randrange(64, 60_000))
    found = survey(str(stores))
    done = repair(str(stores))
    assert [(loss.store, loss.runs) for loss in done] == [(loss.store, loss.runs) for loss in found]
    lost = {loss.store: {seq for first, last in loss.runs for seq in range(first, last + 1)} for loss in done}
    after = kept(stores)
    for store, numbers in before.items():
        gone = lost.get(store, set())
        assert gone <= set(numbers), "only what was kept is lost"
        assert after[store] == Counter({seq: count for seq, count in numbers.items() if seq not in gone})
    verified = verify(str(stores))  # with every law of the state
    assert verified.damaged > 0
    assert repair(str(stores)) == []
    told = {durable: count for loss in done for durable, count in loss.durables.items()}
    storage = Storage.open(str(stores), read_only=True)
    try:
        for durable_name, durable in storage.state.stores["s"].durables.items():
            if isinstance(durable, Consumption):
                assert durable.causes.get(CAUSE, 0) == told.get(durable_name, 0)
    finally:
        storage.close()


def test_one_damaged_message_stops_its_durable_and_after_a_repair_it_goes_on(whole: Path, stores: Path) -> None:
    flip(stores, 2, 20_000)

    async def consume() -> list[int]:
        service = await StoreService.open(str(stores), page_bytes=PAGE_BYTES, clock=lambda: 4_000_000_000_000)
        found: list[int] = []
        try:
            await service.submit(Attach(0, "s", "some", "other"))
            while True:
                given = await service.submit(Deliver(0, "s", "some", "other", 100))
                assert isinstance(given, Delivered)
                if not given.runs:
                    break
                found += [one.seq for one in service.messages("s", given.runs)]
                runs = [(first, last) for first, last, _ in given.runs]
                await service.submit(Acknowledge(0, "s", "some", "other", ack=runs))
        finally:
            await service.close()
        return found

    with pytest.raises(HoldfastError):
        asyncio.run(consume())
    with pytest.raises(CorruptData):
        verify(str(stores))
    losses = repair(str(stores))
    assert any(loss.store == "s" and loss.messages for loss in losses)
    found = asyncio.run(consume())
    assert len(found) == len(set(found)) > 100
    lost = {seq for loss in losses if loss.store == "s" for first, last in loss.runs for seq in range(first, last + 1)}
    assert not lost & set(found)
    assert verify(str(stores)).damaged > 0


def test_a_survey_changes_nothing_and_stores_that_are_whole_are_left_alone(whole: Path, stores: Path) -> None:
    assert survey(str(stores)) == []
    flip(stores, 1, 30_000)
    before = {path.name: path.read_bytes() for path in stores.iterdir()}
    assert survey(str(stores))
    assert {path.name: path.read_bytes() for path in stores.iterdir()} == before


def test_stores_that_a_service_has_open_are_not_repaired(stores: Path) -> None:
    storage = Storage.open(str(stores), page_bytes=PAGE_BYTES)
    try:
        with pytest.raises(AlreadyOpen):
            repair(str(stores))
    finally:
        storage.close()


def test_a_command_that_the_index_does_not_have_cannot_be_left_out(stores: Path) -> None:
    async def publish() -> None:
        service = await StoreService.open(str(stores), page_bytes=PAGE_BYTES)
        await service.submit(Publish(0, "s", "", [Message(bytes(5_000), {"kind": "a"})]))
        await service.submit(Publish(0, "s", "", [Message(bytes(5_000), {"kind": "a"})]))
        shutil.copytree(stores, stores.parent / "cut")
        await service.close()

    asyncio.run(publish())
    storage = Storage.open(str(stores), read_only=True)
    last = storage.log.last
    storage.close()
    cut = stores.parent / "cut"
    path = max(cut.glob("*.page"), key=lambda path: int(path.stem.rpartition("-")[2]))
    data = bytearray(path.read_bytes())
    at = data.rstrip(b"\0").rfind(bytes(4_000)) - 500
    data[at] ^= 0x55
    path.write_bytes(data)
    assert last > 2
    for attempt in (survey, repair):
        with pytest.raises(CorruptData, match="restore"):
            raise_with_hint(attempt, cut)


def test_a_command_that_read_what_is_damaged_now_and_that_the_index_does_not_have_is_not_guessed(
    stores: Path, tmp_path: Path
) -> None:
    async def purge() -> None:
        service = await StoreService.open(str(stores), page_bytes=PAGE_BYTES)
        await service.submit(Publish(0, "s", "", [Message(b"x", {"kind": "a"})]))
        await service.submit(Purge(0, "s", "some"))
        shutil.copytree(stores, tmp_path / "cut")
        await service.close()

    asyncio.run(purge())
    for page in range(5):
        flip(tmp_path / "cut", page, 33_000)
    for attempt in (survey, repair):
        with pytest.raises(CorruptData, match="another result"):
            attempt(str(tmp_path / "cut"))


def raise_with_hint(attempt: Any, directory: Path) -> None:
    try:
        attempt(str(directory))
    except CorruptData as error:
        raise CorruptData(f"{error} {error.hint}") from error


def test_a_map_goes_on_without_the_value_that_is_damaged(stores: Path) -> None:
    storage = Storage.open(str(stores), read_only=True)
    durable = storage.state.stores["maps"].durables["map"]
    assert isinstance(durable, MapDurable)
    entries = {entry.key: entry.revision for entry in durable.keyed.scan()}
    storage.close()
    for page in range(5):
        flip(stores, page, 33_000)
    losses = {loss.store: loss for loss in repair(str(stores))}
    lost = {seq for loss in [losses.get("maps")] if loss for first, last in loss.runs for seq in range(first, last + 1)}
    storage = Storage.open(str(stores), read_only=True)
    try:
        durable = storage.state.stores["maps"].durables["map"]
        assert isinstance(durable, MapDurable)
        left = {entry.key: entry.revision for entry in durable.keyed.scan()}
        assert left == {key: revision for key, revision in entries.items() if revision not in lost}
        assert all(storage.messages.message("maps", revision) for revision in left.values())
    finally:
        storage.close()


def test_the_command_tells_what_is_lost_and_loses_it_only_where_it_was_asked_to(
    stores: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stores", "repair", str(stores)]) == 0
    assert "every message that is kept can be read" in capsys.readouterr().out
    flip(stores, 2, 20_000)
    loss = next(loss for loss in survey(str(stores)) if loss.store == "s")
    assert main(["stores", "repair", str(stores)]) == Exit.DAMAGED
    said = capsys.readouterr().out
    assert f"s: {loss.messages} messages cannot be read: {loss.runs[0][0]}-" in said
    assert main(["stores", "repair", str(stores), "--json"]) == Exit.DAMAGED
    assert json.loads(capsys.readouterr().out)["stores"]["s"]["messages"] == loss.messages
    assert main(["stores", "repair", str(stores), "--lose"]) == 0
    said = capsys.readouterr().out
    assert f"s: {loss.messages} messages are lost" in said
    assert "s/all: " in said
    assert main(["stores", "repair", str(stores)]) == 0
    assert main(["stores", "verify", str(stores)]) == 0
    assert "frames are damaged, and nothing that is kept needs them" in capsys.readouterr().out


# ---- until it is repaired -------------------------------------------------------------------------------------------


async def make_damaged(directory: Path) -> None:
    """A service's stores whose first messages cannot be read."""
    definition = {
        "stores": {
            "s": {"durables": {"work": {"type": "shared", "dead_letter_store": "letters"}}},
            "letters": {"durables": {"all": {"type": "shared"}}},
        }
    }
    service = await StoreService.open(str(directory), page_bytes=PAGE_BYTES)
    await service.submit(define(json.dumps(definition).encode()))
    for _ in range(3):
        await service.submit(Publish(0, "s", "", [Message(bytes(5_000)) for _ in range(10)]))
    await service.close()
    flip(directory, 0, 10_000)


def test_a_dead_letter_that_cannot_be_read_stops_nobody_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        await make_damaged(tmp_path)
        service = await StoreService.open(str(tmp_path), page_bytes=PAGE_BYTES)
        try:
            await service.submit(Attach(0, "s", "work", "me"))
            given = await service.submit(Deliver(0, "s", "work", "me", 30))
            assert isinstance(given, Delivered)
            numbers = [seq for first, last, _ in given.runs for seq in range(first, last + 1)]
            await service.submit(Acknowledge(0, "s", "work", "me", reject=numbers))
            await service.wait_until_safe()
            durable = service.state.stores["s"].durables["work"]
            assert isinstance(durable, Consumption)
            assert 0 < len(durable.dying) < len(numbers), "those that can be read are buried, the others wait"
            assert "a dead letter cannot be read store=s durable=work" in caplog.text
        finally:
            await service.close()

    asyncio.run(main())


def test_a_durable_that_met_a_message_that_cannot_be_read_has_a_metric_and_who_polls_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        await make_damaged(tmp_path)
        async with stores_serving(tmp_path) as stores:
            assert not list(samples(stores))
            refused = await stores.ask("GET", "/v1/stores/s/durables/work/messages?subscriber=me")
            assert (refused.status, refused.code) == (500, "corrupt_queue")
            assert list(samples(stores)) == [({"store": "s", "durable": "work"}, 1)]

    def samples(stores: StoresServing) -> Iterator[tuple[dict[str, str], float]]:
        for family in store_metrics(stores.host):
            if family.name == "holdfast_durable_unreadable":
                yield from ((sample.labels, sample.value) for sample in family.samples)

    run(scenario)
