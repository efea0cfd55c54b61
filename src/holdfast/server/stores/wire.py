"""Bodies of the store routes: what may be in a request, and the bytes of answers.

Owns: their fields and bounds, JSON and msgpack alike (the same maps; ``body`` is base64 in JSON and bytes in msgpack).
Does not own: what they do (``stores.commands``), rights, definitions (``stores.definitions`` reads those whole).

Failure model: pure. Bytes that are not of the documented shape end in one ``InvalidRequest``; an unknown field is
wrong, never ignored. A refused request changed nothing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Final, Literal, TypeVar, cast

import msgspec
from msgspec import Meta

from holdfast.errors import Code, InvalidRequest
from holdfast.stores.values.commands import Acknowledged, Published
from holdfast.stores.values.messages import FIELD_BYTES_MAX, FIELDS_MAX, KEY_BYTES_MAX, Delivery, Message

__all__ = [
    "MSGPACK",
    "AckRequest",
    "AckedAnswer",
    "DeliveredAnswer",
    "DelayedNack",
    "PublishAnswer",
    "PublishRequest",
    "PublishedMessage",
    "WireFormat",
    "acked_answer",
    "decode",
    "encode",
    "format_of",
    "published_bytes",
]

MSGPACK: Final = "application/msgpack"
MSGPACK_NAMES: Final = frozenset({MSGPACK, "application/x-msgpack", "application/vnd.msgpack"})
NUMBER_MAX: Final = 2**53 - 1
"""The largest whole number that every JSON reader keeps exactly."""
MESSAGES_MAX: Final = 10_000
"""Messages of one request, and numbers of one acknowledgement."""
DAYS_MAX_MS: Final = 100 * 366 * 86_400_000

WireFormat = Literal["json", "msgpack"]
T = TypeVar("T")

Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
Sequence = Annotated[int, Meta(ge=1, le=NUMBER_MAX)]
Milliseconds = Annotated[int, Meta(ge=0, le=DAYS_MAX_MS)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
Key = Annotated[str, Meta(max_length=KEY_BYTES_MAX)]
FieldText = Annotated[str, Meta(max_length=FIELD_BYTES_MAX)]
FieldNumber = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Fields = Annotated[dict[FieldText, FieldText | FieldNumber | bool], Meta(max_length=FIELDS_MAX)]


class PublishedMessage(Message, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """One message of a publish request: a ``Message`` whose bounds are checked while it is decoded."""

    body: bytes = b""
    fields: Fields = {}  # noqa: RUF012  # msgspec copies it for each message
    key: Key | None = None
    publisher_seq: Number = 0
    ttl_ms: Milliseconds = 0
    deliver_at_ms: Number = 0


class PublishRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``POST .../messages``: published whole or not at all."""

    messages: Annotated[list[PublishedMessage], Meta(min_length=1, max_length=MESSAGES_MAX)]
    publisher_id: Annotated[str, Meta(max_length=256)] = ""


class PublishAnswer(msgspec.Struct, frozen=True):
    """The numbers of the batch, duplicates included, as its store's mode confirms it."""

    first_seq: int
    last_seq: int
    duplicates: int
    unmatched: int


class DelayedNack(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Give one message back, to be delivered again after ``delay_ms``."""

    seq: Sequence
    delay_ms: Milliseconds = 0


class AckRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``POST .../acks``. ``ranges`` are pairs [first, last], for long runs in few bytes."""

    subscriber: Name
    ack: Annotated[list[Sequence], Meta(max_length=MESSAGES_MAX)] = []
    ranges: Annotated[list[tuple[Sequence, Sequence]], Meta(max_length=MESSAGES_MAX)] = []
    nack: Annotated[list[DelayedNack], Meta(max_length=MESSAGES_MAX)] = []
    reject: Annotated[list[Sequence], Meta(max_length=MESSAGES_MAX)] = []
    extend: Annotated[list[Sequence], Meta(max_length=MESSAGES_MAX)] = []
    started: Annotated[list[Sequence], Meta(max_length=MESSAGES_MAX)] | None = None
    """The messages that the application was handed. From the first report on only their deliveries count."""


class AckedAnswer(msgspec.Struct, frozen=True):
    """How many messages were settled, and the numbers that this subscriber did not hold."""

    acknowledged: int
    stale: list[int]


class DeliveredAnswer(msgspec.Struct, frozen=True):
    """Messages in the order in which they are delivered."""

    messages: list[Delivery]


_JSON: Final = msgspec.json.Encoder()
_MSGPACK: Final = msgspec.msgpack.Encoder()
_DECODERS: Final[dict[tuple[type, WireFormat], msgspec.json.Decoder[Any] | msgspec.msgpack.Decoder[Any]]] = {}
_UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


@lru_cache(maxsize=256)
def format_of(media_type: str | bytes | None) -> WireFormat:
    """The format that a ``Content-Type`` or ``Accept`` names; JSON unless it is msgpack."""
    if media_type is None:
        return "json"
    if isinstance(media_type, bytes):
        media_type = media_type.decode("latin-1")
    names = {part.partition(";")[0].strip().lower() for part in media_type.split(",")}
    return "json" if names.isdisjoint(MSGPACK_NAMES) else "msgpack"


def decode(data: bytes, kind: type[T], wire_format: WireFormat) -> T:
    """The request that these bytes hold. Raises: InvalidRequest (malformed, bad_base64)."""
    decoder = _DECODERS.get((kind, wire_format))
    if decoder is None:
        made = msgspec.json.Decoder if wire_format == "json" else msgspec.msgpack.Decoder
        decoder = _DECODERS[kind, wire_format] = made(kind)
    try:
        return cast(T, decoder.decode(data))
    except _UNDECODABLE as error:
        text = "text is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        code = Code.BAD_BASE64 if text.startswith("Invalid base64") else Code.MALFORMED
        raise InvalidRequest(f"the request cannot be decoded: {text}", code=code) from error


def encode(answer: object, wire_format: WireFormat) -> bytes:
    """The bytes of an answer."""
    return _JSON.encode(answer) if wire_format == "json" else _MSGPACK.encode(answer)


def published_bytes(result: Published, wire_format: WireFormat) -> bytes:
    """The answer to a publish; the same as encoding a ``PublishAnswer``, at a third of the cost in JSON."""
    if wire_format == "json":
        return b'{"first_seq":%d,"last_seq":%d,"duplicates":%d,"unmatched":%d}' % (
            result.first_seq,
            result.last_seq,
            result.duplicates,
            result.unmatched,
        )
    return _MSGPACK.encode(PublishAnswer(result.first_seq, result.last_seq, result.duplicates, result.unmatched))


def acked_answer(result: Acknowledged) -> AckedAnswer:
    """The answer to an acknowledgement: stale numbers one by one, at most as many as were sent."""
    return AckedAnswer(result.acknowledged, [seq for first, last in result.stale for seq in range(first, last + 1)])


def ranges_of(numbers: list[int]) -> list[tuple[int, int]]:
    """Runs of consecutive numbers as pairs [first, last], in order, each number once.

    >>> ranges_of([7, 8, 3, 8, 9])
    [(3, 3), (7, 9)]
    """
    ranges: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges
