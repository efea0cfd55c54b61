"""``latest`` and ``history``: tables in buckets of keys. A step changes the buckets of its keys alone.

``Placement`` says which bucket has a key. A step whose keys are all new in a bucket adds a small file to it; any other
step rewrites the bucket. A range delete goes to all buckets. A bucket is split when the table has grown. The tasks that
read the log pack operations by bucket, so Spark shuffles few rows. Memory: a reading task holds ``WAITING_BYTES`` of
operations and as much of copied range deletes; a rewriting task one bucket's files and the step's operations on it.

Source: W. Litwin, "Linear hashing: a new tool for file and table addressing", VLDB 1980. The hash is ``zlib.crc32``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise
from operator import itemgetter
from types import MappingProxyType
from typing import ClassVar, Final, TypeAlias
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from holdfast.commit.window import DeletedRanges
from holdfast.spark.columns import TIMESTAMP, RowShape, arrow_schema
from holdfast.spark.log.delta_output import DeltaOutput, TableState
from holdfast.spark.log.increments import Increment, read_increment
from holdfast.spark.log.runner import StepResult
from holdfast.spark.runtime.table_files import (
    FILES_TYPE,
    TableFile,
    file_rows,
    new_files,
    parquet_rows,
    read_objects,
    tables_of,
    write_table,
)
from holdfast.spark.tables.typed import BucketPart, Merge, PointedMerge, TypedJob, TypedStep
from holdfast.spark.typed.table import KEY_BYTES, ROWS_DEFAULT, RowOptions

Numbers: TypeAlias = npt.NDArray[np.int64]

BUCKET_LOG_BYTES: Final = 32 * 2**20
"""Bytes of log per bucket when a table is made: a table is mostly smaller than its log."""
BUCKET_FILE_BYTES: Final = 32 * 2**20
"""Bytes of current rows per bucket, on the average, above which a table gets more buckets."""
BUCKETS_MIN: Final = 8
BUCKETS_MAX: Final = 4096


def bucket_count(log_bytes: int) -> int:
    """How many buckets a new table of a log of this size gets.

    >>> bucket_count(0), bucket_count(10 * 2**30)
    (8, 320)
    """
    return max(BUCKETS_MIN, min(BUCKETS_MAX, -(-log_bytes // BUCKET_LOG_BYTES)))


@dataclass(frozen=True, slots=True)
class Placement:
    """A table that was made with ``first`` buckets and has ``count`` now: ``0`` to ``count - 1``.

    With ``first * 2**n <= count < first * 2**(n + 1)`` the first ``count - first * 2**n`` buckets are split: their keys
    are placed by ``crc32(key) mod first * 2**(n + 1)``, those of the others by ``crc32(key) mod first * 2**n``. So one
    more bucket moves keys of one bucket alone.

    >>> Placement(8, 8).of_keys([b"a", b"b"]).tolist(), Placement(8, 12).of_keys([b"a", b"b"]).tolist()
    ([3, 1], [3, 9])
    """

    first: int
    count: int

    def __post_init__(self) -> None:
        assert 0 < self.first <= self.count, "a table never has fewer buckets than it was made with"

    @classmethod
    def fixed(cls, count: int) -> Placement:
        """Buckets that never grow."""
        return cls(count, count)

    def of_keys(self, keys: Sequence[bytes]) -> Numbers:
        """The bucket of each key. Cost: O(n), in Python for the hash."""
        return self.of_hashes(np.fromiter(map(crc32, keys), np.int64, len(keys)))

    def of_hashes(self, hashes: Numbers) -> Numbers:
        """The bucket of each hash."""
        level = self.first
        while level * 2 <= self.count:
            level *= 2
        split: Numbers = hashes % (level * 2)
        return np.where(split < self.count, split, hashes % level)

    def grown(self, table_bytes: int) -> Placement:
        """The buckets for current rows of ``table_bytes``: at most twice as many as now, never fewer.

        >>> Placement(8, 8).grown(9 * BUCKET_FILE_BYTES), Placement(8, 9).grown(0)
        (Placement(first=8, count=9), Placement(first=8, count=9))
        """
        wanted = min(-(-table_bytes // BUCKET_FILE_BYTES), 2 * self.count, BUCKETS_MAX)
        return replace(self, count=max(self.count, wanted))

    def sources(self, before: Placement) -> Numbers:
        """For each bucket the one that had its keys ``before``, with fewer buckets."""
        # A bucket's number is the remainder of the hashes in it, and every earlier remainder follows from it.
        return before.of_hashes(np.arange(self.count))


Flags: TypeAlias = npt.NDArray[np.bool_]

FILES_OF_A_BUCKET_MAX: Final = 8
"""Files of current rows in a bucket. A step that would exceed this rewrites the bucket, which then has one file."""
SMALL_FILE_SHARE: Final = 4
"""A step adds a file to a bucket only if the bucket has this many rows for each operation of the step."""
SPLITS: Final = "buckets"
"""The mark that has the number of buckets, in a table that was split."""


Reduce: TypeAlias = Callable[[pa.Table], pa.Table]
"""From operations that follow one another in the log to those among them, still in order, that a merge depends on."""

WAITING_BYTES: Final = 64 * 2**20
"""Operations of a reading task that are reduced and packed together."""
PIECE_BYTES: Final = 4 * 2**20
"""A bucket's operations are rows of about this many bytes for Spark, which keeps rows in Java's heap."""
PACKED_TYPE: Final = "bucket int, version long, position int, operations binary"
BEFORE_ALL: Final = (-1, -1)
"""The place of what comes before all operations: a version, and a position in its transaction."""
_PACKED: Final = ("bucket", "version", "position", "operations")


def in_buckets(placement: Placement, reduce: Reduce, operations: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The operations of one task, reduced and packed: points in their bucket, each range delete in all of them.

    Shape: ``operations`` have at least version, position, kind and key, and come in log order. A row of the result
    (``PACKED_TYPE``) holds operations of one bucket in log order, and gives the position of the first.
    """
    for table in tables_of(operations, WAITING_BYTES):
        yield from _packed(placement, reduce(table))


def _packed(placement: Placement, operations: pa.Table) -> Iterator[pa.RecordBatch]:
    """In parts with so few range deletes that their copies for all buckets take no more room than operations may."""
    is_range = pc.call_function("equal", [operations["kind"], "range_delete"]).to_numpy()
    ranges = np.flatnonzero(is_range)
    row_bytes = max(1, operations.nbytes // max(1, operations.num_rows))
    most = max(1, WAITING_BYTES // (row_bytes * placement.count))
    edges = [0, *ranges[most::most].tolist(), operations.num_rows]
    for first, past in pairwise(edges):
        yield from _packed_part(placement, operations.slice(first, past - first), is_range[first:past])


def _packed_part(
    placement: Placement, operations: pa.Table, is_range: npt.NDArray[np.bool_]
) -> Iterator[pa.RecordBatch]:
    own = placement.of_keys(operations["key"].to_pylist())
    points, ranges = np.flatnonzero(~is_range), np.flatnonzero(is_range)
    rows = np.concatenate((points, np.tile(ranges, placement.count)))
    placed = np.concatenate((own[points], np.repeat(np.arange(placement.count), len(ranges))))
    order = np.lexsort((rows, placed))
    sorted_rows = operations.combine_chunks().take(pa.array(rows[order]))
    sorted_buckets = placed[order]
    for first, past in pairwise([0, *(np.flatnonzero(np.diff(sorted_buckets)) + 1).tolist(), len(sorted_buckets)]):
        part = sorted_rows.slice(first, past - first)
        step = max(1, part.num_rows * PIECE_BYTES // max(1, part.nbytes))
        for begin in range(0, part.num_rows, step):
            piece = part.slice(begin, step)
            at = piece["version"][0].as_py(), piece["position"][0].as_py()
            yield _piece(int(sorted_buckets[first]), piece, at)


def _piece(bucket: int, operations: pa.Table, first: tuple[int, int]) -> pa.RecordBatch:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, operations.schema) as writer:
        writer.write_table(operations)
    # A buffer becomes a value without a copy: offsets of four bytes, and the bytes themselves.
    data = sink.getvalue()
    offsets = pa.py_buffer(np.array([0, data.size], np.int32))
    numbers = ((bucket, pa.int32()), (first[0], pa.int64()), (first[1], pa.int32()))
    columns = [pa.array([value], kind) for value, kind in numbers]
    return pa.RecordBatch.from_arrays([*columns, pa.Array.from_buffers(pa.binary(), 1, [None, offsets, data])], _PACKED)


@dataclass(frozen=True, slots=True)
class Rewriting:
    """What the tasks of one step do with each bucket of the table at ``url``. It is copied into the tasks.

    ``paths`` are the files of current rows by the bucket that they have ``before``; ``after`` is the placement of the
    step; ``statistics`` are the columns to give bounds of. With a typed ``step`` the files have typed rows.
    """

    url: str
    paths: Mapping[int, Sequence[str]]
    before: Placement
    after: Placement
    merge: Merge
    statistics: Sequence[str]
    step: TypedStep

    @property
    def split(self) -> Numbers:
        """The buckets that get rows of a bucket that is split, with or without operations of this step."""
        sources = self.after.sources(self.before)
        parts = np.bincount(sources, minlength=self.before.count)
        return np.flatnonzero(parts[sources] > 1)

    def run(self, packed: DataFrame, schema: pa.Schema) -> list[TableFile]:
        """Change every bucket that the ``packed`` operations touch, and the split ones; ``schema`` is operations'.

        Shape: a file without a path names a bucket whose earlier files are replaced. Files of the quarantine are among
        the others. Raises: what tasks raise, as Spark's error.
        """
        split = self.split.tolist()
        if split:
            # A bucket is changed where it has operations: these have none, and come first.
            pieces = pa.Table.from_batches([_piece(bucket, schema.empty_table(), BEFORE_ALL) for bucket in split])
            packed = packed.unionAll(packed.sparkSession.createDataFrame(pieces))
        return new_files(placed_by_bucket(packed, self.after.count).mapInArrow(self.buckets, FILES_TYPE))

    def buckets(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Change the buckets of one task of ``placed_by_bucket``."""
        return (self.bucket(bucket, changes) for bucket, changes in bucket_changes(batches))

    def bucket(self, bucket: int, changes: pa.Table) -> pa.RecordBatch:
        """Change one bucket. Raises: NotFound, Unavailable, InvalidRequest for a misfit, with the policy ``fail``."""
        source = int(self.before.of_hashes(np.array([bucket]))[0])
        held = read_objects(self.url, self.paths.get(source, ()))
        is_split = bucket in self.split
        if not is_split and self._may_grow(held, changes):
            return file_rows(self._written(bucket, None, changes))
        current = parquet_rows(held)
        if is_split and current is not None:
            current = current.filter(pa.array(self.after.of_keys(self._keys(current).to_pylist()) == bucket))
        replaced = TableFile("", 0, 0, {"bucket": str(source)}, "")
        return file_rows([replaced, *self._written(bucket, current, changes)])

    def _may_grow(self, held: Sequence[bytes], changes: pa.Table) -> bool:
        """Whether the step can add a file to the bucket: no row of the bucket has a key of these operations."""
        if not 0 < len(held) < FILES_OF_A_BUCKET_MAX:
            return False
        rows = sum(pq.read_metadata(pa.BufferReader(data)).num_rows for data in held)
        if changes.num_rows * SMALL_FILE_SHARE > rows or "range_delete" in changes["kind"].unique().to_pylist():
            return False
        keys = self._keys(parquet_rows(held, ("key", KEY_BYTES))).cast(pa.binary())
        known = pc.call_function("is_in", [keys], pc.SetLookupOptions(value_set=changes["key"].combine_chunks()))
        return not pc.call_function("any", [known]).as_py()

    def _keys(self, rows: pa.Table) -> pa.ChunkedArray:
        return rows["key"].cast(pa.binary()) if self.step.layout is None else self.step.layout.key_bytes(rows)

    def _written(self, bucket: int, current: pa.Table | None, changes: pa.Table) -> list[TableFile]:
        aside: list[pa.Table] = []
        if self.step.layout is None:
            parts = self.merge(current, changes)
        else:
            parts, aside = PointedMerge(self.step, self.merge)(current, changes)
        files = [
            write_table(self.url, part.rows, {"bucket": str(bucket), **part.partition}, self.statistics)
            for part in parts
            if part.rows.num_rows
        ]
        return [*files, *self.step.put_aside(aside)]


def placed_by_bucket(packed: DataFrame, buckets: int) -> DataFrame:
    """The packed operations with all of a bucket in one partition, sorted by bucket and position in the log."""
    # By number and not by hash: a hash of eight buckets leaves one of four tasks without any, and another with four.
    # Never more tasks than buckets: Spark's own number for a cluster is 200, and each empty task costs some 60 ms.
    tasks = min(buckets, int(packed.sparkSession.conf.get("spark.sql.shuffle.partitions") or "1"))
    return packed.repartitionById(tasks, "bucket").sortWithinPartitions("bucket", "version", "position")


def bucket_changes(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
    """The buckets of one task of ``placed_by_bucket``, one after the other, each with its operations in log order."""
    pieces = (
        (bucket, data)
        for batch in batches
        for bucket, data in zip(batch["bucket"].to_pylist(), batch["operations"], strict=True)
    )
    for bucket, group in groupby(pieces, itemgetter(0)):
        streams = [pa.ipc.open_stream(data.as_buffer()).read_all() for _, data in group]
        yield bucket, pa.concat_tables(streams)


class BucketJob(TypedJob):
    """A job whose table is kept in buckets of keys. ``buckets`` counts only when the table is made."""

    partition_by: ClassVar[tuple[str, ...]] = ("bucket",)
    columns: ClassVar[str]
    statistics: ClassVar[tuple[str, ...]]
    further_partition: ClassVar[Mapping[str, str]] = {}
    """Partition columns in addition to ``bucket``, and their values in the files that a step rewrites."""

    def __init__(
        self,
        spark: SparkSession,
        log_url: str,
        output_url: str,
        *,
        buckets: int | None = None,
        rows: RowOptions = ROWS_DEFAULT,
    ) -> None:
        super().__init__(spark, log_url, output_url, rows=rows)
        self._buckets = buckets

    @staticmethod
    def reduce(operations: pa.Table) -> pa.Table:
        """As ``Reduce``."""
        return operations

    @staticmethod
    def merge(current: pa.Table | None, changes: pa.Table) -> Sequence[BucketPart]:
        """As ``Merge``."""
        raise NotImplementedError

    def advance(self, increment: Increment) -> StepResult:
        """As ``PipelineJob``."""
        made_with = self._buckets or bucket_count(increment.log_bytes + increment.behind_bytes)
        state, step = self._begin(increment, {"buckets": made_with})
        changed = change_buckets(
            self._output,
            state,
            lambda placement: read_increment(
                self._spark,
                self._log_url,
                increment,
                self.columns,
                work=partial(_pack_chosen, step, placement, self.reduce),
                schema=PACKED_TYPE,
            ),
            arrow_schema(RowShape.OPERATIONS, self.columns.split(",")),
            self.merge,
            self.statistics,
            step=step,
            further_partition=self.further_partition,
        )
        return self._finish(state, increment, changed.added, changed.removed, marks=changed.marks)


@dataclass(frozen=True, slots=True)
class ChangedBuckets:
    """What a step made of the buckets of the table, and has not committed."""

    added: Sequence[TableFile]
    removed: Sequence[TableFile]
    marks: Mapping[str, int]


def change_buckets(
    output: DeltaOutput,
    state: TableState,
    packed: Callable[[Placement], DataFrame],
    schema: pa.Schema,
    merge: Merge,
    statistics: Sequence[str],
    *,
    step: TypedStep,
    further_partition: Mapping[str, str] = MappingProxyType({}),
) -> ChangedBuckets:
    """Change the buckets that the ``packed`` operations touch, and split some where the table has grown.

    ``schema`` is operations'; the rest is as in ``Rewriting``. Raises: Conflict when another runner has moved the table
    on; what tasks raise, as Spark's error. After a crash: files that no commit names.
    """
    before = Placement(first := state.settings["buckets"], state.mark(SPLITS) or first)
    live = state.files(further_partition)
    after = before.grown(sum(file.size for file in live))
    paths: dict[int, list[str]] = {}
    for file in live:
        paths.setdefault(int(file.partition["bucket"]), []).append(file.path)
    rewriting = Rewriting(output.location.url, paths, before, after, merge, statistics, step)
    written = rewriting.run(packed(after), schema)
    replaced = {file.partition["bucket"] for file in written if not file.path}
    return ChangedBuckets(
        [file for file in written if file.path],
        [file for file in live if file.partition["bucket"] in replaced],
        {SPLITS: after.count} if after.count > after.first else {},
    )


def _pack_chosen(
    step: TypedStep, placement: Placement, reduce: Reduce, operations: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    return in_buckets(placement, reduce, step.chosen(operations))


LATEST_ROWS: Final = pa.schema(
    [pa.field("key", pa.binary()), pa.field("value", pa.binary()), pa.field("version", pa.int64())]
)


def newest_points(operations: pa.Table) -> pa.Table:
    """Of operations in log order each key's newest point operation, and every range delete, still in order.

    A range delete stays whatever comes after it: it also covers keys that these operations do not name.
    """
    is_range = pc.call_function("equal", [operations["kind"], "range_delete"]).to_numpy()
    keys = operations["key"].combine_chunks().dictionary_encode()
    codes = keys.indices.to_numpy()
    indexes = np.arange(len(codes))
    points = ~is_range
    newest = np.full(len(keys.dictionary), -1)
    newest[codes[points]] = indexes[points]  # the last of several is kept: the newest
    wanted = is_range | (newest[codes] == indexes)
    return operations if wanted.all() else operations.filter(pa.array(wanted))


def merge_latest(current: pa.Table | None, changes: pa.Table) -> Sequence[BucketPart]:
    """A bucket's rows after ``changes``, sorted by key.

    Shape: ``changes`` has version, position, kind, key, end, value, in log order; all of them are newer than every row
    of ``current``. Cost: O(n log n) in native code, and a Python step per row when there are range deletes. Values are
    copied once: keys alone decide which rows are kept.
    """
    is_range = pc.call_function("equal", [changes["kind"], "range_delete"])
    points, ranges = changes.filter(pc.call_function("invert", [is_range])), changes.filter(is_range)
    held = points.select(LATEST_ROWS.names)
    # The place of each row among the operations, 0 for those before them.
    ranked = is_range.to_numpy()
    order, lives = np.flatnonzero(~ranked) + 1, points["kind"].to_numpy() == "write"
    if current is not None:
        held = pa.concat_tables([current.select(LATEST_ROWS.names), held])
        order = np.concatenate((np.zeros(current.num_rows, np.int64), order))
        lives = np.concatenate((np.ones(current.num_rows, dtype=np.bool_), lives))
    held = held.combine_chunks()
    rows = newest_rows(held["key"])
    rows = rows[lives[rows]]
    if ranges.num_rows:
        deleted = DeletedRanges()
        bounds = zip(ranges["key"].to_pylist(), ranges["end"].to_pylist(), (np.flatnonzero(ranked) + 1), strict=True)
        for begin, end, at in bounds:
            if end is None or begin < end:
                deleted.delete(begin, end, int(at))
        names = held["key"].take(pa.array(rows)).to_pylist()
        rows = rows[[deleted.newest_at(key) <= at for key, at in zip(names, order[rows].tolist(), strict=True)]]
    return [BucketPart(held.take(pa.array(rows)).cast(LATEST_ROWS), {})]


def newest_rows(keys: pa.ChunkedArray) -> Numbers:
    """Of rows in the order of time the last one of each key, sorted by key. Cost: O(n log n) in native code."""
    flat = keys.combine_chunks()
    order = pc.call_function("array_sort_indices", [flat], pc.ArraySortOptions("ascending"))  # which is stable
    flat = flat.take(order)
    newest = np.ones(len(flat), dtype=np.bool_)
    newest[:-1] = pc.call_function("not_equal", [flat[1:], flat[:-1]]).to_numpy(zero_copy_only=False)
    numbers: Numbers = order.to_numpy()[newest].astype(np.int64)
    return numbers


def _numbers(column: pa.ChunkedArray) -> Numbers:
    numbers: Numbers = column.to_numpy().astype(np.int64)
    return numbers


class Latest(BucketJob):
    """The newest value of every key of the log at ``log_url`` in the Delta table at ``output_url``.

    Columns: ``key`` and ``value`` raw bytes, ``version`` that wrote the value, ``bucket`` (the partition). One row per
    key; files are sorted by key. Exact with deletes and range deletes; no tombstones are needed.

    ``buckets`` counts when the table is made; None sizes it by the first step's share of the log.
    """

    name = "latest"
    schema = LATEST_ROWS.append(pa.field("bucket", pa.int32()))
    columns = "version,position,kind,key,end,value"
    statistics = ("version",)
    begins_with_snapshot = True
    reduce = staticmethod(newest_points)
    merge = staticmethod(merge_latest)


_VALID: Final = [("valid_from", pa.int64()), ("valid_to", pa.int64())]
_VALID_TIMES: Final = [("valid_from_time", TIMESTAMP), ("valid_to_time", TIMESTAMP)]
HISTORY_ROWS: Final = pa.schema([("key", pa.binary()), ("value", pa.binary()), *_VALID, *_VALID_TIMES])
CURRENT: Final = {"is_current": "true"}
ENDED: Final = {"is_current": "false"}


def merge_history(current: pa.Table | None, changes: pa.Table) -> Sequence[BucketPart]:
    """A bucket's current rows after ``changes``, and the rows that have ended in them.

    Shape: ``changes`` has version, position, kind, key, end, value, timestamp, in no order; all of them are newer than
    every row of ``current``. Each part is sorted by key and version.
    """
    rows = _written(current, changes.filter(pc.call_function("not_equal", [changes["kind"], "range_delete"])))
    keys = rows["key"].unique().sort()
    key = pc.call_function("index_in", [rows["key"]], pc.SetLookupOptions(value_set=keys)).to_numpy().astype(np.int64)
    source = np.arange(rows.num_rows, dtype=np.int64)
    events: list[tuple[Numbers, Numbers, Numbers, Numbers]] = [
        (key, _numbers(rows["version"]), _numbers(rows["position"]), source)
    ]
    ranges = changes.filter(pc.call_function("equal", [changes["kind"], "range_delete"]))
    names = keys.to_pylist() if ranges.num_rows else []
    first_range = rows.num_rows
    for index, (begin, end) in enumerate(zip(ranges["key"].to_pylist(), ranges["end"].to_pylist(), strict=True)):
        past = len(names) if end is None else bisect_left(names, end)
        covered = np.arange(bisect_left(names, begin), past, dtype=np.int64)
        of_range = (ranges["version"][index].as_py(), ranges["position"][index].as_py(), first_range + index)
        version, position, source = (np.full(len(covered), value, dtype=np.int64) for value in of_range)
        events.append((covered, version, position, source))
    key, version, position, source = (np.concatenate(parts) for parts in zip(*events, strict=True))
    order = np.lexsort((position, version, key))
    key, version, source = key[order], version[order], source[order]
    # Of one key's events at one version the last is what the transaction left behind.
    is_last: Flags = np.append((key[1:] != key[:-1]) | (version[1:] != version[:-1]), np.True_)[: len(key)]
    key, version, source = key[is_last], version[is_last], source[is_last]
    lives = np.concatenate((rows["lives"].to_numpy(), np.zeros(ranges.num_rows, dtype=np.bool_)))
    times = pa.chunked_array([*rows["timestamp"].chunks, *ranges["timestamp"].cast(TIMESTAMP).chunks], TIMESTAMP)
    followed: Flags = np.append(key[1:] == key[:-1], np.False_)[: len(key)]
    following = np.where(followed, np.arange(1, len(key) + 1), 0)
    living = np.flatnonzero(lives[source])
    ends = following[living]
    from_rows = pa.array(source[living])
    to_rows = pa.array(source[ends], mask=~followed[living]) if len(key) else pa.array([], pa.int64())
    valid_to = pa.array(version[ends], mask=~followed[living]) if len(key) else pa.array([], pa.int64())
    table = pa.Table.from_arrays(
        [
            rows["key"].take(from_rows),
            rows["value"].take(from_rows),
            pa.array(version[living]),
            valid_to,
            times.take(from_rows),
            times.take(to_rows),
        ],
        schema=HISTORY_ROWS,
    )
    open_rows = table["valid_to"].is_null()
    return [BucketPart(table.filter(open_rows), CURRENT), BucketPart(table.filter(table["valid_to"].is_valid()), ENDED)]


def _written(current: pa.Table | None, points: pa.Table) -> pa.Table:
    """Current rows and point operations as one table of events. Current rows come before every operation."""
    names = ("key", "value", "version", "position", "timestamp", "lives")
    lives = pc.call_function("equal", [points["kind"], "write"])
    both = pa.table([*(points[name] for name in names[:4]), points["timestamp"].cast(TIMESTAMP), lives], names)
    if current is None:
        return both.combine_chunks()
    position, lives = pa.repeat(pa.scalar(-1, pa.int32()), current.num_rows), pa.repeat(True, current.num_rows)
    times = current["valid_from_time"].cast(TIMESTAMP)
    before = pa.table([current["key"], current["value"], current["valid_from"], position, times, lives], names)
    return pa.concat_tables([before, both]).combine_chunks()


class History(BucketJob):
    """Every value that every key ever had, of the log at ``log_url``, in the Delta table at ``output_url``.

    Columns: ``key``, ``value``; the value is the newest for every version v with ``valid_from <= v < valid_to``, and
    ``valid_to`` is null while it is current; ``valid_from_time`` and ``valid_to_time`` are the times of those batches;
    ``is_current`` and ``bucket`` are the partition. A value that its own transaction replaced has no row. A step
    rewrites the current rows of the buckets that it touches and appends ended rows, so its cost does not grow with the
    log's age. ``buckets`` as in ``Latest``.
    """

    name = "history"
    schema = pa.schema([*HISTORY_ROWS, ("bucket", pa.int32()), ("is_current", pa.bool_())])
    columns = "version,position,kind,key,end,value,timestamp"
    statistics = ("valid_from", "valid_to")
    partition_by = ("bucket", *CURRENT)
    further_partition = CURRENT
    merge = staticmethod(merge_history)
