"""A page of an answer is bounded by its bytes, has one item at least, and says that more follows."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path

import pytest
from tests.integration.http_harness import run, serving
from tests.integration.stores_harness import stores_serving

from holdfast.client import TransactionEvent
from holdfast.client.protocol.messages import require_progress
from holdfast.commit.format.transaction import Write
from holdfast.errors import InternalError
from holdfast.server.gateway import GatewayLimits
from holdfast.server.view.child import ViewFile
from holdfast.view import View
from holdfast.view.storage import PAGE_BYTES, KeyRange, page_of

LARGE = 3 << 20
PER_PAGE = PAGE_BYTES // LARGE - 1
"""The keys count, too."""


def test_a_page_ends_before_its_bytes_are_too_many_and_one_row_may_be_larger() -> None:
    rows = [(b"a", b"x" * 5, 1), (b"b", b"x" * 50, 2), (b"c", b"", 3), (b"d", b"", 4)]
    assert page_of(rows, 9, 10, 10) == (rows[:1], 9, True)
    assert page_of(rows[1:], 9, 10, 10) == (rows[1:2], 9, True)
    assert page_of(rows[2:], 9, 10, 10) == (rows[2:], 9, False)
    assert page_of(rows[2:], 9, 1, 10) == (rows[2:3], 9, True)
    assert page_of([], 9, 1, 10) == ([], 9, False)


def test_a_range_of_large_values_comes_in_pages() -> None:
    async def scenario() -> None:
        async with serving(limits=GatewayLimits(request_bytes_max=8 << 20)) as here:
            client = await here.connect()
            value = base64.b64encode(bytes(LARGE)).decode()
            for number in range(2 * PER_PAGE + 1):
                key = base64.urlsafe_b64encode(b"k%d" % number).decode()
                operations = [{"type": "write", "key": key, "value": value}]
                assert (
                    await client.ask("POST", "/v1/commit", json.dumps({"operations": operations}).encode())
                ).status == 200
            counts, begin = [], ""
            while True:
                page = (await client.ask("GET", f"/v1/range?limit=10000{begin}")).json
                counts.append(len(page["items"]))
                if not page["more"]:
                    break
                begin = f"&begin_text={base64.urlsafe_b64decode(page['items'][-1]['key']).decode()}%00"
            assert counts == [PER_PAGE, PER_PAGE, 1]

    run(scenario)


def test_a_view_in_a_file_gives_the_same_pages(tmp_path: Path) -> None:
    path = tmp_path / "view"
    with View.sqlite(path) as view:
        for number in range(1, 3 * PER_PAGE):
            operations = (Write(b"%04d" % number, bytes(LARGE)),)
            view.apply([TransactionEvent(number, number - 1, None, "l", 0, operations, True, "log")])
        in_memory = view.read_page(b"", None, 1_000)
        alone = view.read_page(b"", None, 1)

    async def read(limit: int) -> object:
        file = ViewFile(path)
        try:
            return (await file.read([KeyRange(b"", None, limit)], "latest", PAGE_BYTES)).results[0]
        finally:
            file.close()

    assert asyncio.run(read(1_000)) == in_memory
    assert (len(in_memory.rows), in_memory.more) == (PER_PAGE, True)
    assert asyncio.run(read(1)) == alone
    assert (len(alone.rows), alone.more) == (1, True)


@pytest.mark.parametrize("what", ["entries", "messages"])
def test_messages_and_entries_of_maps_come_in_pages(tmp_path: Path, what: str) -> None:
    body = base64.b64encode(bytes(LARGE)).decode()
    asks: dict[str, tuple[str, str, dict[str, object]]] = {
        "entries": ("PUT", "/v1/stores/s/maps/d/k{:02d}", {"value": body}),
        "messages": ("POST", "/v1/stores/s/messages", {"messages": [{"body": body}]}),
    }

    async def scenario() -> None:
        async with stores_serving(tmp_path) as here:
            await here.define("s", max_message_size=2 * LARGE)
            kind = "map" if what == "entries" else "shared"
            assert (await here.ask("PUT", "/v1/stores/s/durables/d", {"type": kind})).status == 200
            client = await here.connect()
            for number in range(20):
                method, target, asked = asks[what]
                answered = await client.ask(method, target.format(number), json.dumps(asked).encode())
                assert answered.status == 200, answered.body
            at = "/v1/stores/s/maps/d?max=1000" if what == "entries" else "/v1/stores/s/durables/d/browse?max=500"
            page = (await client.ask("GET", at)).json
            assert 1 <= len(page[what]) < 20
            assert page["more"] if what == "entries" else page["next_after"]

    run(scenario)


def test_a_page_without_items_that_promises_more_is_an_error() -> None:
    with pytest.raises(InternalError):
        require_progress(None, [], more=True)
    assert require_progress("page", [], more=False) == "page"
