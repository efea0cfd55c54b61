"""The log lines of messages that are parked: at most one in a while for each durable, with all since the last.

A parked message was delivered too often and there is no dead-letter store: it waits for an operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import structlog

from holdfast.stores.durables.pending import SET_APART_MAX

__all__ = ["LINE_EVERY_SECONDS", "ParkingLog"]

LINE_EVERY_SECONDS: Final = 10.0
_log = structlog.get_logger("holdfast.stores")


class ParkingLog:
    """Writes the lines. *Memory*: an item for each durable that parked messages."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], tuple[float, int]] = {}
        """When the last line of a durable was written, and how many messages were parked since."""

    def note(self, store: str, durable: str, facts: Mapping[str, object], now_seconds: float) -> None:
        """These messages were parked. ``facts`` are those of the advisory."""
        told_seconds, since = self._told.get((store, durable), (-LINE_EVERY_SECONDS, 0))
        messages, parked = facts["messages"], facts["parked"]
        assert isinstance(messages, int) and isinstance(parked, int), "the advisory counts messages"
        since += messages
        if now_seconds - told_seconds < LINE_EVERY_SECONDS:
            self._told[store, durable] = told_seconds, since
            return
        self._told[store, durable] = now_seconds, 0
        if parked >= SET_APART_MAX:
            _log.error(
                "delivery_stopped",
                store=store,
                durable=durable,
                parked=parked,
                parked_max=SET_APART_MAX,
                hint="holdfast stores redeliver or purge makes room; until then nothing new is delivered",
            )
            return
        _log.warning(
            "messages_parked",
            store=store,
            durable=durable,
            messages=since,
            seq=facts["seq"],
            parked=parked,
            hint="holdfast stores redeliver puts them back; a dead_letter_store would take them",
        )
