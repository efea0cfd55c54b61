"""What all lanes share: how much is run, and what a run must leave behind.

``HOLDFAST_PROVE=1`` raises the numbers (``make prove``), tells a failure when it happens, refuses skipped tests and
writes ``proof.json``. ``CI=true`` refuses skipped tests too. ``HOLDFAST_PROOF_GOES_ON=1`` adds to the proof of the run
before. A test adds its own counts to the proof with ``record_property("seeds", 5000)``. A test with the mark
``program("etcd")`` needs a program that ``make test`` does not install: it is deselected where the program is absent,
and a proof does not begin.

A test of real processes and sockets that the machine failed (an OSError, a time-out among them) is tried once more, and
what failed is printed. A broken promise is an AssertionError: that has no second try, nor has anything of a proof, nor
any other lane.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import shutil
import subprocess
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tests.azure_lane import azurite_program

ROOT = Path(__file__).parent.parent
REAL_LANES = ("integration", "spark")
PROVE = os.environ.get("HOLDFAST_PROVE") == "1"
SMALL = os.environ.get("HOLDFAST_SMALL") == "1"
DURATIONS = os.environ.get("HOLDFAST_DURATIONS")
NO_SKIPS = PROVE or os.environ.get("CI") == "true"

gc.disable()  # until all tests are collected: what a collection makes stays

settings.register_profile("test", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("small", settings.get_profile("test"), max_examples=30)
settings.register_profile("prove", settings.get_profile("test"), max_examples=2_000)
settings.load_profile("prove" if PROVE else "small" if SMALL else "test")


def is_installed(program: str) -> bool:
    """Whether a test with this mark runs here. ``make prove`` installs Azurite: there its absence is a failure."""
    if program == "azurite-blob":
        return PROVE or azurite_program() is not None
    return shutil.which(program) is not None or (program == "java" and bool(os.environ.get("JAVA_HOME")))


class Lane:
    """What one folder of tests did."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0
        self.skipped = 0
        self.seconds = 0.0
        self.counts: dict[str, int | float] = defaultdict(int)


class Proof:
    """Collects what every lane did; an instance is registered as a plugin."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.lanes: dict[str, Lane] = defaultdict(Lane)
        self.skipped: list[str] = []
        self.durations: dict[str, float] = defaultdict(float)
        self.began = time.time()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called three times for each test; the test itself counts once, its set-up and tear-down when they fail."""
        parts = Path(report.nodeid.partition("::")[0]).parts
        lane = self.lanes[parts[1] if len(parts) > 2 else parts[0]]
        lane.seconds += report.duration
        self.durations[report.nodeid] += report.duration
        if report.failed:
            lane.failed += 1
            if PROVE:
                self._tell(report)
        elif report.skipped:
            lane.skipped += 1
            self.skipped.append(report.nodeid)
        elif report.when == "call":
            lane.passed += 1
        if report.when == "teardown":
            for name, value in report.user_properties:
                if isinstance(value, int | float):
                    lane.counts[name] += value

    def _tell(self, report: pytest.TestReport) -> None:
        """Say what failed when it fails: a proof takes two hours."""
        terminal: pytest.TerminalReporter | None = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            terminal.ensure_newline()
            terminal.section(f"failed: {report.nodeid}", red=True)
            terminal.write_line(report.longreprtext)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module that skips itself whole is a skipped lane too."""
        if report.skipped:
            self.skipped.append(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A skipped test fails the run where every lane must run."""
        if NO_SKIPS and self.skipped and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if DURATIONS:
            Path(DURATIONS).write_text(json.dumps(self.durations))
        if PROVE:
            path = ROOT / "proof.json"
            proof = self.summary(int(session.exitstatus))
            if os.environ.get("HOLDFAST_PROOF_GOES_ON") == "1":
                proof = joined(json.loads(path.read_text()), proof)
            path.write_text(json.dumps(proof, indent=2) + "\n")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say why a run without failures has failed."""
        for report in terminalreporter.stats.get("rerun", ()):
            terminalreporter.section(f"tried again: {report.nodeid}", yellow=True)
            terminalreporter.write_line(report.longreprtext)
        if NO_SKIPS and self.skipped:
            terminalreporter.section("skipped, and here that is a failure", red=True)
            for nodeid in self.skipped:
                terminalreporter.write_line(nodeid)

    def summary(self, exit_status: int) -> dict[str, object]:
        """The proof: what was run, on what, and what came of it."""
        return {
            "ok": exit_status == 0,
            "commit": _git("rev-parse", "HEAD"),
            "clean": _git("status", "--porcelain") == "",
            "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.began)),
            "seconds": round(time.time() - self.began, 1),
            "machine": {"system": platform.platform(), "cpu": _cpu(), "cores": os.cpu_count()},
            "python": platform.python_version(),
            "skipped": self.skipped,
            "lanes": {
                name: {
                    "passed": lane.passed,
                    "failed": lane.failed,
                    "skipped": lane.skipped,
                    "seconds": round(lane.seconds, 1),
                    "counts": dict(sorted(lane.counts.items())),
                }
                for name, lane in sorted(self.lanes.items())
            },
        }


def joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """One proof of two runs: as good as the worse of them, and none at all where they ran different commits."""
    same = first["commit"] == second["commit"]
    return {
        **second,
        "ok": first["ok"] and second["ok"] and same,
        "clean": first["clean"] and second["clean"],
        "began": first["began"],
        "seconds": round(first["seconds"] + second["seconds"], 1),
        "skipped": [*first["skipped"], *second["skipped"]],
        "lanes": dict(sorted({**first["lanes"], **second["lanes"]}.items())),
    }


def pytest_configure(config: pytest.Config) -> None:
    """Register the collector once."""
    config.pluginmanager.register(Proof(config), "holdfast-proof")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of programs that are absent, and give the lanes of real time their second try."""
    needed = {(item, mark.args[0]) for item in items for mark in item.iter_markers("program")}
    missing = {(item, program) for item, program in needed if not is_installed(program)}
    if missing and PROVE and not config.option.collectonly:
        raise pytest.UsageError(f"a proof needs these programs: {', '.join(sorted({each for _, each in missing}))}")
    absent = {item for item, _ in missing}
    if absent:
        config.hook.pytest_deselected(items=list(absent))
        items[:] = [item for item in items if item not in absent]
    if PROVE:
        return
    second_try = pytest.mark.flaky(reruns=1, only_rerun=[OSError], rerun_except=[AssertionError])
    for item in items:
        if item.path.is_relative_to(ROOT / "tests") and item.path.relative_to(ROOT / "tests").parts[0] in REAL_LANES:
            item.add_marker(second_try)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What all tests were collected into stays: no garbage collection of a test walks it again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def prove() -> bool:
    """Whether the large numbers are asked for."""
    return PROVE


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
