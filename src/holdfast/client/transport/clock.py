"""The clock, and waits drawn at random: the only place where the clients read either."""

from __future__ import annotations

import random
import time

from holdfast.client.protocol.effects import Wait


def now_ms() -> float:
    """Milliseconds of a clock that never steps back."""
    return time.monotonic() * 1000


def draw_wait_ms(wait: Wait) -> float:
    """A time between the two bounds; spreading a crowd needs no secrecy."""
    return random.uniform(wait.at_least_ms, wait.at_most_ms)
