"""A damaged page header, restored from the page itself.

Owns: guessing the fields and proving the guess. Does not own: writing it (``queue_repair``).

The frames of a page are bound to its salt, its number and their sequence numbers. So a guess of the header is proved by
the first frame: it verifies for the right one and for no other. The number is in the file's name, the size is that of
the file, the base is where the page before ends or what the header still says, and the salt is what the header still
says, or that with one bit turned. Anything worse than a turned bit in the salt itself is not restored.

Failure model: None rather than a header that is not proved; ``CorruptData`` for a header that is whole and of another
format version, which is not damage. Reads only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from zlib import crc32

from holdfast.errors import Code, CorruptData
from holdfast.queue.files.pages import PageDirectory
from holdfast.queue.format.checksum import CRC32, CRC32C
from holdfast.queue.format.frame import HEAD, HEAD_BYTES
from holdfast.queue.format.page import HEADER, HEADER_BYTES, PageHeader
from holdfast.queue.log.page_scan import PageScan

__all__ = ["restored_header"]

_VERSION_FIELD: Final = 1
_BASE_SEQ_FIELD: Final = 7
_SALT_FIELD: Final = 9


def restored_header(pages: PageDirectory, file: int, number: int) -> PageHeader | None:
    """The header of the open page ``number`` whose own does not verify, or None where none can be proved."""
    port = pages.port
    raw = port.read(file, 0, HEADER_BYTES + HEAD_BYTES)
    if len(raw) < HEADER_BYTES + HEAD_BYTES:
        return None
    fields = HEADER.unpack_from(raw)
    if int.from_bytes(raw[HEADER.size : HEADER_BYTES], "little") == crc32(raw[: HEADER.size]):
        raise CorruptData(
            "a page is whole and not known here",
            code=Code.CORRUPT_QUEUE,
            page=number,
            format_version=fields[_VERSION_FIELD],
            hint="a newer version of holdfast may have written it; nothing was changed",
        )
    first_time_ns = HEAD.unpack_from(raw, HEADER_BYTES)[2]
    bases = _bases(pages, number, fields[_BASE_SEQ_FIELD])
    for salt in _salts(fields[_SALT_FIELD]):
        for base_seq in bases:
            for checksum_id in (CRC32, CRC32C):
                guess = PageHeader(
                    number=number,
                    page_bytes=port.size(file),
                    salt=salt,
                    checksum_id=checksum_id,
                    base_seq=base_seq,
                    base_time_ns=first_time_ns,
                )
                if PageScan(port, file, guess, next_seq=base_seq).read(HEAD_BYTES) is not None:
                    return guess
    return None


def _salts(found: int) -> Iterator[int]:
    yield found
    for bit in range(64):
        yield found ^ (1 << bit)


def _bases(pages: PageDirectory, number: int, found: int) -> list[int]:
    """Where the page may begin: what its header says, or where the page before it ends."""
    bases = [found]
    if number == 1:
        bases.append(1)
    before = pages.header_of(number - 1)
    file = pages.open(number - 1)
    if file is None:
        return bases
    try:
        if before is not None and not before.prepared:
            scan = PageScan(pages.port, file, before, next_seq=before.base_seq)
            while scan.read() is not None:
                continue
            bases.append(scan.next_seq)
    finally:
        pages.port.close(file)
    return bases
