"""The same script in one process, on a cluster whose workers get the package with the job, and through Spark Connect.

Each finds the same table, byte for byte after sorting, on this machine's disk and on a real S3 server.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from examples.cluster.standalone import WORKERS, standalone_cluster
from pyspark.sql import SparkSession
from tests.rgw import Gateway
from tests.s3_lane import gateway, s3_bucket
from tests.spark import runtime_script
from tests.spark.conftest import QUICK_JAVA
from tests.spark.log_builder import LogBuilder, latest_plainly, random_log, read_plainly
from tests.spark.plain import operation_rows
from tests.spark.service_process import ServiceProcess
from tests.spark.test_pipeline_tables import content

from holdfast.commit.format.batch import PREFIX, LoggedTransaction, object_name, slot_of
from holdfast.commit.format.transaction import Write
from holdfast.objects.port import ObjectStore
from holdfast.spark import Latest, find_java
from holdfast.spark.runtime.store_thread import StoreThread

__all__ = ["gateway", "s3_bucket"]

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 300
# Every runtime but the first starts Java processes, which takes long on a machine that does much else.
pytestmark = pytest.mark.timeout(420)


@dataclass(frozen=True)
class Known:
    """A log on disk and the digest that a session of this process makes of it."""

    builder: LogBuilder
    url: str
    digest: dict[str, object]


@pytest.fixture(scope="module")
def known(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Known:
    builder = random_log(21, reigns=5)
    url = builder.write_to(tmp_path_factory.mktemp("log"))
    found = runtime_script.digest(runtime_script.read_log(spark, url))
    assert found["rows"] == len(operation_rows(read_plainly(builder.objects)))
    return Known(builder, url, found)


@pytest.fixture(scope="module")
def bulk(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The result of the bulk requests in a session of this process."""
    return runtime_script.bulk(spark, str(tmp_path_factory.mktemp("bulk")))


@dataclass(frozen=True)
class OnCluster:
    """What the script found on a cluster, what it left in ``folder``, and what a service then had in its log."""

    folder: Path
    found: dict[str, Any]
    sent: list[LoggedTransaction]


def run(*arguments: str, **more: str) -> dict[str, Any]:
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java()),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_TESTING": "1",  # a Connect server of this process then takes a free port
        **more,
    }
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("runtime_script.py")), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, "\n".join(line for line in done.stderr.splitlines() if "\tat " not in line)[-6000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def bare_python(folder: Path) -> Path:
    """A Python that has the packages of this one, but not this package: path files are not followed."""
    path = folder / "bare-python"
    packages = sysconfig.get_path("platlib")
    path.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec {sys.executable} -S "$@"\n')
    path.chmod(0o755)
    command = [path, "-c", "import pyarrow, holdfast.errors"]
    missing = subprocess.run(command, env={"PYTHONPATH": ""}, capture_output=True, text=True, check=False)
    assert "No module named 'holdfast" in missing.stderr
    return path


def packed_source(folder: Path) -> Path:
    """The package as an archive that a job brings to its workers."""
    archive = folder / "holdfast.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for path in sorted((ROOT / "src").rglob("*.py")):
            packed.write(path, path.relative_to(ROOT / "src"))
    return archive


@pytest.fixture(scope="module")
def on_cluster(known: Known, tmp_path_factory: pytest.TempPathFactory) -> OnCluster:
    """The whole script on a cluster, for all tests that look at what it did there."""
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "log").mkdir()
    with ServiceProcess(folder / "log") as service, standalone_cluster(folder, QUICK_JAVA) as master:
        found = run(
            *("--master", master, "--zip", str(packed_source(folder)), "--table", (folder / "table").as_uri()),
            *("--bulk", str(folder), "--faults"),
            *("--sink", service.url, str(folder), known.url),
            PYSPARK_PYTHON=str(bare_python(folder)),
        )
        return OnCluster(folder, found, service.transactions())


@pytest.mark.matrix
def test_a_cluster_whose_workers_get_the_package_with_the_job_finds_the_same_table(
    known: Known, tmp_path: Path
) -> None:
    archive = packed_source(tmp_path)
    with standalone_cluster(tmp_path, QUICK_JAVA) as master:
        found = run("--master", master, "--zip", str(archive), known.url, PYSPARK_PYTHON=str(bare_python(tmp_path)))
    assert found["logs"] == [known.digest]
    places = [str(place) for place in found["places"]]
    assert all("holdfast.zip" in place for place in places), places
    assert all(any(str(tmp_path / name) in place for place in places) for name in WORKERS), places


@pytest.mark.matrix
def test_a_pipeline_on_a_cluster_makes_the_table_of_a_dict_that_applies_every_operation(
    known: Known, on_cluster: OnCluster
) -> None:
    assert on_cluster.found["logs"] == [known.digest]
    assert content(Latest, on_cluster.folder / "table") == latest_plainly(known.builder.objects)


@pytest.mark.matrix
def test_a_failing_task_is_tried_again_and_sends_nothing_twice(on_cluster: OnCluster) -> None:
    assert sorted(path.name for path in on_cluster.folder.glob("failed-*")) == ["failed-0", "failed-1"]
    assert written(on_cluster.sent, b"f") == Counter(b"f/%04d" % number for number in range(runtime_script.SINK_ROWS))


@pytest.mark.matrix
def test_a_task_and_its_speculative_copy_send_nothing_twice(on_cluster: OnCluster) -> None:
    assert (on_cluster.folder / "copied").exists(), "there was a copy"
    assert written(on_cluster.sent, b"s") == Counter(b"s/%04d" % number for number in range(runtime_script.SINK_ROWS))


def written(sent: list[LoggedTransaction], name: bytes) -> Counter[bytes]:
    """How often each key under a name was written."""
    return Counter(
        operation.key
        for txn in sent
        for operation in txn.operations
        if isinstance(operation, Write) and operation.key.startswith(name + b"/")
    )


@pytest.mark.matrix
def test_requests_in_bulk_come_to_the_same_on_a_cluster(bulk: dict[str, object], on_cluster: OnCluster) -> None:
    assert on_cluster.found["bulk"] == bulk


@pytest.mark.matrix
def test_spark_connect_finds_and_makes_the_same_tables_on_disk_and_on_a_real_s3_server(
    known: Known, bulk: dict[str, object], s3_bucket: str, gateway: Gateway, tmp_path: Path
) -> None:
    """The service that the sink writes to has its log on the S3 server, too."""
    copied, sunk = gateway.url(s3_bucket, prefix="copied"), gateway.url(s3_bucket, prefix="sunk")
    with StoreThread(copied) as thread:
        for slot, data in known.builder.objects.items():
            name = object_name(slot)
            thread.start(lambda store, name=name, data=data: store.create(name, data)).result()  # type: ignore[misc]
    (tmp_path / "served").mkdir()
    with ServiceProcess(tmp_path / "served", "view.enabled=true", log_url=sunk) as service:
        found = run(
            *("--remote", "local[2]", "--table", (tmp_path / "table").as_uri(), "--bulk", str(tmp_path)),
            *("--sink", service.url, str(tmp_path), known.url, copied),
        )
    assert found["logs"] == [known.digest, known.digest]
    assert found["bulk"] == bulk
    assert content(Latest, tmp_path / "table") == latest_plainly(known.builder.objects)
    assert written(logged(sunk), b"f") == Counter(b"f/%04d" % number for number in range(runtime_script.SINK_ROWS))


def logged(url: str) -> list[LoggedTransaction]:
    """What is committed in a log, read without the product's reader."""

    async def objects(store: ObjectStore) -> dict[int, bytes]:
        names = {slot_of(each.key): each.key for each in await store.list(PREFIX)}
        return {slot: await store.read(name) for slot, name in names.items() if slot is not None}

    with StoreThread(url) as thread:
        return [txn for batch in read_plainly(thread.start(objects).result()) for txn in batch.transactions]


@pytest.mark.matrix
def test_the_example_runs_every_pipeline_on_a_cluster_with_its_log_on_a_real_s3_server(
    s3_bucket: str, gateway: Gateway
) -> None:
    log, tables = gateway.url(s3_bucket, prefix="log"), gateway.url(s3_bucket, prefix="tables")
    command = [sys.executable, "-m", "examples.cluster", "--log", log, "--tables", tables]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    assert [line.split()[2] for line in done.stdout.splitlines()] == [
        *("cluster", "resolve", "load", "ingest", "changes", "latest", "history", "snapshot"),
        *("segments", "verify", "replay", "compare", "compare"),
    ]  # fmt: skip
