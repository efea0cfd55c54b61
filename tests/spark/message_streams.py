"""Four streams: a queue and a store each into a Delta table, and each table into another store. Also a process of them.

``python -m tests.spark.message_streams PLACES`` runs them until it is killed, and prints a line after each micro-batch.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.spark import session

SCHEMA = pa.schema([("seq", pa.int64()), ("body", pa.binary())])


@dataclass(frozen=True)
class Places:
    """Where everything is. ``root`` has the tables and the checkpoints."""

    queue: str
    service: str
    root: str

    def table(self, name: str) -> str:
        """The directory of the table ``queue`` or ``store``."""
        return f"{self.root}/{name}-table"


def make_tables(places: Places) -> None:
    """Empty tables, for streams that begin before their first row."""
    for name in ("queue", "store"):
        DeltaTable.create(places.table(name), schema=pa.schema(SCHEMA), mode="ignore")


def appended(places: Places, name: str) -> Callable[[DataFrame, int], None]:
    """What writes a micro-batch into a table: one Delta commit, which names its number and comes once."""

    def write(frame: DataFrame, number: int) -> None:
        rows = frame.toArrow().cast(SCHEMA)
        before = DeltaTable(places.table(name)).transaction_version("streams")
        if before is None or before < number:
            properties = CommitProperties(app_transactions=[Transaction("streams", number)])
            write_deltalake(places.table(name), rows, mode="append", commit_properties=properties)

    return write


def start(spark: SparkSession, places: Places, stage: str, name: str, *, until_now: bool) -> StreamingQuery:
    """One of the streams: ``stage`` is ``in`` (into a table) or ``out`` (into a store)."""
    reader = spark.readStream.format("holdfast")
    if stage == "in":
        reader = reader.option("shape", "messages").option("maxRowsPerTrigger", "5000" if until_now else "100")
        if name == "queue":
            frame = reader.option("queue", places.queue).load().selectExpr("seq", "payload AS body")
        else:
            reader = reader.option("url", places.service).option("store", "given").option("durable", "lake")
            frame = reader.load().select("seq", "body")
        writer = frame.writeStream.foreachBatch(appended(places, name))
    else:
        frame = reader.option("table", f"file://{places.table(name)}").load().selectExpr("string(seq) AS key", "body")
        writer = frame.writeStream.format("holdfast").option("url", places.service)
        writer = writer.option("application", "streams").option("store", f"from-{name}")
    writer = writer.option("checkpointLocation", f"{places.root}/{stage}-{name}")
    writer = writer.trigger(availableNow=True) if until_now else writer.trigger(processingTime="20 milliseconds")
    return writer.start()


def main() -> None:
    """Run all four until killed. A query that ends by an error ends the process, which states it."""
    places = Places(**json.loads(sys.argv[1]))
    spark = session("message-streams", master="local[2]", conf={"spark.sql.session.timeZone": "UTC"})
    queries = [
        start(spark, places, stage, name, until_now=False) for stage in ("in", "out") for name in ("queue", "store")
    ]
    pulse = threading.Event()
    seen: dict[Any, int] = {}
    while not pulse.wait(0.02):
        for query in queries:
            if (error := query.exception()) is not None:
                print(f"failed: {error}", flush=True)
                sys.exit(1)
            progress = query.lastProgress
            if progress is not None and progress["numInputRows"] and seen.get(query.id) != progress["batchId"]:
                seen[query.id] = progress["batchId"]
                print("progress", flush=True)


def as_argument(places: Places) -> str:
    """The argument of the process."""
    return json.dumps(asdict(places))


if __name__ == "__main__":
    main()
