"""``spark.read.format("holdfast")``: the log as a Spark data source.

Owns: the adapter between Spark's Python data source API and ``options``, ``plan`` and ``scan``.
Does not own: anything that those decide, the stream reader (``stream_source``), the sink (``sink_writer``).

Failure model: what planning or a task raises fails the query with its text: the code, slot and rule are in it.

Spark runs planning in a process of its own without a session, and pickles everything that goes to tasks; so readers
hold plain values and open the store where they run. Planning happens anew for each query on the data frame: give
``endingVersion`` (or ``asOfVersion``) when several queries must see one state of a growing log.

Each query asks two such processes, one for the columns and one for the plan. So what only planning or only tasks need
is imported there.
"""

# pyarrow ships no types, so the checker cannot know its classes where they are parameters; mypy checks the rest.
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
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
from holdfast.spark.messages.queue_options import is_read_of_messages, parse_message_options
from holdfast.spark.messages.store_options import is_read_of_store, parse_store_options
from holdfast.spark.source.options import Mode, ReadOptions, parse_read_options
from holdfast.spark.source.partition import LogPartition, SegmentPartition
from holdfast.spark.source.pushdown import row_filter_of
from holdfast.spark.source.shapes import RowFilter, arrow_schema

if TYPE_CHECKING:
    from holdfast.spark.messages.store_options import StoreOptions
    from holdfast.spark.sink.options import WriteOptions
    from holdfast.spark.sink.writer import HoldfastBatchWriter, HoldfastStreamWriter
    from holdfast.spark.source.plan import Plan

__all__ = ["HoldfastBatchReader", "HoldfastDataSource", "spark_schema"]

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


class _PushWhereItIsOn:
    """``pushFilters`` of one reader. Spark calls it where filter push-down is on.

    Where it is off, which is Spark's default, Spark refuses a reader that has a ``pushFilters`` of its own, and tells
    by ``__func__``. This one says that it is the inherited one, so the same reader serves both.
    """

    __func__ = DataSourceReader.pushFilters

    def __init__(self, reader: HoldfastBatchReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.narrow(filters)


class HoldfastBatchReader(DataSourceReader):
    """One batch read: planned once, read piece by piece."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._pushed: RowFilter | None = None
        if options.pushdown:
            self.pushFilters = _PushWhereItIsOn(self)  # type: ignore[method-assign]

    def narrow(self, filters: Iterable[Filter]) -> Iterable[Filter]:
        """Note what these filters leave to be read. Returns all of them: Spark still evaluates each row."""
        kept = list(filters)
        self._pushed = row_filter_of(kept, self._options.shape)
        return kept

    def partitions(self) -> Sequence[LogPartition | SegmentPartition]:
        """The pieces to read. Raises: NotFound, InvalidRequest, CorruptData, Unavailable."""
        options, pushed = self._options, self._pushed
        if options.segments_url is not None:
            from holdfast.spark.source.segment_plan import plan_with_segments

            return plan_with_segments(options, pushed)
        from holdfast.spark.runtime.store_thread import StoreThread
        from holdfast.spark.source.plan import plan_read

        with StoreThread(options.url) as thread:
            plan: Plan = thread.start(lambda store: plan_read(store, options, pushed)).result()
        return [LogPartition(piece, plan.wanted) for piece in plan.pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one piece. For a read without pieces Spark passes an empty partition of its own."""
        if isinstance(partition, LogPartition):
            from holdfast.spark.source.scan import scan

            yield from scan(self._options, partition.wanted, partition.piece)
        elif isinstance(partition, SegmentPartition):
            from holdfast.spark.source.segment_plan import scan_segment

            yield from scan_segment(self._options, partition)


class HoldfastDataSource(DataSource):
    """The log of Holdfast as a table; ``options`` lists and checks what ``.option(...)`` takes."""

    @classmethod
    def name(cls) -> str:
        """The word for ``format(...)``."""
        return "holdfast"

    def schema(self) -> StructType:
        """The columns of the chosen shape. Raises: InvalidRequest."""
        if is_read_of_store(self.options):
            from holdfast.spark.messages.store_source import store_schema

            return store_schema(parse_store_options(self.options))
        if is_read_of_messages(self.options):
            from holdfast.spark.messages.queue_source import message_schema

            return message_schema(parse_message_options(self.options))
        return spark_schema(parse_read_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader. Raises: InvalidRequest, also when ``.schema(...)`` asked for other columns."""
        if is_read_of_store(self.options):
            from holdfast.spark.messages.store_source import HoldfastStoreReader

            return HoldfastStoreReader(self._store_options(schema, Mode.BATCH))
        if is_read_of_messages(self.options):
            from holdfast.spark.messages.queue_source import HoldfastMessageReader, message_schema

            messages = parse_message_options(self.options, Mode.BATCH)
            _require_own_columns(schema, message_schema(messages))
            return HoldfastMessageReader(messages)
        return HoldfastBatchReader(self._read_options(schema, Mode.BATCH))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        """A stream reader. Raises: InvalidRequest, as ``reader``."""
        if is_read_of_store(self.options):
            from holdfast.spark.messages.store_source import HoldfastStoreStreamReader

            return HoldfastStoreStreamReader(self._store_options(schema, Mode.STREAM))
        from holdfast.spark.source.stream_source import HoldfastStreamReader

        return HoldfastStreamReader(self._read_options(schema, Mode.STREAM))

    def writer(self, schema: StructType, overwrite: bool) -> HoldfastBatchWriter:
        """A batch writer; its making commits the intent of the write. Raises: InvalidRequest; what a client raises."""
        from holdfast.spark.sink.writer import HoldfastBatchWriter

        return HoldfastBatchWriter(self._write_options(schema, Mode.BATCH, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> HoldfastStreamWriter:  # noqa: N802  Spark's name
        """The writer of one micro-batch. Raises: as ``writer``."""
        from holdfast.spark.sink.writer import HoldfastStreamWriter

        return HoldfastStreamWriter(self._write_options(schema, Mode.STREAM, overwrite=overwrite))

    def _write_options(self, schema: StructType, mode: Mode, *, overwrite: bool) -> WriteOptions:
        from holdfast.spark.sink.options import parse_write_options
        from holdfast.spark.sink.rows import check_schema

        if overwrite:
            raise InvalidRequest(
                "a log only grows", code=Code.BAD_CONFIGURATION, hint='use mode("append") or outputMode("append")'
            )
        options = parse_write_options(self.options, mode)
        check_schema(schema, options.transaction_key)
        return options

    def _store_options(self, schema: StructType, mode: Mode) -> StoreOptions:
        from holdfast.spark.messages.store_source import store_schema

        options = parse_store_options(self.options, mode)
        _require_own_columns(schema, store_schema(options))
        return options

    def _read_options(self, schema: StructType, mode: Mode) -> ReadOptions:
        if is_read_of_messages(self.options):
            parse_message_options(self.options, mode)  # which says why a stream of them is refused
        options = parse_read_options(self.options, mode)
        _require_own_columns(schema, spark_schema(options))
        return options


def _require_own_columns(schema: StructType, own: StructType) -> None:
    if schema != own:
        raise InvalidRequest(
            "the columns of this source cannot be declared by .schema(...)",
            code=Code.BAD_CONFIGURATION,
            hint='choose them with .option("columns", "version,key,...") and .option("shape", ...)',
            columns=own.simpleString(),
        )
