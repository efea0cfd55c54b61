"""One Spark session for the whole test process: starting one costs more than all these tests."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast.spark import session

ROOT = Path(__file__).resolve().parents[2]
CONF = {
    "spark.sql.session.timeZone": "UTC",
    # The process lives for a minute: the optimising compiler and a parallel collector never pay off in it.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session with two cores. Its workers find this package as they would an installed one: on their path."""
    paths = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        started = session("holdfast-tests", master="local[2]", conf=CONF)
    yield started
    started.stop()
