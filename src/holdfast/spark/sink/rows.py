"""From rows to transactions.

Owns: the columns that the sink takes, and how rows become operations and groups of them become transactions.
Does not own: request ids and sending (``sink_task``).

Columns: ``key`` and ``value`` (binary or string; string is written as UTF-8), ``kind`` (``write``, ``delete``,
``range_delete``; without it a null value deletes), ``end`` (for ``range_delete``; null means to the last key). Or the
one column ``operations``, an array of structs of these, as the source's shape ``transactions`` gives it: a transaction
a row. Other columns of those two shapes (``version``, ``timestamp``, ...) are what a log says about itself, and are
left out, so a log's rows can be written into another log as they are.

Failure model: a schema that does not fit raises InvalidRequest before anything is sent, a row that does not fit raises
it with its place.
"""

# pyarrow ships no types, so the checker cannot know its classes where they are parameters; mypy checks the rest.
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, cast

import pyarrow as pa
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructType

from holdfast.commit.format.transaction import Delete, Operation, RangeDelete, Write
from holdfast.errors import Code, InvalidRequest
from holdfast.spark.source.shapes import Shape, column_names

__all__ = ["check_schema", "transactions_of"]

_OPERATION_COLUMNS: Final = ("key", "value", "kind", "end")
_OWN: Final = frozenset(column_names(Shape.OPERATIONS)) | frozenset(column_names(Shape.TRANSACTIONS))


def check_schema(schema: StructType, transaction_key: str | None) -> None:
    """Raise InvalidRequest unless rows of this schema are operations, or transactions."""
    fields: Mapping[str, DataType] = {field.name: field.dataType for field in schema}
    if transaction_key is not None and transaction_key not in fields:
        raise _misfit(f"there is no column {transaction_key}, the transactionKey")
    extra = [name for name in fields if name not in _OWN and name != transaction_key]
    if extra:
        raise _misfit(f"columns {', '.join(extra)} would be lost")
    if "operations" in fields:
        kind = fields["operations"]
        if transaction_key is not None or "key" in fields:
            raise _misfit("a row of operations is a transaction already")
        if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
            raise _misfit("operations is an array of structs")
        fields = {field.name: field.dataType for field in kind.elementType}
    if "key" not in fields or not ("value" in fields or "kind" in fields):
        raise _misfit("key and value are needed (or key and kind)")
    for name in _OPERATION_COLUMNS:
        if name in fields and not isinstance(fields[name], BinaryType | StringType):
            raise _misfit(f"{name} is binary or string, not {fields[name].simpleString()}")


def _misfit(reason: str) -> InvalidRequest:
    return InvalidRequest(
        f"rows are no transactions: {reason}",
        code=Code.BAD_CONFIGURATION,
        hint="the sink takes key, value, kind, end, or operations; use select() to name them so",
    )


def transactions_of(batches: Iterable[pa.RecordBatch], transaction_key: str | None) -> Iterator[list[Operation]]:
    """The operations of one transaction after the other, in the order of the rows.

    With ``transaction_key`` consecutive rows of one value make a transaction. The rows must be sorted by it within the
    partition, so that no transaction can come in two parts unnoticed; its values compare as Python compares them.
    Raises: InvalidRequest.
    """
    if transaction_key is None:
        for batch in batches:
            yield from _one_per_row(batch)
        return
    group: list[Operation] = []
    current: object = None
    for batch in batches:
        names: list[object] = batch.column(transaction_key).to_pylist()
        for name, operations in zip(names, _one_per_row(batch), strict=True):
            if name is None:
                raise InvalidRequest("a row has no transactionKey", column=transaction_key)
            if group and name != current:
                if name < current:  # type: ignore[operator]  # one column has one type
                    raise InvalidRequest(
                        "rows are not sorted by the transactionKey, so a transaction might be torn",
                        hint=f'df.repartition("{transaction_key}").sortWithinPartitions("{transaction_key}")',
                        after=current,
                        found=name,
                    )
                yield group
                group = []
            current = name
            group += operations
    if group:
        yield group


def _one_per_row(batch: pa.RecordBatch) -> Iterator[list[Operation]]:
    names: Sequence[str] = batch.schema.names
    if "operations" in names:
        for row in batch.column("operations").to_pylist():
            found = cast("list[dict[str, object]]", row or [])
            if not found:
                raise InvalidRequest("a transaction has no operations", code=Code.NO_OPERATIONS)
            yield [
                _operation(each.get("key"), each.get("value"), each.get("kind", _BY_VALUE), each.get("end"))
                for each in found
            ]
        return
    none: list[object] = [None] * batch.num_rows
    keys: list[object] = batch.column("key").to_pylist()
    values: list[object] = batch.column("value").to_pylist() if "value" in names else none
    if "kind" not in names:
        for key, value in zip(keys, values, strict=True):
            yield [_operation(key, value, _BY_VALUE, None)]
        return
    kinds: list[object] = batch.column("kind").to_pylist()
    ends: list[object] = batch.column("end").to_pylist() if "end" in names else none
    for key, value, kind, end in zip(keys, values, kinds, ends, strict=True):
        yield [_operation(key, value, kind, end)]


_BY_VALUE: Final = "by value"


def _operation(key: object, value: object, kind: object, end: object) -> Operation:
    name = _bytes(key)
    if name is None:
        raise InvalidRequest("a row has no key")
    if kind == _BY_VALUE:
        kind = "delete" if value is None else "write"
    match kind:
        case "write":
            data = _bytes(value)
            if data is None:
                raise InvalidRequest("a write has no value", key=name)
            return Write(name, data)
        case "delete":
            return Delete(name)
        case "range_delete":
            return RangeDelete(name, _bytes(end))
        case _:
            raise InvalidRequest("kind is write, delete or range_delete", kind=kind)


def _bytes(value: object) -> bytes | None:
    return value.encode() if isinstance(value, str) else cast("bytes | None", value)
