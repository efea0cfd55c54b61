"""A token for some keys sees and closes nothing of other writers: keys in range deletes, ids, attempts, receipts."""

from __future__ import annotations

import base64
import json
from random import Random
from typing import Any

import pytest
from tests.integration.http_harness import Client, Serving, run, serving

from holdfast.commit.format.transaction import Delete, Operation, RangeDelete
from holdfast.server.commit.sse import KeyFilter
from holdfast.server.http.auth import Grant, Role
from holdfast.server.http.key_scope import EVERYTHING, NOTHING, KeyScope, tag_of, tagged_prefix

READER, WRITER, WHOLE = "reader-0123456789", "writer-0123456789", "whole-0123456789abc"
TOKENS: dict[str, Role | Grant] = {
    READER: Grant(Role.READ, None, KeyScope((b"seat/",))),
    WRITER: Grant(Role.WRITE, None, KeyScope((b"seat/", b"row/"))),
    WHOLE: Role.WRITE,
}
SEAT, FOREIGN = tag_of(b"seat/") + "a" * 20, "a-foreign-request-id"


def text64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


async def ask(here: Serving, token: str, method: str, target: str, body: object = None) -> tuple[int, dict[str, Any]]:
    data = None if body is None else json.dumps(body).encode()
    answer = await (await here.connect()).ask(method, target, data, Authorization=f"Bearer {token}")
    return answer.status, answer.json


async def commit(here: Serving, operations: list[object], request_id: str | None = None) -> int:
    read_version = here.service.local_version()
    attempt = {} if request_id is None else {"request_id": request_id, "read_version": read_version}
    status, answer = await ask(here, WHOLE, "POST", "/v1/commit", {"operations": operations, **attempt})
    assert status == 200 and answer["status"] == "committed", answer
    return int(answer["version"])


async def transactions(client: Client, token: str, query: str, count: int) -> list[dict[str, Any]]:
    client.send(f"GET /v1/subscribe{query} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    await client.answer(head_only=True)
    found: list[dict[str, Any]] = []
    async for part in client.chunks():
        events = part.decode().split("\n\n")
        found += [json.loads(each.partition("data: ")[2]) for each in events if "event: transaction" in each]
        if len(found) >= count:
            return found
    raise AssertionError("the stream ended")


def deletes(*ranges: tuple[str, str | None]) -> list[object]:
    return [
        {"type": "range_delete", "begin_text": begin, **({} if end is None else {"end_text": end})}
        for begin, end in ranges
    ]


def test_a_reader_of_some_keys_gets_range_deletes_cut_to_them_and_no_foreign_ids() -> None:
    async def scenario() -> None:
        async with serving(tokens=TOKENS) as here:
            await commit(here, deletes(("a", "z"), ("seat/5", None), ("a", "seat/3"), ("seat/1", "seat/2")), FOREIGN)
            await commit(here, deletes(("a", "seat/"), ("seat0", None)), FOREIGN + "-2")
            await commit(here, [{"type": "delete", "key_text": "seat/1"}], SEAT)
            await commit(here, [{"type": "delete", "key_text": "seat/2"}], tag_of(b"seat/2") + "a" * 20)
            await commit(here, [{"type": "delete", "key_text": "seat/3"}], tag_of(b"sea") + "a" * 20)
            await commit(here, [{"type": "delete", "key_text": "seat/4"}])
            shown = await transactions(await here.connect(), READER, "?prefix_text=seat/", 5)
            first, *others = shown
            assert [(each["begin"], each["end"]) for each in first["operations"]] == [
                (text64(begin), text64(end))
                for begin, end in (("seat/", "seat0"), ("seat/5", "seat0"), ("seat/", "seat/3"), ("seat/1", "seat/2"))
            ]
            ids = [first["request_id"], *(each["request_id"] for each in others)]
            assert ids == [None, SEAT, tag_of(b"seat/2") + "a" * 20, None, None]
            whole = await transactions(await here.connect(), WHOLE, "?prefix_text=seat/", 1)
            assert whole[0]["request_id"] == FOREIGN

    run(scenario)


@pytest.mark.parametrize("seed", range(40))
def test_a_cut_range_delete_removes_what_the_whole_one_does_of_the_range_and_nothing_else(seed: int) -> None:
    random = Random(seed)
    keys = [bytes(letters) for letters in ([], *([a] for a in range(3)), *([a, b] for a in range(3) for b in range(3)))]

    def bounds() -> tuple[bytes, bytes | None]:
        low, high = sorted(random.sample(keys, 2))
        return low, random.choice([high, None])

    for _ in range(50):
        selected = KeyFilter(*bounds())
        operations: list[Operation] = [RangeDelete(*bounds()), Delete(random.choice(keys))]
        for operation in operations:
            cut = selected.operations([operation])
            assert removed(operation, keys) & of_filter(selected, keys) == {
                key for each in cut for key in removed(each, keys)
            }


def of_filter(selected: KeyFilter, keys: list[bytes]) -> set[bytes]:
    return removed(RangeDelete(selected.begin, selected.end), keys)


def removed(operation: Operation, keys: list[bytes]) -> set[bytes]:
    if isinstance(operation, RangeDelete):
        return {key for key in keys if operation.begin <= key and (operation.end is None or key < operation.end)}
    return {operation.key}


def test_a_writer_of_some_keys_closes_no_foreign_attempt_and_sees_no_foreign_receipt() -> None:
    async def scenario() -> None:
        async with serving(tokens=TOKENS) as here:
            version = await commit(here, [{"type": "delete", "key_text": "x"}])
            committed = FOREIGN + "-committed"
            await commit(here, [{"type": "delete", "key_text": "x"}], committed)
            for name in (FOREIGN, committed, tag_of(b"sea") + "a" * 20, tag_of(b"") + "a" * 20, "c2VhdC8" + "a" * 20):
                status, answer = await ask(here, WRITER, "GET", f"/v1/status/{name}?min_version={version}")
                assert (status, answer["error"]["code"]) == (403, "permission_denied"), name
                assert "version" not in answer
            later = {
                "operations": [{"type": "delete", "key_text": "x"}],
                "request_id": FOREIGN,
                "read_version": version,
            }
            assert (await ask(here, WHOLE, "POST", "/v1/commit", later))[1]["status"] == "committed"
            # Its own, of each of its prefixes and below them.
            for prefix in (b"seat/", b"row/", b"row/7"):
                name = tag_of(prefix) + "b" * 20
                status, answer = await ask(here, WRITER, "GET", f"/v1/status/{name}?min_version={version}")
                assert (status, answer["status"]) == (200, "not_committed")
            assert (await ask(here, WHOLE, "GET", f"/v1/status/{SEAT}?min_version={version}"))[0] == 200

    run(scenario)


@pytest.mark.parametrize("prefix", [b"", b"a", b"ab", b"abc", b"seat/", b"\xff\xfe\x00", bytes(64)])
def test_a_tag_names_its_prefix_and_no_other_text_does(prefix: bytes) -> None:
    name = tag_of(prefix) + "anything:else"
    assert tagged_prefix(name) == prefix
    assert tagged_prefix("=" + name) is None
    text = tag_of(prefix)[:-1]
    for wrong in (text, text + "=:", text + " :", text + "\u00e9:", text.replace("-", "+").replace("_", "/") + "!:"):
        assert tagged_prefix(wrong) is None, wrong
    assert tagged_prefix(tag_of(bytes(65)) + "a") is None


def test_an_id_belongs_to_who_may_touch_every_key_of_its_prefix() -> None:
    name = tag_of(b"seat/1") + "a" * 20
    assert KeyScope((b"row/", b"seat/")).owns(name) and KeyScope((b"seat/1",)).owns(name) and EVERYTHING.owns(name)
    assert not KeyScope((b"seat/12",)).owns(name) and not KeyScope((b"row/",)).owns(name) and not NOTHING.owns(name)
    assert EVERYTHING.owns("untagged") and not KeyScope((b"seat/",)).owns("untagged")
