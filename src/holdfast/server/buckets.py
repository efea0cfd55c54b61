"""Histograms in the exposition's form.

Owns: making cumulative buckets of plain ones. Does not own: counting.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["cumulative_buckets"]


def cumulative_buckets(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Cumulative buckets from plain ones; ``counts`` has one more than ``bounds``, above the last."""
    buckets: list[tuple[str, float]] = []
    below = 0
    for bound, count in zip(bounds, counts, strict=False):
        below += count
        buckets.append((repr(bound), below))
    buckets.append(("+Inf", below + counts[-1]))
    return buckets
