"""The Python of every page about pipelines runs as it stands there, on tables made of a generated log."""

from __future__ import annotations

import re
import warnings
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.matrix import matrix
from tests.spark.log_builder import read_plainly
from tests.spark.test_pipeline_audit import damageable, on_disk, world

from holdfast.spark import Changes, History, Latest, Segments, Snapshot, Verify, run_pipeline

PAGES = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "pipelines"
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
MADE_BY = {
    "changes": Changes,
    "segments": partial(Segments, log_bytes_min=1),
    "history": History,
    "latest": Latest,
    "snapshot": Snapshot,
    "verify": Verify,
}


@pytest.mark.parametrize("page", matrix(sorted(path.stem for path in PAGES.glob("*.md")), 3))
def test_the_examples_of_the_page_run(spark: SparkSession, tmp_path: Path, page: str) -> None:
    objects = world(next(damageable()))
    log = on_disk(dict(objects), tmp_path / "log")
    path = tmp_path / page
    if page in MADE_BY:
        run_pipeline(MADE_BY[page](spark, log, path.as_uri()), log, path.as_uri())
    versions = [txn.version for batch in read_plainly(objects) for txn in batch.transactions]
    names = {
        "spark": spark,
        "log": log,
        "table": path.as_uri(),
        "path": str(path),
        "target": (tmp_path / "target").as_uri(),
        "version": versions[len(versions) // 2],
        "folder": str(tmp_path / "requests"),
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    (tmp_path / "requests").mkdir()
    (tmp_path / "requests" / "first.json").write_text(
        '{"order": 1, "key": "stock/7", "value": "3"}\n{"order": 2, "key": "stock/8", "value": "2"}\n'
    )
    blocks = PYTHON.findall((PAGES / f"{page}.md").read_text(encoding="utf-8"))
    assert blocks, "every page has a runnable example"
    for number, block in enumerate(blocks):
        with warnings.catch_warnings():
            # What other tools warn about in their own code is not ours to fail on.
            warnings.simplefilter("ignore")
            numbered = {**names, "table": f"{path.as_uri()}-{number}" if number else names["table"]}
            numbered["target"] = f"{names['target']}-{number}"
            exec(compile(block, f"{page}.md", "exec"), numbered)
