"""A write whose tasks fail in the middle at their first try, in a session of its own: ``local[2,3]`` tries again."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src")]
os.environ["PYTHONPATH"] = str(ROOT / "src")

from holdfast.spark import session  # noqa: E402


def fail_once(folder: str):  # type: ignore[no-untyped-def]
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(batches):
            if number == 5 and context.attemptNumber() == 0:
                Path(folder, f"failed-{context.partitionId()}").touch()
                raise RuntimeError("this try fails")
            yield batch

    return run


def main(url: str, folder: str) -> None:
    conf = {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    spark = session("holdfast-failing-task", master="local[2,3]", conf=conf)
    frame = spark.range(0, 200, numPartitions=2).selectExpr("format_string('f/%04d', id) AS key", "'v' AS value")
    failing = frame.mapInArrow(fail_once(folder), frame.schema)
    failing.write.format("holdfast").mode("append").option("url", url).option("application", "failing").save()
    spark.stop()
    assert sorted(path.name for path in Path(folder).glob("failed-*")) == ["failed-0", "failed-1"]


if __name__ == "__main__":
    main(*sys.argv[1:])
