"""The columns of a table that a pipeline makes with types: options, and where each column comes from.

A value that is an object becomes one column for each field; any other value is the column ``value``. A field whose name
the table itself uses becomes ``value_NAME``: ``day`` of a value in ``changes`` is ``value_day``. Decoded keys are the
column ``key``; ``key_bytes`` keeps the bytes where ``key`` does not determine them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa

from holdfast.errors import InvalidRequest
from holdfast.spark.runtime.refusals import bad_configuration
from holdfast.spark.typed.ddl import parse_schema, type_text
from holdfast.spark.typed.decode import Encoding, Format, Unfit, nullable
from holdfast.spark.typed.exact import joined
from holdfast.spark.typed.infer import SAMPLE_MAX
from holdfast.spark.typed.rows import Choice, TypedColumns, Typing

E = TypeVar("E", bound=StrEnum)

KEY_BYTES: Final = "key_bytes"
_OF_VALUE: Final = "value_"
QUARANTINE_SCHEMA: Final = pa.schema(
    [
        ("version", pa.int64()),
        ("position", pa.int32()),
        ("kind", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("column", pa.string()),
        ("reason", pa.string()),
    ]
)
"""The table of operations that do not fit: raw bytes, the place of the first misfit, and the reason."""
_NOT_IN_A_NAME: Final = re.compile(r"[ ,;{}()\n\t=]")


def _one_of(kind: type[E], name: str, value: str) -> E:
    try:
        return kind(value)
    except ValueError:
        raise bad_configuration(f"{name} is {value!r}; valid: {', '.join(kind)}") from None


@dataclass(frozen=True, slots=True)
class RowOptions:
    """Which operations a table of a pipeline is made of, and the types of its columns.

    Shape: ``key_prefixes`` empty means every key. ``schema`` is the type of JSON and msgpack values (``origin string,
    delay int``); with ``infer`` it follows from that many values of each step, and without both from the table that
    exists. The policy ``unfit`` may change between two runs; the rest belongs to the table. Raises: InvalidRequest.
    """

    key_prefixes: tuple[bytes, ...] = ()
    key_format: Format | str = Format.BINARY
    key_schema: str | None = None
    value_format: Format | str = Format.BINARY
    schema: str | None = None
    infer: int | None = None
    unfit: Unfit | str = Unfit.FAIL

    def __post_init__(self) -> None:
        _require_sense(self)


def _require_sense(rows: RowOptions) -> None:
    key, unfit = key_encoding(rows), _one_of(Unfit, "unfit", rows.unfit)
    chosen = _one_of(Format, "value format", rows.value_format)
    if rows.schema is not None:
        Encoding.of(chosen, parse_schema(rows.schema), "value")
    if rows.infer is not None and rows.schema is not None:
        raise bad_configuration("schema and infer both say what values look like; give one")
    if rows.infer is not None and not (needs_schema(rows) and 1 <= rows.infer <= SAMPLE_MAX):
        raise bad_configuration(f"infer is a number of JSON or msgpack values, 1 to {SAMPLE_MAX}", infer=rows.infer)
    if unfit is not Unfit.FAIL and key.format is chosen is Format.BINARY:
        raise bad_configuration(f"unfit {unfit} has no effect without a key format or a value format")
    if b"" in rows.key_prefixes:
        raise bad_configuration("a key prefix is empty; leave it out to have every key")


def key_encoding(rows: RowOptions) -> Encoding:
    """How keys are read."""
    schema = None if rows.key_schema is None else parse_schema(rows.key_schema)
    return Encoding.of(_one_of(Format, "key format", rows.key_format), schema, "key")


def choice_of(rows: RowOptions) -> Choice:
    """Which operations are wanted."""
    return Choice(tuple(sorted(set(rows.key_prefixes))))


def needs_schema(rows: RowOptions) -> bool:
    """Whether values have a schema that something other than the format must say."""
    return rows.value_format in (Format.JSON, Format.MSGPACK)


def typing_of(rows: RowOptions, value_type: pa.DataType | None) -> Typing:
    """How rows are decoded; ``value_type`` is the type of JSON and msgpack values. Raises: InvalidRequest."""
    value = Encoding.of(Format(rows.value_format), value_type if needs_schema(rows) else None, "value")
    return Typing(key_encoding(rows), value, Unfit(rows.unfit))


def identity_of(rows: RowOptions) -> Mapping[str, object]:
    """What belongs to the table: it is stored in it, and every later run must name the same."""
    key = key_encoding(rows)
    return {
        "key_prefixes": [prefix.hex() for prefix in choice_of(rows).prefixes],
        "key_format": str(key.format),
        "key_schema": type_text(key.type),
        "value_format": str(rows.value_format),
    }


def require_identity(rows: RowOptions, stored: Mapping[str, object], url: str) -> None:
    """Raise InvalidRequest unless a table with this stored identity is one of these options."""
    for name, wanted in identity_of(rows).items():
        if stored.get(name) != wanted:
            raise bad_configuration(
                f"the table was made with another {name.replace('_', ' ')}",
                hint="name the same keys and formats as before, or begin a new table",
                url=url,
                table=json.dumps(stored.get(name)),
                wanted=json.dumps(wanted),
            )


ROWS_DEFAULT: Final = RowOptions()
"""Every operation of users, with keys and values as bytes."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a typed table.

    Shape: ``own`` are the columns of the plain table, with ``key`` and ``value`` as bytes. ``fields`` names the column
    of each field of a value that is a struct, in order; None: the column ``value`` holds the whole value.
    """

    own: pa.Schema
    typing: Typing
    fields: tuple[str, ...] | None
    keeps_key_bytes: bool

    @classmethod
    def of(cls, own: pa.Schema, typing: Typing, *, is_feed: bool) -> Layout:
        """The layout of a table with these columns. ``is_feed``: rows are operations, also range deletes.

        Raises: InvalidRequest for names and types that not every reader of a Delta table has.
        """
        keeps = typing.key.format in (Format.JSON, Format.MSGPACK) or (is_feed and typing.key.format is Format.UTF8)
        _require_portable(typing.key.type, "key")
        _require_portable(typing.value.type, "value")
        if not pa.types.is_struct(typing.value.type):
            return cls(own, typing, None, keeps)
        names = [each.name for each in typing.value.type]
        taken = _taken(own.names)
        columns = tuple(f"{_OF_VALUE}{name}" if _is_taken(name, taken) else name for name in names)
        return cls(own, typing, columns, keeps)

    @property
    def needs_keys(self) -> bool:
        """Whether a row is found by its column ``key``, so that it cannot be null: no column has the bytes."""
        return self.typing.key.format is Format.UTF8 and not self.keeps_key_bytes and self.typing.unfit is Unfit.NULL

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table: its own ones first, then those of the values."""
        key = pa.field("key", self.typing.key.column_type)
        own = [key if each.name == "key" else each for each in self.own if each.name != "value"]
        key_bytes = [pa.field(KEY_BYTES, pa.binary())] if self.keeps_key_bytes else []
        kind = self.typing.value.column_type
        if self.fields is None:
            return pa.schema([*own, *key_bytes, ("value", kind)])
        values = zip(self.fields, (each.type for each in kind), strict=True)
        return pa.schema([*own, *key_bytes, *(pa.field(name, each) for name, each in values)])

    def rows(self, plain: pa.Table | pa.RecordBatch, found: TypedColumns) -> pa.Table:
        """The rows of the table from its plain rows (``own`` without partition columns) and their decoded columns."""
        arrays = {name: plain[name] for name in plain.schema.names if name not in ("key", "value")}
        arrays["key"] = found.key
        if self.keeps_key_bytes:
            arrays[KEY_BYTES] = plain["key"]
        if self.fields is None:
            arrays["value"] = found.value
        else:
            arrays |= dict(zip(self.fields, found.value.flatten(), strict=True))
        return pa.table({name: arrays[name] for name in self.schema.names if name in arrays})

    def conform(self, table: pa.Table) -> pa.Table:
        """Rows of an older file of the table with today's columns: null where the file has no such column."""
        columns = {name: table[name] for name in table.column_names}
        for each in self.schema:
            if each.name in columns:
                columns[each.name] = columns[each.name].cast(each.type)
            elif each.name not in self.own.names:
                columns[each.name] = pa.chunked_array([pa.nulls(table.num_rows, each.type)])
        return pa.table(columns)

    def key_bytes(self, table: pa.Table) -> pa.ChunkedArray:
        """The raw keys of rows of the table."""
        return table[KEY_BYTES] if self.keeps_key_bytes else table["key"].cast(pa.binary())


def _require_portable(kind: pa.DataType, place: str) -> None:
    if kind == pa.timestamp("us"):
        raise bad_configuration(
            f"{place} is timestamp_ntz, which many readers of Delta tables do not know",
            hint="use timestamp for times with a zone, or string",
        )
    if pa.types.is_struct(kind):
        for each in kind:
            if _NOT_IN_A_NAME.search(each.name):
                raise bad_configuration(
                    "a field has a name that a Delta table cannot have as a column", place=place, name=repr(each.name)
                )
            _require_portable(each.type, f"{place}.{each.name}")
    elif pa.types.is_map(kind):
        _require_portable(kind.item_type, f"{place}{{}}")
    elif pa.types.is_list(kind):
        _require_portable(kind.value_type, f"{place}[]")


def value_type_of(table: pa.Schema, own: Iterable[str]) -> pa.DataType | None:
    """The type of the values in a typed table, from its columns; None where it has no columns of values yet.

    >>> own = ("version", "key", "value", "day")
    >>> value_type_of(pa.schema([("version", pa.int64()), ("value_day", pa.int32()), ("gate", pa.string())]), own)
    StructType(struct<day: int32, gate: string>)
    """
    taken = _taken(own)
    fields: list[pa.Field] = []
    for each in table:
        rest = each.name.removeprefix(_OF_VALUE)
        if each.name == "value":
            return each.type
        if each.name.casefold() not in taken:
            fields.append(pa.field(rest if _is_taken(rest, taken) else each.name, each.type))
    return pa.struct(fields) if fields else None


def _taken(own: Iterable[str]) -> frozenset[str]:
    return frozenset(name.casefold() for name in (*own, KEY_BYTES))


def _is_taken(name: str, taken: frozenset[str]) -> bool:
    """Whether the table uses this name as a column itself, or for a field that got another name."""
    name = name.casefold()
    return name in taken or (name.startswith(_OF_VALUE) and _is_taken(name.removeprefix(_OF_VALUE), taken))


def grown(before: pa.DataType | None, wanted: pa.DataType) -> pa.DataType:
    """The type of values after ``wanted`` is asked of a table whose values have the type ``before``.

    New fields come last; a field that is not asked for any more stays. Raises: InvalidRequest for a field that would
    get a type that does not have all values of its own.

    >>> grown(pa.struct([("delay", pa.int32())]), pa.struct([("gate", pa.string()), ("delay", pa.int64())]))
    StructType(struct<delay: int64, gate: string>)
    """
    if before is None or is_wider(wanted, before):
        return wanted
    if not (pa.types.is_struct(before) and pa.types.is_struct(wanted)):
        raise _changed("value", before, wanted)
    new_fields = {each.name: each for each in wanted}
    fields = [new_fields.pop(each.name, each) for each in before]
    for old, new in zip(before, fields, strict=True):
        if not is_wider(new.type, old.type):
            raise _changed(f"value.{old.name}", old.type, new.type)
    return pa.struct([*fields, *new_fields.values()])


def is_wider(new: pa.DataType, old: pa.DataType) -> bool:
    """Whether every value of ``old`` is a value of ``new``; a type is as wide as itself.

    >>> is_wider(pa.int64(), pa.int32()), is_wider(pa.float64(), pa.int64()), is_wider(pa.string(), pa.int64())
    (True, False, False)
    """
    if nullable(new) == nullable(old):
        return True
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        return [each.name for each in old] == [each.name for each in new] and all(
            is_wider(after.type, before.type) for before, after in zip(old, new, strict=True)
        )
    if pa.types.is_list(old) and pa.types.is_list(new):
        return is_wider(new.value_type, old.value_type)
    if pa.types.is_map(old) and pa.types.is_map(new):
        return bool(new.key_type == old.key_type) and is_wider(new.item_type, old.item_type)
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        return bool(new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale)
    if pa.types.is_integer(old) and pa.types.is_integer(new):
        return bool(new.bit_width >= old.bit_width)
    if new == pa.float64():
        return bool(old == pa.float32() or (pa.types.is_integer(old) and old.bit_width <= EXACT_IN_DOUBLE))
    return False


EXACT_IN_DOUBLE: Final = 32
"""Bits of the widest integer type of which ``double`` has every value."""


def _changed(column: str, before: pa.DataType, wanted: pa.DataType) -> InvalidRequest:
    return bad_configuration(
        "a column of the table cannot change its type in this way",
        hint="a column can get a wider type, such as bigint after int; for another one begin a new table",
        column=column,
        table=type_text(before),
        wanted=type_text(wanted),
    )


def quarantined(rows: pa.Table | pa.RecordBatch, found: TypedColumns, above: int) -> pa.Table:
    """The rows of the quarantine: the operations with a misfit and a version above ``above``.

    Shape: ``rows`` have version, position, kind, key and value.
    """
    first: dict[int, tuple[str, str]] = {}
    for column, misfit in found.misfits:
        first.setdefault(misfit.row, (joined(column, misfit.path), misfit.reason))
    at = pa.array(list(first), pa.int64())
    columns = [rows[name].take(at) for name in QUARANTINE_SCHEMA.names[:5]]
    places, reasons = [place for place, _ in first.values()], [reason for _, reason in first.values()]
    table = pa.table([*columns, pa.array(places, pa.string()), pa.array(reasons, pa.string())], QUARANTINE_SCHEMA.names)
    table = table.cast(QUARANTINE_SCHEMA)
    return table.filter(pa.array(table["version"].to_numpy() > above))


def fitting(count: int, found: TypedColumns) -> tuple[pa.Array, TypedColumns]:
    """The numbers of the rows, of ``count``, that fit, and their decoded columns."""
    mask = np.ones(count, dtype=np.bool_)
    mask[[misfit.row for _, misfit in found.misfits]] = False
    rows = pa.array(np.flatnonzero(mask))
    return rows, TypedColumns(found.key.take(rows), found.value.take(rows), ())
