"""Packed requests as the transactions of ``commit``: for the stages that take them one by one.

Owns: that translation, and its form on the way from a task to the driver. Does not own: the packed form.

Failure model: a version ``#k`` raises InvalidRequest: only an input that is there as a whole has a k-th request.
"""

# pyarrow ships no types, so the checker cannot know its classes where they are parameters; mypy checks the rest.
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Final

import msgspec
import pyarrow as pa

from holdfast.commit.format.batch import ItemKind
from holdfast.commit.format.transaction import (
    Delete,
    Operation,
    PointRead,
    Precondition,
    RangeDelete,
    RangeRead,
    Transaction,
    Write,
)
from holdfast.errors import InvalidRequest
from holdfast.spark.bulk.request_chunk import Chunk, Refusal, read_stream

__all__ = ["ParsedRequest", "decode_request", "operations_at", "parsed_requests"]


class ParsedRequest(msgspec.Struct, frozen=True):
    """One request: its place as the input has it, and its transaction, or the code that refuses it."""

    order: str
    request_id: str | None
    transaction: Transaction | None
    refusal: str | None

    def encode(self) -> bytes:
        """Its bytes."""
        return msgspec.msgpack.encode(self)


_DECODER: Final = msgspec.msgpack.Decoder(ParsedRequest)


def decode_request(data: bytes) -> ParsedRequest:
    """What ``ParsedRequest.encode`` made."""
    return _DECODER.decode(data)


def parsed_requests(chunk: Chunk) -> Iterator[ParsedRequest]:
    """The requests of a chunk, in order. Raises: InvalidRequest."""
    items = read_stream(chunk.item_rows).to_pylist()
    values: list[bytes | None] = read_stream(chunk.values)["value"].to_pylist()
    begin = 0
    for ask in read_stream(chunk.asks).to_pylist():
        end = begin + ask["items"]
        if ask["read_index"] is not None or ask["index_max"] >= 0:
            raise InvalidRequest(
                "a stream has no k-th request: a read version is a version of the log", order=ask["order"]
            )
        if ask["refusal"]:
            yield ParsedRequest(ask["order"], ask["request_id"], None, Refusal(ask["refusal"]).name.lower())
        else:
            reads = [_read(item) for item in items[begin:end] if item["kind"] >= ItemKind.POINT_READ]
            rows = zip(items[begin:end], values[begin:end], strict=True)
            operations = [_operation(item, value) for item, value in rows if item["kind"] < ItemKind.POINT_READ]
            txn = Transaction(operations, reads, ask["request_id"], None, ask["read_version"])
            yield ParsedRequest(ask["order"], ask["request_id"], txn, None)
        begin = end


def operations_at(
    asks: pa.Table, items: pa.Table, values: pa.Table, places: Iterable[int]
) -> Iterator[list[Operation]]:
    """What the requests at these places of a chunk change."""
    counts = asks["items"].to_pylist()
    ends = list(accumulate(counts))
    for place in places:
        begin = ends[place] - counts[place]
        rows = zip(
            items.slice(begin, counts[place]).to_pylist(),
            values["value"].slice(begin, counts[place]).to_pylist(),
            strict=True,
        )
        yield [_operation(item, value) for item, value in rows if item["kind"] < ItemKind.POINT_READ]


def _operation(item: Mapping[str, object], value: bytes | None) -> Operation:
    key, end = item["key"], item["end"]
    assert isinstance(key, bytes), "packed items have keys"
    match item["kind"]:
        case ItemKind.WRITE:
            assert value is not None, "packed writes have values"
            return Write(key, value)
        case ItemKind.DELETE:
            return Delete(key)
        case _:
            return RangeDelete(key, end if isinstance(end, bytes) else None)


def _read(item: Mapping[str, object]) -> Precondition:
    key, end, at = item["key"], item["end"], item["at_version"]
    assert isinstance(key, bytes), "packed items have keys"
    version = at if isinstance(at, int) else None
    if item["kind"] == ItemKind.POINT_READ:
        return PointRead(key, version)
    return RangeRead(key, end if isinstance(end, bytes) else None, version)
