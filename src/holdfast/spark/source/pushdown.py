"""Filter push-down into a Python reader, for sessions where it is on and where it is off.

Spark evaluates every pushed filter again, so a filter may only narrow what is read; an unknown filter narrows nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyspark.sql.datasource import DataSourceReader, Filter


class PushWhereItIsOn:
    """``pushFilters`` of one reader.

    Where push-down is off, Spark refuses a reader with a ``pushFilters`` of its own, and tests that by ``__func__``.
    """

    __func__ = DataSourceReader.pushFilters

    def __init__(self, narrow: Callable[[list[Filter]], Iterable[Filter]]) -> None:
        self._narrow = narrow

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """The filters that Spark has to evaluate: all of them."""
        return self._narrow(filters)
