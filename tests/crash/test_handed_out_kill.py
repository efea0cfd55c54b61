"""What an application is handed, seen from outside, while workers and leaders are killed and leaders are frozen.

Workers of one shared durable write down each hand-over and each confirmed acknowledgement, with the clock of the
machine. Nobody is handed a message after its acknowledgement was confirmed to somebody, a message that may have been
seen before is marked, and it comes twice only where a process died or was frozen, or its ``ack_wait`` ended.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from tests.crash.server_process import NO_VIEW, ServerProcess
from tests.rgw import free_port

from holdfast.client.stores import Message, StoreClient

PROVE = os.environ.get("HOLDFAST_PROVE") == "1"
KILLS, FREEZES = (20, 10) if PROVE else (2, 1)
WORKERS = (4, 2, 8) if PROVE else (4,)
JOB_SECONDS = 0.15
ACK_WAIT_SECONDS = 20.0
KNOWN_SECONDS = 1.0
"""How long after an acknowledgement was confirmed a hand-over may still come: the withdrawal is on its way."""
SEED = 20_261_129
WORKER = """
import os, sys, time
from holdfast import StoreClient
from holdfast.client.stores import SubscriberOptions
urls, path, name = sys.argv[1].split(","), sys.argv[2], sys.argv[3]
lines = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
options = SubscriberOptions(explicit_ack=True)
with StoreClient(urls) as client, client.subscriber("orders", "work", subscriber=name, options=options) as messages:
    for message in messages:
        os.write(lines, b"handed %d %f %d\\n" % (message.seq, time.monotonic(), message.redelivered))
        time.sleep(SECONDS)
        stale = messages.acknowledge(message, confirmed=True)
        if not stale:
            os.write(lines, b"done %d %f 0\\n" % (message.seq, time.monotonic()))
""".replace("SECONDS", str(JOB_SECONDS))


class Scene:
    """Two services of one log, each in the other's reach, and workers."""

    def __init__(self, folder: Path, ends: ExitStack) -> None:
        self.folder, self._ends = folder, ends
        self._chance = random.Random(SEED)
        self.ports = [free_port(), free_port()]
        self.services = [self._serve(0, "--init", "--set", "stores.durability=log")]
        self.services[0].wait_until_leading()
        self.services.append(self._serve(1, "--standby"))
        self.urls = [f"http://127.0.0.1:{port}" for port in self.ports]
        self.workers: dict[int, subprocess.Popen[bytes]] = {}
        self.changes: list[tuple[float, float]] = []
        """When something was killed or frozen, and when the service led again."""

    def _serve(self, index: int, *flags: str) -> ServerProcess:
        folder = self.folder / f"machine-{index}"
        folder.mkdir(exist_ok=True)
        log = (self.folder / "log").as_uri()
        flags = (*flags, "--set", f"stores.directory={folder / 'stores'}")
        service = ServerProcess(folder, log, self.ports[index], flags=flags, environment=NO_VIEW)
        self._ends.callback(service.kill)
        return service

    def work(self, number: int) -> None:
        path, name = str(self.folder / f"worker-{number}"), f"worker-{number}"
        command = ["setpriv", "--pdeathsig", "KILL", sys.executable, "-c", WORKER, ",".join(self.urls), path, name]
        worker = self.workers[number] = subprocess.Popen(command)
        self._ends.callback(worker.wait)
        self._ends.callback(worker.kill)

    def leader(self) -> int:
        while True:
            for index, service in enumerate(self.services):
                if service.leads():
                    return index
            time.sleep(0.02)

    @contextmanager
    def change(self) -> Iterator[int]:
        """Something happens to the leader; then the other one leads, and the first stands by."""
        index, began = self.leader(), time.monotonic()
        yield index
        self.services[1 - index].wait_until_leading()
        self.services[index].kill()
        self.services[index] = self._serve(index, "--standby")
        self.changes.append((began, time.monotonic()))

    def kill_leader(self) -> None:
        with self.change() as index:
            self.services[index].kill()

    def freeze_leader(self) -> None:
        with self.change() as index:
            self.services[index].pause()
            self.services[1 - index].wait_until_leading()
            self.services[index].resume()

    def kill_worker(self) -> None:
        number = self._chance.choice(list(self.workers))
        began = time.monotonic()
        self.workers[number].kill()
        self.workers[number].wait()
        self.work(number)
        self.changes.append((began, time.monotonic()))

    def happens(self) -> Iterator[None]:
        rounds = [self.kill_leader, self.kill_worker] * (KILLS // 2) + [self.freeze_leader] * FREEZES
        self._chance.shuffle(rounds)
        for each in rounds:
            time.sleep(self._chance.uniform(0.3, 1.5))
            each()
            yield

    def lines(self, kind: str) -> dict[int, list[tuple[float, str, bool]]]:
        """By message: when, who, and whether it was marked."""
        found: dict[int, list[tuple[float, str, bool]]] = defaultdict(list)
        for path in self.folder.glob("worker-*"):
            for line in path.read_text().splitlines():
                what, seq, at, marked = line.split()
                if what == kind:
                    found[int(seq)].append((float(at), path.name, marked == "1"))
        return {seq: sorted(rows) for seq, rows in found.items()}


@pytest.mark.matrix
@pytest.mark.timeout(1_500 if PROVE else 300)
@pytest.mark.parametrize("workers", WORKERS)
def test_only_what_is_held_is_handed_out(tmp_path: Path, workers: int) -> None:
    count = 0
    with ExitStack() as ends:
        scene = Scene(tmp_path, ends)
        client = ends.enter_context(StoreClient(scene.urls))
        client.define_store("orders")
        client.define_durable("orders", "work", {"type": "shared", "ack_wait": f"{ACK_WAIT_SECONDS}s"})
        for number in range(workers):
            scene.work(number)
        publisher = ends.enter_context(client.publisher("orders"))
        for _ in scene.happens():
            publisher.publish_batch([Message(b"%d" % number) for number in range(40)])
            count += 40
        while True:
            counts = client.describe_durable("orders", "work")["counts"]
            assert isinstance(counts, dict)
            if not counts["messages"]:
                break
            time.sleep(0.1)
    handed, done = scene.lines("handed"), scene.lines("done")
    assert len(handed) == count, "every message is handed to somebody"
    again = late = 0
    for seq, rows in handed.items():
        first_done = min((at for at, _, _ in done.get(seq, ())), default=float("inf"))
        for (before, _, _), (at, who, marked) in pairwise(rows):
            again += 1
            assert marked, f"{seq} was handed to {who} again and says that it was not"
            happened = any(began - KNOWN_SECONDS <= at and ended >= before for began, ended in scene.changes)
            assert happened or at - before >= ACK_WAIT_SECONDS, f"{seq} came twice and nothing had happened"
            if at > first_done + KNOWN_SECONDS:
                late += 1
    print(f"{workers} workers, {count} messages, {KILLS} kills, {FREEZES} freezes")
    print(f"{again} handed out again, {late} after their end")
    assert not late, "what somebody has acknowledged is handed to nobody"
