"""The newest value of every key: as a data frame, made as ``latest`` makes its table, and as the table ``snapshot``.

The tasks that read the log keep each key's newest operation and pack them by bucket; after one shuffle of these, each
task merges its buckets. Cost: the log is read once. Memory: as ``buckets``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import Code, InvalidRequest
from holdfast.spark.log.delta_output import DeltaJob
from holdfast.spark.log.increments import Increment, as_writes, next_increment, read_increment
from holdfast.spark.log.runner import StepResult
from holdfast.spark.runtime.table_files import FILES_TYPE, file_rows, new_files, read_files, tables_of, write_table
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
