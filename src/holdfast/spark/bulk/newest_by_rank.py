"""Which change was the newest, for every key and every range of keys: a radix tree of ordinals in flat arrays.

Owns: recording changes of ranks and ranges of ranks, and the newest change in many ranges at once.
Does not own: what a rank is (``key_ranks``), who may write (``sweep``).

A rank stands for a key in the order of all keys that a problem mentions; an ordinal for a request's place in the total
order, from 1; 0 is no change. Level 0 has a place for every rank, each higher level one for some of the level below.
``inside`` holds the newest change anywhere below a place, ``covers`` the newest change of everything below it, so that
a wide deletion touches some places of each level and not every rank.

Whether a range has changed since it was read is asked far oftener than what changed in it last, and the answer is
mostly no. That is known from two places of the lowest level on which the range lies within two; only where one of them
is newer, the range itself is looked at.

Failure model: pure memory. Ordinals rise from one call to the next; the caller sees to it.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["NewestByRank", "Ordinals", "newest_of_segments"]

Ordinals: TypeAlias = npt.NDArray[np.int32]

SHIFTS: Final = (0, 3, 6, 11, 16, 21, 26)
"""A place of a level stands for two to this power of ranks. Low levels are close: most ranges are narrow."""
TOP_PLACES_MAX: Final = 1024
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

    __slots__ = ("_covers", "_inside", "_shifts", "is_empty")

    def __init__(self, ranks: int, levels: int = len(SHIFTS)) -> None:
        sizes = [max(ranks, 1)]
        for shift in SHIFTS[1:levels]:
            if sizes[-1] <= TOP_PLACES_MAX:
                break
            sizes.append(((sizes[0] - 1) >> shift) + 1)
        self._shifts = SHIFTS[: len(sizes)]
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
        self._inside[0][ranks] = when
        for shift, inside in zip(self._shifts[1:], self._inside[1:], strict=True):
            # Of several assignments to one place the last stays, and that is the newest.
            inside[ranks >> shift] = when
        if len(ranks) != len(lows):
            for index in np.flatnonzero(~single).tolist():
                self._record_range(int(lows[index]), int(highs[index]), int(ordinals[index]))

    def forget(self, ranks: npt.NDArray[np.int64]) -> None:
        """As if nothing had been recorded: ``ranks`` are all that were, and no wider range."""
        assert self._covers is None, "ranges are not forgotten"
        for shift, inside in zip(self._shifts, self._inside, strict=True):
            inside[ranks >> shift] = 0
        self.is_empty = True

    def _narrow(self, level: int) -> tuple[int, int]:
        """By how much the next level is coarser, and the widest range that is looked at on this one, in its places."""
        step = self._shifts[level + 1] - self._shifts[level]
        return step, 2 << step

    def _record_range(self, low: int, high: int, ordinal: int) -> None:
        if self._covers is None:
            self._covers = [np.zeros(len(inside), np.int32) for inside in self._inside]
        level = 0
        while level + 1 < len(self._inside):
            step, narrow = self._narrow(level)
            if high - low <= narrow:
                break
            upper_low, upper_high = ((low - 1) >> step) + 1, high >> step
            self._cover(level, low, upper_low << step, ordinal)
            self._cover(level, upper_high << step, high, ordinal)
            low, high, level = upper_low, upper_high, level + 1
        self._cover(level, low, high, ordinal)

    def _cover(self, level: int, low: int, high: int, ordinal: int) -> None:
        if low >= high:
            return
        assert self._covers is not None, "covers are made before they are written"
        covered = self._covers[level][low:high]
        np.maximum(covered, ordinal, out=covered)
        for above in range(level, len(self._inside)):
            up = self._shifts[above] - self._shifts[level]
            part = self._inside[above][low >> up : ((high - 1) >> up) + 1]
            np.maximum(part, ordinal, out=part)

    def changed_after(
        self, lows: npt.NDArray[np.int64], highs: npt.NDArray[np.int64], ats: Ordinals
    ) -> npt.NDArray[np.bool_]:
        """Whether anything in each ``[low, high)`` changed after ``at``: ``newest(..) > ats``, but quicker."""
        if self._covers is not None:
            return self.newest(lows, highs) > ats
        found = self.may_have_changed_after(lows, highs, ats)
        some = np.flatnonzero(found & (highs - lows > 1))
        found[some] = self.newest(lows[some], highs[some]) > ats[some]
        return found

    def may_have_changed_after(
        self, lows: npt.NDArray[np.int64], highs: npt.NDArray[np.int64], ats: Ordinals
    ) -> npt.NDArray[np.bool_]:
        """False where nothing changed, for a single rank only there; and for a wider range mostly so."""
        assert self._covers is None, "what ranges cover is looked up, not guessed"
        if self.is_empty:
            return np.zeros(len(lows), np.bool_)
        found: npt.NDArray[np.bool_] = self._inside[0][lows] > ats
        wide = np.flatnonzero(highs - lows > 1)
        if len(wide):
            found[wide] = self._may_have_changed(lows[wide], highs[wide], ats[wide])
        return found

    def _may_have_changed(
        self, lows: npt.NDArray[np.int64], highs: npt.NDArray[np.int64], ats: Ordinals
    ) -> npt.NDArray[np.bool_]:
        widths = highs - lows
        result: npt.NDArray[np.bool_] = np.ones(len(lows), np.bool_)
        below = 1
        for shift, inside in zip(self._shifts[1:], self._inside[1:], strict=True):
            fits = np.flatnonzero((widths > below) & (widths <= 1 << shift))
            below = 1 << shift
            if len(fits):
                first, last = lows[fits] >> shift, (highs[fits] - 1) >> shift
                result[fits] = np.maximum(inside[first], inside[last]) > ats[fits]
        return result

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
            for shift, covers in zip(self._shifts[1:], self._covers[1:], strict=True):
                np.maximum(found, covers[lows >> shift], out=found)
                np.maximum(found, covers[(highs - 1) >> shift], out=found)
        return found

    def _descend(self, level: int, lows: npt.NDArray[np.int64], highs: npt.NDArray[np.int64]) -> Ordinals:
        inside = self._inside[level]
        if level + 1 == len(self._inside):
            return newest_of_segments(inside, lows, highs)
        step, narrow = self._narrow(level)
        wide = highs - lows > narrow
        if not wide.any():
            return newest_of_segments(inside, lows, highs)
        upper_lows, upper_highs = ((lows - 1) >> step) + 1, highs >> step
        found = newest_of_segments(inside, lows, np.where(wide, upper_lows << step, highs))
        right = newest_of_segments(inside, upper_highs << step, np.where(wide, highs, upper_highs << step))
        np.maximum(found, right, out=found)
        some = np.flatnonzero(wide)
        found[some] = np.maximum(found[some], self._descend(level + 1, upper_lows[some], upper_highs[some]))
        return found
