"""Doors that were a hand's breadth open: encodings, sockets, names of files, audit lines, pieces of items."""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

import msgpack
import pytest
import structlog
from msgpack import Unpacker
from tests.integration.http_harness import request, run, serving, write
from tests.integration.stores_harness import stores_serving

from holdfast.server.commit import item_readers
from holdfast.server.commit.item_readers import JsonLines, MsgpackItems
from holdfast.server.http.auth import Role
from holdfast.server.http.http_server import HttpServer
from holdfast.stores.definitions.cluster import DYNAMIC_DURABLES
from holdfast.stores.machine import state

TOKEN = "0123456789abcdef-admin"
SHARED = {"type": "shared"}
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n"


@pytest.mark.parametrize("target", ["/v1/commit", "/v1/commits"])
@pytest.mark.parametrize(
    ("header", "is_chunked"),
    [
        ("Transfer-Encoding: gzip, chunked", True),
        ("Content-Encoding: gzip", False),
        ("Content-Encoding: gzip", True),
        ("Content-Encoding: identity, br", False),
    ],
)
def test_a_body_that_is_coded_is_refused_and_never_read_as_it_came(target: str, header: str, is_chunked: bool) -> None:
    async def scenario() -> None:
        async with serving() as here:
            before, body = here.service.local_version(), write()
            framing = f"Content-Length: {len(body)}"
            if is_chunked:
                framing = "" if header.startswith("Transfer") else "Transfer-Encoding: chunked"
            for first in (b"", request("GET", "/v1/version")):  # on either kind of connection
                client = await here.connect()
                lines = [f"POST {target} HTTP/1.1", "Host: localhost", header, *([framing] if framing else [])]
                sent = CHUNKED % (len(body), body) if is_chunked else body
                client.send(first + "\r\n".join(lines).encode() + b"\r\n\r\n" + sent)
                if first:
                    assert (await client.answer()).status == 200
                refused = await client.answer()
                assert (refused.status, refused.code) == (400, "malformed"), refused.body
                assert header.partition(":")[0].lower() in refused.json["error"]["message"]
            assert here.service.local_version() == before
            client = await here.connect()
            client.send(request("POST", target, body + b"\n", Content_Encoding="identity"))
            assert (await client.answer()).status == 200

    run(scenario)


@pytest.mark.parametrize("target", ["/v1/commit", "/v1/commits", "/v1/version"])
def test_two_tokens_are_none(target: str) -> None:
    async def scenario() -> None:
        async with serving(tokens={TOKEN: Role.ADMIN}) as here:
            for tokens in ((TOKEN, "another-token-0123"), ("another-token-0123", TOKEN), (TOKEN, TOKEN)):
                lines = "".join(f"Authorization: Bearer {token}\r\n" for token in tokens)
                body = None if target == "/v1/version" else write()
                sent = request("GET" if body is None else "POST", target, body)
                client = await here.connect()
                client.send(sent.replace(b"Host: localhost\r\n", b"Host: localhost\r\n" + lines.encode()))
                refused = await client.answer()
                assert (refused.status, refused.code) == (400, "malformed")

    run(scenario)


@pytest.mark.parametrize("mode", [0o600, 0o660])
def test_a_unix_socket_has_its_mode_whatever_the_umask_is(tmp_path: Path, mode: int) -> None:
    async def scenario() -> None:
        async with serving() as here:
            for umask in (0o000, 0o022, 0o077):
                before = os.umask(umask)
                path = tmp_path / f"socket-{umask}"
                server = HttpServer(here.front, here.rows, socket_mode=mode)
                try:
                    await server.listen([f"unix:{path}"])
                    assert os.umask(umask) == umask, "that of the process stays"
                finally:
                    os.umask(before)
                assert stat.S_IMODE(path.stat().st_mode) == mode
                await server.finish(0.1)

    run(scenario)


def test_a_backup_is_named_by_one_line(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path / "stores") as stores:
            for name in ("ok1\n", "ok1\r\n", "", "../ok1", "ok/1", "\nok1"):
                refused = await stores.ask("POST", "/v1/cluster/backup", {"name": name})
                assert (refused.status, refused.code) == (400, "malformed"), name
            refused = await stores.ask("POST", "/v1/stores/a/durables/d/rewind", {"to": "start\n"})
            assert refused.status in (400, 404)

    run(scenario)
    assert not any("ok1" in each.name for each in tmp_path.rglob("*"))


def test_audit_lines_of_log_routes_name_who() -> None:
    async def scenario() -> None:
        async with serving(tokens={TOKEN: Role.ADMIN}) as here:
            with structlog.testing.capture_logs() as lines:
                client = await here.connect()
                bearer = {"Authorization": f"Bearer {TOKEN}"}
                answered = await client.ask("PUT", "/v1/admin/log-level", b'{"level": "info"}', **bearer)
                assert answered.status == 200
            (line,) = [each for each in lines if each["event"] == "audit"]
            assert line["author"] == f"admin#{sha256(TOKEN.encode()).hexdigest()[:8]}@127.0.0.1"
            assert TOKEN not in str(lines)

    run(scenario)


def test_permissions_without_tokens_warn_that_the_log_is_open(tmp_path: Path) -> None:
    user = {"token": "the-token-of-a-user-0123", "roles": ["all"]}
    roles = {"all": {"cluster": ["administer", "browse"], "stores": {"*": ["administer"]}}}
    permissions = {"enabled": True, "users": {"ann": user}, "roles": roles}

    async def scenario() -> None:
        for tokens, warned in (({}, 1), ({TOKEN: Role.ADMIN}, 0)):
            async with stores_serving(tmp_path / f"stores-{warned}", tokens=tokens) as stores:
                bearer = {"Authorization": f"Bearer {TOKEN}"} if tokens else {}
                with structlog.testing.capture_logs() as lines:
                    client = await stores.connect()
                    body = json.dumps({"stores": {}, "permissions": permissions}).encode()
                    answered = await client.ask("PUT", "/v1/cluster/definition", body, **bearer)
                    assert answered.status == 200, answered.body
                assert [line["event"] for line in lines].count("permissions_without_tokens") == warned

    run(scenario)


class CountingUnpacker:
    """msgpack's scanner, which counts the bytes that it gets."""

    fed: ClassVar[Counter[str]] = Counter()

    def __init__(self, **options: Any) -> None:
        self._unpacker = Unpacker(**options)

    def feed(self, data: bytes) -> None:
        self.fed["bytes"] += len(data)
        self._unpacker.feed(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._unpacker, name)


def test_an_item_in_many_pieces_is_scanned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    CountingUnpacker.fed.clear()
    monkeypatch.setattr(item_readers.msgpack, "Unpacker", CountingUnpacker)
    items = [
        msgpack.packb({"operations": [{"type": "write", "key": bytes([number]), "value": b"v" * 5_000}]})
        for number in range(8)
    ]
    stream = b"".join(items)
    for size in (1, 7, 4_999, 5_100, 20_000, len(stream)):
        CountingUnpacker.fed.clear()
        reader, taken = MsgpackItems(1 << 20), 0
        for start in range(0, len(stream), size):
            taken += len(reader.take(stream[start : start + size], last=start + size >= len(stream)))
            whole = sum(len(item) for item in items[:taken])
            assert reader.unfinished_bytes == min(start + size, len(stream)) - whole
        assert (taken, reader.problem) == (8, None)
        assert CountingUnpacker.fed["bytes"] == len(stream), "each byte once"


def test_what_is_no_item_is_found_in_pieces_too() -> None:
    item = msgpack.packb({"operations": [{"type": "write", "key": b"k", "value": b"v" * 100}]})
    for stream, problem in (
        (item + b"\xc1", "not msgpack"),
        (item + item[:50], "ends inside"),
        (item + msgpack.packb(b"x" * 300), "too large"),
    ):
        reader = MsgpackItems(200)
        taken = [
            txn for at in range(len(stream)) for txn in reader.take(stream[at : at + 1], last=at == len(stream) - 1)
        ]
        assert len(taken) == 1
        assert reader.problem is not None and problem in str(reader.problem), problem
    assert JsonLines(200).take(b"\n", last=True) == []


def test_names_of_subscribers_and_of_durables_have_bounds_that_answers_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "SUBSCRIBERS_MAX", 2)

    async def scenario() -> None:
        async with stores_serving(
            tmp_path, definition={"stores": {"orders": {"durables": {"work": SHARED}}}}
        ) as stores:
            target = "/v1/stores/orders/durables/work/messages?subscriber="
            assert [(await stores.ask("GET", target + name)).status for name in ("one", "two", "one")] == [200] * 3
            refused = await stores.ask("GET", target + "three")
            assert (refused.status, refused.code) == (409, "too_many_subscribers")
            assert "subscriber_timeout" in refused.json["error"]["hint"]
            assert (await stores.ask("GET", "/v1/stores/orders")).json["dynamic_durable_limit"] == DYNAMIC_DURABLES

    run(scenario)
