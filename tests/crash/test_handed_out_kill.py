"""What applications are handed, seen from outside, while workers and services are killed and stopped.

Workers of one shared durable are processes; each writes a journal, and ``tests/journals.py`` judges all of them. In one
mode the stores are in files, and a killed service is started again. In the other one they are in the log, and a standby
takes over. Each round has its own store and ends when all its messages are done.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final, Protocol

import pytest
from tests.crash import handed_out_worker
from tests.integration.clients_of_a_pair import How, Pair, pair
from tests.integration.test_store_client import Service
from tests.integration.test_stores_in_log import begin
from tests.journals import SERVICE, Fault, Judgement, hand_overs_of, judge

from holdfast.client.stores import Message, StoreClient

PROVE = os.environ.get("HOLDFAST_PROVE") == "1"
KILLS, STOPS = (20, 10) if PROVE else (2, 2)
SEED: Final = int(os.environ.get("HOLDFAST_SEED", "20261130"))
JOBS_MS: Final = (50, 50, 100, 200, 500, 1_000)
KEYS: Final = 12
STOP_SECONDS: Final = (1.0, 7.0)
"""Of a worker: within and above the default ``subscriber_timeout``."""
ROUND_SECONDS_MAX: Final = 150.0
SIGN_INTERVAL_MS: Final = "2000"
"""The default. With less, the standby takes over on a machine that is busy."""
ACK_WAIT_SECONDS: Final = 30.0
DURABLES: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"key_ordered": True},
    {"ack_wait": 3},
    {"ack_wait": 3, "key_ordered": True},
    {"ack_wait": 0.7},
)
"""Shared, with these parameters; otherwise with defaults. A job of a second is too long for the last one."""


def now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Services(Protocol):
    """What serves the stores of a round."""

    urls: list[str]
    after_a_stop: str
    """``stopped``: it goes on; ``replaced``: another one goes on."""

    def kill(self) -> int:
        """``kill -9``. Returns when the stores were served again."""

    def freeze(self) -> int:
        """SIGSTOP. Returns when the stores were served again."""


class InFiles:
    """One service, which is started again."""

    after_a_stop = "stopped"

    def __init__(self, service: Service) -> None:
        self._service = service
        self.urls = [service.url]

    def kill(self) -> int:
        self._service.restart()
        self._service.process.wait_until_leading()
        return now_ns()

    def freeze(self) -> int:
        self._service.process.pause()
        time.sleep(STOP_SECONDS[1])
        self._service.process.resume()
        return now_ns()


class InLog:
    """A leader and a standby, which change their parts. One take-over that nobody asked for spoils the journals."""

    after_a_stop = "replaced"

    def __init__(self, services: Pair) -> None:
        self._services = services
        self.urls = services.urls

    def kill(self) -> int:
        return self._take_over("kill")

    def freeze(self) -> int:
        return self._take_over("freeze")

    def _take_over(self, how: How) -> int:
        services = self._services
        assert services.leader.server.leads(), "the machine was too slow: the standby leads already"
        services.take_over(how)
        ready_ns = now_ns()
        deposed = services.standby.server
        deposed.resume()  # its clients may believe that it leads, and so may it
        while deposed.running and (deposed.livez() or {}).get("leading", True):
            time.sleep(0.02)
        services.stand_by_again()
        return ready_ns


@contextmanager
def serving(mode: str, folder: Path) -> Iterator[Services]:
    if mode == "log":
        with pair(folder, begin(folder), HOLDFAST_LEADER__SIGN_INTERVAL_MS=SIGN_INTERVAL_MS) as services:
            yield InLog(services)
            assert services.leader.server.leads(), "the machine was too slow: the standby leads already"
        return
    service = Service(folder)
    try:
        yield InFiles(service)
    finally:
        service.process.kill()


@dataclass(frozen=True)
class Plan:
    """One round. A worker, the ``SERVICE``, or first one and then the other is killed or stopped (``fault``)."""

    number: int
    fault: str
    hits: str
    workers: int
    durable: dict[str, Any]


def plans(mode: str) -> Iterator[Plan]:
    """This mode's half of all rounds."""
    workers, durables = cycle((4, 2, 8, 3, 6)), cycle(DURABLES)
    number = 0
    for fault, rounds in (("killed", KILLS // 2), ("stopped", STOPS // 2)):
        for hits in islice(cycle(("both", SERVICE, "worker")), rounds):
            yield Plan(number, fault, hits, next(workers), next(durables))
            number += 1


@dataclass
class Round:
    """The workers of one store, and what happens to them."""

    services: Services
    plan: Plan
    folder: Path
    client: StoreClient
    ends: ExitStack
    store: str = ""
    faults: list[Fault] = field(default_factory=list)
    published: dict[int, int] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store = f"round-{self.plan.number}"
        self._chance = random.Random(f"{SEED} {self.plan}")
        self._incarnations = 0
        self.folder.mkdir()
        self.client.define_store(self.store)
        self.client.define_durable(self.store, "work", {"type": "shared", **self.plan.durable})

    def publish(self, count: int) -> None:
        """Jobs for ``count`` messages of each worker."""
        messages = [
            Message(b"%d" % self._chance.choice(JOBS_MS), key=f"key-{self._chance.randrange(KEYS)}")
            for _ in range(count * self.plan.workers)
        ]
        with self.client.publisher(self.store) as publisher:
            began_ns = now_ns()
            receipt = publisher.publish_batch(messages)
        self.published |= dict.fromkeys(range(receipt.first_seq, receipt.last_seq + 1), began_ns)

    def start(self, name: str) -> None:
        """One more process with the subscriber name ``name``, and a journal of its own."""
        self._incarnations += 1
        kind = handed_out_worker.KINDS[self._incarnations % len(handed_out_worker.KINDS)]
        journal = f"{name}.{self._incarnations}.{kind}"
        words = [",".join(self.services.urls), self.store, name, str(self.folder / journal), kind]
        command = ["setpriv", "--pdeathsig", "KILL", sys.executable, handed_out_worker.__file__, *words]
        process = self.processes[journal] = subprocess.Popen(command)
        self.ends.callback(process.wait)
        self.ends.callback(process.kill)

    def hits(self) -> list[Callable[[], None]]:
        """What happens, in some order."""
        hit_worker, hit_service = (
            (self.kill_worker, self.services.kill)
            if self.plan.fault == "killed"
            else (self.stop_worker, self.services.freeze)
        )
        found: list[Callable[[], None]] = []
        if self.plan.hits != SERVICE:
            found.append(hit_worker)
        if self.plan.hits != "worker":
            found.append(lambda: self.hit(SERVICE, hit_service))
        self._chance.shuffle(found)
        return found

    def hit(self, who: str, fault: Callable[[], int]) -> None:
        kind = self.services.after_a_stop if who == SERVICE and self.plan.fault == "stopped" else self.plan.fault
        begin_ns = now_ns()
        self.faults.append(Fault(kind, who, begin_ns, fault()))

    def kill_worker(self) -> None:
        journal = self._chance.choice(list(self.processes))
        process = self.processes.pop(journal)

        def kill() -> int:
            process.kill()
            process.wait()
            return now_ns()

        self.hit(journal, kill)
        self.start(journal.partition(".")[0])

    def stop_worker(self) -> None:
        """Twice: the second time for so long that its messages are given to others."""
        process = self.processes[journal := self._chance.choice(list(self.processes))]
        for seconds in STOP_SECONDS:

            def stop(seconds: float = seconds) -> int:
                process.send_signal(signal.SIGSTOP)
                time.sleep(seconds)
                process.send_signal(signal.SIGCONT)
                return now_ns()

            self.hit(journal, stop)
            self.until_handed(self.plan.workers)

    def lines(self) -> dict[str, list[str]]:
        return {path.name: path.read_text().splitlines() for path in self.folder.iterdir()}

    def handed(self) -> int:
        return sum(line.startswith("handed") for lines in self.lines().values() for line in lines)

    def until_handed(self, more: int) -> None:
        """So many more messages, or all."""
        least = self.handed() + more
        self.until(lambda: self.handed() >= least or not self.left())

    def left(self) -> int:
        counts = self.client.describe_durable(self.store, "work")["counts"]
        assert isinstance(counts, dict)
        return int(counts["messages"])

    def until(self, is_true: Callable[[], bool]) -> None:
        end = time.monotonic() + ROUND_SECONDS_MAX
        while not is_true():
            ended = [name for name, process in self.processes.items() if process.poll() is not None]
            assert not ended, f"a worker ended by itself: {ended}"
            assert time.monotonic() < end, f"{self.plan}: {self.left()} left, {self.faults}"
            time.sleep(0.05)

    def run(self) -> Judgement:
        for number in range(self.plan.workers):
            self.start(f"worker-{number}")
        self.publish(15)
        for hit in self.hits():
            self.until_handed(4 * self.plan.workers)
            time.sleep(self._chance.uniform(0.0, 1.0))
            hit()
            self.publish(8)
        self.until(lambda: not self.left())
        ack_wait_ns = round(self.plan.durable.get("ack_wait", ACK_WAIT_SECONDS) * 1e9)
        return judge(self.published, hand_overs_of(self.lines()), self.faults, ack_wait_ns)


@pytest.mark.matrix
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("mode", ["files", "log"])
def test_only_what_is_held_is_handed_out(
    mode: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    anomalies: list[str] = []
    with serving(mode, tmp_path) as services, StoreClient(services.urls) as client:
        for plan in plans(mode):
            with ExitStack() as ends:
                found = Round(services, plan, tmp_path / f"round-{plan.number}", client, ends).run()
            again = dict(found.repeats)
            print(f"{mode} {plan}: {found.messages} messages, {found.hand_overs} hand-overs, {again=}")
            anomalies += found.anomalies
            record_property("hand_overs_under_kills", found.hand_overs)
    assert not anomalies, "\n".join(anomalies)
