"""Verdicts by many tasks: the keys cut into ranges, and rounds of three-valued sweeps until nothing is unknown.

Owns: the cut, what each task gets and tells, and the fixed point. Does not own: the sweep itself (``sweep``).

A request is committed when it is clear in every range that it reads from, and rejected when it conflicts in one. Each
round sends what is known to all ranges and takes back what is new. A task is a function of what it is sent, so one that
is repeated changes nothing; what is clear is kept by the driver and given to the next round. The request that comes
first among the unknown is decided by every round, so the rounds end; how many there are depends on the chains of
requests that hang on one another, not on the number of ranges.

Failure model: what tasks raise. Memory: on the driver 3 bytes a request, 4 for each range that a request reads from, a
bit for each range it is in; in a task the keys of its ranges. Spark itself never holds a whole range: it travels in
pieces, and what is known of the requests is packed, so that Java's heap does not grow with the size of a range.
"""

# pyarrow ships no types, so the checker cannot know its classes where they are parameters; mypy checks the rest.
# Most functions of pyarrow.compute are made when it is imported, so it cannot see those either.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false, reportUnknownLambdaType=false

from __future__ import annotations

import pickle
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark program uses

from holdfast.spark.bulk.key_ranks import Items, make_problem, place_items
from holdfast.spark.bulk.request_chunk import read_stream, stream
from holdfast.spark.bulk.sequencing import Fate, Sequencing, Windows
from holdfast.spark.bulk.staging import Staged, chunk_key
from holdfast.spark.bulk.sweep import (
    CLEAR,
    COMMITTED,
    CONFLICT,
    REJECTED,
    UNKNOWN,
    Problem,
    conflicting_changes,
    sweep,
)
from holdfast.spark.log.task_errors import task_errors

__all__ = ["Resolved", "resolve_in_rounds"]

ITEMS_IN_A_RANGE: Final = 1_000_000
"""About 60 bytes each while a task has them."""
PIECE_BYTES: Final = 4 * 2**20
"""A range is so many rows for Spark, whose rows lie in Java's heap."""
SAMPLES_IN_A_CHUNK: Final = 64

Numbers = npt.NDArray[np.int64]
States = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Resolved:
    """What judging gave: ``states`` by place, and as ``resolve.Resolution`` has it."""

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
    places: Numbers
    read_places: Numbers
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
        told = cut.where("range < 0").select("data").toArrow()["data"].to_pylist()
        too_old = np.sort(np.concatenate([np.zeros(0, np.int64), *(np.frombuffer(each, np.int64) for each in told)]))
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
    """The items of every chunk by range: rows (range, chunk, data); range -1 tells which requests are too old."""
    firsts = {chunk.key: chunk.first for chunk in staged.chunks}
    packed = _packed(sequencing.fates)

    def cut(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        fates = _bytes_of(packed)
        assigned = _assigned(fates)
        for batch in batches:
            for row in batch.to_pylist():
                key = chunk_key(row["partition"], row["number"])
                asks, first = read_stream(row["asks"]), firsts[key]
                past = first + asks.num_rows
                floors = windows.indexes_at(np.arange(first + 1, past + 1))
                pending = fates[first:past] == Fate.PENDING
                rows = read_stream(row["item_rows"])
                items, too_old = place_items(asks, rows, first, base, assigned, pending, floors)
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
    """The items that touch each range, clipped to it."""
    bounds = [b"", *splits, None]
    for number in range(len(splits) + 1):
        begin, end = bounds[number], bounds[number + 1]
        assert begin is not None, "only the last range has no end"
        at_or_above = pc.greater_equal(items.keys, pa.scalar(begin, pa.large_binary()))
        below = True if end is None else pc.less(items.keys, pa.scalar(end, pa.large_binary()))
        reaches = pc.or_kleene(pc.is_null(items.ends), pc.greater(items.ends, pa.scalar(begin, pa.large_binary())))
        ranged = pa.array(items.is_range)
        meets = pc.if_else(ranged, pc.fill_null(reaches, True), at_or_above)
        mask = pc.and_(meets, below) if end is not None else meets
        which = mask.to_numpy(zero_copy_only=False)
        if not which.any():
            continue
        some = items.chosen(which)
        keys = pc.if_else(
            pc.less(some.keys, pa.scalar(begin, pa.large_binary())), pa.scalar(begin, pa.large_binary()), some.keys
        )
        ends = some.ends
        if end is not None:
            beyond = pc.and_(
                pa.array(some.is_range), pc.fill_null(pc.greater(ends, pa.scalar(end, pa.large_binary())), True)
            )
            ends = pc.if_else(beyond, pa.scalar(end, pa.large_binary()), ends)
        yield number, stream(
            pa.table(
                {
                    "owner": some.owners, "number": some.numbers, "is_read": some.is_read, "is_range": some.is_range,
                    "key": keys, "end": ends, "at": some.ats,
                }
            )
        )  # fmt: skip


def _ranges(cut: DataFrame, ranges: int, sequencing: Sequencing) -> DataFrame:
    """For each range its pickled ``_Range`` in pieces, and with the first piece the places that read in it."""
    packed = _packed(sequencing.fates)

    def gather(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        assigned = _assigned(_bytes_of(packed))
        parts: dict[int, list[tuple[int, bytes]]] = {}
        for batch in batches:
            for row in batch.to_pylist():
                parts.setdefault(row["range"], []).append((row["chunk"], row["data"]))
        for number in sorted(parts):
            table = pa.concat_tables([read_stream(data) for _, data in sorted(parts.pop(number))]).combine_chunks()
            kept = _range(table, assigned)
            readers = np.unique(kept.read_places).astype(np.int32).tobytes()
            data = pickle.dumps(kept)
            for begin in range(0, len(data), PIECE_BYTES):
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.array([number], pa.int32()),
                        pa.array([begin // PIECE_BYTES], pa.int32()),
                        pa.array([begin + PIECE_BYTES >= len(data)], pa.bool_()),
                        pa.array([data[begin : begin + PIECE_BYTES]], pa.binary()),
                        pa.array([readers if begin == 0 else b""], pa.binary()),
                        pa.array([len(kept.places)], pa.int64()),
                    ],
                    ["range", "piece", "last", "data", "readers", "requests"],
                )

    by_range = cut.where("range >= 0").repartition(ranges, F.col("range"))
    return by_range.mapInArrow(gather, _RANGE_TYPE)


_RANGE_TYPE: Final = "range int, piece int, last boolean, data binary, readers binary, requests long"


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


def _bytes_of(packed: bytes) -> npt.NDArray[np.uint8]:
    """A byte for each request: its fate, or its state."""
    return np.frombuffer(zlib.decompress(packed), np.uint8)


def _counts_of(packed: bytes) -> npt.NDArray[np.uint16]:
    """For each request in how many ranges it is not clear yet."""
    return np.frombuffer(zlib.decompress(packed), np.uint16)


def _assigned(fates: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
    found: npt.NDArray[np.int32] = np.concatenate(([0], np.cumsum(fates == Fate.PENDING))).astype(np.int32)
    return found


def _range(table: pa.Table, assigned: npt.NDArray[np.int32]) -> _Range:
    def column(name: str) -> npt.NDArray[np.int64]:
        found: npt.NDArray[np.int64] = table[name].to_numpy(zero_copy_only=False)
        return found

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
    places = np.unique(owners)
    problem = make_problem(items, places, assigned[1:][places])
    return _Range(problem, places, owners[is_read], items.numbers[is_read])


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
        """Rounds until nothing is unknown."""
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
            states, unclear = _bytes_of(packed_states), _counts_of(packed_unclear)
            for number, kept in _whole_ranges(batches):
                yield _judge(number, kept, states, unclear, zlib.decompress(clear[number]))

        wanted = self._kept.select("range", "piece", "last", "data")
        told = wanted.mapInArrow(judge, "range int, conflicts binary, cleared binary, clear binary").toArrow()
        for row in told.to_pylist():
            self.states[np.frombuffer(row["conflicts"], np.int32)] = REJECTED
            self._unclear[np.frombuffer(row["cleared"], np.int32)] -= 1
            self._clear[row["range"]] = row["clear"]
        self._commit_clear()

    def conflicts(self) -> tuple[Numbers, npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Every failed precondition and the newest change that broke it, over all ranges that it reads from."""
        packed_states = _packed(self.states)

        def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            states = _bytes_of(packed_states)
            for _, kept in _whole_ranges(batches):
                broken = conflicting_changes(kept.problem, states[kept.places])
                failed = np.flatnonzero(broken)
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.array(kept.read_places[failed]),
                        pa.array(kept.read_numbers[failed]),
                        pa.array(broken[failed]),
                    ],
                    ["place", "number", "ordinal"],
                )

        wanted = self._kept.select("range", "piece", "last", "data")
        told = wanted.mapInArrow(look, "place long, number int, ordinal int").toArrow()
        merged = told.group_by(["place", "number"]).aggregate([("ordinal", "max")])
        merged = merged.sort_by([("place", "ascending"), ("number", "ascending")])
        return (
            merged["place"].to_numpy().astype(np.int64),
            merged["number"].to_numpy().astype(np.int32),
            merged["ordinal_max"].to_numpy().astype(np.int32),
        )


def _judge(
    number: int, kept: _Range, states: States, unclear: npt.NDArray[np.uint16], clear_bits: bytes
) -> pa.RecordBatch:
    """One sweep over one range: who conflicts, who is clear now and was not, and who is clear altogether."""
    count = len(kept.places)
    known: States = states[kept.places]
    clear = np.unpackbits(np.frombuffer(clear_bits, np.uint8), count=count).astype(np.bool_)
    reads = np.diff(kept.problem.read_begins) > 0
    # Clear here decides it when no other range is left that it reads from and is not clear in.
    others = unclear[kept.places].astype(np.int64) - (reads & ~clear)
    verdicts = sweep(kept.problem, known, others == 0, clear | ~reads)
    unknown = known == UNKNOWN
    cleared = unknown & reads & ~clear & (verdicts == CLEAR)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([number], pa.int32()),
            pa.array([kept.places[unknown & (verdicts == CONFLICT)].astype(np.int32).tobytes()], pa.binary()),
            pa.array([kept.places[cleared].astype(np.int32).tobytes()], pa.binary()),
            pa.array([np.packbits(clear | cleared).tobytes()], pa.binary()),
        ],
        ["range", "conflicts", "cleared", "clear"],
    )
