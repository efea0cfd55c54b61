"""What Spark calls to read a source: a batch, which is planned once, and a stream, which is looked at again and again.

A source gives functions that plan pieces, and that read one piece in a task. Spark pickles the readers into tasks, so
these functions are of modules and hold plain values.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, TypeAlias, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from holdfast.spark.positions import Given, Offset
from holdfast.spark.runtime.processes import states_errors

T = TypeVar("T")
Rows: TypeAlias = Callable[[Any], Iterator[pa.RecordBatch]]
"""The rows of one piece, in order."""
UNBOUNDED: Final = 2**31 - 1


@states_errors
class _Pieces:
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one piece. For a read without pieces Spark passes an empty partition of its own."""
        if type(partition) is not InputPartition:
            yield from self._rows(partition)


@states_errors
class BatchReader(_Pieces, DataSourceReader):
    """One batch read: planned once, read piece by piece. With ``pushdown`` the filters of the query narrow the plan."""

    def __init__(self, plan: Callable[..., Sequence[InputPartition]], rows: Rows, *, pushdown: bool = False) -> None:
        super().__init__(rows)
        self._plan = plan
        self._pushed: list[Filter] = []
        if pushdown:
            self.pushFilters = _PushWhereItIsOn(self._pushed)  # type: ignore[method-assign]

    def partitions(self) -> Sequence[InputPartition]:
        """The pieces to read. Raises: as the plan."""
        return self._plan(self._pushed) if self._pushed else self._plan()


class _PushWhereItIsOn:
    """``pushFilters`` of one reader, which notes the filters; Spark evaluates all of them again.

    Where push-down is off, Spark refuses a reader that has a ``pushFilters`` of its own: ``plan_data_source_read`` of
    Spark 4.3 compares its ``__func__``.
    """

    __func__ = DataSourceReader.pushFilters

    def __init__(self, pushed: list[Filter]) -> None:
        self._pushed = pushed

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        self._pushed[:] = filters
        return filters


@states_errors
class PolledStream(_Pieces, DataSourceStreamReader, SupportsTriggerAvailableNow, Generic[T]):
    """One streaming query's view of a source. Lives in one process; is copied into tasks for ``read`` alone.

    While nothing is new the source is looked at every ``poll_ms``. ``is_bounded``: options bound a micro-batch.
    """

    def __init__(self, rows: Rows, poll_ms: int, *, is_bounded: bool) -> None:
        super().__init__(rows)
        self._poll_ms = poll_ms
        self._is_bounded = is_bounded
        self._target: T | None = None
        """Where a query ends that reads what there is now."""
        self._asked_ms: float | None = None
        """When a look found nothing new."""

    def __getstate__(self) -> dict[str, object]:
        """What a task needs. Files, connections and threads stay where they are open."""
        return {"_rows": self._rows}

    @abstractmethod
    def _newest(self) -> T:
        """The newest that there is now."""

    @abstractmethod
    def _next_offset(self, start: Given, *, is_bounded: bool) -> Offset | None:
        """Where the next micro-batch ends; None while nothing is new."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        """Spark hands this back to ``latestOffset``; the bounds themselves are the source's options."""
        return ReadMaxRows(UNBOUNDED) if self._is_bounded else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        """What there is now is all that this query reads."""
        self._target = self._newest()

    def latestOffset(self, start: Given, limit: ReadLimit) -> Offset:  # noqa: N802  Spark's name
        """Where the next micro-batch ends; ``start`` itself when there is none yet. Raises: as ``partitions``."""
        now_ms = time.monotonic() * 1000
        if self._target is None and self._asked_ms is not None and now_ms - self._asked_ms < self._poll_ms:
            return dict(start)
        end = self._next_offset(start, is_bounded=not isinstance(limit, ReadAllAvailable))
        if end is None:
            self._asked_ms = now_ms
            return dict(start)
        return end
