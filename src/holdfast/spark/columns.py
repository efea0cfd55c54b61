"""The columns of every shape that ``format("holdfast")`` reads, in Arrow's and in Spark's types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from holdfast.commit.format.batch import ItemKind


class RowShape(StrEnum):
    """What one row of a log stands for."""

    OPERATIONS = "operations"
    TRANSACTIONS = "transactions"
    BATCHES = "batches"


OPERATION_KINDS: Final = (ItemKind.WRITE, ItemKind.DELETE, ItemKind.RANGE_DELETE)
READABLE_KINDS: Final = (*OPERATION_KINDS, ItemKind.JOB)
"""What a read can ask for. Records of jobs are not operations: a read has them only if it names their kind."""
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
OPERATION: Final = pa.struct(
    [("kind", pa.string()), ("key", pa.binary()), ("end", pa.binary()), ("value", pa.binary())]
)
PRECONDITION: Final = pa.struct(
    [("kind", pa.string()), ("key", pa.binary()), ("end", pa.binary()), ("version", pa.int64())]
)

COLUMNS: Final[Mapping[RowShape, Mapping[str, pa.DataType]]] = {
    RowShape.OPERATIONS: {
        "version": pa.int64(),
        "seq": pa.int64(),
        "request_id": pa.string(),
        "kind": pa.string(),
        "key": pa.binary(),
        "end": pa.binary(),
        "value": pa.binary(),
        "timestamp": TIMESTAMP,
        "position": pa.int32(),
        "leader_id": pa.string(),
    },
    RowShape.TRANSACTIONS: {
        "version": pa.int64(),
        "prev_version": pa.int64(),
        "seq": pa.int64(),
        "request_id": pa.string(),
        "read_version": pa.int64(),
        "operations": pa.list_(pa.field("element", OPERATION)),
        "preconditions": pa.list_(pa.field("element", PRECONDITION)),
        "timestamp": TIMESTAMP,
        "leader_id": pa.string(),
    },
    RowShape.BATCHES: {
        "seq": pa.int64(),
        "slot": pa.string(),
        "kind": pa.string(),
        "epoch": pa.int64(),
        "leader_id": pa.string(),
        "address": pa.string(),
        "claim_seq": pa.int64(),
        "prev_seq": pa.int64(),
        "durable_seq": pa.int64(),
        "first_version": pa.int64(),
        "last_version": pa.int64(),
        "prev_version": pa.int64(),
        "window_floor": pa.int64(),
        "truncated_through": pa.int64(),
        "transactions": pa.int64(),
        "object_bytes": pa.int64(),
        "timestamp": TIMESTAMP,
    },
}
QUEUE_COLUMNS: Final[Mapping[str, pa.DataType]] = {"seq": pa.int64(), "time": TIMESTAMP, "payload": pa.binary()}
STORE_COLUMNS: Final[Mapping[str, pa.DataType]] = {
    "seq": pa.int64(),
    "time": TIMESTAMP,
    "key": pa.string(),
    "fields": pa.string(),
    "body": pa.binary(),
    "publisher_seq": pa.int64(),
    "ttl_ms": pa.int64(),
    "deliver_at": TIMESTAMP,
}
SERVED_STORE_COLUMNS: Final[Mapping[str, pa.DataType]] = {
    name: STORE_COLUMNS[name] for name in ("seq", "time", "key", "fields", "body")
}
_ON_REQUEST: Final = {
    id(COLUMNS[RowShape.OPERATIONS]): frozenset({"position", "leader_id"}),
    id(COLUMNS[RowShape.TRANSACTIONS]): frozenset({"preconditions"}),
    id(STORE_COLUMNS): frozenset({"publisher_seq", "ttl_ms", "deliver_at"}),
}
"""Columns that a read has only if its option ``columns`` names them. ``position`` is the operation's index in its
transaction."""


def default_columns(types: Mapping[str, pa.DataType]) -> tuple[str, ...]:
    """The columns of a read that does not name any. ``types`` is one of the tables above."""
    left_out = _ON_REQUEST.get(id(types), frozenset[str]())
    return tuple(name for name in types if name not in left_out)


def arrow_schema(shape: RowShape, columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of these columns, in this order; every column is nullable."""
    types = COLUMNS[shape]
    return pa.schema([pa.field(name, types[name]) for name in columns])


def spark_schema(types: Mapping[str, pa.DataType], columns: Iterable[str]) -> StructType:
    """These columns in Spark's types; ``types`` is one of the tables above."""
    return from_arrow_schema(pa.schema([pa.field(name, types[name]) for name in columns]))
