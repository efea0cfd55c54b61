"""Laws of the two shells of a subscriber: what they tell the machine, and when. No network, no waiting."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.client.aio import subscriber as aio_subscriber
from holdfast.client.protocol.effects import Wait
from holdfast.client.protocol.endpoint import Route, parse_endpoint
from holdfast.client.protocol.options import ClientOptions, SubscriberOptions
from holdfast.client.protocol.retry_budget import Session
from holdfast.client.protocol.stores.subscriber import Connect, SubscriberMachine, Talk
from holdfast.client.sync import subscriber as sync_subscriber
from holdfast.client.transport import aio, aio_stores, sync, sync_stores
from holdfast.wire.parts import Delivery


class Clock:
    """What both shells read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = 0.0
        for module in (aio_stores, sync_stores):
            monkeypatch.setattr(module, "now_ms", lambda: self.now_ms)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def attached_machine(options: SubscriberOptions) -> SubscriberMachine:
    machine = SubscriberMachine(
        Session(Route((parse_endpoint("http://store:1"),))), "/v1/stores/s/durables/d/subscribe?subscriber=me", options
    )
    assert isinstance(machine.next_step(0), Connect)
    machine.opened(0)
    machine.received(msgspec.msgpack.encode({"type": "attached", "created": False, "prefetch": 8}), 0)
    machine.next_step(0)
    return machine


DELIVERY = Delivery(seq=1, published_ms=0, body=b"a", fields={}, key=None, delivery_count=1, redelivered=False)


class Halves:
    """A line on which bytes come that are no whole frame yet."""

    def __init__(self) -> None:
        here, self._there = socket.socketpair()
        self._there.send(b"part")
        self.connection = SimpleNamespace(socket=here)
        self.socket = SimpleNamespace(feed=lambda _data, machine, now: machine.bytes_arrived(now), is_over=False)

    def say(self, *_: object, **__: object) -> None:
        pass

    def write(self) -> None:
        pass

    def hear(self) -> list[bytes]:
        return [b"part"]

    def close(self) -> None:
        self.connection.socket.close()
        self._there.close()


def shell_of(kind: Any, machine: SubscriberMachine, options: SubscriberOptions) -> Any:
    transport = sync if kind is sync_stores.SubscriberDriver else aio
    return kind(machine, options, None, None, transport.LookoutTask(machine._session.route, ClientOptions(), None))


@pytest.mark.parametrize("is_blocking", [True, False])
def test_a_part_of_a_frame_is_a_sign_of_life(clock: Clock, is_blocking: bool) -> None:
    options = SubscriberOptions(heartbeat_ms=2_000, timeout_ms=5_000)
    machine, line = attached_machine(options), Halves()
    kind = sync_stores.SubscriberDriver if is_blocking else aio_stores.SubscriberDriver
    shell = shell_of(kind, machine, options)
    try:
        for now_ms in (4_000, 8_000, 12_000):
            clock.now_ms = now_ms
            if is_blocking:
                assert shell._talk(line, Talk((), False, 0)) is line
            else:
                shell._line = line
                shell._arrived(line, b"part")
            assert isinstance(machine.next_step(now_ms), Talk)
    finally:
        line.close()
        if is_blocking:
            shell.close()


def test_what_is_acknowledged_while_the_thread_goes_to_sleep_goes_out_when_it_is_due(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = SubscriberOptions(explicit_ack=True)
    machine, line = attached_machine(options), Halves()
    shell = shell_of(sync_stores.SubscriberDriver, machine, options)
    slept: list[float] = []

    def wait(_numbers: list[int], ms: float) -> set[int]:
        slept.append(ms)
        return set()

    def say(*_: object, **__: object) -> None:  # between the machine's step and the sleep, as another thread may
        machine.acknowledge([(DELIVERY.seq, DELIVERY.seq)], clock.now_ms)
        shell.schedule()

    monkeypatch.setattr(shell, "_wait", wait)
    monkeypatch.setattr(line, "say", say)
    try:
        clock.now_ms = 1_000
        step = machine.next_step(1_000)
        assert isinstance(step, Talk) and step.timeout_ms == 1_000, "until the next probe"
        shell._talk(line, step)
        assert slept == [100 + sync_stores.EARLY_MS], "for as long as acknowledgements wait for company"
    finally:
        line.close()
        shell.close()


def frame(**fields: object) -> bytes:
    return msgspec.msgpack.encode(fields)


def messages_frame(*numbers: int) -> bytes:
    return frame(type="messages", messages=[replace(DELIVERY, seq=seq) for seq in numbers])


WITHDRAWN = frame(type="withdrawn", ranges=[[1, 1]], cause="lapsed")


class Unread:
    """A driver whose messages come while the application waits, and are withdrawn before it goes on."""

    def __init__(self, machine: SubscriberMachine) -> None:
        self.lock = nullcontext()
        self._machine = machine
        self._unread = b""

    def start(self) -> None:
        pass

    def report(self) -> None:
        pass

    def wait(self, _timeout_s: float | None) -> None:
        self._machine.received(messages_frame(1, 2), 0)
        self._unread = WITHDRAWN

    def read_all(self) -> None:
        unread, self._unread = self._unread, b""
        if unread:
            self._machine.received(unread, 0)


class UnreadOnALoop(Unread):
    """The same for asyncio."""

    async def wait(self, timeout_s: float | None) -> None:  # type: ignore[override]
        super().wait(timeout_s)

    async def read_all(self) -> None:  # type: ignore[override]
        super().read_all()


@pytest.mark.parametrize("batches", [True, False])
@pytest.mark.parametrize("is_blocking", [True, False])
def test_what_is_withdrawn_while_the_application_wakes_up_is_not_handed_over(batches: bool, is_blocking: bool) -> None:
    machine = attached_machine(SubscriberOptions(explicit_ack=True))
    if is_blocking:
        blocking = sync_subscriber.Subscriber(machine, Unread(machine), is_implicit=False)  # type: ignore[arg-type]
        given = next(blocking.batches()) if batches else [next(blocking)]
    else:
        on_a_loop = aio_subscriber.Subscriber(machine, UnreadOnALoop(machine), is_implicit=False)  # type: ignore[arg-type]

        async def take() -> list[Delivery]:
            return await anext(on_a_loop.batches()) if batches else [await anext(on_a_loop)]

        given = asyncio.run(take())
    assert [message.seq for message in given] == [2]


def test_what_the_thread_has_read_is_passed_on_before_a_message_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds no lock while it reads, so the application may come between."""
    options = SubscriberOptions(explicit_ack=True)
    machine = attached_machine(options)
    machine.received(messages_frame(1, 2), 0)
    shell = shell_of(sync_stores.SubscriberDriver, machine, options)
    is_read, is_locked = threading.Event(), threading.Event()

    class Read(Halves):
        is_behind = False

        def hear(self) -> list[bytes]:
            is_read.set()
            assert is_locked.wait(10)
            return [WITHDRAWN]

    line = Read()
    line.socket.feed = lambda data, machine, now: machine.received(data, now)
    monkeypatch.setattr(sync_stores, "now_ms", lambda: 0.0)
    shell._line = line
    thread = threading.Thread(target=shell._talk, args=(line, Talk((), False, 0)))
    thread.start()
    try:
        assert is_read.wait(10)
        with shell.lock:
            is_locked.set()
            shell.read_all()
            assert [message.seq for message in machine.take_all(0)] == [2]
    finally:
        is_locked.set()
        thread.join()
        line.close()
        shell.close()


def test_a_thread_that_sends_to_a_silent_leader_leaves_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    options = SubscriberOptions(explicit_ack=True)
    machine = attached_machine(options)
    monkeypatch.setattr(sync_stores, "now_ms", lambda: 0.0)
    machine.acknowledge([(1, 1)], 0)
    assert machine.awaited is not None
    shell = shell_of(sync_stores.SubscriberDriver, machine, options)
    is_sending = threading.Event()

    class Full(Halves):
        """The peer reads nothing, and its buffers are full."""

        def say(self, *_: object, **__: object) -> None:
            self.connection.socket.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    self.connection.socket.send(b"x" * 65_536)
            self.connection.socket.settimeout(30)
            is_sending.set()
            self.connection.socket.sendall(b"x")

    line = Full()
    line.connection.cut_off = lambda: sync.cut_off(line.connection.socket)
    shell._line = line
    thread = threading.Thread(target=shell._talk, args=(line, Talk((b"ack",), False, 0)))
    thread.start()
    try:
        assert is_sending.wait(10)
        shell.leave([machine.awaited[0]], 0)
        thread.join(10)
        assert not thread.is_alive(), "it does not wait for its time-out"
        assert isinstance(machine.next_step(0), Wait)
    finally:
        line.close()
        thread.join()
        shell.close()
