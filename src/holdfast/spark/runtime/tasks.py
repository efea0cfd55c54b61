"""Work on a list of things that the driver knows, each thing in one task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

T = TypeVar("T")
TASKS_MAX: Final = 10_000


def in_tasks(
    spark: SparkSession,
    things: Sequence[T],
    work: Callable[[Iterator[T]], Iterator[pa.RecordBatch]],
    schema: StructType | str,
    tasks_max: int = TASKS_MAX,
) -> DataFrame:
    """What ``work`` makes of the ``things`` of its task, in rows of ``schema``. The things are sent to every task.

    Shape: each thing has a task of its own, unless there are more than ``tasks_max``.
    """
    if not things:
        return spark.createDataFrame([], schema)

    def of_task(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return work(things[number] for batch in numbers for number in batch["id"].to_pylist())

    # A range of as many partitions as numbers has one number in each.
    return spark.range(0, len(things), numPartitions=min(len(things), tasks_max)).mapInArrow(of_task, schema)
