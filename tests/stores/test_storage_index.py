"""The index against a plain model: whatever is changed, spilled, frozen, written, deleted, or read after a start."""

from __future__ import annotations

import random
import sqlite3
from copy import deepcopy
from typing import TYPE_CHECKING

import pytest

from holdfast.errors import CorruptData, Unavailable
from holdfast.stores.storage.caches import BlockCache, FrozenBlock, decode_block
from holdfast.stores.storage.index import Index, IndexChanges
from holdfast.stores.storage.locations import LocationChanges
from holdfast.stores.values.ports import BLOCK_MESSAGES, BlockCounts, KeyEntry

if TYPE_CHECKING:
    from pathlib import Path

STORES = ("a", "b")
MAPS = ("m", "n")


def same(one: BlockCounts | None, other: BlockCounts | None) -> bool:
    if one is None or other is None:
        return one is other
    return all(getattr(one, name) == getattr(other, name) for name in BlockCounts.__slots__)


def checkpoint_of(index: Index, frame: int) -> IndexChanges:
    return IndexChanges(
        frame, frame, b"state", index.blocks.freeze(), index.entries.freeze(), LocationChanges([], [], [])
    )


def written(index: Index) -> None:
    index.blocks.written()
    index.entries.written()


class Model:
    """Blocks and entries in dictionaries, by the words of the ports."""

    def __init__(self) -> None:
        self.blocks: dict[tuple[str, int], BlockCounts] = {}
        self.newest: dict[str, int] = {}
        self.entries: dict[tuple[str, str], dict[str, KeyEntry]] = {}

    def put(self, store: str, block: BlockCounts) -> None:
        newest = self.newest.get(store, -1)
        if block.number > newest:
            self.newest[store] = block.number
            if (store, newest) in self.blocks and not self.blocks[store, newest].live:
                del self.blocks[store, newest]
        elif block.number < newest and not block.live:
            self.blocks.pop((store, block.number), None)
            return
        self.blocks[store, block.number] = deepcopy(block)

    def forget_store(self, store: str) -> None:
        self.newest.pop(store, None)
        self.blocks = {key: block for key, block in self.blocks.items() if key[0] != store}
        self.entries = {place: found for place, found in self.entries.items() if place[0] != store}


def change_block(dice: random.Random, index: Index, model: Model) -> None:
    store = dice.choice(STORES)
    number = min(dice.randrange(40), model.newest.get(store, -1) + 1)
    block = index.blocks.get(store, number)
    assert same(block, model.blocks.get((store, number)))
    if block is None and number <= model.newest.get(store, -1):
        return  # forgotten: nobody keeps anything in it, so nobody changes it
    block = block or BlockCounts(number)
    place = dice.randrange(BLOCK_MESSAGES)
    block.references[place] = dice.randrange(3)
    block.sizes[place] = dice.randrange(1 << 20)
    block.published_ms[place] = dice.randrange(1 << 42)
    block.live = dice.choice((0, 1, 7))
    block.live_bytes, block.timed, block.earliest_ms = dice.randrange(1 << 40), dice.random() < 0.5, dice.randrange(9)
    index.blocks.put(store, block)
    model.put(store, block)


def change_entry(dice: random.Random, index: Index, model: Model) -> None:
    store, durable, key = dice.choice(STORES), dice.choice(MAPS), str(dice.randrange(600))
    kept = model.entries.setdefault((store, durable), {})
    assert index.entries.get(store, durable, key) == kept.get(key)
    if dice.random() < 0.3:
        index.entries.remove(store, durable, key)
        kept.pop(key, None)
    else:
        entry = kept[key] = KeyEntry(key, dice.randrange(1 << 40), dice.randrange(99), dice.randrange(3))
        index.entries.put(store, durable, entry)


def check_all(index: Index, model: Model, *, after: str) -> None:
    for store in STORES:
        for number in range(45):
            assert same(index.blocks.get(store, number), model.blocks.get((store, number))), (store, number)
        for durable in MAPS:
            kept = model.entries.get((store, durable), {})
            found = list(index.entries.scan(store, durable, after))
            assert found == [kept[key] for key in sorted(kept) if key > after], (store, durable)


@pytest.mark.parametrize("seed", range(12))
def test_the_index_is_what_was_put_across_checkpoints_and_starts(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    index, model = Index(str(tmp_path)), Model()
    index.blocks = BlockCache(index, str(tmp_path / "scratch"), cached_max=3)
    kept = deepcopy(model)  # as of the last checkpoint that was written
    running: tuple[IndexChanges, Model] | None = None
    for step in range(400):
        what = dice.random()
        if what < 0.55:
            change_block(dice, index, model)
        elif what < 0.9:
            change_entry(dice, index, model)
        elif what < 0.91:
            store = dice.choice(STORES)
            index.blocks.forget_store(store)
            index.entries.forget(store)
            model.forget_store(store)
        elif what < 0.915:
            store, durable = dice.choice(STORES), dice.choice(MAPS)
            index.entries.forget(store, durable)
            model.entries.pop((store, durable), None)
        elif what < 0.95 and running is None:
            running = checkpoint_of(index, step), deepcopy(model)
        elif what < 0.985 and running is not None:
            if dice.random() < 0.8:
                index.write(running[0])
                kept = running[1]
            if dice.random() < 0.5:
                check_all(index, model, after="")  # it is in the table, and nobody was told yet
            index.write(running[0])
            kept = running[1]
            written(index)
            running = None
        elif what > 0.995:
            index.close()
            index, model, running = Index(str(tmp_path)), deepcopy(kept), None
            index.blocks = BlockCache(index, str(tmp_path / f"scratch-{step}"), cached_max=3)
    check_all(index, model, after=str(dice.randrange(600)))
    index.close()


def test_a_block_is_its_bytes() -> None:
    block = BlockCounts(7)
    block.references[3], block.sizes[3], block.published_ms[3] = 65_535, (1 << 32) - 1, 1 << 45
    block.live, block.live_bytes, block.earliest_ms, block.swept_ms, block.timed = 1, 1 << 40, 5, 4, True
    assert same(decode_block(7, FrozenBlock(block).encode()), block)


def test_a_checkpoint_that_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    index = Index(str(tmp_path))
    block = BlockCounts(0)
    block.live = 1
    index.blocks.put("a", block)
    checkpoint = checkpoint_of(index, 5)
    broken = checkpoint._replace(at_ms=object())  # type: ignore[arg-type]  # what cannot be written fails its transaction
    with pytest.raises(Exception, match="type object is unsupported"):
        index.write(broken)
    assert index.load() is None
    assert index.write(checkpoint) == 6
    written(index)
    loaded = index.load()
    assert loaded is not None
    assert loaded.frame == 5
    assert same(index.blocks.get("a", 0), block)
    index.close()


def test_a_block_that_the_disk_has_no_room_for_stays_in_memory(tmp_path: Path) -> None:
    index = Index(str(tmp_path))
    room = tmp_path / "room"  # there is none until it is made
    index.blocks = BlockCache(index, str(room / "scratch"), cached_max=2)
    blocks = [BlockCounts(number) for number in range(4)]
    for block in blocks:
        block.live = 1 + block.number
    index.blocks.put("a", blocks[0])
    index.blocks.put("a", blocks[1])
    with pytest.raises(sqlite3.OperationalError):
        index.blocks.put("a", blocks[2])
    with pytest.raises(sqlite3.OperationalError):
        index.blocks.put("a", blocks[3])
    assert [same(index.blocks.get("a", block.number), block) for block in blocks] == [True] * 4
    room.mkdir()
    index.blocks.put("a", blocks[3])
    assert [same(index.blocks.get("a", block.number), block) for block in blocks] == [True] * 4
    index.write(checkpoint_of(index, 5))
    index.close()
    index = Index(str(tmp_path))
    assert [same(index.blocks.get("a", block.number), block) for block in blocks] == [True] * 4
    index.close()


def test_an_index_that_only_cannot_be_opened_is_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "index.sqlite").mkdir()
    with pytest.raises(Unavailable, match="cannot be read") as error:
        Index(str(tmp_path))
    assert error.value.hint.startswith("nothing is known to be damaged")


def test_a_block_whose_bytes_changed_is_damage(tmp_path: Path) -> None:
    index = Index(str(tmp_path))
    block = BlockCounts(0)
    block.live = 1
    index.blocks.put("a", block)
    index.write(checkpoint_of(index, 5))
    index._writer.execute("UPDATE blocks SET data = substr(data, 1, 40)")
    index.close()
    index = Index(str(tmp_path))
    with pytest.raises(CorruptData, match="block of the stores' index"):
        index.blocks.get("a", 0)
    index.close()


def test_an_index_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "index.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(CorruptData, match="cannot be read"):
        Index(str(tmp_path))


def test_an_index_of_a_later_format_is_refused(tmp_path: Path) -> None:
    index = Index(str(tmp_path))
    index._writer.execute("UPDATE meta SET value = 5 WHERE name = 'format'")
    index.close()
    with pytest.raises(CorruptData, match="later version"):
        Index(str(tmp_path))
