"""One Spark session for the whole test process: starting one costs more than all these tests."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

import holdfast
from holdfast.spark import session

ROOT = Path(__file__).resolve().parents[2]
CONF = {"spark.sql.session.timeZone": "UTC"}
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""No Java process of a test lives for long: the optimising compiler and a parallel collector never pay off in it."""


@pytest.fixture(scope="session", autouse=True)
def quick_java(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Every Java process of these tests starts quickly: the shared session, commands, examples, masters and workers."""
    folder = tmp_path_factory.mktemp("spark-conf")
    lines = [f"spark.{process}.extraJavaOptions {QUICK_JAVA}\n" for process in ("driver", "executor")]
    (folder / "spark-defaults.conf").write_text("".join(lines))
    os.environ["SPARK_CONF_DIR"] = str(folder)
    os.environ["SPARK_DAEMON_JAVA_OPTS"] = os.environ["SPARK_LAUNCHER_OPTS"] = QUICK_JAVA


@pytest.fixture(scope="session", autouse=True)
def quick_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Every Python process of these tests finds its modules compiled, once for all of them.

    Installers do not always compile packages, and containers often forbid Python to keep what it compiles. Each worker,
    planning process, command and example would then compile pyspark, pyarrow, numpy and pandas for itself. Where Python
    may keep it with the packages, the next run finds it too.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if all(os.access(Path(package.__file__).parent, os.W_OK) for package in (pyspark, holdfast)):
        yield
        return
    compiled = tmp_path_factory.mktemp("compiled")
    os.environ["PYTHONPYCACHEPREFIX"] = str(compiled)
    yield
    shutil.rmtree(compiled, ignore_errors=True)  # processes that are ending may still write here


@pytest.fixture(scope="session")
def spark(quick_java: None, quick_python: None) -> Iterator[SparkSession]:
    """A local session with two cores. Its workers find this package as they would an installed one: on their path."""
    paths = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        started = session("holdfast-tests", master="local[2]", conf=CONF)
    yield started
    started.stop()
