"""A job that loads ``rows`` rows whose values and partitions differ from run to run.

python load_script.py MASTER LOG VERDICTS NAME PARTITIONS ROWS [ZIP]
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import expr
from tests.spark.runtime_script import HERE

from holdfast.spark import LoadOptions, load_requests, session

PARTS = 16


def main() -> None:
    master, log, verdicts, name, partitions, rows = sys.argv[1:7]
    config = HERE | {"spark.sql.shuffle.partitions": partitions, "spark.sql.adaptive.enabled": "false"}
    spark: SparkSession = session(master=master, conf=config, app_name=name)
    for archive in sys.argv[7:]:
        spark.sparkContext.addPyFile(archive)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "200")
    source = spark.range(0, int(rows), numPartitions=PARTS).selectExpr(
        "id AS order", f"format_string('{name}/%06d', id) AS key"
    )
    requests = source.withColumn("value", expr("string(rand())")).repartition(int(partitions))
    load_requests(spark, requests, log, verdicts, LoadOptions(name=name, wave=2, partitions=int(partitions)))
    spark.stop()


if __name__ == "__main__":
    main()
