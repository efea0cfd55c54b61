"""The example of one step for keys and messages: workers and leaders are killed, and the books balance."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from random import Random

from examples.stores import ship_orders
from tests.integration.test_stores_in_log import begin, machines

WORKER = """
import sys, threading
from examples.stores.ship_orders import work
work(sys.argv[2:], sys.argv[1], threading.Event())
"""


def worker(number: int, urls: list[str]) -> subprocess.Popen[bytes]:
    paths = ":".join(path for path in sys.path if path)
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, f"worker-{number}", *urls],
        env={"PYTHONPATH": paths, "PATH": "/usr/bin:/bin"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def test_the_books_balance_when_workers_and_leaders_are_killed(tmp_path: Path, prove: bool) -> None:
    orders, kills = (2_000, 6) if prove else (60, 1)
    random = Random(orders)
    url = begin(tmp_path)
    with machines(tmp_path, url) as two:
        leader, standby = two
        leader.serve(HOLDFAST_VIEW__ENABLED="true")
        standby.stand_by(HOLDFAST_VIEW__ENABLED="true")
        urls = [f"http://127.0.0.1:{machine.port}" for machine in two]
        ship_orders.prepare(urls, orders)
        workers = [worker(number, urls) for number in range(3)]
        try:
            until = time.monotonic() + 240
            for kill in range(1, kills + 1):
                while len(ship_orders.invoices(urls)) < orders * kill // (kills + 1):
                    assert time.monotonic() < until, leader.server.tail()
                    time.sleep(0.05)
                victim = random.randrange(3)
                end(workers[victim])
                workers[victim] = worker(victim, urls)
                leader.server.kill()
                leader, standby = standby, leader
                leader.wait()
                standby.stand_by(HOLDFAST_VIEW__ENABLED="true")
            while len(ship_orders.invoices(urls)) < orders:
                assert time.monotonic() < until, leader.server.tail()
                time.sleep(0.1)
            assert ship_orders.balance(urls, orders).endswith("balanced")
        finally:
            for each in workers:
                end(each)
