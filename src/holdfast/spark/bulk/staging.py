"""Requests staged for the stages: sorted, packed, kept by Spark, and known chunk by chunk to the driver.

Owns: the staged data frame and the places of its chunks in the total order. Does not own: a chunk's form
(``request_chunk``), the columns that requests come with (``request_frame``).

What is staged lives on the executors' disks as long as the session uses it. It is not what a restart goes on from: that
is the log alone, and a restart stages again. Where an executor is lost, Spark makes its chunks again from the input;
whoever writes or tells of one compares its sum with that of the chunk that was judged.

Failure model: a row that cannot be read raises InvalidRequest, and so does a chunk that is another one now. Memory: a
row for each chunk on the driver.
"""

# pyarrow ships no types, so the checker cannot know its classes where they are parameters; mypy checks the rest.
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel, TaskContext
from pyspark.sql import DataFrame

from holdfast.errors import InvalidRequest
from holdfast.spark.bulk.request_chunk import pack
from holdfast.spark.bulk.request_frame import RequestFormat, frame_errors, in_order
from holdfast.spark.log.task_errors import task_errors

__all__ = ["ChunkPlace", "Staged", "chunk_key", "other_requests", "require_judged", "stage"]

_SUMMARY: dict[str, pa.DataType] = {
    "partition": pa.int32(),
    "number": pa.int32(),
    "requests": pa.int32(),
    "items": pa.int64(),
    "size": pa.int64(),
    "plain": pa.bool_(),
    "has_versions": pa.bool_(),
    "has_ids": pa.bool_(),
    "checksum": pa.decimal128(20),
    "weighted": pa.decimal128(20),
}
_BLOBS = {"asks": pa.binary(), "item_rows": pa.binary(), "values": pa.binary()}
_SCHEMA = pa.schema([pa.field(name, kind) for name, kind in {**_SUMMARY, **_BLOBS}.items()])
_TYPE = (
    "partition int, number int, requests int, items long, size long, plain boolean, has_versions boolean, "
    "has_ids boolean, checksum decimal(20,0), weighted decimal(20,0), asks binary, item_rows binary, values binary"
)


def chunk_key(partition: int, number: int) -> int:
    """One number for a chunk."""
    return partition << 32 | number


def require_judged(chunk: Mapping[str, Any], weighted: int, first: int) -> None:
    """Raise InvalidRequest unless the chunk's requests are those that were judged, whose sum was ``weighted``."""
    if int(chunk["weighted"]) != weighted:
        raise other_requests(first)


def other_requests(first: int) -> InvalidRequest:
    """The error for requests from place ``first`` on that Spark has made again, as other ones."""
    return InvalidRequest(
        "the requests are other ones than when they were judged",
        hint="Spark makes them again when a worker is lost: load from a table that keeps them, and leave out what "
        "gives another value each time",
        first=first,
    )


@dataclass(frozen=True, slots=True)
class ChunkPlace:
    """Where a chunk stands: its requests are those from place ``first`` on, counted from 0. ``weighted`` is its sum."""

    key: int
    first: int
    requests: int
    items: int
    size: int
    weighted: int

    @property
    def past(self) -> int:
        """The place after its last request."""
        return self.first + self.requests


@dataclass(frozen=True, slots=True)
class Staged:
    """All requests. ``digest`` names this input: the same requests in the same order have the same.

    ``plain``: nothing is read, no version named and no id given, and none is refused.
    """

    frame: DataFrame
    chunks: tuple[ChunkPlace, ...]
    requests: int
    items: int
    size: int
    plain: bool
    has_versions: bool
    has_ids: bool
    digest: str

    def release(self) -> None:
        """Let Spark forget what it kept."""
        self.frame.unpersist()


def stage(frame: DataFrame, request_format: RequestFormat, *, partitions: int) -> Staged:
    """Sort, check and pack the requests of ``frame``. Raises: InvalidRequest."""

    def packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        for number, chunk in enumerate(pack(batches)):
            row = {"partition": partition, "number": number, **asdict(chunk)}
            yield pa.RecordBatch.from_pylist([row], schema=_SCHEMA)

    ordered = in_order(frame, request_format, partitions)
    staged = ordered.mapInArrow(packed, _TYPE).persist(StorageLevel.DISK_ONLY)
    with frame_errors(request_format), task_errors():
        rows = staged.select(*_SUMMARY).toArrow().to_pylist()
    rows.sort(key=lambda row: (row["partition"], row["number"]))
    chunks: list[ChunkPlace] = []
    first = total = 0
    for row in rows:
        key = chunk_key(row["partition"], row["number"])
        weighted = int(row["weighted"])
        chunks.append(ChunkPlace(key, first, row["requests"], row["items"], row["size"], weighted))
        total += weighted + first * int(row["checksum"])
        first += row["requests"]
    digest = blake2b(f"{first} {total % 2**64}".encode(), digest_size=16).hexdigest()
    return Staged(
        staged,
        tuple(chunks),
        first,
        sum(row["items"] for row in rows),
        sum(row["size"] for row in rows),
        all(row["plain"] for row in rows),
        any(row["has_versions"] for row in rows),
        any(row["has_ids"] for row in rows),
        digest,
    )
