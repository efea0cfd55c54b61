"""Tables of a catalogue: ``CREATE TABLE t USING holdfast OPTIONS (...)`` reads what the same options read elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.rgw import free_port
from tests.spark.log_builder import random_log, read_plainly
from tests.spark.plain import PlainRow, operation_rows, spark_rows

from holdfast.queue import Queue
from holdfast.spark import find_java


@pytest.fixture
def database(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """An empty database that the session uses, in a folder of the test."""
    spark.sql(f"CREATE DATABASE of_test LOCATION '{(tmp_path / 'warehouse').as_uri()}'")
    spark.sql("USE of_test")
    yield "of_test"
    spark.sql("USE default")
    spark.sql("DROP DATABASE of_test CASCADE")


@pytest.fixture
def log(tmp_path: Path) -> tuple[str, list[PlainRow]]:
    builder = random_log(21, reigns=3)
    (tmp_path / "log").mkdir()
    return builder.write_to(tmp_path / "log"), operation_rows(read_plainly(builder.objects))


@pytest.mark.matrix  # the next test reads; test_options_everywhere has the options
def test_a_table_reads_with_its_options_in_every_way_that_spark_reads_tables(
    spark: SparkSession, database: str, log: tuple[str, list[PlainRow]], tmp_path: Path
) -> None:
    url, rows = log
    middle = rows[len(rows) // 2]["version"]
    kept = [{name: row[name] for name in ("version", "key")} for row in rows if row["version"] >= middle]  # type: ignore[operator]
    assert 0 < len(kept) < len(rows)
    spark.sql(
        f"CREATE TABLE late USING holdfast OPTIONS (url '{url}', startingVersion '{middle}', columns 'version,key') "
        "COMMENT 'of a test' TBLPROPERTIES ('team' = 'orders')"
    )
    ways = {
        "SELECT": spark.sql("SELECT * FROM late"),
        "spark.table": spark.table("late"),
        "a view": spark.sql("CREATE VIEW of_late AS SELECT * FROM late") and spark.table("of_late"),
        "the catalog API": spark.catalog.createTable(
            "other", source="holdfast", url=url, startingVersion=str(middle), columns="version,key"
        ),
    }
    for way, frame in ways.items():
        assert sorted(map(repr, spark_rows(frame))) == sorted(map(repr, kept)), way
    assert spark.sql(f"SELECT * FROM late WHERE version = {middle}").count() == sum(
        row["version"] == middle for row in kept
    )
    query = (
        spark.readStream.table("late")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "copy"))
    )
    assert query.awaitTermination(240)
    assert spark.read.parquet(str(tmp_path / "copy")).count() == len(kept)


def test_a_table_at_a_location_and_a_table_of_a_queue_are_read(
    spark: SparkSession, database: str, log: tuple[str, list[PlainRow]], tmp_path: Path
) -> None:
    url, rows = log
    spark.sql(f"CREATE TABLE located USING holdfast LOCATION '{url}'")
    assert spark.table("located").count() == len(rows)
    spark.sql("DROP TABLE located")
    assert (tmp_path / "log" / "batches").is_dir(), "dropping the table leaves the log"
    with Queue(tmp_path / "orders") as queue:
        queue.append_many([b"first", b"second"])
    spark.sql(f"CREATE TABLE orders USING holdfast OPTIONS (shape 'messages', queue '{tmp_path / 'orders'}')")
    assert spark.table("orders").count() == 2


def test_what_no_table_can_do_is_an_error_that_names_the_way(
    spark: SparkSession, database: str, log: tuple[str, list[PlainRow]]
) -> None:
    url, _ = log
    with pytest.raises(PySparkException, match=r"did you mean startingVersion\? valid options: url"):
        spark.sql(f"CREATE TABLE wrong USING holdfast OPTIONS (url '{url}', startVersion '4')")
    with pytest.raises(PySparkException, match="owner is unknown; valid options: url"):
        spark.read.format("holdfast").option("owner", "me").load(url)
    spark.sql(f"CREATE TABLE t USING holdfast OPTIONS (url '{url}')")
    with pytest.raises(PySparkException, match="startingversion cannot be given where a table is read; create another"):
        spark.sql("SELECT * FROM t WITH (startingVersion = 4)").collect()
    with pytest.raises(PySparkException, match="a table of a log is read-only"):
        spark.sql("INSERT INTO t SELECT * FROM t")
    spark.sql(f"CREATE TABLE declared (key BINARY) USING holdfast OPTIONS (url '{url}')")
    with pytest.raises(PySparkException, match="columns of its own; create it as CREATE TABLE t USING holdfast"):
        spark.table("declared").collect()


@pytest.mark.matrix
def test_clients_of_the_thrift_server_read_a_table_that_a_hive_metastore_keeps(
    quick_java: None, quick_python: None, log: tuple[str, list[PlainRow]], tmp_path: Path
) -> None:
    url, rows = log
    home = Path(pyspark.__file__).parent
    environment = os.environ | {
        "JAVA_HOME": str(find_java()),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src"),
    }
    port = free_port()
    server = [
        home / "bin" / "spark-submit", "--master", "local[2]", "--conf", "spark.ui.enabled=false",
        "--class", "org.apache.spark.sql.hive.thriftserver.HiveThriftServer2", "spark-internal",
        "--hiveconf", f"hive.server2.thrift.port={port}", "--hiveconf", "hive.server2.thrift.bind.host=127.0.0.1",
    ]  # fmt: skip
    statements = f"CREATE TABLE t USING holdfast OPTIONS (url '{url}'); SELECT count(*) FROM t;"
    with (tmp_path / "server.log").open("w") as output:
        process = subprocess.Popen(
            server, cwd=tmp_path, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 120
        while "HiveThriftServer2 started" not in (tmp_path / "server.log").read_text():
            assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "server.log").read_text()[-2000:]
            time.sleep(0.2)
        client = [home / "bin" / "beeline", "-u", f"jdbc:hive2://127.0.0.1:{port}", "--silent=true"]
        found = subprocess.run(
            [*client, "--outputformat=csv2", "-e", statements],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)
    assert found.stdout.split()[-2:] == ["count(1)", str(len(rows))], found.stdout + found.stderr
