"""Who goes at the bound of connections, and which connections are too late: over real sockets, with small bounds."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import pytest
import uvicorn
from tests.unit.console.test_guard import TOKEN, options_of
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from holdfast.console import connections
from holdfast.console.application import application
from holdfast.console.connections import HEAD_SECONDS_MAX, Connections, ServiceConnection

PROTOCOLS = [H11Protocol, HttpToolsProtocol]
RUNBOOKS = b"GET /runbooks HTTP/1.1\r\nHost: 127.0.0.1:8081\r\n%b\r\n"
LOGIN = b"GET /login HTTP/1.1\r\nHost: 127.0.0.1:8081\r\n\r\n"


@contextlib.asynccontextmanager
async def listening(
    tmp_path: Path, base: type[asyncio.Protocol], table: Connections, cookie: list[str]
) -> AsyncGenerator[int]:
    """A console on a port of its own; ``cookie`` gets that of a login."""
    app = application(options_of(tmp_path, TOKEN, login=True))
    value, _ = app.console.sessions.begin(asyncio.get_running_loop().time(), TOKEN)
    cookie.append(f"{app.console.cookie}={value}")
    config = uvicorn.Config(app, http=table.protocol(base), log_level="error", access_log=False, ws="none")
    server = uvicorn.Server(config)
    opened = socket.create_server(("127.0.0.1", 0), backlog=512)
    serving = asyncio.ensure_future(server.serve(sockets=[opened]))
    while not server.started:  # noqa: ASYNC110  # it sets no event
        await asyncio.sleep(0)
    try:
        yield opened.getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        await serving


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run one scenario, with a bound."""

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(bounded())


async def status_of(port: int, request: bytes) -> int:
    """The status of an answer on a connection of its own; 0 where it is closed without one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        return int((await reader.readline()).split()[1] or 0)
    except (IndexError, ConnectionError):
        return 0
    finally:
        writer.close()


@pytest.mark.parametrize("base", PROTOCOLS)
def test_silent_connections_lock_nobody_out(tmp_path: Path, base: type[asyncio.Protocol]) -> None:
    async def scenario() -> None:
        table, cookie = Connections(8), list[str]()
        async with listening(tmp_path, base, table, cookie) as port:
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
            assert await status_of(port, LOGIN) == 200
            assert await status_of(port, RUNBOOKS % f"Cookie: {cookie[0]}\r\n".encode()) == 200
            assert len(table) <= 8
            for reader, writer in silent:
                writer.close()
                del reader

    run(scenario)


@pytest.mark.parametrize("base", PROTOCOLS)
def test_a_user_who_logged_in_keeps_the_connection(tmp_path: Path, base: type[asyncio.Protocol]) -> None:
    async def scenario() -> None:
        table, cookie = Connections(4), list[str]()
        async with listening(tmp_path, base, table, cookie) as port:
            asked = RUNBOOKS % f"Cookie: {cookie[0]}\r\n".encode()
            users = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            for reader, writer in users:
                writer.write(asked)
                assert b" 200 " in await reader.readline()
            for _ in range(5):
                assert await status_of(port, LOGIN) == 200, "one place is for visitors"
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(asked)
            assert b" 200 " in await reader.readline()
            with contextlib.suppress(ConnectionError):
                assert await status_of(port, LOGIN) == 0, "and now every one has a login"
            for each, sending in (*users, (reader, writer)):
                await each.readuntil(b"</html>")
                sending.write(asked)
                assert b" 200 " in await each.readline()
                sending.close()

    run(scenario)


@pytest.mark.parametrize("base", PROTOCOLS)
@pytest.mark.parametrize("begun", [b"", b"GET /login HTT", LOGIN[:-2], LOGIN + LOGIN[:20]])
def test_a_connection_without_a_whole_head_is_closed(
    tmp_path: Path, base: type[asyncio.Protocol], begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS_MAX", 0.05)
    monkeypatch.setattr(connections, "LOOK_SECONDS", 0.01)

    async def scenario() -> None:
        async with listening(tmp_path, base, Connections(), []) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(begun)
            with contextlib.suppress(ConnectionError):
                answered = await reader.read()
                assert answered.count(b" 200 ") <= begun.count(b"\r\n\r\n")
            writer.close()

    run(scenario)


def test_bytes_that_trickle_in_do_not_put_the_end_off() -> None:
    connection = ServiceConnection(None, 0.0, 0.0)
    for second in range(int(HEAD_SECONDS_MAX)):
        connection.heard(float(second))
    assert not connection.is_late(HEAD_SECONDS_MAX)
    assert connection.is_late(HEAD_SECONDS_MAX + 0.1)
    connection.request_began()
    connection.heard(50.0)
    assert not connection.is_late(1_000.0), "a body has its own time"
    connection.request_ended(1_000.0)
    connection.heard(1_008.0)
    assert not connection.is_late(1_017.0)
    assert connection.is_late(1_019.0)


def test_who_goes_first() -> None:
    silent, older, visitor, user = (ServiceConnection(None, at, at) for at in (5.0, 1.0, 2.0, 0.0))
    visitor.request_began()
    user.has_login = True
    assert sorted((visitor, user, silent, older), key=lambda each: each.rank) == [older, silent, visitor, user]
