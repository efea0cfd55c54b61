"""Where messages lie and how they are read: the log, the extents and the caches together against a plain list."""

from __future__ import annotations

import random
from array import array
from typing import TYPE_CHECKING

import pytest

from holdfast.errors import CorruptData
from holdfast.stores.storage.frames import MessageRun, Relocated, decode_frame, encode_record, encode_relocated
from holdfast.stores.storage.index import Index, IndexChanges
from holdfast.stores.storage.locations import Locations
from holdfast.stores.storage.log import MessageLog
from holdfast.stores.storage.messages import StoredMessages
from holdfast.stores.values.commands import RULES, Publish, Published, Record
from holdfast.stores.values.ports import BLOCK_MESSAGES, BlockCounts
from holdfast.wire.parts import Message

if TYPE_CHECKING:
    from pathlib import Path

STORES = ("a", "b", "c")
PAGE_BYTES = 64 << 10


class Desk:
    """What ``storage`` and the state machine do about messages, and nothing else."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = MessageLog(str(path), page_bytes=PAGE_BYTES)
        self.index = Index(str(path))
        self.locations = Locations(self.index)
        self.messages = StoredMessages(
            self.log, self.locations, self.index.blocks, recent_bytes=20_000, reread_bytes=50_000
        )
        self.kept: dict[str, dict[int, Message]] = {store: {} for store in STORES}
        self.next_seq = dict.fromkeys(STORES, 1)
        self.frames: list[bytes] = []

    def publish(self, store: str, messages: list[Message]) -> None:
        first = self.next_seq[store]
        self.next_seq[store] += len(messages)
        self.messages.add(store, first, first * 10, messages, array("I", [len(found.body) for found in messages]))
        for seq, message in enumerate(messages, first):
            self.kept[store][seq] = message
            self._refer(store, seq, 1)
        result = Published(first, first + len(messages) - 1, 0, 0)
        self._frame(encode_record(Record(Publish(first * 10, store, "", messages), result, RULES)))

    def _frame(self, frame: bytes) -> None:
        self.frames.append(frame)
        self.locations.grow(len(frame))
        self.messages.next_frame += 1

    def _refer(self, store: str, seq: int, count: int) -> None:
        number, place = divmod(seq, BLOCK_MESSAGES)
        block = self.index.blocks.get(store, number) or BlockCounts(number)
        block.live += count - block.references[place]
        block.references[place] = count
        self.index.blocks.put(store, block)

    def release(self, store: str, first: int, last: int) -> None:
        for seq in [seq for seq in self.kept[store] if first <= seq <= last]:
            del self.kept[store][seq]
            self._refer(store, seq, 0)

    def write(self) -> None:
        if self.frames:
            self.log.append(self.frames)
            self.frames = []

    def relocate_oldest(self) -> None:
        for extent in self.index.oldest_extents(1):
            current = self.locations.current(extent)
            if current is None:
                return
            self.write()
            kept = self.kept[extent.store]
            runs = [
                MessageRun(extent.store, seq, run.published_ms, (message,))
                for run in self.messages.runs(extent.store, current.first_seq, current.last_seq)
                for seq, message in enumerate(run.messages, run.first_seq)
                if seq in kept and current.first_seq <= seq <= current.last_seq
            ]
            relocated = Relocated(extent.store, current.first_seq, current.last_seq, runs)
            self.messages.relocate(relocated, self.messages.next_frame)
            self._frame(encode_relocated(relocated))

    def checkpoint(self, *, dead: bool) -> None:
        gone = []
        for extent in self.index.oldest_extents(100) if dead else []:
            current = self.locations.current(extent)
            if current is not None:
                if self.messages.is_kept(current):
                    break
                gone.append(current)
        self.locations.remove(gone)
        frame = self.messages.next_frame - 1
        checkpoint = IndexChanges(
            frame, 0, b"", self.index.blocks.freeze(), self.index.entries.freeze(), self.locations.freeze()
        )
        self.write()
        self.log.sync()
        self.log.trim(self.index.write(checkpoint))
        self.index.blocks.written()
        self.index.entries.written()
        self.locations.written()

    def check(self, store: str, first: int, last: int) -> None:
        expected = {seq: found for seq, found in self.kept[store].items() if first <= seq <= last}
        assert [kept.seq for kept in self.messages.read(store, first, last)] == list(expected)
        found = {one.seq: one for one in self.messages.deliveries(store, [(first, last, 2)])}
        for seq, message in expected.items():
            one = found[seq]
            assert (one.body, one.key, one.fields) == (message.body, message.key, message.fields)
            assert one.redelivered
        assert list(found) == sorted(found)

    def close(self) -> None:
        self.write()
        self.log.close()
        self.index.close()


def step(dice: random.Random, desk: Desk) -> None:
    store = dice.choice(STORES)
    last = desk.next_seq[store] - 1
    what = dice.random()
    if what < 0.5:
        count = dice.choice((1, 1, 1, 2, 30))
        bodies = [dice.randbytes(dice.choice((0, 10, 100, 3000))) for _ in range(count)]
        desk.publish(store, [Message(body=body, key=str(len(body)), fields={"n": len(body)}) for body in bodies])
    elif what < 0.6:
        desk.write()
    elif what < 0.75 and last:
        first = min(desk.kept[store], default=last) if dice.random() < 0.6 else dice.randint(1, last)
        desk.release(store, first, min(last, first + dice.randrange(8)))
    elif what < 0.8:
        desk.relocate_oldest()
    elif what < 0.85:
        desk.checkpoint(dead=dice.random() < 0.8)
    elif last:
        first = dice.randint(1, last)
        desk.check(store, first, min(last, first + dice.choice((0, 5, 200))))


@pytest.mark.parametrize("seed", range(8))
def test_every_kept_message_is_read_wherever_it_lies(tmp_path: Path, seed: int) -> None:
    dice, desk = random.Random(seed), Desk(tmp_path)
    for _ in range(400):
        step(dice, desk)
    for store in STORES:
        desk.check(store, 1, desk.next_seq[store])
        assert desk.messages.message(store, desk.next_seq[store]) is None
    desk.close()


def test_pages_go_when_nothing_in_front_is_kept_and_no_earlier(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    for _ in range(200):
        desk.publish("a", [Message(body=bytes(2000))])
    desk.checkpoint(dead=True)
    first_page = min(desk.log.queue.pages.numbers())
    assert desk.log.first == 1
    desk.release("a", 2, 200)
    desk.checkpoint(dead=True)
    assert desk.log.first == 1, "the first message is kept still"
    assert first_page in desk.log.queue.pages.numbers()
    desk.relocate_oldest()
    desk.checkpoint(dead=True)
    assert desk.log.first > 100
    # Not the number of pages: the next one is prepared in the background and may be there or not.
    assert first_page not in desk.log.queue.pages.numbers()
    desk.check("a", 1, 200)
    desk.close()


def test_a_kept_message_that_the_log_has_lost_is_an_error_and_not_a_gap(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    for _ in range(200):
        desk.publish("a", [Message(body=bytes(2000))])
        desk.write()
    desk.checkpoint(dead=True)
    desk.log.trim(150)
    with pytest.raises(CorruptData, match="not in the log any more"):
        desk.messages.read("a", 1, 1)
    desk.release("a", 1, 100)
    assert desk.messages.deliveries("a", [(1, 1, 1)]) == []
    desk.close()


def frames_of(locations: Locations) -> dict[int, int]:
    """The first frame of the extent of each message."""
    found = [(seq, locations.find("a", seq)) for seq in range(1, 41)]
    return {seq: extent.first_frame for seq, extent in found if extent is not None}


def test_moved_messages_need_not_be_one_extent(tmp_path: Path) -> None:
    """After a start the same messages are joined otherwise: one extent may then be parts of others."""
    desk = Desk(tmp_path)
    locations = desk.locations
    locations.add("a", 1, 10, 1, 100)
    locations.add("a", 11, 20, 2, 100)
    locations.forget_store("b")
    locations.move("a", 21, 30, 3, 100)
    locations.add("a", 31, 40, 4, 100)
    locations.move("a", 6, 35, 9, 50)
    frames = frames_of(locations)
    assert frames == {
        **dict.fromkeys(range(1, 6), 1),
        **dict.fromkeys(range(6, 36), 9),
        **dict.fromkeys(range(36, 41), 4),
    }
    desk.checkpoint(dead=False)
    assert frames_of(locations) == frames
    locations.move("a", 1, 40, 12, 50)
    assert locations.find("a", 40) == locations.find("a", 1)
    desk.checkpoint(dead=False)
    assert [extent[1:4] for extent in desk.index.oldest_extents(9)] == [(1, 40, 12)]
    desk.close()


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x02\xc1", b"\x03\x90", b"\x01\x92\xc0\xc0"])
def test_bytes_that_are_no_frame_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptData, match="frame=7"):
        decode_frame(data, 7)
