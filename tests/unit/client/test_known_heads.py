"""A head that a connection knows is not parsed again, and nothing else about its answers changes."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.client.conftest import QUICK
from tests.unit.client.scripted_server import Reply, ScriptedServer, Silence

from holdfast.client.protocol import http1
from holdfast.client.protocol.effects import Failed, Request, Response, Send
from holdfast.client.protocol.endpoint import parse_endpoint
from holdfast.client.protocol.http1 import BadResponse, KnownHead, ResponseReader
from holdfast.client.transport import aio as transports

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 4\r\n\r\n"


def read(known: KnownHead, *pieces: bytes) -> ResponseReader:
    reader = ResponseReader(100, known)
    for piece in pieces:
        reader.feed(piece)
    return reader


def knowing() -> KnownHead:
    known = KnownHead()
    read(known, HEAD + b"abcd")
    assert known.bytes == HEAD
    return known


def test_a_known_head_has_the_answer_of_the_body_that_follows_it():
    reader = read(knowing(), HEAD + b"efgh")
    assert (reader.complete, reader.reusable, reader.status) == (True, True, 200)
    assert reader.headers == {"content-type": "application/json", "content-length": "4"}
    assert reader.take() == b"efgh"


@pytest.mark.parametrize("cut", range(1, len(HEAD) + 4))
def test_a_known_head_may_arrive_in_pieces(cut):
    whole = HEAD + b"efgh"
    reader = ResponseReader(100, knowing())
    reader.feed(whole[:cut])
    assert not reader.complete
    reader.feed(whole[cut:])
    assert (reader.complete, reader.take()) == (True, b"efgh")


def test_bytes_behind_an_answer_with_a_known_head_are_never_taken_for_it():
    with pytest.raises(BadResponse):
        read(knowing(), HEAD + b"efgh" + HEAD + b"ijkl")


def test_a_body_beyond_the_bound_is_refused_behind_a_known_head_too():
    reader = ResponseReader(3, knowing())
    with pytest.raises(BadResponse):
        reader.feed(HEAD + b"efgh")


@pytest.mark.parametrize(
    "reply",
    [
        HEAD.replace(b"200 OK", b"404 Not Found") + b"abcd",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n0\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\n" + HEAD + b"abcd",
        HEAD.replace(b"OK\r\n", b"OK\r\nX: " + b"x" * 5_000 + b"\r\n") + b"abcd",
    ],
    ids=["status", "chunked", "interim", "large"],
)
def test_a_head_is_known_only_where_its_length_alone_says_where_the_answer_ends(reply):
    known = KnownHead()
    reader = read(known, reply)
    assert reader.complete
    assert known.bytes == b""
    assert reader.take() == b"abcd"


def test_a_late_answer_fails_at_its_own_time_on_a_connection_whose_timer_was_set_before():
    async def scenario() -> None:
        with ScriptedServer(Reply(200, b"ok"), Reply(200, b"ok"), Silence()) as server:
            pool = transports.Pool(QUICK, None, None)
            try:
                endpoint = parse_endpoint(server.url)
                for timeout_ms in (60_000.0, 50.0):  # the second one's timer is due before the first one's
                    response = await pool.exchange(Send(endpoint, Request("POST", "/", b"x"), timeout_ms))
                    assert isinstance(response, Response)
                    assert response.body == b"ok"
                late = await pool.exchange(Send(endpoint, Request("POST", "/", b"x"), 200.0))
                assert isinstance(late, Failed)
                assert late.perhaps_accepted
                assert late.reason.startswith("TimeoutError")
                assert len(server.asked) == 3
            finally:
                pool.close()
                await pool.wait_closed()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_both_clients_parse_a_head_once_on_a_connection(connect, monkeypatch):
    made = []
    parser = http1.httptools.HttpResponseParser

    def counting(reader):
        made.append(reader)
        return parser(reader)

    monkeypatch.setattr(http1.httptools, "HttpResponseParser", counting)
    bodies = [{"version": version, "leader_id": "x"} for version in (10, 20, 300, 30)]
    with ScriptedServer(*(Reply(200, body) for body in bodies)) as server:
        client = connect(server.url)
        for body, parsed in zip(bodies, (1, 1, 2, 3), strict=True):  # the third is longer, and the fourth is not
            assert client.call("version").version == body["version"]
            assert len(made) == parsed
        assert server.connections == 1
