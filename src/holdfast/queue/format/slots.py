"""Two slots A and B: a small value that is replaced without ever being absent.

Owns: the 512 bytes of a slot, which slot is written next, which of two is believed. Does not own: what the value means
(``write_mark``, cursors), the file.

Failure model: pure. A slot that does not verify does not count; with neither there is no value.

Generation ``g`` lives in slot ``g mod 2``, at offset 512 x (g mod 2). A crash in the middle of writing one leaves the
other. Each is one sector, so one is never half of two versions on a disk that writes whole sectors; where it is anyway,
the check tells. Little-endian:

| offset | bytes | field |
|---|---|---|
| 0 | 4 | the text ``HFQS`` |
| 4 | 2 | format version: 1 |
| 6 | 2 | length of the value |
| 8 | 8 | generation, at least 1, one more at each writing |
| 16 | 492 | the value, then zeros |
| 508 | 4 | CRC-32 of the 508 bytes before |
"""

from __future__ import annotations

from struct import Struct
from zlib import crc32

__all__ = ["SLOTS_BYTES", "SLOT_BYTES", "VALUE_BYTES_MAX", "encode_slot", "newest_slot", "slot_offset"]

SLOT_BYTES = 512
SLOTS_BYTES = 2 * SLOT_BYTES
HEAD = Struct("<4sHHQ")
MAGIC = b"HFQS"
VERSION = 1
VALUE_BYTES_MAX = SLOT_BYTES - HEAD.size - 4

_CHECK = Struct("<I")


def slot_offset(generation: int) -> int:
    """Where in the file this generation is written."""
    return SLOT_BYTES * (generation % 2)


def encode_slot(generation: int, value: bytes) -> bytes:
    """The 512 bytes of one slot. ``value`` has at most 492."""
    assert len(value) <= VALUE_BYTES_MAX, "a value fits into its slot"
    data = (HEAD.pack(MAGIC, VERSION, len(value), generation) + value).ljust(SLOT_BYTES - 4, b"\0")
    return data + _CHECK.pack(crc32(data))


def newest_slot(data: bytes) -> tuple[int, bytes] | None:
    """Generation and value of the newest slot that verifies, of a file's first 1024 bytes.

    >>> old, new = encode_slot(6, b"old"), encode_slot(7, b"new")
    >>> newest_slot(old + new), newest_slot(old + new[:-1]), newest_slot(b"")
    ((7, b'new'), (6, b'old'), None)
    """
    best: tuple[int, bytes] | None = None
    for start in (0, SLOT_BYTES):
        slot = data[start : start + SLOT_BYTES]
        if len(slot) < SLOT_BYTES or _CHECK.unpack_from(slot, SLOT_BYTES - 4)[0] != crc32(slot[: SLOT_BYTES - 4]):
            continue
        magic, version, length, generation = HEAD.unpack_from(slot)
        if magic != MAGIC or version != VERSION or length > VALUE_BYTES_MAX or slot_offset(generation) != start:
            continue
        if best is None or generation > best[0]:
            best = generation, slot[HEAD.size : HEAD.size + length]
    return best
