"""A batch of messages, checked. A message itself is in ``wire.parts``."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

from holdfast.errors import Code, InvalidRequest, LimitExceeded
from holdfast.wire.parts import FIELD_BYTES_MAX, FIELDS_MAX, KEY_BYTES_MAX, FieldValue, Message

FIELDS_RULE: Final = (
    f"a field has a text of at most {FIELD_BYTES_MAX} bytes, a whole number of 64 bits, or true or false: leave out a "
    "field that has no value (null), and give any other number as a text or in the body"
)


def fields_hint(problem: str) -> str:
    """What a field may have, where ``problem`` is about a field of a message."""
    return FIELDS_RULE if ".fields" in problem else ""


BATCH_MESSAGES_MAX = 65_536
NUMBER_BYTES = 8


class MessageBatch:
    """Messages with ``sizes`` (key, fields and body, in bytes) and their sum ``size``.

    *Raises*: ``InvalidRequest``; ``LimitExceeded`` (message_too_large).
    """

    __slots__ = ("at_ms", "messages", "size", "sizes", "timed")

    def __init__(self, messages: Sequence[Message], size_max: int, at_ms: int) -> None:
        if not 0 < len(messages) <= BATCH_MESSAGES_MAX:
            raise InvalidRequest("a batch must have 1 to max messages", messages=len(messages), max=BATCH_MESSAGES_MAX)
        self.messages = messages
        self.at_ms = at_ms
        self.timed: list[int] = []  # positions of messages with an own time-to-live or delivery time
        sizes: list[int] = []
        for position, message in enumerate(messages):
            size = len(message.body)
            if message.fields:
                size += _fields_size(message.fields)
            if message.key is not None:
                size += _key_size(message.key)
            if size > size_max:
                raise LimitExceeded(
                    "message is too large for the store",
                    code=Code.MESSAGE_TOO_LARGE,
                    bytes=size,
                    max=size_max,
                    position=position,
                )
            if message.ttl_ms or message.deliver_at_ms:
                if message.ttl_ms < 0 or message.deliver_at_ms < 0:
                    raise InvalidRequest("a message's times are not negative", position=position)
                self.timed.append(position)
            sizes.append(size)
        self.sizes = array("I", sizes)
        self.size = sum(sizes)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _fields_size(fields: dict[str, FieldValue]) -> int:
    if len(fields) > FIELDS_MAX:
        raise InvalidRequest("a message has too many fields", fields=len(fields), max=FIELDS_MAX)
    total = 0
    for name, value in fields.items():
        size = _bytes(name)
        value_size = _bytes(value) if isinstance(value, str) else NUMBER_BYTES
        if not 0 < size <= FIELD_BYTES_MAX or value_size > FIELD_BYTES_MAX:
            raise InvalidRequest(
                "a field's name must have 1 byte or more, and name and text at most the maximum",
                field=name[:80],
                bytes=max(size, value_size),
                max=FIELD_BYTES_MAX,
            )
        if not isinstance(value, str | bool) and not -(1 << 63) <= value < 1 << 63:
            raise InvalidRequest("a field's number has 64 bits", hint=FIELDS_RULE, field=name)
        total += size + value_size
    return total


def _key_size(key: str) -> int:
    size = _bytes(key)
    if not 0 < size <= KEY_BYTES_MAX:
        raise InvalidRequest("key must be at least 1 byte and at most the maximum", bytes=size, max=KEY_BYTES_MAX)
    return size
