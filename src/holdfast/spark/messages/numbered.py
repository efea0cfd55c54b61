"""What the sources of numbered messages share: the bounds of a micro-batch, and its rows.

A source plans pieces of the messages between two numbers, and reads a piece in a task. An offset is the last number
that was returned, with what shows later whether the number still means the same message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

import pyarrow as pa

from holdfast.spark.options import MessageBounds
from holdfast.spark.source.reading import UNBOUNDED, PolledStream

M = TypeVar("M")
Options = TypeVar("Options", bound=MessageBounds)

BATCH_MESSAGES: Final = 32 * 1024
BATCH_BYTES: Final = 8 * 2**20
"""A yielded record batch has at most this, or one message."""


def as_rows(
    messages: Sequence[M],
    columns: Sequence[str],
    types: Mapping[str, pa.DataType],
    values: Mapping[str, Callable[[M], object]],
) -> pa.RecordBatch:
    """A record batch of these columns of the messages."""
    arrays = [pa.array([values[name](one) for one in messages], types[name]) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


class NumberedStream(PolledStream[int], Generic[Options]):
    """One streaming query's view of a source of numbered messages."""

    def __init__(self, options: Options, rows_of: Callable[[Options, Any], Iterator[pa.RecordBatch]]) -> None:
        is_bounded = options.rows_max is not None or options.bytes_max is not None
        super().__init__(partial(rows_of, options), options.poll_ms, is_bounded=is_bounded)
        self._options = options

    def _most_rows(self, mean_bytes: Callable[[], int], *, is_bounded: bool) -> int:
        """How many messages a micro-batch may have. ``mean_bytes`` is asked only where there is a bound in bytes."""
        rows, size = self._options.rows_max or UNBOUNDED, self._options.bytes_max
        if not is_bounded:
            return UNBOUNDED
        return rows if size is None else min(rows, max(1, size // max(1, mean_bytes())))

    def _until(self, newest: int) -> int:
        """The newest number that this query reads."""
        return newest if self._target is None else min(newest, self._target)
