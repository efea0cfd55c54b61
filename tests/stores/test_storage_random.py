"""The machine on disk is the machine in memory: the same commands, with caches of almost nothing, checkpoints, moved
messages, removed pages and crashes in between, give the same results and the same state."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.matrix import matrix
from tests.stores.test_state_random import World

from holdfast.errors import HoldfastError
from holdfast.stores.checkpoints import Checkpoints, Compaction
from holdfast.stores.group_commit import GroupCommit
from holdfast.stores.storage.frames import encode_record
from holdfast.stores.storage.index import Index
from holdfast.stores.storage.log import MessageLog
from holdfast.stores.storage.storage import Storage
from holdfast.stores.values.commands import RULES, Command, Record

SEEDS = range(300 if os.environ.get("HOLDFAST_PROVE") else 8)
STEPS = 150
PAGE_BYTES = 8_192


class Frames(GroupCommit):
    """Keeps what compaction writes, for ``Disk`` to write with the rest."""

    def __init__(self, keep: Callable[[bytes], None]) -> None:
        self.keep = keep

    def add(
        self, frame: bytes | None, answer: Callable[[BaseException | None], None], *, at_once: bool = False
    ) -> None:
        assert frame is not None
        self.keep(frame)


class Disk:
    """What the service does about files, with dice for its timing."""

    def __init__(self, path: Path, dice: random.Random) -> None:
        self.path = path
        self.dice = dice
        self.waiting: list[tuple[bytes, Command | None]] = []
        self.trimmed = self.moved = self.crashes = 0
        self.open()

    def open(self) -> None:
        log = MessageLog(str(self.path), page_bytes=PAGE_BYTES)
        self.storage = Storage(log, Index(str(self.path), blocks_max=1), memory_bytes=4_000)
        self.storage._recover()
        self.compaction = Compaction(
            self.storage, Frames(lambda frame: self.waiting.append((frame, None))), Checkpoints.__new__(Checkpoints)
        )

    def apply(self, command: Command) -> Record:
        """Carry a command out that changes something."""
        applied = self.storage.state.apply(command)
        record = Record(command, applied.result, RULES)
        frame = encode_record(record)
        self.storage.note_frame(len(frame))
        self.storage.messages.next_frame += 1
        self.waiting.append((frame, command))
        return record

    def refuse(self, command: Command) -> None:
        """Carry a command out that the machine in memory refuses."""
        with pytest.raises(HoldfastError):
            self.storage.state.apply(command)

    def write(self) -> None:
        if self.waiting:
            self.storage.log.append([frame for frame, _ in self.waiting])
            self.waiting = []

    def work(self) -> None:
        """Something that the service does beside its commands, or nothing."""
        what = self.dice.random()
        if what < 0.3:
            self.write()
        elif what < 0.4:
            checkpoint = self.storage.begin_checkpoint()
            self.write()
            self.trimmed += self.storage.write_checkpoint(checkpoint)
            self.storage.end_checkpoint()
        elif what < 0.5:
            for extent in self.storage.index.oldest_extents(self.dice.randrange(4)):
                current = self.storage.locations.current(extent)
                if current is not None:
                    self.moved += self.compaction._move(current) > 0
        elif what < 0.53:
            self.crash()

    def crash(self) -> None:
        """What was not written is lost, nobody was told of it, and so it is asked for again."""
        self.crashes += 1
        lost = [command for _, command in self.waiting if command is not None]
        if self.dice.random() < 0.3:
            # In the middle of a checkpoint: it is in the index, and nothing was removed yet.
            checkpoint = self.storage.begin_checkpoint()
            self.write()
            lost = []
            self.storage.log.sync()
            self.storage.index.write(checkpoint)
        self.waiting = []
        self.storage.close()
        self.open()
        for command in lost:
            self.apply(command)


class TwinWorld(World):
    """A world whose commands go to both machines."""

    def __init__(self, seed: int, path: Path) -> None:
        super().__init__(seed)
        self.disk = Disk(path, random.Random(seed))

    def apply(self, command: Command) -> None:
        """See ``World``; then the same on disk."""
        before = len(self.log)
        super().apply(command)
        if len(self.log) > before:
            assert self.disk.apply(command).result == self.log[-1].result
            assert self.disk.storage.state.snapshot() == self.state.snapshot()
        self.disk.work()


@pytest.mark.parametrize("seed", matrix(SEEDS, 2))
def test_the_machine_on_disk_is_the_machine_in_memory(tmp_path: Path, seed: int) -> None:
    world = TwinWorld(seed, tmp_path)
    world.apply(world.redefine())
    for _ in range(STEPS):
        world.step()
    disk = world.disk
    disk.storage.state.check()
    for store, found in world.state.stores.items():
        last = found.counts.next_seq
        kept = list(world.messages.read(store, 1, last))
        assert list(disk.storage.messages.read(store, 1, last)) == kept
        for one in kept:
            message = disk.storage.messages.message(store, one.seq)
            assert message is not None
            assert message[0].body == world.messages.bodies[store, one.seq].body
    assert disk.crashes or disk.moved or disk.trimmed
    disk.write()
    disk.storage.close()
