"""Range deletes as a step function over the keys."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa


class OrderKey(NamedTuple):
    """The sort key of an operation in the total order of the log."""

    version: int
    position: int


class RangeDeleted(NamedTuple):
    """One range delete: ``[begin, end)``, to the last key when ``end`` is None, as of ``at``."""

    begin: bytes
    end: bytes | None
    at: OrderKey


@dataclass(frozen=True, slots=True)
class Coverage:
    """For every key the newest range delete that covers it, as a step function.

    Shape: ``starts`` rises; from ``starts[i]`` to the next start it is ``newest[i]``, None for none.
    """

    starts: tuple[bytes, ...]
    newest: tuple[OrderKey | None, ...]

    @classmethod
    def of(cls, ranges: Iterable[RangeDeleted]) -> Coverage:
        """The step function of these ranges. Cost: O(n log n).

        >>> Coverage.of([RangeDeleted(b"a", b"c", OrderKey(5, 0))]).deletes(b"b", OrderKey(4, 9))
        True
        """
        real = (each for each in ranges if each.end is None or each.begin < each.end)
        by_begin = sorted(real, key=lambda each: (each.begin, each.at))
        edges = sorted({each.begin for each in by_begin} | {each.end for each in by_begin if each.end is not None})
        starts: list[bytes] = []
        newest: list[OrderKey | None] = []
        # A heap by newest first; the running number keeps the comparison away from the ranges themselves.
        active: list[tuple[int, int, int, RangeDeleted]] = []
        entered = 0
        for edge in edges:
            while entered < len(by_begin) and by_begin[entered].begin <= edge:
                each = by_begin[entered]
                heapq.heappush(active, (-each.at.version, -each.at.position, entered, each))
                entered += 1
            while active and (end := active[0][3].end) is not None and end <= edge:
                heapq.heappop(active)
            top = active[0][3].at if active else None
            if not newest or newest[-1] != top:
                starts.append(edge)
                newest.append(top)
        return cls(tuple(starts), tuple(newest))

    def deletes(self, key: bytes, position: OrderKey) -> bool:
        """Whether a range delete newer than ``position`` covers ``key``."""
        index = bisect_right(self.starts, key) - 1
        covering = self.newest[index] if index >= 0 else None
        return covering is not None and covering > position


def ranges_of(deletes: pa.Table) -> list[RangeDeleted]:
    """The range deletes among operations."""
    columns = (deletes[name].to_pylist() for name in ("key", "end", "version", "position"))
    return [RangeDeleted(key, end, OrderKey(version, at)) for key, end, version, at in zip(*columns, strict=True)]
