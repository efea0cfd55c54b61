"""Reading a log as a data frame on which filters are pushed down.

Owns: the one way to have Spark's filter push-down without its trap. Does not own: what is pushed (``pushdown``).

The trap: Spark 4.3 keeps the plan of a Python source with its data frame, the pushed filters included. A later query on
the same frame that has no filter to push, such as ``frame.count()``, then reads by the filters of the one before, and
rows are missing without a word. So the source's option ``pushdown`` is off by default, and this module gives frames on
which it is safe: each of their queries has a filter to push, one that every row passes, so each is planned anew.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, SparkSession

from holdfast.spark.source.options import Mode, parse_read_options

__all__ = ["read_log"]

_NEVER_BELOW_ZERO: Final = ("seq", "version")


def read_log(spark: SparkSession, url: str, **options: object) -> DataFrame:
    """The log at ``url`` as a frame whose filters on version, seq, key and request id narrow what is read.

    ``options`` are those of ``format("holdfast")``. Where neither ``seq`` nor ``version`` is among the columns, filters
    are not pushed down, and all is read. Raises: InvalidRequest.
    """
    given = {"url": url, **{name: str(value) for name, value in options.items()}}
    columns = parse_read_options(given, Mode.BATCH).columns
    guard = next((name for name in _NEVER_BELOW_ZERO if name in columns), None)
    reader = spark.read.format("holdfast").options(**given)
    if guard is None:
        return reader.load()
    return reader.option("pushdown", "true").load().where(f"{guard} >= 0")
