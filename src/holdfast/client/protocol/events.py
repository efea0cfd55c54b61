"""What a subscription yields.

Owns: the events as the client sees them. Does not own: their text on the wire (``messages``) or the proof that none is
missing (``stream``).
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.commit.format.transaction import Operation

__all__ = ["Checkpoint", "Event", "RolledBack", "TransactionEvent"]


@dataclass(frozen=True, slots=True)
class TransactionEvent:
    """One committed transaction (``durable``), or one that was resolved and is not durable yet.

    ``prev_version`` is the version of the committed transaction before it in the log, filtered or not. ``log_id`` names
    the log, here and in the other events; None from a service before log ids.
    ``operations`` are in order: later ones win. A filtered stream carries the operations that the filter lets through.
    """

    version: int
    prev_version: int
    request_id: str | None
    leader_id: str
    time_ms: int
    operations: tuple[Operation, ...]
    durable: bool = True
    log_id: str | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything at or below ``committed_version`` is durable and, in a durable stream, was delivered before this."""

    committed_version: int
    leader_id: str
    log_id: str | None = None


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Forget every transaction above ``to``: it never became durable. Only in streams with ``durable=False``."""

    to: int
    leader_id: str
    log_id: str | None = None


Event = TransactionEvent | Checkpoint | RolledBack
