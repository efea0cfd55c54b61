"""A deadline that others have to meet, kept by a process that may itself be paused.

Owns: telling a deadline that passed while this process ran from one that passed while it did not. Does not own: which
deadlines there are (``persist``, ``pipeline``), clocks.

Failure model: a process that was stopped, or whose machine was suspended, wakes with its deadlines behind it and the
answers that came meanwhile unread. It is woken for each deadline, so one that is met much too late tells of a pause:
such a deadline moves, once, by as much as answers need to be read, or a lost one to be asked for again.
"""

from __future__ import annotations

from typing import Final

__all__ = ["Deadline"]

LATE_MS: Final = 1_000.0
"""Whoever is woken so much later than asked for was paused."""
GRACE_MS: Final = 2_000.0


class Deadline:
    """One deadline at a time; a new one is known by its instant."""

    __slots__ = ("_due_ms", "_moved_to_ms")

    def __init__(self) -> None:
        self._due_ms = -1.0
        self._moved_to_ms = -1.0

    def at_ms(self, due_ms: float) -> float:
        """When to look: ``due_ms``, or where it was moved to."""
        return self._moved_to_ms if due_ms == self._due_ms else due_ms

    def has_passed(self, due_ms: float, now_ms: float) -> bool:
        """Whether it is missed. Looked at too late for the first time, it moves instead."""
        if now_ms < due_ms + LATE_MS or due_ms == self._due_ms:
            return now_ms >= self.at_ms(due_ms)
        self._due_ms, self._moved_to_ms = due_ms, now_ms + GRACE_MS
        return False
