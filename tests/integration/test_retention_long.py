"""A long log is cut while 64 clients commit: the numbers of ``benchmarks/retention.py``, and that nothing was lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "retention.py"


@pytest.mark.matrix
@pytest.mark.timeout(10_800)
@pytest.mark.parametrize("store", ["directory", "s3"])
def test_a_long_log_is_cut_while_clients_commit_and_the_next_leader_takes_over(
    store: str, prove: bool, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    batches, keep = (1_000_000, 10_000) if prove else (4_000, 1_500)
    result = tmp_path / "result.json"
    words = ["--batches", batches, "--keep", keep, "--json", result, "--folder", tmp_path]
    words += [] if prove else ["--seconds", 0.5, "--after-seconds", 1, "--steps", 2]
    words += ["--s3", "--far"] if store == "s3" else []
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    found = json.loads(result.read_text())
    for name, ratio in found["ratios"].items():
        record_property(f"{store} {name}", ratio)
    assert batches - keep - 1 <= found["deleted"] <= batches - keep, "all that no policy needs, and nothing else"
    assert found["left"] >= keep
    assert found["waits_of_the_next_leader"] <= 4
