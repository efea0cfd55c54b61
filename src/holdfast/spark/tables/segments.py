"""``segments``: rewrite many small objects of the log into few large Parquet files, in log order.

A segment takes 64 to 256 MiB of log; a run leaves a smaller rest in the log. Segments hold every operation, and every
change of the record of a job, with request ids and times, so their part of the log may be removed by retention. They
hold neither preconditions nor the chain that an audit checks, so audit first. ``holdfast.segments.index`` describes the
format. Memory of a task: one file of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from holdfast.spark.columns import READABLE_KINDS
from holdfast.spark.log.delta_output import DeltaJob
from holdfast.spark.log.increments import Increment
from holdfast.spark.log.runner import StepResult
from holdfast.spark.runtime.table_files import FILES_TYPE, file_rows, new_files, write_table
from holdfast.spark.source.segments import SEGMENT_SCHEMA

SEGMENT_LOG_BYTES_MIN: Final = 64 * 2**20
SEGMENT_LOG_BYTES: Final = 128 * 2**20
SEGMENT_ROW_BYTES_MAX: Final = 256 * 2**20


class Segments(DeltaJob):
    """The segments of the log at ``log_url`` in the Delta table at ``output_url``.

    ``log_bytes_min`` is how much of the log a step waits for.
    """

    name = "segments"
    schema = SEGMENT_SCHEMA

    def __init__(
        self, spark: SparkSession, log_url: str, output_url: str, *, log_bytes_min: int = SEGMENT_LOG_BYTES_MIN
    ) -> None:
        super().__init__(spark, log_url, output_url)
        self._log_bytes_min = log_bytes_min

    def look(self, after: int, until: int | None, step_bytes: int) -> Increment:
        """As ``PipelineJob``, but empty while there is less than a segment; a smaller rest stays in the log."""
        increment = super().look(after, until, max(step_bytes, self._log_bytes_min))
        if increment.log_bytes >= self._log_bytes_min:
            return increment
        return replace(increment, through=after, objects=0, log_bytes=0, behind_bytes=increment.log_bytes)

    def advance(self, increment: Increment) -> StepResult:
        """As ``PipelineJob``."""
        state = self._open(increment)
        reader = self._spark.read.format("holdfast").option("url", self._log_url)
        reader = reader.option("columns", ",".join(SEGMENT_SCHEMA.names))
        reader = reader.option("kinds", ",".join(kind.name.lower() for kind in READABLE_KINDS))
        reader = reader.option("targetPartitionBytes", str(SEGMENT_LOG_BYTES))
        reader = reader.option("startingVersion", str(increment.after + 1))
        rows = reader.option("endingVersion", str(increment.through)).load()
        write = partial(_write_segments, self._output.location.url)
        added = new_files(rows.mapInArrow(write, FILES_TYPE))
        return self._commit(state, increment, added)


def _write_segments(url: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the rows of one task, which are in log order, into one file, or into more where they are large."""
    for group in _whole_transactions(batch for batch in batches if batch.num_rows):
        table = pa.Table.from_batches(group).cast(SEGMENT_SCHEMA)
        yield file_rows([write_table(url, table, {}, ("version", "seq"), blooms=("key", "request_id"))])


def _whole_transactions(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """The rows of each file. A transaction is never cut: two files must not share a version."""
    group: list[pa.RecordBatch] = []
    for batch in batches:
        is_full = sum(each.nbytes for each in group) >= SEGMENT_ROW_BYTES_MAX
        if is_full and batch["version"][0] != group[-1]["version"][-1]:
            yield group
            group = []
        group.append(batch)
    if group:
        yield group
