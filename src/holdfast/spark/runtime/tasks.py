"""How work is split: things in groups of a bounded size, and each thing that the driver knows in one task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

T = TypeVar("T")
TASKS_MAX: Final = 10_000


def running_task() -> TaskContext:
    """The context of the task that calls this."""
    context = TaskContext.get()
    assert context is not None, "tasks run this"
    return context


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


def grouped(
    things: Iterable[T], size_of: Callable[[T], int], size_max: int, count_max: int | None = None
) -> Iterator[list[T]]:
    """The things in their order. A group ends before it exceeds a bound; a thing that is larger is a group alone.

    >>> list(grouped([3, 4, 5, 9, 1], int, 8)), list(grouped([1, 1, 1], int, 8, 2))
    ([[3, 4], [5], [9], [1]], [[1, 1], [1]])
    """
    group: list[T] = []
    size = 0
    for thing in things:
        more = size_of(thing)
        if group and (size + more > size_max or len(group) == count_max):
            yield group
            group, size = [], 0
        group.append(thing)
        size += more
    if group:
        yield group
