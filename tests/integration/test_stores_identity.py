"""Deleted, made again, restored: whatever remembers something between two requests notices (``store_replaced``).

Each row remembers something of a store with 5 messages and a map with a key, then the store becomes another one under
the same name, with as many messages and the same subscriber. The remembered thing must be refused and change nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.definitions import define
from tests.integration.http_harness import Answered, run
from tests.integration.stores_harness import JSON, StoresServing, Subscriber, stores_serving, text64

from holdfast.aio import StoreClient
from holdfast.client.stores import SubscriberOptions
from holdfast.errors import Closed, Code
from holdfast.stores.definitions.changes import without_store
from holdfast.stores.values.commands import Publish, Redefine
from holdfast.wire.parts import Message

pytestmark = pytest.mark.usefixtures("durability")

Remembered = dict[str, Any]
SHARED = {"type": "shared"}
STORE = "/v1/stores/orders"
WORK = f"{STORE}/durables/work"
PRICES = f"{STORE}/maps/prices"
DURABLES = {"work": {**SHARED, "retention_time": "1h"}, "prices": {"type": "map"}}


async def fill(stores: StoresServing) -> Remembered:
    """Define the store, and hold, lock and number what the rows remember."""
    await stores.define("orders", durables=DURABLES)
    numbered = [{"body": text64(str(number)), "publisher_seq": number} for number in range(1, 6)]
    receipt = await stores.ask("POST", f"{STORE}/messages", {"publisher_id": "p", "messages": numbered})
    assert receipt.json["last_seq"] == 5, receipt.body
    polled = await stores.ask("GET", f"{WORK}/messages?subscriber=s&max=3")
    assert [one["seq"] for one in polled.json["messages"]] == [1, 2, 3]
    for key in ("coffee", "tea", "milk"):
        await stores.ask("PUT", f"{PRICES}/{key}", {"value": text64("4")})
    entry = (await stores.ask("GET", f"{PRICES}/coffee")).json
    lock = (await stores.ask("POST", f"{PRICES}/lock", {"owner": "me", "ttl_ms": 60_000, "key": "coffee"})).json
    page = (await stores.ask("GET", f"{WORK}/browse?max=2")).json
    entries = (await stores.ask("GET", f"{PRICES}?max=1")).json
    described = (await stores.ask("GET", WORK)).json
    of_store = (await stores.ask("GET", STORE)).json["token"]
    tokens = {polled.json["token"], page["token"], described["token"]}
    assert len(tokens) == 1, "one durable has one token"
    assert len({lock["token"], entry["token"], entries["token"]}) == 1, "and so has one map"
    assert receipt.json["token"] == of_store == polled.json["token"].rpartition(".")[0], "which name their store"
    return {
        "work": polled.json["token"],
        "prices": lock["token"],
        "store": of_store,
        "above": 0,
        "publisher_seq": 6,
        "revision": entry["revision"],
        "tea": entry["revision"] + 1,
        "milk": entry["revision"] + 2,
        "fence": lock["fence"],
    }


async def go_on(stores: StoresServing, it: Remembered) -> Remembered:
    """What is remembered of a store that has gone on after ``it``: as many messages again, and the map changed."""
    numbered = [{"body": text64(str(number)), "publisher_seq": number} for number in range(6, 11)]
    receipt = await stores.ask("POST", f"{STORE}/messages", {"publisher_id": "p", "messages": numbered})
    above = receipt.json["first_seq"] - 1
    changed = {}
    for key in ("tea", "milk"):
        changed[key] = (await stores.ask("PUT", f"{PRICES}/{key}", {"value": text64("5")})).json["revision"]
    assert receipt.json["token"] == it["store"], "the same store in the same history"
    return {**it, **changed, "above": above, "publisher_seq": 11}


Use = Callable[[StoresServing, Remembered], Awaitable[Answered]]


@dataclass
class Row:
    """Something that is remembered."""

    use: Use
    of: str = "work"
    works: tuple[int, ...] = (200,)
    """What it is answered where nothing was replaced."""
    later: str = "refused"
    """What becomes of it in another history of the same store: ``refused``; ``numbers``: it works for what the store
    had when the histories parted, and is refused above; ``goes on``: it remembers no number, and works."""


def acks(**what: Callable[[int], object]) -> Row:
    """An acknowledgement of the numbers that each function makes of the number before the first."""

    async def use(stores: StoresServing, it: Remembered) -> Answered:
        said = {name: made(it["above"]) for name, made in what.items()}
        return await stores.ask("POST", f"{WORK}/acks", {"subscriber": "s", "token": it["work"], **said})

    return Row(use, later="numbers")


def sent(
    method: str,
    target: str,
    body: object = None,
    of: str = "work",
    *,
    later: str = "refused",
    headers: Mapping[str, str] | None = None,
) -> Row:
    """A request whose token is in the query. ``{_1}`` is the first remembered message, ``{fence}`` the fence."""

    async def use(stores: StoresServing, it: Remembered) -> Answered:
        where = target.format_map({**it, **{f"_{number}": it["above"] + number for number in range(1, 6)}})
        given = {name.replace("_", "-"): value.format_map(it) for name, value in (headers or {}).items()}
        return await stores.ask(method, f"{where}{'&' if '?' in where else '?'}token={it[of]}", body, **given)

    return Row(use, of, later=later)


def got(target: str, of: str = "work", *, later: str = "refused") -> Row:
    return sent("GET", target, None, of, later=later)


def reported(target: str, of: str, **body: object) -> Row:
    """A request whose token is in the body, with the fence where ``fence`` is True."""

    async def use(stores: StoresServing, it: Remembered) -> Answered:
        fence = {"fence": it["fence"]} if body.get("fence") else {}
        return await stores.ask("POST", target, {**body, **fence, "token": it[of]})

    return Row(use, of)


async def next_batch(stores: StoresServing, it: Remembered) -> Answered:
    message = {"body": text64("6"), "publisher_seq": it["publisher_seq"]}
    body = {"publisher_id": "p", "messages": [message], "token": it["store"]}
    return await stores.ask("POST", f"{STORE}/messages", body)


def frame(kind: str, **what: Callable[[int], object]) -> Row:
    """A frame of a connection that is attached to what the name means now."""

    async def use(stores: StoresServing, it: Remembered) -> Answered:
        subscriber = await stores.subscribe("orders", "work", "other")
        assert (await subscriber.next())["type"] == "attached"
        said = {name: made(it["above"]) for name, made in what.items()}
        subscriber.send(type=kind, id=7, token=it["work"], **said)
        answer = await subscriber.next()
        if answer["type"] == "error":
            return Answered(409, {}, b'{"error": {"code": "%s"}}' % answer["code"].encode())
        assert answer["type"] == "answer", answer
        return Answered(200, {}, b"{}")

    return Row(use, later="numbers")


def attached(durable: str) -> Row:
    """A subscriber, or the watch of a map, that comes back after its connection was lost."""

    async def use(stores: StoresServing, it: Remembered) -> Answered:
        client = await stores.connect()
        target = f"{STORE}/durables/{durable}/subscribe?subscriber=back&token={it[durable]}"
        return await Subscriber(client, JSON).asked_for(target)

    return Row(use, durable, works=(101,), later="goes on")


LOCKED = f"{PRICES}/coffee?fence={{fence}}"
ROWS: dict[str, Row] = {
    "ack": acks(ack=lambda above: [above + 1]),
    "ack_ranges": acks(ranges=lambda above: [[above + 1, above + 3]]),
    "nack": acks(nack=lambda above: [{"seq": above + 1}]),
    "reject": acks(reject=lambda above: [above + 1]),
    "extend": acks(extend=lambda above: [above + 1]),
    "started": acks(started=lambda above: [above + 1]),
    "ack_frame": frame("ack", ranges=lambda above: [[above + 1, above + 3]]),
    "nack_frame": frame("nack", messages=lambda above: [[above + 1, 0]]),
    "reject_frame": frame("reject", messages=lambda above: [above + 1]),
    "extend_frame": frame("extend", messages=lambda above: [above + 1]),
    "poll": got(f"{WORK}/messages?subscriber=s&max=1", later="goes on"),
    "subscriber": attached("work"),
    "watch": attached("prices"),
    "cursor_of_browse": got(f"{WORK}/browse?after={{_2}}", later="numbers"),
    "cursor_of_map": got(f"{PRICES}?after=a", "prices"),
    "entry": got(f"{PRICES}/coffee", "prices"),
    "explained_number": got(f"{STORE}/messages/{{_1}}/explain", "store", later="numbers"),
    "deleted_number": sent("DELETE", f"{WORK}/messages/{{_4}}", later="numbers"),
    "rewound_number": sent("POST", f"{WORK}/rewind", {"seq": 2}),
    "redelivered_number": sent("POST", f"{WORK}/redeliver", {"messages": [[1, 2]]}),
    "purge": sent("POST", f"{WORK}/purge", {}),
    "described_durable": got(WORK),
    "described_store": got(STORE, "store"),
    "deleted_durable": sent("DELETE", WORK),
    "changed_durable": sent("PATCH", WORK, {"prefetch": 7}),
    "deleted_store": sent("DELETE", STORE, of="store"),
    "publisher": Row(next_batch, "store", later="numbers"),
    "revision": sent("PUT", f"{PRICES}/tea", {"value": ""}, "prices", later="numbers", headers={"If_Match": '"{tea}"'}),
    "revision_of_removal": sent(
        "DELETE", f"{PRICES}/milk", None, "prices", later="numbers", headers={"If_Match": '"{milk}"'}
    ),
    "revision_with_a_fence": sent("PUT", LOCKED, {"value": ""}, "prices", headers={"If_Match": '"{revision}"'}),
    "fence": reported(PRICES, "prices", changes=[{"key": "coffee", "value": ""}], fence=True),
    "lock": reported(f"{PRICES}/lock", "prices", owner="me", ttl_ms=60_000, key="coffee"),
    "unlock": reported(f"{PRICES}/unlock", "prices", owner="me", key="coffee", fence=True),
}


async def made_again(stores: StoresServing, _: Path) -> None:
    assert (await stores.ask("DELETE", STORE)).status == 200


async def durables_made_again(stores: StoresServing, _: Path) -> None:
    for durable in DURABLES:
        assert (await stores.ask("DELETE", f"{STORE}/durables/{durable}")).status == 200


async def rolled_back(stores: StoresServing, _: Path) -> None:
    revision = (await stores.ask("GET", "/v1/cluster/definition")).json["revision"]
    assert (await stores.ask("DELETE", STORE)).status == 200
    assert (await stores.ask("POST", "/v1/cluster/rollback", {"revision": revision})).status == 200


EVENTS = {"store": made_again, "durable": durables_made_again, "rollback": rolled_back}
OF_STORE = frozenset({"publisher", "explained_number", "described_store", "deleted_store"})


async def state_of(stores: StoresServing) -> object:
    """What no refused request may change: counts, definition, locks, the map."""
    described = [(await stores.ask("GET", target)).json for target in (STORE, WORK, f"{STORE}/durables/prices")]
    entries = (await stores.ask("GET", PRICES)).json
    kept = stores.opened.state.stores["orders"].durables["work"]
    subscribers = [one for one in described[1].pop("subscribers") if one["name"] not in ("other", "back")]
    numbers = [{key: one[key] for key in ("name", "unacknowledged")} for one in subscribers]
    return described, entries, numbers, kept.pending


@pytest.mark.parametrize("event", EVENTS)
def test_what_was_remembered_of_another_store_is_refused_and_changes_nothing(tmp_path: Path, event: str) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            old = await fill(stores)
            await EVENTS[event](stores, tmp_path)
            if event == "durable":
                # The store is the same: so are its numbers and its publishers.
                await stores.define("orders", durables=DURABLES)
                for name, row in ROWS.items():
                    if name not in OF_STORE:
                        refused = await row.use(stores, old)
                        assert (refused.status, refused.code) == (409, "store_replaced"), name
                return
            new = await fill(stores)
            assert not {old[name] for name in ("work", "prices", "store")} & {
                new[name] for name in ("work", "prices", "store")
            }
            before = await state_of(stores)
            for name, row in ROWS.items():
                refused = await row.use(stores, old)
                assert (refused.status, refused.code) == (409, "store_replaced"), name
                assert await state_of(stores) == before, name

    run(scenario)


def test_a_token_of_what_has_the_name_now_changes_no_answer(tmp_path: Path) -> None:
    """Each row works with the token that it was given; so the refusals above are the token's."""

    async def scenario() -> None:
        for name, row in ROWS.items():
            async with stores_serving(tmp_path / name) as stores:
                used = await row.use(stores, await fill(stores))
                assert used.status in row.works, (name, used.body)

    run(scenario)


def test_what_was_remembered_before_a_restart_is_still_known(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            old = await fill(stores)
        async with stores_serving(tmp_path) as stores:
            for name in ("ack", "fence", "cursor_of_browse", "publisher"):
                used = await ROWS[name].use(stores, old)
                assert used.status == 200, (name, used.body)

    run(scenario)


def test_stores_in_memory_are_of_one_leadership(tmp_path: Path) -> None:
    """Their numbers begin at 1 after a restart. A subscriber goes on: it knows that such a store may be empty."""

    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("fast", replicated=False, durables={"work": SHARED})
            await stores.publish("fast", "a")
            target = "/v1/stores/fast/durables/work"
            token = (await stores.ask("GET", f"{target}/messages?subscriber=s")).json["token"]
            assert (await stores.acks("fast", "work", extend=[1], token=token))["acknowledged"] == 0
        async with stores_serving(tmp_path) as stores:
            await stores.publish("fast", "b")
            assert len(await stores.poll("fast", "work")) == 1
            refused = await stores.ask("POST", f"{target}/acks", {"subscriber": "s", "ack": [1], "token": token})
            assert (refused.status, refused.code) == (409, "store_replaced")
            subscriber = await stores.subscribe("fast", "work", "t", more=f"&token={token}")
            assert (await subscriber.next())["token"] != token

    run(scenario)


def test_a_frame_of_a_connection_is_for_what_the_connection_is_attached_to(tmp_path: Path) -> None:
    """Without a token, too: between the deletion and its record a frame finds another durable of the name."""

    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            await stores.publish("orders", "a")
            subscriber = await stores.subscribe("orders", "work")
            token = (await subscriber.next())["token"]
            subscriber.send(type="credit", messages=1)
            await subscriber.messages(1)
            assert (await stores.ask("DELETE", STORE)).status == 200
            ended = [await subscriber.next() for _ in range(3)]
            assert ended[-1]["type"] == "closed", ended
            await stores.define("orders", durables={"work": SHARED})
            await stores.publish("orders", "b")
            refused = await stores.ask("GET", f"{WORK}/messages?subscriber=s&token={token}")
            assert refused.code == "store_replaced"

    run(scenario)


async def replace_while_suspended(stores: StoresServing) -> None:
    """The clients come back after the store was made again: they have not heard of its deletion."""
    assert (await stores.ask("POST", "/v1/cluster/suspend", {})).status == 200
    service, document = stores.opened.service, stores.opened.state.definition.json()
    without = without_store(stores.opened.state.definition, "orders")
    await service.submit(Redefine(0, without, stores.opened.state.revision + 1, delete=True))
    await service.submit(define(document, stores.opened.state))
    await service.submit(Publish(0, "orders", "", [Message(b"new") for _ in range(5)]))
    assert (await stores.ask("POST", "/v1/cluster/resume", {})).status == 200


def test_a_client_never_goes_on_with_another_store_of_the_name(tmp_path: Path) -> None:
    """A subscriber, its acknowledgement under way, and the watch of a map: each ends, and the new store has it all."""

    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores, StoreClient(stores.url) as client:
            await fill(stores)
            options = SubscriberOptions(explicit_ack=True)
            prices, cursor = client.map("orders", "prices"), client.browser("orders", "work")
            assert await prices.get("coffee") is not None
            lock = await prices.lock("tea", owner="me too", ttl_ms=60_000)
            await anext(cursor)
            cursor.reset(after=1)
            async with (
                client.subscriber("orders", "work", subscriber="w", options=options) as messages,
                client.map("orders", "prices").watch() as watch,
            ):
                held = await messages.receive(timeout=60)
                assert held is not None and held.token == messages._machine.token != ""
                for _ in range(3):
                    await watch.receive(timeout=60)
                await replace_while_suspended(stores)
                for ended in (
                    messages.acknowledge(held, confirmed=True),
                    messages.receive(timeout=60),
                    watch.receive(timeout=60),
                ):
                    with pytest.raises(Closed) as refused:
                        await ended
                    assert refused.value.code is Code.STORE_REPLACED
            with pytest.raises(Closed) as refused:
                await anext(cursor)
            assert refused.value.code is Code.STORE_REPLACED
            for step in (
                prices.set("coffee", b"", if_revision=6),
                prices.set("coffee", b"", fence=lock.fence),
                prices.set_many({"coffee": b""}, fence=lock.fence),
                prices.unlock(lock),
            ):
                with pytest.raises(Closed) as refused:
                    await step
                assert refused.value.code is Code.STORE_REPLACED
            await prices.set("tea", b"5")
            assert await client.map("orders", "prices").get("tea") is not None, "what depends on no number goes on"
            work = (await stores.ask("GET", WORK)).json
            assert (work["counts"]["messages"], work["subscribers"]) == (5, [])

    run(scenario)


def test_a_durable_that_the_default_template_makes_again_is_another_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", default_template="shared")
            tokens: list[str] = []
            for _ in range(2):
                subscriber = await stores.subscribe("orders", "work")
                assert (await subscriber.next())["type"] == "attached"
                tokens.append((await stores.ask("GET", WORK)).json["token"])
                assert (await stores.ask("DELETE", WORK)).status == 200
            assert tokens[0] != tokens[1]

    run(scenario)


@pytest.mark.parametrize("token", ["x", "0" * 26, "00000000.00000000.zzzzzzzz", "00000000", "0.0.0"])
def test_text_that_is_no_token_is_a_wrong_request(tmp_path: Path, token: str) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            answered = await stores.ask("GET", f"{WORK}?token={token}")
            assert (answered.status, answered.code) == (400, "malformed")

    run(scenario)
