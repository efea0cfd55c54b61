"""One Spark session for the whole test process: starting one costs more than all these tests."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast.spark import session

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session with two cores. Its workers find this package as they would an installed one: on their path."""
    paths = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    assert sys.version_info >= (3, 11)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        started = session("holdfast-tests", master="local[2]", conf={"spark.sql.session.timeZone": "UTC"})
    yield started
    started.stop()
