"""Which keys of etcd hold an object, and which bytes are in which part.

| key | value |
|---|---|
| ``P/o/NAME`` | the *head*: an object exists if and only if it has one |
| ``P/b/NAME/UPLOAD/PART`` | a *part*: bytes of an object; PART has 4 digits, UPLOAD is 32 hexadecimal digits |
| ``P/u/UPLOAD`` | the *mark* of an upload of several transactions that has no head: its number of parts, and NAME |

A head, little-endian, 33 bytes: format 1 (u8), upload (16 bytes), size of the object (u64), bytes of part 0 (u32),
bytes of every later part (u32); the last part ends with the object. An empty object has no parts. Part 0 of an object
under ``batches/`` is its header, so recovery and readers of headers get no bodies.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from holdfast.errors import CorruptData

PART_BYTES: Final = 1_310_720
"""1.25 MiB: with its keys within etcd's ``--max-request-bytes``, which is 1.5 MiB unless it was changed."""
HEADER_BYTES: Final = 512
HEADERS_UNDER: Final = "batches/"
OBJECT_BYTES_MAX: Final = 100 << 20
PARTS_MAX: Final = 100
"""All keys of an object are removed in one transaction."""
_HEAD: Final = struct.Struct("<B16sQII")
_FORMAT: Final = 1


class Head(Struct, frozen=True):
    """What an object consists of."""

    upload: str
    size: int
    first_bytes: int
    part_bytes: int

    @classmethod
    def of_new(cls, name: str, upload: str, size: int) -> Head:
        """The head of an object that is created."""
        return cls(upload, size, HEADER_BYTES if name.startswith(HEADERS_UNDER) else PART_BYTES, PART_BYTES)

    @property
    def parts(self) -> int:
        """How many parts there are."""
        return self.part_at(self.size - 1) + 1 if self.size else 0

    def part_at(self, offset: int) -> int:
        """The part that has the byte at ``offset``."""
        return 0 if offset < self.first_bytes else 1 + (offset - self.first_bytes) // self.part_bytes

    def begin_of(self, part: int) -> int:
        """The offset of the first byte of a part; the size of the object for the part after the last one."""
        return min(self.size, self.first_bytes + (part - 1) * self.part_bytes if part else 0)

    def encode(self) -> bytes:
        """The value of the head's key."""
        return _HEAD.pack(_FORMAT, bytes.fromhex(self.upload), self.size, self.first_bytes, self.part_bytes)


def decode_head(value: bytes, name: str) -> Head:
    """The head in a value. Raises: CorruptData."""
    if len(value) == _HEAD.size and value[0] == _FORMAT:
        _, upload, size, first_bytes, part_bytes = _HEAD.unpack(value)
        head = Head(upload.hex(), size, first_bytes, part_bytes)
        if first_bytes and part_bytes and size <= OBJECT_BYTES_MAX and head.parts <= PARTS_MAX:
            return head
    raise CorruptData("the head of an object in etcd cannot be read", key=name)


def encode_mark(name: str, parts: int) -> bytes:
    """The value of a mark's key.

    >>> encode_mark("batches/1", 20)
    b'20 batches/1'
    """
    return f"{parts} {name}".encode()


def decode_mark(value: bytes) -> tuple[str, int]:
    """The name and the number of parts in a mark. Raises: CorruptData."""
    parts, _, name = value.decode("utf-8", "replace").partition(" ")
    if not name or not parts.isdecimal():
        raise CorruptData("the mark of an upload in etcd cannot be read", mark=value[:80])
    return name, int(parts)


class EtcdPrefix(Struct, frozen=True):
    """The keys under one prefix."""

    prefix: str

    @property
    def heads(self) -> bytes:
        """What the keys of all heads begin with."""
        return f"{self.prefix}/o/".encode()

    @property
    def marks(self) -> bytes:
        """What the keys of all marks begin with."""
        return f"{self.prefix}/u/".encode()

    def head(self, name: str) -> bytes:
        """The key of a head."""
        return f"{self.prefix}/o/{name}".encode()

    def part(self, name: str, upload: str, part: int) -> bytes:
        """The key of a part."""
        return f"{self.prefix}/b/{name}/{upload}/{part:04d}".encode()

    def mark(self, upload: str) -> bytes:
        """The key of a mark."""
        return f"{self.prefix}/u/{upload}".encode()

    def all_parts(self, name: str, head: Head) -> Sequence[bytes]:
        """The keys of all parts of an object."""
        return [self.part(name, head.upload, part) for part in range(head.parts)]


def after_all(beginning: bytes) -> bytes:
    """The first key above all that begin so.

    >>> after_all(b"log/o/")
    b'log/o0'
    """
    return beginning[:-1] + bytes((beginning[-1] + 1,))


def just_after(key: bytes) -> bytes:
    """The first key above this one."""
    return key + b"\x00"
