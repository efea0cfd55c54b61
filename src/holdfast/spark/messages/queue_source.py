"""``shape=messages``: an embedded queue as a batch source.

Owns: the adapter between Spark's Python data source API and ``queue_options`` and ``queue_reading``. Does not own: what
those decide.

Failure model: as ``source``.
"""

# pyarrow ships no types, so the checker cannot know its classes where they are parameters; mypy checks the rest.
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import BinaryType, DataType, LongType, StructField, StructType, TimestampType

from holdfast.spark.messages.queue_options import MessageOptions
from holdfast.spark.messages.queue_reading import message_rows, plan_messages
from holdfast.spark.source.partition import MessagePartition

__all__ = ["HoldfastMessageReader", "message_schema"]

_TYPES: Final[dict[str, DataType]] = {"seq": LongType(), "time": TimestampType(), "payload": BinaryType()}


def message_schema(options: MessageOptions) -> StructType:
    """The columns that a read of messages with these options has, in Spark's types."""
    return StructType([StructField(name, _TYPES[name], nullable=True) for name in options.columns])


class HoldfastMessageReader(DataSourceReader):
    """One batch read of a queue."""

    def __init__(self, options: MessageOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[MessagePartition]:
        """The pieces to read. Raises: NotFound."""
        return plan_messages(self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one piece. For a read without pieces Spark passes an empty partition of its own."""
        if isinstance(partition, MessagePartition):
            yield from message_rows(self._options, partition)
