"""The newest value of every key as a Spark data frame, computed from the whole log.

Owns: the reduction of operations to the state at a version, exact with deletes and range deletes.
Does not own: reading the log (the source), keeping a table of it up to date (``latest``).

How: the newest write or delete of each key by Spark's own aggregation. Range deletes are few as a rule, so they are
gathered on the driver and reduced to a step function over the keys, "the newest range delete that covers this key";
tasks drop the keys whose newest write is older than that. The last operation within a transaction wins, because
operations are ordered by (version, place in the transaction).

Failure model: like any read of the source. The version is fixed before anything is read, so a table made while the log
grows is the state at one version; a log whose oldest part was removed is refused, because its state is not in it.

Cost: the log is read twice: once for its range deletes, once for the rest. Memory: the distinct range deletes on the
driver and in each task, at most ``RANGES_MAX``.
"""

# pyarrow ships no types, so the checker cannot know its classes where they are parameters; mypy checks the rest.
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark program uses

from holdfast.errors import Code, InvalidRequest, LimitExceeded
from holdfast.spark.tables.coverage import Coverage, Place, RangeDeleted

__all__ = ["last_version", "materialise_latest", "newest_values", "range_coverage"]

RANGES_MAX: Final = 1_000_000


def last_version(spark: SparkSession, url: str) -> int:
    """The version up to which the log at ``url`` is settled and durable now. Cost: a listing and a few headers."""
    headers = spark.read.format("holdfast").option("url", url).option("shape", "batches")
    newest = headers.option("startingVersion", "latest").option("columns", "last_version").load()
    row = newest.agg(F.max("last_version")).first()
    assert row is not None, "an aggregate has one row"
    version = row[0]
    assert isinstance(version, int), "the newest object of a log has a version"
    return version


def materialise_latest(spark: SparkSession, url: str, as_of_version: int | None = None) -> DataFrame:
    """Every key that exists at ``as_of_version`` (default: now) with its value and the version that wrote it.

    Shape: columns ``key`` binary, ``value`` binary, ``version`` long; one row a key, in no order. The table is a plan:
    each action on it computes it again, at the same version.

    Raises: InvalidRequest for a version that the log has not reached, LimitExceeded for more than ``RANGES_MAX``
    distinct range deletes; what reading raises arrives as Spark's error with our text.
    """
    settled = last_version(spark, url)
    version = settled if as_of_version is None else as_of_version
    if not 0 <= version <= settled:
        raise InvalidRequest(
            "the log has not reached this version",
            code=Code.FUTURE_VERSION,
            as_of_version=version,
            last_version=settled,
        )
    ranges = _log(spark, url, version).option("kinds", "range_delete").option("columns", "key,end,version,position")
    points = _log(spark, url, version).option("kinds", "write,delete")
    changes = points.option("columns", "key,version,position,kind,value")
    return newest_values(changes.load(), range_coverage(ranges.load()))


def newest_values(changes: DataFrame, coverage: Coverage) -> DataFrame:
    """Every key that exists after ``changes``: columns ``key``, ``value``, ``version``; one row a key, in no order.

    Shape: ``changes`` has key, version, position, kind (write or delete) and value, in no order.
    """
    place = F.struct("version", "position")
    newest = changes.groupBy("key").agg(
        F.max_by(F.struct("version", "position", "kind", "value"), place).alias("newest")
    )
    written = newest.where(F.col("newest.kind") == "write").select(
        "key", F.col("newest.value").alias("value"), F.col("newest.version").alias("version"), "newest.position"
    )
    if coverage.starts:
        written = written.mapInArrow(partial(_uncovered, coverage), written.schema)
    return written.select("key", "value", "version")


def _log(spark: SparkSession, url: str, version: int) -> DataFrameReader:
    """The whole log up to ``version``: asking from 0 on makes a truncated log an error instead of half a state."""
    reader = spark.read.format("holdfast").option("url", url)
    return reader.option("startingVersion", "0").option("asOfVersion", str(version))


def range_coverage(deletes: DataFrame) -> Coverage:
    """Which keys these range deletes (key, end, version, position) cover, brought to the driver.

    Raises: LimitExceeded for more than ``RANGES_MAX`` distinct ranges. Memory: those.
    """
    newest = deletes.groupBy("key", "end").agg(F.max(F.struct("version", "position")).alias("place"))
    flat = newest.select("key", "end", "place.version", "place.position").limit(RANGES_MAX + 1).toArrow()
    if flat.num_rows > RANGES_MAX:
        raise LimitExceeded("log has more distinct range deletes than fit on the driver", ranges_max=RANGES_MAX)
    columns = (flat[name].to_pylist() for name in ("key", "end", "version", "position"))
    ranges = [RangeDeleted(key, end, Place(version, at)) for key, end, version, at in zip(*columns, strict=True)]
    return Coverage.of(ranges)


def _uncovered(coverage: Coverage, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        places = map(Place, batch["version"].to_pylist(), batch["position"].to_pylist())
        kept = [not coverage.deletes(key, place) for key, place in zip(batch["key"].to_pylist(), places, strict=True)]
        yield batch.filter(pa.array(kept, pa.bool_()))
