"""The bounds of a micro-batch of messages: in rows, and in bytes by the mean message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

UNBOUNDED: Final = 2**31 - 1


class Bounds(Protocol):
    """The options that bound a micro-batch."""

    @property
    def rows_max(self) -> int | None:
        """The most messages."""
        ...

    @property
    def bytes_max(self) -> int | None:
        """About the most bytes; at least one message."""
        ...


def default_limit(rows_max: int | None, bytes_max: int | None) -> ReadLimit:
    """What Spark hands back to ``latestOffset``, which applies the bounds itself."""
    return ReadAllAvailable() if rows_max is None and bytes_max is None else ReadMaxRows(rows_max or UNBOUNDED)


def most_rows(bounds: Bounds, mean_bytes: Callable[[], int]) -> int:
    """How many messages a micro-batch may have. ``mean_bytes`` is asked only where there is a bound in bytes."""
    rows = UNBOUNDED if bounds.rows_max is None else bounds.rows_max
    return rows if bounds.bytes_max is None else min(rows, max(1, bounds.bytes_max // max(1, mean_bytes())))
