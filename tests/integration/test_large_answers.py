"""Large answers have room one after another: those that nobody reads hold a part of it, and not while others wait."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
from collections.abc import Iterator

import pytest
from tests.integration.http_harness import Client, Serving, request, run, serving, until

from holdfast.errors import Backpressure
from holdfast.server.gateway import GatewayLimits
from holdfast.server.http import answers
from holdfast.server.http.answers import PAGE_ROOM, PAGES_OF_CLIENT, Answers, Room, Sending
from holdfast.server.http.auth import Role

SLOW, OTHER = "a-slow-long-random-token", "another-long-random-token"
READ_BYTES_MAX = 262_144
"""What the event loop reads at once."""
VALUE = 700_000
KEYS = 20
PEERS: list[socket.socket] = []


@pytest.fixture(autouse=True)
def ended_peers() -> Iterator[None]:
    yield
    while PEERS:
        PEERS.pop().close()


async def filled(here: Serving, value: int = VALUE, keys: int = KEYS) -> Client:
    client = await here.connect()
    for number in range(keys):
        text = base64.b64encode(os.urandom(value)).decode()
        body = json.dumps({"operations": [{"type": "write", "key_text": f"k{number:03d}", "value": text}]}).encode()
        assert (await client.ask("POST", "/v1/commit", body, Authorization=f"Bearer {OTHER}")).status == 200
    return client


async def unread(here: Serving, target: str, times: int = 1) -> socket.socket:
    """Requests whose answers are not read."""
    peer = socket.socket()
    PEERS.append(peer)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    peer.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(peer, (here.host, here.port))
    await loop.sock_sendall(peer, times * request("GET", target, Authorization=f"Bearer {SLOW}"))
    return peer


def holding(here: Serving) -> int:
    return sum(each.transport.get_write_buffer_size() > 0 for each in here.server.context.open)


def unsent(here: Serving) -> int:
    return sum(each.transport.get_write_buffer_size() for each in here.server.context.open)


LIMITS = GatewayLimits(request_bytes_max=32 << 20)
TOKENS = {SLOW: Role.READ, OTHER: Role.WRITE}


@pytest.mark.parametrize("times", [1, 1_000], ids=["one", "pipelined"])
def test_unread_ranges_of_one_token_hold_four_pages_and_others_are_served(
    monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    monkeypatch.setattr(answers, "STALLED_SECONDS", 60.0)

    async def scenario() -> None:
        async with serving(limits=LIMITS, tokens=TOKENS) as here:
            client = await filled(here)
            for _ in range(3 * PAGES_OF_CLIENT):
                await unread(here, "/v1/range?limit=10000", times)
            await until(lambda: holding(here) == PAGES_OF_CLIENT)
            for _ in range(3):
                answered = await client.ask("GET", "/v1/range?limit=10000", Authorization=f"Bearer {OTHER}")
                assert answered.status == 200
                assert holding(here) == PAGES_OF_CLIENT, "the others of this token wait"
                assert unsent(here) <= PAGES_OF_CLIENT * PAGE_ROOM, "one answer each"
            small = await here.connect()
            answered = await small.ask("GET", "/v1/keys/nothing", Authorization=f"Bearer {SLOW}")
            assert answered.status == 404, "what is small needs no room"

    run(scenario)


def test_input_that_waits_for_large_answers_counts_and_is_dropped_with_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answers, "STALLED_SECONDS", 60.0)

    async def scenario() -> None:
        limits = GatewayLimits(request_bytes_max=32 << 20, unsent_bytes_max=4 << 20)
        async with serving(limits=limits, tokens=TOKENS) as here:
            await filled(here)
            seen = 0
            for _ in range(10 * PAGES_OF_CLIENT):
                await unread(here, "/v1/range?limit=10000", 4_000)
                seen = max(seen, waiting(here))
            await until(lambda: here.front.buffers.ended > 0)
            uncounted = PAGES_OF_CLIENT * READ_BYTES_MAX
            assert max(seen, waiting(here)) <= here.front.buffers.client_bytes_max + uncounted < 10 * uncounted / 2

    run(scenario)


def waiting(here: Serving) -> int:
    """Bytes of requests that were read and not served."""
    return sum(len(each._unread) for each in here.server.context.open)


def test_an_answer_that_is_not_read_is_cut_off_while_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "STALLED_SECONDS", 0.2)

    async def scenario() -> None:
        async with serving(limits=LIMITS, tokens=TOKENS) as here:
            await filled(here)
            for _ in range(PAGES_OF_CLIENT):
                await unread(here, "/v1/range?limit=10000")
            await until(lambda: holding(here) == PAGES_OF_CLIENT)
            await asyncio.sleep(0.5)
            assert holding(here) == PAGES_OF_CLIENT, "nobody waits"
            reader = await here.connect()
            answered = await reader.ask("GET", "/v1/range?limit=10000", Authorization=f"Bearer {SLOW}")
            assert answered.status == 200

    run(scenario)


def test_answers_larger_than_a_page_go_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "STALLED_SECONDS", 60.0)

    async def scenario() -> None:
        async with serving(limits=LIMITS, tokens=TOKENS) as here:
            await filled(here, 13 << 20, 2)
            await unread(here, "/v1/range?limit=10000")
            await unread(here, "/v1/keys/k001?text=true")
            await until(lambda: holding(here) == 1)
            first = next(each for each in here.server.context.open if each.transport.get_write_buffer_size() > 0)
            small = await here.connect()
            for _ in range(3):
                answered = await small.ask("GET", "/v1/range?limit=1&begin_text=z", Authorization=f"Bearer {SLOW}")
                assert answered.status == 200
                assert holding(here) == 1, "the other one waits"
            first.transport.abort()
            await until(lambda: first not in here.server.context.open and holding(here) == 1)

    run(scenario)


class Taken(Sending):
    takes_more = True

    async def until_it_takes_more(self) -> None:
        raise AssertionError

    def unsent_bytes(self) -> int:
        return 0

    def abort(self) -> None:
        raise AssertionError


def test_an_answer_waits_for_room_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "WAIT_SECONDS", 0.05)

    async def scenario() -> None:
        rooms = Answers()
        held = [Room(rooms, "a") for _ in range(PAGES_OF_CLIENT)]
        for room in held:
            await room.page()
        late = Room(rooms, "a")
        with pytest.raises(Backpressure):
            await late.page()
        late.close()
        await Room(rooms, "b").page()
        await held[0].until_taken(Taken())
        held[0].close()
        await late.page()

    run(scenario)
