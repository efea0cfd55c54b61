"""Names of stores, durables, templates and subscribers have letters of any script, wherever a name goes."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from urllib.parse import quote

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.integration.http_harness import run
from tests.integration.stores_harness import StoresServing, bodies, stores_serving, text64

from holdfast.server.metrics import ServerMetrics

pytestmark = pytest.mark.usefixtures("durability")

LONG = "漢" * 256


@pytest.mark.parametrize(
    ("store", "durable"), [("Bestellungen-für", "größe"), ("заказы", "работа"), ("注文.東京", "仕事"), (LONG, LONG)]
)
def test_a_name_of_any_script_works_on_every_route(tmp_path: Path, store: str, durable: str) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await _walk(stores, quote(store), quote(durable), durable)
            definition = (await stores.ask("GET", "/v1/cluster/definition")).json["definition"]
            assert durable in definition["stores"][store]["durables"]
            labels = _labels(stores)
            assert {"store": store, "durable": durable} in labels
        async with stores_serving(tmp_path) as again:
            assert (await again.ask("GET", f"/v1/stores/{quote(store)}")).json["name"] == store

    run(scenario)


async def _walk(stores: StoresServing, store: str, durable: str, subscriber: str) -> None:
    await stores.define(store, durables={subscriber: {"type": "shared", "retention_time": "1h"}}, templates={
        subscriber: {"type": "map"}
    })  # fmt: skip
    await stores.publish(store, "a", "b")
    name = quote(subscriber)
    (first, second) = await stores.poll(store, durable, name)
    assert bodies([first, second]) == ["a", "b"]
    assert (await stores.acks(store, durable, subscriber, ack=[1]))["acknowledged"] == 1
    end = await stores.subscribe(store, durable, name)
    assert (await end.next())["type"] == "attached"
    end.send(type="credit", messages=5)
    assert bodies(await end.messages(1)) == ["b"]
    one = f"/v1/stores/{store}/durables/{durable}"
    assert [each["name"] for each in (await stores.ask("GET", one)).json["subscribers"]] == [subscriber]
    for target in (
        f"{one}/browse",
        f"/v1/stores/{store}/messages/1/explain",
        f"/v1/stores/{store}/templates/{durable}",
    ):
        assert (await stores.ask("GET", target)).status == 200
    made = f"/v1/stores/{store}/durables/{quote(subscriber[:200])}-m"
    assert (await stores.ask("PUT", made, {"template": subscriber})).status == 200
    entry = f"{made.replace('/durables/', '/maps/')}/{quote('schlüssel')}"
    assert (await stores.ask("PUT", entry, {"value": text64("v")})).status == 200
    assert (await stores.ask("GET", entry)).json["key"] == "schlüssel"


def _labels(stores: StoresServing) -> list[dict[str, str]]:
    metrics = ServerMetrics(stores.front)
    metrics.stores = stores.host
    text = metrics.text().decode()
    return [dict(sample.labels) for family in text_string_to_metric_families(text) for sample in family.samples]


def test_a_role_names_stores_and_their_prefixes_in_any_script(tmp_path: Path) -> None:
    async def scenario() -> None:
        token = "a-long-random-token"
        permissions = {
            "enabled": True,
            "users": {"zoë": {"token": token, "roles": ["händler"]}},
            "roles": {"händler": {"stores": {"größe-*": ["browse"], "東京": ["browse"]}, "cluster": ["administer"]}},
        }
        document = {"stores": {"größe-a": {}, "東京": {}, "東京-2": {}}, "permissions": permissions}
        async with stores_serving(tmp_path, definition=document) as stores:
            for store, status in (("größe-a", 200), ("東京", 200), ("東京-2", 403)):
                target = f"/v1/stores/{quote(store)}"
                assert (await stores.ask("GET", target, Authorization=f"Bearer {token}")).status == status

    run(scenario)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (unicodedata.normalize("NFD", "größe"), r"write 'gr\xf6\xdfe'"),
        ("_mine", "names that begin with _ are those of the service"),
        ("two words", "letters and digits of any script"),
        ("\N{GRINNING FACE}", "letters and digits of any script"),
        ("\N{LATIN SMALL LETTER A}\N{ZERO WIDTH JOINER}b", "letters and digits of any script"),
        ("漢" * 257, "1 to 256"),
    ],
)
def test_a_name_that_is_refused_says_what_is_allowed(tmp_path: Path, name: str, says: str) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders")
            for target, body in (
                (f"/v1/stores/{quote(name)}", {}),
                (f"/v1/stores/orders/durables/{quote(name)}", {"type": "shared"}),
                (f"/v1/stores/orders/durables/{quote(name)}", {"template": "shared"}),
                (f"/v1/stores/orders/templates/{quote(name)}", {"type": "shared"}),
                ("/v1/stores/orders", {"durables": {"d": {"type": "shared"}}, "subscribers": {name: "d"}}),
                ("/v1/cluster/definition", {"stores": {"orders": {}}, "permissions": {"users": {name: {}}}}),
            ):
                answered = await stores.ask("PUT", target, body)
                assert answered.status == 400, (target, answered.body)
                assert says in json.dumps(answered.json, ensure_ascii=False).replace("\\\\", "\\"), target

    run(scenario)
