"""``format("holdfast")``: the entry point that Spark calls for every read and write.

Each query starts two processes that import this module, so imports are inside the methods. Spark plans again for each
query on a data frame: set ``endingVersion`` (or ``asOfVersion``) when several queries must see the same state of a
growing log.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from holdfast.errors import Code, InvalidRequest
from holdfast.spark import catalog
from holdfast.spark.columns import QUEUE_COLUMNS, STORE_COLUMNS, spark_schema
from holdfast.spark.option_values import Mode
from holdfast.spark.options import (
    AnyReadOptions,
    MessageOptions,
    ReadOptions,
    ServedStoreOptions,
    StoreOptions,
    TableOptions,
    WriteOptions,
    parse_any_read,
    parse_write_options,
)
from holdfast.spark.runtime.worker_errors import states_errors

if TYPE_CHECKING:  # the client of a service, which a read does not need
    from holdfast.spark.sink.writer import HoldfastBatchWriter, HoldfastStreamWriter

_READERS: Final[Mapping[type, tuple[str, str]]] = {
    ReadOptions: ("source.reader.HoldfastBatchReader", "source.stream.HoldfastStreamReader"),
    TableOptions: ("source.table.HoldfastTableReader", "source.table.HoldfastTableStreamReader"),
    MessageOptions: ("messages.queue.HoldfastMessageReader", "messages.queue.HoldfastQueueStreamReader"),
    StoreOptions: ("messages.store.HoldfastStoreReader", "messages.store.HoldfastStoreStreamReader"),
    ServedStoreOptions: (
        "messages.served_store.HoldfastServedStoreReader",
        "messages.served_store.HoldfastServedStoreStreamReader",
    ),
}
"""By the kind of options: the reader of a batch, and that of a stream."""


@states_errors
class HoldfastDataSource(DataSource):
    """A log, a queue or a message store as a table; ``holdfast.spark.options`` lists what ``.option(...)`` takes."""

    @classmethod
    def name(cls) -> str:
        """The word for ``format(...)``."""
        return "holdfast"

    def schema(self) -> StructType:
        """The columns of the chosen shape, for a new table with its options. Raises: InvalidRequest."""
        created = catalog.options_of_new_table(self.options)
        if created is None:
            return _parsed(self.options, None)[1]
        options, columns = _parsed(created, None)
        if isinstance(options, ReadOptions) and options.infer is not None:
            from holdfast.spark.typed.ddl import type_text

            # The table keeps the type, so that every later read has it, streams too.
            created = {name: text for name, text in created.items() if name != "infer"}
            created["valueschema"] = type_text(options.typing.value.type)
        return catalog.schema_of_table(columns, created)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader. Raises: InvalidRequest, also when ``.schema(...)`` asked for other columns."""
        reader: DataSourceReader = self._reader(Mode.BATCH, schema)
        return reader

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        """A stream reader. Raises: InvalidRequest, as ``reader``."""
        reader: DataSourceStreamReader = self._reader(Mode.STREAM, schema)
        return reader

    def _reader(self, mode: Mode, schema: StructType) -> Any:
        options = self._read(mode, schema)
        home, _, name = _READERS[type(options)][mode is Mode.STREAM].rpartition(".")
        make = getattr(import_module(f"holdfast.spark.{home}"), name)
        if isinstance(options, TableOptions):
            from holdfast.spark.source.table import arrow_columns

            return make(options, arrow_columns(schema))
        return make(options)

    def writer(self, schema: StructType, overwrite: bool) -> HoldfastBatchWriter:
        """A batch writer; creating it commits the intent of the write. Raises: InvalidRequest; the client's errors."""
        from holdfast.spark.sink.writer import HoldfastBatchWriter

        return HoldfastBatchWriter(self._write(schema, Mode.BATCH, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> HoldfastStreamWriter:  # noqa: N802  Spark's name
        """The writer of one micro-batch. Raises: as ``writer``."""
        from holdfast.spark.sink.writer import HoldfastStreamWriter

        return HoldfastStreamWriter(self._write(schema, Mode.STREAM, overwrite=overwrite))

    def _read(self, mode: Mode, asked: StructType) -> AnyReadOptions:
        """The options of a read, whose columns must be the ``asked`` ones."""
        options, schema = _parsed(catalog.options_to_read(self.options, asked), mode, asked)
        if catalog.without_metadata(asked) != schema:
            raise InvalidRequest(
                "the columns of this source cannot be declared by .schema(...)",
                code=Code.BAD_CONFIGURATION,
                hint='choose them with .option("columns", "version,key,...") and .option("shape", ...)',
                columns=schema.simpleString(),
            )
        return options

    def _write(self, schema: StructType, mode: Mode, *, overwrite: bool) -> WriteOptions:
        from holdfast.spark.sink.task import check_schema

        if overwrite:
            raise InvalidRequest(
                "a log only grows",
                code=Code.BAD_CONFIGURATION,
                hint='use mode("append"), or outputMode("append"); write other output modes from foreachBatch, '
                "each micro-batch as a batch with a token of its own",
            )
        if not self.options and catalog.options_of_table(schema) is not None:
            raise InvalidRequest(
                "a table of a log is read-only",
                code=Code.BAD_CONFIGURATION,
                hint='write with frame.write.format("holdfast"), whose option url is the service',
            )
        options = parse_write_options(self.options, mode)
        if options.store is not None:
            from holdfast.spark.sink.message_rows import check_message_schema

            check_message_schema(schema)
        else:
            check_schema(schema, options.transaction_key)
        return options


def _parsed(
    given: Mapping[str, str], mode: Mode | None, asked: StructType | None = None
) -> tuple[AnyReadOptions, StructType]:
    """The options of a read and its columns; ``asked`` are those of its plan. Raises: InvalidRequest.

    A read that infers the type of values also raises what reading them raises.
    """
    options = parse_any_read(given, mode)
    match options:
        case TableOptions():
            from holdfast.spark.source.table import spark_columns

            return options, spark_columns(options)
        case ReadOptions():
            if options.infer is not None:
                options = _inferred(options, asked)
            types = options.column_types
        case MessageOptions():
            types = QUEUE_COLUMNS
        case _:
            types = STORE_COLUMNS
    return options, spark_schema(types, options.columns)


def _inferred(options: ReadOptions, asked: StructType | None) -> ReadOptions:
    """The options with the type of values that the plan has, or without a plan with the type of the first values."""
    from pyspark.sql.pandas.types import to_arrow_type

    from holdfast.spark.source.reader import with_value_type

    planned = None if asked is None or "value" not in asked.names else to_arrow_type(asked["value"].dataType)
    return with_value_type(options, planned)
