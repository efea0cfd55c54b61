"""The small files of a queue: ``<prefix>-allMeta`` (identity), A/B slots, the values in ``<prefix>-writeMeta`` and
``<prefix>-<name>.cursor``. Pure.

An identity that does not verify is ``None``, and the queue gets a new one; a later format is ``CorruptData``.
Little-endian. The identity, written once, and again when the first serializer is named; a page's own header wins:

| offset | bytes | field |
|---|---|---|
| 0 | 8 | the text ``HFQUEUE`` and a zero |
| 8 | 2 | format version: 1 |
| 10 | 2 | zero |
| 12 | 4 | checksum id for new pages |
| 16 | 16 | queue id, random |
| 32 | 4 | page size for new pages |
| 36 | 24 | the name of the serializer (``serializers``), ASCII, filled with zeros; all zeros: none is recorded |
| 60 | 4 | CRC-32 of the 60 bytes before |

Two slots hold a small value that is replaced without ever being absent. Generation ``g`` is in slot ``g mod 2``, at
offset 512 x (g mod 2). A crash while writing one leaves the other; a slot that does not verify does not count. A slot:

| offset | bytes | field |
|---|---|---|
| 0 | 4 | the text ``HFQS`` |
| 4 | 2 | format version: 1 |
| 6 | 2 | length of the value |
| 8 | 8 | generation, at least 1, one more at each writing |
| 16 | 492 | the value, then zeros |
| 508 | 4 | CRC-32 of the 508 bytes before |

The write position is a lower bound for the next opening and for readers; an old one costs time. Both slots are durable
before a queue's identity is, so no crash leaves a queue without one. *Written*: the position of the next frame.
Everything before it is in the page cache: true after a killed process, false after a restart of the machine, which the
boot id shows. *Durable*: everything before it was synced first, so it is true after every crash.

| offset | bytes | field |
|---|---|---|
| 0 | 8 | page being written |
| 8 | 8 | its salt: a record about another life of the page does not count |
| 16 | 8 | next sequence number |
| 24 | 8 | arrival of the last frame |
| 32 | 4 | position of the next frame |
| 36 | 4 | frames in the page |
| 40 | 4 | records in the page's index file |
| 44 | 4 | checksum of these records |
| 48 | 4 | position from which the next single frame is indexed |
| 52 | 4 | 1: closed cleanly, everything durable; else 0 |
| 56 | 8 | durable: page |
| 64 | 8 | durable: its salt |
| 72 | 8 | durable: next sequence number |
| 80 | 8 | durable: arrival of the last frame |
| 88 | 4 | durable: position |
| 92 | 4 | zero |
| 96 | 16 | boot id: of the machine's run in which the record was written; zeros where unknown |
| 112 | 8 | first page: those before it were removed on purpose, or never existed |
| 120 | 8 | first message: the base of the first page; 1 until retention removes a page |

The value of a cursor, in ``<prefix>-<name>.cursor``: how far a consumer has come. An unknown version is not a cursor. A
crash of the machine may spare a cursor and take the unsynced messages that it has committed (``log.judgement``).

| offset | bytes | field |
|---|---|---|
| 0 | 2 | version: 1 |
| 2 | 2 | flags: bit 0 a work queue's, not a consumer's; bit 1 retention waits for it; others zero |
| 4 | 4 | zero |
| 8 | 8 | committed: the last message that is done, 0 for none, below 2^62 |
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple
from zlib import crc32

from holdfast.errors import Code, CorruptData

IDENTITY = Struct("<8sHHI16sI24s")
IDENTITY_BYTES = 64
IDENTITY_MAGIC = b"HFQUEUE\0"
IDENTITY_VERSION = 1

_CHECK = Struct("<I")


class QueueIdentity(NamedTuple):
    """What was decided when the queue was made."""

    queue_id: bytes
    page_bytes: int
    checksum_id: int
    serializer: str = ""


def encode_identity(identity: QueueIdentity) -> bytes:
    """The 64 bytes."""
    fields = IDENTITY.pack(
        *(IDENTITY_MAGIC, IDENTITY_VERSION, 0, identity.checksum_id),
        *(identity.queue_id, identity.page_bytes, identity.serializer.encode("ascii")),
    )
    return fields + _CHECK.pack(crc32(fields))


def decode_identity(data: bytes) -> QueueIdentity | None:
    """The identity, or None if these bytes are not one.

    Raises: ``CorruptData`` for a later format.

    >>> decode_identity(encode_identity(QueueIdentity(bytes(16), 4096, 1))).page_bytes, decode_identity(b"")
    (4096, None)
    """
    if len(data) < IDENTITY_BYTES or _CHECK.unpack_from(data, IDENTITY.size)[0] != crc32(data[: IDENTITY.size]):
        return None
    magic, version, _, checksum_id, queue_id, page_bytes, serializer = IDENTITY.unpack_from(data)
    if magic != IDENTITY_MAGIC:
        return None
    if version != IDENTITY_VERSION:
        raise CorruptData(
            "a queue was written by a later version of holdfast",
            code=Code.CORRUPT_QUEUE,
            format_version=version,
            hint="nothing is damaged: use that version",
        )
    return QueueIdentity(queue_id, page_bytes, checksum_id, serializer.rstrip(b"\0").decode("ascii", "replace"))


SLOT_BYTES = 512
SLOTS_BYTES = 2 * SLOT_BYTES
SLOT_HEAD = Struct("<4sHHQ")
SLOT_MAGIC = b"HFQS"
SLOT_VERSION = 1
VALUE_BYTES_MAX = SLOT_BYTES - SLOT_HEAD.size - 4


def slot_offset(generation: int) -> int:
    """Where this generation is written."""
    return SLOT_BYTES * (generation % 2)


def encode_slot(generation: int, value: bytes) -> bytes:
    """The 512 bytes of one slot. ``value`` has at most 492."""
    assert len(value) <= VALUE_BYTES_MAX, "a value fits into its slot"
    data = (SLOT_HEAD.pack(SLOT_MAGIC, SLOT_VERSION, len(value), generation) + value).ljust(SLOT_BYTES - 4, b"\0")
    return data + _CHECK.pack(crc32(data))


def newest_slot(data: bytes) -> tuple[int, bytes] | None:
    """Generation and value of the newest slot that verifies, in a file's first 1024 bytes.

    >>> old, new = encode_slot(6, b"old"), encode_slot(7, b"new")
    >>> newest_slot(old + new), newest_slot(old + new[:-1]), newest_slot(b"")
    ((7, b'new'), (6, b'old'), None)
    """
    slots: list[tuple[int, bytes]] = []
    for start in (0, SLOT_BYTES):
        slot = data[start : start + SLOT_BYTES]
        if len(slot) < SLOT_BYTES or _CHECK.unpack_from(slot, SLOT_BYTES - 4)[0] != crc32(slot[: SLOT_BYTES - 4]):
            continue
        magic, version, length, generation = SLOT_HEAD.unpack_from(slot)
        fits = length <= VALUE_BYTES_MAX and slot_offset(generation) == start
        if (magic, version) == (SLOT_MAGIC, SLOT_VERSION) and fits:
            slots.append((generation, slot[SLOT_HEAD.size : SLOT_HEAD.size + length]))
    return max(slots, default=None)


WRITE_POSITION = Struct("<QQQqIIIIIIQQQqII16sQQ")


class PagePosition(NamedTuple):
    """A position in a page, before the frame of ``next_seq``; ``last_time_ns`` is the arrival of the frame before."""

    page: int
    salt: int
    next_seq: int
    last_time_ns: int
    position: int


class WritePosition(NamedTuple):
    """One write position, by the table above."""

    end: PagePosition
    frames: int
    index_records: int
    index_check: int
    index_due: int
    clean: bool
    durable: PagePosition
    boot_id: bytes
    first_page: int = 1
    first_seq: int = 1

    def is_true(self, boot_id: bytes) -> bool:
        """Whether the written position is true in this run of the machine."""
        return self.clean or (any(boot_id) and self.boot_id == boot_id)

    def encode(self) -> bytes:
        """The value of the slot."""
        return WRITE_POSITION.pack(*self.end, *self[1:6], *self.durable, 0, *self[7:])


def decode_write_position(value: bytes) -> WritePosition | None:
    """The write position, or None for a value of another length."""
    if len(value) != WRITE_POSITION.size:
        return None
    fields = WRITE_POSITION.unpack(value)
    end, durable = PagePosition(*fields[:5]), PagePosition(*fields[10:15])
    return WritePosition._make((end, *fields[5:9], fields[9] == 1, durable, *fields[16:]))


CURSOR = Struct("<HHIQ")
CURSOR_VERSION = 1
OF_WORK_QUEUE = 1
HOLDS = 2
COMMITTED_MAX = 1 << 62


class Cursor(NamedTuple):
    """One decoded cursor: ``committed_seq`` and all before it are done."""

    committed_seq: int
    of_work_queue: bool
    holds: bool


def encode_cursor(committed_seq: int, *, of_work_queue: bool, holds: bool) -> bytes:
    """A whole value.

    >>> cursor = decode_cursor(encode_cursor(60, of_work_queue=False, holds=True))
    >>> cursor.committed_seq, cursor.of_work_queue, cursor.holds
    (60, False, True)
    """
    return CURSOR.pack(
        CURSOR_VERSION, (OF_WORK_QUEUE if of_work_queue else 0) | (HOLDS if holds else 0), 0, committed_seq
    )


def decode_cursor(value: bytes) -> Cursor | None:
    """The cursor, or None where this version does not know these bytes."""
    if len(value) != CURSOR.size:
        return None
    version, flags, _, committed_seq = CURSOR.unpack(value)
    if version != CURSOR_VERSION or committed_seq >= COMMITTED_MAX:
        return None
    return Cursor(committed_seq, of_work_queue=bool(flags & OF_WORK_QUEUE), holds=bool(flags & HOLDS))
