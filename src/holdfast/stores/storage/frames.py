"""The content of one frame of the stores' log, in bytes, and the messages that it carries.

One frame is one message of the log's queue:

| byte | then, in msgpack | what |
|---|---|---|
| 1 | ``Record``: [command, result] | a command that was applied |
| 2 | ``Relocated``: [store, first, last, runs] | compaction: the messages of ``first..last`` are these now |
| 3 | after 8 bytes, little-endian: ``Record`` | as 1, in the cache of a commit log: the version of its entry |

Both arrays only ever get items at their ends. A relocation changes no state: what is still kept of these messages is
here now, so their old pages may be removed. Invalid bytes and unknown kinds raise ``CorruptData``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from holdfast.errors import CorruptData
from holdfast.stores.values import commands
from holdfast.wire.parts import Message

RECORD: Final = b"\x01"
RELOCATED: Final = b"\x02"
VERSIONED: Final = b"\x03"
_VERSION: Final = struct.Struct("<Q")


class MessageRun(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Messages of one store with consecutive numbers from ``first_seq`` on, all published at ``published_ms``.

    A tuple, because the garbage collector stops tracking tuples without cycles, and there are many.
    """

    store: str
    first_seq: int
    published_ms: int
    messages: tuple[Message, ...]

    @property
    def last_seq(self) -> int:
        """The number of the last message."""
        return self.first_seq + len(self.messages) - 1


class Relocated(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Of the messages ``first_seq`` to ``last_seq`` of a store, those in ``runs`` are kept; they are read here now."""

    store: str
    first_seq: int
    last_seq: int
    runs: list[MessageRun]


_encoder = msgspec.msgpack.Encoder()
_records = msgspec.msgpack.Decoder(commands.Record)
_relocations = msgspec.msgpack.Decoder(Relocated)


def encode_record(record: commands.Record) -> bytes:
    """The bytes of a frame. *Cost*: about 0.1 microseconds a message and a copy of the bodies."""
    return RECORD + _encoder.encode(record)


def encode_relocated(relocated: Relocated) -> bytes:
    """The bytes of a frame."""
    return RELOCATED + _encoder.encode(relocated)


def with_version(frame: bytes, version: int) -> bytes:
    """A record's frame for the cache of a commit log; other frames are the same there.

    >>> version_of(with_version(RECORD, 7)), version_of(RECORD)
    (7, None)
    """
    if not frame.startswith(RECORD):
        return frame
    return b"".join((VERSIONED, _VERSION.pack(version), memoryview(frame)[1:]))


def version_of(frame: bytes) -> int | None:
    """The version of a record's entry in the commit log, None in other frames."""
    return _VERSION.unpack_from(frame, 1)[0] if frame.startswith(VERSIONED) else None


def decode_frame(data: bytes, number: int) -> commands.Record | Relocated:
    """What a frame says. ``number`` is for the error.

    *Raises*: ``CorruptData``.

    >>> decode_frame(encode_relocated(Relocated("s", 1, 9, [])), 1)
    Relocated(store='s', first_seq=1, last_seq=9, runs=[])
    """
    kind = data[:1]
    try:
        if kind == RECORD:
            return _records.decode(memoryview(data)[1:])
        if kind == VERSIONED:
            return _records.decode(memoryview(data)[1 + _VERSION.size :])
        if kind == RELOCATED:
            return _relocations.decode(memoryview(data)[1:])
    except msgspec.DecodeError as error:
        raise CorruptData("a frame of the stores' log is damaged", frame=number) from error
    raise CorruptData(
        "a frame of the stores' log is of an unknown kind",
        frame=number,
        kind=kind.hex(),
        hint="it was written by a later version",
    )


def runs_of(frame: commands.Record | Relocated) -> list[MessageRun]:
    """The messages that a frame brings into the log, with their numbers.

    Duplicates of a batch come first and were brought by an earlier frame. A change of a map is a message whose body is
    the value and whose number is the revision.
    """
    if isinstance(frame, Relocated):
        return frame.runs
    command, result = frame.command, frame.result
    if isinstance(command, commands.CommitParts) and isinstance(result, commands.PartsCommitted):
        return [run for part, done in zip(command.parts, result.results, strict=True) for run in _runs(part, done)]
    return _runs(command, result)


def removals_of(frame: commands.Record | Relocated) -> frozenset[tuple[str, int]]:
    """The changes of maps in a frame that removed their key: the store and the number of each."""
    removals: set[tuple[str, int]] = set()
    for command, result in _map_changes(frame):
        bodies = [body for position, (_, body, _) in enumerate(command.changes) if position not in result.absent]
        first = result.revision - len(bodies) + 1
        removals.update((command.store, seq) for seq, body in enumerate(bodies, first) if body is None)
    return frozenset(removals)


def clears_of(frame: commands.Record | Relocated, store: str) -> list[int]:
    """The numbers of the changes in a frame that cleared a whole map of ``store``."""
    changes = [each for each in _map_changes(frame) if each[0].remove_all and each[0].store == store]
    return [result.revision for _, result in changes if result.changed]


def _map_changes(frame: commands.Record | Relocated) -> Iterator[tuple[commands.MapChange, commands.MapChanged]]:
    """The changes of maps, alone or as parts of a commit, with their results."""
    if isinstance(frame, Relocated):
        return
    pairs: Iterable[tuple[object, object]] = [(frame.command, frame.result)]
    if isinstance(frame.command, commands.CommitParts) and isinstance(frame.result, commands.PartsCommitted):
        pairs = zip(frame.command.parts, frame.result.results, strict=True)
    for command, result in pairs:
        if isinstance(command, commands.MapChange) and isinstance(result, commands.MapChanged):
            yield command, result


def _runs(command: commands.Command, result: commands.Result) -> list[MessageRun]:
    if type(command) is commands.Publish and type(result) is commands.Published:
        new = command.messages[result.duplicates :] if result.duplicates else command.messages
        if new:
            return [MessageRun(command.store, result.last_seq - len(new) + 1, command.at_ms, tuple(new))]
    elif type(command) is commands.DeadLetter and type(result) is commands.Published:
        if command.to_store and result.last_seq:
            return [MessageRun(command.to_store, result.last_seq, command.at_ms, (command.message,))]
    elif type(command) is commands.Resend and type(result) is commands.Published:
        return [MessageRun(command.to_store, result.last_seq, command.at_ms, (command.message,))]
    elif type(command) is commands.MapChange and type(result) is commands.MapChanged:
        values = tuple(
            Message(body=body or b"", key=key)
            for position, (key, body, _) in enumerate(command.changes)
            if position not in result.absent
        )
        if values:
            return [MessageRun(command.store, result.revision - len(values) + 1, command.at_ms, values)]
    return []
