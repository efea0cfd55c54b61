"""``segments``: many small objects of the log rewritten into few large Parquet files, in log order.

Owns: when there is enough for a segment, the cutting into files, and a read that prefers segments to the log.
Does not own: the format (``segment_reading``), the commit (``delta_output``).

A segment takes 64 to 256 MiB of log: a run leaves what is not yet enough for one in the log, where it is read from
until more has come. A reader of history opens hundreds of files instead of millions of objects, and what is in segments
may leave the log by retention: segments hold every operation, with request ids and times, though neither preconditions
nor the chain that the audit checks, so audit first.

Failure model: as the runner's. Memory of a task: one file of rows.
"""

# pyarrow ships no types, so the checker cannot know its classes where they are parameters; mypy checks the rest.
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import Code, InvalidRequest
from holdfast.spark.pipeline.delta_output import DeltaOutput
from holdfast.spark.pipeline.increments import Increment, log_head, next_increment
from holdfast.spark.pipeline.runner import StepResult
from holdfast.spark.pipeline.table_files import FILES_TYPE, new_files, read_objects, told, write_table
from holdfast.spark.pipeline.table_location import table_location
from holdfast.spark.segment_reading import SEGMENT_SCHEMA, read_segment_index, segment_rows

__all__ = ["SEGMENT_LOG_BYTES_MIN", "Segments", "read_operations"]

SEGMENT_LOG_BYTES_MIN: Final = 64 * 2**20
SEGMENT_LOG_BYTES: Final = 128 * 2**20
SEGMENT_ROW_BYTES_MAX: Final = 256 * 2**20
TASKS_OF_A_READ_MAX: Final = 256


class Segments:
    """The segments of the log at ``log_url`` in the Delta table at ``output_url``.

    ``log_bytes_min`` is how much of the log a step waits for.
    """

    name = "segments"

    def __init__(
        self, spark: SparkSession, log_url: str, output_url: str, *, log_bytes_min: int = SEGMENT_LOG_BYTES_MIN
    ) -> None:
        self._spark = spark
        self._log_url = log_url
        self._output = DeltaOutput(table_location(output_url), self.name, SEGMENT_SCHEMA)
        self._log_bytes_min = log_bytes_min
        self._log_id = ""

    def log_id(self) -> str:
        """As ``Job``."""
        return log_head(self._log_url).log_id

    def offset(self, log_id: str) -> int:
        """As ``Job``."""
        self._log_id = log_id
        return self._output.offset(log_id)

    def look(self, after: int, until: int | None, step_bytes: int) -> Increment:
        """As ``Job``, but empty while there is less than a segment; what is left stays behind."""
        increment = next_increment(self._log_url, after, until=until, step_bytes=max(step_bytes, self._log_bytes_min))
        if increment.log_bytes >= self._log_bytes_min:
            return increment
        return replace(increment, through=after, objects=0, log_bytes=0, behind_bytes=increment.log_bytes)

    def advance(self, increment: Increment) -> StepResult:
        """As ``Job``."""
        state = self._output.open(self._log_id, {})
        state.require(increment.after)
        reader = self._spark.read.format("holdfast").option("url", self._log_url)
        reader = reader.option("columns", ",".join(SEGMENT_SCHEMA.names))
        reader = reader.option("targetPartitionBytes", str(SEGMENT_LOG_BYTES))
        reader = reader.option("startingVersion", str(increment.after + 1))
        rows = reader.option("endingVersion", str(increment.through)).load()
        write = partial(_write_segments, self._output.location.url)
        added = new_files(rows.mapInArrow(write, FILES_TYPE))
        self._output.commit(state, increment.through, added, ())
        return StepResult(
            rows=sum(file.rows for file in added),
            files_added=len(added),
            bytes_written=sum(file.size for file in added),
        )


def _write_segments(url: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the rows of one task, which are in log order, into one file, or into more where they are large."""
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0

    def close() -> pa.RecordBatch:
        table = pa.Table.from_batches(waiting).cast(SEGMENT_SCHEMA)
        return told([write_table(url, table, {}, ("version", "seq"), blooms=("key", "request_id"))])

    for batch in batches:
        # A transaction is never cut: two files must not share a version.
        if waiting and waiting_bytes >= SEGMENT_ROW_BYTES_MAX and batch["version"][0] != waiting[-1]["version"][-1]:
            yield close()
            waiting, waiting_bytes = [], 0
        if batch.num_rows:
            waiting.append(batch)
            waiting_bytes += batch.nbytes
    if waiting:
        yield close()


def read_operations(
    spark: SparkSession, log_url: str, segments_url: str, columns: str = "version,position,kind,key,end,value"
) -> DataFrame:
    """Every operation of the log, from segments as far as they go and from the log behind them, in no order.

    The segments are those of this moment; the log is read up to its head when the frame is used. Works after
    retention has removed from the log what is in segments.

    Raises: NotFound (no segments, empty log), InvalidRequest (segments of another log), Unavailable.
    """
    location = table_location(segments_url)
    index = read_segment_index(location.uri, location.options)
    log_id = log_head(log_url).log_id
    if index.log_id != log_id:
        raise InvalidRequest(
            "the segments are of another log", code=Code.BAD_CONFIGURATION, log_id=log_id, segments_of=index.log_id
        )
    reader = spark.read.format("holdfast").option("url", log_url).option("columns", columns)
    behind = reader.option("startingVersion", str(index.through + 1)).load()
    paths = [segment.path for segment in index.segments]
    if not paths:
        return behind
    wanted = [name.strip() for name in columns.split(",")]
    through = index.through

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path in batch["path"].to_pylist():
                for data in read_objects(segments_url, [path]):
                    yield from segment_rows(data, wanted, version_min=0, version_max=through)

    names = spark.createDataFrame([(path,) for path in paths], "path string")
    files = names.repartition(min(len(paths), TASKS_OF_A_READ_MAX)).mapInArrow(read, behind.schema)
    return files.unionByName(behind)
