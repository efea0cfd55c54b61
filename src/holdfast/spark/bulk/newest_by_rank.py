"""Which change was the newest, for every key and every range of keys: a radix tree of ordinals in flat arrays.

Owns: recording changes of ranks and ranges of ranks, and the newest change in many ranges at once.
Does not own: what a rank is (``key_ranks``), who may write (``sweep``).

A rank stands for a key in the order of all keys that a problem mentions; an ordinal for a request's place in the total
order, from 1; 0 is no change. Level 0 has a place for every rank, each higher level one for 256 of the level below.
``inside`` holds the newest change anywhere below a place, ``covers`` the newest change of everything below it, so that
a wide deletion touches some hundred places of each level and not every rank.

Failure model: pure memory. Ordinals rise from one call to the next; the caller sees to it.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["NewestByRank", "Ordinals", "newest_of_segments"]

Ordinals: TypeAlias = npt.NDArray[np.int32]

SHIFT: Final = 8
FAN: Final = 1 << SHIFT
NARROW: Final = 2 * FAN
SEGMENTS_AT_ONCE: Final = 8192


def newest_of_segments(values: Ordinals, begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> Ordinals:
    """The largest of ``values[begins[i]:ends[i]]`` for each i, 0 for an empty segment. Cost: O(sum of lengths).

    >>> newest_of_segments(np.array([3, 9, 4], np.int32), np.array([0, 1, 2]), np.array([2, 1, 3])).tolist()
    [9, 0, 4]
    """
    lengths = ends - begins
    result: Ordinals = np.zeros(len(begins), np.int32)
    held = np.flatnonzero(lengths > 0)
    if not len(held):
        return result
    counts = lengths[held]
    starts = np.cumsum(counts) - counts
    places = np.arange(int(counts.sum())) + np.repeat(begins[held] - starts, counts)
    result[held] = np.maximum.reduceat(values[places], starts)
    return result


class NewestByRank:
    """The newest ordinal that changed each of ``ranks`` ranks. Memory: 4 bytes a rank, 8 once ranges are recorded.

    >>> newest = NewestByRank(1000)
    >>> newest.record(np.array([3, 7]), np.array([4, 8]), np.array([1, 2], np.int32))
    >>> newest.record(np.array([5]), np.array([900]), np.array([3], np.int32))
    >>> newest.newest(np.array([3, 4, 0, 899]), np.array([4, 5, 8, 1000])).tolist()
    [1, 0, 3, 3]
    """

    __slots__ = ("_covers", "_inside", "is_empty")

    def __init__(self, ranks: int) -> None:
        sizes = [max(ranks, 1)]
        while sizes[-1] > FAN:
            sizes.append((sizes[-1] + FAN - 1) >> SHIFT)
        self._inside: list[Ordinals] = [np.zeros(size, np.int32) for size in sizes]
        self._covers: list[Ordinals] | None = None
        self.is_empty = True

    def record(self, lows: npt.NDArray[np.int64], highs: npt.NDArray[np.int64], ordinals: Ordinals) -> None:
        """Each range ``[low, high)`` was changed at its ordinal. The ordinals rise, also above those of earlier calls.

        Cost: O(levels) for a single rank, some hundred places a level for a range.
        """
        if not len(lows):
            return
        self.is_empty = False
        single = highs - lows == 1
        ranks, when = (lows, ordinals) if single.all() else (lows[single], ordinals[single])
        for level, inside in enumerate(self._inside):
            # Of several assignments to one place the last stays, and that is the newest.
            inside[ranks >> (SHIFT * level)] = when
        if len(ranks) != len(lows):
            for index in np.flatnonzero(~single).tolist():
                self._record_range(int(lows[index]), int(highs[index]), int(ordinals[index]))

    def _record_range(self, low: int, high: int, ordinal: int) -> None:
        if self._covers is None:
            self._covers = [np.zeros(len(inside), np.int32) for inside in self._inside]
        level = 0
        while high - low > NARROW and level + 1 < len(self._inside):
            upper_low, upper_high = (low + FAN - 1) >> SHIFT, high >> SHIFT
            self._cover(level, low, upper_low << SHIFT, ordinal)
            self._cover(level, upper_high << SHIFT, high, ordinal)
            low, high, level = upper_low, upper_high, level + 1
        self._cover(level, low, high, ordinal)

    def _cover(self, level: int, low: int, high: int, ordinal: int) -> None:
        if low >= high:
            return
        assert self._covers is not None, "covers are made before they are written"
        covered = self._covers[level][low:high]
        np.maximum(covered, ordinal, out=covered)
        for inside in self._inside[level:]:
            part = inside[low:high]
            np.maximum(part, ordinal, out=part)
            low, high = low >> SHIFT, ((high - 1) >> SHIFT) + 1

    def newest(self, lows: npt.NDArray[np.int64], highs: npt.NDArray[np.int64]) -> Ordinals:
        """The newest change in each ``[low, high)``, 0 for none. Every range holds at least one rank."""
        if self.is_empty:
            return np.zeros(len(lows), np.int32)
        found: Ordinals = self._inside[0][lows]
        wide = np.flatnonzero(highs - lows > 1)
        for start in range(0, len(wide), SEGMENTS_AT_ONCE):
            some = wide[start : start + SEGMENTS_AT_ONCE]
            found[some] = self._descend(0, lows[some], highs[some])
        if self._covers is not None:
            for level, covers in enumerate(self._covers[1:], start=1):
                np.maximum(found, covers[lows >> (SHIFT * level)], out=found)
                np.maximum(found, covers[(highs - 1) >> (SHIFT * level)], out=found)
        return found

    def _descend(self, level: int, lows: npt.NDArray[np.int64], highs: npt.NDArray[np.int64]) -> Ordinals:
        inside = self._inside[level]
        wide = highs - lows > NARROW
        if level + 1 == len(self._inside) or not wide.any():
            return newest_of_segments(inside, lows, highs)
        upper_lows, upper_highs = (lows + FAN - 1) >> SHIFT, highs >> SHIFT
        found = newest_of_segments(inside, lows, np.where(wide, upper_lows << SHIFT, highs))
        right = newest_of_segments(inside, upper_highs << SHIFT, np.where(wide, highs, upper_highs << SHIFT))
        np.maximum(found, right, out=found)
        some = np.flatnonzero(wide)
        found[some] = np.maximum(found[some], self._descend(level + 1, upper_lows[some], upper_highs[some]))
        return found
