"""Laws of a client's own limit over HTTP: who counts as one, what is refused, what is slowed, and what it is told."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.integration.http_harness import Client as RawClient
from tests.integration.http_harness import commit, request, run, serving, until, write

from holdfast import aio
from holdfast.client import ClientOptions
from holdfast.commit.format.transaction import Transaction, Write
from holdfast.errors import Backpressure, Code
from holdfast.server.gateway import GatewayLimits
from holdfast.server.http.auth import Role

TOKENS = {"w" * 16: Role.WRITE, "v" * 16: Role.WRITE}


def limited(rate: int) -> GatewayLimits:
    return GatewayLimits(client_commits_per_second_max=rate)


@pytest.mark.parametrize("target", ["/v1/commit", "/v1/commit?"], ids=["fast lane", "framework"])
def test_above_its_rate_a_client_is_refused_and_told_when_to_come_back(target: str) -> None:
    async def scenario() -> None:
        async with serving(limits=limited(1)) as here:
            client = await here.connect()
            assert (await client.ask("POST", target, write())).status == 200
            for _ in range(3):
                refused = await client.ask("POST", target, write())
                assert (refused.status, refused.code) == (429, "rate_limited")
                assert refused.headers["retry-after"] == "1"
                assert 0 < refused.json["error"]["retry_after_ms"] <= 1000
            other = await here.connect()
            assert (await other.ask("POST", target, write())).code == "rate_limited", "an address is one client"
            assert (await client.ask("GET", "/v1/version")).status == 200, "only commits are limited"
            assert here.service.metrics.committed == 1
            text = (await client.ask("GET", "/metrics")).body.decode()
            assert "holdfast_rate_limited_commits_total 4.0" in text
            assert "holdfast_rate_clients 1.0" in text

    run(scenario)


def test_with_tokens_each_token_is_a_client_wherever_it_comes_from() -> None:
    async def scenario() -> None:
        async with serving(limits=limited(1), tokens=TOKENS) as here:
            for connection in range(2):
                client = await here.connect()
                for token in TOKENS:
                    answer = await client.ask("POST", "/v1/commit", write(), Authorization=f"Bearer {token}")
                    assert answer.status == (200 if connection == 0 else 429)
            stranger = await here.connect()
            answer = await stranger.ask("POST", "/v1/commit", write(), Authorization="Bearer " + "x" * 16)
            assert answer.status == 401
            assert here.front.client_rates is not None
            assert len(here.front.client_rates) == 2, "who has no right to commit is not remembered"

    run(scenario)


def test_peers_of_a_unix_socket_are_one_client(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(limits=limited(1)) as here:
            await here.server.listen([f"unix:{tmp_path}/socket"])
            statuses: list[int] = []
            for _ in range(2):
                one = RawClient(*await asyncio.open_unix_connection(f"{tmp_path}/socket"))
                here.clients.append(one)
                statuses.append((await one.ask("POST", "/v1/commit", write())).status)
            assert statuses == [200, 429]
            assert (await (await here.connect()).ask("POST", "/v1/commit", write())).status == 200

    run(scenario)


def test_what_the_service_refuses_anyway_costs_the_client_nothing() -> None:
    async def scenario() -> None:
        async with serving(limits=limited(1)) as here:
            client = await here.connect()
            here.front.draining = True
            assert (await client.ask("POST", "/v1/commit", write())).code == "overloaded"
            here.front.draining = False
            assert (await client.ask("POST", "/v1/commit", write())).status == 200

    run(scenario)


@pytest.mark.parametrize("code", ["overloaded", "rate_limited"])
def test_commit_on_a_framework_connection_is_refused_before_its_body(code: str) -> None:
    async def scenario() -> None:
        async with serving(limits=limited(1)) as here:
            head = request("POST", "/v1/commit", None, Transfer_Encoding="chunked")
            chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(write()), write())
            first = await here.connect()
            here.front.draining = code == "overloaded"
            first.send(head + (b"" if here.front.draining else chunks))
            assert (await first.answer()).status == (503 if here.front.draining else 200)
            second = await here.connect()
            second.send(head)
            assert (await second.answer()).code == code

    run(scenario)


def test_a_stream_is_slowed_and_never_refused() -> None:
    async def scenario() -> None:
        async with serving(limits=limited(40)) as here:
            client = await here.connect()
            began = here.front.loop.time()
            answer = await client.ask("POST", "/v1/commits", (write() + b"\n") * 60)
            lines = [json.loads(line) for line in answer.body.splitlines()]
            assert [line["status"] for line in lines] == ["committed"] * 60
            # The first second's worth is there at once, the other 20 items need half a second. How many of them are
            # counted as slowed depends on how the body arrives: a piece that waits is counted whole.
            assert here.front.loop.time() - began >= 0.49
            assert 0 < here.front.counters.rate_slowed_items <= 60
            assert here.front.counters.rate_limited_commits == 0

    run(scenario)


def test_a_slowed_stream_is_not_read_and_its_client_is_bounded() -> None:
    async def scenario() -> None:
        async with serving(limits=limited(1)) as here:
            client = await here.connect()
            line = write() + b"\n"
            client.send(request("POST", "/v1/commits", None, Transfer_Encoding="chunked"))
            chunk = b"%x\r\n%b\r\n" % (len(line) * 1000, line * 1000)
            sent = 0
            while client.writer.transport.get_write_buffer_size() < 4 << 20:  # type: ignore[attr-defined]
                client.send(chunk)
                sent += 1
                await asyncio.sleep(0)
                assert sent < 1000, "the server reads on although the client is over its rate"
            assert here.front.counters.stream_items <= 1 + 20
            single = await (await here.connect()).ask("POST", "/v1/commit", write())
            assert single.code == "rate_limited"

    run(scenario)


def test_a_slowed_stream_whose_client_leaves_is_given_up() -> None:
    async def scenario() -> None:
        async with serving(limits=limited(1)) as here:
            client = await here.connect()
            client.send(request("POST", "/v1/commits", (write() + b"\n") * 500))
            await until(lambda: here.front.counters.rate_slowed_items)
            client.writer.transport.abort()
            await until(lambda: not here.server.context.tasks)
            assert here.service.metrics.committed < 20

    run(scenario)


def test_the_client_library_waits_as_told_and_gives_up_with_backpressure() -> None:
    async def scenario() -> None:
        async with serving(limits=limited(4)) as here:
            url = f"http://{here.host}:{here.port}"
            async with aio.Client(url) as patient:
                receipts = [await patient.commit([Write(b"k", b"v")]) for _ in range(6)]
                assert len({receipt.version for receipt in receipts}) == 6
                assert here.front.counters.rate_limited_commits >= 1
                results = [
                    item async for item in patient.commits_many(Transaction([Write(b"s", b"v")]) for _ in range(6))
                ]
                assert len(results) == 6
            async with aio.Client(url, options=ClientOptions(give_up_after_ms=100)) as hasty:
                start = receipts[-1].version
                hurried = (hasty.commit([Write(b"k", b"v")], read_version=start) for _ in range(20))
                found = await asyncio.gather(*hurried, return_exceptions=True)
                refused = [error for error in found if isinstance(error, Backpressure)]
                assert refused
                assert all(error.code is Code.RATE_LIMITED and error.retry_after_ms for error in refused)

    run(scenario)


def test_without_a_limit_nobody_is_remembered() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            client.send(commit() * 200)
            assert {(await client.answer()).status for _ in range(200)} == {200}
            assert here.front.client_rates is None

    run(scenario)
