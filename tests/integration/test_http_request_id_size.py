"""A commit whose request id would take too much in the log is refused at the door, and the leader leads on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import msgspec
import pytest
from tests.integration.http_harness import run, serving, until

LONGEST = "\U0001f600" * 255

BODIES: dict[str, Callable[[int, int], bytes]] = {
    "application/x-ndjson": lambda rows, read: json.dumps(wire(rows, read), ensure_ascii=False).encode(),
    "application/x-msgpack": lambda rows, read: msgspec.msgpack.encode(
        {**wire(rows, read), "operations": packed(rows)}
    ),
}


def wire(rows: int, read: int) -> dict[str, object]:
    return {"operations": [{"type": "delete", "key": ""}] * rows, "request_id": LONGEST, "read_version": read}


def packed(rows: int) -> list[dict[str, object]]:
    return [{"type": "delete", "key": b""}] * rows


def test_a_commit_whose_id_is_too_long_for_its_rows_is_answered_413_and_the_leader_leads_on() -> None:
    async def scenario() -> None:
        async with serving() as here:
            body = BODIES["application/x-ndjson"](30_000, here.service.local_version())
            refused = await (await here.connect()).ask("POST", "/v1/commit", body)
            assert (refused.status, refused.code) == (413, "too_large")
            taken = await (await here.connect()).ask(
                "POST", "/v1/commit", BODIES["application/x-ndjson"](10, here.service.local_version())
            )
            assert taken.status == 200
            assert here.front.in_flight_bytes == 0

    run(scenario)


@pytest.mark.parametrize("path", ["/v1/commit", "/v1/commits"])
def test_what_an_id_takes_in_the_log_counts_among_the_bytes_in_flight_and_closes_batches(path: str) -> None:
    async def scenario() -> None:
        async with serving() as here:
            ids = [f"{number}".rjust(255, "\U0001f600") for number in range(9)]
            whole = wire(600, here.service.local_version())
            lines = [json.dumps({**whole, "request_id": name}, ensure_ascii=False).encode() for name in ids]
            here.store.gate.clear()
            bodies = [b"\n".join(lines)] if path == "/v1/commits" else lines
            asked = [
                asyncio.create_task((await here.connect()).ask("POST", path, body, Content_Type="application/x-ndjson"))
                for body in bodies
            ]
            await until(lambda: here.front.in_flight_commits == len(lines))
            assert here.front.in_flight_bytes > 600 * sum(len(name.encode()) for name in ids)
            here.store.gate.set()
            answers = await asyncio.gather(*asked)
            assert sum(answer.body.count(b'"committed"') for answer in answers) == len(lines)
            assert here.front.in_flight_bytes == 0
            assert max(listed.size for listed in await here.store.list("batches/")) < 2 << 20

    run(scenario)


@pytest.mark.parametrize("media_type", BODIES)
def test_an_item_of_a_stream_whose_id_is_too_long_for_its_rows_is_refused_alone(media_type: str) -> None:
    async def scenario() -> None:
        async with serving() as here:
            parts = [BODIES[media_type](rows, here.service.local_version()) for rows in (30_000, 10)]
            body = (b"\n" if media_type == "application/x-ndjson" else b"").join(parts)
            answer = await (await here.connect()).ask("POST", "/v1/commits", body, Content_Type=media_type)
            assert answer.status == 200
            assert (answer.body.count(b"too_large"), answer.body.count(b"committed")) == (1, 1)
            assert here.front.in_flight_bytes == 0

    run(scenario)
