"""Reads of several keys and ranges: one version, a result or an error for each item, and a bound of bytes."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from tests.integration.http_harness import Client, Serving, request, run, serving, until

from holdfast.commit.service import CommitService, ServiceOptions
from holdfast.server.http.auth import Grant, Role
from holdfast.server.http.key_scope import KeyScope
from holdfast.server.view import current_reads

LARGE = 300_000
TOKEN = "a-token-for-the-keys-of-a"


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def put(client: Client, *operations: dict[str, str]) -> int:
    answer = await client.ask("POST", "/v1/commit", json.dumps({"operations": operations}).encode())
    assert answer.status == 200, answer.body
    return int(answer.json["version"])


def write(key: str, value: bytes = b"v") -> dict[str, str]:
    return {"type": "write", "key_text": key, "value": b64(value)}


async def read(client: Client, *items: dict[str, Any], **more: Any) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {more.pop('token')}"} if "token" in more else {}
    answer = await client.ask("POST", "/v1/read", json.dumps({"items": items, **more}).encode(), **headers)
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json
    return found


def key(name: str) -> dict[str, Any]:
    return {"type": "key", "key_text": name}


def test_all_items_are_of_the_version_that_the_answer_names() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client, writer = await here.connect(), await here.connect()
            await put(writer, write("a/1", b"0"), write("a/2", b"0"))
            ended = False

            async def write_on() -> None:
                number = 0
                while not ended:
                    number += 1
                    text = b"%d" % number
                    await put(writer, write("a/1", text), write("a/2", text), {"type": "delete", "key_text": "a/3"})

            writing = asyncio.ensure_future(write_on())
            seen = set()
            for _ in range(30):
                answer = await read(client, key("a/1"), {"type": "range", "prefix_text": "a/"}, key("a/2"), text=True)
                first, rows, second = answer["items"]
                assert first["value"] == second["value"]
                assert {row["value"] for row in rows["rows"]} == {first["value"]}
                assert first["version"] == second["version"] <= answer["version"]
                assert answer["version"] < first["version"] + 1 or first["version"] <= answer["version"]
                seen.add(first["version"])
            ended = True
            await writing
            assert len(seen) > 5, "the log moved on meanwhile"

    run(scenario)


def test_items_that_do_not_fit_have_no_result_and_are_asked_for_again() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            names = [f"k{number}" for number in range(60)]
            for name in names:
                await put(client, write(name, bytes(LARGE)))
            left, answers = names, 0
            while left:
                answer = await read(client, *map(key, left))
                items = answer["items"]
                assert [item["index"] for item in items] == list(range(len(items)))
                assert all(len(item["value"]) > LARGE for item in items)
                assert answer.get("more", False) == (len(items) < len(left))
                left = left[len(items) :]
                answers += 1
            assert answers == 2, "a page has 12 MiB"

    run(scenario)


def test_a_token_for_some_keys_gets_errors_for_the_others() -> None:
    async def scenario() -> None:
        tokens = {TOKEN: Grant(Role.WRITE, scope=KeyScope((b"a/",)))}
        async with serving(tokens=tokens) as here:
            client = await here.connect()
            items = [key("a/1"), key("b/1"), {"type": "range", "prefix_text": "a/"}, {"type": "range"}]
            found = (await read(client, *items, token=TOKEN))["items"]
            codes = [item["error"]["code"] if "error" in item else None for item in found]
            assert codes == [None, "permission_denied", None, "permission_denied"]

    run(scenario)


async def without_a_view(here: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the view of this service is never ready."""
    assert here.view._reads is not None

    class NeverReady:
        async def at(self, version: int) -> Any:
            await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(here.view._reads, "_kept", NeverReady())
    monkeypatch.setattr(current_reads, "CATCH_UP_SECONDS_MAX", 0.1)


def test_while_the_view_is_behind_what_was_written_is_answered_and_the_rest_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            await without_a_view(here, monkeypatch)
            version = await put(client, write("a", b"1"), {"type": "delete", "key_text": "b"})
            assert (await client.ask("GET", "/v1/keys/YQ")).json["version"] == version
            assert (await client.ask("GET", "/v1/keys/Yg")).status == 404
            assert (await client.ask("GET", "/v1/keys/Yw")).json["error"]["code"] == "view_behind"
            answer = await read(client, key("a"), key("b"), key("c"), {"type": "range"}, at=str(version))
            found, deleted, behind, rows = answer["items"]
            assert (answer["version"], found["value"], deleted) == (version, b64(b"1"), {"index": 1})
            assert [each["error"]["code"] for each in (behind, rows)] == ["view_behind"] * 2
            assert behind["error"]["retry_after_ms"] > 0
            late = await client.ask("GET", f"/v1/keys/YQ?at={version + 10**6}")
            assert late.json["error"]["code"] == "view_behind", "what is not released is not answered"

    run(scenario)


def test_linearizable_reads_share_one_question_and_local_ones_ask_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with serving() as here:
            clients = [await here.connect() for _ in range(8)]
            version = await put(clients[0], write("a", b"1"))
            asked, answers = 0, asyncio.Event()
            truly = here.service.version

            async def counted() -> int:
                nonlocal asked
                asked += 1
                await answers.wait()
                return await truly()

            monkeypatch.setattr(here.service, "version", counted)
            assert (await clients[0].ask("GET", "/v1/keys/YQ")).status == 200
            assert asked == 0
            body = json.dumps({"items": [key("a")], "consistency": "linearizable"}).encode()
            for number, client in enumerate(clients):
                target = "/v1/keys/YQ?consistency=linearizable" if number % 2 else "/v1/range?consistency=linearizable"
                client.send(request("POST", "/v1/read", body) if number == 0 else request("GET", target))
            await until(lambda: asked)
            answers.set()
            for client in clients:
                answer = await client.answer()
                assert answer.status == 200
                assert answer.json.get("at", answer.json["version"]) >= version

    run(scenario)


def test_a_leader_that_was_deposed_answers_no_linearizable_read() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            await put(client, write("a", b"1"))
            other = await CommitService.lead(here.store, ServiceOptions(probe=False, take_over=True))
            try:
                local = await client.ask("GET", "/v1/keys/YQ")
                assert local.status == 200, "it does not know yet that another one leads"
                answer = await client.ask("GET", "/v1/keys/YQ?consistency=linearizable")
                assert (answer.status, answer.code) in ((409, "leader_changed"), (503, "not_leader"))
            finally:
                await other.close()

    run(scenario)
