"""The two formats of a body, JSON and msgpack: the same maps, with bytes as base64 in JSON."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal

import msgspec

from holdfast.given_twice import GivenTwice

WireFormat = Literal["json", "msgpack"]

MSGPACK: Final = "application/msgpack"
NDJSON: Final = "application/x-ndjson"
ARROW_STREAM: Final = "application/vnd.apache.arrow.stream"
MSGPACK_NAMES: Final = frozenset({MSGPACK, "application/x-msgpack", "application/vnd.msgpack"})
UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, GivenTwice)
"""What decoding raises: the type does not fit, the text is not UTF-8, it is nested deeper than the stack, or a name is
given twice."""

_JSON: Final = msgspec.json.Encoder()
_MSGPACK: Final = msgspec.msgpack.Encoder()


@lru_cache(maxsize=256)
def format_of(media_type: str | bytes | None) -> WireFormat:
    """The format that a ``Content-Type`` or ``Accept`` names; JSON unless it is msgpack."""
    if media_type is None:
        return "json"
    if isinstance(media_type, bytes):
        media_type = media_type.decode("latin-1")
    names = {part.partition(";")[0].strip().lower() for part in media_type.split(",")}
    return "json" if names.isdisjoint(MSGPACK_NAMES) else "msgpack"


def encode(body: object, wire_format: WireFormat = "json") -> bytes:
    """The bytes of a response or a frame, without a line end."""
    return _JSON.encode(body) if wire_format == "json" else _MSGPACK.encode(body)
