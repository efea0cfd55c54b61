"""A standard durable has one consumer, for polls and WebSockets alike, in both clients.

Source: docs/reference/stores.md, "One consumer".
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.integration.http_harness import Answered, run, until
from tests.integration.stores_harness import StoresServing, bodies, stores_serving

from holdfast.aio import StoreClient as AsyncStoreClient
from holdfast.client.stores import StoreClient, SubscriberOptions
from holdfast.errors import AlreadyOpen, Code, Fenced
from holdfast.server.http.auth import Role
from holdfast.server.stores.subscribers import Poller
from holdfast.stores.values.commands import Attach, Publish
from holdfast.wire.parts import Message

pytestmark = pytest.mark.usefixtures("durability")

STANDARD: dict[str, Any] = {"type": "standard"}
LONG_MS = 30_000


async def asked(stores: StoresServing, subscriber: str, more: str = "") -> Answered:
    """One poll, as it is answered."""
    target = f"/v1/stores/orders/durables/work/messages?subscriber={subscriber}&max=7{more}"
    return await stores.ask("GET", target)


def is_busy(answered: Answered, holder: str) -> bool:
    error = answered.json["error"]
    assert (answered.status, error["code"], error["holder"]) == (409, "durable_busy", holder)
    assert error["since_ms"] > 1_700_000_000_000
    assert "shared" in error["message"]
    return True


async def counts(stores: StoresServing) -> dict[str, int]:
    found = await stores.ask("GET", "/v1/stores/orders/durables/work")
    return dict(found.json["counts"])


async def delivered_once(stores: StoresServing, name: str, seen: list[dict[str, Any]], count: int) -> int:
    """Poll and acknowledge until all is done; returns how often it was refused."""
    refused = 0
    while len(seen) < count:
        answered = await asked(stores, name, "&wait_ms=20")
        if answered.status == 409:
            refused += is_busy(answered, "left" if name == "right" else "right")
            continue
        messages = answered.json["messages"]
        seen += messages
        if messages:
            settled = await stores.acks("orders", "work", name, ack=[one["seq"] for one in messages])
            assert settled["stale"] == []
    return refused


def test_two_pollers_get_each_message_once_and_no_acknowledgement_is_stale(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": STANDARD})
            await stores.publish("orders", *(str(number) for number in range(60)))
            seen: list[dict[str, Any]] = []
            await asyncio.gather(*(delivered_once(stores, name, seen, 60) for name in ("left", "right")))
            assert [one["seq"] for one in seen] == list(range(1, 61)), "in order, each once"
            assert {(one["delivery_count"], one["redelivered"]) for one in seen} == {(1, False)}
            assert (await counts(stores))["delivered"] == 60

    run(scenario)


@pytest.mark.parametrize("holder", ["poll", "socket"])
@pytest.mark.parametrize("newcomer", ["poll", "socket"])
def test_another_name_is_refused_at_once_and_gets_nothing(tmp_path: Path, holder: str, newcomer: str) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": STANDARD})
            if holder == "poll":
                assert (await asked(stores, "one")).status == 200
            else:
                one = await stores.subscribe("orders", "work", "one")
                await one.next()
            await stores.publish("orders", "a")
            if newcomer == "poll":
                assert is_busy(await asked(stores, "two"), "one")
            else:
                with pytest.raises(AssertionError, match="durable_busy"):
                    await stores.subscribe("orders", "work", "two")
            assert (await counts(stores))["delivered"] == 0
            if holder == "poll":
                assert bodies((await asked(stores, "one")).json["messages"]) == ["a"]
            else:
                one.send(type="credit", messages=1)
                assert bodies(await one.messages(1)) == ["a"]

    run(scenario)


def test_newcomers_wait_and_are_served_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": STANDARD})
            await stores.publish("orders", "a", "b", "c")
            one = await stores.subscribe("orders", "work", "one")
            await one.next()
            line = stores.opened.deliveries.newcomers

            async def comes(name: str, *, polls: bool) -> asyncio.Task[Any]:
                more = f"&wait_ms={LONG_MS}"
                asks = asked(stores, name, more) if polls else stores.subscribe("orders", "work", name, more=more)
                task = asyncio.get_running_loop().create_task(asks)
                places = line._lines
                await until(lambda: name in places.get(("orders", "work"), {}))
                return task

            second = await comes("second", polls=False)
            third = await comes("third", polls=True)
            assert is_busy(await asked(stores, "fourth", "&wait_ms=1"), "one"), "its time is over"
            one.send(type="close")
            socket = await second
            await socket.next()
            assert is_busy(await asked(stores, "fourth"), "second")
            assert not third.done()
            socket.send(type="close")
            assert bodies((await third).json["messages"]) == ["a", "b", "c"]

    run(scenario)


def test_a_newer_session_takes_the_place_of_its_name_in_the_line(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": STANDARD})
            one = await stores.subscribe("orders", "work", "one")
            await one.next()
            loop, line = asyncio.get_running_loop(), stores.opened.deliveries.newcomers
            older = loop.create_task(asked(stores, "two", f"&wait_ms={LONG_MS}"))
            await until(lambda: line.first(("orders", "work")) is not None)
            newer = loop.create_task(asked(stores, "two", f"&wait_ms={LONG_MS}"))
            assert is_busy(await older, "one")
            one.send(type="close")
            await stores.publish("orders", "a")
            assert bodies((await newer).json["messages"]) == ["a"]

    run(scenario)


def test_a_newcomer_is_not_given_another_durable_of_the_name(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": STANDARD})
            one = await stores.subscribe("orders", "work", "one")
            await one.next()
            line = stores.opened.deliveries.newcomers
            waiting = asyncio.get_running_loop().create_task(asked(stores, "two", f"&wait_ms={LONG_MS}"))
            await until(lambda: line.first(("orders", "work")) is not None)
            assert (await stores.ask("DELETE", "/v1/stores/orders")).status == 200
            refused = await waiting
            assert (refused.status, refused.json["error"]["code"]) in {(404, "not_found"), (409, "store_replaced")}

    run(scenario)


@pytest.mark.parametrize("kind", ["poll", "socket"])
def test_a_newcomer_that_leaves_the_line_is_not_given_the_durable(tmp_path: Path, kind: str) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": STANDARD})
            one = await stores.subscribe("orders", "work", "one")
            await one.next()
            line = stores.opened.deliveries.newcomers
            client = await stores.connect()
            upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            upgrade += "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: holdfast.stores.v1+json\r\n"
            route = "messages" if kind == "poll" else "subscribe"
            target = f"/v1/stores/orders/durables/work/{route}?subscriber=two&wait_ms={LONG_MS}"
            head = f"GET {target} HTTP/1.1\r\nHost: localhost\r\n{upgrade if kind == 'socket' else ''}\r\n"
            client.send(head.encode())
            await until(lambda: line.first(("orders", "work")) is not None)
            client.close()
            await until(lambda: line.first(("orders", "work")) is None)
            one.send(type="close")
            await until(lambda: stores.opened.state.subscribers() == [])

    run(scenario)


def test_the_holder_of_a_lost_connection_has_its_timeout_to_return(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": {**STANDARD, "subscriber_timeout": "1s"}})
            await stores.publish("orders", "a")
            one = await stores.subscribe("orders", "work", "one")
            await one.next()
            one.client.close()
            await until(lambda: len(stores.host.sockets) == 0)
            assert is_busy(await asked(stores, "two"), "one")
            again = await stores.subscribe("orders", "work", "one")
            await again.next()
            again.client.close()
            answered = await asked(stores, "two", f"&wait_ms={LONG_MS}")
            assert bodies(answered.json["messages"]) == ["a"]

    run(scenario)


def test_a_silent_poller_loses_the_durable_unless_it_holds_what_it_was_sent(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define(
                "orders", durables={"work": {**STANDARD, "subscriber_timeout": "50ms", "ack_wait": "2500ms"}}
            )
            await stores.publish("orders", "a")
            assert bodies((await asked(stores, "one")).json["messages"]) == ["a"]
            waiting = asyncio.get_running_loop().create_task(asked(stores, "two", f"&wait_ms={LONG_MS}"))
            assert is_busy(await asked(stores, "three", "&wait_ms=1200"), "one"), "it may be at work"
            (again,) = (await waiting).json["messages"]
            assert (again["seq"], again["delivery_count"]) == (1, 2)
            assert (await stores.acks("orders", "work", "one", ack=[1]))["stale"] == [1]
            assert (await stores.acks("orders", "work", "two", ack=[1]))["stale"] == []
            three = await stores.subscribe("orders", "work", "three", more=f"&wait_ms={LONG_MS}")
            await three.next()  # the second was silent, and held nothing

    run(scenario)


def test_a_holder_that_is_late_while_another_waits_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": {**STANDARD, "ack_wait": "300ms"}})
            await stores.publish("orders", "a")
            one = await stores.subscribe("orders", "work", "one")
            await one.next()
            one.send(type="credit", messages=1)
            await one.messages(1)
            answered = await asked(stores, "two", f"&wait_ms={LONG_MS}")
            (again,) = answered.json["messages"]
            assert (again["seq"], again["delivery_count"]) == (1, 2)
            while (frame := await one.next())["type"] not in ("advisory", "closed"):
                assert frame["type"] in ("withdrawn", "messages")
            assert frame["facts"]["cause"] == "lapsed"
            assert (await one.next())["reason"] == "durable_collision"

    run(scenario)


@pytest.mark.parametrize("ends", ["taken over", "replaced", "abandoned"])
def test_a_poll_that_ends_before_its_messages_come_counts_no_delivery(tmp_path: Path, ends: str) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            timeout = "50ms" if ends == "abandoned" else "5s"
            await stores.define("orders", durables={"work": {**STANDARD, "subscriber_timeout": timeout}})
            assert (await asked(stores, "one")).json["messages"] == []
            poll = asyncio.get_running_loop().create_task(asked(stores, "one", f"&wait_ms={LONG_MS}"))
            deliveries, service = stores.opened.deliveries, stores.opened.service
            await until(lambda: getattr(deliveries.find("orders", "work", "one"), "takes", False))
            poller = deliveries.find("orders", "work", "one")
            assert isinstance(poller, Poller)
            service.submit_nowait(Publish(0, "orders", "", [Message(b"a")]), lambda _: None)
            deliveries.ready("orders", "work")
            assert poller.on_its_way == 1, "the delivery is not durable yet"
            name = "one" if ends == "replaced" else "two"
            if ends == "abandoned":
                poller.abandon(poller._done)  # type: ignore[arg-type]  # as a lost connection does
                poll.cancel()
            else:
                joined: asyncio.Future[object] = asyncio.get_running_loop().create_future()
                newer = Poller(deliveries, "orders", "work", name, timeout_seconds=5)
                takes_over = ends == "taken over"
                attach = Attach(0, "orders", "work", name, polls=True, take_over=takes_over)
                deliveries.attach(newer, attach, joined.set_result)
                await joined
                refused = await poll
                assert (refused.status, refused.json["error"]["code"]) == (409, "durable_collision")
            (message,) = (await asked(stores, name, f"&wait_ms={LONG_MS}")).json["messages"]
            assert (message["seq"], message["delivery_count"], message["redelivered"]) == (1, 1, False)

    run(scenario)


def test_a_take_over_needs_the_right_to_administer(tmp_path: Path) -> None:
    async def scenario() -> None:
        roles = {"worker-token-000001": Role.WRITE, "admin-token-0000001": Role.ADMIN}
        async with stores_serving(tmp_path, tokens=roles) as stores:
            worker, admin = [{"Authorization": f"Bearer {token}"} for token in roles]
            definition = {"durables": {"work": STANDARD}}
            assert (await stores.ask("PUT", "/v1/stores/orders", definition, **admin)).status == 200
            path = "/v1/stores/orders/durables/work"
            assert (await stores.ask("GET", f"{path}/messages?subscriber=one", **worker)).status == 200
            taken = f"{path}/messages?subscriber=two&take_over"
            assert (await stores.ask("GET", f"{taken}=true", **worker)).status == 403
            assert (await stores.ask("GET", f"{taken}=perhaps", **admin)).status == 400
            with pytest.raises(AssertionError, match="permission_denied"):
                await stores.subscribe("orders", "work", "two", more="&take_over=true", **worker)
            with pytest.raises(AssertionError, match="take_over is true or false"):
                await stores.subscribe("orders", "work", "two", more="&take_over=1", **admin)
            assert (await stores.ask("GET", f"{taken}=true", **admin)).json["messages"] == []
            assert is_busy(await stores.ask("GET", f"{path}/messages?subscriber=one", **worker), "two")

    run(scenario)


def test_the_holder_of_before_a_restart_keeps_its_right_for_its_timeout(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": {**STANDARD, "subscriber_timeout": "2s"}})
            await stores.publish("orders", "a")
            one = await stores.subscribe("orders", "work", "one")
            await one.next()
        async with stores_serving(tmp_path) as stores:
            assert is_busy(await asked(stores, "two"), "one")
            returned = await stores.subscribe("orders", "work", "one")
            await returned.next()
            returned.client.close()
        async with stores_serving(tmp_path) as stores:
            answered = await asked(stores, "two", f"&wait_ms={LONG_MS}")
            assert bodies(answered.json["messages"]) == ["a"]

    run(scenario)


# ---- the clients ----------------------------------------------------------------------------------------------------


def url_of(stores: StoresServing) -> str:
    return f"http://{stores.address[0]}:{stores.address[1]}"


def test_an_asyncio_subscriber_waits_for_the_durable_and_says_so_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores, AsyncStoreClient(url_of(stores)) as client:
            await stores.define("orders", durables={"work": STANDARD})
            await stores.publish("orders", "a", "b")
            options = SubscriberOptions(timeout_ms=400, heartbeat_ms=100)
            one = client.subscriber("orders", "work", subscriber="one")
            two = client.subscriber("orders", "work", subscriber="two", options=options)
            async with one:
                message = await one.receive(10)
                assert message is not None and message.body == b"a"
                await one.acknowledge(message, confirmed=True)
                assert await two.receive(1.2) is None, "it asked several times"
            async with two:
                message = await two.receive(20)
                assert message is not None and (message.body, message.redelivered) == (b"b", True)
                busy = [advisory for advisory in two.take_advisories() if advisory.kind == "durable_busy"]
                assert [advisory.facts["holder"] for advisory in busy] == ["one"]
            impatient = client.subscriber("orders", "work", options=SubscriberOptions(retry_duration=0))
            async with client.subscriber("orders", "work", subscriber="three"):
                with pytest.raises(AlreadyOpen, match="type shared") as refused:
                    await impatient.receive(10)
            assert (refused.value.code, refused.value.fields["holder"]) == (Code.DURABLE_BUSY, "three")

    run(scenario)


def test_a_blocking_subscriber_waits_for_the_durable_and_may_take_it_over(tmp_path: Path) -> None:
    def works(url: str) -> None:
        got = threading.Event()

        def waits() -> None:
            with StoreClient(url) as client, client.subscriber("orders", "work", subscriber="two") as two:
                assert two.receive(20) is not None
                got.set()
                with pytest.raises(Fenced, match="durable_collision"):
                    two.receive(20)

        with StoreClient(url) as client:
            waiter = threading.Thread(target=waits)
            with client.subscriber("orders", "work", subscriber="one"):
                waiter.start()
                assert not got.wait(0.3)
            assert got.wait(20)
            with client.subscriber("orders", "work", subscriber="three", take_over=True) as three:
                assert three.receive(20) is not None
            waiter.join()

    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": STANDARD})
            await stores.publish("orders", "a")
            await asyncio.to_thread(works, url_of(stores))

    with contextlib.suppress(asyncio.CancelledError):
        run(scenario)
