"""The rows of a durable's parameters, and of templates of durables."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from tests.integration.stores_harness import StoresServing, Subscriber, bodies, text64
from tests.stores.parameter_rows import ORDERS, WORK, Table, counts, eventually, send, swapped_files

from holdfast.aio import StoreClient
from holdfast.client.stores import SubscriberOptions

DURABLE = Table("durable")
TEMPLATE = Table("template")
row = DURABLE.row
ONE_HOUR = 3_600
SOON = 0.05
MAP_KEY = f"{ORDERS}/maps/work/k"


@asynccontextmanager
async def attached(
    stores: StoresServing, subscriber: str = "s", more: str = "", credit: int = 100
) -> AsyncGenerator[tuple[Subscriber, dict[str, Any]]]:
    """A WebSocket on ``work`` with its first frame."""
    end = await stores.subscribe("orders", "work", subscriber, more=more)
    first = await end.next()
    assert first["type"] == "attached"
    end.send(type="credit", messages=credit)
    yield end, first
    end.send(type="close")
    end.client.close()


# ---- which messages -------------------------------------------------------------------------------------------------


@row("matcher", {"kind": "a"})
@row("matcher", {"kind": "a"}, kind="standard")
async def it_wants_what_matches_and_its_subscribers_want_the_same(stores: StoresServing) -> None:
    await stores.publish("orders", "mine", fields={"kind": "a"})
    assert (await stores.publish("orders", "not mine", fields={"kind": "b"}))["unmatched"] == 1
    assert bodies(await stores.poll("orders", "work")) == ["mine"]
    for matcher, status in (({"kind": "a"}, 101), ({"kind": "b"}, 409), ({}, 409)):
        end = Subscriber(await stores.connect(), "holdfast.stores.v1+json")
        text = json.dumps(matcher).replace('"', "%22").replace("{", "%7B").replace("}", "%7D").replace(" ", "%20")
        answered = await end.asked_for(f"{WORK}/subscribe?subscriber=s&matcher={text}")
        assert answered.status == status
        assert status == 101 or answered.code == "matcher_mismatch"


@row("matcher", {"kind": ["a", "b"]}, kind="last_value")
async def it_keeps_values_that_match(stores: StoresServing) -> None:
    await stores.publish("orders", "1", key="k", fields={"kind": "a"})
    await stores.publish("orders", "2", key="k", fields={"kind": "c"})
    async with attached(stores, more="&key=k") as (end, _):
        assert bodies(await end.messages(1)) == ["1"]


# ---- how many, and how they are acknowledged ------------------------------------------------------------------------


@row("prefetch", 2)
@row("prefetch", 2, kind="standard")
async def one_subscriber_holds_so_many_at_once(stores: StoresServing) -> None:
    await stores.publish("orders", "a", "b", "c")
    assert bodies(await stores.poll("orders", "work")) == ["a", "b"]
    assert await stores.poll("orders", "work") == []
    await stores.acks("orders", "work", ack=[1])
    assert bodies(await stores.poll("orders", "work")) == ["c"]


@row("prefetch", 0, kind="standard")
async def none_is_the_default_number(stores: StoresServing) -> None:
    async with attached(stores) as (_, first):
        assert first["prefetch"] == 256
    changed = await stores.ask("PUT", WORK, {"type": "standard", "prefetch": 5})
    assert (changed.status, changed.code) == (400, "bad_configuration")
    assert "stores.orders.durables.work.prefetch 0 -> 5" in changed.json["error"]["message"]


@row("prefetch", 2, kind="last_value")
async def a_subscriber_of_values_is_told_it(stores: StoresServing) -> None:
    async with attached(stores, more="&key=k") as (_, first):
        assert first["prefetch"] == 2


@asynccontextmanager
async def consumed(stores: StoresServing, count: int) -> AsyncGenerator[Any]:
    """A client of the library that has been handed ``count`` messages and has acknowledged each."""
    await stores.publish("orders", *(str(number) for number in range(count)))
    async with (
        StoreClient(f"http://{stores.address[0]}:{stores.address[1]}") as client,
        client.subscriber("orders", "work", options=SubscriberOptions(explicit_ack=True)) as subscriber,
    ):
        for _ in range(count):
            message = await subscriber.receive(30)
            assert message is not None
            await subscriber.acknowledge(message)
        yield subscriber


async def acknowledged(stores: StoresServing, count: int) -> None:
    """Wait until the service has so many acknowledgements."""

    async def so_many() -> bool:
        found = int((await counts(stores))["acknowledged"])
        assert found <= count
        return found == count

    await eventually(so_many)


@row("ack_mode", "sync", ack_batch_count=1_000, ack_batch_time=ONE_HOUR)
@row("ack_mode", "sync", kind="standard", ack_batch_count=1_000, ack_batch_time=ONE_HOUR)
async def an_acknowledgement_returns_when_it_is_durable(stores: StoresServing) -> None:
    async with consumed(stores, 3):
        assert (await counts(stores))["acknowledged"] == 3
    async with attached(stores) as (_, first):
        assert first["ack_mode"] == "sync"


@row("ack_mode", "async", ack_batch_count=1_000, ack_batch_time=ONE_HOUR)
async def acknowledgements_wait_for_company(stores: StoresServing) -> None:
    async with consumed(stores, 3):
        assert (await counts(stores))["acknowledged"] == 0
    await acknowledged(stores, 3)


@row("ack_batch_count", 4, ack_batch_time=ONE_HOUR)
@row("ack_batch_count", 4, kind="standard", ack_batch_time=ONE_HOUR)
async def so_many_acknowledgements_go_out_together(stores: StoresServing) -> None:
    async with attached(stores) as (_, first):
        assert first["ack_batch_count"] == 4
    async with consumed(stores, 6):
        await acknowledged(stores, 4)
        assert (await counts(stores))["unacknowledged"] == 2
    await acknowledged(stores, 6)


@row("ack_batch_time", SOON, ack_batch_count=1_000)
@row("ack_batch_time", SOON, kind="standard", ack_batch_count=1_000)
async def acknowledgements_go_out_after_so_long(stores: StoresServing) -> None:
    async with attached(stores) as (_, first):
        assert first["ack_batch_time_ms"] == 50
    async with consumed(stores, 3):
        await acknowledged(stores, 3)


@row("ack_wait", SOON)
@row("ack_wait", SOON, kind="standard")
async def what_is_not_acknowledged_in_time_comes_again_counted(stores: StoresServing) -> None:
    await stores.publish("orders", "a")
    assert [one["delivery_count"] for one in await stores.poll("orders", "work")] == [1]
    (again,) = await stores.poll("orders", "work", wait_ms=30_000)
    assert (again["delivery_count"], again["redelivered"]) == (2, True)
    assert (await counts(stores))["ack_wait_lapsed"] >= 1


@row("buffer_wait", SOON, ack_wait=ONE_HOUR)
@row("buffer_wait", SOON, ack_wait=ONE_HOUR, kind="standard")
async def what_is_not_handed_over_in_time_comes_again_uncounted(stores: StoresServing) -> None:
    async with attached(stores) as (end, first):
        assert first["buffer_wait_ms"] == 50
        end.send(type="started", ranges=[])
        await stores.publish("orders", "a")
        frame = await end.next()
        assert [one["delivery_count"] for one in frame["messages"]] == [1]
        assert frame["ack_wait_ms"] == 3_600_000
        assert 0 < frame["buffer_wait_ms"] <= 50
        assert await end.next() == {"type": "withdrawn", "ranges": [[1, 1]], "cause": "lapsed"}
        (again,) = (await end.next())["messages"]
        assert (again["delivery_count"], again["redelivered"]) == (1, True)
        end.send(type="started", ranges=[[1, 1]])
        await asyncio.sleep(0.2)  # what the application has got has its ack_wait
        end.send(type="ack", id=1, ranges=[[1, 1]])
        while (told := await end.next())["type"] != "answer":
            end.send(type="started", ranges=[[1, 1]])
        assert told["acknowledged"] == 1


@row("ack_wait", ONE_HOUR)
async def what_is_in_time_stays_where_it_is(stores: StoresServing) -> None:
    await stores.publish("orders", "a")
    await stores.poll("orders", "work")
    assert await stores.poll("orders", "work", wait_ms=50) == []
    assert await stores.acks("orders", "work", ack=[1]) == {"acknowledged": 1, "stale": []}


@row("subscriber_timeout", SOON)
@row("subscriber_timeout", SOON, kind="standard")
async def who_gives_no_sign_of_life_and_holds_nothing_is_disconnected(stores: StoresServing) -> None:
    assert await stores.poll("orders", "work", "gone") == []

    async def gone() -> bool:
        return (await stores.ask("GET", WORK)).json["subscribers"] == []

    await eventually(gone)


@row("subscriber_timeout", SOON, kind="last_value")
async def who_answers_no_ping_is_disconnected(stores: StoresServing) -> None:
    async with attached(stores, more="&key=k"):

        async def gone() -> bool:
            return (await stores.ask("GET", WORK)).json["subscribers"] == []

        await eventually(gone)


# ---- how long they are kept -----------------------------------------------------------------------------------------


@row("message_ttl", SOON)
@row("message_ttl", SOON, kind="standard")
@row("message_ttl", SOON, kind="last_value")
async def a_message_expires_so_long_after_it_was_published(stores: StoresServing) -> None:
    await stores.publish("orders", "a", key="k")

    async def expired() -> bool:
        return (await counts(stores))["messages"] == 0 == (await counts(stores, ORDERS))["messages"]

    await eventually(expired)


@row("message_ttl", SOON, kind="map")
async def a_value_expires_so_long_after_it_was_set(stores: StoresServing) -> None:
    await stores.ask("PUT", MAP_KEY, {"value": text64("v")})

    async def expired() -> bool:
        return (await stores.ask("GET", MAP_KEY)).status == 404

    await eventually(expired)


@row("message_ttl", ONE_HOUR)
async def what_is_not_so_old_is_there(stores: StoresServing) -> None:
    await stores.publish("orders", "a")
    assert bodies(await stores.poll("orders", "work", wait_ms=50)) == ["a"]


@row("retention_time", ONE_HOUR)
@row("retention_time", ONE_HOUR, kind="standard")
async def what_was_acknowledged_can_be_rewound_to(stores: StoresServing) -> None:
    await stores.publish("orders", "a", "b")
    await stores.poll("orders", "work")
    await stores.acks("orders", "work", ack=[1, 2])
    assert (await counts(stores, ORDERS))["messages"] == 2
    assert (await stores.ask("POST", f"{WORK}/rewind", {"to": "start"})).status == 200
    assert bodies(await stores.poll("orders", "work")) == ["a", "b"]


@row("retention_time", 0)
async def what_was_acknowledged_is_gone(stores: StoresServing) -> None:
    await stores.publish("orders", "a")
    await stores.poll("orders", "work")
    await stores.acks("orders", "work", ack=[1])
    assert (await counts(stores, ORDERS))["messages"] == 0
    assert (await stores.ask("POST", f"{WORK}/rewind", {"to": "start"})).code == "type_mismatch"


@TEMPLATE.row("durable_ttl", SOON)
@TEMPLATE.row("durable_ttl", SOON, kind="standard")
@TEMPLATE.row("durable_ttl", SOON, kind="last_value")
async def a_dynamic_durable_that_nobody_uses_goes(stores: StoresServing) -> None:
    mine = f"{ORDERS}/durables/mine"
    kind = (await stores.ask("GET", f"{ORDERS}/templates/jobs")).json["type"]
    subscriber = await stores.subscribe("orders", "mine", more="&template=jobs" + "&key=k" * (kind == "last_value"))
    assert (await subscriber.next())["created"] is True
    assert (await stores.ask("GET", mine)).json["dynamic"] is True, "while somebody is connected it stays"
    subscriber.client.close()

    async def gone() -> bool:
        return (await stores.ask("GET", mine)).status == 404

    await eventually(gone)
    assert (await stores.ask("GET", WORK)).status == 200, "the static one stays"


@TEMPLATE.row("durable_ttl", SOON, kind="map")
async def a_dynamic_map_that_nobody_watches_goes(stores: StoresServing) -> None:
    mine = f"{ORDERS}/durables/mine"
    made = await stores.ask("PUT", mine, {"template": "jobs"})
    assert made.status == 200 or made.code == "not_found", "made; on a slow machine it is gone before it is shown"

    async def gone() -> bool:
        return (await stores.ask("GET", mine)).status == 404

    await eventually(gone)
    assert (await stores.ask("GET", WORK)).status == 200, "the static one stays"


# ---- limits ---------------------------------------------------------------------------------------------------------


@row("message_limit", 2)
@row("message_limit", 2, kind="standard")
async def a_full_durable_keeps_no_more_and_the_publisher_hears_nothing(stores: StoresServing) -> None:
    assert await send(stores, "a", "b") == (200, "")
    assert await send(stores, "c") == (200, "")
    found = await counts(stores)
    assert (found["messages"], found["expired"]) == (2, {"limit_new": 1})
    assert bodies(await stores.poll("orders", "work")) == ["a", "b"]


@row("bytelimit", 10)
@row("bytelimit", 10, kind="standard")
async def a_durable_with_enough_bytes_keeps_no_more(stores: StoresServing) -> None:
    assert await send(stores, "123456") == (200, "")
    assert await send(stores, "12345") == (200, "")
    assert await send(stores, "1234") == (200, "")
    assert bodies(await stores.poll("orders", "work")) == ["123456", "1234"]


@row("message_limit", 2, kind="map")
@row("bytelimit", 4, kind="map")
@row("discard", "new", kind="map", message_limit=2)
async def a_full_map_refuses_another_key(stores: StoresServing) -> None:
    for key in "ab":
        assert (await stores.ask("PUT", f"{ORDERS}/maps/work/{key}", {"value": text64("1")})).status == 200
    refused = await stores.ask("PUT", f"{ORDERS}/maps/work/c", {"value": text64("1")})
    assert (refused.status, refused.code) == (409, "store_full")
    assert (await stores.ask("PUT", f"{ORDERS}/maps/work/a", {"value": text64("2")})).status == 200


@row("discard", "new", message_limit=2)
@row("discard", "new", kind="standard", message_limit=2)
async def what_arrives_is_not_kept(stores: StoresServing) -> None:
    await stores.publish("orders", "a", "b", "c")
    assert bodies(await stores.poll("orders", "work")) == ["a", "b"]


@row("discard", "old", message_limit=2)
@row("discard", "old", kind="standard", message_limit=2)
async def the_oldest_goes(stores: StoresServing) -> None:
    await stores.publish("orders", "a", "b")
    await stores.publish("orders", "c")
    assert bodies(await stores.poll("orders", "work")) == ["b", "c"]
    assert (await counts(stores))["expired"] == {"limit_old": 1}


@row("discard", "old", kind="map", message_limit=2)
async def the_oldest_key_goes(stores: StoresServing) -> None:
    for key in "abc":
        assert (await stores.ask("PUT", f"{ORDERS}/maps/work/{key}", {"value": text64("1")})).status == 200
    listed = (await stores.ask("GET", f"{ORDERS}/maps/work")).json["entries"]
    assert [entry["key"] for entry in listed] == ["b", "c"]


# ---- failed deliveries ----------------------------------------------------------------------------------------------


async def fail_twice(stores: StoresServing) -> None:
    await stores.publish("orders", "a", key="k", fields={"kind": "x"})
    for number in (1, 2):
        (got,) = await stores.poll("orders", "work", wait_ms=30_000)
        assert got["delivery_count"] == number
        await stores.acks("orders", "work", nack=[{"seq": 1}])


@row("max_delivery", 2)
@row("max_delivery", 2, kind="standard")
async def after_so_many_failures_it_is_parked_and_counted(stores: StoresServing) -> None:
    await fail_twice(stores)
    assert await stores.poll("orders", "work") == []
    found = await counts(stores)
    assert (found["messages"], found["parked"], found["expired"]) == (1, 1, {})
    shown = (await stores.ask("GET", f"{WORK}/browse?parked=true")).json
    assert ([one["seq"] for one in shown["messages"]], shown["parked"]) == ([1], [1])


@row("dead_letter_store", "dead", max_delivery=2)
@row("dead_letter_store", "dead", kind="standard", max_delivery=2)
async def it_goes_there_with_its_cause_and_the_original(stores: StoresServing) -> None:
    await fail_twice(stores)
    (letter,) = await stores.poll("dead", "all", wait_ms=30_000)
    assert (bodies([letter]), letter["key"]) == (["a"], "k")
    assert letter["fields"] == {"kind": "x"}
    origin = {"store": "orders", "durable": "work", "seq": 1}
    assert letter["origin"] == {**origin, "cause": "max_delivery", "delivery_count": 2}
    await stores.publish("orders", "b")
    await stores.poll("orders", "work")
    await stores.acks("orders", "work", reject=[2])
    (letter,) = await stores.poll("dead", "all", wait_ms=30_000)
    assert (bodies([letter]), letter["origin"]["cause"]) == (["b"], "rejected")


# ---- the rest -------------------------------------------------------------------------------------------------------

IN_MEMORY = {"store": {"replicated": False, "swap_bytelimit": -1}}


@row("swap_bytelimit", 0, around=IN_MEMORY)
@row("swap_bytelimit", 0, kind="standard", around=IN_MEMORY)
@row("swap_bytelimit", 0, kind="last_value", around=IN_MEMORY)
async def the_durables_limit_swaps_where_the_stores_does_not(stores: StoresServing) -> None:
    await stores.publish("orders", "a", key="k")
    assert swapped_files(stores.host.directory) == 1


@row("swap_bytelimit", 0, kind="map", around=IN_MEMORY)
async def values_of_a_map_are_swapped_too(stores: StoresServing) -> None:
    await stores.ask("PUT", MAP_KEY, {"value": text64("v")})
    assert swapped_files(stores.host.directory) == 1
    assert (await stores.ask("GET", MAP_KEY)).json["value"] == text64("v")


@row("swap_bytelimit", -1, around=IN_MEMORY)
async def it_is_left_to_the_store(stores: StoresServing) -> None:
    await stores.publish("orders", "a")
    assert swapped_files(stores.host.directory) == 0


@row("key_field", "symbol", kind="last_value")
async def the_text_of_the_field_is_the_key(stores: StoresServing) -> None:
    for body, symbol in (("1", "x"), ("2", "x"), ("9", "y")):
        await stores.publish("orders", body, key="another", fields={"symbol": symbol})
    async with attached(stores, more="&key=x") as (end, _):
        assert bodies(await end.messages(1)) == ["2"]


@row("key_field", "", kind="last_value")
async def the_messages_own_key_is_the_key(stores: StoresServing) -> None:
    await stores.publish("orders", "1", key="k")
    await stores.publish("orders", "2", key="k")
    async with attached(stores, more="&key=k") as (end, _):
        assert bodies(await end.messages(1)) == ["2"]


@row("key_ordered", True)
async def messages_of_one_key_are_with_one_subscriber_in_order(stores: StoresServing) -> None:
    for body, key in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        await stores.publish("orders", body, key=key)
    assert bodies(await stores.poll("orders", "work", "one", max=1)) == ["a1"]
    assert bodies(await stores.poll("orders", "work", "two")) == ["b1"]
    await stores.acks("orders", "work", "one", ack=[1])
    assert bodies(await stores.poll("orders", "work", "two", wait_ms=30_000)) == ["a2"]


@row("key_ordered", False)
async def keys_say_nothing_of_the_subscriber(stores: StoresServing) -> None:
    for body in ("a1", "a2"):
        await stores.publish("orders", body, key="a")
    assert bodies(await stores.poll("orders", "work", "one", max=1)) == ["a1"]
    assert bodies(await stores.poll("orders", "work", "two")) == ["a2"]


# ---- the types ------------------------------------------------------------------------------------------------------


@row("type", "standard", kind="standard")
async def one_subscriber_has_it(stores: StoresServing) -> None:
    async with attached(stores, "older"):
        refused = await stores.ask("GET", "/v1/stores/orders/durables/work/messages?subscriber=newer")
        assert (refused.status, refused.json["error"]["code"]) == (409, "durable_busy")


@row("type", "shared")
async def each_message_goes_to_one_of_many(stores: StoresServing) -> None:
    await stores.publish("orders", "a", "b")
    assert bodies(await stores.poll("orders", "work", "one", max=1)) == ["a"]
    assert bodies(await stores.poll("orders", "work", "two")) == ["b"]


@row("type", "last_value", kind="last_value")
async def a_value_is_kept_until_the_next_of_its_key(stores: StoresServing) -> None:
    for body in "12":
        await stores.publish("orders", body, key="k")
    assert (await counts(stores))["messages"] == 1
    async with attached(stores, "one", "&key=k") as (one, _), attached(stores, "two", "&key=k") as (two, _):
        assert bodies(await one.messages(1)) == bodies(await two.messages(1)) == ["2"]


@row("type", "map", kind="map")
async def a_key_is_kept_until_it_is_removed(stores: StoresServing) -> None:
    await stores.ask("PUT", MAP_KEY, {"value": text64("v")})
    entry = (await stores.ask("GET", MAP_KEY)).json
    assert (entry["value"], entry["revision"]) == (text64("v"), 1)
    assert (await stores.ask("DELETE", MAP_KEY)).status == 200
    assert (await stores.ask("GET", MAP_KEY)).status == 404
