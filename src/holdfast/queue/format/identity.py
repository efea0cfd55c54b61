"""``<prefix>-allMeta``: which queue this is, written once,
and once more when the first serializer is named.

Owns: the 64 bytes of the file. Does not own: what pages say; a page's own header wins wherever they differ.

Failure model: pure. A file that does not verify is ``None``; a queue whose file is lost gets a new one. One that
verifies and is of a later format is ``CorruptData``: it is not replaced.

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
"""

from __future__ import annotations

from struct import Struct
from zlib import crc32

from holdfast.errors import Code, CorruptData

__all__ = ["IDENTITY_BYTES", "Identity", "decode_identity", "encode_identity"]

FIELDS = Struct("<8sHHI16sI24s")
IDENTITY_BYTES = 64
MAGIC = b"HFQUEUE\0"
VERSION = 1

_CHECK = Struct("<I")


class Identity:
    """What was decided when the queue was made."""

    __slots__ = ("checksum_id", "page_bytes", "queue_id", "serializer")

    def __init__(self, queue_id: bytes, page_bytes: int, checksum_id: int, serializer: str = "") -> None:
        self.serializer = serializer
        self.queue_id = queue_id
        self.page_bytes = page_bytes
        self.checksum_id = checksum_id


def encode_identity(identity: Identity) -> bytes:
    """The 64 bytes."""
    fields = FIELDS.pack(
        MAGIC,
        VERSION,
        0,
        identity.checksum_id,
        identity.queue_id,
        identity.page_bytes,
        identity.serializer.encode("ascii"),
    )
    return fields + _CHECK.pack(crc32(fields))


def decode_identity(data: bytes) -> Identity | None:
    """The identity, or None where these bytes are not one.

    Raises: ``CorruptData`` for a later format.

    >>> decode_identity(encode_identity(Identity(bytes(16), 4096, 1))).page_bytes, decode_identity(b"")
    (4096, None)
    """
    if len(data) < IDENTITY_BYTES or _CHECK.unpack_from(data, FIELDS.size)[0] != crc32(data[: FIELDS.size]):
        return None
    magic, version, _, checksum_id, queue_id, page_bytes, serializer = FIELDS.unpack_from(data)
    if magic != MAGIC:
        return None
    if version != VERSION:
        raise CorruptData(
            "a queue was written by a later version of holdfast",
            code=Code.CORRUPT_QUEUE,
            format_version=version,
            hint="nothing is damaged: use that version",
        )
    return Identity(queue_id, page_bytes, checksum_id, serializer.rstrip(b"\0").decode("ascii", "replace"))
