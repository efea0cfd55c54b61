"""What the message stores respond with, for a request of their own and for the part of a commit; what others show."""

from __future__ import annotations

import msgspec


class Origin(msgspec.Struct, frozen=True, gc=False):
    """Where a dead letter came from: the message ``seq`` of a store, which a durable could not deliver.

    ``cause``: ``max_delivery`` or ``rejected``, after ``delivery_count`` deliveries.
    """

    store: str
    durable: str
    seq: int
    cause: str
    delivery_count: int


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
