"""What travels through the four stages: commit requests, in time with their outcomes, and the batches they ride in.

Owns: the fields that the stages hand on. Does not own: any decision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.commit.format.batch import Header, LoggedTransaction
from holdfast.commit.format.body_stream import repeated_bytes
from holdfast.commit.format.transaction import Outcome, Transaction, Write
from holdfast.errors import HoldfastError

__all__ = ["Batch", "CommitEntry", "Position", "request_bytes"]

ITEM_BYTES = 32
"""What an item costs besides its value and the request id, for the size bound of a batch."""


class CommitEntry:
    """One commit request on its way.

    ``reply`` is called exactly once, with this entry, when ``outcome`` is final; ``durable_version`` is then a durable
    version at least as new as every version the outcome names. ``ticket`` is the caller's own. ``size``: the bytes of
    the request, and with them what its id takes in a batch, where it stands in every row; 0 leaves it to the pipeline.
    """

    __slots__ = (
        "accepted",
        "arrived_ms",
        "durable_version",
        "followers",
        "outcome",
        "reply",
        "size",
        "ticket",
        "txn",
        "version",
    )

    def __init__(
        self, txn: Transaction, reply: Callable[[CommitEntry], None], ticket: object = None, size: int = 0
    ) -> None:
        self.txn = txn
        self.reply = reply
        self.ticket = ticket
        self.size = size + repeated_bytes(txn) if size and txn.request_id is not None else size
        self.arrived_ms = 0.0
        self.version = 0
        self.accepted = False
        self.outcome: Outcome | HoldfastError | None = None
        self.durable_version = 0
        self.followers: list[CommitEntry] | None = None


class Position:
    """A place in the order of all entries: reached when everything before it is resolved and what was accepted is
    durable."""

    __slots__ = ("ticket",)

    def __init__(self, ticket: object) -> None:
        self.ticket = ticket


@dataclass(slots=True)
class Batch:
    """One slot in flight. ``payload`` never changes once it is set.

    ``sends_ms``: when each attempt was sent. ``proved_ms``: when the one was sent that was answered ``created``, None
    for a batch that was only recognised as own.
    """

    header: Header
    payload: bytes
    entries: list[CommitEntry | Position]
    transactions: list[LoggedTransaction]
    formed_ms: float
    sent_ms: float = 0.0
    requests: int = 0
    attempts: int = 0
    retry_at_ms: float | None = None
    hedged: bool = False
    reading: bool = False
    done: bool = False
    sends_ms: list[float] = field(default_factory=list[float])
    proved_ms: float | None = None


def request_bytes(txn: Transaction) -> int:
    """Roughly the bytes a transaction takes in a batch; at least 1."""
    items = len(txn.operations) + len(txn.preconditions)
    values = sum([len(op.value) for op in txn.operations if type(op) is Write])
    return items * ITEM_BYTES + values + repeated_bytes(txn)
