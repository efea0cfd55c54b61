"""Filters that Spark pushes down, for sessions with push-down on and off."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyspark.sql.datasource import DataSourceReader, Filter


class PushWhereItIsOn:
    """``pushFilters`` of one reader, which ``narrow`` notes; Spark evaluates all filters again.

    Where push-down is off, Spark refuses a reader that has a ``pushFilters`` of its own, and tests that by
    ``__func__``.
    """

    __func__ = DataSourceReader.pushFilters

    def __init__(self, narrow: Callable[[list[Filter]], None]) -> None:
        self._narrow = narrow

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """Note the filters. Returns all of them."""
        self._narrow(filters)
        return filters
