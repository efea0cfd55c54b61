"""Tables kept in buckets of keys: a step rewrites the buckets that it touches, each in one task.

Owns: which bucket a key is in, the shuffle of an increment into buckets, the task around a bucket's rewriting.
Does not own: what a bucket's rows become (``latest``, ``history``), the commit (``delta_output``).

A key's bucket is ``crc32(key) mod buckets``, so anybody can find the one file that holds it. A point operation goes to
its bucket; a range delete goes to every bucket, because a range of keys is in all of them: a step with range deletes
rewrites the whole table. The number of buckets is fixed when the table is made.

Failure model: a task that fails is run again by Spark and writes other files; nothing is committed here.
Memory of a task: one bucket's file and the step's operations on that bucket.
"""

# pyarrow ships no types, so the checker cannot know its classes where they are parameters; mypy checks the rest.
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark program uses

from holdfast.spark.pipeline.delta_output import TableFile
from holdfast.spark.pipeline.table_files import FILES_TYPE, NewFile, new_files, read_table, told, write_table

__all__ = ["BUCKETS_MAX", "BucketPart", "Merge", "bucket_count", "in_buckets", "rewrite_buckets"]

BUCKET_BYTES: Final = 64 * 2**20
"""Bytes of log per bucket when a table is made: a table is mostly smaller than its log, and may grow fourfold."""
BUCKETS_MIN: Final = 8
BUCKETS_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class BucketPart:
    """Rows that become one file of a bucket, with the values of the partition columns beside ``bucket``."""

    rows: pa.Table
    partition: Mapping[str, str]


Merge = Callable[[pa.Table | None, pa.Table], Sequence[BucketPart]]
"""From a bucket's rows so far (None: no file yet) and its operations in no order, to its new parts."""


def bucket_count(log_bytes: int) -> int:
    """How many buckets a new table of a log of this size gets.

    >>> bucket_count(0), bucket_count(10 * 2**30)
    (8, 160)
    """
    return max(BUCKETS_MIN, min(BUCKETS_MAX, -(-log_bytes // BUCKET_BYTES)))


def in_buckets(operations: DataFrame, buckets: int) -> DataFrame:
    """The operations with the column ``bucket``: points in theirs, each range delete in all of them."""
    own = F.pmod(F.crc32("key"), F.lit(buckets)).cast("int")
    every = F.sequence(F.lit(0), F.lit(buckets - 1))
    where = F.when(F.col("kind") == "range_delete", every).otherwise(F.array(own))
    return operations.withColumn("bucket", F.explode(where))


def rewrite_buckets(
    operations: DataFrame, url: str, live: Iterable[TableFile], merge: Merge, statistics: Sequence[str]
) -> list[NewFile]:
    """Rewrite every bucket that ``operations`` (made by ``in_buckets``) touch. Runs the tasks.

    ``live`` are the files that a bucket's rewriting replaces, ``statistics`` the columns to give bounds of. The answer
    names every touched bucket, also those that
    became empty. Raises: what tasks raise, as Spark's error.
    """
    paths: dict[int, list[str]] = {}
    for file in live:
        paths.setdefault(int(file.partition["bucket"]), []).append(file.path)

    def rewrite(group: tuple[pa.Scalar, ...], changes: pa.Table) -> pa.Table:
        bucket = group[0].as_py()
        parts = merge(read_table(url, paths.get(bucket, ())), changes)
        files = [
            write_table(url, part.rows, {"bucket": str(bucket), **part.partition}, statistics)
            for part in parts
            if part.rows.num_rows
        ]
        if not files:
            files = [NewFile(None, 0, 0, {"bucket": str(bucket)}, json.dumps({"numRecords": 0}))]
        return pa.Table.from_batches([told(files)])

    return new_files(operations.groupBy("bucket").applyInArrow(rewrite, FILES_TYPE))
