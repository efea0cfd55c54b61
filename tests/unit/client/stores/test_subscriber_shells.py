"""Laws of the two shells of a subscriber: what they tell the machine, and when. No network, no waiting."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.client.aio import subscriber as aio_subscriber
from holdfast.client.protocol.endpoint import ClientRoute, parse_endpoint
from holdfast.client.protocol.options import ClientOptions, SubscriberOptions
from holdfast.client.protocol.retry_budget import Session
from holdfast.client.protocol.stores.subscriber import Connect, SubscriberMachine, Talk
from holdfast.client.sync import subscriber as sync_subscriber
from holdfast.client.transport import aio, aio_stores, subscribing, sync, sync_stores
from holdfast.errors import InternalError
from holdfast.wire.parts import Delivery


class Clock:
    """What both shells read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = 0.0
        for module in (aio_stores, subscribing, sync_stores):
            monkeypatch.setattr(module, "now_ms", lambda: self.now_ms)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def attached_machine(options: SubscriberOptions) -> SubscriberMachine:
    machine = SubscriberMachine(
        Session(ClientRoute((parse_endpoint("http://store:1"),))),
        "/v1/stores/s/durables/d/subscribe?subscriber=me",
        options,
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
            shell._line = line
            shell._arrived(line, b"part")
            assert isinstance(machine.next_step(now_ms), Talk)
    finally:
        line.close()
        if is_blocking:
            shell.close()


def test_what_is_acknowledged_while_the_thread_sleeps_wakes_it_once_to_send_it_when_it_is_due(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = SubscriberOptions(explicit_ack=True)
    machine = attached_machine(options)
    shell = shell_of(sync_stores.SubscriberDriver, machine, options)
    woken: list[object] = []
    monkeypatch.setattr(shell, "_call_there", woken.append)
    clock.now_ms = 1_000
    shell._timer_ms = 2_000  # until the next probe
    for _ in range(2):
        machine.acknowledge([(DELIVERY.seq, DELIVERY.seq)], clock.now_ms)
        shell.schedule()
    assert woken == [shell._pump]
    step = machine.next_step(1_000)
    assert isinstance(step, Talk) and step.timeout_ms == 100, "for as long as acknowledgements wait for company"


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
    monkeypatch.setattr(subscribing, "now_ms", lambda: 0.0)

    class Read(Halves):
        is_behind = False

    line = Read()
    line.socket.feed = lambda data, machine, now: machine.received(data, now)
    shell._line = line

    def pass_on() -> None:
        shell._arrived(line, WITHDRAWN)
        shell._hears(False)

    thread = threading.Thread(target=pass_on)
    shell._hears(True)
    try:
        with shell.lock:
            thread.start()
            shell.read_all()
            assert [message.seq for message in machine.take_all(0)] == [2]
    finally:
        thread.join()
        line.close()
        shell.close()


def test_an_error_in_a_callback_of_the_thread_ends_the_subscriber() -> None:
    options = SubscriberOptions(explicit_ack=True)
    machine, error = attached_machine(options), AssertionError("a law")
    shell = shell_of(sync_stores.SubscriberDriver, machine, options)
    reported: list[object] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(shell._broken)
        loop.default_exception_handler = reported.append  # type: ignore[method-assign]

        def callback() -> None:
            raise error

        loop.call_soon(callback)
        await asyncio.sleep(0)

    asyncio.run(scenario())
    assert len(reported) == 1
    assert isinstance(machine.failure, InternalError) and machine.failure.__cause__ is error
    with pytest.raises(InternalError):
        machine.acknowledge([(1, 1)], 0)
