"""What the sources of numbered messages share: their readers for Spark, the bounds of a micro-batch, and its rows.

A source plans pieces of the messages between two numbers, and reads a piece in a task. An offset is the last number
that was returned, with what shows later whether the number still means the same message.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Generic, TypeVar, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from holdfast.spark.options import MessageBounds
from holdfast.spark.positions import Given, Offset
from holdfast.spark.runtime.processes import states_errors

M = TypeVar("M")
Options = TypeVar("Options", bound=MessageBounds)
P = TypeVar("P", bound=InputPartition)

UNBOUNDED: Final = 2**31 - 1
BATCH_MESSAGES: Final = 32 * 1024
BATCH_BYTES: Final = 8 * 2**20
"""A yielded record batch has at most this, or one message."""


def most_rows(bounds: MessageBounds, mean_bytes: Callable[[], int]) -> int:
    """How many messages a micro-batch may have. ``mean_bytes`` is asked only where there is a bound in bytes."""
    rows = UNBOUNDED if bounds.rows_max is None else bounds.rows_max
    return rows if bounds.bytes_max is None else min(rows, max(1, bounds.bytes_max // max(1, mean_bytes())))


def as_rows(
    messages: Sequence[M],
    columns: Sequence[str],
    types: Mapping[str, pa.DataType],
    values: Mapping[str, Callable[[M], object]],
) -> pa.RecordBatch:
    """A record batch of these columns of the messages."""
    arrays = [pa.array([values[name](one) for one in messages], types[name]) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


@states_errors
class Pieces(Generic[Options, P]):
    """How a source reads the pieces that it has planned. Pickled into tasks with its options alone."""

    _rows_of: Callable[[Options, P], Iterator[pa.RecordBatch]]
    """The messages of one piece in order, with the options' columns: a ``staticmethod``."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def __getstate__(self) -> dict[str, object]:
        """What a task needs. Files and connections stay where they are open."""
        return {"_options": self._options}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one piece. For a read without pieces Spark passes an empty partition of its own."""
        if type(partition) is not InputPartition:
            yield from self._rows_of(self._options, cast("P", partition))


@states_errors
class NumberedStreamReader(Pieces[Options, P], DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query's view of a source. Lives in one process; is copied into tasks for ``read`` alone."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._target: int | None = None
        self._empty_ms: float | None = None
        """When a look found nothing new."""

    @abstractmethod
    def _newest(self) -> int:
        """The newest number that there is now."""

    @abstractmethod
    def _next_offset(self, start: Given, rows_max: Callable[[Callable[[], int]], int]) -> Offset | None:
        """The offset after ``start``, None where nothing is new. ``rows_max``: of messages with these mean bytes."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        """Spark hands this back to ``latestOffset``; the bound itself is this source's option."""
        is_bounded = self._options.rows_max is not None or self._options.bytes_max is not None
        return ReadMaxRows(self._options.rows_max or UNBOUNDED) if is_bounded else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        """What there is now is all that this query reads."""
        self._target = self._newest()

    def latestOffset(self, start: Given, limit: ReadLimit) -> Offset:  # noqa: N802  Spark's name
        """Where the next micro-batch ends; ``start`` itself when there is none yet. Raises: as ``_next_offset``."""
        now_ms = time.monotonic() * 1000
        if self._target is None and self._empty_ms is not None and now_ms - self._empty_ms < self._options.poll_ms:
            return dict(start)
        is_bounded = not isinstance(limit, ReadAllAvailable)
        end = self._next_offset(start, lambda mean: most_rows(self._options, mean) if is_bounded else UNBOUNDED)
        if end is None:
            self._empty_ms = now_ms
        return dict(start) if end is None else end

    def _until(self, newest: int) -> int:
        """The newest number that this query reads."""
        return newest if self._target is None else min(newest, self._target)
