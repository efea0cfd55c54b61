"""`make test` and the tests with the mark `matrix` are together all tests: no test is left out everywhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.matrix import matrix

from scripts import run_tests

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
LANES = re.findall(r"^LANES \?= (.*)$", MAKEFILE, re.MULTILINE)[0].split()


def recipe(target: str) -> str:
    """The commands of a target, as one line each."""
    joined = MAKEFILE.replace("\\\n", " ")
    return re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", joined, re.MULTILINE)[0]


def collected(lane: str, *selection: str, **environment: str) -> list[str]:
    """The tests that pytest chooses in a lane, sorted."""
    given = {name: value for name, value in os.environ.items() if name not in ("HOLDFAST_SMALL", "HOLDFAST_PROVE")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:schemathesis", "--collect-only", "-q", f"tests/{lane}", *selection],
        cwd=ROOT,
        env={**given, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED), done.stdout[-2000:]
    return sorted(line for line in done.stdout.splitlines() if line.startswith("tests/") and "::" in line)


def function_of(test: str) -> str:
    """A test without its parameters, which may be other ones in a proof."""
    return test.partition("[")[0]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("lane", matrix(LANES, lambda lane: lane == "scripts"))
def test_make_test_and_the_matrix_are_together_all_tests(lane: str) -> None:
    small = collected(lane, "-m", "not matrix", HOLDFAST_SMALL="1")
    large = collected(lane, "-m", "matrix")
    everything = collected(lane)
    assert sorted(small + large) == everything
    assert {function_of(test) for test in everything} <= {
        function_of(test) for test in collected(lane, HOLDFAST_PROVE="1")
    }


def test_the_groups_of_a_run_are_together_all_files() -> None:
    paths = [path for group in run_tests.groups_of(LANES).values() for path in group]
    assert len(set(paths)) == len(paths)
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")}
    assert all(any(file == path or file.startswith(f"{path}/") for path in paths) for file in files)


def test_no_lane_is_missing_and_only_make_test_selects() -> None:
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    assert {path.relative_to(ROOT / "tests").parts[0] for path in folders} == set(LANES)
    without = recipe("test").replace("HOLDFAST_SMALL=1 ", "").replace('-m "not matrix" ', "")
    assert without == recipe("test-all")
    for target in ("test-all", "prove"):
        assert (
            "matrix" not in recipe(target)
            and " -k " not in recipe(target)
            and "-m " not in recipe(target).replace("-m pytest", "")
        )


@pytest.mark.parametrize(
    ("script", "shown"),
    [
        ("print('FAILED tests/a.py::test_b'); print('1 failed'); raise SystemExit(1)", ["FAILED tests/a.py::test_b\n"]),
        ("print('+++ Timeout +++', flush=True); import os; os._exit(1)", ["spark +++ Timeout +++\n"]),
        ("print('1 passed')", []),
    ],
    ids=["failed", "died", "passed"],
)
def test_what_a_group_failed_of_is_kept_for_the_end(script: str, shown: list[str]) -> None:
    failures: list[str] = []
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        run_tests.show("spark", process, 5, failures)
    assert failures == shown
