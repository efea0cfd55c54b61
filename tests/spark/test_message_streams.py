"""A queue and a store into Delta tables and out into other stores, with kills of the driver and of the service: each
message once, compared by value."""

from __future__ import annotations

import os
import random
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.rgw import free_port
from tests.spark.message_streams import Places, as_argument, make_tables, start
from tests.spark.service_process import ROOT, ServiceProcess

from holdfast import StoreClient
from holdfast.client.protocol.options import PublisherOptions
from holdfast.queue import Queue
from holdfast.wire.parts import Message

PROVE = os.environ.get("HOLDFAST_PROVE") == "1"
KILLS = 40 if PROVE else 4
SECONDS_MAX = 3_600 if PROVE else 300
PORTION = 25

pytestmark = pytest.mark.timeout(SECONDS_MAX)


class Producer:
    """Appends to the queue and publishes into the store, until it is stopped, whatever happens to the service."""

    def __init__(self, queue: Path, url: str, seed: int) -> None:
        self.bodies: list[bytes] = []
        self._draw = random.Random(seed)
        self._queue, self._url = queue, url
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(120)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        options = PublisherOptions(retry_duration=-1)
        try:
            with (
                Queue(self._queue) as queue,
                StoreClient(self._url) as client,
                client.publisher("given", publisher_id="producer", next_seq=1, options=options) as publisher,
            ):
                while not self._ends.wait(0.2):
                    first = len(self.bodies)
                    bodies = [b"%d/%s" % (first + index, self._draw.randbytes(40)) for index in range(PORTION)]
                    self.bodies += bodies
                    queue.append_many(bodies)
                    publisher.publish_batch([Message(body) for body in bodies])
        except BaseException as error:  # noqa: BLE001 - raised where the producer ends
            self.error = error


@contextmanager
def running(places: Places) -> Iterator[subprocess.Popen[bytes]]:
    """The driver in a process group of its own, which is killed at the end."""
    with (
        Path(places.root, "driver.log").open("a") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "tests.spark.message_streams", as_argument(places)],
            stdout=subprocess.PIPE,
            stderr=errors,
            bufsize=0,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
            start_new_session=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def wait_for_progress(process: subprocess.Popen[bytes], lines: int) -> None:
    """Wait for this many micro-batches from now on. Raises: AssertionError for a line that says why a query failed."""
    assert process.stdout is not None
    found = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while selector.select(0):  # what was reported before
            assert os.read(process.stdout.fileno(), 65_536), "the driver has ended"
        while found.count(b"\n") < lines:
            assert selector.select(120), "the driver makes no progress"
            part = os.read(process.stdout.fileno(), 65_536)
            assert part, "the driver has ended"
            found += part
    assert set(found.split(b"\n")) <= {b"progress", b""}, found


@pytest.mark.matrix  # test_queue_source, test_served_store_source and test_store_sink repeat each part alone
def test_messages_stream_into_tables_and_out_again_once_whatever_is_killed(
    spark: SparkSession, tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    record_property("seed", seed)
    draw = random.Random(seed)
    listen = f"127.0.0.1:{free_port()}"
    places = Places(str(tmp_path / "queue"), f"http://{listen}", str(tmp_path))
    settings = (f"stores.directory={tmp_path / 'stores'}", f"stores.durability={draw.choice(['log', 'disk'])}")
    (tmp_path / "log").mkdir()
    make_tables(places)
    service = ServiceProcess(tmp_path / "log", *settings, listen=listen)
    try:
        with StoreClient(places.service) as client:
            for store, durable in (("given", "lake"), ("from-queue", "all"), ("from-store", "all")):
                client.define_store(store)
                client.define_durable(store, durable, {"type": "standard", "prefetch": 1024})
        with Queue(places.queue):
            pass  # a stream needs a queue that is there
        with Producer(Path(places.queue), places.service, seed) as producer:
            kills = 0
            while kills < KILLS:
                with running(places) as driver:
                    wait_for_progress(driver, 2)
                    for _ in range(draw.randrange(1, 3)):  # of the service, under a driver
                        time.sleep(draw.random())
                        service.kill()
                        service = ServiceProcess(tmp_path / "log", *settings, listen=listen)
                        wait_for_progress(driver, 1)
                        kills += 1
                    time.sleep(draw.random())
                kills += 1
        for stage in ("in", "out"):
            queries = [start(spark, places, stage, name, until_now=True) for name in ("queue", "store")]
            assert all(query.awaitTermination(120) for query in queries), seed
        expected = Counter(producer.bodies)
        assert len(expected) > PORTION
        for name in ("queue", "store"):
            table = DeltaTable(places.table(name)).to_pyarrow_table()
            assert Counter(table["body"].to_pylist()) == expected, (name, seed)
            with StoreClient(places.service) as client:
                found = Counter(each.body for each in client.browser(f"from-{name}", "all"))
            assert found == expected, (name, seed)
        with StoreClient(places.service) as client:
            counts = client.describe_durable("given", "lake")["counts"]
            assert isinstance(counts, dict) and counts["acknowledged"] > 0
        record_property("kills", kills)
    finally:
        service.__exit__(None, None, None)
