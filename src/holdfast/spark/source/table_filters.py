"""Filters of a read of a Delta table: from their JSON, and from what Spark pushes down, to tests of files and rows.

A test narrows a read three times: files by their partition and the statistics of the Delta log, row groups by the
statistics of the file, then rows. Statistics of an unexpected type leave nothing out.
"""

# pyarrow ships few types, so the checker cannot know its classes; mypy checks the rest.
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final

import pyarrow as pa
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

from holdfast.errors import InvalidRequest
from holdfast.spark.option_values import TableFilter
from holdfast.spark.runtime.refusals import bad_configuration

VALUES: Final = (
    'whole numbers, texts, booleans, ISO days, ISO times with a zone, and for binary columns texts or {"base64": "..."}'
)
PUSHED_VALUES_MAX: Final = 10_000
"""A longer list of a query is left to Spark: it would travel to every task."""


@dataclass(frozen=True, slots=True)
class Test:
    """What a wanted row passes: ``column`` is not null, and within ``[lowest, highest]`` or among ``values``.

    None for no bound; ``is_open`` leaves the bounds themselves out. ``kind`` is the column's type in the table.
    """

    column: str
    kind: pa.DataType
    lowest: Any = None
    highest: Any = None
    values: tuple[Any, ...] | None = None
    is_open: bool = False

    def may_hold(self, lowest: Any, highest: Any) -> bool:
        """Whether rows with these bounds of the column may have one that passes. None: the bound is unknown."""
        if lowest is None or highest is None:
            return True
        try:
            if self.values is not None:
                return any(lowest <= value <= highest for value in self.values)
            if self.is_open:
                return (self.highest is None or lowest < self.highest) and (
                    self.lowest is None or self.lowest < highest
                )
            return (self.highest is None or lowest <= self.highest) and (self.lowest is None or self.lowest <= highest)
        except TypeError:
            return True

    def passes(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Which rows pass, false or null for those that do not. Raises: ArrowInvalid for a column of a wider type."""
        import pyarrow.compute as pc  # tasks need it, and planning, which starts a process, does not

        if column.type != self.kind:
            column = column.cast(self.kind)
        if self.values is not None:
            among = pc.SetLookupOptions(value_set=pa.array(self.values, self.kind))
            return pc.call_function("is_in", [column], among)
        mask = None
        for bound, how in ((self.lowest, "greater"), (self.highest, "less")):
            if bound is not None:
                name = how if self.is_open else f"{how}_equal"
                met = pc.call_function(name, [column, pa.scalar(bound, self.kind)])
                mask = met if mask is None else pc.call_function("and", [mask, met])
        assert mask is not None, "a test has a bound or values"
        return mask


def tests_of(filters: Iterable[TableFilter], schema: pa.Schema) -> tuple[Test, ...]:
    """The filters with values of their columns' types. Raises: InvalidRequest naming the filter.

    Columns are whole numbers, texts, binaries, booleans, days and times, the latter two as ISO texts.

    >>> tests_of([("x", ">=", 3)], pa.schema([("x", pa.int64())]))[0].lowest
    3
    """
    return tuple(_test(each, schema) for each in filters)


def _test(one: TableFilter, schema: pa.Schema) -> Test:
    column, operator, value = one
    if column not in schema.names:
        raise bad_filter(one, f"the table has {', '.join(schema.names)}")
    kind = schema.field(column).type
    constants = value if operator == "in" else [value]
    if not isinstance(constants, list):
        raise bad_filter(one, "in needs a list of values")
    values: list[Any] = []
    for each in constants:
        typed = _of_type(_from_json(each, kind), kind)
        if typed is None:
            raise bad_filter(one, f"the column is {kind}; values are {VALUES}")
        values.append(typed)
    return _compared(column, kind, operator, values)


def _compared(column: str, kind: pa.DataType, operator: str, values: list[Any]) -> Test:
    match operator:
        case "=":
            return Test(column, kind, values[0], values[0])
        case ">=" | ">":
            return Test(column, kind, lowest=values[0], is_open=operator == ">")
        case "<=" | "<":
            return Test(column, kind, highest=values[0], is_open=operator == "<")
        case _:
            return Test(column, kind, values=tuple(values))


def _from_json(value: object, kind: pa.DataType) -> object:
    """The value that JSON stands for in a column of this type; itself where it does not stand for one."""
    try:
        if pa.types.is_date32(kind) and isinstance(value, str):
            return date.fromisoformat(value)
        if pa.types.is_timestamp(kind) and isinstance(value, str):
            return datetime.fromisoformat(value)
        if pa.types.is_binary(kind) and isinstance(value, str):
            return value.encode()
        if pa.types.is_binary(kind) and isinstance(value, dict) and list(value) == ["base64"]:
            return base64.b64decode(str(value["base64"]), validate=True)
    except ValueError:
        pass  # refused for its type
    return value


def _of_type(value: object, kind: pa.DataType) -> Any:
    """The value, None unless it is one of this type.

    Not of floats: NaN has no place in an order, and statistics leave it out.
    """
    is_number = isinstance(value, int) and not isinstance(value, bool)
    fits = (
        (pa.types.is_boolean(kind) and isinstance(value, bool))
        or (pa.types.is_integer(kind) and is_number)
        or (pa.types.is_string(kind) and isinstance(value, str))
        or (pa.types.is_binary(kind) and isinstance(value, bytes))
        or (pa.types.is_date32(kind) and isinstance(value, date) and not isinstance(value, datetime))
        or (pa.types.is_timestamp(kind) and kind.tz and isinstance(value, datetime) and value.tzinfo is not None)
    )
    if not fits:
        return None
    try:
        pa.scalar(value, kind)
    except (ValueError, OverflowError):  # Arrow's errors are ValueErrors
        return None
    return value


def bad_filter(one: object, hint: str) -> InvalidRequest:
    """The error for a filter that cannot be used."""
    return bad_configuration("this filter cannot be used on the table", hint=hint, filter=json.dumps(one, default=repr))


_OPERATORS: Final[tuple[tuple[type[Filter], str], ...]] = (
    (EqualTo, "="),
    (EqualNullSafe, "="),
    (GreaterThan, ">"),
    (GreaterThanOrEqual, ">="),
    (LessThan, "<"),
    (LessThanOrEqual, "<="),
    (In, "in"),
)


def pushed_tests(filters: Iterable[Filter], schema: pa.Schema) -> tuple[Test, ...]:
    """What these filters of a query leave. A filter that is not understood leaves everything: Spark evaluates it.

    >>> pushed_tests([GreaterThan(("x",), 3)], pa.schema([("x", pa.int64())]))[0].lowest
    3
    """
    return tuple(test for each in filters if (test := _pushed(each, schema)) is not None)


def _pushed(one: Filter, schema: pa.Schema) -> Test | None:
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    operator = next((text for kind, text in _OPERATORS if isinstance(one, kind)), None)
    if operator is None or len(attribute) != 1 or attribute[0] not in schema.names:
        return None
    value: Any = getattr(one, "value", None)
    # NULL among the values of IN matches no row.
    constants = [each for each in value if each is not None] if operator == "in" else [value]
    kind = schema.field(attribute[0]).type
    values = [_of_type(bytes(each) if isinstance(each, bytearray) else each, kind) for each in constants]
    if None in values or len(values) > PUSHED_VALUES_MAX:
        return None
    return _compared(attribute[0], kind, operator, values)
