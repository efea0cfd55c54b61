"""The example project for Spark Declarative Pipelines: its commands make the tables, and a second run adds to them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.spark.service_process import ServiceProcess

from holdfast.spark import find_java

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "declarative-pipeline"
HOME = "file:///tmp/holdfast-orders"
RUN = "spark-pipelines --conf spark.sql.catalogImplementation=hive run"
SECONDS_MAX = 400
PROVE = os.environ.get("HOLDFAST_PROVE") == "1"
"""The second run, with a Java process of its own, is the proof's."""
# Two Java processes, one after the other.
pytestmark = pytest.mark.timeout(2 * SECONDS_MAX + 60)


def run_pipeline(project: Path) -> None:
    words = RUN.split()
    bin_folder = Path(sys.executable).parent
    quick = ["--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"]
    environment = {
        **os.environ,
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "JAVA_HOME": str(find_java()),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT / "src"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        [words[0], *quick, *words[1:]],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def take_orders(project: Path, url: str, file: str) -> None:
    subprocess.run([sys.executable, "take_orders.py", url, file], cwd=project, check=True, stdout=subprocess.DEVNULL)


def revenue(project: Path) -> dict[str, tuple[int, int, int]]:
    table = pq.read_table(project / "spark-warehouse" / "revenue", columns=["item", "orders", "pieces", "cents"])
    return {row["item"]: (row["orders"], row["pieces"], row["cents"]) for row in table.to_pylist()}


def operations(project: Path) -> list[tuple[int, bytes]]:
    folder = project / "spark-warehouse" / "operations"
    tables = [pq.read_table(path, columns=["version", "key"]).to_pylist() for path in folder.glob("*.parquet")]
    return sorted((row["version"], row["key"]) for rows in tables for row in rows)


@pytest.mark.matrix
def test_each_run_brings_the_tables_up_to_the_log_and_reads_nothing_twice(tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(EXAMPLE, project, ignore=shutil.ignore_patterns("__pycache__", "spark-warehouse", "metastore_db"))
    assert RUN in (project / "README.md").read_text(encoding="utf-8"), "the test runs what people are told to run"
    specification = project / "spark-pipeline.yml"
    text = specification.read_text(encoding="utf-8")
    assert text.count(HOME) == 2
    specification.write_text(text.replace(HOME, tmp_path.as_uri()), encoding="utf-8")
    (tmp_path / "log").mkdir()
    with ServiceProcess(tmp_path / "log") as service:
        take_orders(project, service.url, "monday.csv")
        run_pipeline(project)
        assert revenue(project) == {"kettle": (3, 9, 32700), "lamp": (2, 4, 21600), "chair": (1, 4, 35600)}
        first = operations(project)
        assert len(first) == 6
        if not PROVE:
            return
        take_orders(project, service.url, "tuesday.csv")
        run_pipeline(project)
    # Two chairs instead of four, three lamps withdrawn, two more lamps at a lower price, a desk.
    assert revenue(project) == {
        "kettle": (3, 9, 32700),
        "lamp": (2, 3, 15200),
        "chair": (1, 2, 17800),
        "desk": (1, 1, 24900),
    }
    second = operations(project)
    assert second[:6] == first and len(second) == 10
