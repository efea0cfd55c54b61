"""The time of a work queue: of day, but steady.

Owns: how deadlines relate to clocks. Does not own: deadlines (``work_machine``).

Failure model: never falls within a process, and never below the last time that was written down. While the process
runs it follows the monotonic clock, so that a jump of the time of day ends no lease early and keeps none for hours. At
a start it is the time of day, because deadlines that were written down go on while nothing runs; or, where the time of
day has been set back, the last time that was written.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["WorkClock"]


class WorkClock:
    """Nanoseconds since 1970. A clock other than the system's is taken as it is, but for its being too early."""

    __slots__ = ("_ahead_ns", "_clock")

    def __init__(self, clock: Callable[[], int]) -> None:
        self._ahead_ns = 0
        self._clock = clock
        if clock is time.time_ns:
            self._clock = time.monotonic_ns
            self._ahead_ns = time.time_ns() - time.monotonic_ns()

    def __call__(self) -> int:
        """Now."""
        return self._clock() + self._ahead_ns

    def not_before(self, last_ns: int) -> None:
        """Go on from ``last_ns`` where this clock is behind it."""
        self._ahead_ns += max(0, last_ns - self())
