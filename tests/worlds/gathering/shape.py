"""The shape of a world of gathered commits, and what must be true of each."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

__all__ = ["ENDS", "NAMED", "ONCE", "OWN", "READ", "SENT", "TRUE", "UNSENT", "Shape", "drawn"]

OWN: Final = "an answer is that of the caller's own commit"
ONCE: Final = "a transaction commits at most once"
SENT: Final = "an attempt that may have been accepted is not sent again"
ENDS: Final = "every caller gets an outcome"
UNSENT: Final = "of a caller that left before it was sent nothing is sent"
TRUE: Final = "what is reported as not committed never commits"
READ: Final = "a read is not older than asked"
NAMED: Final = "a commit has an id and a read version"


@dataclass(frozen=True, slots=True)
class Shape:
    """Times are milliseconds of virtual time; chances are of one request or one call."""

    callers: int = 12
    calls: int = 12
    has_turns: bool = True
    items_max: int = 20
    delay_ms: float = 1.0
    sync_ms: float = 2.0
    think_ms: float = 1.0
    request_timeout_ms: float = 300.0
    lag_ms: float = 20.0
    """How late the service's view may be."""
    kills: int = 0
    lost: float = 0.0
    """A request or a response is lost, or a stream is cut."""
    silent: float = 0.0
    ends: float = 0.0
    """The service ends a stream with an error."""
    refuses: float = 0.0
    proxies: float = 0.0
    """Something else answers: 502, or 404 where only single commits are known."""
    mixes: float = 0.0
    """Two lines change places."""
    leaves: float = 0.0
    transacts: float = 0.3


def drawn(random: Random) -> Shape:
    """A shape of many."""
    chosen = random.choice
    return Shape(
        callers=chosen((1, 3, 12, 40)),
        calls=chosen((5, 12)),
        has_turns=chosen((True, False)),
        items_max=chosen((2, 5, 20, 100)),
        delay_ms=chosen((0.1, 1.0, 5.0)),
        sync_ms=chosen((0.5, 2.0, 10.0)),
        think_ms=chosen((0.0, 1.0, 10.0)),
        request_timeout_ms=chosen((50.0, 300.0, 2_000.0)),
        lag_ms=chosen((1.0, 20.0, 100.0)),
        kills=chosen((0, 0, 1, 4)),
        lost=chosen((0.0, 0.02, 0.1)),
        silent=chosen((0.0, 0.0, 0.02)),
        ends=chosen((0.0, 0.02, 0.1)),
        refuses=chosen((0.0, 0.02, 0.1)),
        proxies=chosen((0.0, 0.0, 0.02)),
        mixes=chosen((0.0, 0.0, 0.05)),
        leaves=chosen((0.0, 0.02, 0.2)),
        transacts=chosen((0.0, 0.3, 0.8)),
    )
