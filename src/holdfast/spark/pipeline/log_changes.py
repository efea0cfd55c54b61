"""The operations of one increment, as the tasks of a pipeline read them.

Owns: an increment's plan as a data frame. Does not own: planning (``plan``), reading (``scan``), the rows (``shapes``).

Why not ``spark.read``: a query on a Python source passes through two further Python processes, which Spark asks for the
columns and for a plan. A pipeline's driver has looked at the log anyway; it plans here, and a task for each piece reads
it. The rows are the same.

Asking for the version after the offset makes a log whose unread part was removed an error, never half a table.

Failure model: planning raises at once; what a task meets fails the query that uses the frame.
"""

# pyarrow ships no types, so the checker cannot know its classes where they are parameters; mypy checks the rest.
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from holdfast.spark.options import Mode, ReadOptions, parse_read_options
from holdfast.spark.pipeline.increments import Increment
from holdfast.spark.plan import Plan, plan_read
from holdfast.spark.scan import scan
from holdfast.spark.source import spark_schema
from holdfast.spark.store_thread import StoreThread

__all__ = ["read_increment"]


def read_increment(
    spark: SparkSession, url: str, increment: Increment, columns: str, kinds: str = "write,delete,range_delete"
) -> DataFrame:
    """One row per operation of these ``kinds`` in the increment, with these ``columns``. Read when it is used.

    Raises: NotFound (``log_truncated``), CorruptData, Unavailable. Cost: the LIST pages, about log2(objects) headers.
    """
    given = {"url": url, "columns": columns, "kinds": kinds}
    bounds = {"startingVersion": str(increment.after + 1), "endingVersion": str(increment.through)}
    options = parse_read_options({**given, **bounds}, Mode.BATCH)
    with StoreThread(url) as thread:
        plan: Plan = thread.start(lambda store: plan_read(store, options)).result()
    schema = spark_schema(options)
    if not plan.pieces:
        return spark.createDataFrame([], schema)
    # A range of as many partitions as numbers has one number in each: the piece of that task.
    numbers = spark.range(0, len(plan.pieces), numPartitions=len(plan.pieces))
    return numbers.mapInArrow(partial(_read_piece, options, plan), schema)


def _read_piece(options: ReadOptions, plan: Plan, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in numbers:
        for number in batch["id"].to_pylist():
            yield from scan(options, plan.wanted, plan.pieces[number])
