"""Deadlines by key, and the budget of one expiry."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", int, str, tuple[str, str])
"""Keys that can be ordered, so that equal deadlines have one order."""


DISCARD_LOOKS = 16_384  # messages that one command examines to discard those above a durable's limits


def earlier(one_ms: int | None, other_ms: int | None) -> int | None:
    """The earlier of two times, None for never."""
    if one_ms is None:
        return other_ms
    return one_ms if other_ms is None or one_ms <= other_ms else other_ms


@dataclass(slots=True)
class Budget:
    """What one command may still do: ``messages`` to remove and ``looks``, messages to read. A replay stops at the same
    point."""

    messages: int
    looks: int

    @property
    def is_spent(self) -> bool:
        """Whether the command must end; the next one continues."""
        return self.messages <= 0 or self.looks <= 0


class Deadlines(Generic[KeyT]):
    """One deadline per key, in milliseconds. Cost: O(log keys) each, amortised; equal deadlines rise by key.

    >>> due = Deadlines[str]()
    >>> due.set("b", 20); due.set("a", 30); due.set("b", 40)
    >>> due.next_ms(), due.pop(35), due.pop(35)
    (30, 'a', None)
    """

    __slots__ = ("_heap", "_of")

    def __init__(self, items: dict[KeyT, int] | None = None) -> None:
        self._of: dict[KeyT, int] = dict(items or {})
        self._heap: list[tuple[int, KeyT]] = [(at_ms, key) for key, at_ms in self._of.items()]
        heapify(self._heap)

    def __len__(self) -> int:
        return len(self._of)

    def items(self) -> dict[KeyT, int]:
        """Every key with its deadline."""
        return dict(self._of)

    def get(self, key: KeyT) -> int | None:
        """The deadline of a key, or None."""
        return self._of.get(key)

    def set(self, key: KeyT, at_ms: int | None) -> None:
        """Give a key its one deadline, None for none."""
        if at_ms is None:
            self._of.pop(key, None)
        elif self._of.get(key) != at_ms:
            self._of[key] = at_ms
            heappush(self._heap, (at_ms, key))
            if len(self._heap) > 64 + 4 * len(self._of):
                self._heap = [(known_ms, known) for known, known_ms in self._of.items()]
                heapify(self._heap)

    def next_ms(self) -> int | None:
        """The earliest deadline, or None."""
        heap = self._heap
        while heap:
            at_ms, key = heap[0]
            if self._of.get(key) == at_ms:
                return at_ms
            heappop(heap)
        return None

    def pop(self, until_ms: int) -> KeyT | None:
        """Remove and return the key with the earliest deadline, if that is up to ``until_ms``."""
        next_ms = self.next_ms()
        if next_ms is None or next_ms > until_ms:
            return None
        _, key = heappop(self._heap)
        del self._of[key]
        return key
