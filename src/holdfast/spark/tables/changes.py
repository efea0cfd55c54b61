"""``changes``: every operation of the log, once, in an append-only Delta table partitioned by day.

Columns: ``version`` and ``position`` give the total order; ``kind`` is write, delete or range_delete; ``key`` (a range
delete's begin), ``end`` and ``value`` are raw bytes; ``request_id`` as sent; ``timestamp`` and ``day`` (UTC) of the
batch. Rows of a file are in log order; the Delta log has its bounds of ``version``. Memory of a task: one file of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.spark.columns import RowShape, arrow_schema
from holdfast.spark.log.increments import Increment, read_increment
from holdfast.spark.log.runner import StepResult
from holdfast.spark.runtime.table_files import FILES_TYPE, TableFile, file_rows, new_files, write_table
from holdfast.spark.tables.typed import TypedJob

COLUMNS: Final = "version,position,request_id,kind,key,end,value,timestamp"
SCHEMA: Final = arrow_schema(RowShape.OPERATIONS, COLUMNS.split(",")).append(pa.field("day", pa.date32()))
FILE_BYTES: Final = 128 * 2**20
"""Rows in memory at which a task closes a file."""
DAYS_OPEN_MAX: Final = 8
"""Days that a task keeps open at a time: time never falls along the log, so more means a log of few rows a day."""


class Changes(TypedJob):
    """The append-only change feed of the log at ``log_url`` in the Delta table at ``output_url``."""

    name = "changes"
    schema = SCHEMA
    partition_by = ("day",)
    _is_feed = True

    def advance(self, increment: Increment) -> StepResult:
        """As ``PipelineJob``."""
        state, step = self._begin(increment)
        write = partial(step.feed, partial(write_days, self._output.location.url))
        added = new_files(read_increment(self._spark, self._log_url, increment, COLUMNS, work=write, schema=FILES_TYPE))
        return self._finish(state, increment, added)


def write_days(
    url: str, batches: Iterator[pa.RecordBatch], *, time: str = "timestamp", number: str = "version"
) -> Iterator[pa.RecordBatch]:
    """Write the rows of one task into files of one day each, by their ``time``, and report them.

    ``number`` is the column whose bounds the files get.
    """
    waiting: dict[str, list[pa.RecordBatch]] = {}
    sizes: dict[str, int] = {}
    for batch in batches:
        for day, rows in _by_day(batch, time):
            waiting.setdefault(day, []).append(rows)
            sizes[day] = sizes.get(day, 0) + rows.nbytes
        closing = [day for day in waiting if sizes[day] >= FILE_BYTES]
        closing += sorted(day for day in waiting if day not in closing)[:-DAYS_OPEN_MAX]
        for day in closing:
            yield file_rows([_write(url, day, waiting.pop(day), number)])
            del sizes[day]
    for day in sorted(waiting):
        yield file_rows([_write(url, day, waiting[day], number)])


def _by_day(batch: pa.RecordBatch, time: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    days = batch[time].cast(pa.date32())
    distinct = days.unique().to_pylist()
    for day in distinct:
        of_day = pc.call_function("equal", [days, pa.scalar(day, pa.date32())])
        yield day.isoformat(), batch if len(distinct) == 1 else batch.filter(of_day)


def _write(url: str, day: str, batches: list[pa.RecordBatch], number: str) -> TableFile:
    return write_table(url, pa.Table.from_batches(batches), {"day": day}, (number,))
