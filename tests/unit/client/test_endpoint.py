"""What is an address, and that one that is none costs a client nothing but the hint."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.client.conftest import QUICK
from tests.unit.client.scripted_server import Reply, ScriptedServer, Stream, coded
from tests.unit.client.test_subscription import transaction

from holdfast.client.protocol.effects import Failed, Request, Send
from holdfast.client.protocol.endpoint import Endpoint, parse_endpoint
from holdfast.client.transport import aio as transports
from holdfast.client.transport import sync as sockets
from holdfast.commit.format.transaction import Write
from holdfast.commit.leadership import evidence
from holdfast.errors import InvalidRequest
from holdfast.spark.bulk.leadership import ask_to_step_down

UNUSABLE = ["a..b:80", ".a:80", f"{'a' * 70}.x:80", "a\0b:80", "\0:80"]


@pytest.mark.parametrize("text", UNUSABLE)
def test_a_host_that_no_name_look_up_takes_is_no_address(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_endpoint(text)
    with pytest.raises(InvalidRequest):
        parse_endpoint(f"https://{text}")


def test_a_host_is_sent_as_names_are_looked_up() -> None:
    assert parse_endpoint("żółw.example:80").authority == "xn--w-uga1v8h.example:80"
    assert parse_endpoint("[fe80::1%eth0]:80").host == "fe80::1%eth0"


@pytest.mark.parametrize("text", UNUSABLE)
def test_a_leader_whose_address_is_none_is_asked_for_again_where_it_was(connect: Callable[..., Any], text: str) -> None:
    refusal = coded(503, "not_leader", leader_address=text, retry_after_ms=1)
    committed = Reply(200, {"status": "committed", "version": 30, "leader_id": "ab" * 16})
    with ScriptedServer(refusal, committed, refusal, Stream((transaction(5, 0),), hold=True)) as server:
        client = connect(server.url)
        assert client.call("commit", [Write(b"k", b"v")], read_version=3).version == 30
        assert [event.version for event in client.take(1)] == [5]


@pytest.mark.parametrize("text", UNUSABLE)
def test_a_bulk_job_counts_an_address_that_is_none_as_nobody_there(text: str) -> None:
    assert asyncio.run(ask_to_step_down(text, 1_000.0, token=None)).reply is not evidence.Reply.LEADS


def test_a_name_that_the_look_up_refuses_is_a_connection_that_could_not_be_made() -> None:
    send = Send(Endpoint("a..b", 80), Request("GET", "/", b""), 1_000.0)
    blocking = sockets.Pool(QUICK, None, None).exchange(send)

    async def exchange() -> Any:
        return await transports.Pool(QUICK, None, None).exchange(send)

    for reply in (blocking, asyncio.run(exchange())):
        assert isinstance(reply, Failed)
        assert not reply.perhaps_accepted
