"""Transactions for a view, as a subscription delivers them."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast import View
from holdfast.client.protocol.effects import TransactionEvent
from holdfast.commit.format.transaction import Operation


def apply_txns(
    view: View, txns: Sequence[tuple[int, Sequence[Operation]]], *, prev_version: int, log_id: str | None = None
) -> None:
    """Apply ``(version, operations)`` in order, of which the first follows ``prev_version``."""
    events: list[TransactionEvent] = []
    for version, operations in txns:
        events.append(TransactionEvent(version, prev_version, None, "l", 0, tuple(operations), True, log_id))
        prev_version = version
    view.apply(events)
