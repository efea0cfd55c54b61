"""Statistics as messages: the numbers of ``/metrics`` in the store ``_statistics``, while subscribers are attached."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.integration.http_harness import run, until
from tests.integration.stores_harness import StoresServing, Subscriber, stores_serving

from holdfast.server.metrics import ServerMetrics
from holdfast.server.stores import figures
from holdfast.stores.definitions.reader import STATISTICS
from holdfast.wire.stores import StatisticsBody

pytestmark = pytest.mark.usefixtures("durability")

SHARED: dict[str, object] = {"type": "shared"}
MINE = f"/v1/stores/{STATISTICS}/durables/mine"


def numbers_of(message: dict[str, Any]) -> StatisticsBody:
    return msgspec.json.decode(base64.b64decode(message["body"]), type=StatisticsBody)


async def follow(
    stores: StoresServing, durable: str = "mine", more: str = "", credit: int = 1_000, **headers: str
) -> Subscriber:
    subscriber = await stores.subscribe(STATISTICS, durable, more=more, **headers)
    assert (await subscriber.next())["type"] == "attached"
    subscriber.send(type="credit", messages=credit)
    return subscriber


def test_each_message_has_the_numbers_of_metrics_and_none_of_its_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            await stores.publish("orders", "a", "b")
            subscriber = await follow(stores)
            (message,) = await subscriber.messages(1)
            assert (message["fields"], message["key"]) == ({"kind": "metrics"}, "metrics")
            metrics = ServerMetrics(stores.front)
            metrics.stores = stores.host
            scraped = [
                (sample.name, dict(sample.labels))
                for family in text_string_to_metric_families(metrics.text().decode())
                for sample in family.samples
            ]
            body = numbers_of(message)
            assert [(one.name, one.labels) for one in body.samples if "http_answers" not in one.name] == [
                one for one in scraped if "http_answers" not in one[0]
            ]
            values = {(one.name, one.labels.get("durable", one.labels.get("store"))): one.value for one in body.samples}
            assert values["holdfast_message_store_messages", "orders"] == 2
            assert values["holdfast_durable_backlog", "work"] == 2
            assert not any(STATISTICS in one.labels.values() for one in body.samples)
            stores.opened.state.check()

    run(scenario)


def test_polls_and_last_values_get_them_as_messages_of_other_stores(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            assert (await stores.ask("PUT", MINE, {"template": "standard"})).status == 200
            first = await stores.poll(STATISTICS, "mine", max=1, wait_ms=15_000)
            assert (await stores.acks(STATISTICS, "mine", ack=[first[0]["seq"]]))["acknowledged"] == 1
            second = await stores.poll(STATISTICS, "mine", max=1, wait_ms=15_000)
            assert second[0]["seq"] == first[0]["seq"] + 1
            newest = await follow(stores, "newest", more="&template=last_value&key=metrics")
            seqs = [one["seq"] for one in await newest.messages(3)]
            assert seqs == sorted(set(seqs))
            assert (await stores.ask("GET", f"{MINE}/browse")).json["messages"]
            assert (await stores.ask("GET", f"/v1/stores/{STATISTICS}")).json["replicated"] is False
            assert STATISTICS not in json.dumps((await stores.ask("GET", "/v1/stores")).json)

    run(scenario)


def test_nothing_is_made_and_nothing_stays_while_nobody_is_attached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            made = _counted(stores, monkeypatch)
            answered = await stores.ask("GET", f"/v1/stores/{STATISTICS}")
            assert (answered.status, answered.code) == (404, "not_found")
            assert "while a subscriber is attached" in answered.json["error"]["message"]
            subscriber = await follow(stores)
            await subscriber.messages(2)
            assert made() >= 2
            subscriber.send(type="close")
            await until(lambda: not stores.opened.deliveries.connected(STATISTICS, "mine"))
            before = made()
            again = await follow(stores)
            (kept, *_) = await again.messages(3)
            assert kept["seq"] <= 3, "a subscriber that comes back within a minute continues"
            assert made() > before
            monkeypatch.setattr(figures, "LINGER_SECONDS", 0)
            again.send(type="close")
            await until(lambda: STATISTICS not in stores.opened.state.stores)
            before = made()
            assert stores.opened.statistics._timer is None
            assert stores.opened.service._storage.volatile._held == {}
            stores.opened.state.check()
            third = await follow(stores)
            assert (await third.messages(1))[0]["seq"] == 1
            assert made() > before

    run(scenario)


def _counted(stores: StoresServing, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    calls: list[None] = []
    feed = stores.opened.statistics
    samples = feed._samples
    assert samples is not None

    def counted() -> list[Any]:
        calls.append(None)
        return samples()

    monkeypatch.setattr(feed, "_samples", counted)
    return lambda: len(calls)


@pytest.mark.parametrize("bound", ["messages", "bytes"])
def test_the_oldest_make_room_whether_they_are_held_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            holding = await follow(stores, "holding")
            (first,) = await holding.messages(1)
            size = len(base64.b64decode(first["body"])) + 1_000
            if bound == "messages":
                monkeypatch.setattr(figures, "STATISTICS_MESSAGES_MAX", 5)
            else:
                monkeypatch.setattr(figures, "STATISTICS_BYTES_MAX", 5 * size)
            taking = await follow(stores, "taking")
            for _ in range(12):
                (message,) = await taking.messages(1)
                taking.send(type="ack", ranges=[[message["seq"], message["seq"]]])
                counts = stores.opened.state.stores[STATISTICS].counts
                assert counts.live <= (5 if bound == "messages" else 7)
                assert counts.live_bytes <= 5 * size + size * (bound == "messages")
            while not holding.withdrawn:
                await holding.messages(1)
            assert holding.withdrawn[0][1][0][0] == first["seq"]
            page = (await stores.ask("GET", f"/v1/stores/{STATISTICS}/durables/holding/browse")).json["messages"]
            assert page[-1]["seq"] - page[0]["seq"] <= 7
            stores.opened.state.check()

    run(scenario)


def test_they_are_outside_the_limits_the_log_and_the_definition(tmp_path: Path) -> None:
    async def scenario() -> None:
        definition = {"cluster": {"message_limit": 1}, "stores": {"orders": {"durables": {"work": SHARED}}}}
        async with stores_serving(tmp_path, definition=definition) as stores:
            subscriber = await follow(stores)
            objects, written = _objects(tmp_path), stores.opened.service.written_bytes
            await subscriber.messages(5)
            await stores.ask("GET", f"{MINE}/browse")
            assert (_objects(tmp_path), stores.opened.service.written_bytes) == (objects, written)
            assert (await stores.publish("orders", "a"))["first_seq"] == 1
            assert (await stores.ask("GET", "/v1/cluster")).json["messages"] == 1
            definition["stores"] = {"orders": {"durables": {"work": SHARED}}, "other": {}}
            assert (await stores.ask("PUT", "/v1/cluster/definition", definition)).status == 200
            newer = stores.opened.state.stores[STATISTICS].counts.next_seq
            while (await subscriber.messages(1))[0]["seq"] < newer:
                pass  # what was published before
            stores.opened.state.check()
        async with stores_serving(tmp_path) as again:
            assert set(again.opened.state.stores) == {"orders", "other"}

    run(scenario)


def _objects(directory: Path) -> set[str]:
    return {path.name for path in directory.rglob("*") if "batches" in path.parts}


TOKEN = "a-long-random-token"


def test_they_need_the_right_to_subscribe_and_nobody_else_publishes(tmp_path: Path) -> None:
    async def scenario() -> None:
        roles = {
            "watcher": {"stores": {STATISTICS: ["subscribe", "browse"]}},
            "trader": {"stores": {"a*": ["publish", "subscribe", "browse"]}, "cluster": ["administer", "browse"]},
            "all": {"stores": {"*": ["publish", "subscribe", "browse", "administer"]}},
        }
        users = {name: {"token": f"{TOKEN}-{name}", "roles": [name]} for name in roles}
        permissions = {"enabled": True, "users": users, "roles": roles}
        async with stores_serving(tmp_path, definition={"stores": {"a": {}}, "permissions": permissions}) as stores:
            watcher, trader, everything = ({"Authorization": f"Bearer {TOKEN}-{name}"} for name in roles)
            assert (await stores.ask("PUT", MINE, {"template": "shared"}, **trader)).status == 403
            poll = f"{MINE}/messages?subscriber=s&wait_ms=15000"
            assert (await stores.ask("GET", poll, **trader)).status == 403
            subscriber = await follow(stores, **watcher)
            await subscriber.messages(1)
            assert (await stores.ask("GET", f"{MINE}/browse", **trader)).status == 403
            assert (await stores.ask("GET", f"{MINE}/browse", **watcher)).status == 200
            for headers in (watcher, trader, everything):
                published = await stores.ask("POST", f"/v1/stores/{STATISTICS}/messages", {"messages": [{}]}, **headers)
                assert (published.status, published.code) == (403, "permission_denied")
            assert (await stores.ask("PUT", f"/v1/stores/{STATISTICS}", {}, **everything)).status == 400
            assert (await stores.ask("DELETE", f"/v1/stores/{STATISTICS}", **everything)).status in (403, 404)
            static = await stores.ask("PUT", MINE, SHARED, **everything)
            assert static.status in (400, 404), static.body
            await subscriber.messages(1)

    run(scenario)


def test_without_a_time_between_messages_there_are_none(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path, statistics_message_seconds=0) as stores:
            answered = await stores.ask("PUT", MINE, {"template": "shared"})
            assert answered.status == 404
            assert "stores.statistics_message_seconds" in answered.json["error"]["hint"]

    run(scenario)
