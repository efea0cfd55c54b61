"""A closed asyncio client sends nothing more, whatever it was in the middle of."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop
from tests.unit.client.conftest import QUICK
from tests.unit.client.scripted_server import ScriptedServer

from holdfast import aio
from holdfast.commit.transaction import Write
from holdfast.errors import Closed

PATIENT = dataclasses.replace(QUICK, request_timeout_ms=600_000)
LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
Use = Callable[[aio.Client], Awaitable[Any]]


async def commit(client: aio.Client) -> None:
    await client.commit([Write(b"k", b"v")], read_version=100)


async def read(client: aio.Client) -> None:
    async for _ in client.subscribe():
        pass


USES = pytest.mark.parametrize("use", [commit, read])


@USES
def test_what_waits_for_a_name_when_the_client_closes_is_never_sent(use: Use) -> None:
    async def scenario() -> None:
        asked, go = asyncio.Event(), asyncio.Event()
        loop: Any = asyncio.get_running_loop()
        look_up = loop.getaddrinfo

        async def slow(*args: Any, **kwargs: Any) -> Any:
            asked.set()
            await go.wait()
            return await look_up(*args, **kwargs)

        loop.getaddrinfo = slow
        with ScriptedServer() as server:
            client = aio.Client(server.url.replace("127.0.0.1", "localhost"), options=PATIENT)
            using = asyncio.ensure_future(use(client))
            await asked.wait()
            await client.aclose()
            go.set()
            with pytest.raises(Closed):
                await using
            assert server.connections == 0

    asyncio.run(scenario())


@LOOPS
@USES
def test_closing_ends_a_connect_whose_peer_is_silent_and_gives_its_socket_back(use: Use, loop: Any) -> None:
    async def scenario(listener: socket.socket) -> None:
        client = aio.Client(f"https://127.0.0.1:{listener.getsockname()[1]}", options=PATIENT)
        using = asyncio.ensure_future(use(client))
        own_loop = asyncio.get_running_loop()
        peer, _ = await own_loop.sock_accept(listener)
        with peer:
            peer.setblocking(False)
            await own_loop.sock_recv(peer, 1)  # the handshake has begun, and is never answered
            await client.aclose()
            assert using.done()
            with pytest.raises(Closed):
                await using
            while await own_loop.sock_recv(peer, 65_536):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener, asyncio.Runner(loop_factory=loop) as runner:
        listener.setblocking(False)
        runner.run(scenario(listener))


@LOOPS
@USES
def test_a_connection_made_in_the_moment_of_closing_carries_nothing(use: Use, loop: Any) -> None:
    async def scenario() -> None:
        with ScriptedServer() as server:
            client = aio.Client(server.url, options=PATIENT)
            pool: Any = client.pool
            connected = pool._connected

            async def closed_meanwhile(endpoint: Any) -> Any:
                connection = await connected(endpoint)
                pool.close()
                return connection

            pool._connected = closed_meanwhile
            with pytest.raises(Closed):
                await use(client)
            await client.aclose()
        assert not server.asked

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(scenario())
