"""A set of sequence numbers, as runs. Memory and the cost of a change follow the number of runs, not of members."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable


class SequenceSet:
    """Runs ``[first, last]``, ascending, apart from one another by at least one number.

    >>> numbers = SequenceSet([(1, 3), (4, 5), (9, 9)])
    >>> numbers.runs(), 5 in numbers, numbers.count(3, 9)
    ([(1, 5), (9, 9)], True, 4)
    """

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, runs: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in runs:
            self.add(first, last)

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __contains__(self, seq: int) -> bool:
        index = bisect_right(self._firsts, seq) - 1
        return index >= 0 and seq <= self._lasts[index]

    @property
    def length(self) -> int:
        """How many runs there are."""
        return len(self._firsts)

    def runs(self) -> list[tuple[int, int]]:
        """All runs, ascending."""
        return list(zip(self._firsts, self._lasts, strict=True))

    def add(self, first: int, last: int) -> None:
        """Add ``first..last``. Cost: O(log runs), and O(runs) in the middle."""
        firsts, lasts = self._firsts, self._lasts
        if not firsts or first > lasts[-1] + 1:
            firsts.append(first)
            lasts.append(last)
            return
        low = bisect_right(lasts, first - 2)
        high = bisect_right(firsts, last + 1)
        if low < high:
            first, last = min(first, firsts[low]), max(last, lasts[high - 1])
        firsts[low:high] = [first]
        lasts[low:high] = [last]

    def remove(self, first: int, last: int) -> None:
        """Remove the members of ``first..last``. Cost: O(log runs), and O(runs) in the middle.

        >>> numbers = SequenceSet([(1, 9)])
        >>> numbers.remove(3, 4)
        >>> numbers.runs()
        [(1, 2), (5, 9)]
        """
        firsts, lasts = self._firsts, self._lasts
        low = bisect_right(lasts, first - 1)
        high = bisect_right(firsts, last)
        if low >= high:
            return
        rest = [run for run in ((firsts[low], first - 1), (last + 1, lasts[high - 1])) if run[0] <= run[1]]
        firsts[low:high] = [run[0] for run in rest]
        lasts[low:high] = [run[1] for run in rest]

    def parts(self, first: int, last: int) -> list[tuple[int, int, bool]]:
        """``first..last`` as runs that are members or not, ascending.

        >>> SequenceSet([(3, 4)]).parts(1, 4)
        [(1, 2, False), (3, 4, True)]
        """
        runs: list[tuple[int, int, bool]] = []
        while first <= last:
            is_member = first in self
            end = self.after(first) if is_member else self.next_member(first, last + 1)
            end = min(end, last + 1)
            runs.append((first, end - 1, is_member))
            first = end
        return runs

    def forget_below(self, seq: int) -> None:
        """Remove every member below ``seq``."""
        firsts, lasts = self._firsts, self._lasts
        if not firsts or firsts[0] >= seq:
            return
        gone = bisect_right(lasts, seq - 1)
        del firsts[:gone], lasts[:gone]
        if firsts and firsts[0] < seq:
            firsts[0] = seq

    @property
    def last(self) -> int:
        """The greatest member, -1 where there is none."""
        return self._lasts[-1] if self._lasts else -1

    def after(self, seq: int) -> int:
        """The first number from ``seq`` on that is not a member."""
        index = bisect_right(self._firsts, seq) - 1
        return max(seq, self._lasts[index] + 1) if index >= 0 else seq

    def next_member(self, seq: int, end: int) -> int:
        """The first member from ``seq`` on, or ``end`` where there is none below it."""
        if not self._firsts:
            return end
        if seq in self:
            return min(seq, end)
        index = bisect_right(self._firsts, seq)
        return min(end, self._firsts[index]) if index < len(self._firsts) else end

    def count(self, first: int, last: int) -> int:
        """How many members are in ``first..last``."""
        index = bisect_right(self._lasts, first - 1)
        total = 0
        while index < len(self._firsts) and self._firsts[index] <= last:
            total += min(last, self._lasts[index]) - max(first, self._firsts[index]) + 1
            index += 1
        return total

    def check(self) -> None:
        """Runs are ascending, not empty and apart."""
        before = -1
        for first, last in zip(self._firsts, self._lasts, strict=True):
            assert before + 1 < first <= last or (before == -1 and first <= last), "runs are ascending and apart"
            before = last
