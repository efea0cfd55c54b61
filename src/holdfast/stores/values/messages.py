"""A message: as a publisher sends it, as a store keeps it, as a subscriber gets it.

Owns: the fields of a message on the wire and in the log, and their bounds. Does not own: who wants it (``matcher``),
where it lies (``message_log``).
"""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["FIELD_BYTES_MAX", "FIELDS_MAX", "KEY_BYTES_MAX", "FieldValue", "Message", "Delivery"]

FieldValue = str | int | bool
"""A field has a text, a whole number of 64 bits or a truth value; matchers compare these exactly and never convert."""

FIELDS_MAX: Final = 256
FIELD_BYTES_MAX: Final = 256
KEY_BYTES_MAX: Final = 1_024


class Message(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One message as published. ``body`` is bytes (base64 in JSON).

    ``publisher_seq`` 0 means that the publisher does not number its messages. ``ttl_ms`` and ``deliver_at_ms`` are
    0 for none; the latter is a time since 1970 before which the message is delivered to nobody.
    """

    body: bytes = b""
    fields: dict[str, FieldValue] = {}
    key: str | None = None
    publisher_seq: int = 0
    ttl_ms: int = 0
    deliver_at_ms: int = 0


class Delivery(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One message as a subscriber gets it. ``delivery_count`` is 1 the first time.

    ``redelivered``: somebody may have had it before and did not acknowledge it. ``replayed``: the durable had got past
    it before it was rewound, so somebody may have acknowledged it.
    """

    seq: int
    fields: dict[str, FieldValue]
    key: str | None
    body: bytes
    published_ms: int
    delivery_count: int
    redelivered: bool
    replayed: bool = False
