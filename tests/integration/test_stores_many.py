"""Many of everything: connections, durables, subscribers that come and go; and a disk at its limit.

Bounded by count: a tenth of what ``HOLDFAST_PROVE=1`` asks for.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from tests.integration.http_harness import run, until
from tests.integration.stores_harness import Subscriber, bodies, stores_serving

pytestmark = pytest.mark.usefixtures("durability")

PROVE = os.environ.get("HOLDFAST_PROVE") == "1"
CONNECTIONS = 1_000 if PROVE else 100
DURABLES = 10_000 if PROVE else 1_000
SECONDS_MAX = 1_200 if PROVE else 280
SHARED = {"type": "shared"}


@pytest.mark.timeout(SECONDS_MAX + 20)
def test_every_one_of_many_durables_gets_its_own_message(tmp_path: Path) -> None:
    async def scenario() -> None:
        durables = {f"d{number}": {"type": "shared", "matcher": {"to": number}} for number in range(DURABLES)}
        async with stores_serving(tmp_path, definition={"stores": {"orders": {"durables": durables}}}) as stores:
            for number in range(0, DURABLES, DURABLES // 20):
                published = await stores.publish("orders", str(number), fields={"to": number})
                assert published["unmatched"] == 0
                assert bodies(await stores.poll("orders", f"d{number}")) == [str(number)]
            state = stores.opened.state.stores["orders"]
            assert (state.counts.live, len(state.durables)) == (20, DURABLES)
        async with stores_serving(tmp_path) as stores:
            state = stores.opened.state.stores["orders"]
            assert (state.counts.live, len(state.durables)) == (20, DURABLES), "and a restart finds all of them"
            assert (await stores.publish("orders", "none", fields={"to": DURABLES}))["unmatched"] == 1

    run(scenario, seconds_max=SECONDS_MAX)


@pytest.mark.timeout(SECONDS_MAX + 20)
def test_many_subscribers_are_each_served_on_their_own_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": {**SHARED, "subscriber_timeout": "2m"}})
            ends = [await stores.subscribe("orders", "work", f"s{number}") for number in range(CONNECTIONS)]
            for end in ends:
                assert (await end.next())["type"] == "attached"
                end.send(type="credit", messages=10)
            connected = stores.opened.deliveries.connected
            await until(lambda: all(one.room == 10 for one in connected("orders", "work")))
            await stores.publish("orders", *(str(number) for number in range(CONNECTIONS)))
            got = [bodies(await end.messages(1)) for end in ends]
            assert sorted(int(body) for (body,) in got) == list(range(CONNECTIONS))
            for end in ends[1::2]:
                end.client.close()  # its message goes to one that stays
            lost = {body for (body,) in got[1::2]}
            again: set[str] = set()

            async def read(end: Subscriber) -> None:
                while True:
                    again.update(bodies(await end.messages(1)))

            readers = [asyncio.ensure_future(read(end)) for end in ends[::2]]
            await until(lambda: len(again) >= len(lost))
            await until(lambda: len(connected("orders", "work")) == CONNECTIONS // 2)
            for reader in readers:
                reader.cancel()
            assert again == lost, "each goes to another, and only what somebody lost"

    run(scenario, seconds_max=SECONDS_MAX)


@pytest.mark.timeout(SECONDS_MAX + 20)
def test_slow_dead_and_flapping_subscribers_lose_nothing_and_hold_up_nobody(tmp_path: Path) -> None:
    """One reads nothing, one answers no ping, one comes and goes; one works, and in the end it has had everything."""
    count = 400

    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            durable = {**SHARED, "prefetch": 20, "subscriber_timeout": "1s", "ack_wait": "1s"}
            await stores.define("orders", durables={"work": durable})
            slow = await stores.subscribe("orders", "work", "slow")
            dead = await stores.subscribe("orders", "work", "dead")
            for end in (slow, dead):
                await end.next()
                end.send(type="credit", messages=count)
            for number in range(count // 10):
                await stores.publish("orders", *(str(number * 10 + place) for place in range(10)))
            connected = stores.opened.deliveries.connected
            done: set[str] = set()
            turn = 0
            while len(done) < count:
                turn += 1
                if turn % 5 == 0:
                    flapping = await stores.subscribe("orders", "work", "flapping")
                    await flapping.next()
                    flapping.send(type="credit", messages=5)
                    flapping.client.close()
                got = await stores.poll("orders", "work", "steady", max=20, wait_ms=1_000)
                settled = await stores.acks("orders", "work", "steady", ack=[one["seq"] for one in got])
                stale = set(settled["stale"])
                taken = [body for one, body in zip(got, bodies(got), strict=True) if one["seq"] not in stale]
                assert not done & set(taken), "what was acknowledged does not come again"
                done |= set(taken)
            assert done == {str(number) for number in range(count)}
            await until(lambda: {one.name for one in connected("orders", "work")} <= {"steady", "flapping"})
            counts = (await stores.ask("GET", "/v1/stores/orders/durables/work")).json["counts"]
            assert (counts["messages"], counts["acknowledged"]) == (0, count)
            assert counts["redelivered"] > 0, "what the others held was delivered again"

    run(scenario, seconds_max=SECONDS_MAX)


def test_a_subscriber_that_comes_and_goes_loses_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            seen: set[str] = set()
            for turn in range(20):
                await stores.publish("orders", str(turn))
                flapping = await stores.subscribe("orders", "work", "flapping")
                await flapping.next()
                flapping.send(type="credit", messages=5)
                (first, *_) = await flapping.messages(1)
                if turn % 2:
                    flapping.send(type="ack", ranges=[[first["seq"], first["seq"]]], id=1)
                    while (await flapping.next())["type"] != "answer":
                        pass
                    seen |= set(bodies([first]))
                flapping.client.close()
                await until(lambda: not stores.opened.deliveries.connected("orders", "work"))
            rest = await stores.poll("orders", "work", "last", wait_ms=10_000)
            assert seen | set(bodies(rest)) == {str(turn) for turn in range(20)}
            assert not seen & set(bodies(rest))

    run(scenario)


def test_at_the_disk_limit_publishing_stops_and_acknowledging_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            store = {"orders": {"durables": {"work": SHARED}}}
            await stores.ask("PUT", "/v1/cluster/definition", {"stores": store})
            await stores.publish("orders", "a")
            await stores.poll("orders", "work")
            tight = {"stores": store, "cluster": {"max_disk_fraction": 0.000001}}
            assert (await stores.ask("PUT", "/v1/cluster/definition", tight)).status == 200
            refused = await stores.ask("POST", "/v1/stores/orders/messages", {"messages": [{}]})
            assert (refused.status, refused.code) == (507, "disk_limit")
            assert (await stores.acks("orders", "work", ack=[1]))["acknowledged"] == 1
            roomy = {"stores": store, "cluster": {"max_disk_fraction": 1}}
            assert (await stores.ask("PUT", "/v1/cluster/definition", roomy)).status == 200
            await stores.publish("orders", "b")

    run(scenario)
