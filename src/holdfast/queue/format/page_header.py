"""The first 64 bytes of a page.

Owns: the fields of the header and its validity. Does not own: frames (``frame``), creation (``page_files``).

Failure model: pure. A header that does not verify is ``None``: the caller knows what that means where it stands. One
that verifies and is of a later format is ``CorruptData``: nothing may be decided about what cannot be read.

Little-endian:

| offset | bytes | field |
|---|---|---|
| 0 | 8 | the text ``HFQPAGE`` and a zero |
| 8 | 2 | format version: 1 |
| 10 | 2 | flags: bit 0 *prepared*: made ahead, base sequence and base time not known yet; others zero |
| 12 | 4 | checksum id of the frames (``checksum``); the header's own is always CRC-32 |
| 16 | 4 | page size in bytes, at most 2^32 - 1 |
| 20 | 4 | zero |
| 24 | 8 | page number, that of the file's name |
| 32 | 8 | base sequence: of the first message in this page |
| 40 | 8 | base time: arrival of the first frame, nanoseconds since 1970, signed |
| 48 | 8 | salt: random for every life of a page |
| 56 | 4 | zero |
| 60 | 4 | CRC-32 of the 60 bytes before |

A page is made ahead of its use, so its header is written twice: *prepared* when the file is made, and whole just before
the first frame. Both are within one sector. Where the second writing is lost in a crash while frames are not, the base
is that which the page before it ends with, and the frames verify for it or there are none.
"""

from __future__ import annotations

from struct import Struct
from zlib import crc32

from holdfast.errors import Code, CorruptData

__all__ = ["HEADER_BYTES", "PAGE_BYTES_MAX", "VERSION", "PageHeader", "decode_header", "encode_header"]

HEADER = Struct("<8sHHIIIQQqQI")
HEADER_BYTES = 64
MAGIC = b"HFQPAGE\0"
VERSION = 1
PREPARED = 1
PAGE_BYTES_MAX = (1 << 32) - 1

_CHECK = Struct("<I")


class PageHeader:
    """One decoded header. ``base_seq`` and ``base_time_ns`` are 0 while ``prepared``."""

    __slots__ = ("base_seq", "base_time_ns", "checksum_id", "number", "page_bytes", "prepared", "salt")

    def __init__(
        self,
        *,
        number: int,
        page_bytes: int,
        salt: int,
        checksum_id: int,
        base_seq: int = 0,
        base_time_ns: int = 0,
        prepared: bool = False,
    ) -> None:
        self.number = number
        self.page_bytes = page_bytes
        self.salt = salt
        self.checksum_id = checksum_id
        self.base_seq = base_seq
        self.base_time_ns = base_time_ns
        self.prepared = prepared

    def started(self, base_seq: int, base_time_ns: int) -> PageHeader:
        """The same page, its first message known."""
        return PageHeader(
            number=self.number,
            page_bytes=self.page_bytes,
            salt=self.salt,
            checksum_id=self.checksum_id,
            base_seq=base_seq,
            base_time_ns=base_time_ns,
        )


def encode_header(header: PageHeader) -> bytes:
    """The 64 bytes."""
    fields = HEADER.pack(
        MAGIC,
        VERSION,
        PREPARED if header.prepared else 0,
        header.checksum_id,
        header.page_bytes,
        0,
        header.number,
        header.base_seq,
        header.base_time_ns,
        header.salt,
        0,
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
    magic, version, flags, checksum_id, page_bytes, _, found, base_seq, base_time_ns, salt, _ = HEADER.unpack_from(data)
    if magic != MAGIC or found != number:
        return None
    if version != VERSION or flags & ~PREPARED:
        raise CorruptData(
            "a page was written by a later version of holdfast",
            code=Code.CORRUPT_QUEUE,
            page=number,
            format_version=version,
            hint="nothing is damaged: use that version",
        )
    return PageHeader(
        number=number,
        page_bytes=page_bytes,
        salt=salt,
        checksum_id=checksum_id,
        base_seq=base_seq,
        base_time_ns=base_time_ns,
        prepared=bool(flags & PREPARED),
    )
