"""The header of a page file ``<prefix>-<number>.page`` and the records of its index ``<prefix>-<number>.idx``. Pure.

A header that does not verify is ``None``; one of a later format is ``CorruptData``. Little-endian. The header:

| offset | bytes | field |
|---|---|---|
| 0 | 8 | the text ``HFQPAGE`` and a zero |
| 8 | 2 | format version: 1 |
| 10 | 2 | flags: bit 0 *prepared*: made ahead, base sequence and base time not known yet; others zero |
| 12 | 4 | checksum id of the frames (``checksum``); the header's own is always CRC-32 |
| 16 | 4 | page size in bytes, at most 2^32 - 1 |
| 20 | 4 | skipped in all: the sum of *skipped* of this page and all before it, at most 2^32 - 1 |
| 24 | 8 | page number, that of the file's name |
| 32 | 8 | base sequence: of the first message in this page |
| 40 | 8 | base time: arrival of the first frame, nanoseconds since 1970, signed |
| 48 | 8 | salt: random for every life of a page |
| 56 | 4 | skipped: this many numbers directly below the base were used and never durable (``judgement``); mostly 0 |
| 60 | 4 | CRC-32 of the 60 bytes before |

A page is prepared before its use, so its header is written twice: *prepared* when the file is made, and whole just
before the first frame, both within one sector. If a crash loses the second writing and spares frames, the base is the
end of the page before, and the frames verify for it or there are none.

An index record, one for each batch and at most one in 4 KiB for frames of a single message, by rising position and
time. The index is derived from its page: it may be absent, short or damaged, and each record is a hint that the reader
verifies.

| offset | bytes | field |
|---|---|---|
| 0 | 8 | arrival of the frame, nanoseconds since 1970, signed |
| 8 | 4 | position of the frame in its page |
"""

from __future__ import annotations

import sys
from array import array
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from holdfast.errors import Code, CorruptData

HEADER = Struct("<8sHHIIIQQqQI")
SKIPPED_MAX = (1 << 32) - 1
HEADER_BYTES = 64
MAGIC = b"HFQPAGE\0"
VERSION = 1
PREPARED = 1
PAGE_BYTES_MAX = (1 << 32) - 1

_CHECK = Struct("<I")


class PageHeader(NamedTuple):
    """One decoded header. ``base_seq`` and ``base_time_ns`` are 0 while ``prepared``. ``restored``: the bytes on disk
    are damaged, and these fields follow by rule.
    """

    number: int
    page_bytes: int
    salt: int
    checksum_id: int
    base_seq: int = 0
    base_time_ns: int = 0
    skipped: int = 0
    skipped_in_all: int = 0
    prepared: bool = False
    restored: bool = False

    @property
    def after_seq(self) -> int:
        """The number with which the page before ends: its last one and 1."""
        return self.base_seq - self.skipped

    def started(self, base_seq: int, base_time_ns: int, *, skipped: int = 0, skipped_in_all: int = 0) -> PageHeader:
        """The same page, its first message known."""
        return self._replace(
            base_seq=base_seq,
            base_time_ns=base_time_ns,
            skipped=skipped,
            skipped_in_all=min(skipped_in_all, SKIPPED_MAX),
            prepared=False,
        )


def encode_header(header: PageHeader) -> bytes:
    """The 64 bytes."""
    fields = HEADER.pack(
        *(MAGIC, VERSION, PREPARED if header.prepared else 0, header.checksum_id, header.page_bytes),
        *(header.skipped_in_all, header.number, header.base_seq, header.base_time_ns, header.salt, header.skipped),
    )
    return fields + _CHECK.pack(crc32(fields))


def decode_header(data: bytes, number: int) -> PageHeader | None:
    """The header of page ``number``, or None where these bytes are not one.

    Raises: ``CorruptData`` for a later format.

    >>> header = PageHeader(number=3, page_bytes=4096, salt=7, checksum_id=1, base_seq=12, base_time_ns=5)
    >>> decode_header(encode_header(header), 3).base_seq, decode_header(encode_header(header), 4)
    (12, None)
    """
    if len(data) < HEADER_BYTES or _CHECK.unpack_from(data, HEADER.size)[0] != crc32(data[: HEADER.size]):
        return None
    fields = HEADER.unpack_from(data)
    magic, version, flags, checksum_id, page_bytes, skipped_in_all, stored_number = fields[:7]
    base_seq, base_time_ns, salt, skipped = fields[7:]
    if magic != MAGIC or stored_number != number or (skipped and skipped >= base_seq):
        return None
    if version != VERSION or flags & ~PREPARED:
        raise CorruptData(
            "a page was written by a later version of holdfast",
            code=Code.CORRUPT_QUEUE,
            page=number,
            format_version=version,
            hint="nothing is damaged: use that version",
        )
    prepared = bool(flags & PREPARED)
    return PageHeader(
        number, page_bytes, salt, checksum_id, base_seq, base_time_ns, skipped, skipped_in_all, prepared=prepared
    )


_one_byte: dict[int, tuple[int, int]] = {}
"""For each change of the checksum that one damaged byte makes: its offset and the bits that are wrong."""


def nearest_header(data: bytes, number: int) -> PageHeader | None:
    """The header of which one byte is damaged, or None. More damage is taken for one byte about once in 260,000 times.

    A checksum is linear: one damaged byte changes it in a way that no other byte does. Cost: 10 ms once, then a look.

    >>> damaged = bytearray(encode_header(PageHeader(number=3, page_bytes=4096, salt=7, checksum_id=1, base_seq=12)))
    >>> damaged[50] ^= 0xFF
    >>> decode_header(bytes(damaged), 3), nearest_header(bytes(damaged), 3).salt
    (None, 7)
    """
    if len(data) < HEADER_BYTES:
        return None
    if not _one_byte:
        nothing = bytes(HEADER.size)
        for offset in range(HEADER.size):
            for bits in range(1, 256):
                changed = nothing[:offset] + bytes((bits,)) + nothing[offset + 1 :]
                _one_byte[crc32(changed) ^ crc32(nothing)] = offset, bits
    guess = bytearray(data[:HEADER_BYTES])
    difference = crc32(guess[: HEADER.size]) ^ _CHECK.unpack_from(guess, HEADER.size)[0]
    if difference in _one_byte:
        offset, bits = _one_byte[difference]
        guess[offset] ^= bits
    elif sum(octet != 0 for octet in _CHECK.pack(difference)) == 1:  # a byte of the checksum itself
        _CHECK.pack_into(guess, HEADER.size, crc32(guess[: HEADER.size]))
    else:
        return None
    try:
        header = decode_header(bytes(guess), number)
    except CorruptData:  # of a later version, as far as one byte can say
        return None
    return None if header is None else header._replace(restored=True)


RECORD = Struct("<qI")
RECORD_BYTES = RECORD.size
SINGLES_SPACING_BYTES = 4096


def times_and_positions(data: bytes) -> tuple[array[int], array[int]]:
    """The whole records in ``data`` as arrays, for fast searches by time.

    >>> times_and_positions(RECORD.pack(-5, 64) + RECORD.pack(7, 96) + b"torn")
    (array('q', [-5, 7]), array('I', [64, 96]))
    """
    count = len(data) // RECORD_BYTES
    words = array("I", data[: count * RECORD_BYTES])
    halves = array("I", bytes(8 * count))
    if sys.byteorder == "little":
        halves[0::2], halves[1::2] = words[0::3], words[1::3]
    else:
        words.byteswap()
        halves[1::2], halves[0::2] = words[0::3], words[1::3]
    return array("q", halves.tobytes()), words[2::3]
