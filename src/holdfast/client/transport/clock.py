"""What both shells need of the world: the clock, a drawn wait, and how results are handed out.

Owns: reading the clock and drawing waits for procedures. Does not own: sockets (``sockets``, ``transports``).
"""

from __future__ import annotations

import random
import time

from holdfast.client.protocol.effects import Wait

__all__ = ["draw_wait_ms", "now_ms"]


def now_ms() -> float:
    """Milliseconds of a clock that never steps back."""
    return time.monotonic() * 1000


def draw_wait_ms(wait: Wait) -> float:
    """A time between the two bounds; spreading a crowd needs no secrecy."""
    return random.uniform(wait.at_least_ms, wait.at_most_ms)
