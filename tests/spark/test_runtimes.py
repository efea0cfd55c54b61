"""The same script in one process, through Spark Connect, and on a real S3 server finds the same table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.s3_lane import gateway, s3_bucket, s3_url
from tests.spark.log_builder import LogBuilder, random_log, read_plainly
from tests.spark.plain import operation_rows

from holdfast.commit.batch import object_name
from holdfast.spark import find_java
from holdfast.spark.store_thread import StoreThread

__all__ = ["gateway", "s3_bucket", "s3_url"]

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 100
pytestmark = pytest.mark.timeout(300)


def run(url: str, *arguments: str, python_path: str = str(ROOT / "src")) -> dict[str, object]:
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java()),
        "PYTHONPATH": python_path,
        "COLUMNS_READ": "version,seq,kind,key,value,timestamp,position",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_TESTING": "1",  # a Connect server of this process then takes a free port
    }
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("runtime_script.py")), url, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def builder() -> LogBuilder:
    return random_log(21, reigns=5)


@pytest.fixture(scope="module")
def local(builder: LogBuilder, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, object]]:
    """The log's URL, and what one process finds in it."""
    url = builder.write_to(tmp_path_factory.mktemp("log"))
    found = run(url, "--master", "local[2]")
    assert found["rows"] == len(operation_rows(read_plainly(builder.objects)))
    return url, found


def test_spark_connect_finds_the_same_table(local: tuple[str, dict[str, object]]) -> None:
    url, expected = local
    found = run(url, "--remote", "local[2]")
    assert (found["rows"], found["digest"]) == (expected["rows"], expected["digest"])


def test_a_log_on_a_real_s3_server_is_the_same_table(
    local: tuple[str, dict[str, object]], builder: LogBuilder, s3_url: str
) -> None:
    _, expected = local
    with StoreThread(s3_url) as thread:
        for slot, data in builder.objects.items():
            name = object_name(slot)
            thread.start(lambda store, name=name, data=data: store.create(name, data)).result()  # type: ignore[misc]
    found = run(s3_url, "--master", "local[2]")
    assert (found["rows"], found["digest"]) == (expected["rows"], expected["digest"])
