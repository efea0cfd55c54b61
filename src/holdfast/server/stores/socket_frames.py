"""Frames of a subscriber's WebSocket, and what its request line asks for.

Owns: their fields and bounds, JSON and msgpack alike. Does not own: what they do (``socket``), WebSocket framing.

Failure model: pure. Bytes that are not of the documented shape end in one ``InvalidRequest``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import parse_qsl, unquote

import msgspec

from holdfast.errors import Code, InvalidRequest, NotFound
from holdfast.stores.values.messages import Delivery
from holdfast.wire.formats import UNDECODABLE, WireFormat, encode
from holdfast.wire.stores import ClientFrame, MessagesFrame

__all__ = ["SubscribeRequest", "decode_frame", "message_frames"]

FRAME_BYTES: Final = 1_048_576
"""Usual clients take no larger frames."""
MESSAGES_BYTES: Final = 524_288
"""What the messages of one frame are weighed to: base64 needs a third more for bodies."""
MESSAGE_BYTES: Final = 128
FIELD_BYTES: Final = 8
"""What a message, and a field, take in a frame beside what is in them, about."""


_JSON_FRAMES: Final = msgspec.json.Decoder(ClientFrame)
_MSGPACK_FRAMES: Final = msgspec.msgpack.Decoder(ClientFrame)


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
    except UNDECODABLE as error:
        raise InvalidRequest(f"the frame cannot be decoded: {error}", code=Code.MALFORMED) from error
    return frame


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
    data = encode(MessagesFrame(messages), wire_format)
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
