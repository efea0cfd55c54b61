"""Laws of a name that a request gives twice: every route refuses it, in both formats, and nothing has changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.integration.http_harness import Answered, request, run, serving
from tests.integration.stores_harness import JSON, MSGPACK, StoresServing, stores_serving, text64

from holdfast.wire.formats import MSGPACK as MSGPACK_TYPE
from holdfast.wire.formats import NDJSON

WRITE = '{"type":"write","key":"YQ==","value":"YQ=="}'
FAILING = '[{"type":"point_read","key":"YQ==","version":0}]'


def is_refused(answered: Answered) -> bool:
    assert "is given twice" in answered.json["error"]["message"], answered.body
    return answered.status == 400


@pytest.mark.parametrize(
    "body",
    [
        f'{{"operations":[{WRITE}],"preconditions":{FAILING},"preconditions":[]}}',
        f'{{"operations":[{WRITE}],"preconditions":{FAILING},"\\u0070reconditions":[]}}',
        f'{{"operations":[{WRITE}],"preconditions": [],"operations":[]}}',
        f'{{"operations":[],"operations":[{WRITE}]}}',
        '{"operations":[{"type":"write","key":"YQ==","value":"YQ==","value":"Yg=="}]}',
        '{"operations":[{"type":"write","type":"write","key":"YQ==","value":"YQ=="}]}',
        '{"operations":[{"type":"write","key_text":"a","value_text":"b","value_text":"c:"}]}',
        f'{{"operations":[{WRITE}],"preconditions":[{{"type":"point_read","key":"YQ==","version":0,"version":9}}]}}',
        f'{{"operations":[{WRITE}],"read_version":null,"read_version":5}}',
        f'{{"operations":[{WRITE}],"publish":[{{"store":"s","store":"t","messages":[{{"body":"YQ=="}}]}}]}}',
        f'{{"operations":[{WRITE}],"request_id":"{"i:" * 10}","request_id":"{"j" * 20}","read_version":1}}',
    ],
)
def test_a_commit_with_a_name_twice_is_refused_on_every_way_in(body: str) -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            first = await client.ask("POST", "/v1/commit", f'{{"operations":[{WRITE}]}}'.encode())
            before = first.json["version"]
            for spaced in (body, body.replace(":", " : ")):
                assert is_refused(await client.ask("POST", "/v1/commit", spaced.encode()))
                # The query makes it one for the framework, not for the fast lane.
                assert is_refused(await client.ask("POST", "/v1/commit?", spaced.encode()))
            for lines in (body, f'{body}\n{{"operations":[{WRITE}]}}', f" \n{body}\n"):
                stream = await here.connect()
                answered = await stream.ask("POST", "/v1/commits", lines.encode(), Content_Type=NDJSON)
                (item,) = map(json.loads, answered.body.splitlines())
                assert "is given twice" in item["error"]["message"]
            newest = await (await here.connect()).ask("GET", "/v1/version")
            assert newest.json["version"] == before

    run(scenario)


def packed(*members: tuple[str, object]) -> bytes:
    """A map of msgpack with these members, also twice."""
    encode = msgspec.msgpack.encode
    return bytes([0x80 | len(members)]) + b"".join(encode(name) + encode(value) for name, value in members)


def test_a_commit_in_msgpack_with_a_name_twice_is_refused() -> None:
    write = {"type": "write", "key": b"a", "value": b"a"}
    failing = [{"type": "point_read", "key": b"a", "version": 0}]
    inner = msgspec.Raw(packed(("type", "write"), ("key", b"a"), ("value", b"a"), ("value", b"b")))
    part = msgspec.Raw(packed(("store", "s"), ("store", "t"), ("messages", [{"body": b""}])))

    async def scenario() -> None:
        async with serving() as here:
            good = packed(("operations", [write]))
            for bad in (
                packed(("operations", [write]), ("preconditions", failing), ("preconditions", [])),
                packed(("operations", [inner])),
                packed(("operations", [write]), ("publish", [part])),
                packed(("operations", [write]), ("read_version", 1), ("read_version", 2)),
            ):
                stream = await here.connect()
                answered = await stream.ask("POST", "/v1/commits", good + bad + good, Content_Type=MSGPACK_TYPE)
                first, second = msgspec.msgpack.decode(b"\x92" + answered.body, type=list[dict[str, Any]])
                assert first["status"] == "committed" and "is given twice" in second["error"]["message"]

    run(scenario)


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("PUT", "/v1/retention/all", '{"max_bytes":1000000,"max_bytes":2000000}'),
        ("PUT", "/v1/retention/all", '{"keep":"everything","keep":null,"max_bytes":2000000}'),
        ("POST", "/v1/admin/retention-plan", '{"policy_id":"a","policy_id":"b"}'),
        ("POST", "/v1/admin/retention-plan", '{"policy_id":"a","policy":{"max_bytes":1000000,"max_bytes":2000000}}'),
        ("PUT", "/v1/admin/log-level", '{"level":"debug","level":"info"}'),
    ],
)
def test_a_policy_or_a_level_with_a_name_twice_is_refused(method: str, target: str, body: str) -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            before = (await client.ask("GET", "/v1/retention")).json
            assert is_refused(await client.ask(method, target, body.encode(), Content_Type="application/json"))
            assert (await client.ask("GET", "/v1/retention")).json == before

    run(scenario)


@pytest.mark.parametrize("data", [b"\xff", b'{"keep":"\xff"}'])
def test_a_policy_that_is_not_text_is_refused(data: bytes) -> None:
    async def scenario() -> None:
        async with serving() as here:
            for method, target in (("PUT", "/v1/retention/all"), ("POST", "/v1/admin/retention-plan")):
                answered = await (await here.connect()).ask(method, target, data)
                assert (answered.status, answered.code) == (400, "malformed")

    run(scenario)


@pytest.mark.parametrize(
    ("method", "target", "header", "values"),
    [
        ("POST", "/v1/commit", "Authorization", ("Bearer a", "Bearer b")),
        ("POST", "/v1/commit", "authorization", ("Bearer a", "Bearer a")),
        ("POST", "/v1/commit", "Content-Type", ("application/json", "application/msgpack")),
        ("POST", "/v1/commits", "Content-Type", (NDJSON, MSGPACK_TYPE)),
        ("GET", "/v1/subscribe", "Last-Event-ID", ("1", "2")),
        ("GET", "/v1/retention", "If-Match", ("1", "2")),
    ],
)
def test_a_header_of_one_value_is_given_once(method: str, target: str, header: str, values: tuple[str, str]) -> None:
    async def scenario() -> None:
        async with serving(view=False) as here:
            client = await here.connect()
            body = f'{{"operations":[{WRITE}]}}'.encode() if method == "POST" else None
            lines = "".join(f"{header}: {value}\r\n" for value in values).encode()
            client.send(request(method, target, body).replace(b"Host: localhost\r\n", b"Host: localhost\r\n" + lines))
            answered = await client.answer()
            assert (answered.status, answered.code) == (400, "malformed")
            assert f"the header {header.lower()} is given more than once" in answered.json["error"]["message"]

    run(scenario)


def test_a_handshake_with_two_tokens_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("s", durables={"d": {"type": "shared"}})
            with pytest.raises(AssertionError, match="is given more than once"):
                await stores.subscribe("s", "d", Authorization="Bearer a", authorization="Bearer b")

    run(scenario)


STORE = "/v1/stores/s"
DURABLE = f"{STORE}/durables/d"
MAP = f"{STORE}/maps/m"
BODIES: list[tuple[str, str, dict[str, Any]]] = [
    ("PUT", "/v1/cluster/definition", {"stores": {"t": {"bytelimit": "1g"}}}),
    ("PATCH", "/v1/cluster/definition", {"cluster": {}}),
    ("POST", "/v1/cluster/definition/check", {"stores": {}}),
    ("POST", "/v1/cluster/rollback", {"revision": 1}),
    ("PUT", STORE, {"bytelimit": "2g"}),
    ("PATCH", STORE, {"bytelimit": "2g"}),
    ("PUT", DURABLE, {"type": "shared"}),
    ("PATCH", DURABLE, {"prefetch": 9}),
    ("PUT", f"{STORE}/templates/t", {"type": "shared"}),
    ("PATCH", f"{STORE}/templates/t", {"prefetch": 9}),
    ("POST", f"{STORE}/messages", {"messages": [{"body": "", "fields": {"a": 1}}]}),
    ("POST", f"{DURABLE}/acks", {"subscriber": "x", "nack": [{"seq": 1, "delay_ms": 0}]}),
    ("POST", f"{DURABLE}/redeliver", {"messages": [], "match": {"a": 1}}),
    ("POST", f"{DURABLE}/rewind", {"seq": 1}),
    ("POST", MAP, {"changes": [{"key": "a", "value": ""}]}),
    ("PUT", f"{MAP}/a", {"value": ""}),
    ("POST", f"{MAP}/lock", {"owner": "x", "ttl_ms": 60_000, "key": ""}),
    ("POST", f"{MAP}/unlock", {"owner": "x", "fence": 1, "key": ""}),
    ("POST", "/v1/cluster/backup", {"name": "b"}),
]


def paths_of(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every object of a document that has a member."""
    match value:
        case dict():
            inner = [found for name, one in value.items() for found in paths_of(one, (*path, name))]
            return [path, *inner] if value else inner
        case list():
            return [found for index, one in enumerate(value) for found in paths_of(one, (*path, index))]
        case _:
            return []


def with_each_twice(document: object, path: tuple[str | int, ...], wire_format: str) -> bytes:
    """The document, in which the object at this path has each member twice."""
    encode = msgspec.json.encode if wire_format == "json" else _encode_msgpack

    def at(value: Any, left: tuple[str | int, ...]) -> Any:
        if left:
            kept = dict(value) if isinstance(value, dict) else list(value)
            kept[left[0]] = at(value[left[0]], left[1:])
            return kept
        data = encode(value)
        if wire_format == "json":
            return msgspec.Raw(b"{" + data[1:-1] + b"," + data[1:-1] + b"}")
        return msgspec.Raw(bytes([0x80 | 2 * len(value)]) + data[1:] * 2)

    return encode(at(document, path))


def _encode_msgpack(value: object) -> bytes:
    return msgspec.msgpack.encode(_with_bytes(value))


def _with_bytes(value: object, name: str = "") -> object:
    """The document as msgpack has it: bodies and values are bytes."""
    match value:
        case dict():
            return {inner: _with_bytes(one, inner) for inner, one in value.items()}
        case list():
            return [_with_bytes(one) for one in value]
        case str() if name in ("body", "value"):
            return value.encode()
        case _:
            return value


async def revision_of(stores: StoresServing) -> object:
    return (await stores.ask("GET", "/v1/cluster/definition")).json["revision"]


@pytest.mark.parametrize(("method", "target", "body"), BODIES)
def test_a_request_to_the_stores_with_a_name_twice_is_refused(
    method: str, target: str, body: dict[str, Any], tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("s", durables={"d": {"type": "shared"}, "m": {"type": "map"}})
            revision = await revision_of(stores)
            for wire_format in ("json", "msgpack"):
                for path in paths_of(body):
                    data = with_each_twice(body, path, wire_format)
                    for query in ("", "?"):
                        client = await stores.connect()
                        answered = await client.ask(
                            method, target + query, data, Content_Type=f"application/{wire_format}"
                        )
                        assert is_refused(answered), (path, wire_format)
            assert await revision_of(stores) == revision
            assert (await stores.ask("GET", STORE)).json["counts"]["messages"] == 0

    run(scenario)


@pytest.mark.parametrize("subprotocol", [JSON, MSGPACK])
def test_a_frame_with_a_name_twice_ends_the_socket_and_settles_nothing(subprotocol: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("s", durables={"d": {"type": "shared"}})
            subscriber = await stores.subscribe("s", "d", subprotocol=subprotocol)
            assert (await subscriber.next())["type"] == "attached"
            await stores.publish("s", "one")
            subscriber.send(type="credit", messages=1)
            await subscriber.messages(1)
            wire_format = "json" if subprotocol == JSON else "msgpack"
            data = with_each_twice({"type": "ack", "ranges": [[1, 1]]}, (), wire_format)
            subscriber.send_raw(1 if wire_format == "json" else 2, data)
            closed = await subscriber.next()
            assert (closed["code"], closed["reason"]) == (4400, "malformed")
            (again,) = await stores.poll("s", "d", "other", wait_ms=10_000)
            assert again["body"] == text64("one")

    run(scenario)


def test_a_matcher_with_a_name_twice_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("s", durables={"d": {"type": "shared"}}, templates={"t": {"type": "shared"}})
            matcher = "%7B%22a%22:1,%22a%22:2%7D"
            refused = await stores.ask("GET", f"{DURABLE}/browse?match={matcher}")
            assert refused.status == 400 and b"is given twice" in refused.body
            with pytest.raises(AssertionError, match="is given twice"):
                await stores.subscribe("s", "new", more=f"&template=t&matcher={matcher}")

    run(scenario)
