"""The operations of one increment, as pipelines read them from the source.

Owns: the options of that read. Does not own: the source.

Asking for the version after the offset makes a log whose unread part was removed an error, never half a table.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from holdfast.spark.pipeline.increments import Increment

__all__ = ["read_increment"]


def read_increment(
    spark: SparkSession, url: str, increment: Increment, columns: str, kinds: str = "write,delete,range_delete"
) -> DataFrame:
    """One row per operation of these ``kinds`` in the increment, with these ``columns``. Read when it is used."""
    reader = spark.read.format("holdfast").option("url", url).option("columns", columns)
    reader = reader.option("kinds", kinds).option("startingVersion", str(increment.after + 1))
    return reader.option("endingVersion", str(increment.through)).load()
