"""Which keys and ranges broke preconditions in the last minutes, most often first, in constant memory.

Misra and Gries, "Finding repeated elements" (Science of Computer Programming 2, 1982): with room for k places, each
count is at most n / (k + 1) too low after n additions, and every place with more than that is there. Two spans of time
take turns, so what is shown covers between one and two of them. It is lost with the leadership.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.commit.format.transaction import FailedPrecondition, PointRead, Precondition

PLACES_MAX: Final = 256
KEY_BYTES_MAX: Final = 1_024
"""A place with a longer key is counted in the total alone."""
NOTED_MAX: Final = 16
"""Of the broken preconditions of one commit."""
SPAN_MS: Final = 300_000.0

Place = tuple[bytes, bytes | None, bool]
"""Begin, end (None: the last key), and whether it is a range; of a point read the end is None."""


class _Span:
    """What was counted since ``began_ms``. ``lost``: how much a count may be too low."""

    __slots__ = ("began_ms", "counts", "lost", "total")

    def __init__(self, began_ms: float) -> None:
        self.began_ms = began_ms
        self.counts: dict[Place, int] = {}
        self.lost = 0
        self.total = 0

    def add(self, place: Place) -> None:
        """Count one. Cost: O(1) on average."""
        counts = self.counts
        if place in counts:
            counts[place] += 1
        elif len(counts) < PLACES_MAX:
            counts[place] = 1
        else:
            self.lost += 1
            self.counts = {other: count - 1 for other, count in counts.items() if count > 1}


@dataclass(frozen=True, slots=True)
class TopConflicts:
    """``places`` with their counts, most first; each count is at most ``lost`` too low. ``total``: of all places."""

    seconds: float
    total: int
    lost: int
    places: tuple[tuple[Place, int], ...]


class ConflictKeys:
    """Counts the preconditions that were broken. Time is that of the service's clock since the machine started."""

    __slots__ = ("_before", "_now")

    def __init__(self) -> None:
        self._before: _Span | None = None
        self._now: _Span | None = None

    def note(self, preconditions: Sequence[Precondition], failed: Sequence[FailedPrecondition], now_ms: float) -> None:
        """A commit was refused. Cost: about a microsecond for each broken precondition."""
        span = self._span(now_ms)
        span.total += len(failed)
        for each in failed[:NOTED_MAX]:
            if each.precondition >= len(preconditions):
                break  # the record of a job, which is not a key
            read = preconditions[each.precondition]
            place = (read.key, None, False) if type(read) is PointRead else (read.begin, read.end, True)  # type: ignore[union-attr]
            if len(place[0]) <= KEY_BYTES_MAX and len(place[1] or b"") <= KEY_BYTES_MAX:
                span.add(place)

    def top(self, limit: int, now_ms: float) -> TopConflicts:
        """The ``limit`` places with the most conflicts."""
        newest = self._span(now_ms)
        spans = [span for span in (self._before, newest) if span is not None]
        counts: dict[Place, int] = {}
        for span in spans:
            for place, count in span.counts.items():
                counts[place] = counts.get(place, 0) + count
        places = sorted(counts.items(), key=lambda item: (-item[1], item[0][0]))
        return TopConflicts(
            (now_ms - spans[0].began_ms) / 1000,
            sum(span.total for span in spans),
            sum(span.lost for span in spans),
            tuple(places[:limit]),
        )

    def _span(self, now_ms: float) -> _Span:
        """The newest span; an older one goes."""
        span = self._now
        if span is None:
            span = self._now = _Span(now_ms)
        elif now_ms - span.began_ms >= SPAN_MS:
            self._before = span if now_ms - span.began_ms < 2 * SPAN_MS else None
            span = self._now = _Span(now_ms)
        return span
