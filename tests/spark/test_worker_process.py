"""What a worker keeps between tasks, and that other processes are left as they are."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from io import BytesIO
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.util import handle_worker_exception
from tests.spark.log_builder import random_log

from holdfast.errors import HoldfastError, InvalidRequest, NotFound
from holdfast.spark.data_source import HoldfastDataSource
from holdfast.spark.option_values import Mode
from holdfast.spark.options import parse_read_options
from holdfast.spark.runtime import store_thread as worker_process
from holdfast.spark.runtime.processes import HIDE_VARIABLE
from holdfast.spark.runtime.session import task_errors
from holdfast.spark.source.reader import log_reader
from holdfast.spark.source.stream import HoldfastStreamReader


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of the collector, in a process that has not asked yet."""
    asked: list[str] = []
    monkeypatch.setattr(worker_process, "_done", False)
    monkeypatch.setattr(gc, "freeze", lambda: asked.append("freeze"))
    return asked


def read_twice(root: Path) -> int:
    reader = log_reader(parse_read_options({"url": random_log(7).write_to(root)}, Mode.BATCH))
    return sum(batch.num_rows for _ in range(2) for piece in reader.partitions() for batch in reader.read(piece))


def test_an_application_s_own_process_is_left_alone(collected: list[str], tmp_path: Path) -> None:
    assert read_twice(tmp_path) > 0
    assert collected == []


def refusal_of(main: ModuleType | None, monkeypatch: pytest.MonkeyPatch) -> str:
    """What Spark sends to Java when a source refuses an option in a process with this main module."""
    monkeypatch.delenv(HIDE_VARIABLE, raising=False)
    if main is not None:
        monkeypatch.setitem(sys.modules, "__main__", main)
    sent = BytesIO()
    try:
        HoldfastDataSource({"url": "file:///log", "startVersion": "4"}).schema()
    except InvalidRequest as error:
        handle_worker_exception(error, sent)
    monkeypatch.delenv(HIDE_VARIABLE, raising=False)
    return sent.getvalue()[8:].decode()


def test_an_error_of_a_source_is_its_text_alone_in_a_worker_and_has_its_frames_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert refusal_of(None, monkeypatch).startswith("Traceback")
    for name in ("pyspark.daemon", "pyspark.sql.worker.create_data_source"):
        main = ModuleType("__main__")
        main.__spec__ = ModuleSpec(name, None)
        text = refusal_of(main, monkeypatch)
        assert text.startswith("holdfast.errors.InvalidRequest: option startVersion is unknown; did you mean")
        assert len(text.splitlines()) == 1


def test_errors_of_reads_and_writes_are_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec("pyspark.daemon", None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    options = parse_read_options({"url": tmp_path.as_uri()})
    calls = {
        "a batch of an empty log": lambda: log_reader(options).partitions(),
        "a stream of an empty log": lambda: HoldfastStreamReader(options).initialOffset(),
        "a foreign checkpoint": lambda: HoldfastStreamReader(options).latestOffset({"file": 4}, ReadAllAvailable()),
    }
    for name, call in calls.items():
        monkeypatch.delenv(HIDE_VARIABLE, raising=False)
        with pytest.raises(HoldfastError):
            call()
        assert os.environ.get(HIDE_VARIABLE) == "1", name
    monkeypatch.delenv(HIDE_VARIABLE)


def test_spark_shows_the_text_of_an_error_right_after_its_own_words(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(
        PySparkException, match=r"^\[PYTHON_DATA_SOURCE_ERROR\] [^\n]*: holdfast.errors.InvalidRequest: opt"
    ):
        spark.read.format("holdfast").option("startVersion", "4").load(tmp_path.as_uri())


def test_an_error_of_ours_is_found_after_the_words_of_spark() -> None:
    words = "[PYTHON_DATA_SOURCE_ERROR] Failed to plan: "
    for text in (
        f"{words}holdfast.errors.NotFound: log is empty\n SQLSTATE: 38000",
        f"{words}Traceback\n  File x\nholdfast.errors.NotFound: log is empty\n",
    ):
        with pytest.raises(NotFound, match=r"^log is empty$"), task_errors():
            raise PySparkException(text)


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


def test_what_every_process_of_a_query_imports_leaves_out_what_only_tasks_use() -> None:
    code = (
        "import sys, pyspark.daemon, pyspark.worker, pyarrow\n"
        "import holdfast.spark.data_source\n"
        "print([name for name in ('pyarrow.compute', 'pandas', 'asyncio', 'deltalake') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
