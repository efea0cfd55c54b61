"""The shape of a world of workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

__all__ = ["STORE", "WORK", "Shape", "drawn"]

STORE = "s"
WORK = "work"


@dataclass(frozen=True, slots=True)
class Shape:
    """Times are milliseconds of virtual time."""

    kind: str = "shared"
    """standard, shared or keyed."""
    workers: int = 3
    handlers: int = 1
    messages: int = 60
    ack_wait_ms: int = 2_000
    buffer_wait_ms: int = 0
    subscriber_timeout_ms: int = 1_000
    prefetch: int = 16
    own_prefetch: int | None = None
    job_ms: float = 60.0
    delay_ms: float = 5.0
    sync_ms: float = 5.0
    heartbeat_ms: float = 300.0
    timeout_ms: float = 1_000.0
    chaos_ms: float = 12_000.0
    kills: float = 0.0
    freezes: float = 0.0
    """Of the service: how many in a world, about."""
    cuts: float = 0.0
    holds: float = 0.0
    deaths: float = 0.0
    sleeps: float = 0.0
    """Of workers and their connections."""
    removals: float = 0.0
    stops: float = 0.0
    settles: tuple[float, ...] = field(default=(70, 8, 4, 2, 6, 4, 6))
    """How jobs end: acknowledged, confirmed, put back, rejected, extended first, never, in a commit."""

    def definition(self) -> dict[str, object]:
        """Of the cluster."""
        durable: dict[str, object] = {
            "type": "standard" if self.kind == "standard" else "shared",
            "ack_wait": f"{self.ack_wait_ms}ms",
            "subscriber_timeout": f"{self.subscriber_timeout_ms}ms",
            "prefetch": self.prefetch,
            "max_delivery": 0,
        }
        if self.kind == "keyed":
            durable["key_ordered"] = True
        if self.buffer_wait_ms:
            durable["buffer_wait"] = f"{self.buffer_wait_ms}ms"
        return {"stores": {STORE: {"durables": {WORK: durable}}}}


def drawn(random: Random) -> Shape:
    """A shape of many."""
    kind = random.choice(("standard", "shared", "shared", "keyed"))
    chosen = random.choice
    return Shape(
        kind=kind,
        workers=random.randint(1, 2) if kind == "standard" else random.randint(1, 5),
        handlers=chosen((1, 1, 2, 3)),
        messages=chosen((20, 60, 120)),
        ack_wait_ms=chosen((300, 1_000, 3_000)),
        buffer_wait_ms=chosen((0, 0, 100, 500)),
        subscriber_timeout_ms=chosen((400, 1_000, 2_000)),
        prefetch=chosen((1, 4, 16, 64)),
        own_prefetch=chosen((None, None, 1, 3, 20)),
        job_ms=chosen((2.0, 20.0, 100.0)),
        delay_ms=chosen((0.5, 5.0, 40.0)),
        sync_ms=chosen((0.5, 5.0, 40.0)),
        kills=chosen((0, 0, 1, 3)),
        freezes=chosen((0, 0, 1, 2)),
        cuts=chosen((0, 0, 2, 5)),
        holds=chosen((0, 0, 1, 3)),
        deaths=chosen((0, 0, 1, 3)),
        sleeps=chosen((0, 0, 1, 3)),
        removals=chosen((0, 0, 2)),
        stops=chosen((0, 0, 1)),
    )
