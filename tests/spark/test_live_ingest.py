"""``holdfast spark ingest`` between two stores, killed with all around it: one right verdict for each request."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
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


@pytest.mark.timeout(1200)
def test_each_request_has_one_verdict_whatever_is_killed(
    quick_java: None, quick_python: None, tmp_path: Path, prove: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    count, chunk, kills = (200_000, 5_000, 20) if prove else (600, 150, 2)
    random = Random(count)
    began = time.monotonic()
    log = tmp_path / "log"
    with a_service(tmp_path) as service:
        source = f"store:{service.url}/requests/spark"
        ingest = IngestCommand(tmp_path, source, log.as_uri(), "--verdicts-to", "verdicts", "--every", "0")
        ingest.start()
        client = LiveClient(service.url)
        try:
            client.begin()
            marks = sorted(random.sample(range(1, count // chunk), min(kills, count // chunk - 1)))
            victims = ["driver", "service"] * kills
            while client.sent < count:
                client.send(min(chunk, count - client.sent))
                if client.sent // chunk in marks:
                    time.sleep(random.uniform(0, 0.6))
                    if victims.pop(0) == "service":
                        service.kill()
                        service.start()
                    else:
                        ingest.kill()
                        ingest.start()
                if not ingest.is_running:
                    ingest.start()  # as its supervisor would
                client.receive(0.5)
            until = time.monotonic() + SECONDS_MAX
            while not client.receive(5):
                assert time.monotonic() < until, ingest.tail()
                if not ingest.is_running:
                    ingest.start()
            client.drain(2.0)
            assert ingest.stop() == 0, ingest.tail()
        finally:
            ingest.kill()
            client.close()
    seconds = time.monotonic() - began
    committed, claims = log_of(log)
    counts = judge(client, committed, claims)
    assert counts["committed"] > 0 and counts["conflict"] > 0, counts
    assert main(["log", "verify", log.as_uri()]) == 0
    with capsys.disabled():
        print(f"\n{counts}, {len(claims)} leaders, {seconds:.0f} s")
