"""Counts, times and latency buckets of one leadership, read at scrape time."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Final, Literal

from holdfast.commit.conflict_keys import ConflictKeys
from holdfast.commit.format.transaction import Committed, Rejected, Reused
from holdfast.commit.stages.events import CommitEntry
from holdfast.errors import Code, InvalidRequest

LATENCY_BOUNDS_MS: Final = (0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 5000.0)

WaitingStage = Literal["resolve", "persist"]
"""The stages in which work can wait: for its turn to be decided, and for the store."""


class LatencyBuckets:
    """How many took how long. ``counts`` has one more bucket than bounds: the last is +infinity."""

    __slots__ = ("counts", "sum_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS_MS) + 1)
        self.sum_ms = 0.0

    def note(self, took_ms: float) -> None:
        """Count one."""
        self.counts[bisect_left(LATENCY_BOUNDS_MS, took_ms)] += 1
        self.sum_ms += took_ms


class Spell:
    """A state that comes and goes: how often it began, and how long it lasted in all."""

    __slots__ = ("_before_ms", "_since_ms", "began")

    def __init__(self) -> None:
        self.began = 0
        self._before_ms = 0.0
        self._since_ms: float | None = None

    @property
    def lasts(self) -> bool:
        """Whether the state holds now."""
        return self._since_ms is not None

    def note(self, holds: bool, now_ms: float) -> None:
        """Say whether the state holds."""
        if holds and self._since_ms is None:
            self.began += 1
            self._since_ms = now_ms
        elif not holds and self._since_ms is not None:
            self._before_ms += now_ms - self._since_ms
            self._since_ms = None

    def total_ms(self, now_ms: float) -> float:
        """How long it has held, until now."""
        return self._before_ms + (0.0 if self._since_ms is None else now_ms - self._since_ms)


class ServiceMetrics:
    """Counts since the start of the leadership.

    ``refused`` is by stage and code. ``waited`` is per step for stage 2, from the arrival of its oldest commit to the
    decision, and per batch for stage 3, from its forming until it is durable.
    """

    __slots__ = (
        "backpressure", "committed", "conflict_keys", "conflicts", "latency", "other", "ownership_checks", "refused",
        "rejected", "stalled", "waited",
    )  # fmt: skip

    def __init__(self) -> None:
        self.committed = 0
        self.conflicts = 0
        self.conflict_keys = ConflictKeys()
        self.rejected = 0
        self.other = 0
        self.latency = LatencyBuckets()
        self.waited: dict[WaitingStage, LatencyBuckets] = {"resolve": LatencyBuckets(), "persist": LatencyBuckets()}
        self.refused: Counter[tuple[str, str]] = Counter()
        self.ownership_checks: Counter[str] = Counter(answered=0, failed=0)
        self.backpressure = Spell()
        self.stalled = Spell()

    def note_answers(self, entries: list[CommitEntry], now_ms: float) -> None:
        """Count replies and their latency inside the pipeline. Neighbours that arrived together share one search."""
        latency = self.latency
        counts = latency.counts
        last_arrived = -1.0
        bucket = 0
        for entry in entries:
            outcome = entry.outcome
            if type(outcome) is Committed:
                self.committed += 1
            else:
                self._note_refusal(entry, now_ms)
            if entry.arrived_ms != last_arrived:
                last_arrived = entry.arrived_ms
                bucket = bisect_left(LATENCY_BOUNDS_MS, now_ms - last_arrived)
            counts[bucket] += 1
            latency.sum_ms += now_ms - last_arrived

    def _note_refusal(self, entry: CommitEntry, now_ms: float) -> None:
        match entry.outcome:
            case Rejected(reason=reason, conflicts=failed):
                self.rejected += 1
                if reason == "conflict":
                    self.conflicts += 1
                    self.conflict_keys.note(entry.txn.preconditions, failed, now_ms)
                self.refused["sequence" if reason == "banned" else "resolve", reason] += 1
                return
            case Reused():
                self.refused["sequence", Code.REQUEST_ID_REUSED] += 1
            case InvalidRequest(code=code):
                self.refused["sequence", code] += 1
            case _:
                self.refused["release", Code.OUTCOME_UNKNOWN] += 1
        self.other += 1
