"""``format("holdfast")``: the entry point that Spark calls for every read and write.

Each query starts two processes that import this module, so imports are inside the methods. Spark plans again for each
query on a data frame: set ``endingVersion`` (or ``asOfVersion``) when several queries must see the same state of a
growing log.

Of a catalogued table (``CREATE TABLE t USING holdfast OPTIONS (url '...')``) Spark 4.3 passes the options to the source
when the table is created, mixed with properties of its own, and none when the table is read. But it stores the schema
that the source returns, with the metadata of its columns, and passes it to every read. So the options are kept in the
metadata of the first column. They carry no secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructField, StructType

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
from holdfast.spark.runtime.processes import states_errors
from holdfast.spark.runtime.refusals import bad_configuration
from holdfast.spark.source.reading import BatchReader

if TYPE_CHECKING:  # the client of a service, which a read does not need
    from holdfast.spark.sink.writer import HoldfastBatchWriter, HoldfastStreamWriter


METADATA_KEY: Final = "holdfast.options"
_OPTION_PREFIX: Final = "option."
_ALWAYS_THERE: Final = frozenset({"provider", "owner"})


def options_of_new_table(properties: Mapping[str, str]) -> dict[str, str] | None:
    """The options of a statement that creates a table; None where these are options of a read.

    Spark gives an option twice, once with the prefix ``option.``, and ``LOCATION`` as ``path``. Everything else is a
    property of the table: ``owner``, ``provider``, ``comment``, ``collation`` and what ``TBLPROPERTIES`` names.

    >>> options_of_new_table({"url": "u", "option.url": "u", "owner": "me", "provider": "holdfast", "team": "a"})
    {'url': 'u'}
    """
    lower = {name.lower(): value for name, value in properties.items()}
    if not lower.keys() >= _ALWAYS_THERE or lower["provider"].lower() != "holdfast":
        return None
    texts = {
        name.removeprefix(_OPTION_PREFIX): value for name, value in lower.items() if name.startswith(_OPTION_PREFIX)
    }
    return texts | ({"path": lower["path"]} if "location" in lower and "path" in lower else {})


def schema_of_table(schema: StructType, options: Mapping[str, str]) -> StructType:
    """This schema of a new table, which carries its options and its columns to every read."""
    first, *rest = schema.fields
    stored = {**options, "columns": ",".join(schema.names)}
    return StructType([StructField(first.name, first.dataType, first.nullable, {METADATA_KEY: stored}), *rest])


def options_of_table(schema: StructType) -> dict[str, str] | None:
    """The options that the schema of a table carries; None for a schema that is not of such a table."""
    for field in schema.fields:
        stored = field.metadata.get(METADATA_KEY)
        if isinstance(stored, dict):
            return {str(name): str(value) for name, value in stored.items()}
    return None


def options_to_read(given: Mapping[str, str], schema: StructType) -> Mapping[str, str]:
    """The options of a read: the given ones, or those of the table with this ``schema``.

    Raises: InvalidRequest for a table without options, and for options in a query of a table: Spark reads all uses of
    the table in a statement with those of the first one.
    """
    stored = options_of_table(schema)
    if stored is None:
        if given:
            return given
        raise bad_configuration(
            "Spark passed no options: the table was created with columns of its own",
            hint="create it as CREATE TABLE t USING holdfast OPTIONS (url '..'); the option columns chooses columns",
        )
    if given:
        raise bad_configuration(
            f"option {next(iter(given))} cannot be given where a table is read",
            hint="create another table or a temporary view with this option",
        )
    return stored


def without_metadata(schema: StructType) -> StructType:
    """The names and types of a schema alone."""
    return StructType([StructField(field.name, field.dataType, field.nullable) for field in schema.fields])


@states_errors
class HoldfastDataSource(DataSource):
    """A log, a queue or a message store as a table; ``holdfast.spark.options`` lists what ``.option(...)`` takes."""

    @classmethod
    def name(cls) -> str:
        """The word for ``format(...)``."""
        return "holdfast"

    def schema(self) -> StructType:
        """The columns of the chosen shape, for a new table with its options. Raises: InvalidRequest."""
        created = options_of_new_table(self.options)
        if created is None:
            return _parsed(self.options, None)[1]
        options, columns = _parsed(created, None)
        if isinstance(options, ReadOptions) and options.infer is not None:
            from holdfast.spark.typed.ddl import type_text

            # The table keeps the type, so that every later read has it, streams too.
            created = {name: text for name, text in created.items() if name != "infer"}
            created["valueschema"] = type_text(options.typing.value.type)
        return schema_of_table(columns, created)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader. Raises: InvalidRequest, also when ``.schema(...)`` asked for other columns."""
        options = self._read(Mode.BATCH, schema)
        match options:
            case ReadOptions():
                from holdfast.spark.source.reader import log_reader

                return log_reader(options)
            case TableOptions():
                from holdfast.spark.source.table import arrow_columns, table_reader

                return table_reader(options, arrow_columns(schema))
            case MessageOptions():
                from holdfast.spark.messages.queue import message_rows, plan_messages

                return BatchReader(partial(plan_messages, options), partial(message_rows, options))
            case StoreOptions():
                from holdfast.spark.messages.store import plan_store, store_rows

                return BatchReader(partial(plan_store, options), partial(store_rows, options))
            case ServedStoreOptions():
                from holdfast.spark.messages.served_store import plan_served, served_rows

                return BatchReader(partial(plan_served, options), partial(served_rows, options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        """A stream reader. Raises: InvalidRequest, as ``reader``."""
        options = self._read(Mode.STREAM, schema)
        match options:
            case ReadOptions():
                from holdfast.spark.source.stream import HoldfastStreamReader

                return HoldfastStreamReader(options)
            case TableOptions():
                from holdfast.spark.source.table import HoldfastTableStreamReader, arrow_columns

                return HoldfastTableStreamReader(options, arrow_columns(schema))
            case MessageOptions():
                from holdfast.spark.messages.queue import HoldfastQueueStreamReader

                return HoldfastQueueStreamReader(options)
            case StoreOptions():
                from holdfast.spark.messages.store import HoldfastStoreStreamReader

                return HoldfastStoreStreamReader(options)
            case ServedStoreOptions():
                from holdfast.spark.messages.served_store import HoldfastServedStoreStreamReader

                return HoldfastServedStoreStreamReader(options)

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
        options, schema = _parsed(options_to_read(self.options, asked), mode, asked)
        if without_metadata(asked) != schema:
            raise bad_configuration(
                "the columns of this source cannot be declared by .schema(...)",
                hint='choose them with .option("columns", "version,key,...") and .option("shape", ...)',
                columns=schema.simpleString(),
            )
        return options

    def _write(self, schema: StructType, mode: Mode, *, overwrite: bool) -> WriteOptions:
        from holdfast.spark.sink.task import check_schema

        if overwrite:
            raise bad_configuration(
                "a log only grows",
                hint='use mode("append"), or outputMode("append"); write other output modes from foreachBatch, '
                "each micro-batch as a batch with a token of its own",
            )
        if not self.options and options_of_table(schema) is not None:
            raise bad_configuration(
                "a table of a log is read-only",
                hint='write with frame.write.format("holdfast"), whose option url is the service',
            )
        options = parse_write_options(self.options, mode)
        if options.store is not None:
            from holdfast.spark.sink.store_task import check_message_schema

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
