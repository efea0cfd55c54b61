"""Several keys of one transaction in one request: all of one version, its own writes included."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from tests.unit.client.conftest import QUICK
from tests.unit.client.scripted_server import Reply, ScriptedServer, coded
from tests.unit.client.test_commit_retries import VERSION, commits_of, committed

from holdfast import aio
from holdfast.client.transport.aio import GetsTogether
from holdfast.errors import Code, HoldfastError, PermissionDenied


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def answer(version: int, *values: tuple[bytes, int] | None, more: bool = False) -> Reply:
    items: list[dict[str, object]] = []
    for index, stored in enumerate(values):
        item: dict[str, object] = {"index": index}
        items.append(item if stored is None else item | {"value": b64(stored[0]), "version": stored[1]})
    return Reply(200, {"version": version, "items": items, "more": more})


def keys_of(server: ScriptedServer) -> list[tuple[list[str], object]]:
    """The keys of each read, and its position."""
    reads = [asked.json() for asked in server.asked if asked.target == "/v1/read"]
    return [([item["key"] for item in read["items"]], read.get("at")) for read in reads]  # type: ignore[index, attr-defined]


def test_keys_are_read_together_and_become_preconditions_at_the_version_of_the_answer(connect):
    def body(txn: Any) -> Any:
        txn.write(b"own", b"1")
        found = yield txn.get_many([b"a", b"own", b"gone", b"a"])
        txn.write(b"k", b"v")
        return found

    script = (VERSION, answer(55, (b"old", 8), None), committed(60))
    with ScriptedServer(*script) as server:
        done = connect(server.url).transact(body)
        assert done.value == {b"a": b"old", b"own": b"1", b"gone": None}
        assert keys_of(server) == [([b64(b"a"), b64(b"gone")], "50")]
        (sent,) = commits_of(server)
        assert sent["read_version"] == 55
        assert [(read["key"], read["version"]) for read in sent["preconditions"]] == [
            (b64(b"a"), 55), (b64(b"gone"), 55),
        ]  # fmt: skip


def test_keys_that_did_not_fit_are_asked_for_again_at_the_version_of_the_first_answer(connect):
    def body(txn: Any) -> Any:
        return (yield txn.get_many([b"a", b"b", b"c"]))

    script = (VERSION, answer(55, (b"1", 8), more=True), answer(58, (b"2", 9), None))
    with ScriptedServer(*script) as server:
        done = connect(server.url).transact(body)
        assert done.value == {b"a": b"1", b"b": b"2", b"c": None}
        assert [at for _, at in keys_of(server)] == ["50", "55"]
        assert keys_of(server)[1][0] == [b64(b"b"), b64(b"c")]


def test_the_second_part_of_an_answer_that_is_newer_begins_the_transaction_again(connect):
    def body(txn: Any) -> Any:
        found = yield txn.get_many([b"a", b"b"])
        txn.write(b"k", b"v")
        return found

    script = (
        VERSION,
        answer(55, (b"1", 8), more=True),
        answer(58, (b"2", 57)),
        answer(58, (b"2", 57), (b"2", 57)),
        committed(60),
    )
    with ScriptedServer(*script) as server:
        assert connect(server.url).transact(body).value == {b"a": b"2", b"b": b"2"}
        assert commits_of(server)[0]["read_version"] == 58


def test_an_item_with_an_error_that_passes_is_asked_for_again_and_any_other_is_raised(connect):
    def body(txn: Any) -> Any:
        return (yield txn.get_many([b"a"]))

    def refused(code: str) -> Reply:
        return Reply(200, {"version": 55, "items": [{"index": 0, "error": {"code": code, "message": code}}]})

    script = (VERSION, refused("view_behind"), answer(55, (b"1", 8)), refused("permission_denied"))
    with ScriptedServer(*script) as server:
        client = connect(server.url)
        assert client.transact(body).value == {b"a": b"1"}
        with pytest.raises(PermissionDenied):
            client.transact(body)


def test_the_first_read_of_a_key_sets_the_read_version_to_that_of_its_answer(connect):
    def body(txn: Any) -> Any:
        yield txn.get(b"first")
        yield txn.get(b"absent")
        txn.write(b"k", b"v")

    first = Reply(200, {"key": b64(b"first"), "value": "", "version": 8, "at": 55})
    with ScriptedServer(VERSION, first, coded(404, "not_found", at=56), committed(60)) as server:
        connect(server.url).transact(body)
        assert [asked.target.partition("at=")[2] for asked in server.asked[1:3]] == ["50", "55"]
        (sent,) = commits_of(server)
        assert sent["read_version"] == 55
        assert {read["version"] for read in sent["preconditions"]} == {55}


def gathering(*script: Reply, body: Any) -> tuple[Any, ScriptedServer]:
    with ScriptedServer(*script) as server:

        async def go() -> Any:
            async with aio.Client(server.url, options=QUICK) as client:
                return (await client.transact(body)).value

        return asyncio.run(go()), server


def test_gets_that_begin_together_travel_together_and_a_lone_one_alone() -> None:
    async def body(txn: aio.AsyncTransaction) -> list[bytes | None]:
        together = await asyncio.gather(txn.get(b"a"), txn.get(b"b"), txn.get(b"a"))
        return [*together, await txn.get(b"c")]

    alone = Reply(200, {"key": b64(b"c"), "value": b64(b"3"), "version": 9, "at": 56})
    found, server = gathering(VERSION, answer(55, (b"1", 8), None), alone, body=body)
    assert found == [b"1", None, b"1", b"3"]
    assert [asked.target.partition("?")[0] for asked in server.asked] == ["/v1/version", "/v1/read", "/v1/keys/Yw"]


def test_a_get_of_the_task_that_transacts_does_not_wait_for_the_end_of_the_turn() -> None:
    async def alone(key: bytes) -> bytes | None:
        return key

    async def many(keys: list[bytes]) -> dict[bytes, bytes | None]:
        raise AssertionError(keys)

    async def go() -> None:
        get = GetsTogether(alone, many).get(b"a")
        with pytest.raises(StopIteration, match="a"):
            get.send(None)

    asyncio.run(go())


def test_a_get_that_is_cancelled_leaves_the_request_to_the_others() -> None:
    async def body(txn: aio.AsyncTransaction) -> bytes | None:
        first, second = asyncio.ensure_future(txn.get(b"a")), asyncio.ensure_future(txn.get(b"b"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        first.cancel()
        return await second

    found, server = gathering(VERSION, answer(55, (b"1", 8), (b"2", 9)), body=body)
    assert found == b"2"
    assert len(keys_of(server)) == 1


def test_an_error_of_gets_that_travel_together_reaches_each() -> None:
    async def body(txn: aio.AsyncTransaction) -> list[object]:
        return list(await asyncio.gather(txn.get(b"a"), txn.get(b"b"), return_exceptions=True))

    found, _ = gathering(VERSION, coded(403, "permission_denied"), body=body)
    assert all(isinstance(each, HoldfastError) and each.code is Code.PERMISSION_DENIED for each in found)
    assert len(found) == 2
