"""``snapshot``: the whole state of a log at one version, sorted by key, as a Delta table.

Owns: the table's columns and order, and the making of a snapshot from the one before it and the log since.
Does not own: the reduction to the newest values (``state``), the commit (``delta_output``).

Columns: ``key`` and ``value`` raw bytes, ``version`` that wrote the value. Files hold ranges of keys that do not
overlap, sorted within: a reader that begins with a snapshot can load it in key order and follow the log after the
table's offset. Older snapshots stay readable as older versions of the table until it is vacuumed.

The first snapshot reads the log from its beginning. Each later one reads the last snapshot and the log since, so what
a snapshot covers may leave the log.

Failure model: as the runner's; a snapshot is one commit, whole or not at all. Cost: the log since the last snapshot is
read three times (its range deletes; the rest twice, because Spark samples the keys before it sorts).
"""

# pyarrow ships no types, so the checker cannot know its classes where they are parameters; mypy checks the rest.
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark program uses

from holdfast.segments.table_location import table_location
from holdfast.spark.log.increments import Increment, log_head, next_increment
from holdfast.spark.log.log_changes import read_increment
from holdfast.spark.log.runner import StepResult
from holdfast.spark.tables.delta_output import DeltaOutput
from holdfast.spark.tables.state import newest_values, range_coverage
from holdfast.spark.tables.table_files import FILES_TYPE, new_files, read_files, told, write_table

__all__ = ["Snapshot", "write_sorted"]

SCHEMA: Final = pa.schema(
    [pa.field("key", pa.binary()), pa.field("value", pa.binary()), pa.field("version", pa.int64())]
)
ROWS: Final = "key binary, value binary, version long"
RANGE_BYTES: Final = 128 * 2**20
RANGES_MAX: Final = 4096
FILE_BYTES: Final = 128 * 2**20
"""Rows in memory at which a file is closed; a range of keys may take several."""


class Snapshot:
    """The state of the log at ``log_url`` in the Delta table at ``output_url``. Each step of a run is a snapshot."""

    name = "snapshot"

    def __init__(self, spark: SparkSession, log_url: str, output_url: str) -> None:
        self._spark = spark
        self._log_url = log_url
        self._output = DeltaOutput(table_location(output_url), self.name, SCHEMA)
        self._log_id = ""

    def log_id(self) -> str:
        """As ``Job``."""
        return log_head(self._log_url).log_id

    def offset(self, log_id: str) -> int:
        """As ``Job``."""
        self._log_id = log_id
        return self._output.offset(log_id)

    def look(self, after: int, until: int | None, step_bytes: int) -> Increment:
        """As ``Job``, but a snapshot is one step, however long the log is."""
        del step_bytes
        return next_increment(self._log_url, after, until=until, step_bytes=2**62)

    def advance(self, increment: Increment) -> StepResult:
        """As ``Job``."""
        state = self._output.open(self._log_id, {})
        state.require(increment.after)
        live = state.files()
        read = partial(read_increment, self._spark, self._log_url, increment)
        coverage = range_coverage(read("key,end,version,position", "range_delete"))
        base = read_files(self._spark, self._output.location.url, [file.path for file in live], ROWS)
        before = base.select("key", "version", F.lit(-1).alias("position"), F.lit("write").alias("kind"), "value")
        changes = before.unionByName(read("key,version,position,kind,value", "write,delete"))
        held_bytes = increment.log_bytes + sum(file.size for file in live)
        ranges = max(1, min(RANGES_MAX, -(-held_bytes // RANGE_BYTES)))
        values = newest_values(changes, coverage).repartitionByRange(ranges, "key").sortWithinPartitions("key")
        added = new_files(values.mapInArrow(partial(write_sorted, self._output.location.url), FILES_TYPE))
        self._output.commit(state, increment.through, added, live)
        return StepResult(
            rows=sum(file.rows for file in added),
            files_added=len(added),
            files_removed=len(live),
            bytes_written=sum(file.size for file in added),
        )


def write_sorted(url: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the rows of one task, in their order, into files of about ``FILE_BYTES``, and tell about them."""
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0
    for batch in batches:
        waiting.append(batch)
        waiting_bytes += batch.nbytes
        if waiting_bytes >= FILE_BYTES:
            yield told([write_table(url, pa.Table.from_batches(waiting).cast(SCHEMA), {}, ("version",))])
            waiting, waiting_bytes = [], 0
    if sum(batch.num_rows for batch in waiting):
        yield told([write_table(url, pa.Table.from_batches(waiting).cast(SCHEMA), {}, ("version",))])
