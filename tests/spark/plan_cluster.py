"""A real cluster whose jobs are scripts of these tests, and which loses executors and drivers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from examples.cluster.standalone import standalone_cluster
from tests.spark.conftest import QUICK_JAVA
from tests.spark.test_runtimes import ROOT, bare_python, packed_source

from holdfast.spark import find_java

SECONDS_MAX = 240


@dataclass(frozen=True)
class PlanCluster:
    """A master and two workers, the package as an archive, and a Python without it."""

    master: str
    archive: Path
    python: Path

    def start(self, script: str, *arguments: str) -> subprocess.Popen[bytes]:
        """One run of a script of this folder. It gets the master, these arguments, and the archive."""
        environment = {
            **os.environ,
            "JAVA_HOME": str(find_java()),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": str(self.python),
        }
        return subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(script)), self.master, *arguments, str(self.archive)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def executors(self) -> list[int]:
        """The executors of this cluster: Java processes of its workers."""
        found = []
        for folder in Path("/proc").iterdir():
            try:
                line = (folder / "cmdline").read_bytes() if folder.name.isdigit() else b""
                if b"CoarseGrainedExecutorBackend" in line and str(self.archive.parent) in os.readlink(folder / "cwd"):
                    found.append(int(folder.name))
            except OSError:
                continue
        return found

    def kill_when(self, job: subprocess.Popen[bytes], is_time: Callable[[], bool], victim: str) -> bool:
        """Kill the job's ``driver`` or an ``executor`` then. False: the job had ended before."""
        deadline = time.monotonic() + SECONDS_MAX
        while job.poll() is None and not is_time():
            assert time.monotonic() < deadline, "the job comes to nothing"
            time.sleep(0.02)
        if job.poll() is not None:
            return False
        victims = [job.pid] if victim == "driver" else self.executors()
        if not victims:
            return False  # the job is at its end, and has let them go
        os.kill(victims[0], signal.SIGKILL) if victim == "executor" else os.killpg(victims[0], signal.SIGKILL)
        return True


@contextmanager
def plan_cluster(folder: Path) -> Iterator[PlanCluster]:
    """A cluster that keeps its files in ``folder``."""
    with standalone_cluster(folder, QUICK_JAVA) as master:
        yield PlanCluster(master, packed_source(folder), bare_python(folder))


def ended(job: subprocess.Popen[bytes]) -> tuple[int, str]:
    """How a job ended, and what it said last."""
    _, said = job.communicate(timeout=SECONDS_MAX)
    return job.returncode, said.decode(errors="replace")[-3000:]
