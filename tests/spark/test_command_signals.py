"""SIGTERM to a command of ``holdfast spark`` and to its process group, as a supervisor sends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import deltalake
import pytest
from tests.spark.log_builder import random_log

from holdfast.cli.spark import stopped_by_signals, stopped_by_sigterm
from holdfast.spark.runtime.session import java_without_sigterm

SECONDS_MAX = 300


def ignored_signals() -> int:
    """The mask of the signals that a program ignores which is started as PySpark starts Java."""
    status = subprocess.run(
        ["cat", "/proc/self/status"], preexec_fn=lambda: None, capture_output=True, text=True, check=True
    )
    line = next(line for line in status.stdout.splitlines() if line.startswith("SigIgn:"))
    return int(line.split()[1], 16)


def is_group_alive(group: int) -> bool:
    """Whether a process of this group runs."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_java_that_a_command_starts_ignores_sigterm_and_no_other_program_does() -> None:
    sigterm = 1 << (signal.SIGTERM - 1)
    assert not ignored_signals() & sigterm
    with java_without_sigterm():
        assert ignored_signals() & sigterm
        assert signal.getsignal(signal.SIGTERM) != signal.SIG_IGN
    assert not ignored_signals() & sigterm


def test_a_sigterm_before_spark_runs_stops_the_job_before_its_first_step() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stopped_by_sigterm() as early:
        os.kill(os.getpid(), signal.SIGTERM)
        with stopped_by_signals(early) as stop:
            assert stop.is_set()
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.matrix
@pytest.mark.timeout(2 * SECONDS_MAX)
def test_sigterm_to_the_process_group_ends_a_command_with_0_and_a_whole_table(
    quick_java: None, quick_python: None, tmp_path: Path
) -> None:
    builder = random_log(31, reigns=3)
    log, table = builder.write_to(tmp_path / "log"), tmp_path / "changes"
    words = ["spark", "changes", "--log", log, "--to", table.as_uri(), "--every", "0.2", "--master", "local[1]"]
    process = subprocess.Popen(
        [Path(sys.executable).parent / "holdfast", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + SECONDS_MAX
    while not deltalake.DeltaTable.is_deltatable(str(table)):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGTERM)
    output, errors = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0, output + errors
    # A worker of PySpark gets the signal, too, and may be ended while it reports that Java has closed its socket.
    assert "holdfast/cli" not in errors, "the command's own process prints no trace"
    while is_group_alive(process.pid):  # Java ends when it sees that the command has
        assert time.monotonic() < deadline + SECONDS_MAX
        time.sleep(0.1)
