"""Jobs of tables without Java: frames are record batches in this process, and tasks run one after the other.

Owns: the few methods of a frame that the jobs use. Does not own: that Spark does the same; the tests of a job with a
real session show it, one case for each kind of table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from holdfast.spark.log import increments
from holdfast.spark.runtime import table_files
from holdfast.spark.runtime.table_files import FILES_SCHEMA

Batches = Callable[[], Iterator[pa.RecordBatch]]
TASKS = "2"


class LocalFrame:
    """A frame whose rows are made when they are asked for, as Spark does."""

    schema = None
    sparkSession = SimpleNamespace(  # noqa: N815  Spark's name
        conf=SimpleNamespace(get=lambda name: TASKS),
        createDataFrame=lambda table: LocalFrame(table.to_batches().__iter__),
    )

    def __init__(self, batches: Batches, empty: pa.Schema = FILES_SCHEMA) -> None:
        self._batches = batches
        self._empty = empty

    def _table(self) -> pa.Table:
        batches = list(self._batches())
        return pa.Table.from_batches(batches) if batches else self._empty.empty_table()

    def mapInArrow(self, work: increments.Work, schema: object) -> LocalFrame:  # noqa: N802
        del schema
        return LocalFrame(lambda: work(self._batches()))

    def unionAll(self, other: LocalFrame) -> LocalFrame:  # noqa: N802
        return LocalFrame(lambda: chain(self._batches(), other._batches()))

    def repartitionById(self, tasks: int, name: str) -> LocalFrame:  # noqa: N802
        del tasks, name
        return self

    def sortWithinPartitions(self, *names: str) -> LocalFrame:  # noqa: N802
        def ordered() -> Iterator[pa.RecordBatch]:
            table = self._table()
            yield from table.sort_by([(name, "ascending") for name in names]).to_batches() if table.num_rows else ()

        return LocalFrame(ordered)

    def select(self, *names: str) -> LocalFrame:
        empty = pa.schema([(name, pa.binary()) for name in names])
        return LocalFrame(lambda: (batch.select(list(names)) for batch in self._batches()), empty)

    def limit(self, count: int) -> LocalFrame:
        return LocalFrame(lambda: iter(self._table().slice(0, count).to_batches()), self._empty)

    def toArrow(self) -> pa.Table:  # noqa: N802
        return self._table()


def _in_tasks(
    spark: object,
    things: Sequence[Any],
    work: Callable[[Iterator[Any]], Iterator[pa.RecordBatch]],
    schema: object,
    tasks_max: int = 0,
) -> LocalFrame:
    """As ``tasks.in_tasks``, one task after the other."""
    del spark, schema, tasks_max
    return LocalFrame(lambda: chain.from_iterable(work(iter([each])) for each in things))


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """In the place of a session: jobs that read increments of a log run in this process."""
    for module in (increments, table_files):
        monkeypatch.setattr(module, "in_tasks", _in_tasks)
    return LocalFrame.sparkSession  # type: ignore[return-value]  # what a job hands from one method to another
