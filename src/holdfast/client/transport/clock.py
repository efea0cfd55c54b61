"""The clock, and what is drawn at random for each operation: waits, and what ids are made of."""

from __future__ import annotations

import os
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


DRAWN_AT_ONCE: Final = 256
_drawn: Final[list[str]] = []
os.register_at_fork(after_in_child=_drawn.clear)


def draw_entropy() -> str:
    """32 hexadecimal digits, never drawn before, for the id of an attempt. The system is asked for many at once."""
    try:
        return _drawn.pop()
    except IndexError:
        digits = os.urandom(16 * DRAWN_AT_ONCE).hex()
        _drawn.extend(digits[at : at + 32] for at in range(32, len(digits), 32))
        return digits[:32]
