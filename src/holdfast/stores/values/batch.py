"""A batch as it is published: its messages with their sizes, checked.

Owns: what a message counts for, and the bounds of one message. Does not own: the bounds of a store (``limits``), its
number (``reference_counts``). Failure model: pure; a message over a bound raises and nothing was changed.
"""

from __future__ import annotations

from array import array

from holdfast.errors import Code, InvalidRequest, LimitExceeded
from holdfast.stores.values.messages import FIELD_BYTES_MAX, FIELDS_MAX, KEY_BYTES_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.stores.values.messages import FieldValue, Message

__all__ = ["BATCH_MESSAGES_MAX", "Batch"]

BATCH_MESSAGES_MAX = 65_536
NUMBER_BYTES = 8


class Batch:
    """Messages with ``sizes`` (key, fields and body, in bytes) and their sum ``size``.

    *Raises*: ``InvalidRequest``; ``LimitExceeded`` (message_too_large) with the size and the bound.
    """

    __slots__ = ("at_ms", "messages", "size", "sizes", "timed")

    def __init__(self, messages: Sequence[Message], size_max: int, at_ms: int) -> None:
        if not 0 < len(messages) <= BATCH_MESSAGES_MAX:
            raise InvalidRequest(
                "a batch has at least one message, and not too many", messages=len(messages), max=BATCH_MESSAGES_MAX
            )
        self.messages = messages
        self.at_ms = at_ms
        self.timed: list[int] = []
        """Positions of messages with an own time-to-live or delivery time."""
        sizes: list[int] = []
        for position, message in enumerate(messages):
            size = len(message.body)
            if message.fields:
                size += _fields_size(message.fields)
            if message.key is not None:
                size += _key_size(message.key)
            if size > size_max:
                raise LimitExceeded(
                    "a message is larger than the store takes",
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
                "a field's name has 1 and its text 0 bytes at least",
                field=name[:80],
                bytes=max(size, value_size),
                max=FIELD_BYTES_MAX,
            )
        if not isinstance(value, str | bool) and not -(1 << 63) <= value < 1 << 63:
            raise InvalidRequest("a field's number has 64 bits", field=name)
        total += size + value_size
    return total


def _key_size(key: str) -> int:
    size = _bytes(key)
    if not 0 < size <= KEY_BYTES_MAX:
        raise InvalidRequest("a key has 1 byte at least", bytes=size, max=KEY_BYTES_MAX)
    return size
