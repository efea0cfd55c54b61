"""What a worker keeps between tasks, and that other processes are left as they are."""

from __future__ import annotations

import gc
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession
from tests.spark.log_builder import random_log

from holdfast.spark.options import Mode, parse_read_options
from holdfast.spark.runtime import store_thread as worker_process
from holdfast.spark.source.reader import HoldfastBatchReader


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of the collector, in a process that has not asked yet."""
    asked: list[str] = []
    monkeypatch.setattr(worker_process, "_done", False)
    monkeypatch.setattr(gc, "freeze", lambda: asked.append("freeze"))
    return asked


def read_twice(root: Path) -> int:
    reader = HoldfastBatchReader(parse_read_options({"url": random_log(7).write_to(root)}, Mode.BATCH))
    return sum(batch.num_rows for _ in range(2) for piece in reader.partitions() for batch in reader.read(piece))


def test_an_application_s_own_process_is_left_alone(collected: list[str], tmp_path: Path) -> None:
    assert read_twice(tmp_path) > 0
    assert collected == []


def test_a_kept_worker_sets_its_imports_aside_once(
    collected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec("pyspark.daemon", None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert read_twice(tmp_path) > 0
    assert collected == ["freeze"]


def test_a_worker_of_spark_is_known_by_its_main_module(spark: SparkSession) -> None:
    def name(_: int) -> str:
        spec = sys.modules["__main__"].__spec__
        return "" if spec is None else spec.name

    assert set(spark.sparkContext.range(2).map(name).collect()) == {"pyspark.daemon"}
