"""Frames of a subscriber's WebSocket, and what its request line asks for.

Owns: their fields and bounds, JSON and msgpack alike. Does not own: what they do (``socket``), WebSocket framing.

Failure model: pure. Bytes that are not of the documented shape end in one ``InvalidRequest``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Final
from urllib.parse import parse_qsl, unquote

import msgspec
from msgspec import Meta

from holdfast.errors import Code, InvalidRequest, NotFound
from holdfast.server.stores.wire import MESSAGES_MAX, Milliseconds, Sequence, WireFormat
from holdfast.stores.values.messages import Delivery

__all__ = [
    "CREDIT_MAX",
    "SUBPROTOCOLS",
    "AckFrame",
    "AdvisoryFrame",
    "AnswerFrame",
    "AttachedFrame",
    "ChangesFrame",
    "ClientFrame",
    "CloseFrame",
    "CreditFrame",
    "CurrentFrame",
    "ErrorFrame",
    "ExtendFrame",
    "KeyChange",
    "MessagesFrame",
    "NackFrame",
    "RejectFrame",
    "StartedFrame",
    "SubscribeRequest",
    "decode_frame",
    "encode_frame",
    "message_frames",
]

SUBPROTOCOLS: Final[Mapping[str, WireFormat]] = {
    "holdfast.stores.v1+msgpack": "msgpack",
    "holdfast.stores.v1+json": "json",
}
CREDIT_MAX: Final = 1_000_000
FRAME_BYTES: Final = 1_048_576
"""Usual clients take no larger frames."""
MESSAGES_BYTES: Final = 524_288
"""What the messages of one frame are weighed to: base64 needs a third more for bodies."""
MESSAGE_BYTES: Final = 128
FIELD_BYTES: Final = 8
"""What a message, and a field, take in a frame beside what is in them, about."""

Identity = Annotated[int, Meta(ge=0, le=2**53 - 1)]
Numbers = Annotated[list[Sequence], Meta(max_length=MESSAGES_MAX)]


class CreditFrame(msgspec.Struct, frozen=True, tag_field="type", tag="credit", forbid_unknown_fields=True):
    """The client takes so many messages more."""

    messages: Annotated[int, Meta(ge=1, le=CREDIT_MAX)]


class AckFrame(msgspec.Struct, frozen=True, tag_field="type", tag="ack", forbid_unknown_fields=True):
    """Settled: ranges [first, last]."""

    ranges: Annotated[list[tuple[Sequence, Sequence]], Meta(max_length=MESSAGES_MAX)]
    id: Identity = 0


class NackFrame(msgspec.Struct, frozen=True, tag_field="type", tag="nack", forbid_unknown_fields=True):
    """Given back: pairs of a number and its delay in milliseconds."""

    messages: Annotated[list[tuple[Sequence, Milliseconds]], Meta(max_length=MESSAGES_MAX)]
    id: Identity = 0


class RejectFrame(msgspec.Struct, frozen=True, tag_field="type", tag="reject", forbid_unknown_fields=True):
    """Never to be delivered again: to the dead letters."""

    messages: Numbers
    id: Identity = 0


class ExtendFrame(msgspec.Struct, frozen=True, tag_field="type", tag="extend", forbid_unknown_fields=True):
    """Still being worked on: the time to acknowledge begins again."""

    messages: Numbers
    id: Identity = 0


class StartedFrame(msgspec.Struct, frozen=True, tag_field="type", tag="started", forbid_unknown_fields=True):
    """The application was handed these messages: ranges [first, last], none to say that reports will come.

    It has no answer. From the first report on only the deliveries of reported messages count.
    """

    ranges: Annotated[list[tuple[Sequence, Sequence]], Meta(max_length=MESSAGES_MAX)]


class CloseFrame(msgspec.Struct, frozen=True, tag_field="type", tag="close", forbid_unknown_fields=True):
    """The subscriber goes; what it holds goes back."""


class AttachedFrame(msgspec.Struct, frozen=True, tag_field="type", tag="attached"):
    """The subscriber is connected, and the durable's terms."""

    created: bool
    prefetch: int
    ack_mode: str
    ack_batch_count: int
    ack_batch_time_ms: int
    started_reports: bool = True
    """Whether the service takes reports of what was started."""


class MessagesFrame(msgspec.Struct, frozen=True, tag_field="type", tag="messages"):
    """Messages that this subscriber holds from now on."""

    messages: list[Delivery]


class KeyChange(msgspec.Struct, frozen=True):
    """What became of one key of a map.

    ``cause``: ``present`` (it was there when the watch began) and ``set`` come with the ``value``; ``removed``,
    ``expired``, ``discarded`` (at the map's limit) and ``deleted`` (by an administrator) with none.
    """

    key: str
    revision: int
    """The value's; of what is gone the number of its removal, or that of its last value where none was taken."""
    cause: str
    value: bytes | None


class ChangesFrame(msgspec.Struct, frozen=True, tag_field="type", tag="changes"):
    """Changes of a map, each key's newest, in the order in which they happened."""

    changes: list[KeyChange]


class CurrentFrame(msgspec.Struct, frozen=True, tag_field="type", tag="current"):
    """Every key that was there when the watch began has been told. Sent once."""


class AnswerFrame(msgspec.Struct, frozen=True, tag_field="type", tag="answer"):
    """The acknowledgement with this id is durable. ``stale``: ranges that this subscriber did not hold."""

    id: int
    acknowledged: int
    stale: list[tuple[int, int]]


class ErrorFrame(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="error"):
    """The frame with this id was refused and changed nothing."""

    id: int
    code: str
    message: str
    hint: str = ""


class AdvisoryFrame(msgspec.Struct, frozen=True, tag_field="type", tag="advisory"):
    """Something happened that no message tells."""

    kind: str
    facts: Mapping[str, object]


ClientFrame = CreditFrame | AckFrame | NackFrame | RejectFrame | ExtendFrame | StartedFrame | CloseFrame
_JSON_FRAMES: Final = msgspec.json.Decoder(ClientFrame)
_MSGPACK_FRAMES: Final = msgspec.msgpack.Decoder(ClientFrame)
_JSON: Final = msgspec.json.Encoder()
_MSGPACK: Final = msgspec.msgpack.Encoder()
_UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class SubscribeRequest:
    """What the request line asks for."""

    __slots__ = ("durable", "key", "matcher", "prefetch", "prefix", "store", "subscriber", "template")

    def __init__(self, target: str) -> None:
        """Raises: InvalidRequest; NotFound where the path is another one."""
        path, _, query = target.partition("?")
        parts = path.split("/")
        if len(parts) != 7 or parts[1:3] != ["v1", "stores"] or parts[4] != "durables" or parts[6] != "subscribe":
            raise NotFound("no WebSocket is served there", hint="GET /v1/stores/{store}/durables/{durable}/subscribe")
        self.store, self.durable = unquote(parts[3]), unquote(parts[5])
        try:
            pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=16)
        except ValueError as error:
            raise InvalidRequest("the query cannot be read") from error
        given = dict(pairs)
        if len(given) != len(pairs):
            raise InvalidRequest("a query parameter is given more than once")
        unknown = given.keys() - {"subscriber", "template", "matcher", "key", "prefix", "prefetch"}
        if unknown:
            raise InvalidRequest(f"the route has no query parameter {min(unknown)[:64]!r}")
        self.subscriber = given.get("subscriber", "")
        if not 1 <= len(self.subscriber) <= 256:
            raise InvalidRequest("subscriber is a name of 1 to 256 characters")
        self.template = given.get("template", "")
        self.matcher = given.get("matcher", "").encode()
        self.key = given.get("key")
        self.prefix = given.get("prefix")
        """Also an empty one says that this is a watch, which a durable that is no map refuses."""
        prefetch = given.get("prefetch", "0")
        if not (prefetch.isascii() and prefetch.isdigit() and len(prefetch) <= 6):
            raise InvalidRequest("prefetch is a whole number from 0 to 999999")
        self.prefetch = int(prefetch)


def decode_frame(data: bytes, wire_format: WireFormat) -> ClientFrame:
    """A frame of the client. Raises: InvalidRequest (malformed)."""
    decoder = _JSON_FRAMES if wire_format == "json" else _MSGPACK_FRAMES
    try:
        frame: ClientFrame = decoder.decode(data)
    except _UNDECODABLE as error:
        raise InvalidRequest(f"the frame cannot be decoded: {error}", code=Code.MALFORMED) from error
    return frame


def encode_frame(frame: msgspec.Struct, wire_format: WireFormat) -> bytes:
    """The bytes of a frame of the server."""
    return _JSON.encode(frame) if wire_format == "json" else _MSGPACK.encode(frame)


def message_frames(messages: list[Delivery], wire_format: WireFormat) -> Iterator[bytes]:
    """Messages as frames of at most ``FRAME_BYTES``; one message alone may exceed it."""
    begin = size = 0
    for index, message in enumerate(messages):
        weight = _weight(message)
        size += weight
        if size > MESSAGES_BYTES and index > begin:
            yield from _within_bytes(messages[begin:index], wire_format)
            begin, size = index, weight
    if begin < len(messages):
        yield from _within_bytes(messages[begin:] if begin else messages, wire_format)


def _within_bytes(messages: list[Delivery], wire_format: WireFormat) -> Iterator[bytes]:
    """One frame; where text that is written with escapes has made it larger than it was weighed, several."""
    data = encode_frame(MessagesFrame(messages), wire_format)
    if len(data) <= FRAME_BYTES or len(messages) == 1:
        yield data
        return
    middle = len(messages) // 2
    yield from _within_bytes(messages[:middle], wire_format)
    yield from _within_bytes(messages[middle:], wire_format)


def _weight(message: Delivery) -> int:
    """About its bytes in a frame, but for what base64 adds to its body."""
    size = len(message.body) + MESSAGE_BYTES
    if message.key is not None:
        size += len(message.key)
    for name, value in message.fields.items():
        size += len(name) + FIELD_BYTES
        if isinstance(value, str):
            size += len(value)
    return size
