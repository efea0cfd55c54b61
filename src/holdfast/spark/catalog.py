"""Options of catalogued tables: ``CREATE TABLE t USING holdfast OPTIONS (url '...')``.

Spark 4.3 passes the options of a table to the source when the table is created, mixed with properties of its own, and
none when the table is read. But it stores the schema that the source returns, with the metadata of its columns, and
passes it to every read. So the options are kept in the metadata of the first column. They carry no secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import StructField, StructType

from holdfast.errors import Code, InvalidRequest

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
    given = {
        name.removeprefix(_OPTION_PREFIX): value for name, value in lower.items() if name.startswith(_OPTION_PREFIX)
    }
    return given | ({"path": lower["path"]} if "location" in lower and "path" in lower else {})


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
        raise InvalidRequest(
            "Spark passed no options: the table was created with columns of its own",
            code=Code.BAD_CONFIGURATION,
            hint="create it as CREATE TABLE t USING holdfast OPTIONS (url '..'); the option columns chooses columns",
        )
    if given:
        raise InvalidRequest(
            f"option {next(iter(given))} cannot be given where a table is read",
            code=Code.BAD_CONFIGURATION,
            hint="create another table or a temporary view with this option",
        )
    return stored


def without_metadata(schema: StructType) -> StructType:
    """The names and types of a schema alone."""
    return StructType([StructField(field.name, field.dataType, field.nullable) for field in schema.fields])
