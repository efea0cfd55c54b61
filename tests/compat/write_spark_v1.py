"""Write the golden checkpoint of a stream of a log.

    python write_spark_v1.py FOLDER

Not run by any test. The stream has read the first objects of ``v1/log``; ``FOLDER/checkpoint`` is what Spark kept.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from holdfast.spark import session

OBJECTS_READ = 3


def main(folder: Path) -> None:
    golden = Path(__file__).parent / "v1" / "log" / "batches"
    with tempfile.TemporaryDirectory() as scratch:
        batches = Path(scratch) / "log" / "batches"
        batches.mkdir(parents=True)
        for path in sorted(golden.iterdir(), reverse=True)[:OBJECTS_READ]:
            shutil.copy(path, batches / path.name)
        spark = session("golden", master="local[2]")
        reader = spark.readStream.format("holdfast").option("url", batches.parent.as_uri())
        query = (
            reader.load()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(Path(scratch) / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(Path(scratch) / "table"))
        )
        query.awaitTermination(300)
        spark.stop()
        shutil.copytree(Path(scratch) / "checkpoint", folder / "checkpoint", ignore=shutil.ignore_patterns(".*"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
