"""A write whose rows Spark computes again, on a real cluster that loses an executor or its driver: each key once.

Five plans, ten moments, one kill each: staged objects or committed keys say when. A job that ended is run again with
its token and another number of partitions. ``HOLDFAST_PROVE=1`` runs all with 40,000 rows.
"""

from __future__ import annotations

import itertools
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from tests.spark.plan_cluster import PlanCluster, ended, plan_cluster
from tests.spark.plans_script import PLANS
from tests.spark.service_process import ServiceProcess

from holdfast.client import Client, ClientOptions
from holdfast.commit.format.transaction import Write
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
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PlanCluster, ServiceProcess]]:
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "log").mkdir()
    with ServiceProcess(folder / "log") as service, plan_cluster(folder) as cluster:
        yield cluster, service


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


@pytest.mark.matrix
@pytest.mark.parametrize("case", CASES if PROVES else SMALL, ids=lambda case: "-".join(map(str, case)))
def test_a_write_that_loses_a_process_has_each_key_once(
    running: tuple[PlanCluster, ServiceProcess], case: tuple[str, str, int, str]
) -> None:
    cluster, service = running
    plan, what, count, victim = case
    token = f"{plan}-{what}-{count}"

    def start(partitions: int) -> subprocess.Popen[bytes]:
        return cluster.start("plans_script.py", service.url, plan, token, str(partitions), str(ROWS))

    job = start(PARTITIONS)
    was_alive = cluster.kill_when(job, reached(service, token, what, count), victim)
    code, said = ended(job)
    for partitions in (5, 11, 3):
        if code == 0:
            break
        code, said = ended(start(partitions))
    assert code == 0 or "written before, with other rows" in said, said
    keys = [b"%s/%06d" % (token.encode(), number) for number in range(ROWS)]
    assert written(service, token) == Counter(keys)
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
