"""The view of a log in memory, whose stores live in it, too."""

from __future__ import annotations

from pathlib import Path

from tests.integration.virtual_time import run_virtually
from tests.integration.whole_application import application

from holdfast.server.http.auth import Role

TOKEN = "a-long-random-token"


def test_the_view_passes_over_what_the_stores_did(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with application(tmp_path, tokens={TOKEN: Role.ADMIN}) as here:
            bearer = {"Authorization": f"Bearer {TOKEN}"}
            defined = await here.ask("PUT", "/v1/cluster/definition", {"stores": {"orders": {}}}, **bearer)
            assert defined.status == 200, defined.body
            body = {"operations": [{"type": "write", "key_text": "k", "value": "dg=="}]}
            assert (await here.ask("POST", "/v1/commit", body, **bearer)).status == 200
            published = await here.ask("POST", "/v1/stores/orders/messages", {"messages": [{"body": "aGk="}]}, **bearer)
            assert published.status == 200, published.body
            shown = await here.ask("GET", "/v1/range", **bearer)
            assert (shown.status, [one["key"] for one in shown.json["items"]]) == (200, ["aw=="]), shown.body

    run_virtually(scenario)
