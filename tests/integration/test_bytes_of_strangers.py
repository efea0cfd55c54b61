"""What connections without a valid token hold is bounded for all of them together; those that hold most end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest
from tests.integration.http_harness import request, run, serving, until
from tests.matrix import matrix

from holdfast.server.http import turns
from holdfast.server.http.auth import Role
from holdfast.server.http.buffers import CLIENT_PART, MARK_BYTES, Buffers

TOKEN = "a-long-random-token"
BOUND = 2 << 20
CONNECTIONS = 40
BODY = b"x" * 900_000
WAYS = {
    "bodies": request("PUT", "/v1/retention/a", None, Content_Length="1000000") + BODY,
    "requests": request("GET", "/livez") * 20_000,
    "unread answers": request("GET", "/openapi.json") * 2_000,
}
PEERS: list[socket.socket] = []


@pytest.fixture(autouse=True)
def ended_peers() -> Iterator[None]:
    yield
    while PEERS:
        PEERS.pop().close()


@pytest.mark.parametrize("way", matrix(list(WAYS)))
def test_connections_without_a_token_hold_a_bounded_part(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr(turns, "UNKNOWN", 1)  # they wait for their turn for long

    async def send(address: tuple[str, int]) -> None:
        peer = socket.socket()
        PEERS.append(peer)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        peer.setblocking(False)
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            await loop.sock_connect(peer, address)
            await loop.sock_sendall(peer, WAYS[way])

    async def scenario() -> None:
        async with serving(tokens={TOKEN: Role.WRITE}, view=False) as here:
            here.front.unknown_bytes = Buffers(CLIENT_PART * BOUND)
            user = await here.connect()
            answered = await user.ask("GET", "/v1/version", Authorization=f"Bearer {TOKEN}")
            assert answered.status == 200
            sending = [asyncio.ensure_future(send((here.host, here.port))) for _ in range(CONNECTIONS)]
            most = 0

            def look() -> bool:
                nonlocal most
                strangers = here.server.context.open
                held = [each.held_bytes() for each in strangers if not each.is_known and is_open(each.transport)]
                most = max(most, sum(held))
                assert not any(each._unread for each in strangers if not is_open(each.transport)), "it goes at once"
                return here.front.unknown_bytes.ended > 3

            await until(look)
            assert most <= BOUND + CONNECTIONS * (MARK_BYTES + 40_000)
            here.front.unknown_bytes.check()
            for _ in range(5):
                answered = await user.ask("GET", "/v1/version", Authorization=f"Bearer {TOKEN}")
                assert answered.status == 200, "a connection with a token is not touched"
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)

    run(scenario)


def is_open(transport: asyncio.Transport | None) -> bool:
    return transport is not None and not transport.is_closing()
