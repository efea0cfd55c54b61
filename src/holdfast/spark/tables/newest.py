"""The newest value of every key: as a data frame, made as ``latest`` makes its table, and as the table ``snapshot``.

The tasks that read the log keep each key's newest operation and pack them by bucket; after one shuffle of these, each
task merges its buckets. Cost: the log is read once. Memory: as ``buckets``.

``snapshot --into-log`` makes a snapshot in the log's own store, for states that outgrow one machine. It equals what
``holdfast log snapshot`` makes: the same rows and borders of parts, and the same bytes under one version of pyarrow.
Spark sorts the keys into ranges; one task adds the sizes of rows, in order, and so finds where each part ends; tasks
write the parts. The manifest is created last: a job that was killed leaves parts that nothing reads. Memory: 8 bytes
for each part and each range on the driver, and twice a part in a task. Disk: the state, and 4 bytes for each key, in
the temporary folders of the executors. Records of jobs, one for each job, pass through the driver.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark program uses

from holdfast.commit.format.transaction import JobChange, job_operations
from holdfast.errors import Code, CorruptData, InvalidRequest
from holdfast.objects.creating import create_exactly
from holdfast.objects.port import ObjectStore
from holdfast.snapshots.making import Start, place_of, start_of, write_manifest
from holdfast.snapshots.manifest import FORMAT, Manifest, Part, jobs_name, part_key, part_name
from holdfast.snapshots.part import PART_BYTES, SCHEMA, cut, encode_part, encode_table, rows_of
from holdfast.snapshots.reading import read_part
from holdfast.spark.log.delta_output import DeltaJob
from holdfast.spark.log.increments import Increment, as_writes, next_increment, part_tables, read_increment
from holdfast.spark.log.runner import StepResult
from holdfast.spark.runtime.store_thread import with_store
from holdfast.spark.runtime.table_files import FILES_TYPE, file_rows, new_files, read_files, tables_of, write_table
from holdfast.spark.runtime.tasks import in_tasks, running_task
from holdfast.spark.tables.buckets import (
    LATEST_ROWS,
    PACKED_TYPE,
    Latest,
    Placement,
    bucket_changes,
    bucket_count,
    in_buckets,
    merge_latest,
    newest_points,
    placed_by_bucket,
)
from holdfast.view.storage import Layer

ROWS: Final = "key binary, value binary, version long"
ROWS_IN_A_BATCH: Final = 10_000
RANGE_BYTES: Final = 128 * 2**20
RANGES_MAX: Final = 4096


def materialise_latest(spark: SparkSession, url: str, as_of_version: int | None = None) -> DataFrame:
    """Every key that exists at ``as_of_version`` (default: now) with its value and the version that wrote it.

    Shape: columns ``key`` binary, ``value`` binary, ``version`` long; one row a key, in no order. The table is a plan:
    each action on it computes it again, at the same version.

    Raises: InvalidRequest for a version that the log has not reached, NotFound (``log_empty``, ``log_truncated``),
    CorruptData, Unavailable; what reading raises later arrives as Spark's error with our text.
    """
    increment = next_increment(url, 0, until=as_of_version, step_bytes=2**62)
    if as_of_version is not None and not 0 <= as_of_version <= increment.head.version:
        raise InvalidRequest(
            "the log has not reached this version",
            code=Code.FUTURE_VERSION,
            as_of_version=as_of_version,
            last_version=increment.head.version,
        )
    return newest_values(spark, url, increment)


def newest_values(
    spark: SparkSession, url: str, increment: Increment, base: DataFrame | None = None, base_bytes: int = 0
) -> DataFrame:
    """Every key that exists after ``increment``; ``base`` has those before it, None for none. Shape: ``ROWS``."""
    placement = Placement.fixed(bucket_count(increment.log_bytes + base_bytes))
    packed = base if base is None else base.mapInArrow(partial(_base_in_buckets, placement), PACKED_TYPE)
    if not increment.is_empty:
        pack = partial(in_buckets, placement, newest_points)
        changes = read_increment(spark, url, increment, Latest.columns, work=pack, schema=PACKED_TYPE)
        packed = changes if packed is None else packed.unionAll(changes)
    if packed is None:
        return spark.createDataFrame([], ROWS)
    return placed_by_bucket(packed, placement.count).mapInArrow(_merged, ROWS)


def sorted_values(
    spark: SparkSession, url: str, increment: Increment, base: DataFrame | None, base_bytes: int
) -> DataFrame:
    """As ``newest_values``, in ranges of keys that do not overlap, about ``RANGE_BYTES`` of log each, sorted within."""
    ranges = max(1, min(RANGES_MAX, -(-(increment.log_bytes + base_bytes) // RANGE_BYTES)))
    values = newest_values(spark, url, increment, base, base_bytes)
    return values.repartitionByRange(ranges, "key").sortWithinPartitions("key")


def _base_in_buckets(placement: Placement, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows as operations before all others: every key is in one of them, so their own order does not matter."""
    columns = Latest.columns.split(",")
    rows = (pa.Table.from_batches([batch]) for batch in batches if batch.num_rows)
    operations = (each for table in rows for each in as_writes(table, columns).to_batches())
    return in_buckets(placement, lambda table: table, operations)


def _merged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _, changes in bucket_changes(batches):
        for part in merge_latest(None, changes):
            yield from part.rows.to_batches(max_chunksize=ROWS_IN_A_BATCH)


FILE_BYTES: Final = 128 * 2**20
"""Rows in memory at which a file is closed; a range of keys may take several."""


class Snapshot(DeltaJob):
    """The whole state of the log at ``log_url`` at one version, sorted by key, in the Delta table at ``output_url``.

    Columns: ``key`` and ``value`` raw bytes, ``version`` that wrote the value. Files hold ranges of keys that do not
    overlap, sorted within. Each step of a run is a snapshot; older ones stay readable as older versions of the table
    until it is vacuumed. The first one reads the log from its beginning, or the newest snapshot of a log that was
    truncated; each later one the last snapshot and the log since. Cost: both are read twice: Spark samples the keys.
    """

    name = "snapshot"
    schema = LATEST_ROWS
    begins_with_snapshot = True

    def look(self, after: int, until: int | None, step_bytes: int) -> Increment:
        """As ``PipelineJob``, but a snapshot is one step, however long the log is."""
        del step_bytes
        return super().look(after, until, 2**62)

    def advance(self, increment: Increment) -> StepResult:
        """As ``PipelineJob``."""
        state = self._open(increment)
        live = state.files()
        paths = [file.path for file in live]
        base = read_files(self._spark, self._output.location.url, paths, ROWS) if paths else None
        size = sum(file.size for file in live)
        values = sorted_values(self._spark, self._log_url, increment, base, size)
        added = new_files(values.mapInArrow(partial(write_sorted, self._output.location.url), FILES_TYPE))
        return self._commit(state, increment, added, live)


def write_sorted(url: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the rows of one task, in their order, into files of about ``FILE_BYTES``, and report them."""
    for table in tables_of(batches, FILE_BYTES):
        if table.num_rows:
            yield file_rows([write_table(url, table.cast(LATEST_ROWS), {}, ("version",))])


_SIZES: Final = "partition int, number int, sizes binary"
_STARTS: Final = "partition int, row long"
"""The first row of a range, counted over all; without a range, that of a part."""
_PARTS: Final = "part binary"


@dataclass(frozen=True, slots=True)
class _Plan:
    """What the snapshot begins with, and where in the log its version is."""

    start: Start
    slot: str
    last_transaction: int


def snapshot_into_log(
    spark: SparkSession, log_url: str, at: int | None = None, *, part_bytes: int = PART_BYTES
) -> Manifest:
    """Make the snapshot of the log at version ``at``, by default the newest, or return the one that exists.

    ``part_bytes`` is for tests: other values give other borders than those of other makers. Raises: InvalidRequest
    (``future_version``), NotFound (``log_empty``, ``log_truncated``), CorruptData, Unavailable.
    """
    plan = with_store(log_url, partial(_plan, at=at))
    if isinstance(plan, Manifest):
        return plan
    version, base = plan.start.version, plan.start.base
    after = 0 if base is None else base.version
    increment = next_increment(log_url, after, until=version, step_bytes=2**62)
    before = None if base is None else _rows_of(spark, log_url, base)
    values = sorted_values(spark, log_url, increment, before, 0 if base is None else base.size)
    # Both passes must see the same ranges.
    values.persist(StorageLevel.DISK_ONLY)
    try:
        starts = _starts(values, part_bytes)
        maker = secrets.token_hex(4)
        parts = _write_parts(values, starts, log_url, version, maker)
    finally:
        values.unpersist()
    manifest = Manifest(
        format=FORMAT,
        log_id=plan.start.log_id,
        version=version,
        last_transaction=plan.last_transaction,
        slot=plan.slot,
        rows=sum(part.rows for part in parts),
        parts=parts,
        jobs=_write_jobs(spark, log_url, plan.start, increment, maker, part_bytes),
    )
    return with_store(log_url, lambda store: write_manifest(store, manifest))


async def _plan(store: ObjectStore, at: int | None) -> _Plan | Manifest:
    start = await start_of(store, at)
    if isinstance(start, Manifest):
        return start
    return _Plan(start, *await place_of(store, start.head, start.version))


def _rows_of(spark: SparkSession, url: str, base: Manifest) -> DataFrame:
    """The rows of an earlier snapshot; tasks read and verify its parts."""

    def read(parts: Iterator[Part]) -> Iterator[pa.RecordBatch]:
        return (batch for table in part_tables(url, base, parts) for batch in table.cast(LATEST_ROWS).to_batches())

    return in_tasks(spark, base.parts, read, ROWS)


def _sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The bytes of key and value of each row of a range, in order."""
    partition = running_task().partitionId()
    for number, batch in enumerate(batches):
        if batch.num_rows:
            lengths = [pc.call_function("binary_length", [batch[name]]).to_numpy(False) for name in ("key", "value")]
            data = (lengths[0].astype(np.int64) + lengths[1]).astype("<u4").tobytes()
            place = [pa.array([each], pa.int32()) for each in (partition, number)]
            yield pa.record_batch([*place, pa.array([data], pa.binary())], ["partition", "number", "sizes"])


@dataclass(frozen=True, slots=True)
class _Starts:
    """Where the parts begin. ``rows``: the first row of each range, counted over all. ``parts``: that of each part."""

    rows: dict[int, int]
    parts: npt.NDArray[np.int64]


def _starts(values: DataFrame, part_bytes: int) -> _Starts:
    def find(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        count = left = 0
        known: int | None = None
        for batch in batches:
            for partition, data in zip(batch["partition"].to_pylist(), batch["sizes"].to_pylist(), strict=True):
                sizes = np.frombuffer(data, "<u4")
                begins, left = part_begins(sizes, part_bytes, left)
                rows = [(None, count + begin) for begin in begins]
                if partition != known:
                    rows.append((partition, count))
                known = partition
                count += len(sizes)
                columns = [
                    pa.array([row[0] for row in rows], pa.int32()),
                    pa.array([row[1] for row in rows], pa.int64()),
                ]
                yield pa.record_batch(columns, ["partition", "row"])

    # Where a part ends depends on where the one before it ends, so one task looks at all sizes; it holds one batch.
    sizes = values.mapInArrow(_sizes, _SIZES).repartition(1).sortWithinPartitions("partition", "number")
    borders = sizes.mapInArrow(find, _STARTS).toArrow().to_pylist()
    rows = {row["partition"]: row["row"] for row in borders if row["partition"] is not None}
    parts = [row["row"] for row in borders if row["partition"] is None]
    return _Starts(rows, np.asarray(parts, np.int64))


def part_begins(sizes: npt.NDArray[np.uint32], part_bytes: int, left: int) -> tuple[list[int], int]:
    """Which of these rows begin a part, where ``left`` bytes are missing to the end of an open part, 0 for none open;
    and how many are missing after them. A part ends with the first row at which it reaches its size.

    >>> part_begins(np.array([3, 4, 5, 6], np.uint32), 7, 0)
    ([0, 2], 0)
    >>> part_begins(np.array([3, 4, 5], np.uint32), 7, 2)
    ([1], 0)
    >>> part_begins(np.array([3, 4, 1], np.uint32), 7, 0)
    ([0, 2], 6)
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    begins: list[int] = []
    begin, passed = 0, 0
    while begin < len(ends):
        if not left:
            begins.append(begin)
            left = part_bytes
        last = int(np.searchsorted(ends, passed + left, side="left"))
        if last == len(ends):
            return begins, left - int(ends[-1] - passed)
        begin, passed, left = last + 1, int(ends[last]), 0
    return begins, left


def _write_parts(values: DataFrame, starts: _Starts, url: str, version: int, maker: str) -> list[Part]:
    def numbered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        at = starts.rows.get(running_task().partitionId(), 0)
        for batch in batches:
            rows = np.arange(at, at + batch.num_rows)
            at += batch.num_rows
            number = np.searchsorted(starts.parts, rows, side="right") - 1
            yield pa.RecordBatch.from_arrays(
                [pa.array(number, pa.int32()), batch["key"], batch["value"], batch["version"]],
                ["number", "key", "value", "version"],
            )

    def write(table: pa.Table) -> pa.Table:
        number = table["number"][0].as_py()
        ordered = table.sort_by("key").select(["key", "value", "version"]).cast(SCHEMA).combine_chunks()
        part, data = encode_table(ordered, part_name(maker, number))
        created = with_store(url, lambda store: create_exactly(store, part_key(version, part.name), data))
        if not created:
            raise CorruptData("another object has the name of a part", part=part.name)
        return pa.table({"part": pa.array([msgspec.json.encode(part)], pa.binary())})

    marked = values.mapInArrow(numbered, f"number int, {ROWS}")
    made = marked.groupBy("number").applyInArrow(write, _PARTS).collect()
    parts = [msgspec.json.decode(bytes(row["part"]), type=Part) for row in made]
    return sorted(parts, key=lambda part: part.name)


def _write_jobs(
    spark: SparkSession, url: str, start: Start, increment: Increment, maker: str, part_bytes: int
) -> list[Part]:
    """The parts of the records of jobs: those of the earlier snapshot, changed by the log."""
    layer = Layer(is_ground=True)
    base = start.base
    for part in () if base is None else base.jobs:
        assert base is not None, "it has parts"
        table = with_store(url, partial(read_part, manifest=base, part=part))
        layer.write({name: (value, version) for name, value, version in rows_of(table)})
    changes: list[tuple[int, int, JobChange]] = []
    if not increment.is_empty:
        at = F.struct("version", "position")
        newest = F.max_by("value", at).alias("value"), F.max(at).alias("at")
        removed = F.max(F.when(F.col("value").isNull(), at)).alias("removed")
        changed = read_increment(spark, url, increment, "key,value,version,position", "job")
        for row in changed.groupBy("key").agg(*newest, removed).toArrow().to_pylist():
            name = row["key"].decode()
            if row["removed"] is not None:
                changes.append((*row["removed"].values(), JobChange(name, None)))
            if row["value"] is not None:
                changes.append((*row["at"].values(), JobChange(name, row["value"])))
    for version, _, change in sorted(changes, key=lambda each: each[:2]):
        layer.apply(version, job_operations([change]))
    written = ((name, *stored) for name in layer.walk(b"", None) if (stored := layer.changes[name]) is not None)
    parts: list[Part] = []
    for rows in cut(written, part_bytes):
        part, data = encode_part(rows, jobs_name(maker, len(parts)))
        key = part_key(start.version, part.name)
        if not with_store(url, partial(create_exactly, key=key, data=data)):
            raise CorruptData("another object has the name of a part", part=part.name)
        parts.append(part)
    return parts
