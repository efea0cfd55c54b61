"""The state machine under test with its log and its checkpoints, and what a crash leaves of them.

The log is a list of encoded records of which a prefix is durable. A checkpoint is a snapshot with copies of what the
ports keep, at a durable position. After a crash the newest checkpoint is restored, and the records after it are applied
again; each must give the result that it gave the first time, or ``PromiseBroken`` is raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from tests.worlds.harness import PromiseBroken
from tests.worlds.stores.memory_ports import MemoryBlocks, MemoryEntries, MemoryMessages
from tests.worlds.stores.promises import promise

from holdfast.errors import HoldfastError
from holdfast.stores.machine.state import State
from holdfast.stores.values.commands import RULES, Command, Record
from holdfast.stores.values.effects import Applied
from holdfast.stores.values.ports import BLOCK_MESSAGES
from holdfast.wire.parts import FieldValue

__all__ = ["Image", "Machine"]


SOME_FIELDS: Final[tuple[Mapping[str, FieldValue], ...]] = ({}, {"kind": "a", "n": 3})


@dataclass(frozen=True, slots=True)
class Image:
    """A checkpoint: the state after ``position`` records."""

    position: int
    snapshot: bytes
    blocks: MemoryBlocks
    entries: MemoryEntries
    messages: MemoryMessages


class Machine:
    """One life of the state machine on a log that outlives it."""

    def __init__(self, log: list[bytes] | None = None, image: Image | None = None) -> None:
        self.log: list[bytes] = log if log is not None else []
        if image is None:
            blocks, entries = MemoryBlocks(strict=True), MemoryEntries()
            image = Image(0, b"", blocks, entries, MemoryMessages(blocks))
        self.blocks, self.entries = image.blocks.copy(), image.entries.copy()
        self.messages = image.messages.copy(self.blocks)
        forgotten = MemoryBlocks()
        # What lives in memory only begins empty with every life.
        volatile = MemoryMessages(forgotten), forgotten, MemoryEntries()
        self.state = State(self.messages, self.blocks, self.entries, volatile)
        if image.snapshot:
            self.state.restore(image.snapshot)
        for data in self.log[image.position :]:
            self.follow(data)
        self.check()

    def follow(self, data: bytes) -> Applied:
        """Carry out a record of the log again."""
        record = msgspec.msgpack.decode(data, type=Record)
        try:
            applied = self.state.apply(record.command)
        except HoldfastError as error:
            raise PromiseBroken(f"replay is the same: record={record!r} now={error}") from error
        promise(applied.result == record.result, "replay is the same", record=record, now=applied.result)
        return applied

    def check(self) -> None:
        """Every invariant of the state machine. It only looks, so blocks need not be copied for it."""
        self.blocks.strict = False
        self.state.check()
        self.blocks.strict = True

    def apply(self, command: Command) -> Applied:
        """Carry out a command and write its record, as the service does. Raises what the state machine does.

        A command of a store in memory has no record.
        """
        applied = self.state.apply(command)
        if applied.changed and not self.state.is_volatile(command):
            self.log.append(msgspec.msgpack.encode(Record(command, applied.result, RULES)))
        return applied

    def image(self) -> Image:
        """A checkpoint of now."""
        blocks = self.blocks.copy()
        return Image(len(self.log), self.state.snapshot(), blocks, self.entries.copy(), self.messages.copy(blocks))

    def kept(self, store: str) -> set[int]:
        """The messages of a store that some durable keeps."""
        return {
            number * BLOCK_MESSAGES + place
            for (name, number), block in self.blocks.blocks.items()
            if name == store and block.live
            for place, count in enumerate(block.references)
            if count
        }

    def fingerprint(self) -> bytes:
        """Everything that a recovery or a follower has to be, as bytes: the snapshot, the deadlines, what the ports
        hold, and in which order a publication finds the durables."""
        blocks = [
            (
                *(*key, block.live, block.live_bytes, block.earliest_ms, block.swept_ms, block.timed),
                *(bytes(block.references), bytes(block.sizes), bytes(block.published_ms)),
            )
            for key, block in sorted(self.blocks.blocks.items())
        ]
        entries = [(*key, list(found.values())) for key, found in sorted(self.entries.entries.items()) if found]
        deadlines = sorted(self.state.deadlines.items().items())
        logged = [store for name, store in self.state.stores.items() if name not in self.state.volatile_names]
        order = [(store.name, store.wanting(fields)) for store in logged for fields in SOME_FIELDS]
        return msgspec.msgpack.encode((self.state.snapshot(), deadlines, blocks, entries, order))
