"""``holdfast spark ingest`` between two stores, killed with all around it: one right verdict for each request."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import pytest
from examples.cluster.standalone import CONF, standalone_cluster
from tests.spark.conftest import QUICK_JAVA
from tests.spark.live_requests import SECONDS_MAX, IngestCommand, LiveClient, Service, judge
from tests.spark.log_builder import read_plainly

from holdfast import StoreClient
from holdfast.cli.main import main
from holdfast.client.stores import define_spark_stores
from holdfast.commit.format.batch import Kind, decode_header, slot_of


@contextmanager
def a_service(folder: Path) -> Iterator[Service]:
    service = Service(folder)
    service.start()
    try:
        with StoreClient(service.url) as client:
            define_spark_stores(client)
        yield service
    finally:
        service.kill()


def log_of(folder: Path) -> tuple[dict[str, int], list[int]]:
    """What the log has, read without the product's reader: version by request id, and the versions of claims."""
    named = {slot_of(f"batches/{path.name}"): path.read_bytes() for path in (folder / "batches").iterdir()}
    objects = {slot: data for slot, data in named.items() if slot is not None}
    live = read_plainly(objects)
    found: dict[str, int] = {}
    for batch in live:
        for txn in batch.transactions:
            if txn.request_id is not None:
                assert txn.request_id not in found, "a request is committed once"
                found[txn.request_id] = txn.version
    headers = [decode_header(data, slot=slot) for slot, data in objects.items()]
    return found, [header.last_version for header in headers if header.kind is Kind.CLAIM]


class Killing:
    """Ends processes around a running command, each in the middle of the work."""

    def __init__(self, service: Service, ingest: IngestCommand, random: Random) -> None:
        self._service, self._ingest, self._random = service, ingest, random
        self.counts: Counter[str] = Counter()

    def kill(self, victim: str) -> None:
        self.counts[victim] += 1
        match victim:
            case "service":
                self._service.kill()
                self._service.start()
            case "executor":
                for pid in self._random.sample(executors := executors_of_this_machine(), min(1, len(executors))):
                    os.kill(pid, signal.SIGKILL)
            case _:
                self._ingest.kill()
                self._ingest.start()

    def keep_running(self) -> None:
        """Start the command again when it has ended by itself, as its supervisor would."""
        if not self._ingest.is_running:
            self.counts["ended by itself"] += 1
            self._ingest.start()


def executors_of_this_machine() -> list[int]:
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                is_one = b"CoarseGrainedExecutorBackend" in (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if is_one:
                found.append(int(entry.name))
    return found


def send_and_kill(
    client: LiveClient, killing: Killing, count: int, chunk: int, victims: list[str], busy_s: float
) -> None:
    """Send ``count`` requests in chunks, each when that before the last is answered; kill once in each chunk."""
    random = Random(count)
    until = time.monotonic() + 12 * SECONDS_MAX
    while client.sent < count or len(client.verdicts) < client.sent:
        if client.sent < count and len(client.verdicts) > client.sent - 2 * chunk:
            client.send(min(chunk, count - client.sent))
            if victims:
                client.receive(random.uniform(0, busy_s))
                killing.kill(victims.pop())
        killing.keep_running()
        client.receive(0.5)
        assert time.monotonic() < until


@pytest.mark.matrix  # test_message_requests kills a driver while it reports
@pytest.mark.timeout(4 * 3600)
def test_each_request_has_one_verdict_whatever_is_killed(
    quick_java: None, quick_python: None, tmp_path: Path, prove: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a proof: a million requests, a cluster of two workers, and fifty kills of driver, executor and service."""
    count, chunk, busy_s = (1_000_000, 20_000, 6.0) if prove else (600, 150, 0.5)
    victims = ["driver", "service", "executor"] * 17 if prove else ["driver", "service"]
    began = time.monotonic()
    log = tmp_path / "log"
    more = ["--verdicts-to", "verdicts", "--every", "0", "--max-requests", str(chunk)]
    with a_service(tmp_path) as service, ExitStack() as stack:
        if prove:
            more += ["--master", stack.enter_context(standalone_cluster(tmp_path, QUICK_JAVA))]
            more += [word for name, value in CONF.items() for word in ("--conf", f"{name}={value}")]
        ingest = IngestCommand(tmp_path, f"store:{service.url}/requests/spark", log.as_uri(), *more)
        ingest.start()
        client = LiveClient(service.url)
        killing = Killing(service, ingest, Random(chunk))
        try:
            client.begin()
            send_and_kill(client, killing, count, chunk, victims[:50], busy_s)
            client.drain(2.0)
            assert ingest.stop() == 0, ingest.tail()
        finally:
            ingest.kill()
            client.close()
    seconds = time.monotonic() - began
    committed, claims = log_of(log)
    counts = judge(client, committed, claims)
    assert counts["committed"] > count // 4 and counts["conflict"] > 0, counts
    assert main(["log", "verify", log.as_uri()]) == 0
    with capsys.disabled():
        print(f"\n{count:,} requests: {counts}; killed {dict(killing.counts)}; {len(claims)} leaders, {seconds:.0f} s")
