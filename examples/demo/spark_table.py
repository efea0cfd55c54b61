"""The tables that Spark makes of the log, and what Spark SQL says about them.

Owns: one Spark session, its tables, its queries. Reads the log's objects; no service is asked.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Self

from examples.demo.comparisons import Rows
from pyarrow import dataset
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark program uses

from holdfast.spark import materialise_latest, session

__all__ = ["Spark", "read_table"]


_SHORT_SESSION = {
    "spark.log.level": "ERROR",
    # Java's second compiler works for longer than this session lives: without it the session takes half the processor
    # time.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


class Spark:
    """A running Spark. ``start_seconds``: how long it took to start."""

    def __init__(self, log_url: str) -> None:
        began = time.monotonic()
        self._spark = session("holdfast-demo", conf=_SHORT_SESSION)
        self._log_url = log_url
        self.start_seconds = time.monotonic() - began

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._spark.stop()

    def save_table(self, output: Path, as_of_version: int | None = None) -> int:
        """Write the newest value of every key, or that of an earlier version, as Parquet. The number of keys."""
        materialise_latest(self._spark, self._log_url, as_of_version).write.mode("overwrite").parquet(str(output))
        return self._spark.read.parquet(str(output)).count()

    def bookings(self, table: Path) -> dict[str, int]:
        """The bookings of each flight."""
        key = F.col("key").cast("string")
        bookings = (
            self._spark.read.parquet(str(table))
            .where(key.startswith("booking/"))
            .select(F.regexp_extract(key, "^booking/(.*)/p", 1).alias("flight"))
        )
        rows = bookings.groupBy("flight").count().collect()
        return {row["flight"]: row["count"] for row in rows}


def read_table(path: Path) -> Rows:
    """A file or folder of Parquet or Arrow with key, value and version, as a dictionary. Raises: ValueError."""
    table = dataset.dataset(path, format="ipc" if path.suffix == ".arrow" else "parquet").to_table()
    keys, values, versions = (table[name].to_pylist() for name in ("key", "value", "version"))
    rows = dict(zip(keys, zip(values, versions, strict=True), strict=True))
    if len(rows) != len(keys):
        raise ValueError(f"{path.name}: {len(keys) - len(rows)} keys appear twice")
    return rows
