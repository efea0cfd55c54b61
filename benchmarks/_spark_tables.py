"""A table of the newest values through its life: created, one percent of its keys changed, half of them changed.

Owns: three ways to keep it, and the proof that they make one table. Does not own: timing and printing (``spark``).

``pipeline`` is ``Latest``. ``merge`` brings the newest operation of each key to the driver and merges it with
deltalake. ``writer`` brings the newest value of every key to the driver and overwrites the table with Delta's own
writer. All three read the log through the same source.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
from benchmarks._spark_logs import BLOB, write_batches
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from holdfast.commit.format.transaction import Write
from holdfast.spark import Latest, Schedule, run_pipeline

PHASES = {"create": 1.0, "change 1 %": 0.01, "change 50 %": 0.5}
"""The share of the keys that each phase writes."""
BATCH_WRITES = 7_500
WAYS = ("pipeline", "merge", "writer")


@dataclass
class TableLife:
    """A log of ``keys`` keys with the writes of all phases; ``tables`` has the newest table of each way."""

    spark: SparkSession
    root: Path
    keys: int
    runs: int = 0
    tables: dict[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        draw = random.Random(3)
        batches: list[list[Write]] = []
        last_batches: list[int] = []
        for share in PHASES.values():
            chosen = draw.sample(range(self.keys), max(1, round(self.keys * share)))
            writes = [self._write(draw, key) for key in chosen]
            batches += [writes[first : first + BATCH_WRITES] for first in range(0, len(writes), BATCH_WRITES)]
            last_batches.append(len(batches) - 1)
        self.url, versions = write_batches(self.root / f"log-{self.keys}", batches)
        self.ends = [versions[last] for last in last_batches]

    @staticmethod
    def _write(draw: random.Random, key: int) -> Write:
        start = draw.randrange(len(BLOB) - 140)
        return Write(b"account/%012d/x" % key, BLOB[start : start + draw.randrange(60, 140)])

    def begin(self) -> None:
        """Forget the tables: the next phases make new ones."""
        self.runs += 1
        self.tables = {way: self.root / f"{way}-{self.keys}-{self.runs}" for way in WAYS}

    def advance(self, way: str, phase: int) -> None:
        """Bring the table of this way to the end of a phase; the phases come in order."""
        {"pipeline": self._by_pipeline, "merge": self._by_merge, "writer": self._by_writer}[way](phase)

    def _by_pipeline(self, phase: int) -> None:
        url = self.tables["pipeline"].as_uri()
        run_pipeline(Latest(self.spark, self.url, url), self.url, url, schedule=Schedule(until=self.ends[phase]))

    def _by_merge(self, phase: int) -> None:
        table = str(self.tables["merge"])
        if phase == 0:
            write_deltalake(table, self._newest(0, self.ends[0]))
            return
        newest = self._newest(self.ends[phase - 1], self.ends[phase])
        merge = DeltaTable(table).merge(newest, "t.key = s.key", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def _by_writer(self, phase: int) -> None:
        write_deltalake(str(self.tables["writer"]), self._newest(0, self.ends[phase]), mode="overwrite")

    def _newest(self, after: int, through: int) -> pa.Table:
        reader = self.spark.read.format("holdfast").option("url", self.url).option("columns", "key,value,version")
        rows = reader.option("startingVersion", str(after + 1)).option("endingVersion", str(through)).load().toArrow()
        newest = rows.select(["key", "version"]).group_by("key").aggregate([("version", "max")])
        newest = newest.rename_columns({"version_max": "version"})
        return newest.join(rows, ["key", "version"]).select(["key", "value", "version"])

    def is_one_table(self) -> bool:
        """Whether the tables of all ways have the same rows."""
        found = [
            DeltaTable(str(path)).to_pyarrow_table(columns=["key", "value", "version"]).sort_by("key")
            for path in self.tables.values()
        ]
        return all(table.cast(found[0].schema).equals(found[0]) for table in found)

    def readers(self, way: str) -> dict[str, Callable[[], int]]:
        """Each engine's way to read every value of the table; the result is the bytes of all values."""
        path = str(self.tables[way])
        table = DeltaTable(path)
        native = self.spark.read.option("basePath", path).parquet(*table.file_uris())
        own = self.spark.read.format("holdfast").option("table", self.tables[way].as_uri()).load()
        return {
            "Spark, Parquet": lambda: native.selectExpr("sum(octet_length(value))").first()[0],  # type: ignore[index]
            "Spark, holdfast": lambda: own.selectExpr("sum(octet_length(value))").first()[0],  # type: ignore[index]
            "deltalake": lambda: sum(map(len, DeltaTable(path).to_pyarrow_table()["value"].to_pylist())),
            "polars": lambda: pl.scan_delta(path).select(pl.col("value").bin.size().sum()).collect().item(),
            "DuckDB": lambda: duckdb.sql(f"SELECT sum(octet_length(value)) FROM {self._listed(table)}").fetchone()[0],  # type: ignore[index]
            "pandas": lambda: int(DeltaTable(path).to_pandas()["value"].map(len).sum()),
        }

    @staticmethod
    def _listed(table: DeltaTable) -> str:
        return f"read_parquet({table.file_uris()!r})"
