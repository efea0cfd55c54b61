"""Stage 2 for requests in bulk: the verdict of every request, equal to the one that a leader would give.

One task judges: a verdict depends on those of earlier requests, so a pass in order by compiled loops (``sweep``) is the
fastest way, also for more requests than one core stages. ``memory_needed`` bounds what that task needs; more than there
is is refused before the work. Memory on the driver: 9 bytes per request and 16 per failed precondition.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark program uses

from holdfast.commit.format.transaction import Operation
from holdfast.errors import LimitExceeded
from holdfast.spark.bulk.requests import (
    ChunkSummary,
    Staged,
    chunk_parts,
    operations_at,
    other_requests,
    read_stream,
)
from holdfast.spark.bulk.sequencing import (
    NONE_REFUSED,
    WHOLE_INPUT,
    Fate,
    Numbers,
    Sequencing,
    Windows,
    sequence_requests,
)
from holdfast.spark.log.replay import operation_of
from holdfast.spark.runtime.processes import free_memory
from holdfast.spark.runtime.session import task_errors

PIECE_BYTES: Final = 16 * 2**20
"""The result of the task is cut into rows of this size, because Spark keeps rows in Java's heap."""
ITEM_BYTES: Final = 100
REQUEST_BYTES: Final = 100
STAGED_COPIES: Final = 5
"""What judging needs at most, see ``memory_needed``. Measured: 53 to 83 % of it."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """The verdicts. Positions count from 0; an ordinal plus the base is a version.

    Shape: ``ordinals`` are 0 for a request that got no version; ``found_versions`` are those that the log had for
    requests that were looked up in it. ``conflict_places`` rise: for each failed precondition its request, its
    number there and the ordinal of the newest change that broke it. ``kernel_seconds`` are the processor's.
    """

    fates: npt.NDArray[np.uint8]
    originals: Mapping[int, int]
    conflict_places: Numbers
    conflict_numbers: npt.NDArray[np.int32]
    conflict_ordinals: npt.NDArray[np.int32]
    ordinals: npt.NDArray[np.int32]
    base: int
    kernel_seconds: float
    found_versions: Mapping[int, int] = field(default_factory=dict[int, int])

    def assigned(self) -> npt.NDArray[np.int32]:
        """The ordinal after k requests, for each k."""
        assigned: npt.NDArray[np.int32] = np.concatenate(([0], np.maximum.accumulate(self.ordinals))).astype(np.int32)
        return assigned

    def count(self, fate: Fate) -> int:
        """How many requests have this fate."""
        return int(np.count_nonzero(self.fates == fate))


def memory_needed(staged: Staged) -> int:
    """How many bytes the task that judges ``staged`` needs at most: what is staged without the values five times, and
    100 for each item and each request."""
    return STAGED_COPIES * staged.judged_size + ITEM_BYTES * staged.items + REQUEST_BYTES * staged.requests


def resolve_requests(
    staged: Staged, base: int, *, windows: Windows = WHOLE_INPUT, judging_bytes_max: int | None = None
) -> Resolution:
    """Judge all of ``staged`` as a leader with this base would.

    A refused attempt leaves no record, so the next one under its id is decided again: where ids are shared and refused,
    all is judged again, with the refusals that the pass before has found. A verdict depends on earlier requests alone,
    so each pass settles one more attempt at least, and there is a pass for each at most.

    Raises: LimitExceeded where ``memory_needed`` passes ``judging_bytes_max``, by default the memory that is free where
    the task runs; what tasks raise. Cost: a pass over the keys of all requests, and another one for each time that an
    id was refused.
    """
    if not staged.requests or staged.plain:
        return _all_committed(staged.requests, base)
    needed = memory_needed(staged)
    if judging_bytes_max is not None:
        require_memory(needed, judging_bytes_max, staged.requests)
    requests, judged = staged.requests, sum(chunk.weighted for chunk in staged.chunks)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if judging_bytes_max is None:
            require_memory(needed, free_memory(), requests)
        rows = sorted(
            (row["key"], row["asks"], row["item_rows"], int(row["weighted"]))
            for batch in batches
            for row in batch.to_pylist()
        )
        asks = pa.concat_tables([read_stream(ask) for _, ask, _, _ in rows])
        items = pa.concat_tables([read_stream(item) for _, _, item, _ in rows])
        if asks.num_rows != requests or sum(weighted for *_, weighted in rows) != judged:
            raise other_requests(0)
        data = pickle.dumps(_settled(asks, items, base, windows))
        for begin in range(0, len(data), PIECE_BYTES):
            piece = pa.array([data[begin : begin + PIECE_BYTES]], pa.binary())
            yield pa.RecordBatch.from_arrays([piece], ["piece"])

    wanted = staged.frame.select("key", "weighted", "asks", "item_rows")
    with task_errors():
        # Coalesced, not shuffled: the chunks are sorted by key in the task, and a shuffle would copy them twice.
        pieces = wanted.coalesce(1).mapInArrow(work, "piece binary").toArrow()["piece"].to_pylist()
    resolution: Resolution = pickle.loads(b"".join(pieces))
    has_version = np.isin(resolution.fates, (Fate.COMMITTED, Fate.CONFLICT, Fate.TOO_OLD))
    return replace(resolution, ordinals=np.where(has_version, np.cumsum(has_version), 0).astype(np.int32))


def require_memory(needed: int, bytes_max: int | None, requests: int) -> None:
    """Raise LimitExceeded where judging needs more memory than there is; None is not known."""
    if bytes_max is not None and needed > bytes_max:
        raise LimitExceeded(
            "judging these requests needs more memory than one task may have",
            hint="split the input, in its order, into several; or give the executors of Spark more memory",
            requests=requests,
            bytes_needed=needed,
            bytes_max=bytes_max,
        )


def _all_committed(requests: int, base: int) -> Resolution:
    """Where nothing is read there is nothing to judge: each request gets the next version, and holds."""
    none = np.zeros(0, np.int64)
    narrow = none.astype(np.int32)
    ordinals = np.arange(1, requests + 1, dtype=np.int32)
    fates: npt.NDArray[np.uint8] = np.full(requests, Fate.COMMITTED, np.uint8)
    return Resolution(fates, {}, none, narrow, narrow, ordinals, base, 0.0)


def _settled(asks: pa.Table, items: pa.Table, base: int, windows: Windows) -> Resolution:
    """The verdicts, once a pass finds the refusals that the pass before has found. See ``resolve_requests``."""
    from holdfast.spark.bulk.sweep import load_loops  # numba costs a second

    load_loops()
    floors = windows.indexes_at(np.arange(1, asks.num_rows + 1))
    refused = NONE_REFUSED
    for _ in range(asks.num_rows + 2):
        sequencing = sequence_requests(asks, base, windows, refused)
        judged = _judge_all(asks, items, sequencing, base, floors)
        attempts = np.array(sequencing.attempts, np.int64)
        refusals = frozenset(attempts[judged.fates[attempts] != Fate.COMMITTED].tolist())
        if refusals == refused:
            return judged
        refused = refusals
    raise AssertionError("each pass settles an attempt")


def _judge_all(asks: pa.Table, rows: pa.Table, sequencing: Sequencing, base: int, floors: Numbers) -> Resolution:
    from holdfast.spark.bulk.sweep import REJECTED, judge, make_problem, select_items  # numba costs a second

    items, too_old = select_items(asks, rows, base, sequencing.assigned, sequencing.pending, floors)
    fates = sequencing.fates.copy()
    fates[too_old] = Fate.TOO_OLD
    positions = np.flatnonzero(fates == Fate.PENDING)
    problem = make_problem(items, positions, sequencing.assigned[1:][positions])
    began = time.thread_time()
    states, broken = judge(problem)
    seconds = time.thread_time() - began
    fates[positions] = np.where(states == REJECTED, Fate.CONFLICT, Fate.COMMITTED)
    failed = np.flatnonzero(broken)
    reads = np.flatnonzero(items.is_read)[failed]
    places, numbers = items.owners[reads], items.numbers[reads]
    ordinals = np.zeros(0, np.int32)  # the driver computes them
    return Resolution(fates, sequencing.originals, places, numbers, broken[failed], ordinals, base, seconds)


# -- attempts whose read version is below the window: only the log knows their outcome ---------------------------------

_encode: Final = msgspec.msgpack.Encoder().encode


def look_up(spark: SparkSession, url: str, staged: Staged, resolution: Resolution, through: int) -> Resolution:
    """``resolution`` with the log's word on every attempt that waits for it; the log counts up to version ``through``.

    An attempt that the log holds above its read version gets its original version; one that it does not hold is
    TOO_OLD; an id that it holds with other changes is a reused request id. Only changes are compared: an earlier load
    wrote read versions of its own leader, and its record as one more change in the last request of a batch.

    Raises: what reading raises. Cost: where an attempt waits, a scan of the log by tasks for each 8 million of them.
    Memory on the driver: about 300 bytes for each attempt that the log holds.
    """
    waiting = np.flatnonzero(resolution.fates == Fate.LOOK_UP)
    if not len(waiting):
        return resolution
    originals: dict[int, tuple[int, bytes]] = {}
    for frame in staged.with_parts(["asks"], _places(staged, waiting)) if through else ():
        log = spark.read.format("holdfast").option("url", url).option("shape", "transactions")
        log = log.option("columns", "version,request_id,operations").option("endingVersion", str(through))
        known = log.load()
        attempts = frame.mapInArrow(asked_attempts, "position long, id string, at long")
        matches = known.join(F.broadcast(attempts), known["request_id"] == attempts["id"])
        matches = matches.where(F.col("at").isNotNull() & (F.col("version") > F.col("at")))
        matches = matches.mapInArrow(logged_changes, "position long, version long, changes binary")
        with task_errors():
            first = F.min(F.struct("version", "changes")).alias("first")
            matches = matches.groupBy("position").agg(first).select("position", "first.version", "first.changes")
            originals |= {row["position"]: (row["version"], row["changes"]) for row in matches.toArrow().to_pylist()}
    decided = resolution.fates.copy()
    decided[waiting] = Fate.TOO_OLD
    decided[list(originals)] = Fate.COMMITTED
    places = _places(staged, np.array(sorted(originals), np.int64))
    with task_errors():
        for frame in staged.with_parts(["asks", "item_rows", "values"], places):
            for row in frame.mapInArrow(asked_changes, "position long, changes binary").toArrow().to_pylist():
                if row["changes"] != originals[row["position"]][1]:
                    decided[row["position"]] = Fate.REQUEST_ID_REUSED
    versions = ((position, version) for position, (version, _) in originals.items())
    found_versions = {position: version for position, version in versions if decided[position] == Fate.COMMITTED}
    return replace(resolution, fates=decided, found_versions=found_versions)


def _places(staged: Staged, positions: Numbers) -> Iterator[tuple[ChunkSummary, Numbers]]:
    """Of each chunk that holds some of these ``positions``, which rise, their places in it."""
    for chunk in staged.chunks:
        begin, past = np.searchsorted(positions, (chunk.first, chunk.past))
        if begin < past:
            yield chunk, positions[begin:past] - chunk.first


def asked_attempts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The position, the id and the read version of the requests at these places of chunks. Raises: InvalidRequest."""
    for chunk, places, row in chunk_parts(batches):
        asks = read_stream(row["asks"]).take(pa.array(places))
        # A read version of this very input is above every version that the log held before it.
        ids, versions = (asks[name].combine_chunks() for name in ("request_id", "read_version"))
        yield pa.RecordBatch.from_arrays([pa.array(places + chunk.first), ids, versions], ["position", "id", "at"])


def logged_changes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For attempts of the log, each with the position of one of the load, a digest of what it changes."""
    for batch in batches:
        digests = [_digest([operation_of(each) for each in row]) for row in batch["operations"].to_pylist()]
        columns = [batch["position"], batch["version"], pa.array(digests, pa.binary())]
        yield pa.RecordBatch.from_arrays(columns, ["position", "version", "changes"])


def asked_changes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The position and a digest of the changes of the requests at these places of chunks. Raises: InvalidRequest."""
    for chunk, places, row in chunk_parts(batches):
        asks, items, values = (read_stream(row[name]) for name in ("asks", "item_rows", "values"))
        digests = [_digest(each) for each in operations_at(asks, items, values, places.tolist())]
        yield pa.RecordBatch.from_arrays([pa.array(places + chunk.first), pa.array(digests)], ["position", "changes"])


def _digest(operations: Sequence[Operation | None]) -> bytes:
    return blake2b(_encode(operations), digest_size=16).digest()
