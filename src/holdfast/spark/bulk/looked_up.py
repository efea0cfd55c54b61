"""Attempts whose read version lies below the window: only the log tells whether they were committed before.

Owns: finding them there. Does not own: which attempts these are (``sequencing``).

As the service does it: an attempt that the log holds above its read version is told its original version; one that it
does not hold is too old to be judged.

Failure model: what reading the log raises. Cost: a scan of the log by tasks, only when there is such an attempt.
"""

# pyarrow ships no types, so the checker cannot know its classes where they are parameters; mypy checks the rest.
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark program uses

from holdfast.spark.bulk.request_chunk import read_stream
from holdfast.spark.bulk.resolve import Resolution
from holdfast.spark.bulk.sequencing import Fate
from holdfast.spark.bulk.staging import Staged, chunk_key
from holdfast.spark.pipeline.task_errors import task_errors

__all__ = ["look_up"]


def look_up(spark: SparkSession, url: str, staged: Staged, resolution: Resolution, through: int) -> Resolution:
    """``resolution`` with the log's word on every attempt that waits for it; the log counts up to version ``through``.

    Those that the log does not hold are TOO_OLD. Raises: what reading raises.
    """
    waiting = np.flatnonzero(resolution.fates == Fate.LOOK_UP)
    if not len(waiting):
        return resolution
    firsts = {chunk.key: chunk.first for chunk in staged.chunks}
    fates = resolution.fates

    def asked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                asks, first = read_stream(row["asks"]), firsts[chunk_key(row["partition"], row["number"])]
                places = np.flatnonzero(fates[first : first + asks.num_rows] == Fate.LOOK_UP)
                if len(places):
                    ids = asks["request_id"].take(pa.array(places)).combine_chunks()
                    # A read version of this very input lies above all that the log held before it.
                    versions = asks["read_version"].take(pa.array(places)).combine_chunks()
                    yield pa.RecordBatch.from_arrays([pa.array(places + first), ids, versions], ["place", "id", "at"])

    frame = staged.frame.select("partition", "number", "asks").mapInArrow(asked, "place long, id string, at long")
    found_versions: dict[int, int] = {}
    if through:
        log = spark.read.format("holdfast").option("url", url).option("shape", "transactions")
        known = log.option("columns", "version,request_id").option("endingVersion", str(through)).load()
        matches = known.join(F.broadcast(frame), known["request_id"] == frame["id"])
        matches = matches.where(F.col("at").isNotNull() & (F.col("version") > F.col("at")))
        with task_errors():
            rows = matches.groupBy("place").agg(F.min("version").alias("version")).toArrow().to_pylist()
        found_versions = {row["place"]: row["version"] for row in rows}
    told = fates.copy()
    told[waiting] = Fate.TOO_OLD
    told[list(found_versions)] = Fate.COMMITTED
    return replace(resolution, fates=told, found_versions=found_versions)
