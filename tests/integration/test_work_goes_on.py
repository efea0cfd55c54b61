"""What an application works on stays its own over a kill of the leader: workers against a real service.

Source: docs/reference/stores-client.md, "Receiving".
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.stores_harness import DURABILITY
from tests.integration.test_store_client import NAMES, Service, wait_until

from holdfast import Client
from holdfast.aio import StoreClient as AsyncStoreClient
from holdfast.client import BlockingTransaction
from holdfast.client.stores import Delivery, Message, StoreClient, SubscriberOptions
from holdfast.errors import Closed, Code, HoldfastError

EXPLICIT = SubscriberOptions(explicit_ack=True)
KILLS = 20 if os.environ.get("HOLDFAST_PROVE") == "1" else 2


@pytest.fixture(scope="module")
def service(durability: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(tmp_path_factory.mktemp("service"))
    yield service
    service.process.kill()


def defined(url: str, count: int, **durable: object) -> str:
    """A store with a durable ``work`` and ``count`` messages."""
    name = f"goes-on-{next(NAMES)}"
    with StoreClient(url) as client:
        client.define_store(name)
        client.define_durable(name, "work", {"type": "shared", **durable})
        with client.publisher(name) as publisher:
            publisher.publish_batch([Message(b"%d" % number) for number in range(1, count + 1)])
    return name


def numbers(messages: list[Delivery | None]) -> list[int]:
    return [message.seq for message in messages if message is not None]


@pytest.mark.parametrize("kind", [{"type": "shared"}, {"type": "standard"}], ids=str)
def test_work_in_hand_is_acknowledged_after_a_kill_and_does_not_come_again(
    service: Service, kind: dict[str, object]
) -> None:
    store = defined(service.url, 4, **kind)
    with (
        StoreClient(service.url) as client,
        client.subscriber(store, "work", subscriber="ann", options=EXPLICIT) as messages,
    ):
        first, second = messages.receive(20), messages.receive(20)
        assert first is not None and second is not None
        service.restart()
        assert messages.acknowledge(first, confirmed=True) == []
        assert numbers([messages.receive(20), messages.receive(20)]) == [3, 4]
        assert messages.acknowledge(second, confirmed=True) == []
        assert (messages.receive(0.2), messages.stale) == (None, 0)


def test_work_in_hand_is_acknowledged_after_a_kill_by_tasks(service: Service) -> None:
    store = defined(service.url, 3)

    async def take(client: AsyncStoreClient) -> None:
        async with client.subscriber(store, "work", subscriber="ann", options=EXPLICIT) as messages:
            first = await messages.receive(20)
            assert first is not None
            service.restart()
            assert await messages.acknowledge(first, confirmed=True) == []
            assert numbers([await messages.receive(20), await messages.receive(20)]) == [2, 3]
            assert (await messages.receive(0.2), messages.stale) == (None, 0)

    async def main() -> None:
        async with AsyncStoreClient(service.url) as client:
            await take(client)

    asyncio.run(main())


def test_an_orderly_stop_gives_no_work_to_others(service: Service) -> None:
    store = defined(service.url, 1)
    with (
        StoreClient(service.url) as client,
        client.subscriber(store, "work", subscriber="ann", options=EXPLICIT) as messages,
        client.subscriber(store, "work", subscriber="bob") as others,
    ):
        first = messages.receive(20)
        assert first is not None
        service.process.stop()
        service.restart()
        wait_until(lambda: others.is_attached and messages.is_attached)
        assert others.receive(0.2) is None
        assert messages.acknowledge(first, confirmed=True) == []


def test_another_process_of_the_name_gets_everything_again(service: Service) -> None:
    store = defined(service.url, 2)
    with (
        StoreClient(service.url) as client,
        client.subscriber(store, "work", subscriber="ann", options=EXPLICIT) as messages,
    ):
        assert numbers([messages.receive(20), messages.receive(20)]) == [1, 2]
        service.restart()
        wait_until(lambda: messages.is_attached)  # else it may come back after the other one, and take its place
        with client.subscriber(store, "work", subscriber="ann") as again:
            assert numbers([again.receive(20), again.receive(20)]) == [1, 2]


class Worker(threading.Thread):
    """Publishes a receipt for each order in the commit that acknowledges it. It knows ``lease_lost``, and no more."""

    def __init__(self, url: str, store: str, count: int) -> None:
        super().__init__(daemon=True)
        self.handed: list[Delivery] = []
        self.too_late = 0
        self.error: HoldfastError | None = None
        self._url, self._store, self._count = url, store, count

    def run(self) -> None:
        try:
            self._work()
        except HoldfastError as error:
            self.error = error

    def _work(self) -> None:
        with (
            Client(self._url) as client,
            StoreClient(self._url) as stores,
            stores.subscriber(self._store, "work", subscriber="ann", options=EXPLICIT) as orders,
        ):
            done = 0
            while done < self._count:
                order = orders.receive(30)
                assert order is not None
                self.handed.append(order)
                try:
                    self._ship(client, order)
                    done += 1
                except Closed as error:
                    if error.code is not Code.LEASE_LOST:
                        raise
                    self.too_late += 1

    def _ship(self, client: Client, order: Delivery) -> None:
        def step(txn: BlockingTransaction) -> None:
            txn.publish(self._store + "-receipts", order.body, fields={"order": order.seq})
            txn.acknowledge(self._store, "work", "ann", order)

        client.transact(step)


def test_a_worker_that_commits_does_each_order_once_whatever_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DURABILITY, "log")
    service = Service(tmp_path)
    try:
        count = 100 * KILLS
        store = defined(service.url, count)
        with StoreClient(service.url) as client:
            client.define_store(store + "-receipts")
            client.define_durable(store + "-receipts", "all", {"type": "shared"})
        worker = Worker(service.url, store, count)
        worker.start()
        for kill in range(KILLS):
            wait_until(lambda kill=kill: len(worker.handed) > 100 * kill + 20 or not worker.is_alive())
            service.restart()
        worker.join(120)
        assert not worker.is_alive()
        assert worker.error is None
        with StoreClient(service.url) as client:
            receipts = Counter(one.fields["order"] for one in client.browser(store + "-receipts", "all"))
        assert receipts == Counter(range(1, count + 1)), "each order has one receipt"
        assert (worker.too_late, len(worker.handed)) == (0, count), "and was handed out once"
    finally:
        service.process.kill()


def test_a_handler_that_was_too_late_takes_the_next_message(service: Service) -> None:
    store, errors, handled = defined(service.url, 3), list[Exception](), list[int]()
    with (
        StoreClient(service.url) as client,
        client.subscriber(store, "work", subscriber="ann", options=EXPLICIT) as messages,
    ):

        def handle(message: Delivery) -> None:
            handled.append(message.seq)
            if message.seq == 2:
                raise Closed("this subscriber does not hold the message any more", code=Code.LEASE_LOST)
            if message.seq == 3:
                raise EndOfTestError

        with pytest.raises(EndOfTestError):
            messages.run(handle, on_error=lambda _, error: errors.append(error), stop_on_error=True)
    assert (handled, [type(error) for error in errors]) == ([1, 2, 3], [EndOfTestError])


class EndOfTestError(Exception):
    pass


def ask(method: str, url: str, body: dict[str, object] | None = None) -> dict[str, Any]:
    """An answer of the service, asked again while it starts."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    while True:
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return json.load(answer)
        except OSError as error:
            if isinstance(error, urllib.error.HTTPError) and error.code < 500:
                raise
            time.sleep(0.05)


def test_what_a_poller_works_on_is_acknowledged_after_a_kill(service: Service) -> None:
    """A poll names its subscriber: that is enough, as polls attach once."""
    store = defined(service.url, 2)
    durable = f"{service.url}/v1/stores/{store}/durables/work"
    (first,) = ask("GET", f"{durable}/messages?subscriber=ann&max=1")["messages"]
    service.restart()
    answer = ask("POST", f"{durable}/acks", {"subscriber": "ann", "ranges": [[first["seq"], first["seq"]]]})
    assert (answer["acknowledged"], answer["stale"]) == (1, [])
    (second,) = ask("GET", f"{durable}/messages?subscriber=ann&max=1")["messages"]
    assert (first["seq"], second["seq"], second["redelivered"]) == (1, 2, False)
