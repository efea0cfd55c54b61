"""A write whose rows Spark computes again, on a real cluster that loses an executor or its driver: each key once.

Five plans, ten moments, one kill each: staged objects or committed keys say when. A job that ended is run again with
its token and another number of partitions. ``HOLDFAST_PROVE=1`` runs all with 40,000 rows.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from examples.cluster.standalone import standalone_cluster
from tests.spark.conftest import QUICK_JAVA
from tests.spark.plans_script import PLANS
from tests.spark.service_process import ServiceProcess
from tests.spark.test_runtimes import ROOT, bare_python, packed_source

from holdfast.client import Client, ClientOptions
from holdfast.commit.format.transaction import Write
from holdfast.spark import find_java
from holdfast.spark.runtime.service_client import ServiceClient
from holdfast.spark.sink.stage import ServiceStage

PROVES = os.environ.get("HOLDFAST_PROVE") == "1"
ROWS = 40_000 if PROVES else 4_000
PARTITIONS = 8
STAGED = (1, 2, 4, 6, 8)
COMMITTED = (1, ROWS // 10, ROWS // 3, 2 * ROWS // 3, 9 * ROWS // 10)
MOMENTS = [*(("staged", count) for count in STAGED), *(("committed", count) for count in COMMITTED)]
CASES = [
    (plan, what, count, victim)
    for number, (plan, (what, count)) in enumerate(itertools.product(PLANS, MOMENTS))
    for victim in (("executor", "driver")[(number + number // len(MOMENTS)) % 2],)
]
SMALL = [case for case in CASES if case[:3] in (("shuffle", "staged", 1), ("rand", "committed", 1))]
SECONDS_MAX = 240
pytestmark = pytest.mark.timeout(900)


@dataclass(frozen=True)
class Cluster:
    master: str
    archive: Path
    python: Path
    service: ServiceProcess

    def start(self, plan: str, token: str, partitions: int) -> subprocess.Popen[bytes]:
        """One run of the job."""
        script = str(Path(__file__).with_name("plans_script.py"))
        arguments = [self.master, self.service.url, plan, token, str(partitions), str(ROWS), str(self.archive)]
        environment = {
            **os.environ,
            "JAVA_HOME": str(find_java()),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": str(self.python),
        }
        return subprocess.Popen(
            [sys.executable, script, *arguments],
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
            except OSError:
                continue
            if b"CoarseGrainedExecutorBackend" in line and str(self.archive.parent).encode() in (
                os.readlink(folder / "cwd").encode()
            ):
                found.append(int(folder.name))
        return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "log").mkdir()
    with ServiceProcess(folder / "log") as service, standalone_cluster(folder, QUICK_JAVA) as master:
        yield Cluster(master, packed_source(folder), bare_python(folder), service)


def reached(service: ServiceProcess, token: str, what: str, count: int) -> Callable[[], bool]:
    """Whether this number of objects is staged, or of keys committed."""

    def staged() -> bool:
        with ServiceClient(service.url, ClientOptions()) as client:
            log_id = client.version().log_id
            assert log_id is not None
            return sum(1 for _ in ServiceStage(client, log_id, token).listed()) >= count

    def committed() -> bool:
        with Client(service.url) as client:
            found, begin, end = 0, f"{token}/".encode(), f"{token}0".encode()
            at = client.version().version
            while found < count:
                page = client.range(begin, end, limit=1000, at=at)
                found += len(page.items)
                if not page.more:
                    break
                begin = page.items[-1].key + b"\0"
            return found >= count

    return staged if what == "staged" else committed


def ended(job: subprocess.Popen[bytes]) -> tuple[int, str]:
    """How a job ended, and what it said last."""
    _, said = job.communicate(timeout=SECONDS_MAX)
    return job.returncode, said.decode(errors="replace")[-3000:]


@pytest.mark.matrix
@pytest.mark.parametrize("case", CASES if PROVES else SMALL, ids=lambda case: "-".join(map(str, case)))
def test_a_write_that_loses_a_process_has_each_key_once(cluster: Cluster, case: tuple[str, str, int, str]) -> None:
    plan, what, count, victim = case
    token = f"{plan}-{what}-{count}"
    is_there = reached(cluster.service, token, what, count)
    job = cluster.start(plan, token, PARTITIONS)
    deadline = time.monotonic() + SECONDS_MAX
    while job.poll() is None and not is_there():
        assert time.monotonic() < deadline, "the job comes to nothing"
        time.sleep(0.02)
    was_alive = job.poll() is None
    if was_alive and victim == "driver":
        os.killpg(job.pid, signal.SIGKILL)
    elif was_alive:
        os.kill(cluster.executors()[0], signal.SIGKILL)
    code, said = ended(job)
    for partitions in (5, 11, 3):
        if code == 0:
            break
        code, said = ended(cluster.start(plan, token, partitions))
    assert code == 0 or "written before, with other rows" in said, said
    keys = [b"%s/%06d" % (token.encode(), number) for number in range(ROWS)]
    assert written(cluster.service, token) == Counter(keys)
    print(f"{case}: killed {victim if was_alive else 'nothing: it had ended'}")


def written(service: ServiceProcess, token: str) -> Counter[bytes]:
    """How often each key of a write was written."""
    prefix = f"{token}/".encode()
    return Counter(
        operation.key
        for txn in service.transactions()
        for operation in txn.operations
        if isinstance(operation, Write) and operation.key.startswith(prefix)
    )
