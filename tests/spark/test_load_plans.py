"""A load whose rows are other ones each time, on a real cluster that loses an executor or its driver: each row once.

Kept parts, or objects of the log, say when. A job that ended is run again with its name and other partitions.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.spark.plan_cluster import PlanCluster, ended, plan_cluster
from tests.spark.test_bulk_load import told, transactions

from holdfast.commit.format.transaction import Write

ROWS = 40_000 if os.environ.get("HOLDFAST_PROVE") == "1" else 2_000
MOMENTS = [("staged", 2), ("log", 2), ("log", 4)]
CASES = [(*moment, victim) for moment in MOMENTS for victim in ("executor", "driver")]
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlanCluster]:
    with plan_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.mark.matrix
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_a_load_that_loses_a_process_has_each_row_once(
    cluster: PlanCluster, tmp_path: Path, case: tuple[str, int, str]
) -> None:
    what, count, victim = case
    log, verdicts, name = tmp_path / "log", tmp_path / "verdicts", f"{what}-{count}-{victim}"

    def start(partitions: int) -> subprocess.Popen[bytes]:
        return cluster.start("load_script.py", log.as_uri(), verdicts.as_uri(), name, str(partitions), str(ROWS))

    def is_time() -> bool:
        files = [path.relative_to(log) for path in log.rglob("*") if path.is_file()]
        return sum((path.parts[0] == "staged") == (what == "staged") for path in files) >= count

    job = start(4)
    was_alive = cluster.kill_when(job, is_time, victim)
    code, said = ended(job)
    for partitions in (3, 5):
        if code == 0:
            break
        code, said = ended(start(partitions))
    assert code == 0, said
    keys = [each.key for txn in transactions(log) for each in txn.operations if isinstance(each, Write)]
    assert Counter(keys) == Counter(b"%s/%06d" % (name.encode(), number) for number in range(ROWS))
    assert [row["outcome"] for row in told(verdicts)] == ["committed"] * ROWS
    print(f"{case}: killed {victim if was_alive else 'nothing: it had ended'}")
