"""The operations of one increment, as the tasks of a pipeline read them.

Owns: an increment's plan as a data frame, and what a task makes of its piece before Spark sees it.
Does not own: planning (``plan``), reading (``scan``), the rows (``shapes``).

Why not ``spark.read``: a query on a Python source passes through two further Python processes, which Spark asks for the
columns and for a plan. A pipeline's driver has looked at the log anyway; it plans here, and a task for each piece reads
it. The rows are the same.

Why a task may work on what it reads at once: to pass a row to Spark and back to Python costs as much as reading it.

Asking for the version after the offset makes a log whose unread part was removed an error, never half a table.

Failure model: planning raises at once; what a task meets fails the query that uses the frame.
"""

# pyarrow ships no types, so the checker cannot know its classes where they are parameters; mypy checks the rest.
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from holdfast.spark.log.increments import Increment
from holdfast.spark.runtime.store_thread import StoreThread
from holdfast.spark.source.options import Mode, ReadOptions, parse_read_options
from holdfast.spark.source.plan import Plan, plan_read
from holdfast.spark.source.scan import scan
from holdfast.spark.source.source import spark_schema

__all__ = ["Work", "map_increment", "read_increment"]

Work: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What a task makes of the operations of its piece, which come in log order."""


def read_increment(
    spark: SparkSession, url: str, increment: Increment, columns: str, kinds: str = "write,delete,range_delete"
) -> DataFrame:
    """One row per operation of these ``kinds`` in the increment, with these ``columns``. Read when it is used.

    Raises: NotFound (``log_truncated``), CorruptData, Unavailable. Cost: the LIST pages, about log2(objects) headers.
    """
    options = _options(url, increment, columns, kinds)
    return _mapped(spark, options, spark_schema(options), None)


def map_increment(
    spark: SparkSession, url: str, increment: Increment, columns: str, work: Work, schema: str
) -> DataFrame:
    """What ``work`` makes of the operations in the increment, in the tasks that read them; ``schema`` is its rows'.

    Raises and costs as ``read_increment``.
    """
    return _mapped(spark, _options(url, increment, columns, "write,delete,range_delete"), schema, work)


def _options(url: str, increment: Increment, columns: str, kinds: str) -> ReadOptions:
    given = {"url": url, "columns": columns, "kinds": kinds}
    bounds = {"startingVersion": str(increment.after + 1), "endingVersion": str(increment.through)}
    return parse_read_options({**given, **bounds}, Mode.BATCH)


def _mapped(spark: SparkSession, options: ReadOptions, schema: StructType | str, work: Work | None) -> DataFrame:
    with StoreThread(options.url) as thread:
        plan: Plan = thread.start(lambda store: plan_read(store, options)).result()
    if not plan.pieces:
        return spark.createDataFrame([], schema)
    # A range of as many partitions as numbers has one number in each: the piece of that task.
    numbers = spark.range(0, len(plan.pieces), numPartitions=len(plan.pieces))
    return numbers.mapInArrow(partial(_read_pieces, options, plan, work), schema)


def _read_pieces(
    options: ReadOptions, plan: Plan, work: Work | None, numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    pieces = (plan.pieces[number] for batch in numbers for number in batch["id"].to_pylist())
    rows = (rows for piece in pieces for rows in scan(options, plan.wanted, piece))
    return rows if work is None else work(rows)
