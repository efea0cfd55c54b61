"""A message, as published and as delivered; and what the stores respond with, also for the part of a commit."""

from __future__ import annotations

from typing import Final

import msgspec

FieldValue = str | int | bool
"""A field has a text, a whole number of 64 bits or a truth value; matchers compare these exactly and never convert."""

FIELDS_MAX: Final = 256
FIELD_BYTES_MAX: Final = 256
KEY_BYTES_MAX: Final = 1_024
TOKEN_MAX: Final = 26
"""Characters of a token with three parts (``stores.values.identity``)."""


class Origin(msgspec.Struct, frozen=True, gc=False):
    """Where a dead letter came from: the message ``seq`` of a store, which a durable could not deliver.

    ``cause``: ``max_delivery`` or ``rejected``, after ``delivery_count`` deliveries.
    """

    store: str
    durable: str
    seq: int
    cause: str
    delivery_count: int


class Message(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One message as published. ``body`` is bytes (base64 in JSON).

    ``publisher_seq`` is 0 without numbers. ``ttl_ms`` and ``deliver_at_ms`` are 0 for none; the latter is a time since
    1970 before which the message is not delivered. ``origin``: only the service writes it, and only of a dead letter.
    """

    body: bytes = b""
    fields: dict[str, FieldValue] = {}
    key: str | None = None
    publisher_seq: int = 0
    ttl_ms: int = 0
    deliver_at_ms: int = 0
    origin: Origin | None = None


class Delivery(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One message as a subscriber gets it. ``delivery_count`` is 1 the first time.

    ``redelivered``: a subscriber may have had it before without acknowledging it. ``replayed``: the durable was
    rewound, so a subscriber may have acknowledged it.
    """

    seq: int
    fields: dict[str, FieldValue]
    key: str | None
    body: bytes
    published_ms: int
    delivery_count: int
    redelivered: bool
    replayed: bool = False
    token: str = ""
    """Of the durable that delivered it (``stores.values.identity``): its number means nothing elsewhere."""
    origin: Origin | None = None
    """Of a dead letter."""


class Portion(msgspec.Struct, frozen=True, gc=False):
    """Messages that a subscriber gets together.

    ``ack_wait_ms``: how long the application has for each, from the moment at which it gets it. ``buffer_wait_ms``: how
    long they may wait for that moment. 0 is without a limit.
    """

    messages: list[Delivery]
    ack_wait_ms: int = 0
    buffer_wait_ms: int = 0


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """What the store reports of a batch: its numbers, how many it had already, how many matched no durable.

    ``first_seq`` to ``last_seq`` include duplicates, which have the numbers that they got the first time.
    ``discarded``: messages that durables gave up for these because of their limits, added over the durables: the new
    ones themselves (``discard: new``), or their oldest.
    """

    first_seq: int
    last_seq: int
    duplicates: int = 0
    unmatched: int = 0
    discarded: int = 0


class BatchReceipt(Receipt, frozen=True, gc=False):
    """The receipt of a publish request. ``token``: the store's, for the publisher's next batch."""

    token: str = ""


class AckedResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many messages were acknowledged, and the numbers that this subscriber did not hold. ``causes``: first, last
    and cause of those among them that were removed while it held them: ``limit_old``, ``deleted`` or ``purged``."""

    acknowledged: int
    stale: list[int]
    causes: list[tuple[int, int, str]] = []


class ChangedResponse(msgspec.Struct, frozen=True):
    """The revision of the last change, and how many keys changed."""

    revision: int
    changed: int = 1


class StoresReceipt(msgspec.Struct, frozen=True):
    """What the stores did for the parts of a commit, each list in the order of the request."""

    acknowledge: list[AckedResponse] = []
    maps: list[ChangedResponse] = []
    publish: list[Receipt] = []
