"""JSON records with a checksum of their own: a flipped byte in one is noticed, whichever field it is in.

The last field, ``sha256``, is that of the other fields, encoded without spaces. People read and copy such a record; one
that was edited by hand is refused.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final, TypeVar

import msgspec

T = TypeVar("T")
FIELD: Final = "sha256"


def encode_sealed(record: msgspec.Struct) -> bytes:
    """The JSON of a record with its checksum: equal records have equal bytes."""
    plain = msgspec.json.encode(record)
    fields = msgspec.json.decode(plain, type=dict[str, object])
    assert FIELD not in fields, "a record has no field of this name"
    return msgspec.json.format(msgspec.json.encode({**fields, FIELD: sha256(plain).hexdigest()}), indent=1) + b"\n"


def decode_sealed(data: bytes, kind: type[T]) -> T:
    """The record. Raises: ``msgspec.DecodeError``, also for another checksum.

    >>> class Point(msgspec.Struct):
    ...     x: int
    >>> data = encode_sealed(Point(7))
    >>> decode_sealed(data, Point)
    Point(x=7)
    >>> decode_sealed(data.replace(b"7", b"8", 1), Point)
    Traceback (most recent call last):
    msgspec.DecodeError: the record has another checksum than it says
    """
    try:
        fields = msgspec.json.decode(data, type=dict[str, object])
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(str(error)) from error
    checksum = fields.pop(FIELD, None)
    plain = msgspec.json.encode(fields)
    if checksum != sha256(plain).hexdigest():
        raise msgspec.DecodeError("the record has another checksum than it says")
    return msgspec.json.decode(plain, type=kind)
