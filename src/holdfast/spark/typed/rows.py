"""Operations with typed columns: which of them are wanted, and what happens to those that do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from holdfast.errors import InvalidRequest
from holdfast.spark.typed.decode import Encoding, Format, Misfit, Unfit, decode
from holdfast.spark.typed.exact import joined

Rows: TypeAlias = "pa.RecordBatch | pa.Table"
R = TypeVar("R", pa.RecordBatch, pa.Table)


def key_after(prefix: bytes) -> bytes | None:
    """The first key above every key with this prefix; None for a prefix that no key is above.

    >>> key_after(b"a/"), key_after(b"a\\xff"), key_after(b"")
    (b'a0', b'b', None)
    """
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


def in_range(key: Any, end: Any, is_range: Any, begin: bytes, past: bytes | None) -> Any:
    """Which operations are on keys in ``[begin, past)``: points in it, and range deletes that reach it."""
    import pyarrow.compute as pc  # tasks need it, and planning, which starts a process, does not

    def compared(name: str, column: Any, bound: bytes) -> Any:
        return pc.call_function(name, [column, pa.scalar(bound, pa.binary())])

    mask = None if past is None else compared("less", key, past)
    if begin:
        reaches = compared("greater", end, begin).fill_null(True)
        above = pc.call_function("if_else", [is_range, reaches, compared("greater_equal", key, begin)])
        mask = above if mask is None else pc.call_function("and", [mask, above])
    assert mask is not None, "a range has a bound"
    return mask


@dataclass(frozen=True, slots=True)
class Choice:
    """Which operations are wanted: those on keys with one of the ``prefixes`` (none: every key).

    A range delete is wanted if it reaches a wanted prefix.
    """

    prefixes: tuple[bytes, ...] = ()

    @property
    def is_everything(self) -> bool:
        """Whether no operation is left out."""
        return not self.prefixes

    def of(self, rows: R) -> R:
        """The wanted rows. Shape: ``rows`` have kind, key and end."""
        if self.is_everything:
            return rows
        import pyarrow.compute as pc

        is_range = pc.call_function("equal", [rows["kind"], pa.scalar("range_delete")])
        wanted = None
        for prefix in self.prefixes:
            has = in_range(rows["key"], rows["end"], is_range, prefix, key_after(prefix))
            wanted = has if wanted is None else pc.call_function("or", [wanted, has])
        return rows.filter(wanted)


@dataclass(frozen=True, slots=True)
class Typing:
    """How keys and values become columns, and what happens to one that does not fit."""

    key: Encoding = field(default_factory=Encoding)
    value: Encoding = field(default_factory=Encoding)
    unfit: Unfit = Unfit.FAIL

    @property
    def is_plain(self) -> bool:
        """Whether keys and values stay bytes."""
        return self.key.format is Format.BINARY and self.value.format is Format.BINARY


@dataclass(frozen=True, slots=True)
class TypedColumns:
    """Decoded keys and values of some operations, and the misfits in order of the rows, each with its column's name."""

    key: pa.Array
    value: pa.Array
    misfits: Sequence[tuple[str, Misfit]]


def decode_rows(rows: Rows, typing: Typing) -> TypedColumns:
    """The keys and values of these operations as columns. Shape: ``rows`` have kind, key and value.

    The key of a range delete is a bound, which need not be a key of this format: it is null then, and not a misfit.
    """
    key, value = decode(rows["key"], typing.key), decode(rows["value"], typing.value)
    misfits = [("value", misfit) for misfit in value.misfits]
    if key.misfits:
        kinds = rows["kind"]
        misfits += [("key", each) for each in key.misfits if kinds[each.row].as_py() != "range_delete"]
        misfits.sort(key=lambda pair: pair[1].row)
    return TypedColumns(key.column, value.column, misfits)


def require_fit(rows: Rows, found: TypedColumns) -> None:
    """Raise InvalidRequest for the first misfit, with the key and, where ``rows`` have it, the version."""
    if not found.misfits:
        return
    column, misfit = found.misfits[0]
    raise InvalidRequest(
        f"a {column} does not fit: {misfit.reason}",
        hint="correct the schema, or choose what happens to such rows by unfit",
        column=joined(column, misfit.path),
        version=rows["version"][misfit.row].as_py() if "version" in rows.schema.names else None,
        key=bytes(rows["key"][misfit.row].as_py()[:64]),
        value=bytes(rows["value"][misfit.row].as_py()[:64]) if column == "value" else None,
    )


def typed_batch(rows: pa.RecordBatch, typing: Typing) -> pa.RecordBatch:
    """The operations with decoded columns ``key`` and ``value`` in the place of bytes.

    Shape: ``rows`` have kind, key and value. Raises: InvalidRequest for a misfit, with the policy ``fail``.
    """
    columns = decode_rows(rows, typing)
    if typing.unfit is Unfit.FAIL:
        require_fit(rows, columns)
    for name, column in (("key", columns.key), ("value", columns.value)):
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, pa.field(name, column.type), column)
    return rows
