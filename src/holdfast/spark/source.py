"""``spark.read.format("holdfast")``: the log as a Spark data source.

Owns: the adapter between Spark's Python data source API and ``options``, ``plan`` and ``scan``.
Does not own: anything that those decide. The stream source and the sink become further methods of the same class.

Failure model: what planning or a task raises fails the query with its text: the code, slot and rule are in it.

Spark runs planning in a process of its own without a session, and pickles everything that goes to tasks; so readers
hold plain values and open the store where they run. Planning happens anew for each query on the data frame: give
``endingVersion`` (or ``asOfVersion``) when several queries must see one state of a growing log.
"""

# pyarrow ships no types, so the checker cannot know its classes where they are parameters; mypy checks the rest.
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from holdfast.errors import Code, InvalidRequest
from holdfast.spark.options import ReadOptions, parse_read_options
from holdfast.spark.plan import Piece, Plan, plan_read
from holdfast.spark.scan import StoreThread, scan
from holdfast.spark.shapes import RowFilter, arrow_schema

__all__ = ["HoldfastBatchReader", "HoldfastDataSource", "LogPartition", "spark_schema"]

_SPARK_TYPES: Final[Mapping[pa.DataType, DataType]] = {
    pa.int64(): LongType(),
    pa.int32(): IntegerType(),
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.timestamp("us", tz="UTC"): TimestampType(),
}


def spark_schema(options: ReadOptions) -> StructType:
    """The columns that a read with these options has, in Spark's types."""
    return StructType([_spark_field(field) for field in arrow_schema(options.shape, options.columns)])


def _spark_field(field: pa.Field) -> StructField:
    return StructField(field.name, _spark_type(field.type), nullable=True)


def _spark_type(kind: pa.DataType) -> DataType:
    if pa.types.is_list(kind):
        return ArrayType(_spark_type(kind.value_type), containsNull=True)
    if pa.types.is_struct(kind):
        return StructType([_spark_field(field) for field in kind])
    return _SPARK_TYPES[kind]


@dataclass
class LogPartition(InputPartition):
    """One piece of the log and the rows wanted from it, as Spark ships them to a task."""

    piece: Piece
    wanted: RowFilter


class HoldfastBatchReader(DataSourceReader):
    """One batch read: planned once, read piece by piece."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[LogPartition]:
        """The pieces to read. Raises: NotFound, InvalidRequest, CorruptData, Unavailable."""
        options = self._options
        with StoreThread(options.url) as thread:
            plan: Plan = thread.start(lambda store: plan_read(store, options)).result()
        wanted = RowFilter(
            version_min=plan.version_min,
            version_max=plan.version_max,
            kinds=options.kinds,
            key_begin=options.key_begin,
            key_end=options.key_end,
        )
        return [LogPartition(piece, wanted) for piece in plan.pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one piece. For a read without pieces Spark passes an empty partition of its own."""
        if isinstance(partition, LogPartition):
            yield from scan(self._options, partition.wanted, partition.piece)


class HoldfastDataSource(DataSource):
    """The log of Holdfast as a table; ``options`` lists and checks what ``.option(...)`` takes."""

    @classmethod
    def name(cls) -> str:
        """The word for ``format(...)``."""
        return "holdfast"

    def schema(self) -> StructType:
        """The columns of the chosen shape. Raises: InvalidRequest."""
        return spark_schema(parse_read_options(self.options))

    def reader(self, schema: StructType) -> HoldfastBatchReader:
        """A batch reader. Raises: InvalidRequest, also when ``.schema(...)`` asked for other columns."""
        options = parse_read_options(self.options)
        own = spark_schema(options)
        if schema != own:
            raise InvalidRequest(
                "the columns of this source cannot be declared by .schema(...)",
                code=Code.BAD_CONFIGURATION,
                hint='choose them with .option("columns", "version,key,...") and .option("shape", ...)',
                columns=own.simpleString(),
            )
        return HoldfastBatchReader(options)
