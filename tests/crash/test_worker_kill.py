"""The README's worker under random ``kill -9`` of worker and service: every job is handled, none dropped or parked."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.crash.server_process import NO_VIEW, ServerProcess
from tests.rgw import free_port

from holdfast.client.stores import Message, StoreClient

PROVE = os.environ.get("HOLDFAST_PROVE") == "1"
KILLS = 200 if PROVE else 2 if os.environ.get("HOLDFAST_SMALL") == "1" else 8
SEED = 20_261_123
JOBS_EACH_KILL = 40
WORKER = """
import os, sys, time
from holdfast import StoreClient
handled = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def work(message):
    os.write(handled, b"%s %d %d\\n" % (message.body, message.delivery_count, message.redelivered))
    time.sleep(0.002)
with StoreClient(sys.argv[1]) as client, client.subscriber("orders", "work", subscriber="worker") as messages:
    messages.run(work)
"""


class Killing:
    """One service and one worker, of which now the one and now the other is killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.handled = folder / "handled"
        self.url = f"http://127.0.0.1:{self.port}"
        self.service = self._serve("--init")
        self.service.wait_until_leading()
        self.worker: subprocess.Popen[bytes] | None = None
        self.worker_kills = 0

    def _serve(self, flag: str) -> ServerProcess:
        log = (self.folder / "log").as_uri()
        return ServerProcess(self.folder, log, self.port, flags=[flag], environment=NO_VIEW)

    def work(self) -> None:
        command = ["setpriv", "--pdeathsig", "KILL", sys.executable, "-c", WORKER, self.url, str(self.handled)]
        self.worker = subprocess.Popen(command)

    def kill_service(self) -> None:
        self.service.kill()
        self.service = self._serve("--take-over")
        self.service.wait_until_leading()

    def kill_worker(self) -> None:
        assert self.worker is not None
        self.worker.kill()
        self.worker.wait()
        self.worker_kills += 1
        self.work()

    def end(self) -> None:
        if self.worker is not None:
            self.worker.kill()
            self.worker.wait()
        self.service.kill()

    def lines(self) -> list[tuple[str, int, int]]:
        rows = [line.split() for line in self.handled.read_text().splitlines()] if self.handled.exists() else []
        return [(job, int(count), int(again)) for job, count, again in rows]


@pytest.mark.timeout(1_500 if PROVE else 150)
def test_every_job_is_handled_and_none_is_dropped(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    killing = Killing(tmp_path)
    jobs = 0
    try:
        with StoreClient(killing.url) as client:
            client.define_store("orders")
            client.define_durable("orders", "work", {"type": "shared", "max_delivery": 5})
            killing.work()
            with client.publisher("orders") as publisher:
                for _ in range(KILLS):
                    batch = range(jobs, jobs + JOBS_EACH_KILL)
                    publisher.publish_batch([Message(b"%d" % job) for job in batch])
                    jobs += JOBS_EACH_KILL
                    time.sleep(chance.uniform(0.05, 0.5))
                    killing.kill_service() if chance.random() < 0.3 else killing.kill_worker()
            while True:
                counts = client.describe_durable("orders", "work")["counts"]
                assert isinstance(counts, dict)
                if counts["messages"] == counts["parked"]:
                    break
                time.sleep(0.05)
    finally:
        killing.end()
    lines = killing.lines()
    assert {job for job, _, _ in lines} == {str(job) for job in range(jobs)}, "every job is handled"
    assert (counts["parked"], counts["expired"]) == (0, {}), "none is dropped, none is parked"
    times: Counter[str] = Counter()
    early = 0
    for job, count, again in lines:
        # A worker that is killed between its report and its first line was handed a job that has no line.
        early += max(0, count - 1 - times[job])
        assert again or not times[job], "who may have seen a job before is told"
        times[job] += 1
    assert early <= killing.worker_kills, "a delivery counts only where the job was handed out"
