"""Both shells at a server that accepts everything and answers nothing, while another server leads."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest
from tests.unit.client.conftest import QUICK
from tests.unit.client.scripted_server import Reply, ScriptedServer, Silence, Stream, coded
from tests.unit.client.test_subscription import transaction

from holdfast import NotFound, StoreClient, aio
from holdfast.client import Client
from holdfast.client.protocol import lookout
from holdfast.client.protocol.effects import Request, Response, Send
from holdfast.client.protocol.endpoint import parse_endpoint
from holdfast.client.protocol.options import SubscriberOptions
from holdfast.client.transport import aio as transports
from holdfast.client.transport import sync as sockets
from holdfast.commit.format.transaction import Write

PATIENT = dataclasses.replace(QUICK, request_timeout_ms=60_000, stream_silence_ms=60_000, give_up_after_ms=60_000)
"""Only the lookout ends a wait within the time of a test."""
LEADS = Reply(200, {"leader_id": "ab" * 16, "leading": True, "address": ""})
STANDS_BY = Reply(200, {"leader_id": "", "leading": False, "address": ""})
VERSION = Reply(200, {"version": 50, "leader_id": "ab" * 16})
UNKNOWN = Reply(200, {"status": "not_committed"})


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The times of the lookout, divided by ten."""
    for module in (lookout, transports, sockets):
        for name in ("LOOK_AFTER_MS", "ANSWER_MS", "AGAIN_MS", "LIVES_AGAIN_MS"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, getattr(module, name) / 10)


@contextlib.contextmanager
def silent(accepts: bool = True) -> Iterator[str]:
    """A port whose kernel accepts connections, of a process that does nothing; or whose kernel accepts none."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=64 if accepts else 0)
    waiting: list[socket.socket] = []
    try:
        if not accepts:  # the queue of connections is full, so nothing answers, as of a machine without power
            for _ in range(4):
                one = socket.socket()
                one.setblocking(False)
                one.connect_ex(listening.getsockname())
                waiting.append(one)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        for one in waiting:
            one.close()
        listening.close()


@pytest.mark.parametrize("accepts", [True, False])
def test_a_read_is_asked_of_the_leader(connect: Callable[..., Any], accepts: bool) -> None:
    with silent(accepts) as frozen, ScriptedServer(STANDS_BY, LEADS, VERSION) as server:
        client = connect([frozen, server.url], options=PATIENT)
        assert client.call("version").version == 50
        assert [asked.target for asked in server.asked] == ["/livez", "/livez", "/v1/version"]


def test_the_outcome_of_a_commit_is_asked_for_before_it_is_tried_again(connect: Callable[..., Any]) -> None:
    committed = Reply(200, {"status": "committed", "version": 60, "leader_id": "ab" * 16})
    with silent() as frozen, ScriptedServer(LEADS, UNKNOWN, committed) as server:
        client = connect([frozen, server.url], options=PATIENT)
        assert client.call("commit", [Write(b"k", b"v")], read_version=50).version == 60
        targets = [asked.target.partition("?")[0] for asked in server.asked]
        request_id = targets[1].removeprefix("/v1/status/")
        assert targets == ["/livez", f"/v1/status/{request_id}", "/v1/commit"]
        assert server.asked[2].json()["request_id"] != request_id


def test_an_open_stream_is_opened_again_at_the_leader(connect: Callable[..., Any]) -> None:
    first, second = transaction(5, 0), transaction(6, 5)
    held, going_on = Stream((first,), hold=True), Stream((second,), hold=True)
    # On a slow machine either is asked more than once.
    with (
        ScriptedServer(held, *[Silence()] * 100) as frozen,
        ScriptedServer(LEADS, *[going_on] * 10) as server,
    ):
        client = connect([frozen.url, server.url], options=PATIENT)
        assert [event.version for event in client.take(2)] == [5, 6]


def test_a_slow_leader_is_not_left_and_answers(connect: Callable[..., Any]) -> None:
    with Slow() as slow, ScriptedServer(LEADS) as server:
        client = connect([slow.url, server.url], options=PATIENT)
        assert client.call("version").version == 50
        assert server.asked == []
        assert slow.signs >= 2


@pytest.mark.parametrize("shell", ["blocking", "asyncio"])
def test_a_subscriber_attaches_at_the_leader(shell: str) -> None:
    options = SubscriberOptions(heartbeat_ms=30_000, timeout_ms=60_000)
    gone = coded(404, "not_found")
    with silent() as frozen, ScriptedServer(LEADS, gone) as server:

        async def tasks() -> None:
            async with aio.StoreClient([frozen, server.url]) as client, client.subscriber("s", "d", options=options):
                pass

        def threads() -> None:
            with StoreClient([frozen, server.url]) as client, client.subscriber("s", "d", options=options):
                pass

        with pytest.raises(NotFound):
            asyncio.run(tasks()) if shell == "asyncio" else threads()
        assert [asked.target.partition("?")[0] for asked in server.asked][1] == "/v1/stores/s/durables/d/subscribe"


def test_a_response_that_was_cut_is_not_taken_for_a_whole_one(connect: Callable[..., Any]) -> None:
    begun = b'HTTP/1.1 200 OK\r\n\r\n{"version": 7, "leader_id": ""}'  # only the end of the connection ends it
    with socket.create_server(("127.0.0.1", 0)) as listening, ScriptedServer(LEADS, VERSION) as server:

        def freeze_in_the_middle() -> None:
            accepted = listening.accept()[0]
            with accepted:
                accepted.recv(1 << 16)
                accepted.sendall(begun)
                accepted.recv(1 << 16)

        frozen = threading.Thread(target=freeze_in_the_middle)
        frozen.start()
        client = connect([f"http://127.0.0.1:{listening.getsockname()[1]}", server.url], options=PATIENT)
        assert client.call("version").version == 50
        frozen.join()


def test_a_connection_whose_wait_was_ended_carries_no_other_request() -> None:
    request = Request("GET", "/v1/version")
    with ScriptedServer(VERSION, VERSION) as server:
        place = parse_endpoint(server.url)
        pool = sockets.Pool(QUICK, None, None)
        wait = sockets.Awaited(place, 0.0)
        connection = sockets.Connection(wait, None, 5.0)
        wait.leave()
        pool.give_back(place, connection)
        assert pool._take(place, sockets.Awaited(place, 0.0)) is None
        pool.close()

        async def tasks() -> None:
            pool = transports.Pool(QUICK, None, None)
            assert isinstance(await pool.exchange(Send(place, request, 5_000)), Response)
            (idle,) = pool._everything
            idle.give_up("left")
            assert pool._take(place) is None
            await pool.aclose()

        asyncio.run(tasks())


class Slow:
    """A leader that gives signs of life, and answers everything else when two of them were asked for."""

    def __init__(self) -> None:
        self.signs = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._lively = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self._listener.accept()[0],), daemon=True).start()

    def _serve(self, accepted: socket.socket) -> None:
        with contextlib.suppress(OSError), accepted:
            while data := accepted.recv(1 << 16):
                if b"/livez" in data:
                    self.signs += 1
                    if self.signs >= 2:
                        self._lively.set()
                    accepted.sendall(LEADS.encoded())
                else:
                    assert self._lively.wait(30)
                    accepted.sendall(VERSION.encoded())


def test_no_thread_is_left_when_nothing_waits_any_more() -> None:
    with silent() as frozen, ScriptedServer(LEADS, VERSION) as server:
        with Client([frozen, server.url], options=PATIENT) as client:
            assert client.version().version == 50
        end = time.monotonic() + 10
        while any(thread.name.startswith("holdfast-") for thread in threading.enumerate()):
            assert time.monotonic() < end, threading.enumerate()
            time.sleep(0.01)


def test_what_waits_for_nothing_delays_no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """One client asks for signs of life while a publisher of the process is idle."""
    ticks, pauses = sockets.Ticks(), list[float]()

    class Target:
        def __init__(self, *busy: bool) -> None:
            self.busy = list(busy)

        def look(self) -> bool:
            return self.busy.pop(0)

    targets = Target(True, False), Target(False, False)
    for target in targets:
        ticks._those.add(target)

    def sleep(seconds: float) -> None:
        pauses.append(seconds * 1000)
        if not targets[0].busy:
            ticks._those.clear()

    monkeypatch.setattr(sockets.time, "sleep", sleep)
    ticks._look()
    assert pauses == [sockets.LOOK_AFTER_MS, sockets.AGAIN_MS, sockets.LOOK_AFTER_MS]
