"""Laws of ``POST /v1/commits``."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgpack
import pytest
from tests.integration.http_harness import Client, run, serving, until

from holdfast.server.commit.commit_stream import WINDOW_ITEMS
from holdfast.server.gateway import GatewayLimits
from holdfast.wire.formats import MSGPACK, NDJSON

OPEN = b"POST /v1/commits HTTP/1.1\r\nHost: localhost\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def item(number: int, **more: object) -> dict[str, Any]:
    return {"operations": [{"type": "write", "key": f"{number:08d}", "value": "dmFs"}], **more}


def line(number: int, **more: object) -> bytes:
    return json.dumps(item(number, **more)).encode() + b"\n"


def packed(number: int) -> bytes:
    return msgpack.packb({"operations": [{"type": "write", "key": b"%08d" % number, "value": b"val"}]})


async def results(client: Client, body: bytes, media_type: str = NDJSON) -> list[dict[str, Any]]:
    answer = await client.ask("POST", "/v1/commits", body, Content_Type=media_type)
    assert (answer.status, answer.headers["content-type"]) == (200, media_type)
    if media_type == MSGPACK:
        unpacker = msgpack.Unpacker()
        unpacker.feed(answer.body)
        return list(unpacker)
    return [json.loads(text) for text in answer.body.splitlines()]


@pytest.mark.parametrize("media_type", [NDJSON, MSGPACK])
def test_every_item_has_its_result_in_order(media_type: str) -> None:
    async def scenario() -> None:
        async with serving() as here:
            make = line if media_type == NDJSON else packed
            found = await results(await here.connect(), b"".join(make(n) for n in range(20_000)), media_type)
            versions = [result["version"] for result in found]
            assert len(found) == 20_000 and versions == sorted(set(versions))
            assert {result["status"] for result in found} == {"committed"}

    run(scenario)


@pytest.mark.parametrize("media_type", [NDJSON, MSGPACK])
@pytest.mark.parametrize("size", [1, 13, 1000])
def test_items_may_be_cut_anywhere(media_type: str, size: int) -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            make = line if media_type == NDJSON else packed
            body = b"".join(make(n) for n in range(30))
            if media_type == NDJSON:
                body = body[:-1]  # the last line end may be missing
            client.send(OPEN % media_type.encode())
            for start in range(0, len(body), size):
                client.send(chunk(body[start : start + size]))
                await asyncio.sleep(0)
            client.send(chunk(b""))
            answer = await client.answer()
            found = answer.body.count(b"committed")
            assert found == 30

    run(scenario)


def test_results_come_while_the_stream_is_still_open_and_item_k_sees_those_before() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            client.send(OPEN % NDJSON.encode() + chunk(line(1)))
            await client.answer(head_only=True)
            parts = client.chunks()
            first = json.loads(await anext(parts))
            assert first["status"] == "committed"
            stale = {"type": "point_read", "key": "00000001", "version": first["version"] - 1}
            fresh = {"type": "point_read", "key": "00000001", "version": first["version"]}
            client.send(
                chunk(line(1, preconditions=[fresh]) + line(1, preconditions=[fresh]) + line(2, preconditions=[stale]))
            )
            found: list[dict[str, Any]] = []
            while len(found) < 3:
                found += [json.loads(text) for text in (await anext(parts)).splitlines()]
            assert [result["status"] for result in found] == ["committed", "not_committed", "not_committed"]
            assert found[1]["conflicts"] == [{"precondition": 0, "version": found[0]["version"]}]

    run(scenario)


def test_an_item_that_breaks_a_rule_is_refused_alone() -> None:
    async def scenario() -> None:
        async with serving() as here:
            body = line(0) + b'{"operations":[]}\n\n' + line(1, request_id="short") + line(2, read_version=2**53 - 1)
            found = await results(await here.connect(), body + line(3))
            assert found[0]["status"] == found[4]["status"] == "committed"
            assert [(result["error"]["code"], result["index"]) for result in found[1:4]] == [
                ("no_operations", 1),
                ("bad_request_id", 2),
                ("future_version", 3),
            ]
            assert not any("ends" in result for result in found)

    run(scenario)


@pytest.mark.parametrize(
    ("media_type", "bad", "code"),
    [
        (NDJSON, b"{nonsense\n", "malformed"),
        (NDJSON, b'{"operations":[{"type":"delete","key":"a"}]}\n', "bad_base64"),
        (NDJSON, b"[" * 3_000 + b"\n", "malformed"),
        (NDJSON, line(7)[:-1] + line(8), "malformed"),
        (NDJSON, line(7, request_id="x" * 5000), "too_large"),
        (NDJSON, b"x" * 50_000, "too_large"),
        (MSGPACK, b"\xc1", "malformed"),
        (MSGPACK, b"\x93\x01\x02\x03", "malformed"),
        (MSGPACK, msgpack.packb({"operations": [], "more": b"x" * 5000}), "too_large"),
        (MSGPACK, b"\x91" * 5000, "malformed"),
    ],
)
def test_an_item_that_cannot_be_read_ends_the_stream_and_loses_nothing_before_it(
    media_type: str, bad: bytes, code: str
) -> None:
    async def scenario() -> None:
        async with serving(limits=GatewayLimits(request_bytes_max=4096)) as here:
            make = line if media_type == NDJSON else packed
            client = await here.connect()
            found = await results(client, make(0) + make(1) + bad + make(2), media_type)
            assert [result.get("status") for result in found] == ["committed", "committed", None]
            assert (found[2]["error"]["code"], found[2]["index"], found[2]["ends"]) == (code, 2, True)
            assert await client.is_closed_by_peer()
            assert here.front.in_flight_commits == 0

    run(scenario)


def test_an_unfinished_item_at_the_end_is_malformed() -> None:
    async def scenario() -> None:
        async with serving() as here:
            for media_type, body in ((NDJSON, line(0) + line(1)[:-5]), (MSGPACK, packed(0) + packed(1)[:-1])):
                found = await results(await here.connect(), body, media_type)
                assert found[0]["status"] == "committed"
                assert (found[1]["error"]["code"], found[1]["index"]) == ("malformed", 1)

    run(scenario)


def test_an_empty_stream_has_no_results() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            assert await results(client, b"") == []
            assert await results(client, b"\n \n") == []
            assert await results(client, b"", MSGPACK) == []

    run(scenario)


def test_a_stream_does_not_run_ahead_of_its_window() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            here.store.gate.clear()
            body = b"".join(line(n) for n in range(4 * WINDOW_ITEMS))
            asked = asyncio.ensure_future(results(client, body))
            before = -1
            while before != (now := here.front.in_flight_commits) or not now:
                before = now
                await asyncio.sleep(0.05)
            assert now <= WINDOW_ITEMS
            here.store.gate.set()
            assert len(await asked) == 4 * WINDOW_ITEMS

    run(scenario)


def test_an_item_counts_against_the_bytes_in_flight_with_all_its_parts() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            here.store.gate.clear()
            large = json.dumps({"operations": [{"type": "write", "key": "a2V5", "value": "dmFs" * 200_000}]}).encode()
            asked = asyncio.ensure_future(results(client, large + b"\n"))
            await until(lambda: here.front.in_flight_commits)
            assert here.front.in_flight_bytes > 800_000
            here.store.gate.set()
            assert len(await asked) == 1
            assert here.front.in_flight_bytes == 0

    run(scenario)


def test_a_broken_stream_keeps_what_was_submitted() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            client.send(OPEN % NDJSON.encode() + chunk(b"".join(line(n) for n in range(100))))
            await until(lambda: here.service.metrics.committed >= 100)
            client.writer.transport.abort()
            await until(lambda: not (here.server.context.tasks))
            other = await here.connect()
            assert (await other.ask("GET", "/v1/range?limit=1000")).json["items"][99]["key"] == f"{99:08d}"
            assert here.front.in_flight_commits == 0

    run(scenario)
