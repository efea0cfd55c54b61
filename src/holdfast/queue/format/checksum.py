"""Checksums of queue pages, by the id in a page's header.

An unknown id is ``CorruptData``; writing CRC-32C without the package ``crc32c`` is refused.

| id | polynomial | function |
|---|---|---|
| 1 | CRC-32, as in zlib and Ethernet | the package ``zlib-ng``; where it is absent ``zlib.crc32``, 10 times slower |
| 2 | CRC-32C (Castagnoli) | the package ``crc32c``; a table of 256 entries where it is absent, about 100 times slower |
"""

from __future__ import annotations

import importlib

from holdfast.crc32 import Checksum, Octets, fastest_crc32
from holdfast.errors import Code, CorruptData, InvalidRequest

CRC32 = 1
CRC32C = 2

_CASTAGNOLI_REVERSED = 0x82F63B78
_table: list[int] = []


def _crc32c_by_table(data: Octets, value: int = 0) -> int:
    if not _table:
        for octet in range(256):
            entry = octet
            for _ in range(8):
                entry = entry >> 1 ^ (_CASTAGNOLI_REVERSED if entry & 1 else 0)
            _table.append(entry)
    table = _table
    value ^= 0xFFFFFFFF
    for octet in memoryview(data).cast("B"):
        value = table[(value ^ octet) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


def _package() -> Checksum | None:
    try:
        function: Checksum = importlib.import_module("crc32c").crc32c
    except ImportError:
        return None
    return function


def checksum_for_reading(checksum_id: int) -> Checksum:
    """The checksum function of an existing page.

    Raises: ``CorruptData`` for an unknown id.

    >>> hex(checksum_for_reading(CRC32)(b"123456789", 0)), hex(checksum_for_reading(CRC32C)(b"123456789", 0))
    ('0xcbf43926', '0xe3069283')
    """
    if checksum_id == CRC32:
        return fastest_crc32()
    if checksum_id == CRC32C:
        return _package() or _crc32c_by_table
    raise CorruptData("unknown checksum", code=Code.CORRUPT_QUEUE, checksum_id=checksum_id)


def checksum_for_writing(checksum_id: int) -> Checksum:
    """The checksum of a new page. Raises: ``InvalidRequest`` for an unknown id, or CRC-32C without its package."""
    if checksum_id == CRC32:
        return fastest_crc32()
    function = _package() if checksum_id == CRC32C else None
    if function is None:
        raise InvalidRequest(
            "this Python cannot compute this checksum", checksum_id=checksum_id, hint="install the package crc32c"
        )
    return function
