"""The checksum of a row of the index, which SQLite has none of.

Owns: which bytes it is of. Does not own: the tables (``index``), what is done about a row that fails (who reads it).

Failure model: pure. A flipped bit in a row, and any burst of up to 32 bits, changes its checksum. The key is among the
bytes, so that a row is not taken for another one.
"""

from __future__ import annotations

import zlib

import msgspec

__all__ = ["row_crc"]

_encode = msgspec.msgpack.Encoder().encode


def row_crc(*values: str | bytes | int | None) -> int:
    """CRC-32 of the values of a row's other columns, in their order, as one msgpack array.

    >>> row_crc("orders", 1, 9) == row_crc("orders", 1, 8), row_crc() == zlib.crc32(bytes([0x90]))
    (False, True)
    """
    return zlib.crc32(_encode(values))
