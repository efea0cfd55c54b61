"""Workers and publishers against a real service: what a crash counts, what an exception costs, what entering means."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.test_store_client import NAMES, Service, wait_until

from holdfast.aio import StoreClient as AsyncStoreClient
from holdfast.client.protocol.stores.publisher import Blockage
from holdfast.client.stores import Advisory, Delivery, Message, PublisherOptions, StoreClient, SubscriberOptions

pytestmark = pytest.mark.usefixtures("durability")

WORK = {"type": "shared", "max_delivery": 5}
"""The definition of the README."""
KILLS = 1 if os.environ.get("HOLDFAST_SMALL") == "1" else 5
DIES_ON_THE_FIRST = """
import os, signal, sys
from holdfast import StoreClient
with StoreClient(sys.argv[1]) as client, client.subscriber(sys.argv[2], "work", subscriber="worker") as messages:
    for message in messages:
        os.kill(os.getpid(), signal.SIGKILL)
"""


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
    name = f"workers-{next(NAMES)}"
    client.define_store(name)
    client.define_durable(name, "work", WORK)
    return name


def publish(client: StoreClient, store: str, count: int) -> None:
    with client.publisher(store) as publisher:
        publisher.publish_batch([Message(b"%d" % number) for number in range(count)])


def counts(client: StoreClient, store: str) -> dict[str, object]:
    found = client.describe_durable(store, "work")["counts"]
    assert isinstance(found, dict)
    return found


def test_five_crashes_of_a_worker_on_its_first_message_park_that_one(
    service: Service, client: StoreClient, store: str
) -> None:
    publish(client, store, 100)
    for _ in range(5):
        crashed = subprocess.run([sys.executable, "-c", DIES_ON_THE_FIRST, service.url, store], timeout=60, check=False)
        assert crashed.returncode == -9
    with client.subscriber(store, "work", subscriber="worker") as messages:
        handled = [messages.receive(20) for _ in range(99)]
        assert messages.receive(0.1) is None
    assert [message.body for message in handled if message is not None] == [b"%d" % number for number in range(1, 100)]
    assert counts(client, store)["parked"] == 1
    (parked,) = client.browser(store, "work", parked=True)
    assert (parked.body, parked.delivery_count) == (b"0", 5)
    assert client.redeliver(store, "work").messages == 1
    with client.subscriber(store, "work") as messages:
        again = messages.receive(20)
        assert again is not None and (again.delivery_count, again.redelivered) == (1, True)


@pytest.mark.matrix  # test_store_client kills it in the middle too
def test_kills_of_the_service_drop_nothing_and_count_nothing(service: Service, client: StoreClient, store: str) -> None:
    publish(client, store, 100)
    for _ in range(KILLS):
        with client.subscriber(
            store, "work", options=SubscriberOptions(explicit_ack=True, close_linger=0.1)
        ) as messages:
            message = messages.receive(20)
            assert message is not None and message.delivery_count == 1
            service.process.kill()
        service.restart()
        service.process.wait_until_leading()
    with client.subscriber(store, "work") as messages:
        got = [messages.receive(20) for _ in range(100)]
    assert {one.delivery_count for one in got if one is not None} == {1}
    found = counts(client, store)
    assert (found["parked"], found["expired"]) == (0, {})


@pytest.mark.parametrize("twin", ["threads", "tasks"])
def test_an_idle_subscriber_that_takes_nothing_gets_nothing_parked(
    service: Service, client: StoreClient, store: str, twin: str
) -> None:
    client.define_durable(store, "work", {**WORK, "max_delivery": 1, "ack_wait": "200ms"})
    publish(client, store, 3)

    def lapse(times: int) -> None:
        more = counts(client, store)["ack_wait_lapsed"]
        assert isinstance(more, int)
        wait_until(lambda: counts(client, store)["ack_wait_lapsed"] >= more + 3 * times)  # type: ignore[operator]

    if twin == "threads":
        with client.subscriber(store, "work"):
            lapse(2)
            service.restart()
            service.process.wait_until_leading()
            lapse(2)
    else:

        async def idle() -> None:
            async with AsyncStoreClient(service.url) as aclient, aclient.subscriber(store, "work"):
                await asyncio.to_thread(lapse, 2)

        asyncio.run(idle())
    found = counts(client, store)
    assert (found["parked"], found["messages"]) == (0, 3)


def test_an_exception_costs_one_delivery_and_the_worker_goes_on(client: StoreClient, store: str) -> None:
    publish(client, store, 3)
    seen: list[tuple[bytes, int]] = []
    errors: list[tuple[bytes, str]] = []
    with client.subscriber(store, "work") as messages:

        def handle(message: Delivery) -> None:
            seen.append((message.body, message.delivery_count))
            if message.body == b"1" and message.delivery_count < 4:
                raise ValueError("not yet")
            if len({body for body, _ in seen}) == 3 and (b"1", 4) in seen:
                messages.acknowledge(message, confirmed=True)
                messages.close()

        messages.run(handle, retry_delay=0.001, on_error=lambda one, error: errors.append((one.body, str(error))))
    assert [count for body, count in seen if body == b"1"] == [1, 2, 3, 4]
    assert errors == [(b"1", "not yet")] * 3


@pytest.mark.parametrize("twin", ["threads", "tasks"])
def test_several_handlers_work_at_once(service: Service, client: StoreClient, store: str, twin: str) -> None:
    publish(client, store, 4)
    if twin == "threads":
        together = threading.Barrier(4, timeout=20)
        with client.subscriber(store, "work") as messages:

            def handle(message: Delivery) -> None:
                together.wait()
                messages.acknowledge(message, confirmed=True)
                if together.wait() == 0:
                    messages.close()

            messages.run(handle, handlers=4)
    else:

        async def work() -> None:
            there = asyncio.Event()
            at_work: list[Delivery] = []
            async with AsyncStoreClient(service.url) as asking, asking.subscriber(store, "work") as messages:

                async def handle(message: Delivery) -> None:
                    at_work.append(message)
                    if len(at_work) == 4:
                        there.set()
                    await there.wait()
                    await messages.acknowledge(message, confirmed=True)
                    if message is at_work[-1]:
                        await messages.aclose()

                await messages.run(handle, handlers=4)

        asyncio.run(asyncio.wait_for(work(), 20))
    assert counts(client, store)["messages"] == 0


def test_what_is_published_after_entering_is_for_the_new_durable(client: StoreClient, store: str) -> None:
    for number in range(20):
        with client.subscriber(store, f"mine-{number}", template="shared") as messages:
            publish(client, store, 1)
            assert messages.receive(20) is not None
    with client.subscriber(store, "silent", template="shared"):
        pass
    assert client.describe_durable(store, "silent")["type"] == "shared"


def test_a_publisher_tells_that_the_service_is_gone_and_there_again(service: Service, store: str) -> None:
    told: list[str] = []
    with StoreClient(service.url) as client, client.publisher(store) as publisher:
        publisher.on_advisory(lambda advisory: told.append(advisory.kind))
        publisher.publish(b"a")
        service.process.kill()
        publisher.send(b"b")
        while not told:
            time.sleep(0.01)
        service.restart()
        publisher.flush()
        assert told == ["store_unavailable", "store_available"]
        assert [advisory.kind for advisory in publisher.take_advisories()] == told


def test_a_full_store_is_told_by_its_name(client: StoreClient) -> None:
    store = f"workers-{next(NAMES)}"
    client.define_store(store, {"message_limit": 1})
    client.define_durable(store, "work", WORK)
    options = PublisherOptions(retry_duration=2.0)
    with client.publisher(store, options=options) as publisher:
        publisher.publish(b"a")
        with pytest.raises(Exception, match=r"limit|full"):
            publisher.publish(b"b")
        assert [advisory.kind for advisory in publisher.take_advisories()] == ["store_full"]


def test_a_warning_comes_after_five_seconds_and_then_each_minute(caplog: pytest.LogCaptureFixture) -> None:
    blockage = Blockage("orders")
    told: list[Advisory] = []
    blockage.advisories.on_advisory = told.append
    blockage.met("store_full", "the store is full", 0.0)
    for now_ms in range(0, 130_000, 500):
        blockage.look(float(now_ms), 7)
    assert [record.getMessage().partition(" seconds=")[2].partition(" ")[0] for record in caplog.records] == [
        "5",
        "65",
        "125",
    ]
    blockage.over(130_000.0)
    blockage.look(200_000.0, 0)
    assert [advisory.kind for advisory in told] == ["store_full", "store_available"]
    assert told[1].facts["blocked_ms"] == 130_000
    assert len(caplog.records) == 3


def test_a_receipt_counts_what_no_durable_wanted(client: StoreClient) -> None:
    store = f"workers-{next(NAMES)}"
    client.define_store(store)
    client.define_durable(store, "some", {"type": "shared", "matcher": {"kind": "a"}})
    with client.publisher(store) as publisher:
        receipt = publisher.publish_batch([Message(b"x", {"kind": "a"}), Message(b"y"), Message(b"z")])
    assert receipt.unmatched == 2


def test_a_worker_dies_alone(service: Service, client: StoreClient, store: str) -> None:
    """The other messages of its window are with somebody else at once, marked, and not counted."""
    publish(client, store, 10)
    crashed = subprocess.run([sys.executable, "-c", DIES_ON_THE_FIRST, service.url, store], timeout=60, check=False)
    assert crashed.returncode == -9
    with client.subscriber(store, "work") as messages:
        got = [messages.receive(20) for _ in range(10)]
    found = [(one.delivery_count, one.redelivered) for one in got if one is not None]
    windows = [[(2, True), *[(1, True)] * held, *[(1, False)] * (9 - held)] for held in range(1, 10)]
    assert found in windows, found


def test_a_new_service_needs_no_definition(tmp_path: Path) -> None:
    service = Service(tmp_path)
    try:
        with StoreClient(service.url) as client:
            with client.subscriber("default", "inbox") as messages, client.publisher("default") as publisher:
                assert publisher.publish(b"hello").unmatched == 0
                message = messages.receive(20)
                assert message is not None and message.body == b"hello"
                messages.acknowledge(message, confirmed=True)
            client.delete_store("default")
            service.restart()
            service.process.wait_until_leading()
            assert client.stores()["stores"] == [], "what was deleted does not come back"
    finally:
        service.process.kill()


def test_figures_tell_who_is_connected_since_when_and_what_it_did_last(client: StoreClient, store: str) -> None:
    before_ms = time.time_ns() // 1_000_000
    publish(client, store, 1)
    with client.subscriber(store, "work", subscriber="ann") as messages:
        message = messages.receive(20)
        assert message is not None
        messages.acknowledge(message, confirmed=True)
        (found,) = client.describe_durable(store, "work")["subscribers"]  # type: ignore[misc]
    after_ms = time.time_ns() // 1_000_000
    assert (found["name"], found["connected"], found["address"].partition(":")[0]) == ("ann", True, "127.0.0.1")
    times = [found["since_ms"], found["delivered_ms"], found["acknowledged_ms"]]
    assert [before_ms, *times, after_ms] == sorted([before_ms, *times, after_ms])


def test_metrics_name_stores_only_to_who_may_browse_the_cluster(tmp_path: Path) -> None:
    service = Service(tmp_path)
    reader, other = "a-token-that-may-browse", "a-token-that-may-nothing"
    roles = {"reader": {"cluster": ["browse", "administer"]}}
    users = {"ann": {"token": reader, "roles": ["reader"]}, "bob": {"token": other, "roles": []}}

    def scrape(token: str | None) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=20)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        connection.request("GET", "/metrics", headers=headers)
        with contextlib.closing(connection):
            return connection.getresponse().status

    try:
        with StoreClient(service.url) as client:
            assert scrape(None) == 200
            client.define({"permissions": {"enabled": True, "users": users, "roles": roles}}, delete=True)
        assert (scrape(None), scrape(other), scrape(reader)) == (401, 403, 200)
    finally:
        service.process.kill()
