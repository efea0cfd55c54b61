"""A wave of batch objects: planned by the driver, written by tasks, each into the slot that it was given.

Owns: the plan of a wave, and the bytes of a batch made of a chunk and its verdicts. Does not own: when a wave begins
and what it means that it ended (``load``), the PUT (``put``), the format (``commit.batch``).

Everything that could differ between two attempts of a task is fixed by the plan: slot, prev, durable, time, versions,
nonce. The body follows from the chunk. So two attempts write the same bytes, and either may be refused by the other.

What a body holds: the committed requests of the chunk, each a transaction at its version, with its preconditions; and
the load's progress, a write more in the last of them (or a transaction of its own, at the version of the chunk's last
request, when none is committed). The record is no change that the requests of the load can see: where one reads a range
that holds the record's key, its version is set on to that of the batch before, for between the two nothing but the
record was changed, which is what its verdict says. By the same argument a request that was read under an earlier leader
of this load is written as read at this one's base: below it nothing can be judged again.

Failure model: Fenced when another leader has taken a slot, Unavailable, InvalidRequest when a chunk had to be made
again and is another one; then nothing of the wave is acknowledged.
"""

# pyarrow ships no types, so the checker cannot know its classes where they are parameters; mypy checks the rest.
# Most functions of pyarrow.compute are made when it is imported, so it cannot see those either.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false, reportUnknownLambdaType=false

from __future__ import annotations

import pickle
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark program uses

from holdfast.commit.format.batch import BODY_SCHEMA, Header, ItemKind, encode_object
from holdfast.spark.bulk.put import put_batch
from holdfast.spark.bulk.request_chunk import read_stream
from holdfast.spark.bulk.sequencing import BELOW, Fate
from holdfast.spark.bulk.staging import Staged, require_judged
from holdfast.spark.log.task_errors import task_errors
from holdfast.spark.runtime.store_thread import StoreThread

__all__ = ["BatchPlan", "ReignPlan", "WaveResult", "batch_object", "write_wave"]

PUTS_IN_FLIGHT: Final = 4

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ReignPlan:
    """What all batches of one leader share. ``unsequenced`` are the places without a version, in order."""

    progress_key: bytes
    origin_base: int
    base: int
    ordinal_before: int
    unsequenced: Numbers

    def ordinals_after(self, indexes: Numbers) -> Numbers:
        """The ordinal after k requests."""
        found: Numbers = indexes - np.searchsorted(self.unsequenced, indexes)
        return found

    def versions(self, ordinals: Numbers) -> Numbers:
        """The log versions that stand for these ordinals; what came before this reign is its base."""
        return self.base + np.maximum(ordinals - self.ordinal_before, 0)


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """One batch: its header without lengths and CRCs, its chunk's first place and the fates of the chunk's requests.

    ``settled`` requests of the chunk are in an earlier batch; ``before`` is the last version before this batch;
    ``weighted`` is the chunk's sum.
    """

    header: Header
    key: int
    first: int
    settled: int
    fates: bytes
    before: int
    progress: bytes
    weighted: int


@dataclass(frozen=True, slots=True)
class WaveResult:
    """What a wave wrote: bytes of all objects, and how many were there already."""

    object_bytes: int
    found: int


def write_wave(
    spark: SparkSession, staged: Staged, url: str, reign: ReignPlan, plans: Sequence[BatchPlan]
) -> WaveResult:
    """Write every batch of the plan; return when all are created. Raises: Fenced, Unavailable."""
    rows = [(plan.key >> 32, plan.key & 0xFFFFFFFF, pickle.dumps(plan)) for plan in plans]
    planned = spark.createDataFrame(rows, "partition int, number int, plan binary")

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        done: list[tuple[int, int, bool]] = []
        waiting: deque[tuple[int, int, Future[bool]]] = deque()
        with StoreThread(url) as thread:
            for batch in batches:
                for row in batch.to_pylist():
                    plan: BatchPlan = pickle.loads(row["plan"])
                    header, data = batch_object(plan, reign, row)
                    waiting.append((plan.key, len(data), thread.start(partial(put_batch, header=header, data=data))))
                    while len(waiting) >= PUTS_IN_FLIGHT:
                        key, size, future = waiting.popleft()
                        done.append((key, size, future.result()))
            done += [(key, size, future.result()) for key, size, future in waiting]
        if done:
            columns = list(zip(*done, strict=True))
            kinds = (pa.int64(), pa.int64(), pa.bool_())
            arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, ["key", "size", "created"])

    wanted = staged.frame.select("partition", "number", "weighted", "asks", "item_rows", "values")
    joined = wanted.join(F.broadcast(planned), ["partition", "number"])
    with task_errors():
        told = joined.mapInArrow(write, "key long, size long, created boolean").toArrow()
    written = set(told["key"].to_pylist())
    assert written == {plan.key for plan in plans}, "a wave is over when each of its batches is created"
    return WaveResult(sum(told["size"].to_pylist()), told["created"].to_pylist().count(False))


def batch_object(plan: BatchPlan, reign: ReignPlan, chunk: Mapping[str, Any]) -> tuple[Header, bytes]:
    """The whole object of a plan, and its complete header. Cost: O(rows), in native code.

    Raises: InvalidRequest when the chunk is not the one that was judged.
    """
    require_judged(chunk, plan.weighted, plan.first)
    body = _stream(_rows(plan, reign, chunk))
    header = replace(plan.header, body_length=len(body), body_crc=zlib.crc32(body))
    return header, encode_object(header, body)


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, BODY_SCHEMA) as writer:
        writer.write_table(table.combine_chunks())
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _rows(plan: BatchPlan, reign: ReignPlan, chunk: Mapping[str, Any]) -> pa.Table:
    """The rows of the committed requests and the progress record, in the columns of a body."""
    asks, items = read_stream(chunk["asks"]), read_stream(chunk["item_rows"])
    values = read_stream(chunk["values"])["value"]
    fates = np.frombuffer(plan.fates, np.uint8)
    places = np.arange(plan.first, plan.first + len(fates))
    versions = reign.versions(reign.ordinals_after(places + 1))
    accepted = fates == Fate.COMMITTED
    accepted[: plan.settled] = False
    read_versions = _read_versions(asks, reign)
    owners = np.repeat(np.arange(len(fates)), asks["items"].to_numpy())
    kept = np.flatnonzero(accepted[owners])
    owner, rows = pa.array(owners[kept]), pa.array(kept)
    kinds = items["kind"].to_numpy()[kept]
    is_range = (kinds == ItemKind.RANGE_DELETE) | (kinds == ItemKind.RANGE_READ)
    keys, ends = items["key"].take(rows).combine_chunks(), items["end"].take(rows).combine_chunks()
    ends = pc.if_else(pa.array(is_range), ends, pa.scalar(None, pa.binary()))
    written = pc.if_else(pa.array(kinds == ItemKind.WRITE), values.take(rows), pa.scalar(None, pa.large_binary()))
    at = _ats(plan, reign, items.take(rows), kinds, keys, ends, read_versions.take(owner))
    table = pa.Table.from_arrays(
        [
            pa.array(versions[owners[kept]].astype(np.uint64)),
            asks["request_id"].take(owner),
            read_versions.take(owner).cast(pa.uint64()),
            pa.array(kinds.astype(np.uint8)),
            keys,
            ends,
            written,
            at,
        ],
        schema=BODY_SCHEMA,
    )
    return pa.concat_tables([table, _progress_row(plan, reign, table)])


def _progress_row(plan: BatchPlan, reign: ReignPlan, table: pa.Table) -> pa.Table:
    """The record, as the last operation of the last transaction, or as a transaction of its own."""
    last = table.slice(table.num_rows - 1).to_pylist() if table.num_rows else []
    row = {
        "version": plan.header.last_version,
        "request_id": last[0]["request_id"] if last else None,
        "read_version": last[0]["read_version"] if last else None,
        "kind": int(ItemKind.WRITE),
        "key": reign.progress_key,
        "end": None,
        "value": plan.progress,
        "at": None,
    }
    return pa.Table.from_pylist([row], schema=BODY_SCHEMA)


def _plain(column: pa.ChunkedArray) -> Numbers:
    found: Numbers = pc.fill_null(column, -1).to_numpy().astype(np.int64)
    return found


def _translated(indexes: Numbers, versions: Numbers, reign: ReignPlan) -> pa.Array:
    """Read versions as this reign's log has them: null for none, and what no precondition can use as it was."""
    ordinals = np.where(indexes >= 0, reign.ordinals_after(np.maximum(indexes, 0)), versions - reign.origin_base)
    found = np.where(ordinals <= BELOW, versions, reign.versions(ordinals))
    return pa.array(found, pa.int64(), mask=(indexes < 0) & (versions < 0))


def _read_versions(asks: pa.Table, reign: ReignPlan) -> pa.Array:
    return _translated(_plain(asks["read_index"]), _plain(asks["read_version"]), reign)


def _ats(
    plan: BatchPlan,
    reign: ReignPlan,
    items: pa.Table,
    kinds: npt.NDArray[np.uint8],
    keys: pa.Array,
    ends: pa.Array,
    defaults: pa.Array,
) -> pa.Array:
    """The versions of preconditions that have their own, or need one because they read the record's key."""
    own = _translated(_plain(items["at_index"]), _plain(items["at_version"]), reign)
    key = pa.scalar(reign.progress_key, pa.binary())
    reaches = pc.fill_null(pc.greater(ends, key), True)
    sees = np.where(
        kinds == ItemKind.RANGE_READ,
        pc.and_(pc.less_equal(keys, key), reaches).to_numpy(zero_copy_only=False),
        (kinds == ItemKind.POINT_READ) & pc.equal(keys, key).to_numpy(zero_copy_only=False),
    )
    effective = pc.fill_null(own, defaults)
    moved = sees & (pc.fill_null(effective, 0).to_numpy(zero_copy_only=False) < plan.before)
    return pc.if_else(pa.array(moved), pa.scalar(plan.before, pa.int64()), own).cast(pa.uint64())
