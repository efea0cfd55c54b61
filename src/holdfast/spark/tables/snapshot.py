"""``snapshot``: the whole state of a log at one version, sorted by key, as a Delta table.

Columns: ``key`` and ``value`` raw bytes, ``version`` that wrote the value. Files hold ranges of keys that do not
overlap, sorted within. Older snapshots stay readable as older versions of the table until it is vacuumed. The first
snapshot reads the log from its beginning, or the newest snapshot of a log that was truncated; each later one reads the
last snapshot and the log since. Cost: both are read twice, because Spark samples the keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import pyarrow as pa

from holdfast.spark.log.delta_output import DeltaJob
from holdfast.spark.log.increments import Increment
from holdfast.spark.log.runner import StepResult
from holdfast.spark.runtime.table_files import FILES_TYPE, file_rows, new_files, read_files, tables_of, write_table
from holdfast.spark.tables.buckets import LATEST_ROWS
from holdfast.spark.tables.newest import ROWS, sorted_values

FILE_BYTES: Final = 128 * 2**20
"""Rows in memory at which a file is closed; a range of keys may take several."""


class Snapshot(DeltaJob):
    """The state of the log at ``log_url`` in the Delta table at ``output_url``. Each step of a run is a snapshot."""

    name = "snapshot"
    schema = LATEST_ROWS
    begins_with_snapshot = True

    def look(self, after: int, until: int | None, step_bytes: int) -> Increment:
        """As ``Job``, but a snapshot is one step, however long the log is."""
        del step_bytes
        return super().look(after, until, 2**62)

    def advance(self, increment: Increment) -> StepResult:
        """As ``Job``."""
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
