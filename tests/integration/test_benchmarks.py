"""Every benchmark starts: one that nobody runs for months must not have stopped working.

Each one runs for a second or so, as a process group of its own that is ended with everything that it started. What
fails by then fails with an exit code. Figures are not looked at.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.matrix import matrix

ROOT = Path(__file__).parent.parent.parent
BENCHMARKS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if not path.stem.startswith("_"))
PROVE = os.environ.get("HOLDFAST_PROVE") == "1"
SECONDS = 20.0 if PROVE else 3.0
"""Most of it is importing. A slow machine sees less of a benchmark, and fails none for that."""
USUAL = {"conflict_window", "queue_floor"}
NEEDS = {
    "commit_on_s3": ("radosgw", "wrk"),
    "commit_vs_etcd": ("etcd", "h2load", "wrk"),
    "failing_store": ("radosgw",),
    "http_lanes": ("wrk",),
    "programs": ("etcd", "redis-server"),
    "spark": ("java",),
    "spark_audit": ("java",),
    "spark_load_floor": ("java",),
    "spark_scaling": ("java",),
    "stores_floor": ("redis-server",),
}


@pytest.mark.parametrize(
    "name",
    matrix(
        [pytest.param(name, marks=[pytest.mark.program(each) for each in NEEDS.get(name, ())]) for name in BENCHMARKS],
        lambda name: name in USUAL,
    ),
)
def test_a_benchmark_starts_and_does_not_fail_at_once(name: str, tmp_path: Path) -> None:
    output = tmp_path / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "benchmarks" / f"{name}.py")],
            cwd=tmp_path,
            env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    code: int | None = None
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(SECONDS)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert code in (None, 0), output.read_text(errors="replace")[-3000:]


@pytest.mark.program("wrk")
def test_the_benchmark_of_the_two_lanes_runs_to_its_end(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    subprocess.run(
        [
            *(sys.executable, str(ROOT / "benchmarks" / "http_lanes.py")),
            *("--seconds", "1", "--connections", "4", "--json", str(figures)),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        check=True,
        timeout=100,
    )
    found = json.loads(figures.read_text())
    assert all(found[lane]["requests_per_second"] > 0 for lane in ("fast lane", "framework lane"))
