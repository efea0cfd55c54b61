"""A request to deliver again examines a bounded number of messages, and other requests run meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.integration.http_harness import run
from tests.integration.stores_harness import StoresServing, stores_serving

from holdfast.server.stores import operations
from holdfast.server.stores.routes import messages as redelivery
from holdfast.stores.values.commands import Publish
from holdfast.wire.parts import Message

pytestmark = pytest.mark.usefixtures("durability")

TARGET = "/v1/stores/dead/durables/grave/redeliver"


async def _define(stores: StoresServing) -> None:
    await stores.define("dead", durables={"grave": {"type": "shared"}})
    await stores.define("orders", durables={"work": {"type": "shared", "dead_letter_store": "dead"}})


def test_a_search_of_dead_letters_that_finds_none_stops_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redelivery, "PAGES_MAX", 2)
    monkeypatch.setattr(operations, "LOOKS_MAX", 256)

    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await _define(stores)
            messages = [Message(b"x", {"kind": "a"})] * 2_000
            await stores.opened.service.submit(Publish(0, "dead", "", messages))
            pages: list[int] = []
            turns: list[int] = []
            browse = stores.opened.operations.browse

            def counted(store: str, durable: str, *, after: int, count: int, match: bytes, parked: bool = False):
                assert len(turns) == len(pages), "the loop ran since the last page"
                pages.append(after)
                asyncio.get_running_loop().call_soon(turns.append, len(pages))
                return browse(store, durable, after=after, count=count, match=match, parked=parked)

            monkeypatch.setattr(stores.opened.operations, "browse", counted)
            after: int | None = 0
            requests = 0
            while after is not None:
                before, requests = len(pages), requests + 1
                answer = await stores.ask("POST", TARGET, {"match": {"kind": "none"}, "after": after})
                assert answer.status == 200, answer.body
                assert (answer.json["redelivered"], answer.json["left"]) == (0, {})
                assert len(pages) - before <= 2
                assert answer.json["next_after"] is None or answer.json["next_after"] > after
                after = answer.json["next_after"]
            assert requests >= 3

    run(scenario)
