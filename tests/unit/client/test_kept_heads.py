"""The heads of requests that a client keeps: what they hold, how many, and for how long."""

from __future__ import annotations

import asyncio
import gc
import secrets

from tests.unit.client.conftest import QUICK
from tests.unit.client.scripted_server import Reply, ScriptedServer

from holdfast import aio
from holdfast.client import Client
from holdfast.client.protocol.effects import Request
from holdfast.client.protocol.endpoint import Endpoint
from holdfast.client.protocol.http1 import HEADS_KEPT_MAX, RequestEncoder
from holdfast.commit.format.transaction import Write

COMMITTED = Reply(200, {"status": "committed", "version": 1, "leader_id": "ab" * 16, "request_id": None})
TYPE = (("content-type", "application/json"),)
PLACE = Endpoint("a", 80)


def kept_with(token: str) -> int:
    """How many bytes with this token the objects of the process hold."""
    gc.collect()
    secret = token.encode()
    # A dictionary of bytes alone is not tracked by the collector: it is found only through its owner.
    waiting: list[object] = gc.get_objects()
    seen = {id(each) for each in waiting}
    found = 0
    while waiting:
        for held in gc.get_referents(waiting.pop()):
            if id(held) not in seen:
                seen.add(id(held))
                waiting.append(held)
                found += isinstance(held, bytes) and held is not secret and secret in held
    return found


def test_a_token_does_not_outlive_its_client() -> None:
    token = secrets.token_hex(16)

    async def asynchronous(url: str) -> None:
        async with aio.Client(url, token=token, options=QUICK) as client:
            await client.commit([Write(b"k", b"v")], read_version=0)
            assert kept_with(token)

    with ScriptedServer(COMMITTED, COMMITTED) as server:
        with Client(server.url, token=token, options=QUICK) as client:
            client.commit([Write(b"k", b"v")], read_version=0)
            assert kept_with(token)
        del client
        asyncio.run(asynchronous(server.url))
    assert kept_with(token) == 0


def test_what_is_kept_is_the_head_of_this_request_and_no_other() -> None:
    encoder = RequestEncoder("t")
    for _ in range(2):
        for host in ("a", "b"):
            for method, target, headers in (("POST", "/1", ()), ("POST", "/2", TYPE), ("PUT", "/2", TYPE)):
                for body in (b"x", b"xyz"):
                    more = b"".join(b"%b: %b\r\n" % (name.encode(), value.encode()) for name, value in headers)
                    head = b"%b %b HTTP/1.1\r\nhost: %b\r\nauthorization: Bearer t\r\n" % (
                        method.encode(),
                        target.encode(),
                        b"%b:80" % host.encode(),
                    )
                    expected = head + more + b"content-length: %d\r\n\r\n" % len(body) + body
                    assert encoder.encode(Request(method, target, body, headers), Endpoint(host, 80)) == expected
    assert (
        encoder.encode(Request("GET", "/1"), PLACE)
        == b"GET /1 HTTP/1.1\r\nhost: a:80\r\nauthorization: Bearer t\r\n\r\n"
    )
    assert RequestEncoder(None).encode(Request("DELETE", "/1"), PLACE) == (
        b"DELETE /1 HTTP/1.1\r\nhost: a:80\r\ncontent-length: 0\r\n\r\n"
    )


def test_few_heads_are_kept() -> None:
    token = secrets.token_hex(16)
    encoder = RequestEncoder(token)
    for number in range(3 * HEADS_KEPT_MAX):
        encoder.encode(Request("POST", f"/{number}", b"x"), PLACE)
    assert 1 <= kept_with(token) <= HEADS_KEPT_MAX
