"""The rows of a store's parameters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.integration.stores_harness import StoresServing, bodies, text64
from tests.stores.parameter_rows import ORDERS, SHARED, Table, counts, send, swapped_files

STORE = Table("store")
row = STORE.row
THREE = {"durables": {"work": SHARED, "spare": SHARED}}


@row("description", "what the shop sold")
async def people_read_it(stores: StoresServing) -> None:
    listed = (await stores.ask("GET", "/v1/stores?description=what%20the%20shop%20sold")).json["stores"]
    assert [store["name"] for store in listed] == ["orders"]


async def there_is_the_message(stores: StoresServing) -> None:
    assert bodies(await stores.poll("orders", "work")) == ["a"]


async def there_is_an_empty_store(stores: StoresServing) -> None:
    assert (await counts(stores, ORDERS))["messages"] == 0
    assert await stores.poll("orders", "work") == []


@row("replicated", True)
async def messages_survive_a_restart(stores: StoresServing) -> Callable[[StoresServing], Awaitable[None]]:
    await stores.publish("orders", "a")
    return there_is_the_message


@row("replicated", False)
async def a_restart_leaves_an_empty_store(stores: StoresServing) -> Callable[[StoresServing], Awaitable[None]]:
    await stores.publish("orders", "a")
    assert bodies(await stores.poll("orders", "work")) == ["a"]
    return there_is_an_empty_store


@row("publisher_mode", "store_confirm_send", message_limit=1)
async def a_publisher_hears_what_becomes_of_its_message(stores: StoresServing) -> None:
    assert (await stores.publish("orders", "a"))["last_seq"] == 1
    assert await send(stores, "b") == (409, "store_full")


@row("publisher_mode", "store_send_noconfirm", message_limit=1)
async def a_publisher_hears_nothing(stores: StoresServing) -> None:
    nothing = {"first_seq": 0, "last_seq": 0, "duplicates": 0, "unmatched": 0, "discarded": 0}
    assert [await stores.publish("orders", body) for body in "ab"] == [nothing, nothing]
    assert bodies(await stores.poll("orders", "work", wait_ms=10_000)) == ["a"]
    assert (await counts(stores, ORDERS))["messages"] == 1


@row("bytelimit", 10)
async def more_bytes_are_refused_until_some_are_consumed(stores: StoresServing) -> None:
    assert await send(stores, "123456", "12345") == (409, "store_full")
    assert await send(stores, "1234567890") == (200, "")
    assert await send(stores, "1") == (409, "store_full")
    await stores.poll("orders", "work")
    await stores.acks("orders", "work", ack=[1])
    assert await send(stores, "1") == (200, "")


@row("message_limit", 2)
async def more_messages_are_refused_until_some_are_consumed(stores: StoresServing) -> None:
    assert await send(stores, "a", "b", "c") == (409, "store_full")
    assert await send(stores, "a", "b") == (200, "")
    assert await send(stores, "c") == (409, "store_full")
    await stores.poll("orders", "work")
    await stores.acks("orders", "work", ack=[1])
    assert await send(stores, "c") == (200, "")


@row("max_message_size", 20)
async def key_fields_and_body_together_are_limited(stores: StoresServing) -> None:
    assert await send(stores, "x" * 20) == (200, "")
    assert await send(stores, "x" * 21) == (413, "message_too_large")
    assert await send(stores, "x" * 20, key="k") == (413, "message_too_large")
    assert await send(stores, "x" * 20, fields={"f": "v"}) == (413, "message_too_large")
    assert await send(stores, "x", "x" * 21) == (413, "message_too_large")
    assert (await counts(stores, ORDERS))["messages"] == 1


@row("dynamic_durable_limit", 1)
async def one_more_dynamic_durable_is_refused(stores: StoresServing) -> None:
    make = {"template": "shared"}
    assert (await stores.ask("PUT", f"{ORDERS}/durables/first", make)).status == 200
    answered = await stores.ask("PUT", f"{ORDERS}/durables/second", make)
    assert (answered.status, answered.code) == (409, "too_many_durables")
    assert (await stores.ask("PUT", f"{ORDERS}/durables/static", SHARED)).status == 200
    assert (await stores.ask("DELETE", f"{ORDERS}/durables/first")).status == 200
    assert (await stores.ask("PUT", f"{ORDERS}/durables/second", make)).status == 200


@row("swap_bytelimit", 0, replicated=False)
async def every_body_goes_to_disk(stores: StoresServing) -> None:
    await stores.publish("orders", "a")
    assert swapped_files(stores.host.directory) == 1
    assert bodies(await stores.poll("orders", "work")) == ["a"]


@row("swap_bytelimit", -1, replicated=False)
async def no_body_goes_to_disk(stores: StoresServing) -> None:
    await stores.publish("orders", "x" * 100_000)
    assert swapped_files(stores.host.directory) == 0


@row("swap_bytelimit", 10, replicated=False)
async def bodies_above_it_go_to_disk(stores: StoresServing) -> None:
    await stores.publish("orders", "x" * 10)
    assert swapped_files(stores.host.directory) == 0
    await stores.publish("orders", "y" * 10)
    await stores.publish("orders", "z" * 10)
    assert swapped_files(stores.host.directory) == 1
    assert bodies(await stores.poll("orders", "work")) == ["x" * 10, "y" * 10, "z" * 10]


@row("swap_bytelimit", 0)
async def a_store_that_is_on_disk_swaps_nothing(stores: StoresServing) -> None:
    await stores.publish("orders", "a")
    assert swapped_files(stores.host.directory) == 0


@row("default_durable", "spare", **THREE)
async def who_names_no_durable_gets_this_one(stores: StoresServing) -> None:
    await stores.publish("orders", "a")
    assert bodies(await stores.poll("orders", "-", "anybody")) == ["a"]
    assert await stores.acks("orders", "-", "anybody", ack=[1]) == {"acknowledged": 1, "stale": []}
    assert (await counts(stores, f"{ORDERS}/durables/spare"))["messages"] == 0
    assert (await counts(stores))["messages"] == 1


@row("default_template", "jobs", templates={"jobs": {"type": "shared", "prefetch": 7}})
async def who_names_no_template_gets_this_one(stores: StoresServing) -> None:
    subscriber = await stores.subscribe("orders", "mine", more="&template=")
    attached = await subscriber.next()
    assert (attached["created"], attached["prefetch"]) == (True, 7)


@row("subscribers", {"ann": "spare"}, **THREE)
async def a_subscriber_has_its_own_durable(stores: StoresServing) -> None:
    await stores.publish("orders", "a")
    assert bodies(await stores.poll("orders", "-", "ann")) == ["a"]
    assert (await counts(stores, f"{ORDERS}/durables/spare"))["unacknowledged"] == 1
    other = await stores.ask("GET", f"{ORDERS}/durables/-/messages?subscriber=bob")
    assert (other.status, other.code) == (404, "not_found")


@row("durables", {"work": {"type": "standard"}})
async def static_durables_are_there_without_a_subscriber(stores: StoresServing) -> None:
    await stores.publish("orders", "a")
    shown = (await stores.ask("GET", f"{ORDERS}/durables/work")).json
    assert (shown["type"], shown["dynamic"], shown["counts"]["backlog"]) == ("standard", False, 1)


@row("templates", {"jobs": {"type": "shared", "max_delivery": 3}})
async def dynamic_durables_are_made_of_a_template(stores: StoresServing) -> None:
    made = (await stores.ask("PUT", f"{ORDERS}/durables/mine", {"template": "jobs"})).json
    assert (made["dynamic"], made["template"], made["max_delivery"]) == (True, "jobs", 3)
    assert await send(stores, text64("a")) == (200, "")
    assert (await counts(stores, f"{ORDERS}/durables/mine"))["messages"] == 1
