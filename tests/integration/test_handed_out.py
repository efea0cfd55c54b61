"""What a subscriber's application is handed is the subscriber's at that moment: workers against a real service.

Source: docs/reference/stores-client.md, "Receiving".
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import pytest
from tests.integration.test_store_client import NAMES, Service, wait_until

from holdfast.aio import StoreClient as AsyncStoreClient
from holdfast.client.stores import Delivery, Message, StoreClient

pytestmark = pytest.mark.usefixtures("durability")
WITHIN_SECONDS = 20


@pytest.fixture(scope="module")
def service(durability: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(tmp_path_factory.mktemp("service"))
    yield service
    service.process.kill()


@pytest.fixture
def client(service: Service) -> Iterator[StoreClient]:
    with StoreClient(service.url) as client:
        yield client


@pytest.fixture
def store(client: StoreClient) -> str:
    name = f"handed-{next(NAMES)}"
    client.define_store(name)
    return name


def publish(client: StoreClient, store: str, count: int) -> None:
    with client.publisher(store) as publisher:
        publisher.publish_batch([Message(b"%d" % number) for number in range(count)])


@dataclass(frozen=True)
class Job:
    """One hand-over."""

    worker: str
    seq: int
    redelivered: bool


class Workers:
    """Workers of one shared durable, each with a thread of its own, until ``count`` messages are acknowledged."""

    def __init__(self, url: str, store: str, names: list[str], job_seconds: float, count: int) -> None:
        self.jobs: list[Job] = []
        self._url, self._store, self._seconds, self._left = url, store, job_seconds, count
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._work, args=(name,)) for name in names]

    def run(self) -> None:
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join()

    def _work(self, name: str) -> None:
        with (
            StoreClient(self._url) as client,
            client.subscriber(self._store, "work", subscriber=name) as messages,
        ):
            while True:
                message = messages.receive(0.2)  # acknowledges the one before
                if message is None:
                    if self._left <= 0:
                        return
                    continue
                with self._lock:
                    self.jobs.append(Job(name, message.seq, message.redelivered))
                time.sleep(self._seconds)
                with self._lock:
                    self._left -= 1


def runs(url: str, client: StoreClient, store: str, *, ack_wait: str, seconds: float, count: int) -> list[Job]:
    """Every hand-over to two workers with defaults."""
    client.define_durable(store, "work", {"type": "shared", **({"ack_wait": ack_wait} if ack_wait else {})})
    publish(client, store, count)
    workers = Workers(url, store, ["left", "right"], seconds, count)
    workers.run()
    return workers.jobs


def test_slow_workers_with_defaults_run_each_job_once(service: Service, client: StoreClient, store: str) -> None:
    """Forty jobs of 50 ms and an ``ack_wait`` of 600 ms, as 130 jobs of a second and the default of 30 s are."""
    jobs = runs(service.url, client, store, ack_wait="600ms", seconds=0.05, count=40)
    assert sorted(job.seq for job in jobs) == list(range(1, 41))
    assert not any(job.redelivered for job in jobs)


@pytest.mark.matrix  # 70 seconds
def test_the_defaults_run_130_jobs_for_130_messages(service: Service, client: StoreClient, store: str) -> None:
    began = time.monotonic()
    jobs = runs(service.url, client, store, ack_wait="", seconds=1.0, count=130)
    assert sorted(job.seq for job in jobs) == list(range(1, 131))
    assert not any(job.redelivered for job in jobs)
    print(f"130 jobs of 1 s by two workers: {time.monotonic() - began:.1f} s")


class Slow:
    """A subscriber whose application takes a message when the test says so. Between two calls an asyncio loop stands
    still, and reads nothing."""

    def __init__(self, url: str, store: str, twin: str) -> None:
        self._twin, self._url, self._store = twin, url, store
        self._runner = asyncio.Runner()
        self._stack = contextlib.ExitStack()
        self._tasks = contextlib.AsyncExitStack()

    def __enter__(self) -> Self:
        if self._twin == "tasks":
            self._runner.run(self._attach())
        else:
            client = self._stack.enter_context(StoreClient(self._url))
            self._thread = self._stack.enter_context(client.subscriber(self._store, "work", subscriber="slow"))
        return self

    async def _attach(self) -> None:
        client = await self._tasks.enter_async_context(AsyncStoreClient(self._url))
        self._task = await self._tasks.enter_async_context(client.subscriber(self._store, "work", subscriber="slow"))

    def receive(self, timeout: float = WITHIN_SECONDS) -> Delivery | None:
        if self._twin == "tasks":
            return self._runner.run(self._task.receive(timeout))
        return self._thread.receive(timeout)

    def turn(self) -> bool:
        """Let the loop send what it has."""
        if self._twin == "tasks":
            self._runner.run(asyncio.sleep(0.01))
        return True

    def __exit__(self, *_: object) -> None:
        if self._twin == "tasks":
            self._runner.run(self._tasks.aclose())
        self._runner.close()
        self._stack.close()


def holds(client: StoreClient, store: str, name: str) -> int:
    subscribers = client.describe_durable(store, "work")["subscribers"]
    assert isinstance(subscribers, list)
    return next((int(one["unacknowledged"]) for one in subscribers if one["name"] == name), 0)


def fill(client: StoreClient, store: str, slow: Slow) -> None:
    """Sixteen quick messages open its window; of the next eight it takes one, and the service gave it more."""
    publish(client, store, 16)
    for _ in range(16):
        assert slow.receive() is not None
    publish(client, store, 8)
    taken = slow.receive()
    assert taken is not None and taken.seq == 17
    wait_until(lambda: slow.turn() and holds(client, store, "slow") == 8)


TWINS = pytest.mark.parametrize("twin", ["threads", "tasks"])


@TWINS
def test_what_another_has_acknowledged_is_not_handed_out(
    service: Service, client: StoreClient, store: str, twin: str
) -> None:
    terms = {"type": "shared", "ack_wait": "60s", "buffer_wait": "300ms"}
    client.define_durable(store, "work", terms)
    with Slow(service.url, store, twin) as slow:
        fill(client, store, slow)
        with client.subscriber(store, "work", subscriber="quick") as quick:
            others = [quick.receive(WITHIN_SECONDS) for _ in range(7)]
            assert quick.receive(0.01) is None  # acknowledges the last
        assert {(one.seq, one.redelivered, one.delivery_count) for one in others if one} == {
            (seq, True, 1) for seq in range(18, 25)
        }
        wait_until(lambda: holds(client, store, "slow") == 1)
        assert slow.receive(0.3) is None
        publish(client, store, 1)
        newest = slow.receive()
        assert newest is not None and newest.seq == 25


@TWINS
def test_purged_messages_are_not_handed_out(service: Service, client: StoreClient, store: str, twin: str) -> None:
    client.define_durable(store, "work", {"type": "shared"})
    with Slow(service.url, store, twin) as slow:
        fill(client, store, slow)
        client.purge(store, "work")
        publish(client, store, 1)
        newest = slow.receive()
        assert newest is not None and newest.seq == 25


@TWINS
def test_a_deleted_message_is_not_handed_out(service: Service, client: StoreClient, store: str, twin: str) -> None:
    client.define_durable(store, "work", {"type": "shared"})
    with Slow(service.url, store, twin) as slow:
        fill(client, store, slow)
        browser = client.browser(store, "work")
        for message in browser:
            if message.seq in {18, 20}:
                browser.delete(message)
        assert [one.seq for one in (slow.receive(), slow.receive(), slow.receive()) if one] == [19, 21, 22]


@TWINS
def test_nothing_old_is_handed_out_after_the_leader_slept(
    service: Service, client: StoreClient, store: str, twin: str
) -> None:
    """The leader stops (SIGSTOP) for longer than the time-out: what the subscriber has from before is dropped."""
    client.define_durable(store, "work", {"type": "shared", "ack_wait": "1s"})
    with Slow(service.url, store, twin) as slow:
        fill(client, store, slow)
        os.kill(service.process.pid, signal.SIGSTOP)
        time.sleep(1.2)  # by its own clock the client knows that its messages are no longer its own
        assert slow.receive(0.2) is None
        os.kill(service.process.pid, signal.SIGCONT)
        again = slow.receive()
        assert again is not None and again.redelivered


def test_a_pause_of_the_service_costs_its_subscribers_nothing(
    service: Service, client: StoreClient, store: str
) -> None:
    """Longer than ``subscriber_timeout``: what the subscriber sent meanwhile is read before it is judged."""
    client.define_durable(store, "work", {"type": "shared", "subscriber_timeout": "1s"})
    publish(client, store, 4)
    got: list[Delivery | None] = []
    with client.subscriber(store, "work", subscriber="slow") as slow:
        got.append(slow.receive(WITHIN_SECONDS))
        for _ in range(3):
            os.kill(service.process.pid, signal.SIGSTOP)
            one = slow.receive(0.1)  # acknowledges the one before; perhaps this one is here
            time.sleep(1.5)
            os.kill(service.process.pid, signal.SIGCONT)
            got.append(one or slow.receive(WITHIN_SECONDS))
        assert got[-1] is not None
        assert not slow.acknowledge(got[-1], confirmed=True)
        assert (slow.stale, slow.take_advisories()) == (0, [])
    assert [(one.seq, one.redelivered) for one in got if one] == [(seq, False) for seq in range(1, 5)]
