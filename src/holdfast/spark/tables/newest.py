"""The newest value of every key as a data frame, made of the whole log at one version as ``latest`` makes its table.

The tasks that read the log keep each key's newest operation and pack them by bucket; after one shuffle of these, each
task merges its buckets. Cost: the log is read once. Memory: as ``buckets``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import Code, InvalidRequest
from holdfast.spark.log.increments import map_increment, next_increment
from holdfast.spark.tables.buckets import (
    PACKED_TYPE,
    Latest,
    bucket_changes,
    in_buckets,
    merge_latest,
    newest_points,
    placed_by_bucket,
)
from holdfast.spark.tables.placement import Placement, bucket_count

ROWS: Final = "key binary, value binary, version long"
ROWS_IN_A_BATCH: Final = 10_000


def materialise_latest(spark: SparkSession, url: str, as_of_version: int | None = None) -> DataFrame:
    """Every key that exists at ``as_of_version`` (default: now) with its value and the version that wrote it.

    Shape: columns ``key`` binary, ``value`` binary, ``version`` long; one row a key, in no order. The table is a plan:
    each action on it computes it again, at the same version.

    Raises: InvalidRequest for a version that the log has not reached, NotFound (``log_empty``, ``log_truncated``),
    CorruptData, Unavailable; what reading raises later arrives as Spark's error with our text.
    """
    increment = next_increment(url, 0, until=as_of_version, step_bytes=2**62)
    if as_of_version is not None and not 0 <= as_of_version <= increment.head.version:
        raise InvalidRequest(
            "the log has not reached this version",
            code=Code.FUTURE_VERSION,
            as_of_version=as_of_version,
            last_version=increment.head.version,
        )
    if increment.is_empty:
        return spark.createDataFrame([], ROWS)
    placement = Placement.fixed(bucket_count(increment.log_bytes))
    pack = partial(in_buckets, placement, newest_points)
    packed = map_increment(spark, url, increment, Latest.columns, pack, PACKED_TYPE)
    return placed_by_bucket(packed, placement.count).mapInArrow(_merged, ROWS)


def _merged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _, changes in bucket_changes(batches):
        for part in merge_latest(None, changes):
            yield from part.rows.to_batches(max_chunksize=ROWS_IN_A_BATCH)
