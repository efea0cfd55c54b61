"""Dead letters cross no rights: who names their store, who says where one came from, and who sends it back."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.integration.http_harness import Answered, run, until
from tests.integration.stores_harness import StoresServing, stores_serving, text64

from holdfast.cli.stores_messages import message_fields, message_text
from holdfast.server.http.auth import Role
from holdfast.wire.parts import Delivery, Origin

EVERYTHING = ["publish", "subscribe", "browse", "administer"]
ROLES: dict[str, dict[str, Any]] = {
    "root": {"stores": {"*": EVERYTHING}, "cluster": ["administer", "browse"]},
    "of-orders": {"stores": {"orders": EVERYTHING}},
    "of-both": {"stores": {"orders": EVERYTHING, "dead": EVERYTHING}},
    "of-dead": {"stores": {"dead": EVERYTHING}},
    "sender": {"stores": {"dead": EVERYTHING, "orders": ["publish"]}},
}
STORES: dict[str, Any] = {
    "orders": {"durables": {"work": {"type": "shared", "max_delivery": 1}}},
    "dead": {"durables": {"letters": {"type": "shared"}}},
    "quick": {"replicated": False},
    "secret": {},
}
LINK = {"dead_letter_store": "dead"}
WORK, LETTERS = "/v1/stores/orders/durables/work", "/v1/stores/dead/durables/letters"


def token_of(user: str) -> str:
    return f"the-token-of-{user}-is-long"


def definition(stores: dict[str, Any] = STORES) -> dict[str, Any]:
    users = {user: {"token": token_of(user), "roles": [user]} for user in ROLES}
    return {"stores": stores, "permissions": {"enabled": True, "users": users, "roles": ROLES}}


async def ask(here: StoresServing, user: str, method: str, target: str, body: object = None) -> Answered:
    return await here.ask(method, target, body, Authorization=f"Bearer {token_of(user)}")


CHANGES = {
    "PUT durable": ("PUT", WORK, {"type": "shared", "max_delivery": 1}),
    "PATCH durable": ("PATCH", WORK, {}),
    "PUT new durable": ("PUT", "/v1/stores/orders/durables/more", {"type": "shared"}),
    "PUT template": ("PUT", "/v1/stores/orders/templates/jobs", {"type": "shared"}),
    "PUT store": ("PUT", "/v1/stores/orders", {"durables": {"work": {"type": "shared"}}}),
    "PATCH store": ("PATCH", "/v1/stores/orders", {"durables": {"work": {}}}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_store_without_the_right_and_a_missing_one_get_the_same_answer(tmp_path: Path, change: str) -> None:
    """Also where the store would be refused for another reason: ``quick`` forgets its messages at a restart."""

    async def scenario() -> None:
        async with stores_serving(tmp_path, definition=definition()) as here:
            method, target, body = CHANGES[change]

            def naming(store: str) -> dict[str, Any]:
                document = deepcopy(body)
                inner = document["durables"]["work"] if "durables" in document else document
                inner["dead_letter_store"] = store
                return document

            answers = {
                store: await ask(here, "of-orders", method, target, naming(store))
                for store in ("dead", "quick", "none")
            }
            said = {
                store: (each.status, each.body.replace(f"'{store}'".encode(), b"STORE"))
                for store, each in answers.items()
            }
            assert said["dead"] == said["quick"] == said["none"], said
            assert answers["dead"].code == "bad_configuration"
            assert (await ask(here, "of-both", method, target, naming("dead"))).status == 200

    run(scenario)


def test_a_link_holds_until_it_changes(tmp_path: Path) -> None:
    async def scenario() -> None:
        stores = deepcopy(STORES)
        stores["orders"]["durables"]["work"] |= LINK
        async with stores_serving(tmp_path, definition=definition(stores)) as here:
            wrong = await ask(here, "of-orders", "PATCH", WORK, {"max_delivery": -1})
            assert wrong.code == "bad_configuration" and b"'dead'" not in wrong.body
            changed = await ask(here, "of-orders", "PATCH", WORK, {"max_delivery": 2})
            assert changed.status == 200, changed.body
            assert changed.json["dead_letter_store"] == "dead"
            other = await ask(here, "of-orders", "PUT", "/v1/stores/orders/durables/more", {"type": "shared", **LINK})
            assert other.code == "bad_configuration"
            assert (await ask(here, "of-orders", "PATCH", WORK, {"dead_letter_store": ""})).status == 200
            again = await ask(here, "of-orders", "PATCH", WORK, LINK)
            assert again.code == "bad_configuration"

    run(scenario)


FORGED = {"store": "orders", "durable": "work", "seq": 1, "cause": "rejected", "delivery_count": 1}


@pytest.mark.parametrize("target", ["dead", "%64ead"], ids=["hot", "framework"])
@pytest.mark.parametrize("media_type", ["application/json", "application/msgpack"])
def test_nobody_but_the_service_says_where_a_dead_letter_came_from(
    tmp_path: Path, target: str, media_type: str
) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path, definition=definition()) as here:
            is_json = media_type == "application/json"
            body = "aGk=" if is_json else b"hi"
            forged = {"messages": [{"body": body}, {"body": body, "origin": FORGED}]}
            data = msgspec.json.encode(forged) if is_json else msgspec.msgpack.encode(forged)
            client = await here.connect()
            headers = {"Authorization": f"Bearer {token_of('root')}", "Content-Type": media_type}
            answered = await client.ask("POST", f"/v1/stores/{target}/messages", data, **headers)
            assert (answered.status, answered.code) == (400, "malformed"), answered.body
            assert not here.opened.state.stores["dead"].counts.live

    run(scenario)


def test_a_field_of_any_name_makes_no_dead_letter(tmp_path: Path) -> None:
    """``redeliver`` leaves it where it is, and writes into no other store."""

    async def scenario() -> None:
        stores = deepcopy(STORES)
        stores["orders"]["durables"]["work"] |= LINK
        async with stores_serving(tmp_path, definition=definition(stores)) as here:
            fields = {"dead_store": "orders", "dead_durable": "work", "dead_seq": 1, "origin": "orders"}
            message = {"messages": [{"body": "aGk=", "fields": fields}]}
            assert (await ask(here, "root", "POST", "/v1/stores/dead/messages", message)).status == 200
            answered = await ask(here, "root", "POST", f"{LETTERS}/redeliver", {})
            assert (answered.json["redelivered"], answered.json["left"]) == (0, {}), answered.body
            assert not here.opened.state.stores["orders"].counts.live
            (shown,) = (await ask(here, "root", "GET", f"{LETTERS}/browse")).json["messages"]
            assert shown["fields"] == fields and "origin" not in shown

    run(scenario)


@pytest.mark.parametrize(("user", "is_sent"), [("root", True), ("sender", True), ("of-dead", False)])
def test_a_letter_goes_back_for_who_may_publish_where_it_came_from(tmp_path: Path, user: str, is_sent: bool) -> None:
    async def scenario() -> None:
        stores = deepcopy(STORES)
        stores["orders"]["durables"]["work"] |= LINK
        async with stores_serving(tmp_path, definition=definition(stores)) as here:
            message = {"messages": [{"body": text64("hi")}]}
            assert (await ask(here, "root", "POST", "/v1/stores/orders/messages", message)).status == 200
            given = await ask(here, "root", "GET", f"{WORK}/messages?subscriber=s&wait_ms=10000")
            assert [each["seq"] for each in given.json["messages"]] == [1]
            assert (await ask(here, "root", "POST", f"{WORK}/acks", {"subscriber": "s", "reject": [1]})).status == 200
            await until(lambda: here.opened.state.stores["dead"].counts.live)
            (letter,) = (await ask(here, "root", "GET", f"{LETTERS}/browse")).json["messages"]
            assert (letter["fields"], letter["origin"]) == ({}, FORGED), "of the one that the service wrote"
            answered = await ask(here, user, "POST", f"{LETTERS}/redeliver", {})
            assert answered.status == 200, answered.body
            assert answered.json["redelivered"] == int(is_sent)
            assert answered.json["left"] == ({} if is_sent else {"permission_denied": 1})
            assert here.opened.state.stores["orders"].counts.live == int(is_sent)

    run(scenario)


def test_without_permissions_the_roles_of_tokens_decide(tmp_path: Path) -> None:
    async def scenario() -> None:
        tokens = {token_of("root"): Role.ADMIN}
        async with stores_serving(tmp_path, tokens=tokens) as here:
            assert (await ask(here, "root", "PUT", "/v1/cluster/definition", {"stores": STORES})).status == 200
            assert (await ask(here, "root", "PATCH", WORK, LINK)).status == 200

    run(scenario)


def test_commands_show_where_a_dead_letter_came_from() -> None:
    letter = Delivery(3, {}, None, b"hi", 1, 1, redelivered=False, origin=Origin("orders", "work", 7, "rejected", 2))
    assert message_text(letter) == "3  hi  (from orders/work 7: rejected, deliveries 2)"
    assert message_fields(letter)["origin"] == {**FORGED, "seq": 7, "delivery_count": 2}
