"""Which keys a set of range deletes covers, and as of when.

Owns: the order of operations (``Place``), range deletes as a step function over the keys.
Does not own: where they come from (the log), what is done with a covered key (each pipeline).

Failure model: pure; nothing here fails.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Coverage", "Place", "RangeDeleted"]


class Place(NamedTuple):
    """Where an operation stands in the total order of the log."""

    version: int
    position: int


class RangeDeleted(NamedTuple):
    """One range delete: ``[begin, end)``, to the last key when ``end`` is None, as of ``place``."""

    begin: bytes
    end: bytes | None
    place: Place


@dataclass(frozen=True, slots=True)
class Coverage:
    """For every key the newest range delete that covers it, as a step function.

    Shape: ``starts`` rises; from ``starts[i]`` up to the next start the newest is ``newest[i]``, None for none.
    """

    starts: tuple[bytes, ...]
    newest: tuple[Place | None, ...]

    @classmethod
    def of(cls, ranges: Iterable[RangeDeleted]) -> Coverage:
        """The step function of these ranges. Cost: O(n log n).

        >>> Coverage.of([RangeDeleted(b"a", b"c", Place(5, 0))]).deletes(b"b", Place(4, 9))
        True
        """
        real = (each for each in ranges if each.end is None or each.begin < each.end)
        by_begin = sorted(real, key=lambda each: (each.begin, each.place))
        edges = sorted({each.begin for each in by_begin} | {each.end for each in by_begin if each.end is not None})
        starts: list[bytes] = []
        newest: list[Place | None] = []
        # A heap by newest first; the running number keeps the comparison away from the ranges themselves.
        active: list[tuple[int, int, int, RangeDeleted]] = []
        entered = 0
        for edge in edges:
            while entered < len(by_begin) and by_begin[entered].begin <= edge:
                each = by_begin[entered]
                heapq.heappush(active, (-each.place.version, -each.place.position, entered, each))
                entered += 1
            while active and (end := active[0][3].end) is not None and end <= edge:
                heapq.heappop(active)
            top = active[0][3].place if active else None
            if not newest or newest[-1] != top:
                starts.append(edge)
                newest.append(top)
        return cls(tuple(starts), tuple(newest))

    def deletes(self, key: bytes, place: Place) -> bool:
        """Whether a range delete newer than ``place`` covers ``key``."""
        at = bisect_right(self.starts, key) - 1
        covering = self.newest[at] if at >= 0 else None
        return covering is not None and covering > place
