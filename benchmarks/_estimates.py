"""How sure a ratio is: the median of the rounds' ratios, and the interval that 95 % of its bootstrap samples are in."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Estimate", "estimate"]

BOOTSTRAPS = 10_000
SEED = 25


@dataclass(frozen=True)
class Estimate:
    """A median of ratios, and the interval that 95 % of its bootstrap samples are in."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} (95 % between {self.low:.3f} and {self.high:.3f})"


def estimate(ratios: Sequence[float]) -> Estimate:
    """The median, and how far it would differ with other rounds of the same kind."""
    draw = random.Random(SEED)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(BOOTSTRAPS))
    return Estimate(statistics.median(ratios), medians[BOOTSTRAPS // 40], medians[-BOOTSTRAPS // 40 - 1])
