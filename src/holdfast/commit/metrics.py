"""Counts and latency buckets of the commits of one leadership, read at scrape time."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from holdfast.commit.format.transaction import Committed, Rejected
from holdfast.commit.stages.events import CommitEntry

LATENCY_BOUNDS_MS: Final = (0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 5000.0)


class ServiceMetrics:
    """Counts since the start of the leadership. ``latency_counts`` has one more bucket than bounds: the last is
    +infinity."""

    __slots__ = ("committed", "conflicts", "latency_counts", "latency_sum_ms", "other", "rejected")

    def __init__(self) -> None:
        self.committed = 0
        self.conflicts = 0
        self.rejected = 0
        self.other = 0
        self.latency_sum_ms = 0.0
        self.latency_counts = [0] * (len(LATENCY_BOUNDS_MS) + 1)

    def note_answers(self, entries: list[CommitEntry], now_ms: float) -> None:
        """Count replies and their latency inside the pipeline. Neighbours that arrived together share one search."""
        counts = self.latency_counts
        last_arrived = -1.0
        bucket = 0
        for entry in entries:
            outcome = entry.outcome
            if type(outcome) is Committed:
                self.committed += 1
            elif type(outcome) is Rejected:
                self.rejected += 1
                self.conflicts += outcome.reason == "conflict"
            else:
                self.other += 1
            if entry.arrived_ms != last_arrived:
                last_arrived = entry.arrived_ms
                bucket = bisect_left(LATENCY_BOUNDS_MS, now_ms - last_arrived)
            counts[bucket] += 1
            self.latency_sum_ms += now_ms - last_arrived
