"""Attempts whose read version is below the window: only the log knows whether they were committed before.

An attempt that the log holds above its read version gets its original version; one that it does not hold is too old;
an id that it holds with other changes is a reused request id. Only changes are compared: an earlier load wrote read
versions of its own leader, and its record as one more change in the last request of a batch.

Cost: a scan of the log by tasks, only when there is such an attempt, and the objects that hold the attempts found.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark program uses

from holdfast.commit.format.batch import FIRST_SLOT, decode_body, decode_header, object_name
from holdfast.commit.format.transaction import Operation, Write
from holdfast.objects.port import ObjectReader
from holdfast.spark.bulk.records import progress_key
from holdfast.spark.bulk.requests import ChunkPlace, Staged, chunk_key, operations_at, read_stream, require_judged
from holdfast.spark.bulk.resolve import Resolution
from holdfast.spark.bulk.sequencing import Fate
from holdfast.spark.runtime.session import task_errors
from holdfast.spark.runtime.store_thread import PlannedObjectsThread

__all__ = ["asked_changes", "logged_changes", "look_up"]

_LOGGED: Final = pa.schema(
    [pa.field("version", pa.int64()), pa.field("whole", pa.binary()), pa.field("without_record", pa.binary())]
)
_ASKED: Final = pa.schema([pa.field("place", pa.int64()), pa.field("changes", pa.binary())])

_encode: Final = msgspec.msgpack.Encoder().encode


def look_up(spark: SparkSession, url: str, staged: Staged, resolution: Resolution, through: int) -> Resolution:
    """``resolution`` with the log's word on every attempt that waits for it; the log counts up to version ``through``.

    Those that the log does not hold are TOO_OLD. Raises: what reading raises.
    """
    waiting = np.flatnonzero(resolution.fates == Fate.LOOK_UP)
    if not len(waiting):
        return resolution
    chunks = {chunk.key: chunk for chunk in staged.chunks}
    fates = resolution.fates

    def asked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                chunk = chunks[chunk_key(row["partition"], row["number"])]
                asks, first = read_stream(row["asks"]), chunk.first
                require_judged(row, chunk.weighted, first)
                places = np.flatnonzero(fates[first : first + asks.num_rows] == Fate.LOOK_UP)
                if len(places):
                    ids = asks["request_id"].take(pa.array(places)).combine_chunks()
                    # A read version of this very input is above every version that the log held before it.
                    versions = asks["read_version"].take(pa.array(places)).combine_chunks()
                    yield pa.RecordBatch.from_arrays([pa.array(places + first), ids, versions], ["place", "id", "at"])

    wanted = staged.frame.select("partition", "number", "weighted", "asks")
    frame = wanted.mapInArrow(asked, "place long, id string, at long")
    found: dict[int, tuple[int, int]] = {}
    if through:
        log = spark.read.format("holdfast").option("url", url).option("shape", "transactions")
        known = log.option("columns", "version,seq,request_id").option("endingVersion", str(through)).load()
        matches = known.join(F.broadcast(frame), known["request_id"] == frame["id"])
        matches = matches.where(F.col("at").isNotNull() & (F.col("version") > F.col("at")))
        with task_errors():
            first = F.min(F.struct("version", "seq")).alias("first")
            rows = (
                matches.groupBy("place").agg(first).select("place", "first.version", "first.seq").toArrow().to_pylist()
            )
        found = {row["place"]: (row["version"], row["seq"]) for row in rows}
    others = _others(spark, url, staged, chunks, found) if found else []
    decided = fates.copy()
    decided[waiting] = Fate.TOO_OLD
    decided[list(found)] = Fate.COMMITTED
    decided[others] = Fate.REQUEST_ID_REUSED
    found_versions = {place: version for place, (version, _) in found.items() if decided[place] == Fate.COMMITTED}
    return replace(resolution, fates=decided, found_versions=found_versions)


def _others(
    spark: SparkSession,
    url: str,
    staged: Staged,
    chunks: Mapping[int, ChunkPlace],
    found: Mapping[int, tuple[int, int]],
) -> list[int]:
    """The places of those requests whose changes are not those that the log holds at the version and ``seq`` found."""
    versions: dict[int, set[int]] = {}
    for version, seq in found.values():
        versions.setdefault(seq, set()).add(version)
    objects = spark.createDataFrame(
        [(seq, sorted(wanted)) for seq, wanted in versions.items()], "seq long, versions array<long>"
    )
    wanted = staged.frame.select("partition", "number", "weighted", "asks", "item_rows", "values")
    with task_errors():
        logged = objects.mapInArrow(partial(logged_changes, url), "version long, whole binary, without_record binary")
        asked = wanted.mapInArrow(partial(asked_changes, chunks, sorted(found)), "place long, changes binary")
        held = {row["version"]: (row["whole"], row["without_record"]) for row in logged.toArrow().to_pylist()}
        return [
            row["place"] for row in asked.toArrow().to_pylist() if row["changes"] not in held[found[row["place"]][0]]
        ]


def logged_changes(url: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Digests of what transactions of the log change, and of that without a load's record, for objects by ``seq``."""
    with PlannedObjectsThread(url) as thread:
        for batch in batches:
            rows: list[dict[str, object]] = []
            for seq, versions in zip(batch["seq"].to_pylist(), batch["versions"].to_pylist(), strict=True):
                slot = FIRST_SLOT - seq
                data = thread.start(partial(_read, slot=slot)).result()
                for txn in decode_body(data, decode_header(data, slot=slot)):
                    if txn.version in versions:
                        last = txn.operations[-1]
                        of_load = isinstance(last, Write) and last.key.startswith(progress_key(""))
                        changes = txn.operations[:-1] if of_load else txn.operations
                        rows.append(
                            {
                                "version": txn.version,
                                "whole": _digest(txn.operations),
                                "without_record": _digest(changes),
                            }
                        )
            yield pa.RecordBatch.from_pylist(rows, schema=_LOGGED)


def asked_changes(
    chunks: Mapping[int, ChunkPlace], places: Sequence[int], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """A digest of what each request at one of these ``places``, which rise, changes. Raises: InvalidRequest."""
    for batch in batches:
        for row in batch.to_pylist():
            chunk = chunks[chunk_key(row["partition"], row["number"])]
            asks, first = read_stream(row["asks"]), chunk.first
            require_judged(row, chunk.weighted, first)
            own = places[bisect_left(places, first) : bisect_left(places, first + asks.num_rows)]
            if own:
                items, values = read_stream(row["item_rows"]), read_stream(row["values"])
                changes = operations_at(asks, items, values, [place - first for place in own])
                rows = [{"place": place, "changes": _digest(each)} for place, each in zip(own, changes, strict=True)]
                yield pa.RecordBatch.from_pylist(rows, schema=_ASKED)


async def _read(store: ObjectReader, *, slot: int) -> bytes:
    return await store.read(object_name(slot))


def _digest(operations: Sequence[Operation]) -> bytes:
    return blake2b(_encode(operations), digest_size=16).digest()
