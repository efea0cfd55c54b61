"""The sizes, sync levels, file system and fault rates of a world of the queue, drawn from its seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from holdfast.queue import SyncLevel, every

__all__ = ["FIRST_PAGE_BYTES", "FRAME_BYTES", "Shape", "draw_shape"]

FIRST_PAGE_BYTES: Final = 4096
FRAME_BYTES: Final = 64
"""In a uniform world each message has a frame of this size. It divides a sector and is the size of a page's header, so
that frames begin where sectors and blocks do, and what is stale or misplaced is aligned."""
LIFETIME_NS: Final = 60_000_000_000


@dataclass(frozen=True, slots=True)
class Shape:
    """One world. ``stale``: the file system may show old bytes in blocks that were allocated and never written.
    ``damage_rounds``: so often a log that was closed cleanly is damaged, on a copy. ``crowd``: how often others append
    while a sync is under way. ``grows``: pages double from ``FIRST_PAGE_BYTES`` to ``page_bytes``. ``keep``: the
    log has no consumer, so "consumed" removes nothing."""

    page_bytes: int
    sync: str | SyncLevel
    uniform: bool
    stale: bool
    fault_rate: float
    lifetime_ns: int | None
    max_bytes: int | None
    compression: int
    damage_rounds: int
    steps: int
    lives: int
    crowd: float
    grows: bool
    keep: str

    def grown_bytes(self, number: int) -> int:
        """The size of a page, unless one frame needs more."""
        return min(self.page_bytes, FIRST_PAGE_BYTES << (number - 1)) if self.grows else self.page_bytes


def draw_shape(random: Random, growth: Random) -> Shape:
    """The shape of a world. ``growth`` draws the newer fields, so that a seed keeps the rest of its shape."""
    page_bytes = random.choice((4096, 4096, 8192, 12288))
    grows = growth.random() < 0.3
    if grows:
        page_bytes = growth.choice((12_288, 16_384, 32_768))
    level = random.choice(("os", "os", "os", "os", "always", "every messages", "every bytes", "every ms"))
    sync: str | SyncLevel = level
    if level == "every messages":
        sync = every(messages=random.randint(2, 9))
    elif level == "every bytes":
        sync = every(bytes=random.randint(200, 6000))
    elif level == "every ms":
        sync = every(ms=5)
    retention = random.choice(("keep", "keep", "keep", "lifetime", "max_bytes"))
    uniform = random.random() < 0.4
    return Shape(
        page_bytes=page_bytes,
        sync=sync,
        uniform=uniform,
        stale=random.random() < 0.4,
        fault_rate=random.choice((0.0, 0.0, 0.02, 0.06)),
        lifetime_ns=LIFETIME_NS if retention == "lifetime" else None,
        max_bytes=page_bytes * random.randint(3, 5) if retention == "max_bytes" else None,
        compression=0 if uniform else random.choice((0, 0, 0, 1)),
        damage_rounds=random.choice((0, 20)),
        steps=random.randint(6, 28),
        lives=random.randint(1, 4),
        crowd=random.choice((0.0, 0.7)),
        grows=grows,
        keep=growth.choice(("all", "all", "consumed")),
    )
