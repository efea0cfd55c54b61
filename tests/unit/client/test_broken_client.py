"""After a broken invariant a client is unusable: each present and later call raises one error, and nothing is sent."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from holdfast import Client
from holdfast.aio import Client as AsyncClient
from holdfast.client.protocol.effects import Decide, Effect, Procedure, Reply
from holdfast.client.protocol.gathering import Gathering
from holdfast.client.protocol.options import ClientOptions
from holdfast.client.transport import aio_gathering
from holdfast.commit.format.transaction import Write
from holdfast.errors import Closed, InternalError

OPERATIONS = [Write(b"k", b"v")]
OPTIONS = ClientOptions(request_timeout_ms=3_000)


class Silent:
    """A service that accepts connections and answers nothing. ``accepted`` counts them."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.accepted: list[socket.socket] = []
        self.received = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.accepted.append(connection)
            threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        if connection.recv(1):
            self.received.set()

    def close(self) -> None:
        self._socket.close()
        for connection in self.accepted:
            connection.close()


@pytest.fixture
def service() -> Iterator[Silent]:
    silent = Silent()
    yield silent
    silent.close()


@contextmanager
def planted(name: str) -> Iterator[None]:
    def fails(*_: object, **__: object) -> object:
        raise AssertionError("planted")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gathering, name, fails)
        yield


def play_sync(url: str, received: threading.Event, accepted: list[socket.socket]) -> None:
    client, raised = Client(url, options=OPTIONS), list[BaseException]()
    client.session.saw(7, "ab" * 16)

    def waits() -> None:
        try:
            client.commit(OPERATIONS)
        except BaseException as error:  # noqa: BLE001 - compared below
            raised.append(error)

    waiting = threading.Thread(target=waits, daemon=True)
    waiting.start()
    assert received.wait(30)
    with planted("offered"), pytest.raises(InternalError, match="invariant") as caught:
        client.commit(OPERATIONS)
    before = len(accepted)
    later: list[Callable[[], object]] = [
        lambda: client.commit(OPERATIONS), lambda: client.get(b"k"), lambda: client.range(b"a"), client.version,
        lambda: client.status("r", 1), lambda: next(iter(client.subscribe())),
    ]  # fmt: skip
    for call in later:
        with pytest.raises(InternalError) as again:
            call()
        assert again.value is caught.value
    assert len(accepted) == before, "nothing more is sent"
    waiting.join(30)
    assert raised == [caught.value], "a call that waited raises it too"
    client.close()


async def play_async(url: str, received: threading.Event, accepted: list[socket.socket], name: str) -> None:
    async with AsyncClient(url, options=OPTIONS) as client:
        client.session.saw(7, "ab" * 16)
        waiting = asyncio.ensure_future(client.commit(OPERATIONS))
        assert await asyncio.to_thread(received.wait, 30)
        breaks = asyncio.ensure_future(client.commit(OPERATIONS))
        with planted(name):
            if name == "offered":
                async with asyncio.timeout(30):
                    await asyncio.wait({breaks})
            else:
                await asyncio.sleep(0)
                client._commits._look()
        async with asyncio.timeout(30):
            for task in (waiting, breaks):
                with pytest.raises(InternalError, match="invariant"):
                    await task
        before = len(accepted)
        for call in (lambda: client.commit(OPERATIONS), lambda: client.get(b"k"), client.version):
            with pytest.raises(InternalError) as again:
                await call()
            assert again.value is client.session.soundness.broken
        with pytest.raises(InternalError):
            await anext(aiter(client.subscribe()))
        assert len(accepted) == before, "nothing more is sent"


def test_a_broken_client_raises_one_error_to_every_thread(service: Silent) -> None:
    play_sync(service.url, service.received, service.accepted)


@pytest.mark.parametrize("name", ["offered", "look"])
def test_a_broken_client_raises_one_error_to_every_task(service: Silent, name: str) -> None:
    asyncio.run(play_async(service.url, service.received, service.accepted, name))


def test_an_application_whose_own_assertion_fails_keeps_its_client(service: Silent) -> None:
    def procedure() -> Procedure[None]:
        yield Decide()

    def decide(_: Effect) -> Reply:
        raise AssertionError("the application's")

    with Client(service.url) as client:
        with pytest.raises(AssertionError, match="the application's"):
            client.run(procedure(), decide)
        assert client.session.soundness.broken is None


def test_a_client_that_lets_its_tasks_wait_is_noticed(service: Silent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio_gathering.Gatherer, "break_off", lambda *_: None)
    played = play_async(service.url, service.received, service.accepted, "look")
    with pytest.raises((TimeoutError, Closed)):
        asyncio.run(asyncio.wait_for(played, 2.0))
