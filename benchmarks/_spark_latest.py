"""The newest value of every key as a Delta table, kept in four increments: by the pipeline, by a merge on the driver.

Owns: the two ways, and the proof that they make one table. Does not own: timing and printing (``spark``).

Both read the increments through the same source, and begin with no table. The merge is what one writes without the
pipeline: the increment is brought to the driver, reduced to the newest operation of each key there, and merged by the
table library. It knows no deletes; the log has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from holdfast.spark import Latest, Schedule, run_pipeline
from holdfast.spark.source.chain import log_head

INCREMENTS = 4


@dataclass
class LatestRace:
    """A log of ``rows`` writes, one a version; each run makes a table, and ``made`` names the last of each way."""

    spark: SparkSession
    url: str
    root: Path
    rows: int
    runs: int = 0

    def __post_init__(self) -> None:
        head = log_head(self.url).version
        self.ends = [head - self.rows + self.rows * (i + 1) // INCREMENTS for i in range(INCREMENTS)]
        self.made: dict[str, Path] = {}

    def _new_table(self, way: str) -> Path:
        self.runs += 1
        self.made[way] = self.root / f"{way}-{self.runs}"
        return self.made[way]

    def by_pipeline(self) -> None:
        """The runner, stopped at each increment's end as a schedule would."""
        table = self._new_table("pipeline").as_uri()
        for end in self.ends:
            run_pipeline(Latest(self.spark, self.url, table), self.url, table, schedule=Schedule(until=end))

    def by_merge(self) -> None:
        """deltalake's merge in the driver's process."""
        table = str(self._new_table("merge"))
        after = 0
        for end in self.ends:
            newest = self._newest_of_each_key(after, end)
            if after == 0:
                write_deltalake(table, newest)
            else:
                merge = DeltaTable(table).merge(newest, "t.key = s.key", source_alias="s", target_alias="t")
                merge.when_matched_update_all().when_not_matched_insert_all().execute()
            after = end

    def _newest_of_each_key(self, after: int, through: int) -> pa.Table:
        reader = self.spark.read.format("holdfast").option("url", self.url).option("columns", "key,value,version")
        rows = reader.option("startingVersion", str(after + 1)).option("endingVersion", str(through)).load().toArrow()
        newest = rows.select(["key", "version"]).group_by("key").aggregate([("version", "max")])
        newest = newest.rename_columns({"version_max": "version"})
        return newest.join(rows, ["key", "version"]).select(["key", "value", "version"])

    def same_table(self) -> bool:
        """Whether the newest tables of both ways hold the same rows."""
        found = [
            DeltaTable(str(self.made[way])).to_pyarrow_table(columns=["key", "value", "version"]).sort_by("key")
            for way in ("pipeline", "merge")
        ]
        return bool(found[0].cast(found[1].schema).equals(found[1]))
