"""What a world is like: sizes, levels, the kind of file system, how much goes wrong. Drawn once, from the seed.

Owns: the draw. Does not own: what is done with it (``world``).

Failure model: pure; a seed gives one shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from holdfast.queue import SyncLevel, every

__all__ = ["FRAME_BYTES", "Shape", "draw_shape"]

FRAME_BYTES: Final = 512
"""In a uniform world each frame of one message takes this much, so that what is stale or misplaced is aligned."""
LIFETIME_NS: Final = 60_000_000_000


@dataclass(frozen=True, slots=True)
class Shape:
    """One world. ``stale``: the file system may show old bytes in blocks that were allocated and never written."""

    page_bytes: int
    sync: str | SyncLevel
    uniform: bool
    stale: bool
    fault_rate: float
    lifetime_ns: int | None
    max_bytes: int | None
    compression: int
    steps: int
    lives: int


def draw_shape(random: Random) -> Shape:
    """The shape of a world."""
    page_bytes = random.choice((4096, 4096, 8192, 12288))
    level = random.choice(("buffered", "os", "os", "os", "always", "every messages", "every bytes", "every ms"))
    sync: str | SyncLevel = level
    if level == "every messages":
        sync = every(messages=random.randint(2, 9))
    elif level == "every bytes":
        sync = every(bytes=random.randint(200, 6000))
    elif level == "every ms":
        sync = every(ms=5)
    retention = random.choice(("keep", "keep", "keep", "lifetime", "max_bytes"))
    return Shape(
        page_bytes=page_bytes,
        sync=sync,
        uniform=random.random() < 0.4,
        stale=random.random() < 0.4,
        fault_rate=random.choice((0.0, 0.0, 0.02, 0.06)),
        lifetime_ns=LIFETIME_NS if retention == "lifetime" else None,
        max_bytes=page_bytes * random.randint(3, 5) if retention == "max_bytes" else None,
        compression=random.choice((0, 0, 0, 1)),
        steps=random.randint(6, 28),
        lives=random.randint(1, 4),
    )
