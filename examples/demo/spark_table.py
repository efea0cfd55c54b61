"""The table that Spark makes of the log, and what Spark SQL says about it.

Owns: one Spark session, the table written as Parquet, one query. Reads the log's objects; no service is asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from examples.demo.comparisons import Rows
from pyarrow import dataset
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark program uses

from holdfast.spark import materialise_latest, session

__all__ = ["make_table", "read_table"]


_SHORT_SESSION = {
    "spark.log.level": "ERROR",
    # Java's second compiler works for longer than this session lives: without it the session takes half the processor
    # time.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


def make_table(log_url: str, output: Path, started: Callable[[float], None]) -> dict[str, int]:
    """Materialise the newest value of every key to ``output``; the answer is the bookings per flight.

    ``started`` gets the seconds that Spark took to start.
    """
    began = time.monotonic()
    spark = session("holdfast-demo", conf=_SHORT_SESSION)
    started(time.monotonic() - began)
    try:
        materialise_latest(spark, log_url).write.mode("overwrite").parquet(str(output))
        table = spark.read.parquet(str(output))
        key = F.col("key").cast("string")
        bookings = table.where(key.startswith("booking/")).select(
            F.regexp_extract(key, "^booking/(.*)/p", 1).alias("flight")
        )
        rows = bookings.groupBy("flight").count().collect()
        return {row["flight"]: row["count"] for row in rows}
    finally:
        spark.stop()


def read_table(path: Path) -> Rows:
    """A file or folder of Parquet or Arrow with key, value and version, as a dictionary. Raises: ValueError."""
    table = dataset.dataset(path, format="ipc" if path.suffix == ".arrow" else "parquet").to_table()
    keys, values, versions = (table[name].to_pylist() for name in ("key", "value", "version"))
    rows = dict(zip(keys, zip(values, versions, strict=True), strict=True))
    if len(rows) != len(keys):
        raise ValueError(f"{path.name}: {len(keys) - len(rows)} keys appear twice")
    return rows
