"""A long poll gives out nothing that its caller may not have any more, however long it has waited."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest
from tests.integration.http_harness import run, until
from tests.integration.stores_harness import stores_serving

from holdfast.server.stores.subscribers import Poller

if TYPE_CHECKING:
    from pathlib import Path

READER, OTHER, ROOT = "the-reader-has-a-token", "the-other-has-a-token", "root-has-the-longest-token"
POLL = "/v1/stores/orders/durables/work/messages"
DEFINITION: dict[str, Any] = {
    "stores": {"orders": {"durables": {"work": {"type": "shared"}}}},
    "permissions": {
        "enabled": True,
        "users": {
            "reader": {"token": READER, "roles": ["readers"]},
            "other": {"token": OTHER, "roles": ["readers"]},
            "root": {"token": ROOT, "roles": ["root"]},
        },
        "roles": {
            "readers": {"stores": {"orders": ["subscribe"]}},
            "nobody": {},
            "root": {"stores": {"*": ["publish", "subscribe", "administer"]}, "cluster": ["administer"]},
        },
    },
}


def without_reader() -> dict[str, Any]:
    definition = deepcopy(DEFINITION)
    del definition["permissions"]["users"]["reader"]
    return definition


def with_a_reader_of_nothing() -> dict[str, Any]:
    definition = deepcopy(DEFINITION)
    definition["permissions"]["users"]["reader"]["roles"] = ["nobody"]
    return definition


@pytest.mark.parametrize("subscriber", ["s", "%73"], ids=["hot", "framework"])
@pytest.mark.parametrize(
    ("definition", "refusal"),
    [
        (without_reader(), (401, "unauthenticated")),
        (with_a_reader_of_nothing(), (403, "permission_denied")),
    ],
    ids=["token-withdrawn", "right-withdrawn"],
)
def test_a_poll_whose_rights_were_taken_while_it_waited_is_given_nothing(
    tmp_path: Path, subscriber: str, definition: dict[str, Any], refusal: tuple[int, str]
) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path, definition=DEFINITION) as stores:
            target = f"{POLL}?subscriber={subscriber}&wait_ms=30000"
            polling = asyncio.create_task(stores.ask("GET", target, Authorization=f"Bearer {READER}"))

            def waits() -> bool:
                poller = stores.opened.deliveries.find("orders", "work", "s")
                return isinstance(poller, Poller) and poller.takes

            await until(waits)
            root = {"Authorization": f"Bearer {ROOT}"}
            changed = await stores.ask("PUT", "/v1/cluster/definition", definition, **root)
            assert changed.status == 200, changed.body
            published = await stores.ask("POST", "/v1/stores/orders/messages", {"messages": [{"body": "aGk="}]}, **root)
            assert published.status == 200, published.body
            refused = await polling
            assert (refused.status, refused.code) == refusal
            assert b"aGk=" not in refused.body
            # It went back at once, for who may.
            given = await stores.ask("GET", f"{POLL}?subscriber=o&wait_ms=10000", Authorization=f"Bearer {OTHER}")
            assert [(one["seq"], one["body"]) for one in given.json["messages"]] == [(1, "aGk=")]

    run(scenario)


def test_a_poll_that_may_still_is_given_what_comes_after_a_change_of_others_rights(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path, definition=DEFINITION) as stores:
            polling = asyncio.create_task(
                stores.ask("GET", f"{POLL}?subscriber=s&wait_ms=30000", Authorization=f"Bearer {OTHER}")
            )
            await until(lambda: stores.opened.deliveries.find("orders", "work", "s"))
            root = {"Authorization": f"Bearer {ROOT}"}
            assert (await stores.ask("PUT", "/v1/cluster/definition", without_reader(), **root)).status == 200
            await stores.ask("POST", "/v1/stores/orders/messages", {"messages": [{"body": "aGk="}]}, **root)
            assert [one["seq"] for one in (await polling).json["messages"]] == [1]

    run(scenario)
