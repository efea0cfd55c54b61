"""The two formats of a body, JSON and msgpack: the same maps, with bytes as base64 in JSON.

What a user or a client wrote is decoded by ``decode_each_once``, which refuses a name that is given twice: decoders
alone keep the last value in silence.

*Proof*: the document is decoded and encoded again, which leaves one member of each name. In JSON the colons are then
counted on both sides: each member has one outside of texts, and each text that was kept has the same colons as before.
So a document has at least the colons of what was kept, and as many only if nothing was dropped. In msgpack the bytes
are compared. A document without this proof (it has a name twice, or writes a value in an unusual way) is read once more
by a slower parser, which reports each member.

*Cost*: about that of decoding the document; the slower parser costs about five times as much. ``commit.format`` has a
cheaper proof for the usual commit. While a large document is decoded, no garbage is collected: the collector would look
at all new objects again and again, and take two thirds of the time.
"""

from __future__ import annotations

import gc
import json
from functools import lru_cache
from typing import Any, Final, Literal, TypeVar, cast

import msgspec

from holdfast.errors import Code, LimitExceeded
from holdfast.values import GivenTwice, pairs_once

T = TypeVar("T")
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


LARGE_BYTES: Final = 65_536
_VALUES_BEGIN: Final = (b",", b"[", b"{")

_decode_json: Final = msgspec.json.Decoder().decode
_encode_json: Final = msgspec.json.Encoder().encode
_decode_msgpack: Final = msgspec.msgpack.Decoder().decode
_encode_msgpack: Final = msgspec.msgpack.Encoder().encode
_decoders: Final[dict[tuple[type, WireFormat], Any]] = {}
"""One for each kind that the code names."""


def require_few_values(data: bytes, values_max: int, wire_format: WireFormat = "json") -> None:
    """Return if a document surely has at most this many values. *Raises*: ``LimitExceeded``, before anything is parsed.

    In JSON each value but the first comes after a comma or a bracket; those in texts count, too. In msgpack each one
    has a byte at least, so there a document of plain values is bounded by its bytes. *Cost*: some 0.1 ms for a MiB.
    """
    if len(data) <= LARGE_BYTES:
        return
    values = sum(map(data.count, _VALUES_BEGIN)) if wire_format == "json" else len(data)
    if values > values_max:
        raise LimitExceeded(
            "the document has too many values",
            code=Code.TOO_LARGE,
            hint="send it in parts" if wire_format == "json" else "send it in parts, or as JSON",
            values_max=values_max,
        )


def decode_each_once(data: bytes, kind: type[T], wire_format: WireFormat = "json") -> T:
    """What a user or a client wrote, as a value of ``kind``.

    *Raises*: ``UNDECODABLE``; ``GivenTwice`` is one of them.
    """
    if len(data) > LARGE_BYTES and gc.isenabled():
        gc.disable()
        try:
            return decode_each_once(data, kind, wire_format)
        finally:
            gc.enable()
    decoder = _decoders.get((kind, wire_format))
    if decoder is None:
        made = msgspec.json.Decoder if wire_format == "json" else msgspec.msgpack.Decoder
        decoder = _decoders[kind, wire_format] = made(kind)
    value: T = decoder.decode(data)
    require_each_once(data, wire_format)
    return value


def require_each_once(data: bytes, wire_format: WireFormat = "json") -> None:
    """Check a document that a decoder has accepted.

    *Raises*: ``GivenTwice``, naming the first name that is given twice; another of ``UNDECODABLE`` for what
    the decoder did not look at.
    """
    try:
        proved = _is_proved_json(data) if wire_format == "json" else _encode_msgpack(_decode_msgpack(data)) == data
    except (msgspec.MsgspecError, OverflowError, TypeError, ValueError):
        proved = False  # such as a number that has no encoding: the other parser decides
    if not proved:
        _read_members(data, wire_format)


def _is_proved_json(data: bytes) -> bool:
    kept = _encode_json(_decode_json(data))
    colons = data.count(b":")
    if b"\\u003" in data:  # a text may spell its colons so; the encoder never does
        colons += data.count(b"\\u003a") + data.count(b"\\u003A")
    return colons == kept.count(b":")


def _read_members(data: bytes, wire_format: WireFormat) -> None:
    try:
        if wire_format == "json":
            # Numbers are not read: their size has no bound here.
            json.loads(str(data, "utf-8"), object_pairs_hook=pairs_once, parse_int=str, parse_float=str)
        else:
            import msgpack  # of the service alone, and only for what another encoder wrote

            cast(Any, msgpack).unpackb(data, object_pairs_hook=pairs_once, strict_map_key=False, raw=True)
    except UNDECODABLE:
        raise
    except (ValueError, TypeError) as error:
        raise msgspec.DecodeError(str(error)) from error
