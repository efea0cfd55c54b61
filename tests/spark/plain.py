"""What the source must answer, computed row by row from the plain reading of the same objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame
from tests.spark.log_builder import PlainBatch, seq

from holdfast.commit.format.batch import Kind
from holdfast.commit.format.transaction import Delete, Operation, PointRead, Precondition, RangeDelete, RangeRead, Write
from holdfast.values import slot_text

PlainRow = dict[str, object]


def timestamp(time_ms: int) -> datetime:
    """The instant in the form that Spark hands out in a session whose time zone is UTC."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)).replace(tzinfo=None)


def operation_row(operation: Operation) -> PlainRow:
    """The four columns that say what an operation is."""
    match operation:
        case Write(key, value):
            return {"kind": "write", "key": key, "end": None, "value": value}
        case Delete(key):
            return {"kind": "delete", "key": key, "end": None, "value": None}
        case RangeDelete(begin, end):
            return {"kind": "range_delete", "key": begin, "end": end, "value": None}


def precondition_row(read: Precondition, read_version: int | None) -> PlainRow:
    """The four columns that say what a transaction read, and the newest version that it allows."""
    version = read_version if read.version is None else read.version
    match read:
        case PointRead(key):
            return {"kind": "point_read", "key": key, "end": None, "version": version}
        case RangeRead(begin, end):
            return {"kind": "range_read", "key": begin, "end": end, "version": version}


def operation_rows(batches: Iterable[PlainBatch]) -> list[PlainRow]:
    """One row per operation with every column, in log order."""
    return [
        {
            "version": txn.version,
            "seq": seq(batch.header.slot),
            "request_id": txn.request_id,
            **operation_row(operation),
            "timestamp": timestamp(batch.header.time_ms),
            "position": position,
            "leader_id": batch.header.leader_id.hex(),
        }
        for batch in batches
        for txn in batch.transactions
        for position, operation in enumerate(txn.operations)
    ]


def transaction_rows(batches: Iterable[PlainBatch]) -> list[PlainRow]:
    """One row per transaction with every column, in log order."""
    rows: list[PlainRow] = []
    previous = 0
    for batch in batches:
        for txn in batch.transactions:
            rows.append(
                {
                    "version": txn.version,
                    "prev_version": previous,
                    "seq": seq(batch.header.slot),
                    "request_id": txn.request_id,
                    "read_version": txn.read_version,
                    "operations": [operation_row(operation) for operation in txn.operations],
                    "preconditions": [precondition_row(read, txn.read_version) for read in txn.preconditions],
                    "timestamp": timestamp(batch.header.time_ms),
                    "leader_id": batch.header.leader_id.hex(),
                }
            )
            previous = txn.version
    return rows


def batch_rows(batches: Iterable[PlainBatch], objects: Mapping[int, bytes]) -> list[PlainRow]:
    """One row per live object with every column, in log order."""
    names = {Kind.CLAIM: "claim", Kind.DATA: "data", Kind.RESIGN: "resign"}
    return [
        {
            "seq": seq(header.slot),
            "slot": slot_text(header.slot),
            "kind": names[header.kind],
            "epoch": header.epoch,
            "leader_id": header.leader_id.hex(),
            "address": header.address,
            "claim_seq": seq(header.claim),
            "prev_seq": seq(header.prev),
            "durable_seq": seq(header.durable),
            "first_version": header.first_version,
            "last_version": header.last_version,
            "prev_version": header.prev_version,
            "window_floor": header.window_floor,
            "truncated_through": header.truncated_through,
            "transactions": header.transactions,
            "object_bytes": len(objects[header.slot]),
            "timestamp": timestamp(header.time_ms),
        }
        for header in (batch.header for batch in batches)
    ]


def spark_rows(frame: DataFrame, *order: str) -> list[PlainRow]:
    """The rows of a data frame as plain values, sorted by these columns."""
    rows = [row.asDict(recursive=True) for row in frame.collect()]
    return sorted((_plain(row) for row in rows), key=lambda row: [row[name] for name in order])


def _plain(value: object) -> object:
    match value:
        case dict():
            return {name: _plain(inner) for name, inner in value.items()}
        case list():
            return [_plain(inner) for inner in value]
        case bytearray():
            return bytes(value)
        case _:
            return value
