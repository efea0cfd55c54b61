"""A closed client sends nothing more, whatever it was in the middle of."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import uvloop
from tests.unit.client.conftest import QUICK
from tests.unit.client.scripted_server import Reply, ScriptedServer, Stream

from holdfast import aio
from holdfast.client import Client
from holdfast.client.transport import aio as transport
from holdfast.client.transport.sync import Stream as OpenStream
from holdfast.commit.format.transaction import Write
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
def test_a_connection_made_in_the_moment_of_closing_carries_nothing(
    use: Use, loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        with ScriptedServer() as server:
            client = aio.Client(server.url, options=PATIENT)
            connected = transport.connected

            async def closed_meanwhile(*asked: Any) -> Any:
                connection = await connected(*asked)
                client.pool.close()
                return connection

            monkeypatch.setattr(transport, "connected", closed_meanwhile)
            with pytest.raises(Closed):
                await use(client)
            await client.aclose()
        assert not server.asked

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(scenario())


@LOOPS
def test_a_subscription_closed_while_it_opens_leaves_no_stream(loop: Any) -> None:
    async def scenario() -> None:
        with ScriptedServer(Stream((b": hello\n\n",), hold=True)) as server:
            async with aio.Client(server.url, options=PATIENT) as client:
                pool: Any = client.pool
                made, go = asyncio.Event(), asyncio.Event()
                open_stream = pool.open

                async def slow(effect: Any) -> Any:
                    opened = await open_stream(effect)
                    made.set()
                    await go.wait()
                    return opened

                pool.open = slow
                events = client.subscribe()
                iterating = asyncio.ensure_future(anext(events, None))
                await made.wait()
                await events.aclose()
                go.set()
                assert await iterating is None
                assert not pool._everything

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(scenario())


# The blocking client, closed by another thread


def blocking_commit(client: Client) -> None:
    client.commit([Write(b"k", b"v")], read_version=100)


def blocking_read(client: Client) -> None:
    next(client.subscribe())


@pytest.mark.parametrize("use", [blocking_commit, blocking_read])
def test_a_blocking_client_sends_nothing_on_a_connection_that_was_made_while_it_closed(
    use: Callable[[Client], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go = threading.Event(), threading.Event()
    look_up = socket.getaddrinfo

    def slow(*args: Any, **kwargs: Any) -> Any:
        asked.set()
        assert go.wait(30)
        return look_up(*args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with ScriptedServer() as server, ThreadPoolExecutor() as threads:
        client = Client(server.url.replace("127.0.0.1", "localhost"), options=PATIENT)
        using = threads.submit(use, client)
        assert asked.wait(30)
        client.close()
        go.set()
        with pytest.raises(Closed):
            using.result(30)
    assert not server.asked


def test_a_subscription_that_another_thread_closes_ends_and_lets_its_client_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = dataclasses.replace(PATIENT, stream_silence_ms=600_000)
    version = Reply(200, {"version": 7, "leader_id": "x"})
    with (
        ScriptedServer(Stream((b": hello\n\n",), hold=True), version) as server,
        ThreadPoolExecutor() as threads,
        Client([server.url, "http://127.0.0.1:1"], options=options) as client,
    ):
        events = client.subscribe()
        receiving = threading.Event()
        receive = OpenStream.receive

        def awaited(stream: OpenStream, timeout_ms: float) -> Any:
            receiving.set()
            return receive(stream, timeout_ms)

        monkeypatch.setattr(OpenStream, "receive", awaited)
        iterating = threads.submit(list, events)
        assert receiving.wait(30)
        events.close()
        assert iterating.result(30) == []
        events.close()
        with pytest.raises(StopIteration):
            next(events)
        # That its stream broke tells nothing of the place.
        assert client.version().version == 7


def test_a_subscription_closed_between_two_events_has_no_third() -> None:
    with ScriptedServer(Stream((b": hello\n\n",), hold=True)) as server, Client(server.url, options=PATIENT) as client:
        events = client.subscribe()
        assert events._advance()  # asks for the stream
        assert events._advance()  # which is open
        events.close()
        assert list(events) == []
        assert list(events.batches()) == []
        assert not client.pool._streams
