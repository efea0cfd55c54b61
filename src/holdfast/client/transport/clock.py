"""The clock, and waits drawn at random: the only place where the clients read either."""

from __future__ import annotations

import time
from random import SystemRandom
from typing import Final

from holdfast.client.protocol.effects import Wait

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Where the system has it, a clock that goes on while the machine sleeps: what a client holds lapses meanwhile."""

_random: Final = SystemRandom()
"""Not the generator of the module, which is the application's; and processes that fork draw different numbers."""


def now_ms() -> float:
    """Milliseconds of a clock that never steps back."""
    return time.clock_gettime(_CLOCK) * 1000


def draw_wait_ms(wait: Wait) -> float:
    """A time between the two bounds; spreading a crowd needs no secrecy."""
    return _random.uniform(wait.at_least_ms, wait.at_most_ms)
