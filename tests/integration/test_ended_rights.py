"""A right is asked for again when the body is complete: what a token may do ends when the token does."""

from __future__ import annotations

import asyncio
import base64
import json
from socket import SO_RCVBUF, SOL_SOCKET
from types import SimpleNamespace
from typing import Any

import pytest
from tests.integration.http_harness import request, serving, until

from holdfast.errors import HoldfastError
from holdfast.server.commit import commit_stream, sse
from holdfast.server.http import auth
from holdfast.server.http.auth import Authenticator, Grant, Role
from holdfast.server.http.key_scope import EVERYTHING, KeyScope
from holdfast.server.view.current_reads import Each
from holdfast.view.storage import ViewPage

BODIES = {
    "PUT /v1/retention/any": {"keep": "everything"},
    "PUT /v1/admin/log-level": {"level": "debug"},
    "POST /v1/admin/retention-plan": {"policy_id": "any", "policy": {"keep": "everything"}},
    "POST /v1/commit": {"operations": [{"type": "delete", "key_text": "k"}]},
    "PUT /v1/staged/app/write/name": {},
}


@pytest.mark.parametrize("request_line", BODIES)
@pytest.mark.parametrize("is_removed", [False, True], ids=["stays", "removed"])
def test_a_request_whose_token_is_removed_before_its_body_ends_is_refused(
    monkeypatch: pytest.MonkeyPatch, request_line: str, is_removed: bool
) -> None:
    body = json.dumps(BODIES[request_line]).encode()
    problem_with = Authenticator.problem_with

    async def scenario() -> bytes:
        asked = asyncio.Event()

        def noted(self: Authenticator, authorization: bytes | None, role: Role, **more: bool) -> HoldfastError | None:
            asked.set()
            return problem_with(self, authorization, role, **more)

        monkeypatch.setattr(Authenticator, "problem_with", noted)
        async with serving(tokens={"a-long-random-token": Role.ADMIN}) as here:
            reader, writer = await asyncio.open_connection(here.host, here.port)
            lines = [f"{request_line} HTTP/1.1", "Host: localhost", "Authorization: Bearer a-long-random-token"]
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}", "Connection: close", "", ""]
            writer.write("\r\n".join(lines).encode() + body[:1])
            await writer.drain()
            await asked.wait()
            if is_removed:
                here.front.authenticator.replace({"another-long-random-token": Role.ADMIN})
            writer.write(body[1:])
            answer = await reader.read()
            writer.close()
            return answer

    status = asyncio.run(scenario()).split(b" ", 2)[1]
    assert (status == b"401") == is_removed, status


@pytest.mark.parametrize("ended", ["removed", "narrowed"])
def test_a_stream_of_commits_takes_nothing_after_its_token_has_ended(ended: str) -> None:
    """What was accepted before is durable, and the line that says so names the first item that was not."""

    def item(key: str) -> bytes:
        line = json.dumps({"operations": [{"type": "delete", "key_text": key}]}).encode() + b"\n"
        return b"%x\r\n%s\r\n" % (len(line), line)

    async def scenario() -> list[dict[str, Any]]:
        async with serving(tokens={"a-long-random-token": Role.WRITE}) as here:
            client = await here.connect()
            lines = ["POST /v1/commits HTTP/1.1", "Host: localhost", "Authorization: Bearer a-long-random-token"]
            lines += ["Content-Type: application/x-ndjson", "Transfer-Encoding: chunked", "", ""]
            client.send("\r\n".join(lines).encode() + item("before"))
            await client.answer(head_only=True)
            parts = client.chunks()
            found = [json.loads(await anext(parts))]
            narrow = Grant(Role.WRITE, None, KeyScope((b"seat/",)))
            name = "another-long-random-token" if ended == "removed" else "a-long-random-token"
            here.front.authenticator.replace({name: narrow})
            client.send(item("after") + item("seat/1") + b"0\r\n\r\n")
            async for part in parts:
                found += [json.loads(text) for text in part.splitlines()]
            return found

    before, *after = asyncio.run(scenario())
    assert before["status"] == "committed"
    if ended == "removed":
        assert [(each["error"]["code"], each["index"]) for each in after] == [("unauthenticated", 1)]
    else:
        assert [each.get("status", each.get("error", {}).get("code")) for each in after] == [
            "permission_denied",
            "committed",
        ]


@pytest.mark.parametrize("ended", ["removed", "expired", "narrowed"])
def test_an_idle_change_stream_ends_with_its_token_and_says_why_and_no_other_does(
    monkeypatch: pytest.MonkeyPatch, ended: str
) -> None:
    """``other`` has a right that stays."""
    clock = [0.0]
    monkeypatch.setattr(auth, "time", SimpleNamespace(time=lambda: clock[0]))

    def lines(token: str) -> bytes:
        return f"GET /v1/subscribe HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode()

    async def scenario() -> str:
        own, other = "a-long-random-token", "another-long-random-token"
        until = 1.0 if ended == "expired" else None
        async with serving(tokens={own: Grant(Role.READ, until), other: Role.ADMIN}) as here:
            streams = [await here.connect() for _ in range(2)]
            for stream, token in zip(streams, (own, other), strict=True):
                stream.send(lines(token))
                await stream.answer(head_only=True)
            parts = [stream.chunks() for stream in streams]
            for each in parts:
                assert b"event: log" in await anext(each)
            narrow = Grant(Role.READ, None, KeyScope((b"seat/",)))
            clock[0] = 1.0
            if ended != "expired":
                here.front.authenticator.replace({other: Role.READ} | ({own: narrow} if ended == "narrowed" else {}))
            said = b"".join([part async for part in parts[0] if not part.startswith(b":")])
            client = await here.connect()
            client.send(b"POST /v1/commit HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}")
            assert (await client.answer()).status == 401
            async with asyncio.timeout(10):
                here.front.authenticator.replace({other: Role.ADMIN})
                commit = await here.connect()
                body = b'{"operations":[{"type":"delete","key_text":"k"}]}'
                head = ["POST /v1/commit HTTP/1.1", "Host: localhost", f"Authorization: Bearer {other}"]
                head += [f"Content-Length: {len(body)}", "", ""]
                commit.send("\r\n".join(head).encode() + body)
                assert (await commit.answer()).status == 200
                while b"event: transaction" not in await anext(parts[1]):
                    pass
            return said.decode()

    said = asyncio.run(scenario())
    assert "event: error" in said
    assert ("permission_denied" if ended == "narrowed" else "unauthenticated") in said


def test_an_idle_stream_of_commits_ends_with_its_token_and_names_the_first_item_that_was_not_taken() -> None:
    """Also where its client reads no results, and the window of what waits is full."""

    async def scenario() -> bytes:
        tokens = {"a-long-random-token": Role.WRITE, "another-long-random-token": Role.WRITE}
        async with serving(tokens=tokens) as here:
            streams = [await here.connect() for _ in tokens]
            for stream, token in zip(streams, tokens, strict=True):
                lines = ["POST /v1/commits HTTP/1.1", "Host: h", f"Authorization: Bearer {token}"]
                lines += ["Content-Type: application/x-ndjson", "Transfer-Encoding: chunked", "", ""]
                stream.send("\r\n".join(lines).encode() + chunk("a"))
                await stream.answer(head_only=True)
            parts = [stream.chunks() for stream in streams]
            assert all([b"committed" in await anext(each) for each in parts])
            here.front.authenticator.replace({"another-long-random-token": Role.WRITE})
            said = b"".join([part async for part in parts[0]])
            streams[1].send(chunk("b") + b"0\r\n\r\n")
            assert b"committed" in b"".join([part async for part in parts[1]])
            return said

    (line,) = [json.loads(each) for each in asyncio.run(scenario()).splitlines()]
    assert (line["error"]["code"], line["index"]) == ("unauthenticated", 1)


def chunk(key: str) -> bytes:
    line = json.dumps({"operations": [{"type": "delete", "key_text": key}]}).encode() + b"\n"
    return b"%x\r\n%s\r\n" % (len(line), line)


def test_a_stream_of_commits_whose_window_is_full_takes_nothing_more_when_its_token_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was accepted is answered when it is durable, and nothing else is."""
    monkeypatch.setattr(commit_stream, "WINDOW_ITEMS", 1)

    async def scenario() -> list[dict[str, Any]]:
        async with serving(tokens={"a-long-random-token": Role.WRITE}) as here:
            here.store.gate.clear()
            stream = await here.connect()
            lines = ["POST /v1/commits HTTP/1.1", "Host: h", "Authorization: Bearer a-long-random-token"]
            lines += ["Content-Type: application/x-ndjson", "Transfer-Encoding: chunked", "", ""]
            stream.send("\r\n".join(lines).encode() + chunk("a") + chunk("b") + chunk("c"))
            await stream.answer(head_only=True)
            await until(lambda: here.front.in_flight_commits == 1)
            here.front.authenticator.replace({"another-long-random-token": Role.WRITE})
            await until(lambda: not here.front.rights._acts)
            here.store.gate.set()
            found = b"".join([part async for part in stream.chunks()])
            assert here.front.in_flight_commits == 0
            return [json.loads(line) for line in found.splitlines()]

    first, second = asyncio.run(scenario())
    assert first["status"] == "committed"
    assert (second["error"]["code"], second["index"]) == ("unauthenticated", 1)


@pytest.mark.parametrize("ended", ["removed", "narrowed"])
@pytest.mark.parametrize(
    "target", ["/v1/keys/c2VhdC8x", "/v1/range?prefix_text=seat/", "/v1/read", "/v1/version", "/v1/retention"]
)
def test_what_was_read_for_a_token_that_ended_meanwhile_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, target: str, ended: str
) -> None:
    own = "a-long-random-token"

    async def scenario() -> tuple[int, bytes]:
        async with serving(tokens={own: Grant(Role.READ, None, EVERYTHING)}) as here:
            under_way, goes_on = asyncio.Event(), asyncio.Event()

            async def waits(*_: object, **__: object) -> Any:
                under_way.set()
                await goes_on.wait()
                page = ViewPage([(b"seat/1", b"secret", 1)], 1, more=False)
                if "read" in target:
                    return Each(1, [page])
                return page if "range" in target else ((b"secret", 1), 1)

            async def number(*_: object) -> int:
                await waits()
                return 1

            monkeypatch.setattr(here.view, "read_page", waits)
            monkeypatch.setattr(here.view, "get", waits)
            monkeypatch.setattr(here.view, "read", waits)
            monkeypatch.setattr(here.service, "version", number)
            monkeypatch.setattr(here.retention.truncator, "refresh", waits)
            client = await here.connect()
            body = b'{"items": [{"type": "range", "prefix_text": "seat/"}]}' if "read" in target else None
            client.send(request("POST" if body else "GET", target, body, Authorization=f"Bearer {own}"))
            await under_way.wait()
            narrow = Grant(Role.READ, None, KeyScope((b"row/",)))
            here.front.authenticator.replace({own: narrow} if ended == "narrowed" else {"another-token-0": Role.READ})
            goes_on.set()
            answer = await client.answer()
            return answer.status, answer.body

    status, body = asyncio.run(scenario())
    if ended == "narrowed" and target == "/v1/version":
        assert status == 200  # it shows no key
    elif ended == "narrowed" and target == "/v1/read":  # each item has its own error
        assert (status, b"permission_denied" in body, b"secret" in body) == (200, True, False)
    else:
        assert (status, b"secret" in body) == (403 if ended == "narrowed" else 401, False), body


def test_a_reader_that_takes_nothing_is_cut_off_when_its_token_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of what waits for it is sent later, and streams of other tokens that end meanwhile do not wait for it."""
    monkeypatch.setattr(sse, "LAST_WORDS_SECONDS", 0.1)
    own, other = "a-long-random-token", "another-long-random-token"

    async def scenario() -> None:
        async with serving(tokens={own: Role.READ, other: Role.READ, "root-has-a-long-token": Role.ADMIN}) as here:
            slow, quick = [await here.connect() for _ in range(2)]
            slow.writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_RCVBUF, 4_096)
            slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
            for stream, token in ((slow, own), (quick, other)):
                stream.send(f"GET /v1/subscribe HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
            await quick.answer(head_only=True)
            parts = quick.chunks()
            await until(lambda: len(here.subscriptions.open) == 2)
            value = base64.b64encode(bytes(700_000)).decode()
            writer = {"Authorization": "Bearer root-has-a-long-token"}
            for number in range(12):
                body = {"operations": [{"type": "write", "key_text": f"k{number}", "value": value}]}
                client = await here.connect()
                assert (await client.ask("POST", "/v1/commit", json.dumps(body).encode(), **writer)).status == 200
                while b"event: transaction" not in await anext(parts):
                    pass
            assert here.subscriptions.unsent_bytes_max() > 1_000_000
            here.front.authenticator.replace({other: Role.READ})
            await until(lambda: len(here.subscriptions.open) == 1)
            here.front.authenticator.replace({own: Role.READ})
            assert b"unauthenticated" in b"".join([part async for part in parts])
            assert not here.subscriptions.open

    asyncio.run(scenario())


def test_a_stream_that_cannot_be_ended_well_keeps_no_later_one_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason cannot be written to the first one, as where its client has gone."""
    tokens = {f"a-long-random-token-{number}": Role.READ for number in range(3)}
    say = sse._Subscriber.say
    failed: list[HoldfastError] = []

    async def fails_once(self: sse._Subscriber, error: HoldfastError, seconds: float) -> None:
        if not failed:
            failed.append(error)
            raise ConnectionResetError
        await say(self, error, seconds)

    monkeypatch.setattr(sse._Subscriber, "say", fails_once)

    async def scenario() -> None:
        async with serving(tokens=tokens) as here:
            left = dict(tokens)
            for token in list(tokens)[:2]:
                stream = await here.connect()
                head = f"GET /v1/subscribe HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
                stream.send(head.encode())
                await stream.answer(head_only=True)
                parts = stream.chunks()
                assert b"event: log" in await anext(parts)
                del left[token]
                here.front.authenticator.replace(left)
                async with asyncio.timeout(10):
                    while here.subscriptions.open:  # noqa: ASYNC110  # its end sets no event
                        await asyncio.sleep(0.01)

    asyncio.run(scenario())
    assert failed
