"""A job that writes ``rows`` rows after a plan whose order, partitions or values differ from run to run.

python plans_script.py MASTER URL PLAN TOKEN PARTITIONS ROWS [ZIP]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr
from tests.spark.runtime_script import HERE

from holdfast.spark import session

PARTS = 16


def numbered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows, each with how many this process has seen before: its state depends on what Spark gave it."""
    import pyarrow as pa

    seen = 0
    for batch in batches:
        values = [b"seen-%09d" % (seen + index) for index in range(batch.num_rows)]
        seen += batch.num_rows
        yield pa.record_batch({"key": batch["key"], "value": pa.array(values, pa.binary())})


PLANS: dict[str, Callable[[DataFrame, int], DataFrame]] = {
    "shuffle": lambda rows, _: rows.groupBy("key").agg(expr("first(value) AS value")),
    "join": lambda rows, _: rows.join(rows.select("key", "id"), "key").select("key", "value"),
    "repartition": lambda rows, partitions: rows.select("key", "value").repartition(partitions),
    "rand": lambda rows, partitions: rows.select("key", expr("string(rand()) AS value")).repartition(partitions),
    "udf": lambda rows, partitions: (
        rows.select("key").repartition(partitions).mapInArrow(numbered, "key string, value binary")
    ),
}


def main() -> None:
    master, url, plan, token, partitions, rows = sys.argv[1:7]
    config = HERE | {"spark.sql.shuffle.partitions": partitions, "spark.sql.adaptive.enabled": "false"}
    spark: SparkSession = session(master=master, conf=config, app_name=token)
    for archive in sys.argv[7:]:
        spark.sparkContext.addPyFile(archive)
    source = spark.range(0, int(rows), numPartitions=PARTS).selectExpr(
        "id", f"format_string('{token}/%06d', id) AS key", "repeat(string(id), 10) AS value"
    )
    frame = PLANS[plan](source, int(partitions))
    writer = frame.write.format("holdfast").mode("append").option("url", url).option("application", token)
    writer.option("token", token).save()
    spark.stop()


if __name__ == "__main__":
    main()
