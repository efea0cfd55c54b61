"""The time of stores: of day at a start, and steady from there.

Owns: how the stores' time relates to the machine's clocks. Does not own: deadlines, which are times of this clock
(``state``), when the next one is (``alarm``).

Failure model: never falls within a process, and never below the last time that the log has. While the process runs, the
time of day is not looked at: set forward it would end every deadline at once, and set back it would hold them all until
it had caught up. A clock counts instead that goes on while the machine is suspended, where there is one. At a start it
is the time of day, because deadlines go on while nothing runs; or the last time of the log, where the time of day is
behind that. So a log that was once written under a clock years ahead stays ahead, and its deadlines pass all the same.
"""

from __future__ import annotations

import time
from typing import Final

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["StoreClock"]

MS_NS = 1_000_000


def _wall_ms() -> int:
    return time.time_ns() // MS_NS


def _steady_ms() -> int:
    return time.monotonic_ns() // MS_NS


def _suspended_too_ms() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // MS_NS


_STEADY: Final = _suspended_too_ms if hasattr(time, "CLOCK_BOOTTIME") else _steady_ms


class StoreClock:
    """Milliseconds since 1970. ``wall`` is read once, here; ``steady`` counts from anywhere and never falls.

    >>> clock = StoreClock(wall=lambda: 5_000, steady=lambda: 7)
    >>> clock()
    5000
    >>> clock.not_before(9_000)
    >>> clock()
    9000
    """

    __slots__ = ("_ahead_ms", "_steady")

    def __init__(self, *, wall: Callable[[], int] = _wall_ms, steady: Callable[[], int] = _STEADY) -> None:
        self._steady = steady
        self._ahead_ms = wall() - steady()

    def __call__(self) -> int:
        """Now."""
        return self._steady() + self._ahead_ms

    def not_before(self, last_ms: int) -> None:
        """Go on from ``last_ms`` where this clock is behind it."""
        self._ahead_ms += max(0, last_ms - self())
