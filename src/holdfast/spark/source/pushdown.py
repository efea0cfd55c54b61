"""Filters that Spark hands down: which part of the log they leave to be read.

Owns: the meaning of Spark's filters for versions, places, keys and request ids. Does not own: dropping every row that a
filter drops: Spark evaluates all of them again, so what is understood here only has to keep every row that passes.

Failure model: a filter that is not understood narrows nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from holdfast.spark.source.shapes import RowFilter, Shape

__all__ = ["row_filter_of"]


REQUEST_IDS_MAX: Final = 10_000
"""A longer list is left to Spark: it would travel to every task."""


def row_filter_of(filters: Iterable[Filter], shape: Shape) -> RowFilter:
    """What all of these filters together may leave.

    >>> row_filter_of([GreaterThan(("version",), 7), LessThanOrEqual(("version",), 9)], Shape.OPERATIONS).version_min
    8
    """
    found = RowFilter()
    for each in filters:
        found = found.and_also(_narrowing(each, shape))
    return found


def _narrowing(one: Filter, shape: Shape) -> RowFilter:
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    value: object = getattr(one, "value", None)
    match ".".join(attribute):
        case "version" if shape is not Shape.BATCHES:
            low, high = _bounds(one, value)
            return RowFilter(version_min=low, version_max=high)
        case "seq":
            low, high = _bounds(one, value)
            return RowFilter(seq_min=low, seq_max=high)
        case "key" if shape is Shape.OPERATIONS:
            return _key_range(one, value)
        case "request_id" if shape is not Shape.BATCHES:
            return RowFilter(request_ids=_texts(one, value))
        case _:
            return RowFilter()


def _bounds(one: Filter, value: object) -> tuple[int | None, int | None]:
    """Inclusive bounds of a whole number."""
    if isinstance(one, In):
        numbers = [each for each in one.value if isinstance(each, int)]
        return (min(numbers), max(numbers)) if numbers and len(numbers) == len(one.value) else (None, None)
    if not isinstance(value, int):
        return None, None
    by_kind: Mapping[type[Filter], tuple[int | None, int | None]] = {
        EqualTo: (value, value),
        EqualNullSafe: (value, value),
        GreaterThan: (value + 1, None),
        GreaterThanOrEqual: (value, None),
        LessThan: (None, value - 1),
        LessThanOrEqual: (None, value),
    }
    return by_kind.get(type(one), (None, None))


def _key_range(one: Filter, value: object) -> RowFilter:
    if isinstance(value, bytearray):
        value = bytes(value)
    if not isinstance(value, bytes):
        return RowFilter()
    after = value + b"\0"
    by_kind: Mapping[type[Filter], tuple[bytes, bytes | None]] = {
        EqualTo: (value, after),
        EqualNullSafe: (value, after),
        GreaterThan: (after, None),
        GreaterThanOrEqual: (value, None),
        LessThan: (b"", value),
        LessThanOrEqual: (b"", after),
    }
    begin, end = by_kind.get(type(one), (b"", None))
    return RowFilter(key_begin=begin, key_end=end)


def _texts(one: Filter, value: object) -> tuple[str, ...] | None:
    """The ids that are wanted, None for any. Ids that only have to start with something are left to Spark."""
    if isinstance(one, EqualTo | EqualNullSafe) and isinstance(value, str):
        return (value,)
    if isinstance(one, In) and len(one.value) <= REQUEST_IDS_MAX:
        texts = tuple(each for each in one.value if isinstance(each, str))
        return texts if len(texts) == len(one.value) else None
    return None
