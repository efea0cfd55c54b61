"""Stage 2 for requests in bulk: the verdict of every request, equal to the one that a leader would give.

A small problem runs in one task. A larger one is cut into ranges of keys: a request is committed when it is clear in
every range that it reads from, and rejected when it conflicts in one. A round sends the known states to all ranges and
collects new ones; each decides the first unknown request, so the rounds end. Memory on the driver: 3 bytes per request,
4 per range that a request reads from. In a task: about 100 bytes per item and its keys, or one range.
"""

from __future__ import annotations

import pickle
import time
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark program uses
from pyspark.sql.pandas.types import from_arrow_schema

from holdfast.commit.format.batch import FIRST_SLOT, decode_body, decode_header, object_name
from holdfast.commit.format.transaction import Operation, Write
from holdfast.objects.port import ObjectReader
from holdfast.spark.bulk.load_record import progress_key
from holdfast.spark.bulk.problem import (
    CLEAR,
    COMMITTED,
    CONFLICT,
    REJECTED,
    UNKNOWN,
    Items,
    Problem,
    States,
    make_problem,
    select_items,
)
from holdfast.spark.bulk.requests import (
    ChunkSummary,
    Staged,
    chunk_key,
    judged_chunks,
    operations_at,
    read_stream,
    stream,
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
from holdfast.spark.runtime.session import task_errors
from holdfast.spark.runtime.store_thread import PlannedObjectsThread

ITEMS_IN_A_RANGE: Final = 1_000_000
"""About 60 bytes each while a task has them."""
PIECE_BYTES: Final = 4 * 2**20
"""A range is cut into rows of this size, because Spark keeps rows in Java's heap."""
SAMPLES_IN_A_CHUNK: Final = 64


@dataclass(frozen=True, slots=True)
class Resolved:
    """What judging gave: ``states`` by position, and as ``resolve.Resolution`` has it."""

    states: States
    too_old: Numbers
    conflict_places: Numbers
    conflict_numbers: npt.NDArray[np.int32]
    conflict_ordinals: npt.NDArray[np.int32]
    rounds: int
    residue: tuple[int, ...]
    kernel_seconds: float

    @staticmethod
    def empty() -> Resolved:
        """Nothing judged."""
        wide, narrow = np.zeros(0, np.int64), np.zeros(0, np.int32)
        return Resolved(np.zeros(0, np.uint8), wide, wide, narrow, narrow, 0, (), 0.0)


@dataclass(frozen=True, slots=True)
class _Range:
    """One range of keys as a task keeps it: its problem, whose requests they are, and which preconditions its reads."""

    problem: Problem
    positions: Numbers
    read_positions: Numbers
    read_numbers: npt.NDArray[np.int32]


def resolve_in_rounds(
    staged: Staged, sequencing: Sequencing, base: int, windows: Windows, partitions: int | None
) -> Resolved:
    """Judge the pending requests by ``partitions`` ranges of keys (by default as many as the items need)."""
    began = time.perf_counter()
    ranges = partitions or max(2, -(-staged.items // ITEMS_IN_A_RANGE))
    splits = _splits(staged, ranges)
    cut = _cut(staged, sequencing, base, windows, splits).persist(StorageLevel.DISK_ONLY)
    with task_errors():
        results = cut.where("range < 0").select("data").toArrow()["data"].to_pylist()
        too_old = np.sort(np.concatenate([np.zeros(0, np.int64), *(np.frombuffer(each, np.int64) for each in results)]))
        kept = _ranges(cut, len(splits) + 1, sequencing).persist(StorageLevel.DISK_ONLY)
        driver = _Driver(sequencing, too_old, kept)
        driver.run()
        conflicts = driver.conflicts()
    kept.unpersist()
    cut.unpersist()
    seconds = time.perf_counter() - began
    return Resolved(driver.states, too_old, *conflicts, len(driver.residue), tuple(driver.residue), seconds)


def _splits(staged: Staged, ranges: int) -> list[bytes]:
    """Keys between the ranges, drawn so that each has about as many items. The verdicts do not depend on them."""

    def sample(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for data in batch["item_rows"].to_pylist():
                keys = read_stream(data)["key"]
                step = max(1, len(keys) // SAMPLES_IN_A_CHUNK)
                yield pa.RecordBatch.from_arrays(
                    [keys.take(pa.array(range(0, len(keys), step))).combine_chunks()], ["key"]
                )

    with task_errors():
        sampled = staged.frame.select("item_rows").mapInArrow(sample, "key binary").toArrow()["key"].to_pylist()
    sampled.sort()
    chosen = {sampled[len(sampled) * number // ranges] for number in range(1, ranges)} if sampled else set()
    return sorted(chosen - {b""})


def _cut(staged: Staged, sequencing: Sequencing, base: int, windows: Windows, splits: Sequence[bytes]) -> DataFrame:
    """The items of every chunk by range: rows (range, chunk, data); range -1 holds the requests that are too old."""
    firsts = {chunk.key: chunk.first for chunk in staged.chunks}
    packed = _packed(sequencing.fates)

    def cut(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        fates = _unpacked(packed)
        assigned = _assigned(fates)
        for batch in batches:
            for row in batch.to_pylist():
                key = chunk_key(row["partition"], row["number"])
                asks, first = read_stream(row["asks"]), firsts[key]
                past = first + asks.num_rows
                floors = windows.indexes_at(np.arange(first + 1, past + 1))
                pending = fates[first:past] == Fate.PENDING
                rows = read_stream(row["item_rows"])
                items, too_old = select_items(asks, rows, first, base, assigned, pending, floors)
                parts = [(-1, key, too_old.tobytes())] if len(too_old) else []
                parts += [(number, key, data) for number, data in _by_range(items, splits)]
                if parts:
                    columns = list(zip(*parts, strict=True))
                    yield pa.RecordBatch.from_arrays(
                        [pa.array(columns[0], pa.int32()), pa.array(columns[1], pa.int64()), pa.array(columns[2])],
                        ["range", "chunk", "data"],
                    )

    wanted = staged.frame.select("partition", "number", "asks", "item_rows")
    return wanted.mapInArrow(cut, "range int, chunk long, data binary")


def _by_range(items: Items, splits: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
    bounds = [b"", *splits, None]
    for number in range(len(splits) + 1):
        begin, end = bounds[number], bounds[number + 1]
        assert begin is not None, "only the last range has no end"
        low, high = pa.scalar(begin, pa.large_binary()), pa.scalar(end, pa.large_binary())
        reaches = pc.or_kleene(pc.is_null(items.ends), pc.greater(items.ends, low))
        meets = pc.if_else(pa.array(items.is_range), pc.fill_null(reaches, True), pc.greater_equal(items.keys, low))
        mask = pc.and_(meets, pc.less(items.keys, high)) if end is not None else meets
        which = mask.to_numpy(zero_copy_only=False)
        if not which.any():
            continue
        some = items.chosen(which)
        keys = pc.if_else(pc.less(some.keys, low), low, some.keys)
        ends = some.ends
        if end is not None:
            beyond = pc.and_(pa.array(some.is_range), pc.fill_null(pc.greater(ends, high), True))
            ends = pc.if_else(beyond, high, ends)
        yield number, stream(
            pa.table(
                {
                    "owner": some.owners, "number": some.numbers, "is_read": some.is_read, "is_range": some.is_range,
                    "key": keys, "end": ends, "at": some.ats,
                }
            )
        )  # fmt: skip


def _ranges(cut: DataFrame, ranges: int, sequencing: Sequencing) -> DataFrame:
    """For each range its pickled ``_Range`` in pieces, and with the first piece the positions that read in it."""
    packed = _packed(sequencing.fates)

    def gather(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        assigned = _assigned(_unpacked(packed))
        parts: dict[int, list[tuple[int, bytes]]] = {}
        for batch in batches:
            for row in batch.to_pylist():
                parts.setdefault(row["range"], []).append((row["chunk"], row["data"]))
        for number in sorted(parts):
            table = pa.concat_tables([read_stream(data) for _, data in sorted(parts.pop(number))]).combine_chunks()
            kept = _range(table, assigned)
            readers = np.unique(kept.read_positions).astype(np.int32).tobytes()
            data = pickle.dumps(kept)
            for begin in range(0, len(data), PIECE_BYTES):
                row = {
                    "range": number,
                    "piece": begin // PIECE_BYTES,
                    "last": begin + PIECE_BYTES >= len(data),
                    "data": data[begin : begin + PIECE_BYTES],
                    "readers": readers if begin == 0 else b"",
                    "requests": len(kept.positions),
                }
                yield pa.RecordBatch.from_pylist([row], schema=_PIECE)

    by_range = cut.where("range >= 0").repartition(ranges, F.col("range"))
    return by_range.mapInArrow(gather, from_arrow_schema(_PIECE))


_PIECE: Final = pa.schema(
    [
        *((name, pa.int32()) for name in ("range", "piece")), ("last", pa.bool_()),
        *((name, pa.binary()) for name in ("data", "readers")), ("requests", pa.int64()),
    ]
)  # fmt: skip
_JUDGED: Final = pa.schema([("range", pa.int32()), *((n, pa.binary()) for n in ("conflicts", "cleared", "clear"))])


def _whole_ranges(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, _Range]]:
    """Every range of a task, from its pieces, which come as they were written."""
    held: list[bytes] = []
    for batch in batches:
        for row in batch.to_pylist():
            assert row["piece"] == len(held), "the pieces of a range stay together and in order"
            held.append(row["data"])
            if row["last"]:
                data = b"".join(held)
                held = []
                yield row["range"], pickle.loads(data)
    assert not held, "a range ends with its last piece"


def _packed(values: npt.NDArray[np.uint8] | npt.NDArray[np.uint16]) -> bytes:
    """Numbers of which most are alike, small enough to be sent with every task."""
    return zlib.compress(values.tobytes(), 1)


def _unpacked(packed: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(zlib.decompress(packed), np.uint8)


def _assigned(fates: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
    assigned: npt.NDArray[np.int32] = np.concatenate(([0], np.cumsum(fates == Fate.PENDING))).astype(np.int32)
    return assigned


def _range(table: pa.Table, assigned: npt.NDArray[np.int32]) -> _Range:
    def column(name: str) -> npt.NDArray[np.int64]:
        values: npt.NDArray[np.int64] = table[name].to_numpy(zero_copy_only=False)
        return values

    owners, is_read = column("owner"), column("is_read").astype(np.bool_)
    items = Items(
        owners,
        column("number").astype(np.int32),
        is_read,
        column("is_range").astype(np.bool_),
        table["key"].combine_chunks(),
        table["end"].combine_chunks(),
        column("at").astype(np.int32),
    )
    positions = np.unique(owners)
    problem = make_problem(items, positions, assigned[1:][positions])
    return _Range(problem, positions, owners[is_read], items.numbers[is_read])


class _Driver:
    """What is known of every request, and the rounds that make more of it known."""

    def __init__(self, sequencing: Sequencing, too_old: Numbers, kept: DataFrame) -> None:
        self._kept = kept
        self.states: States = np.zeros(len(sequencing.fates), np.uint8)
        self.residue: list[int] = []
        self._pending = sequencing.fates == Fate.PENDING
        self._pending[too_old] = False
        self.states[~self._pending] = REJECTED
        self._unclear: npt.NDArray[np.uint16] = np.zeros(len(self.states), np.uint16)
        self._clear: dict[int, bytes] = {}
        for row in kept.where("piece = 0").select("range", "readers", "requests").toArrow().to_pylist():
            self._unclear[np.frombuffer(row["readers"], np.int32)] += 1
            self._clear[row["range"]] = bytes(-(-row["requests"] // 8))
        self._commit_clear()

    def _commit_clear(self) -> None:
        self.states[self._pending & (self._unclear == 0) & (self.states == UNKNOWN)] = COMMITTED

    def run(self) -> None:
        left = int(np.count_nonzero(self.states == UNKNOWN))
        while left:
            self._round()
            before, left = left, int(np.count_nonzero(self.states == UNKNOWN))
            assert left < before, "every round decides the first unknown request"
            self.residue.append(left)

    def _round(self) -> None:
        packed_states, packed_unclear = _packed(self.states), _packed(self._unclear)
        clear = {number: zlib.compress(bits, 1) for number, bits in self._clear.items()}

        def judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            states, unclear = _unpacked(packed_states), np.frombuffer(zlib.decompress(packed_unclear), np.uint16)
            for number, kept in _whole_ranges(batches):
                yield _judge_range(number, kept, states, unclear, zlib.decompress(clear[number]))

        wanted = self._kept.select("range", "piece", "last", "data")
        results = wanted.mapInArrow(judge, from_arrow_schema(_JUDGED)).toArrow()
        for row in results.to_pylist():
            self.states[np.frombuffer(row["conflicts"], np.int32)] = REJECTED
            self._unclear[np.frombuffer(row["cleared"], np.int32)] -= 1
            self._clear[row["range"]] = row["clear"]
        self._commit_clear()

    def conflicts(self) -> tuple[Numbers, npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Every failed precondition and the newest change that broke it, over all ranges that it reads from."""
        packed_states = _packed(self.states)

        def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from holdfast.spark.bulk.sweep import conflicting_changes  # numba costs a second

            states = _unpacked(packed_states)
            for _, kept in _whole_ranges(batches):
                broken = conflicting_changes(kept.problem, states[kept.positions])
                failed = np.flatnonzero(broken)
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.array(kept.read_positions[failed]),
                        pa.array(kept.read_numbers[failed]),
                        pa.array(broken[failed]),
                    ],
                    ["position", "number", "ordinal"],
                )

        wanted = self._kept.select("range", "piece", "last", "data")
        results = wanted.mapInArrow(look, "position long, number int, ordinal int").toArrow()
        merged = results.group_by(["position", "number"]).aggregate([("ordinal", "max")])
        merged = merged.sort_by([("position", "ascending"), ("number", "ascending")])
        return (
            merged["position"].to_numpy().astype(np.int64),
            merged["number"].to_numpy().astype(np.int32),
            merged["ordinal_max"].to_numpy().astype(np.int32),
        )


def _judge_range(
    number: int, kept: _Range, states: States, unclear: npt.NDArray[np.uint16], clear_bits: bytes
) -> pa.RecordBatch:
    """One sweep over one range: the requests that conflict, those that became clear, and all that are clear."""
    from holdfast.spark.bulk.sweep import sweep  # numba costs a second

    count = len(kept.positions)
    known: States = states[kept.positions]
    clear = np.unpackbits(np.frombuffer(clear_bits, np.uint8), count=count).astype(np.bool_)
    reads = np.diff(kept.problem.read_begins) > 0
    # Clear here decides it when no other range is left that it reads from and is not clear in.
    others = unclear[kept.positions].astype(np.int64) - (reads & ~clear)
    verdicts = sweep(kept.problem, known, others == 0, clear | ~reads)
    unknown = known == UNKNOWN
    cleared = unknown & reads & ~clear & (verdicts == CLEAR)
    row = {
        "range": number,
        "conflicts": kept.positions[unknown & (verdicts == CONFLICT)].astype(np.int32).tobytes(),
        "cleared": kept.positions[cleared].astype(np.int32).tobytes(),
        "clear": np.packbits(clear | cleared).tobytes(),
    }
    return pa.RecordBatch.from_pylist([row], schema=_JUDGED)


ITEMS_IN_ONE_TASK: Final = 40_000_000


@dataclass(frozen=True, slots=True)
class Resolution:
    """The verdicts. Positions count from 0; an ordinal plus the base is a version.

    Shape: ``ordinals`` are 0 for a request that got no version; ``found_versions`` are those that the log had for
    requests that were looked up in it. ``conflict_places`` rise: for each failed precondition its request, its
    number there and the ordinal of the newest change that broke it. ``residue`` is what was unknown after each round.
    ``kernel_seconds`` are the processor's in the one task, and by the clock for rounds.
    """

    fates: npt.NDArray[np.uint8]
    originals: Mapping[int, int]
    conflict_places: Numbers
    conflict_numbers: npt.NDArray[np.int32]
    conflict_ordinals: npt.NDArray[np.int32]
    ordinals: npt.NDArray[np.int32]
    base: int
    rounds: int
    residue: tuple[int, ...]
    kernel_seconds: float
    found_versions: Mapping[int, int] = field(default_factory=dict[int, int])

    def assigned(self) -> npt.NDArray[np.int32]:
        """The ordinal after k requests, for each k."""
        assigned: npt.NDArray[np.int32] = np.concatenate(([0], np.maximum.accumulate(self.ordinals))).astype(np.int32)
        return assigned

    def count(self, fate: Fate) -> int:
        """How many requests have this fate."""
        return int(np.count_nonzero(self.fates == fate))


def resolve_requests(
    staged: Staged, base: int, *, windows: Windows = WHOLE_INPUT, partitions: int | None = None
) -> Resolution:
    """Judge all of ``staged`` as a leader with this base would. ``partitions`` forces rounds over this many tasks.

    A refused attempt leaves no record, so the next one under its id is decided again: where ids are shared and refused,
    all is judged again, with the refusals that the pass before has found. A verdict depends on earlier requests alone,
    so each pass settles one more attempt at least, and there is a pass for each at most.

    Raises: what tasks raise. Cost: see the module; a pass over the keys of all requests, and another one for each time
    that an id was refused.
    """
    if not staged.requests or staged.plain:
        return _all_committed(staged.requests, base)
    if partitions is None and staged.items <= ITEMS_IN_ONE_TASK:
        sequencing, resolved = _in_one_task(staged, base, windows, judge=True)
    else:

        def judged(refused: frozenset[int]) -> tuple[Sequencing, Resolved]:
            sequencing, _ = _in_one_task(staged, base, windows, judge=False, refused=refused)
            return sequencing, resolve_in_rounds(staged, sequencing, base, windows, partitions)

        sequencing, resolved = _settled(judged)
    fates = sequencing.fates.copy()
    pending = fates == Fate.PENDING
    fates[pending] = np.where(resolved.states[pending] == REJECTED, Fate.CONFLICT, Fate.COMMITTED)
    fates[resolved.too_old] = Fate.TOO_OLD
    return Resolution(
        fates,
        sequencing.originals,
        resolved.conflict_places,
        resolved.conflict_numbers,
        resolved.conflict_ordinals,
        np.where(pending, sequencing.assigned[1:], 0).astype(np.int32),
        base,
        resolved.rounds,
        resolved.residue,
        resolved.kernel_seconds,
    )


def _all_committed(requests: int, base: int) -> Resolution:
    """Where nothing is read there is nothing to judge: each request gets the next version, and holds."""
    none = np.zeros(0, np.int64)
    narrow = none.astype(np.int32)
    ordinals = np.arange(1, requests + 1, dtype=np.int32)
    fates: npt.NDArray[np.uint8] = np.full(requests, Fate.COMMITTED, np.uint8)
    return Resolution(fates, {}, none, narrow, narrow, ordinals, base, 0, (), 0.0)


def _settled(judged: Callable[[frozenset[int]], tuple[Sequencing, Resolved]]) -> tuple[Sequencing, Resolved]:
    """What ``judged`` makes of the attempts that it refuses itself. See ``resolve_requests``."""
    refused = NONE_REFUSED
    passes = 0
    while True:
        sequencing, resolved = judged(refused)
        attempts = np.array(sequencing.attempts, np.int64)
        too_old = np.isin(attempts, resolved.too_old)
        found = frozenset(attempts[too_old | (resolved.states[attempts] == REJECTED)].tolist())
        if found == refused:
            return sequencing, resolved
        refused = found
        passes += 1
        assert passes <= len(sequencing.fates) + 1, "each pass settles an attempt"


def _in_one_task(
    staged: Staged, base: int, windows: Windows, *, judge: bool, refused: frozenset[int] = NONE_REFUSED
) -> tuple[Sequencing, Resolved]:
    wanted = staged.frame.select("partition", "number", "asks", *(["item_rows"] if judge else []))

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = sorted(
            (chunk_key(row["partition"], row["number"]), row["asks"], row.get("item_rows"))
            for batch in batches
            for row in batch.to_pylist()
        )
        asks = pa.concat_tables([read_stream(ask) for _, ask, _ in rows])
        items = pa.concat_tables([read_stream(item) for _, _, item in rows]) if judge else None

        def judged(refused: frozenset[int]) -> tuple[Sequencing, Resolved]:
            sequencing = sequence_requests(asks, base, windows, refused)
            return sequencing, _judge_all(asks, items, sequencing, base, windows)

        sequencing, resolved = (
            _settled(judged) if judge else (sequence_requests(asks, base, windows, refused), Resolved.empty())
        )
        result = pickle.dumps((sequencing.fates, sequencing.originals, sequencing.attempts, resolved))
        yield pa.RecordBatch.from_arrays([pa.array([result], pa.binary())], ["result"])

    with task_errors():
        # Coalesced, not shuffled: the chunks are sorted by key in the task, and a shuffle would copy them twice.
        (row,) = wanted.coalesce(1).mapInArrow(work, "result binary").toArrow().to_pylist()
    fates, originals, attempts, resolved = pickle.loads(row["result"])
    return Sequencing(fates, _assigned(fates), originals, attempts), resolved


def _judge_all(asks: pa.Table, rows: pa.Table, sequencing: Sequencing, base: int, windows: Windows) -> Resolved:
    from holdfast.spark.bulk.sweep import conflicting_changes, load_loops, sweep  # numba costs a second

    count = asks.num_rows
    floors = windows.indexes_at(np.arange(1, count + 1))
    assigned, pending = sequencing.assigned, sequencing.pending
    items, too_old = select_items(asks, rows, 0, base, assigned, pending, floors)
    judged = pending.copy()
    judged[too_old] = False
    positions = np.flatnonzero(judged)
    problem = make_problem(items, positions, assigned[1:][positions])
    load_loops()
    began = time.thread_time()
    everyone: npt.NDArray[np.bool_] = np.ones(len(positions), np.bool_)
    verdicts = sweep(problem, np.zeros(len(positions), np.uint8), everyone, ~everyone)
    seconds = time.thread_time() - began
    broken = conflicting_changes(problem, verdicts)
    failed = np.flatnonzero(broken)
    states: npt.NDArray[np.uint8] = np.zeros(count, np.uint8)
    states[positions] = verdicts
    reads = np.flatnonzero(items.is_read)[failed]
    return Resolved(states, too_old, items.owners[reads], items.numbers[reads], broken[failed], 1, (0,), seconds)


# -- attempts whose read version is below the window: only the log knows their outcome ---------------------------------

_LOGGED: Final = pa.schema([("version", pa.int64()), ("whole", pa.binary()), ("without_record", pa.binary())])


_encode: Final = msgspec.msgpack.Encoder().encode


def look_up(spark: SparkSession, url: str, staged: Staged, resolution: Resolution, through: int) -> Resolution:
    """``resolution`` with the log's word on every attempt that waits for it; the log counts up to version ``through``.

    An attempt that the log holds above its read version gets its original version; one that it does not hold is
    TOO_OLD; an id that it holds with other changes is a reused request id. Only changes are compared: an earlier load
    wrote read versions of its own leader, and its record as one more change in the last request of a batch.

    Raises: what reading raises. Cost: where an attempt waits, a scan of the log by tasks, and the objects originals.
    """
    waiting = np.flatnonzero(resolution.fates == Fate.LOOK_UP)
    if not len(waiting):
        return resolution
    chunks = {chunk.key: chunk for chunk in staged.chunks}
    fates = resolution.fates

    def asked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for chunk, row in judged_chunks(chunks, batches):
            asks, first = read_stream(row["asks"]), chunk.first
            positions = np.flatnonzero(fates[first : first + asks.num_rows] == Fate.LOOK_UP)
            if len(positions):
                ids = asks["request_id"].take(pa.array(positions)).combine_chunks()
                # A read version of this very input is above every version that the log held before it.
                versions = asks["read_version"].take(pa.array(positions)).combine_chunks()
                yield pa.RecordBatch.from_arrays([pa.array(positions + first), ids, versions], ["position", "id", "at"])

    wanted = staged.frame.select("partition", "number", "weighted", "asks")
    frame = wanted.mapInArrow(asked, "position long, id string, at long")
    originals: dict[int, tuple[int, int]] = {}
    if through:
        log = spark.read.format("holdfast").option("url", url).option("shape", "transactions")
        known = log.option("columns", "version,seq,request_id").option("endingVersion", str(through)).load()
        matches = known.join(F.broadcast(frame), known["request_id"] == frame["id"])
        matches = matches.where(F.col("at").isNotNull() & (F.col("version") > F.col("at")))
        with task_errors():
            first = F.min(F.struct("version", "seq")).alias("first")
            matches = matches.groupBy("position").agg(first).select("position", "first.version", "first.seq")
            originals = {row["position"]: (row["version"], row["seq"]) for row in matches.toArrow().to_pylist()}
    reused = _with_other_changes(spark, url, staged, chunks, originals) if originals else []
    decided = fates.copy()
    decided[waiting] = Fate.TOO_OLD
    decided[list(originals)] = Fate.COMMITTED
    decided[reused] = Fate.REQUEST_ID_REUSED
    found_versions = {
        position: version for position, (version, _) in originals.items() if decided[position] == Fate.COMMITTED
    }
    return replace(resolution, fates=decided, found_versions=found_versions)


def _with_other_changes(
    spark: SparkSession,
    url: str,
    staged: Staged,
    chunks: Mapping[int, ChunkSummary],
    originals: Mapping[int, tuple[int, int]],
) -> list[int]:
    """The positions of requests whose changes differ from those that the log holds at this version and ``seq``."""
    versions: dict[int, set[int]] = {}
    for version, seq in originals.values():
        versions.setdefault(seq, set()).add(version)
    objects = spark.createDataFrame(
        [(seq, sorted(wanted)) for seq, wanted in versions.items()], "seq long, versions array<long>"
    )
    wanted = staged.frame.select("partition", "number", "weighted", "asks", "item_rows", "values")
    with task_errors():
        logged = objects.mapInArrow(partial(logged_changes, url), "version long, whole binary, without_record binary")
        asked = wanted.mapInArrow(partial(asked_changes, chunks, sorted(originals)), "position long, changes binary")
        held = {row["version"]: (row["whole"], row["without_record"]) for row in logged.toArrow().to_pylist()}
        return [
            row["position"]
            for row in asked.toArrow().to_pylist()
            if row["changes"] not in held[originals[row["position"]][0]]
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
                        digests = {"whole": _digest(txn.operations), "without_record": _digest(changes)}
                        rows.append({"version": txn.version, **digests})
            yield pa.RecordBatch.from_pylist(rows, schema=_LOGGED)


def asked_changes(
    chunks: Mapping[int, ChunkSummary], positions: Sequence[int], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """A digest of what each request at one of these ``positions``, which rise, changes. Raises: InvalidRequest."""
    for chunk, row in judged_chunks(chunks, batches):
        asks, first = read_stream(row["asks"]), chunk.first
        own = positions[bisect_left(positions, first) : bisect_left(positions, first + asks.num_rows)]
        if own:
            items, values = read_stream(row["item_rows"]), read_stream(row["values"])
            changes = operations_at(asks, items, values, [position - first for position in own])
            digests = [_digest(each) for each in changes]
            yield pa.RecordBatch.from_arrays([pa.array(own), pa.array(digests)], ["position", "changes"])


async def _read(store: ObjectReader, *, slot: int) -> bytes:
    return await store.read(object_name(slot))


def _digest(operations: Sequence[Operation]) -> bytes:
    return blake2b(_encode(operations), digest_size=16).digest()
