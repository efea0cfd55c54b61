"""What a subscriber reports as handed to its application, and when: kept until the state machine needs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from holdfast.errors import InvalidRequest
from holdfast.stores.values.sequence_set import SequenceSet

RUNS_MAX: Final = 4_096
"""Runs and times kept for one subscriber; above it, only those of held messages."""
RUNS_MIN: Final = 64
"""Above this size, entries of messages that are not held are removed: each look reads all entries."""
STEP_MS: Final = 20
"""Reports this near to each other have one time, the latest: a message may have its time this much longer."""

Held = Callable[[int, int], list[tuple[int, int]]]
"""What the subscriber holds of a range."""


class StartedMessages:
    """Ranges by the time of their report."""

    __slots__ = ("_by_time", "_most")

    def __init__(self) -> None:
        self._most = RUNS_MIN
        self._by_time: list[tuple[int, int, SequenceSet]] = []  # the first and the latest time of each set

    def __bool__(self) -> bool:
        return any(numbers for _, _, numbers in self._by_time)

    def add(self, ranges: Sequence[tuple[int, int]], now_ms: int, held_of: Held) -> None:
        """The application was handed these now. Raises: InvalidRequest, and adds nothing."""
        for first, last in ranges:
            if first > last:
                raise InvalidRequest("a range of numbers begins with its lowest", first=first, last=last)
        if self._by_time and now_ms - self._by_time[-1][0] < STEP_MS:
            began_ms, _, numbers = self._by_time.pop()
        else:
            began_ms, numbers = now_ms, SequenceSet()
        for first, last in ranges:
            numbers.add(first, last)
        self._by_time.append((began_ms, now_ms, numbers))
        if self._size() > self._most:
            self._by_time = [
                (began, at, SequenceSet(held))
                for began, at, numbers in self._by_time
                if (held := [part for first, last in numbers.runs() for part in held_of(first, last)])
            ]
            self._most = min(RUNS_MAX, max(RUNS_MIN, 2 * self._size()))

    def _size(self) -> int:
        return len(self._by_time) + sum([numbers.length for _, _, numbers in self._by_time])

    def remove(self, first: int, last: int) -> None:
        """These are delivered again, and have to be started again."""
        for _, _, numbers in self._by_time:
            numbers.remove(first, last)

    def take(self, held_of: Held) -> list[tuple[int, int, int]]:
        """What of them is held still: first, last and the time of the report. Afterwards there is nothing."""
        taken = [
            (low, high, at_ms)
            for _, at_ms, numbers in self._by_time
            for first, last in numbers.runs()
            for low, high in held_of(first, last)
        ]
        self._by_time.clear()
        return taken
