"""Who is served of a durable: nobody stays connected and unserved, nothing is handed out that nobody waits for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.integration.http_harness import request, run, until
from tests.integration.stores_harness import bodies, stores_serving

from holdfast.server.stores.deliveries import Poller
from holdfast.stores.commands import Attach, Publish
from holdfast.stores.messages import Delivery, Message

SHARED = {"type": "shared"}
STANDARD = {"type": "standard"}


@pytest.mark.parametrize(
    ("durable", "newer"), [(STANDARD, "other"), (STANDARD, "same"), (SHARED, "same")], ids=["place", "both", "name"]
)
def test_who_was_displaced_by_one_that_left_before_it_came_is_told(
    tmp_path: Path, durable: dict[str, Any], newer: str
) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"mine": durable})
            older = await stores.subscribe("orders", "mine", "same")
            await older.next()
            deliveries = stores.opened.deliveries
            passing = Poller(deliveries, "orders", "mine", newer, timeout_seconds=5)
            deliveries.attach(passing, Attach(0, "orders", "mine", newer), lambda _: None)
            deliveries.leave(passing, "disconnected")
            assert (await older.next())["kind"] == "durable_collision"
            assert (await older.next())["code"] == 4409
            assert list(stores.opened.state.subscribers()) == []
            again = await stores.subscribe("orders", "mine", "same")
            await again.next()

    run(scenario)


def test_what_comes_while_a_portion_is_on_its_way_to_a_poll_waits_for_the_next_poll(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": {**SHARED, "max_delivery": 1}})
            assert await stores.poll("orders", "work") == []
            deliveries, service = stores.opened.deliveries, stores.opened.service
            poller = deliveries.find("orders", "work", "s")
            assert isinstance(poller, Poller)
            answers: list[asyncio.Future[list[Delivery]]] = []

            def poll(count: int) -> asyncio.Future[list[Delivery]]:
                answers.append(asyncio.get_running_loop().create_future())
                deliveries.poll(poller, count, 60.0, answers[-1].set_result, lambda: None)  # type: ignore[arg-type]
                return answers[-1]

            def publish(count: int) -> None:
                service.submit_nowait(Publish(0, "orders", "", [Message(b"x")] * count), lambda _: None)

            first = poll(100)
            publish(3)
            deliveries.ready("orders", "work")  # as before the group is taken
            assert poller.on_its_way == 3
            publish(2)
            deliveries.ready("orders", "work")
            assert [one.seq for one in await first] == [1, 2, 3]
            await service.settled()
            assert [(one.seq, one.delivery_count) for one in await poll(100)] == [(4, 1), (5, 1)]

    run(scenario)


POLL = "/v1/stores/orders/durables/work/messages?subscriber=gone&wait_ms=60000"


@pytest.mark.parametrize("headers", [{}, {"Connection": "close"}], ids=["kept", "closes"])
@pytest.mark.parametrize("known", [False, True], ids=["first", "again"])
def test_a_long_poll_whose_peer_has_ended_takes_nothing_and_waits_no_longer(
    tmp_path: Path, headers: dict[str, str], known: bool
) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": {**SHARED, "max_delivery": 1}})
            if known:
                assert await stores.poll("orders", "work", "gone") == []
            gone = await stores.connect()
            gone.send(request("GET", POLL, **headers))

            def waits() -> bool:
                poller = stores.opened.deliveries.find("orders", "work", "gone")
                return isinstance(poller, Poller) and poller.asking

            await until(waits)
            gone.writer.write_eof()
            assert (await gone.answer()).json == {"messages": []}
            assert await gone.is_closed_by_peer()
            await stores.publish("orders", "a")
            assert bodies(await stores.poll("orders", "work", "other", wait_ms=60_000)) == ["a"]

    run(scenario)


def test_a_long_poll_of_a_peer_that_sends_no_more_is_given_what_is_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            await stores.publish("orders", "a")
            half = await stores.connect()
            half.send(request("GET", POLL))
            half.writer.write_eof()
            assert bodies((await half.answer()).json["messages"]) == ["a"]

    run(scenario)
