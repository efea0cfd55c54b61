"""How long publishers wait for their confirmation.

Owns: one histogram for each store, in plain numbers. Does not own: names and text of the exposition
(``store_metrics``).

Failure model: pure. Bounds: a histogram for each store that there is, forgotten with it.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

__all__ = ["LATENCY_BOUNDS_SECONDS", "Latencies", "Latency"]

LATENCY_BOUNDS_SECONDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0,
)  # fmt: skip


class Latency:
    """Publishes of one store. ``counts`` has one item more than bounds, above the last."""

    __slots__ = ("counts", "messages", "refused", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS_SECONDS) + 1)
        self.seconds = 0.0
        self.messages = 0
        """Messages confirmed, duplicates included."""
        self.refused = 0
        """Publishes that were refused."""

    def confirmed(self, seconds: float, messages: int) -> None:
        """A publish was confirmed after so long."""
        self.counts[bisect_left(LATENCY_BOUNDS_SECONDS, seconds)] += 1
        self.seconds += seconds
        self.messages += messages


class Latencies:
    """One ``Latency`` for each store that was published to."""

    __slots__ = ("by_store",)

    def __init__(self) -> None:
        self.by_store: dict[str, Latency] = {}

    def of(self, store: str) -> Latency:
        """The histogram of a store, made when it is first asked for."""
        found = self.by_store.get(store)
        if found is None:
            found = self.by_store[store] = Latency()
        return found
